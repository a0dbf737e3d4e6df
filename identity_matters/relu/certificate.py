"""Proves by computer that a bad local minimum lies near a point found by a search.

It works for any depth and leaves out strictly dead units, on whose weights f does not
depend nearby. All inequalities are checked in rational arithmetic on the floats as
stored, so no rounding enters the proof.

The argument (N10; docs/theory/relu.md has the details):

* Let theta_0 be the candidate's live weights. While no unit reaches a kink, f is a
  polynomial. It does not change if a unit's v is divided and its w multiplied by the
  same number. So the Hessian H is singular along these orbits, whose tangents at
  theta_0 are the columns of T.
* ``F(theta) = grad f(theta) + T T^T (theta - theta_0)`` has a regular derivative,
  ``H + T T^T``. By (1), Newton's method for F contracts the ball of radius rho about
  theta_0, so F has a zero theta* in it.
* By (2), no orbit turns away from its T_c within the ball. The gradient is orthogonal
  to the orbits, so the second part of F is 0 at theta*, and ``grad f(theta*) = 0``.
* By (3), no unit reaches its kink within the ball: f is that polynomial there.
* By (4), the Hessian at theta* is positive across the orbits. So theta* is a minimum.

It is bad, and in the ball |||theta||| < 1, if its risk is positive where a teacher that
fits into the net has risk 0, and both norms are below 1 (N11).
"""

import math
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from identity_matters.relu import origin
from identity_matters.relu.exact_net import (
    Block,
    forward_pass,
    gradient_and_hessian,
    orbit_tangents,
)
from identity_matters.relu.model import (
    Blocks,
    Problem,
    checked_blocks,
    checked_problem,
)
from identity_matters.relu.rational import (
    exact,
    is_definite,
    norm,
    round_down,
    round_up,
    row_norms,
)

# The proof gives up at once if the least eigenvalue is below this share of the largest.
_FLAT = 1e-9


class NotCertifiedError(Exception):
    """A step of the proof fails; of an inequality the message gives both values."""


class Certificate(NamedTuple):
    """Bounds for the exact critical point theta*, rounded outwards to floats.

    Attributes:
      radius: theta* is within this Euclidean distance of the candidate.
      risk: lower bound on f(theta*); the teacher's risk is 0.
      risk_above: upper bound on f(theta*).
      norm: upper bound on |||theta*|||.
      teacher_norm: upper bound on that of the teacher.
      kink_distance: lower bound on |w . z_i| / ||z_i|| at theta*, for live units w.
      curvature: lower bound on the eigenvalues of the Hessian across the orbits.
      active_examples: for each live unit, on how many examples it is active.
      dead_units: how many units are active on no example.
    """

    radius: float
    risk: float
    risk_above: float
    norm: float
    teacher_norm: float
    kink_distance: float
    curvature: float
    active_examples: tuple[int, ...]
    dead_units: int


def _require(condition: bool, text: str, left: Any, right: Any) -> None:
    """Raises NotCertifiedError, with both sides of the inequality, if it fails."""
    if not condition:
        raise NotCertifiedError(f"{text}: {_format(left)} against {_format(right)}")


def _format(value: Any) -> str:
    try:
        return f"{float(value):.3g}"
    except OverflowError:
        return "a number beyond floats"


def certify(candidate: Blocks, teacher: Blocks, problem: Problem) -> Certificate:
    """Proves that a bad local minimum lies near `candidate`, by N10 and N11.

    The x of the problem enter as ``z_i`` rounded to floats, and the teacher's exact
    output replaces its y. The teacher has risk 0, so the minimum is bad if the teacher
    fits into the candidate's net: it may have no more blocks and no wider ones, since
    zero blocks and zero units add nothing.

    >>> from identity_matters.relu.problems import plain_problem
    >>> def block(*units):
    ...     u, v, s = np.array(units).T
    ...     return Blocks(U=u[None, :, None], V=v[None, None], s=s[None])
    >>> teacher = block((0.5, 0.5, -0.1), (-0.7, 0.7, 0.0))
    >>> # Without the second unit, which is dead here, the error at -1 stays 0.49.
    >>> candidate = block((0.5, 0.5, -0.1), (0.1, 0.7, -0.3))
    >>> sample = plain_problem([[-1.0], [1.0], [2.0]], np.zeros((3, 1)))
    >>> proof = certify(candidate, teacher, sample)
    >>> round(proof.risk, 6), round(0.49**2 / 3, 6), round(proof.norm, 3)
    (0.080033, 0.080033, 0.86)

    Args:
      candidate: U f64[l, k, d], V f64[l, d, k], s f64[l, k] or None; a point near the
        minimum.
      teacher: the same with at most as many blocks and units a block; biases if
        `candidate` has.
      problem: x f64[n, d_in], A f64[d, d_in], B f64[d_out, d].
    Raises:
      ValueError: shapes do not fit together, a number is not finite, or the teacher
        does not fit.
      NotCertifiedError: an inequality of the proof does not hold.
    """
    candidate = checked_blocks("candidate", candidate)
    teacher = checked_blocks("teacher", teacher)
    _check_teacher_fits(candidate, teacher)
    problem = checked_problem(problem, dimension=candidate.U.shape[2])
    try:
        return _prove(candidate, teacher, problem)
    except OverflowError:
        raise NotCertifiedError(
            "the proof has numbers that are too large for floats"
        ) from None


