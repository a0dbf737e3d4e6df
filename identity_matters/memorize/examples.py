"""Checks of what is memorised: inputs, labels, the key, the dtype, the memory."""

import hashlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from identity_matters import jax_settings
from identity_matters.array_types import Array
from identity_matters.checks import check_whole, label_array, plain_array
from identity_matters.limits import memory_bytes

# More classes than this, and than examples,
# are not inferred: such labels are probably names.
MOST_INFERRED_CLASSES = 1000


class ConflictingLabelsError(ValueError):
    """Two equal inputs have different labels; `indices` are those of the first pair."""

    def __init__(self, message: str, indices: tuple[int, int]):
        super().__init__(message)
        self.indices = indices


def distinct_examples(
    x: ArrayLike, y: ArrayLike, num_classes: int | None, dtype: DTypeLike
) -> tuple[np.ndarray, np.ndarray, int]:
    """The examples of `memorize`, checked and without repeated inputs, in order, and r.

    Inputs are compared in `dtype`; 0.0 and -0.0 are equal.

    Args:
      x: real numbers [n, d].
      y: integer[n], labels in 0 ... r - 1.
      num_classes: r, or None for the largest label plus one.
      dtype: float32 or float64.
    Raises:
      ConflictingLabelsError: equal inputs have different labels.
      ValueError: a wrong kind, shape or value, or entries beyond `dtype`.
    """
    x = plain_array("x", x)
    check_inputs(x, dtype)
    y = label_array("y", y, len(x))
    num_classes = _check_labels(y, num_classes)
    kept = _first_of_equal(x, y, dtype)
    if len(kept) < len(x):  # no copy of x where all are distinct
        x = x[kept]
        y = y[kept]
    return x, y, num_classes


def largest_entry(x: np.ndarray) -> float:
    """The largest absolute value in `x`, without the copy that np.abs(x) makes."""
    return max(float(x.max()), -float(x.min()))


def check_inputs(x: np.ndarray, dtype: DTypeLike) -> None:
    """Raises ValueError unless x is [n, d], real, and finite in `dtype`."""
    if x.dtype.kind == "c":
        raise ValueError(f"x must hold real numbers, got {x.dtype}")
    if x.ndim != 2 or 0 in x.shape:
        raise ValueError(
            "x must have shape [n, d] with n and d at least 1, got"
            f" {shape_and_advice(x)}"
        )
    largest = largest_entry(x)
    if not np.isfinite(largest):
        i = np.argmin(np.isfinite(x).all(axis=1))
        raise ValueError(f"x must be finite, but x[{i}] holds NaN or infinity")
    if largest > float(np.finfo(dtype).max):
        raise ValueError(
            f"entries of x up to {largest:.3g} overflow {dtype}: scale them down, or"
            " use float64"
        )


def shape_and_advice(x: Array) -> str:
    """The shape of x for a message, and how one example or images become rows."""
    if x.ndim == 1:
        return f"{x.shape}; x[None] is one row"
    if x.ndim > 2:
        return f"{x.shape}; x.reshape(len(x), -1) has a row for each x[i]"
    return f"{x.shape}"


def _check_labels(y: np.ndarray, num_classes: int | None) -> int:
    """The number of classes r; ValueError unless y is in 0 ... r - 1."""
    inferred = max(1, int(y.max()) + 1)
    if num_classes is None and inferred > max(MOST_INFERRED_CLASSES, len(y)):
        raise ValueError(
            f"labels go up to {inferred - 1}: number the classes 0 ... r - 1, as"
            " np.unique(y, return_inverse=True) does, or pass num_classes"
        )
    if num_classes is None:
        num_classes = inferred
    else:
        num_classes = check_whole("num_classes", num_classes)
    outside = np.flatnonzero((y < 0) | (y >= num_classes))
    if outside.size:
        i = outside[0]
        raise ValueError(
            f"labels must lie in 0 ... {num_classes - 1}, but y[{i}] = {y[i]}"
        )
    return num_classes


