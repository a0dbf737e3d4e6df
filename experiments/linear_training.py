"""Gradient descent on deep linear nets: residual against standard, and where it gets stuck.

Variant depth (sections 1.1 and 2 of the paper; 1202 layers as in He et al. 2015). One R and Sigma,
depths 1, 2, 4, ... 1024 and 1202, near-zero Gaussian weights. Expected: residual nets reach 1e-8 of
the risk of the identity map in about 110 updates at every depth, stay in B_1 where Theorem 2.1 puts
an optimum there, and end at |||A||| l of about 2, where Theorem 2.1 prints 4 pi + 3 gamma = 14.
Standard nets from the same weights have gradients of order 1e-10 at depth 8 and of exactly 0 in
float64 at depth 128, and do not move. Started with variance 1/d they move at moderate depth but
reach the tolerance only in shallow nets, whichever of three step sizes they take.

Variant stuck_targets (Bartlett, Helmbold & Long 2018; Zou, Long & Gu 2020; Wu, Wang & Ma 2019). A
landscape without bad critical points inside B_tau does not make gradient descent converge, because
iterates may run to its boundary. From zero weights and Sigma = I, symmetric R, all A_i stay equal,
symmetric and diagonal in the eigenbasis of R, so every eigenvalue moves by itself as a product
(1 + a)^l. Where R has an eigenvalue lambda < 0, 1 + a falls towards 0 and cannot cross it: the
excess risk tends to lambda^2 and |||A||| to 1. R = diag(-1, -1, 1, 1) stalls at 2 although det R >
0 and Theorem 2.1 gives it an optimum of small norm; diag(1, 1, 1, -1/2) stalls at 1/4. Cures that
must converge: fixed input and output maps, a last layer at -I, a start beside the constructed
factorization (det R > 0). Noise of 1e-3 in the start is measured without a verdict: with det R > 0
it grows into the rotation by pi that R is, inside B_1, after 800 to 3,400 updates (nine draws);
with det R < 0 a layer would have to leave B_1 first, and 20,000 updates are too few.

Command: python -m experiments.linear_training --config=:depth (or :stuck_targets)
Hardware: 2 CPU cores. Time: about 40 s and 20 s, compilation included. float64.
"""

import math

import jax
import numpy as np

from experiments import harness
from identity_matters import paper
from identity_matters.linear import dynamics, factorization, lower_bound, risk, training_setup

RESIDUAL, STANDARD, SCALED = "residual", "standard", "standard_scaled"
PLANE, NEGATIVE, POSITIVE, ROTATION = "plane", "negative", "positive", "rotation"


def plan(variant: str, descent: dict, problem: dict) -> list[dict]:
    """The cells of `variant`; `problem` belongs to it, `descent` to `_descend`."""
    _check_descent(**descent)
    if variant == "depth":
        cells = _plan_depth(**problem)
    elif variant == "stuck_targets":
        cells = _plan_stuck_targets(**problem)
    else:
        raise ValueError(f"variant must be depth or stuck_targets, got {variant!r}")
    return [{"variant": variant, **cell, "descent": descent} for cell in cells]


def _require(condition: bool, name: str, needed: str, found) -> None:
    if not condition:
        raise ValueError(f"{name} must be {needed}, got {found}")


def _check_descent(
    relative_risk_tolerance,
    divergence_factor,
    curve_points,
    max_updates,
    record_every,
    stall_tolerance,
):
    _require(
        0 < relative_risk_tolerance < 1,
        "descent.relative_risk_tolerance",
        "between 0 and 1",
        relative_risk_tolerance,
    )
    _require(divergence_factor > 1, "descent.divergence_factor", "above 1", divergence_factor)
    _require(curve_points >= 2, "descent.curve_points", "at least 2", curve_points)
    _require(max_updates >= 1, "descent.max_updates", "at least 1", max_updates)
    _require(record_every >= 1, "descent.record_every", "at least 1", record_every)
    _require(stall_tolerance >= 0, "descent.stall_tolerance", "0 or more", stall_tolerance)


