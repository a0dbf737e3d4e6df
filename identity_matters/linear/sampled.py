"""Linear residual nets that learn from samples: minibatches instead of the closed form.

The data are ``y = R x + noise_std xi`` with independent ``x ~ N(0, Sigma)`` and ``xi ~
N(0, I)``, fresh at each step. The loss of an example is ``||y - (I + A_l) ... (I + A_1)
x||^2``; its mean over a batch has the gradient ``2 L_i^T Ghat N_i^T`` that
docs/theory/sampled.md analyses.

Unlike the rest of this package, these functions compute in the dtype of their
arguments: float32 in the trainings on accelerators, float64 in the attacks on the
theory.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from identity_matters import matrices, scaling
from identity_matters.array_types import Array
from identity_matters.checks import (
    check_array_type,
    check_layers_and_rows,
    check_whole,
    non_negative_number,
    positive_number,
    square_matrix,
)
from identity_matters.linear import second_moment

# TPUs and GPUs would otherwise round the factors
# of a float32 product to bfloat16 or TF32.
_EXACT = jax.lax.Precision.HIGHEST
# `spectral_norm_bounds` squares A^T A this often:
# at d = 1024 the bound is within 1.4 %.
_SQUARINGS = 8


class Problem(NamedTuple):
    """The distribution of the data; `root` is Sigma^{1/2}. All arrays f64[d, d]."""

    R: np.ndarray
    Sigma: np.ndarray
    root: np.ndarray
    noise_std: float


def make_problem(R: ArrayLike, Sigma: ArrayLike, noise_std: float) -> Problem:
    """Checks R and Sigma, d x d, and returns the problem.

    Raises:
      ValueError: R or Sigma is not a finite d x d matrix, Sigma is not symmetric
        positive semidefinite, or noise_std is negative or not finite.
    """
    R = square_matrix("R", R)
    Sigma, _ = second_moment.check_second_moment(Sigma)
    second_moment.check_same_shape(R, Sigma)
    noise_std = non_negative_number("noise_std", noise_std)
    kept = second_moment.kept_part(Sigma)
    root = (kept.vectors * np.sqrt(kept.eigenvalues)) @ kept.vectors.T
    return Problem(R=R, Sigma=Sigma, root=root, noise_std=noise_std)


def draw(
    problem: Problem, keys: jax.Array, dtype: Any = jnp.float32
) -> dict[str, jax.Array]:
    """One example for each of the typed `keys`, [n].

    Returns {"images": x, "labels": y}, both [n, d]. An example depends on its key
    alone. The names are those of `batches.Drawn`. Raises ValueError for other keys.
    """
    is_typed = isinstance(keys, jax.Array) and jnp.issubdtype(
        keys.dtype, jax.dtypes.prng_key
    )
    if not is_typed or keys.ndim != 1:
        raise ValueError(
            "keys must be typed keys [n], as jax.random.split(jax.random.key(0), n)"
            f" makes them, got {keys!r}"
        )
    d = len(problem.R)
    normal = jax.vmap(lambda key: jax.random.normal(key, (2, d), dtype))(keys)
    root = jnp.asarray(problem.root, dtype)
    R = jnp.asarray(problem.R, dtype)
    x = jnp.matmul(normal[:, 0], root, precision=_EXACT)
    y = jnp.matmul(x, R.T, precision=_EXACT) + problem.noise_std * normal[:, 1]
    return {"images": x, "labels": y}


def exact_split(
    problem: Problem, dtype: DTypeLike = np.float32
) -> tuple[np.ndarray, np.ndarray]:
    """d inputs and noiseless labels, both [d, d], whose mean loss is exactly f - C.

    The inputs are ``sqrt(d) Sigma^{1/2} e_j``, and by Claim 2.3 f - C is the sum of all
    ``||E Sigma^{1/2} e_j||^2``.
    """
    x = math.sqrt(len(problem.R)) * problem.root
    return x.astype(dtype), (x @ problem.R.T).astype(dtype)


def forward(A: Array, x: Array) -> jax.Array:
    """``(I + A_l) ... (I + A_1) x`` for each row of x, [n, d]; A: [depth, d, d].

    In the common dtype of A and x. ValueError for other shapes.
    """
    check_array_type("A", A)
    check_array_type("x", x)
    A = jnp.asarray(A)
    h = jnp.asarray(x, jnp.result_type(A, x))
    check_layers_and_rows(A, h)

    def layer(h, A_i):
        return h + jnp.matmul(h, A_i.T, precision=_EXACT), None

    h, _ = jax.lax.scan(layer, h, A)
    return h


def mean_loss(A: Array, x: Array, y: Array) -> jax.Array:
    """The mean of ``||y - (I + A_l) ... (I + A_1) x||^2``; x, y: [n, d].

    ValueError unless x and y have the same shape: one y would be compared with all
    predictions. The rest is as in `forward`.
    """
    check_array_type("x", x)
    check_array_type("y", y)
    if x.shape != y.shape:
        raise ValueError(
            f"x and y must have the same shape, got {x.shape} and {y.shape}"
        )
    return jnp.mean(jnp.sum((forward(A, x) - y) ** 2, axis=-1))


def spectral_norm_bounds(A: Array, squarings: int = _SQUARINGS) -> jax.Array:
    """Upper bounds of the ||A_i||, [depth], by products alone, which suit accelerators.

    ``||A||^2 <= (tr (A^T A)^m)^{1/m} <= d^{1/m} ||A||^2``
    with ``m = 2^squarings``, times 1 + (2 d + 32) eps of the dtype, which is more than
    the products round. A: [depth, d, d]. Entries below the least normal number of the
    dtype count as 0. ValueError unless `squarings` is a whole number of 0 or more.
    """
    check_array_type("A", A)
    squarings = check_whole("squarings", squarings, 0)
    # Squares of entries may be beyond the dtype or below it; a zero matrix stays zero.
    A, exponents = scaling.unit_size(A, axes=(1, 2))
    power = jnp.matmul(jnp.swapaxes(A, 1, 2), A, precision=_EXACT)
    logarithm = jnp.zeros(len(A), power.dtype)
    for squaring in range(squarings + 1):
        # The first pass is for A^T A itself, m = 1.
        if squaring > 0:
            power = jnp.matmul(power, power, precision=_EXACT)
        trace = jnp.trace(power, axis1=1, axis2=2)
        # Scaled to trace 1, so that nothing overflows.
        power = power / jnp.where(trace > 0, trace, 1)[:, None, None]
        logarithm = logarithm + jnp.log(trace) / 2**squaring
    margin = 1 + (2 * A.shape[-1] + 32) * float(jnp.finfo(A.dtype).eps)
    return jnp.ldexp(jnp.exp(logarithm / 2) * margin, exponents[:, 0, 0])


class Descents(NamedTuple):
    """Many runs of minibatch descent, after 0, 1, ... updates.

    Attributes:
      excess_risk: f64[runs, updates + 1], f - C.
      norm: f64[runs, updates + 1], the largest ``||A_i||_F`` of all layers, which is at
        least |||A|||.
    """

    excess_risk: np.ndarray
    norm: np.ndarray


def descend(
    rng: np.random.Generator,
    problem: Problem,
    *,
    depth: int,
    learning_rate: float,
    batch_examples: int,
    updates: int,
    runs: int,
) -> Descents:
    """Independent runs of minibatch gradient descent from zero weights.

    In NumPy and float64, with the gradients ``2 L_i^T Ghat N_i^T`` of
    docs/theory/sampled.md: what the statements there say is measured by other means
    than those that `forward` trains with.

    Args:
      rng: draws the examples.
      problem: the distribution of the data.
      depth: l.
      learning_rate: eta.
      batch_examples: B, fresh ones at each update.
      updates: of each run.
      runs: how many there are.
    Raises:
      ValueError: depth, batch_examples or runs is not a positive whole number, updates
        not one of 0 or more, or the learning rate not above 0.
    """
    depth = check_whole("depth", depth)
    learning_rate = positive_number("learning_rate", learning_rate)
    batch_examples = check_whole("batch_examples", batch_examples)
    updates = check_whole("updates", updates, 0)
    runs = check_whole("runs", runs)
    d = len(problem.R)
    A = np.zeros((depth, runs, d, d))
    excess = np.empty((runs, updates + 1))
    norm = np.empty((runs, updates + 1))
    for step in range(updates + 1):
        # inputs[i] is N_i, the product of the layers before layer i.
        *inputs, end_to_end = matrices.partial_products(A)
        E = end_to_end - problem.R
        excess[:, step] = np.sum(E * (E @ problem.Sigma), axis=(1, 2))
        norm[:, step] = np.sqrt(np.max(np.sum(A**2, axis=(2, 3)), axis=0))
        if step == updates:
            break
        x = rng.standard_normal((runs, batch_examples, d)) @ problem.root
        xi = rng.standard_normal((runs, batch_examples, d))
        errors = x @ np.swapaxes(E, 1, 2) - problem.noise_std * xi
        # 2 L_i^T Ghat, from the last layer down.
        pulled = 2 / batch_examples * np.swapaxes(errors, 1, 2) @ x
        for i in reversed(range(depth)):
            gradient = pulled @ np.swapaxes(inputs[i], 1, 2)
            pulled = pulled + np.swapaxes(A[i], 1, 2) @ pulled
            A[i] -= learning_rate * gradient
    return Descents(excess, norm)
