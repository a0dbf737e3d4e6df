"""The other nets of Table 2 and section 4.1: All-CNN-C, DenseNet, ResNet.

All-CNN-C (Springenberg et al., arXiv 1412.6806): the convolutions of `CONVOLUTIONS`,
each followed by a ReLU, then the mean over the map; 1,369,738 parameters for 10
classes. Its paper does not give initial values; ours are those of a Caffe version with
published settings (mateuszbuda/ALL-CNN).

DenseNet for small images (Huang et al., arXiv 1608.06993), without bottlenecks or
compression: a 3x3 stem with 16 channels, then three dense blocks of (depth - 4) / 3
layers. A layer is BN - ReLU - 3x3 convolution to `growth` channels, and its input is
everything before it. Between dense blocks come BN - ReLU - 1x1 convolution of the same
width - 2x2 mean; at the end BN - ReLU - mean over the map - linear layer. Depth 100 and
growth 24 give 27,249,082 parameters for 10 classes, the 27.2M that its authors report;
their released code (liuzhuang13/DenseNet) has 2 `growth` stem channels and 28.1M.
Dropout is left out, as they use it only without data augmentation.

ResNet (He et al., arXiv 1512.03385): stages of `Block`s that double the channels and,
except the first, halve the map; a mean over the map and a linear layer. ResNet-110 has
1,727,962 parameters for 10 classes, ResNet-34 has 21,797,672 for 1000.

* Small images (section 4.2): a 3x3 stem and three stages of (depth - 2) / 6 blocks.
  Where a stage halves the map, its shortcut takes every second pixel and adds zero
  channels (option A).
* Images of 224 pixels a side (section 4.1): a 7x7 stem and a 3x3 max pooling, both of
  stride 2, and four stages; shortcuts that halve the map are 1x1 convolutions with
  batch norm (option B: 24.52 % with ten crops in He et al.'s Table 3; the 25.03 % that
  the paper quotes is option A's).
"""

import functools
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import flax.linen as nn
import jax.numpy as jnp

from identity_matters.nets import base, initializers, layers

BATCH_NORM_EPSILON = 1e-5  # Torch's default


class Convolution(NamedTuple):
    """A convolution of All-CNN-C.

    Attributes:
      width_factor: channels over the net's `width`.
      size: of the kernel.
      stride: in both directions.
      zeros: of the padding, on each side.
      dropout_follows: whether its output goes through dropout.
    """

    width_factor: int
    size: int
    stride: int = 1
    zeros: int = 0
    dropout_follows: bool = False


# All-CNN-C; the net appends the last convolution, 1x1 to the classes.
CONVOLUTIONS = (
    Convolution(width_factor=1, size=3, zeros=1),
    Convolution(width_factor=1, size=3, zeros=1),
    Convolution(width_factor=1, size=3, stride=2, zeros=1, dropout_follows=True),
    Convolution(width_factor=2, size=3, zeros=1),
    Convolution(width_factor=2, size=3, zeros=1),
    Convolution(width_factor=2, size=3, stride=2, zeros=1, dropout_follows=True),
    Convolution(width_factor=2, size=3),
    Convolution(width_factor=2, size=1),
)
# After two strides of 2, the map must be at least 3x3 for the 3x3 convolution without
# padding.
LEAST_SIDE_PIXELS = 9
DENSE_BLOCKS = 3
# Stages of a ResNet for small images.
STAGES = 3
# Blocks of each stage of a ResNet for large images, by depth.
IMAGENET_BLOCKS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3)}


class AllCnnC(base.Net):
    """All-CNN-C, for sides of at least 9 pixels.

    Attributes:
      width: channels of the first convolutions; the later ones have twice as many.
      input_dropout: the rate on the images.
      dropout: the rate after each stride of 2.
    """

    num_classes: int
    width: int = 96
    input_dropout: float = 0.2
    dropout: float = 0.5
    compute_dtype: str = "float32"

    def __post_init__(self):
        super().__post_init__()
        base.check(self, counts={"width": 1}, rates=("input_dropout", "dropout"))

    @nn.compact
    def __call__(self, x, *, train: bool, keys=None):
        base.check_images(x)
        if min(x.shape[1:3]) < LEAST_SIDE_PIXELS:
            raise ValueError(
                f"images must have {LEAST_SIDE_PIXELS} or more pixels a side, got"
                f" {x.shape[1:3]}"
            )
        if train:
            x = layers.dropout(x, keys, self.input_dropout, layer=0)
        conv = functools.partial(
            nn.Conv, dtype=self.compute_dtype, kernel_init=initializers.UNIFORM_UNIT
        )
        for index, layer in enumerate(CONVOLUTIONS, start=1):
            x = conv(
                self.width * layer.width_factor,
                (layer.size, layer.size),
                strides=layer.stride,
                padding=layer.zeros,
                name=f"conv{index}",
            )(x)
            x = nn.relu(x)
            if train and layer.dropout_follows:
                x = layers.dropout(x, keys, self.dropout, layer=index)
        x = conv(
            self.num_classes,
            (1, 1),
            strides=1,
            padding=0,
            name=f"conv{len(CONVOLUTIONS) + 1}",
        )(x)
        x = nn.relu(x)
        return layers.global_average_pool(x), []


class _TorchNet(base.Net):
    """What DenseNet and ResNet share; maps between layers have `compute_dtype`, too."""

    num_classes: int
    compute_dtype: str = "float32"
    axis_name: str | None = None

    def parts(self, train: bool) -> tuple[Callable, Callable]:
        """Convolution and batch norm of these nets, as partial Flax modules.

        The first lacks name, channels, size and stride, the second its name.
        """
        conv = functools.partial(
            nn.Conv,
            use_bias=False,
            dtype=self.compute_dtype,
            kernel_init=initializers.HE_FAN_OUT,
        )
        return conv, layers.batch_norm(self, train, BATCH_NORM_EPSILON)


