"""Problems made by hand, with known local minima or a flat origin."""

import jax
import numpy as np

from identity_matters.relu.model import Blocks, Problem
from identity_matters.relu.problems import plain_problem


def two_points(right: float, left: float) -> Problem:
    """``x = +1, -1`` with errors `right` and `left`: y = 1 + right and -1 + left.

    One unit without bias has, on these data,

        f(u, v) = ((right - v u)^2 + left^2) / 2     for u > 0,
        f(u, v) = (right^2 + (left - v |u|)^2) / 2   for u < 0.

    For right = 0 the points v = 0, u > 0 are local minima, and u < 0, v |u| = left has
    risk 0. For 0 < |right| < |left| the hyperbola ``v u = right, u > 0`` consists of
    local minima with risk left^2 / 2 and Hessian eigenvalues 0 and ``u^2 + v^2``. See
    N9 of docs/theory/relu.md.
    """
    return plain_problem([[1.0], [-1.0]], [[1.0 + right], [-1.0 + left]])


def hexagon(size: float) -> Problem:
    """A regular hexagon, with errors ``size (-1)^i`` in the first output.

    Without biases the origin is flat to second order, although two blocks of width 2
    have a smaller risk (N5 of docs/theory/relu.md).
    """
    angle = np.arange(6) * np.pi / 3
    x = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    e = np.stack([size * (-1.0) ** np.arange(6), np.zeros(6)], axis=1)
    return plain_problem(x, x + e)


def copies(problem: Problem, times: int) -> Problem:
    """`times` copies of a problem along a new leading axis."""
    return jax.tree.map(lambda part: np.repeat(part[None], times, axis=0), problem)


def unit_blocks(*rows) -> Blocks:
    """Blocks for d = 1, each a list of units (u, v, s)."""
    u, v, s = np.moveaxis(np.array(rows), -1, 0)
    return Blocks(u[:, :, None], v[:, None], s)
