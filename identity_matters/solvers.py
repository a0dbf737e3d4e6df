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
_FIRST_DAMPING = 5e-2


class Fit(NamedTuple):
    """The end of `least_squares`: theta f64[p], residual f64[m], jacobian f64[m, p]."""

    theta: jax.Array
    residual: jax.Array
    jacobian: jax.Array


def least_squares(
    residual: Callable[[jax.Array], jax.Array],
    theta: Array,
    *,
    steps: int | Array,
    tolerance: float,
    slope_tolerance: float = 0.0,
) -> Fit:
    """Levenberg-Marquardt on ``||residual(theta)||^2`` for a few dozen unknowns.

    Use it under jit.

    With ``residual = grad f`` it finds saddles and maxima of f as well as minima.

    residual: f64[p] -> f64[m]; theta: f64[p], the start; steps: int or int[], the most
    to take. The search ends earlier if ``||residual|| <= tolerance``, if ``||J^T
    residual|| <= slope_tolerance`` (near a local minimum), or if even the largest
    damping brings no decrease.
    """

    def linearized(point):
        # One pass gives the value and the Jacobian, so `residual` is compiled only
        # once.
        jacobian, value = jax.jacfwd(lambda p: (residual(p),) * 2, has_aux=True)(point)
        return value, jacobian

    def unfinished(state):
        _, _, (value, jacobian), damping, step = state
        far = jnp.linalg.norm(value) > tolerance
        moves = jnp.linalg.norm(jacobian.T @ value) > slope_tolerance
        return (step <= steps) & far & moves & (damping < _LARGEST_DAMPING)

    def attempt(state):
        point, trial, kept, damping, step = state
        there = linearized(trial)
        better = jnp.sum(there[0] ** 2) < jnp.sum(kept[0] ** 2)
        point, value, jacobian = optax.tree.where(
            better, (trial, *there), (point, *kept)
        )
        damping = jnp.maximum(
            jnp.where(better, damping / _SHRINK, damping * _GROW), _LEAST_DAMPING
        )
        normal = jacobian.T @ jacobian
        # The smallest normal number keeps the system solvable where J vanishes.
        scale = jnp.trace(normal) + jnp.finfo(normal.dtype).tiny
        shifted = normal + damping * scale * jnp.eye(point.size)
        trial = point - jnp.linalg.solve(shifted, jacobian.T @ value)
        return point, trial, (value, jacobian), damping, step + 1

    theta = jnp.asarray(theta)
    rows = jax.eval_shape(residual, theta)
    # The start is the first trial; it improves on this infinite residual.
    nothing = (jnp.full(rows.shape, jnp.inf), jnp.ones((rows.size, theta.size)))
    start = (theta, theta, nothing, jnp.asarray(_FIRST_DAMPING), 0)
    point, _, (value, jacobian), _, _ = jax.lax.while_loop(unfinished, attempt, start)
    return Fit(point, value, jacobian)


def projected_adam(
    objective: Callable[[Any], jax.Array],
    project: Callable[[Any], Any],
    start: Any,
    *,
    steps: int,
    learning_rate: float | Array,
) -> tuple[Any, jax.Array]:
    """The best iterate of projected Adam; its learning rate falls to 0 along a cosine.

    Use it under jit. Parameters are a pytree of f64 arrays. `objective` maps them to an
    f64[] and is differentiated; `project` maps them onto the feasible set and is not.
    `steps` is at least 1; vmapped callers may give each start its own learning rate.

    Returns the best iterate, which may be the projected start, and its objective. An
    iterate where the objective is NaN ends the search; if all are, the result is the
    start and infinity.
    """
    optimizer = optax.adam(optax.cosine_decay_schedule(learning_rate, steps))
    value_and_grad = jax.value_and_grad(objective)

    def keep_best(parameters, value, best):
        # A comparison with NaN is False.
        return optax.tree.where(value < best[1], (parameters, value), best)

    def update(carry, _):
        parameters, state, best = carry
        value, gradient = value_and_grad(parameters)
        best = keep_best(parameters, value, best)
        updates, state = optimizer.update(gradient, state)
        return (project(optax.apply_updates(parameters, updates)), state, best), None

    start = project(start)
    carry = (start, optimizer.init(start), (start, jnp.asarray(jnp.inf)))
    (last, _, best), _ = jax.lax.scan(update, carry, length=steps)
    return keep_best(last, objective(last), best)
