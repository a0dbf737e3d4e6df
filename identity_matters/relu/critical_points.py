"""Search for critical points of a mean square, their kink distances, dead units.

Inside one activation pattern f is a polynomial, and a point there with ``grad f = 0``
is a critical point in every sense. At a kink some unit's pre-activation is 0 on some
example.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import scipy.special
from jax.flatten_util import ravel_pytree

from identity_matters import solvers
from identity_matters.array_types import Array, jit_of_array_trees
from identity_matters.checks import check_whole, non_negative_number
from identity_matters.relu import model
from identity_matters.relu.model import Blocks, Problem

# a search also ends once its slope is below this share of the tolerance
_SLOPE_SHARE = 1e-3


@functools.partial(jit_of_array_trees, static_argnames=("steps", "residuals"))
def find(
    weights: Any,
    problem: Problem,
    descends: Array,
    *,
    steps: int,
    tolerance: float,
    residuals: Callable[[Any, Problem], jax.Array] = model.residuals,
) -> tuple[Any, dict[str, jax.Array]]:
    """Solves ``grad f = 0`` by Levenberg-Marquardt from each of a batch of starts.

    Args:
      weights: a pytree with a leading axis of m starts.
      problem: one for each start, on a leading axis.
      descends: bool[m]; where it is true, Levenberg-Marquardt on f comes first and
        draws the search to minima.
      steps, tolerance: see `solvers.least_squares`.
      residuals: f is the sum of their squares; a linear net has its own.
    Returns:
      ``(weights, numbers)``: the limits, and "gradient_norm" f64[m], "risk" f64[m] and
      "eigenvalues" f64[m, p] of the Hessian of f on its piece, in ascending order. All
      in the common dtype of weights and problem.
    Raises:
      ValueError: `steps` is not a whole number of 0 or more, or shapes do not fit
        together.
    """
    steps = check_whole("steps", steps, 0)
    weights, problem = model.in_one_dtype(weights, problem)

    def search(start, sample, descend):
        theta, unravel = ravel_pytree(start)

        def residual(point):
            return residuals(unravel(point), sample).ravel()

        gradient = jax.grad(lambda point: jnp.sum(residual(point) ** 2))
        solve = functools.partial(
            solvers.least_squares,
            tolerance=tolerance,
            slope_tolerance=_SLOPE_SHARE * tolerance,
        )
        # Least squares in the residuals descends to a minimum of f. Where that is not
        # wanted it takes no step, as all starts of a batch do the same work.
        descent = solve(residual, theta, steps=jnp.where(descend, steps, 0))
        # Least squares in grad f finds saddles, too; its Jacobian is the Hessian of f.
        limit = solve(gradient, descent.theta, steps=steps)
        return unravel(limit.theta), {
            "gradient_norm": jnp.linalg.norm(limit.residual),
            "risk": jnp.sum(residual(limit.theta) ** 2),
            "eigenvalues": jnp.linalg.eigvalsh(limit.jacobian),
        }

    return jax.vmap(search)(weights, problem, descends)


@jit_of_array_trees
def kink_margins(blocks: Blocks, problem: Problem) -> dict[str, jax.Array]:
    """Kink distance, shortest unit and dead units of m nets with their problems.

    Returns:
      "kink_margin", f64[m]: the least ``|w . z_i| / (||w|| ||z_i||)`` over units and
        examples, 0 if w or z_i is 0.
      "shortest_unit", f64[m]: the least ``max(||w||, ||v||)`` of a unit.
      "dead_units", i64[m]: how many units are active on no example.
    """
    # Axes: nets, blocks, examples, units.
    _, hidden, pre = jax.vmap(model.forward)(blocks, problem)
    w_squares = jnp.sum(blocks.U**2, axis=-1)
    z_squares = jnp.sum(hidden**2, axis=-1)
    if blocks.s is not None:
        w_squares = w_squares + blocks.s**2
        z_squares = z_squares + 1.0
    size = jnp.sqrt(w_squares[:, :, None, :] * z_squares[:, :, :, None])
    margin = jnp.abs(pre) / jnp.where(size > 0, size, 1.0)
    longest = jnp.maximum(jnp.sqrt(w_squares), jnp.linalg.norm(blocks.V, axis=-2))
    return {
        "kink_margin": margin.min(axis=(1, 2, 3)),
        "shortest_unit": longest.min(axis=(1, 2)),
        "dead_units": (pre <= 0).all(axis=2).sum(axis=(1, 2)),
    }


def dead_share_on_ball(dimension: int, radius: float) -> float:
    """A lower bound on the share of strictly dead random units, data in a ball (N7).

    It is ``1/2 I_{1/(1 + b^2)}(d/2, 1/2)`` for rows w with spherically symmetric
    directions and the radius b. Data that fill the ball attain it. ValueError unless
    the dimension is a whole number from 1 and the radius a number from 0.
    """
    dimension = check_whole("dimension", dimension)
    radius = non_negative_number("radius", radius)
    # radius**2 would raise OverflowError where this product is infinite.
    square = radius * radius
    return float(0.5 * scipy.special.betainc(dimension / 2, 0.5, 1 / (1 + square)))


@jit_of_array_trees
def strictly_dead(blocks: Blocks, problem: Problem) -> jax.Array:
    """bool[m]: whether each net's pre-activations are all negative (N6).

    The m nets have one problem.
    """
    passed = jax.vmap(model.forward, in_axes=(0, None))(blocks, problem)
    return (passed.pre_activations < 0).all(axis=(1, 2, 3))
