"""DenseNet for small images (Huang et al., arXiv 1608.06993), a row of Table 2.

The plain one, neither bottleneck nor compression: a 3x3 stem with 16 channels, then three dense
blocks of (depth - 4) / 3 layers. A layer is BN - ReLU - 3x3 convolution to `growth` channels, and
everything before it is its input. Between dense blocks stand BN - ReLU - 1x1 convolution of the
same width - 2x2 mean; at the end BN - ReLU - mean over the map - linear layer. Depth 100 and
growth 24 give 27,249,082 parameters for 10 classes, the 27.2M that its authors print. Their
released code has 2 `growth` stem channels, with which the network has 28,071,706.

Initial weights and batch norm are those of that code (liuzhuang13/DenseNet).
"""

import functools

import flax.linen as nn
import jax.numpy as jnp

from identity_matters.models import initializers, layers
from identity_matters.models.checks import check_at_least, check_choice, check_rate
from identity_matters.models.interface import Model, from_module

DENSE_BLOCKS = 3
# Torch's defaults; it writes the decay as momentum 0.1.
BATCH_NORM_DECAY = 0.9
BATCH_NORM_EPSILON = 1e-5


def densenet(
    *,
    num_classes: int,
    depth: int = 100,
    growth: int = 24,
    stem_width: int = 16,
    dropout: float = 0.0,
    compute_dtype: str = "float32",
    axis_name: str | None = None,
) -> Model:
    """DenseNet (L = 100, k = 24) at the defaults.

    Args:
      num_classes: the number of logits.
      depth: 3 m + 4 for m layers a dense block.
      growth: channels that a layer adds.
      stem_width: channels after the first convolution.
      dropout: probability of setting to zero a number after each convolution but the first. The
        authors use 0.2 without data augmentation and 0 with it.
      compute_dtype: "float32" or "bfloat16", the type of the convolutions and of the maps between
        them; statistics, the last mean and the last layer are float32.
      axis_name: the mapped axis over which batch norm averages in training.
    Raises:
      ValueError: an argument is out of range.
    """
    check_at_least("num_classes", num_classes, 1)
    check_at_least("growth", growth, 1)
    check_at_least("stem_width", stem_width, 1)
    check_rate("dropout", dropout)
    check_choice("compute_dtype", compute_dtype, layers.COMPUTE_DTYPES)
    if depth < 7 or (depth - 4) % 3:
        raise ValueError(f"depth must be 3 m + 4 for m >= 1 layers a dense block, got {depth}")
    module = _Network(
        num_classes=num_classes,
        block_layers=(depth - 4) // 3,
        growth=growth,
        stem_width=stem_width,
        dropout=dropout,
        dtype=compute_dtype,
        axis_name=axis_name,
    )

    def rule(path, shape):
        is_linear = "linear" in path
        return (initializers.torch_linear if is_linear else initializers.normal_fan_out)(shape)

    return from_module(module, rule)


class _Network(nn.Module):
    num_classes: int
    block_layers: int
    growth: int
    stem_width: int
    dropout: float
    dtype: str
    axis_name: str | None

    @nn.compact
    def __call__(self, x, *, train: bool, keys=None):
        norm = functools.partial(
            layers.batch_norm,
            train=train,
            decay=BATCH_NORM_DECAY,
            epsilon=BATCH_NORM_EPSILON,
            dtype=self.dtype,
            axis_name=self.axis_name,
        )

        def composite(x, channels, kernel_size, name, layer):
            """BN - ReLU - convolution - dropout."""
            x = nn.relu(norm(name=f"{name}_norm")(x))
            x = layers.convolution(channels, kernel_size, dtype=self.dtype, name=f"{name}_conv")(x)
            return layers.dropout(x, keys, self.dropout, layer) if train else x

        x = layers.convolution(self.stem_width, 3, dtype=self.dtype, name="stem")(x)
        layer = 0
        for block in range(1, DENSE_BLOCKS + 1):
            for index in range(1, self.block_layers + 1):
                name, layer = f"block{block}_layer{index}", layer + 1
                x = jnp.concatenate([x, composite(x, self.growth, 3, name, layer)], axis=-1)
            if block < DENSE_BLOCKS:
                name, layer = f"transition{block}", layer + 1
                x = layers.average_pool(composite(x, x.shape[-1], 1, name, layer), 2)
        x = nn.relu(norm(name="norm")(x))
        linear = layers.Linear(self.num_classes, use_bias=True, trained=True, name="linear")
        return linear(layers.global_average_pool(x)), []
