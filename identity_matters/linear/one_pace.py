"""Normal R in four dimensions: layers that turn all vectors at the pace of one (F20).

F15 leaves open the normal targets with a nonreal eigenvalue in the disc over a pair of
negative ones. The smallest have d = 4:

    R = diag(-a, -b) + r T(alpha) in some orthonormal basis, a > b > 0,
    |r e^{i alpha} + (a + b) / 2| < (a - b) / 2.

Some vector x of such an R has to go the long way round
(F10). If all vectors turn at the pace of x, the layers have the product R and one norm.
It is the optimum if no vector moves further than x does, which is seen once the layers
are there.
"""

from typing import NamedTuple

import numpy as np
import scipy.optimize

from identity_matters.linear.invariant_spaces import (
    InvariantPlane,
    Line,
    invariant_spaces,
)
from identity_matters.linear.matrix_powers import (
    RotationForm,
    principal_root_minus_identity,
)
from identity_matters.linear.target import NotApplicableError, Shifted, Target

# Points between an eigenvector and the plane, from which the slowest one is refined.
_GRID_POINTS = 513
# How far inside of its interval a search begins, as a share of the interval.
_INSIDE = 1e-6
# Relative; a norm that exceeds the bound by less attains it.
_TOLERANCE = 1e-9


class ForcedVector(NamedTuple):
    """The vector that needs the longest steps, of those forced the long way round.

    Attributes:
      x: f64[4], a unit vector.
      angle: beta in radians, by which its direction has to move, in [pi, 2 pi).
      bound: ``|exp(w / l) - 1|`` with ``w = log |R x| + i beta``. By (F10) every
        factorization has ``|||A||| >= min(1, bound)``.
    """

    x: np.ndarray
    angle: float
    bound: float


class OnePace(NamedTuple):
    """Layers whose vectors all turn at the pace of the forced one.

    Attributes:
      turn: the rotation ``e^{beta J}``; the layers are those of the path ``e^{t beta J}
        e^{t log M}`` with ``M = e^{-beta J} R``.
      norm: |||A|||.
      bound: that of the forced vector, below which no layers get if it is below 1.
    """

    turn: RotationForm
    norm: float
    bound: float

    @property
    def is_optimal(self) -> bool:
        """Whether the layers attain the bound, up to rounding."""
        return self.norm <= self.bound * (1 + _TOLERANCE)


def one_pace(target: Target, depth: int) -> OnePace:
    """The layers of (F20), at depth l >= 2.

    Raises NotApplicableError if R is not a target of F20, or has no such layers.
    """
    forced = slowest_forced_vector(target, depth)
    candidates = []
    for turn in isoclinic_turns(target.R, forced.x, forced.angle):
        try:
            norm = _norm_of_layers(target.R, turn, depth)
        except NotApplicableError:
            # M has no principal root.
            continue
        candidates.append(OnePace(turn=turn, norm=norm, bound=forced.bound))
    if not candidates:
        raise NotApplicableError("no rotation at one pace leaves R a principal root")
    return min(candidates, key=lambda candidate: candidate.norm)


def slowest_forced_vector(target: Target, depth: int) -> ForcedVector:
    """The vector of (F10) with the largest bound, exactly, for a target of F20.

    Raises NotApplicableError for other targets.
    """
    plane, lines = _plane_over_pair(target)
    edges = [_Edge(line, plane) for line in lines]
    candidates = [edge.slowest(depth) for edge in edges]
    return max(candidates, key=lambda candidate: candidate.bound)


def isoclinic_turns(R: np.ndarray, x: np.ndarray, angle: float) -> list[RotationForm]:
    """The two rotations of R^4 that turn all vectors by `angle`, and x to R x.

    Their planes are that of x and R x, and its complement, which may turn to either
    side. If x is an eigenvector, any plane through it serves.

    Args:
      R: f64[4, 4].
      x: f64[4], a unit vector.
      angle: radians, at least pi: x turns away from R x, and comes to it from behind.
    """
    end = R @ x / np.linalg.norm(R @ x)
    across = (x @ end) * x - end
    basis, triangle = np.linalg.qr(np.stack([x, across], axis=1), mode="complete")
    basis[:, :2] *= np.where(np.diag(triangle) < 0, -1, 1)
    return [
        RotationForm(basis=basis, angles=np.array([angle, side * angle]))
        for side in (1, -1)
    ]


def _norm_of_layers(R: np.ndarray, turn: RotationForm, depth: int) -> float:
    """``||e^{beta J / l} M^{1/l} - I||`` with ``M = e^{-beta J} R``."""
    M = R + turn.power_minus_identity(-1.0) @ R
    stretching = principal_root_minus_identity(M, depth)
    turning = turn.power_minus_identity(1 / depth)
    return float(np.linalg.norm(turning + stretching + turning @ stretching, 2))


