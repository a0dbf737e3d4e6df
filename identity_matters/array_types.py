"""The array type for arguments from NumPy or JAX, and a check for whole numbers."""

import operator
from typing import Any

import jax
import numpy as np

# Has a shape and a dtype, unlike `numpy.typing.ArrayLike`, which may also be a list.
Array = jax.Array | np.ndarray


def check_whole(name: str, value: Any, least: int = 1, reason: str = "") -> int:
    """`value` as an int; ValueError, with `reason`, unless it is whole and at least `least`."""
    try:
        if isinstance(value, bool):
            raise TypeError
        whole = operator.index(value)
    except TypeError:
        raise ValueError(f"{name} must be a whole number, got {value!r}") from None
    if whole < least:
        raise ValueError(f"{name} must be at least {least}{reason}, got {whole}")
    return whole
