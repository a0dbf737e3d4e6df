"""Helpers for experiments: settings and their checks, trials, verdicts, sums over
records.
"""

import itertools
import math
from collections.abc import Callable
from typing import Any

import jax
import ml_collections
import numpy as np


def configs(changes: dict[str, dict], common: dict | None = None) -> Callable[..., Any]:
    """Makes an experiment's `get_config`: variant -> `common`, updated with
    `changes[variant]`.

    The first variant is the default, and "paper" the default scale: theorems hold at
    any size.
    """

    def get_config(variant: str = next(iter(changes))) -> ml_collections.ConfigDict:
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


def grid(**several) -> list[dict]:
    """One dict for each combination of one value per name; the last name varies
    fastest.
    """
    rows = itertools.product(*several.values())
    return [dict(zip(several, row, strict=True)) for row in rows]


def without(settings: dict, *names: str) -> dict:
    return {name: value for name, value in settings.items() if name not in names}


def each(settings: dict, several: dict[str, str], **first) -> list[dict]:
    """One trial for each combination of values of `several`, with all other settings
    unchanged.

    `several` maps a setting with several values to the trial's name for one of them, or
    to names for its parts: "width depth". Missing settings are skipped; the last one
    varies fastest. Fields in `first` come first. Raises ValueError if a value does not
    have one part per name.
    """
    trials = [first | without(settings, *several)]
    for setting, called in several.items():
        names = called.split()
        if setting in settings:
            values = [v if len(names) > 1 else (v,) for v in settings[setting]]
            if wrong := [v for v in values if len(v) != len(names)]:
                raise ValueError(
                    f"each of {setting} must be ({', '.join(names)}), got {wrong[0]}"
                )
            trials = [
                t | dict(zip(names, v, strict=True)) for t in trials for v in values
            ]
    return trials


def require_between(low: float, high: float, **settings: Any) -> None:
    """Raises ValueError for an empty setting, or a number in it that is not strictly in
    between.
    """
    for name, value in settings.items():
        leaves = jax.tree.leaves(value)
        if not leaves:
            raise ValueError(f"{name} must hold at least one value, but is empty")
        numbers = [leaf for leaf in leaves if not isinstance(leaf, str | bool)]
        if not all(low < n and (n < high or high == math.inf) for n in numbers):
            needed = f"above {low}" if high == math.inf else f"between {low} and {high}"
            raise ValueError(f"{name} must be {needed}, got {value}")


def reproduced(holds: bool) -> str:
    """The verdict on an empirical statement."""
    return "reproduced" if holds else "not reproduced"


def under_attack(refuted: bool, attacked: bool = False) -> str:
    """The verdict on a statement under attack; undecided if neither `refuted` nor
    `attacked`.
    """
    return "counterexample" if refuted else "holds" if attacked else "undecided"


def generator(key) -> np.random.Generator:
    """A NumPy generator seeded by a trial's key; JAX would compile a sampler for every
    shape.
    """
    return np.random.default_rng(np.asarray(jax.random.key_data(key)))


def where(records: list[dict], **values) -> list[dict]:
    return [
        r for r in records if all(r[name] == value for name, value in values.items())
    ]


def total(records: list[dict], name: str):
    return sum(record[name] for record in records)


def largest(records: list[dict], name: str, default=None):
    """The largest value of one field; `default` without records."""
    return max((record[name] for record in records), default=default)


def least(records: list[dict], name: str, default=None):
    """The least value of one field; `default` without records."""
    return min((record[name] for record in records), default=default)


def joined(records: list[dict], name: str) -> np.ndarray:
    """All values of one field, numbers or lists of any shape, as one flat array."""
    return np.concatenate([[], *(np.ravel(record[name]) for record in records)])
