"""Shared by the commands: where runs are, what is printed, one-line errors.

Runs may come from others, and their paths and values may hold anything. Whatever a
command prints goes through `show`, `complain` or a `console`, which let no control
character through.
"""

import collections
import io
import pathlib
import sys
from collections.abc import Callable
from typing import Any

import rich.console
import rich.text
from absl import app, flags

from identity_matters import runs
from identity_matters.paths import expand_home

# A run that `reproduce` forks defines flags of the same names, hence allow_override.
RESULTS_DIR = flags.DEFINE_string(
    "results_dir", "results/local", "Your runs, and their report.", allow_override=True
)
REFERENCE_DIR = flags.DEFINE_string(
    "reference_dir", "results/reference", "The committed runs."
)


class Console(rich.console.Console):
    """A console on standard output, without control characters and markup."""

    def __init__(self) -> None:
        # Without a terminal rich would wrap lines at 80 columns.
        super().__init__(
            soft_wrap=not sys.stdout.isatty(), highlight=False, markup=False
        )

    def print(self, *objects: Any, **options: Any) -> None:
        super().print(*map(_shown, objects), **options)


def _shown(value: Any) -> Any:
    """Text without control characters; tables and the like as they are."""
    if isinstance(value, str):
        return runs.visible(value)
    if isinstance(value, rich.text.Text):
        clean = value.copy()
        # of the same length, so its styles still fit
        clean.plain = runs.visible(value.plain)
        return clean
    return value


def show(text: object) -> None:
    """Prints one line to standard output."""
    print(runs.visible(text))


def complain(text: object) -> None:
    """Prints one line to standard error."""
    print(runs.visible(text), file=sys.stderr)


def counted(verdicts: collections.Counter) -> str:
    """The number of each verdict as text: "3 holds, 1 undecided"."""
    return ", ".join(f"{count} {verdict}" for verdict, count in verdicts.most_common())


def run(main: Callable[[list[str]], int], takes: str = "") -> None:
    """Calls `main` with the positional arguments, and exits with the code it returns.

    For a wrong flag or argument, a RunError, a ValidationError or a failure of the
    machine (an OSError) in `main`, it prints one line and exits with code 2. `takes`
    describes the positional arguments for error messages; empty means there are none.
    """
    app.define_help_flags()
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show a character gets a question mark.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        arguments = flags.FLAGS(sys.argv)[1:]
        if bool(arguments) != bool(takes):
            wrong = f"name {takes}" if takes else f"unknown argument {arguments[0]!r}"
            raise flags.ValidationError(wrong)
        for flag in (RESULTS_DIR, REFERENCE_DIR):
            flags.FLAGS[flag.name].value = _directory(flag.name, flag.value)
        code = main(arguments)
    except (flags.Error, runs.RunError, OSError) as error:
        complain(f"{pathlib.Path(sys.argv[0]).stem}: {runs.first_line(error)}")
        code = 2
    sys.exit(code)


def _directory(name: str, value: str) -> str:
    """The value of a flag that names a directory on this machine."""
    if "://" in value:
        raise flags.ValidationError(
            f"--{name} must be on this machine; copy {value} here first"
        )
    try:
        return expand_home(value)
    except ValueError as error:
        raise flags.ValidationError(str(error)) from None
