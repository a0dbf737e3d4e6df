"""The linear residual net, its excess risk and exact gradient in O(depth) products.

Data ``y = R x + xi`` with ``xi ~ N(0, I)``; network ``yhat = B (I + A_l) ... (I + A_1)
C x``. The paper has ``B = C = I``; Zou, Long & Gu 2020 have fixed input and output maps
C and B. With

    M_i = (I + A_i) ... (I + A_1) C,      E = B M_l - R,

Claim 2.3 reads ``f(A) = E||y - yhat||^2 = ||E Sigma^{1/2}||_F^2 + C``. There, and
wherever this package says f - C, C is not the input map but the paper's constant
``E||xi||^2``. Lemma 2.4, printed with the factors on both sides of E Sigma the other
way round (P5 of docs/theory/errata.md), reads

    df/dA_i = 2 (I + A_{i+1}^T) ... (I + A_l^T) B^T E Sigma M_{i-1}^T.

A forward pass keeps every M_i, and a backward pass carries ``W_i = (I + A_{i+1}^T)
W_{i+1}`` from ``W_l = 2 B^T E Sigma``: 3 depth products in all, not the O(depth^2) of
the formula as it stands. A standard network ``W_l ... W_1`` is the case ``A_i = W_i -
I``, with the same gradient.
"""

