"""Gradient descent on deep linear nets, residual and standard: where it gets stuck.

* depth (sections 1.1 and 2 of the paper; 1202 layers as in He et al. 2015): three pairs
  of R and Sigma, depths 1 to 1202, near-zero Gaussian weights.
* stuck_targets (Bartlett, Helmbold & Long 2018; cures by Zou, Long & Gu 2020 and Wu,
  Wang & Ma 2019): a landscape without bad critical points inside B_tau does not make
  gradient descent converge. From zero weights, with Sigma = I and a symmetric R, all
  A_i stay equal and diagonal in the eigenbasis of R. Where R has an eigenvalue below 0,
  that of I + A_i falls towards 0 and cannot cross it.
* noise: the two targets that stall, from Gaussian weights of five sizes.
  experiments/convergence.py says how long they take.

Command: python -m experiments.linear_training --config=:depth
    (or :stuck_targets, :noise)
Hardware: one CPU core. Time: depth 18 to 23 s, stuck_targets 4 to 12 s, noise 10 to
11 s. float64.
Expected: residual nets reach 1e-8 of the risk of the identity map in at most 300
updates at every depth, stay in B_1 where Theorem 2.1 puts an optimum there, and end
with l |||A||| at most 3.2. Standard nets from the same weights have gradients of order
1e-10 at depth 8 and exactly 0 in float64 at depth 128, and are stopped before they
move. Started with variance 1/d, only shallow ones converge. R = diag(-1, -1, 1, 1)
stalls at excess risk 2, with |||A||| at 0.80 after 20,000 updates, although det R > 0
and Theorem 2.1 gives it an optimum of small norm; diag(1, 1, 1, -1/2) stalls at 1/4.
Every cure converges. Noise frees both targets, whatever the sign of det R.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from experiments import run
from experiments.run.settings import configs
from experiments.run.trials import each
from experiments.run.verdicts import largest, reproduced, where
from identity_matters import matrices, paper

# Networks.
RESIDUAL = "residual"
STANDARD = "standard"
SCALED = "standard_scaled"
# Targets.
PLANE = "plane"
NEGATIVE = "negative"
POSITIVE = "positive"

_STUCK_DIAGONALS = {
    "plane_diagonal": (-1.0, -1.0, 1.0, 1.0),  # R with det R > 0 that stalls from zero
    # R with det R < 0 that stalls from zero
    "negative_diagonal": (1.0, 1.0, 1.0, -0.5),
}
_DESCENT = {  # gradient descent, the same for every network
    # converged: f - C <= this times ||(I - R) Sigma^{1/2}||_F^2
    "relative_risk_tolerance": 1e-8,
    "divergence_factor": 1e3,  # stop above this many times the first excess risk
    "max_updates": 20_000,  # most updates of a run
}
_SETTINGS = {
    "depth": {
        "descent": {
            **_DESCENT,
            "max_updates": 1000,  # more than three times what the residual nets need
            "record_every": 5,  # updates between two records
            # stop when an update promises a smaller relative decrease
            "stall_tolerance": 1e-12,
        },
        "depths": (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 1202),  # layers
        "width": 6,  # d
        # each draws one R and Sigma; --seed draws the weights
        "problem_seeds": (0, 1, 2),
        # gamma of each R: singular values in e^-gamma..e^gamma
        "gammas": (0.5, 0.3, 0.8),
        # rotation angles of each R
        "angles_radians": ((1.5, 0.8), (2.5,), (0.6, 0.4, 0.2)),
        "sigma_eigenvalues": (0.5, 0.7, 0.9, 1.1, 1.3, 1.5),  # of Sigma = E[x x^T]
        "near_zero_std_times_depth": 0.1,  # l |||A||| starts at about 5 times this
        # Multiples of 1/L (descent.largest_stable_learning_rate). The standard nets
        # take the best, so that the step size gives the residual nets no advantage.
        "residual_rate_factors": (1.0,),
        "standard_rate_factors": (0.25, 1.0, 4.0),
        # the claim: near zero, standard nets this deep or deeper stay put
        "stuck_from_depth": 8,
        # a net has moved if its excess risk fell by this share
        "moved_relative_decrease": 0.01,
    },
    "stuck_targets": {
        **_STUCK_DIAGONALS,
        "depth": 8,  # layers
        "positive_diagonal": (2.0, 1.5, 1.0, 0.5),  # R that is learned from zero
        "rotation_radians": 2.5,  # angle of a plane rotation that is learned from zero
        "map_widths": (8, 32, 128),  # m, width of the nets with fixed Gaussian maps
        "repeats": 3,  # draws of each random start or pair of maps
        # of the noise added to the constructed factorization
        "factorization_noise_std": 0.03,
        "stall_tolerance": 1e-3,  # relative tolerance on the predicted excess risk
        # relative tolerance on 1 - |||A|||, the distance to the edge
        "drift_tolerance": 0.01,
    },
    "noise": {
        **_STUCK_DIAGONALS,
        "depths": (2, 4, 8),  # layers
        # of the entries of the initial weights
        "noise_stds": (1e-3, 1e-2, 0.03, 0.1, 0.2),
        "draws": 8,  # starts for each noise size
        # share of draws that the best noise size must free (our choice)
        "least_freed_share": 0.5,
    },
}
VARIANTS = tuple(_SETTINGS)
get_config = configs(_SETTINGS, {"descent": _DESCENT})


def trials(*, variant: str, **settings) -> list[dict]:
    """One trial for each network to train; for noise, one for each target and depth."""
    return [{"variant": variant, **trial} for trial in _TRIALS[variant](settings)]


def _depth_trials(settings: dict) -> Iterator[dict]:
    """Each problem at each depth with each network, and how its weights start.

    Scaled networks start from weights of deviation 1 / sqrt(d), the others near zero.
    """
    problems = zip(
        settings["problem_seeds"],
        settings["gammas"],
        settings["angles_radians"],
        strict=True,
    )
    listed = each(
        {
            "descent": settings["descent"],
            "width": settings["width"],
            "sigma_eigenvalues": settings["sigma_eigenvalues"],
            "depths": settings["depths"],
            "networks": (RESIDUAL, STANDARD, SCALED),
            "problems": problems,
        },
        {
            "depths": "depth",
            "networks": "network",
            "problems": "problem_seed gamma angles_radians",
        },
    )
    for trial in listed:
        kind = "residual" if trial["network"] == RESIDUAL else "standard"
        if trial["network"] == SCALED:
            std = 1 / math.sqrt(settings["width"])
        else:
            std = settings["near_zero_std_times_depth"] / trial["depth"]
        yield {**trial, "rate_factors": settings[f"{kind}_rate_factors"], "std": std}


def _stuck_trials(settings: dict) -> Iterator[dict]:
    """Every target from zero; those that stall also from the starts that help."""
    targets = {
        name: np.diag(settings[f"{name}_diagonal"])
        for name in (PLANE, NEGATIVE, POSITIVE)
    }
    turn = np.array([settings["rotation_radians"]])
    targets["rotation"] = matrices.rotate_rows(np.eye(len(targets[PLANE])), turn)
    for case in _stuck_cases(targets, settings):
        has_noise = case.start == "factorization"
        for repeat in range(case.repeats):
            yield {
                "descent": settings["descent"],
                "depth": settings["depth"],
                "target": case.target,
                "R": targets[case.target].tolist(),
                "start": case.start,
                "width": case.width,
                "noise_std": settings["factorization_noise_std"] if has_noise else 0.0,
                "repeat": repeat,
            }


class _Case(NamedTuple):
    """A target, from where descent starts, the width of the layers, how often."""

    target: str
    start: str
    width: int
    repeats: int


def _stuck_cases(targets: dict[str, np.ndarray], settings: dict) -> list[_Case]:
    """Each target from zero; those that stall also from the starts that should help."""
    repeats = settings["repeats"]
    cases = [_Case(name, "zero", len(R), 1) for name, R in targets.items()]
    for target in (PLANE, NEGATIVE):
        dimension = len(targets[target])
        cases += [
            _Case(target, "gaussian_maps", width, repeats)
            for width in settings["map_widths"]
        ]
        cases.append(_Case(target, "modified_identity_maps", 2 * dimension, 1))
        cases.append(_Case(target, "last_layer_minus_identity", dimension, 1))
    cases.append(_Case(PLANE, "factorization", len(targets[PLANE]), repeats))
    return cases


def _noise_trials(settings: dict) -> list[dict]:
    """Each target that stalls at each depth."""
    targets = [
        (name, np.diag(settings[f"{name}_diagonal"]).tolist())
        for name in (NEGATIVE, PLANE)
    ]
    return each(
        {**settings, "targets": targets}, {"targets": "target R", "depths": "depth"}
    )


def judge_depth(settings: dict, records: list[dict]) -> run.Verdict:
    """Residual nets train as fast as promised and stay inside; standard ones are stuck.

    The promise is eq. (2.3).
    """
    metrics = {
        "targets": len({record["problem_seed"] for record in records}),
        **_metrics_of_residual_nets(where(records, network=RESIDUAL)),
        **_metrics_of_stuck_nets(settings, where(records, network=STANDARD)),
    }
    for name in (STANDARD, SCALED):
        converged = where(records, network=name, converged=True)
        metrics[f"{name}_deepest_converged_layers"] = largest(converged, "depth", 0)
    holds = (
        metrics["residual_converged_runs"] == metrics["residual_runs"]
        and not metrics["residual_in_theorem_2_1_left_unit_ball_runs"]
        and metrics["least_measured_over_promised_rate"] >= 1
        and not metrics["standard_stuck_depth_moved_runs"]
    )
    layers = paper.NUMBERS["deepest_residual_net_layers"].value
    return run.Verdict(
        claim="training-at-depth",
        metrics=metrics,
        verdict=reproduced(holds),
        paper={"deepest_trained_residual_layers": layers},
    )


def _metrics_of_residual_nets(residual: list[dict]) -> dict:
    """How deep they train, whether they stay inside, and how fast."""
    trained = where(residual, converged=True)
    # Theorem 2.1 puts an optimum inside B_1 as
    # soon as the depth brings its bound below 1.
    in_theorem = [
        record
        for record in residual
        if record["bound_v3_times_depth"] < record["depth"]
    ]
    left_in_theorem = where(in_theorem, stayed_in_unit_ball=False)
    return {
        "deepest_trained_residual_layers": largest(trained, "depth", 0),
        "residual_runs": len(residual),
        "residual_converged_runs": len(trained),
        "residual_in_theorem_2_1_runs": len(in_theorem),
        "residual_in_theorem_2_1_left_unit_ball_runs": len(left_in_theorem),
        "residual_most_updates": largest(residual, "updates"),
        "residual_largest_norm_times_depth": max(
            record["norm"] * record["depth"] for record in residual
        ),
        "least_measured_over_promised_rate": _least_measured_over_promised_rate(
            residual
        ),
    }


def _metrics_of_stuck_nets(settings: dict, standard: list[dict]) -> dict:
    """How many standard nets are deep enough to be stuck, and how many still move."""
    deep = [
        record for record in standard if record["depth"] >= settings["stuck_from_depth"]
    ]
    return {
        "standard_stuck_depth_runs": len(deep),
        "standard_stuck_depth_moved_runs": sum(
            _has_moved(settings, record) for record in deep
        ),
    }


def _has_moved(settings: dict, record: dict) -> bool:
    left = 1 - settings["moved_relative_decrease"]
    return record["excess_risk"] < left * record["start_excess_risk"]


def _least_measured_over_promised_rate(records: list[dict]) -> float:
    ratios = [
        record["least_decrease_per_update"] / record["promised_decrease_per_update"]
        for record in records
        if record["promised_decrease_per_update"] > 0
    ]
    return min(ratios, default=math.inf)


def judge_stuck(settings: dict, records: list[dict]) -> run.Verdict:
    """Two targets stall from zero as predicted; all else converges."""
    cured = [record for record in records if record["start"] != "zero"]
    stuck = [record for record in records if _should_stall(record)]
    metrics = {
        "cure_runs": len(cured),
        "cure_converged_runs": sum(record["converged"] for record in cured),
    }
    for record in stuck:
        name = f"{record['target']}_zero"
        risk = record["predicted_stall_excess_risk"]
        metrics[f"{name}_excess_risk"] = record["excess_risk"]
        metrics[f"{name}_predicted_excess_risk"] = risk
        metrics[f"{name}_norm"] = record["norm"]
        metrics[f"{name}_predicted_norm"] = 1 - record["predicted_distance_to_edge"]
    for record in records:
        width = f"_{record['width']}" if record["start"] == "gaussian_maps" else ""
        name = f"{record['target']}_{record['start']}{width}_updates"
        # the most over the repeats
        metrics[name] = max(record["updates"], metrics.get(name, 0))
    holds = all(
        _stalled(settings, record) if _should_stall(record) else record["converged"]
        for record in records
    )
    return run.Verdict("stuck-targets", metrics, reproduced(holds))


def _should_stall(record: dict) -> bool:
    return record["start"] == "zero" and record["target"] in (PLANE, NEGATIVE)


def _stalled(settings: dict, record: dict) -> bool:
    """Whether a run has stalled where it was predicted to."""
    risk = record["predicted_stall_excess_risk"]
    distance = record["predicted_distance_to_edge"]
    is_near = abs(record["excess_risk"] - risk) <= settings["stall_tolerance"] * risk
    has_drifted = (
        abs(1 - record["norm"] - distance) <= settings["drift_tolerance"] * distance
    )
    return is_near and has_drifted and not record["converged"]


def judge_noise(settings: dict, records: list[dict]) -> run.Verdict:
    """For every target and depth, some noise size frees enough draws."""
    metrics = {"draws": records[0]["draws"]}
    freed_shares = []
    for record in records:
        case = f"{record['target']}_converged_draws/layers={record['depth']}"
        for std, converged in zip(
            record["noise_stds"], record["converged"], strict=True
        ):
            metrics[f"{case}/noise={std:g}"] = int(np.sum(converged))
        freed_shares.append(
            max(float(np.mean(converged)) for converged in record["converged"])
        )
    metrics["least_freed_share"] = min(freed_shares)
    holds = min(freed_shares) >= settings["least_freed_share"]
    return run.Verdict("noise-frees-stuck-targets", metrics, reproduced(holds))


_TRIALS = {
    "depth": _depth_trials,
    "stuck_targets": _stuck_trials,
    "noise": _noise_trials,
}
VERDICTS = {
    "depth": judge_depth,
    "stuck_targets": judge_stuck,
    "noise": judge_noise,
}
EXPERIMENT = run.Experiment(
    name="linear_training",
    module=__name__,
    trials=trials,
    measurements="experiments.measurements.linear_training",
    verdict=VERDICTS,
    kind_field="variant",
    signed=(
        "problem_seeds",
        "gammas",
        "angles_radians",
        "rotation_radians",
        *_STUCK_DIAGONALS,
    ),
)

if __name__ == "__main__":
    run.main(EXPERIMENT)
