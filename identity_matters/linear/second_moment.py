"""What float64 knows about a second moment Sigma, and what is lost in rounding."""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from identity_matters.checks import check_whole, square_matrix

_EPS = float(np.finfo(np.float64).eps)
_TINY = float(np.finfo(np.float64).tiny)
# Outside this and its inverse, squares of norms would leave the range of float64.
_SMALLEST_NORM = 1e-140
# Eigenvalues of Sigma up to this many d eps ||Sigma|| are dropped:
# rounding may have made them.
_DROPPED_ROUNDINGS = 64
# A computed eigenvalue, and the matrix that computed eigenvalues and eigenvectors make,
# are assumed to be off by at most this many (d - 1) eps ||Sigma||, in practice by 1.
_EIGENVALUE_ROUNDINGS = 16


class KeptPart(NamedTuple):
    """The eigenvalues of Sigma that are certainly positive, and their eigenvectors.

    With ``Sigma_k = V diag(w) V^T``, w = `eigenvalues` and V = `vectors`, and Pi the
    projection on the kept eigenvectors, ``||Sigma Pi - Sigma_k|| <= rounding``.

    Attributes:
      eigenvalues: f64[..., d], increasing; those that were dropped are 0.
      vectors: f64[..., d, d], orthonormal columns in the same order.
      least: f64[...], the least kept eigenvalue, 0 if none is kept.
      rounding: f64[...], a bound on what rounding may have changed.
    """

    eigenvalues: np.ndarray
    vectors: np.ndarray
    least: np.ndarray
    rounding: np.ndarray

    @property
    def rank(self) -> int:
        """How many eigenvalues are kept, of a single Sigma."""
        return int(np.count_nonzero(self.eigenvalues))

    def squared_norm(self, E: np.ndarray) -> np.ndarray:
        """``||E Sigma_k^{1/2}||_F^2``, f64[...], for E, f64[..., d, d]."""
        squares = (E @ self.vectors) ** 2 * self.eigenvalues[..., None, :]
        return np.sum(squares, axis=(-2, -1))

    def squared_norm_bound(self, E: np.ndarray) -> np.ndarray:
        """At least ``||E (Sigma Pi)^{1/2}||_F^2``, f64[...], for E, f64[..., d, d].

        Each entry of E may be off by its last rounding.
        """
        d = E.shape[-1]
        above = self.squared_norm(E) + self.rounding * np.sum(E**2, axis=(-2, -1))
        # Squares and their products with eigenvalues may underflow.
        lost = d**2 * _TINY * (1 + self.eigenvalues[..., -1])
        above = above + np.where(E.any(axis=(-2, -1)), lost, 0)
        # Sums of d^2 squares, and a dozen other roundings of half an eps each.
        return above * (1 + (d**2 + 16) * _EPS)


def check_same_shape(R: np.ndarray, Sigma: np.ndarray) -> None:
    """Raises ValueError unless the two square matrices have the same size."""
    if R.shape != Sigma.shape:
        raise ValueError(
            f"R and Sigma must be d x d, got shapes {R.shape} and {Sigma.shape}"
        )


def kept_part(Sigma: np.ndarray) -> KeptPart:
    """Drops the eigenvalues of Sigma, f64[..., d, d], up to 64 d eps ||Sigma||.

    These cannot be told from 0. Sigma must be symmetric positive semidefinite, see
    `check_second_moment`. What is dropped may be 0 or not, so a caller must not count
    on either.

    >>> kept = kept_part(np.diag([2.0, 1e-17, 0.5]))
    >>> kept.eigenvalues, float(kept.least)
    (array([0. , 0.5, 2. ]), 0.5)
    """
    eigenvalues, vectors = np.linalg.eigh(Sigma)
    d = Sigma.shape[-1]
    largest = eigenvalues[..., -1:]
    is_kept = eigenvalues > _DROPPED_ROUNDINGS * d * _EPS * largest
    # The largest stands for those that are dropped. It is 0 or less if all are.
    least = np.where(is_kept, eigenvalues, np.maximum(largest, 0)).min(axis=-1)
    return KeptPart(
        eigenvalues=np.where(is_kept, eigenvalues, 0.0),
        vectors=vectors,
        least=least,
        rounding=eigenvalue_rounding(d, largest[..., 0]),
    )


