"""What the experiments of the theory share beside `run`: settings, checks, sums over records."""

import math
from typing import Any

import jax
import ml_collections
import numpy as np

from experiments import run


def config(variant: str, changes: dict[str, Any], common: dict) -> ml_collections.ConfigDict:
    """The settings of `variant`: `common`, with what `changes` has for it.

    The scale is "paper": the statements of the theory have no size, so sizes are our choice.

    Raises:
      ValueError: `changes` has no such variant.
    """
    if variant not in changes:
        raise ValueError(f"variant must be one of {', '.join(changes)}, got {variant!r}")
    settings = {"variant": variant, "scale": "paper", **common, **dict(changes[variant])}
    return ml_collections.ConfigDict(settings)


def require_positive(trial: dict, but: tuple[str, ...] = ()) -> None:
    """Raises ValueError unless all numbers of a trial, those in tuples too, are above 0.

    Those named in `but` may be anything.
    """
    numbers = {k: v for k, v in trial.items() if k not in but and not isinstance(v, str | bool)}
    run.require_between(0, math.inf, **numbers)


def generator(key) -> np.random.Generator:
    """NumPy's generator for a trial: for small arrays JAX would compile one for every shape."""
    return np.random.default_rng(np.asarray(jax.random.key_data(key)))


def where(records: list[dict], **values) -> list[dict]:
    """The records that have these values."""
    return [r for r in records if all(r[name] == value for name, value in values.items())]


def total(records: list[dict], name: str):
    """The sum of one field."""
    return sum(record[name] for record in records)


def largest(records: list[dict], name: str, default=None):
    """The largest value of one field; `default` without records."""
    return max((record[name] for record in records), default=default)


def least(records: list[dict], name: str, default=None):
    """The least value of one field; `default` without records."""
    return min((record[name] for record in records), default=default)


def joined(records: list[dict], name: str) -> np.ndarray:
    """The values of one field, numbers or lists of any shape, in one row."""
    return np.concatenate([np.ravel(record[name]) for record in records])
