"""Lower bounds on |||A||| for every factorization of R (ours, not the paper's).

Proofs: F4, F10 to F17 and F20; docs/theory/factorization.md says where.
"""

from __future__ import annotations

import contextlib
from typing import NamedTuple

import numpy as np
import scipy.optimize
from numpy.typing import ArrayLike

from identity_matters import lbfgs
from identity_matters.checks import check_whole
from identity_matters.linear.invariant_spaces import paired_moduli
from identity_matters.linear.one_pace import longest_forced_step
from identity_matters.linear.optimum import known_optimum
from identity_matters.linear.target import (
    NotApplicableError,
    Shifted,
    Target,
    check_depth,
    check_target,
    not_applicable_if_lapack_fails,
)

# Every x, rho and y gives a bound, so none of the following can make one wrong; they
# only set how thorough the search is.
# How many random vectors L-BFGS may start from (always the same ones), and its steps.
_RANDOM_DIRECTIONS = 64
_ITERATIONS = 200
# Grid points in rho: on a fine grid, as rho is not refined.
_RADII = 512
# Grid points in y. Some of the highest peaks there are refined, to so much in log y.
_MULTIPLIERS = 48
_PEAKS = 2
_PEAK_TOLERANCE = 1e-6
# A depth that stands for the limit of many layers.
_MANY_LAYERS = 10**6
# The relative distance of the two y on either side of the best one.
_STEP_ASIDE = 1e-4
# The angle between x and R x has no gradient to rounding if the part of R x across x is
# this small, relative to |M x|: of R x, or of R x - x near the identity.
_KINK = 1e-12


def norm_lower_bound(
    R: ArrayLike,
    depth: int,
    *,
    ascents: int = 16,
    half_turns: bool = True,
    closed_form: bool = True,
) -> float:
    """A lower bound on |||A||| over all factorizations ``R = (I + A_l) ... (I + A_1)``.

    For 2 x 2 and for symmetric R, and some others, the optimum is known (F15, F20), and
    with `closed_form` it is returned; `factorize` attains it where it is below 1.
    Otherwise the bound is the best of many. For every x != 0, with phi in [0, pi] the
    angle between x and R x (F4),

        |||A||| >= |exp(w(x) / l) - 1|,   w(x) = log(|R x| / |x|) + i phi.

    Every x gives a bound. We climb from the `ascents` best of many, for R and for R^T:
    their maximum is the same (F16), but one climb may miss it. With `half_turns`,
    `half_turn_bound` counts as well if R has negative eigenvalues. F11 to F14 say where
    the larger bound is optimal.

    For one layer the result is exact, ||R - I||. For more it is at most 1: a larger
    value, which only a few layers can have, proves |||A||| >= 1 and no more. A part of
    the search that does not end in a number proves nothing and counts as 0.

    The bound holds up to the rounding of R: for some matrix whose distance from R is of
    the order of d eps ||R||. Near R = I it keeps its relative accuracy, as R - I is
    exact there. But where R has a large condition number, matrices at that distance
    have small singular values that differ from those of R by cond(R) eps of their size.
    So layers whose product is R to rounding may have a norm that is below the bound by
    a share of the order of cond(R) eps.

    The time grows as ``ascents d^3``: about a minute for d = 256 with one ascent on two
    cores.

    Args:
      R: f64[d, d], invertible with det R > 0.
      depth: the number of layers, l >= 1.
      ascents: how many climbs there are, at least 0.
      half_turns: whether to use `half_turn_bound`.
      closed_form: whether to use `optimum.known_optimum`, and the closed form of
        `half_turn_bound` in four dimensions; both need the half turns.
    Raises:
      ValueError: R or the depth is not as above; see `check_target`.

    >>> round(norm_lower_bound(-np.eye(2), depth=8), 12)  # 2 sin(pi / 16)
    0.390180644032
    """
    depth = check_depth(depth)
    ascents = check_whole("ascents", ascents, 0)
    target = check_target(R)
    R = target.R
    if depth == 1:
        return float(np.linalg.norm(R - np.eye(len(R)), 2))
    # Closed forms count half turns.
    closed_form = closed_form and half_turns
    if closed_form:
        optimum = known_optimum(target, depth)
        if optimum is not None:
            return optimum
    bounds = [_best_direction(R, depth, ascents)]
    if not target.is_symmetric:
        bounds.append(_best_direction(R.T, depth, ascents))
    if half_turns:
        bounds.append(half_turn_bound(R, depth))
    if closed_form:
        bounds.append(_bound_over_pair(target, depth))
    return min(1.0, _largest(bounds))


