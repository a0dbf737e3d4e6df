"""The array type for arguments from NumPy or JAX, and `jax.jit` of such arguments."""

import functools
import inspect
from collections.abc import Callable
from typing import Any, cast

import jax
import numpy as np

from identity_matters.checks import check_array_types

# Has a shape and a dtype, unlike `numpy.typing.ArrayLike`, which may also be a list.
Array = jax.Array | np.ndarray


def jit_of_array_trees(
    function: Callable, *, static_argnames: Any = ()
) -> jax.stages.Wrapped:
    """`jax.jit` of arrays and tuples of them; it refuses as `check_array_type` does.

    So no mask or unit is dropped, and no byte order is read wrongly. Like that of
    `jax.jit`, the result has `lower`.
    """
    compiled = jax.jit(function, static_argnames=static_argnames)
    names = tuple(inspect.signature(function).parameters)

    @functools.wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        for name, value in (*zip(names, args, strict=False), *kwargs.items()):
            if name not in static_argnames:
                check_array_types(name, value)
        return compiled(*args, **kwargs)

    checked.lower = compiled.lower  # type: ignore[attr-defined]
    return cast(jax.stages.Wrapped, checked)
