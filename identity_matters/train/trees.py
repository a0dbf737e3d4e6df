"""Nested variables as a flat dict of named arrays and a JSON-able skeleton, and back.

A checkpoint holds arrays by name and text. The skeleton is that of the containers: with
it the same dicts, lists and tuples come back, with the same keys. What would come back
as something else is refused before anything is written.
"""

import urllib.parse
from typing import Any

import flax.core
import jax
import jax.numpy as jnp
import numpy as np

# These come back as what they are. Other containers and subclasses would lose
# something.
_MAPPINGS = {"dict": dict, "FrozenDict": flax.core.FrozenDict}
_SEQUENCES = {"list": list, "tuple": tuple}
_ARRAYS = (np.ndarray, np.memmap)
# The kinds of NumPy's own numbers that can be saved.
_KINDS = "biufc"
# The most bytes of a number of these kinds; longer ones differ between platforms. On
# some, as on a Mac's, `np.longdouble` is no longer than that, and equals float64.
_MOST_BYTES = {"f": 8, "c": 16}
# The number types of ml_dtypes that can be saved, by name.
_SMALL = (
    "bfloat16",
    "int4",
    "float8_e4m3b11fnuz",
    "float8_e4m3fn",
    "float8_e4m3fnuz",
    "float8_e5m2",
    "float8_e5m2fnuz",
)


class NotStorableError(ValueError):
    """A tree holds something that would not come back as it is.

    The message names it.
    """


def split(tree: Any) -> tuple[Any, dict[str, Any]]:
    """Splits nested containers of arrays: (skeleton, arrays by name).

    The containers are dicts, FrozenDicts, lists and tuples.

    A skeleton is JSON-able: the name of an array; null for None; or a dict of one item,
    from the kind of the container to its parts, [[key, skeleton], ...] of mappings and
    [skeleton, ...] of sequences.

    >>> skeleton, arrays = split({"kernel": np.ones(2), "more": [np.zeros(1)]})
    >>> skeleton
    {'dict': [['kernel', 'kernel'], ['more', {'list': ['more.0']}]]}
    >>> sorted(arrays)
    ['kernel', 'more.0']

    Raises NotStorableError, before anything is copied, for other containers, keys that
    are neither text nor whole numbers, and leaves that are no NumPy or JAX arrays of
    numbers.
    """
    arrays: dict[str, Any] = {}
    return _split(tree, (), arrays), arrays


def join(skeleton: Any, arrays: dict[str, Any]) -> Any:
    """The tree whose `split` gave `skeleton` and `arrays`."""
    if skeleton is None:
        return None
    if isinstance(skeleton, str):
        return arrays[skeleton]
    ((kind, parts),) = skeleton.items()
    if kind in _MAPPINGS:
        return _MAPPINGS[kind]({key: join(part, arrays) for key, part in parts})
    return _SEQUENCES[kind](join(part, arrays) for part in parts)


def names(tree: Any) -> dict[str, Any]:
    """The leaves of any pytree by name, in the order of the tree.

    A name is, for example, "params.stem.kernel", as `split` names the same leaf.
    """
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {name([_part(key) for key in path]): leaf for path, leaf in leaves}


def name(path: Any) -> str:
    """One name for a path of keys; no two paths have the same."""
    return ".".join(map(_quoted, path))


def _split(tree: Any, path: tuple, arrays: dict[str, Any]) -> Any:
    if tree is None:
        return None
    for kind, mapping in _MAPPINGS.items():
        if type(tree) is mapping:
            _check_keys(tree, path)
            return {
                kind: [[key, _split(tree[key], (*path, key), arrays)] for key in tree]
            }
    for kind, sequence in _SEQUENCES.items():
        if type(tree) is sequence:
            return {
                kind: [_split(part, (*path, i), arrays) for i, part in enumerate(tree)]
            }
    _check_leaf(tree, path)
    arrays[name(path)] = tree
    return name(path)


def _check_keys(mapping: Any, path: tuple) -> None:
    kinds = {type(key) for key in mapping}
    if not (kinds <= {str} or kinds <= {int}):
        odd = next(key for key in mapping if type(key) is not str)
        raise NotStorableError(
            f"the keys of {_where(path)} must all be text or all whole numbers, got"
            f" {odd!r}"
        )
    for key in mapping:
        try:
            str(key).encode()
        except UnicodeEncodeError:
            raise NotStorableError(
                f"the key {key!r} of {_where(path)} is not valid text"
            ) from None


def _check_leaf(leaf: Any, path: tuple) -> None:
    kind = type(leaf).__name__
    if not (type(leaf) in _ARRAYS or isinstance(leaf, jax.Array | np.generic)):
        raise NotStorableError(
            f"{_where(path)} is a {kind}, which would not come back as such: only"
            " dicts, lists and tuples of NumPy or JAX arrays can be saved"
        )
    if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        raise NotStorableError(
            f"{_where(path)} is a random key: save jax.random.key_data of it"
        )
    dtype = np.dtype(leaf.dtype)
    is_long = dtype.itemsize > _MOST_BYTES.get(dtype.kind, dtype.itemsize)
    of_numpy = dtype.kind in _KINDS and not is_long
    if not of_numpy and dtype.name not in _SMALL:
        raise NotStorableError(
            f"{_where(path)} has dtype {dtype}, which cannot be saved"
        )
    if not dtype.isnative:
        raise NotStorableError(
            f"{_where(path)} has dtype {dtype.str}, whose byte order is not this"
            " machine's: convert it by .astype(dtype.newbyteorder('='))"
        )


def _where(path: tuple) -> str:
    return name(path) if path else "the tree"


def _quoted(key: Any) -> str:
    """A key as text without dots, to be one part of a name.

    Dots, per cents and characters beyond ASCII become "%...", the empty text "%".
    """
    if key == "":
        return "%"
    return urllib.parse.quote(str(key), safe=" !#$&'()*+,:;=?@[]~/").replace(".", "%2E")


def _part(key: Any) -> Any:
    """The key, index or attribute name in an entry of one of JAX's paths."""
    for attribute in ("key", "idx", "name"):
        if hasattr(key, attribute):
            return getattr(key, attribute)
    return str(key)
