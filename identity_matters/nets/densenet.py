"""DenseNet for small images (Huang et al., arXiv 1608.06993), a row of Table 2.

The plain one, neither bottleneck nor compression: a 3x3 stem with 16 channels, then three dense
blocks of (depth - 4) / 3 layers. A layer is BN - ReLU - 3x3 convolution to `growth` channels, and
everything before it is its input. Between dense blocks stand BN - ReLU - 1x1 convolution of the
same width - 2x2 mean; at the end BN - ReLU - mean over the map - linear layer. Depth 100 and
growth 24 give 27,249,082 parameters for 10 classes, the 27.2M that its authors print. Their
released code has 2 `growth` stem channels, with which the network has 28,071,706.

Initial weights and batch norm are those of that code (liuzhuang13/DenseNet); dropout, which its
authors use without data augmentation only, is left out.
"""

import functools

import flax.linen as nn
import jax.numpy as jnp

from identity_matters.nets import layers

DENSE_BLOCKS = 3
# Torch's default.
BATCH_NORM_EPSILON = 1e-5


class DenseNet(nn.Module):
    """DenseNet (L = 100, k = 24) at the defaults.

    Attributes:
      num_classes: the number of logits.
      depth: 3 m + 4 for m layers a dense block.
      growth: channels that a layer adds.
      stem_width: channels after the first convolution.
      compute_dtype: "float32" or "bfloat16", the type of the convolutions and of the maps between
        them; statistics, the last mean and the last layer are float32.
      axis_name: the mapped axis over which batch norm averages in training.
    Raises:
      ValueError: an attribute is out of range.
    """

    num_classes: int
    depth: int = 100
    growth: int = 24
    stem_width: int = 16
    compute_dtype: str = "float32"
    axis_name: str | None = None

    def __post_init__(self):
        super().__post_init__()
        layers.check(self, at_least={"growth": 1, "stem_width": 1})
        if self.depth < 7 or (self.depth - 4) % 3:
            raise ValueError(
                f"depth must be 3 m + 4 for m >= 1 layers a dense block, got {self.depth}"
            )

    @nn.compact
    def __call__(self, x, *, train: bool, keys=None):
        del keys
        norm = layers.batch_norm(self, train, BATCH_NORM_EPSILON)
        conv = functools.partial(
            nn.Conv, use_bias=False, dtype=self.compute_dtype, kernel_init=layers.HE_FAN_OUT
        )

        def composite(x, channels, size, name):
            """BN - ReLU - convolution."""
            x = nn.relu(norm(name=f"{name}_norm")(x))
            return conv(channels, (size, size), name=f"{name}_conv")(x)

        x = conv(self.stem_width, (3, 3), name="stem")(x)
        for block in range(1, DENSE_BLOCKS + 1):
            for index in range(1, (self.depth - 4) // 3 + 1):
                new = composite(x, self.growth, 3, f"block{block}_layer{index}")
                x = jnp.concatenate([x, new], axis=-1)
            if block < DENSE_BLOCKS:
                x = layers.average_pool(composite(x, x.shape[-1], 1, f"transition{block}"), 2)
        x = nn.relu(norm(name="norm")(x))
        return layers.classifier(self.num_classes)(layers.global_average_pool(x)), []
