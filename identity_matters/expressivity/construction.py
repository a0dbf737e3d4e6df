"""Builds the network of Theorem 3.2 for given examples, runs it, and checks it by running it.

network, certificate = memorize(x, y, num_classes=10, width=8, key=jax.random.key(0))
verify(network, x, y).errors  # 0
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from identity_matters.expressivity import adaptive, certificate, paper_method
from identity_matters.expressivity.block import Network, forward, project
from identity_matters.expressivity.capacity import separation
from identity_matters.expressivity.examples import check_examples, distinct_examples

METHODS = ("adaptive", "paper")
# Inputs that pass through the network at once; 4,096 columns of 8 floats stay in a core's cache.
BATCH_EXAMPLES = 4096
# Points whose inner products with as many others are formed at once.
TILE_POINTS = 2048


def memorize(
    x,
    y,
    num_classes: int,
    width: int,
    *,
    key,
    method: str = "adaptive",
    dtype=None,
    certified: bool = True,
    tile_points: int = TILE_POINTS,
):
    """A residual network that maps every ``x[i]`` to the one-hot vector of ``y[i]``.

    Args:
      x: f[n, d], any distinct finite inputs; equal inputs with equal labels are fine.
      y: integer[n], labels in 0 ... r - 1.
      num_classes: r.
      width: k, at least 1. There are ceil(m / k) blocks for m distinct inputs.
      key: typed key; draws the input map and the surrogate labels.
      method: "adaptive", see `adaptive`, or "paper", see `paper_method`.
      dtype: float32 or float64 of the network; that of `x` if None (float32 for integers).
      certified: whether to raise where the certificate does not hold; otherwise the network is
        returned as it is, perhaps wrong.
      tile_points: memory of the construction is O(tile_points^2 + n k + n d).
    Returns:
      (Network, Certificate).
    Raises:
      ValueError: bad input; two equal inputs with different labels.
      paper_method.AssumptionError: a ValueError; the data do not satisfy the lemmas ("paper").
      certificate.PrecisionError: a ValueError; `dtype` is too coarse for the margins.
      TypeError: `dtype` is float64 while JAX has 64-bit types switched off.
    """
    x, y = np.asarray(x), np.asarray(y)
    if method not in METHODS:
        raise ValueError(f"method must be one of {METHODS}, got {method!r}")
    if width < 1:
        raise ValueError(f"width must be at least 1, got {width}")
    dtype = _check_dtype(x, dtype)
    check_examples(x, y, num_classes)
    kept = distinct_examples(x, y, dtype)
    if len(kept) < len(x):
        x, y = x[kept], y[kept]

    map_key, label_key = jax.random.split(key)
    rng = np.random.default_rng(np.asarray(jax.random.bits(label_key, (4,), np.uint32)))
    input_map = _draw_input_map(map_key, (width, x.shape[1]), dtype)
    if method == "paper":
        paper_method.check_unit_norms(x)
        h, eps_h = _project(input_map, x)
        plan = paper_method.plan_paper(h, separation(x).rho, num_classes, rng, dtype)
    else:
        h, _ = _project(input_map, x)
        input_map = (adaptive.whitening(h) @ input_map).astype(dtype)
        h, eps_h = _project(input_map, x)
        plan = adaptive.plan_adaptive(h, num_classes, width, tile_points, rng, dtype)
    V, own, pre_activations = certificate.solve_blocks(plan, h, y, dtype)
    output_V = certificate.solve_output(plan, dtype)
    bounds = certificate.certify(plan, h, y, V, own, pre_activations, output_V, eps_h, dtype)
    if certified:
        bounds.require()
    parts = (input_map, plan.U, plan.s, V, plan.output_U, plan.output_s, output_V)
    return Network(*(jnp.asarray(part, dtype) for part in parts)), bounds


def _check_dtype(x, dtype) -> np.dtype:
    if dtype is None:
        dtype = x.dtype if np.issubdtype(x.dtype, np.floating) else np.float32
    dtype = np.dtype(dtype)
    if dtype not in (np.float32, np.float64):
        raise ValueError(f"dtype must be float32 or float64, got {dtype}")
    if jnp.result_type(dtype) != dtype:
        raise TypeError('float64 needs jax.config.update("jax_enable_x64", True) first')
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


def apply(network: Network, x, batch_examples: int = BATCH_EXAMPLES) -> np.ndarray:
    """The network's outputs for the rows of `x`, computed batch by batch.

    Args:
      x: f[n, d]; converted to the network's type.
      batch_examples: inputs per batch; memory is O(batch_examples (d + k)), whatever the depth.
    Returns:
      f[n, r], a NumPy array of the network's type.
    """
    return np.concatenate([outputs for _, outputs in _batches(network, x, batch_examples)])


def _batches(network: Network, x, batch_examples: int):
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


def verify(network: Network, x, y, batch_examples: int = BATCH_EXAMPLES) -> Verification:
    """Runs the whole network on every example, knowing nothing of how it was built."""
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
