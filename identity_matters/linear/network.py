"""The linear residual network ``x -> (I + A_l) ... (I + A_1) x`` (paper, section 2)."""

import jax
import jax.numpy as jnp
from numpy.typing import ArrayLike

from identity_matters.array_types import Array

ENABLE_X64 = 'call jax.config.update("jax_enable_x64", True) before creating the array'


def require_float64(array: ArrayLike, name: str) -> None:
    """Raises TypeError unless `array` is float64: the theory is checked to more than 7 digits."""
    # result_type, not array.dtype: without x64 a float64 NumPy array would silently become float32.
    if jnp.result_type(array) != jnp.float64:
        raise TypeError(f"{name} must be float64, is {jnp.result_type(array)} here; {ENABLE_X64}")


def check_square(matrix: Array, name: str, size: int | None = None) -> None:
    """Raises ValueError unless `matrix` has shape [d, d] (with d = `size` where that is given)."""
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise ValueError(f"{name} must be a square matrix, got shape {matrix.shape}")
    if size is not None and matrix.shape[0] != size:
        raise ValueError(
            f"{name} must be {size} x {size} like the layers, got shape {matrix.shape}"
        )


def check_stack(A: Array, name: str = "A") -> None:
    """Raises unless `A` is a stack of layers, f64[depth, d, d] with depth and d at least 1.

    Raises:
      TypeError: `A` is not float64.
      ValueError: `A` has another shape.
    """
    if A.ndim != 3 or A.shape[1] != A.shape[2] or 0 in A.shape:
        raise ValueError(
            f"{name} must have shape [depth, d, d] with depth and d at least 1, got {A.shape}"
        )
    require_float64(A, name)


@jax.jit
def standard_product(W: Array) -> jax.Array:
    """``W_l ... W_1``, the map of a deep linear network in the standard parameterisation.

    >>> standard_product(jnp.array([[[2.0]], [[3.0]]], jnp.float64))
    Array([[6.]], dtype=float64)

    Args:
      W: f64[depth, d, d]; ``W[0]`` is applied to the input first.
    Returns:
      f64[d, d].
    """
    check_stack(W, "W")
    identity = jnp.eye(W.shape[1], dtype=W.dtype)
    end_to_end, _ = jax.lax.scan(lambda M, layer: (layer @ M, None), identity, jnp.asarray(W))
    return end_to_end


@jax.jit
def product(A: Array) -> jax.Array:
    """``(I + A_l) ... (I + A_1)``, the map of a linear residual network.

    Each step adds ``A_i M`` to M instead of forming ``I + A_i``, which would round off the last
    digits of a small A_i.

    >>> jax.config.update("jax_enable_x64", True)
    >>> product(jnp.array([[[1.0]], [[2.0]]]))
    Array([[6.]], dtype=float64)

    Args:
      A: f64[depth, d, d]; ``A[0]`` is applied to the input first.
    Returns:
      f64[d, d].
    Raises:
      TypeError, ValueError: see `check_stack`.
    """
    check_stack(A)
    identity = jnp.eye(A.shape[1], dtype=A.dtype)
    end_to_end, _ = jax.lax.scan(lambda M, layer: (M + layer @ M, None), identity, jnp.asarray(A))
    return end_to_end


@jax.jit
def max_spectral_norm(A: Array) -> jax.Array:
    """``|||A||| = max_i ||A_i||``, the largest singular value of any layer.

    >>> max_spectral_norm(jnp.array([[[0.5]], [[-0.75]]], jnp.float64))
    Array(0.75, dtype=float64)

    Args:
      A: f64[depth, d, d].
    Returns:
      f64[].
    """
    check_stack(A)
    return jnp.max(jnp.linalg.svd(A, compute_uv=False))
