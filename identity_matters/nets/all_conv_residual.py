"""The paper's network (section 4, Table 1): all-convolutional, residual, no batch norm.

* Stem: a 3x3 convolution to 16 channels.
* Stages: 9 blocks each with 64, 128 and 256 channels; stages 2 and 3 halve the map.
* Block: ``x + C_2(ReLU(C_1 x))``, where both convolutions are 3x3.
* Head: global average pooling, then a fixed random matrix P: ``logits = mean(x) P``.

55 convolutions without biases, 13,538,736 trained parameters. Where a block changes the
shape, its shortcut averages 2x2 pixels and pads with zero channels, half on each side.
Padding is TensorFlow's "SAME", as in the paper's base code (tensorflow/models,
`resnet`, 2016).

The paper has no table for its ImageNet net, "an all-convolutional variant of the
34-layer network" with 35.7M parameters. It has two readings, whose settings are in
experiments/images/settings.py: the blocks of the 34-layer net, 21,095,616 parameters,
or blocks that match the printed count, 35,693,760. Strides replace max pooling.
Whatever the text leaves open, or only mentions, is an option; the defaults follow its
formulas.
"""

import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from identity_matters.checks import check_whole
from identity_matters.nets import base, initializers, layers, starts, tiny_maps

# That of the paper's base code; the paper itself has no batch norm.
BATCH_NORM_EPSILON = 1e-3


class Block(nn.Module):
    """x -> (s + h, ||h|| / ||s||) for s = shortcut(x) and h = C_2(ReLU(C_1 x)).

    All sums are float32.
    """

    channels: int
    stride: int
    # a partial 3x3 `nn.Conv` that lacks name, channels, stride and kernel_init
    conv: Any
    kernel_inits: tuple  # of C_1 and C_2
    norm: Any  # a partial batch norm that lacks its name, or None
    leak: float
    activate_first: bool
    identity: bool
    gate: bool

    @nn.compact
    def __call__(self, x):
        h = self.norm(name="norm1")(x) if self.norm else x
        h = layers.leaky_relu(h, self.leak) if self.activate_first else h
        first, second = self.kernel_inits
        h = self.conv(
            self.channels, strides=self.stride, kernel_init=first, name="conv1"
        )(h)
        h = self.norm(name="norm2")(h) if self.norm else h
        h = layers.leaky_relu(h, self.leak)
        h = self.conv(self.channels, kernel_init=second, name="conv2")(h)
        h = h.astype(jnp.float32)
        if self.gate:
            h = h * self.param("gate", initializers.constant(0.0), ())
        shortcut = layers.pad_channels(
            layers.average_pool(x, self.stride), self.channels
        )
        ratio = layers.residual_ratio(shortcut, h)
        return (shortcut + h if self.identity else h), ratio


class Projection(nn.Module):
    """``x @ P`` in float32, with P in "params" if it is trained, else in "fixed"."""

    features: int
    trained: bool

    @nn.compact
    def __call__(self, x):
        shape = (x.shape[-1], self.features)
        if self.trained:
            kernel = self.param("kernel", initializers.UNIFORM_UNIT, shape, jnp.float32)
        else:
            kernel = self.variable(
                "fixed", "kernel", initializers.UNIFORM_UNIT, None, shape
            ).value
        return jnp.matmul(x, kernel, precision=jax.lax.Precision.HIGHEST)


