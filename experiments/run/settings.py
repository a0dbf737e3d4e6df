"""An experiment's settings: `get_config`, checks, and the name of a changed run.

The comments on settings, beside or above the lines that give them values, are what
--help says of them (`help_text`).
"""

import hashlib
import json
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import ml_collections

from identity_matters import runs

# The verdict of a run of changed settings: the claim is about others.
NO_VERDICT = "not comparable"
# How error messages describe the values of a setting, by type.
_DESCRIPTIONS = {
    int: "whole numbers",
    float: "finite numbers",
    str: "text",
    bool: "True or False",
}


def configs(
    changes: dict[str, dict], common: dict | None = None
) -> Callable[..., ml_collections.ConfigDict]:
    """Makes an experiment's `get_config`, which maps a variant to its settings.

    The settings are `common`, updated with ``changes[variant]``. The first variant is
    the default, and "paper" the default scale: theorems hold at any size.
    """
    default = next(iter(changes))

    def get_config(variant: str = default) -> ml_collections.ConfigDict:
        if variant not in changes:
            raise ValueError(
                f"variant must be one of {', '.join(changes)}, got {variant!r}"
            )
        settings = {
            "variant": variant,
            "scale": "paper",
            **(common or {}),
            **changes[variant],
        }
        return ml_collections.ConfigDict(settings)

    return get_config


def require_between(low: float, high: float, **settings: Any) -> None:
    """Refuses empty settings and numbers in them that are not strictly in between.

    Raises:
      ValueError: names the setting.
    """
    for name, value in settings.items():
        leaves = list(_leaves(value))
        if not leaves:
            raise ValueError(f"{name} must hold at least one value, but is empty")
        numbers = [leaf for leaf in leaves if not isinstance(leaf, str | bool)]
        inside = all(
            low < number and (number < high or high == math.inf) for number in numbers
        )
        if not inside:
            needed = f"above {low}" if high == math.inf else f"between {low} and {high}"
            raise ValueError(f"{name} must be {needed}, got {value}")


def check_settings(defaults: dict, settings: dict) -> None:
    """Refuses what ml_collections lets pass in settings that differ from the defaults.

    These are wrong types in tuples, tuples of another depth, NaN, infinity, and, in a
    file of settings, names that are missing or unknown.

    Raises:
      ValueError: names the setting.
    """
    _check_names(defaults, settings)
    for group, values in defaults.items():
        if _is_plain_group(values) and _is_of_same_kind(values, settings[group]):
            _check_names(values, settings[group], f"{group}.")
    before = runs.flat(defaults)
    now = runs.flat(settings)
    for name in before.keys() & now.keys():
        if before[name] != now[name]:
            _check_value(name, before[name], now[name])


def _is_plain_group(values: Any) -> bool:
    """Whether these are settings with fixed names, unlike a dict of nets to compare."""
    return isinstance(values, dict) and not any(
        isinstance(value, dict) for value in values.values()
    )


def _is_of_same_kind(values: dict, changed: Any) -> bool:
    """Whether a group still describes the same net, say: others have other settings."""
    return isinstance(changed, dict) and values.get("name") == changed.get("name")


def _check_names(defaults: dict, settings: dict, prefix: str = "") -> None:
    """Raises ValueError unless both have the same names."""
    if unknown := settings.keys() - defaults.keys():
        raise ValueError(
            f"there is no setting {prefix}{min(unknown)}; --help lists them"
        )
    if missing := defaults.keys() - settings.keys():
        raise ValueError(f"the setting {prefix}{min(missing)} is missing")


def _check_value(name: str, default: Any, value: Any) -> None:
    """Refuses a value unless its types and its depth are those of the default.

    A default without entries, or with entries of several types, says nothing about
    types.
    """
    needed = _type_of_entries(default)
    if needed is None:
        return
    for leaf in _leaves(value):
        if not _fits(leaf, needed):
            raise ValueError(f"{name} must hold {_DESCRIPTIONS[needed]}, got {leaf!r}")
    if not _depths(value) <= _depths(default):
        raise ValueError(f"{name} must be nested like {default!r}, got {value!r}")


def _type_of_entries(default: Any) -> type | None:
    """The type of all entries, float for numbers of both types; None if unknown."""
    types = {type(leaf) for leaf in _leaves(default)}
    if types == {int, float}:
        return float
    if len(types) == 1 and types <= _DESCRIPTIONS.keys():
        return types.pop()
    return None


def _depths(value: Any) -> set[int]:
    """In how many tuples the entries of a setting lie."""
    if isinstance(value, tuple | list):
        return {1 + depth for entry in value for depth in _depths(entry)}
    return {0}


def _fits(value: Any, needed: type) -> bool:
    if needed is float:
        return type(value) in (int, float) and math.isfinite(value)
    return type(value) is needed


def _leaves(value: Any) -> Iterator[Any]:
    """The entries of nested tuples, lists and dicts; None is skipped."""
    if isinstance(value, dict):
        for name in value:
            yield from _leaves(value[name])
    elif isinstance(value, tuple | list):
        for entry in value:
            yield from _leaves(entry)
    elif value is not None:
        yield value


class RunName(NamedTuple):
    """A run's name: its variant or VARIANT@HASH, its scale, and what was changed."""

    variant: str
    scale: str
    changed: dict


def name_run(config: dict, defaults: dict) -> RunName:
    """The name of a run with these settings.

    If they differ from the variant's own, other than in `runs.PLACE_SETTINGS`, a hash
    of the changes is part of the name, and the run counts as reduced.

    Args:
      config: the settings with "variant" and "scale".
      defaults: the variant's own settings.
    """
    differences = runs.differences(
        {name: value for name, value in defaults.items() if name != "scale"},
        {name: value for name, value in config.items() if name != "scale"},
    )
    changed = {name: now for name, (_, now) in differences.items()}
    if not changed:
        return RunName(config["variant"], config["scale"], {})
    digest = hashlib.sha256(json.dumps(changed, sort_keys=True).encode()).hexdigest()
    return RunName(f"{config['variant']}@{digest[:8]}", "reduced", changed)
