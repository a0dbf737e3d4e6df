"""Dead units: open sets of exact critical points with a bad risk inside every small ball.

A unit is dead on a sample if ``u . h_i + s <= 0`` for all i; it is strictly dead if all are < 0. If
every unit of every block is strictly dead then ``yhat = B A x`` and nothing moves: f equals f(0) on
a whole neighbourhood, and its gradient is exactly 0 there. Whether a unit is dead does not depend
on the length of its w, so that these sets are cones: every ball around the origin holds them, in
the same proportion. For ``||A x_i|| <= b`` they contain ``s < -||u|| b``, for any V.

*How large.* Let the rows w of all units be independent with a spherically symmetric direction (the
Gaussian start, at any scale). A single unit is dead with probability p, the share of the sphere in
the cone ``{w : w . z_i < 0 for all i}``. All l k units see the block input A x as long as those
below are dead, so that a net is dead with probability exactly ``p^{l k}``, for any law of V.
For data that fill the ball of radius b in R^d,

    p = 1/2 I_{1/(1 + b^2)}(d/2, 1/2)          (regularised incomplete beta function),

because ``||u||^2 / (||u||^2 + s^2)`` is Beta(d/2, 1/2); p = 1/4 for d = b = 1. Data inside that
ball have at least this p.

*Without biases*, or with s >= 0, a unit can be strictly dead only if the A x_i lie in an open half
space. If 0 lies in the interior of their convex hull no unit with (u, s) != 0, s >= 0, is even
dead: some ``u . A x_i > 0``. For independent inputs from a law that is symmetric about 0 a given
unit is dead with probability 2^{-n}.
"""

import jax
import numpy as np
import scipy.optimize
import scipy.special

from identity_matters.nonlinear import network
from identity_matters.nonlinear.network import Blocks, Problem


def dead_share_on_ball(dimension: int, radius: float) -> float:
    """p for data that fill the ball of `radius` b in R^d: see the module's docstring.

    Raises:
      ValueError: dimension < 1 or radius < 0.
    """
    if dimension < 1 or radius < 0:
        raise ValueError(
            f"dimension must be at least 1 and radius at least 0, got {dimension}, {radius}"
        )
    return float(0.5 * scipy.special.betainc(dimension / 2, 0.5, 1 / (1 + radius**2)))


@jax.jit
def strictly_dead(blocks: Blocks, problem: Problem) -> jax.Array:
    """Whether every unit of every block has only negative pre-activations on the sample.

    Args:
      blocks: with a leading axis of m nets; problem: one, for all of them.
    Returns:
      bool[m].
    """

    def one(some):
        _, _, pre = network.forward(some, problem)
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
    for face in range(dimension):
        for sign in (-1.0, 1.0):
            bounds = [(-1.0, 1.0)] * dimension + [(None, None)]
            bounds[face] = (sign, sign)
            solved = scipy.optimize.linprog(
                objective, A_ub=constraints, b_ub=np.zeros(count), bounds=bounds
            )
            if not solved.success:
                raise ArithmeticError(f"linear program not solved: {solved.message}")
            least = min(least, solved.fun)
    return float(least)
