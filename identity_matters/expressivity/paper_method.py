"""The paper's own construction: Lemmas B.1 and B.2, with their assumptions checked.

Lemma B.1 moves the points of a set S by one unit each, with one bias -(1 - 2 rho') for all, if
every squared norm is within rho' of one and the distances are large enough. As printed it asks for
|a_i - a_j| >= 3 rho', and the proof needs <a_i, a_j> <= 1 - 2 rho', that is

    (|a_i|^2 + |a_j|^2 - |a_i - a_j|^2) / 2 <= 1 + rho' - |a_i - a_j|^2 / 2 <= 1 - 2 rho',

hence |a_i - a_j|^2 >= 6 rho'. The constant 3 is too small, with the square and without it: at
|a_i|^2 = |a_j|^2 = 1 + rho' and |a_i - a_j|^2 = 3 rho' each unit fires on the other point. So this
module checks 6 rho'.
"""

import math

import numpy as np
from numpy.typing import DTypeLike

from identity_matters.expressivity.capacity import separation, sufficient_width
from identity_matters.expressivity.plan import Plan, in_blocks

# |a_i - a_j|^2 >= 6 rho', derived above.
SEPARATION_OVER_RHO = 6
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


def choose_rho(h: np.ndarray, surrogates: np.ndarray, rho: float) -> tuple[float, float]:
    """rho' of Lemma B.1 and the smallest squared distance, for points and surrogate labels.

    Args:
      h: f64[n, k], the projected inputs.
      surrogates: f64[r, k], unit vectors.
      rho: the separation of the inputs themselves; only for the advice in the error.
    Raises:
      AssumptionError: no rho' satisfies the lemma; the message has the numbers, and a width that
        would do.
    """
    n, width = h.shape
    deviations = np.abs(np.sum(h**2, axis=1) - 1)
    worst = np.argmax(deviations)
    pair = separation(np.concatenate([h, surrogates]))
    largest = pair.rho / SEPARATION_OVER_RHO
    if deviations[worst] >= largest:
        names = [f"input {i}" if i < n else f"surrogate label {i - n}" for i in pair.indices]
        raise AssumptionError(
            f"Lemma B.1 needs a rho' with | |a_i|^2 - 1 | <= rho' and |a_i - a_j|^2 >= 6 rho'. At"
            f" width {width}, input {worst} asks for rho' >= {deviations[worst]:.4g}, and"
            f" {names[0]} and {names[1]}, at squared distance {pair.rho:.4g}, for rho' <="
            f" {largest:.4g}, which is {deviations[worst] / largest:.3g} times too small; a width"
            f" of {sufficient_width(n, len(surrogates), rho)} would satisfy it"
        )
    # Between the two limits, so that there is a margin on both sides.
    return float((deviations[worst] + largest) / 2), pair.rho


def plan_paper(
    h: np.ndarray, rho: float, num_classes: int, rng: np.random.Generator, dtype: DTypeLike
) -> Plan:
    """Lemma B.2: blocks of k points in their given order, all with the bias of Lemma B.1.

    Args:
      h: f64[n, k], ``A_0 x`` with N(0, 1/k) entries in A_0.
      rho: the separation of the inputs.
      rng: numpy random generator for the surrogate labels, random unit vectors.
    """
    n, width = h.shape
    if num_classes > 1 and width <= 4 * math.log(num_classes):
        raise AssumptionError(
            f"Lemma B.2 needs k > 4 log r to keep the surrogate labels apart, but width {width} <="
            f" {4 * math.log(num_classes):.4g} = 4 log {num_classes}"
        )
    surrogates = rng.standard_normal((num_classes, width))
    surrogates /= np.linalg.norm(surrogates, axis=1, keepdims=True)
    surrogates = surrogates.astype(dtype).astype(np.float64)
    rho_prime, closest = choose_rho(h, surrogates, rho)
    s = float(np.asarray(-(1 - 2 * rho_prime), dtype))
    # For points i and j of any kind, from the display in the module docstring.
    largest_norm = max(np.sum(h**2, axis=1).max(), 1.0)
    silence = np.full(n, -s - (largest_norm - closest / 2))
    return Plan(
        order=np.arange(n),
        U=in_blocks(h, width),
        s=in_blocks(np.full(n, s), width),
        surrogates=surrogates,
        output_U=surrogates,
        output_s=np.full(num_classes, s),
        silence=silence,
        surrogate_silence=silence,
        search_error=np.zeros(n),
    )
