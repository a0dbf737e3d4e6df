"""What the networks share: initial weights, shortcuts, pooling, dropout, checks of
settings.

Images are [n, h, w, c] and kernels [k, k, in, out]. Products outside convolutions have
full precision: accelerators would otherwise round float32 factors to TF32 or bfloat16.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import flax
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from identity_matters import random_matrices
from identity_matters.array_types import Array

COMPUTE_DTYPES = ("float32", "bfloat16")
# of running statistics, as in the base code and in Torch (momentum 0.1)
BATCH_NORM_DECAY = 0.9


@flax.struct.dataclass
class Drawn(nn.Partitioned[Any]):
    """A parameter that `Net.init` draws by ``draw(generator, shape) -> float[shape]``.

    JAX would compile a random function for each shape, 100 in DenseNet; NumPy compiles
    none. Flax unboxes this to `value`, a placeholder while it infers the shapes. It is
    NaN, so that a net whose numbers were not drawn cannot pass for one that was.
    """

    draw: Callable = flax.struct.field(pytree_node=False, default=None)


def drawn_by(draw: Callable) -> Callable:
    """An initializer for Flax: see `Drawn`."""
    return lambda key, shape, dtype=jnp.float32: Drawn(
        jnp.full(shape, jnp.nan, dtype), (), draw=draw
    )


# Initial values, by name, of the leaves that are not `Drawn`.
CONSTANTS = {"bias": 0.0, "scale": 1.0, "mean": 0.0, "var": 1.0}


class Net(nn.Module):
    """What all nets of this package are: a Flax module whose `init` draws with
    NumPy.
    """

    @nn.nowrap
    def init(  # type: ignore[override]  # narrower than that of a Flax module
        self, key: jax.Array, images: Any, *, train: bool = False
    ) -> dict:
        """The initial variables, f32 arrays: those of `nets.init_variables`, without
        empty ones.

        Only the shape of `images` matters. One generator, seeded by the bits of the
        typed `key`, draws all numbers. If the key is traced (by `jax.jit`, say), the
        program calls NumPy.
        """
        created = self.created(images)

        def draw_all(key_data) -> dict:
            seed = np.random.SeedSequence(np.asarray(key_data).ravel().tolist())
            generator = np.random.Generator(np.random.Philox(seed))

            def draw(path, leaf) -> np.ndarray:
                if isinstance(leaf, Drawn):
                    return np.asarray(
                        leaf.draw(generator, leaf.value.shape), np.float32
                    )
                return np.full(leaf.shape, CONSTANTS[path[-1].key], np.float32)

            return jax.tree_util.tree_map_with_path(
                draw, created, is_leaf=lambda leaf: isinstance(leaf, Drawn)
            )

        key_data = jax.random.key_data(key)
        if isinstance(key_data, jax.core.Tracer):
            return jax.pure_callback(draw_all, nn.meta.unbox(created), key_data)
        return jax.tree.map(jnp.asarray, draw_all(key_data))

    @nn.nowrap
    def created(self, images: Any) -> dict:
        """The shapes of the variables for these images, each `Drawn` or a
        `ShapeDtypeStruct`.
        """
        init = functools.partial(super().init, train=False)
        return jax.eval_shape(init, jax.random.key(0), images)


def normal(deviation: Callable[[tuple[int, ...]], float]) -> Callable:
    """A `kernel_init`: N(0, deviation(shape of the kernel)^2)."""
    return drawn_by(
        lambda rng, shape: (
            np.float32(deviation(shape)) * rng.standard_normal(shape, np.float32)
        )
    )


def uniform(limit: Callable[[tuple[int, ...]], float]) -> Callable:
    """A `kernel_init`: U(-limit(shape of the kernel), limit(...))."""
    return drawn_by(
        lambda rng, shape: (
            np.float32(limit(shape)) * (2 * rng.random(shape, np.float32) - 1)
        )
    )


def constant(value: float) -> Callable:
    """An initializer: `value` everywhere."""
    return drawn_by(lambda rng, shape: np.full(shape, value, np.float32))


def orthogonal(scale: float) -> Callable:
    """A `kernel_init`: `scale` times uniformly random orthogonal matrices [..., width,
    width].
    """
    return drawn_by(
        lambda rng, shape: (
            scale * random_matrices.orthogonal(rng, shape[:-2], shape[-1])
        )
    )


def fan_out(shape: tuple[int, ...]) -> int:
    """k^2 c of a kernel [k, k, in, c], or c of a matrix [in, c]."""
    return math.prod(shape[:-2]) * shape[-1]


def _fan_in(shape) -> int:
    return math.prod(shape[:-1])


def paper(scale: float = 1.0) -> Callable:
    """N(0, (scale / (k^2 c))^2), section 4's choice for the residual convolutions."""
    return normal(lambda shape: scale / fan_out(shape))


