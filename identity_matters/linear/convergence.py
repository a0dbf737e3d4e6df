"""When do the iterates stay in the ball? Certificates from the data alone (V1 to V4).

Theorem 2.2 and eq. (2.3) leave open whether gradient descent from zero weights stays in
B_tau. See docs/theory/convergence.md, which also says who was first. Throughout, ``f(0)
- C = ||(I - R) Sigma^{1/2}||_F^2``, sigma is the least non-zero eigenvalue of Sigma,
and ``s_0 = sqrt((f(0) - C) / sigma)``.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from identity_matters.checks import check_whole, square_matrix
from identity_matters.linear import second_moment

# The proofs use l |||A||| <= a <= 1, where (1 - a/l)^{l-1} >= e^{-a}.
LARGEST_PATH_S0 = (1 - math.exp(-3)) / 3
# 1 / (1 - eta beta / 2) at the step size eta = 1 / (2 beta).
_KAPPA = 4 / 3
# The rounding error of m is assumed to be below this many d eps (||R|| + s_0)
# cond(Sigma).
_MARGIN_ROUNDINGS = 8
# Outside this and its inverse, squares of norms would leave the range of float64.
_SMALLEST_NORM = 1e-140


class FlowCertificate(NamedTuple):
    """That gradient flow from zero weights stays in a ball and converges.

    `name` is "path" (V1: s_0 is at most 0.3167) or "balanced" (V3: every singular map
    has a risk above f(0)). `norm` bounds |||A||| for all time; it gives a ball B_tau
    only if it is below 1. The risk obeys ``f - C <= exp(-rate t) (f(0) - C)``.
    """

    name: str
    norm: float
    rate: float


class DescentCertificate(NamedTuple):
    """Gradient descent from zero weights stays in a ball and converges (V4).

    `norm`, below 1 for depth at least 2, bounds |||A||| at every iterate for step sizes
    up to `learning_rate`. At that step size every update multiplies f - C by at most
    `factor`.
    """

    norm: float
    learning_rate: float
    factor: float


class Convergence(NamedTuple):
    """What is certain before training; falsy if nothing is.

    Attributes:
      s0: s_0, not less than in exact arithmetic; infinite where it cannot be known.
      flow: the certificates of gradient flow, by increasing norm.
      descent: that of gradient descent, or None.
      reason: why nothing is certified; empty if something is.
    """

    s0: float
    flow: tuple[FlowCertificate, ...]
    descent: DescentCertificate | None
    reason: str

    def __bool__(self) -> bool:
        return bool(self.flow)


def will_converge(
    R: ArrayLike, Sigma: ArrayLike, depth: int, *, rank: int | None = None
) -> Convergence:
    """Whether flow and descent from zero provably converge in a ball, and how fast.

    A false answer proves nothing: docs/theory/convergence.md says how loose the
    certificates are, and `Convergence.reason` which condition failed. Nor is a
    certificate a computer-assisted proof: it is computed in float64 with margins for
    rounding, but without directed rounding.

    V1 to V4 need the least non-zero eigenvalue of Sigma. An eigenvalue that rounding
    may have made (up to 64 d eps ||Sigma||) is therefore a reason to refuse, unless it
    belongs to a feature that is always 0, whose row and column of Sigma are zeros, or
    the caller knows the rank.

    Args:
      R: f64[d, d], the target.
      Sigma: f64[d, d], the second moment; symmetric positive semidefinite and not zero.
      depth: the number of layers, at least 1.
      rank: the rank of the second moment in exact arithmetic, of which Sigma is a
        rounding. None takes Sigma as it is.
    Raises:
      ValueError: an argument is not as above, or holds other things than finite real
        numbers, or Sigma has more than `rank` eigenvalues that are certainly positive.

    >>> certain = will_converge(np.diag([1.2, 0.9]), np.eye(2), depth=8)
    >>> [(c.name, round(c.norm, 4), round(c.rate, 2)) for c in certain.flow]
    [('path', 0.0463, 15.26), ('balanced', 0.0755, 16.14)]
    >>> will_converge(np.diag([-1.0, 1.0]), np.eye(2), depth=8).reason
    'det R is not positive, and Sigma is positive definite'
    """
    R, depth = square_matrix("R", R), check_whole("depth", depth)
    Sigma, eigenvalues = second_moment.check_second_moment(Sigma)
    if R.shape != Sigma.shape:
        raise ValueError(
            f"R and Sigma must be d x d, got shapes {R.shape} and {Sigma.shape}"
        )
    if not Sigma.any():
        raise ValueError("Sigma must not be zero")
    kept = second_moment.kept_part(Sigma)
    certain_rank = second_moment.certain_rank(Sigma, kept, rank)
    largest = float(eigenvalues[-1])
    if not _SMALLEST_NORM < largest < 1 / _SMALLEST_NORM:
        return _refused(f"||Sigma|| = {largest:.3g} is beyond what float64 can square")
    if certain_rank is None:
        return _refused(
            f"rounding leaves the rank of Sigma open: {len(R) - kept.rank} of its"
            f" eigenvalues are below {kept.least:.3g} and may be 0 or not"
        )
    if not np.abs(R).max() < 1 / _SMALLEST_NORM:
        return _refused("the entries of R are beyond what float64 can square")
    if certain_rank == len(R) and not np.linalg.slogdet(R)[0] > 0:
        # By G10 there is nothing to converge to inside a ball. So s_0 is at least 1,
        # unless rounding has spoilt it.
        return _refused("det R is not positive, and Sigma is positive definite")
    problem = _Problem.of(R, kept)
    flow = [_path(problem, depth)]
    if certain_rank == len(R):
        flow.append(_balanced(problem, depth))
    certificates = sorted((c for c in flow if c is not None), key=lambda c: c.norm)
    reason = ""
    if not certificates:
        for_v3 = "m <= 0" if certain_rank == len(R) else "Sigma is singular"
        reason = f"s_0 = {problem.s0:.4g} is too large for V1, and for V3 {for_v3}"
    return Convergence(
        problem.s0, tuple(certificates), _descent(problem, depth), reason
    )


def _refused(reason: str) -> Convergence:
    return Convergence(math.inf, (), None, reason)


class _Problem(NamedTuple):
    """The quantities of V1 to V4, each moved to the safe side of its rounding error.

    `sigma` is not above, `largest` (of Sigma), `phi0` and `s0` are not below their
    exact values.
    """

    R: np.ndarray
    kept: second_moment.KeptPart
    sigma: float
    largest: float
    phi0: float
    s0: float

    @classmethod
    def of(cls, R: np.ndarray, kept: second_moment.KeptPart) -> _Problem:
        E = np.eye(len(R)) - R
        rounding = float(kept.rounding)
        sigma = float(kept.least) - rounding
        largest = float(kept.eigenvalues[-1]) + rounding
        squared = float(kept.squared_norm(E)) + rounding * float(np.sum(E**2))
        return cls(
            R, kept, sigma, largest, math.sqrt(squared), math.sqrt(squared / sigma)
        )


def _path(problem: _Problem, depth: int) -> FlowCertificate | None:
    """(V1): a from ``1 - e^{-3a} = 3 s_0``, and the rate ``4 l e^{-2a} sigma``."""
    if not problem.s0 <= LARGEST_PATH_S0:
        return None
    a = -math.log1p(-3 * problem.s0) / 3
    return FlowCertificate(
        "path", a / depth, 4 * depth * math.exp(-2 * a) * problem.sigma
    )


def _balanced(problem: _Problem, depth: int) -> FlowCertificate | None:
    """(V3): singular values of the layers, from those of the product in [m, M].

    The layers stay balanced, so that theirs are the l-th roots of the product's.
    """
    R, kept, s0 = problem.R, problem.kept, problem.s0
    of_target = np.linalg.svd(R, compute_uv=False)
    # R Sigma^{1/2} has the singular values of this matrix.
    weighted = np.linalg.svd(
        (R @ kept.vectors) * np.sqrt(kept.eigenvalues), compute_uv=False
    )[-1]
    M = float(of_target[0]) + s0
    condition = problem.largest / problem.sigma
    rounding = _MARGIN_ROUNDINGS * len(R) * np.finfo(np.float64).eps * condition * M
    m = (
        max((weighted - problem.phi0) / math.sqrt(problem.largest), of_target[-1] - s0)
        - rounding
    )
    if not m > 0:  # NaN, too
        return None
    share = (depth - 1) / depth
    norm = M**share / m ** (2 * share) * s0 / depth
    rate = 4 * depth * m ** (2 * share) * problem.sigma
    return FlowCertificate("balanced", float(norm), float(rate))


def _descent(problem: _Problem, depth: int) -> DescentCertificate | None:
    """(V4): `_path` with kappa s_0, where ``kappa = 1 / (1 - eta beta / 2)``."""
    s0 = problem.s0
    if not s0 < LARGEST_PATH_S0:
        return None
    # V4 leaves kappa free up to LARGEST_PATH_S0 / s_0, so for s_0 = 0 altogether.
    kappa = min(_KAPPA, LARGEST_PATH_S0 / s0) if s0 > 0 else _KAPPA
    a = -math.log1p(-3 * kappa * s0) / 3
    beta = 2 * depth * problem.largest * math.exp(a) * (math.exp(a) + s0)
    learning_rate = 2 * (1 - 1 / kappa) / beta
    factor = 1 - learning_rate / kappa * 4 * depth * math.exp(-2 * a) * problem.sigma
    return DescentCertificate(a / depth, learning_rate, factor)
