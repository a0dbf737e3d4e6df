"""The search for critical points of the risk, and what kind of point was found.

Two searches. Solve: Levenberg-Marquardt on ``grad f = 0``, drawn to saddles as much as to minima.
Descend: Levenberg-Marquardt on f itself, then the first to polish the end point; drawn to minima.
Inside one activation pattern f is a polynomial, and a point there with ``grad f = 0`` is a critical
point in every sense. Points at a kink, where some unit's pre-activation is 0 on some example, are
counted apart.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from identity_matters.array_types import Array
from identity_matters.nonlinear import least_squares, network
from identity_matters.nonlinear.network import Blocks, Problem

# What a limit can be, by the first that fits.
KINDS = (
    "not critical",
    "optimal",
    "outside",
    "all dead",
    "zero unit",
    "at a kink",
    "saddle",
    "no negative curvature",
)


def _flat_functions(blocks: Blocks, problem: Problem):
    _, unravel = ravel_pytree(blocks)

    def residual(theta):
        return network.residuals(unravel(theta), problem).ravel()

    def risk(theta):
        return jnp.sum(residual(theta) ** 2)

    return unravel, residual, jax.grad(risk)


@functools.partial(jax.jit, static_argnames=("steps", "tolerance"))
def find(
    blocks: Blocks, problem: Problem, descends: Array, *, steps: int, tolerance: float
) -> tuple[Blocks, dict[str, jax.Array]]:
    """Where a search ends from each of a batch of starts.

    Args:
      blocks, problem: with a leading axis of m starts, each with its own problem.
      descends: bool[m], whether to descend on f first, or only to solve grad f = 0.
      steps: the most steps of each Levenberg-Marquardt.
      tolerance: a point with ``||grad f||`` up to this is done.
    Returns:
      ``(blocks, numbers)``: the limits, and f64[m] each of "gradient_norm", "risk", and of the
      Hessian of f on its piece: "least_eigenvalue", "largest_eigenvalue" and "curvature_across",
      the least one but for the l k zeros that belong to the rescaling of units.
    """

    def one(start, sample, descend):
        theta, _ = ravel_pytree(start)
        unravel, residual, gradient = _flat_functions(start, sample)
        theta, _, _ = least_squares.minimise(
            residual, theta, steps=jnp.where(descend, steps, 0), tolerance=tolerance
        )
        theta, slope, hessian = least_squares.minimise(
            gradient, theta, steps=steps, tolerance=tolerance
        )
        eigenvalues = jnp.linalg.eigvalsh(hessian)
        numbers = {
            "gradient_norm": jnp.linalg.norm(slope),
            "risk": jnp.sum(residual(theta) ** 2),
            "least_eigenvalue": eigenvalues[0],
            "curvature_across": eigenvalues[start.U.shape[0] * start.U.shape[1]],
            "largest_eigenvalue": eigenvalues[-1],
        }
        return unravel(theta), numbers

    return jax.vmap(one)(blocks, problem, descends)


@jax.jit
def kink_margins(blocks: Blocks, problem: Problem) -> dict[str, jax.Array]:
    """How far each limit is from a kink, and its lengths; batched over a leading axis.

    Returns:
      dict of f64[m]: "kink_margin", the least ``|w . z_i| / (||w|| ||z_i||)`` over all units and
      examples (0 for a unit with w = 0); "shortest_unit", the least ``max(||w||, ||v||)`` of a
      unit; and bool[m] "all_dead", whether no unit is active on any example.
    """

    def one(some, sample):
        _, hidden, pre = network.forward(some, sample)
        length = jnp.sum(some.U**2, axis=2)
        reach = jnp.sum(hidden**2, axis=2)
        if some.s is not None:
            length, reach = length + some.s**2, reach + 1.0
        size = jnp.sqrt(length[:, None, :] * reach[:, :, None])
        margin = jnp.where(size > 0, jnp.abs(pre) / jnp.where(size > 0, size, 1.0), 0.0)
        longest = jnp.maximum(jnp.sqrt(length), jnp.linalg.norm(some.V, axis=1))
        return {
            "kink_margin": margin.min(),
            "shortest_unit": longest.min(),
            "all_dead": (pre <= 0).all(),
        }

    return jax.vmap(one)(blocks, problem)


def classify(
    limits: dict[str, np.ndarray],
    *,
    gradient_tolerance: float,
    optimal_share: float,
    radius: float,
    kink_tolerance: float,
    zero_unit_tolerance: float,
    curvature_tolerance: float,
) -> np.ndarray:
    """One of `KINDS` for each limit.

    Args:
      limits: arrays of `find` and `kink_margins`, "risk_share" (f / f(0)) and "max_norm".
      gradient_tolerance: ``||grad f||`` up to which a point counts as critical.
      optimal_share: f / f(0) up to which it counts as optimal; the problems are realizable.
      radius: of the ball, for ``|||theta|||``.
      kink_tolerance: `kink_margins`' margin from which f is smooth at the point.
      zero_unit_tolerance: a unit with ||w|| and ||v|| up to this is zero.
      curvature_tolerance: share of the largest Hessian eigenvalue up to which a negative one is
        taken for rounding.
    """
    negative = limits["least_eigenvalue"] < -curvature_tolerance * limits["largest_eigenvalue"]
    conditions = [
        limits["gradient_norm"] > gradient_tolerance,
        limits["risk_share"] <= optimal_share,
        limits["max_norm"] >= radius,
        limits["all_dead"],
        limits["shortest_unit"] <= zero_unit_tolerance,
        limits["kink_margin"] <= kink_tolerance,
        negative,
    ]
    return np.array(KINDS)[np.select(conditions, range(len(conditions)), len(conditions))]
