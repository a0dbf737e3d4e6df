"""What the networks share: convolution, batch norm, shortcuts, pooling, dropout, last layer.

Images are [n, h, w, c] and kernels [k, k, in, out]. `dtype` is what a layer computes in; its
parameters are float32.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp

from identity_matters.array_types import Array
from identity_matters.models import winograd

COMPUTE_DTYPES = ("float32", "bfloat16")
# How a convolution is computed.
METHODS = {"direct": None, "winograd": winograd.conv_general_dilated}


def convolution(
    channels: int,
    kernel_size: int,
    *,
    name: str,
    dtype: str,
    stride: int = 1,
    padding: str | int = "SAME",
    use_bias: bool = False,
    method: str = "direct",
) -> nn.Conv:
    """A convolution to `channels` channels. `initializers` draws its kernel, not flax.

    `padding` is "SAME", TensorFlow's rule, which at stride 2 and even sides pads 3x3 kernels at
    the lower right only; or the number of zeros on each side, as Torch and Caffe count them.
    `method` is one of METHODS: "direct", XLA's own, or "winograd", see `winograd`.
    """
    return nn.Conv(
        channels,
        (kernel_size, kernel_size),
        strides=(stride, stride),
        padding=padding,
        use_bias=use_bias,
        dtype=dtype,
        param_dtype=jnp.float32,
        kernel_init=nn.initializers.zeros_init(),
        conv_general_dilated=METHODS[method],
        name=name,
    )


def batch_norm(
    *, name: str, train: bool, decay: float, epsilon: float, dtype: str, axis_name: str | None
) -> nn.BatchNorm:
    """Batch norm over n, h, w; scale 1 and bias 0 at first.

    In training, means and variances are those of the batch, over all devices of the mapped axis
    `axis_name` where one is given, in float32; a running value becomes
    ``decay * running + (1 - decay) * batch``. The variance is the biased one everywhere (Torch
    keeps the unbiased one for evaluation, a factor 1 + 1/(n h w - 1)).
    """
    return nn.BatchNorm(
        use_running_average=not train,
        momentum=decay,
        epsilon=epsilon,
        dtype=dtype,
        param_dtype=jnp.float32,
        axis_name=axis_name,
        name=name,
    )


def leaky_relu(x: Array, leak: float) -> jax.Array:
    """max(x, leak x); plain ReLU, with derivative 0 at 0, for leak = 0."""
    return nn.leaky_relu(x, leak) if leak else nn.relu(x)


def average_pool(x: Array, size: int) -> jax.Array:
    """Means over size x size squares that do not overlap: [n, h, w, c] to [n, h/size, w/size, c].

    Raises:
      ValueError: size does not divide h and w.
    """
    n, h, w, c = x.shape
    if h % size or w % size:
        raise ValueError(
            f"pooling by {size} needs sides that {size} divides, got a map of {h} x {w}; choose"
            " images whose sides can be halved at every stage that halves them"
        )
    squares = x.reshape(n, h // size, size, w // size, size, c)
    # A mean of bfloat16 numbers is accumulated in float32 and comes back in x's dtype.
    return squares.mean(axis=(2, 4))


def pad_channels(x: Array, channels: int) -> jax.Array:
    """Zero channels added on both sides, half of them first (rounded down): to [n, h, w, channels].

    Raises:
      ValueError: x has more channels already.
    """
    missing = channels - x.shape[-1]
    if missing < 0:
        raise ValueError(f"a shortcut cannot go from {x.shape[-1]} to {channels} channels")
    if not missing:
        return jnp.asarray(x)
    return jnp.pad(x, ((0, 0), (0, 0), (0, 0), (missing // 2, missing - missing // 2)))


def global_average_pool(x: Array) -> jax.Array:
    """Means over the whole map, in float32: [n, h, w, c] to f32[n, c]."""
    return x.astype(jnp.float32).mean(axis=(1, 2))


def dropout(x: Array, keys: jax.Array | None, rate: float, layer: int) -> jax.Array:
    """Sets each number to 0 with probability `rate` and divides the others by 1 - rate.

    Args:
      x: f[n, ...].
      keys: typed keys [n]; the mask of an example depends on its key and `layer` alone.
      rate: at least 0 and below 1; at 0 keys may be None.
      layer: another number for each dropout layer of a network.
    Raises:
      ValueError: not one key for each example.
    """
    if not rate:
        return jnp.asarray(x)
    if keys is None or keys.shape != x.shape[:1]:
        found = "none" if keys is None else f"keys of shape {keys.shape}"
        raise ValueError(f"dropout needs one key for each of {len(x)} examples, got {found}")
    keep = jnp.float32(1 - rate)

    def mask(key):
        return jax.random.bernoulli(jax.random.fold_in(key, layer), keep, x.shape[1:])

    return jnp.where(jax.vmap(mask)(keys), x / keep.astype(x.dtype), jnp.zeros_like(x))


class Linear(nn.Module):
    """``x @ kernel (+ bias)`` in float32, whatever the rest of a network computes in.

    Attributes:
      features: the number of outputs.
      use_bias: whether there is a bias, zero at first.
      trained: False keeps the kernel in the collection "fixed" instead of "params".
    """

    features: int
    use_bias: bool
    trained: bool

    @nn.compact
    def __call__(self, x):
        shape = (x.shape[-1], self.features)
        if self.trained:
            kernel = self.param("kernel", nn.initializers.zeros_init(), shape, jnp.float32)
        else:
            kernel = self.variable("fixed", "kernel", jnp.zeros, shape, jnp.float32).value
        # Accelerators would otherwise round the factors to TF32 or bfloat16.
        y = jnp.matmul(x, kernel, precision=jax.lax.Precision.HIGHEST)
        if self.use_bias:
            bias = self.param("bias", nn.initializers.zeros_init(), shape[1:], jnp.float32)
            y = y + bias[None]
        return y
