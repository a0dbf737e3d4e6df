"""What the two networks of whole numbers share: their examples and the projection."""

import numpy as np
from numpy.typing import ArrayLike

from identity_matters.checks import plain_array
from identity_matters.memorize.certificate import PrecisionError
from identity_matters.memorize.construct import BATCH_EXAMPLES, WORKING_COPIES
from identity_matters.memorize.examples import (
    check_dtype,
    check_memory,
    distinct_examples,
)

# How often an input map is drawn before it is given up.
PROJECTION_DRAWS = 100


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


def check_network_fits(
    points: np.ndarray, *, num_classes: int, width: int, numbers_per_point: int
) -> None:
    """Raises ValueError unless the network for the points, [n, d], fits into memory."""
    n, d = points.shape
    # The last block has r + 2 units; it is the largest part if there are many classes.
    output_numbers = (num_classes + 2) * (num_classes + width + 1)
    numbers = output_numbers + d + numbers_per_point * n
    check_memory(
        WORKING_COPIES * np.dtype(np.float64).itemsize * numbers,
        f"a network of {numbers:.3g} numbers for {n} inputs and {num_classes} classes",
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


def no_projection(largest: int, line_bits: int) -> PrecisionError:
    """The error if no map tells inputs up to `largest` apart within 2^line_bits."""
    return PrecisionError(
        f"inputs up to {largest} project beyond 2^{line_bits} or coincide: scale them"
        " down"
    )
