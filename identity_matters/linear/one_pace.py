"""Normal R in four dimensions: layers that turn all vectors at the pace of one (F20).

F15 leaves open the normal targets with a nonreal eigenvalue in the disc over a pair of
negative ones. The smallest have d = 4:

    R = diag(-a, -b) + r T(alpha) in some orthonormal basis, a > b > 0,
    |r e^{i alpha} + (a + b) / 2| < (a - b) / 2.

Some vector x of such an R has to go the long way round (F10). If all vectors turn at
the pace of x, the layers have the product R and one norm. If no vector moves further
than x does, which is seen once the layers are there, this norm is the least wherever it
is below 1.
"""

from typing import NamedTuple

import numpy as np
import scipy.optimize

from identity_matters.linear.invariant_spaces import (
    InvariantPlane,
    Line,
    invariant_spaces,
    nonreal_eigenvalue,
)
from identity_matters.linear.matrix_powers import (
    RotationForm,
    principal_root_minus_identity,
)
from identity_matters.linear.target import NotApplicableError, Shifted, Target

# Points between an eigenvector and the plane; the longest steps among them are refined.
_GRID_POINTS = 1025
# How far the grid extends beyond the scales of the edge, in log tan s. A step below 1
# is the longest within about exp(5) of them, whatever R in the range of float64.
_BEYOND_SCALES = 8.0
# Relative; a norm that exceeds the bound by less attains it.
_TOLERANCE = 1e-9


class ForcedVector(NamedTuple):
    """The vector that needs the longest steps, of those forced the long way round.

    Attributes:
      x: f64[4], a unit vector.
      angle: beta in radians, by which its direction has to move, in [pi, 2 pi).
      bound: ``|exp(w / l) - 1|`` with ``w = log |R x| + i beta``, without a margin for
        rounding. By (F10) every factorization has ``|||A||| >= min(1, bound)``.
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
    def attains_bound(self) -> bool:
        """Whether the norm is the bound, up to rounding: the least if it is below 1."""
        return self.norm <= self.bound * (1 + _TOLERANCE)


def one_pace(target: Target, depth: int) -> OnePace:
    """The layers of (F20), at depth l >= 2.

    Raises NotApplicableError if R is not a target of F20, or M has no principal root.
    """
    forced = longest_forced_step(target, depth)
    # The other rotation is the mirror image of this one under a reflection that
    # commutes with R: its layers have the same norm.
    turn, _ = isoclinic_turns(target.R, forced.x, forced.angle)
    norm = _norm_of_layers(target.R, turn, depth)
    return OnePace(turn=turn, norm=norm, bound=forced.bound)


def one_pace_at_bound(target: Target, depth: int) -> OnePace | None:
    """The layers of `one_pace` if R has them and they attain the bound, else None."""
    try:
        layers = one_pace(target, depth)
    except NotApplicableError:
        return None
    return layers if layers.attains_bound else None


def longest_forced_step(target: Target, depth: int) -> ForcedVector:
    """The vector of (F10) with the largest bound, up to rounding, for a target of F20.

    Raises NotApplicableError for other targets.
    """
    plane, lines = _plane_over_pair(target)
    edges = [_Edge(line, plane) for line in lines]
    candidates = [edge.longest_step(depth) for edge in edges]
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
    _, across = end_and_across(R, x)
    basis, triangle = np.linalg.qr(np.stack([x, across], axis=1), mode="complete")
    basis[:, :2] *= np.where(np.diag(triangle) < 0, -1, 1)
    return [
        RotationForm(basis=basis, angles=np.array([angle, side * angle]))
        for side in (1, -1)
    ]


def end_and_across(R: np.ndarray, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The direction of R x, f64[d], and minus its part across the unit vector x."""
    end = R @ x / np.linalg.norm(R @ x)
    return end, (x @ end) * x - end


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
    if abs(nonreal_eigenvalue(plane) + (a + b) / 2) >= (a - b) / 2:
        raise NotApplicableError("the nonreal eigenvalues are not over the pair")
    return plane, lines


