"""The net ``h + V ReLU(U h + s)``: risk on a sample, norm, random weights, descent."""

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from identity_matters import checks
from identity_matters.array_types import Array, jit_of_array_trees

# Accelerators would round float32 operands to TF32 or bfloat16, by more than
# `rounding` allows for.
_matmul = functools.partial(jnp.matmul, precision=jax.lax.Precision.HIGHEST)


class Blocks(NamedTuple):
    """The weights of l residual blocks.

    U f64[l, k, d], V f64[l, d, k], s f64[l, k] or None.
    """

    U: Array
    V: Array
    s: Array | None


class Problem(NamedTuple):
    """A sample and the fixed maps.

    Attributes:
      x: f64[n, d_in].
      y: f64[n, d_out].
      A: f64[d, d_in], the input map.
      B: f64[d_out, d], the output map.
    """

    x: Array
    y: Array
    A: Array
    B: Array


class ForwardPass(NamedTuple):
    """What a net computes on a sample.

    Attributes:
      predictions: yhat, f64[n, d_out].
      inputs: h of all blocks, f64[l, n, d].
      pre_activations: ``U h + s`` of all blocks, f64[l, n, k].
    """

    predictions: jax.Array
    inputs: jax.Array
    pre_activations: jax.Array


def checked_blocks(name: str, blocks: Blocks) -> Blocks:
    """`blocks` as finite floats; ValueError unless their shapes fit together."""
    U = checks.real_array(f"U of the {name}", blocks.U, axes=3)
    V = checks.real_array(f"V of the {name}", blocks.V, axes=3)
    s = blocks.s
    if s is not None:
        s = checks.real_array(f"s of the {name}", s, axes=2)
    finite = Blocks(U, V, s)
    _check_shapes_of_blocks(name, finite)
    return finite


def checked_problem(problem: Problem, dimension: int) -> Problem:
    """The problem with finite floats x, A and B; ValueError if shapes do not fit."""
    x = checks.real_array("x", problem.x, axes=2)
    A = checks.real_array("A", problem.A, axes=2)
    B = checks.real_array("B", problem.B, axes=2)
    finite = problem._replace(x=x, A=A, B=B)
    _check_shapes_of_maps(finite, dimension)
    with np.errstate(over="ignore", invalid="ignore"):
        checks.real_array("A x", x @ A.T)
    return finite


def _check_shapes_of_blocks(name: str, blocks: Blocks) -> None:
    """ValueError unless U, V and s belong to the same blocks."""
    if blocks.U.ndim != 3:
        raise ValueError(
            f"U of the {name} must have 3 axes, got shape {blocks.U.shape}"
        )
    depth, width, dimension = blocks.U.shape
    if not depth:
        raise ValueError(f"the {name} must have a block, got U of {blocks.U.shape}")
    needed = {"V": (depth, dimension, width), "s": (depth, width)}
    for part, shape in needed.items():
        array = getattr(blocks, part)
        if array is not None and array.shape != shape:
            raise ValueError(
                f"{part} of the {name} must have shape {shape}, got {array.shape}"
            )


def _check_shapes_of_maps(problem: Problem, dimension: int) -> None:
    """ValueError unless A maps x to this dimension, and B reads it."""
    for part in ("x", "A", "B"):
        shape = getattr(problem, part).shape
        if len(shape) != 2:
            raise ValueError(f"{part} must have 2 axes, got shape {shape}")
    if not len(problem.x):
        raise ValueError(f"x must have an example, got shape {problem.x.shape}")
    needed = (dimension, problem.x.shape[1])
    if problem.A.shape != needed:
        raise ValueError(f"A must have shape {needed}, got {problem.A.shape}")
    if problem.B.shape[1] != dimension:
        raise ValueError(
            f"B must have {dimension} columns, got shape {problem.B.shape}"
        )


def check_shape_of_y(problem: Problem, needed: tuple[int, ...]) -> None:
    """ValueError unless y has the shape of the predictions.

    One column, or one example, would be compared with all of them.
    """
    if problem.y.shape != needed:
        raise ValueError(f"y must have shape {needed}, got {problem.y.shape}")


