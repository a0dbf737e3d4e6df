"""What verdicts are made of: their words, and sums and extremes over records."""

import math
from typing import Any

import numpy as np

# The verdicts that confirm a claim.
CONFIRMED = ("holds", "reproduced")


def reproduced(holds: bool) -> str:
    """The verdict on an empirical statement."""
    return "reproduced" if holds else "not reproduced"


def under_attack(refuted: bool, attacked: bool = False) -> str:
    """The verdict on a statement under attack.

    Args:
      refuted: whether an attack succeeded.
      attacked: whether the attacks were strong enough to count if all of them failed.
    """
    if refuted:
        return "counterexample"
    return "holds" if attacked else "undecided"


def holds_nan(value: Any) -> bool:
    """Whether a value, or an entry of lists and dicts in it, is a NaN."""
    if isinstance(value, dict):
        return any(map(holds_nan, value.values()))
    if isinstance(value, list | tuple):
        return any(map(holds_nan, value))
    return isinstance(value, float) and math.isnan(value)


def where(records: list[dict], **values) -> list[dict]:
    """The records whose fields have these values."""
    return [
        record
        for record in records
        if all(record[name] == value for name, value in values.items())
    ]


def total(records: list[dict], name: str):
    """The sum of one field."""
    return sum(record[name] for record in records)


def seconds_with_compiling(records: list[dict]) -> float:
    """The wall time of records of trainings, whose "seconds" are without compiling."""
    return total(records, "seconds") + total(records, "compile_seconds")


def largest(records: list[dict], name: str, default=None):
    """The largest value of one field; `default` without records."""
    return max((record[name] for record in records), default=default)


def least(records: list[dict], name: str):
    """The least value of one field; None without records."""
    return min((record[name] for record in records), default=None)


def joined(records: list[dict], name: str) -> np.ndarray:
    """All values of one field, numbers or lists of any shape, as one flat array."""
    return np.concatenate([[], *(np.ravel(record[name]) for record in records)])
