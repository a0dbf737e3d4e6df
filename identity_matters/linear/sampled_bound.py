"""What minibatch descent on linear nets reaches, and whether it stays in the ball.

`noise_floor` is the risk at which a linear model of the last phase comes to rest (S1),
and `certify` the proved bound of the risk and of the chance to leave the ball (S5, S6);
the statements and proofs are in docs/theory/sampled.md.
"""

import math
import sys
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from identity_matters.checks import (
    check_whole,
    non_negative_number,
    positive_number,
    real_array,
    real_number,
)
from identity_matters.linear import sampled, second_moment

_EPS = sys.float_info.epsilon
# So many updates are added up one by one, and later ones in spans.
_SINGLE_UPDATES = 2**16
# `least_batch` does not look beyond this.
_LARGEST_BATCH = 2**40


def noise_floor(
    target_eigenvalues: ArrayLike,
    sigma_eigenvalues: ArrayLike,
    *,
    depth: int,
    learning_rate: float,
    batch_examples: int,
    noise_std: float,
) -> float:
    """The stationary excess risk of the linear model around R^{1/l} - I (S1).

    Args:
      target_eigenvalues: r, f64[d], positive; R is symmetric.
      sigma_eigenvalues: lambda, f64[d], of Sigma, which has the eigenvectors of R; same
        order.
      depth: l.
      learning_rate: eta, positive.
      batch_examples: B.
      noise_std: of the labels, 0 or more.
    Returns:
      The risk, or math.inf where the step is too large for the second moments of the
      linear model to come to rest, or the risk for float64.
    Raises:
      ValueError: an argument is not as above, or not made of finite real numbers, or
        depth or batch_examples is not a positive whole number.

    >>> # One scalar layer, Sigma = 1:
    >>> # h / (1 - h), h = (eta / B) / (1 - eta (1 + 1 / B)).
    >>> at = dict(depth=1, learning_rate=0.1, batch_examples=2, noise_std=1.0)
    >>> h = 0.05 / 0.85
    >>> round(noise_floor([1.0], [1.0], **at), 6), round(h / (1 - h), 6)
    (0.0625, 0.0625)
    """
    r = real_array("target_eigenvalues", target_eigenvalues, axes=1)
    sigma = real_array("sigma_eigenvalues", sigma_eigenvalues, axes=1)
    if r.shape != sigma.shape or r.min() <= 0 or sigma.min() < 0:
        raise ValueError(
            "need as many sigma eigenvalues as target eigenvalues, the latter positive,"
            " the former not negative"
        )
    depth = check_whole("depth", depth)
    batch_examples = check_whole("batch_examples", batch_examples)
    learning_rate = positive_number("learning_rate", learning_rate)
    noise_std = non_negative_number("noise_std", noise_std)
    # A speed or step beyond float64 is too large for a stationary second moment.
    with np.errstate(over="ignore", invalid="ignore"):
        step = learning_rate * _speeds(r, depth) * sigma
        remaining = 1 - step * (1 + 1 / batch_examples)
    if not remaining.min() > 0:
        return math.inf
    h = np.sum(step / batch_examples / remaining, axis=1)
    if not h.max() < 1:
        return math.inf
    # Python's floats end in infinity, and without a warning.
    return float(np.sum(h / (1 - h))) * noise_std * noise_std


def _speeds(r: np.ndarray, depth: int) -> np.ndarray:
    """kappa of S1, f64[d, d]: how fast each entry of E moves, with r, f64[d].

    ``kappa_ab = sum_i r_a^{2(l-i)/l} r_b^{2(i-1)/l}``, i from 1 to l, is a geometric
    series. Its terms fall from the power of the larger of both by ``(less /
    larger)^{2/l}`` from layer to layer.
    """
    logarithm = np.log(r)
    larger = np.maximum.outer(logarithm, logarithm)
    less = np.minimum.outer(logarithm, logarithm)
    # The logarithm of all the factors together, at most 0.
    fall = 2 * (less - larger)
    is_constant = fall == 0
    per_layer = np.where(is_constant, -1.0, fall / depth)
    series = np.where(is_constant, depth, np.expm1(fall) / np.expm1(per_layer))
    return np.exp(2 * larger * ((depth - 1) / depth)) * series


