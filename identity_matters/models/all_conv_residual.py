"""The paper's network: all-convolutional and residual, without batch norm (section 4, Table 1).

    stem       3x3 convolution to 16 channels
    stages     9 blocks each with 64, 128, 256 channels; the second and third stage halve the map
    block      x + C_2(ReLU(C_1 x)), both convolutions 3x3
    head       mean over the map, then a fixed random matrix P: logits = mean(x) P

55 convolutions without biases, 13,538,736 trained parameters. Where a block changes the shape, its
shortcut averages 2x2 pixels and pads with zero channels, half on each side. Padding is TensorFlow's
"SAME", as in the paper's base code (tensorflow/models, `resnet`, 2016).

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


def all_conv_residual(
    *,
    num_classes: int,
    blocks_per_stage: tuple[int, ...] = (9, 9, 9),
    widths: tuple[int, ...] = (64, 128, 256),
    stem_width: int = 16,
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
      blocks_per_stage, widths: residual blocks and channels of each stage. Every stage but the
        first halves the map; image sides must allow it.
      stem_width: channels after the first convolution.
      kernel_size: of all convolutions.
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
    _check_sizes(num_classes, blocks_per_stage, widths, stem_width, kernel_size)
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


def _check_sizes(num_classes, blocks_per_stage, widths, stem_width, kernel_size) -> None:
    check_at_least("num_classes", num_classes, 1)
    check_at_least("stem_width", stem_width, 1)
    check_at_least("kernel_size", kernel_size, 1)
    if not widths or len(blocks_per_stage) != len(widths):
        raise ValueError(
            "blocks_per_stage and widths must have one entry for each stage, got"
            f" {tuple(blocks_per_stage)} and {tuple(widths)}"
        )
    check_at_least("blocks_per_stage", min(blocks_per_stage), 1)
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
        stem = layers.convolution(self.stem_width, self.kernel_size, dtype=self.dtype, name="stem")
        x = stem(x).astype(jnp.float32)
        ratios = []
        for stage, (blocks, channels) in enumerate(
            zip(self.blocks_per_stage, self.widths, strict=True)
        ):
            for index in range(blocks):
                stride = 2 if stage and not index else 1
                name = f"stage{stage + 1}_block{index + 1}"
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
