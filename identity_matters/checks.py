"""Checks of arguments: each raises an error of one line that names the argument."""

import operator
import sys
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

# NumPy's own subclasses of ndarray that hold numbers and nothing else.
_PLAIN_ARRAYS = (np.ndarray, np.memmap, np.matrix)
# Numbers of this size and more are no int64, and may be no float64.
_LIMIT_OF_WHOLE = 2**63
# For messages: what `real_array` asks for if `axes` is one of these.
_NEEDED_AXES = {0: "be one number", 1: "have 1 axis"}
# Properties of classes whose instances are numbers with a unit.
_UNITS = ("unit", "units")


def check_whole(name: str, value: Any, least: int = 1, reason: str = "") -> int:
    """`value` as an int; ValueError unless it is whole and at least `least`.

    It must fit into 64 bits. The message ends with `reason`.

    >>> check_whole("depth", 10**400)
    Traceback (most recent call last):
    ValueError: depth must be less than 2^63 in size, got a number of 1329 bits
    """
    try:
        if isinstance(value, bool):
            raise TypeError
        whole = operator.index(value)
    except TypeError:
        raise ValueError(f"{name} must be a whole number, got {value!r}") from None
    if not -_LIMIT_OF_WHOLE < whole < _LIMIT_OF_WHOLE:
        # Python does not print integers of any length.
        raise ValueError(
            f"{name} must be less than 2^63 in size, got a number of"
            f" {whole.bit_length()} bits"
        )
    if whole < least:
        raise ValueError(f"{name} must be at least {least}{reason}, got {whole}")
    return whole


def plain_array(name: str, value: Any) -> np.ndarray:
    """`value` as a NumPy array of its own dtype; nothing may be lost.

    ``np.asarray`` silently drops the mask of a masked array and the unit of a quantity,
    also of those within a list. NaN and infinity pass: see `real_array`.

    Args:
      name: how the caller knows the argument; the message begins with it.
      value: a NumPy or JAX array, a number, or nested sequences of them.
    Raises:
      ValueError: `value` has a mask or a unit, or cannot be an array of booleans,
        integers, real or complex numbers (strings, objects, dates, rows of different
        lengths).

    >>> plain_array("x", [[1, 2], [3, 4]]).dtype.kind
    'i'
    >>> plain_array("x", np.ma.array([1.0, 2.0], mask=[False, True]))
    Traceback (most recent call last):
    ValueError: x must be a plain array of numbers, got a MaskedArray
    """
    if value is None:
        raise ValueError(f"{name} must be an array of numbers, got None")
    wrapped = _find_wrapped(value)
    if wrapped is not None:
        kind = type(wrapped).__name__
        raise ValueError(f"{name} must be a plain array of numbers, got a {kind}")
    if _is_traced(value):
        raise ValueError(
            f"{name} must be an array of numbers, which JAX does not know while it"
            " traces: call this function outside of jax.jit, jax.vmap and jax.grad"
        )
    try:
        array = np.asarray(value)
    except MemoryError:
        raise
    # Any object may convert itself, and raises what it likes.
    except Exception as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(f"{name} must be an array of numbers: {reason}") from error
    if not _holds_numbers(array.dtype):
        raise ValueError(f"{name} must hold numbers, got dtype {array.dtype}")
    return array


def label_array(name: str, labels: Any, examples: int) -> np.ndarray:
    """`labels` as integer[examples], of any size and sign.

    Raises:
      ValueError: there is not one integer for each example; the message says how names
        and one-hot rows become such labels.

    >>> label_array("y", ["cat", "dog"], 2)
    Traceback (most recent call last):
    ValueError: y must hold numbers, got dtype <U3; number the classes 0 ... r - 1, as \
np.unique(y, return_inverse=True) does
    """
    numbering = (
        "number the classes 0 ... r - 1, as"
        f" np.unique({name}, return_inverse=True) does"
    )
    try:
        array = plain_array(name, labels)
    except ValueError as error:
        raise ValueError(f"{error}; {numbering}") from None
    if array.shape != (examples,):
        advice = ""
        if array.ndim == 2 and len(array) == examples and array.shape[1] > 1:
            advice = f"; if its rows are one-hot, pass {name}.argmax(axis=1)"
        if array.shape == (examples, 1):
            advice = f"; pass {name}[:, 0]"
        raise ValueError(
            f"{name} must be {examples} integers, one for each example, got"
            f" {array.dtype}{array.shape}{advice}"
        )
    if not np.issubdtype(array.dtype, np.integer):
        raise ValueError(
            f"{name} must hold integers, got dtype {array.dtype}; {numbering}"
        )
    return array


