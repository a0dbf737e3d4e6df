"""The residual block of section 3, the network made of it, and its parameter count.

Points are columns: on CPU a k x k matrix times a k x n one is faster than the
transposed product. All products ask for full precision: TF32 or bfloat16, which
accelerators would take otherwise, round by more than the margins of the network.
"""

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from identity_matters.array_types import Array, jit_of_array_trees
from identity_matters.checks import check_whole
from identity_matters.memorize.examples import shape_and_advice
from identity_matters.memorize.input_map import project

matmul = functools.partial(jnp.matmul, precision=jax.lax.Precision.HIGHEST)


class Network(NamedTuple):
    """The parameters of Theorem 3.2's network.

    Attributes:
      input_map: f[k, d], A_0.
      U: f[l, k, k], the first layers of the residual blocks; index 0 is applied first.
      V: f[l, k, k], the second layers.
      s: f[l, k], the biases of the first layers.
      output_U: f[r, k], of the last block, which has no skip connection.
      output_V: f[r, r].
      output_s: f[r].
    """

    input_map: jax.Array
    U: jax.Array
    V: jax.Array
    s: jax.Array
    output_U: jax.Array
    output_V: jax.Array
    output_s: jax.Array

    def __repr__(self) -> str:
        """Shapes, not weights."""
        shapes = [
            f"{name}={array.dtype}{list(array.shape)}"
            for name, array in self._asdict().items()
            if hasattr(array, "dtype")
        ]
        return f"Network({', '.join(shapes)})"


def transform(h: Array, *, U: Array, V: Array, s: Array) -> jax.Array:
    """``T_{U,V,s}(h) = V ReLU(U h + s)``: f[p, n].

    Args:
      h: f[k, n].
      U: f[m, k].
      V: f[p, m].
      s: f[m].
    """
    return matmul(V, jax.nn.relu(matmul(U, h) + s[:, None]))


def apply_block(h: Array, *, U: Array, V: Array, s: Array) -> jax.Array:
    """One residual block, ``h + T(h)``: f[k, n], with U, V f[k, k], s f[k]."""
    return jnp.asarray(h) + transform(h, U=U, V=V, s=s)


def run_blocks(h: jax.Array, blocks: tuple[Array, ...]) -> jax.Array:
    """The points h, f[k, n], after the stacked blocks (U, V, s), first to last."""

    def step(h, block):
        U, V, s = block
        return apply_block(h, U=U, V=V, s=s), None

    h, _ = jax.lax.scan(step, h, blocks)
    return h


def outputs(network: Network, h: jax.Array) -> jax.Array:
    """The outputs, f[n, r], for points after the input map, f[k, n]."""
    h = run_blocks(h, (network.U, network.V, network.s))
    return transform(h, U=network.output_U, V=network.output_V, s=network.output_s).T


@jit_of_array_trees
def forward(network: Network, x: Array) -> jax.Array:
    """The whole network: f[n, d] to f[n, r]. `input_map.project` computes A_0 x.

    Inputs are converted to the type of the network: its certificate is about that
    arithmetic. ValueError for x of another shape, TypeError for another network.
    """
    check_kind(network, Network)
    check_rows(x, network.input_map.shape[1])
    # In float32 the input map would drop small entries that a float64 network tells
    # apart; in float64 the points of a float32 network would not be those certified.
    x = x.astype(network.input_map.dtype)
    return outputs(network, project(network.input_map, x))


def check_kind(network: Any, kind: type) -> None:
    """TypeError unless the network is of the kind that a forward pass runs."""
    if not isinstance(network, kind):
        raise TypeError(
            f"network must be a {kind.__name__}, got a {type(network).__name__}: the"
            " `forward` of its own module runs it"
        )


def check_rows(x: Array, features: int) -> None:
    """ValueError unless x is [n, features]; one input is [1, features]."""
    if x.ndim != 2 or x.shape[1] != features:
        raise ValueError(
            f"x must have shape [n, {features}] for this network, got"
            f" {shape_and_advice(x)}"
        )


def block_parameters(n: int, width: int) -> int:
    """Parameters of the residual blocks for n points: ceil(n / k) (2 k^2 + k).

    ValueError unless both are positive whole numbers.
    """
    n = check_whole("n", n)
    width = check_whole("width", width)
    return -(-n // width) * (2 * width**2 + width)


def network_parameters(n: int, features: int, num_classes: int, width: int) -> int:
    """All parameters, by formula: k d + l (2 k^2 + k) + k r + r^2 + r (E5).

    l = ceil(n / k) is the number of blocks. ValueError unless all arguments are
    positive whole numbers.

    >>> network_parameters(50_000, 3072, 10, 8)  # CIFAR-10, 850,000 of them in blocks
    874766
    """
    features = check_whole("features", features)
    num_classes = check_whole("num_classes", num_classes)
    width = check_whole("width", width)
    output_parameters = width * num_classes + num_classes**2 + num_classes
    return width * features + block_parameters(n, width) + output_parameters


def counting_lower_bound(n: int, num_classes: int, bits_per_parameter: int) -> float:
    """n log2(r) / bits: no net with fewer parameters can fit all labelings (E10).

    ValueError unless all arguments are positive whole numbers.

    >>> round(counting_lower_bound(50_000, 10, 32))
    5191
    """
    n = check_whole("n", n)
    num_classes = check_whole("num_classes", num_classes)
    bits_per_parameter = check_whole("bits_per_parameter", bits_per_parameter)
    return n * math.log2(num_classes) / bits_per_parameter
