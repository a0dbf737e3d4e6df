"""Rounding to a precision, and how far rounded sums of products may be off."""

import math

import numpy as np
from numpy.typing import DTypeLike


def round_to(array: np.ndarray, dtype: DTypeLike) -> np.ndarray:
    """`array` in the numbers of `dtype`, as float64; subnormal ones are 0."""
    rounded = array.astype(dtype)
    rounded[np.abs(rounded) < np.finfo(dtype).tiny] = 0
    return rounded.astype(np.float64)


def gamma(terms: int, dtype: DTypeLike) -> float:
    """``m u / (1 - m u)``, relative rounding error of a sum of m products.

    In every order of summation, |computed - exact| <= gamma sum |term|, if nothing
    underflows and each operation rounds to nearest, with unit roundoff u (Higham 2002,
    section 3.1). Infinite if m u >= 1.
    """
    total = terms * float(np.finfo(dtype).eps) / 2
    return total / (1 - total) if total < 1 else math.inf
