"""Layers against the closed form of the optimum, curves, and direct minimisation."""

import types
from typing import NamedTuple

import numpy as np
import scipy.linalg

from experiments.run.measuring import generator
from experiments.run.settings import require_between
from identity_matters import linear, random_matrices
from identity_matters.linear import shortest_path
from identity_matters.linear.factorization import relative_product_error

# A depth beyond all that random targets need.
_MOST_LAYERS = 1000


def build(**trial) -> types.SimpleNamespace:
    """The trial; ValueError for a family or a curve that cannot be used."""
    if trial["kind"] == "curve":
        if len(linear.check_target(np.diag(trial["diagonal"])).R) != 2:
            raise ValueError(f"curve_diagonals must be pairs, got {trial['diagonal']}")
    else:
        if trial["family"] not in FAMILIES:
            raise ValueError(
                f"families must be of {tuple(FAMILIES)}, got {trial['family']!r}"
            )
        if trial["family"] == "symmetric":
            require_between(1, np.inf, dimensions=trial["dimensions"])
    return types.SimpleNamespace(**trial)


def plane_target(trial, rng, _index: int) -> np.ndarray:
    """A Gaussian R, f64[2, 2], with det R > 0."""
    R = rng.standard_normal((2, 2))
    R[0] *= np.sign(np.linalg.det(R))
    return R


