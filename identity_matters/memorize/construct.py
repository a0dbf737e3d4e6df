"""Builds the network of Theorem 3.2 for given examples, runs it, checks its outputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from identity_matters import matrices
from identity_matters.checks import (
    check_choice,
    check_whole,
    label_array,
    plain_array,
)
from identity_matters.memorize import (
    adaptive,
    certificate,
    gaussian,
    input_map,
    paper_method,
)
from identity_matters.memorize.certificate import Certificate, PrecisionError, remedy
from identity_matters.memorize.examples import (
    check_dtype,
    check_inputs,
    check_key,
    check_memory,
    check_precision,
    distinct_examples,
    largest_entry,
    random_generator,
    shape_and_advice,
)
from identity_matters.memorize.network import Network, forward, network_parameters
from identity_matters.memorize.plan import Plan, Solution, in_blocks
from identity_matters.memorize.rounding import round_to

METHODS = ("adaptive", "paper")
# Inputs that pass through the network at once;
# 4,096 columns of 8 floats stay in a core's cache.
BATCH_EXAMPLES = 4096
TILE_POINTS = 2048
# float64 copies of the network that building it holds at a time.
WORKING_COPIES = 6


class Memorized(NamedTuple):
    """A network, which `apply` and `forward` run, and its certificate."""

    network: Network
    certificate: Certificate

    def __call__(self, x: ArrayLike) -> np.ndarray:
        """The outputs f[n, r] for inputs f[n, d], one-hot where memorised."""
        return apply(self.network, x)

    def predict(self, x: ArrayLike) -> np.ndarray:
        """The predicted labels, i64[n], for inputs f[n, d]: argmax of the outputs."""
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

    It is built, not trained (Theorem 3.2). In exact arithmetic any distinct inputs can
    be fitted at any width; in float32 or float64 the margins must exceed rounding,
    which is checked. Call the result for outputs and its `predict` for labels, or
    unpack it as (network, certificate).

    >>> x = np.array([[0.1, 0.2], [0.3, 0.1], [0.2, 0.2]], np.float32)
    >>> memorized = memorize(x, np.array([0, 1, 0]), width=2)
    >>> memorized.predict(x)
    array([0, 1, 0])
    >>> memorized(x).round(3) + 0.0
    array([[1., 0.],
           [0., 1.],
           [1., 0.]], dtype=float32)
    >>> classes, y = np.unique(["cat", "dog", "cat"], return_inverse=True)
    >>> classes[memorize(x, y).predict(x)].tolist()
    ['cat', 'dog', 'cat']
    >>> try:
    ...     memorize(x[[0, 1, 0]], np.array([0, 1, 1]))
    ... except ValueError as error:
    ...     print(error, error.indices)
    inputs 0 and 2 are identical but have labels 0 and 1: no network can fit both (0, 2)

    Args:
      x: f[n, d], finite. They need no normalisation; equal inputs with equal labels are
        fine.
      y: integer[n], labels in 0 ... r - 1.
      num_classes: r, or None for the largest label plus one.
      width: k >= 1; m distinct inputs take ceil(m / k) blocks. CIFAR-10 needs 8 in
        float32, 1 in float64; points on a line, far from 0 or in close pairs may need
        float64 at any width.
      key: typed PRNG key for the input map and surrogate labels; ``jax.random.key(0)``
        if None.
      method: "adaptive", see `adaptive`, or "paper", see `paper_method`.
      dtype: float32 or float64; None is float64 if x is and JAX has 64-bit types on,
        else float32.
      certified: if False, a network is returned even if its certificate does not hold.
      tile_points: memory of the construction is O(tile_points^2 + n k + n d).
    Raises:
      ValueError: bad input, or a network that does not fit into memory. Three
        subclasses: ConflictingLabelsError for equal inputs with different labels,
        AssumptionError if data do not satisfy the lemmas ("paper"), PrecisionError if
        `dtype` is too coarse for the margins.
      TypeError: `dtype` is float64, but JAX has 64-bit types switched off.
    """
    check_choice("method", method, METHODS)
    x = plain_array("x", x)
    dtype = check_dtype(x, dtype)
    width = check_whole("width", width)
    tile_points = check_whole("tile_points", tile_points)
    key = check_key(key)
    inputs, labels, num_classes = distinct_examples(x, y, num_classes, dtype)
    parameters = network_parameters(len(inputs), inputs.shape[1], num_classes, width)
    check_memory(
        WORKING_COPIES * np.dtype(np.float64).itemsize * parameters,
        f"a network of width {width} for {len(inputs)} inputs and {num_classes}"
        f" classes, with {parameters:.3g} parameters,",
    )
    map_key, label_key = jax.random.split(key)
    rng = random_generator(label_key)
    A_0 = _draw_map(map_key, width, inputs, method=method, dtype=dtype)
    h = _project(A_0, inputs)
    if method == "adaptive":
        plan = adaptive.plan_adaptive(
            h, num_classes=num_classes, tile_points=tile_points, rng=rng, dtype=dtype
        )
    else:
        plan = paper_method.plan_paper(
            h, inputs, num_classes=num_classes, rng=rng, dtype=dtype
        )
    solution = solve(plan, h, labels, dtype)
    bounds = certificate.certify(plan, h, labels, solution, dtype)
    if certified:
        bounds.require()
    network = Network(
        input_map=jnp.asarray(A_0, dtype),
        U=jnp.asarray(plan.U, dtype),
        V=jnp.asarray(solution.V, dtype),
        s=jnp.asarray(plan.s, dtype),
        output_U=jnp.asarray(plan.output_U, dtype),
        output_V=jnp.asarray(solution.output_V, dtype),
        output_s=jnp.asarray(plan.output_s, dtype),
    )
    return Memorized(network, bounds)


