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
from identity_matters.matrices import rotate_rows


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
      target: of d x d matrices, as below.
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
        return _turned_step_by_step(first_layer, turn, depth)

    return Factorization(norm=float(np.linalg.norm(first_layer, 2)), build=build)


def _turned_step_by_step(
    first_layer: np.ndarray, turn: RotationForm, depth: int
) -> np.ndarray:
    """Layer i + 1 is the first one, turned by ``e^{i Theta / l}``: f64[depth, d, d]."""
    # e^{i Theta / l} is S D S^T, where D turns each plane by its share of the angle.
    S = turn.basis
    in_planes = S.T @ first_layer @ S
    A = np.empty((depth, *first_layer.shape))
    for i in range(depth):
        turned_basis_T = rotate_rows(S.T, -(turn.angles * (i / depth)))  # (S D)^T
        A[i] = turned_basis_T.T @ (in_planes @ turned_basis_T)
    return A
