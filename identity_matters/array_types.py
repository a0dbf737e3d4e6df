"""Types of arguments that may come from NumPy or from JAX, and whole numbers."""

import operator
from typing import Any

import jax
import numpy as np

# An array with a shape and a dtype of its own; `numpy.typing.ArrayLike` may be a list as well.
Array = jax.Array | np.ndarray


def check_whole(name: str, value: Any, least: int = 1, reason: str = "") -> int:
    """Returns `value` as an int.

    Raises:
      ValueError: it is not a whole number, or below `least`; `reason` says why that is needed.
    """
    try:
        if isinstance(value, bool):
            raise TypeError
        whole = operator.index(value)
    except TypeError:
        raise ValueError(f"{name} must be a whole number, got {value!r}") from None
    if whole < least:
        raise ValueError(f"{name} must be at least {least}{reason}, got {whole}")
    return whole
