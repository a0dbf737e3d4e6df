"""Proves by computer that a bad local minimum lies near a point found by a search.

It works for any depth and leaves out strictly dead units, on whose weights f does not
depend nearby. Steps and symbols are those of N10 and N11 in docs/theory/relu.md. All
inequalities are checked in rational arithmetic on the floats as stored, so no rounding
enters the proof.
"""

import math
from fractions import Fraction
from typing import NamedTuple

import numpy as np
import scipy.linalg
from numpy.typing import ArrayLike

from identity_matters import checks
from identity_matters.relu import origin
from identity_matters.relu.model import Blocks, Problem

_ROOT_UNIT = 10**40  # square roots are rounded up to a multiple of 1 over this
# where a candidate is a critical point to the last digit
_LEAST_RADIUS = Fraction(1, 10**25)
# give up at once if the least eigenvalue is below this share of the largest
_FLAT = 1e-9


class NotCertifiedError(Exception):
    """An inequality of the proof does not hold; the message gives both its values."""


class Certificate(NamedTuple):
    """Bounds for the exact critical point theta*, rounded outwards to floats."""

    radius: float  # theta* is within this Euclidean distance of the candidate
    risk: float  # lower bound on f(theta*); the teacher's risk is 0
    risk_above: float  # upper bound on f(theta*)
    norm: float  # upper bound on |||theta*|||
    teacher_norm: float  # upper bound on that of the teacher
    # lower bound on |w . z_i| / ||z_i|| at theta*, for live units w
    kink_distance: float
    curvature: float  # lower bound on the eigenvalues of the Hessian across the orbits
    # for each live unit, on how many examples it is active
    active_examples: tuple[int, ...]
    dead_units: int  # how many units are active on no example


def exact(array: ArrayLike) -> np.ndarray:
    """Floats as the rational numbers that they are."""
    return np.vectorize(Fraction, otypes="O")(np.asarray(array, np.float64))


def root_above(value: Fraction) -> Fraction:
    """A rational upper bound of the square root."""
    return Fraction(math.isqrt(math.ceil(value * _ROOT_UNIT**2)) + 1, _ROOT_UNIT)


def _norm(array) -> Fraction:
    return root_above((np.ravel(array) ** 2).sum())


def _row_norms(rows) -> np.ndarray:
    return np.array([_norm(row) for row in rows])


def _require(condition: bool, text: str, left, right) -> None:
    if not condition:
        raise NotCertifiedError(f"{text}: {_shown(left)} against {_shown(right)}")


def _shown(value) -> str:
    try:
        return f"{float(value):.3g}"
    except OverflowError:
        return "a number beyond floats"


class _Block(NamedTuple):
    """Exact weights, inputs and pre-activations of a block."""

    V: np.ndarray
    W: np.ndarray
    z: np.ndarray
    pre: np.ndarray

    @property
    def alive(self) -> np.ndarray:
        """bool[k], whether each unit is not strictly dead."""
        return np.any(self.pre >= 0, axis=0)

    def live(self) -> "_Block":
        """The same with its live units only."""
        return _Block(
            self.V[:, self.alive], self.W[self.alive], self.z, self.pre[:, self.alive]
        )


def _pass(blocks: Blocks, z) -> tuple[np.ndarray, list[_Block]]:
    """The exact forward pass from z: n x width_z."""
    depth, width, d = blocks.U.shape
    weights = exact(origin.unit_weights(blocks)).reshape(depth, width, -1)
    found: list[_Block] = []
    start = z
    for W, V in zip(weights, exact(blocks.V), strict=True):
        found.append(_Block(V, W, z, z @ W.T))
        z = z.copy()
        z[:, :d] += (found[-1].pre * exact(found[-1].pre > 0)) @ V.T
    return (z - start)[:, :d], found


