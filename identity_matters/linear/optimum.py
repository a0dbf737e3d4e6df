"""The least |||A||| at every depth, where it is known, and layers that attain it (F15).

It is known for every 2 x 2 target, for every symmetric one, and for every normal one
without a nonreal eigenvalue in the open disc over a pair of neighbouring negative
eigenvalues. Such a target consists of planes and lines that the layers leave alone. In
a plane, ``R = Q P``, where Q turns by theta and P stretches by ``e^{m+g}`` and
``e^{m-g}``; the optimum is

    M = max |exp(w_q / l) - 1| over -g <= q <= g,    w_q = m + q + i (theta + psi(q)),
    cos psi(q) = cosh q / cosh g.

Everything is a maximum over the one variable q; nothing is searched in the space of
layers.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import scipy.linalg
import scipy.optimize

from identity_matters.linear.invariant_spaces import (
    InvariantPlane,
    Line,
    invariant_spaces,
    nonreal_eigenvalue,
    paired_moduli,
)
from identity_matters.linear.one_pace import one_pace_at_bound
from identity_matters.linear.target import (
    NotApplicableError,
    Shifted,
    Target,
    not_applicable_if_lapack_fails,
)
from identity_matters.linear.turn_and_stretch import turned_layers

# Grid points in arcsin(q / g); an odd number, so that q = 0 is one of them.
_GRID_POINTS = 1025
# How many of their peaks are refined: two may be of equal height, or split by rounding.
_PEAKS = 4
# First step of the search for a change of sign of the slope; it doubles from there.
_FIRST_STEP = 1e-12


class LongestStep(NamedTuple):
    """The longest step of a vector of a plane: its length, and q and psi of the vector.

    Attributes:
      norm: M.
      q: in -g ... g.
      psi: radians, the angle by which the half turn of the vector is longer than theta.
    """

    norm: float
    q: float
    psi: float


class _Steps(NamedTuple):
    """Steps of vectors of a plane: their lengths, and q and psi as in `LongestStep`."""

    length: np.ndarray
    q: np.ndarray
    psi: np.ndarray


class Block(NamedTuple):
    """A plane or a line on which all layers act alike, up to a turn that goes on.

    Layer i is ``basis D_i first D_i^T basis^T``, where D_i turns the plane by ``(i - 1)
    turn``.

    Attributes:
      basis: f64[d, k], orthonormal columns, k = 1 or 2.
      first: f64[k, k], the first layer A_1 in this basis.
      turn: radians; 0 for a line.
      norm: ||first||, which F15 proves to be `least`; computed from the layer.
      least: the closed form of F15, below which no layers of this block get.
    """

    basis: np.ndarray
    first: np.ndarray
    turn: float
    norm: float
    least: float


def longest_step_in_plane(theta: float, m: float, g: float, depth: int) -> LongestStep:
    """The maximum over q of (F15), for Q that turns by theta and P that stretches.

    As depth grows, depth times the norm tends to the length in (F11).

    >>> # diag(-2, -1/2)
    >>> round(longest_step_in_plane(np.pi, 0.0, np.log(2.0), 8).norm, 6)
    0.47197

    Args:
      theta: radians, in [0, pi].
      m: P stretches by e^{m+g} and e^{m-g}.
      g: at least 0.
      depth: l.
    Raises:
      ValueError: theta or g is out of range.
    """
    if not (0 <= theta <= math.pi and g >= 0):
        raise ValueError(
            f"theta must be from 0 to pi, and g at least 0, got {theta} and {g}"
        )

    def steps_at(u: float | np.ndarray) -> _Steps:
        """The steps at u, f64 of its shape."""
        # In u = arcsin(q / g) the ends are smooth. arctan2 keeps its digits near 0.
        q = g * np.sin(u)
        psi = np.arctan2(_across(q, g), np.cosh(q))
        w = m + q + 1j * (theta + psi)
        return _Steps(length=np.abs(np.expm1(w / depth)), q=q, psi=psi)

    def slope(u: float) -> float:
        """A positive multiple of the derivative of the step's length: (1) of F15."""
        # Of one number at a time, for which `math` is ten times as fast as NumPy.
        q = g * math.sin(u)
        c = math.sqrt(math.sinh(g - q) * math.sinh(g + q))
        turn = (theta + math.atan2(c, math.cosh(q))) / depth
        longer = math.expm1((m + q) / depth) + 2 * math.sin(turn / 2) ** 2
        return longer * c - math.sin(turn) * math.sinh(q)

    # There may be several maxima, even of equal height.
    grid = np.linspace(-np.pi / 2, np.pi / 2, _GRID_POINTS)
    tops = [_top(slope, float(grid[peak])) for peak in _peaks(steps_at(grid).length)]
    longest = max(map(steps_at, tops), key=lambda step: step.length)
    return LongestStep(
        norm=float(longest.length), q=float(longest.q), psi=float(longest.psi)
    )


