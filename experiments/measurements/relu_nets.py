"""Random ReLU nets in batches, and numbers of them as records hold them.

A batch of m nets is a `model.Blocks` whose arrays have a leading axis of m; a batch of
m problems is such a `model.Problem`. Net i of a batch belongs to problem i. The axes
that follow are those of `identity_matters.relu.model`:

    symbol   setting        what it counts
    l        depth          blocks of a net
    k        width          units of a block
    d        lifted_width   coordinates that the blocks read and write
    d_in     width_in       inputs and outputs of a net
    n        2 pairs        examples of a problem
"""

from typing import Any

import jax
import numpy as np

from identity_matters.relu import model
from identity_matters.relu.problems import Setting

_DIGITS = 6  # significant digits that `rounded` keeps


def random_blocks(
    rng: np.random.Generator, norms: np.ndarray, setting: Setting, width: int
) -> model.Blocks:
    """A batch of random nets, one of each norm.

    Args:
      rng: draws them.
      norms: f64[m], of all parts of a net.
      setting: `depth`, `lifted_width` and `bias` of the nets are those of the teachers.
      width: k.
    """
    return model.random_blocks(
        rng,
        norms,
        depth=setting.depth,
        width=width,
        dimension=setting.lifted_width,
        bias=setting.bias,
    )


def gaussian_blocks(
    rng: np.random.Generator,
    scale: float,
    *,
    count: int,
    depth: int,
    width: int,
    d: int,
) -> model.Blocks:
    """A batch of `count` nets with Gaussian weights of this deviation."""
    return model.Blocks(
        U=scale * rng.standard_normal((count, depth, width, d)),
        V=scale * rng.standard_normal((count, depth, d, width)),
        s=scale * rng.standard_normal((count, depth, width)),
    )


def repeated_in_turn(batch: Any, times: int) -> Any:
    """Members 0, ..., m - 1 of a batch, and the same again, so many times."""
    return jax.tree.map(lambda part: np.concatenate([part] * times), batch)


def rounded(values) -> list:
    """Numbers that only figures and counts use, rounded to `_DIGITS` digits."""
    return [float(f"{value:.{_DIGITS}g}") for value in np.asarray(values, np.float64)]
