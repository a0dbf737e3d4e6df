"""What the two networks of whole numbers share: their examples and the projection."""

import numpy as np
from numpy.typing import ArrayLike

from identity_matters.checks import plain_array
from identity_matters.memorize.construct import BATCH_EXAMPLES, WORKING_COPIES
from identity_matters.memorize.examples import (
    check_dtype,
    check_memory,
    distinct_examples,
)


def whole_examples(
    x: ArrayLike, y: ArrayLike, num_classes: int | None
) -> tuple[np.ndarray, np.ndarray, int]:
    """The examples of `memorize`, checked, distinct, and of whole numbers.

    Args:
      x: whole numbers [n, d] of any type.
      y: integer[n], labels.
      num_classes: r, or None for the largest label plus one.
    Returns:
      x and y without repeated inputs, and r.
    Raises:
      ValueError: bad input, such as fractions.
      TypeError: JAX has 64-bit types switched off.
    """
    x = plain_array("x", x)
    check_dtype(x, np.float64)
    points, labels, num_classes = distinct_examples(x, y, num_classes, np.float64)
    if points.dtype.kind == "f" and not (points == np.rint(points)).all():
        raise ValueError(
            "x must hold whole numbers, as pixels are: multiply x and round"
        )
    return points, labels, num_classes


def check_numbers_fit(numbers: int, examples: int, num_classes: int) -> None:
    """Raises ValueError unless a network of so many numbers fits into memory."""
    check_memory(
        WORKING_COPIES * np.dtype(np.float64).itemsize * numbers,
        f"a network of {numbers:.3g} numbers for {examples} inputs and"
        f" {num_classes} classes",
    )


def distinct_projections(x: np.ndarray, a: np.ndarray) -> np.ndarray | None:
    """``t_i = <a, x_i>``, i64[n], or None if two of them are equal.

    x holds whole numbers [n, d], and a too, f64[d]; all partial sums are below 2^53.
    """
    # Batch by batch, since a copy of x in float64 would take most of the memory.
    batches = np.split(x, range(BATCH_EXAMPLES, len(x), BATCH_EXAMPLES))
    t = np.concatenate([batch.astype(np.float64) @ a for batch in batches])
    if len(np.unique(t)) < len(t):
        return None
    return t.astype(np.int64)
