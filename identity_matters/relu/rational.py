"""Rational arithmetic for proofs: norms rounded up, and definiteness.

Floats are the rational numbers that they are, so nothing is rounded on the way in.
"""

import math
from fractions import Fraction

import numpy as np
from numpy.typing import ArrayLike

_ROOT_UNIT = 10**40  # square roots are rounded up to a multiple of 1 over this


def exact(array: ArrayLike) -> np.ndarray:
    """Floats as the rational numbers that they are."""
    return np.vectorize(Fraction, otypes="O")(np.asarray(array, np.float64))


def root_above(value: Fraction) -> Fraction:
    """A rational upper bound of the square root."""
    return Fraction(math.isqrt(math.ceil(value * _ROOT_UNIT**2)) + 1, _ROOT_UNIT)


def norm(array: ArrayLike) -> Fraction:
    """The Euclidean norm of all entries, rounded up; the Frobenius norm of a matrix."""
    return root_above((np.ravel(array) ** 2).sum())


def row_norms(rows: np.ndarray) -> np.ndarray:
    """The norm of each row, rounded up: f[n] for f[n, ...]."""
    return np.array([norm(row) for row in rows])


def round_down(value: Fraction) -> float:
    """A float below `value`."""
    return math.nextafter(float(value), -math.inf)


def round_up(value: Fraction) -> float:
    """A float above `value`."""
    return math.nextafter(float(value), math.inf)


def is_definite(matrix: np.ndarray) -> bool:
    """Whether a symmetric matrix M is positive definite; False in doubt.

    Rounding M to multiples of 1 / _ROOT_UNIT moves no eigenvalue by more than size /
    _ROOT_UNIT; the diagonal is lowered by that. M is definite if Q^T M Q has a dominant
    diagonal, where the columns of Q are the computed eigenvectors, rounded.
    """
    whole = np.vectorize(round, otypes="O")(matrix * _ROOT_UNIT)
    whole -= len(whole) * np.eye(len(whole), dtype=int)
    _, eigenvectors = np.linalg.eigh(whole.astype(float))
    Q = np.vectorize(int, otypes="O")(eigenvectors * 2**53)
    turned = Q.T @ whole @ Q
    # The row sum has the diagonal entry in it.
    return bool((2 * np.diag(turned) > abs(turned).sum(axis=1)).all())