class _Edge:
    """The unit vectors ``x = cos(s) e + sin(s) u``, 0 < s < pi / 2, by t = log tan s.

    e is the eigenvector for -c, a negative eigenvalue, and u and v are a basis of the
    plane, orthonormal. With r e^{i alpha} = c (p + i q),

        R x = c (-cos(s) e + sin(s) (p u + q v)).

    The pairs ``(|R x|^2, <x, R x>)`` of all unit vectors fill a triangle; those of x
    run along a lower edge, where the angle between x and R x is the largest for its
    |R x|. The longest step is not at an end (F20).
    """

    def __init__(self, line: Line, plane: InvariantPlane):
        self.eigenvector = line.vector
        self.in_plane = plane.columns[:, 0]
        self.c = -line.value
        eigenvalue = nonreal_eigenvalue(plane)
        self.p_plus_1 = (eigenvalue.real + self.c) / self.c
        self.p = eigenvalue.real / self.c
        self.q = eigenvalue.imag / self.c

    def longest_step(self, depth: int) -> ForcedVector:
        """The vector of this edge that needs the longest steps."""
        grid = self._grid()
        steps = np.abs(np.expm1(self._log_steps(grid) / depth))
        is_peak = (steps[1:-1] > steps[:-2]) & (steps[1:-1] >= steps[2:])
        tops = [
            self._top(grid[before : before + 3], depth)
            for before in np.flatnonzero(is_peak)
        ]
        candidates = [self._at(t, depth) for t in (*tops, grid[0], grid[-1])]
        return max(candidates, key=lambda candidate: candidate.bound)

    def _grid(self) -> np.ndarray:
        """Points t at which the vectors on all scales are tried: f64[_GRID_POINTS].

        The direction of x changes where tan s is of the order of 1, and that of R x
        where it is of the order of 1 / |p + i q|. One may be far from the other.
        """
        log_scale = -np.log(np.hypot(self.p, self.q))
        return np.linspace(
            min(log_scale, 0.0) - _BEYOND_SCALES,
            max(log_scale, 0.0) + _BEYOND_SCALES,
            _GRID_POINTS,
        )

    def _at(self, t: float, depth: int) -> ForcedVector:
        """The vector at t."""
        cos, sin = _cos_and_sin(t)
        w = complex(self._log_steps(t))
        return ForcedVector(
            x=cos * self.eigenvector + sin * self.in_plane,
            angle=w.imag,
            bound=float(np.abs(np.expm1(w / depth))),
        )

    def _log_steps(self, t: float | np.ndarray) -> np.ndarray:
        """``w = log |R x| + i (2 pi - alpha_rho)`` at t: c128, of the shape of t."""
        cos, sin = _cos_and_sin(t)
        length = np.hypot(cos, sin * np.hypot(self.p, self.q))
        # By the parts of R x across x and against it, which keep their digits where x
        # is almost an eigenvector.
        across = sin * np.hypot(cos * self.p_plus_1, self.q)
        against = cos**2 - sin**2 * self.p
        return np.log(self.c * length) + 1j * (np.pi + np.arctan2(across, against))

    def _slope(self, t: float, depth: int) -> float:
        """A positive multiple of the derivative of the step's length in t.

        With ``w = log |R x| + i angle`` the length is ``|e^{w/l} - 1|``, and its
        derivative a positive multiple of ``Re(conj(e^{w/l} - 1) e^{w/l} dw/dt)``. Here
        w is differentiated in s, which grows with t.
        """
        cos, sin = _cos_and_sin(t)
        # |R x|^2 = c^2 (across^2 + against^2), with across = sin(s) k.
        k = np.hypot(cos * self.p_plus_1, self.q)
        against = cos**2 - sin**2 * self.p
        # The derivatives in s of across and against, over cos(s).
        across_slope = (self.p_plus_1**2 * (cos**2 - sin**2) + self.q**2) / k
        against_slope = -2 * sin * self.p_plus_1
        # Those of log |R x| and of the angle, both times (|R x| / c)^2 / cos(s).
        log_slope = sin * (self.p_plus_1 * (self.p - 1) + self.q**2)
        angle_slope = against * across_slope - against_slope * sin * k
        w = complex(self._log_steps(t))
        step = np.expm1(w / depth)
        direction = np.conj(step) * np.exp(w / depth)
        return float(direction.real * log_slope - direction.imag * angle_slope)

    def _top(self, around: np.ndarray, depth: int) -> float:
        """Where the slope is 0, between the outer two of three t; else the middle one.

        The step at the middle one is the longest of the three.
        """
        low, peak, high = around
        if self._slope(low, depth) * self._slope(high, depth) > 0:
            return peak
        return scipy.optimize.brentq(self._slope, low, high, args=(depth,), xtol=1e-16)


def _cos_and_sin(t: float | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """cos s and sin s for t = log tan s, f64 of the shape of t, with all digits."""
    return 1 / np.hypot(1, np.exp(t)), 1 / np.hypot(1, np.exp(-t))
