"""Where the convolutions of `all_conv_residual` start: its `residual_init`.

* paper: N(0, 1 / (k^2 c)^2), section 4; k is the kernel size, c the output channels.
* standard: N(0, 1 / (k^2 c)), which section 4 calls the standard choice.
* he: N(0, 2 / (k^2 c)) (He et al. 2015, arXiv 1502.01852, fan-out).
* fixup: `he` over sqrt(blocks) for C_1, zero for C_2 (Zhang et al. 2019, arXiv
  1901.09321, without its biases and scalars, and without its zero last matrix).
* unit_variance: normal entries that keep the mean square of the maps of a net without
  the identity. Their deviation depends on the map: zero padding removes a share of each
  kernel, the more the smaller the map, 31 % at 4 x 4 pixels and 56 % at 2 x 2.
* delta_orthogonal: an orthogonal matrix in the centre, zeros around it (Xiao et al.
  2018, arXiv 1806.05393), times sqrt(2) after a ReLU.
"""

import abc
import math
from collections.abc import Callable

import numpy as np

from identity_matters import random_matrices
from identity_matters.nets import initializers

NAMES = ("paper", "standard", "he", "fixup", "unit_variance", "delta_orthogonal")
# A ReLU divides the mean square of a symmetric input by this.
RELU_GAIN = 2.0


class Start(abc.ABC):
    """The initializers of a net's convolutions.

    The net asks for each of them once, in the order of its convolutions.
    """

    def stem(self, size: int, stride: int) -> Callable:
        """The initializer of the first convolution."""
        return initializers.standard()

    @abc.abstractmethod
    def first_in_block(self, stride: int) -> Callable:
        """The initializer of a block's 3x3 convolution C_1, whose input is a sum."""

    @abc.abstractmethod
    def second_in_block(self) -> Callable:
        """The initializer of a block's 3x3 convolution C_2, which is after a ReLU."""


def make_start(
    name: str, *, scale: float, blocks: int, map_shape: tuple[int, int]
) -> Start:
    """The start of a net.

    Args:
      name: one of NAMES.
      scale: a factor on the deviation of convolutions in blocks.
      blocks: the number of residual blocks of the net.
      map_shape: (h, w) of the images.
    """
    match name:
        case "paper":
            return _AllAlike(initializers.paper(scale))
        case "standard":
            return _AllAlike(initializers.standard(scale))
        case "he":
            return _AllAlike(initializers.standard(math.sqrt(2) * scale))
        case "fixup":
            return _Fixup(scale, blocks)
        case "unit_variance":
            return _UnitVariance(scale, map_shape)
        case "delta_orthogonal":
            return _DeltaOrthogonal(scale)
    raise ValueError(f"name must be one of {', '.join(NAMES)}, got {name!r}")


class _AllAlike(Start):
    """One initializer for all convolutions in blocks."""

    def __init__(self, kernel_init: Callable):
        self._kernel_init = kernel_init

    def first_in_block(self, stride: int) -> Callable:
        return self._kernel_init

    def second_in_block(self) -> Callable:
        return self._kernel_init


class _Fixup(Start):
    def __init__(self, scale: float, blocks: int):
        self._scale = scale
        self._blocks = blocks

    def first_in_block(self, stride: int) -> Callable:
        return initializers.standard(math.sqrt(2 / self._blocks) * self._scale)

    def second_in_block(self) -> Callable:
        return initializers.constant(0.0)


class _DeltaOrthogonal(Start):
    def __init__(self, scale: float):
        self._scale = scale

    def stem(self, size: int, stride: int) -> Callable:
        return _delta_orthogonal(1.0)

    def first_in_block(self, stride: int) -> Callable:
        return _delta_orthogonal(self._scale)

    def second_in_block(self) -> Callable:
        return _delta_orthogonal(self._scale * math.sqrt(RELU_GAIN))


class _UnitVariance(Start):
    """Follows the mean square of every pixel through the net, one call after another.

    `_mean_squares`, f64[h, w], is that of the map which the next convolution takes, in
    expectation over the kernels before it, and relative to the mean over the map. It is
    1 everywhere at first. Padding with zeros makes it smaller at the edges.
    """

    def __init__(self, scale: float, map_shape: tuple[int, int]):
        self._scale = scale
        self._mean_squares = np.ones(map_shape)

    def stem(self, size: int, stride: int) -> Callable:
        mean_sum = self._pass_convolution(size, stride)
        return initializers.normal(lambda shape: math.sqrt(1 / (mean_sum * shape[-2])))

    def first_in_block(self, stride: int) -> Callable:
        return self._in_block(stride, gain=1.0)

    def second_in_block(self) -> Callable:
        return self._in_block(stride=1, gain=RELU_GAIN)

    def _in_block(self, stride: int, *, gain: float) -> Callable:
        """N(0, scale^2 gain / (mean_sum c)), c input channels.

        The mean square of the output is scale^2 times that of the input. `gain` makes
        up for a ReLU in between, which divides the mean square by it.
        """
        mean_sum = self._pass_convolution(3, stride)

        def deviation(shape):
            return self._scale * math.sqrt(gain / (mean_sum * shape[-2]))

        return initializers.normal(deviation)

    def _pass_convolution(self, size: int, stride: int) -> float:
        """Moves `_mean_squares` past a convolution.

        Returns:
          The mean, over its windows, of the sum of the mean squares in a window: k^2
          for a k x k kernel if nothing were padded.
        """
        sums = _window_sums(self._mean_squares, size, stride)
        mean_sum = float(sums.mean())
        self._mean_squares = sums / mean_sum
        return mean_sum


def _window_sums(values: np.ndarray, size: int, stride: int) -> np.ndarray:
    """Sums over the windows of a convolution with padding "SAME".

    From f64[h, w] to f64[h / stride, w / stride], where the sides are rounded up.
    """
    for axis in (0, 1):
        side = values.shape[axis]
        count = -(-side // stride)
        padding = max((count - 1) * stride + size - side, 0)
        before = padding // 2
        widths = [(0, 0), (0, 0)]
        widths[axis] = (before, padding - before)
        padded = np.pad(values, widths)
        starts = np.arange(count) * stride
        windows = [np.take(padded, starts + offset, axis) for offset in range(size)]
        values = np.sum(windows, axis=0)
    return values


def _delta_orthogonal(scale: float) -> Callable:
    """Kernels [k, k, in, out], in <= out, that multiply mean squares by scale^2."""

    def draw(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        size, _, channels_in, channels = shape
        kernel = np.zeros(shape)
        centre = (size - 1) // 2
        square = random_matrices.orthogonal(rng, (), channels)
        # The rows are orthonormal, so the squares of `channels_in` numbers are spread
        # over `channels`.
        kernel[centre, centre] = (
            scale * math.sqrt(channels / channels_in) * square[:channels_in]
        )
        return kernel

    return initializers.drawn_by(draw)