class Certificate(NamedTuple):
    """Proved for minibatch descent from zero (S5, S6 of docs/theory/sampled.md).

    Every number is on the safe side of its rounding, as far as LAPACK's eigenvalues are
    as exact as `second_moment` assumes: `gap` is not above what S4 says, and the others
    are not below what S5 and S6 say.

    Attributes:
      norm: tau = radius / depth; the ball in question is B_tau.
      failure_probability: a bound of the chance that one of the iterates leaves B_tau;
        1 or more says nothing.
      start: f(0) - C.
      gap: 1 - rho, where rho is the factor per update. A number of its own, since it
        may be far below the roundings of rho.
      floor: F, what the bound of the risk tends to.
    """

    norm: float
    failure_probability: float
    start: float
    gap: float
    floor: float

    @property
    def decay(self) -> float:
        """rho, the factor per update."""
        return math.nextafter(1 - self.gap, 1)

    def risk(self, updates: ArrayLike) -> np.ndarray:
        """Bounds ``E[(f - C) 1{no iterate has left B_tau}]`` by number of updates."""
        return _risk(updates, start=self.start, gap=self.gap, floor=self.floor)


def certify(
    problem: sampled.Problem,
    *,
    depth: int,
    learning_rate: float,
    batch_examples: int,
    updates: int,
    radius: float,
) -> Certificate | None:
    """The bounds of S5 and S6 in the ball ``|||A||| <= radius / depth``.

    >>> problem = sampled.make_problem(np.diag([1.02, 0.98]), np.eye(2), noise_std=0.1)
    >>> how = dict(depth=8, learning_rate=1e-3, updates=1000, radius=0.5)
    >>> certificate = certify(problem, batch_examples=1000, **how)
    >>> certificate.norm, round(certificate.failure_probability, 3)
    (0.0625, 0.152)
    >>> float(certificate.risk(1000).round(6)), round(certificate.start, 6)
    (9e-06, 0.0008)
    >>> least_batch(problem, failure_probability=0.1, **how)
    4025

    None where they do not apply: Sigma has eigenvalues that rounding may have made, or
    rho is not below 1. None, too, where a bound is beyond float64.

    Raises:
      ValueError: the radius is not above 0 and at most 1, the step not positive and
        finite, or depth, batch or updates are not positive whole numbers.
    """
    depth = check_whole("depth", depth)
    batch_examples = check_whole("batch_examples", batch_examples)
    updates = check_whole("updates", updates)
    radius = real_number("radius", radius)
    if not 0 < radius <= 1:
        raise ValueError(f"radius must be above 0 and at most 1, got {radius}")
    learning_rate = positive_number("learning_rate", learning_rate)
    bounds = _bounds_of(problem)
    if bounds is None:
        return None
    norm = _rounded_up(Fraction(radius) / depth)
    # What is claimed about the ball of this norm must hold in all of it.
    ball = _rounded_up(Fraction(norm) * depth)
    descent = _Descent(
        depth=depth,
        learning_rate=Fraction(learning_rate),
        batch_examples=batch_examples,
        radius=Fraction(radius),
        # The exponential is off by less than one rounding.
        stretch=Fraction(math.nextafter(math.exp(ball), math.inf)),
        label_noise=len(problem.R)
        * Fraction(problem.noise_std) ** 2
        * Fraction(bounds.trace),
    )
    contraction = _contraction(bounds, descent)
    if contraction is None:
        return None
    gap, floor = contraction
    risks = _risks_of_spans(updates, start=bounds.start, gap=gap, floor=floor)
    return Certificate(
        norm=norm,
        failure_probability=_failure_probability(bounds, descent, risks),
        start=bounds.start,
        gap=gap,
        floor=floor,
    )


class _Descent(NamedTuple):
    """The descent that S5 and S6 are about, as exact numbers.

    Attributes:
      depth: l.
      learning_rate: eta.
      batch_examples: B.
      radius: b, depth times the radius of the ball, which the certificate rounds up.
      stretch: at least ``e^b``, a bound of the norm of the product of any layers in the
        ball.
      label_noise: ``d nu^2 tr Sigma``, the part of noisy labels in a sample's variance.
    """

    depth: int
    learning_rate: Fraction
    batch_examples: int
    radius: Fraction
    stretch: Fraction
    label_noise: Fraction