def standard(scale: float = 1.0) -> Callable:
    """N(0, (scale / (k sqrt(c)))^2), which section 4 calls the standard choice."""
    return normal(lambda shape: scale / math.sqrt(fan_out(shape)))


# N(0, 2 / (k^2 c)): ResNet and DenseNet in their authors' or Facebook's Torch code.
HE_FAN_OUT = standard(math.sqrt(2))
# U(-sqrt(3 / m), sqrt(3 / m)), m inputs to each output. TensorFlow's
# `uniform_unit_scaling`, which the paper's base code uses for its last matrix; Caffe
# calls it "xavier".
UNIFORM_UNIT = uniform(lambda shape: math.sqrt(3 / _fan_in(shape)))
# U(-1 / sqrt(m), 1 / sqrt(m)): Torch's default for linear layers.
TORCH_LINEAR = uniform(lambda shape: 1 / math.sqrt(_fan_in(shape)))


def classifier(num_classes: int) -> nn.Dense:
    """A linear layer with Torch's initial kernel and zero bias, always computed in
    float32.
    """
    return nn.Dense(
        num_classes,
        dtype=jnp.float32,
        precision=jax.lax.Precision.HIGHEST,
        kernel_init=TORCH_LINEAR,
        name="linear",
    )


def batch_norm(
    net: nn.Module, train: bool, epsilon: float
) -> Callable[..., nn.BatchNorm]:
    """A partial `nn.BatchNorm` over n, h, w that lacks its name.

    In training, statistics are those of the batch, in float32, over all devices of the
    mapped axis `net.axis_name` if there is one. The variance is always the biased one;
    Torch keeps the unbiased one for evaluation, a factor 1 + 1/(n h w - 1).
    """
    return functools.partial(
        nn.BatchNorm,
        use_running_average=not train,
        momentum=BATCH_NORM_DECAY,
        epsilon=epsilon,
        dtype=net.compute_dtype,
        axis_name=net.axis_name,
    )


def check(
    net: nn.Module,
    *,
    at_least: dict | None = None,
    rates: tuple = (),
    choices: dict | None = None,
) -> None:
    """Raises ValueError for an invalid field of `net`, with its value and what is
    allowed.

    `num_classes` and `compute_dtype` are always checked. `at_least` has the least
    values of other fields, `choices` the allowed ones; fields in `rates` must be at
    least 0 and below 1.
    """
    for name, least in {"num_classes": 1, **(at_least or {})}.items():
        if not getattr(net, name) >= least:  # `not`: NaN fails, too
            raise ValueError(
                f"{name} must be at least {least}, got {getattr(net, name)}"
            )
    for name in rates:
        if not 0 <= getattr(net, name) < 1:
            raise ValueError(
                f"{name} must be at least 0 and below 1, got {getattr(net, name)}"
            )
    for name, allowed in {"compute_dtype": COMPUTE_DTYPES, **(choices or {})}.items():
        if getattr(net, name) not in allowed:
            known = ", ".join(map(repr, allowed))
            raise ValueError(
                f"{name} must be one of {known}, got {getattr(net, name)!r}"
            )


