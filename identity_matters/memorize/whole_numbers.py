"""What the two networks of whole numbers share before they are built.

These are their examples and the projection to a line. The blocks that they share are in
`digit_reader`.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from identity_matters.checks import plain_array
from identity_matters.memorize.certificate import PrecisionError
from identity_matters.memorize.construct import BATCH_EXAMPLES, WORKING_COPIES
from identity_matters.memorize.examples import (
    check_float64,
    check_memory,
    distinct_examples,
    largest_entry,
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
    check_float64()
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


class InputMap(NamedTuple):
    """A row ``a = kron(rows, columns)`` of whole numbers; any row if `rows` is (1).

    Attributes:
      rows: i64[d1].
      columns: i64[d2], where d1 d2 = d.
    """

    rows: np.ndarray
    columns: np.ndarray

    @property
    def entries(self) -> np.ndarray:
        """The row a, i64[d]."""
        return np.kron(self.rows, self.columns)


def doubling_ranges(first: int, largest: int) -> Iterator[int]:
    """A range for each draw of an input map: each is twice the one before.

    They go from `first` up to `largest`, and stay there; if that is 0, there are none.
    """
    largest_entry_of_map = min(first, largest)
    for _ in range(PROJECTION_DRAWS if largest else 0):
        yield largest_entry_of_map
        largest_entry_of_map = min(2 * largest_entry_of_map, largest)


def dense_input_maps(
    features: int, ranges: Iterable[int], rng: np.random.Generator
) -> Iterator[InputMap]:
    """For each range, a map of d = `features` random numbers up to it in size."""
    for largest in ranges:
        yield InputMap(
            rows=np.ones(1, np.int64),
            columns=rng.integers(-largest, largest, features, endpoint=True),
        )


class Line(NamedTuple):
    """The inputs on a line: ``t_i = <a, x_i>``, where a is the row of `input_map`.

    Attributes:
      input_map: a.
      t: i64[n], distinct.
      largest_sum: a bound on the size of all partial sums of <a, x>.
    """

    input_map: InputMap
    t: np.ndarray
    largest_sum: int


def largest_whole_number(x: np.ndarray) -> int:
    """The largest absolute value in x, and at least 1."""
    return max(1, int(largest_entry(x)))


def first_separating_line(
    x: np.ndarray, input_maps: Iterable[InputMap], *, line_bits: int
) -> Line:
    """The inputs on the line of the first map that tells them apart.

    Args:
      x: whole numbers [n, d], distinct rows.
      input_maps: the maps to try; all partial sums are below 2^line_bits <= 2^53.
      line_bits: the bits of the line, for the message.
    Raises:
      PrecisionError: no map tells the inputs apart, or there is none to try.
    """
    largest = largest_whole_number(x)
    for input_map in input_maps:
        a = input_map.entries
        t = _projections(x, a)
        if len(np.unique(t)) == len(t):
            return Line(
                input_map=input_map,
                t=t.astype(np.int64),
                largest_sum=int(np.abs(a).sum()) * largest,
            )
    raise PrecisionError(
        f"inputs up to {largest} project beyond 2^{line_bits} or coincide: scale them"
        " down"
    )


def _projections(x: np.ndarray, a: np.ndarray) -> np.ndarray:
    """``t_i = <a, x_i>``, f64[n], for whole numbers x, [n, d], and a, [d]."""
    a = a.astype(np.float64)
    # Batch by batch, since a copy of x in float64 would take most of the memory.
    batches = np.split(x, range(BATCH_EXAMPLES, len(x), BATCH_EXAMPLES))
    return np.concatenate([batch.astype(np.float64) @ a for batch in batches])
