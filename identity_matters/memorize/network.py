"""The residual block of section 3, the network made of it, and its parameter count.

Points are columns: on CPU a k x k matrix times a k x n one is faster than the
transposed product. All products ask for full precision: TF32 or bfloat16, which
accelerators would take otherwise, round by more than the margins of the network.
"""

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import DTypeLike

from identity_matters.array_types import Array
from identity_matters.memorize.input_map import project

matmul = functools.partial(jnp.matmul, precision=jax.lax.Precision.HIGHEST)


class Network(NamedTuple):
    """The parameters of Theorem 3.2's network.

    Attributes:
      input_map: f[k, d], A_0.
      U: f[l, k, k], the first layers of the residual blocks; index 0 is applied first.
      s: f[l, k], their biases.
      V: f[l, k, k], the second layers.
      output_U: f[r, k], of the last block, which has no skip connection.
      output_s: f[r].
      output_V: f[r, r].
    """

    input_map: jax.Array
    U: jax.Array
    s: jax.Array
    V: jax.Array
    output_U: jax.Array
    output_s: jax.Array
    output_V: jax.Array

    def __repr__(self) -> str:
        """Shapes, not weights."""
        shapes = [
            f"{name}={array.dtype}{list(array.shape)}"
            for name, array in self._asdict().items()
            if hasattr(array, "dtype")
        ]
        return f"Network({', '.join(shapes)})"


def transform(h: Array, U: Array, V: Array, s: Array) -> jax.Array:
    """``T_{U,V,s}(h) = V ReLU(U h + s)``: f[p, n].

    h is f[k, n], U f[m, k], V f[p, m], s f[m].
    """
    return matmul(V, jax.nn.relu(matmul(U, h) + s[:, None]))


def apply_block(h: Array, U: Array, V: Array, s: Array) -> jax.Array:
    """One residual block, ``h + T(h)``: f[k, n], with U, V f[k, k], s f[k]."""
    return jnp.asarray(h) + transform(h, U, V, s)


def run_blocks(h: jax.Array, blocks: tuple[Array, ...]) -> jax.Array:
    """The points h, f[k, n], after the stacked blocks (U, V, s), first to last."""

    def step(h, block):
        U, V, s = block
        return apply_block(h, U, V, s), None

    h, _ = jax.lax.scan(step, h, blocks)
    return h


def outputs(network: Network, h: jax.Array) -> jax.Array:
    """The outputs, f[n, r], for points after the input map, f[k, n]."""
    h = run_blocks(h, (network.U, network.V, network.s))
    return transform(h, network.output_U, network.output_V, network.output_s).T


@jax.jit
def forward(network: Network, x: Array) -> jax.Array:
    """The whole network: f[n, d] to f[n, r]. `input_map.project` computes A_0 x."""
    return outputs(network, project(network.input_map, x))


class Plan(NamedTuple):
    """The first layer of every block, and the order in which the points are moved.

    Arrays are float64, but U, s, output_U and output_s are already rounded to the
    network's precision, so the plan allows for it. l k >= n; units beyond n are zero. A
    margin says how far below 0 the pre-activation of a unit stays where it must be
    zero; margins are in `order`.

    Attributes:
      order: i64[n]; block b moves the points order[b k : (b + 1) k].
      U: f64[l, k, k].
      s: f64[l, k].
      surrogates: f64[r, k], q_j.
      output_U: f64[r, k], of the last block.
      output_s: f64[r].
      point_margin: f64[n], on the points of later blocks, and on those of the unit's
        block that it must leave alone.
      surrogate_margin: f64[n], on the surrogate labels.
      search_error: f64[n], a bound on the rounding errors of both margins as they stand
        here.
    """

    order: np.ndarray
    U: np.ndarray
    s: np.ndarray
    surrogates: np.ndarray
    output_U: np.ndarray
    output_s: np.ndarray
    point_margin: np.ndarray
    surrogate_margin: np.ndarray
    search_error: np.ndarray


class Solution(NamedTuple):
    """The second layers for a `Plan`: f64, but rounded to its precision."""

    V: np.ndarray  # f64[l, k, k]
    output_V: np.ndarray  # f64[r, r]
    pre_activations: np.ndarray  # f64[l, k, k], [block, unit, point of the same block]


def round_to(array: np.ndarray, dtype: DTypeLike) -> np.ndarray:
    """`array` in the numbers of `dtype`, as float64; subnormal ones are 0."""
    rounded = array.astype(dtype)
    rounded[np.abs(rounded) < np.finfo(dtype).tiny] = 0
    return rounded.astype(np.float64)


def gamma(terms: int, dtype: DTypeLike) -> float:
    """``m u / (1 - m u)``, relative rounding error of a sum of m products.

    In every order of summation, |computed - exact| <= gamma sum |term|, if nothing
    underflows and each operation rounds to nearest, with unit roundoff u (Higham 2002,
    section 3.1). Infinite if m u >= 1.
    """
    total = terms * float(np.finfo(dtype).eps) / 2
    return total / (1 - total) if total < 1 else math.inf


def in_blocks(rows: np.ndarray, width: int) -> np.ndarray:
    """``f[n, ...] -> f[l, k, ...]``, the last block padded with zeros."""
    padding = np.zeros((-len(rows) % width, *rows.shape[1:]), rows.dtype)
    return np.concatenate([rows, padding]).reshape(-1, width, *rows.shape[1:])


def block_parameters(n: int, width: int) -> int:
    """Parameters of the residual blocks for n points: ceil(n / k) (2 k^2 + k)."""
    return -(-n // width) * (2 * width**2 + width)


def network_parameters(n: int, features: int, num_classes: int, width: int) -> int:
    """All parameters, by formula: k d + l (2 k^2 + k) + k r + r^2 + r.

    l = ceil(n / k) is the number of blocks.

    >>> network_parameters(50_000, 3072, 10, 8)  # CIFAR-10, 850,000 of them in blocks
    874766
    """
    output_parameters = width * num_classes + num_classes**2 + num_classes
    return width * features + block_parameters(n, width) + output_parameters


def counting_lower_bound(n: int, num_classes: int, bits_per_parameter: int) -> float:
    """n log2(r) / bits: so many parameters any net needs to fit all labelings (E10).

    >>> round(counting_lower_bound(50_000, 10, 32))
    5191
    """
    return n * math.log2(num_classes) / bits_per_parameter
