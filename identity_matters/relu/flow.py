"""Gradient flow of ReLU blocks, integrated: `training` promises where it goes."""

import functools

import jax
import jax.numpy as jnp

from identity_matters.array_types import Array, jit_of_array_trees
from identity_matters.checks import check_whole
from identity_matters.relu import model
from identity_matters.relu.model import Blocks, Problem


@functools.partial(jit_of_array_trees, static_argnames=("steps",))
def flow(
    blocks: Blocks, problem: Problem, time: Array, *, steps: int
) -> tuple[Blocks, dict[str, jax.Array]]:
    """Gradient flow of m nets for `time`, f64[m], by classical Runge-Kutta steps.

    Args:
      blocks, problem: with a leading axis of m.
      time: f64[m], how long each flows.
      steps: of each.
    Returns:
      The last weights and curves, at the start and after each step, f64[m, steps + 1]:
      "risk", and "output_travel" and "input_travel", the distances that
      `training.Training` bounds. All in the common dtype of blocks and problem.
    Raises:
      ValueError: `steps` is not a whole number from 1, or there is not one time for
        each net.
    """
    steps = check_whole("steps", steps)
    if blocks.U.ndim != 4 or time.shape != blocks.U.shape[:1]:
        raise ValueError(
            "blocks must have a leading axis of nets, and time one number for each net,"
            f" got U of shape {blocks.U.shape}, and time of shape {time.shape}"
        )
    blocks, problem = model.in_one_dtype(blocks, problem)

    def integrate(start, sample, duration):
        step = (duration / steps).astype(start.U.dtype)

        def velocity(weights):
            return jax.tree.map(jnp.negative, jax.grad(model.risk)(weights, sample))

        def moved(weights, direction, length):
            return jax.tree.map(lambda w, v: w + length * v, weights, direction)

        def update(weights, _):
            first = velocity(weights)
            second = velocity(moved(weights, first, step / 2))
            third = velocity(moved(weights, second, step / 2))
            fourth = velocity(moved(weights, third, step))
            mean = jax.tree.map(
                lambda p, q, r, s: (p + 2 * q + 2 * r + s) / 6,
                first,
                second,
                third,
                fourth,
            )
            weights = moved(weights, mean, step)
            return weights, measure(weights)

        def measure(weights):
            U, V, s = jax.tree.map(jnp.subtract, weights, start)
            squared = jnp.sum(U**2) + (0.0 if s is None else jnp.sum(s**2))
            return {
                "risk": model.risk(weights, sample),
                "output_travel": jnp.sqrt(jnp.sum(V**2)),
                "input_travel": jnp.sqrt(squared),
            }

        end, curves = jax.lax.scan(update, start, length=steps)
        at_start = measure(start)
        return end, {
            name: jnp.append(at_start[name], curves[name]) for name in at_start
        }

    return jax.vmap(integrate)(blocks, problem, time)