def _contraction(
    bounds: "_ProblemBounds", descent: _Descent
) -> tuple[float, float] | None:
    """``(1 - rho, F)`` of S5: how fast the risk falls in the ball, and to which floor.

    The mean risk falls to ``E[Z_{k+1}] <= rho E[Z_k] + c`` in one update (S4), so that
    ``E[Z_k] <= rho^k phi_0^2 + (1 - rho^k) F`` with ``F = c / (1 - rho)``:

        beta = 2 l S e^b (2 e^b - 1 + ||I - R||)
        1 - rho = 4 eta l e^{-2b} sigma (1 - eta beta / 2)
                  - (2 eta^2 beta l e^{2b} / B) (tr Sigma + S)
        c = (2 eta^2 beta l e^{2b} / B) d nu^2 tr Sigma

    The arithmetic is exact, since both differences may cancel; then 1 - rho is rounded
    down and F up. None unless ``eta beta < 2`` and ``1 - rho > 0``, or if float64 does
    not reach to F.
    """
    depth = descent.depth
    learning_rate = descent.learning_rate
    stretch = descent.stretch
    sigma = Fraction(bounds.sigma)
    largest = Fraction(bounds.largest)
    trace = Fraction(bounds.trace)
    # beta bounds the second derivative of the risk in the ball (S3).
    distance = Fraction(bounds.distance)
    curvature = 2 * depth * largest * stretch * (2 * stretch - 1 + distance)
    # What curvature leaves of the fall that the gradient promises.
    gain = 1 - learning_rate * curvature / 2
    # eta^2 beta / 2 times E||g - grad f||^2 is at most
    # noise ((trace + largest) (f - C) + label_noise).
    noise = (
        2 * learning_rate**2 * curvature * depth * stretch**2 / descent.batch_examples
    )
    fall = 4 * learning_rate * depth * sigma / stretch**2 * gain
    gap = -_rounded_up(noise * (trace + largest) - fall)
    if not gap > 0:  # as it is not where gain <= 0, since the noise only lowers it
        return None
    floor = _rounded_up(noise * descent.label_noise / Fraction(gap))
    return (gap, floor) if floor < math.inf else None


def _failure_probability(
    bounds: "_ProblemBounds", descent: _Descent, risks: "_SpanRisks"
) -> float:
    """``(l (X + Y) / b)^2`` of S6, a bound of the chance to leave the ball.

    How far a layer moves is at most what the gradients make it drift, X in root mean
    square, and what their noise makes it wander, Y; the bound is Chebyshev's:

        X = 2 eta e^b sqrt(S) sum_k sqrt(z_k)
        Y = 4 eta e^b (1 + 2b) sqrt(sum_k v_k)
        v_k = ((tr Sigma + S) z_k + d nu^2 tr Sigma) / B

    Args:
      bounds: of the problem.
      descent: the descent.
      risks: bounds of z_k, the risk before each update (S5).
    """
    sum_of_risks = _sum_rounded_up(risks.updates * risks.largest)
    if math.isinf(sum_of_risks):
        return math.inf
    trace_and_largest = Fraction(bounds.trace) + Fraction(bounds.largest)
    # The sum of v_k, which bounds the variances of the batches (S2).
    variance = _rounded_up(
        (
            trace_and_largest * Fraction(sum_of_risks)
            + int(risks.updates.sum()) * descent.label_noise
        )
        / descent.batch_examples
    )
    if math.isinf(variance):
        return math.inf
    moved = descent.learning_rate * descent.stretch
    sum_of_roots = Fraction(_sum_rounded_up(risks.updates * np.sqrt(risks.largest)))
    drift = 2 * moved * _root_rounded_up(bounds.largest) * sum_of_roots
    spread = 4 * moved * (1 + 2 * descent.radius) * _root_rounded_up(variance)
    return _rounded_up(((drift + spread) * descent.depth / descent.radius) ** 2)


def _rounded_up(exact: Fraction) -> float:
    """The least number of float64 that is not below `exact`; infinity if none is."""
    try:
        nearest = float(exact)
    except OverflowError:
        return math.inf if exact > 0 else -sys.float_info.max
    return nearest if nearest >= exact else math.nextafter(nearest, math.inf)


def _root_rounded_up(square: float) -> Fraction:
    """At least the square root of a finite number; 0 is its own."""
    root = math.sqrt(square)
    return Fraction(math.nextafter(root, math.inf)) if square else Fraction(0)


def _sum_rounded_up(values: np.ndarray) -> float:
    """At least the sum of numbers of at least 0 that may be off by two roundings."""
    with np.errstate(over="ignore"):
        total = np.sum(values)
    return float(total) * (1 + (len(values) + 4) * _EPS)


class _ProblemBounds(NamedTuple):
    """Numbers of a problem, on the safe side of their rounding errors.

    Attributes:
      sigma: a lower bound of Sigma's least eigenvalue.
      largest: an upper bound of its largest.
      trace: an upper bound of its trace.
      start: an upper bound of ``f(0) - C = ||(I - R) Sigma^{1/2}||_F^2``.
      distance: an upper bound of ``||I - R||``.
    """

    sigma: float
    largest: float
    trace: float
    start: float
    distance: float


