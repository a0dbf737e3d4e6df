"""Names that a package offers, whose modules are imported when a name is first asked for."""

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def attach(package: str, names: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """The ``__getattr__`` of a package that imports what it offers on first use (PEP 562).

    So ``from identity_matters.linear import factorize`` works, and the package alone costs nothing
    to import: an entry point pays for the modules that it names.

    Args:
      package: its ``__name__``.
      names: module below the package -> the names that it offers from there.
    """
    home = {name: f"{package}.{module}" for module, own in names.items() for name in own}

    def get(name: str) -> Any:
        if name not in home:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(home[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    return get