def _system(blocks: list[_Block], B, r):
    """``(grad f, Hessian)`` of the piece on which all pre-activations keep their signs.

    Weights are ordered block by block, V row by row and then W. r: n x d_out, the exact
    residuals.
    """
    n, (d, _) = len(r), blocks[0].V.shape
    active = [exact(block.pre > 0) for block in blocks]
    # Gradients of half the sum of squares with respect to the output of each block, n x
    # d.
    pulled = [r @ B]
    for (V, W, _, _), on in zip(blocks[:0:-1], active[:0:-1], strict=True):
        pulled.insert(0, pulled[0] + ((pulled[0] @ V) * on) @ W[:, :d])
    size = sum(block.V.size + block.W.size for block in blocks)
    # Derivatives of the output of the blocks so far, n x d x size.
    moved = np.full((n, d, size), Fraction(0))
    mixed = np.full((size, size), Fraction(0))
    offset = 0
    for (V, W, z, pre), on, G in zip(blocks, active, pulled, strict=True):
        below = moved[:, :, :offset]
        # Derivatives of the active pre-activations with respect to the weights of the
        # blocks below.
        inner = np.einsum("cb,nbp->ncp", W[:, :d], below) * on[:, :, None]
        of_V = offset + np.arange(V.size).reshape(V.shape)
        of_W = offset + V.size + np.arange(W.size).reshape(W.shape)
        lit = on[:, :, None] * z[:, None]
        for c in range(len(W)):
            mixed[np.ix_(of_V[:, c], of_W[c])] = G.T @ lit[:, c]
        mixed[of_V, :offset] = np.einsum("na,ncp->acp", G, inner)
        mixed[of_W[:, :d], :offset] = np.einsum("nc,nbp->cbp", (G @ V) * on, below)
        below += np.einsum("ac,ncp->nap", V, inner)
        moved[:, np.arange(d)[:, None], of_V] = (on * pre)[:, None]
        moved[:, :, of_W] = np.einsum("ac,ncb->nacb", V, lit)
        offset += V.size + W.size
    jacobian = np.einsum("oa,nap->nop", B, moved).reshape(-1, size)
    share = Fraction(2, n)
    return (
        jacobian.T @ r.ravel() * share,
        (jacobian.T @ jacobian + mixed + mixed.T) * share,
    )


def _orbit_tangents(blocks: list[_Block]) -> np.ndarray:
    """t_c, f64[size, units]: tangents (v_c, -w_c), ordered as in `_system`."""
    own = []
    for V, W, _, _ in blocks:
        unit = np.eye(len(W))
        of_V, of_W = V[:, :, None] * unit, -W[:, :, None] * unit[:, None]
        own.append(np.concatenate([part.reshape(-1, len(W)) for part in (of_V, of_W)]))
    return scipy.linalg.block_diag(*own).astype(np.float64)


def _is_definite(matrix) -> bool:
    """Whether a symmetric matrix M is positive definite; False in doubt.

    Rounding M to multiples of 1 / _ROOT_UNIT moves no eigenvalue by more than size /
    _ROOT_UNIT; the diagonal is lowered by that. M is definite if Q^T M Q has a dominant
    diagonal, where the columns of Q are the computed eigenvectors, rounded.
    """
    rows = np.vectorize(round, otypes="O")(matrix * _ROOT_UNIT)
    rows -= len(rows) * np.eye(len(rows), dtype=int)
    Q = np.vectorize(int, otypes="O")(np.linalg.eigh(rows.astype(float))[1] * 2**53)
    turned = Q.T @ rows @ Q
    return bool((2 * np.diag(turned) > abs(turned).sum(axis=1)).all())