import functools
import inspect
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from identity_matters.array_types import Array
from identity_matters.checks import check_array_type
from identity_matters.linear import second_moment

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def jit_of_arrays(
    function: Callable[_Arguments, _Result],
) -> Callable[_Arguments, _Result]:
    """`jax.jit`, but it refuses arguments whose conversion would drop something.

    The functions of this package take NumPy or JAX arrays: a list, or an array of
    objects or in another byte order, is a TypeError, an array with a mask or a unit a
    ValueError. NaN and infinity go through the arithmetic like other numbers. A `Sigma`
    that is not symmetric up to rounding is a ValueError. This is not checked while JAX
    traces, when its entries are not known. Otherwise each call reads them on the host;
    where that takes too long, call from within a function that is jitted itself.
    """
    compiled = jax.jit(function)
    parameters = inspect.signature(function).parameters
    names = tuple(parameters)
    optional = {name for name in names if parameters[name].default is None}

    @functools.wraps(function)
    def checked(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        for name, value in (*zip(names, args, strict=False), *kwargs.items()):
            if value is not None or name not in optional:
                check_array_type(name, value)
            if name == "Sigma" and not isinstance(value, jax.core.Tracer):
                second_moment.check_symmetric(np.asarray(value))
        return compiled(*args, **kwargs)

    return checked


def check_array(
    name: str, array: Array, shape: tuple[int | None, ...], needed: str
) -> None:
    """Raises unless `array` is f64 of `shape`, where None matches any size from 1.

    A wrong shape is a ValueError, a wrong dtype a TypeError: the theory needs more than
    7 digits.
    """
    fits = array.ndim == len(shape) and all(
        size > 0 and needed_size in (None, size)
        for needed_size, size in zip(shape, array.shape, strict=True)
    )
    if not fits:
        raise ValueError(f"{name} must {needed}, got shape {array.shape}")
    _check_real_floating(name, array)
    # result_type, not array.dtype: without x64 a float64 NumPy array would silently
    # become float32.
    dtype = jnp.result_type(array)
    if dtype == jnp.float64:
        return
    if jnp.result_type(float) == jnp.float64:
        raise TypeError(
            f"{name} must be float64, is {dtype}; convert it, as by"
            f" {name}.astype(np.float64)"
        )
    raise TypeError(
        f"{name} must be float64, and JAX would make it {dtype}: call"
        ' jax.config.update("jax_enable_x64", True) at the start of the program'
    )


def _check_real_floating(name: str, array: Array) -> None:
    """Raises TypeError for integers, booleans and complex numbers."""
    if array.dtype.kind in "iu":
        raise TypeError(
            f"{name} must be float64, got dtype {array.dtype}; convert it, as by"
            f" {name}.astype(np.float64)"
        )
    if array.dtype.kind in "bc":
        raise TypeError(f"{name} must hold real numbers, got dtype {array.dtype}")


def check_stack(A: Array) -> None:
    """Raises unless `A` is f64[depth, d, d]; see `check_array`."""
    needed = "have shape [depth, d, d] with depth and d at least 1"
    d = A.shape[-1] if A.ndim else None
    check_array("A", A, (None, d, d), needed)


def _through_layers(A: Array, M: Array | None) -> tuple[jax.Array, jax.Array]:
    """``(I + A_l) ... (I + A_1) M`` and the input of every layer; None is M = I."""
    start = jnp.eye(A.shape[1], dtype=A.dtype) if M is None else jnp.asarray(M)

    def layer_output_and_input(h, layer):
        # Forming I + A_i would lose digits of a small A_i.
        return h + layer @ h, h

    return jax.lax.scan(layer_output_and_input, start, jnp.asarray(A))


@jit_of_arrays
def product(A: Array) -> jax.Array:
    """``(I + A_l) ... (I + A_1)``, the map of a linear residual network: f64[d, d].

    A: f64[depth, d, d]; ``A[0]`` is applied to the input first. For errors see
    `check_array`.

    >>> jax.config.update("jax_enable_x64", True)
    >>> product(jnp.array([[[1.0]], [[2.0]]]))
    Array([[6.]], dtype=float64)
    """
    check_stack(A)
    return _through_layers(A, None)[0]


@jit_of_arrays
def max_spectral_norm(A: Array) -> jax.Array:
    """``|||A||| = max_i ||A_i||``, largest singular value: f64[depth, d, d] -> f64[].

    For errors see `check_array`.

    >>> max_spectral_norm(jnp.array([[[0.5]], [[-0.75]]], jnp.float64))
    Array(0.75, dtype=float64)
    """
    check_stack(A)
    singular_values = jnp.linalg.svd(A, compute_uv=False)
    # On CPUs XLA's maximum of 4096 numbers or more leaves out a NaN (jaxlib 0.10.2).
    has_nan = jnp.any(jnp.isnan(singular_values))
    return jnp.where(has_nan, jnp.nan, jnp.max(singular_values))


def clip_singular_values(A: Array, tau: float | Array) -> jax.Array:
    """The point of B_tau nearest to A in Frobenius norm: f64[..., d, d], as A."""
    check_array_type("A", A)
    left, values, right = jnp.linalg.svd(A, full_matrices=False)
    return (left * jnp.minimum(values, tau)[..., None, :]) @ right


def _checked_error_and_inputs(
    A: Array,
    R: Array,
    Sigma: Array,
    *,
    input_map: Array | None = None,
    output_map: Array | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Checks all shapes and dtypes, then returns E and the inputs of all layers."""
    check_stack(A)
    width = A.shape[1]
    inputs = outputs = width
    if input_map is not None:
        check_array(
            "input_map", input_map, (width, None), f"be {width} x any to fit the layers"
        )
        inputs = input_map.shape[1]
    if output_map is not None:
        check_array(
            "output_map",
            output_map,
            (None, width),
            f"be any x {width} to fit the layers",
        )
        outputs = output_map.shape[0]
    fit = f"to fit layers of width {width} and the input and output maps"
    check_array("R", R, (outputs, inputs), f"be {outputs} x {inputs} {fit}")
    check_array(
        "Sigma",
        Sigma,
        (inputs, inputs),
        f"be {inputs} x {inputs} like the columns of R",
    )
    end_to_end, layer_inputs = _through_layers(A, input_map)
    if output_map is not None:
        end_to_end = jnp.asarray(output_map) @ end_to_end
    return end_to_end - R, layer_inputs


@jit_of_arrays
def excess_risk(A: Array, R: Array, Sigma: Array) -> jax.Array:
    """``f(A) - C = ||E Sigma^{1/2}||_F^2 = tr(E Sigma E^T)`` (Claim 2.3): f64[].

    It costs l + 1 products of d x d matrices. A: f64[depth, d, d]; R and the second
    moment Sigma, which must be symmetric: f64[d, d]. For errors see `check_array` and
    `jit_of_arrays`.

    >>> jax.config.update("jax_enable_x64", True)
    >>> A, R, Sigma = jnp.zeros((1, 1, 1)), jnp.full((1, 1), 2.0), jnp.full((1, 1), 2.0)
    >>> excess_risk(A, R, Sigma)  # (1 - 2)^2 2
    Array(2., dtype=float64)
    """
    E, _ = _checked_error_and_inputs(A, R, Sigma)
    return jnp.sum(E * (E @ Sigma))


@jit_of_arrays
def excess_risk_and_gradient(
    A: Array,
    R: Array,
    Sigma: Array,
    *,
    input_map: Array | None = None,
    output_map: Array | None = None,
) -> tuple[jax.Array, jax.Array]:
    """f - C, f64[], and all ``df/dA_i`` (Lemma 2.4), f64[depth, m, m].

    They cost 3 depth + O(1) products of m x m matrices.

    >>> A, R, Sigma = jnp.zeros((1, 1, 1)), jnp.full((1, 1), 2.0), jnp.full((1, 1), 2.0)
    >>> excess_risk_and_gradient(A, R, Sigma)
    (Array(2., dtype=float64), Array([[[-4.]]], dtype=float64))

    Args:
      A: f64[depth, m, m].
      R: f64[d_out, d_in].
      Sigma: f64[d_in, d_in], symmetric: only then is this the gradient.
      input_map: f64[m, d_in], which stays fixed; None is the identity.
      output_map: f64[d_out, m], the same.
    Raises:
      ValueError, TypeError: a wrong shape or dtype, see `check_array`; or Sigma is not
        symmetric, see `jit_of_arrays`.
    """
    E, layer_inputs = _checked_error_and_inputs(
        A, R, Sigma, input_map=input_map, output_map=output_map
    )

    # Carries W^T, so that no product has a transposed factor, which is slower on CPUs.
    def backward(Wt, layer_and_input):
        layer, M = layer_and_input
        return Wt + Wt @ layer, M @ Wt

    weighted = E @ Sigma
    W = 2.0 * (weighted if output_map is None else output_map.T @ weighted)
    _, transposed = jax.lax.scan(backward, W.T, (A, layer_inputs), reverse=True)
    return jnp.sum(E * weighted), jnp.swapaxes(transposed, 1, 2)


def risk_gradient(A: Array, R: Array, Sigma: Array) -> jax.Array:
    """``df/dA_i`` of all layers (Lemma 2.4), f64[depth, d, d]; see `excess_risk`.

    >>> A, R, Sigma = jnp.zeros((2, 1, 1)), jnp.full((1, 1), 2.0), jnp.ones((1, 1))
    >>> risk_gradient(A, R, Sigma).ravel()
    Array([-2., -2.], dtype=float64)
    """
    return excess_risk_and_gradient(A, R, Sigma)[1]
