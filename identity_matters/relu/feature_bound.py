"""What remains of eq. (2.3): a gradient bound for independent features of a block.

    ||grad f||^2 >= c f,
    c = (4/n) sigma_min(B)^2 sum_j sigma_n(Phi_j)^2 prod_{m > j} rho_m^2,
    rho_m = max(0, 1 - ||V_m|| ||U_m||).

Column i of Phi_j, k x n, is ``ReLU(U_j h_{j-1}(x_i) + s_j)``, the features of example
i. Its n-th singular value sigma_n is 0 for k < n, and sigma_min(B) is 0 unless B has
full row rank. N12 to N14 of docs/theory/relu.md prove the bound and say where it is
tight and what remains at a kink.

Singular values and rho_m are lowered by what rounding may have added, to no less than
0. So c is 0 where features are dependent, and not the square of a rounding error.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from identity_matters import solvers
from identity_matters.array_types import jit_of_array_trees
from identity_matters.checks import check_choice, check_whole
from identity_matters.relu import model, rounding
from identity_matters.relu.model import Blocks, Problem

OBJECTIVES = ("ratio", "slack")  # of `search`


class Sides(NamedTuple):
    """Both sides of the bound above, and f; f64[] each.

    Attributes:
      right: c f.
      left: ``||grad f||^2``.
      risk: f.
    """

    right: jax.Array
    left: jax.Array
    risk: jax.Array


@jit_of_array_trees
def bound_and_squared_gradient(blocks: Blocks, problem: Problem) -> Sides:
    """The sides of the bound above; ValueError for shapes that do not fit together."""
    blocks, problem = model.in_one_dtype(blocks, problem)
    value, gradient = model.risk_and_gradient(blocks, problem)
    return Sides(
        right=coefficient(blocks, problem) * value,
        left=model.squared_norm(gradient),
        risk=value,
    )


@jit_of_array_trees
def coefficient(blocks: Blocks, problem: Problem) -> jax.Array:
    """The factor c in front of f in the bound above, f64[]."""
    blocks, problem = model.in_one_dtype(blocks, problem)
    return _coefficient(blocks, problem, _relative_error(blocks, problem))


def _relative_error(blocks: Blocks, problem: Problem) -> float:
    """The relative rounding error of what is computed from `model.in_one_dtype`."""
    return rounding.relative_error(blocks, problem, blocks.U.dtype)


def _coefficient(blocks: Blocks, problem: Problem, error: float) -> jax.Array:
    """`coefficient`, lowered by the relative rounding error `error`; f64[]."""
    pre = model.forward(blocks, problem).pre_activations
    count, width = pre.shape[1:]
    if width < count:
        return jnp.zeros(())
    # Rounding is not differentiated: a size has no gradient where weights are all 0.
    sizes = rounding.sizes(*jax.lax.stop_gradient((blocks, problem)))
    # sigma_n of the n features of each block.
    least_singular_values = rounding.least_singular_value(
        jnp.linalg.svd(jax.nn.relu(pre), compute_uv=False),
        error * jnp.stack(sizes.features),
    )
    of_maps = _functional_coefficients(blocks, problem, error)
    return jnp.sum(least_singular_values**2 * of_maps)


def _functional_coefficients(
    blocks: Blocks, problem: Problem, error: float
) -> jax.Array:
    """``(4/n) sigma_min(B)^2 prod_{m > j} rho_m^2`` for each block j, f64[l].

    Lowered by the relative rounding error `error`.
    """
    outputs, dimension = problem.B.shape
    if outputs > dimension:
        return jnp.zeros(len(blocks.U))
    V_norms = jnp.linalg.norm(blocks.V, 2, axis=(1, 2))
    U_norms = jnp.linalg.norm(blocks.U, 2, axis=(1, 2))
    rho_squares = jnp.maximum(1 - V_norms * U_norms * (1 + error), 0.0) ** 2
    # The product over the blocks above j: 1 for the last.
    above = jnp.append(jnp.cumprod(rho_squares[::-1])[::-1][1:], 1.0)
    of_map = jnp.linalg.svd(problem.B, compute_uv=False)
    sigma_min = rounding.least_singular_value(of_map, error * of_map[0])
    return jnp.asarray(4 / len(problem.x) * sigma_min**2 * above)


@jit_of_array_trees
def functional_bound(blocks: Blocks, problem: Problem) -> tuple[jax.Array, jax.Array]:
    """Both sides, (right, left), of the bound for the map of each block, f64[l] each.

    For every block j, whatever its features (N15),

        sum_i |g_j(x_i)|^2 >= (4/n) sigma_min(B)^2 prod_{m > j} rho_m^2 f,

    where ``g_j(x_i)`` is the gradient of f with respect to a vector that is added to
    the output of the block on example i.
    """
    blocks, problem = model.in_one_dtype(blocks, problem)

    def risk(added):
        predictions = model.forward(blocks, problem, added).predictions
        model.check_shape_of_y(problem, predictions.shape)
        return jnp.sum((predictions - problem.y) ** 2) / len(problem.x)

    shape = (len(blocks.U), len(problem.x), problem.A.shape[0])
    value, gradient = jax.value_and_grad(risk)(jnp.zeros(shape))
    error = _relative_error(blocks, problem)
    right = _functional_coefficients(blocks, problem, error) * value
    left = jnp.sum(gradient**2, axis=(1, 2))
    return right, left


def tight_problem(blocks: Blocks, problem: Problem, size: float) -> Problem:
    """`problem` with y such that the bound holds with equality and f = size^2 (N13).

    It does if V = 0, all blocks are equal and at least n wide, and B is orthogonal up
    to a factor.
    """
    passed = model.forward(blocks, problem)
    features = jax.nn.relu(passed.pre_activations[0])
    vectors, _, _ = jnp.linalg.svd(features, full_matrices=False)
    errors = size * jnp.sqrt(len(vectors)) * vectors[:, -1]
    # In output 0; any other would do.
    return problem._replace(y=passed.predictions.at[:, 0].add(errors))


@functools.partial(jit_of_array_trees, static_argnames=("steps", "objective"))
def search(
    blocks: Blocks,
    problem: Problem,
    norm: float,
    *,
    objective: str,
    steps: int,
    learning_rate: float,
) -> jax.Array:
    """The least ratio that projected Adam meets over nets in a ball: f64[m].

    Args:
      blocks, problem: with a leading axis of m.
      norm: after every update each U_j, V_j and s_j of larger Frobenius norm is scaled
        back to it.
      objective: "ratio" for ``||grad f||^2 / f``, or "slack" for that divided by the
        coefficient, without the allowance for rounding.
      steps: of projected Adam.
      learning_rate: in units of `norm`.
    Raises:
      ValueError: there is no such objective, or `steps` is not a whole number from 1.
    """
    check_choice("objective", objective, OBJECTIVES)
    steps = check_whole("steps", steps)
    blocks, problem = model.in_one_dtype(blocks, problem)

    def log_ratio(weights, sample):
        value, gradient = jax.value_and_grad(model.risk)(weights, sample)
        log_ratio = jnp.log(model.squared_norm(gradient)) - jnp.log(value)
        if objective == "ratio":
            return log_ratio
        # Not lowered: where rounding hides the coefficient, its logarithm must not be
        # minus infinity, which has no slope.
        return log_ratio - jnp.log(_coefficient(weights, sample, error=0.0))

    def clip(leaf):
        axes = tuple(range(1, leaf.ndim))
        length = jnp.sqrt(jnp.sum(leaf**2, axis=axes, keepdims=True))
        positive_length = jnp.maximum(length, jnp.finfo(leaf.dtype).tiny)
        return leaf * jnp.minimum(1.0, norm / positive_length)

    def minimise(start, sample):
        _, least = solvers.projected_adam(
            functools.partial(log_ratio, sample=sample),
            functools.partial(jax.tree.map, clip),
            start,
            steps=steps,
            learning_rate=learning_rate * norm,
        )
        return jnp.exp(least)

    return jax.vmap(minimise)(blocks, problem)
