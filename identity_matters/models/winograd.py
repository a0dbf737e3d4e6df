"""3x3 convolutions by Winograd's minimal filtering, which on a CPU beat XLA's direct ones.

F(2x2, 3x3) of Lavin & Gray 2015 (arXiv 1509.09308): the map is cut into tiles of 4x4 pixels that
overlap by two; with d a tile, g a kernel and the constant matrices B, G, A below, the 2x2 outputs
of a tile are ``A^T [ (G g G^T) * (B^T d B) ] A``. Summed over input channels the product * becomes
16 matrix products, with 4/9 of the multiplications of a direct convolution. Its derivatives are the
transposes of the same steps, so they save as much: XLA's direct gradient of the kernel runs at
about half the speed of the forward pass on CPU.

The result differs from the direct one by rounding only, about 1e-6 of the largest output in
float32. On accelerators the vendor's libraries choose such methods themselves.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from identity_matters.array_types import Array

# With fewer channels the matrix products are too thin to pay, on smaller maps too few.
LEAST_CHANNELS = 64
LEAST_SIDE = 8
_B_T = np.array([[1, 0, -1, 0], [0, 1, 1, 0], [0, -1, 1, 0], [0, 1, 0, -1]])
_G = np.array([[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]])
_A_T = np.array([[1, 1, 1, 0], [0, 1, -1, -1]])
_TILE, _OUTPUTS = 4, 2


def conv_general_dilated(
    lhs: Array, rhs: Array, window_strides: Sequence[int], padding: Any, **options
) -> jax.Array:
    """As `jax.lax.conv_general_dilated`, by Winograd's method where that applies and pays.

    It does for 3x3 kernels at stride 1 and padding "SAME", no dilation or groups, even sides of
    at least `LEAST_SIDE`, and `LEAST_CHANNELS` channels in and out; the rest goes to `jax.lax`.
    """
    simple = {"lhs_dilation": 1, "rhs_dilation": 1, "feature_group_count": 1}
    applies = (
        rhs.shape[:2] == (3, 3)
        and tuple(window_strides) == (1, 1)
        and padding == "SAME"
        and lhs.shape[1] % _OUTPUTS == lhs.shape[2] % _OUTPUTS == 0
        and min(lhs.shape[1:3]) >= LEAST_SIDE
        and min(rhs.shape[2:]) >= LEAST_CHANNELS
        and all(np.all(np.equal(options.get(name) or 1, one)) for name, one in simple.items())
    )
    if not applies:
        return lax.conv_general_dilated(
            jnp.asarray(lhs), jnp.asarray(rhs), window_strides, padding, **options
        )
    return convolve(lhs, rhs)


def convolve(x: Array, kernel: Array) -> jax.Array:
    """The convolution of x [n, h, w, c] with kernel [3, 3, c, d], stride 1, "SAME" padding.

    Returns:
      [n, h, w, d] in the dtype of x.
    Raises:
      ValueError: a side of x is odd, or the kernel is not 3x3.
    """
    n, h, w, channels = x.shape
    if h % _OUTPUTS or w % _OUTPUTS or kernel.shape[:2] != (3, 3):
        raise ValueError(
            f"x must have even sides and the kernel 3 x 3, got {h} x {w} and {kernel.shape[:2]}"
        )
    tiles = _tiles(jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0))), h // _OUTPUTS, w // _OUTPUTS)
    rows = _combine(_G, [kernel[i] for i in range(3)])
    kernels = [_combine(_G, [row[j] for j in range(3)]) for row in rows]
    products = [
        [tile.reshape(-1, channels) @ kernels[i][j] for j, tile in enumerate(row)]
        for i, row in enumerate(tiles)
    ]
    columns = [_combine(_A_T, row) for row in products]
    # outputs[i][j]: pixel (i, j) of the 2x2 outputs of every tile.
    outputs = [_combine(_A_T, [columns[i][j] for i in range(_TILE)]) for j in range(_OUTPUTS)]
    shape = (n, h // _OUTPUTS, w // _OUTPUTS, kernel.shape[3])
    across = [
        jnp.stack([outputs[j][i].reshape(shape) for j in range(_OUTPUTS)], axis=3)
        for i in range(_OUTPUTS)
    ]
    return jnp.stack(across, axis=2).reshape(n, h, w, kernel.shape[3])


def _tiles(padded, tile_rows: int, tile_columns: int) -> list[list]:
    """B^T d B of all tiles d: a 4 x 4 list of [n, tile_rows, tile_columns, c]."""

    def every_second(x, axis, first, count):
        stop = first + _OUTPUTS * (count - 1) + 1
        return lax.slice_in_dim(x, first, stop, stride=_OUTPUTS, axis=axis)

    rows = _combine(_B_T, [every_second(padded, 1, i, tile_rows) for i in range(_TILE)])
    return [
        _combine(_B_T, [every_second(row, 2, j, tile_columns) for j in range(_TILE)])
        for row in rows
    ]


def _combine(matrix, parts: list) -> list:
    """matrix @ parts, for a list of arrays, without the products with 0, 1 and -1."""
    return [_weighted_sum(row, parts) for row in matrix]


def _weighted_sum(weights, parts: list):
    total = None
    for weight, part in zip(weights, parts, strict=True):
        if weight:
            scaled = part if abs(weight) == 1 else part * part.dtype.type(abs(weight))
            if total is None:
                total = scaled if weight > 0 else -scaled
            else:
                total = total + scaled if weight > 0 else total - scaled
    return total
