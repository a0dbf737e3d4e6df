"""Adam with projections: minimisation over B_tau and over bounded second moments, vmappable."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from identity_matters.array_types import Array


def clip_singular_values(A: Array, tau: float | Array) -> jax.Array:
    """The point of B_tau nearest to A in Frobenius norm: f64[..., d, d] -> f64[..., d, d]."""
    left, values, right = jnp.linalg.svd(A, full_matrices=False)
    return (left * jnp.minimum(values, tau)[..., None, :]) @ right


def clip_layers_and_second_moment(
    A: Array, Sigma: Array, tau: float | Array, low: float | Array, high: float | Array
) -> tuple[jax.Array, jax.Array]:
    """Both constraints of the search at once: |||A||| <= tau, eigenvalues of Sigma in [low, high].

    One batched SVD serves both. As two LAPACK calls that do not depend on one another they would,
    under vmap, wait for each other for ever on a CPU with two threads (seen with jaxlib 0.10.2).

    Args:
      A: f64[depth, d, d].
      Sigma: f64[d, d]; eigenvalues above -1, so that ``Sigma + I`` is positive definite and its
        SVD is its eigendecomposition.
      tau, low, high: f64[].
    Returns:
      f64[depth, d, d] and f64[d, d], symmetric, each nearest in Frobenius norm.
    """
    eye = jnp.eye(Sigma.shape[0])
    shifted = (Sigma + Sigma.T) / 2 + eye
    left, values, right = jnp.linalg.svd(jnp.concatenate([A, shifted[None]]))
    layers = (left[:-1] * jnp.minimum(values[:-1], tau)[:, None, :]) @ right[:-1]
    eigenvalues = jnp.clip(values[-1] - 1, low, high)
    return layers, (left[-1] * eigenvalues[None, :]) @ left[-1].T


def minimise(
    objective: Callable[[Any], jax.Array],
    project: Callable[[Any], Any],
    start: Any,
    *,
    steps: int,
    learning_rate: float,
) -> tuple[Any, jax.Array]:
    """The best of `steps` projected Adam iterates; the learning rate falls to 0 along a cosine.

    Args:
      objective: ``parameters -> f64[]``, differentiable.
      project: ``parameters -> parameters``, onto the feasible set; not differentiated.
      start: a pytree of f64 arrays, projected first.
      steps: number of updates, at least 1.
      learning_rate: of the first update.
    Returns:
      ``(parameters, objective there)`` of the best iterate, the start included.
    """
    optimizer = optax.adam(optax.cosine_decay_schedule(learning_rate, steps))
    value_and_grad = jax.value_and_grad(objective)

    def update(carry, _):
        parameters, state, best, best_value = carry
        value, gradient = value_and_grad(parameters)
        better = value < best_value
        best = jax.tree.map(lambda new, old: jnp.where(better, new, old), parameters, best)
        updates, state = optimizer.update(gradient, state)
        parameters = project(optax.apply_updates(parameters, updates))
        return (parameters, state, best, jnp.where(better, value, best_value)), None

    start = project(start)
    carry = (start, optimizer.init(start), start, objective(start))
    (last, _, best, best_value), _ = jax.lax.scan(update, carry, length=steps)
    last_value = objective(last)
    better = last_value < best_value
    best = jax.tree.map(lambda new, old: jnp.where(better, new, old), last, best)
    return best, jnp.where(better, last_value, best_value)
