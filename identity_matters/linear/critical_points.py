"""Critical points of a linear residual net's risk: where they are and cannot be.

The searches take stacks of layers padded with zeros, so that one compilation serves all
depths.
"""

import functools

import jax
import jax.numpy as jnp
from numpy.typing import ArrayLike

from identity_matters import solvers
from identity_matters.array_types import Array
from identity_matters.checks import (
    check_whole,
    non_negative_number,
    positive_number,
    real_array,
)
from identity_matters.linear import gradient_bound, model


@model.jit_of_arrays
def risk_hessian(A: Array, R: Array, Sigma: Array) -> jax.Array:
    """The Hessian of the risk in ``A.ravel()``, f64[p, p] with p = depth d^2.

    A: f64[depth, d, d]; R and Sigma, which is symmetric: f64[d, d]. For errors see
    `model.check_array` and `model.jit_of_arrays`.
    """
    return jax.jacfwd(model.risk_gradient)(A, R, Sigma).reshape(A.size, A.size)


def find_critical_points(
    A: Array,
    R: Array,
    Sigma: Array,
    depth: int,
    *,
    steps: int,
    gradient_tolerance: float,
) -> dict[str, jax.Array]:
    """`solvers.least_squares` on ``grad f = 0`` from a batch of starts.

    Theorem 2.2 says that critical points with ``|||A||| < 1`` have the least risk:

    >>> import numpy as np
    >>> jax.config.update("jax_enable_x64", True)
    >>> starts = np.random.default_rng(0).normal(0, 0.2, (50, 2, 2, 2))
    >>> R = np.broadcast_to([[1.2, 0.3], [-0.1, 0.9]], (50, 2, 2))
    >>> Sigma = np.broadcast_to([[1.0, 0.2], [0.2, 0.5]], (50, 2, 2))
    >>> how = dict(steps=100, gradient_tolerance=1e-12)
    >>> ends = find_critical_points(starts, R, Sigma, 2, **how)
    >>> is_critical = ends["gradient_norm"] <= 1e-12
    >>> is_inside = np.linalg.norm(ends["A"], 2, axis=(2, 3)).max(axis=1) < 1
    >>> int((is_critical & is_inside).sum()) > 10
    True
    >>> float(ends["excess"][is_critical & is_inside].max()) < 1e-20
    True

    Args:
      A: f64[n, max_depth, d, d], the starts, padded with zeros from `depth` on.
      R: f64[n, d, d].
      Sigma: f64[n, d, d], symmetric.
      depth: shared by all, from 1 to max_depth.
      steps, gradient_tolerance: when a search ends; see `solvers.least_squares`.
    Returns:
      The ends "A", of the same shape, with "gradient_norm" and "excess", f64[n]. An end
      may be only a local minimum of the gradient's norm, so check "gradient_norm".
    Raises:
      ValueError, TypeError: an argument is not as above; see
        `gradient_bound.check_points`.
    """
    depth = check_whole("depth", depth)
    gradient_bound.check_points(A, R, Sigma, depth)
    return _find_critical_points(
        A,
        R,
        Sigma,
        depth,
        steps=check_whole("steps", steps, 0),
        gradient_tolerance=non_negative_number(
            "gradient_tolerance", gradient_tolerance
        ),
    )


@jax.jit
def _find_critical_points(
    A: Array,
    R: Array,
    Sigma: Array,
    depth: int,
    *,
    steps: int,
    gradient_tolerance: float,
) -> dict[str, jax.Array]:
    """`find_critical_points`, of which all arguments are traced."""

    def find(start, target, second_moment):
        def gradient(point):
            layers = gradient_bound.leading_layers(point.reshape(start.shape), depth)
            slope = model.risk_gradient(layers, target, second_moment)
            return gradient_bound.leading_layers(slope, depth).ravel()

        fit = solvers.least_squares(
            gradient, start.ravel(), steps=steps, tolerance=gradient_tolerance
        )
        # The padding changes no residual, so its layers are still the start's zeros.
        layers = fit.theta.reshape(start.shape)
        return {
            "A": layers,
            "gradient_norm": jnp.linalg.norm(fit.residual),
            "excess": model.excess_risk(layers, target, second_moment),
        }

    return jax.vmap(find)(A, R, Sigma)


def least_gradients(
    A: Array,
    R: Array,
    Sigma: Array,
    tau: ArrayLike,
    depth: int,
    *,
    steps: int,
    learning_rate: float,
) -> tuple[jax.Array, jax.Array]:
    """Minimises ``||grad f||_F`` over B_tau, by projected Adam on its logarithm.

    Args:
      A: f64[n, max_depth, d, d], the starts, padded with zeros from `depth` on.
      R: f64[n, d, d].
      Sigma: f64[n, d, d], symmetric.
      tau: f64[n], radii in (0, 1).
      depth: shared by all, from 1 to max_depth.
      steps, learning_rate: of projected Adam; both positive.
    Returns:
      ``(A, gradient_norm)``, where ``|||A||| <= tau`` up to rounding and gradient_norm
      is f64[n].
    Raises:
      ValueError, TypeError: an argument is not as above; see
        `gradient_bound.check_points`.
    """
    depth = check_whole("depth", depth)
    gradient_bound.check_points(A, R, Sigma, depth)
    tau = real_array("tau", tau)
    if tau.shape != (len(A),) or not ((tau > 0) & (tau < 1)).all():
        raise ValueError(f"tau must be {len(A)} numbers above 0 and below 1, got {tau}")
    return _least_gradients(
        A,
        R,
        Sigma,
        tau,
        depth,
        steps=check_whole("steps", steps),
        learning_rate=positive_number("learning_rate", learning_rate),
    )


@functools.partial(jax.jit, static_argnames="steps")
def _least_gradients(
    A: Array,
    R: Array,
    Sigma: Array,
    tau: Array,
    depth: int,
    *,
    steps: int,
    learning_rate: float,
) -> tuple[jax.Array, jax.Array]:
    """`least_gradients`, of which most arguments are traced."""

    def minimise(layers, target, second_moment, radius):
        def objective(point):
            squared, _ = gradient_bound.squared_gradient_and_excess(
                point, target, second_moment, depth
            )
            return jnp.log(squared)

        def project(point):
            return model.clip_singular_values(
                gradient_bound.leading_layers(point, depth), radius
            )

        best, value = solvers.projected_adam(
            objective, project, layers, steps=steps, learning_rate=learning_rate
        )
        return best, jnp.exp(value / 2)

    return jax.vmap(minimise)(A, R, Sigma, tau)
