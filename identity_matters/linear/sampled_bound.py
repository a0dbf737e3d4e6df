"""What minibatch descent on linear nets reaches, and whether it stays in the ball.

`noise_floor` is the risk at which a linear model of the last phase comes to rest (S1),
and `certify` the proved bound of the risk and of the chance to leave the ball (S5, S6);
the statements and proofs are in docs/theory/sampled.md.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from identity_matters.checks import check_whole, real_array, real_number
from identity_matters.linear import sampled, second_moment

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
      The risk, or math.inf where the step is too large for the linear model to have a
      stationary second moment, or the risk for float64.
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
    learning_rate = _checked_learning_rate(learning_rate)
    noise_std = sampled.check_noise_std(noise_std)
    # The shares of the layers after and before layer i.
    share_after = (depth - np.arange(1, depth + 1)) / depth
    share_before = np.arange(depth) / depth
    # How fast entry (a, b) of E moves: the sum over layers of |L_i|^2 |N_i|^2.
    squared_L = np.exp(2 * np.log(r)[:, None] * share_after)
    squared_N = np.exp(2 * np.log(r)[:, None] * share_before)
    speed = squared_L @ squared_N.T
    step = learning_rate * speed * sigma
    remaining = 1 - step * (1 + 1 / batch_examples)
    if not remaining.min() > 0:
        return math.inf
    h = np.sum(step / batch_examples / remaining, axis=1)
    if not h.max() < 1:
        return math.inf
    # Python's floats end in infinity, and without a warning.
    return float(np.sum(h / (1 - h))) * noise_std * noise_std


def _checked_learning_rate(learning_rate: float) -> float:
    """It as a float; ValueError unless it is positive and finite."""
    learning_rate = real_number("learning_rate", learning_rate)
    if not learning_rate > 0:
        raise ValueError(
            f"learning_rate must be positive and finite, got {learning_rate}"
        )
    return learning_rate


class Certificate(NamedTuple):
    """Proved for minibatch descent from zero (S5, S6 of docs/theory/sampled.md).

    Attributes:
      norm: tau = radius / depth; the ball in question is B_tau.
      failure_probability: a bound of the chance that one of the iterates leaves B_tau;
        1 or more says nothing.
      start: f(0) - C.
      decay: rho, the factor per update.
      floor: F, what the bound of the risk tends to.
    """

    norm: float
    failure_probability: float
    start: float
    decay: float
    floor: float

    def risk(self, updates: ArrayLike) -> np.ndarray:
        """Bounds ``E[(f - C) 1{no iterate has left B_tau}]`` after so many updates."""
        return _risk(updates, start=self.start, decay=self.decay, floor=self.floor)


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

    None where they do not apply: Sigma has eigenvalues that rounding may have made, or
    rho is not below 1. Computed in float64 without directed rounding.

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
    learning_rate = _checked_learning_rate(learning_rate)
    bounds = _bounds_of(problem)
    if bounds is None:
        return None
    descent = _Descent(
        depth=depth,
        learning_rate=learning_rate,
        batch_examples=batch_examples,
        radius=radius,
        label_noise=len(problem.R) * problem.noise_std**2 * bounds.trace,
    )
    contraction = _contraction(bounds, descent)
    if contraction is None:
        return None
    decay, floor = contraction
    risks = _risk(np.arange(updates), start=bounds.start, decay=decay, floor=floor)
    return Certificate(
        norm=radius / depth,
        failure_probability=_failure_probability(bounds, descent, risks),
        start=bounds.start,
        decay=decay,
        floor=floor,
    )


class _Descent(NamedTuple):
    """The descent that S5 and S6 are about.

    Attributes:
      depth: l.
      learning_rate: eta.
      batch_examples: B.
      radius: b, depth times the radius of the ball.
      label_noise: ``d nu^2 tr Sigma``, the part of noisy labels in a sample's variance.
    """

    depth: int
    learning_rate: float
    batch_examples: int
    radius: float
    label_noise: float

    @property
    def stretch(self) -> float:
        """``e^b``, a bound of the norm of the product of any layers in the ball."""
        return math.exp(self.radius)


def _contraction(
    bounds: "_ProblemBounds", descent: _Descent
) -> tuple[float, float] | None:
    """``(rho, F)`` of S5: how fast the risk falls in the ball, and to which floor.

    The mean risk falls to ``E[Z_{k+1}] <= rho E[Z_k] + c`` in one update (S4), so that
    ``E[Z_k] <= rho^k phi_0^2 + (1 - rho^k) F`` with ``F = c / (1 - rho)``:

        beta = 2 l S e^b (2 e^b - 1 + ||I - R||)
        rho = 1 - 4 eta l e^{-2b} sigma (1 - eta beta / 2)
              + (2 eta^2 beta l e^{2b} / B) (tr Sigma + S)
        c = (2 eta^2 beta l e^{2b} / B) d nu^2 tr Sigma

    None unless ``eta beta < 2`` and ``rho < 1``.
    """
    depth = descent.depth
    learning_rate = descent.learning_rate
    stretch = descent.stretch
    # beta bounds the second derivative of the risk in the ball (S3).
    curvature = (
        2 * depth * bounds.largest * stretch * (2 * stretch - 1 + bounds.distance)
    )
    # What curvature leaves of the fall that the gradient promises.
    gain = 1 - learning_rate * curvature / 2
    # eta^2 beta / 2 times E||g - grad f||^2 is at most
    # noise ((trace + largest) (f - C) + label_noise).
    noise = (
        2 * learning_rate**2 * curvature * depth * stretch**2 / descent.batch_examples
    )
    decay = (
        1
        - 4 * learning_rate * depth * bounds.sigma / stretch**2 * gain
        + noise * (bounds.trace + bounds.largest)
    )
    if not (gain > 0 and decay < 1):
        return None
    floor = noise * descent.label_noise / (1 - decay)
    return decay, floor


def _failure_probability(
    bounds: "_ProblemBounds", descent: _Descent, risks: np.ndarray
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
      risks: z_k, f64[updates], bounds of the risk before each update (S5).
    """
    step = descent.learning_rate
    stretch = descent.stretch
    radius = descent.radius
    # The sum of v_k, which bounds the variances of the batches (S2).
    variance = (
        (bounds.trace + bounds.largest) * risks.sum() + len(risks) * descent.label_noise
    ) / descent.batch_examples
    root_largest = math.sqrt(bounds.largest)
    drift = 2 * step * stretch * root_largest * np.sum(np.sqrt(risks))
    spread = 4 * step * stretch * (1 + 2 * radius) * math.sqrt(variance)
    norm = radius / descent.depth
    return float(((drift + spread) / norm) ** 2)


