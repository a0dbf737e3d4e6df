"""The planes and lines that a normal target maps to themselves."""

from typing import NamedTuple

import numpy as np
import scipy.linalg

from identity_matters.linear.target import NotApplicableError, Shifted

# Entries of a d x d matrix of norm s count as 0 up to this many d eps s, where R should
# be symmetric or normal.
_ROUNDINGS = 8


class Line(NamedTuple):
    """An eigenspace of a normal R.

    Attributes:
      value: the eigenvalue of ``R - shift I``.
      vector: f64[d], a unit vector.
    """

    value: float
    vector: np.ndarray


class InvariantPlane(NamedTuple):
    """A plane that a normal R maps to itself.

    Attributes:
      matrix: f64[2, 2], ``R - shift I`` in the basis of the plane.
      columns: f64[d, 2], this basis, orthonormal.
    """

    matrix: np.ndarray
    columns: np.ndarray


def invariant_spaces(R: Shifted) -> tuple[list[InvariantPlane], list[Line]]:
    """The planes and lines of a normal R, the lines in increasing order.

    Raises NotApplicableError unless the real Schur form of R is that of a normal matrix
    up to rounding.
    """
    M = R.matrix
    size = float(np.abs(M).max())
    if _is_rounding(M - M.T, size):
        eigenvalues, vectors = np.linalg.eigh((M + M.T) / 2)
        return [], [Line(*pair) for pair in zip(eigenvalues, vectors.T, strict=True)]
    T, S = scipy.linalg.schur(M, output="real")
    first = np.flatnonzero(np.diag(T, -1))
    # Not M M^T - M^T M: where M = c I + N, that is of the order of N^2, and would pass
    # an N of the order of sqrt(eps).
    if not _is_rounding(_not_normal(T, first), size):
        raise NotApplicableError("the optimum is known only for d = 2 and for normal R")
    single = np.setdiff1d(np.arange(len(T)), [first, first + 1])
    planes = [
        InvariantPlane(matrix=T[j : j + 2, j : j + 2], columns=S[:, j : j + 2])
        for j in first
    ]
    increasing = single[np.argsort(np.diag(T)[single])]
    lines = [Line(value=T[j, j], vector=S[:, j]) for j in increasing]
    return planes, lines


def _not_normal(T: np.ndarray, first: np.ndarray) -> np.ndarray:
    """The part of a real Schur form, f64[d, d], that is 0 for a normal matrix.

    That is all above the diagonal, except the blocks ``[[x, -y], [y, x]]`` that begin
    at `first`.
    """
    part = np.triu(T, 1)
    second = first + 1
    part[first, second] += T[second, first]
    part[first, first] = T[first, first] - T[second, second]
    return part


def nonreal_eigenvalue(plane: InvariantPlane) -> complex:
    """That of a plane's ``x + i y`` and ``x - i y`` in the upper half plane."""
    matrix = plane.matrix
    x = (matrix[0, 0] + matrix[1, 1]) / 2
    y = (matrix[1, 0] - matrix[0, 1]) / 2
    return complex(x, abs(y))


def _is_rounding(matrix: np.ndarray, size: float) -> bool:
    """Whether `matrix`, f64[d, d], may be only the rounding of numbers of this size."""
    rounding = _ROUNDINGS * len(matrix) * np.finfo(float).eps * size
    return bool(np.abs(matrix).max() <= rounding)


def paired_moduli(eigenvalues: np.ndarray) -> np.ndarray:
    """Pairs b <= a of neighbouring moduli of negative eigenvalues: f64[k, 2].

    Empty if there are none, and if rounding has made their number odd, which det R > 0
    excludes.
    """
    negative = (np.imag(eigenvalues) == 0) & (np.real(eigenvalues) < 0)
    moduli = np.sort(-np.real(eigenvalues)[negative])
    return moduli.reshape(-1, 2) if len(moduli) % 2 == 0 else np.zeros((0, 2))