def _peaks(values: np.ndarray) -> np.ndarray:
    """Where the highest local maxima of `values` are, ends included: i64[<= _PEAKS]."""
    padded = np.concatenate([[-np.inf], values, [-np.inf]])
    is_peak = (values >= padded[:-2]) & (values >= padded[2:])
    where = np.flatnonzero(is_peak)
    return where[np.argsort(-values[where], kind="stable")[:_PEAKS]]


def _top(slope: Callable[[float], float], near: float) -> float:
    """The maximum uphill of `near`, |u| <= pi / 2: a zero of the slope, or an end.

    By its height it could be found to half of the digits only. That is enough for M,
    but not for the layers: where F15 has two maxima of equal height, their norm exceeds
    M by as much as the slope differs from 0.
    """
    uphill = _sign(slope(near))
    step = uphill * _FIRST_STEP
    inside = near
    while uphill != 0:
        beyond = min(max(inside + step, -math.pi / 2), math.pi / 2)
        if beyond == inside:
            return inside
        if _sign(slope(beyond)) != uphill:
            return float(scipy.optimize.brentq(slope, inside, beyond, xtol=1e-18))
        step *= 2
        inside = beyond
    return near


def _sign(number: float) -> int:
    """1, 0 or -1."""
    return (number > 0) - (number < 0)


def _across(q: float | np.ndarray, g: float) -> np.ndarray:
    """``c = sqrt(sinh^2 g - sinh^2 q)`` for ``-g <= q <= g``."""
    return np.sqrt(np.sinh(g - q) * np.sinh(g + q))


def optimal_blocks(target: Target, depth: int) -> list[Block]:
    """The blocks of the layers of F15, which are a factorization of R.

    Their |||A||| is the largest norm of a block, and the least possible if it is below
    1 and the depth is at least 2. Raises NotApplicableError if R is not one of the
    targets of F15.
    """
    R = Shifted.of(target.R)
    if len(R.matrix) == 2:
        return [_plane(R, np.eye(2), depth)]
    with not_applicable_if_lapack_fails("the eigenvectors of R"):
        planes, lines = invariant_spaces(R)
    negative, positive = _split_by_sign(lines, R.shift)
    # Only far from the identity, where shift is 0, are there negative eigenvalues.
    _refuse_discs(planes, negative)
    blocks = [_block_of_line(line, R.shift, depth) for line in positive]
    for plane in [*planes, *_planes_of_pairs(negative)]:
        blocks.append(_plane(Shifted(plane.matrix, R.shift), plane.columns, depth))
    return blocks


def _planes_of_pairs(lines: list[Line]) -> list[InvariantPlane]:
    """The planes that neighbouring lines span, two by two."""
    planes = []
    for number in range(0, len(lines), 2):
        pair = lines[number : number + 2]
        planes.append(
            InvariantPlane(
                matrix=np.diag([line.value for line in pair]),
                columns=np.stack([line.vector for line in pair], axis=1),
            )
        )
    return planes


def _split_by_sign(lines: list[Line], shift: float) -> tuple[list[Line], list[Line]]:
    """The lines with negative and those with positive eigenvalues ``shift + value``.

    Raises NotApplicableError if the former are not an even number, or one is 0.
    """
    negative = [line for line in lines if shift + line.value < 0]
    positive = [line for line in lines if shift + line.value > 0]
    if len(negative) % 2 or len(negative) + len(positive) < len(lines):
        raise NotApplicableError("rounding made an eigenvalue 0, or changed its sign")
    return negative, positive


def _refuse_discs(planes: list[InvariantPlane], negative: list[Line]) -> None:
    """Refuses a nonreal eigenvalue in the disc over a negative pair."""
    pairs = paired_moduli(np.array([line.value for line in negative]))
    for plane in planes:
        eigenvalue = nonreal_eigenvalue(plane)
        for b, a in pairs:
            if abs(eigenvalue + (a + b) / 2) < (a - b) / 2:
                raise NotApplicableError(
                    f"the optimum is not known where the eigenvalue"
                    f" {eigenvalue.real:.6g} + {eigenvalue.imag:.6g} i lies in the disc"
                    f" over {-a:.6g} and {-b:.6g}"
                )


def _block_of_line(line: Line, shift: float, depth: int) -> Block:
    """The layers ``lambda^{1/l} - 1`` of an eigenvalue lambda = shift + value > 0."""
    log = np.log1p(line.value) if shift else np.log(line.value)
    layer = float(np.expm1(log / depth))
    return Block(
        basis=line.vector[:, None],
        first=np.array([[layer]]),
        turn=0.0,
        norm=abs(layer),
        least=abs(layer),
    )


