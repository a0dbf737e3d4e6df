"""Critical points of a linear residual net's risk: where they are and cannot be.

The searches take stacks of layers padded with zeros, so that one compilation serves all
depths.
"""

import functools

import jax
import jax.numpy as jnp

from identity_matters import solvers
from identity_matters.array_types import Array
from identity_matters.linear import gradient_bound, model


@model.jit_of_arrays
def risk_hessian(A: Array, R: Array, Sigma: Array) -> jax.Array:
    """The Hessian of the risk in ``A.ravel()``, f64[p, p] with p = depth d^2.

    A: f64[depth, d, d]; R and Sigma, which is symmetric: f64[d, d]. For errors see
    `model.check_array` and `model.jit_of_arrays`.
    """
    return jax.jacfwd(model.risk_gradient)(A, R, Sigma).reshape(A.size, A.size)


@jax.jit
def find_critical_points(
    A: Array,
    R: Array,
    Sigma: Array,
    depth: int | Array,
    *,
    steps: int,
    gradient_tolerance: float,
) -> dict[str, jax.Array]:
    """`solvers.least_squares` on ``grad f = 0`` from a batch of starts.

    Args:
      A: f64[n, max_depth, d, d], the starts, padded with zeros from `depth` on.
      R, Sigma: f64[n, d, d]. Every Sigma must be symmetric, which is not checked.
      depth: int[], shared.
      steps, gradient_tolerance: when a search ends; see `solvers.least_squares`.
    Returns:
      The ends "A", of the same shape, with "gradient_norm" and "excess", f64[n]. An end
      may be only a local minimum of the gradient's norm, so check "gradient_norm".
    """

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


@functools.partial(jax.jit, static_argnames=("steps", "learning_rate"))
def least_gradients(
    A: Array,
    R: Array,
    Sigma: Array,
    tau: Array,
    depth: int | Array,
    *,
    steps: int,
    learning_rate: float,
) -> tuple[jax.Array, jax.Array]:
    """Minimises ``||grad f||_F`` over B_tau, by projected Adam on its logarithm.

    Args:
      A: f64[n, max_depth, d, d], the starts.
      R, Sigma: f64[n, d, d]. Every Sigma must be symmetric, which is not checked.
      tau: f64[n], radii in (0, 1).
      depth: int[], shared.
      steps, learning_rate: of projected Adam.
    Returns:
      ``(A, gradient_norm)``, where ``|||A||| <= tau`` up to rounding and gradient_norm
      is f64[n].
    """

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