def _check_teacher_fits(candidate: Blocks, teacher: Blocks) -> None:
    """ValueError unless weights of the candidate's net give the teacher's function."""
    if (candidate.s is None) != (teacher.s is None):
        raise ValueError("candidate and teacher must both have biases, or both none")
    depth, width, dimension = candidate.U.shape
    teacher_depth, teacher_width, teacher_dimension = teacher.U.shape
    if teacher_dimension != dimension:
        raise ValueError(
            f"candidate and teacher must have one dimension, got {dimension},"
            f" {teacher_dimension}"
        )
    if teacher_depth > depth or teacher_width > width:
        raise ValueError(
            f"the teacher must fit into the candidate's net of {depth} x {width} units,"
            f" got {teacher_depth} x {teacher_width}: its risk 0 says nothing about"
            " that net"
        )


def _prove(candidate: Blocks, teacher: Blocks, problem: Problem) -> Certificate:
    """The proof, step by step, for arguments that fit together; a step may fail."""
    # theta_0: its inputs z, residuals r, and live units. These have the weights.
    z = exact(origin.unit_inputs(problem, bias=candidate.s is not None))
    B = exact(problem.B)
    added, blocks = forward_pass(candidate, z)
    added_by_teacher, _ = forward_pass(teacher, z)
    r = (added - added_by_teacher) @ B.T
    live = _live_units(blocks)
    gradient, hessian = gradient_and_hessian(live, B, r)
    tangents, T = _orbits(live)
    derivative = hessian + T @ T.T  # F'(theta_0)

    newton = _newton(gradient, derivative)
    rho = newton.radius
    # From here on, what holds within rho of theta_0, where theta* will be.
    around = _bounds_around(live, rho, z=z, B=B, r=r)
    _require_contraction(newton, around.third)
    _require_transversal(tangents, T, rho)
    kink = _kink_distance(blocks, around.moves)
    _require(kink > rho, "a kink is too near", kink, rho)
    curvature = _curvature(derivative, third_times_radius=around.third * rho)
    risk = _risk_interval(r, around.changes)
    norms = _norms_inside(candidate, teacher, rho)
    return Certificate(
        radius=round_up(rho),
        risk=round_down(risk.below),
        risk_above=round_up(risk.above),
        norm=round_up(norms.candidate),
        teacher_norm=round_up(norms.teacher),
        kink_distance=round_down(kink - rho),
        curvature=round_down(curvature),
        active_examples=_active_examples(live),
        dead_units=sum(int((~block.alive).sum()) for block in blocks),
    )


def _active_examples(live: list[Block]) -> tuple[int, ...]:
    """For each live unit, on how many examples it is active."""
    counts = [(block.pre > 0).sum(axis=0) for block in live]
    return tuple(np.concatenate(counts).tolist())


def _live_units(blocks: list[Block]) -> list[Block]:
    """The blocks with live units, these alone; a unit must be live or strictly dead."""
    for number, block in enumerate(blocks, start=1):
        touching = np.flatnonzero(block.alive & ~np.any(block.pre > 0, axis=0))
        if len(touching):
            raise NotCertifiedError(
                "a unit must be active on an example or strictly dead: unit"
                f" {touching[0] + 1} of block {number} only reaches its kink"
            )
    live = [block.live() for block in blocks if block.alive.any()]
    _require(len(live) > 0, "blocks with live units", len(live), 1)
    return live


