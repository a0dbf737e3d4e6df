"""How long gradient flow takes on a scalar net, including past a saddle (V5, V6).

See docs/theory/convergence.md. Everything is computed from logarithms and from
differences without cancellation, so that targets and weights of any size keep their
digits:

* ``w``: the smallest weight, which moves from w_0 towards w_r, where the product is r
* ``c_i``: ``w_i^2 - w^2`` of each other weight, which the flow conserves
* ``q``: ``prod_i sqrt(w^2 + c_i)``, the product of the other weights
* ``p``: ``w q``, the product of all weights
* ``e``: ``p - r``
* ``u``: ``w - w_r``, which comes with w: each has digits that the other, and w_r, do
  not give

The time, for ``sigma = 1/2``, is the integral of ``|dw| / (|e| q)``. The path of w is
cut into segments, each with a variable in which the integrand is smooth:

* near w_r: ``s = log |u|``
* far from w_r > 0: ``s = log w``
* far from w_r < 0, across 0: ``s = asinh(w / g)``, see `_by_asinh_of_weight`
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import NamedTuple

import numpy as np
import scipy.optimize
from numpy.typing import ArrayLike

from identity_matters.checks import real_array, real_number

# Gauss-Legendre nodes of each panel of an integral, and their weights.
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(16)
# Panels are halved until the logarithm of the integral changes by less than this.
_LARGEST_CHANGE = 1e-10
_MOST_HALVINGS = 8
# The integrand changes by a factor of at most e^l per unit of its variable, and within
# a panel by at most e^4.
_EXPONENT_PER_PANEL = 4.0
# Values of all w_i that are held at a time.
_CHUNK = 2**21
# Relative; roots are sought in logarithms.
_ROOT_TOLERANCE = 1e-15
# Closer to w_r than this share of it, |w_0 - w_r| would lose digits to cancellation.
_NEAR_THE_END = 0.1
# Relative widening of the interval in which a root is sought: far above rounding.
_SEARCH_MARGIN = 1e-9
# From here on float64 cannot tell sinh from half of exp; both overflow only near 710.
_LARGE_ARGUMENT = 600.0
# What is left of |w_0 - w_r|, relative to w_r, if it is only rounding.
_ROUNDING_OF_A_DISTANCE = 1e-14


def escape_time(w: ArrayLike, r: float, sigma: float, risk: float) -> float:
    """Time of gradient flow from `w` until ``f - C`` is at most `risk` (V5).

    For d = 1, ``f - C = sigma (prod w - r)^2``. The net is scalar, with weights ``w_i =
    1 + A_i``; a diagonal net is one such net per entry. Gradient flow conserves every
    ``c_i = w_i^2 - w_min^2``, so the smallest weight w moves by

        dw/dt = -2 sigma (p - r) q,    q = prod_{i != min} sqrt(w^2 + c_i),    p = w q,

    and the time is one integral over w. For r < 0 it is math.inf if two weights share
    the least value, and exponential in the depth from weights with small noise (V6). It
    is also math.inf if it exceeds the range of float64. Gradient descent with a small
    step size eta takes about ``escape_time / eta`` updates. The relative error is about
    1e-9 where the arguments are exact: a rounding of w or r changes the time as much as
    it changes ``log |prod w - r|``, and one of the risk as much as it changes ``log
    |p|`` at the end.

    Args:
      w: f64[l], the weights at the start, positive.
      r: the target, not 0.
      sigma: the second moment of the input, positive.
      risk: f - C at the end, positive and below ``sigma r^2``, the risk at the saddle.
    Raises:
      ValueError: an argument is not as above, the product of the weights is beyond
        float64, or the integral does not converge.

    >>> # One weight, r = -1: p = w, dw/dt = -2 (w + 1), from 1 until w + 1 = 0.1.
    >>> round(escape_time([1.0], -1.0, 1.0, 0.01), 6), round(math.log(2 / 0.1) / 2, 6)
    (1.497866, 1.497866)
    """
    w = np.sort(real_array("w", w, axes=1))
    r = real_number("r", r)
    sigma = real_number("sigma", sigma)
    risk = real_number("risk", risk)
    if not (w > 0).all():
        raise ValueError(f"w must be a row of positive numbers, got {w.min()}")
    if not (sigma > 0 and risk > 0):
        raise ValueError(f"need sigma > 0 and risk > 0, got {sigma} and {risk}")
    last_error = math.sqrt(risk) / math.sqrt(sigma)
    if not last_error < abs(r):
        raise ValueError(
            f"need 0 < risk < sigma r^2, got r = {r}, sigma = {sigma}, risk = {risk}"
        )
    first_error = _exact_error(w, r)
    if abs(first_error) <= last_error:
        return 0.0
    flow = _flow(w, r, first_error)
    if flow.ends_in_the_saddle:
        return math.inf
    segments = _segments(
        flow,
        first=_first_distance(flow, first_error),
        last=_distance(flow, last_error),
        log_short_of_r=_log_short_of_r(r, sigma, risk, last_error),
    )
    # If |e| has to fall only by its own rounding, w may not move at all: a segment is
    # then empty.
    log_times = [
        _log_time(flow, segment) for segment in segments if segment.low < segment.high
    ]
    # 2 sigma may be beyond float64.
    log_time = float(np.logaddexp.reduce(log_times)) - math.log(2) - math.log(sigma)
    if log_time >= math.log(np.finfo(np.float64).max):
        return math.inf
    return math.exp(log_time)


def _exact_error(w: np.ndarray, r: float) -> float:
    """``prod w - r``, rounded once: the product may be close to r."""
    error = math.prod(Fraction(weight) for weight in w.tolist()) - Fraction(r)
    try:
        return float(error)
    except OverflowError:
        raise ValueError(
            "the product of w must be within the range of float64"
        ) from None


def _log_short_of_r(r: float, sigma: float, risk: float, last_error: float) -> float:
    """``log (|r| - last_error)`` with all digits of ``|r|^2 - risk / sigma``.

    It is log |p| at the end of a path that comes from the side of 0; -inf for a
    difference below float64.
    """
    squares = Fraction(r) ** 2 - Fraction(risk) / Fraction(sigma)
    difference = float(squares / (Fraction(abs(r)) + Fraction(last_error)))
    return math.log(difference) if difference > 0 else -math.inf


class _OtherWeights(NamedTuple):
    """All weights but the smallest: ``sqrt(w^2 + c_i)`` each.

    Attributes:
      roots: the different ``sqrt(c_i)``, f64[m], increasing.
      counts: how often each occurs.
    """

    roots: np.ndarray
    counts: np.ndarray

    def log_product(self, w: np.ndarray) -> np.ndarray:
        """``log q``, f64[n], for w, f64[n]."""
        return np.log(np.hypot(w[:, None], self.roots)) @ self.counts


class _Flow(NamedTuple):
    """The flow of the smallest weight; the module's docstring explains the letters.

    w starts above 0 and moves one way, towards w_r, which has the sign of r:

    * it falls to w_r > 0, if p > r > 0 at the start
    * it rises to w_r > 0, if p < r at the start
    * it falls to w_r < 0 and crosses 0 on the way, if r < 0

    Attributes:
      start, end: w_0 and w_r.
      others: the other weights.
      log_r: ``log |r|``.
      side: 1.0 if w falls, -1.0 if it rises: the sign of e and of u throughout.
    """

    start: float
    end: float
    others: _OtherWeights
    log_r: float
    side: float

    @property
    def depth(self) -> int:
        """The number of all weights, l."""
        return 1 + int(self.others.counts.sum())

    @property
    def comes_from_above(self) -> bool:
        """Whether w falls to w_r > 0, and not to it from the side of 0."""
        return self.end > 0 and self.side > 0

    @property
    def ends_in_the_saddle(self) -> bool:
        """Whether w tends to 0 and never crosses it, since some c_i is 0."""
        return self.end < 0 and 0 in self.others.roots

    def log_error(self, w: np.ndarray, u: np.ndarray) -> np.ndarray:
        """``log |p - r|``, f64[n], accurate for w and u, f64[n], of any size."""
        has_sign_of_r = w > 0 if self.end > 0 else w < 0
        log_error = np.empty_like(u)
        log_error[has_sign_of_r] = self._log_difference(
            w[has_sign_of_r], u[has_sign_of_r]
        )
        log_error[~has_sign_of_r] = self._log_sum(w[~has_sign_of_r])
        return log_error

    def _log_difference(self, w: np.ndarray, u: np.ndarray) -> np.ndarray:
        """``log | |p| - |r| |``, f64[n], where w = w_r + u has the sign of w_r.

        The difference is ``m (1 - e^{-|z|})``, where m is the larger of |p| and |r| and
        ``z = log(r / p)``. As r is the product at w_r, z is a sum of logarithms that
        are near 0 if u is small.
        """
        # sqrt(w^2 + c_i) here and at w_r: the other weights.
        others = np.hypot(w[:, None], self.others.roots)
        others_at_end = np.hypot(self.end, self.others.roots)
        log_product = np.log(np.abs(w)) + self.others.log_product(w)
        larger = np.maximum(log_product, self.log_r)
        # u / w rounds to 1 far above w_r, and overflows far below it; then z is
        # infinite, and m all that counts.
        with np.errstate(divide="ignore", over="ignore"):
            # What is missing from 1 in the ratios of the others, without cancellation.
            missing = (u[:, None] / others) * (
                (w + self.end)[:, None] / (others + others_at_end)
            )
            z = np.log1p(-u / w) + np.log1p(-missing) @ self.others.counts
            return larger + np.log(-np.expm1(-np.abs(z)))

    def _log_sum(self, w: np.ndarray) -> np.ndarray:
        """``log(|p| + |r|)``, f64[n], where w is 0 or on the other side of 0."""
        with np.errstate(divide="ignore"):
            log_product = np.log(np.abs(w)) + self.others.log_product(w)
        return np.logaddexp(log_product, self.log_r)


def _flow(w: np.ndarray, r: float, first_error: float) -> _Flow:
    """The flow from the weights w, f64[l], increasing, where e is `first_error`.

    Raises ValueError if w_r is below the normal range of float64.
    """
    # Not sqrt(w_i^2 - w^2), whose squares cancel, and may underflow.
    roots, counts = np.unique(
        np.sqrt(w[1:] - w[0]) * np.sqrt(w[1:] + w[0]), return_counts=True
    )
    others = _OtherWeights(roots, counts)
    log_r = math.log(abs(r))
    end = math.copysign(math.exp(_log_weight(others, log_r)), r)
    if abs(end) < np.finfo(np.float64).tiny:
        raise ValueError(
            f"the smallest weight ends too close to 0 for float64, at r = {r}"
        )
    return _Flow(
        start=float(w[0]),
        end=end,
        others=others,
        log_r=log_r,
        side=math.copysign(1.0, first_error),
    )


def _log_weight(others: _OtherWeights, log_p: float) -> float:
    """The solution log |w| of ``log |w| + log q = log_p``; -inf if that is -inf.

    The left side increases with log |w|.
    """
    if log_p == -math.inf:
        return log_p

    def excess(log_w: float) -> float:
        log_q = float(others.log_product(np.exp([log_w]))[0])
        return log_w + log_q - log_p

    # |p| is at least |w|^l, and q increases with |w|.
    high = log_p / (1 + int(others.counts.sum()))
    low = log_p - float(others.log_product(np.exp([high]))[0])
    margin = _SEARCH_MARGIN * (1 + abs(high) + abs(low))
    return _root(excess, low - margin, high + margin)


def _first_distance(flow: _Flow, first_error: float) -> float:
    """|u| at the start, where e is `first_error`."""
    difference = abs(flow.start - flow.end)
    if difference < _NEAR_THE_END * abs(flow.end):
        # It may be rounding alone; the error is exact.
        return _distance(flow, first_error)
    return difference


def _distance(flow: _Flow, error: float) -> float:
    """|u| where |e|, which increases with |u|, is the size of `error`.

    It is sought in log |u|; `error` is at most that of the start.
    """
    log_error = math.log(abs(error))

    def excess(log_distance: float) -> float:
        u = flow.side * np.exp([log_distance])
        return float(flow.log_error(flow.end + u, u)[0]) - log_error

    high = _farthest_log_distance(flow)
    low = _below_the_root(excess, high)
    return math.exp(_root(excess, low, high))


def _farthest_log_distance(flow: _Flow) -> float:
    """An upper end for log |u|: |u| falls along the flow, so it is largest at w_0.

    A factor of e above that distance leaves room for its rounding.
    """
    # The start may be so close that w_0 - w_r is only rounding.
    rounding = abs(flow.end) * _ROUNDING_OF_A_DISTANCE
    farthest = math.log(max(abs(flow.start - flow.end), rounding)) + 1.0
    if flow.side > 0:
        return farthest
    # w rises to w_r from above 0, so |u| = w_r - w stays below w_r.
    return min(farthest, math.log(flow.end) - _SEARCH_MARGIN)


def _below_the_root(excess: Callable[[float], float], high: float) -> float:
    """A number below `high` where the increasing function `excess` is not above 0.

    The distance from `high` is 1 at first, and three times as large at each step.
    """
    low = high - 1.0
    while excess(low) > 0:
        low -= 2 * (high - low)
    return low


class _Place(NamedTuple):
    """Points of the path of w, f64[n] each.

    Attributes:
      w: the smallest weight.
      u: its distance from w_r, with a sign.
      log_slope: ``log |dw / ds|`` there.
    """

    w: np.ndarray
    u: np.ndarray
    log_slope: np.ndarray


class _Segment(NamedTuple):
    """A segment of the path of w, along a variable s from `low` to `high`.

    Attributes:
      low, high: the ends.
      point: s, f64[n] -> where that is.
    """

    low: float
    high: float
    point: Callable[[np.ndarray], _Place]


def _segments(
    flow: _Flow, *, first: float, last: float, log_short_of_r: float
) -> list[_Segment]:
    """The segments of the path from ``|u| = first`` to ``|u| = last``.

    The integrand is smooth in log |u| near w_r, and in other variables far from it.
    `log_short_of_r` is log |p| at the end of a path that comes from the side of 0.
    """
    near = _switch_distance(flow)
    segments = []
    if last < near:
        segments.append(_by_log_distance(flow, first=min(first, near), last=last))
    if first > near:
        if last < near or flow.comes_from_above:
            stop = flow.end + flow.side * max(last, near)
        else:
            # It may be far closer to 0 than to w_r, and u have no digits of it.
            log_stop = _log_weight(flow.others, log_short_of_r)
            stop = math.copysign(math.exp(log_stop), flow.end)
        if flow.end > 0:
            segments.append(_by_log_weight(flow, stop))
        else:
            segments += _by_asinh_of_weight(flow, stop)
    return segments


def _switch_distance(flow: _Flow) -> float:
    """The distance |u| from w_r below which log |u| is the variable."""
    if flow.comes_from_above:
        # The switch is at w = 2 w_r.
        return abs(flow.end)
    # w comes from the side of 0, near which the integrand is not smooth in log |u|:
    # the switch is at w = w_r / 2.
    return abs(flow.end) / 2


def _by_log_distance(flow: _Flow, *, first: float, last: float) -> _Segment:
    """From ``|u| = first`` to ``|u| = last`` by ``u = +-e^s``: ``|dw / ds| = e^s``."""

    def point(s: np.ndarray) -> _Place:
        u = flow.side * np.exp(s)
        return _Place(w=flow.end + u, u=u, log_slope=s)

    return _Segment(low=math.log(last), high=math.log(first), point=point)


def _by_log_weight(flow: _Flow, stop: float) -> _Segment:
    """From the start to w = `stop` > 0 by ``w = e^s``: ``|dw / ds| = e^s``."""

    def point(s: np.ndarray) -> _Place:
        w = np.exp(s)
        return _Place(w=w, u=w - flow.end, log_slope=s)

    low, high = sorted((math.log(flow.start), math.log(stop)))
    return _Segment(low, high, point)


def _by_asinh_of_weight(flow: _Flow, stop: float) -> list[_Segment]:
    """From the start to w = `stop` <= 0 by ``w = g sinh s``: ``|dw / ds| = g cosh s``.

    1/q has a peak of width sqrt(min c_i) at w = 0, and e changes there over |w_r|;
    g is the lesser of the two.
    """
    g = min([abs(flow.end), *flow.others.roots[:1]])

    def point(s: np.ndarray) -> _Place:
        w = _times_sinh(g, s)
        log_slope = math.log(g / 2) + np.logaddexp(s, -s)
        return _Place(w=w, u=w - flow.end, log_slope=log_slope)

    first = _asinh_of_ratio(flow.start, g)
    last = _asinh_of_ratio(stop, g)
    # The integrand is least smooth at 0, which should be an end.
    return [_Segment(last, 0.0, point), _Segment(0.0, first, point)]


def _times_sinh(g: float, s: np.ndarray) -> np.ndarray:
    """``g sinh s``, f64[n], also where ``sinh s`` is beyond float64."""
    size = np.abs(s)
    of_large = np.copysign(np.exp(size + math.log(g / 2)), s)
    is_large = size > _LARGE_ARGUMENT
    return np.where(is_large, of_large, g * np.sinh(np.where(is_large, 0.0, s)))


def _asinh_of_ratio(w: float, g: float) -> float:
    """``asinh(w / g)``, also where ``w / g`` is beyond float64."""
    size = math.log(abs(w)) - math.log(g / 2) if w else 0.0
    if size > _LARGE_ARGUMENT:
        return math.copysign(size, w)
    return math.asinh(w / g)


def _log_time(flow: _Flow, segment: _Segment) -> float:
    """Log of the time for ``sigma = 1/2``: of the integral of ``|dw| / (|e| q)``.

    Raises ValueError if halving the panels goes on changing it.
    """
    exponent = flow.depth * (segment.high - segment.low)
    count = math.ceil(exponent / _EXPONENT_PER_PANEL) + 1
    before = math.nan
    for _ in range(_MOST_HALVINGS):
        edges = np.linspace(segment.low, segment.high, count + 1)
        now = _log_gauss_sum(flow, segment, edges)
        if abs(now - before) <= _LARGEST_CHANGE:
            return now
        before = now
        count *= 2
    raise ValueError("the integral for the time does not converge")


def _log_gauss_sum(flow: _Flow, segment: _Segment, edges: np.ndarray) -> float:
    """`_log_time` by Gauss-Legendre sums between adjacent edges, f64[n + 1]."""
    at_a_time = max(1, _CHUNK // (len(_NODES) * (1 + len(flow.others.roots))))
    logs = []
    for begin in range(0, len(edges) - 1, at_a_time):
        ends = edges[begin : begin + at_a_time + 1]
        left = ends[:-1]
        right = ends[1:]
        half = (right - left)[:, None] / 2
        s = ((left + right)[:, None] / 2 + half * _NODES).ravel()
        place = segment.point(s)
        # In a segment of a few roundings a panel may have no length.
        with np.errstate(divide="ignore"):
            log_weights = np.log((half * _WEIGHTS).ravel())
        log_error = flow.log_error(place.w, place.u)
        log_q = flow.others.log_product(place.w)
        log_values = place.log_slope - log_error - log_q
        logs.append(np.logaddexp.reduce(log_weights + log_values))
    return float(np.logaddexp.reduce(logs))


def _root(function: Callable[[float], float], low: float, high: float) -> float:
    """Where an increasing function is 0; an end if rounding moved the zero there."""
    if function(low) >= 0:
        return low
    if function(high) <= 0:
        return high
    return float(
        scipy.optimize.brentq(
            function, low, high, xtol=_ROOT_TOLERANCE, rtol=_ROOT_TOLERANCE
        )
    )
