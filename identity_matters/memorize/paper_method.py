"""The paper's own construction, Lemmas B.1 and B.2, with the bias that makes its proof right.

Lemma B.1 moves the points of a set S by one unit each. With squared norms in [1 - rho', 1 + rho']
and squared distances of at least D, the inner products are

    <a_i, a_j> = (|a_i|^2 + |a_j|^2 - |a_i - a_j|^2) / 2 <= (|a_i|^2 + 1 + rho' - D) / 2,

which is below |a_i|^2 by (|a_i|^2 - 1 - rho' + D) / 2 >= (D - 2 rho') / 2. The bias of unit i puts
its threshold in the middle of this gap, so D > 2 rho' is enough. The printed proof has one bias
-(1 - 2 rho') for all, which takes D >= 6 rho'; see docs/theory/errata.md.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import DTypeLike

from identity_matters.memorize.network import Plan, in_blocks
from identity_matters.memorize.separation import separation, sufficient_width

# Assumption 3.1 asks for |x_i| = 1; inputs in float32 keep this to a few units in the last place.
UNIT_NORM_TOLERANCE = 1e-5


class AssumptionError(ValueError):
    """The data do not satisfy an assumption of the paper's lemmas."""


def check_unit_norms(x: np.ndarray) -> None:
    """Raises AssumptionError unless every row of `x`, f[n, d], has norm one (Assumption 3.1)."""
    norms = np.linalg.norm(x, axis=1)
    i = np.argmax(np.abs(norms - 1))
    if abs(norms[i] - 1) > UNIT_NORM_TOLERANCE:
        raise AssumptionError(
            f"Assumption 3.1 asks for inputs of norm 1, but |x[{i}]| = {norms[i]:.6g};"
            " divide each input by its norm"
        )


def closest_squares(h: np.ndarray, surrogates: np.ndarray, rho: float) -> float:
    """D, the smallest squared distance of all points and surrogate labels; Lemma B.1 is checked.

    Args:
      h: f64[n, k], the projected inputs.
      surrogates: f64[r, k], unit vectors.
      rho: the separation of the inputs themselves; only for the advice in the error.
    Raises:
      AssumptionError: D is not above 2 rho'; the message has the numbers, and a width that would
        do.
    """
    n, width = h.shape
    deviations = np.abs(np.sum(h**2, axis=1) - 1)
    worst = np.argmax(deviations)
    pair = separation(np.concatenate([h, surrogates]))
    if pair.rho <= 2 * deviations[worst]:
        names = [f"input {i}" if i < n else f"surrogate label {i - n}" for i in pair.indices]
        raise AssumptionError(
            "Lemma B.1 needs |a_i - a_j|^2 > 2 rho' where | |a_i|^2 - 1 | <= rho'. At width"
            f" {width}, input {worst} asks for rho' >= {deviations[worst]:.4g}, and {names[0]} and"
            f" {names[1]}, at squared distance {pair.rho:.4g}, for rho' < {pair.rho / 2:.4g}; a"
            f" width of {sufficient_width(n, len(surrogates), rho)} would satisfy it"
        )
    return pair.rho


def plan_paper(
    h: np.ndarray, rho: float, num_classes: int, rng: np.random.Generator, dtype: DTypeLike
) -> Plan:
    """Lemma B.2: blocks of k points in their given order, by Lemma B.1.

    Args:
      h: f64[n, k], ``A_0 x`` with N(0, 1/k) entries in A_0.
      rho: the separation of the inputs.
      rng: numpy random generator for the surrogate labels, random unit vectors.
    """
    n, width = h.shape
    surrogates = rng.standard_normal((num_classes, width))
    surrogates /= np.linalg.norm(surrogates, axis=1, keepdims=True)
    surrogates = surrogates.astype(dtype).astype(np.float64)
    closest = closest_squares(h, surrogates, rho)
    squares = np.sum(np.concatenate([h, surrogates]) ** 2, axis=1)
    # Each threshold is halfway between the unit's own value and the largest that others can have.
    s = (-(3 * squares + squares.max() - closest) / 4).astype(dtype).astype(np.float64)
    silence = (-s - (squares + squares.max() - closest) / 2)[:n]
    blocks = in_blocks(h, width), in_blocks(s[:n], width)
    outputs = surrogates, surrogates, s[n:]
    return Plan(np.arange(n), *blocks, *outputs, silence, silence, np.zeros(n))
