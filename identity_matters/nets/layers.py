"""Layers that the networks share: shortcuts, pooling, dropout, the residual ratio.

Images are [n, h, w, c] and kernels [k, k, in, out]. Products outside convolutions have
full precision: accelerators would otherwise round float32 factors to TF32 or bfloat16.
"""

import functools
from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp

from identity_matters import scaling
from identity_matters.array_types import Array
from identity_matters.nets import initializers

# of running statistics, as in the base code and in Torch (momentum 0.1)
BATCH_NORM_DECAY = 0.9


def classifier(num_classes: int) -> nn.Dense:
    """A linear layer with Torch's initial kernel and zero bias, in float32."""
    return nn.Dense(
        num_classes,
        dtype=jnp.float32,
        precision=jax.lax.Precision.HIGHEST,
        kernel_init=initializers.TORCH_LINEAR,
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


def leaky_relu(x: Array, leak: float) -> jax.Array:
    """max(x, leak x); plain ReLU, with derivative 0 at 0, for leak = 0."""
    return nn.leaky_relu(x, leak) if leak else nn.relu(x)


def average_pool(x: Array, size: int) -> jax.Array:
    """Means over squares: [n, h, w, c] to [n, h/size, w/size, c].

    Raises ValueError if `size` does not divide h and w.
    """
    h, w = x.shape[1:3]
    if h % size or w % size:
        raise ValueError(
            f"pooling by {size} needs sides that it divides, got a map of {h} x {w}"
        )
    if size == 1:
        return jnp.asarray(x)
    # A window, not a mean over axes of a reshaped array: where stage 2 of Table 1
    # begins, libtpu estimates more cycles for such a mean than for a convolution.
    window = (size, size)
    return nn.avg_pool(x.astype(jnp.float32), window, strides=window).astype(x.dtype)


def pad_channels(x: Array, channels: int) -> jax.Array:
    """Pads with zero channels on both sides, to [n, h, w, channels].

    If the number of them is odd, the extra channel goes last.
    """
    missing = channels - x.shape[-1]
    if not missing:
        return jnp.asarray(x)
    return jnp.pad(x, ((0, 0), (0, 0), (0, 0), (missing // 2, missing - missing // 2)))


def global_average_pool(x: Array) -> jax.Array:
    """Means over the whole map, in float32: [n, h, w, c] to f32[n, c]."""
    return x.astype(jnp.float32).mean(axis=(1, 2))


def dropout(x: Array, keys: jax.Array | None, rate: float, layer: int) -> jax.Array:
    """Zeroes entries of x, f[n, ...], with probability `rate`; scales up the others.

    They are divided by 1 - rate. The mask of an example depends on its typed key and
    on `layer`, which must differ between the layers of a net. Raises ValueError unless
    the rate is 0 or there is one key for each example.
    """
    if not rate:
        return jnp.asarray(x)
    if keys is None or keys.shape != x.shape[:1]:
        given = "none" if keys is None else f"keys of shape {keys.shape}"
        raise ValueError(
            f"dropout needs one key for each of {len(x)} examples, got {given}"
        )
    keep = jnp.float32(1 - rate)

    def mask(key):
        return jax.random.bernoulli(jax.random.fold_in(key, layer), keep, x.shape[1:])

    return jnp.where(jax.vmap(mask)(keys), x / keep.astype(x.dtype), jnp.zeros_like(x))


def residual_ratio(x: Array, h: Array) -> jax.Array:
    """||h|| / ||x|| of each example, f[n, ...] to f32[n]; 0 where h = 0.

    The norms are those of the whole map, of any size that float32 holds. In a block, x
    is what h is added to. The paper's section 2 wants the ratio to be small.

    >>> residual_ratio(jnp.array([[3.0, 4.0]]), jnp.array([[0.0, 0.5]]))
    Array([0.1], dtype=float32)
    """
    numerator = example_norms(h)
    # 0 / 0 would have no slope, also where it is not taken.
    denominator = jnp.where(numerator == 0, 1.0, example_norms(x))
    return numerator / denominator


def example_norms(x: Array) -> jax.Array:
    """The Euclidean norm of each example in float32: f[n, ...] to f32[n].

    Its gradient is 0 where the example is.
    """
    axes = tuple(range(1, x.ndim))
    scaled, exponents = scaling.unit_size(x.astype(jnp.float32), axes)
    squares = jnp.sum(jnp.square(scaled), axis=axes, keepdims=True)
    # The root of 0 would have the slope infinity, which times 0 is NaN.
    roots = jnp.sqrt(jnp.where(squares == 0, 1.0, squares))
    norms = jnp.where(squares == 0, 0.0, roots)
    return jnp.ldexp(norms, exponents).reshape(len(x))