def certify(candidate: Blocks, teacher: Blocks, problem: Problem) -> Certificate:
    """Proves that a bad local minimum lies near `candidate`, by N10 and N11.

    The x of the problem enter as ``z_i`` rounded to floats, and the teacher's exact
    output replaces its y. The teacher has risk 0, so the minimum is bad if the teacher
    fits into the candidate's net: it may have no more blocks and no wider ones, since
    zero blocks and zero units add nothing.

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
    candidate = _checked_blocks("candidate", candidate)
    teacher = _checked_blocks("teacher", teacher)
    _check_teacher_fits(candidate, teacher)
    problem = _checked_problem(problem, dimension=candidate.U.shape[2])
    try:
        return _prove(candidate, teacher, problem)
    except OverflowError:
        raise NotCertifiedError(
            "the proof has numbers that are too large for floats"
        ) from None


def _checked_blocks(name: str, blocks: Blocks) -> Blocks:
    """`blocks` as finite floats; ValueError unless their shapes fit together."""
    U = checks.real_array(f"U of the {name}", blocks.U, axes=3)
    V = checks.real_array(f"V of the {name}", blocks.V, axes=3)
    depth, width, dimension = U.shape
    if V.shape != (depth, dimension, width):
        raise ValueError(
            f"V of the {name} must have shape {(depth, dimension, width)}, got"
            f" {V.shape}"
        )
    if blocks.s is None:
        return Blocks(U, V, None)
    s = checks.real_array(f"s of the {name}", blocks.s, axes=2)
    if s.shape != (depth, width):
        raise ValueError(
            f"s of the {name} must have shape {(depth, width)}, got {s.shape}"
        )
    return Blocks(U, V, s)


def _check_teacher_fits(candidate: Blocks, teacher: Blocks) -> None:
    """ValueError unless weights of the candidate's net give the teacher's function."""
    if (candidate.s is None) != (teacher.s is None):
        raise ValueError("candidate and teacher must both have biases, or both none")
    (depth, width, dimension), (blocks, units, inputs) = (
        candidate.U.shape,
        teacher.U.shape,
    )
    if inputs != dimension:
        raise ValueError(
            f"candidate and teacher must have one dimension, got {dimension}, {inputs}"
        )
    if blocks > depth or units > width:
        raise ValueError(
            f"the teacher must fit into the candidate's net of {depth} x {width} units,"
            f" got {blocks} x {units}: its risk 0 says nothing about that net"
        )


def _checked_problem(problem: Problem, dimension: int) -> Problem:
    """The problem with finite floats x, A and B; ValueError if shapes do not fit."""
    x = checks.real_array("x", problem.x, axes=2)
    A = checks.real_array("A", problem.A, axes=2)
    B = checks.real_array("B", problem.B, axes=2)
    if A.shape != (dimension, x.shape[1]):
        raise ValueError(f"A must have shape {(dimension, x.shape[1])}, got {A.shape}")
    if B.shape[1] != dimension:
        raise ValueError(f"B must have {dimension} columns, got shape {B.shape}")
    with np.errstate(over="ignore", invalid="ignore"):
        checks.real_array("A x", x @ A.T)
    return problem._replace(x=x, A=A, B=B)


def _prove(candidate: Blocks, teacher: Blocks, problem: Problem) -> Certificate:
    """N10 and N11, step by step, for arguments that fit together."""
    z = exact(origin.unit_inputs(problem, bias=candidate.s is not None))
    B = exact(problem.B)
    added, blocks = _pass(candidate, z)
    r = (added - _pass(teacher, z)[0]) @ B.T
    live = _live_units(blocks)
    gradient, hessian = _system(live, B, r)
    tangents, T = _orbits(live)
    derivative = hessian + T @ T.T

    newton = _newton(gradient, derivative)
    rho = newton.radius
    # From here on, bounds that hold within rho of theta_0.
    around = _bounds_around(live, rho, z=z, B=B, r=r)
    _require_contraction(newton, around.third)
    _require_transversal(tangents, T, rho)
    kink = _kink_distance(blocks, around.moves)
    _require(kink > rho, "a kink is too near", kink, rho)
    curvature = _curvature(derivative, third_times_radius=around.third * rho)
    risk, risk_above = _risk_interval(r, around.changes)
    norm, teacher_norm = _norms_inside(candidate, teacher, rho)

    below = {"risk": risk, "kink_distance": kink - rho, "curvature": curvature}
    above = {
        "radius": rho,
        "risk_above": risk_above,
        "norm": norm,
        "teacher_norm": teacher_norm,
    }
    return Certificate(
        **{
            name: math.nextafter(float(bound), -math.inf)
            for name, bound in below.items()
        },
        **{
            name: math.nextafter(float(bound), math.inf)
            for name, bound in above.items()
        },
        active_examples=tuple(
            int(n) for block in live for n in (block.pre > 0).sum(axis=0)
        ),
        dead_units=sum(int((~block.alive).sum()) for block in blocks),
    )


def _live_units(blocks: list[_Block]) -> list[_Block]:
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


def _orbits(live: list[_Block]) -> tuple[np.ndarray, np.ndarray]:
    """``(t_c, T_c)``, exact, f[size, units]: tangents, and unit vectors along them.

    The latter have length 1 up to rounding.

    The proof does not need the latter to have length 1 exactly.
    """
    tangents = _orbit_tangents(live)
    # the squares of tiny weights would be 0
    directions = tangents / abs(tangents).max(axis=0)
    return exact(tangents), exact(directions / np.linalg.norm(directions, axis=0))


class _Newton(NamedTuple):
    """Y, Z and ``||C||`` of N10, rounded up; C inverts F'(theta_0) in floats."""

    step: Fraction  # Y
    defect: Fraction  # Z
    inverse_norm: Fraction  # ||C||

    @property
    def radius(self) -> Fraction:
        """rho, our choice: Newton's step times four, and a little more."""
        return 4 * self.step + _LEAST_RADIUS


def _newton(gradient: np.ndarray, derivative: np.ndarray) -> _Newton:
    """One Newton step from theta_0 for F, whose value there is `gradient`."""
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
    defect = _norm(np.eye(len(gradient), dtype=int) - inverse @ derivative)
    _require(
        Fraction(1, 2) > defect,
        "||I - C F'|| must be below 1/2",
        defect,
        Fraction(1, 2),
    )
    return _Newton(
        step=_norm(inverse @ gradient), defect=defect, inverse_norm=_norm(inverse)
    )