def _orbits(live: list[Block]) -> tuple[np.ndarray, np.ndarray]:
    """``(t_c, T_c)``, exact, f[size, units]: tangents, and unit vectors along them.

    The proof does not need the latter to have length 1 exactly.
    """
    tangents = orbit_tangents(live)
    # the squares of tiny weights would be 0
    directions = tangents / abs(tangents).max(axis=0)
    return exact(tangents), exact(directions / np.linalg.norm(directions, axis=0))


class _Newton(NamedTuple):
    """Newton's method for F at theta_0, with C, the inverse of F'(theta_0) in floats.

    All are rounded up.

    Attributes:
      step: Y = ``||C F(theta_0)||``, the length of the first step.
      defect: Z = ``||I - C F'(theta_0)||``, how far C is from the inverse.
      inverse_norm: ``||C||``.
    """

    step: Fraction
    defect: Fraction
    inverse_norm: Fraction

    @property
    def radius(self) -> Fraction:
        """rho, our choice: Newton's step times four. Rounded up, it is above 0."""
        return 4 * self.step


def _newton(gradient: np.ndarray, derivative: np.ndarray) -> _Newton:
    """Newton's method for F, whose value at theta_0 is `gradient`."""
    rounded = derivative.astype(np.float64)
    spectrum = np.linalg.eigvalsh(rounded)
    # A flat direction that is no rescaling: other nets nearby give the same
    # predictions.
    _require(
        spectrum[0] > _FLAT * spectrum[-1],
        "the Hessian is flat",
        spectrum[0],
        spectrum[-1],
    )
    inverse = exact(np.linalg.inv(rounded))
    return _Newton(
        step=norm(inverse @ gradient),
        defect=norm(np.eye(len(gradient), dtype=int) - inverse @ derivative),
        inverse_norm=norm(inverse),
    )


class _Around(NamedTuple):
    """Bounds within rho of theta_0, rounded up.

    Attributes:
      moves: f[n]: how far the inputs of later blocks move on each example.
      changes: f[n]: how far the residuals move.
      third: L, a bound on the third derivative of f along a line. H moves by at most
        L rho.
    """

    moves: np.ndarray
    changes: np.ndarray
    third: Fraction


def _bounds_around(
    live: list[Block], rho: Fraction, *, z: np.ndarray, B: np.ndarray, r: np.ndarray
) -> _Around:
    """Bounds from those on the derivatives of the outputs, by the product rule.

    z, f[n, width_z], and r, f[n, d_out], are the inputs and the residuals at theta_0.
    The first three derivatives of r_i along a line are at most b_i D_1, b_i D_2 and
    b_i D_3, with ``b_i = ||B|| |z_i|``. So that of ``f = 1/n sum_i |r_i|^2`` is at most

        L = 2/n sum_i (3 b_i^2 D_1 D_2 + (|r_i| + b_i D_1 rho) b_i D_3).
    """
    P = norm(np.concatenate([_weights(block) for block in live])) + rho
    D_1, D_2, D_3 = _derivative_bounds(live, P, rho)
    z_norms = row_norms(z)
    b = norm(B) * z_norms
    changes = b * D_1 * rho
    largest_residuals = row_norms(r) + changes
    terms = 3 * (b * D_1) * (b * D_2) + largest_residuals * (b * D_3)
    return _Around(
        moves=z_norms * D_1 * rho,
        changes=changes,
        third=terms.sum() * Fraction(2, len(z)),
    )


def _weights(block: Block) -> np.ndarray:
    """All weights of a block, f[size]."""
    return np.concatenate([block.V.ravel(), block.W.ravel()])


def _require_contraction(newton: _Newton, third: Fraction) -> None:
    """(1): ``theta - C F(theta)`` maps the ball into itself and contracts it.

    Its derivative ``I - C F'(theta)`` is at most ``Z + ||C|| L rho`` in the ball, so it
    is enough that this rate is below 1 and ``Y + rate rho <= rho``. As rho = 4 Y > 0,
    the latter is a rate of at most 3/4.
    """
    rho = newton.radius
    rate = newton.defect + newton.inverse_norm * third * rho
    largest_rate = 1 - newton.step / rho
    _require(rate <= largest_rate, "no contraction, rate", rate, largest_rate)


def _require_transversal(tangents: np.ndarray, T: np.ndarray, rho: Fraction) -> None:
    """(2): ``t_c . T_c > 0`` for every orbit c at every point of the ball.

    The tangent ``t_c = (v, -w)`` of an orbit moves by at most rho. T_c is the unit
    vector along it at theta_0.
    """
    along = (tangents * T).sum(axis=0) - rho * row_norms(T.T)
    _require(min(along) > 0, "a unit is too short", min(along), 0)


