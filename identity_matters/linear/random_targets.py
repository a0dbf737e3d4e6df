"""Random targets R with det R > 0, of several families."""

import functools
from collections.abc import Callable, Sequence

import numpy as np
import scipy.linalg
from numpy.typing import ArrayLike

from identity_matters.checks import check_choice
from identity_matters.matrices import determinant_sign, rotate_rows
from identity_matters.random_matrices import (
    orthogonal,
    rotation,
    symmetric,
    symmetric_in_basis,
)


def exponential_targets(
    rng: np.random.Generator, sizes: ArrayLike, width: int
) -> np.ndarray:
    """``R = exp(size * Gaussian / sqrt(d))``, det R > 0: f64[n] -> f64[n, d, d]."""
    sizes = np.asarray(sizes)
    gaussian = rng.standard_normal((len(sizes), width, width)) / np.sqrt(width)
    return scipy.linalg.expm(sizes[:, None, None] * gaussian)


def polar_target(
    rng: np.random.Generator, width: int, angles_radians: Sequence[float], gamma: float
) -> np.ndarray:
    """``R = Q P``, f64[d, d]: Q turns by given angles, P stretches by up to e^gamma.

    Each has its own random basis, so they do not commute. If d >= 2, gamma is exactly
    that of Theorem 2.1; log singular values are evenly spaced. ValueError for more than
    d // 2 angles.
    """
    turned = orthogonal(rng, (), width)
    Q = turned @ rotate_rows(turned.T, np.asarray(angles_radians, np.float64))
    return Q @ symmetric(rng, np.exp(np.linspace(-gamma, gamma, width)))


def target(
    rng: np.random.Generator, family: str, d: int, strength: float
) -> np.ndarray:
    """A random target R for Theorem 2.1, with det R > 0: f64[d, d].

    The scale, sigma_max sigma_min = 1, gives the least gamma: half the log of the
    condition number.

    Args:
      rng: the source of randomness.
      family: one of `FAMILIES`.
      d: the dimension.
      strength: the condition number, at least 1, for "ill_conditioned"; the largest
        distance of an angle from pi, in [0, pi] radians, for "near_minus_identity"; the
        standard deviation of the log moduli, at least 0, for "negative_..."; otherwise
        ignored.
    Raises:
      ValueError: an unknown family, or a strength out of range.
    """
    check_choice("family", family, FAMILIES)
    if family == "near_minus_identity" and not 0 <= strength <= np.pi:
        raise ValueError(
            f"the distance from pi must be between 0 and pi, got {strength}"
        )
    if family == "ill_conditioned" and not strength >= 1:
        raise ValueError(f"the condition number must be at least 1, got {strength}")
    if family.startswith("negative") and not strength >= 0:
        raise ValueError(
            f"the deviation of the logarithms must be at least 0, got {strength}"
        )
    return FAMILIES[family](rng, d, strength)


# The members of `FAMILIES`: each returns a target f64[d, d]. `strength` is as in
# `target`.


def _gaussian(rng: np.random.Generator, d: int, _strength: float) -> np.ndarray:
    """Gaussian entries; the sign of the first row makes the determinant positive."""
    R = rng.standard_normal((d, d))
    R[0] *= determinant_sign(R)
    K = np.linalg.svd(R, compute_uv=False)
    return R / np.sqrt(K[0] * K[-1])


def _near_minus_identity(
    rng: np.random.Generator, d: int, strength: float
) -> np.ndarray:
    """Turns every plane by nearly pi; for odd d one axis stays fixed."""
    S = rotation(rng, d)
    return S @ rotate_rows(S.T, np.pi - strength * rng.uniform(size=d // 2))


def _psd(rng: np.random.Generator, d: int, _strength: float) -> np.ndarray:
    """Symmetric positive definite, with log-normal eigenvalues."""
    return symmetric(rng, _balanced(np.exp(rng.standard_normal(d))))


def _ill_conditioned(rng: np.random.Generator, d: int, strength: float) -> np.ndarray:
    """Random singular vectors; values from kappa^{1/2} to kappa^{-1/2}, even in log."""
    K = np.geomspace(strength**0.5, strength**-0.5, d) if d > 1 else np.ones(1)
    return (rotation(rng, d) * K) @ rotation(rng, d).T


def _normal(rng: np.random.Generator, d: int, _strength: float) -> np.ndarray:
    """``S diag(r_j T(t_j), ...) S^T``: log-normal r_j and uniform t_j.

    No eigenvalue is negative.
    """
    S = rotation(rng, d)
    planes = d // 2
    moduli = _balanced(np.exp(rng.standard_normal(d - planes)))
    K = np.concatenate([np.repeat(moduli[:planes], 2), moduli[planes:]])
    return S @ rotate_rows(K[:, None] * S.T, rng.uniform(-np.pi, np.pi, planes))


def _negative(
    rng: np.random.Generator, d: int, strength: float, multiplicity: int
) -> np.ndarray:
    """Symmetric; about half of its eigenvalues are negative, each so many times."""
    negative = _even_half(d)
    simple = np.exp(strength * rng.standard_normal(d))
    of_negative = np.repeat(simple, multiplicity)[:negative]
    of_positive = np.exp(strength * rng.standard_normal(d - negative))
    moduli = np.append(of_negative, of_positive)
    eigenvalues = _balanced(moduli) * np.where(np.arange(d) < negative, -1, 1)
    S = rotation(rng, d)
    # For half of the targets, on average, the eigenvectors are the axes in random
    # order.
    if rng.uniform() < 0.5:
        S = np.eye(d)[rng.permutation(d)]
    return symmetric_in_basis(S, eigenvalues)


def _negative_normal(rng: np.random.Generator, d: int, strength: float) -> np.ndarray:
    """Normal; about half of its eigenvalues are negative and simple.

    The others are not real but within pi/4 of the negative axis; for odd d one is
    positive.
    """
    negative = _even_half(d)
    turned = (d - negative) // 2
    moduli = np.exp(strength * rng.standard_normal(d - turned))
    K = _balanced(np.concatenate([np.repeat(moduli[:turned], 2), moduli[turned:]]))
    # For odd d the last axis is neither turned nor reversed.
    K[2 * turned : 2 * turned + negative] *= -1
    S = rotation(rng, d)
    return S @ rotate_rows(K[:, None] * S.T, np.pi * rng.uniform(0.75, 1, turned))


# What several members share.


def _balanced(singular_values: np.ndarray) -> np.ndarray:
    """Scaled so that the largest times the least is 1."""
    return singular_values / np.sqrt(singular_values.max() * singular_values.min())


def _even_half(d: int) -> int:
    """The least even number that is at least d / 2, but not above d."""
    return min(d - d % 2, 2 * ((d + 3) // 4))


FAMILIES: dict[str, Callable[[np.random.Generator, int, float], np.ndarray]] = {
    "random": _gaussian,
    "orthogonal": lambda rng, d, _: rotation(rng, d),
    "near_minus_identity": _near_minus_identity,
    "psd": _psd,
    "ill_conditioned": _ill_conditioned,
    "normal": _normal,
    "negative_even": functools.partial(_negative, multiplicity=2),
    "negative_odd": functools.partial(_negative, multiplicity=1),
    "negative_normal": _negative_normal,
}