def eigenvalue_rounding(d: int, largest: ArrayLike) -> np.ndarray:
    """How far a computed eigenvalue of a d x d matrix may be off: f64[...].

    `largest` is the norm of the matrix. 0 for d = 1, where the matrix is its
    eigenvalue.
    """
    return _EIGENVALUE_ROUNDINGS * (d - 1) * _EPS * np.asarray(largest)


def check_second_moment(Sigma: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """Sigma as f64[d, d] and its computed eigenvalues, f64[d], in increasing order.

    Raises ValueError unless Sigma is a square matrix of finite real numbers and, up to
    rounding, symmetric and positive semidefinite. What is returned is its symmetric
    part, which alone counts in ``tr(E Sigma E^T)``: LAPACK would take one triangle.
    """
    matrix = square_matrix("Sigma", Sigma)
    check_symmetric(matrix)
    if (matrix != matrix.T).any():
        matrix = matrix / 2 + matrix.T / 2
    rounding = _DROPPED_ROUNDINGS * len(matrix) * _EPS * np.abs(matrix).max()
    eigenvalues = np.linalg.eigvalsh(matrix)
    if not eigenvalues[0] >= -rounding:
        raise ValueError(
            "Sigma must be positive semidefinite, but has the eigenvalue"
            f" {eigenvalues[0]}"
        )
    return matrix, eigenvalues


def check_symmetric(Sigma: np.ndarray) -> None:
    """ValueError unless Sigma, f64[..., d, d], is symmetric up to rounding.

    Arrays of another shape or dtype, and those with NaN or infinity, pass: other checks
    refuse them.
    """
    is_square = Sigma.ndim >= 2 and Sigma.shape[-1] == Sigma.shape[-2]
    if not is_square or Sigma.dtype != np.float64 or (Sigma == Sigma.mT).all():
        return
    size = np.abs(Sigma).max(axis=(-2, -1))
    rounding = _DROPPED_ROUNDINGS * Sigma.shape[-1] * _EPS * size
    with np.errstate(over="ignore", invalid="ignore"):
        asymmetry = np.abs(Sigma - Sigma.mT).max(axis=(-2, -1))
    if (asymmetry > rounding).any():
        raise ValueError(
            f"Sigma must be symmetric, but |Sigma - Sigma^T| reaches {asymmetry.max()}"
        )


def can_square_norm(largest: float) -> bool:
    """Whether float64 has the squares of Sigma's largest eigenvalue and of its roots.

    Where it has not, rounding errors are not what this module says.
    """
    return _SMALLEST_NORM < largest < 1 / _SMALLEST_NORM


def can_square_target(R: np.ndarray, largest: float) -> bool:
    """Whether squares of R and of ``R Sigma^{1/2}`` are within float64.

    R is f64[d, d], and `largest` is the norm of Sigma.
    """
    largest_entry = float(np.abs(R).max())
    return largest_entry * max(1.0, math.sqrt(largest)) < 1 / _SMALLEST_NORM


def certain_rank(Sigma: np.ndarray, kept: KeptPart, rank: int | None) -> int | None:
    """The rank of Sigma, f64[d, d], if it is that of the kept part; None if unknown.

    Then all eigenvalues that were dropped are 0. A row of zeros, with its column,
    belongs to a feature that is always 0, and lowers the rank by one exactly. Of others
    only the caller can know it: `rank` is that of the second moment in exact
    arithmetic, of which Sigma is a rounding. If it is larger than that of the kept
    part, some of what was dropped is positive, and nothing says how large. Raises
    ValueError if Sigma has more than `rank` eigenvalues that are certainly positive.
    """
    d = len(Sigma)
    if rank is None:
        always_zero = np.count_nonzero(~Sigma.any(axis=1))
        return kept.rank if kept.rank + always_zero == d else None
    if check_whole("rank", rank) > d:
        raise ValueError(f"rank must be at most d = {d}, got {rank}")
    if kept.rank > rank:
        raise ValueError(
            f"Sigma has {kept.rank} positive eigenvalues, but the rank is {rank}"
        )
    return rank if kept.rank == rank else None