def _plan_depth(
    depths,
    width,
    problem_seed,
    gamma,
    angles_radians,
    sigma_eigenvalues,
    starts,
    near_zero_std_times_depth,
    residual_rate_factors,
    standard_rate_factors,
    stuck_from_depth,
    moved_relative_decrease,
):
    _require(len(depths) > 0, "problem.depths", "at least one depth", depths)
    _require(min(depths) >= 1, "problem.depths", "at least 1", min(depths))
    _require(width >= 2, "problem.width", "at least 2", width)
    _require(problem_seed >= 0, "problem.problem_seed", "0 or more", problem_seed)
    _require(0 < gamma < math.inf, "problem.gamma", "positive and finite", gamma)
    planes = len(angles_radians)
    _require(2 * planes <= width, "problem.angles_radians", f"at most {width // 2} angles", planes)
    largest_angle = max(map(abs, angles_radians), default=0.0)
    _require(largest_angle <= math.pi, "problem.angles_radians", "at most pi", largest_angle)
    eigenvalues = len(sigma_eigenvalues)
    _require(eigenvalues == width, "problem.sigma_eigenvalues", f"{width} numbers", eigenvalues)
    least = min(sigma_eigenvalues)
    _require(least > 0, "problem.sigma_eigenvalues", "positive", least)
    _require(starts >= 1, "problem.starts", "at least 1", starts)
    std = near_zero_std_times_depth
    _require(0 < std < math.inf, "problem.near_zero_std_times_depth", "positive and finite", std)
    for name, factors in (
        ("residual_rate_factors", residual_rate_factors),
        ("standard_rate_factors", standard_rate_factors),
    ):
        _require(len(factors) > 0, f"problem.{name}", "at least one factor", factors)
        _require(min(factors) > 0, f"problem.{name}", "positive", min(factors))
    _require(stuck_from_depth >= 3, "problem.stuck_from_depth", "at least 3", stuck_from_depth)
    moved = moved_relative_decrease
    _require(0 < moved < 1, "problem.moved_relative_decrease", "between 0 and 1", moved)
    return [
        {
            "network": network,
            "depth": depth,
            "start": start,
            "rate_factors": residual_rate_factors if network == RESIDUAL else standard_rate_factors,
            "std": 1 / math.sqrt(width) if network == SCALED else std / depth,
            "width": width,
            "problem_seed": problem_seed,
            "gamma": gamma,
            "angles_radians": angles_radians,
            "sigma_eigenvalues": sigma_eigenvalues,
        }
        for depth in depths
        for network in (RESIDUAL, STANDARD, SCALED)
        for start in range(starts)
    ]


def _plan_stuck_targets(
    depth,
    plane_diagonal,
    negative_diagonal,
    positive_diagonal,
    rotation_radians,
    map_widths,
    repeats,
    noise_std,
    factorization_noise_std,
    stall_tolerance,
):
    _require(depth >= 2, "problem.depth", "at least 2", depth)
    planes = [value for value in plane_diagonal if value < 0]
    even = len(planes) > 0 and len(planes) % 2 == 0 and 0 not in plane_diagonal
    _require(even, "problem.plane_diagonal", "an even number of negative values", plane_diagonal)
    odd = sum(value < 0 for value in negative_diagonal) % 2 == 1 and 0 not in negative_diagonal
    _require(odd, "problem.negative_diagonal", "an odd number of negatives", negative_diagonal)
    positive = min(positive_diagonal)
    _require(positive > 0, "problem.positive_diagonal", "positive", positive)
    dimension = len(plane_diagonal)
    for name, diagonal in (("negative", negative_diagonal), ("positive", positive_diagonal)):
        same = len(diagonal) == dimension
        _require(same, f"problem.{name}_diagonal", f"{dimension} numbers", len(diagonal))
    turn = abs(rotation_radians)
    _require(0 < turn < math.pi, "problem.rotation_radians", "between 0 and pi", turn)
    least_width = min(map_widths, default=dimension)
    _require(least_width >= dimension, "problem.map_widths", f"at least {dimension}", least_width)
    _require(repeats >= 1, "problem.repeats", "at least 1", repeats)
    noises = {"noise": noise_std, "factorization": factorization_noise_std}
    for std in noises.values():
        _require(0 < std < 1, "problem.noise_std and factorization_noise_std", "in (0, 1)", std)
    _require(stall_tolerance > 0, "problem.stall_tolerance", "positive", stall_tolerance)
    targets = {
        PLANE: np.diag(plane_diagonal),
        NEGATIVE: np.diag(negative_diagonal),
        POSITIVE: np.diag(positive_diagonal),
        ROTATION: training_setup.rotation(dimension, (rotation_radians,)),
    }
    # (target, start, width of the layers, repeats)
    cases = [(target, "zero", dimension, 1) for target in targets]
    for target in (PLANE, NEGATIVE):
        cases += [(target, "noise", dimension, repeats)]
        cases += [(target, "gaussian_maps", width, repeats) for width in map_widths]
        cases += [(target, "modified_identity_maps", 2 * dimension, 1)]
        cases += [(target, "last_layer_minus_identity", dimension, 1)]
    cases += [(PLANE, "factorization", dimension, repeats)]
    return [
        {
            "target": target,
            "R": targets[target].tolist(),
            "start": start,
            "depth": depth,
            "width": width,
            "repeat": repeat,
            "noise_std": noises.get(start, 0.0),
        }
        for target, start, width, count in cases
        for repeat in range(count)
    ]