def _curvature(derivative: np.ndarray, third_times_radius: Fraction) -> Fraction:
    """(4), and more: a bound below all eigenvalues of H + T T^T at theta*.

    H moves by at most L rho, so it is enough that ``H + T T^T - L rho I`` is definite
    at theta_0. It is so even after half the least eigenvalue is taken off, which is the
    bound.
    """
    least = np.linalg.eigvalsh(derivative.astype(np.float64))[0]
    curvature = Fraction(float(least)) / 2
    identity = np.eye(len(derivative), dtype=int)
    lowered = derivative - (third_times_radius + curvature) * identity
    _require(is_definite(lowered), "no local minimum, curvature", least, curvature)
    return curvature


class _RiskInterval(NamedTuple):
    """Bounds on f(theta*)."""

    below: Fraction
    above: Fraction


def _risk_interval(r: np.ndarray, changes: np.ndarray) -> _RiskInterval:
    """Bounds on ``f = 1/n sum_i |r_i|^2`` at theta*; the lower one must be positive.

    r, f[n, d_out], are the residuals at theta_0, and `changes`, f[n], how far each of
    them moves at most (N11).
    """
    r_norms = row_norms(r)
    below = ((r**2).sum() - (2 * r_norms * changes).sum()) / len(r)
    _require(below > 0, "the risk must be positive", below, 0)
    above = ((r_norms + changes) ** 2).sum() / len(r)
    return _RiskInterval(below, above)


class _Norms(NamedTuple):
    """Upper bounds on |||theta*||| and on the norm of the teacher."""

    candidate: Fraction
    teacher: Fraction


def _norms_inside(candidate: Blocks, teacher: Blocks, rho: Fraction) -> _Norms:
    """The norms at theta* and of the teacher, which must be below 1 (N11).

    A block's norm moves by at most rho.
    """
    norms = _Norms(
        candidate=_largest_norm(candidate) + rho, teacher=_largest_norm(teacher)
    )
    largest = max(norms)
    _require(largest < 1, "|||theta||| must be below 1, of the teacher too", largest, 1)
    return norms


def _derivative_bounds(
    live: list[Block], P: Fraction, rho: Fraction
) -> tuple[Fraction, Fraction, Fraction]:
    """D_1, D_2 and D_3; times |z_i| they bound three derivatives of the outputs.

    Along a line of unit speed t, the output on example i is a polynomial in t. Its
    coefficients are at most |z_i| times those of ``prod_j (1 + v_j(t) w_j(t))``, with
    the norms of V_j and W_j. A derivative differentiates one, two or three of the q
    factors; c_j bounds a factor within the ball, and P the norm of all live weights
    (N10, "the third derivative").
    """
    q = len(live)
    c = [1 + (norm(block.V) + rho) * (norm(block.W) + rho) for block in live]
    kappa = math.prod(c) / min(c)
    # Maclaurin's inequalities for sums over pairs and triples of blocks.
    pairs = 1 - Fraction(1, q)
    triples = pairs * (1 - Fraction(2, q))
    D_1 = kappa * P
    D_2 = kappa * (1 + pairs * P**2)
    D_3 = kappa * (3 * P * (q > 1) + triples * P**3)
    return D_1, D_2, D_3


def _kink_distance(blocks: list[Block], moves: np.ndarray) -> Fraction:
    """(3): the least distance of a live unit from its kink, over ||z|| there.

    It is taken over all examples. A weight may move by less than that without a
    pre-activation ``w . z`` becoming 0. Dead units must stay dead. The inputs of the
    blocks above the first one with live units move by mu, at most `moves`, f[n].
    """
    mu = 0 * moves
    distances = []
    for block in blocks:
        # |w| mu: how far a pre-activation moves with its input.
        reach = np.outer(mu, row_norms(block.W))
        if not block.alive.all():
            highest = (block.pre + reach)[:, ~block.alive].max()
            _require(highest < 0, "a dead unit may come to life", highest, 0)
        if block.alive.any():
            z_norms = row_norms(block.z) + mu
            distance = (abs(block.pre) - reach) / z_norms[:, None]
            distances.append(distance[:, block.alive].min())
            mu = moves
    return min(distances)


def _largest_norm(blocks: Blocks) -> Fraction:
    """The largest Frobenius norm of a U_j, V_j or s_j, rounded up."""
    return max(
        norm(exact(part)) for parts in blocks if parts is not None for part in parts
    )
