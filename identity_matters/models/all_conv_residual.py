"""The paper's network: all-convolutional and residual, without batch norm (section 4, Table 1).

    stem       3x3 convolution to 16 channels
    stages     9 blocks each with 64, 128, 256 channels; the second and third stage halve the map
    block      x + C_2(ReLU(C_1 x)), both convolutions 3x3
    head       mean over the map, then a fixed random matrix P: logits = mean(x) P

55 convolutions without biases, 13,538,736 trained parameters. Where a block changes the shape, its
shortcut averages 2x2 pixels and pads with zero channels, half on each side. Padding is TensorFlow's
"SAME", as in the paper's base code (tensorflow/models, `resnet`, 2016).

The ImageNet net, "an all-convolutional variant of the 34-layer network" with 35.7M parameters, is
not in a table. `IMAGENET` has two readings: the 34-layer net's blocks, 21,095,616 parameters, and
the blocks whose count agrees with the printed one, 35,693,760. Strides replace max pooling.

What the text leaves open, or remarks on, is an option; the defaults follow its formulas.
"""

import functools

import flax.linen as nn
import jax.numpy as jnp

from identity_matters import diagnostics
from identity_matters.models import initializers, layers
from identity_matters.models.checks import check_at_least, check_choice, check_rate
from identity_matters.models.interface import Model, from_module

# The values of the paper's base code; the paper itself has no batch norm.
BATCH_NORM_DECAY = 0.9
BATCH_NORM_EPSILON = 1e-3

# Settings for images of 224 pixels a side, by blocks a stage.
_IMAGENET = {
    "widths": (64, 128, 256, 512),
    "stem_width": 64,
    "stem_kernel_size": 7,
    "stem_stride": 2,
    "stage_strides": (2, 2, 2, 2),
}
IMAGENET = {
    "blocks_of_34_layers": {"blocks_per_stage": (3, 4, 6, 3), **_IMAGENET},
    "parameters_as_printed": {"blocks_per_stage": (5, 5, 6, 6), **_IMAGENET},
}


def all_conv_residual(
    *,
    num_classes: int,
    blocks_per_stage: tuple[int, ...] = (9, 9, 9),
    widths: tuple[int, ...] = (64, 128, 256),
    stem_width: int = 16,
    stem_kernel_size: int = 3,
    stem_stride: int = 1,
    stage_strides: tuple[int, ...] = (1, 2, 2),
    kernel_size: int = 3,
    residual_init: str = "paper",
    initial_scale: float = 1.0,
    leak: float = 0.0,
    activate_first: bool = False,
    projection: str = "fixed",
    identity: bool = True,
    batch_norm: bool = False,
    compute_dtype: str = "float32",
    convolution: str = "direct",
    axis_name: str | None = None,
) -> Model:
    """Table 1's network at the defaults.

    Args:
      num_classes: the number of logits.
      blocks_per_stage, widths, stage_strides: residual blocks and channels of each stage, and the
        stride of its first convolution; image sides must allow it.
      stem_width, stem_kernel_size, stem_stride: of the first convolution.
      kernel_size: of all others.
      residual_init: "paper", standard deviation 1 / (k^2 c), or "standard", 1 / (k sqrt(c)), of the
        convolutions in blocks, for kernel size k and c output channels. The stem's is standard.
      initial_scale: a factor on that deviation; 0 makes every block the identity.
      leak: the activation is max(x, leak x). The base code has 0.1; the paper writes ReLU.
      activate_first: blocks x + C_2(ReLU(C_1 ReLU(x))) and a ReLU before the last mean, as in the
        base code, whose first block moreover activates before its shortcut (not done here).
      projection: "fixed", P is never trained, or "trained"; no bias. Either way its entries are
        uniform in +-sqrt(3 / width), the base code's distribution for this matrix. The paper says
        no more than "random".
      identity: False leaves out the shortcuts: a block is C_2(ReLU(C_1 x)).
      batch_norm: batch norm before C_1, between C_1 and its ReLU, and before the last mean. With
        `activate_first` these are the places of the base code: each stands right before a ReLU.
      compute_dtype: "float32" or "bfloat16", the type of the convolutions. The sum over blocks is
        float32 always: at the paper's initialization ||h|| / ||x|| is 0.0012 in the first stage and
        0.0003 in the last, and bfloat16 rounds by up to 0.004.
      convolution: "direct", or "winograd", which is faster on a CPU; see `winograd`.
      axis_name: the mapped axis over which batch norm averages in training.
    Raises:
      ValueError: an argument is out of range.
    """
    check_at_least("num_classes", num_classes, 1)
    check_at_least("stem_kernel_size", stem_kernel_size, 1)
    check_at_least("stem_stride", stem_stride, 1)
    check_at_least("kernel_size", kernel_size, 1)
    _check_stages(blocks_per_stage, widths, stage_strides, stem_width)
    check_choice("residual_init", residual_init, ("paper", "standard"))
    check_at_least("initial_scale", initial_scale, 0)
    check_rate("leak", leak)
    check_choice("projection", projection, ("fixed", "trained"))
    check_choice("compute_dtype", compute_dtype, layers.COMPUTE_DTYPES)
    check_choice("convolution", convolution, tuple(layers.METHODS))
    module = _Network(
        num_classes=num_classes,
        blocks_per_stage=tuple(blocks_per_stage),
        widths=tuple(widths),
        stem_width=stem_width,
        stem_kernel_size=stem_kernel_size,
        stem_stride=stem_stride,
        stage_strides=tuple(stage_strides),
        kernel_size=kernel_size,
        leak=leak,
        activate_first=activate_first,
        trained_projection=projection == "trained",
        identity=identity,
        batch_norm=batch_norm,
        dtype=compute_dtype,
        convolution=convolution,
        axis_name=axis_name,
    )
    residual = initializers.paper if residual_init == "paper" else initializers.standard

    def rule(path, shape):
        if "projection" in path:
            return initializers.uniform_unit_scaling(shape)
        if "stem" in path:
            return initializers.standard(shape)
        return residual(shape, initial_scale)

    return from_module(module, rule)