def check_array_type(name: str, value: Any) -> None:
    """Raises unless `value` is a NumPy or JAX array, or a number, of numbers only.

    It looks at the type alone, so it costs no transfer and may be called while JAX
    traces. A mask or a unit is a ValueError. Any type but an array or a number is a
    TypeError, and so is an array that does not hold real numbers, or whose dtype JAX
    lacks, such as one in another byte order: a function that JAX has already compiled
    would take its bytes as they are, and give wrong results.

    >>> check_array_type("A", np.eye(2).astype(">f8"))
    Traceback (most recent call last):
    TypeError: A must have a dtype of JAX, got >f8; convert it, as by \
A.astype(np.float64)
    """
    is_number = isinstance(value, (np.generic, int, float))
    if not (is_number or isinstance(value, np.ndarray) or _is_of_jax(value)):
        kind = type(value).__name__
        raise TypeError(f"{name} must be a NumPy or JAX array, got a {kind}")
    if _find_wrapped(value) is not None:
        kind = type(value).__name__
        raise ValueError(f"{name} must be a plain array of numbers, got a {kind}")
    if not isinstance(value, (np.ndarray, np.generic)):
        return
    dtype = value.dtype
    if not _holds_numbers(dtype):
        raise TypeError(f"{name} must hold numbers, got dtype {dtype}")
    if dtype.kind == "c":
        raise TypeError(f"{name} must hold real numbers, got dtype {dtype}")
    # Not `dtype == np.longdouble`, which is float64 on some machines, as on a Mac's.
    is_long = dtype.kind == "f" and dtype.itemsize > 8
    if is_long or not dtype.isnative:
        known = "float64" if is_long else dtype.name
        raise TypeError(
            f"{name} must have a dtype of JAX, got {dtype}; convert it,"
            f" as by {name}.astype(np.{known})"
        )


def check_array_types(name: str, value: Any) -> None:
    """`check_array_type` of all arrays in tuples, named or not, and dicts.

    None passes.
    """
    if isinstance(value, Mapping):
        for key, item in value.items():
            check_array_types(f"{name}[{key!r}]", item)
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        for field, item in zip(value._fields, value, strict=True):
            check_array_types(f"{name}.{field}", item)
    elif isinstance(value, tuple):
        for i, item in enumerate(value):
            check_array_types(f"{name}[{i}]", item)
    elif value is not None:
        check_array_type(name, value)


def check_layers_and_rows(A: Any, x: Any) -> None:
    """ValueError unless A is [depth, d, d], and x [..., d].

    Other shapes may broadcast to the numbers of another net: the rows of one matrix
    would count as layers.
    """
    shape_of_A = np.shape(A)
    shape_of_x = np.shape(x)
    d = shape_of_A[-1] if shape_of_A else None
    if shape_of_A[1:] != (d, d) or shape_of_x[-1:] != (d,):
        raise ValueError(
            f"A must be [depth, d, d], and x [n, d], got shapes {shape_of_A} and"
            f" {shape_of_x}"
        )


def real_array(
    name: str,
    value: Any,
    *,
    axes: int | None = None,
    dtype: DTypeLike | None = np.float64,
) -> np.ndarray:
    """`value` as finite real numbers, converted to `dtype`; None keeps its own.

    Args:
      name, value: as in `plain_array`.
      axes: how many axes the array must have; None for any number.
      dtype: a floating type, in which the numbers must be finite, or None.
    Raises:
      ValueError: as in `plain_array`; or booleans or complex numbers (even if all
        imaginary parts are 0), NaN or infinity, an array without entries, or another
        number of axes.

    >>> real_array("R", [[1, 2], [3, 4]], axes=2)
    array([[1., 2.],
           [3., 4.]])
    >>> real_array("R", [[1.0, float("nan")]])
    Traceback (most recent call last):
    ValueError: R must be finite, got R[0, 1] = nan
    """
    array = plain_array(name, value)
    if array.dtype.kind in "bc":
        raise ValueError(f"{name} must hold real numbers, got dtype {array.dtype}")
    if axes is not None and array.ndim != axes:
        needed = _NEEDED_AXES.get(axes, f"have {axes} axes")
        raise ValueError(f"{name} must {needed}, got shape {array.shape}")
    if not array.size:
        raise ValueError(f"{name} must not be empty, got shape {array.shape}")
    if dtype is not None:
        # A number beyond `dtype` becomes infinite, which is refused below.
        with np.errstate(over="ignore"):
            array = array.astype(dtype, copy=False)
    finite = np.isfinite(array)
    if not finite.all():
        index = tuple(int(i) for i in np.argwhere(~finite)[0])
        place = f"{name}{list(index)}" if index else name
        raise ValueError(f"{name} must be finite, got {place} = {array[index]}")
    return array


