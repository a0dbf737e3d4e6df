"""Gradient descent on linear nets with exact gradients, in one jitted loop."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from identity_matters.array_types import Array
from identity_matters.checks import check_array_type, check_whole, real_array
from identity_matters.linear import gradient_bound, model

# Why a run stopped; the position in this tuple is the code inside the loop.
STOPPED = ("", "risk below tolerance", "stalled", "diverged", "max updates")
_RUNNING, _CONVERGED, _STALLED, _DIVERGED, _MAX_UPDATES = range(len(STOPPED))


class Curves(NamedTuple):
    """Values after ``updates[i]`` updates, from 0 to where the run stopped.

    `excess_risk` is f - C, `gradient_norm` is ``||grad f||_F`` over all layers, `norm`
    is |||A|||, all f64. `inside` (bool) says whether all iterates so far, recorded or
    not, had |||A||| < 1.
    """

    updates: Array
    excess_risk: Array
    gradient_norm: Array
    norm: Array
    inside: Array


@dataclasses.dataclass(frozen=True)
class Rules:
    """The step size, and when a run stops; a setting out of range raises ValueError.

    A run stops after `max_updates`, or once f - C is at most `risk_tolerance`. It stops
    as diverged if f - C is not finite or exceeds `divergence_factor`, above 1, times
    its first value, and as stalled if an update promises a relative decrease, ``eta
    ||grad f||_F^2 / (f - C)``, of at most `stall_tolerance`. Every `record_every`-th
    point and the last are recorded.
    """

    learning_rate: float
    max_updates: int
    risk_tolerance: float
    divergence_factor: float
    stall_tolerance: float = 0.0
    record_every: int = 1

    def __post_init__(self):
        check_whole("max_updates", self.max_updates, 0)
        check_whole("record_every", self.record_every)
        for name, holds, needed in (
            ("learning_rate", 0 < self.learning_rate < math.inf, "positive and finite"),
            ("max_updates", self.max_updates < 2**30, "less than 2^30"),  # int32
            ("risk_tolerance", self.risk_tolerance >= 0, "0 or more"),
            ("divergence_factor", self.divergence_factor > 1, "above 1"),
            ("stall_tolerance", self.stall_tolerance >= 0, "0 or more"),
            ("record_every", self.record_every < 2**30, "less than 2^30"),
        ):
            if not holds:
                raise ValueError(f"{name} must be {needed}, got {getattr(self, name)}")


class Descent(NamedTuple):
    """A finished run: the last weights, why it stopped, and the curves."""

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
    """The state of the loop; `excess` and `gradient` belong to `A`."""

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
    """The least decrease of ``log(f - C)`` an update that (2.3) promises in B_tau.

    Eq. (2.3) is ``||grad f||_F^2 >= 2 mu (f - C)``, mu = 2 l (1-tau)^{2l-2}
    sigma_min(Sigma). So an update inside B_tau with eta <= 1/L, where L is the
    curvature along it, multiplies f - C by at most ``1 - eta mu``. Returns ``-log(1 -
    eta mu)``, 0.0 for tau >= 1.
    """
    if tau >= 1:
        return 0.0
    mu = gradient_bound.gradient_bound_corrected(depth, tau, sigma_min, 1.0) / 2
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

    A is the start. Shapes and errors are those of `model.excess_risk_and_gradient`;
    numbers that are not finite are a ValueError.

    >>> jax.config.update("jax_enable_x64", True)
    >>> rules = Rules(
    ...     0.05, max_updates=100, risk_tolerance=1e-12, divergence_factor=1e3
    ... )
    >>> run = gradient_descent(np.zeros((4, 1, 1)), np.array([[2.0]]), np.eye(1), rules)
    >>> run.stopped, run.converged
    ('risk below tolerance', True)
    >>> np.asarray(1 + run.A.ravel()).round(4)  # four equal layers: 2^{1/4}
    array([1.1892, 1.1892, 1.1892, 1.1892])
    """
    maps = {"input_map": input_map, "output_map": output_map}
    given = {name: array for name, array in maps.items() if array is not None}
    for name, array in {"A": A, "R": R, "Sigma": Sigma, **given}.items():
        check_array_type(name, array)
        real_array(name, array)
    A, R, Sigma = (jnp.asarray(array) for array in (A, R, Sigma))
    most = math.ceil(rules.max_updates / rules.record_every) + 1
    settings = dataclasses.asdict(rules)
    point, records, count = _descend(
        A, R, Sigma, input_map, output_map, settings, records=most
    )
    curves = Curves(*(np.asarray(curve)[: int(count)] for curve in records))
    return Descent(point.A, STOPPED[int(point.stop)], curves)


