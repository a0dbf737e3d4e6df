"""A computer-assisted proof that a bad local minimum lies near a point found by a search.

It works for any depth and leaves out strictly dead units, on whose weights f does not depend
nearby. Steps and symbols are those of N10 and N11 in docs/theory/relu.md. All inequalities are
checked in rational arithmetic on the floats as stored, so no rounding enters the proof.
"""

import math
from fractions import Fraction
from typing import NamedTuple

import numpy as np
import scipy.linalg
from numpy.typing import ArrayLike

from identity_matters.relu import origin
from identity_matters.relu.model import Blocks, Problem

_ROOT_UNIT = 10**40  # square roots are rounded up to a multiple of 1 over this
_FLAT = 1e-9  # give up at once if the least eigenvalue is below this share of the largest


class NotCertifiedError(Exception):
    """An inequality of the proof does not hold; the message says which, with both values."""


class Certificate(NamedTuple):
    """Bounds that hold for the exact critical point theta*, rounded outwards to floats."""

    radius: float  # theta* is within this Euclidean distance of the candidate
    risk: float  # lower bound on f(theta*); the teacher's risk is 0
    risk_above: float  # upper bound on f(theta*)
    norm: float  # upper bound on |||theta*|||
    teacher_norm: float  # upper bound on that of the teacher
    kink_distance: float  # lower bound on |w . z_i| / ||z_i|| at theta*, for live units w
    curvature: float  # lower bound on the eigenvalues of the Hessian across the orbits
    active_examples: tuple[int, ...]  # for each live unit, on how many examples it is active
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
        raise NotCertifiedError(f"{text}: {float(left):.3g} against {float(right):.3g}")


class _Block(NamedTuple):
    """Exact weights V: d x k and W: k x width_z, inputs z: n x width_z, pre-activations: n x k."""

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
        return _Block(self.V[:, self.alive], self.W[self.alive], self.z, self.pre[:, self.alive])


