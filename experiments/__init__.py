"""Entry points, ``python -m experiments.NAME``: each a claim, figure or table of the paper.

A file, here or in images/, is an experiment if it defines EXPERIMENT. The other entry points are
the commands compare, promote, report and reproduce, and images.prepare_data.
"""

import importlib
import pathlib

HERE = pathlib.Path(__file__).resolve().parent
# Where a module lists variants, and what --help says of those. The first belong to the
# reproduction, the second where there is an accelerator; the others need prepared data or time.
KINDS = {
    "VARIANTS": "",
    "ACCELERATOR_VARIANTS": "needs an accelerator",
    "OTHER_VARIANTS": "only when named",
}


# Name of each experiment -> its module; by text, so that asking imports nothing.
MODULES = {
    path.stem: ".".join(path.relative_to(HERE.parent).with_suffix("").parts)
    for path in sorted([*HERE.glob("*.py"), *HERE.glob("images/*.py")])
    if "\nEXPERIMENT = " in path.read_text(encoding="utf-8")
}


def find(name: str):
    """The `run.Experiment` called `name`."""
    return importlib.import_module(MODULES[name]).EXPERIMENT


def variants(name: str, *kinds: str) -> tuple[str, ...]:
    """The variants of an experiment, of some of `KINDS` or of all."""
    module = find(name).settings_module
    return tuple(v for kind in kinds or KINDS for v in getattr(module, kind, ()))


def find_variants(name: str, wanted: str) -> list[str]:
    """The variants called `wanted`, or all of the data set `wanted` where they are DATASET/MODEL.

    Raises:
      ValueError: there is none; the message lists those there are.
    """
    known = variants(name)
    found = [variant for variant in known if variant == wanted or variant.startswith(f"{wanted}/")]
    if not found:
        raise ValueError(f"{name} has no variant {wanted!r}; it has {', '.join(known)}")
    return found
