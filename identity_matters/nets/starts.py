"""Where the convolutions of `all_conv_residual` start: its `residual_init`.

A start is asked for the initializer of one convolution after the other, in the order of
the net, since some depend on the map: zero padding removes a share of each kernel, the
more the smaller the map, 31 % at 4 x 4 pixels and 56 % at 2 x 2.

* paper: N(0, 1 / (k^2 c)^2), section 4; k is the kernel size, c the output channels.
* standard: N(0, 1 / (k^2 c)), which section 4 calls the standard choice.
* he: N(0, 2 / (k^2 c)) (He et al. 2015, arXiv 1502.01852, fan-out).
* fixup: `he` over sqrt(blocks) for C_1, zero for C_2 (Zhang et al. 2019, arXiv
  1901.09321, without its biases and scalars).
* unit_variance: keeps the mean square of the maps of a net without the identity.
* delta_orthogonal: an orthogonal matrix in the centre, zeros around it (Xiao et al.
  2018, arXiv 1806.05393), times sqrt(2) after a ReLU.
"""

import math
from collections.abc import Callable

import numpy as np

from identity_matters import random_matrices
from identity_matters.nets import initializers

NAMES = ("paper", "standard", "he", "fixup", "unit_variance", "delta_orthogonal")
# What the mean square of a ReLU's symmetric input is divided by.
RELU_GAIN = 2.0


class Start:
    """The initializers of a net's convolutions, each asked for once, in order.

    A call of a method goes on to the map after that convolution.

    Args:
      name: one of NAMES.
      scale: a factor on the deviation of convolutions in blocks.
      blocks: the number of residual blocks of the net.
      map_shape: (h, w) of the images.
    """

    def __init__(
        self, name: str, *, scale: float, blocks: int, map_shape: tuple[int, int]
    ):
        self._name = name
        self._scale = scale
        self._blocks = blocks
        self._mean_squares = np.ones(map_shape)

    def stem(self, size: int, stride: int) -> Callable:
        """The initializer of the first convolution."""
        if self._name in ("unit_variance", "delta_orthogonal"):
            return self._keeping_mean_squares(size, stride, gain=1.0, scale=1.0)
        return initializers.standard()

    def first_in_block(self, stride: int) -> Callable:
        """The initializer of a block's 3x3 convolution C_1, whose input is a sum."""
        if self._name == "fixup":
            return initializers.standard(math.sqrt(2 / self._blocks) * self._scale)
        return self._in_block(stride, gain=1.0)

    def second_in_block(self) -> Callable:
        """The initializer of a block's 3x3 convolution C_2, which is after a ReLU."""
        if self._name == "fixup":
            return initializers.constant(0.0)
        return self._in_block(stride=1, gain=RELU_GAIN)

    def _in_block(self, stride: int, *, gain: float) -> Callable:
        """What does not differ between C_1 and C_2 but for the gain."""
        if self._name == "paper":
            return initializers.paper(self._scale)
        if self._name == "standard":
            return initializers.standard(self._scale)
        if self._name == "he":
            return initializers.standard(math.sqrt(2) * self._scale)
        return self._keeping_mean_squares(3, stride, gain=gain, scale=self._scale)

    def _keeping_mean_squares(
        self, size: int, stride: int, *, gain: float, scale: float
    ) -> Callable:
        """Keeps mean squares, times scale^2, where `gain` divides them before."""
        if self._name == "delta_orthogonal":
            return _delta_orthogonal(scale * math.sqrt(gain))
        sums = _window_sums(self._mean_squares, size, stride)
        mean = float(sums.mean())
        self._mean_squares = sums / mean

        def deviation(shape):
            return scale * math.sqrt(gain / (mean * shape[-2]))

        return initializers.normal(deviation)


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
        # Rows are orthonormal:
        # the squares of `channels_in` numbers are spread over `channels`.
        kernel[centre, centre] = (
            scale * math.sqrt(channels / channels_in) * square[:channels_in]
        )
        return kernel

    return initializers.drawn_by(draw)
