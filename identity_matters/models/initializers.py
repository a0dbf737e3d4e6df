"""Initial weights (paper, section 4, and the recipes of Table 2's other rows).

A rule maps the shape of a kernel to a `Distribution`; `draw` applies rules to a whole network.
Kernels are f32[k, k, in, out] (convolutions) or f32[in, out]; c is the number of output channels.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


@dataclasses.dataclass(frozen=True)
class Distribution:
    """`scale` times a standard normal number, or times a uniform one of [-1, 1)."""

    kind: str  # "normal" or "uniform"
    scale: float


def paper(shape: tuple[int, ...], initial_scale: float = 1.0) -> Distribution:
    """N(0, (initial_scale / (k^2 c))^2), section 4's choice for the residual convolutions."""
    return Distribution("normal", initial_scale / _fan_out(shape))


def standard(shape: tuple[int, ...], initial_scale: float = 1.0) -> Distribution:
    """N(0, (initial_scale / (k sqrt(c)))^2), which section 4 calls the standard choice."""
    return Distribution("normal", initial_scale / math.sqrt(_fan_out(shape)))


def normal_fan_out(shape: tuple[int, ...]) -> Distribution:
    """N(0, 2 / (k^2 c)): ResNet and DenseNet in their authors' or Facebook's Torch code."""
    return Distribution("normal", math.sqrt(2 / _fan_out(shape)))


def uniform_unit_scaling(shape: tuple[int, ...]) -> Distribution:
    """U(-sqrt(3 / m), sqrt(3 / m)), m inputs to each output: variance 1 / m.

    TensorFlow's initializer of that name, which the paper's base code uses for its last matrix;
    Caffe calls it "xavier".
    """
    return Distribution("uniform", math.sqrt(3 / _fan_in(shape)))


def torch_linear(shape: tuple[int, ...]) -> Distribution:
    """U(-1 / sqrt(m), 1 / sqrt(m)), m inputs: what Torch gives a linear layer by default."""
    return Distribution("uniform", 1 / math.sqrt(_fan_in(shape)))


def _fan_out(shape) -> int:
    return math.prod(shape[:-2]) * shape[-1]


def _fan_in(shape) -> int:
    return math.prod(shape[:-1])


# (names of the dict keys that lead to a kernel, its shape) -> how it is drawn.
Rule = Callable[[tuple[str, ...], tuple[int, ...]], Distribution]

# Leaves of these names start at one value; the others are kernels.
CONSTANTS = {"bias": 0.0, "scale": 1.0, "mean": 0.0, "var": 1.0}


def draw(key: jax.Array, shapes: dict, rule: Rule) -> dict:
    """The initial variables of a network.

    Normal numbers come from one call and uniform ones from another, and are cut up afterwards: the
    compiler would take 15 s on a CPU for a call for each kernel of the paper's network, and 5 s for
    the cutting.

    Args:
      key: a typed key.
      shapes: a pytree of dicts of `jax.ShapeDtypeStruct`.
      rule: the distribution of each leaf called "kernel".
    Returns:
      f32 arrays in the structure of `shapes`.
    """
    leaves, structure = jax.tree_util.tree_flatten_with_path(shapes)
    kernels = {}  # index of the leaf -> its distribution
    drawn: list[Any] = []
    for path, leaf in leaves:
        names = tuple(entry.key for entry in path)
        if names[-1] in CONSTANTS:
            drawn.append(np.full(leaf.shape, CONSTANTS[names[-1]], np.float32))
        else:
            kernels[len(drawn)] = rule(names, leaf.shape)
            drawn.append(None)
    for kind, kind_key in zip(_SAMPLERS, jax.random.split(key), strict=True):
        indices = [index for index, chosen in kernels.items() if chosen.kind == kind]
        sizes = [math.prod(leaves[index][1].shape) for index in indices]
        pieces = _cut(_SAMPLERS[kind](kind_key, sum(sizes)), sizes)
        for index, piece in zip(indices, pieces, strict=True):
            kernel = piece.reshape(leaves[index][1].shape)
            drawn[index] = kernel * np.float32(kernels[index].scale)
    return jax.tree_util.tree_unflatten(structure, [jnp.asarray(leaf) for leaf in drawn])


def _cut(numbers, sizes: list[int]) -> list:
    # NumPy cuts without compiling; under a transformation (jax.eval_shape) there is nothing to cut.
    if not isinstance(numbers, jax.core.Tracer):
        numbers = np.asarray(numbers)
    stops = list(itertools.accumulate(sizes))
    return [numbers[stop - size : stop] for size, stop in zip(sizes, stops, strict=True)]


@functools.partial(jax.jit, static_argnums=1)
def _normal(key, count: int):
    return jax.random.normal(key, (count,), jnp.float32)


@functools.partial(jax.jit, static_argnums=1)
def _uniform(key, count: int):
    return jax.random.uniform(key, (count,), jnp.float32, minval=-1.0, maxval=1.0)


_SAMPLERS = {"normal": _normal, "uniform": _uniform}