def _pass(blocks: Blocks, z) -> tuple[np.ndarray, list[_Block]]:
    """The exact forward pass from z: n x width_z; returns h_l - h_0: n x d, and all blocks."""
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

    Weights are ordered block by block, V row by row and then W. r: n x d_out, the exact residuals.
    """
    n, (d, _) = len(r), blocks[0].V.shape
    active = [exact(block.pre > 0) for block in blocks]
    # Gradients of half the sum of squares with respect to the output of each block, n x d.
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
        # Derivatives of the active pre-activations with respect to the weights of the blocks below.
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
    return jacobian.T @ r.ravel() * share, (jacobian.T @ jacobian + mixed + mixed.T) * share


def _orbit_tangents(blocks: list[_Block]) -> np.ndarray:
    """t_c, f64[size, units]: the tangents (v_c, -w_c), weights ordered as in `_system`."""
    own = []
    for V, W, _, _ in blocks:
        unit = np.eye(len(W))
        of_V, of_W = V[:, :, None] * unit, -W[:, :, None] * unit[:, None]
        own.append(np.concatenate([part.reshape(-1, len(W)) for part in (of_V, of_W)]))
    return scipy.linalg.block_diag(*own).astype(np.float64)


def _is_definite(matrix) -> bool:
    """Whether a symmetric matrix M is positive definite; False in doubt.

    Rounding M to multiples of 1 / _ROOT_UNIT moves no eigenvalue by more than size / _ROOT_UNIT;
    the diagonal is lowered by that. M is definite if Q^T M Q has a dominant diagonal, where the
    columns of Q are the computed eigenvectors, rounded.
    """
    rows = np.vectorize(round, otypes="O")(matrix * _ROOT_UNIT)
    rows -= len(rows) * np.eye(len(rows), dtype=int)
    Q = np.vectorize(int, otypes="O")(np.linalg.eigh(rows.astype(float))[1] * 2**53)
    turned = Q.T @ rows @ Q
    return bool((2 * np.diag(turned) > abs(turned).sum(axis=1)).all())


def certify(candidate: Blocks, teacher: Blocks, problem: Problem) -> Certificate:
    """Proves that a bad local minimum lies near `candidate`, or raises `NotCertifiedError`.

    Both nets have biases or neither has, else a ValueError is raised. The x of the problem enter
    as ``z_i`` rounded to floats, and the teacher's exact output replaces its y.
    """
    if (candidate.s is None) != (teacher.s is None):
        raise ValueError("candidate and teacher must both have biases, or both none")
    z = exact(origin.unit_inputs(problem, bias=candidate.s is not None))
    B = exact(problem.B)
    added, blocks = _pass(candidate, z)
    r = (added - _pass(teacher, z)[0]) @ B.T
    live = [block.live() for block in blocks if block.alive.any()]
    _require(len(live) > 0, "blocks with live units", len(live), 1)
    gradient, hessian = _system(live, B, r)
    tangents = _orbit_tangents(live)
    # T has unit vectors up to rounding; the proof does not need them to be exact.
    tangents, T = exact(tangents), exact(tangents / np.linalg.norm(tangents, axis=0))
    derivative = hessian + T @ T.T
    spectrum = np.linalg.eigvalsh(derivative.astype(np.float64))
    # A flat direction that is no rescaling: other nets nearby give the same predictions.
    _require(spectrum[0] > _FLAT * spectrum[-1], "the Hessian is flat", spectrum[0], spectrum[-1])
    inverse = exact(np.linalg.inv(derivative.astype(np.float64)))
    Y = _norm(inverse @ gradient)
    Z = _norm(np.eye(len(gradient), dtype=int) - inverse @ derivative)
    _require(Fraction(1, 2) > Z, "||I - C F'|| must be below 1/2", Z, Fraction(1, 2))
    rho = 4 * Y + Fraction(1, 10**25)
    # From here on, bounds that hold within rho of theta_0: on the weights, on how far the outputs
    # of the live units move, and on the third derivative of f.
    length = _norm([w for V, W, _, _ in live for part in (V, W) for w in part.ravel()]) + rho
    rates = _output_rates(live, length, rho)
    gain, z_norms, r_norms = _norm(B), _row_norms(z), _row_norms(r)
    moves = z_norms * rates[0] * rho
    first, second, last = (gain * z_norms * rate for rate in rates)
    third = (3 * first * second + (r_norms + gain * moves) * last).sum() * Fraction(2, len(z))
    rate = Z + _norm(inverse) * third * rho
    _require(Y + rate * rho <= rho and rate < 1, "no contraction, rate", rate, 1)
    moved = (tangents * T).sum(axis=0) - rho * _row_norms(T.T)
    _require(min(moved) > 0, "a unit is too short", min(moved), 0)
    kink = _kink_distance(blocks, moves)
    _require(kink > rho, "a kink is too near", kink, rho)
    # (4) of N10, and N11.
    curvature = Fraction(float(spectrum[0])) / 2
    left = derivative - (third * rho + curvature) * np.eye(len(derivative), dtype=int)
    _require(_is_definite(left), "no local minimum, curvature", spectrum[0], curvature)
    risk = ((r**2).sum() - (2 * r_norms * gain * moves).sum()) / len(r)
    risk_above = ((r_norms + gain * moves) ** 2).sum() / len(r)
    _require(risk > 0, "the risk must be positive", risk, 0)
    norm = _largest_norm(candidate) + rho
    teacher_norm = _largest_norm(teacher)
    largest = max(norm, teacher_norm)
    _require(largest < 1, "|||theta||| must be below 1, of the teacher too", largest, 1)
    below = {"risk": risk, "kink_distance": kink - rho, "curvature": curvature}
    above = {"radius": rho, "risk_above": risk_above, "norm": norm, "teacher_norm": teacher_norm}
    return Certificate(
        **{name: math.nextafter(float(bound), -math.inf) for name, bound in below.items()},
        **{name: math.nextafter(float(bound), math.inf) for name, bound in above.items()},
        active_examples=tuple(int(n) for block in live for n in (block.pre > 0).sum(axis=0)),
        dead_units=sum(int((~block.alive).sum()) for block in blocks),
    )


def _output_rates(live: list[_Block], length, rho) -> tuple[Fraction, Fraction, Fraction]:
    """D_1, D_2 and D_3 of N10; times |z_i| they bound the derivatives of the outputs."""
    factors = [1 + (_norm(V) + rho) * (_norm(W) + rho) for V, W, _, _ in live]
    others = math.prod(factors) / min(factors)
    some, most = 1 - Fraction(1, len(live)), 1 - Fraction(2, len(live))
    last = 3 * length * (len(live) > 1) + some * max(most, Fraction(0)) * length**3
    return others * length, others * (1 + some * length**2), others * last


def _kink_distance(blocks: list[_Block], moves: np.ndarray) -> Fraction:
    """The least distance of a live unit from its kink on any example, divided by ||z|| there.

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
    return max(_norm(exact(part)) for parts in blocks if parts is not None for part in parts)
