"""Builds the network of Theorem 3.2 for given examples, runs it, and checks it by running it.

>>> x = np.array([[0.0], [1.0], [2.0], [3.0]], np.float32)
>>> network, certificate = memorize(x, np.array([0, 1, 0, 1]))
>>> verify(network, x, np.array([0, 1, 0, 1])).errors
0
"""

import dataclasses
from collections.abc import Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from identity_matters.expressivity import adaptive, certificate, paper_method
from identity_matters.expressivity.block import Network, forward, project
from identity_matters.expressivity.capacity import separation
from identity_matters.expressivity.certificate import Certificate
from identity_matters.expressivity.examples import check_examples, distinct_examples

METHODS = ("adaptive", "paper")
# Inputs that pass through the network at once; 4,096 columns of 8 floats stay in a core's cache.
BATCH_EXAMPLES = 4096
# Points whose inner products with as many others are formed at once.
TILE_POINTS = 2048


class Memorized(NamedTuple):
    """A network that was built for its examples, and what is known about it; unpacks into the two.

    Attributes:
      network: the parameters; `apply` and `block.forward` run it.
      certificate: its margins, and whether rounding stays below them.
    """

    network: Network
    certificate: Certificate

    def __call__(self, x: ArrayLike) -> np.ndarray:
        """The outputs for any inputs f[n, d], see `apply`: f[n, r], one-hot where memorised."""
        return apply(self.network, x)

    def predict(self, x: ArrayLike) -> np.ndarray:
        """The labels of any inputs f[n, d]: i64[n], the largest output of each."""
        return np.argmax(self(x), axis=1)


def memorize(
    x: ArrayLike,
    y: ArrayLike,
    num_classes: int | None = None,
    width: int = 8,
    *,
    key: jax.Array | None = None,
    method: str = "adaptive",
    dtype: DTypeLike | None = None,
    certified: bool = True,
    tile_points: int = TILE_POINTS,
) -> Memorized:
    """A residual network that maps every ``x[i]`` to the one-hot vector of ``y[i]``.

    It is built, not trained (Theorem 3.2). Inputs need no normalisation.

    >>> x = np.array([[0.1, 0.2], [0.3, 0.1], [0.2, 0.2]], np.float32)
    >>> memorized = memorize(x, np.array([0, 1, 0]), width=2)
    >>> memorized.predict(x)
    array([0, 1, 0])
    >>> memorized(x).round(3) + 0.0
    array([[1., 0.],
           [0., 1.],
           [1., 0.]], dtype=float32)
    >>> try:
    ...     memorize(x[[0, 1, 0]], np.array([0, 1, 1]))
    ... except ValueError as error:
    ...     print(error, error.indices)
    inputs 0 and 2 are identical but have labels 0 and 1: no network can fit both (0, 2)

    Args:
      x: f[n, d], any distinct finite inputs; equal inputs with equal labels are fine.
      y: integer[n], labels in 0 ... r - 1.
      num_classes: r; one more than the largest label if None.
      width: k, at least 1. There are ceil(m / k) blocks for m distinct inputs. In float32 8 is
        wide enough for tens of thousands of points; in float64 1 is.
      key: typed key; draws the input map and the surrogate labels. None stands for
        ``jax.random.key(0)``: the construction works with almost any draw.
      method: "adaptive", see `adaptive`, or "paper", see `paper_method`.
      dtype: float32 or float64 of the network; that of `x` if None (float32 for integers). float64
        needs ``jax.config.update("jax_enable_x64", True)``.
      certified: whether to raise where the certificate does not hold; otherwise the network is
        returned as it is, perhaps wrong.
      tile_points: memory of the construction is O(tile_points^2 + n k + n d).
    Returns:
      Memorized: call it for outputs, ``predict`` for labels; or unpack (network, certificate).
    Raises:
      ValueError: bad input; ConflictingLabelsError, with the indices, where two equal inputs have
        different labels.
      paper_method.AssumptionError: a ValueError; the data do not satisfy the lemmas ("paper").
      certificate.PrecisionError: a ValueError; `dtype` is too coarse for the margins.
      TypeError: the network would be float64 while JAX has 64-bit types switched off.
    """
    inputs, labels = np.asarray(x), np.asarray(y)
    if method not in METHODS:
        raise ValueError(f"method must be one of {METHODS}, got {method!r}")
    if width < 1:
        raise ValueError(f"width must be at least 1, got {width}")
    dtype = _check_dtype(inputs, dtype)
    if num_classes is None:
        num_classes = _count_classes(labels)
    check_examples(inputs, labels, num_classes)
    kept = distinct_examples(inputs, labels, dtype)
    if len(kept) < len(inputs):
        inputs, labels = inputs[kept], labels[kept]

    map_key, label_key = jax.random.split(jax.random.key(0) if key is None else key)
    rng = np.random.default_rng(np.asarray(jax.random.bits(label_key, (4,), np.uint32)))
    input_map = _draw_input_map(map_key, (width, inputs.shape[1]), dtype)
    if method == "paper":
        paper_method.check_unit_norms(inputs)
        h, eps_h = _project(input_map, inputs)
        plan = paper_method.plan_paper(h, separation(inputs).rho, num_classes, rng, dtype)
    else:
        h, _ = _project(input_map, inputs)
        input_map = (adaptive.whitening(h) @ input_map).astype(dtype)
        h, eps_h = _project(input_map, inputs)
        plan = adaptive.plan_adaptive(h, num_classes, width, tile_points, rng, dtype)
    V, own, pre_activations = certificate.solve_blocks(plan, h, labels, dtype)
    output_V = certificate.solve_output(plan, dtype)
    bounds = certificate.certify(plan, h, labels, V, own, pre_activations, output_V, eps_h, dtype)
    if certified:
        bounds.require()
    parts = (input_map, plan.U, plan.s, V, plan.output_U, plan.output_s, output_V)
    return Memorized(Network(*(jnp.asarray(part, dtype) for part in parts)), bounds)


