"""Dead units: open sets of exact critical points with a bad risk inside every small ball.

A unit is strictly dead on a sample if its pre-activation is negative on every example. Where all
are, f = f(0) on a neighbourhood. Of nets whose rows w are independent with a spherically symmetric
direction (a Gaussian start, at any scale) the share p^{l k} is strictly dead. For data that fill
the ball of radius b in R^d

    p = 1/2 I_{1/(1 + b^2)}(d/2, 1/2)          (regularised incomplete beta function),

and data inside that ball have at least this p. See N6 to N8 of docs/theory/relu.md.
"""

import itertools

import jax
import numpy as np
import scipy.optimize
import scipy.special

from identity_matters.relu import model
from identity_matters.relu.model import Blocks, Problem


def dead_share_on_ball(dimension: int, radius: float) -> float:
    """p for data that fill the ball of `radius` b in R^d: see the module's docstring."""
    return float(0.5 * scipy.special.betainc(dimension / 2, 0.5, 1 / (1 + radius**2)))


@jax.jit
def strictly_dead(blocks: Blocks, problem: Problem) -> jax.Array:
    """Whether every unit of every block has only negative pre-activations: bool[m].

    Args:
      blocks: with a leading axis of m nets; problem: one, for all of them.
    """

    def one(some):
        _, _, pre = model.forward(some, problem)
        return (pre < 0).all()

    return jax.vmap(one)(blocks)


def hull_depth(points: np.ndarray) -> float:
    """``min_u max_i u . p_i`` over ``max_j |u_j| = 1``: positive iff 0 is inside the convex hull.

    Solved as 2d linear programs, one a face of the cube. A positive value says that no unit
    without bias is dead on the points; f64[n, d] -> float.
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
