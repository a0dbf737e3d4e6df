"""Search for critical points of a mean square, and their distance from kinks.

A net is given by its residual function, so the same program searches linear residual nets. A solve
is Levenberg-Marquardt on ``grad f = 0``; a descent is Levenberg-Marquardt on f, drawn to minima,
and then a solve. Inside one activation pattern f is a polynomial, and a point there with
``grad f = 0`` is a critical point in every sense. `kink_margins` tells points at a kink, where some
unit's pre-activation is 0 on some example.

A unit is strictly dead on a sample if its pre-activation is negative on every example: see N6 to N8
of docs/theory/relu.md.
"""

import functools
import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize
import scipy.special
from jax.flatten_util import ravel_pytree

from identity_matters import solvers
from identity_matters.array_types import Array
from identity_matters.relu import model
from identity_matters.relu.model import Blocks, Problem

# A search also ends once the slope of its residual is below this share of the tolerance.
_SLOPE_SHARE = 1e-3


@functools.partial(jax.jit, static_argnames=("steps", "tolerance", "residuals"))
def find(
    weights: Any,
    problem: Problem,
    descends: Array,
    *,
    steps: int,
    tolerance: float,
    residuals: Callable[[Any, Problem], jax.Array] = model.residuals,
) -> tuple[Any, dict[str, jax.Array]]:
    """Runs a search from each of a batch of starts.

    Args:
      weights, problem: with a leading axis of m starts, each with its own problem.
      descends: bool[m], whether to descend on f first, or only to solve grad f = 0.
      steps, tolerance: of each Levenberg-Marquardt; see `solvers.least_squares`.
      residuals: ``residuals(weights, problem)`` of one start; f is the sum of their squares.
    Returns:
      ``(weights, numbers)``: the limits, and f64[m] each of "gradient_norm" and "risk"; f64[m, p]
      "eigenvalues" of the Hessian of f on its piece, in ascending order.
    """

    def one(start, sample, descend):
        theta, unravel = ravel_pytree(start)

        def residual(point):
            return residuals(unravel(point), sample).ravel()

        gradient = jax.grad(lambda point: jnp.sum(residual(point) ** 2))
        solve = functools.partial(
            solvers.least_squares, tolerance=tolerance, slope_tolerance=_SLOPE_SHARE * tolerance
        )
        theta = solve(residual, theta, steps=jnp.where(descend, steps, 0)).theta
        theta, slope, hessian = solve(gradient, theta, steps=steps)
        numbers = {
            "gradient_norm": jnp.linalg.norm(slope),
            "risk": jnp.sum(residual(theta) ** 2),
            "eigenvalues": jnp.linalg.eigvalsh(hessian),
        }
        return unravel(theta), numbers

    return jax.vmap(one)(weights, problem, descends)


@jax.jit
def kink_margins(blocks: Blocks, problem: Problem) -> dict[str, jax.Array]:
    """Distance of each limit from a kink, its shortest unit, its dead units; batched over an axis.

    Returns "kink_margin", the least ``|w . z_i| / (||w|| ||z_i||)`` over all units and examples (0
    if w or z_i is 0), and "shortest_unit", the least ``max(||w||, ||v||)`` of a unit, both f64[m];
    and i64[m] "dead_units", how many are active on no example.
    """
    # Axes: nets, blocks, examples, units.
    _, hidden, pre = jax.vmap(model.forward)(blocks, problem)
    length = jnp.sum(blocks.U**2, axis=-1)
    reach = jnp.sum(hidden**2, axis=-1)
    if blocks.s is not None:
        length, reach = length + blocks.s**2, reach + 1.0
    size = jnp.sqrt(length[:, :, None, :] * reach[:, :, :, None])
    margin = jnp.where(size > 0, jnp.abs(pre) / jnp.where(size > 0, size, 1.0), 0.0)
    longest = jnp.maximum(jnp.sqrt(length), jnp.linalg.norm(blocks.V, axis=-2))
    return {
        "kink_margin": margin.min(axis=(1, 2, 3)),
        "shortest_unit": longest.min(axis=(1, 2)),
        "dead_units": (pre <= 0).all(axis=2).sum(axis=(1, 2)),
    }


def dead_share_on_ball(dimension: int, radius: float) -> float:
    """p, a lower bound on the share of random units strictly dead on data in a ball of `radius` b.

    ``p = 1/2 I_{1/(1 + b^2)}(d/2, 1/2)`` (regularised incomplete beta function) for rows w with
    spherically symmetric directions. Data that fill the ball attain it (N7).
    """
    return float(0.5 * scipy.special.betainc(dimension / 2, 0.5, 1 / (1 + radius**2)))


@jax.jit
def strictly_dead(blocks: Blocks, problem: Problem) -> jax.Array:
    """Whether all units of each of m nets, which share one problem, are strictly dead: bool[m]."""
    _, _, pre = jax.vmap(model.forward, in_axes=(0, None))(blocks, problem)
    return (pre < 0).all(axis=(1, 2, 3))


def hull_depth(points: np.ndarray) -> float:
    """``min_u max_i u . p_i`` over ``max_j |u_j| = 1``: positive iff 0 is inside the convex hull.

    Solved as 2d linear programs, one per face of the cube: f64[n, d] -> float. See N8.
    """
    points = np.asarray(points)
    count, dimension = points.shape
    least = np.inf
    objective = np.append(np.zeros(dimension), 1.0)
    constraints = np.concatenate([points, -np.ones((count, 1))], axis=1)
    for face, sign in itertools.product(range(dimension), (-1.0, 1.0)):
        bounds = [(-1.0, 1.0)] * dimension + [(None, None)]
        bounds[face] = (sign, sign)
        solved = scipy.optimize.linprog(
            objective, A_ub=constraints, b_ub=np.zeros(count), bounds=bounds
        )
        least = min(least, solved.fun)
    return float(least)
