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

    The error is relative. NaN if an entry is. Entries must be below 1e150, so that
    their squares are finite. An SVD of every layer is slow. With tau the largest norm
    so far, a Cholesky factorization proves ``||A_i|| < (1 + 1e-9) tau``; only a layer
    where it fails gets an SVD.
    """
    if np.isnan(A).any():  # the Cholesky factorization of NaN does not fail
        return float("nan")
    identity = np.eye(A.shape[-1])
    tau = float(np.linalg.norm(A[0], 2))
    for layer in A[1:]:
        largest_square = ((1 + _CERTIFIED_TO) * tau) ** 2
        try:
            np.linalg.cholesky(largest_square * identity - layer.T @ layer)
        except np.linalg.LinAlgError:
            tau = max(tau, float(np.linalg.norm(layer, 2)))
    return tau


def rotate_rows(matrix: np.ndarray, angles: np.ndarray) -> np.ndarray:
    """``diag(T(angles_1), T(angles_2), ..., 1) matrix``.

    T(t) = [[cos t, -sin t], [sin t, cos t]]. f64[d, k] -> f64[d, k], with angles f64[p]
    in radians. Raises ValueError if p > d // 2.
    """
    planes = len(angles)
    if 2 * planes > len(matrix):
        raise ValueError(
            f"{planes} angles need width >= {2 * planes}, got {len(matrix)}"
        )
    cos = np.cos(angles)[:, None]
    sin = np.sin(angles)[:, None]
    first = matrix[0 : 2 * planes : 2]
    second = matrix[1 : 2 * planes : 2]
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
    """Symmetric matrices with eigenvectors `basis`: f64[..., d, d], f64[..., d]."""
    matrices = (basis * eigenvalues[..., None, :]) @ basis.mT
    return (matrices + matrices.mT) / 2


class Points(NamedTuple):
    """A batch of points, in the order of `gradient_bound.right_over_left`.

    Attributes:
      A: f64[n, max_depth, d, d], zero layers from `depth` on.
      R: f64[n, d, d].
      Sigma: f64[n, d, d].
      depth: i64[n].
    """

    A: np.ndarray
    R: np.ndarray
    Sigma: np.ndarray
    depth: np.ndarray


def layers(
    rng: np.random.Generator, sampler: str, tau: np.ndarray, max_depth: int, width: int
) -> np.ndarray:
    """Layers with ``|||A||| <= tau``: f64[len(tau), max_depth, width, width].

    The bound holds up to rounding.

    Raises ValueError unless `sampler` is one of `SAMPLERS`.
    """
    if sampler not in _LAYER_SAMPLERS:
        raise ValueError(f"sampler must be one of {SAMPLERS}, got {sampler!r}")
    radius = np.broadcast_to(tau[:, None], (len(tau), max_depth))
    return _LAYER_SAMPLERS[sampler](rng, radius, width)


# Each takes the radii f64[n, depth], which are equal within a point, and returns layers
# f64[n, depth, width, width].


def _uniform_layers(
    rng: np.random.Generator, radius: np.ndarray, width: int
) -> np.ndarray:
    """Gaussian directions, norms uniform on [0, radius]."""
    gaussian = rng.standard_normal((*radius.shape, width, width))
    return _with_norms(gaussian, radius * rng.random(radius.shape))


def _boundary_layers(
    rng: np.random.Generator, radius: np.ndarray, width: int
) -> np.ndarray:
    """Gaussian directions, all of norm `radius`."""
    gaussian = rng.standard_normal((*radius.shape, width, width))
    return _with_norms(gaussian, radius)


def _with_norms(matrices: np.ndarray, norms: np.ndarray) -> np.ndarray:
    """The matrices, f64[..., d, d], scaled to these spectral norms, f64[...]."""
    return matrices * (norms / spectral_norms(matrices))[..., None, None]


def _diagonal_layers(
    rng: np.random.Generator, radius: np.ndarray, width: int
) -> np.ndarray:
    """Diagonal in one random basis for each point.

    Half of the eigenvalues sit at -tau or tau, the corners of the set.
    """
    values = rng.uniform(-1, 1, (*radius.shape, width))
    values = np.where(rng.random(values.shape) < 0.5, np.sign(values), values)
    basis = orthogonal(rng, (len(radius), 1), width)
    return _in_basis(basis, values * radius[..., None])


def _mixture_layers(
    rng: np.random.Generator, radius: np.ndarray, width: int
) -> np.ndarray:
    """Each is one of -tau I, tau I, 0, -tau times a reflection, a Gaussian one."""
    eye = np.eye(width)
    gaussian = rng.standard_normal((*radius.shape, width, width))
    kinds = rng.integers(0, 5, radius.shape)[..., None, None]
    axis = gaussian[..., :1] / np.linalg.norm(gaussian[..., :1], axis=-2, keepdims=True)
    gaussian /= np.linalg.norm(gaussian, axis=(-2, -1), keepdims=True)
    negated_reflection = 2 * axis @ axis.mT - eye
    directions = np.choose(kinds, [-eye, eye, 0 * eye, negated_reflection, gaussian])
    return directions * radius[..., None, None]


def _extremal_layers(
    rng: np.random.Generator, radius: np.ndarray, width: int
) -> np.ndarray:
    """-tau I plus noise, whose size is log-uniform and the same within a point."""
    gaussian = rng.standard_normal((*radius.shape, width, width))
    noise_log10 = rng.uniform(_LEAST_NOISE_LOG10, 0, (len(radius), 1))
    noise = gaussian * 10 ** noise_log10[..., None, None]
    # The Frobenius norm bounds the spectral one from above at a fraction of its cost.
    largest_norm = 1 + np.linalg.norm(noise, axis=(-2, -1))
    return (noise - np.eye(width)) * (radius / largest_norm)[..., None, None]


_LAYER_SAMPLERS = {
    "uniform": _uniform_layers,
    "boundary": _boundary_layers,
    "diagonal": _diagonal_layers,
    "mixture": _mixture_layers,
    "extremal": _extremal_layers,
}
SAMPLERS = tuple(_LAYER_SAMPLERS)


def second_moments(
    rng: np.random.Generator,
    count: int,
    width: int,
    *,
    scale_log10: tuple[float, float],
    max_condition_log10: float,
    singular: bool = False,
) -> np.ndarray:
    """Random Sigma, f64[count, width, width]; about half are isotropic on their range.

    Singular ones have random ranks from 1 to width - 1 and are diagonal: this keeps
    rounding out of their null spaces, where a target with a large error would amplify
    it.

    Args:
      rng: the source of randomness.
      count, width: the shape.
      scale_log10: the (low, high) of log10 ||Sigma||.
      max_condition_log10: bounds log10 of the condition number on the range.
      singular: whether all are singular.
    Raises:
      ValueError: an argument is out of range, or `singular` with width 1.
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
    **second_moment_settings: Any,
) -> Points:
    """`count` points with depths drawn uniformly from ``depths[0] ... depths[1]``.

    Half of the tau, on average, are uniform on (0, max_tau); the others, with uniform
    log(1 - tau), lie nearer to the wall at 1. Keyword arguments are those of
    `second_moments`. Raises what it and `layers` raise.
    """
    uniform = rng.uniform(0, max_tau, count)
    near_wall = 1 - (1 - max_tau) ** rng.random(count)
    # A uniform draw may be 0, but the radius must be positive.
    tau = np.maximum(np.where(rng.random(count) < 0.5, uniform, near_wall), 1e-6)
    depth = rng.integers(depths[0], depths[1] + 1, count)
    max_depth = depths[1]
    A = layers(rng, sampler, tau, max_depth, width)
    A[np.arange(max_depth) >= depth[:, None]] = 0.0
    Sigma = second_moments(rng, count, width, **second_moment_settings)
    return Points(A=A, R=targets_of_layers(rng, A), Sigma=Sigma, depth=depth)


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


# The members of `FAMILIES`: each returns a target f64[d, d]. `strength` is as in
# `target`.


def _balanced(singular_values: np.ndarray) -> np.ndarray:
    """Scaled so that the largest times the least is 1."""
    return singular_values / np.sqrt(singular_values.max() * singular_values.min())


def _gaussian(rng: np.random.Generator, d: int, _strength: float) -> np.ndarray:
    """Gaussian entries; the sign of the first row makes the determinant positive."""
    R = rng.standard_normal((d, d))
    R[0] *= np.linalg.slogdet(R)[0]
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
    """``S diag(r_j T(t_j), ...) S^T``: log-normal r_j, uniform t_j, never negative.

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
    """Symmetric; about half of its eigenvalues are negative, each several times."""
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
    return _in_basis(S, eigenvalues)


def _even_half(d: int) -> int:
    """The even number next to d / 2, upwards, and at most d."""
    return min(d - d % 2, 2 * ((d + 3) // 4))


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