def _count_classes(y: np.ndarray) -> int:
    """One more than the largest label; what is no label is left to `check_examples`."""
    labelled = y.size and np.issubdtype(y.dtype, np.integer)
    return max(1, int(y.max()) + 1) if labelled else 1


def _check_dtype(x: np.ndarray, dtype: DTypeLike | None) -> np.dtype:
    if dtype is None:
        dtype = x.dtype if np.issubdtype(x.dtype, np.floating) else np.float32
    dtype = np.dtype(dtype)
    if dtype not in (np.float32, np.float64):
        raise ValueError(f"dtype must be float32 or float64, got {dtype}")
    if jnp.result_type(dtype) != dtype:
        raise TypeError(
            'float64 needs jax.config.update("jax_enable_x64", True) first; or pass dtype="float32"'
        )
    return dtype


def _draw_input_map(key, shape, dtype) -> np.ndarray:
    """A_0 with independent N(0, 1/k) entries, which keep norms on average: dtype[k, d]."""
    return np.asarray(jax.random.normal(key, shape, dtype)) / np.sqrt(shape[0]).astype(dtype)


def _project(input_map, x) -> tuple[np.ndarray, float]:
    """``A_0 x`` as the network computes it, f64[n, k], and a bound on its rounding error.

    The error is measured, not derived: worst-case bounds grow with d, and are hundreds of times too
    large for images. Summing the same products in reverse order shows what the order is worth; the
    bound is twice the largest difference seen, plus the rounding of the result.
    """
    h = np.empty((len(x), len(input_map)))
    difference = 0.0
    for start in range(0, len(x), BATCH_EXAMPLES):
        # Converted here and not as a whole: a second copy of x would be most of the memory.
        batch = x[start : start + BATCH_EXAMPLES].astype(input_map.dtype)
        rows = np.asarray(project(input_map, batch), np.float64).T
        if not np.isfinite(rows).all():
            raise ValueError(
                f"the projection of x overflows {input_map.dtype}: scale the inputs down, the"
                f" largest is {np.abs(x).max():.2g}"
            )
        reverse = np.asarray(project(input_map[:, ::-1], batch[:, ::-1]), np.float64).T
        difference = max(difference, np.linalg.norm(rows - reverse, axis=1).max())
        h[start : start + len(rows)] = rows
    largest = np.linalg.norm(h, axis=1).max()
    return h, float(2 * difference + np.finfo(input_map.dtype).eps * largest)


def apply(network: Network, x: ArrayLike, batch_examples: int = BATCH_EXAMPLES) -> np.ndarray:
    """The network's outputs for the rows of `x`, computed batch by batch.

    Args:
      x: f[n, d]; converted to the network's type.
      batch_examples: inputs per batch; memory is O(batch_examples (d + k)), whatever the depth.
    Returns:
      f[n, r], a NumPy array of the network's type.
    """
    return np.concatenate([outputs for _, outputs in _batches(network, x, batch_examples)])


def _batches(
    network: Network, x: ArrayLike, batch_examples: int
) -> Iterator[tuple[slice, np.ndarray]]:
    """Yields the slice of each batch of `x` and the network's outputs on it."""
    d, dtype = network.input_map.shape[1], network.input_map.dtype
    x = np.asarray(x)
    if x.ndim != 2 or x.shape[1] != d or not len(x):
        raise ValueError(f"x must have shape [n, {d}] for this network, n > 0, got {x.shape}")
    for start in range(0, len(x), batch_examples):
        rows = slice(start, start + batch_examples)
        yield rows, np.asarray(forward(network, x[rows].astype(dtype)))


@dataclasses.dataclass(frozen=True)
class Verification:
    """Result of running a network on all its examples.

    Attributes:
      examples: how many were run.
      errors: how many have some output 1/2 or more away from the one-hot label. Every other example
        is classified right by argmax; for r = 1, where argmax says nothing, this still does.
      max_abs_error: max |yhat - y| over all examples and outputs.
    """

    examples: int
    errors: int
    max_abs_error: float


def verify(
    network: Network, x: ArrayLike, y: ArrayLike, batch_examples: int = BATCH_EXAMPLES
) -> Verification:
    """Runs the whole network on every example, knowing nothing of how it was built.

    >>> x, y = np.arange(6.0, dtype=np.float32)[:, None], np.array([0, 1, 0, 1, 1, 0])
    >>> network, _ = memorize(x, y)
    >>> verify(network, x, y).errors, verify(network, x, 1 - y).errors
    (0, 6)

    Args:
      x: f[n, d].
      y: integer[n].
    """
    y = np.asarray(y)
    errors, max_abs_error = 0, 0.0
    for rows, outputs in _batches(network, x, batch_examples):
        difference = outputs.astype(np.float64)
        difference[np.arange(len(outputs)), y[rows]] -= 1.0
        worst = np.abs(difference).max(1)
        # Not "worst >= 1/2": NaN has to count as an error.
        errors += int(np.sum(~(worst < certificate.OUTPUT_TOLERANCE)))
        max_abs_error = float(np.maximum(max_abs_error, worst.max()))
    return Verification(len(y), errors, max_abs_error)
