"""Eq. (2.3): how fast must the gradient grow with the excess risk? Both printed forms are false.

Claim: for ``|||A||| <= tau < 1``, ``||grad f||_F^2 >= 4 l (1-tau)^p sigma_min(Sigma)^q (f - C)``
with p = l-1, q = 2 (variant iclr2017), p = 2l-2, q = 2 (v3), p = 2l-2, q = 1 (corrected, ours).

    python -m experiments.gradient_bound --config=experiments/configs/gradient_bound.py:v3

2 CPU cores, about 20 s a variant. Expected: of 10^6 random points the form iclr2017 fails at
about a third and v3 at about a quarter, from ``d = l = 1, A = 0, R = 2, Sigma = 2`` on, where the
squared gradient is 16 and the right-hand side 32; with ``||Sigma|| <= 1`` iclr2017 still fails by
a factor (1-tau)^{-(l-1)}. The corrected form never fails, no optimisation pushes right/left above
1, and ``A_i = -tau I, Sigma = s I`` gives equality. Verdicts: counterexample found, counterexample
found, reproduced.
"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np

from experiments import harness
from identity_matters.linear import bound_search, landscape, sampling

CLAIMS = {
    "iclr2017": "Equation 2.3 [ICLR 2017]",
    "v3": "Equation 2.3 [v3]",
    "corrected": "Equation 2.3, corrected",
}
_QUANTILES = (0.01, 0.1, 0.5, 0.9, 0.99)
_SCALING_WIDTH, _SCALING_MAX_DEPTH = 3, 4


def plan(
    *,
    variant: str,
    points: int,
    widths,
    depth_caps,
    max_tau: float,
    sigma_norm_log10,
    max_condition_log10: float,
    batch_points: int,
    relative_tolerance: float,
    histogram_log10,
    histogram_bins: int,
    search_widths,
    search_depths,
    search_taus,
    search_starts: int,
    search_steps: int,
    search_learning_rate: float,
    tight_widths,
    tight_depths,
    tight_taus,
    tight_scales,
    tight_tolerance: float,
    scaling_points: int,
    scaling_log10,
    exact_max_depth: int,
    exact_max_integer: int,
) -> list[dict]:
    """Cells: random points by (width, group of depths), searches, tight family, scaling, exact.

    Raises:
      ValueError: a setting that cannot be used, with its value and what is needed.
    """
    landscape.bound_function(variant)
    counts = {
        "points": (points,),
        "widths": widths,
        "depth_caps": depth_caps,
        "batch_points": (batch_points,),
        "histogram_bins": (histogram_bins,),
        "search_widths": search_widths,
        "search_depths": search_depths,
        "search_starts": (search_starts,),
        "search_steps": (search_steps,),
        "tight_widths": tight_widths,
        "tight_depths": tight_depths,
        "scaling_points": (scaling_points,),
        "exact_max_depth": (exact_max_depth,),
        "exact_max_integer": (exact_max_integer,),
    }
    radii = {"max_tau": (max_tau,), "search_taus": search_taus, "tight_taus": tight_taus}
    positive = {
        "tight_scales": tight_scales,
        "search_learning_rate": (search_learning_rate,),
        "relative_tolerance": (relative_tolerance,),
        "tight_tolerance": (tight_tolerance,),
    }
    _require(counts, lambda value: value >= 1, "whole numbers of at least 1")
    _require(radii, lambda value: 0 < value < 1, "numbers between 0 and 1")
    _require(positive, lambda value: value > 0, "positive numbers")
    _require({"scaling_log10": scaling_log10}, math.isfinite, "finite numbers")
    _require_range("sigma_norm_log10", sigma_norm_log10)
    _require_range("histogram_log10", histogram_log10)
    if not max_condition_log10 >= 0:
        raise ValueError(f"max_condition_log10 must be at least 0, got {max_condition_log10}")
    if list(depth_caps) != sorted(set(depth_caps)):
        raise ValueError(f"depth_caps must increase, got {tuple(depth_caps)}")
    if len(search_widths) != len(search_depths):
        raise ValueError(
            "search_widths and search_depths must be equally long, got"
            f" {len(search_widths)} and {len(search_depths)}"
        )
    common = {"form": variant, "relative_tolerance": relative_tolerance}
    data = {
        "max_tau": max_tau,
        "sigma_norm_log10": list(sigma_norm_log10),
        "max_condition_log10": max_condition_log10,
    }
    histogram = {"histogram_log10": list(histogram_log10), "histogram_bins": histogram_bins}
    random_cells = [
        {"kind": "random", **common, **data, **histogram, **shape}
        for shape in _share_out(points, widths, depth_caps, batch_points)
    ]
    search_cells = [
        {
            "kind": "search",
            **common,
            "width": width,
            "depth": depth,
            "taus": list(search_taus),
            "starts": search_starts,
            "steps": search_steps,
            "learning_rate": search_learning_rate,
        }
        for width, depth in zip(search_widths, search_depths, strict=True)
    ]
    tight = {
        "kind": "tight",
        "form": variant,
        "widths": list(tight_widths),
        "depths": list(tight_depths),
        "taus": list(tight_taus),
        "scales": list(tight_scales),
    }
    scaling = {
        "kind": "scaling",
        **common,
        **data,
        "points": scaling_points,
        "scales_log10": list(scaling_log10),
    }
    exact = {
        "kind": "exact",
        "form": variant,
        "max_depth": exact_max_depth,
        "max_integer": exact_max_integer,
    }
    return [exact, tight, scaling, *search_cells, *random_cells]


def _require(settings: dict, fits, needed: str) -> None:
    for name, values in settings.items():
        if len(values) == 0:
            raise ValueError(f"{name} must hold {needed}, is empty")
        for value in values:
            if not fits(value):
                raise ValueError(f"{name}: need {needed}, got {value}")


def _require_range(name: str, bounds) -> None:
    if len(bounds) != 2 or not -math.inf < bounds[0] < bounds[1] < math.inf:
        raise ValueError(f"{name} must be (low, high) with low < high, got {tuple(bounds)}")


def _share_out(points: int, widths, depth_caps, batch_points: int) -> list[dict]:
    """Shapes with their number of batches per sampler, in inverse proportion to the size of A."""
    shapes = [
        (width, low + 1, cap)
        for low, cap in zip((0, *depth_caps[:-1]), depth_caps, strict=True)
        for width in widths
    ]
    weights = np.array([1 / (width**2 * cap) for width, _, cap in shapes])
    wanted = points * weights / weights.sum() / len(sampling.SAMPLERS)
    return [
        {
            "width": width,
            "min_depth": low,
            "max_depth": cap,
            "batch_points": batch_points,
            "batches_per_sampler": math.ceil(count / batch_points),
        }
        for (width, low, cap), count in zip(shapes, wanted, strict=True)
    ]


@functools.cache
def _terms():
    return jax.jit(jax.vmap(landscape.bound_terms))


def _ratios(form: str, depth, terms: dict) -> np.ndarray:
    """right / left of eq. (2.3) at each point."""
    right = landscape.bound_function(form)(
        np.asarray(depth), *(np.asarray(terms[name]) for name in ("tau", "sigma_min", "excess"))
    )
    return right / np.asarray(terms["squared_gradient"])


def measure(cell: dict, key) -> dict:
    """Measures one cell of any kind; see `plan`."""
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    return _MEASURE[cell["kind"]](cell, rng)


def _data_range(cell: dict) -> sampling.DataRange:
    return sampling.DataRange(tuple(cell["sigma_norm_log10"]), cell["max_condition_log10"])


def _measure_random(cell: dict, rng) -> dict:
    depths = (cell["min_depth"], cell["max_depth"])
    batches = []
    for sampler in sampling.SAMPLERS:
        for _ in range(cell["batches_per_sampler"]):
            points = sampling.sample_points(
                rng,
                sampler,
                cell["batch_points"],
                cell["width"],
                depths,
                cell["max_tau"],
                _data_range(cell),
            )
            # Evaluated asynchronously: meanwhile NumPy draws the next batch on another core.
            terms = _terms()(points.A, points.R, points.Sigma, points.depth)
            negative = int(np.sum(np.linalg.slogdet(points.R)[0] < 0))
            batches.append((points.depth, terms, negative))
    ratios = np.concatenate([_ratios(cell["form"], depth, terms) for depth, terms, _ in batches])
    depth = np.concatenate([depth for depth, _, _ in batches])
    failed = ratios > 1 + cell["relative_tolerance"]
    log10_ratios = np.log10(ratios)
    low, high = cell["histogram_log10"]
    counts, _ = np.histogram(
        np.clip(log10_ratios, low, high), bins=cell["histogram_bins"], range=(low, high)
    )
    by_sampler = failed.reshape(len(sampling.SAMPLERS), -1).sum(axis=1)
    return {
        "points": len(ratios),
        "negative_determinants": sum(negative for _, _, negative in batches),
        "failures": int(failed.sum()),
        "failures_by_sampler": dict(zip(sampling.SAMPLERS, by_sampler.tolist(), strict=True)),
        "failures_by_depth": {
            str(value): int(failed[depth == value].sum())
            for value in range(depths[0], depths[1] + 1)
        },
        "largest_ratio": float(ratios.max()),
        "histogram_counts": counts.tolist(),
        "quantiles_log10": {
            str(q): float(np.quantile(log10_ratios, q)) for q in _QUANTILES
        },
    }


def _measure_search(cell: dict, rng) -> dict:
    taus = np.repeat(np.asarray(cell["taus"]), cell["starts"])
    width, depth = cell["width"], cell["depth"]
    A = sampling.sample_layers(rng, "uniform", taus, depth, width)
    E = rng.standard_normal((len(taus), width, width))
    # ||Sigma|| between 0.1 and 1, condition up to 100: anything in the feasible set will do.
    Sigma = sampling.sample_second_moments(
        rng, len(taus), width, sampling.DataRange((-1.0, 0.0), 2.0)
    )

    @jax.jit
    @jax.vmap
    def attack(layers, error, second_moment, tau):
        layers, target, second_moment = bound_search.worst_case(
            layers,
            error,
            second_moment,
            tau,
            cell["form"],
            steps=cell["steps"],
            learning_rate=cell["learning_rate"],
        )
        norm = jnp.linalg.norm(second_moment, 2)
        return landscape.bound_terms(layers, target, second_moment, depth), norm

    terms, sigma_norms = attack(A, E, Sigma, taus)
    ratios = _ratios(cell["form"], depth, terms).reshape(len(cell["taus"]), -1)
    # The printed ratios grow in proportion to Sigma, so a point fails from ||Sigma|| / ratio on.
    norms = np.asarray(sigma_norms).reshape(ratios.shape)
    return {
        "largest_ratios": ratios.max(axis=1).tolist(),
        "median_ratios": np.median(ratios, axis=1).tolist(),
        "predicted_ratios": [_largest_ratio(cell["form"], depth, tau) for tau in cell["taus"]],
        "least_failing_sigma_norm": (
            None if cell["form"] == "corrected" else float((norms / ratios).min())
        ),
    }


def _largest_ratio(form: str, depth: int, tau: float) -> float:
    """The supremum of right / left over B_tau and ||Sigma|| <= 1, from the corrected form."""
    corrected = landscape.gradient_bound_corrected(depth, tau, 1.0, 1.0)
    return float(landscape.bound_function(form)(depth, tau, 1.0, 1.0) / corrected)


def _measure_tight(cell: dict, rng) -> dict:
    rows = []
    for width in cell["widths"]:
        grid = [(d, t, s) for d in cell["depths"] for t in cell["taus"] for s in cell["scales"]]
        A = np.zeros((len(grid), max(cell["depths"]), width, width))
        for point, (depth, tau, _) in enumerate(grid):
            A[point, :depth] = landscape.minus_tau_identity(depth, width, tau)
        Sigma = np.array([scale for _, _, scale in grid])[:, None, None] * np.eye(width)
        R = rng.standard_normal((len(grid), width, width))
        depths = np.array([depth for depth, _, _ in grid])
        ratios = _ratios(cell["form"], depths, _terms()(A, R, Sigma, depths))
        rows += [
            {"width": width, "depth": depth, "tau": tau, "scale": scale, "ratio": float(ratio)}
            for (depth, tau, scale), ratio in zip(grid, ratios, strict=True)
        ]
    return {"rows": rows, "largest_error": max(abs(row["ratio"] - 1) for row in rows)}


def _measure_scaling(cell: dict, rng) -> dict:
    points = sampling.sample_points(
        rng,
        "uniform",
        cell["points"],
        _SCALING_WIDTH,
        (1, _SCALING_MAX_DEPTH),
        cell["max_tau"],
        _data_range(cell),
    )
    failing, logs = [], []
    for exponent in cell["scales_log10"]:
        terms = _terms()(points.A, points.R, 10.0**exponent * points.Sigma, points.depth)
        ratios = _ratios(cell["form"], points.depth, terms)
        failing.append(float(np.mean(ratios > 1 + cell["relative_tolerance"])))
        logs.append(np.log10(ratios))
    slopes = (logs[-1] - logs[0]) / max(cell["scales_log10"][-1] - cell["scales_log10"][0], 1e-300)
    return {
        "failing_fractions": failing,
        "least_slope": float(slopes.min()),
        "largest_slope": float(slopes.max()),
    }


def _measure_exact(cell: dict, rng) -> dict:
    del rng
    search = functools.partial(
        bound_search.smallest_scalar_counterexample,
        cell["form"],
        max_depth=cell["max_depth"],
        max_integer=cell["max_integer"],
    )
    return {
        "smallest": _describe(search(max_sigma=cell["max_integer"]), cell["form"]),
        "smallest_with_sigma_1": _describe(search(max_sigma=1), cell["form"]),
    }


def _describe(point: bound_search.ScalarPoint | None, form: str) -> dict | None:
    """The point in exact numbers, and both sides once more in float64 by the general code."""
    if point is None:
        return None
    depth = len(point.a)
    terms = landscape.bound_terms(
        jnp.array([float(value) for value in point.a]).reshape(depth, 1, 1),
        jnp.full((1, 1), float(point.R)),
        jnp.full((1, 1), float(point.Sigma)),
        depth,
    )
    left = float(terms["squared_gradient"])
    return {
        "depth": depth,
        "A": [str(value) for value in point.a],
        "R": str(point.R),
        "Sigma": str(point.Sigma),
        "squared_gradient": str(point.squared_gradient),
        "right": str(point.right),
        "squared_gradient_float64": left,
        "right_float64": float(_ratios(form, depth, terms)) * left,
    }


_MEASURE = {
    "random": _measure_random,
    "search": _measure_search,
    "tight": _measure_tight,
    "scaling": _measure_scaling,
    "exact": _measure_exact,
}


def conclude(config: dict, records: list[dict]) -> harness.Conclusion:
    """Counterexample: failures, one of them exact. Reproduced: none, by any of the attacks."""
    of_kind = {kind: [r for r in records if r["kind"] == kind] for kind in _MEASURE}
    random, searches = of_kind["random"], of_kind["search"]
    (tight,), (scaling,), (exact,) = of_kind["tight"], of_kind["scaling"], of_kind["exact"]
    points = sum(record["points"] for record in random)
    failures = sum(record["failures"] for record in random)
    found = max(max(record["largest_ratios"]) for record in searches)
    predicted = max(max(record["predicted_ratios"]) for record in searches)
    largest = max(record["largest_ratio"] for record in random)
    metrics = {
        "points": points,
        "failures": failures,
        "failures_percent": 100 * failures / points,
        "negative_determinants_percent": (
            100 * sum(record["negative_determinants"] for record in random) / points
        ),
        "largest_right_over_left": largest,
        "search_largest_right_over_left": found,
        "search_predicted_right_over_left": predicted,
        "search_above_prediction_relative": max(
            found / predicted - 1
            for record in searches
            for found, predicted in zip(
                record["largest_ratios"], record["predicted_ratios"], strict=True
            )
        ),
        "tight_family_largest_error": tight["largest_error"],
        "scaling_exponent_least": scaling["least_slope"],
        "scaling_exponent_largest": scaling["largest_slope"],
        "failing_percent_at_smallest_scale": 100 * scaling["failing_fractions"][0],
        "failing_percent_at_largest_scale": 100 * scaling["failing_fractions"][-1],
    }
    for sampler in sampling.SAMPLERS:
        failed = sum(record["failures_by_sampler"][sampler] for record in random)
        metrics[f"failures_{sampler}_percent"] = (
            100 * failed * len(sampling.SAMPLERS) / points
        )
    for name in ("smallest", "smallest_with_sigma_1"):
        if exact[name] is not None:
            metrics[f"{name}_squared_gradient"] = exact[name]["squared_gradient_float64"]
            metrics[f"{name}_right_hand_side"] = exact[name]["right_float64"]
            metrics[f"{name}_depth"] = exact[name]["depth"]
    if config["variant"] != "corrected":
        metrics["least_failing_sigma_norm"] = min(
            record["least_failing_sigma_norm"] for record in searches
        )
    return harness.Conclusion(CLAIMS[config["variant"]], metrics, _verdict(config, metrics))


def _verdict(config: dict, metrics: dict) -> str:
    exact = "smallest_depth" in metrics
    if metrics["failures"] > 0 and exact:
        return "counterexample found"
    holds = (
        metrics["failures"] == 0
        and not exact
        and metrics["points"] >= config["points"]
        and metrics["search_largest_right_over_left"] <= 1 + config["relative_tolerance"]
        and metrics["tight_family_largest_error"] <= config["tight_tolerance"]
    )
    return "reproduced" if holds else "not reproduced"


EXPERIMENT = harness.Experiment("gradient_bound", plan, measure, conclude)

if __name__ == "__main__":
    harness.run(EXPERIMENT)
