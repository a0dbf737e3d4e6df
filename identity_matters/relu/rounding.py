"""How far the floats of a forward pass may be from what they stand for.

A sum of m terms is off by at most about m roundings of the sum of the terms' sizes. So
each bound here is a number of roundings, which is generous, times a size: a Frobenius
norm with the size of every term in place of the term. The functions take arrays of
NumPy or JAX, and compute in their dtype.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from identity_matters.array_types import Array
from identity_matters.relu.model import Blocks, Problem

# What is computed may be off by this many roundings, and one for each dimension, of the
# sum of the sizes that it is made of.
_ROUNDINGS = 64
# The biases, the identity, and what the sums over d and k have besides their terms.
_ROUNDINGS_OF_BLOCK = 4


class Sizes(NamedTuple):
    """How large the sums are that a forward pass rounds.

    Attributes:
      inputs: of the first block, A x.
      features: of each block.
      outputs: of the last block.
    """

    inputs: Array
    features: list[Array]
    outputs: Array


def sizes(blocks: Blocks, problem: Problem) -> Sizes:
    """The `Sizes` of a net on a sample."""
    inputs = _frobenius_norm(problem.A) * _frobenius_norm(problem.x)
    outputs = inputs
    features = []
    for j in range(len(blocks.U)):
        of_block = _frobenius_norm(blocks.U[j]) * outputs
        if blocks.s is not None:
            root = len(problem.x) ** 0.5
            of_block = of_block + root * _frobenius_norm(blocks.s[j])
        features.append(of_block)
        outputs = outputs + _frobenius_norm(blocks.V[j]) * of_block
    return Sizes(inputs=inputs, features=features, outputs=outputs)


def relative_error(blocks: Blocks, problem: Problem, dtype: DTypeLike) -> float:
    """The rounding error of what is computed, relative to its size.

    It covers a forward pass and a singular value decomposition.
    """
    examples, inputs = problem.x.shape
    outputs, dimension = problem.B.shape
    depth, width, _ = blocks.U.shape
    of_blocks = depth * (dimension + width + _ROUNDINGS_OF_BLOCK)
    roundings = _ROUNDINGS + examples + inputs + outputs + of_blocks
    return roundings * float(np.finfo(dtype).eps)


def least_singular_value(singular_values: Array, error: Array | float) -> Array:
    """A lower bound of the least one, at least 0.

    Args:
      singular_values: f[..., m], as computed, the largest first.
      error: bounds how far the matrix and the computed values may be off.
    """
    return (singular_values[..., -1] - error).clip(0)


def _frobenius_norm(array: Array) -> Array:
    """``||array||_F``, also where the dtype does not hold the squares of entries."""
    # The largest size of an entry, by methods that NumPy's and JAX's arrays share.
    largest = array.max().clip(-array.min())
    # An array of zeros is divided by 1.
    divisor = largest + (largest == 0)
    return largest * ((array / divisor) ** 2).sum() ** 0.5