def _check_stages(blocks_per_stage, widths, stage_strides, stem_width) -> None:
    check_at_least("stem_width", stem_width, 1)
    lengths = {len(blocks_per_stage), len(widths), len(stage_strides)}
    if not widths or len(lengths) > 1:
        raise ValueError(
            "blocks_per_stage, widths and stage_strides must have one entry for each stage, got"
            f" {tuple(blocks_per_stage)}, {tuple(widths)} and {tuple(stage_strides)}"
        )
    check_at_least("blocks_per_stage", min(blocks_per_stage), 1)
    check_at_least("stage_strides", min(stage_strides), 1)
    if list(widths) != sorted(widths) or widths[0] < stem_width:
        raise ValueError(
            f"widths must not shrink from stem_width {stem_width} on, because a shortcut only adds"
            f" channels, got {tuple(widths)}"
        )


class _Residual(nn.Module):
    """h(x) = C_2(ReLU(C_1 x)), with the options of `all_conv_residual`."""

    channels: int
    stride: int
    kernel_size: int
    leak: float
    activate_first: bool
    norm: functools.partial | None
    dtype: str
    convolution: str

    @nn.compact
    def __call__(self, x):
        convolution = functools.partial(
            layers.convolution,
            self.channels,
            self.kernel_size,
            dtype=self.dtype,
            method=self.convolution,
        )
        if self.norm:
            x = self.norm(name="norm1")(x)
        if self.activate_first:
            x = layers.leaky_relu(x, self.leak)
        x = convolution(stride=self.stride, name="conv1")(x)
        if self.norm:
            x = self.norm(name="norm2")(x)
        return convolution(name="conv2")(layers.leaky_relu(x, self.leak))


class _Network(nn.Module):
    num_classes: int
    blocks_per_stage: tuple[int, ...]
    widths: tuple[int, ...]
    stem_width: int
    stem_kernel_size: int
    stem_stride: int
    stage_strides: tuple[int, ...]
    kernel_size: int
    leak: float
    activate_first: bool
    trained_projection: bool
    identity: bool
    batch_norm: bool
    dtype: str
    convolution: str
    axis_name: str | None

    def _norm(self, train: bool):
        """Batch norm but for its name, or None."""
        if not self.batch_norm:
            return None
        return functools.partial(
            layers.batch_norm,
            train=train,
            decay=BATCH_NORM_DECAY,
            epsilon=BATCH_NORM_EPSILON,
            dtype=self.dtype,
            axis_name=self.axis_name,
        )

    @nn.compact
    def __call__(self, x, *, train: bool, keys=None):
        norm = self._norm(train)
        block = functools.partial(
            _Residual,
            kernel_size=self.kernel_size,
            leak=self.leak,
            activate_first=self.activate_first,
            norm=norm,
            dtype=self.dtype,
            convolution=self.convolution,
        )
        stem = layers.convolution(
            self.stem_width,
            self.stem_kernel_size,
            stride=self.stem_stride,
            dtype=self.dtype,
            name="stem",
        )
        x = stem(x).astype(jnp.float32)
        ratios = []
        stages = zip(self.blocks_per_stage, self.widths, self.stage_strides, strict=True)
        for stage, (blocks, channels, first_stride) in enumerate(stages, start=1):
            for index in range(blocks):
                stride = 1 if index else first_stride
                name = f"stage{stage}_block{index + 1}"
                h = block(channels=channels, stride=stride, name=name)(x).astype(jnp.float32)
                shortcut = layers.pad_channels(layers.average_pool(x, stride), channels)
                ratios.append(diagnostics.residual_ratio(shortcut, h))
                x = shortcut + h if self.identity else h
        if norm:
            x = norm(name="norm")(x)
        if self.activate_first:
            x = layers.leaky_relu(x, self.leak)
        head = layers.Linear(
            self.num_classes, use_bias=False, trained=self.trained_projection, name="projection"
        )
        return head(layers.global_average_pool(x)), ratios