def _bound_over_pair(target: Target, depth: int) -> float:
    """The bound (F10) in closed form, for the targets of (F20); 0 for others."""
    try:
        return longest_forced_step(target, depth).bound
    except NotApplicableError:
        return 0.0


def _largest(bounds: ArrayLike) -> float:
    """The largest bound, 0 if there is none; one that is NaN proves nothing."""
    return float(np.max(_numbers(bounds), initial=0.0))


def _numbers(bounds: ArrayLike) -> np.ndarray:
    """The bounds with 0 for each that is not a finite number."""
    bounds = np.asarray(bounds, np.float64)
    return np.where(np.isfinite(bounds), bounds, 0.0)


def _best_direction(R: np.ndarray, depth: int, ascents: int) -> float:
    """The largest ``|exp(w(x) / l) - 1|`` found."""
    shifted = Shifted.of(R)
    X = _start_directions(shifted, R)
    bounds = _numbers(np.abs(np.expm1(_log_length_and_angle(shifted, X) / depth)))
    best = bounds.max()
    if best == 0:
        return 0.0
    reached = [best]
    for index in np.argsort(-bounds)[:ascents]:
        # Divided by the best so far, the bound is of the order of 1.
        _, lowest = lbfgs.minimize(
            _negated_bound_and_gradient,
            X[:, index],
            (shifted, depth, best),
            iterations=_ITERATIONS,
            tolerance=1e-12,
        )
        reached.append(-lowest * best)
    return _largest(reached)


def _start_directions(shifted: Shifted, R: np.ndarray) -> np.ndarray:
    """Unit vectors to start from, f64[d, n]."""
    d = len(R)
    directions = [
        np.linalg.svd(R)[2].T,
        # Near the identity |w(x)| is about |(R - I) x|.
        np.linalg.svd(shifted.matrix)[2].T,
        np.random.default_rng(0).standard_normal((d, _RANDOM_DIRECTIONS)),
    ]
    with (
        contextlib.suppress(NotApplicableError),
        not_applicable_if_lapack_fails("the eigenvectors of R"),
    ):
        eigenvectors = np.linalg.eig(R)[1]
        directions += [eigenvectors.real, eigenvectors.imag]
    X = np.concatenate(directions, axis=1)
    # First by the largest entry:
    # the square of a tiny one is 0. An imaginary part may be 0.
    largest = np.abs(X).max(axis=0)
    X = X[:, largest > 0] / largest[largest > 0]
    return X / np.linalg.norm(X, axis=0)


def _log_length_and_angle(shifted: Shifted, X: np.ndarray) -> np.ndarray:
    """``w(x)`` of every column of X, f64[d, n], which are unit vectors: c128[n]."""
    moved = shifted.matrix @ X
    along = np.sum(X * moved, axis=0)
    squared = np.sum(moved**2, axis=0)
    if shifted.shift:
        # With R x = x + moved, |R x|^2 - 1 is a sum of small terms.
        log_length = np.log1p(2 * along + squared) / 2
    else:
        log_length = np.log(squared) / 2
    # arctan2 keeps its digits near 0 and pi, where arccos loses half of them.
    across = np.linalg.norm(moved - along * X, axis=0)
    return log_length + 1j * np.arctan2(across, shifted.shift + along)


