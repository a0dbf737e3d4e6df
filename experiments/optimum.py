"""The least |||A||| at every depth: do layers attain it, and can anything be shorter?

Claim (F15 of docs/theory/many_layers.md): for every 2 x 2 R and every symmetric R, det
R > 0, at every depth l >= 2 where the value of a closed form is below 1, no layers have
a smaller |||A|||, and layers of that norm are known.

* targets: random 2 x 2 and symmetric R at several depths, from the least at which the
  optimum is below 1. The layers' measured norm is compared with the closed form, and,
  for the first of the targets, the closed form with a bound that is searched vector by
  vector.
* curve: the optimum of two targets over the depth, with the polar layers and the bound
  by single vectors, for the figure.
* attack: direct minimisation over the layers, from disturbed optimal ones, tries to end
  below.

Command: python -m experiments.optimum --config=:every_depth
Hardware and time: 2 CPU cores, about 10 s.
Expected: norms agree with the closed form to 1e-11, the searched bounds are below it by
at most 0.1 percent, and the minimisations end above it, most of them by less than 1e-4
of it. Verdict: counterexample if layers are shorter by more than rounding, holds if
none are and all layers attain the closed form.
"""

import types

import numpy as np

from experiments import run
from experiments.run.measuring import generator
from experiments.run.settings import configs, require_between
from experiments.run.verdicts import joined, largest, least, total, under_attack, where
from identity_matters import linear, random_matrices
from identity_matters.linear import shortest_path
from identity_matters.linear.factorization import relative_product_error
from identity_matters.linear.optimum import known_optimum

_SETTINGS = {
    "every_depth": {
        "families": ("plane", "symmetric"),  # of the targets; see `draw_target`
        "targets": 1000,  # of each family
        "dimensions": (3, 4, 5, 6),  # d of symmetric targets, one after another
        # standard deviation of the logarithms of symmetric targets' eigenvalues
        "strength": 1.0,
        # l over the least depth at which the optimum is below 1
        "depth_factors": (1, 4),
        "searched": 12,  # targets of each family for which the bound is searched, too
        "ascents": 4,  # climbs of that search
        "attacks": 12,  # minimisations of each family, at the least depth
        # standard deviation of the entries of the moves that disturb a start
        "disturbance": 0.2,
        # p of the smoothed maximum, one after another
        "exponents": (16, 64, 256, 1024, 4096),
        "iterations": 150,  # L-BFGS steps for each exponent
        "curve_diagonals": ((-2.0, -0.5), (-20.0, -0.05)),  # targets of the figure
        "curve_depths": (
            2,
            3,
            4,
            5,
            6,
            8,
            10,
            12,
            16,
            24,
            32,
            48,
            64,
            96,
            128,
            192,
            256,
        ),
        "tolerance": 1e-9,  # relative, for norms that count as equal
        "max_product_error": 1e-10,  # largest relative Frobenius error of a product
    },
}
VARIANTS = tuple(_SETTINGS)
get_config = configs(_SETTINGS)
# A depth beyond all that random targets need.
_MOST_LAYERS = 1000


def trials(
    *, variant: str, families, curve_diagonals, curve_depths, **settings
) -> list[dict]:
    """One trial for each family, to compare and to attack, and one for each curve."""
    compared = [
        {"kind": "targets", "family": family, **settings} for family in families
    ]
    attacked = [{"kind": "attack", "family": family, **settings} for family in families]
    curves = [
        {"kind": "curve", "diagonal": diagonal, "depths": curve_depths}
        for diagonal in curve_diagonals
    ]
    return compared + attacked + curves


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


FAMILIES = {"plane": plane_target, "symmetric": symmetric_target}


def least_depth(R: np.ndarray) -> int:
    """The least l >= max(2, 3 gamma) at which the optimum is known to be below 1."""
    target = linear.check_target(R)
    for depth in range(max(2, target.least_depth), _MOST_LAYERS):
        optimum = known_optimum(target, depth)
        if optimum is not None and optimum < 1:
            return depth
    raise ValueError(f"the optimum is not below 1 at any depth up to {_MOST_LAYERS}")


def measure_targets(trial, key) -> dict:
    """Layers against the closed form, and the closed form against a searched bound."""
    rng = generator(key)
    excesses = []
    errors = []
    depths = []
    searched_over_optimum = []
    for index in range(trial.targets):
        R = FAMILIES[trial.family](trial, rng, index)
        shallowest = least_depth(R)
        for factor in trial.depth_factors:
            depth = factor * shallowest
            A = linear.factorize(R, depth)
            optimum = linear.norm_lower_bound(R, depth)
            excesses.append(_norm(A) / optimum - 1)
            errors.append(relative_product_error(A, R))
            depths.append(depth)
            if index < trial.searched:
                searched = linear.norm_lower_bound(
                    R, depth, ascents=trial.ascents, closed_form=False
                )
                searched_over_optimum.append(searched / optimum)
    return {
        "compared": len(excesses),
        "least_depth": min(depths),
        "largest_depth": max(depths),
        "least_excess": min(excesses),
        "largest_excess": max(excesses),
        "largest_product_error": max(errors),
        "searched_over_optimum": searched_over_optimum,
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
    "attack": measure_attack,
    "curve": measure_curve,
}


def verdict(settings: dict, records: list[dict]) -> run.Verdict:
    targets = where(records, kind="targets")
    attacks = where(records, kind="attack")
    ends = joined(attacks, "end_over_optimum")
    searched = joined(targets, "searched_over_optimum")
    metrics = {
        "targets": total(targets, "targets"),
        "compared": total(targets, "compared"),
        "least_depth_layers": least(targets, "least_depth"),
        "largest_depth_layers": largest(targets, "largest_depth"),
        "least_excess_over_optimum": least(targets, "least_excess"),
        "largest_excess_over_optimum": largest(targets, "largest_excess"),
        "max_relative_product_error": largest(targets, "largest_product_error"),
        "least_searched_over_optimum": float(searched.min()),
        "largest_searched_over_optimum": float(searched.max()),
        "attacks": len(ends),
        "least_attack_excess": float(ends.min(initial=np.inf)) - 1,
        "median_attack_excess": float(np.median(ends)) - 1 if len(ends) else np.nan,
    }
    slack = settings["tolerance"]
    # Layers below the optimum refute the bound; a searched bound above it refutes the
    # layers.
    refuted = (
        metrics["least_attack_excess"] < -slack
        or metrics["least_excess_over_optimum"] < -slack
        or metrics["largest_searched_over_optimum"] > 1 + slack
    )
    attained = (
        metrics["largest_excess_over_optimum"] <= slack
        and metrics["max_relative_product_error"] <= settings["max_product_error"]
        and len(ends) > 0
    )
    return run.Verdict(
        "optimum-at-every-depth", metrics, under_attack(refuted, attained)
    )


EXPERIMENT = run.Experiment(
    name="optimum",
    module=__name__,
    trials=trials,
    measure=MEASURES,
    verdict=verdict,
    build=build,
    signed=("curve_diagonals", "searched", "attacks"),
)

if __name__ == "__main__":
    run.main(EXPERIMENT)