class _Around(NamedTuple):
    """Bounds within rho of theta_0, rounded up."""

    moves: np.ndarray  # |z_i| D_1 rho, f[n]: how far the inputs of later blocks move
    changes: np.ndarray  # b_i D_1 rho, f[n]: how far the residuals move
    third: Fraction  # L: of the third derivative of f along a line


def _bounds_around(live: list[_Block], rho: Fraction, *, z, B, r) -> _Around:
    """The constants of N10 within rho of theta_0."""
    length = (
        _norm([w for V, W, _, _ in live for part in (V, W) for w in part.ravel()]) + rho
    )
    rates = _output_rates(live, length, rho)
    z_norms, r_norms = _row_norms(z), _row_norms(r)
    b = _norm(B) * z_norms
    first, second, last = (b * rate for rate in rates)
    changes = first * rho
    third = (3 * first * second + (r_norms + changes) * last).sum() * Fraction(
        2, len(z)
    )
    return _Around(moves=z_norms * rates[0] * rho, changes=changes, third=third)


def _require_contraction(newton: _Newton, third: Fraction) -> None:
    """(1) of N10: ``theta - C F(theta)`` maps the ball into itself and contracts it."""
    rho = newton.radius
    rate = newton.defect + newton.inverse_norm * third * rho
    contracts = newton.step + rate * rho <= rho and rate < 1
    _require(contracts, "no contraction, rate", rate, 1)


def _require_transversal(tangents: np.ndarray, T: np.ndarray, rho: Fraction) -> None:
    """(2) of N10: within the ball every orbit crosses the complement of T."""
    along = (tangents * T).sum(axis=0) - rho * _row_norms(T.T)
    _require(min(along) > 0, "a unit is too short", min(along), 0)


def _curvature(derivative: np.ndarray, third_times_radius: Fraction) -> Fraction:
    """(4) of N10 with room: H + T T^T at theta* has no eigenvalue below the result."""
    least = np.linalg.eigvalsh(derivative.astype(np.float64))[0]
    curvature = Fraction(float(least)) / 2
    left = derivative - (third_times_radius + curvature) * np.eye(
        len(derivative), dtype=int
    )
    _require(_is_definite(left), "no local minimum, curvature", least, curvature)
    return curvature


def _risk_interval(r: np.ndarray, changes: np.ndarray) -> tuple[Fraction, Fraction]:
    """N11: bounds on f(theta*) from the residuals r at theta_0.

    The lower one must be positive.
    """
    r_norms = _row_norms(r)
    risk = ((r**2).sum() - (2 * r_norms * changes).sum()) / len(r)
    _require(risk > 0, "the risk must be positive", risk, 0)
    return risk, ((r_norms + changes) ** 2).sum() / len(r)


def _norms_inside(
    candidate: Blocks, teacher: Blocks, rho: Fraction
) -> tuple[Fraction, Fraction]:
    """Upper bounds on the norms of theta* and of the teacher, which must be below 1."""
    norm, teacher_norm = _largest_norm(candidate) + rho, _largest_norm(teacher)
    largest = max(norm, teacher_norm)
    _require(largest < 1, "|||theta||| must be below 1, of the teacher too", largest, 1)
    return norm, teacher_norm


def _output_rates(
    live: list[_Block], length, rho
) -> tuple[Fraction, Fraction, Fraction]:
    """D_1, D_2 and D_3 of N10; times |z_i| they bound derivatives of the outputs."""
    factors = [1 + (_norm(V) + rho) * (_norm(W) + rho) for V, W, _, _ in live]
    others = math.prod(factors) / min(factors)
    some, most = 1 - Fraction(1, len(live)), 1 - Fraction(2, len(live))
    last = 3 * length * (len(live) > 1) + some * max(most, Fraction(0)) * length**3
    return others * length, others * (1 + some * length**2), others * last


def _kink_distance(blocks: list[_Block], moves: np.ndarray) -> Fraction:
    """The least distance of a live unit from its kink, over ||z|| there.

    It is taken over all examples.

    The inputs of the blocks above the first live one move by at most `moves`.
    """
    shifts, least = 0 * moves, []
    for block in blocks:
        reach = np.outer(shifts, _row_norms(block.W))
        if not block.alive.all():
            highest = (block.pre + reach)[:, ~block.alive].max()
            _require(highest < 0, "a dead unit may come to life", highest, 0)
        if block.alive.any():
            room = (abs(block.pre) - reach) / (_row_norms(block.z) + shifts)[:, None]
            least.append(room[:, block.alive].min())
            shifts = moves
    return min(least)


def _largest_norm(blocks: Blocks) -> Fraction:
    """The largest Frobenius norm of a U_j, V_j or s_j, rounded up."""
    return max(
        _norm(exact(part)) for parts in blocks if parts is not None for part in parts
    )
