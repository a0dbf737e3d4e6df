"""When do the iterates stay in the ball? Certificates from the data alone (V1 to V4).

Theorem 2.2 and eq. (2.3) leave open whether gradient descent from zero weights stays in
B_tau. See docs/theory/convergence.md, which also says who was first. Throughout, ``f(0)
- C = ||(I - R) Sigma^{1/2}||_F^2``, sigma is the least non-zero eigenvalue of Sigma,
and ``s_0 = sqrt((f(0) - C) / sigma)``.
"""

from __future__ import annotations

import math
import sys
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from identity_matters import matrices
from identity_matters.checks import check_whole, square_matrix
from identity_matters.linear import second_moment

# The proofs use l |||A||| <= a <= 1, where (1 - a/l)^{l-1} >= e^{-a}. Gradient flow may
# start from this s_0 itself, descent only from below it: there kappa > 1 must be left.
LARGEST_PATH_S0 = (1 - math.exp(-3)) / 3
# eta beta / 2 at the step size eta = 1 / (2 beta), where kappa is 4/3.
_LOST = 1 / 4
# The rounding error of m is assumed to be below this many d eps (||R|| + s_0)
# cond(Sigma).
_MARGIN_ROUNDINGS = 8
# Numbers that a few operations have rounded, by half an eps each, are moved by these to
# their safe side.
_UP = 1 + 16 * sys.float_info.epsilon
_DOWN = 1 - 16 * sys.float_info.epsilon


class FlowCertificate(NamedTuple):
    """That gradient flow from zero weights stays in a ball and converges.

    Attributes:
      name: "path" (V1: s_0 is at most 0.3167) or "balanced" (V3: every singular map has
        a risk above f(0)).
      norm: bounds |||A||| for all time; it gives a ball B_tau only if it is below 1.
      rate: the risk obeys ``f - C <= exp(-rate t) (f(0) - C)``.
    """

    name: str
    norm: float
    rate: float


class DescentCertificate(NamedTuple):
    """That gradient descent from zero weights stays in a ball and converges (V4).

    Attributes:
      norm: below 1 for depth at least 2; bounds |||A||| at every iterate for step sizes
        up to `learning_rate`.
      learning_rate: the largest step size.
      factor: at that step size every update multiplies f - C by at most this.
    """

    norm: float
    learning_rate: float
    factor: float


class Convergence(NamedTuple):
    """What is certain before training; falsy if nothing is.

    Attributes:
      s0: s_0, not less than in exact arithmetic; infinite where float64 cannot tell
        it, and where det R is not positive for a definite Sigma: no ball has an optimum
        then.
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
    certificates are, and `Convergence.reason` which condition failed. Every number of a
    certificate is moved to its safe side by more than float64 has rounded. Still it is
    no computer-assisted proof: how far LAPACK rounds eigenvalues is assumed.

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
      ValueError: an argument is not as above, or holds anything but finite real
        numbers, or Sigma has more than `rank` eigenvalues that are certainly positive.

    >>> certain = will_converge(np.diag([1.2, 0.9]), np.eye(2), depth=8)
    >>> [(c.name, round(c.norm, 4), round(c.rate, 2)) for c in certain.flow]
    [('path', 0.0463, 15.26), ('balanced', 0.0755, 16.14)]
    >>> will_converge(np.diag([-1.0, 1.0]), np.eye(2), depth=8).reason
    'det R is not positive, and Sigma is positive definite'
    """
    R = square_matrix("R", R)
    depth = check_whole("depth", depth)
    Sigma, eigenvalues = second_moment.check_second_moment(Sigma)
    second_moment.check_same_shape(R, Sigma)
    if not Sigma.any():
        raise ValueError("Sigma must not be zero")
    kept = second_moment.kept_part(Sigma)
    rank_of_Sigma = second_moment.certain_rank(Sigma, kept, rank)
    why_not = _why_refused(R, kept, rank_of_Sigma, largest=float(eigenvalues[-1]))
    if why_not:
        # s_0 is not computed.
        return Convergence(s0=math.inf, flow=(), descent=None, reason=why_not)
    is_definite = rank_of_Sigma == len(R)
    problem = _Problem.of(R, kept)
    candidates = [_path(problem, depth)]
    if is_definite:
        candidates.append(_balanced(problem, depth))
    flow = [certificate for certificate in candidates if certificate is not None]
    reason = ""
    if not flow:
        why_not_v3 = "m <= 0" if is_definite else "Sigma is singular"
        reason = f"s_0 = {problem.s0:.4g} is too large for V1, and for V3 {why_not_v3}"
    return Convergence(
        s0=problem.s0,
        flow=tuple(sorted(flow, key=lambda certificate: certificate.norm)),
        descent=_descent(problem, depth),
        reason=reason,
    )