def descend_many(A: Array, R: Array, rules: Rules) -> dict[str, np.ndarray]:
    """Gradient descent with ``Sigma = I`` from many starts at once; no curves are kept.

    A: f64[starts, depth, d, d]; R: f64[d, d]; for errors see `model.excess_risk`.
    Returns "updates" (int), "converged" (bool) and, at the last point, "excess_risk"
    and "norm" (f64) of every start.

    >>> jax.config.update("jax_enable_x64", True)
    >>> rules = Rules(0.25, max_updates=3, risk_tolerance=1e-3, divergence_factor=1e3)
    >>> ends = descend_many(np.array([[[[0.0]]], [[[1.0]]]]), np.array([[2.0]]), rules)
    >>> # One layer: from 0 the error 2 - 1 halves with every update, from 1 it is 0.
    >>> [ends[name].tolist() for name in ("updates", "converged", "excess_risk")]
    [[3, 0], [False, True], [0.015625, 0.0]]
    """
    for name, array in {"A": A, "R": R}.items():
        check_array_type(name, array)
        real_array(name, array)
    A, R = jnp.asarray(A), jnp.asarray(R)
    Sigma = jnp.eye(A.shape[-1], dtype=A.dtype)
    settings = dataclasses.asdict(rules) | {"record_every": max(rules.max_updates, 1)}

    def one(start):
        end, _, _ = _descend(
            start, R, Sigma, None, None, settings, records=2, watched=False
        )
        return (
            end.updates,
            end.stop == _CONVERGED,
            end.excess,
            model.max_spectral_norm(end.A),
        )

    names = "updates", "converged", "excess_risk", "norm"
    return dict(zip(names, map(np.asarray, jax.vmap(one)(A)), strict=True))