def _draw_map(
    key: jax.Array, width: int, x: np.ndarray, *, method: str, dtype: np.dtype
) -> np.ndarray:
    """A random A_0, f[k, d], for the rows of x, rounded so that A_0 x is exact."""
    # Independent N(0, 1/k) entries, which preserve norms on average.
    A_0 = gaussian.normal(key, (width, x.shape[1]), dtype)
    A_0 = A_0 / np.sqrt(width).astype(dtype)
    if method == "adaptive":
        A_0 = _whitened_map(A_0, x)
    return input_map.round_map(A_0)


def _whitened_map(A_0: np.ndarray, x: np.ndarray) -> np.ndarray:
    """A map, f[k, d], after which the rows of x have variance about 1 everywhere."""
    # Scaling by a power of two gives inputs of any size projections of ordinary size.
    largest_shift = np.finfo(A_0.dtype).maxexp - input_map.margin_bits(A_0.dtype)
    _, exponent = np.frexp(largest_entry(x))
    A_0 = np.ldexp(A_0, -np.clip(exponent, -largest_shift, largest_shift))
    return _normal_product(adaptive.whitening(_project(A_0, x)), A_0)


def _normal_product(whitening: np.ndarray, A_0: np.ndarray) -> np.ndarray:
    """``whitening @ A_0``, times a power of two if it would leave the normal range."""
    info = np.finfo(A_0.dtype)
    margin = input_map.margin_bits(A_0.dtype)
    exponent = matrices.exponents(whitening) + matrices.exponents(A_0)
    target = np.clip(exponent, info.minexp + margin, info.maxexp - margin)
    return (np.ldexp(whitening, target - exponent) @ A_0).astype(A_0.dtype)


def _project(A_0: np.ndarray, x: np.ndarray) -> np.ndarray:
    """``A_0 x`` as the network computes it: f64[n, k].

    Raises PrecisionError if x has subnormal entries that matter: the network takes them
    for zero.
    """
    h = np.empty((len(x), len(A_0)))
    for start in range(0, len(x), BATCH_EXAMPLES):
        # Converted batch by batch: a second copy of x would take most of the memory.
        batch = x[start : start + BATCH_EXAMPLES].astype(A_0.dtype)
        if input_map.flushes(batch):
            raise PrecisionError(
                f"entries of x below {np.finfo(A_0.dtype).tiny:.2g}, the least normal"
                f" {A_0.dtype}, are zero on some devices, and matter here: scale the"
                f" inputs up; the largest entry is {largest_entry(x):.2g}"
            )
        h[start : start + len(batch)] = np.asarray(input_map.project(A_0, batch)).T
    return h


def solve(plan: Plan, h: np.ndarray, y: np.ndarray, dtype: DTypeLike) -> Solution:
    """The second layers: ``V relu(U a + s) = q_y - a`` for all points a of a block.

    Args:
      plan: the first layers.
      h: f64[n, k], the points as the network computes them.
      y: integer[n], labels.
      dtype: of the network.
    Raises:
      PrecisionError: a unit is not positive on its own point, or a block is singular.
    """
    n, width = h.shape
    points = in_blocks(h[plan.order], width)
    moves = in_blocks(plan.surrogates[y[plan.order]] - h[plan.order], width)
    # f64[l, k, k], [block, unit, point of the same block]
    pre_activations = plan.U @ points.transpose(0, 2, 1) + plan.s[:, :, None]
    _require_positive_on_own_point(pre_activations, plan.order, dtype)
    activations = np.maximum(pre_activations, 0)
    # Units beyond n are zero. A one on the diagonal keeps the system regular and makes
    # their columns of V zero.
    block, unit = np.divmod(np.arange(n, len(activations) * width), width)
    activations[block, :, unit] = 0
    activations[block, unit, unit] = 1
    try:
        V = np.linalg.solve(activations.transpose(0, 2, 1), moves).transpose(0, 2, 1)
    except np.linalg.LinAlgError:
        raise PrecisionError(
            f"inputs of a block differ too much in size for {np.dtype(dtype)};"
            f" {remedy(np.dtype(dtype).name)}"
        ) from None
    return Solution(
        V=round_to(V, dtype),
        output_V=solve_output(plan, dtype),
        pre_activations=pre_activations,
    )