def in_one_dtype(weights: Any, problem: Problem) -> tuple[Any, Problem]:
    """Both in their common dtype, float32 at least; `weights` is any pytree of arrays.

    Rounding is then that of one dtype, and weights that move are not rounded to
    another one after every step, or to integers.
    """
    both = (weights, problem)
    dtype = jnp.result_type(jnp.float32, *jax.tree.leaves(both))
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), both)


@jit_of_array_trees
def forward(
    blocks: Blocks, problem: Problem, added: Array | None = None
) -> ForwardPass:
    """Predictions, and the inputs and pre-activations of all blocks.

    `added`, f64[l, n, d] or None, is added to the output of each block. ValueError
    unless the shapes of the weights and of the problem fit together.
    """
    _check_shapes_of_blocks("net", blocks)
    _check_shapes_of_maps(problem, dimension=blocks.U.shape[2])
    h = _matmul(problem.x, problem.A.T)
    needed = (len(blocks.U), *h.shape)
    if added is not None and added.shape != needed:
        raise ValueError(f"added must have shape {needed}, got {added.shape}")
    inputs = []
    pre_activations = []
    for j in range(blocks.U.shape[0]):
        bias = 0.0 if blocks.s is None else blocks.s[j][None]
        pre = _matmul(h, blocks.U[j].T) + bias
        inputs.append(h)
        pre_activations.append(pre)
        h = h + _matmul(jax.nn.relu(pre), blocks.V[j].T)
        if added is not None:
            h = h + added[j]
    return ForwardPass(
        predictions=_matmul(h, problem.B.T),
        inputs=jnp.stack(inputs),
        pre_activations=jnp.stack(pre_activations),
    )


def residuals(blocks: Blocks, problem: Problem) -> jax.Array:
    """``(yhat - y) / sqrt(n)``, f64[n, d_out]; the risk is the sum of its squares.

    ValueError for shapes that do not fit together.
    """
    predictions = forward(blocks, problem).predictions
    check_shape_of_y(problem, predictions.shape)
    return (predictions - problem.y) / math.sqrt(problem.x.shape[0])


def linear_outputs(A: Array, x: Array) -> jax.Array:
    """Those of the linear net ``x -> (I + A_l) ... (I + A_1) x``: f64[n, d].

    A is f64[l, d, d], x is f64[n, d]; ValueError for other shapes.
    """
    checks.check_array_type("A", A)
    checks.check_array_type("x", x)
    checks.check_layers_and_rows(A, x)
    h = jnp.asarray(x)
    for layer in A:
        h = h + h @ layer.T
    return h


def linear_residuals(A: Array, problem: Problem) -> jax.Array:
    """`residuals` of the net of `linear_outputs`, without the maps of the problem."""
    outputs = linear_outputs(A, problem.x)
    check_shape_of_y(problem, outputs.shape)
    return (outputs - problem.y) / math.sqrt(problem.x.shape[0])


@jit_of_array_trees
def risk(blocks: Blocks, problem: Problem) -> jax.Array:
    """``f = (1/n) sum_i ||yhat_i - y_i||^2``, f64[].

    ValueError for shapes that do not fit together.

    >>> one_unit = Blocks(U=jnp.ones((1, 1, 1)), V=jnp.ones((1, 1, 1)), s=None)
    >>> x, identity = jnp.array([[1.0], [-1.0]]), jnp.eye(1)
    >>> # The block doubles 1 and leaves -1 alone.
    >>> risk(one_unit, Problem(x=x, y=jnp.zeros((2, 1)), A=identity, B=identity))
    Array(2.5, dtype=float64)
    """
    return jnp.sum(residuals(blocks, problem) ** 2)


@jit_of_array_trees
def risk_and_gradient(blocks: Blocks, problem: Problem) -> tuple[jax.Array, Blocks]:
    """``(f, grad f)``: f64[] and a `Blocks`; relu'(0) = 0."""
    return jax.value_and_grad(risk)(blocks, problem)


