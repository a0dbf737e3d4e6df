"""Checks that the planners of experiments share: what is wrong with a setting, and its value."""

import math
from collections.abc import Callable, Iterable
from typing import Any


def require(condition: bool, name: str, needed: str, found: Any) -> None:
    """Raises ValueError with the value found, unless `condition` holds."""
    if not condition:
        raise ValueError(f"{name} must be {needed}, got {found}")


def require_all(name: str, values: Iterable[Any], fits: Callable[[Any], bool], needed: str) -> None:
    """Raises ValueError unless there are values and each of them fits."""
    values = tuple(values)
    if not values:
        raise ValueError(f"{name} must be {needed}, but is empty")
    for value in values:
        require(fits(value), name, needed, value)


def require_counts(name: str, *values: int) -> None:
    """Raises ValueError unless all are at least 1."""
    require_all(name, values, lambda value: value >= 1, "at least 1")


def require_radii(name: str, *values: float) -> None:
    """Raises ValueError unless all are above 0 and below 1."""
    require_all(name, values, lambda value: 0 < value < 1, "between 0 and 1")


def require_positive(name: str, *values: float) -> None:
    """Raises ValueError unless all are positive and finite."""
    require_all(name, values, lambda value: 0 < value < math.inf, "positive")


def require_at_least_0(name: str, *values: float) -> None:
    """Raises ValueError unless none is negative."""
    require_all(name, values, lambda value: value >= 0, "at least 0")


def require_range(name: str, bounds: Iterable[float]) -> None:
    """Raises ValueError unless `bounds` are two finite numbers in increasing order."""
    bounds = tuple(bounds)
    if len(bounds) != 2 or not -math.inf < bounds[0] < bounds[1] < math.inf:
        raise ValueError(f"{name} must be (low, high) with low < high, got {bounds}")
