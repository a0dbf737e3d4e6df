"""Builds the network of Theorem 3.2 for given examples, runs it and checks its outputs."""

import hashlib
import os
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from identity_matters import jax_settings
from identity_matters.checks import check_whole
from identity_matters.memorize import adaptive, certificate, paper_method
from identity_matters.memorize.certificate import Certificate, PrecisionError, remedy
from identity_matters.memorize.network import (
    Network,
    Plan,
    forward,
    in_blocks,
    network_parameters,
    project,
)

METHODS = ("adaptive", "paper")
# Inputs that pass through the network at once; 4,096 columns of 8 floats stay in a core's cache.
BATCH_EXAMPLES = 4096
TILE_POINTS = 2048
# The scaling of A_0 stays this many bits away from underflow and overflow.
ROOM_BITS = 28
# More classes than this, and than examples, are not inferred: such labels are probably names.
MOST_INFERRED_CLASSES = 1000
# float64 copies of the network that building it holds at a time.
WORKING_COPIES = 6


class Memorized(NamedTuple):
    """A network, which `apply` and `forward` run, and its certificate."""

    network: Network
    certificate: Certificate

    def __call__(self, x: ArrayLike) -> np.ndarray:
        """The outputs f[n, r] for inputs f[n, d], one-hot where memorised; see `apply`."""
        return apply(self.network, x)

    def predict(self, x: ArrayLike) -> np.ndarray:
        """The predicted labels, i64[n], for inputs f[n, d]: the argmax of the outputs."""
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

    It is built, not trained (Theorem 3.2). In exact arithmetic any distinct inputs can be fitted at
    any width; in float32 or float64 the margins must exceed rounding, which is checked. Call the
    result for outputs and its `predict` for labels, or unpack it as (network, certificate).

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
      x: f[n, d], finite. They need no normalisation; equal inputs with equal labels are fine.
      y: integer[n], labels in 0 ... r - 1; num_classes: r, or None for the largest label plus one.
      width: k >= 1; m distinct inputs take ceil(m / k) blocks. CIFAR-10 needs 8 in float32, 1 in
        float64; points on a line, far from 0 or in close pairs may need float64 at any width.
      key: typed PRNG key for the input map and surrogate labels; ``jax.random.key(0)`` if None.
      method: "adaptive", see `adaptive`, or "paper", see `paper_method`.
      dtype: float32 or float64; None is float64 if x is and JAX has 64-bit types on, else float32.
      certified: if False, a network is returned even if its certificate does not hold.
      tile_points: memory of the construction is O(tile_points^2 + n k + n d).
    Raises:
      ValueError: bad input, or a network that does not fit into memory. Three subclasses:
        ConflictingLabelsError for equal inputs with different labels, AssumptionError if data do
        not satisfy the lemmas ("paper"), PrecisionError if `dtype` is too coarse for the margins.
      TypeError: `dtype` is float64, but JAX has 64-bit types switched off.
    """
    if method not in METHODS:
        raise ValueError(f"method must be one of {METHODS}, got {method!r}")
    dtype = check_dtype(np.asarray(x), dtype)
    width = check_whole("width", width)
    inputs, labels, num_classes = distinct_examples(x, y, num_classes, dtype)
    check_memory(len(inputs), inputs.shape[1], num_classes, width)
    map_key, label_key = jax.random.split(jax_settings.random_key(0) if key is None else key)
    rng = np.random.default_rng(np.asarray(jax.random.bits(label_key, (4,), np.uint32)))
    # Independent N(0, 1/k) entries, which preserve norms on average.
    input_map = np.asarray(jax.random.normal(map_key, (width, inputs.shape[1]), dtype))
    input_map = input_map / np.sqrt(width).astype(dtype)
    if method == "paper":
        h, eps_h = _project(input_map, inputs)
        plan = paper_method.plan_paper(h, inputs, num_classes, rng, dtype)
    else:
        # Scaling by a power of two gives inputs of any size projections of ordinary size.
        reach = np.finfo(dtype).maxexp - ROOM_BITS
        exponent = np.frexp(largest_entry(inputs))[1]
        input_map = np.ldexp(input_map, -np.clip(exponent, -reach, reach))
        h, _ = _project(input_map, inputs)
        input_map = _normal_product(adaptive.whitening(h), input_map)
        h, eps_h = _project(input_map, inputs)
        plan = adaptive.plan_adaptive(h, num_classes, tile_points, rng, dtype)
    V, own, pre_activations = solve_blocks(plan, h, labels, dtype)
    output_V = solve_output(plan, dtype)
    bounds = certificate.certify(plan, h, labels, V, own, pre_activations, output_V, eps_h, dtype)
    if certified:
        bounds.require()
    parts = (input_map, plan.U, plan.s, V, plan.output_U, plan.output_s, output_V)
    return Memorized(Network(*(jnp.asarray(part, dtype) for part in parts)), bounds)


def _normal_product(whitening, input_map) -> np.ndarray:
    """``whitening @ input_map``, times a power of two if it would leave the normal range."""
    info = np.finfo(input_map.dtype)
    exponent = sum(np.frexp(np.abs(a).max())[1] for a in (whitening, input_map))
    target = np.clip(exponent, info.minexp + ROOM_BITS, info.maxexp - ROOM_BITS)
    product = (np.ldexp(whitening, target - exponent) @ input_map).astype(input_map.dtype)
    # Some devices flush subnormal numbers to zero; with zeros all agree.
    product[np.abs(product) < info.tiny] = 0
    return product


def _project(input_map, x) -> tuple[np.ndarray, float]:
    """``A_0 x`` as the network computes it, f64[n, k], and an estimate of its rounding error.

    The error is measured by summing in reverse as well: worst-case bounds are far too large. Raises
    PrecisionError if subnormal inputs, which some devices flush to zero, matter more than rounding.
    """
    h = np.empty((len(x), len(input_map)))
    difference = underflow = 0.0
    info = np.finfo(input_map.dtype)
    for start in range(0, len(x), BATCH_EXAMPLES):
        # Converted batch by batch: a second copy of x would take most of the memory.
        batch = x[start : start + BATCH_EXAMPLES].astype(input_map.dtype)
        rows = np.asarray(project(input_map, batch), np.float64).T
        size = np.abs(batch)
        subnormal = (size < info.tiny) & (size > 0)
        if subnormal.any():
            lost = np.where(subnormal, size, 0).astype(np.float64) @ np.abs(input_map).T
            underflow = max(underflow, np.linalg.norm(lost, axis=1).max())
        reverse = np.asarray(project(input_map[:, ::-1], batch[:, ::-1]), np.float64).T
        difference = max(difference, np.linalg.norm(rows - reverse, axis=1).max())
        h[start : start + len(rows)] = rows
    rounding = 2 * difference + info.eps * np.linalg.norm(h, axis=1).max() + x.shape[1] * info.tiny
    if underflow > rounding:
        raise PrecisionError(
            f"entries of x below {info.tiny:.2g}, the least normal {input_map.dtype}, are zero on"
            " some devices, and matter here: scale the inputs up; the largest entry is"
            f" {largest_entry(x):.2g}"
        )
    return h, float(rounding + underflow)


def solve_blocks(
    plan: Plan, h: np.ndarray, y: np.ndarray, dtype: DTypeLike
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """V of every block, rounded to `dtype`: ``V relu(U a + s) = q - a`` for all its points a.

    h: f64[n, k], the points as the network computes them; y: integer[n]. Returns V f64[l, k, k],
    own margins f64[n] in plan.order, and pre-activations f64[l, k, k], [block, unit, point]. Raises
    PrecisionError if a unit is not positive on its own point, or a block is singular.
    """
    width = h.shape[1]
    points = in_blocks(h[plan.order], width)
    moves = in_blocks(plan.surrogates[y[plan.order]] - h[plan.order], width)
    pre_activations = plan.U @ points.transpose(0, 2, 1) + plan.s[:, :, None]
    own = np.diagonal(pre_activations, axis1=1, axis2=2).reshape(-1)[: len(h)]
    if not (own > 0).all():
        i = plan.order[np.argmin(own)]
        raise PrecisionError(
            f"{np.dtype(dtype)} cannot tell the projection of input {i} from that of another one"
            f" (margin {own.min():.2g}); {remedy(np.dtype(dtype).name)}"
        )
    activations = np.maximum(pre_activations, 0)
    # Units beyond n are zero; a one on the diagonal keeps the system nonsingular.
    spare = np.arange(len(h), pre_activations.shape[0] * width)
    activations[spare // width, spare % width, spare % width] = 1.0
    try:
        V = np.linalg.solve(activations.transpose(0, 2, 1), moves).transpose(0, 2, 1)
    except np.linalg.LinAlgError:
        differ = f"inputs of a block differ too much in size for {np.dtype(dtype)}"
        raise PrecisionError(f"{differ}; {remedy(np.dtype(dtype).name)}") from None
    return V.astype(dtype).astype(np.float64), own, pre_activations


def solve_output(plan: Plan, dtype: DTypeLike) -> np.ndarray:
    """output_V, f64[r, r], with ``output_V relu(output_U q_j + output_s) = e_j`` for all j."""
    activations = np.maximum(plan.output_U @ plan.surrogates.T + plan.output_s[:, None], 0)
    return np.linalg.inv(activations).astype(dtype).astype(np.float64)


def apply(
    network: Any, x: ArrayLike, batch_examples: int = BATCH_EXAMPLES, run: Callable = forward
) -> np.ndarray:
    """The outputs, f[n, r], for the rows of x, f[n, d], converted to the dtype of the network.

    Memory is O(batch_examples (d + k)) at any depth. The networks of `few_numbers` need
    ``run=few_numbers.forward``. Raises ValueError if x has the wrong shape.
    """
    d, dtype = network.input_map.shape[1], network.input_map.dtype
    x = np.asarray(x)
    if x.ndim != 2 or x.shape[1] != d or not len(x):
        raise ValueError(f"x must have shape [n, {d}] for this network, n > 0, got {x.shape}")
    batches = (x[i : i + batch_examples] for i in range(0, len(x), batch_examples))
    return np.concatenate([np.asarray(run(network, rows.astype(dtype))) for rows in batches])


class Verification(NamedTuple):
    """Result of running a network on all its examples.

    `errors` counts examples with an output 1/2 or more off the one-hot label. Argmax is right for
    all others, but says nothing if r = 1. `max_abs_error` is the largest |yhat - y|.
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
    """Runs the network on x, f[n, d], and compares the outputs with y, integer[n]; see `apply`.

    >>> x, y = np.arange(6.0, dtype=np.float32)[:, None], np.array([0, 1, 0, 1, 1, 0])
    >>> network, _ = memorize(x, y)
    >>> verify(network, x, y).errors, verify(network, x, 1 - y).errors
    (0, 6)
    """
    outputs = apply(network, x, batch_examples, run).astype(np.float64)
    # A label that is no class, such as -1, has the row of zeros and so counts as an error.
    outputs -= np.asarray(y)[:, None] == np.arange(outputs.shape[1])
    worst = np.abs(outputs).max(1)
    # Not "worst >= 1/2": NaN has to count as an error.
    errors = int(np.sum(~(worst < certificate.OUTPUT_TOLERANCE)))
    return Verification(errors, float(worst.max()))