def _plane_over_pair(target: Target) -> tuple[InvariantPlane, list[Line]]:
    """The plane of the nonreal eigenvalues, and the lines of the negative pair.

    Raises NotApplicableError unless these are all, and the former in the disc.
    """
    if len(target.R) != 4:
        raise NotApplicableError("layers at one pace are for d = 4")
    R = Shifted.of(target.R)
    planes, lines = invariant_spaces(R)
    if R.shift or len(planes) != 1 or any(line.value >= 0 for line in lines):
        raise NotApplicableError(
            "layers at one pace are for two negative eigenvalues and a nonreal pair"
        )
    plane = planes[0]
    a = -lines[0].value
    b = -lines[1].value
    x = np.trace(plane.matrix) / 2
    y = (plane.matrix[1, 0] - plane.matrix[0, 1]) / 2
    if np.hypot(x + (a + b) / 2, y) >= (a - b) / 2:
        raise NotApplicableError("the nonreal eigenvalues are not over the pair")
    return plane, lines


class _Edge:
    """The unit vectors ``x(s) = cos(s) e + sin(s) u``, 0 <= s <= pi / 2.

    e is the eigenvector for -c, a negative eigenvalue, and u lies in the plane. The
    pairs ``(|R x|^2, <x, R x>)`` of all unit vectors fill a triangle; those of x(s) run
    along a lower edge, where the angle between x and R x is the largest for its |R x|.
    """

    def __init__(self, line: Line, plane: InvariantPlane):
        self.eigenvector = line.vector
        self.in_plane = plane.columns[:, 0]
        self.eigenvalue = line.value
        # The eigenvalues of the plane are r exp(+- i alpha).
        self.r_cos_alpha = float(np.trace(plane.matrix) / 2)
        self.squared_r = float(np.linalg.det(plane.matrix))

    def slowest(self, depth: int) -> ForcedVector:
        """The vector of this edge that needs the longest steps."""
        # At the ends the angle has no derivative; they are far from the slowest vector
        # unless they are it.
        grid = np.linspace(0, np.pi / 2, _GRID_POINTS)
        steps = np.abs(np.expm1(self._log_steps(grid) / depth))
        peak = int(steps.argmax())
        s = grid[peak]
        if 0 < peak < len(grid) - 1:
            s = self._refined(grid[peak - 1], s, grid[peak + 1], depth)
        w = complex(self._log_steps(s))
        return ForcedVector(
            x=np.cos(s) * self.eigenvector + np.sin(s) * self.in_plane,
            angle=w.imag,
            bound=float(np.abs(np.expm1(w / depth))),
        )

    def _log_steps(self, s: float | np.ndarray) -> np.ndarray:
        """``w = log |R x| + i (2 pi - alpha)`` of x(s): c128, of the shape of s."""
        squared_length, along = self._squared_length_and_along(s)
        across = np.sqrt(np.maximum(squared_length - along**2, 0))
        return np.log(squared_length) / 2 + 1j * (2 * np.pi - np.arctan2(across, along))

    def _squared_length_and_along(self, s: float | np.ndarray) -> tuple:
        """``|R x|^2`` and ``<x, R x>`` of x(s)."""
        squared_length = (
            np.cos(s) ** 2 * self.eigenvalue**2 + np.sin(s) ** 2 * self.squared_r
        )
        along = np.cos(s) ** 2 * self.eigenvalue + np.sin(s) ** 2 * self.r_cos_alpha
        return squared_length, along

    def _slope(self, s: float, depth: int) -> float:
        """A positive multiple of the derivative of the step's length in s, inside."""
        squared_length, along = self._squared_length_and_along(s)
        across = np.sqrt(squared_length - along**2)
        # Both derivatives without their factor sin(2 s).
        squared_length_slope = self.squared_r - self.eigenvalue**2
        along_slope = self.r_cos_alpha - self.eigenvalue
        log_slope = squared_length_slope / (2 * squared_length)
        # The angle is 2 pi - arccos(along / |R x|).
        angle_slope = (along_slope - along * log_slope) / across
        w = complex(self._log_steps(s))
        step = np.expm1(w / depth)
        direction = np.conj(step) * np.exp(w / depth)
        return float(direction.real * log_slope - direction.imag * angle_slope)

    def _refined(self, low: float, peak: float, high: float, depth: int) -> float:
        """The s near `peak` at which the slope is 0; the peak if its sign is one."""
        # The ends of the edge are left out.
        low += _INSIDE * (high - low)
        high -= _INSIDE * (high - low)
        if self._slope(low, depth) * self._slope(high, depth) > 0:
            return peak
        return scipy.optimize.brentq(
            lambda s: self._slope(s, depth), low, high, xtol=1e-16
        )
