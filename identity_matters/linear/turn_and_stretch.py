"""Layers that all turn and stretch alike, of the paths ``e^{t Theta} e^{t B}`` (F1).

``R = Q P`` is the polar form of the target. Theta is the logarithm of a rotation, such
as Q, and ``e^B = e^{-Theta} R`` is what is left to stretch. For a rotation other than Q
it need not be symmetric; it needs a principal root.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from identity_matters.linear.matrix_powers import (
    RotationForm,
    principal_root_minus_identity,
    real_rotation_form,
)
from identity_matters.linear.target import Target
from identity_matters.matrices import layers_at_a_time, rotate_rows


class Factorization(NamedTuple):
    """Layers that are built only when asked for.

    They may take gigabytes, and of most candidates only the norm is needed.

    Attributes:
      norm: |||A|||.
      build: returns A, f64[depth, d, d].
    """

    norm: float
    build: Callable[[], np.ndarray]


def no_turn(target: Target) -> RotationForm:
    """The identity of R^d as a rotation."""
    d = len(target.R)
    return RotationForm(basis=np.eye(d), angles=np.zeros(d // 2))


def polar_form(target: Target) -> RotationForm:
    """The planes and angles of Q in ``R = Q P``."""
    return real_rotation_form(target.U @ target.Vt, polar_factor(target))


def polar_factor(target: Target) -> np.ndarray:
    """P, f64[d, d], in ``R = Q P``."""
    P = (target.Vt.T * target.K) @ target.Vt
    return (P + P.T) / 2


def turn_and_stretch(
    target: Target, turn: RotationForm, depth: int, *, stretch_is_P: bool = False
) -> Factorization:
    """The layers of the path ``X(t) = e^{t Theta} e^{t B}``, all of the same norm.

    Layer i is ``e^{(i-1) Theta / l} F e^{-(i-1) Theta / l}`` with
    ``F = e^{Theta / l} e^{B / l} - I``.

    Args:
      target: R, f64[d, d], with its singular value decomposition.
      turn: ``e^Theta``. Its angles, which may be beyond pi, are those of Theta.
      depth: l.
      stretch_is_P: whether ``e^{-Theta} R`` is known to be P. Its root is then exact.
    Raises:
      NotApplicableError: ``e^{-Theta} R`` has no principal root.
    """
    turning = turn.power_minus_identity(1 / depth)
    if stretch_is_P:
        stretching = (target.Vt.T * np.expm1(np.log(target.K) / depth)) @ target.Vt
    else:
        stretch = target.R + turn.power_minus_identity(-1.0) @ target.R
        stretching = principal_root_minus_identity(stretch, depth)
    # F as a sum of small terms. To form I + F and subtract I would cost digits, and l
    # layers add up the errors.
    first_layer = turning + stretching + turning @ stretching

    def build() -> np.ndarray:
        if not turn.angles.any():
            return np.tile(first_layer, (depth, 1, 1))
        # e^{i Theta / l} turns each plane of its basis by i / l of its angle.
        shares = np.arange(depth)[:, None] / depth
        in_planes = turn.basis.T @ first_layer @ turn.basis
        return turned_layers(turn.basis, in_planes, shares * turn.angles)

    return Factorization(norm=float(np.linalg.norm(first_layer, 2)), build=build)


def turned_layers(
    basis: np.ndarray, in_basis: np.ndarray, angles: np.ndarray
) -> np.ndarray:
    """``A_i = S D_i F D_i^T S^T``, where D_i turns plane j by ``angles[i, j]``.

    Args:
      basis: S, f64[d, d], orthonormal columns; two at a time span the planes.
      in_basis: F, f64[d, d].
      angles: f64[depth, p], radians, for the first p planes.
    Returns:
      A, f64[depth, d, d].
    """
    d = len(basis)
    A = np.empty((len(angles), d, d))
    step = layers_at_a_time(d)
    for start in range(0, len(angles), step):
        turned_basis_T = rotate_rows(basis.T, -angles[start : start + step])
        A[start : start + step] = turned_basis_T.mT @ (in_basis @ turned_basis_T)
    return A