def measure(cell: dict, key) -> dict:
    """Trains one network; see `_measure_depth` and `_measure_stuck_target`."""
    # NumPy draws the weights: JAX would compile a generator for every shape.
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    return (_measure_depth if cell["variant"] == "depth" else _measure_stuck_target)(cell, rng)


def _measure_depth(cell: dict, rng) -> dict:
    """The best of one run for each rate factor, all from the same weights."""
    problem_rng = np.random.default_rng(cell["problem_seed"])
    width, depth = cell["width"], cell["depth"]
    R = training_setup.random_target(
        problem_rng, width, tuple(cell["angles_radians"]), cell["gamma"]
    )
    Sigma = training_setup.random_second_moment(problem_rng, cell["sigma_eigenvalues"])
    A = cell["std"] * rng.standard_normal((depth, width, width))
    if cell["network"] != RESIDUAL:
        A = A - np.eye(width)
    rate = training_setup.largest_stable_learning_rate(R, Sigma, depth)
    runs = [(f, _descend(A, R, Sigma, f * rate, **cell["descent"])) for f in cell["rate_factors"]]
    factor, run = min(runs, key=lambda factor_and_run: _preference(factor_and_run[1]))
    sigma_min = min(cell["sigma_eigenvalues"])
    promised = dynamics.guaranteed_decrease(depth, run["largest_norm"], sigma_min, factor * rate)
    least = {}
    if cell["network"] == RESIDUAL and cell["start"] == 0:  # once for each depth: it takes a while
        least["least_norm_times_depth"] = depth * lower_bound.norm_lower_bound(R, depth)
    return {
        "learning_rate": factor * rate,
        "rate_factor": factor,
        "excess_by_rate_factor": [r["excess_risk"] for _, r in runs],
        "promised_decrease_per_update": promised,
        "bound_v3_times_depth": depth * paper.theorem_2_1_bound_v3(cell["gamma"], depth),
        "bound_iclr2017_times_depth": depth
        * paper.theorem_2_1_bound_iclr2017(cell["gamma"], depth),
        **least,
        **run,
    }


def _preference(run: dict) -> tuple:
    """Sorts runs: those that converged by their updates, then the others by their excess risk."""
    return (0, run["updates"]) if run["converged"] else (1, run["excess_risk"])


def _measure_stuck_target(cell: dict, rng) -> dict:
    R = np.asarray(cell["R"])
    dimension, width, depth = len(R), cell["width"], cell["depth"]
    A, maps = np.zeros((depth, width, width)), {}
    noise = cell["noise_std"] * rng.standard_normal(A.shape)
    if cell["start"] == "noise":
        A = noise
    elif cell["start"] == "factorization":
        A = np.asarray(factorization.factorize(R, depth, "polar")) + noise
    elif cell["start"] == "last_layer_minus_identity":
        A = training_setup.last_layer_minus_identity(depth, width)
    elif cell["start"] in ("gaussian_maps", "modified_identity_maps"):
        gaussian = cell["start"] == "gaussian_maps"
        maps = dict(
            zip(
                ("input_map", "output_map"),
                training_setup.gaussian_maps(rng, dimension, width)
                if gaussian
                else training_setup.modified_identity_maps(dimension),
                strict=True,
            )
        )
    Sigma = np.eye(dimension)
    rate = training_setup.largest_stable_learning_rate(R, Sigma, depth, **maps)
    eigenvalues = np.linalg.eigvals(R)
    negative = eigenvalues[(eigenvalues.imag == 0) & (eigenvalues.real < 0)].real
    return {
        "learning_rate": rate,
        "predicted_stall_excess_risk": float(np.sum(negative**2)),
        **_descend(A, R, Sigma, rate, **cell["descent"], **maps),
    }