def _require_positive_on_own_point(
    pre_activations: np.ndarray, order: np.ndarray, dtype: DTypeLike
) -> None:
    """PrecisionError unless each unit, f64[l, k, k], is positive on its own point."""
    n = len(order)
    on_own_point = np.diagonal(pre_activations, axis1=1, axis2=2).reshape(-1)[:n]
    if not (on_own_point > 0).all():
        i = order[np.argmin(on_own_point)]
        raise PrecisionError(
            f"{np.dtype(dtype)} cannot tell the projection of input {i} from that of"
            f" another one (margin {on_own_point.min():.2g});"
            f" {remedy(np.dtype(dtype).name)}"
        )


def solve_output(plan: Plan, dtype: DTypeLike) -> np.ndarray:
    """The V of the last block, f64[r, r], which maps q_j to the one-hot e_j.

    ``output_V relu(output_U q_j + output_s) = e_j`` for all j. PrecisionError if two of
    the q_j are equal in this precision.
    """
    activations = np.maximum(
        plan.output_U @ plan.surrogates.T + plan.output_s[:, None], 0
    )
    try:
        output_V = np.linalg.inv(activations)
    except np.linalg.LinAlgError:
        raise PrecisionError(
            f"{np.dtype(dtype)} cannot tell the surrogate labels of two classes apart;"
            f" {remedy(np.dtype(dtype).name)}"
        ) from None
    return round_to(output_V, dtype)


def apply(
    network: Any,
    x: ArrayLike,
    batch_examples: int = BATCH_EXAMPLES,
    run: Callable = forward,
) -> np.ndarray:
    """The outputs, f[n, r], for the rows of x, f[n, d], in the network's dtype.

    Memory is O(batch_examples (d + k)) at any depth.

    Args:
      network: what `run` takes.
      x: f[n, d].
      batch_examples: rows that pass through the network at once.
      run: the forward pass; the networks of `few_numbers` need
        ``run=few_numbers.forward``, and so on.
    Raises:
      ValueError: x has the wrong shape, or does not hold real numbers that are finite
        in the network's dtype.
      TypeError: `network` is not what `run` takes, or of float64, but JAX has 64-bit
        types switched off.
    """
    _check_network(network, run)
    check_precision(network)
    _, d = network.input_map.shape
    dtype = network.input_map.dtype
    x = plain_array("x", x)
    batch_examples = check_whole("batch_examples", batch_examples)
    if x.ndim != 2 or x.shape[1] != d or not len(x):
        raise ValueError(
            f"x must have shape [n, {d}] for this network, n > 0, got"
            f" {shape_and_advice(x)}"
        )
    check_inputs(x, dtype)
    outputs = []
    for start in range(0, len(x), batch_examples):
        batch = x[start : start + batch_examples].astype(dtype)
        outputs.append(np.asarray(run(network, batch)))
    return np.concatenate(outputs)


def _check_network(network: Any, run: Callable) -> None:
    """TypeError unless it is a network, and of the kind that `forward` runs if that is.

    The functions that build networks return pairs, of which it is the first part.
    """
    kind = type(network)
    if not hasattr(network, "input_map"):
        raise TypeError(
            "network must be the network itself, which is the first part of what"
            f" `memorize` returns, got a {kind.__name__}"
        )
    if run is forward and not isinstance(network, Network):
        raise TypeError(
            f"a network of {kind.__module__} is run by the `forward` there: pass it as"
            f" run, got a {kind.__name__}"
        )


class Verification(NamedTuple):
    """Result of running a network on all its examples.

    Attributes:
      errors: examples with an output 1/2 or more off the one-hot label. Argmax is right
        for all others, but says nothing if r = 1.
      max_abs_error: the largest |yhat - y|.
    """

    errors: int
    max_abs_error: float


def verify(
    network: Any,
    x: ArrayLike,
    y: ArrayLike,
    batch_examples: int = BATCH_EXAMPLES,
    run: Callable = forward,
) -> Verification:
    """Runs the network on x, f[n, d], and compares the outputs with y, integer[n].

    `batch_examples`, `run` and the errors are as in `apply`; y that is not one integer
    for each row of x is a ValueError. A label that is not a class, such as -1, counts
    as an error of the network.

    >>> x, y = np.arange(6.0, dtype=np.float32)[:, None], np.array([0, 1, 0, 1, 1, 0])
    >>> network, _ = memorize(x, y)
    >>> verify(network, x, y).errors, verify(network, x, 1 - y).errors
    (0, 6)
    """
    outputs = apply(network, x, batch_examples, run).astype(np.float64)
    y = label_array("y", y, len(outputs))
    # A label that is no class has the row of zeros and so counts as an error.
    outputs -= y[:, None] == np.arange(outputs.shape[1])
    worst = np.abs(outputs).max(1)
    # Not "worst >= 1/2": NaN has to count as an error.
    errors = int(np.sum(~(worst < certificate.OUTPUT_TOLERANCE)))
    return Verification(errors, float(worst.max()))
