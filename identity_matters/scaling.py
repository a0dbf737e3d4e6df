"""Norms in JAX of arrays whose entries the dtype holds, but not their squares.

By a power of 2, and by `ldexp`: XLA turns a division by one number into a product with
its reciprocal, which is 0 for the largest floats. Entries below the least normal number
count as 0, as XLA takes them.
"""

import jax
import jax.numpy as jnp

from identity_matters.array_types import Array


def unit_size(x: Array, axes: tuple[int, ...]) -> tuple[jax.Array, jax.Array]:
    """``(x / 2^k, k)`` with the largest size over `axes` at least 1/2 and below 1.

    Args:
      x: f[...]; of zeros, k is 0.
      axes: over which the largest is taken; in k, i32[...], they have size 1.
    """
    largest = jnp.max(jnp.abs(x), axis=axes, keepdims=True)
    _, exponent = jnp.frexp(largest)
    return jnp.ldexp(x, -exponent), exponent