def _negated_bound_and_gradient(
    x: np.ndarray, shifted: Shifted, depth: int, scale: float
) -> tuple[float, np.ndarray]:
    """``-|exp(w(x) / l) - 1| / scale`` and its gradient in x, f64[d].

    With R = s I + M and a unit vector x, let m = M x, c = <x, m>, u = m + M^T x and q =
    M^T m. Across x, log |R x| has the gradient ``(s u + q) / |R x|^2``, and for ``phi =
    arctan2(a, b)`` with ``a = |m - c x|`` and ``b = s + c`` it is ``(b (q - c u) / a -
    a u) / |R x|^2``. What is left of either along x is removed, as w does not depend on
    |x|.
    """
    length = np.linalg.norm(x)
    if not 0 < length < np.inf:
        return 0.0, np.zeros_like(x)  # no bound
    unit = x / length
    w = complex(_log_length_and_angle(shifted, unit[:, None])[0])
    step = np.expm1(w / depth)
    if step == 0 or not np.isfinite(step):
        return 0.0, np.zeros_like(x)
    M, s = shifted
    m = M @ unit
    c = unit @ m
    u = m + M.T @ unit
    q = M.T @ m
    a = float(np.linalg.norm(m - c * unit))
    b = s + c
    squared_length = a * a + b * b
    log_gradient = (s * u + q) / squared_length
    # The angle has a kink at 0 and pi; there the gradient is that of the length alone.
    angle_gradient = np.zeros_like(x)
    if a > _KINK * np.linalg.norm(m):
        angle_gradient = (b * (q - c * u) / a - a * u) / squared_length
    slope = np.conj(step) / abs(step) * np.exp(w / depth) / depth
    gradient = slope.real * log_gradient - slope.imag * angle_gradient
    gradient -= (gradient @ unit) * unit
    return -abs(step) / scale, -gradient / (length * scale)


class HalfTurn(NamedTuple):
    """A bound by (F10), and the y and the rho that give it.

    Of two half turns the one with the larger bound is the larger tuple.

    Attributes:
      bound: 0 if there is none.
      y: the multiplier of R^T R.
      rho: ``|R x| / |x|`` of the vectors that are forced.
    """

    bound: float
    y: float
    rho: float


def half_turn_bound(R: np.ndarray, depth: int) -> float:
    """The largest ``|exp(w / l) - 1|`` found for vectors forced the long way round.

    Let alpha be the largest angle between x and R x among the x with ``|R x| = rho
    |x|``. If the number of negative eigenvalues of R above -rho is odd (F10),

        |||A||| >= min(1, |exp(w / l) - 1|),   w = log rho + i (2 pi - alpha).

    For every y, ``rho cos alpha >= lambda_min((R + R^T) / 2 + y R^T R) - y rho^2``. Any
    rho and y give a bound; we try many rho between paired neighbours -a < -b among the
    negative eigenvalues, and y between 1/2a and 1/2b, where the best one lies (F17).

    R is f64[d, d] with det R > 0, and l >= 2; the result is 0 without negative
    eigenvalues. It holds for a matrix within rounding of R: one that has the computed
    eigenvalues.
    """
    return _best_half_turn(R, depth).bound


def forced_vector(R: np.ndarray) -> np.ndarray | None:
    """The unit vector x, f64[d], behind `half_turn_bound`; None if there is none.

    The bound is that for many layers. ``|R x| = rho``, and the angle between x and R x
    is alpha, up to the grid in rho. F13 builds on x.
    """
    best = _best_half_turn(R, _MANY_LAYERS)
    if not best.bound:
        return None
    # Where the least eigenvalue is multiple, as for normal R, x lies between the
    # eigenvectors on either side of y: |R x| falls along the way from one to the other.
    before = _least_vector(R, best.y * (1 - _STEP_ASIDE))
    after = _least_vector(R, best.y * (1 + _STEP_ASIDE))
    after *= np.copysign(1, before @ after)

    def too_long(share: float) -> float:
        x = before + share * (after - before)
        return float(np.linalg.norm(R @ x) / np.linalg.norm(x)) / best.rho - 1

    share = 0.5
    if too_long(0) * too_long(1) < 0:
        share = scipy.optimize.brentq(too_long, 0, 1)
    x = before + share * (after - before)
    return x / np.linalg.norm(x)