class ConflictingLabelsError(ValueError):
    """Two equal inputs have different labels; `indices` are those of the first such pair."""

    def __init__(self, message: str, indices: tuple[int, int]):
        super().__init__(message)
        self.indices = indices


def largest_entry(x: np.ndarray) -> float:
    """The largest absolute value in `x`, without the copy that np.abs(x) makes."""
    return max(float(x.max()), -float(x.min()))


def distinct_examples(
    x: ArrayLike, y: ArrayLike, num_classes: int | None, dtype: DTypeLike
) -> tuple[np.ndarray, np.ndarray, int]:
    """The examples of `memorize`, checked and without repeated inputs, in order, and r.

    Inputs are compared in `dtype`; 0.0 and -0.0 are equal. Raises ConflictingLabelsError if equal
    inputs have different labels, ValueError for a wrong shape or value, or one beyond `dtype`.
    """
    x, y = np.asarray(x), np.asarray(y)
    if x.dtype.kind in "cOSUmM":
        raise ValueError(f"x must hold real numbers, got {x.dtype}")
    if x.ndim != 2 or 0 in x.shape:
        raise ValueError(f"x must have shape [n, d] with n and d at least 1, got {x.shape}")
    if y.shape != x.shape[:1] or not np.issubdtype(y.dtype, np.integer):
        raise ValueError(
            f"y must be {len(x)} integers, one for each row of x, got {y.dtype}{y.shape}"
        )
    inferred = max(1, int(y.max()) + 1)
    if num_classes is None and inferred > max(MOST_INFERRED_CLASSES, len(y)):
        raise ValueError(
            f"labels go up to {inferred - 1}: number them 0 ... r - 1, as np.unique(y,"
            " return_inverse=True)[1] does, or pass num_classes"
        )
    num_classes = inferred if num_classes is None else check_whole("num_classes", num_classes)
    outside = np.flatnonzero((y < 0) | (y >= num_classes))
    if outside.size:
        i = outside[0]
        raise ValueError(f"labels must lie in 0 ... {num_classes - 1}, but y[{i}] = {y[i]}")
    largest = largest_entry(x)
    if not np.isfinite(largest):
        i = np.argmin(np.isfinite(x).all(1))
        raise ValueError(f"x must be finite, but x[{i}] holds NaN or infinity")
    if largest > float(np.finfo(dtype).max):
        raise ValueError(
            f"entries of x up to {largest:.3g} overflow {dtype}: scale them down, or use float64"
        )
    first: dict[bytes, int] = {}
    zero = np.zeros((), dtype)
    for i, row in enumerate(x):
        # Adding zero turns -0.0, whose bits differ, into 0.0.
        digest = hashlib.blake2b((row.astype(dtype) + zero).tobytes(), digest_size=16).digest()
        j = first.setdefault(digest, i)
        if y[i] != y[j]:
            if np.array_equal(x[i], x[j]):
                what, so = "identical", "no network can fit both"
            else:
                what, so = f"equal in {np.dtype(dtype)}", "subtract an offset, or use float64"
            raise ConflictingLabelsError(
                f"inputs {j} and {i} are {what} but have labels {y[j]} and {y[i]}: {so}", (j, i)
            )
    if len(first) < len(x):  # no copy of x where all are distinct
        kept = list(first.values())
        x, y = x[kept], y[kept]
    return x, y, num_classes


def check_memory(n: int, features: int, num_classes: int, width: int) -> None:
    """Raises ValueError if building the network takes more memory than this machine has."""
    parameters = network_parameters(n, features, num_classes, width)
    needed = WORKING_COPIES * np.dtype(np.float64).itemsize * parameters
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > memory:
        raise ValueError(
            f"a network of width {width} for {n} inputs and {num_classes} classes has"
            f" {parameters:.3g} parameters, and building it takes {needed / 1e9:.3g} GB of"
            f" {memory / 1e9:.3g}: choose a smaller width, or fewer classes"
        )


def check_dtype(x: np.ndarray, dtype: DTypeLike | None) -> np.dtype:
    """The network's dtype, see `memorize`; raises ValueError or TypeError."""
    if dtype is None:
        dtype = jnp.result_type(float) if x.dtype == np.float64 else np.float32
    dtype = np.dtype(dtype)
    if dtype not in (np.float32, np.float64):
        raise ValueError(f"dtype must be float32 or float64, got {dtype}")
    if dtype == np.float64 and jnp.result_type(float) != dtype:
        raise TypeError(
            'float64 needs jax.config.update("jax_enable_x64", True) first; or pass dtype="float32"'
        )
    return dtype
