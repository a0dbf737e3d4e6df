"""The base class of the nets: initial variables, and checks of settings."""

import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from identity_matters.checks import (
    check_choice,
    check_whole,
    non_negative_number,
    real_number,
)
from identity_matters.nets.initializers import CONSTANTS, Drawn

COMPUTE_DTYPES = ("float32", "bfloat16")


class Net(nn.Module):
    """What all nets of this package are: a Flax module whose `init` draws by NumPy."""

    @nn.nowrap
    def init(  # type: ignore[override]  # narrower than that of a Flax module
        self, key: jax.Array, images: Any, *, train: bool = False
    ) -> dict:
        """The initial variables, f32 arrays.

        They are those of `nets.init_variables`, without empty collections. Only the
        shape of `images` matters. One generator, seeded by the bits of the `key`, draws
        all numbers, also within `jax.jit`; `jax.vmap` over keys draws an ensemble.
        Raises TypeError if `key` is no key of JAX, ValueError for several keys.
        """
        key_data = _data_of_one_key(key)
        created = self.created(images)
        if isinstance(key_data, jax.core.Tracer):
            # By `jax.jit`, say: the bits are known when the program runs, which then
            # calls NumPy, under `jax.vmap` once for each key.
            draw = functools.partial(_draw_variables, created)
            shapes = nn.meta.unbox(created)
            return jax.pure_callback(draw, shapes, key_data, vmap_method="sequential")
        return jax.tree.map(jnp.asarray, _draw_variables(created, key_data))

    @nn.nowrap
    def created(self, images: Any) -> dict:
        """The variables for these images, each a `Drawn` or a `ShapeDtypeStruct`."""
        init = functools.partial(super().init, train=False)
        return jax.eval_shape(init, jax.random.key(0), images)


def _data_of_one_key(key: Any) -> jax.Array:
    """The bits of a key, u32[...]; raises unless it is one key of JAX."""
    is_typed = hasattr(key, "dtype") and jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    is_raw = getattr(key, "dtype", None) == jnp.uint32 and key.ndim > 0
    if not isinstance(key, jax.Array) or not (is_typed or is_raw):
        raise TypeError(f"key must be a key, such as jax.random.key(0), got {key!r}")
    key_data = jax.random.key_data(key)
    if key_data.ndim != 1:
        keys = key_data.shape[:-1]
        raise ValueError(
            f"key must be one key, got keys of shape {keys}; jax.vmap over them draws"
            " the variables of several nets"
        )
    return key_data


def _draw_variables(created: dict, key_data: Any) -> dict:
    """Draws all variables, in the order of their tree.

    Args:
      created: from `Net.created`.
      key_data: the bits of a key, whole numbers.

    Returns:
      A tree like `created`, of NumPy arrays, f32.
    """
    seed = np.random.SeedSequence(np.asarray(key_data).ravel().tolist())
    generator = np.random.Generator(np.random.Philox(seed))
    return jax.tree_util.tree_map_with_path(
        functools.partial(_draw_leaf, generator), created, is_leaf=_is_drawn
    )


def _draw_leaf(
    generator: np.random.Generator, path: tuple, leaf: Drawn | jax.ShapeDtypeStruct
) -> np.ndarray:
    """One variable: drawn by its own function, or full of the constant of its name."""
    if isinstance(leaf, Drawn):
        return np.asarray(leaf.draw(generator, leaf.value.shape), np.float32)
    name = path[-1].key
    return np.full(leaf.shape, CONSTANTS[name], np.float32)


def _is_drawn(leaf: Any) -> bool:
    """Whether this is a `Drawn`, which JAX would take apart otherwise."""
    return isinstance(leaf, Drawn)


def check_images(x: Any) -> None:
    """ValueError unless x is [n, h, w, c].

    Flax's convolutions take one image, and batches of batches, but the means over h and
    w would then be over other axes.
    """
    if x.ndim != 4:
        raise ValueError(
            f"images must be [n, h, w, c], got shape {x.shape}; for one image pass"
            " image[None], for images without channels images[..., None]"
        )


def check(
    net: nn.Module,
    *,
    counts: dict[str, int] | None = None,
    scales: tuple = (),
    rates: tuple = (),
    switches: tuple = (),
    choices: dict | None = None,
) -> None:
    """Checks fields of a net; `num_classes` and `compute_dtype` always.

    Args:
      counts: the least values of the fields that are whole numbers, by name.
      scales: the fields that must be at least 0 and finite.
      rates: the fields that must be at least 0 and below 1.
      switches: the fields that must be True or False.
      choices: the allowed texts of other fields, by name.
    Raises:
      ValueError: a field is out of range; with its value and what is allowed.
    """
    for name, least in {"num_classes": 1, **(counts or {})}.items():
        check_whole(name, getattr(net, name), least)
    for name in scales:
        non_negative_number(name, getattr(net, name))
    for name in rates:
        rate = real_number(name, getattr(net, name))
        if not 0 <= rate < 1:
            raise ValueError(f"{name} must be at least 0 and below 1, got {rate}")
    for name in switches:
        value = getattr(net, name)
        # Not "False", which counts as true.
        if not isinstance(value, (bool, np.bool_)):
            raise ValueError(f"{name} must be True or False, got {value!r}")
    for name, allowed in {"compute_dtype": COMPUTE_DTYPES, **(choices or {})}.items():
        check_choice(name, getattr(net, name), allowed)
