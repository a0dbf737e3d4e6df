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


class _Compared(NamedTuple):
    """Layers and bounds of random targets at several depths, one entry for each pair.

    Attributes:
      excesses: ``|||A|||`` over the bound, less 1.
      errors: relative errors of the products.
      depths: l.
      searched_over_optimum: the bound that is searched, over that in closed form, for
        the first of the targets.
    """

    excesses: list[float]
    errors: list[float]
    depths: list[int]
    searched_over_optimum: list[float]


def _compare(trial, key) -> _Compared:
    """Layers against the bound in closed form, and that against a searched one."""
    rng = generator(key)
    compared = _Compared(excesses=[], errors=[], depths=[], searched_over_optimum=[])
    for index in range(trial.targets):
        R = FAMILIES[trial.family](trial, rng, index)
        shallowest = least_depth(R)
        for factor in trial.depth_factors:
            depth = factor * shallowest
            A = linear.factorize(R, depth)
            optimum = linear.norm_lower_bound(R, depth)
            compared.excesses.append(_norm(A) / optimum - 1)
            compared.errors.append(relative_product_error(A, R))
            compared.depths.append(depth)
            if index < trial.searched:
                searched = linear.norm_lower_bound(
                    R, depth, ascents=trial.ascents, closed_form=False
                )
                compared.searched_over_optimum.append(searched / optimum)
    return compared


def measure_targets(trial, key) -> dict:
    """Targets whose optimum is known: all layers should attain it."""
    return _summary(_compare(trial, key))


def measure_over_pair(trial, key) -> dict:
    """Targets of F20: how many of the layers attain the bound."""
    compared = _compare(trial, key)
    attained = [excess for excess in compared.excesses if excess <= trial.tolerance]
    return {
        **_summary(compared),
        "attained": len(attained),
        "largest_attained_excess": max(attained, default=np.nan),
    }


def _summary(compared: _Compared) -> dict:
    return {
        "compared": len(compared.excesses),
        "least_depth": min(compared.depths),
        "largest_depth": max(compared.depths),
        "least_excess": min(compared.excesses),
        "largest_excess": max(compared.excesses),
        "largest_product_error": max(compared.errors),
        "searched_over_optimum": compared.searched_over_optimum,
    }


def _norm(A: np.ndarray) -> float:
    """|||A|||, the largest spectral norm of the layers f64[l, d, d]."""
    return float(np.linalg.norm(A, 2, axis=(1, 2)).max())


def measure_attack(trial, key) -> dict:
    """Minimises |||A||| at the least depth, from disturbed optimal layers."""
    rng = generator(key)
    settings = linear.PathSettings(
        pieces=_MOST_LAYERS, exponents=trial.exponents, iterations=trial.iterations
    )
    starts_over_optimum = []
    ends_over_optimum = []
    missed = 0
    for index in range(trial.attacks):
        R = FAMILIES[trial.family](trial, rng, index)
        depth = least_depth(R)
        identity = np.eye(len(R))
        factors = identity + linear.factorize(R, depth)
        moves = identity + trial.disturbance * rng.standard_normal(
            (depth - 1, *R.shape)
        )
        disturbed, _ = shortest_path.moved(moves.ravel(), factors)
        optimum = linear.norm_lower_bound(R, depth)
        layers = shortest_path.shorten(disturbed, depth, settings) - identity
        if relative_product_error(layers, R) > trial.max_product_error:
            missed += 1
            continue
        starts_over_optimum.append(_norm(disturbed - identity) / optimum)
        ends_over_optimum.append(_norm(layers) / optimum)
    return {
        "missed": missed,
        "start_over_optimum": starts_over_optimum,
        "end_over_optimum": ends_over_optimum,
    }


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
