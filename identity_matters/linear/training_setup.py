"""What gradient descent on a linear network is started with: targets, maps, weights, step size.

Symbols as in `identity_matters.linear`. Random matrices come from a NumPy generator that the caller
seeds, because compiling a random generator for each of many shapes takes seconds.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike


def _random_basis(rng: np.random.Generator, width: int) -> np.ndarray:
    """Orthogonal f64[width, width] by QR of a Gaussian matrix."""
    return np.linalg.qr(rng.standard_normal((width, width)))[0]


def rotation(width: int, angles_radians: Sequence[float]) -> np.ndarray:
    """Plane rotations by the given angles on the diagonal, then ones: f64[width, width].

    Raises:
      ValueError: there are more angles than planes.
    """
    if 2 * len(angles_radians) > width:
        raise ValueError(f"{len(angles_radians)} angles need width >= {2 * len(angles_radians)}")
    Q = np.eye(width)
    for plane, angle in enumerate(angles_radians):
        c, s = math.cos(angle), math.sin(angle)
        Q[2 * plane : 2 * plane + 2, 2 * plane : 2 * plane + 2] = [[c, -s], [s, c]]
    return Q


def random_target(
    rng: np.random.Generator, width: int, angles_radians: Sequence[float], gamma: float
) -> np.ndarray:
    """``R = Q P`` with det R > 0: Q turns by the given angles, P stretches by e^{-gamma..gamma}.

    Both get their own random basis, so that they do not commute.

    Args:
      rng: generator of the two bases.
      width: d, at least 2.
      angles_radians: angles of Q in its planes; the others are not turned.
      gamma: Theorem 2.1's gamma of R exactly; log singular values are evenly spaced.
    Returns:
      f64[width, width].
    """
    turned, stretched = _random_basis(rng, width), _random_basis(rng, width)
    stretches = np.exp(np.linspace(-gamma, gamma, width))
    Q = turned @ rotation(width, angles_radians) @ turned.T
    return Q @ (stretched * stretches) @ stretched.T


def random_second_moment(rng: np.random.Generator, eigenvalues: Sequence[float]) -> np.ndarray:
    """``Sigma`` with the given eigenvalues in a random basis: f64[d, d], symmetric."""
    basis = _random_basis(rng, len(eigenvalues))
    Sigma = (basis * np.asarray(eigenvalues, np.float64)) @ basis.T
    return (Sigma + Sigma.T) / 2


def gaussian_maps(
    rng: np.random.Generator, dimension: int, width: int
) -> tuple[np.ndarray, np.ndarray]:
    """Input map f64[width, dimension] and output map f64[dimension, width] (Zou et al. 2020).

    Entries ``N(0, 1/width)``, so that ``E[C^T C] = E[B B^T] = I`` (the scale is our choice).
    """
    scale = 1 / math.sqrt(width)
    input_map = scale * rng.standard_normal((width, dimension))
    return input_map, scale * rng.standard_normal((dimension, width))


def modified_identity_maps(dimension: int) -> tuple[np.ndarray, np.ndarray]:
    """Maps that copy x to the first half of 2 d units and read the second half.

    ``C = [I; 0]``, ``B = [0, I]``, our form of the (d + k)-wide modified identity of Zou et al.
    2020. The network starts at 0, not at I. From zero weights every A_i stays ``[[0, 0], [G, 0]]``,
    products of two such blocks vanish and ``B M_l C = sum_i G_i``: the problem is least squares.
    """
    identity, zero = np.eye(dimension), np.zeros((dimension, dimension))
    return np.vstack([identity, zero]), np.hstack([zero, identity])


def last_layer_minus_identity(depth: int, width: int) -> np.ndarray:
    """``A_l = -I``, the others 0: f64[depth, width, width] (zero-asymmetric, Wu et al. 2019)."""
    A = np.zeros((depth, width, width))
    A[-1] = -np.eye(width)
    return A


def largest_stable_learning_rate(
    R: ArrayLike,
    Sigma: ArrayLike,
    depth: int,
    input_map: ArrayLike | None = None,
    output_map: ArrayLike | None = None,
) -> float:
    """1/L, L an upper bound of the curvature at a balanced optimum (our choice of step size).

    At an optimum E = 0 the Hessian of f is that of ``||sum_i P_i dA_i N_i Sigma^{1/2}||_F^2`` with
    the products P_i after and N_i before layer i, maps included. Where all layers are alike,
    ``||P_i||^2 ||N_i||^2 <= ||B||^2 ||C||^2 max(1, sigma_max(R))^2``, hence

        L = 2 depth ||Sigma|| ||B||^2 ||C||^2 max(1, sigma_max(R))^2.

    Args:
      R, Sigma, input_map, output_map: see `risk.excess_risk`; None stands for the identity.
      depth: number of layers.
    Returns:
      The learning rate.
    Raises:
      ValueError: depth is below 1.
    """
    if depth < 1:
        raise ValueError(f"depth must be at least 1, got {depth}")
    maps = [m for m in (input_map, output_map) if m is not None]
    squared_maps = math.prod(float(np.linalg.norm(m, 2)) ** 2 for m in maps)
    stretch = max(1.0, float(np.linalg.norm(R, 2))) ** 2
    return 1.0 / (2 * depth * float(np.linalg.norm(Sigma, 2)) * squared_maps * stretch)