class DenseNet(_TorchNet):
    """DenseNet, L = 100 and k = 24 at the defaults.

    Attributes:
      depth: L = 3 m + 4 for m layers in each dense block.
      growth: k.
      stem_width: channels of the first convolution.
    """

    depth: int = 100
    growth: int = 24
    stem_width: int = 16

    def __post_init__(self):
        super().__post_init__()
        base.check(self, counts={"depth": 1, "growth": 1, "stem_width": 1})
        if self.depth < 7 or (self.depth - 4) % 3:
            raise ValueError(
                "depth must be 3 m + 4 for m >= 1 layers a dense block, got"
                f" {self.depth}"
            )

    @nn.compact
    def __call__(self, x, *, train: bool, keys=None):
        base.check_images(x)
        conv, norm = self.parts(train)

        def composite(x, *, channels, size, name):
            x = nn.relu(norm(name=f"{name}_norm")(x))
            return conv(channels, (size, size), name=f"{name}_conv")(x)

        x = conv(self.stem_width, (3, 3), name="stem")(x)
        for block in range(1, DENSE_BLOCKS + 1):
            for index in range(1, (self.depth - 4) // 3 + 1):
                grown = composite(
                    x, channels=self.growth, size=3, name=f"block{block}_layer{index}"
                )
                x = jnp.concatenate([x, grown], axis=-1)
            if block < DENSE_BLOCKS:
                x = composite(
                    x, channels=x.shape[-1], size=1, name=f"transition{block}"
                )
                x = layers.average_pool(x, 2)
        x = nn.relu(norm(name="norm")(x))
        return layers.classifier(self.num_classes)(layers.global_average_pool(x)), []


class Block(nn.Module):
    """x -> (ReLU(s + h), ||h|| / ||s||), h = BN(C_2(ReLU(BN(C_1 x)))), s = shortcut(x).

    Attributes:
      channels: of both convolutions.
      stride: of the first one.
      projected: whether the shortcut is that of option B; else it is that of option A.
      conv, norm: what `_TorchNet.parts` returns.
    """

    channels: int
    stride: int
    projected: bool
    conv: Any
    norm: Any

    @nn.compact
    def __call__(self, x):
        # One zero on each side centers the kernels on the pixels that the shortcut
        # takes.
        conv = functools.partial(self.conv, self.channels, (3, 3), padding=1)
        h = conv(strides=self.stride, name="conv1")(x)
        h = nn.relu(self.norm(name="norm1")(h))
        h = conv(name="conv2")(h)
        h = self.norm(name="norm2")(h)
        if not self.projected:
            x = layers.pad_channels(x[:, :: self.stride, :: self.stride], self.channels)
        elif self.stride > 1:
            x = self.conv(
                self.channels, (1, 1), strides=self.stride, padding=0, name="down"
            )(x)
            x = self.norm(name="down_norm")(x)
        return nn.relu(x + h), layers.residual_ratio(x, h)


class ResNet(_TorchNet):
    """ResNet for small images, of depth 110 at the defaults.

    Attributes:
      depth: 6 b + 2 for b blocks in each stage.
      width: of the stem and of the first stage.
      large: whether this is the net for images of 224 pixels a side.
    """

    depth: int = 110
    width: int = 16
    large: ClassVar[bool] = False

    def __post_init__(self):
        super().__post_init__()
        base.check(self, counts={"depth": 1, "width": 1})
        self.blocks()

    def blocks(self) -> tuple[int, ...]:
        """Blocks of each stage; raises ValueError for an invalid depth."""
        if self.depth < 8 or (self.depth - 2) % 6:
            raise ValueError(
                f"depth must be 6 b + 2 for b >= 1 blocks a stage, got {self.depth}"
            )
        return STAGES * ((self.depth - 2) // 6,)

    @nn.compact
    def __call__(self, x, *, train: bool, keys=None):
        base.check_images(x)
        conv, norm = self.parts(train)
        size = 7 if self.large else 3
        stem = conv(
            self.width,
            (size, size),
            strides=2 if self.large else 1,
            padding=size // 2,
            name="stem",
        )
        x = stem(x)
        x = nn.relu(norm(name="norm")(x))
        if self.large:
            x = nn.max_pool(x, (3, 3), strides=(2, 2), padding=((1, 1), (1, 1)))
        ratios = []
        for stage, blocks in enumerate(self.blocks()):
            for index in range(blocks):
                block = Block(
                    channels=self.width * 2**stage,
                    stride=2 if stage and not index else 1,
                    projected=self.large,
                    conv=conv,
                    norm=norm,
                    name=f"stage{stage + 1}_block{index + 1}",
                )
                x, ratio = block(x)
                ratios.append(ratio)
        head = layers.classifier(self.num_classes)
        return head(layers.global_average_pool(x)), ratios


class ResNetImageNet(ResNet):
    """ResNet for large images, of depth 34 at the defaults; it may also be 18."""

    depth: int = 34
    width: int = 64
    large: ClassVar[bool] = True

    def blocks(self) -> tuple[int, ...]:
        if self.depth not in IMAGENET_BLOCKS:
            known = ", ".join(map(str, IMAGENET_BLOCKS))
            raise ValueError(f"depth must be one of {known}, got {self.depth}")
        return IMAGENET_BLOCKS[self.depth]
