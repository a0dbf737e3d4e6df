"""Shared by the commands: where runs are, and one-line errors for a bad command line."""

import collections
import pathlib
import sys
from collections.abc import Callable

import rich.console
from absl import app, flags

from identity_matters import runs

# A run that `reproduce` forks defines flags of the same names, hence allow_override.
RESULTS_DIR = flags.DEFINE_string(
    "results_dir", "results/local", "Your runs, and their report.", allow_override=True
)
REFERENCE_DIR = flags.DEFINE_string("reference_dir", "results/reference", "The committed runs.")


def console() -> rich.console.Console:
    """A console on standard output; without a terminal rich would wrap lines at 80 columns."""
    return rich.console.Console(soft_wrap=not sys.stdout.isatty(), highlight=False)


def counted(verdicts: collections.Counter) -> str:
    """The number of each verdict as text: "3 holds, 1 undecided"."""
    return ", ".join(f"{count} {said}" for said, count in verdicts.most_common())


def run(main: Callable[[list[str]], int], takes: str = "") -> None:
    """Calls `main` with the positional arguments and exits with the code that it returns.

    For a wrong flag or argument, or a RunError or ValidationError from `main`, it prints one line
    and exits with code 2. `takes` says what the arguments are; if empty, none are taken.
    """
    app.define_help_flags()
    try:
        arguments = flags.FLAGS(sys.argv)[1:]
        if bool(arguments) != bool(takes):
            wrong = f"name {takes}" if takes else f"unknown argument {arguments[0]!r}"
            raise flags.ValidationError(wrong)
        for flag in (RESULTS_DIR, REFERENCE_DIR):
            if "://" in flag.value:
                wrong = f"--{flag.name} must be on this machine; copy {flag.value} here first"
                raise flags.ValidationError(wrong)
        code = main(arguments)
    except (flags.Error, runs.RunError) as error:
        print(f"{pathlib.Path(sys.argv[0]).stem}: {runs.first_line(error)}", file=sys.stderr)
        code = 2
    sys.exit(code)