def squared_norm(blocks: Blocks) -> jax.Array:
    """``||theta||^2`` over all weights, f64[]."""
    return sum((jnp.sum(leaf**2) for leaf in jax.tree.leaves(blocks)), jnp.zeros(()))


def max_norm(blocks: Blocks) -> np.ndarray:
    """``|||theta|||``, the largest of ``||U_j||, ||V_j||, ||s_j||``.

    f64[] for one net, f64[m] for m nets. Computed by NumPy. ValueError unless U, V
    and s are plain arrays of numbers, which those that JAX traces are not.
    """
    matrices = [
        checks.plain_array("U of the net", blocks.U),
        checks.plain_array("V of the net", blocks.V),
    ]
    norms = [
        np.linalg.norm(matrix, 2, axis=(-2, -1)).max(axis=-1) for matrix in matrices
    ]
    if blocks.s is not None:
        s = checks.plain_array("s of the net", blocks.s)
        norms.append(np.linalg.norm(s, axis=-1).max(axis=-1))
    return np.max(norms, axis=0)


def random_blocks(
    rng: np.random.Generator,
    norms: np.ndarray,
    depth: int,
    width: int,
    dimension: int,
    bias: bool,
) -> Blocks:
    """Gaussian weights of m nets, stacked; all parts of net i have norm norms[i]."""
    U = random_layers(rng, norms, depth, rows=width, columns=dimension)
    V = random_layers(rng, norms, depth, rows=dimension, columns=width)
    s = None
    if bias:
        s = random_layers(rng, norms, depth, rows=width, columns=1)[..., 0]
    return Blocks(U, V, s)


def random_layers(
    rng: np.random.Generator, norms: np.ndarray, depth: int, rows: int, columns: int
) -> np.ndarray:
    """Gaussian matrices scaled to the spectral norms, f64[m].

    Returns f64[m, depth, rows, columns].
    """
    matrices = rng.standard_normal((len(norms), depth, rows, columns))
    lengths = np.linalg.norm(matrices, 2, axis=(-2, -1), keepdims=True)
    return np.asarray(norms)[:, None, None, None] * matrices / lengths


@functools.partial(
    jit_of_array_trees, static_argnames=("records", "updates_per_record")
)
def gradient_descent(
    blocks: Blocks,
    problem: Problem,
    *,
    learning_rate: float,
    records: int,
    updates_per_record: int,
) -> tuple[Blocks, dict[str, jax.Array]]:
    """Repeats ``theta <- theta - learning_rate grad f(theta)``, recording the risk.

    There are ``records * updates_per_record`` updates. `blocks` and `problem` have a
    leading axis of m starts, each with its own sample. Returns the last weights and
    "curve" f64[m, records + 1], the risk at the start and at each record, "travelled"
    f64[m], ``||theta - theta_start||``, and "squared_gradient" f64[m] at the end. All
    are computed in the common dtype of the arrays. ValueError unless both counts are
    whole numbers of 0 or more.
    """
    records = checks.check_whole("records", records, 0)
    updates_per_record = checks.check_whole("updates_per_record", updates_per_record, 0)
    blocks, problem = in_one_dtype(blocks, problem)

    def descend(start, sample):
        gradient = jax.grad(risk)

        def update(_, weights):
            return jax.tree.map(
                lambda w, g: w - learning_rate * g, weights, gradient(weights, sample)
            )

        def until_record(weights, _):
            weights = jax.lax.fori_loop(0, updates_per_record, update, weights)
            return weights, risk(weights, sample)

        end, curve = jax.lax.scan(until_record, start, length=records)
        return end, {
            "curve": jnp.append(risk(start, sample), curve),
            "travelled": jnp.sqrt(squared_norm(jax.tree.map(jnp.subtract, end, start))),
            "squared_gradient": squared_norm(gradient(end, sample)),
        }

    return jax.vmap(descend)(blocks, problem)