def convolution(images: jax.Array, kernel: jax.Array, strides, padding, **options):
    """`jax.lax.conv_general_dilated` for Flax's layers, faster on CPUs for tiny maps.

    Where the map is smaller than the kernel, patches are multiplied by it: for many
    maps of 2 x 2, that is an order of magnitude faster than XLA's convolution.
    """
    (n, h, w, _), (k, _, _, c_out) = images.shape, kernel.shape
    if (padding, max(strides)) != ("SAME", 1) or min(h, w) >= k:
        return jax.lax.conv_general_dilated(images, kernel, strides, padding, **options)
    before, after = (k - 1) // 2, k // 2
    padded = jnp.pad(images, ((0, 0), (before, after), (before, after), (0, 0)))
    shifted = [padded[:, i : i + h, j : j + w] for i in range(k) for j in range(k)]
    patches = jnp.concatenate(shifted, axis=-1).reshape(n * h * w, -1)
    product = jnp.matmul(
        patches, kernel.reshape(-1, c_out), precision=options.get("precision")
    )
    return product.reshape(n, h, w, c_out)


def leaky_relu(x: Array, leak: float) -> jax.Array:
    """max(x, leak x); plain ReLU, with derivative 0 at 0, for leak = 0."""
    return nn.leaky_relu(x, leak) if leak else nn.relu(x)


def average_pool(x: Array, size: int) -> jax.Array:
    """Means over squares, [n, h/size, w/size, c]; ValueError if size does not divide h
    and w.
    """
    h, w = x.shape[1:3]
    if h % size or w % size:
        raise ValueError(
            f"pooling by {size} needs sides that it divides, got a map of {h} x {w}"
        )
    if size == 1:
        return jnp.asarray(x)
    # A window, not a mean over axes of a reshaped array: where the second stage of
    # Table 1 begins, libtpu estimates more cycles for such a mean than for a
    # convolution.
    window = (size, size)
    return nn.avg_pool(x.astype(jnp.float32), window, strides=window).astype(x.dtype)


def pad_channels(x: Array, channels: int) -> jax.Array:
    """Pads with zero channels on both sides, the smaller half first: to [n, h, w,
    channels].
    """
    missing = channels - x.shape[-1]
    if not missing:
        return jnp.asarray(x)
    return jnp.pad(x, ((0, 0), (0, 0), (0, 0), (missing // 2, missing - missing // 2)))


def global_average_pool(x: Array) -> jax.Array:
    """Means over the whole map, in float32: [n, h, w, c] to f32[n, c]."""
    return x.astype(jnp.float32).mean(axis=(1, 2))


def dropout(x: Array, keys: jax.Array | None, rate: float, layer: int) -> jax.Array:
    """Sets numbers of x, f[n, ...], to 0 with probability `rate`, and divides the rest
    by 1 - rate.

    The mask of an example depends on its typed key and on `layer`, which must differ
    between the layers of a net. Raises ValueError unless the rate is 0 or there is one
    key for each example.
    """
    if not rate:
        return jnp.asarray(x)
    if keys is None or keys.shape != x.shape[:1]:
        found = "none" if keys is None else f"keys of shape {keys.shape}"
        raise ValueError(
            f"dropout needs one key for each of {len(x)} examples, got {found}"
        )
    keep = jnp.float32(1 - rate)

    def mask(key):
        return jax.random.bernoulli(jax.random.fold_in(key, layer), keep, x.shape[1:])

    return jnp.where(jax.vmap(mask)(keys), x / keep.astype(x.dtype), jnp.zeros_like(x))


def residual_ratio(x: Array, h: Array) -> jax.Array:
    """||h|| / ||x|| of each example, f[n, ...] to f32[n], over the whole map; 0 where h
    = 0.

    In a block, x is what h is added to. The paper's section 2 wants the ratio to be
    small.

    >>> residual_ratio(jnp.array([[3.0, 4.0]]), jnp.array([[0.0, 0.5]]))
    Array([0.1], dtype=float32)
    """
    numerator, denominator = example_norms(h), example_norms(x)
    return jnp.where(numerator == 0, numerator, numerator / denominator)


def example_norms(x: Array) -> jax.Array:
    """The Euclidean norm of each example in float32: f[n, ...] to f32[n]."""
    squares = jnp.square(x.astype(jnp.float32))
    return jnp.sqrt(jnp.sum(squares, axis=tuple(range(1, x.ndim))))
