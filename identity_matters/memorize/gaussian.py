"""Gaussian arrays; those of small shapes share one compiled program."""

import math

import jax
import numpy as np

# Compiling for a new shape takes JAX half a second; drawing this many, milliseconds.
_SHARED_SIZE = 2**16


def normal(
    key: jax.Array, shape: tuple[int, ...], dtype: np.dtype | type[np.floating]
) -> np.ndarray | jax.Array:
    """`jax.random.normal`: independent N(0, 1) entries, f[*shape].

    With JAX's default settings they are the same numbers: each depends only on the key
    and on its place in the flattened array, so a small array begins a larger one.
    Within `jax.jit` it is that function.
    """
    if isinstance(key, jax.core.Tracer):
        return jax.random.normal(key, shape, dtype)
    size = math.prod(shape)
    if size > _SHARED_SIZE:
        return np.asarray(jax.random.normal(key, shape, dtype))
    numbers = np.asarray(jax.random.normal(key, (_SHARED_SIZE,), dtype))
    return numbers[:size].reshape(shape)