def square_matrix(name: str, value: Any) -> np.ndarray:
    """`value` as f64[d, d], finite, d at least 1; ValueError as in `real_array`."""
    matrix = real_array(name, value)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise ValueError(f"{name} must be a square matrix, got shape {matrix.shape}")
    return matrix


def real_number(name: str, value: Any) -> float:
    """`value` as a float; ValueError unless it is one finite real number.

    >>> real_number("learning_rate", "0.1")
    Traceback (most recent call last):
    ValueError: learning_rate must be one finite real number, got '0.1'
    """
    try:
        return float(real_array(name, value, axes=0))
    except ValueError:
        if not (value is None or np.isscalar(value)):
            raise
        raise ValueError(
            f"{name} must be one finite real number, got {value!r}"
        ) from None


def positive_number(name: str, value: Any) -> float:
    """`value` as a float; ValueError unless it is one finite number above 0.

    >>> positive_number("learning_rate", -0.1)
    Traceback (most recent call last):
    ValueError: learning_rate must be above 0, got -0.1
    """
    number = real_number(name, value)
    if not number > 0:
        raise ValueError(f"{name} must be above 0, got {number}")
    return number


def non_negative_number(name: str, value: Any) -> float:
    """`value` as a float; ValueError unless it is one finite number, 0 or more."""
    number = real_number(name, value)
    if not number >= 0:
        raise ValueError(f"{name} must be 0 or more, got {number}")
    return number


def check_choice(name: str, value: Any, choices: Iterable[str]) -> str:
    """`value`; ValueError unless it is one of these texts.

    >>> check_choice("schedule", ["cosine"], ("step", "cosine"))
    Traceback (most recent call last):
    ValueError: schedule must be one of step, cosine, got ['cosine']
    """
    known = tuple(choices)
    # A list has no hash, and an array compares entry by entry: `in` would fail.
    if not isinstance(value, str) or value not in known:
        raise ValueError(f"{name} must be one of {', '.join(known)}, got {value!r}")
    return value


def _find_wrapped(value: Any) -> Any:
    """The first part of `value` that holds more than numbers, or None."""
    if isinstance(value, (list, tuple)):
        kinds = set(map(type, value))
        if all(issubclass(kind, (bool, int, float, complex, str)) for kind in kinds):
            return None
        wrapped = (_find_wrapped(item) for item in value)
        return next((item for item in wrapped if item is not None), None)
    if _is_of_jax(value):
        return None
    if isinstance(value, np.ndarray):
        return None if type(value) in _PLAIN_ARRAYS else value
    has_unit = any(hasattr(type(value), unit) for unit in _UNITS)
    return value if has_unit else None


def _is_of_jax(value: Any) -> bool:
    """Whether it is a JAX array; JAX is loaded if there is one."""
    jax = sys.modules.get("jax")
    return jax is not None and isinstance(value, jax.Array)


def _is_traced(value: Any) -> bool:
    """Whether it is an argument of a function that JAX traces, as in `jax.jit`."""
    return _is_of_jax(value) and isinstance(value, sys.modules["jax"].core.Tracer)


def _holds_numbers(dtype: np.dtype) -> bool:
    """Whether it holds booleans, integers, reals or complex numbers, also bfloat16."""
    of_numpy = np.issubdtype(dtype, np.bool_) or np.issubdtype(dtype, np.number)
    return of_numpy or dtype.type.__module__.partition(".")[0] == "ml_dtypes"