def _descend(
    A,
    R,
    Sigma,
    rate,
    relative_risk_tolerance,
    curve_points,
    input_map=None,
    output_map=None,
    **rules,
) -> dict:
    """One run of gradient descent as JSON-able values."""
    # The identity map is where residual nets start and the same yardstick for all networks.
    identity = np.zeros((1, *R.shape))
    yardstick = float(risk.excess_risk(identity, R, Sigma))
    run = dynamics.gradient_descent(
        A,
        R,
        Sigma,
        learning_rate=rate,
        risk_tolerance=relative_risk_tolerance * yardstick,
        input_map=input_map,
        output_map=output_map,
        **rules,
    )
    curves = run.curves
    decreases = -np.diff(np.log(np.maximum(curves.excess_risk, np.finfo(float).tiny)))
    decreases_per_update = decreases / np.diff(curves.updates)
    last_half = decreases_per_update[len(decreases_per_update) // 2 :]
    kept = _thin(len(curves.updates), curve_points)
    return {
        "stopped": run.stopped,
        "converged": run.converged,
        "updates": run.updates,
        "identity_excess_risk": yardstick,
        "start_excess_risk": float(curves.excess_risk[0]),
        "excess_risk": float(curves.excess_risk[-1]),
        "start_gradient_norm": float(curves.gradient_norm[0]),
        "stayed_in_unit_ball": bool(curves.inside[-1]),
        "largest_norm": float(np.max(curves.norm)),  # over the recorded iterates
        "norm": float(curves.norm[-1]),
        "least_decrease_per_update": float(np.min(decreases_per_update, initial=math.inf)),
        "last_decrease_per_update": float(np.mean(last_half)) if len(last_half) else 0.0,
        "curve_updates": curves.updates[kept].tolist(),
        "curve_excess_risk": curves.excess_risk[kept].tolist(),
        "curve_norm": curves.norm[kept].tolist(),
    }


def _thin(length: int, most: int) -> np.ndarray:
    """At most `most` indices of a curve, dense at its start as on a logarithmic axis."""
    if length <= most:
        return np.arange(length)
    return np.unique(np.concatenate([[0], np.geomspace(1, length, most - 1).astype(int) - 1]))


def conclude(config: dict, records: list[dict]) -> harness.Conclusion:
    """The verdict of `config["variant"]`."""
    if config["variant"] == "depth":
        return _conclude_depth(config["problem"], records)
    return _conclude_stuck_targets(config["problem"], records)


def _conclude_depth(problem: dict, records: list[dict]) -> harness.Conclusion:
    residual, standard, scaled = (
        [r for r in records if r["network"] == network] for network in (RESIDUAL, STANDARD, SCALED)
    )
    # Theorem 2.1 puts an optimum inside B_1 from the depth on where its bound falls below 1.
    in_theorem = [r for r in residual if r["bound_v3_times_depth"] < r["depth"]]
    promised = [r for r in residual if r["promised_decrease_per_update"] > 0]
    near_zero = [r for r in standard if r["depth"] >= problem["stuck_from_depth"]]
    moved = [
        r
        for r in near_zero
        if r["excess_risk"] < (1 - problem["moved_relative_decrease"]) * r["start_excess_risk"]
    ]
    trained = [r["depth"] for r in residual if r["converged"]]
    rate_ratio = min(
        (r["least_decrease_per_update"] / r["promised_decrease_per_update"] for r in promised),
        default=math.inf,
    )
    deepest = max(problem["depths"])
    holds = (
        all(r["converged"] for r in residual)
        and all(r["stayed_in_unit_ball"] for r in in_theorem)
        and rate_ratio >= 1
        and not moved
    )
    metrics = {
        "deepest_trained_residual_layers": max(trained, default=0),
        "residual_runs": len(residual),
        "residual_converged_runs": len(trained),
        "residual_left_unit_ball_runs": sum(not r["stayed_in_unit_ball"] for r in residual),
        "residual_in_theorem_2_1_runs": len(in_theorem),
        "residual_in_theorem_2_1_left_unit_ball_runs": sum(
            not r["stayed_in_unit_ball"] for r in in_theorem
        ),
        "residual_most_updates": max(r["updates"] for r in residual),
        "residual_fewest_updates": min(r["updates"] for r in residual),
        "residual_largest_norm_times_depth": max(r["norm"] * r["depth"] for r in residual),
        "residual_bound_v3_times_depth": residual[0]["bound_v3_times_depth"],
        "residual_least_possible_norm_times_depth": max(
            r["least_norm_times_depth"] for r in residual if "least_norm_times_depth" in r
        ),
        "least_measured_over_promised_rate": rate_ratio,
        "residual_start_gradient_norm_deepest": _start_gradient(residual, deepest),
        "standard_start_gradient_norm_deepest": _start_gradient(standard, deepest),
        "standard_scaled_start_gradient_norm_deepest": _start_gradient(scaled, deepest),
        "standard_stuck_from_layers": problem["stuck_from_depth"],
        "standard_stuck_depth_runs": len(near_zero),
        "standard_stuck_depth_moved_runs": len(moved),
        "standard_deepest_converged_layers": _deepest_converged(standard),
        "standard_scaled_deepest_converged_layers": _deepest_converged(scaled),
    }
    published = paper.NUMBERS["deepest_residual_net_layers"].value
    return harness.Conclusion(
        claim="Section 1.1: training at depth",
        metrics=metrics,
        paper={"deepest_trained_residual_layers": published},
        verdict="reproduced" if holds else "not reproduced",
    )


def _start_gradient(records: list[dict], depth: int) -> float:
    """The mean gradient norm at the start, over the runs of `depth`."""
    return float(np.mean([r["start_gradient_norm"] for r in records if r["depth"] == depth]))


def _deepest_converged(records: list[dict]) -> int:
    return max((r["depth"] for r in records if r["converged"]), default=0)


def _conclude_stuck_targets(problem: dict, records: list[dict]) -> harness.Conclusion:
    def select(*starts, targets=(PLANE, NEGATIVE)):
        return [r for r in records if r["start"] in starts and r["target"] in targets]

    def stalled(r):
        predicted = r["predicted_stall_excess_risk"]
        near = abs(r["excess_risk"] - predicted) <= problem["stall_tolerance"] * predicted
        return near and not r["converged"]

    from_zero = select("zero")
    learned = select("zero", targets=(POSITIVE, ROTATION))
    cured = select(
        "gaussian_maps", "modified_identity_maps", "last_layer_minus_identity", "factorization"
    )
    metrics = {"cure_runs": len(cured), "cure_converged_runs": sum(r["converged"] for r in cured)}
    for r in from_zero:
        metrics[f"{r['target']}_zero_excess_risk"] = r["excess_risk"]
        metrics[f"{r['target']}_zero_predicted_excess_risk"] = r["predicted_stall_excess_risk"]
        metrics[f"{r['target']}_zero_norm"] = r["norm"]
    for r in learned:
        metrics[f"{r['target']}_zero_updates"] = r["updates"]
    for target in (PLANE, NEGATIVE):
        noisy = select("noise", targets=(target,))
        metrics[f"{target}_noise_runs"] = len(noisy)
        metrics[f"{target}_noise_converged_runs"] = sum(r["converged"] for r in noisy)
        metrics[f"{target}_noise_fewest_updates"] = min(r["updates"] for r in noisy)
    for r in cured:
        name = f"{r['target']}_{r['start']}"
        name += f"_{r['width']}" if r["start"] == "gaussian_maps" else ""
        # The most updates over the repeats.
        metrics[f"{name}_updates"] = max(r["updates"], metrics.get(f"{name}_updates", 0))
    holds = all(map(stalled, from_zero)) and all(r["converged"] for r in learned + cured)
    return harness.Conclusion(
        claim="Landscape is not dynamics",
        metrics=metrics,
        verdict="reproduced" if holds else "not reproduced",
    )


EXPERIMENT = harness.Experiment("linear_training", plan, measure, conclude)

if __name__ == "__main__":
    harness.run(EXPERIMENT)
