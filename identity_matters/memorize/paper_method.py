"""The paper's own construction, Lemmas B.1 and B.2, with biases that mend its proof.

In Lemma B.1 each point of a set has its own unit, squared norms are within rho' of 1,
and squared distances are at least D. With a bias for each unit D > 2 rho' is enough
(docs/theory/memorize.md, E1, E2); the printed proof has one for all, and needs D >= 6
rho' (docs/theory/errata.md, P8).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from identity_matters.checks import check_whole, plain_array
from identity_matters.memorize.examples import largest_entry, shape_and_advice
from identity_matters.memorize.plan import Plan, in_blocks
from identity_matters.memorize.rounding import gamma, round_to

# Assumption 3.1 asks for |x_i| = 1; float32 inputs satisfy it to a few units in the
# last place.
UNIT_NORM_TOLERANCE = 1e-5
# Width of the projection that narrows down the pairs for `separation`.
PROJECTED_FEATURES = 64
# Examples from which its directions are estimated, and that it projects at once.
PROJECTION_EXAMPLES = 4096
TILE_POINTS = 1024
FAILURE_PROBABILITY = 0.1
# For a smaller rho no width is suggested: it would have more than 60 digits.
LEAST_RHO_FOR_ADVICE = 1e-30
# Sums of squares of entries up to this fit into float32.
_LARGEST_ENTRY = 1e15


class AssumptionError(ValueError):
    """The data do not satisfy an assumption of the paper's lemmas."""


def plan_paper(
    h: np.ndarray,
    x: np.ndarray,
    num_classes: int,
    rng: np.random.Generator,
    dtype: DTypeLike,
) -> Plan:
    """Lemma B.2: blocks of k points in their given order, by Lemma B.1.

    Surrogate labels are random unit vectors.

    Args:
      h: ``A_0 x``, f64[n, k]; the entries of A_0 are N(0, 1/k).
      x: the inputs, f[n, d].
      num_classes: r.
      rng: draws the surrogate labels.
      dtype: of the network.
    Raises:
      AssumptionError: an input does not have norm one (Assumption 3.1), or two points
        or surrogate labels are within a squared distance of 2 rho'.
    """
    _require_unit_norms(x)
    n, width = h.shape
    surrogates = rng.standard_normal((num_classes, width))
    surrogates /= np.linalg.norm(surrogates, axis=1, keepdims=True)
    surrogates = round_to(surrogates, dtype)
    points = np.concatenate([h, surrogates])
    squares = np.sum(points**2, axis=1)
    closest, pair = _closest_pair(points)
    _require_separated(
        x,
        squares[:n],
        closest=closest,
        pair=pair,
        width=width,
        num_classes=num_classes,
    )
    # For any other point b, <a, b> = (|a|^2 + |b|^2 - |a - b|^2) / 2 is at most this.
    largest_product = (squares + squares.max() - closest) / 2
    # Each threshold is halfway between the unit's own value, |a|^2, and that.
    s = round_to(-(3 * squares + squares.max() - closest) / 4, dtype)
    margin = (-s - largest_product)[:n]
    # All is computed in float64, from sums of k squares, here and in `separation`.
    sizes = np.abs(s) + squares + squares.max() + closest
    return Plan(
        order=np.arange(n),
        U=in_blocks(h, width),
        s=in_blocks(s[:n], width),
        surrogates=surrogates,
        output_U=surrogates,
        output_s=s[n:],
        point_margin=margin,
        surrogate_margin=margin,
        search_error=gamma(width + 6, np.float64) * sizes[:n],
    )


def _require_unit_norms(x: np.ndarray) -> None:
    """Assumption 3.1: AssumptionError unless all rows of x, f[n, d], have norm 1."""
    norms = np.linalg.norm(x, axis=1)
    i = np.argmax(np.abs(norms - 1))
    if abs(norms[i] - 1) > UNIT_NORM_TOLERANCE:
        raise AssumptionError(
            f"inputs must have norm 1 (Assumption 3.1), but |x[{i}]| = {norms[i]:.6g}"
        )


