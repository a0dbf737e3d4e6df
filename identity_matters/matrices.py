"""Norms and products of matrices, and rotations of planes, in NumPy.

What is drawn is in `random_matrices`.
"""

import functools
import itertools
from collections.abc import Iterator

import numpy as np

# Relative accuracy of `largest_spectral_norm`,
# far above the rounding of Cholesky's method.
_CERTIFIED_TO = 1e-9


def exponents(matrices: np.ndarray) -> np.ndarray:
    """The least k of each matrix with all entries below 2^k: [..., d, d] -> i32[...].

    0 for a matrix of zeros. `times_powers_of_2` by -k leaves entries whose squares
    float64 has, and changes no digit.

    >>> exponents(np.array([[3.0, 0.0], [0.0, -4.0]]))
    np.int32(3)
    """
    _, exponent = np.frexp(np.abs(matrices).max(axis=(-2, -1)))
    return exponent


def times_powers_of_2(matrices: np.ndarray, exponent: np.ndarray) -> np.ndarray:
    """Each matrix times 2^k, in its own dtype: [..., d, d], with k i32[...]."""
    return np.ldexp(matrices, exponent[..., None, None])


def spectral_norms(matrices: np.ndarray) -> np.ndarray:
    """Largest singular value of each matrix: f64[..., d, d] -> f64[...]."""
    exponent = exponents(matrices)
    scaled = times_powers_of_2(matrices, -exponent)
    # eigvalsh of the Gram matrix is faster than an SVD;
    # the largest value is as accurate.
    gram = scaled.mT @ scaled
    norms = np.sqrt(np.maximum(np.linalg.eigvalsh(gram)[..., -1], 0.0))
    return np.ldexp(norms, exponent)


def determinant_sign(R: np.ndarray) -> int:
    """The sign of det R, for f64[d, d]: right if R is not singular up to rounding.

    It comes from reflections that make R triangular. ``np.linalg.slogdet`` eliminates,
    and its numbers can grow by 2^d on the way: its sign may be wrong although R is
    well-conditioned.

    >>> determinant_sign(np.diag([1.0, -1.0]))
    -1
    """
    triangular, reflections = np.linalg.qr(R, mode="raw")
    flips = np.count_nonzero(reflections)
    return int(np.prod(np.sign(np.diag(triangular))) * (-1) ** flips)


def largest_spectral_norm(A: np.ndarray) -> float:
    """``|||A||| = max_i ||A_i||`` of f64[depth, d, d], within 1e-9.

    The error is relative, and above the norm only by rounding. NaN if an entry is. An
    SVD of every layer is slow. With tau the largest norm so far, a Cholesky
    factorization proves ``||A_i|| < (1 + 1e-9) tau``; only a layer where it fails gets
    an SVD.
    """
    if np.isnan(A).any():  # the Cholesky factorization of NaN does not fail
        return float("nan")
    # The proofs square the layers, which may be beyond float64 or below it.
    _, exponent = np.frexp(max(A.max(), -A.min()))
    tau = float(np.linalg.norm(np.ldexp(A[0], -exponent), 2))
    for start in range(1, len(A), layers_at_a_time(A.shape[-1])):
        layers = A[start : start + layers_at_a_time(A.shape[-1])]
        tau = _larger_norm(tau, np.ldexp(layers, -exponent))
    return float(np.ldexp(tau, exponent))


def _larger_norm(tau: float, layers: np.ndarray) -> float:
    """The largest of tau and of the norms of f64[n, d, d].

    A norm of up to (1 + 1e-9) tau may count as tau. Layers that one proof does not
    cover are halved until it does or one is left.
    """
    if not layers.any():  # no proof covers norms of zero by tau = 0
        return tau
    if _norms_are_below((1 + _CERTIFIED_TO) * tau, layers):
        return tau
    if len(layers) == 1:
        return max(tau, float(np.linalg.norm(layers[0], 2)))
    half = len(layers) // 2
    return _larger_norm(_larger_norm(tau, layers[:half]), layers[half:])


def layers_at_a_time(d: int) -> int:
    """How many d x d layers to compute with in one call: about 1 MB, which is cached.

    One by one, small layers cost more in calls than in arithmetic; all at once, a deep
    net takes gigabytes.
    """
    return max(1, 2**17 // d**2)


def _norms_are_below(bound: float, layers: np.ndarray) -> bool:
    """Whether Cholesky factorizations prove it of all layers, f64[..., d, d]."""
    identity = np.eye(layers.shape[-1])
    try:
        np.linalg.cholesky(bound**2 * identity - layers.mT @ layers)
    except np.linalg.LinAlgError:
        return False
    return True


def residual_product(A: np.ndarray) -> np.ndarray:
    """``(I + A_l) ... (I + A_1)``: f64[l, ..., d, d] -> f64[..., d, d].

    >>> float(residual_product(np.full((3, 1, 1), 1.0))[0, 0])
    8.0
    """
    return functools.reduce(_times_layer, A, _identity_like(A))


def partial_products(A: np.ndarray) -> Iterator[np.ndarray]:
    """``I, I + A_1, ..., (I + A_l) ... (I + A_1)``: l + 1 arrays f64[..., d, d]."""
    return itertools.accumulate(A, _times_layer, initial=_identity_like(A))


def _identity_like(A: np.ndarray) -> np.ndarray:
    """I for every product of the layers, f64[l, ..., d, d]."""
    return np.broadcast_to(np.eye(A.shape[-1]), A.shape[1:])


def _times_layer(product: np.ndarray, layer: np.ndarray) -> np.ndarray:
    """``(I + layer) product``."""
    return product + layer @ product


def rotate_rows(matrix: np.ndarray, angles: np.ndarray) -> np.ndarray:
    """``diag(T(angles_1), T(angles_2), ..., 1) matrix``.

    T(t) = [[cos t, -sin t], [sin t, cos t]]. f64[d, k] -> f64[..., d, k], with angles
    f64[..., p] in radians: one result for each row of p angles. Raises ValueError if
    p > d // 2.
    """
    planes = angles.shape[-1]
    if 2 * planes > len(matrix):
        raise ValueError(
            f"{planes} angles need width >= {2 * planes}, got {len(matrix)}"
        )
    cos = np.cos(angles)[..., None]
    sin = np.sin(angles)[..., None]
    first = matrix[0 : 2 * planes : 2]
    second = matrix[1 : 2 * planes : 2]
    rotated = np.empty((*angles.shape[:-1], *matrix.shape))
    rotated[..., 0 : 2 * planes : 2, :] = cos * first - sin * second
    rotated[..., 1 : 2 * planes : 2, :] = sin * first + cos * second
    rotated[..., 2 * planes :, :] = matrix[2 * planes :]
    return rotated