class AllConvResidual(base.Net):
    """The network of Table 1, with the default settings.

    Attributes:
      blocks_per_stage, widths, stage_strides: residual blocks and channels of each
        stage, and the stride of its first convolution, which must divide the sides of
        the map.
      residual_init: where convolutions in blocks start, one of `starts.NAMES`. The
        deviation of "paper" is 1 / (k^2 c), that of "standard" 1 / (k sqrt(c)), for
        kernel size k, c output channels. The stem's is standard, as in the paper's text
        (the base code has sqrt(2) times that), except with "unit_variance" and
        "delta_orthogonal", which include the stem.
      initial_scale: a factor on that deviation; 0 makes every block the identity at
        first.
      gate: multiplies C_2(...) by a trained number, 0 at first (De & Smith 2020, arXiv
        2002.10444; Bachlechner et al. 2020, arXiv 2003.04887).
      leak: the activation is max(x, leak x). The base code has 0.1; the paper writes
        ReLU.
      activate_first: blocks x + C_2(ReLU(C_1 ReLU(x))) and a ReLU before the last mean,
        as in the base code. Its first block also activates before the shortcut, which
        is not done here.
      projection: "fixed" or "trained". The paper says only that P is "random"; ours is
        drawn by `initializers.UNIFORM_UNIT`, as in the base code.
      identity: False leaves out the shortcuts: a block is C_2(ReLU(C_1 x)).
      batch_norm: batch norm before C_1, between C_1 and its ReLU, and before the last
        mean. With `activate_first` these are the places of the base code: each stands
        right before a ReLU.
      compute_dtype: of the convolutions. The sum over blocks stays float32: with
        "paper" ||h|| starts at 0.0012 ||x|| (stage 1) to 0.0003 ||x|| (stage 3);
        bfloat16 rounds by up to 0.004.
    """

    num_classes: int
    blocks_per_stage: tuple[int, ...] = (9, 9, 9)
    widths: tuple[int, ...] = (64, 128, 256)
    stem_width: int = 16
    stem_kernel_size: int = 3
    stem_stride: int = 1
    stage_strides: tuple[int, ...] = (1, 2, 2)
    residual_init: str = "paper"
    initial_scale: float = 1.0
    leak: float = 0.0
    activate_first: bool = False
    projection: str = "fixed"
    identity: bool = True
    gate: bool = False
    batch_norm: bool = False
    compute_dtype: str = "float32"
    axis_name: str | None = None

    def __post_init__(self):
        super().__post_init__()
        base.check(
            self,
            counts={"stem_width": 1, "stem_kernel_size": 1, "stem_stride": 1},
            scales=("initial_scale",),
            rates=("leak",),
            switches=("activate_first", "identity", "gate", "batch_norm"),
            choices={"residual_init": starts.NAMES, "projection": ("fixed", "trained")},
        )
        self._check_stages()

    @nn.nowrap
    def _check_stages(self) -> None:
        """Raises ValueError if the stages differ in number, are empty, or shrink."""
        stages = {
            "blocks_per_stage": self.blocks_per_stage,
            "widths": self.widths,
            "stage_strides": self.stage_strides,
        }
        for name, values in stages.items():
            if not isinstance(values, (tuple, list)):
                raise ValueError(f"{name} must be a tuple, got {values!r}")
        blocks, widths, strides = stages.values()
        if not widths or not len(blocks) == len(widths) == len(strides):
            raise ValueError(
                "blocks_per_stage, widths and stage_strides must have one entry for"
                f" each stage, got {blocks}, {widths} and {strides}"
            )
        for name, values in stages.items():
            for value in values:
                check_whole(name, value)
        if list(widths) != sorted(widths) or widths[0] < self.stem_width:
            raise ValueError(
                f"widths must not shrink from stem_width {self.stem_width} on, got"
                f" {widths}"
            )

    @nn.compact
    def __call__(self, x, *, train: bool, keys=None):
        base.check_images(x)
        norm = layers.batch_norm(self, train, BATCH_NORM_EPSILON)
        # "SAME" at stride 2 and even sides pads 3x3 kernels at the lower right only.
        conv = functools.partial(
            nn.Conv,
            padding="SAME",
            use_bias=False,
            dtype=self.compute_dtype,
            conv_general_dilated=tiny_maps.convolution,
        )
        start = self._start(map_shape=x.shape[1:3])
        stem = conv(
            self.stem_width,
            (self.stem_kernel_size, self.stem_kernel_size),
            strides=self.stem_stride,
            kernel_init=start.stem(self.stem_kernel_size, self.stem_stride),
            name="stem",
        )
        x = stem(x).astype(jnp.float32)
        x, ratios = self._stages(x, conv=conv, norm=norm, start=start)
        if self.batch_norm:
            x = norm(name="norm")(x)
        if self.activate_first:
            x = layers.leaky_relu(x, self.leak)
        head = Projection(
            self.num_classes, self.projection == "trained", name="projection"
        )
        return head(layers.global_average_pool(x)), ratios

    @nn.nowrap
    def _start(self, map_shape: tuple[int, int]) -> starts.Start:
        """Where the weights start, for images of these sides."""
        return starts.make_start(
            self.residual_init,
            scale=self.initial_scale,
            blocks=sum(self.blocks_per_stage),
            map_shape=map_shape,
        )

    @nn.nowrap
    def _stages(
        self, x: jax.Array, *, conv: Any, norm: Any, start: starts.Start
    ) -> tuple[jax.Array, list[jax.Array]]:
        """The map after all blocks, and the residual ratio of each."""
        block = functools.partial(
            Block,
            conv=functools.partial(conv, kernel_size=(3, 3)),
            norm=norm if self.batch_norm else None,
            leak=self.leak,
            activate_first=self.activate_first,
            identity=self.identity,
            gate=self.gate,
        )
        ratios = []
        stages = zip(
            self.blocks_per_stage, self.widths, self.stage_strides, strict=True
        )
        for stage, (blocks, channels, first_stride) in enumerate(stages, start=1):
            for index in range(blocks):
                stride = 1 if index else first_stride
                # A start is asked for the two in this order.
                first_init = start.first_in_block(stride)
                second_init = start.second_in_block()
                x, ratio = block(
                    channels=channels,
                    stride=stride,
                    kernel_inits=(first_init, second_init),
                    name=f"stage{stage}_block{index + 1}",
                )(x)
                ratios.append(ratio)
        return x, ratios