def _require_separated(
    x: np.ndarray,
    squares: np.ndarray,
    *,
    closest: float,
    pair: tuple[int, int],
    width: int,
    num_classes: int,
) -> None:
    """AssumptionError unless |a_i - a_j|^2 > 2 rho', which Lemma B.1 needs.

    Args:
      x: the inputs, f[n, d].
      squares: f64[n], |a_i|^2, within rho' of 1.
      closest: the smallest squared distance of two points or surrogate labels.
      pair: their indices; surrogate labels come after the n points.
      width: k.
      num_classes: r.
    """
    n = len(x)
    deviations = np.abs(squares - 1)
    worst = np.argmax(deviations)
    if closest > 2 * deviations[worst]:
        return
    names = [f"input {i}" if i < n else f"surrogate label {i - n}" for i in pair]
    rho = _closest_pair(x).rho
    if rho > LEAST_RHO_FOR_ADVICE:
        enough = sufficient_width(n, num_classes, rho)
        advice = f"a width of {enough} satisfies it for nine of ten A_0"
    else:
        advice = "the inputs are too close together for any practical width"
    raise AssumptionError(
        "Lemma B.1 needs |a_i - a_j|^2 > 2 rho' where | |a_i|^2 - 1 | <= rho'. At"
        f" width {width}, input {worst} asks for rho' >= {deviations[worst]:.4g},"
        f" and {names[0]} and {names[1]}, at squared distance {closest:.4g}, for"
        f" rho' < {closest / 2:.4g}; {advice}"
    )


def sufficient_width(n: int, num_classes: int, rho: float) -> int:
    """A width at which random A_0 and q_j satisfy Lemma B.1 in nine of ten cases.

    The probability is at least 0.9. rho is the smallest squared distance of inputs of
    norm one, in (0, 4], or inf for one input. Proof, with e <= rho / (2 + rho): P10 of
    docs/theory/errata.md. ValueError unless rho is above 0, and n and the number of
    classes are positive whole numbers.
    """
    n = check_whole("n", n)
    num_classes = check_whole("num_classes", num_classes)
    if not rho > 0:
        raise ValueError(f"rho must be above 0, got {rho}")
    e = min(1 / (1 + 2 / rho), 0.45)
    # Squared norms and distances that must keep within 1 +- e of their means.
    events = n * (n + 1) / 2 + n * num_classes + num_classes**2
    return math.ceil(math.log(2 * events / FAILURE_PROBABILITY) / (e**2 / 4 - e**3 / 6))


class Separation(NamedTuple):
    """The smallest squared distance of two rows, and their indices.

    Attributes:
      rho: the squared distance; inf for one row.
      indices: of the two rows; zeros for one row.
    """

    rho: float
    indices: tuple[int, int]


def separation(x: ArrayLike) -> Separation:
    """Assumption 3.1's rho: the smallest ``|x_i - x_j|^2`` over all rows of x, exactly.

    An orthogonal projection only shortens distances, so only pairs whose projections
    are closer than the closest pair so far are compared in full. The memory needed
    beside x is that of the projections and of TILE_POINTS times n numbers.

    >>> separation(np.array([[0.0, 0.0], [3.0, 4.0], [3.0, 3.0]]))
    Separation(rho=1.0, indices=(1, 2))

    Args:
      x: floats or integers [n, d], n and d at least 1.
    Raises:
      ValueError: no plain array of real numbers, another shape, or an entry that is NaN
        or exceeds 1e15 in size; or the closest rows differ, but by so little that the
        square is not a normal float64.
    """
    x = _checked_rows(x)
    closest = _closest_pair(x)
    i, j = closest.indices
    least = float(np.finfo(np.float64).tiny)
    if closest.rho < least and not np.array_equal(x[i], x[j]):
        raise ValueError(
            f"x[{i}] and x[{j}] differ, but their squared distance is below"
            f" {least:.2g}, the least normal float64: scale x up"
        )
    return closest


def _closest_pair(x: np.ndarray) -> Separation:
    """`separation` of checked rows; rho is 0 where the square is below all floats."""
    _, exponent = np.frexp(largest_entry(x))
    z, unit = _scaled_projection(x, exponent)
    squared_norms = np.sum(z**2, axis=1)
    best = Separation(math.inf, (0, 0))
    for start in range(0, len(x), TILE_POINTS):
        best = _search_tile(
            best,
            x,
            start,
            lower_bounds=_lower_bounds(z, squared_norms, start),
            unit=unit,
            exponent=exponent,
        )
    return best._replace(rho=float(np.ldexp(best.rho, 2 * exponent)))


def _checked_rows(x: ArrayLike) -> np.ndarray:
    """x as an array [n, d]; ValueError unless all of its entries can be squared."""
    x = plain_array("x", x)
    if x.dtype.kind in "bc":
        raise ValueError(f"x must hold real numbers, got dtype {x.dtype}")
    if x.ndim != 2 or not x.size:
        raise ValueError(
            "x must have shape [n, d] with n and d at least 1, got"
            f" {shape_and_advice(x)}"
        )
    largest = largest_entry(x)
    if not largest <= _LARGEST_ENTRY:  # NaN is not
        raise ValueError(
            f"entries must be at most {_LARGEST_ENTRY:g} in size, got {largest:g}"
        )
    return x