def _why_refused(
    R: np.ndarray,
    kept: second_moment.KeptPart,
    rank_of_Sigma: int | None,
    *,
    largest: float,
) -> str:
    """Why nothing is certified, if that is known before s_0 is computed; else empty.

    Args:
      R: f64[d, d].
      kept: the eigenvalues of Sigma that are certainly not 0.
      rank_of_Sigma: None if it is not certain.
      largest: the largest eigenvalue of Sigma.
    """
    if not second_moment.can_square_norm(largest):
        return f"||Sigma|| = {largest:.3g} is beyond what float64 can square"
    if rank_of_Sigma is None:
        return (
            f"rounding leaves the rank of Sigma open: {len(R) - kept.rank} of its"
            f" eigenvalues are below {kept.least:.3g} and may be 0 or not"
        )
    if not second_moment.can_square_target(R, largest):
        return "the entries of R are beyond what float64 can square"
    if rank_of_Sigma == len(R) and not matrices.determinant_sign(R) > 0:
        # By G10 there is nothing to converge to inside a ball; s_0 is at least 1 in
        # exact arithmetic.
        return "det R is not positive, and Sigma is positive definite"
    return ""


class _Problem(NamedTuple):
    """The quantities of V1 to V4, each moved to the safe side of its rounding error.

    Attributes:
      R: f64[d, d].
      kept: the eigenvalues of Sigma that are certainly not 0, and their vectors.
      sigma: the least eigenvalue that is not 0; not above its exact value.
      largest: the largest eigenvalue of Sigma; not below its exact value.
      phi0: sqrt(f(0) - C); not below its exact value.
      s0: sqrt((f(0) - C) / sigma); not below its exact value.
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
        squared = float(kept.squared_norm_bound(E))
        return cls(
            R=R,
            kept=kept,
            sigma=sigma,
            largest=largest,
            phi0=math.sqrt(squared),
            s0=math.sqrt(squared / sigma),
        )


def _path(problem: _Problem, depth: int) -> FlowCertificate | None:
    """(V1): a from ``1 - e^{-3a} = 3 s_0``, and the rate ``4 l e^{-2a} sigma``."""
    if not problem.s0 <= LARGEST_PATH_S0:
        return None
    a = _path_length(problem.s0)
    rate = 4 * depth * math.exp(-2 * a) * problem.sigma
    return FlowCertificate(name="path", norm=a / depth * _UP, rate=rate * _DOWN)


def _path_length(s0: float) -> float:
    """a from ``1 - e^{-3a} = 3 s_0``, rounded up."""
    return -math.log1p(-3 * s0) / 3 * _UP


def _balanced(problem: _Problem, depth: int) -> FlowCertificate | None:
    """(V3): singular values of the layers, from those of the product in [m, M].

    The layers stay balanced, so that theirs are the l-th roots of the product's.
    """
    R = problem.R
    kept = problem.kept
    s0 = problem.s0
    singular_values = np.linalg.svd(R, compute_uv=False)
    # R Sigma^{1/2} has the singular values of this matrix.
    weighted = (R @ kept.vectors) * np.sqrt(kept.eigenvalues)
    least_weighted = np.linalg.svd(weighted, compute_uv=False)[-1]
    # The product stays within phi_0 of R in the norm that Sigma gives, and within s_0.
    M = float(singular_values[0]) + s0
    rounding = _MARGIN_ROUNDINGS * len(R) * np.finfo(np.float64).eps * M
    m = max(
        (least_weighted - problem.phi0) / math.sqrt(problem.largest),
        singular_values[-1] - s0,
    )
    condition = problem.largest / problem.sigma
    m -= condition * rounding
    M += rounding
    if not m > 0:  # NaN, too
        return None
    # As m <= 1 <= M, a larger share is on the safe side.
    share = math.nextafter((depth - 1) / depth, 1)
    norm = M**share / m ** (2 * share) * s0 / depth * _UP
    rate = 4 * depth * m ** (2 * share) * problem.sigma * _DOWN
    return FlowCertificate(name="balanced", norm=float(norm), rate=float(rate))


def _descent(problem: _Problem, depth: int) -> DescentCertificate | None:
    """(V4): `_path` with kappa s_0, where ``1 / kappa = 1 - eta beta / 2``."""
    s0 = problem.s0
    if not s0 < LARGEST_PATH_S0:
        return None
    # 1 - 1 / kappa. V4 leaves kappa free up to LARGEST_PATH_S0 / s_0, where 1 / kappa
    # may be so close to 1 that its difference from 1 would have no digits.
    lost = min(_LOST, (LARGEST_PATH_S0 - s0) / LARGEST_PATH_S0)
    a = _path_length(s0 / (1 - lost))
    beta = 2 * depth * problem.largest * math.exp(a) * (math.exp(a) + s0)
    learning_rate = 2 * lost / beta * _DOWN
    fall = learning_rate * (1 - lost) * 4 * depth * math.exp(-2 * a) * problem.sigma
    return DescentCertificate(
        norm=a / depth * _UP,
        learning_rate=learning_rate,
        factor=math.nextafter(1 - fall * _DOWN, 1),
    )
