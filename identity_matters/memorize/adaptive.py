"""The adaptive method: one unit per point, with biases and order chosen from the data.

With z = h - c for a viewpoint c, the unit of point i is relu(<z_i, z> - t_i). Points
are moved in decreasing distance from c, so t_i fits between |z_i|^2 and <z_i, z_j> for
all j still to come. No unit fires on surrogate labels: they lie within half the
smallest distance from c. The gaps must stay well above the unit roundoff. Proof:
docs/theory/memorize.md (E6 to E8).
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import DTypeLike

from identity_matters.memorize.network import matmul
from identity_matters.memorize.plan import Plan, in_blocks
from identity_matters.memorize.rounding import gamma, round_to

# Least ratio of the smallest to the largest distance from c. Surrogate labels must fit
# between c and the points, so c must not be close to one; but a larger ratio needs a c
# farther away, from which the points differ less.
CLEARANCE = 1 / 3
# How far surrogate labels are from c, relative to the nearest point.
SURROGATE_RADIUS = 1 / 2
# Where a threshold lies in its gap:
# low, so that the unit's own activation, a divisor, is large.
THRESHOLD_POSITION = 1 / 8
# The smallest relative gap of n random points is about n^(-4/(k+1)): a gap of m needs
# radii within m and directions within sqrt(m). Within a block, no point may come closer
# to another point's unit than this fraction of that gap; with a larger fraction, too
# many points would wait.
FRACTION_OF_LEAST_GAP = 1 / 8
# Candidates per block, in widths, from which
# points that do not disturb each other are taken.
CANDIDATE_WIDTHS = 4
# Candidates drawn per surrogate label:
# with more, the labels spread only slightly further.
CANDIDATES_PER_CLASS = 32
# Variances count as at least this share of the largest,
# so that rounding errors stay small.
LEAST_VARIANCE_RATIO = 1e-4


def whitening(h: np.ndarray) -> np.ndarray:
    """W, f64[k, k]: ``h W^T`` has principal components of variance about 1."""
    width = h.shape[1]
    covariance = np.cov(h, rowvar=False, bias=True).reshape(width, width)
    variance, axes = np.linalg.eigh(covariance)
    variance = variance[::-1]
    axes = axes[:, ::-1]
    # A single point has no variance; its size then sets the scale, or 1 if that is 0.
    largest = variance[0] or np.mean(h**2) or 1.0
    return (axes / np.sqrt(np.maximum(variance, LEAST_VARIANCE_RATIO * largest))).T


def choose_viewpoint(h: np.ndarray) -> np.ndarray:
    """A point c, f64[k], with min |h_i - c| >= CLEARANCE max |h_i - c|.

    It is the nearest to the mean, on the line through it along axis 0, of points at
    distances that double.
    """
    mean = h.mean(0)
    radius = np.sqrt(np.mean(np.sum((h - mean) ** 2, axis=1))) or 1.0
    step = radius * np.eye(h.shape[1])[0]
    distance = 0.0
    while True:
        for viewpoint in (mean + distance * step, mean - distance * step):
            distances = np.linalg.norm(h - viewpoint, axis=1)
            if distances.min() > 0 and distances.min() >= CLEARANCE * distances.max():
                return viewpoint
        distance = 2 * distance or 1 / 2


def spread_directions(
    num_classes: int, width: int, rng: np.random.Generator
) -> np.ndarray:
    """r points in the closed unit ball of R^k, far from each other: f64[r, k]."""
    if width == 1:
        return np.linspace(-1.0, 1.0, num_classes)[:, None]
    pool = rng.standard_normal((CANDIDATES_PER_CLASS * num_classes, width))
    pool /= np.linalg.norm(pool, axis=1, keepdims=True)
    # Each is the random unit vector farthest from those before it.
    chosen = [pool[0]]
    cosine = pool @ pool[0]
    while len(chosen) < num_classes:
        chosen.append(pool[np.argmin(cosine)])
        cosine = np.maximum(cosine, pool @ chosen[-1])
    return np.array(chosen)


def fill_blocks(z: np.ndarray, width: int, tolerance: float) -> np.ndarray:
    """An order, i64[n], of the points z, f64[n, k], which fills blocks of `width`.

    Each block is in decreasing norm. Units that disturb points of their own block
    amplify rounding errors. So a point waits if its unit would come within `tolerance`
    (relative to its squared norm) of firing on a farther point that has not been moved
    yet, unless too few others are left to fill the block.
    """
    squared_norms = np.sum(z**2, axis=1)
    queue = np.argsort(-squared_norms, kind="stable")
    if width == 1:
        return queue
    order = []
    waiting = queue[:0]
    while len(queue) or len(waiting):
        vacancies = CANDIDATE_WIDTHS * width - len(waiting)
        candidates = np.concatenate([waiting, queue[:vacancies]])
        queue = queue[vacancies:]
        points = z[candidates]
        limit = (1 - tolerance) * squared_norms[candidates]
        # All farther candidates are still in place, whether they are taken now or wait.
        disturbs = np.tril(points @ points.T >= limit[:, None], -1).any(axis=1)
        # Points that disturb none come first.
        # Solving for V undoes what the others disturb.
        taken = np.sort(np.argsort(disturbs, kind="stable")[:width])
        order.append(candidates[taken])
        waiting = np.delete(candidates, taken)
    return np.concatenate(order)


@functools.partial(jax.jit, static_argnames="width")
def _largest_products_of_tile(tiles: jax.Array, number: int, width: int) -> jax.Array:
    """Largest inner product, or 0, of a tile's points with those of later blocks.

    Args:
      tiles: f[tiles, points, k], of whole blocks of `width`.
      number: of the tile.
      width: of a block.
    Returns:
      f[points].
    """
    tile = tiles[number]
    block = jnp.arange(len(tile)) // width
    # Symmetric. Columns are the points, rows the others.
    products = matmul(tile, tile.T)
    is_later = block[:, None] > block[None, :]
    largest = jnp.max(jnp.where(is_later, products, 0), axis=0)

    def visit(i, largest):
        # A maximum along axis 0 vectorises on CPU; one along axis 1 is slower.
        return jnp.maximum(largest, jnp.max(matmul(tiles[i], tile.T), axis=0))

    return jax.lax.fori_loop(number + 1, len(tiles), visit, largest)


def largest_later_products(z: np.ndarray, width: int, tile_points: int) -> np.ndarray:
    """``max(0, max_j <z_i, z_j>)`` over all j in blocks after that of i: f64[n].

    z, f[n, k], is in blocks of `width` and has the dtype of the arithmetic. This
    dominates the cost: the upper half of an n x n x k product, in tiles of about
    `tile_points` points.
    """
    size = width * max(1, min(tile_points, len(z)) // width)
    tiles = jnp.asarray(in_blocks(z, size))
    of_tiles = [
        _largest_products_of_tile(tiles, number, width) for number in range(len(tiles))
    ]
    return np.concatenate([np.asarray(tile, np.float64) for tile in of_tiles])[: len(z)]


def same_block_products(z: np.ndarray, width: int, tolerance: float) -> np.ndarray:
    """Largest ``<z_i, z_j>`` over j in i's block that unit i must leave alone: f64[n].

    These are all points after i, and those before i that it does not disturb.

    Args:
      z: f64[n, k].
      width: of a block.
      tolerance: see `fill_blocks`.
    """
    blocks = in_blocks(z, width)
    products = blocks @ blocks.transpose(0, 2, 1)
    limit = (1 - tolerance) * np.diagonal(products, axis1=1, axis2=2)
    disturbed = np.tril(products >= limit[:, :, None], -1)
    excluded = disturbed | np.eye(width, dtype=bool)[None]
    return np.where(excluded, -np.inf, products).max(2).reshape(-1)[: len(z)]


class Units(NamedTuple):
    """The units of n points, and their margins: see `Plan`.

    Attributes:
      U: f64[n, k].
      s: f64[n].
      point_margin: f64[n].
      surrogate_margin: f64[n].
      search_error: f64[n].
    """

    U: np.ndarray
    s: np.ndarray
    point_margin: np.ndarray
    surrogate_margin: np.ndarray
    search_error: np.ndarray


def place_units(
    h: np.ndarray,
    viewpoint: np.ndarray,
    surrogates: np.ndarray,
    *,
    width: int,
    tile_points: int,
    tolerance: float,
    dtype: DTypeLike,
) -> Units:
    """The units of the points h, and their margins.

    Args:
      h: f64[n, k], in the order in which they are moved.
      viewpoint: f64[k], c.
      surrogates: f64[r, k], which the units leave alone.
      width: of a block.
      tile_points: memory of the search is O(tile_points^2).
      tolerance: a unit that comes within this share of firing on an earlier point of
        its block may fire there: see `fill_blocks`.
      dtype: of the network.
    """
    z = round_to(h - viewpoint, dtype)
    at_later = largest_later_products(z.astype(dtype), width, tile_points)
    at_points = np.maximum(at_later, same_block_products(z, width, tolerance))
    at_surrogates = np.max(z @ (surrogates - viewpoint).T, axis=1, initial=0.0)
    squared_norms = np.sum(z**2, axis=1)
    closest = np.maximum(at_points, at_surrogates)
    threshold = closest + THRESHOLD_POSITION * (squared_norms - closest)
    along_viewpoint = z @ viewpoint
    s = round_to(-threshold - along_viewpoint, dtype)
    # The threshold that the rounded bias amounts to.
    threshold = -s - along_viewpoint
    return Units(
        U=z,
        s=s,
        point_margin=threshold - at_points,
        surrogate_margin=threshold - at_surrogates,
        search_error=_search_error(np.sqrt(squared_norms), s, viewpoint, dtype),
    )


def _search_error(
    norms: np.ndarray, s: np.ndarray, viewpoint: np.ndarray, dtype: DTypeLike
) -> np.ndarray:
    """Bound on the errors of both margins of `place_units`: f64[n].

    The products with later points are sums in `dtype` of k terms, and the z_j in them
    are rounded to `dtype` once more. All else is computed in float64. `norms`, f64[n],
    are the |z_i|, and s is f64[n].
    """
    width = len(viewpoint)
    farthest = norms.max()
    search = gamma(width + 2, dtype) * norms * farthest
    sizes = norms * (np.linalg.norm(viewpoint) + farthest) + np.abs(s)
    underflow = 4 * width * float(np.finfo(dtype).tiny) * (1 + norms + farthest)
    return search + gamma(width + 4, np.float64) * sizes + underflow


def plan_adaptive(
    h: np.ndarray,
    num_classes: int,
    tile_points: int,
    rng: np.random.Generator,
    dtype: DTypeLike,
) -> Plan:
    """Viewpoint, surrogate labels, order and biases for the points h.

    Args:
      h: f64[n, k], distinct, as the network computes them.
      num_classes: r.
      tile_points: memory of the search is O(tile_points^2).
      rng: draws the surrogate labels.
      dtype: of the network.
    """
    width = h.shape[1]
    viewpoint = choose_viewpoint(h)
    z = h - viewpoint
    radius = SURROGATE_RADIUS * np.linalg.norm(z, axis=1).min()
    directions = spread_directions(num_classes, width, rng)
    surrogates = round_to(viewpoint + radius * directions, dtype)
    tolerance = FRACTION_OF_LEAST_GAP * len(h) ** (-4 / (width + 1))
    order = fill_blocks(z, width, tolerance)
    units = place_units(
        h[order],
        viewpoint,
        surrogates,
        width=width,
        tile_points=tile_points,
        tolerance=tolerance,
        dtype=dtype,
    )
    output_U, output_s = _place_output_units(
        surrogates, viewpoint, radius=radius, tolerance=tolerance, dtype=dtype
    )
    return Plan(
        order=order,
        U=in_blocks(units.U, width),
        s=in_blocks(units.s, width),
        surrogates=surrogates,
        output_U=output_U,
        output_s=output_s,
        point_margin=units.point_margin,
        surrogate_margin=units.surrogate_margin,
        search_error=units.search_error,
    )


def _place_output_units(
    surrogates: np.ndarray,
    viewpoint: np.ndarray,
    *,
    radius: float,
    tolerance: float,
    dtype: DTypeLike,
) -> tuple[np.ndarray, np.ndarray]:
    """The r units of the last block, one for each class, in the order of classes.

    The surrogate labels, f64[r, k], lie at the distance `radius` from the viewpoint, or
    within it on a line. Returns U, f64[r, k], and s, f64[r].
    """
    num_classes, width = surrogates.shape
    if width == 1:
        # On the line, all labels must be on one side of the viewpoint.
        viewpoint = viewpoint - radius * (1 + 2 / num_classes)
    order = np.argsort(-np.linalg.norm(surrogates - viewpoint, axis=1), kind="stable")
    # All are in one block, and there are no other points to leave alone.
    units = place_units(
        surrogates[order],
        viewpoint,
        surrogates=surrogates[:0],
        width=num_classes,
        tile_points=num_classes,
        tolerance=tolerance,
        dtype=dtype,
    )
    inverse = np.argsort(order)
    return units.U[inverse], units.s[inverse]
