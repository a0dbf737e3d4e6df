"""Fractional powers of rotations, as in the paper's appendix A.1, and principal roots.

A rotation is turned into plane rotations by its real Schur form.
"""

import contextlib
import functools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import scipy.linalg

from identity_matters.linear.target import (
    NotApplicableError,
    not_applicable_if_lapack_fails,
)

# Radians. No angle is changed by more than this, so that Q keeps eleven digits.
_LARGEST_ANGLE_ROUNDING = 1e-11
# How far the l-th power of a root may miss R, relative in Frobenius norm: more than the
# second is rejected, and up to the first, or up to l roundings, no other way is tried.
_GOOD_ERROR = 1e-13
_LARGEST_ERROR = 1e-10


class RotationForm(NamedTuple):
    """``Q = S diag(T(theta_1), T(theta_2), ..., [1]) S^T``, orthogonal with det Q = 1.

    ``T(t) = [[cos t, -sin t], [sin t, cos t]]``; an odd d leaves the last axis fixed.

    Attributes:
      basis: S, f64[d, d], whose columns 2j and 2j+1 span plane j.
      angles: theta, f64[d // 2], in radians.
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
        # f64[d // 2, 2, d]: the two basis vectors of each plane.
        pairs = self.basis[:, :planes].T.reshape(-1, 2, len(self.basis))
        quarter_turned = np.stack([-pairs[:, 1], pairs[:, 0]], axis=1)
        # cos t - 1 without cancellation, and sin t.
        cos_minus_1 = -2 * np.sin(turns / 2) ** 2
        sin = np.sin(turns)
        moved = cos_minus_1[:, None, None] * pairs
        moved += sin[:, None, None] * quarter_turned
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
    axes = _sorted_axes(T, angle_rounding=_angle_rounding(Q, P))
    half_turned = S[:, axes.half_turned]
    if P is not None and len(axes.half_turned) > 2:
        half_turned = _diagonalising_basis(half_turned, P)
    basis = np.concatenate([S[:, axes.turned], half_turned, S[:, axes.fixed]], axis=1)
    half_turns = np.full(len(axes.half_turned) // 2, np.pi)
    no_turns = np.zeros(len(axes.fixed) // 2)
    return RotationForm(basis, np.concatenate([axes.angles, half_turns, no_turns]))


def _angle_rounding(Q: np.ndarray, P: np.ndarray | None) -> float:
    """How far rounding of ``R = Q P`` may move the angles of Q, in radians."""
    condition = 1.0 if P is None else float(np.linalg.cond(P))
    rounding = 4 * len(Q) * np.finfo(float).eps * condition
    return min(_LARGEST_ANGLE_ROUNDING, rounding)


class _Axes(NamedTuple):
    """The axes of a real Schur form of a rotation, by what happens to them.

    Attributes:
      turned: the axes of the planes that turn by less than pi, two by two.
      angles: by which these planes turn, in radians.
      half_turned: those that are reversed, in increasing order.
      fixed: the others.
    """

    turned: np.ndarray
    angles: np.ndarray
    half_turned: np.ndarray
    fixed: np.ndarray


def _sorted_axes(T: np.ndarray, angle_rounding: float) -> _Axes:
    """The axes of the Schur form T, f64[d, d], with blocks of one and of two axes.

    Angles within `angle_rounding` of pi count as pi.
    """
    first = np.flatnonzero(np.diag(T, -1))
    second = first + 1
    angles = _block_angles(T, first)
    is_half_turn = np.pi - np.abs(angles) <= angle_rounding
    alone = np.setdiff1d(np.arange(len(T)), [first, second])
    fixed = alone[T[alone, alone] > 0]
    half_turned = [
        first[is_half_turn],
        second[is_half_turn],
        np.setdiff1d(alone, fixed),
    ]
    return _Axes(
        turned=np.stack([first, second], axis=1)[~is_half_turn].ravel(),
        angles=angles[~is_half_turn],
        half_turned=np.sort(np.concatenate(half_turned)),
        fixed=fixed,
    )


def _block_angles(T: np.ndarray, first: np.ndarray) -> np.ndarray:
    """The angles of the 2 x 2 blocks of T that begin at `first`, in (-pi, pi]."""
    second = first + 1
    # Averaging reduces the rounding errors by which a block is not exactly a rotation.
    sin = (T[second, first] - T[first, second]) / 2
    cos = (T[first, first] + T[second, second]) / 2
    return np.arctan2(sin, cos)


def _diagonalising_basis(columns: np.ndarray, P: np.ndarray) -> np.ndarray:
    """A basis of the space of `columns`, f64[d, k], in which P is diagonal there."""
    _, eigenvectors = np.linalg.eigh(columns.T @ P @ columns)
    return columns @ eigenvectors


def principal_root_minus_identity(R: np.ndarray, depth: int) -> np.ndarray:
    """``R^{1/l} - I``, f64[d, d], the root with eigenvalues at angles below pi / l.

    It is computed from logarithms, because its errors count l times in the product. We
    take the first of three ways whose power misses R by at most `_GOOD_ERROR` or l eps,
    else the best, which may miss R by `_LARGEST_ERROR`.

    Raises:
      NotApplicableError: a real eigenvalue is <= 0, or all three miss R by more.
    """
    with not_applicable_if_lapack_fails("the eigenvalues of R"):
        eigenvalues, V = np.linalg.eig(R)
    on_axis = eigenvalues[(eigenvalues.imag == 0) & (eigenvalues.real <= 0)]
    if len(on_axis):
        raise NotApplicableError(
            "R must have no real eigenvalue <= 0 for a principal root, got"
            f" {on_axis[0].real:.6g}"
        )
    good_error = max(_GOOD_ERROR, depth * np.finfo(float).eps)
    least_error = np.inf
    best_layer = np.zeros_like(R)
    for compute_root in (
        functools.partial(_root_by_schur_vectors, R, depth),
        functools.partial(_root_by_eigenvectors, eigenvalues, V, depth),
        functools.partial(_root_by_logarithm, R, depth),
    ):
        layer = _layer_if_computed(compute_root)
        if layer is None:
            continue
        power = np.linalg.matrix_power(np.eye(len(R)) + layer, depth)
        error = float(np.linalg.norm(power - R) / np.linalg.norm(R))
        if error < least_error:
            least_error = error
            best_layer = layer
        if error <= good_error:
            break
    if least_error > _LARGEST_ERROR:
        raise NotApplicableError(
            f"the principal root misses R by {least_error:.3g} relative,"
            f" {_LARGEST_ERROR:g} is allowed"
        )
    return best_layer


def _layer_if_computed(
    compute_root: Callable[[], np.ndarray | None],
) -> np.ndarray | None:
    """The layer; None if this way fails, or gives an entry that is not finite.

    A multiple negative eigenvalue may come out as a pair just beside the axis, at which
    the logarithm overflows. Then this way fails, and not the others.
    """
    with (
        contextlib.suppress(NotApplicableError),
        not_applicable_if_lapack_fails("the principal root of R"),
    ):
        layer = compute_root()
        if layer is not None and np.isfinite(layer).all():
            return layer
    return None


def _root_by_schur_vectors(R: np.ndarray, depth: int) -> np.ndarray | None:
    """``R^{1/l} - I`` of a normal R, whose Schur form is diagonal; None for others."""
    T, Z = scipy.linalg.schur(R, output="complex")
    rounding = len(R) * np.finfo(float).eps * np.abs(T).max()
    if np.abs(np.triu(T, 1)).max(initial=0) > rounding:
        return None
    root_minus_1 = np.expm1(np.log(np.diag(T)) / depth)
    return ((Z * root_minus_1) @ Z.conj().T).real


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
