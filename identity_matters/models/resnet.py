"""ResNet for small images (He et al., arXiv 1512.03385, section 4.2), a row of Table 2.

A 3x3 stem, then three stages of (depth - 2) / 6 blocks with `width`, 2 `width`, 4 `width` channels,
ReLU(x + BN(C_2(ReLU(BN(C_1 x))))), all 3x3; a mean over the map and a linear layer. Where a stage
halves the map its shortcut takes every second pixel and adds zero channels (their option A), so
that shortcuts have no parameters. ResNet-110 has 1,727,962 parameters for 10 classes.

Initial weights and batch norm are those of facebook/fb.resnet.torch.
"""

import functools

import flax.linen as nn

from identity_matters import diagnostics
from identity_matters.models import initializers, layers
from identity_matters.models.checks import check_at_least, check_choice
from identity_matters.models.interface import Model, from_module

STAGES = 3
# Torch's defaults; it writes the decay as momentum 0.1.
BATCH_NORM_DECAY = 0.9
BATCH_NORM_EPSILON = 1e-5


def resnet(
    *,
    num_classes: int,
    depth: int = 110,
    width: int = 16,
    compute_dtype: str = "float32",
    axis_name: str | None = None,
) -> Model:
    """ResNet-110 at the defaults.

    Args:
      num_classes: the number of logits.
      depth: 6 b + 2 for b blocks a stage: 8, 14, 20, ..., 110.
      width: channels of the stem and the first stage.
      compute_dtype: "float32" or "bfloat16", the type of the convolutions and of the maps between
        them; statistics, the last mean and the last layer are float32.
      axis_name: the mapped axis over which batch norm averages in training.
    Raises:
      ValueError: an argument is out of range.
    """
    check_at_least("num_classes", num_classes, 1)
    check_at_least("width", width, 1)
    check_choice("compute_dtype", compute_dtype, layers.COMPUTE_DTYPES)
    if depth < 8 or (depth - 2) % 6:
        raise ValueError(f"depth must be 6 b + 2 for b >= 1 blocks a stage, got {depth}")
    module = _Network(num_classes, (depth - 2) // 6, width, compute_dtype, axis_name)

    def rule(path, shape):
        is_linear = "linear" in path
        return (initializers.torch_linear if is_linear else initializers.normal_fan_out)(shape)

    return from_module(module, rule)


class _Residual(nn.Module):
    """BN(C_2(ReLU(BN(C_1 x))))."""

    channels: int
    stride: int
    norm: functools.partial
    dtype: str

    @nn.compact
    def __call__(self, x):
        # One zero on each side puts the kernels on the pixels that the shortcut takes.
        convolution = functools.partial(
            layers.convolution, self.channels, 3, padding=1, dtype=self.dtype
        )
        x = convolution(stride=self.stride, name="conv1")(x)
        x = nn.relu(self.norm(name="norm1")(x))
        return self.norm(name="norm2")(convolution(name="conv2")(x))


class _Network(nn.Module):
    num_classes: int
    blocks: int
    width: int
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
        x = layers.convolution(self.width, 3, padding=1, dtype=self.dtype, name="stem")(x)
        x = nn.relu(norm(name="norm")(x))
        ratios = []
        for stage in range(STAGES):
            channels = self.width * 2**stage
            for index in range(self.blocks):
                stride = 2 if stage and not index else 1
                name = f"stage{stage + 1}_block{index + 1}"
                h = _Residual(channels, stride, norm, self.dtype, name=name)(x)
                shortcut = layers.pad_channels(x[:, ::stride, ::stride], channels)
                ratios.append(diagnostics.residual_ratio(shortcut, h))
                x = nn.relu(shortcut + h)
        linear = layers.Linear(self.num_classes, use_bias=True, trained=True, name="linear")
        return linear(layers.global_average_pool(x)), ratios
