"""A flax module as text that a checkpoint can hold, and the module again.

The text names the class and its fields, so a net can be loaded without the code that
made it. It is read without running anything that it says: fields are Python literals,
and the class must be a flax module of this package or of a module that the reader has
imported already.
"""

import ast
import dataclasses
import importlib
import sys
from typing import Any

import flax.linen as nn

_PACKAGE = __name__.partition(".")[0]
_OF_FLAX = ("parent", "name")  # fields of every module that say nothing about the net
# Advice for errors of `make` that go away if the caller passes the net.
_ADVICE = "pass the same net as net=..."
# Modules that have moved since some checkpoints were written: old name -> new name.
_MOVED_MODULES = {"identity_matters.nets.rivals": "identity_matters.nets.baselines"}


class NetUnknownError(ValueError):
    """The net cannot be made from its description; the message says what to do."""


def check_is_linen(net: Any) -> None:
    """Raises ValueError unless `net` is a `flax.linen.Module`."""
    if isinstance(net, nn.Module):
        return
    if isinstance(net, type):
        raise ValueError(
            f"net must be an instance, got the class {net.__name__} itself"
        )
    if any(parent.__module__.startswith("flax.nnx") for parent in type(net).__mro__):
        raise ValueError(
            f"net must be a flax.linen.Module, got {type(net).__name__}, which is of"
            " flax.nnx: it holds its own variables, and these functions pass them in"
        )
    raise ValueError(f"net must be a flax.linen.Module, got {type(net).__name__}")


def describe(net: nn.Module) -> dict:
    """{"class": "MODULE:NAME", "fields": {name: literal}}, JSON-able.

    "fields" is None if a field, such as a function, is not a literal; then `make` needs
    the net itself.
    """
    net_class = type(net)
    literals = {
        field.name: _literal(getattr(net, field.name))
        for field in dataclasses.fields(net)
        if field.init and field.name not in _OF_FLAX
    }
    return {
        "class": f"{net_class.__module__}:{net_class.__qualname__}",
        "fields": None if None in literals.values() else literals,
    }


def make(description: dict, net: nn.Module | None = None) -> nn.Module:
    """The net that `description` describes; `net`, if given, is checked and returned.

    Raises NetUnknownError if `net` is a different one, or is needed and missing.
    """
    if net is not None:
        _check_is_described(net, description)
        return net
    module_name, _, class_name = description["class"].partition(":")
    module_name = _MOVED_MODULES.get(module_name, module_name)
    if description["fields"] is None:
        raise NetUnknownError(
            f"the net, a {class_name} of {module_name}, has a field that cannot be"
            f" stored: {_ADVICE}"
        )
    net_class = _find_class(module_name, class_name)
    fields = {
        name: ast.literal_eval(text) for name, text in description["fields"].items()
    }
    try:
        return net_class(**fields)
    except (TypeError, ValueError) as error:
        raise NetUnknownError(
            f"{class_name} is a different class here ({error}): {_ADVICE}"
        ) from None


def _check_is_described(net: nn.Module, description: dict) -> None:
    """Raises NetUnknownError unless the description is of a net like this one.

    The module of its class may be another: a class that was written in a notebook is of
    "__main__" there, and may have moved to a file since.
    """
    check_is_linen(net)
    given = describe(net)
    if _class_and_fields(given) != _class_and_fields(description):
        raise NetUnknownError(
            f"net must be the one that was saved, {_text(description)}, got"
            f" {_text(given)}"
        )


def _class_and_fields(description: dict) -> tuple[str, dict | None]:
    """The name of the class without its module, and the fields."""
    return description["class"].partition(":")[2], description["fields"]


def _find_class(module_name: str, class_name: str) -> type[nn.Module]:
    """The flax module `class_name`; raises NetUnknownError if it cannot be had.

    Only modules of this package are imported: another could run anything.
    """
    if module_name.partition(".")[0] == _PACKAGE:
        try:
            importlib.import_module(module_name)
        except ImportError:
            raise NetUnknownError(
                f"this version has no module {module_name}: {_ADVICE}"
            ) from None
    net_class: Any = sys.modules.get(module_name)
    if net_class is None:
        raise NetUnknownError(
            f"the net is a {class_name} of {module_name}: import that module first, or"
            f" {_ADVICE}"
        )
    # A class may stand in another: "Outer.Inner".
    for part in class_name.split("."):
        net_class = getattr(net_class, part, None)
    if not (isinstance(net_class, type) and issubclass(net_class, nn.Module)):
        raise NetUnknownError(
            f"{module_name} has no flax module {class_name} here: {_ADVICE}"
        )
    return net_class


def _literal(value: Any) -> str | None:
    """`value` as text that `ast.literal_eval` reads back; None if there is none."""
    text = repr(value)
    try:
        same = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None
    return text if repr(same) == text else None


def _text(description: dict) -> str:
    """The net as an error names it: "Mlp(depth=2)", or "a Mlp" without its fields."""
    class_name = description["class"].partition(":")[2]
    if description["fields"] is None:
        return f"a {class_name}"
    fields = (f"{name}={value}" for name, value in description["fields"].items())
    return f"{class_name}({', '.join(fields)})"
