"""ResNet for images of 224 pixels a side (He et al., arXiv 1512.03385, section 4.1).

The baseline of the paper's ImageNet experiment, with batch norm: a 7x7 stem of stride 2, a 3x3
maximum of stride 2, four stages of blocks ReLU(shortcut(x) + BN(C_2(ReLU(BN(C_1 x))))) with 64,
128, 256, 512 channels, a mean over the map and a linear layer. Where a stage halves the map its
shortcut is a 1x1 convolution of stride 2 with batch norm (their option B). ResNet-34 has 21,797,672
parameters for 1000 classes.

Initial weights and batch norm are those of facebook/fb.resnet.torch, as in `resnet`.
"""

import functools

import flax.linen as nn

from identity_matters import diagnostics
from identity_matters.models import initializers, layers
from identity_matters.models.checks import check_at_least, check_choice
from identity_matters.models.interface import Model, from_module
from identity_matters.models.resnet import BATCH_NORM_DECAY, BATCH_NORM_EPSILON

# Blocks a stage of the nets of basic blocks.
BLOCKS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3)}


def resnet_imagenet(
    *,
    num_classes: int,
    depth: int = 34,
    width: int = 64,
    compute_dtype: str = "float32",
    axis_name: str | None = None,
) -> Model:
    """ResNet-34 at the defaults.

    Args:
      num_classes: the number of logits.
      depth: 18 or 34.
      width: channels of the stem and the first stage.
      compute_dtype: "float32" or "bfloat16", the type of the convolutions and of the maps between
        them; statistics, the last mean and the last layer are float32.
      axis_name: the mapped axis over which batch norm averages in training.
    Raises:
      ValueError: an argument is out of range.
    """
    check_at_least("num_classes", num_classes, 1)
    check_at_least("width", width, 1)
    check_choice("depth", depth, tuple(BLOCKS))
    check_choice("compute_dtype", compute_dtype, layers.COMPUTE_DTYPES)
    module = _Network(num_classes, BLOCKS[depth], width, compute_dtype, axis_name)

    def rule(path, shape):
        is_linear = "linear" in path
        return (initializers.torch_linear if is_linear else initializers.normal_fan_out)(shape)

    return from_module(module, rule)


class _Network(nn.Module):
    num_classes: int
    blocks: tuple[int, ...]
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
        convolution = functools.partial(layers.convolution, dtype=self.dtype)
        x = convolution(self.width, 7, stride=2, padding=3, name="stem")(x)
        x = nn.relu(norm(name="norm")(x))
        x = nn.max_pool(x, (3, 3), strides=(2, 2), padding=((1, 1), (1, 1)))
        ratios = []
        for stage, blocks in enumerate(self.blocks):
            channels = self.width * 2**stage
            for index in range(blocks):
                stride = 2 if stage and not index else 1
                name = f"stage{stage + 1}_block{index + 1}"
                h = convolution(channels, 3, stride=stride, padding=1, name=f"{name}_conv1")(x)
                h = nn.relu(norm(name=f"{name}_norm1")(h))
                h = convolution(channels, 3, padding=1, name=f"{name}_conv2")(h)
                h = norm(name=f"{name}_norm2")(h)
                if stride > 1:
                    x = convolution(channels, 1, stride=stride, padding=0, name=f"{name}_down")(x)
                    x = norm(name=f"{name}_down_norm")(x)
                ratios.append(diagnostics.residual_ratio(x, h))
                x = nn.relu(x + h)
        linear = layers.Linear(self.num_classes, use_bias=True, trained=True, name="linear")
        return linear(layers.global_average_pool(x)), ratios