def _bounds_of(problem: sampled.Problem) -> _ProblemBounds | None:
    """The numbers of a problem; None if rounding may have made Sigma definite.

    None, too, where float64 cannot square them.
    """
    d = len(problem.R)
    kept = second_moment.kept_part(problem.Sigma)
    largest = float(kept.eigenvalues[-1])
    can_square = second_moment.can_square_norm(
        largest
    ) and second_moment.can_square_target(problem.R, largest)
    if kept.rank < d or not can_square:
        return None
    rounding = float(kept.rounding)
    E = np.eye(d) - problem.R
    distance = float(np.linalg.norm(E, 2))
    return _ProblemBounds(
        sigma=float(kept.least) - rounding,
        largest=largest + rounding,
        trace=float(kept.eigenvalues.sum()) + d * rounding,
        start=float(kept.squared_norm_bound(E)),
        # As for eigenvalues, see `second_moment.eigenvalue_rounding`; for d = 1, too,
        # where E is rounded.
        distance=distance * (1 + 16 * d * _EPS),
    )


def _risk(updates: ArrayLike, *, start: float, gap: float, floor: float) -> np.ndarray:
    """``rho^t start + (1 - rho^t) floor`` with rho = 1 - gap, rounded up.

    f64 of the shape of `updates`, which are t; ValueError if one is below 0.
    """
    counts = real_array("updates", updates)
    if counts.min() < 0:
        raise ValueError(f"updates must be 0 or more, got {counts.min()}")
    # log rho^t, which rounding may have moved either way.
    exponent = counts * math.log1p(-gap)
    left = np.exp(exponent * (1 - 4 * _EPS))
    gone = -np.expm1(exponent * (1 + 4 * _EPS))
    risk = left * start + gone * floor
    # Either product may underflow; 0 is exact where there is neither start nor floor.
    lost = sys.float_info.min if start or floor else 0.0
    return risk * (1 + 16 * _EPS) + lost


class _SpanRisks(NamedTuple):
    """Bounds of the risk over spans of updates that follow one another.

    Attributes:
      updates: i64[spans], how many each span has.
      largest: f64[spans], at least z_k, the risk before any update of the span (S5).
    """

    updates: np.ndarray
    largest: np.ndarray


def _risks_of_spans(
    updates: int, *, start: float, gap: float, floor: float
) -> _SpanRisks:
    """The risks before so many updates: one by one, then in spans that grow with k.

    A span has at most k / `_SINGLE_UPDATES` updates, where k is its first. As z_k moves
    one way, from the start towards the floor, it is largest at an end of the span, and
    its sum or that of its roots is exceeded by less than one part in `_SINGLE_UPDATES`.
    """
    firsts = [np.arange(min(updates, _SINGLE_UPDATES))]
    doublings = 0
    while _SINGLE_UPDATES << doublings < updates:
        within = np.arange(_SINGLE_UPDATES, 2 * _SINGLE_UPDATES) << doublings
        firsts.append(within[within < updates])
        doublings += 1
    first = np.concatenate(firsts)
    after_last = np.append(first[1:], updates)
    at_ends = _risk(
        np.stack([first, after_last - 1]), start=start, gap=gap, floor=floor
    )
    return _SpanRisks(updates=after_last - first, largest=at_ends.max(axis=0))


def least_batch(
    problem: sampled.Problem,
    *,
    depth: int,
    learning_rate: float,
    updates: int,
    radius: float,
    failure_probability: float,
) -> int | None:
    """The least batch that makes failure as improbable as asked for by `certify`.

    The chance is to be at most `failure_probability`. None if no batch does: the start
    or the step is then too large. Errors as in `certify`; a `failure_probability` that
    is not one finite real number is a ValueError, too.
    """
    failure_probability = real_number("failure_probability", failure_probability)

    def suffices(batch: int) -> bool:
        certificate = certify(
            problem,
            depth=depth,
            learning_rate=learning_rate,
            batch_examples=batch,
            updates=updates,
            radius=radius,
        )
        if certificate is None:
            return False
        return certificate.failure_probability <= failure_probability

    if not suffices(_LARGEST_BATCH):
        return None
    # The bound falls as the batch grows (S7).
    too_small = 0
    enough = _LARGEST_BATCH
    while enough - too_small > 1:
        middle = (too_small + enough) // 2
        if suffices(middle):
            enough = middle
        else:
            too_small = middle
    return enough
