"""Initial weights, drawn by NumPy; each function returns an initializer for Flax.

Kernels are [k, k, in, out], matrices [in, out].
"""

import math
from collections.abc import Callable
from typing import Any

import flax
import flax.linen as nn
import jax.numpy as jnp
import numpy as np

from identity_matters import random_matrices


@flax.struct.dataclass
class Drawn(nn.Partitioned[Any]):
    """A parameter that `Net.init` draws by ``draw(generator, shape) -> float[shape]``.

    JAX would compile a random function for each shape, 100 in DenseNet; NumPy compiles
    none. It is a `Partitioned` because Flax unboxes these to `value` while it infers
    the shapes. That is a placeholder, NaN, so that a net whose numbers were not drawn
    cannot pass for one that was.
    """

    draw: Callable = flax.struct.field(pytree_node=False, default=None)


def drawn_by(draw: Callable) -> Callable:
    """An initializer for Flax: see `Drawn`."""

    def initializer(key, shape, dtype=jnp.float32):
        placeholder = jnp.full(shape, jnp.nan, dtype)
        return Drawn(placeholder, names=(), draw=draw)  # of no axes of a mesh

    return initializer


# Initial values, by name, of the leaves that are not `Drawn`. `Net.init` takes them
# whatever initializer a Flax layer has for such a leaf.
CONSTANTS = {"bias": 0.0, "scale": 1.0, "mean": 0.0, "var": 1.0}


def normal(deviation: Callable[[tuple[int, ...]], float]) -> Callable:
    """A `kernel_init`: N(0, deviation(shape of the kernel)^2)."""

    def draw(generator, shape):
        unit = generator.standard_normal(shape, np.float32)
        return np.float32(deviation(shape)) * unit

    return drawn_by(draw)


def uniform(limit: Callable[[tuple[int, ...]], float]) -> Callable:
    """A `kernel_init`: U(-limit(shape of the kernel), limit(...))."""

    def draw(generator, shape):
        symmetric = 2 * generator.random(shape, np.float32) - 1
        return np.float32(limit(shape)) * symmetric

    return drawn_by(draw)


def constant(value: float) -> Callable:
    """An initializer: `value` everywhere."""
    return drawn_by(lambda generator, shape: np.full(shape, value, np.float32))


def orthogonal(scale: float) -> Callable:
    """A `kernel_init`: `scale` times random orthogonal matrices, [..., d, d]."""

    def draw(generator, shape):
        *leading, width, _ = shape
        return scale * random_matrices.orthogonal(generator, tuple(leading), width)

    return drawn_by(draw)


def fan_out(shape: tuple[int, ...]) -> int:
    """k^2 c of a kernel [k, k, in, c], or c of a matrix [in, c]."""
    return math.prod(shape[:-2]) * shape[-1]


def _fan_in(shape) -> int:
    return math.prod(shape[:-1])


def paper(scale: float = 1.0) -> Callable:
    """N(0, (scale / (k^2 c))^2), section 4's choice for the residual convolutions."""
    return normal(lambda shape: scale / fan_out(shape))


def standard(scale: float = 1.0) -> Callable:
    """N(0, (scale / (k sqrt(c)))^2), which section 4 calls the standard choice."""
    return normal(lambda shape: scale / math.sqrt(fan_out(shape)))


# N(0, 2 / (k^2 c)): ResNet and DenseNet in their authors' or Facebook's Torch code.
HE_FAN_OUT = standard(math.sqrt(2))
# U(-sqrt(3 / m), sqrt(3 / m)), m inputs to each output: Caffe's "xavier". It is
# TensorFlow's `uniform_unit_scaling`, the last matrix's in the paper's base code.
UNIFORM_UNIT = uniform(lambda shape: math.sqrt(3 / _fan_in(shape)))
# U(-1 / sqrt(m), 1 / sqrt(m)): Torch's default for linear layers.
TORCH_LINEAR = uniform(lambda shape: 1 / math.sqrt(_fan_in(shape)))