class _ProblemBounds(NamedTuple):
    """Numbers of a problem, those of Sigma on the safe side of their rounding errors.

    Attributes:
      sigma: a lower bound of Sigma's least eigenvalue.
      largest: an upper bound of its largest.
      trace: an upper bound of its trace.
      start: ``f(0) - C = ||(I - R) Sigma^{1/2}||_F^2``.
      distance: ``||I - R||``.
    """

    sigma: float
    largest: float
    trace: float
    start: float
    distance: float


def _bounds_of(problem: sampled.Problem) -> _ProblemBounds | None:
    """The numbers of a problem; None if rounding may have made Sigma definite."""
    d = len(problem.R)
    kept = second_moment.kept_part(problem.Sigma)
    if kept.rank < d:
        return None
    return _ProblemBounds(
        sigma=kept.least - kept.rounding,
        largest=kept.eigenvalues[-1] + kept.rounding,
        trace=kept.eigenvalues.sum() + d * kept.rounding,
        start=float(kept.squared_norm(np.eye(d) - problem.R)),
        distance=float(np.linalg.norm(np.eye(d) - problem.R, 2)),
    )


def _risk(
    updates: ArrayLike, *, start: float, decay: float, floor: float
) -> np.ndarray:
    """``decay^t start + (1 - decay^t) floor`` after t updates."""
    shrunk = decay ** np.asarray(updates, np.float64)
    return shrunk * start + (1 - shrunk) * floor


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
    # The bound falls as the batch grows.
    too_small = 0
    enough = _LARGEST_BATCH
    while enough - too_small > 1:
        middle = (too_small + enough) // 2
        if suffices(middle):
            enough = middle
        else:
            too_small = middle
    return enough
