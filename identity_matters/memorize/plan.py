"""What is decided about a network before its second layers are solved for: `Plan`."""

from typing import NamedTuple

import numpy as np


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
    """The second layers for a `Plan`, and the pre-activations of the first ones.

    Attributes:
      V: f64[l, k, k], rounded to the network's precision.
      output_V: f64[r, r], of the last block; rounded in the same way.
      pre_activations: f64[l, k, k], [block, unit, point of the same block], as float64
        computes them.
    """

    V: np.ndarray
    output_V: np.ndarray
    pre_activations: np.ndarray


def in_blocks(rows: np.ndarray, width: int) -> np.ndarray:
    """``f[n, ...] -> f[l, k, ...]``, the last block padded with zeros."""
    padding = np.zeros((-len(rows) % width, *rows.shape[1:]), rows.dtype)
    return np.concatenate([rows, padding]).reshape(-1, width, *rows.shape[1:])
