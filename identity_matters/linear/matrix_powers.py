"""Fractional powers of rotations, by the real Schur form (A.1), and principal roots."""

import contextlib
import functools
from typing import NamedTuple

import numpy as np
import scipy.linalg

from identity_matters.linear.target import NotApplicableError, contained

# Radians. No angle is changed by more than this, so that Q keeps eleven digits.
_LARGEST_ANGLE_ROUNDING = 1e-11
# A root is rejected if its l-th power misses R by more than this, relative in Frobenius
# norm.
LARGEST_ERROR = 1e-10


class RotationForm(NamedTuple):
    """``Q = S diag(T(theta_1), T(theta_2), ..., [1]) S^T``, orthogonal with det Q = 1.

    ``T(t) = [[cos t, -sin t], [sin t, cos t]]``; an odd d leaves the last axis fixed.
    `basis` is S, f64[d, d], whose columns 2j and 2j+1 span plane j; `angles` is theta,
    f64[d // 2], in radians.
    """

    basis: np.ndarray
    angles: np.ndarray

    @property
    def largest_angle(self) -> float:
        """max |theta_j| in radians, 0 where d = 1."""
        return float(np.max(np.abs(self.angles), initial=0.0))

    def power_minus_identity(self, exponent: float) -> np.ndarray:
        """``Q^t - I``, f64[d, d], computed so that small angles keep all digits."""
        planes = 2 * len(self.angles)
        turns = exponent * self.angles
        halves = self.basis[:, :planes].T.reshape(-1, 2, len(self.basis))
        quarter_turned = np.stack([-halves[:, 1], halves[:, 0]], axis=1)
        shrink, turn = -2 * np.sin(turns / 2) ** 2, np.sin(turns)
        moved = shrink[:, None, None] * halves + turn[:, None, None] * quarter_turned
        return self.basis[:, :planes] @ moved.reshape(planes, len(self.basis))

    def the_other_way(self) -> "RotationForm":
        """The same Q with its largest turn the other way: another homotopy class."""
        angles = self.angles.copy()
        largest = np.argmax(np.abs(angles))
        angles[largest] -= np.copysign(2 * np.pi, angles[largest])
        return RotationForm(self.basis, angles)


def real_rotation_form(Q: np.ndarray, P: np.ndarray | None = None) -> RotationForm:
    """The planes and angles, in (-pi, pi], of an orthogonal Q with det Q = 1.

    Eigenvalues 1 pair up into T(0), eigenvalues -1 into T(pi). If given, P, the polar
    factor of ``R = Q P``, picks the planes of the latter: the basis diagonalises P on
    their eigenspace, and neighbours in the order of its eigenvalues are paired.
    Rounding of R moves the angles by about eps times its condition number; angles that
    close to pi count as pi.
    """
    T, S = scipy.linalg.schur(Q, output="real")
    d = len(Q)
    condition = 1.0 if P is None else float(np.linalg.cond(P))
    rounding = min(_LARGEST_ANGLE_ROUNDING, 4 * d * np.finfo(float).eps * condition)
    first = np.flatnonzero(np.diag(T, -1))
    second = first + 1
    # Averaging reduces the rounding errors by which a block is not exactly a rotation.
    sin = (T[second, first] - T[first, second]) / 2
    angles = np.arctan2(sin, (T[first, first] + T[second, second]) / 2)
    half = np.pi - np.abs(angles) <= rounding
    single = np.setdiff1d(np.arange(d), [first, second])
    kept = single[T[single, single] > 0]
    reversed_ = np.sort(
        np.concatenate([first[half], second[half], np.setdiff1d(single, kept)])
    )
    planes = np.stack([first, second], axis=1)[~half].ravel()
    half_turned = S[:, reversed_]
    if P is not None and len(reversed_) > 2:
        half_turned = half_turned @ np.linalg.eigh(half_turned.T @ P @ half_turned)[1]
    basis = np.concatenate([S[:, planes], half_turned, S[:, kept]], axis=1)
    counts = len(reversed_) // 2, len(kept) // 2
    return RotationForm(
        basis, np.append(angles[~half], np.repeat([np.pi, 0.0], counts))
    )


def principal_root_minus_identity(R: np.ndarray, depth: int) -> np.ndarray:
    """``R^{1/l} - I``, f64[d, d], the root with eigenvalues at angles below pi / l.

    It is computed from logarithms, because its errors count l times in the product.
    Raises NotApplicableError for a real eigenvalue <= 0, or if the power misses R by
    over `LARGEST_ERROR`.
    """
    with contained("the eigenvalues of R"):
        eigenvalues, V = np.linalg.eig(R)
    on_axis = eigenvalues[(eigenvalues.imag == 0) & (eigenvalues.real <= 0)]
    if len(on_axis):
        raise NotApplicableError(
            "R must have no real eigenvalue <= 0 for a principal root, got"
            f" {on_axis[0].real:.6g}"
        )
    error = np.inf
    for candidate in (
        functools.partial(_root_by_schur_vectors, R, depth),
        functools.partial(_root_by_eigenvectors, eigenvalues, V, depth),
        functools.partial(_root_by_logarithm, R, depth),
    ):
        # A multiple negative eigenvalue may come out as a pair just beside the axis, at
        # which the logarithm overflows: then this candidate fails, and the next is
        # tried.
        with (
            contextlib.suppress(NotApplicableError),
            contained("the principal root of R"),
        ):
            layer = candidate()
            if layer is None or not np.isfinite(layer).all():
                continue
            power = np.linalg.matrix_power(np.eye(len(R)) + layer, depth)
            missed = float(np.linalg.norm(power - R) / np.linalg.norm(R))
            if missed <= LARGEST_ERROR:
                return layer
            error = missed if np.isfinite(missed) else error
    raise NotApplicableError(
        f"the principal root misses R by {error:.3g} relative, {LARGEST_ERROR:g} is"
        " allowed"
    )


def _root_by_schur_vectors(R: np.ndarray, depth: int) -> np.ndarray | None:
    """``R^{1/l} - I`` of a normal R, whose Schur form is diagonal; None for others."""
    T, Z = scipy.linalg.schur(R, output="complex")
    rounding = len(R) * np.finfo(float).eps * np.abs(T).max()
    if np.abs(np.triu(T, 1)).max(initial=0) > rounding:
        return None
    return ((Z * np.expm1(np.log(np.diag(T)) / depth)) @ Z.conj().T).real


def _root_by_eigenvectors(
    eigenvalues: np.ndarray, V: np.ndarray, depth: int
) -> np.ndarray | None:
    """``R^{1/l} - I`` from eigenvectors; None if they are ill-conditioned."""
    if not np.linalg.cond(V) <= 1 / np.sqrt(np.finfo(float).eps):
        return None
    scaled = V * np.expm1(np.log(eigenvalues.astype(complex)) / depth)
    return np.linalg.solve(V.T, scaled.T).T.real


def _root_by_logarithm(R: np.ndarray, depth: int) -> np.ndarray:
    """``exp(log(R) / l) - I``."""
    return scipy.linalg.expm(scipy.linalg.logm(R).real / depth) - np.eye(len(R))
