"""Weights rounded to whole multiples of a step, in one byte each.

That is a quarter of float32; compressed, as orbax keeps arrays, it is less still, as
small multiples are frequent. Arrays that have few numbers stay as they are.
"""

import numbers

import numpy as np

# Smaller arrays save too little to be worth the rounding error.
LEAST_SIZE = 10_000


def to_multiples(
    arrays: dict[str, np.ndarray], step: float
) -> tuple[dict[str, np.ndarray], list[str]]:
    """The arrays, the large float32 ones among them as whole multiples of `step`.

    Args:
      arrays: by name.
      step: above 0. An array with a number beyond 127 steps stays as it is.
    Returns:
      The arrays, i8 where they are multiples, and the names of those.
    Raises:
      ValueError: `step` is not a positive number in float32.
    """
    is_number = isinstance(step, numbers.Real) and not isinstance(step, bool)
    limits = np.finfo(np.float32)
    if not (is_number and float(limits.tiny) <= step <= float(limits.max)):
        raise ValueError(f"rounded_to must be a positive number, got {step!r}")
    stored = {}
    rounded = []
    for name, array in arrays.items():
        stored[name] = array
        if array.dtype == np.float32 and array.size >= LEAST_SIZE:
            multiples = np.rint(array / np.float32(step))
            if np.abs(multiples).max() <= np.iinfo(np.int8).max:
                stored[name] = multiples.astype(np.int8)
                rounded.append(name)
    return stored, rounded


def from_multiples(
    arrays: dict[str, np.ndarray], *, step: float, rounded: list[str]
) -> dict[str, np.ndarray]:
    """The arrays that `to_multiples` was given, rounded, in float32."""
    return arrays | {
        name: arrays[name].astype(np.float32) * np.float32(step) for name in rounded
    }
