"""Gradient descent on linear nets with exact gradients, in one jitted loop."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from identity_matters import limits
from identity_matters.array_types import Array
from identity_matters.checks import (
    check_array_type,
    check_whole,
    non_negative_number,
    positive_number,
    real_array,
    real_number,
    square_matrix,
)
from identity_matters.linear import gradient_bound, model, second_moment

# Why a run stopped; the position in this tuple is the code inside the loop.
STOPPED = ("", "risk below tolerance", "stalled", "diverged", "max updates")
_RUNNING = STOPPED.index("")
_CONVERGED = STOPPED.index("risk below tolerance")
_STALLED = STOPPED.index("stalled")
_DIVERGED = STOPPED.index("diverged")
_MAX_UPDATES = STOPPED.index("max updates")
# Of a point of `Curves`: an int32, three float64 and a bool.
_RECORD_BYTES = 4 + 3 * 8 + 1
# Updates and records are counted in int32. The largest number is that of the update at
# which the next record is due, which is below max_updates + record_every.
_MOST_COUNTED = 2**30


class Curves(NamedTuple):
    """Values after ``updates[i]`` updates, from 0 to where the run stopped.

    Attributes:
      updates: int[n].
      excess_risk: f64[n], f - C.
      gradient_norm: f64[n], ``||grad f||_F`` over all layers.
      norm: f64[n], |||A|||.
      inside: bool[n], whether all iterates so far, recorded or not, had |||A||| < 1.
    """

    updates: Array
    excess_risk: Array
    gradient_norm: Array
    norm: Array
    inside: Array


@dataclasses.dataclass(frozen=True)
class Rules:
    """The step size, and when a run stops.

    Raises ValueError for a setting that is not a finite number in its range.

    Attributes:
      learning_rate: eta, positive.
      max_updates: a run stops after this many.
      risk_tolerance: it stops as converged once f - C is at most this.
      divergence_factor: above 1; it stops as diverged if f - C is not finite or exceeds
        its first value by this factor.
      stall_tolerance: it stops as stalled if an update promises a relative decrease,
        ``eta ||grad f||_F^2 / (f - C)``, of at most this.
      record_every: a point is recorded whenever this many updates have been made, and
        at the end; room for max_updates / record_every points is taken at the start.
    """

    learning_rate: float
    max_updates: int
    risk_tolerance: float
    divergence_factor: float
    stall_tolerance: float = 0.0
    record_every: int = 1

    def __post_init__(self):
        positive_number("learning_rate", self.learning_rate)
        non_negative_number("risk_tolerance", self.risk_tolerance)
        non_negative_number("stall_tolerance", self.stall_tolerance)
        factor = real_number("divergence_factor", self.divergence_factor)
        if not factor > 1:
            raise ValueError(f"divergence_factor must be above 1, got {factor}")
        counts = {
            "max_updates": check_whole("max_updates", self.max_updates, 0),
            "record_every": check_whole("record_every", self.record_every),
        }
        for name, count in counts.items():
            if not count < _MOST_COUNTED:
                raise ValueError(f"{name} must be less than 2^30, got {count}")


class Descent(NamedTuple):
    """A finished run.

    Attributes:
      A: f64[depth, m, m], the last weights.
      stopped: why it stopped, one of `STOPPED`.
      curves: where it went.
    """

    A: jax.Array
    stopped: str
    curves: Curves

    @property
    def updates(self) -> int:
        """How many updates were made."""
        return int(self.curves.updates[-1])

    @property
    def converged(self) -> bool:
        """Whether the excess risk reached the tolerance."""
        return self.stopped == STOPPED[_CONVERGED]


class _Point(NamedTuple):
    """The state of the loop.

    Attributes:
      A: f64[depth, m, m], the weights.
      updates: int32[], how many were made.
      first_excess: f64[], f - C at the start.
      excess: f64[], f - C at A.
      gradient: f64[depth, m, m], at A.
      inside: bool[], whether all iterates so far had |||A||| < 1.
      stop: int32[], the position in `STOPPED`.
    """

    A: jax.Array
    updates: jax.Array
    first_excess: jax.Array
    excess: jax.Array
    gradient: jax.Array
    inside: jax.Array
    stop: jax.Array


def guaranteed_decrease(
    depth: int, tau: float, sigma_min: float, learning_rate: float
) -> float:
    """The decrease of ``log(f - C)`` per update that (2.3) guarantees in B_tau.

    Eq. (2.3) is ``||grad f||_F^2 >= 2 mu (f - C)``, mu = 2 l (1-tau)^{2l-2}
    sigma_min(Sigma). So an update inside B_tau with eta <= 1/L, where L is the
    curvature along it, multiplies f - C by at most ``1 - eta mu``. Returns ``-log(1 -
    eta mu)`` up to rounding, 0.0 for tau >= 1 and infinity for ``eta mu >= 1``.
    ValueError unless depth is a positive whole number, and the others are finite and 0
    or more.
    """
    depth = check_whole("depth", depth)
    numbers = {"tau": tau, "sigma_min": sigma_min, "learning_rate": learning_rate}
    for name, number in numbers.items():
        non_negative_number(name, number)
    if tau >= 1:
        return 0.0
    twice_mu = gradient_bound.gradient_bound_corrected(
        depth, tau, sigma=sigma_min, excess=1.0
    )
    mu = twice_mu / 2
    return -math.log1p(-learning_rate * mu) if learning_rate * mu < 1 else math.inf


def gradient_descent(
    A: Array,
    R: Array,
    Sigma: Array,
    rules: Rules,
    input_map: Array | None = None,
    output_map: Array | None = None,
) -> Descent:
    """Minimises the excess risk over A by descent until one of its rules stops it.

    >>> jax.config.update("jax_enable_x64", True)
    >>> rules = Rules(
    ...     0.05, max_updates=100, risk_tolerance=1e-12, divergence_factor=1e3
    ... )
    >>> run = gradient_descent(np.zeros((4, 1, 1)), np.array([[2.0]]), np.eye(1), rules)
    >>> run.stopped, run.converged
    ('risk below tolerance', True)
    >>> np.asarray(1 + run.A.ravel()).round(4)  # four equal layers: 2^{1/4}
    array([1.1892, 1.1892, 1.1892, 1.1892])

    Args:
      A: f64[depth, m, m], the start.
      R, Sigma, input_map, output_map: as in `model.excess_risk_and_gradient`.
      rules: the step size, and when to stop.
    Raises:
      ValueError, TypeError: as there; numbers that are not finite are a ValueError, and
        so are more records than fit into memory.
    """
    arrays = {
        "A": A,
        "R": R,
        "Sigma": Sigma,
        "input_map": input_map,
        "output_map": output_map,
    }
    for name, array in arrays.items():
        if array is not None:
            check_array_type(name, array)
            real_array(name, array)
    second_moment.check_symmetric(np.asarray(Sigma))
    most_records = math.ceil(rules.max_updates / rules.record_every) + 1
    # The curves have room for all of them, however soon the run stops.
    record_gb = most_records * _RECORD_BYTES / 1e9
    available_gb = limits.memory_bytes() / 1e9
    if record_gb > available_gb:
        raise ValueError(
            f"{most_records} records take {record_gb:.3g} GB of the"
            f" {available_gb:.3g} GB that this process may use: set record_every"
        )
    problem = _Problem(
        R=jnp.asarray(R),
        Sigma=jnp.asarray(Sigma),
        input_map=input_map,
        output_map=output_map,
    )
    point, curves, count = _descend(
        jnp.asarray(A), problem, _traced(rules), records=most_records
    )
    recorded = jax.tree.map(lambda curve: np.asarray(curve)[: int(count)], curves)
    return Descent(A=point.A, stopped=STOPPED[int(point.stop)], curves=recorded)


def descend_many(A: Array, R: Array, rules: Rules) -> dict[str, np.ndarray]:
    """Gradient descent with ``Sigma = I`` from many starts at once; no curves are kept.

    >>> jax.config.update("jax_enable_x64", True)
    >>> rules = Rules(0.25, max_updates=3, risk_tolerance=1e-3, divergence_factor=1e3)
    >>> ends = descend_many(np.array([[[[0.0]]], [[[1.0]]]]), np.array([[2.0]]), rules)
    >>> # One layer: from 0 the error 2 - 1 halves with every update, from 1 it is 0.
    >>> [ends[name].tolist() for name in ("updates", "converged", "excess_risk")]
    [[3, 0], [False, True], [0.015625, 0.0]]

    Args:
      A: f64[starts, depth, d, d]; for errors see `model.excess_risk`.
      R: f64[d, d].
      rules: for all of them; nothing is recorded on the way.
    Returns:
      "updates" (int), "converged" (bool) and, at the last point, "excess_risk" and
      "norm" (f64) of every start.
    """
    for name, array in {"A": A, "R": R}.items():
        check_array_type(name, array)
        real_array(name, array)
    A = jnp.asarray(A)
    problem = _Problem(
        R=jnp.asarray(R),
        Sigma=jnp.eye(A.shape[-1], dtype=A.dtype),
        input_map=None,
        output_map=None,
    )
    # Only the start and the end are recorded.
    settings = _traced(
        dataclasses.replace(rules, record_every=max(rules.max_updates, 1))
    )

    def descend(start):
        end, _, _ = _descend(start, problem, settings, records=2, watches_norm=False)
        return {
            "updates": end.updates,
            "converged": end.stop == _CONVERGED,
            "excess_risk": end.excess,
            "norm": model.max_spectral_norm(end.A),
        }

    ends = jax.vmap(descend)(A)
    # `vmap` has sorted the names.
    names = ("updates", "converged", "excess_risk", "norm")
    return {name: np.asarray(ends[name]) for name in names}


class _Problem(NamedTuple):
    """What is minimised: see `model.excess_risk_and_gradient`."""

    R: jax.Array
    Sigma: jax.Array
    input_map: Array | None
    output_map: Array | None


class _TracedRules(NamedTuple):
    """The fields of `Rules` as arguments of a jitted function.

    Rules that differ then share a compiled program.
    """

    learning_rate: Any
    max_updates: Any
    risk_tolerance: Any
    divergence_factor: Any
    stall_tolerance: Any
    record_every: Any


def _traced(rules: Rules) -> _TracedRules:
    return _TracedRules(**dataclasses.asdict(rules))


@functools.partial(jax.jit, static_argnames=("records", "watches_norm"))
def _descend(
    A: jax.Array,
    problem: _Problem,
    rules: _TracedRules,
    *,
    records: int,
    watches_norm: bool = True,
) -> tuple[_Point, Curves, jax.Array]:
    """The loops of `gradient_descent`: over records, and over the updates between.

    "Update 0" follows a zero gradient and only evaluates the start. So the network is
    compiled only once, and the first record is the start.

    Args:
      A: f64[depth, m, m], the start.
      problem: what is minimised.
      rules: the step size, and when to stop.
      records: the most that there may be.
      watches_norm: whether to look at |||A||| after each update; if not, `inside` stays
        True.
    Returns:
      The last point, the curves with `records` entries, and how many are in use.
    """

    def update_and_record(carry):
        point, curves, count = carry
        next_record = rules.record_every * count
        point = jax.lax.while_loop(
            lambda p: (p.stop == _RUNNING) & (p.updates < next_record),
            lambda p: _update(p, problem, rules, watches_norm),
            point,
        )
        curves = jax.tree.map(
            lambda curve, x: curve.at[count].set(x), curves, _record(point)
        )
        return point, curves, count + 1

    before = _before_update_0(A)
    empty_curves = jax.tree.map(
        lambda x: jnp.zeros(records, x.dtype), jax.eval_shape(_record, before)
    )
    return jax.lax.while_loop(
        lambda carry: carry[0].stop == _RUNNING,
        update_and_record,
        (before, empty_curves, jnp.int32(0)),
    )


def _before_update_0(A: jax.Array) -> _Point:
    """From where "update 0" leads to the start: it does not move A."""
    zero = jnp.zeros((), A.dtype)
    return _Point(
        A=A,
        updates=jnp.int32(-1),
        first_excess=zero,
        excess=zero,
        gradient=jnp.zeros_like(A),
        inside=jnp.array(True),
        stop=jnp.int32(_RUNNING),
    )


def _update(
    point: _Point, problem: _Problem, rules: _TracedRules, watches_norm: bool
) -> _Point:
    """The point after one more update, with the reason to stop there, if any."""
    A = point.A - rules.learning_rate * point.gradient
    excess, gradient = model.excess_risk_and_gradient(
        A,
        problem.R,
        problem.Sigma,
        input_map=problem.input_map,
        output_map=problem.output_map,
    )
    updates = point.updates + 1
    first_excess = jnp.where(updates == 0, excess, point.first_excess)
    promised = rules.learning_rate * jnp.sum(gradient**2)
    is_bounded = jnp.isfinite(excess) & (
        excess <= rules.divergence_factor * first_excess
    )
    # The first that holds counts.
    stop = jnp.select(
        [
            ~is_bounded,
            excess <= rules.risk_tolerance,
            promised <= rules.stall_tolerance * excess,
            updates >= rules.max_updates,
        ],
        [
            jnp.int32(_DIVERGED),
            jnp.int32(_CONVERGED),
            jnp.int32(_STALLED),
            jnp.int32(_MAX_UPDATES),
        ],
        jnp.int32(_RUNNING),
    )
    return _Point(
        A=A,
        updates=updates,
        first_excess=first_excess,
        excess=excess,
        gradient=gradient,
        inside=_stays_inside(A, point.inside) if watches_norm else point.inside,
        stop=stop,
    )


def _record(point: _Point) -> Curves:
    """One entry of every curve."""
    return Curves(
        updates=point.updates,
        excess_risk=point.excess,
        gradient_norm=jnp.sqrt(jnp.sum(point.gradient**2)),
        norm=model.max_spectral_norm(point.A),
        inside=point.inside,
    )


def _stays_inside(A: jax.Array, was_inside: jax.Array) -> jax.Array:
    """Whether |||A||| < 1 as before, bool[]: by Frobenius norms if they suffice.

    SVDs take longer than the update itself, so they are left to the iterates that need
    them: a net that has left the ball is not looked at again.
    """
    largest_frobenius = jnp.sqrt(jnp.max(jnp.sum(A**2, axis=(1, 2))))
    return jax.lax.cond(
        was_inside & (largest_frobenius >= 1),
        lambda: model.max_spectral_norm(A) < 1,
        lambda: was_inside,
    )


def gaussian_maps(
    rng: np.random.Generator, dimension: int, width: int
) -> tuple[np.ndarray, np.ndarray]:
    """Random maps, f64[width, dimension] and f64[dimension, width] (Zou et al. 2020).

    Entries are ``N(0, 1/width)`` (our choice), so that ``E[C^T C] = E[B B^T] = I``.
    """
    scale = 1 / math.sqrt(width)
    input_map = scale * rng.standard_normal((width, dimension))
    output_map = scale * rng.standard_normal((dimension, width))
    return input_map, output_map


def modified_identity_maps(dimension: int) -> tuple[np.ndarray, np.ndarray]:
    """Maps C, f64[2 d, d], and B, f64[d, 2 d], that double the width.

    C puts x into the first half; B reads yhat from the second. ``C = [I; 0]``, ``B =
    [0, I]``, our form of the (d + k)-wide modified identity of Zou et al. 2020. At zero
    weights the map is 0, not I. From there every A_i stays ``[[0, 0], [G_i, 0]]``.
    Products of two such blocks vanish, so ``B M_l C = sum_i G_i``: the problem is least
    squares.
    """
    input_map = np.eye(2 * dimension, dimension)
    output_map = np.eye(dimension, 2 * dimension, k=dimension)
    return input_map, output_map


def largest_stable_learning_rate(
    R: ArrayLike,
    Sigma: ArrayLike,
    depth: int,
    input_map: ArrayLike | None = None,
    output_map: ArrayLike | None = None,
) -> float:
    """1/L for a bound L on the curvature at a balanced optimum: our step size.

    It holds without input and output maps. ``L = 2 depth ||Sigma|| ||B||^2 ||C||^2
    max(1, sigma_max(R))^2``. Where E = 0, the Hessian of f is that of ``||sum_i P_i
    dA_i N_i Sigma^{1/2}||_F^2`` with the products P_i after and N_i before layer i. If
    the layers are balanced, ``||P_i|| ||N_i||`` is at most max(1, sigma_max(R)). With
    maps the rate may be too large. It is computed without a margin for rounding. For
    the arrays see `model.excess_risk_and_gradient`; ValueError unless R and Sigma fit
    together, and L and 1/L are positive and finite.
    """
    R = real_array("R", R, axes=2)
    Sigma = square_matrix("Sigma", Sigma)
    if R.shape[1] != len(Sigma):
        raise ValueError(
            f"Sigma must be {R.shape[1]} x {R.shape[1]} like the columns of R, got"
            f" shape {Sigma.shape}"
        )
    norm_R = _norm("R", R)
    norm_Sigma = _norm("Sigma", Sigma)
    norm_C = 1.0 if input_map is None else _norm("input_map", input_map)
    norm_B = 1.0 if output_map is None else _norm("output_map", output_map)
    depth = check_whole("depth", depth)
    # Python's products end in infinity, its powers in an OverflowError.
    root = norm_C * norm_B * max(1.0, norm_R)
    L = 2 * depth * norm_Sigma * root * root
    if not 0 < L < math.inf or math.isinf(1 / L):
        raise ValueError(
            "depth, Sigma and maps must give a positive, finite L, and a finite 1/L,"
            f" got L = {L:g}"
        )
    return 1 / L


def _norm(name: str, matrix: ArrayLike) -> float:
    """The spectral norm of a matrix; ValueError unless it is one of real numbers."""
    return float(np.linalg.norm(real_array(name, matrix, axes=2), 2))
