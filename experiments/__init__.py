"""The experiments, and the commands on their results: ``python -m experiments.NAME``.

A file, here or in images/, is an experiment if it defines EXPERIMENT; most reproduce a
claim, figure or table. The commands are compare, judge, promote, report and reproduce,
and images.prepare_data. All other files are parts of these and are not run themselves.
"""

import importlib
import os
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
# Name of a module's list of variants -> the note that --help prints beside each. `make
# reproduce` runs the first and, on an accelerator, the second; the others need prepared
# data or more time.
KINDS = {
    "VARIANTS": "",
    "ACCELERATOR_VARIANTS": "needs an accelerator",
    "OTHER_VARIANTS": "not part of `make reproduce`",
}

# Name of each experiment -> its module,
# found by a text search so that nothing is imported.
MODULES = {
    path.stem: ".".join(path.relative_to(HERE.parent).with_suffix("").parts)
    for path in sorted([*HERE.glob("*.py"), *HERE.glob("images/*.py")])
    if "\nEXPERIMENT = " in path.read_text(encoding="utf-8")
}


def open_closed_streams() -> None:
    """Opens what is closed of standard input, output and error, to nowhere.

    Otherwise a file of a run could get the number of standard error, and whatever a
    library says would be written into it.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
        if getattr(sys, name) is None:
            mode = "r" if name == "stdin" else "w"
            setattr(sys, name, os.fdopen(number, mode, encoding="utf-8", closefd=False))


open_closed_streams()  # here, before any library is imported


def find(name: str):
    """The `run.Experiment` called `name`."""
    return importlib.import_module(MODULES[name]).EXPERIMENT


def variants(name: str, *kinds: str) -> tuple[str, ...]:
    """The variants of an experiment: those of the given `KINDS`, by default all."""
    module = find(name).settings_module
    return tuple(
        variant for kind in kinds or KINDS for variant in getattr(module, kind, ())
    )


def find_variants(name: str, wanted: str) -> list[str]:
    """The variants `wanted` or ``{wanted}/...``, as for "cifar10".

    Raises:
      ValueError: there is none.
    """
    known = variants(name)
    matching = [
        variant
        for variant in known
        if variant == wanted or variant.startswith(f"{wanted}/")
    ]
    if not matching:
        raise ValueError(f"{name} has no variant {wanted!r}; it has {', '.join(known)}")
    return matching
