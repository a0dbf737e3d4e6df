"""Weights rounded to whole multiples of a step, in one byte each.

That is a quarter of float32; compressed, as orbax keeps arrays, it is less still, as
small multiples are frequent. Arrays that have few numbers stay as they are.
"""

import numpy as np

# An array with fewer numbers is not worth an error.
LEAST_SIZE = 10_000


def check_step(step: float) -> None:
    """Raises ValueError unless `step` is a positive number."""
    if not (isinstance(step, int | float) and 0 < step < float("inf")):
        raise ValueError(f"rounded_to must be a positive number, got {step!r}")


def to_multiples(
    arrays: dict[str, np.ndarray], step: float
) -> tuple[dict[str, np.ndarray], list[str]]:
    """The arrays, the large float32 ones among them as whole multiples of `step`.

    Args:
      arrays: by name.
      step: above 0. An array with a number beyond 127 steps stays as it is.
    Returns:
      The arrays, i8 where they are multiples, and the names of those.
    """
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