@functools.partial(jax.jit, static_argnames=("records", "watched"))
def _descend(
    A, R, Sigma, input_map, output_map, rules, *, records: int, watched: bool = True
):
    """The loops of `gradient_descent`: over records, and over the updates between."""

    def update(point):
        A = point.A - rules["learning_rate"] * point.gradient
        excess, gradient = model.excess_risk_and_gradient(
            A, R, Sigma, input_map=input_map, output_map=output_map
        )
        updates = point.updates + 1
        first_excess = jnp.where(updates == 0, excess, point.first_excess)
        promised = rules["learning_rate"] * jnp.sum(gradient**2)
        stop = jnp.select(
            [
                ~(
                    jnp.isfinite(excess)
                    & (excess <= rules["divergence_factor"] * first_excess)
                ),
                excess <= rules["risk_tolerance"],
                promised <= rules["stall_tolerance"] * excess,
                updates >= rules["max_updates"],
            ],
            [jnp.int32(c) for c in (_DIVERGED, _CONVERGED, _STALLED, _MAX_UPDATES)],
            jnp.int32(_RUNNING),
        )
        inside = point.inside & _is_inside(A) if watched else point.inside
        return _Point(A, updates, first_excess, excess, gradient, inside, stop)

    def update_and_record(carry):
        point, curves, count = carry
        next_record = rules["record_every"] * count
        point = jax.lax.while_loop(
            lambda p: (p.stop == _RUNNING) & (p.updates < next_record), update, point
        )
        curves = jax.tree.map(
            lambda curve, x: curve.at[count].set(x), curves, _record(point)
        )
        return point, curves, count + 1

    nothing = jnp.zeros((), A.dtype)
    # "Update 0" follows a zero gradient and only evaluates the start. So the network is
    # compiled only once, and the first record is the start.
    updates, inside, stop = jnp.int32(-1), jnp.array(True), jnp.int32(_RUNNING)
    before = _Point(A, updates, nothing, nothing, jnp.zeros_like(A), inside, stop)
    empty = jax.tree.map(
        lambda x: jnp.zeros(records, x.dtype), jax.eval_shape(_record, before)
    )
    start = (before, empty, jnp.int32(0))
    return jax.lax.while_loop(
        lambda carry: carry[0].stop == _RUNNING, update_and_record, start
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


def _is_inside(A):
    """``|||A||| < 1``, bool[]: by Frobenius norms if they suffice, else by SVDs."""
    largest_frobenius = jnp.sqrt(jnp.max(jnp.sum(A**2, axis=(1, 2))))
    return jax.lax.cond(
        largest_frobenius < 1,
        lambda: jnp.array(True),
        lambda: model.max_spectral_norm(A) < 1,
    )


def gaussian_maps(
    rng: np.random.Generator, dimension: int, width: int
) -> tuple[np.ndarray, np.ndarray]:
    """Random input and output maps (Zou et al. 2020).

    The input map is f64[width, dimension], the output map f64[dimension, width].

    Entries ``N(0, 1/width)`` (our choice), so that ``E[C^T C] = E[B B^T] = I``.
    """
    scale = 1 / math.sqrt(width)
    input_map = scale * rng.standard_normal((width, dimension))
    return input_map, scale * rng.standard_normal((dimension, width))


def modified_identity_maps(dimension: int) -> tuple[np.ndarray, np.ndarray]:
    """Maps C, f64[2 d, d], and B, f64[d, 2 d], that double the width.

    C puts x into the first half; B reads yhat from the second.

    ``C = [I; 0]``, ``B = [0, I]``, our form of the (d + k)-wide modified identity of
    Zou et al. 2020. At zero weights the map is 0, not I. From there every A_i stays
    ``[[0, 0], [G_i, 0]]``. Products of two such blocks vanish, so ``B M_l C = sum_i
    G_i``: the problem is least squares.
    """
    return np.eye(2 * dimension, dimension), np.eye(
        dimension, 2 * dimension, k=dimension
    )


def largest_stable_learning_rate(
    R: ArrayLike,
    Sigma: ArrayLike,
    depth: int,
    input_map: ArrayLike | None = None,
    output_map: ArrayLike | None = None,
) -> float:
    """1/L for a bound L on the curvature at a balanced optimum: our step size.

    It holds without input and output maps.

    ``L = 2 depth ||Sigma|| ||B||^2 ||C||^2 max(1, sigma_max(R))^2``. Where E = 0, the
    Hessian of f is that of ``||sum_i P_i dA_i N_i Sigma^{1/2}||_F^2`` with the products
    P_i after and N_i before layer i. If the layers are balanced, ``||P_i|| ||N_i||`` is
    at most max(1, sigma_max(R)). With maps the rate may be too large. For the arrays
    see `model.excess_risk_and_gradient`; ValueError unless L is positive and finite.
    """
    given = {"R": R, "Sigma": Sigma, "input_map": input_map, "output_map": output_map}
    norms = {
        name: float(np.linalg.norm(real_array(name, matrix, axes=2), 2))
        for name, matrix in given.items()
        if matrix is not None
    }
    squared_maps = (norms.get("input_map", 1.0) * norms.get("output_map", 1.0)) ** 2
    L = (
        2
        * check_whole("depth", depth)
        * norms["Sigma"]
        * squared_maps
        * max(1.0, norms["R"]) ** 2
    )
    if not 0 < L < math.inf:
        raise ValueError(
            f"depth, Sigma and maps must give a positive, finite L, got {L:g}"
        )
    return 1.0 / L