class _Polar(NamedTuple):
    """A 2 x 2 R = Q P.

    Attributes:
      theta: radians, in (-pi, pi], by which Q turns.
      axis: radians, where the axis lies that P stretches by e^{m+g}.
      m: P stretches the other axis by e^{m-g}.
      g: at least 0.
    """

    theta: float
    axis: float
    m: float
    g: float

    @classmethod
    def of(cls, R: Shifted) -> "_Polar":
        """As a map of the complex plane R is ``z -> alpha z + beta conj(z)``."""
        M = R.matrix
        alpha_minus_shift = complex(M[0, 0] + M[1, 1], M[1, 0] - M[0, 1]) / 2
        alpha = R.shift + alpha_minus_shift
        beta = complex(M[0, 0] - M[1, 1], M[1, 0] + M[0, 1]) / 2
        theta = np.angle(alpha)
        axis = (np.angle(beta) - np.angle(alpha)) / 2
        if R.shift:
            # det R = |alpha|^2 - |beta|^2,
            # and the singular values are |alpha| +- |beta|.
            det_minus_1 = (
                2 * alpha_minus_shift.real
                + abs(alpha_minus_shift) ** 2
                - abs(beta) ** 2
            )
            m = np.log1p(det_minus_1) / 2
            g = np.arctanh(abs(beta) / abs(alpha))
        else:
            logs = np.log(np.linalg.svd(R.matrix, compute_uv=False))
            m = logs.sum() / 2
            g = (logs[0] - logs[1]) / 2
        return cls(theta=float(theta), axis=float(axis), m=float(m), g=float(g))


def _plane(R: Shifted, columns: np.ndarray, depth: int) -> Block:
    """The layers of F15 for a 2 x 2 target with det R > 0, in a plane of R^d.

    `columns`, f64[d, 2], span the plane.
    """
    polar = _Polar.of(R)
    if polar.theta < 0:
        # A turn to the right is one to the left in the mirrored plane.
        columns = columns * [1, -1]
        polar = polar._replace(theta=-polar.theta, axis=-polar.axis)
    longest = longest_step_in_plane(polar.theta, polar.m, polar.g, depth)
    first = _first_layer(polar, longest, depth)
    return Block(
        basis=columns @ _frame_of_longest_step(polar, longest.q),
        first=first,
        turn=(polar.theta + longest.psi) / depth,
        norm=float(np.linalg.norm(first, 2)),
        least=longest.norm,
    )


def _frame_of_longest_step(polar: _Polar, q: float) -> np.ndarray:
    """The frame, f64[2, 2], of the vector x that needs the longest step.

    P stretches x by e^{m+q} and turns it by psi to the left.
    """
    # The squared coordinates of x along and across the axis, up to one factor.
    along = np.exp(-polar.g) * np.sinh(polar.g + q)
    across = np.exp(polar.g) * np.sinh(polar.g - q)
    return _turn(polar.axis - np.arctan2(np.sqrt(across), np.sqrt(along)))


def _first_layer(polar: _Polar, longest: LongestStep, depth: int) -> np.ndarray:
    """A_1 in the frame of the vector that needs the longest step, f64[2, 2].

    With a turn by (theta + psi) / l, I + A_1 is the l-th root of the triangular matrix
    ``[[e^{m+q}, 2 e^m c], [0, e^{m-q}]]``, where c is that of `_across`.
    """
    m = polar.m
    q = longest.q
    # The corner of the root.
    shrink = np.sinh(q / depth) / np.sinh(q) if q else 1 / depth
    corner = 2 * float(_across(q, polar.g)) * np.exp(m / depth) * shrink
    turn = (polar.theta + longest.psi) / depth
    # The columns as complex numbers, which the turn multiplies by e^{i turn}.
    left = np.expm1((m + q) / depth + 1j * turn)
    right = corner * np.exp(1j * turn) + 1j * np.expm1((m - q) / depth + 1j * turn)
    return np.array([[left.real, right.real], [left.imag, right.imag]])


def _turn(angle: float) -> np.ndarray:
    """The turn of the plane by an angle in radians, f64[2, 2]."""
    return np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])


def layers_of_blocks(blocks: Sequence[Block], depth: int) -> np.ndarray:
    """The layers A, f64[depth, d, d], that act on each block as it says."""
    planes = [block for block in blocks if len(block.first) == 2]
    lines = [block for block in blocks if len(block.first) == 1]
    basis = np.concatenate([block.basis for block in planes + lines], axis=1)
    first = scipy.linalg.block_diag(*[block.first for block in planes + lines])
    turns = np.array([block.turn for block in planes])
    return turned_layers(basis, first, np.arange(depth)[:, None] * turns)


def known_optimum(target: Target, depth: int) -> float | None:
    """The least |||A||| where it is known, at most 1, for depth at least 2.

    For the targets of F15 it is M, the closed form, computed without layers. In four
    dimensions it is the bound by one vector where the layers of F20 attain it. None if
    it is not known. No factorization has a smaller |||A|||. Where it is below 1,
    `factorize` attains it.
    """
    try:
        blocks = optimal_blocks(target, depth)
    except NotApplicableError:
        at_one_pace = one_pace_at_bound(target, depth)
        return None if at_one_pace is None else min(1.0, at_one_pace.bound)
    return min(1.0, max(block.least for block in blocks))
