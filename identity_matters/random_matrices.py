"""Samplers of random matrices: orthogonal ones, targets R, second moments, layers.

Symbols as in `identity_matters.linear`. NumPy draws the samples: JAX would compile for
each shape. The points of B_tau are drawn to break eq. (2.3) if it can be broken.
Samplers of their layers:

* ``uniform``    Gaussian directions, each layer at its own norm, uniform on [0, tau];
* ``boundary``   the same directions with every layer at norm tau;
* ``diagonal``   layers that are all diagonal in one random orthonormal basis;
* ``mixture``    each layer is one of ``-tau I``, ``tau I``, 0, -tau times a reflection,
  Gaussian;
* ``extremal``   ``-tau I`` plus noise of log-uniform size, where the corrected form is
  tight.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy.linalg
from numpy.typing import ArrayLike

SAMPLERS = ("uniform", "boundary", "diagonal", "mixture", "extremal")
# The least relative size of the noise around -tau I; rounding would hide smaller noise.
_LEAST_NOISE_LOG10 = -8.0
# Relative accuracy of largest_spectral_norm, far above the rounding of Cholesky's
# method.
_CERTIFIED_TO = 1e-9


def spectral_norms(matrices: np.ndarray) -> np.ndarray:
    """Largest singular value of each matrix: f64[..., d, d] -> f64[...]."""
    # eigvalsh of the Gram matrix is faster than an SVD; the largest value is as
    # accurate.
    gram = matrices.mT @ matrices
    return np.sqrt(np.maximum(np.linalg.eigvalsh(gram)[..., -1], 0.0))


def largest_spectral_norm(A: np.ndarray) -> float:
    """``|||A||| = max_i ||A_i||`` of f64[depth, d, d], within 1e-9, never above it.

    The error is relative.

    NaN if an entry is. Entries must be below 1e150, so that their squares are finite.
    An SVD of every layer is slow. With tau the largest norm so far, a Cholesky
    factorization proves ``||A_i|| < (1 + 1e-9) tau``; only a layer where it fails gets
    an SVD.
    """
    if np.isnan(A).any():  # the Cholesky factorization of NaN does not fail
        return float("nan")
    tau, identity = float(np.linalg.norm(A[0], 2)), np.eye(A.shape[-1])
    for layer in A[1:]:
        try:
            np.linalg.cholesky(
                ((1 + _CERTIFIED_TO) * tau) ** 2 * identity - layer.T @ layer
            )
        except np.linalg.LinAlgError:
            tau = max(tau, float(np.linalg.norm(layer, 2)))
    return tau


def rotate_rows(matrix: np.ndarray, angles: np.ndarray) -> np.ndarray:
    """``diag(T(angles_1), T(angles_2), ..., 1) matrix``.

    T(t) = [[cos t, -sin t], [sin t, cos t]].

    f64[d, k] -> f64[d, k], with angles f64[p] in radians. Raises ValueError if p > d //
    2.
    """
    planes = len(angles)
    if 2 * planes > len(matrix):
        raise ValueError(
            f"{planes} angles need width >= {2 * planes}, got {len(matrix)}"
        )
    cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
    first, second = matrix[0 : 2 * planes : 2], matrix[1 : 2 * planes : 2]
    rotated = matrix.copy()
    rotated[0 : 2 * planes : 2] = cos * first - sin * second
    rotated[1 : 2 * planes : 2] = sin * first + cos * second
    return rotated


def orthogonal(
    rng: np.random.Generator,
    shape: tuple[int, ...],
    rows: int,
    columns: int | None = None,
) -> np.ndarray:
    """Random matrices with orthonormal columns: f64[*shape, rows, columns or rows]."""
    q, r = np.linalg.qr(rng.standard_normal((*shape, rows, columns or rows)))
    # The signs of R's diagonal make QR unique and Q uniform.
    return q * np.sign(np.diagonal(r, axis1=-2, axis2=-1))[..., None, :]


def rotation(rng: np.random.Generator, d: int) -> np.ndarray:
    """A random rotation, f64[d, d], uniform in SO(d)."""
    Q = orthogonal(rng, (), d)
    Q[0] *= np.linalg.slogdet(Q)[0]
    return Q


def symmetric(rng: np.random.Generator, eigenvalues: ArrayLike) -> np.ndarray:
    """Symmetric matrices with eigenvalues f64[..., d], random bases: f64[..., d, d]."""
    values = np.asarray(eigenvalues, np.float64)
    return _in_basis(orthogonal(rng, values.shape[:-1], values.shape[-1]), values)


def _in_basis(basis: np.ndarray, eigenvalues: np.ndarray) -> np.ndarray:
    matrices = (basis * eigenvalues[..., None, :]) @ basis.mT
    return (matrices + matrices.mT) / 2


class Points(NamedTuple):
    """A batch of points, in the order of `gradient_bound.right_over_left`."""

    A: np.ndarray  # f64[n, max_depth, d, d], zero layers from `depth` on
    R: np.ndarray  # f64[n, d, d]
    Sigma: np.ndarray  # f64[n, d, d]
    depth: np.ndarray  # i64[n]


def layers(
    rng: np.random.Generator, sampler: str, tau: np.ndarray, max_depth: int, width: int
) -> np.ndarray:
    """Layers with ``|||A||| <= tau``: f64[len(tau), max_depth, width, width].

    The bound holds up to rounding.

    Raises ValueError unless `sampler` is one of `SAMPLERS`.
    """
    if sampler not in SAMPLERS:
        raise ValueError(f"sampler must be one of {SAMPLERS}, got {sampler!r}")
    shape = (len(tau), max_depth)
    radius = np.broadcast_to(tau[:, None], shape)
    eye = np.eye(width)
    if sampler == "diagonal":
        # Half of the eigenvalues sit at -tau or tau, the corners of the set.
        values = rng.uniform(-1, 1, (*shape, width))
        values = np.where(rng.random(values.shape) < 0.5, np.sign(values), values)
        return _in_basis(
            orthogonal(rng, (len(tau), 1), width), values * radius[..., None]
        )
    gaussian = rng.standard_normal((*shape, width, width))
    if sampler == "extremal":
        noise_log10 = rng.uniform(_LEAST_NOISE_LOG10, 0, (len(tau), 1))
        noise = gaussian * 10 ** noise_log10[..., None, None]
        # The Frobenius norm bounds the spectral one from above at a fraction of its
        # cost.
        reach = 1 + np.linalg.norm(noise, axis=(-2, -1))
        return (noise - eye) * (radius / reach)[..., None, None]
    if sampler in ("boundary", "uniform"):
        norms = radius if sampler == "boundary" else radius * rng.random(shape)
        return gaussian * (norms / spectral_norms(gaussian))[..., None, None]
    kinds = rng.integers(0, 5, shape)[..., None, None]
    axis = gaussian[..., :1] / np.linalg.norm(gaussian[..., :1], axis=-2, keepdims=True)
    gaussian /= np.linalg.norm(gaussian, axis=(-2, -1), keepdims=True)
    directions = np.choose(
        kinds, [-eye, eye, 0 * eye, 2 * axis @ axis.mT - eye, gaussian]
    )
    return directions * radius[..., None, None]


def second_moments(
    rng: np.random.Generator,
    count: int,
    width: int,
    *,
    scale_log10: tuple[float, float],
    max_condition_log10: float,
    singular: bool = False,
) -> np.ndarray:
    """Random Sigma, f64[count, width, width]; half are isotropic on their range.

    On average.

    `scale_log10` is the (low, high) of log10 ||Sigma||; `max_condition_log10` bounds
    log10 of the condition number on the range. Singular ones have random ranks from 1
    to width - 1 and are diagonal: this keeps rounding out of their null spaces, where a
    target with a large error would amplify it. Raises ValueError for an argument out of
    range, or `singular` with width 1.
    """
    if len(scale_log10) != 2 or not scale_log10[0] <= scale_log10[1]:
        raise ValueError(f"log10 ||Sigma|| needs (low, high), got {scale_log10}")
    if not max_condition_log10 >= 0:
        raise ValueError(
            f"max_condition_log10 must be at least 0, got {max_condition_log10}"
        )
    if singular and width < 2:
        raise ValueError(
            f"a singular Sigma that is not 0 needs width at least 2, got {width}"
        )
    scale = 10 ** rng.uniform(*scale_log10, (count, 1))
    condition_log10 = rng.uniform(0, max_condition_log10, (count, 1))
    condition_log10 *= rng.random((count, 1)) < 0.5
    exponents = rng.random((count, width))
    # Eigenvalues from scale down to scale / condition, both included.
    exponents[:, 0] = 0.0
    exponents[:, 1:2] = 1.0
    eigenvalues = scale * 10 ** (-condition_log10 * exponents)
    if not singular:
        return symmetric(rng, eigenvalues)
    # The largest eigenvalue comes first and stays.
    eigenvalues *= np.arange(width) < rng.integers(1, width, (count, 1))
    return eigenvalues[:, :, None] * np.eye(width)


def points(
    rng: np.random.Generator,
    sampler: str,
    count: int,
    width: int,
    depths: tuple[int, int],
    max_tau: float,
    **data: Any,
) -> Points:
    """`count` points with depths drawn uniformly from ``depths[0] ... depths[1]``.

    Half of the tau, on average, are uniform on (0, max_tau); the others, with uniform
    log(1 - tau), lie nearer to the wall at 1. `data` goes to `second_moments`; for
    errors see it and `layers`.
    """
    uniform = rng.uniform(0, max_tau, count)
    near_wall = 1 - (1 - max_tau) ** rng.random(count)
    # A uniform draw may be 0, but the radius must be positive.
    tau = np.maximum(np.where(rng.random(count) < 0.5, uniform, near_wall), 1e-6)
    depth = rng.integers(depths[0], depths[1] + 1, count)
    A = layers(rng, sampler, tau, depths[1], width)
    A[np.arange(depths[1]) >= depth[:, None]] = 0.0
    Sigma = second_moments(rng, count, width, **data)
    return Points(A, targets_of_layers(rng, A), Sigma, depth)


def targets_of_layers(rng: np.random.Generator, A: np.ndarray) -> np.ndarray:
    """Random R for the layers A, f64[n, depth, d, d] -> f64[n, d, d].

    A third are Gaussian of log-uniform size (half of these with det R < 0), a third the
    product of the layers plus a tenth of such a matrix, and a third that product plus a
    rank-one error.
    """
    count, depth, width, _ = A.shape
    product = np.broadcast_to(np.eye(width), (count, width, width))
    for layer in range(depth):
        product = product + A[:, layer] @ product
    size = 10 ** rng.uniform(-2, 2, (count, 1, 1))
    gaussian = rng.standard_normal((count, width, width))
    rank_one = gaussian[:, :, :1] * rng.standard_normal((count, 1, width))
    kinds = rng.integers(0, 3, (count, 1, 1))
    near_product = product + 0.1 * size * gaussian
    return np.choose(kinds, [size * gaussian, near_product, product + size * rank_one])


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
    """A random target R for Theorem 2.1, from a family, with det R > 0: f64[d, d].

    The families are `FAMILIES`.

    The scale, sigma_max sigma_min = 1, gives the least gamma: half the log of the
    condition number. `strength` is the condition number, at least 1, for
    "ill_conditioned"; the largest distance of an angle from pi, in [0, pi] radians, for
    "near_minus_identity"; the standard deviation of the log moduli, at least 0, for
    "negative_..."; otherwise ignored. Raises ValueError for an unknown family or a
    strength out of range.
    """
    if family not in FAMILIES:
        raise ValueError(f"family must be one of {tuple(FAMILIES)}, got {family!r}")
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


def _balanced(singular_values: np.ndarray) -> np.ndarray:
    return singular_values / np.sqrt(singular_values.max() * singular_values.min())


def _gaussian(rng, d: int, _strength: float) -> np.ndarray:
    """Gaussian entries; the sign of the first row makes the determinant positive."""
    R = rng.standard_normal((d, d))
    R[0] *= np.linalg.slogdet(R)[0]
    K = np.linalg.svd(R, compute_uv=False)
    return R / np.sqrt(K[0] * K[-1])


def _near_minus_identity(rng, d: int, strength: float) -> np.ndarray:
    """Turns every plane by nearly pi; for odd d one axis stays fixed."""
    S = rotation(rng, d)
    return S @ rotate_rows(S.T, np.pi - strength * rng.uniform(size=d // 2))


def _psd(rng, d: int, _strength: float) -> np.ndarray:
    """Symmetric positive definite, with log-normal eigenvalues."""
    return symmetric(rng, _balanced(np.exp(rng.standard_normal(d))))


def _ill_conditioned(rng, d: int, strength: float) -> np.ndarray:
    """Random singular vectors; values from kappa^{1/2} to kappa^{-1/2}, even in log."""
    K = np.geomspace(strength**0.5, strength**-0.5, d) if d > 1 else np.ones(1)
    return (rotation(rng, d) * K) @ rotation(rng, d).T


def _normal(rng, d: int, _strength: float) -> np.ndarray:
    """``S diag(r_j T(t_j), ...) S^T``: log-normal r_j, uniform t_j, never negative.

    No eigenvalue is negative.
    """
    S = rotation(rng, d)
    planes = d // 2
    moduli = _balanced(np.exp(rng.standard_normal(d - planes)))
    K = np.concatenate([np.repeat(moduli[:planes], 2), moduli[planes:]])
    return S @ rotate_rows(K[:, None] * S.T, rng.uniform(-np.pi, np.pi, planes))


def _negative(rng, d: int, strength: float, multiplicity: int) -> np.ndarray:
    """Symmetric; about half the eigenvalues are negative, `multiplicity` times each."""
    negative = min(d - d % 2, 2 * ((d + 3) // 4))
    moduli = np.repeat(np.exp(strength * rng.standard_normal(d)), multiplicity)[
        :negative
    ]
    moduli = np.append(moduli, np.exp(strength * rng.standard_normal(d - negative)))
    eigenvalues = _balanced(moduli) * np.where(np.arange(d) < negative, -1, 1)
    S = rotation(rng, d)
    # For half of the targets, on average, the eigenvectors are the axes in random
    # order.
    if rng.uniform() < 0.5:
        S = np.eye(d)[rng.permutation(d)]
    return _in_basis(S, eigenvalues)


def _negative_normal(rng, d: int, strength: float) -> np.ndarray:
    """Normal; about half of its eigenvalues are negative and simple.

    The others are not real but within pi/4 of the negative axis; for odd d one is
    positive.
    """
    negative = min(d - d % 2, 2 * ((d + 3) // 4))
    turned = (d - negative) // 2
    moduli = np.exp(strength * rng.standard_normal(d - turned))
    K = _balanced(np.concatenate([np.repeat(moduli[:turned], 2), moduli[turned:]]))
    # For odd d the last axis is neither turned nor reversed.
    K[2 * turned : 2 * turned + negative] *= -1
    S = rotation(rng, d)
    return S @ rotate_rows(K[:, None] * S.T, np.pi * rng.uniform(0.75, 1, turned))


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
