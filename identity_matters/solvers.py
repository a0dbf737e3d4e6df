"""Least squares and projected Adam: JAX functions for use under jit and vmap."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from identity_matters.array_types import Array

# Levenberg-Marquardt: the damping shrinks after a successful step and grows after a
# failed one.
_SHRINK = 5.0
_GROW = 4.0
# Relative to ||J||_F^2. With less, J^T J, often singular by symmetry, would stay so to
# rounding.
_LEAST_DAMPING = 1e-13
_LARGEST_DAMPING = 1e6
# Before the start, which counts as a success: the first move has it over _SHRINK.
_DAMPING_BEFORE_START = 5e-2


class Fit(NamedTuple):
    """The end of `least_squares`: theta f64[p], residual f64[m], jacobian f64[m, p]."""

    theta: jax.Array
    residual: jax.Array
    jacobian: jax.Array


class _Search(NamedTuple):
    """The state of `least_squares`.

    Attributes:
      best: the best point so far.
      trial: f64[p], the next point to try.
      damping: f64[], relative to ||J||_F^2.
      step: how many points were tried.
    """

    best: Fit
    trial: jax.Array
    damping: jax.Array
    step: jax.Array | int


def least_squares(
    residual: Callable[[jax.Array], jax.Array],
    theta: Array,
    *,
    steps: int | Array,
    tolerance: float,
    slope_tolerance: float = 0.0,
) -> Fit:
    """Levenberg-Marquardt on ``||residual(theta)||^2`` for a few dozen unknowns.

    Use it under jit. With ``residual = grad f`` it finds saddles and maxima of f as
    well as minima. The search ends before `steps` if even the largest damping brings no
    decrease.

    The search keeps the best point and the next trial. It begins with an infinite
    residual as the best, and the start as the trial. So every point, the start too, is
    linearized at one place in the loop, and compiled once.

    Args:
      residual: f64[p] -> f64[m].
      theta: f64[p], the start.
      steps: int or int[], the most to take.
      tolerance: the search ends if ``||residual||`` is at most this.
      slope_tolerance: the search ends if ``||J^T residual||`` is at most this, near a
        local minimum.
    """

    def linearize(point: jax.Array) -> Fit:
        # One pass gives the value and the Jacobian, so `residual` is compiled only
        # once.
        def value_twice(p):
            value = residual(p)
            return value, value

        jacobian, value = jax.jacfwd(value_twice, has_aux=True)(point)
        return Fit(theta=point, residual=value, jacobian=jacobian)

    def is_unfinished(state: _Search) -> jax.Array:
        best = state.best
        slope = best.jacobian.T @ best.residual
        is_far = jnp.linalg.norm(best.residual) > tolerance
        moves = jnp.linalg.norm(slope) > slope_tolerance
        is_damped = state.damping < _LARGEST_DAMPING
        return (state.step <= steps) & is_far & moves & is_damped

    def attempt(state: _Search) -> _Search:
        """Keeps the trial if it is better, and makes the next one."""
        at_trial = linearize(state.trial)
        is_better = jnp.sum(at_trial.residual**2) < jnp.sum(state.best.residual**2)
        best = optax.tree.where(is_better, at_trial, state.best)
        damping = jnp.where(is_better, state.damping / _SHRINK, state.damping * _GROW)
        damping = jnp.maximum(damping, _LEAST_DAMPING)
        normal = best.jacobian.T @ best.jacobian
        # The smallest normal number keeps the system solvable where J vanishes.
        scale = jnp.trace(normal) + jnp.finfo(normal.dtype).tiny
        identity = jnp.eye(best.theta.size, dtype=normal.dtype)
        damped = normal + damping * scale * identity
        move = jnp.linalg.solve(damped, best.jacobian.T @ best.residual)
        return _Search(
            best=best, trial=best.theta - move, damping=damping, step=state.step + 1
        )

    theta = jnp.asarray(theta)
    rows = jax.eval_shape(residual, theta)
    nowhere = Fit(
        theta=theta,
        residual=jnp.full(rows.shape, jnp.inf, rows.dtype),
        jacobian=jnp.ones((rows.size, theta.size), rows.dtype),
    )
    damping = jnp.asarray(_DAMPING_BEFORE_START, theta.dtype)
    start = _Search(best=nowhere, trial=theta, damping=damping, step=0)
    return jax.lax.while_loop(is_unfinished, attempt, start).best


def projected_adam(
    objective: Callable[[Any], jax.Array],
    project: Callable[[Any], Any],
    start: Any,
    *,
    steps: int,
    learning_rate: float | Array,
) -> tuple[Any, jax.Array]:
    """The best iterate of projected Adam; its learning rate falls to 0 along a cosine.

    Use it under jit. It always takes all `steps`. An iterate where the objective is NaN
    is never the best one.

    Args:
      objective: maps parameters, a pytree of f64 arrays, to an f64[]; it is
        differentiated.
      project: maps parameters onto the feasible set; it is not differentiated.
      start: the parameters at the start.
      steps: at least 1.
      learning_rate: of the first step; vmapped callers may give each start its own.
    Returns:
      The best iterate, which may be the projected start, and its objective; the start
      and infinity if the objective is NaN there.
    """
    optimizer = optax.adam(optax.cosine_decay_schedule(learning_rate, steps))
    value_and_grad = jax.value_and_grad(objective)

    def keep_best(parameters, value, best):
        _, least = best
        # A comparison with NaN is False.
        return optax.tree.where(value < least, (parameters, value), best)

    def update(carry, _):
        parameters, state, best = carry
        value, gradient = value_and_grad(parameters)
        best = keep_best(parameters, value, best)
        updates, state = optimizer.update(gradient, state)
        return (project(optax.apply_updates(parameters, updates)), state, best), None

    start = project(start)
    carry = (start, optimizer.init(start), (start, jnp.asarray(jnp.inf)))
    end, _ = jax.lax.scan(update, carry, length=steps)
    last, _, best = end
    return keep_best(last, objective(last), best)