def _scaled_projection(x: np.ndarray, exponent: int) -> tuple[np.ndarray, float]:
    """(z, unit): ``unit z``, f32[n, p], is x / 2^exponent in other axes.

    The entries of z are at most 1. Without the unit, float32 would not hold the squares
    of 1e-23.
    """
    # Other types would wrap around, be truncated or overflow where the mean of the rows
    # is subtracted.
    is_float = x.dtype in (np.float32, np.float64)
    z = _project_to_principal_axes(x if is_float else x.astype(np.float64), exponent)
    unit = float(np.abs(z).max()) or 1.0
    z /= unit
    return z, unit


def _rounding_of_products(z: np.ndarray, squared_norms: np.ndarray) -> float:
    """Bounds the error of ``|z_i - z_j|^2`` from inner products in float32."""
    terms = z.shape[1] + 4
    return float(4 * terms * np.finfo(np.float32).eps * np.max(squared_norms))


def _lower_bounds(z: np.ndarray, squared_norms: np.ndarray, start: int) -> np.ndarray:
    """Lower bounds on the squared distances of a tile's rows from all rows on or after.

    ``|z_i|^2 + |z_j|^2 - 2 <z_i, z_j>`` less its rounding, for i in the tile. Infinite
    for j <= i, so that each pair is compared once, from its first row.

    Args:
      z: f32[n, p], all rows of the projection.
      squared_norms: f32[n], |z_i|^2.
      start: the number of the tile's first row.
    Returns:
      f32[tile, n - start].
    """
    tile = z[start : start + TILE_POINTS]
    rounding = _rounding_of_products(z, squared_norms)
    bounds = squared_norms[start:] - 2 * tile @ z[start:].T
    bounds += (squared_norms[start : start + len(tile)] - rounding)[:, None]
    bounds[np.tril_indices(len(tile), 0, bounds.shape[1])] = np.inf
    return bounds


def _search_tile(
    best: Separation,
    x: np.ndarray,
    start: int,
    *,
    lower_bounds: np.ndarray,
    unit: float,
    exponent: int,
) -> Separation:
    """`best`, or the closest pair whose first row is in a tile if that is closer.

    Args:
      best: the closest pair so far.
      x: [n, d], all rows.
      start: the number of the tile's first row.
      lower_bounds: f32[tile, n - start] of `_lower_bounds`, squared distances in
        unit^2. `best.rho` is converted to these units, rather than the bounds to those
        of x, where float32 may not hold them.
      unit: of the lengths in the projection.
      exponent: `best` and `unit` are those of x / 2^exponent.
    """
    least_of_row = lower_bounds.min(axis=1)
    for i in np.argsort(least_of_row):
        if least_of_row[i] >= best.rho / unit**2:
            break
        # The nearest by its bound comes first, so that few others must be compared.
        nearest = start + lower_bounds[i].argmin(keepdims=True)
        best = _closer(best, x, start + i, nearest, exponent)
        within_reach = lower_bounds[i] < best.rho / unit**2
        within_reach = start + np.flatnonzero(within_reach)
        best = _closer(best, x, start + i, within_reach, exponent)
    return best


def _closer(
    best: Separation, x: np.ndarray, i: int, candidates: np.ndarray, exponent: int
) -> Separation:
    """`best`, or the pair of row i and the closest candidate row if that is closer.

    Of x / 2^exponent, where squares do not underflow.
    """
    differences = np.subtract(x[candidates], x[i], dtype=np.float64)
    differences = np.ldexp(differences, -exponent)
    squared_distances = np.sum(differences**2, axis=1)
    if not squared_distances.size or squared_distances.min() >= best.rho:
        return best
    j = candidates[np.argmin(squared_distances)]
    return Separation(float(squared_distances.min()), (int(i), int(j)))


def _project_to_principal_axes(x: np.ndarray, exponent: int) -> np.ndarray:
    """Centred rows of x / 2^exponent, in fewer coordinates if large: f32[n, p].

    A large `x` is projected to PROJECTED_FEATURES orthonormal directions. All is
    computed in float64 and rounded at the end: `separation` allows for errors of
    float32 in the result alone, not in sums over all features.
    """
    centre = x[:PROJECTION_EXAMPLES].mean(axis=0, dtype=np.float64)
    if x.shape[1] <= PROJECTED_FEATURES or len(x) <= PROJECTION_EXAMPLES:
        return np.ldexp(x - centre, -exponent).astype(np.float32)
    sample = np.ldexp(x[:PROJECTION_EXAMPLES] - centre, -exponent)
    _, axes = np.linalg.eigh(sample.T @ sample)
    axes = axes[:, -PROJECTED_FEATURES:]
    projected = []
    for start in range(0, len(x), PROJECTION_EXAMPLES):
        centred = x[start : start + PROJECTION_EXAMPLES] - centre
        projected.append((np.ldexp(centred, -exponent) @ axes).astype(np.float32))
    return np.concatenate(projected)