def _first_of_equal(x: np.ndarray, y: np.ndarray, dtype: DTypeLike) -> list[int]:
    """Indices of the rows of x that equal no earlier one.

    Raises ConflictingLabelsError if two equal rows have different labels.
    """
    first_with_digest: dict[bytes, int] = {}
    zero = np.zeros((), dtype)
    for i, row in enumerate(x):
        # Adding zero turns -0.0, whose bits differ, into 0.0.
        row_bytes = (row.astype(dtype) + zero).tobytes()
        digest = hashlib.blake2b(row_bytes, digest_size=16).digest()
        j = first_with_digest.setdefault(digest, i)
        if y[i] != y[j]:
            raise _conflict(x, y, first=j, second=i, dtype=np.dtype(dtype))
    return list(first_with_digest.values())


def _conflict(
    x: np.ndarray, y: np.ndarray, *, first: int, second: int, dtype: np.dtype
) -> ConflictingLabelsError:
    """The error about two rows that are equal in `dtype`."""
    if np.array_equal(x[second], x[first]):
        how_equal = "identical"
        advice = "no network can fit both"
    elif dtype == np.float64:
        how_equal = "equal in float64"
        advice = "subtract an offset, which all inputs have"
    else:
        how_equal = f"equal in {dtype}"
        advice = "subtract an offset, or use float64"
    return ConflictingLabelsError(
        f"inputs {first} and {second} are {how_equal} but have labels {y[first]} and"
        f" {y[second]}: {advice}",
        (first, second),
    )


def check_dtype(x: np.ndarray, dtype: DTypeLike | None) -> np.dtype:
    """The network's dtype, see `memorize`; raises ValueError or TypeError."""
    if dtype is None:
        dtype = jnp.result_type(float) if x.dtype == np.float64 else np.float32
    try:
        dtype = np.dtype(dtype)
    except TypeError:
        raise ValueError(f"dtype must be float32 or float64, got {dtype!r}") from None
    if dtype not in (np.float32, np.float64):
        raise ValueError(f"dtype must be float32 or float64, got {dtype}")
    if dtype == np.float64:
        check_float64(advice='; or pass dtype="float32"')
    return dtype


def check_float64(advice: str = "") -> None:
    """TypeError, with this advice, unless JAX has its 64-bit types switched on."""
    if jnp.result_type(float) != np.float64:
        raise TypeError(
            'float64 needs jax.config.update("jax_enable_x64", True) first' + advice
        )


def check_precision(network: Any) -> None:
    """TypeError if the network has float64 numbers and JAX would round them.

    Where its 64-bit types are off, JAX silently takes them for float32.
    """
    dtypes = [getattr(leaf, "dtype", None) for leaf in jax.tree.leaves(network)]
    if np.float64 in dtypes and jnp.result_type(float) != np.float64:
        raise TypeError(
            "the network is float64, which needs"
            ' jax.config.update("jax_enable_x64", True) first'
        )


def check_key(key: Any) -> jax.Array:
    """A typed PRNG key; None is ``jax_settings.random_key(0)``.

    Raises ValueError for anything else.
    """
    if key is None:
        return jax_settings.random_key(0)
    is_typed = isinstance(key, jax.Array) and jnp.issubdtype(
        key.dtype, jax.dtypes.prng_key
    )
    if not is_typed or key.shape:
        raise ValueError(
            f"key must be one typed PRNG key, such as jax.random.key(0), got {key!r}"
        )
    return key


def random_generator(key: jax.Array) -> np.random.Generator:
    """NumPy's generator, seeded by a typed PRNG key."""
    return np.random.default_rng(np.asarray(jax.random.bits(key, (4,), np.uint32)))


def check_memory(needed_bytes: float, what: str) -> None:
    """Raises ValueError if building `what` takes more memory than there is."""
    available_bytes = memory_bytes()
    if needed_bytes > available_bytes:
        raise ValueError(
            f"building {what} takes {needed_bytes / 1e9:.3g} GB of the"
            f" {available_bytes / 1e9:.3g} GB that this process may use: choose a"
            " smaller width, or fewer classes"
        )