def symmetric_target(trial, rng, index: int) -> np.ndarray:
    """A symmetric R, f64[d, d], an even number of whose eigenvalues are negative.

    Their moduli are log-normal.
    """
    d = trial.dimensions[index % len(trial.dimensions)]
    eigenvalues = np.exp(trial.strength * rng.standard_normal(d))
    eigenvalues[: 2 * rng.integers(0, d // 2 + 1)] *= -1
    return random_matrices.symmetric(rng, eigenvalues)


def target_over_pair(trial, rng, _index: int) -> np.ndarray:
    """A normal R, f64[4, 4], of the kind that F15 leaves open.

    The moduli a > b of the negative eigenvalues are log-normal. The nonreal eigenvalue
    is uniform in the upper half of the disc with the diameter [-a, -b].
    """
    b, a = np.sort(np.exp(trial.strength * rng.standard_normal(2)))
    distance = (a - b) / 2 * np.sqrt(rng.uniform())
    angle = np.pi * rng.uniform()
    x = -(a + b) / 2 + distance * np.cos(angle)
    y = distance * np.sin(angle)
    basis = random_matrices.rotation(rng, 4)
    return basis @ scipy.linalg.block_diag(-a, -b, [[x, -y], [y, x]]) @ basis.T


FAMILIES = {
    "plane": plane_target,
    "symmetric": symmetric_target,
    "over_pair": target_over_pair,
}


def least_depth(R: np.ndarray) -> int:
    """The least l >= max(2, 3 gamma) at which the optimum, or the bound, is below 1."""
    for depth in range(max(2, linear.check_target(R).least_depth), _MOST_LAYERS):
        if linear.norm_lower_bound(R, depth) < 1:
            return depth
    raise ValueError(f"the bound is not below 1 at any depth up to {_MOST_LAYERS}")


class _Comparison(NamedTuple):
    """Layers of one target at one depth against the bound in closed form.

    Attributes:
      depth: l.
      excess: ``|||A|||`` over the bound, less 1.
      product_error: of the layers, relative.
      searched_over_optimum: the bound that is searched vector by vector, over that in
        closed form; None where it is not searched.
    """

    depth: int
    excess: float
    product_error: float
    searched_over_optimum: float | None


def _comparisons(trial, key) -> list[_Comparison]:
    """One for each target and depth; the first targets have a searched bound, too."""
    rng = generator(key)
    comparisons = []
    for index in range(trial.targets):
        R = FAMILIES[trial.family](trial, rng, index)
        shallowest = least_depth(R)
        ascents = trial.ascents if index < trial.searched else None
        for factor in trial.depth_factors:
            comparisons.append(_compare(R, factor * shallowest, ascents))
    return comparisons


def _compare(R: np.ndarray, depth: int, ascents: int | None) -> _Comparison:
    """Layers of R, f64[d, d]; the bound is searched by so many climbs unless None."""
    A = linear.factorize(R, depth)
    optimum = linear.norm_lower_bound(R, depth)
    searched_over_optimum = None
    if ascents is not None:
        searched = linear.norm_lower_bound(R, depth, ascents=ascents, closed_form=False)
        searched_over_optimum = searched / optimum
    return _Comparison(
        depth=depth,
        excess=_norm(A) / optimum - 1,
        product_error=relative_product_error(A, R),
        searched_over_optimum=searched_over_optimum,
    )


def measure_targets(trial, key) -> dict:
    """Targets whose optimum is known: all layers should attain it."""
    return _summary(_comparisons(trial, key))


def measure_over_pair(trial, key) -> dict:
    """Targets of F20: how many of the layers attain the bound."""
    comparisons = _comparisons(trial, key)
    attained = [
        comparison.excess
        for comparison in comparisons
        if comparison.excess <= trial.tolerance
    ]
    return {
        **_summary(comparisons),
        "attained": len(attained),
        "largest_attained_excess": max(attained, default=np.nan),
    }


def _summary(comparisons: list[_Comparison]) -> dict:
    depths = [comparison.depth for comparison in comparisons]
    excesses = [comparison.excess for comparison in comparisons]
    product_errors = [comparison.product_error for comparison in comparisons]
    searched = [comparison.searched_over_optimum for comparison in comparisons]
    return {
        "compared": len(comparisons),
        "least_depth": min(depths),
        "largest_depth": max(depths),
        # NumPy's extremes are NaN if one excess is; Python's may lose it.
        "least_excess": float(np.min(excesses)),
        "largest_excess": float(np.max(excesses)),
        "largest_product_error": float(np.max(product_errors)),
        "searched_over_optimum": [ratio for ratio in searched if ratio is not None],
    }


def _norm(A: np.ndarray) -> float:
    """|||A||| of the layers f64[l, d, d], to the last digit.

    `matrices.largest_spectral_norm` is quicker, and may be 1e-9 less.
    """
    return float(np.linalg.norm(A, 2, axis=(1, 2)).max())


def measure_attack(trial, key) -> dict:
    """Minimises |||A||| at the least depth, from disturbed optimal layers.

    Where a Y of `_disturbed_factors` becomes nearly singular in the search, the product
    may lose R to rounding. Such an attack counts as "missed" and is left out, as its
    layers are no factorization of R.
    """
    rng = generator(key)
    settings = linear.PathSettings(
        exponents=trial.exponents, iterations=trial.iterations
    )
    starts_over_optimum = []
    ends_over_optimum = []
    missed = 0
    for index in range(trial.attacks):
        R = FAMILIES[trial.family](trial, rng, index)
        depth = least_depth(R)
        identity = np.eye(len(R))
        start = _disturbed_factors(R, depth, trial.disturbance, rng)
        layers = shortest_path.shorten(start, depth, settings) - identity
        if relative_product_error(layers, R) > trial.max_product_error:
            missed += 1
            continue
        optimum = linear.norm_lower_bound(R, depth)
        starts_over_optimum.append(_norm(start - identity) / optimum)
        ends_over_optimum.append(_norm(layers) / optimum)
    return {
        "missed": missed,
        "start_over_optimum": starts_over_optimum,
        "end_over_optimum": ends_over_optimum,
    }


def _disturbed_factors(
    R: np.ndarray, depth: int, disturbance: float, rng: np.random.Generator
) -> np.ndarray:
    """The factors ``Y_i (I + A_i) Y_{i-1}^{-1}`` of R, f64[l, d, d], for optimal A_i.

    With ``Y_0 = Y_l = I`` their product is R, whatever the other Y are. These are I and
    Gaussian entries of this deviation.
    """
    identity = np.eye(len(R))
    optimal = identity + linear.factorize(R, depth)
    Y = identity + disturbance * rng.standard_normal((depth - 1, *R.shape))
    factors, _ = shortest_path.moved(Y.ravel(), optimal)
    return factors


def measure_curve(trial, _key) -> dict:
    """|||A||| of two factorizations and a bound over l, for ``R = diag(diagonal)``."""
    R = np.diag(trial.diagonal)
    target = linear.check_target(R)
    depths = [depth for depth in trial.depths if depth >= target.least_depth]
    rows = [
        {
            "depth": depth,
            "optimal": _norm(linear.factorize(R, depth, "optimal")),
            "polar": _norm(linear.factorize(R, depth, "polar")),
            "vectors": float(
                linear.norm_lower_bound(R, depth, half_turns=False, ascents=2)
            ),
        }
        for depth in depths
    ]
    return {"rows": rows}


MEASURES = {
    "targets": measure_targets,
    "over_pair": measure_over_pair,
    "attack": measure_attack,
    "curve": measure_curve,
}