def _least_vector(R: np.ndarray, y: float) -> np.ndarray:
    """The eigenvector, f64[d], of the least eigenvalue of (R + R^T)/2 + y R^T R."""
    _, eigenvectors = np.linalg.eigh((R + R.T) / 2 + y * R.T @ R)
    return eigenvectors[:, 0]


def _best_half_turn(R: np.ndarray, depth: int) -> HalfTurn:
    """The best of the half turns of all paired neighbouring negative eigenvalues."""
    best = HalfTurn(bound=0.0, y=0.0, rho=0.0)
    with (
        contextlib.suppress(NotApplicableError),
        not_applicable_if_lapack_fails("half turns"),
    ):
        for b, a in paired_moduli(np.linalg.eigvals(R)):
            best = max(best, _half_turn_between(R, depth, a=a, b=b))
    return best


def _half_turn_between(R: np.ndarray, depth: int, *, a: float, b: float) -> HalfTurn:
    """The best rho in [b, a], and y, for paired neighbours -a <= -b."""
    rho = np.geomspace(b, a, _RADII)
    pencil = _Pencil.of(R)

    def half_turn(log_y: float) -> HalfTurn:
        return _half_turn_at(pencil, float(np.exp(log_y)), rho, depth)

    def bound(log_y: float) -> float:
        return half_turn(log_y).bound

    grid = np.linspace(-np.log(2 * a), -np.log(2 * b), _MULTIPLIERS)
    bounds = np.array([bound(log_y) for log_y in grid])
    # As np.roll goes around, the two ends are compared with each other, too: at most
    # one of them counts as a peak.
    is_peak = (bounds > np.roll(bounds, 1)) & (bounds >= np.roll(bounds, -1))
    peaks = np.flatnonzero(is_peak)
    highest = peaks[np.argsort(-bounds[peaks])][:_PEAKS]
    # The middle of the interval, in 1 / y.
    candidates = [half_turn(-np.log(a + b))]
    for index in highest:
        search = scipy.optimize.minimize_scalar(
            lambda log_y: -bound(log_y),
            bounds=(grid[max(index - 1, 0)], grid[min(index + 1, len(grid) - 1)]),
            method="bounded",
            options={"xatol": _PEAK_TOLERANCE},
        )
        candidates.append(half_turn(search.x))
    return max(candidates)


class _Pencil(NamedTuple):
    """What the bounds on alpha need of R, whatever rho and y.

    Attributes:
      symmetric_part: f64[d, d], (R + R^T) / 2.
      gram: f64[d, d], R^T R.
      norm: ||R||.
    """

    symmetric_part: np.ndarray
    gram: np.ndarray
    norm: float

    @classmethod
    def of(cls, R: np.ndarray) -> _Pencil:
        return cls(
            symmetric_part=(R + R.T) / 2,
            gram=R.T @ R,
            norm=float(np.linalg.norm(R, 2)),
        )

    def least_eigenvalue(self, y: float) -> float:
        """A lower bound on ``lambda_min((R + R^T) / 2 + y R^T R)``, less rounding.

        Near alpha = pi, arccos would turn a rounding of eps into sqrt(eps).
        """
        d = len(self.gram)
        rounding = 4 * d * np.finfo(float).eps * (1 + y * self.norm) * self.norm
        return np.linalg.eigvalsh(self.symmetric_part + y * self.gram)[0] - rounding


def _half_turn_at(pencil: _Pencil, y: float, rho: np.ndarray, depth: int) -> HalfTurn:
    """The best of the half turns with this y and any of the radii rho, f64[n]."""
    least = pencil.least_eigenvalue(y)
    # rho cos alpha >= least - y rho^2
    alpha = np.arccos(np.clip(least / rho - y * rho, -1, 1))
    w = np.log(rho) + 1j * (2 * np.pi - alpha)
    bounds = _numbers(np.abs(np.expm1(w / depth)))
    best = int(bounds.argmax())
    return HalfTurn(bound=float(bounds[best]), y=y, rho=float(rho[best]))
