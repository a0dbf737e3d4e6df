"""Critical points of the risk of a linear residual net: where they are, and where none can be.

The searches take padded stacks as `landscape.squared_gradient_and_excess` does: layers from `depth`
on are zero and stay zero, so that one compilation serves all depths.
"""

import functools

import jax
import jax.numpy as jnp

from identity_matters.array_types import Array
from identity_matters.linear import landscape, projected, risk

# Bounds of the relative damping: from a Newton step up to a vanishing one. Below the lower bound
# H^2 + damping |H|^2 I would be singular to rounding wherever H is.
_LEAST_DAMPING = 1e-13
_LARGEST_DAMPING = 1e6
# A success divides the damping by the first, a failure multiplies it by the second.
_SHRINK = 5.0
_GROW = 4.0


@jax.jit
def risk_hessian(A: Array, R: Array, Sigma: Array) -> jax.Array:
    """The Hessian of the risk in the layers, by forward-mode differentiation of Lemma 2.4.

    Args:
      A: f64[depth, d, d], R and Sigma: f64[d, d].
    Returns:
      f64[depth d d, depth d d], rows and columns in the order of ``A.ravel()``.
    """
    hessian = jax.jacfwd(risk.risk_gradient)(A, R, Sigma)
    return hessian.reshape(A.size, A.size)


def find_critical_point(
    A: Array, R: Array, Sigma: Array, depth: int | Array, *, steps: int, gradient_tolerance: float
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Levenberg-Marquardt on ``grad f = 0`` from the start A; vmappable.

    Minimises ``||grad f||^2``, whose Gauss-Newton matrix is H^2 with H the Hessian of f, so it is
    drawn to saddles and maxima of f as much as to minima. The damping is relative to ||H||_F^2.

    Args:
      A: f64[max_depth, d, d], the start; R and Sigma: f64[d, d]; depth: int[].
      steps: the most steps to take.
      gradient_tolerance: stop once ``||grad f||_F`` is at most this.
    Returns:
      ``(A, gradient_norm, steps_taken)``: f64[max_depth, d, d], f64[], int[]. The point may be a
      mere minimum of ``||grad f||``: look at gradient_norm.
    """

    def gradient_at(layers):
        return landscape.leading_layers(risk.risk_gradient(layers, R, Sigma), depth)

    counted = landscape.leading_layers(jnp.ones_like(A), depth).ravel()

    def unfinished(state):
        _, gradient, _, step = state
        return (step < steps) & (jnp.linalg.norm(gradient) > gradient_tolerance)

    def attempt(state):
        layers, gradient, damping, step = state
        H = risk_hessian(layers, R, Sigma) * counted[:, None] * counted[None, :]
        # The smallest normal number keeps the system solvable where H vanishes.
        scale = jnp.sum(H**2) + jnp.finfo(H.dtype).tiny
        normal = H @ H + damping * scale * jnp.eye(layers.size)
        trial = layers - jnp.linalg.solve(normal, H @ gradient.ravel()).reshape(layers.shape)
        trial_gradient = gradient_at(trial)
        better = jnp.sum(trial_gradient**2) < jnp.sum(gradient**2)
        damping = jnp.where(better, damping / _SHRINK, damping * _GROW)
        return (
            jnp.where(better, trial, layers),
            jnp.where(better, trial_gradient, gradient),
            jnp.clip(damping, _LEAST_DAMPING, _LARGEST_DAMPING),
            step + 1,
        )

    start = (jnp.asarray(A), gradient_at(A), jnp.asarray(1e-2), jnp.asarray(0))
    layers, gradient, _, taken = jax.lax.while_loop(unfinished, attempt, start)
    return layers, jnp.linalg.norm(gradient), taken


@jax.jit
def find_critical_points(
    A: Array, R: Array, Sigma: Array, depth: int | Array, *, steps: int, gradient_tolerance: float
) -> dict[str, jax.Array]:
    """`find_critical_point` for a batch of starts.

    Args:
      A: f64[n, max_depth, d, d]; R and Sigma: f64[n, d, d]; depth: int[], of all of them.
    Returns:
      dict: "A" f64[n, max_depth, d, d]; "gradient_norm" and "excess" f64[n]; "steps_taken" int[n].
    """

    def find(start, target, second_moment):
        return find_critical_point(
            start,
            target,
            second_moment,
            depth,
            steps=steps,
            gradient_tolerance=gradient_tolerance,
        )

    layers, gradient_norm, taken = jax.vmap(find)(A, R, Sigma)
    excess = jax.vmap(risk.excess_risk)(layers, R, Sigma)
    return {"A": layers, "gradient_norm": gradient_norm, "steps_taken": taken, "excess": excess}


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
    """Minimises ``||grad f||_F`` over B_tau from each start, by projected Adam on its logarithm.

    Args:
      A: f64[n, max_depth, d, d]; R and Sigma: f64[n, d, d]; tau: f64[n], radii in (0, 1);
        depth: int[].
    Returns:
      ``(A, gradient_norm)``: f64[n, max_depth, d, d] with ``|||A||| <= tau`` and f64[n].
    """

    def one(layers, target, second_moment, radius):
        def objective(point):
            squared, _ = landscape.squared_gradient_and_excess(point, target, second_moment, depth)
            return jnp.log(squared)

        def project(point):
            return projected.clip_singular_values(landscape.leading_layers(point, depth), radius)

        best, value = projected.minimise(
            objective, project, layers, steps=steps, learning_rate=learning_rate
        )
        return best, jnp.exp(value / 2)

    return jax.vmap(one)(A, R, Sigma, tau)
