"""Gradient descent on deep linear nets: residual against standard, and where it gets
stuck.

* depth (sections 1.1 and 2 of the paper; 1202 layers as in He et al. 2015): three pairs
  of R and Sigma, depths 1 to 1202, near-zero Gaussian weights.
* stuck_targets (Bartlett, Helmbold & Long 2018; cures by Zou, Long & Gu 2020 and Wu,
  Wang & Ma 2019): a landscape without bad critical points inside B_tau does not make
  gradient descent converge. From zero weights, with Sigma = I and a symmetric R, all
  A_i stay equal and diagonal in the eigenbasis of R. Where R has an eigenvalue below 0,
  that of I + A_i falls towards 0 and cannot cross it.
* noise: the two targets that stall, from Gaussian weights of five sizes. For how long
  they take see experiments/convergence.py.

Command: python -m experiments.linear_training --config=:depth
    (or :stuck_targets, :noise)
Hardware: one CPU core. Time: 18 to 23 s, 4 to 12 s and 10 to 11 s. float64.
Expected: residual nets reach 1e-8 of the risk of the identity map in at most 300
updates at every depth, stay in B_1 where Theorem 2.1 puts an optimum there, and end
with l |||A||| at most 3.2. Standard nets from the same weights have gradients of order
1e-10 at depth 8 and exactly 0 in float64 at depth 128, and are stopped before they
move. Started with variance 1/d, only shallow ones converge. R = diag(-1, -1, 1, 1)
stalls at excess risk 2, with |||A||| at 0.80 after 20,000 updates, although det R > 0
and Theorem 2.1 gives it an optimum of small norm; diag(1, 1, 1, -1/2) stalls at 1/4.
Every cure converges. Noise frees both targets, whatever the sign of det R.
"""

import dataclasses
import math
import types

import numpy as np

from experiments import run
from experiments.run.measuring import generator
from experiments.run.settings import configs
from experiments.run.trials import each
from experiments.run.verdicts import largest, reproduced, where
from identity_matters import paper, random_matrices
from identity_matters.linear import descent, factorization, lower_bound, model

RESIDUAL, STANDARD, SCALED = "residual", "standard", "standard_scaled"
PLANE, NEGATIVE, POSITIVE = "plane", "negative", "positive"
CURVE_POINTS = 100  # most points of a curve that are kept

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
        "near_zero_std_times_depth": 0.1,  # l |||A||| starts at about 5 times it
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


def _depth_trials(settings: dict):
    kept = {n: settings[n] for n in ("descent", "width", "sigma_eigenvalues", "depths")}
    drawn = (settings[name] for name in ("problem_seeds", "gammas", "angles_radians"))
    kept |= {
        "networks": (RESIDUAL, STANDARD, SCALED),
        "problems": zip(*drawn, strict=True),
    }
    problem = "problem_seed gamma angles_radians"
    for trial in each(
        kept, {"depths": "depth", "networks": "network", "problems": problem}
    ):
        kind = "residual" if trial["network"] == RESIDUAL else "standard"
        trial["rate_factors"] = settings[f"{kind}_rate_factors"]
        near_zero = settings["near_zero_std_times_depth"] / trial["depth"]
        scaled = trial["network"] == SCALED
        trial["std"] = 1 / math.sqrt(settings["width"]) if scaled else near_zero
        yield trial


def _stuck_trials(settings: dict):
    """Every target from zero; those that stall also from the starts and with the maps
    that help.
    """
    targets = {
        name: np.diag(settings[f"{name}_diagonal"])
        for name in (PLANE, NEGATIVE, POSITIVE)
    }
    turn = np.array([settings["rotation_radians"]])
    targets["rotation"] = random_matrices.rotate_rows(np.eye(len(targets[PLANE])), turn)
    # (target, start, width of the layers, repeats)
    cases, repeats = (
        [(name, "zero", len(R), 1) for name, R in targets.items()],
        settings["repeats"],
    )
    for target in (PLANE, NEGATIVE):
        dimension = len(targets[target])
        cases += [
            (target, "gaussian_maps", width, repeats)
            for width in settings["map_widths"]
        ]
        cases += [(target, "modified_identity_maps", 2 * dimension, 1)]
        cases += [(target, "last_layer_minus_identity", dimension, 1)]
    cases += [(PLANE, "factorization", len(targets[PLANE]), repeats)]
    common = {name: settings[name] for name in ("descent", "depth")}
    for target, start, width, count in cases:
        std = settings["factorization_noise_std"] if start == "factorization" else 0.0
        own = {
            "target": target,
            "R": targets[target].tolist(),
            "start": start,
            "width": width,
        }
        for repeat in range(count):
            yield {**common, **own, "noise_std": std, "repeat": repeat}


def _noise_trials(settings: dict):
    targets = [
        (name, np.diag(settings[f"{name}_diagonal"]).tolist())
        for name in (NEGATIVE, PLANE)
    ]
    return each(
        {**settings, "targets": targets}, {"targets": "target R", "depths": "depth"}
    )


def build(**trial) -> types.SimpleNamespace:
    """A trial with R and Sigma, f64[d, d], and `descent.Rules`, one for each of
    rate_factors.
    """
    if trial["variant"] == "depth":
        rng = np.random.default_rng(trial["problem_seed"])
        size = trial["width"], trial["angles_radians"], trial["gamma"]
        R = random_matrices.polar_target(rng, *size)
        Sigma = random_matrices.symmetric(rng, trial["sigma_eigenvalues"])
    else:
        R, Sigma = np.asarray(trial["R"]), np.eye(len(trial["R"]))
    if trial["variant"] == "stuck_targets" and trial["depth"] < 3:
        raise ValueError(
            f"depth must be at least 3 for a drift like 1/t, got {trial['depth']}"
        )
    # Residual nets start near the identity map; its risk is the yardstick for all
    # networks.
    yardstick = float(model.excess_risk(np.zeros((1, *R.shape)), R, Sigma))
    rules = dict(trial["descent"])
    rules["risk_tolerance"] = rules.pop("relative_risk_tolerance") * yardstick
    rate = descent.largest_stable_learning_rate(R, Sigma, trial["depth"])
    factors = trial.get("rate_factors", (1.0,))
    listed = [descent.Rules(factor * rate, **rules) for factor in factors]
    return types.SimpleNamespace(**{**trial, "R": R, "Sigma": Sigma, "rules": listed})


def descend(trial, A, rules: descent.Rules, *maps) -> dict:
    """One run of gradient descent as JSON-able values; `maps` are input and output map,
    if any.
    """
    done = descent.gradient_descent(A, trial.R, trial.Sigma, rules, *maps)
    curves = done.curves
    decreases = -np.diff(np.log(np.maximum(curves.excess_risk, np.finfo(float).tiny)))
    decreases_per_update = decreases / np.diff(curves.updates)
    kept = np.arange(len(curves.updates))
    # dense at the start of the curve, as on a logarithmic axis
    if len(kept) > CURVE_POINTS:
        kept = np.unique(np.geomspace(1, len(kept), CURVE_POINTS).astype(int) - 1)
    return {
        "learning_rate": rules.learning_rate,
        "converged": done.converged,
        "updates": done.updates,
        "start_excess_risk": float(curves.excess_risk[0]),
        "excess_risk": float(curves.excess_risk[-1]),
        "start_gradient_norm": float(curves.gradient_norm[0]),
        "stayed_in_unit_ball": bool(curves.inside[-1]),
        "largest_norm": float(np.max(curves.norm)),  # over the recorded iterates
        "norm": float(curves.norm[-1]),
        "least_decrease_per_update": float(
            np.min(decreases_per_update, initial=math.inf)
        ),
        "curve_updates": curves.updates[kept].tolist(),
        "curve_excess_risk": curves.excess_risk[kept].tolist(),
    }


def measure_depth(trial, key) -> dict:
    """The best run over the step sizes, all from the same weights."""
    rng = generator(key)
    depth, gamma = trial.depth, trial.gamma
    A = trial.std * rng.standard_normal((depth, trial.width, trial.width))
    if trial.network != RESIDUAL:
        A = A - np.eye(trial.width)
    runs = [descend(trial, A, rules) for rules in trial.rules]
    # Converged runs come first, ordered by updates; then the others, by excess risk.
    best = min(
        runs,
        key=lambda r: (0, r["updates"]) if r["converged"] else (1, r["excess_risk"]),
    )
    promised = descent.guaranteed_decrease(
        depth, best["largest_norm"], min(trial.sigma_eigenvalues), best["learning_rate"]
    )
    measured = best | {
        "promised_decrease_per_update": promised,
        "bound_v3_times_depth": depth * paper.theorem_2_1_bound_v3(gamma, depth),
        "bound_iclr2017_times_depth": (
            depth * paper.theorem_2_1_bound_iclr2017(gamma, depth)
        ),
    }
    if trial.network == RESIDUAL:
        measured["least_norm_times_depth"] = depth * lower_bound.norm_lower_bound(
            trial.R, depth
        )
    return measured


def measure_stuck(trial, key) -> dict:
    """One run, from zero or with a cure, and what the theory predicts from zero."""
    rng = generator(key)
    R, depth, width, (rules,) = trial.R, trial.depth, trial.width, trial.rules
    A, maps = np.zeros((depth, width, width)), ()
    if trial.start == "factorization":
        A = np.asarray(factorization.factorize(R, depth, "polar"))
        A = A + trial.noise_std * rng.standard_normal(A.shape)
    elif trial.start == "last_layer_minus_identity":
        A[-1] = -np.eye(width)  # zero-asymmetric, Wu et al. 2019
    elif trial.start == "gaussian_maps":
        maps = descent.gaussian_maps(rng, len(R), width)
    elif trial.start == "modified_identity_maps":
        maps = descent.modified_identity_maps(len(R))
    rate = descent.largest_stable_learning_rate(R, trial.Sigma, depth, *maps)
    done = descend(trial, A, dataclasses.replace(rules, learning_rate=rate), *maps)
    eigenvalues = np.linalg.eigvals(R)
    negative = eigenvalues[(eigenvalues.imag == 0) & (eigenvalues.real < 0)].real
    # From zero an eigenvalue w of the equal layers follows w' = -2 |lambda| w^(l-1)
    # while w^l is small compared with |lambda|, lambda < 0: it falls towards 0 like
    # t^(-1/(l-2)).
    fallen = (
        1 + 2 * np.max(-negative, initial=0.0) * (depth - 2) * rate * done["updates"]
    )
    return done | {
        "predicted_stall_excess_risk": float(np.sum(negative**2)),
        "predicted_distance_to_edge": float(fallen ** (-1 / (depth - 2))),
    }


def measure_noise(trial, key) -> dict:
    """All noise sizes and draws for one target and depth, as lists [size][draw]."""
    rng = generator(key)
    (rules,), stds = trial.rules, trial.noise_stds
    noise = rng.standard_normal((len(stds), trial.draws, trial.depth, *trial.R.shape))
    noise *= np.reshape(stds, (-1, 1, 1, 1, 1))
    ends = descent.descend_many(noise.reshape(-1, *noise.shape[2:]), trial.R, rules)
    lists = {name: x.reshape(noise.shape[:2]).tolist() for name, x in ends.items()}
    return {"learning_rate": rules.learning_rate, **lists}


def judge_depth(settings: dict, records: list[dict]) -> run.Verdict:
    """Residual nets train as fast as eq. (2.3) promises and stay inside; standard nets
    stay put.
    """
    residual, standard = (where(records, network=name) for name in (RESIDUAL, STANDARD))
    # Theorem 2.1 puts an optimum inside B_1 as soon as the depth brings its bound below
    # 1.
    in_theorem = [r for r in residual if r["bound_v3_times_depth"] < r["depth"]]
    left_in_theorem = where(in_theorem, stayed_in_unit_ball=False)
    near_zero = [r for r in standard if r["depth"] >= settings["stuck_from_depth"]]
    left = 1 - settings["moved_relative_decrease"]
    moved = sum(r["excess_risk"] < left * r["start_excess_risk"] for r in near_zero)
    trained = where(residual, converged=True)
    rates = [
        (r["least_decrease_per_update"], r["promised_decrease_per_update"])
        for r in residual
    ]
    rate_ratio = min(
        (slowest / due for slowest, due in rates if due > 0), default=math.inf
    )
    metrics = {
        "targets": len({r["problem_seed"] for r in records}),
        "deepest_trained_residual_layers": largest(trained, "depth", 0),
        "residual_runs": len(residual),
        "residual_converged_runs": len(trained),
        "residual_in_theorem_2_1_runs": len(in_theorem),
        "residual_in_theorem_2_1_left_unit_ball_runs": len(left_in_theorem),
        "residual_most_updates": largest(residual, "updates"),
        "residual_largest_norm_times_depth": max(
            r["norm"] * r["depth"] for r in residual
        ),
        "least_measured_over_promised_rate": rate_ratio,
        "standard_stuck_depth_runs": len(near_zero),
        "standard_stuck_depth_moved_runs": moved,
    }
    for name in (STANDARD, SCALED):
        converged = where(records, network=name, converged=True)
        metrics[f"{name}_deepest_converged_layers"] = largest(converged, "depth", 0)
    everything = len(trained) == len(residual) and not left_in_theorem
    said = reproduced(everything and rate_ratio >= 1 and not moved)
    layers = paper.NUMBERS["deepest_residual_net_layers"].value
    return run.Verdict(
        "training-at-depth", metrics, said, {"deepest_trained_residual_layers": layers}
    )


def judge_stuck(settings: dict, records: list[dict]) -> run.Verdict:
    """Two targets stall from zero as predicted; the other two and every cure
    converge.
    """

    def stalled(r):
        risk, distance = (
            r["predicted_stall_excess_risk"],
            r["predicted_distance_to_edge"],
        )
        near = abs(r["excess_risk"] - risk) <= settings["stall_tolerance"] * risk
        drifts = abs(1 - r["norm"] - distance) <= settings["drift_tolerance"] * distance
        return near and drifts and not r["converged"]

    cured = [r for r in records if r["start"] != "zero"]
    stuck = [
        r for r in where(records, start="zero") if r["target"] in (PLANE, NEGATIVE)
    ]
    metrics = {
        "cure_runs": len(cured),
        "cure_converged_runs": sum(r["converged"] for r in cured),
    }
    for r in stuck:
        metrics |= {
            f"{r['target']}_zero_excess_risk": r["excess_risk"],
            f"{r['target']}_zero_predicted_excess_risk": r[
                "predicted_stall_excess_risk"
            ],
            f"{r['target']}_zero_norm": r["norm"],
            f"{r['target']}_zero_predicted_norm": 1 - r["predicted_distance_to_edge"],
        }
    for r in records:
        width = f"_{r['width']}" if r["start"] == "gaussian_maps" else ""
        name = f"{r['target']}_{r['start']}{width}_updates"
        # the most over the repeats
        metrics[name] = max(r["updates"], metrics.get(name, 0))
    return run.Verdict(
        "stuck-targets",
        metrics,
        reproduced(all(stalled(r) if r in stuck else r["converged"] for r in records)),
    )


def judge_noise(settings: dict, records: list[dict]) -> run.Verdict:
    """For every target and depth, some noise size frees enough draws."""
    metrics, freed = {"draws": records[0]["draws"]}, []
    for r in records:
        for std, converged in zip(r["noise_stds"], r["converged"], strict=True):
            name = f"{r['target']}_converged_draws/layers={r['depth']}/noise={std:g}"
            metrics[name] = int(np.sum(converged))
        freed.append(max(float(np.mean(converged)) for converged in r["converged"]))
    metrics["least_freed_share"] = min(freed)
    return run.Verdict(
        "noise-frees-stuck-targets",
        metrics,
        reproduced(min(freed) >= settings["least_freed_share"]),
    )


_TRIALS = {
    "depth": _depth_trials,
    "stuck_targets": _stuck_trials,
    "noise": _noise_trials,
}
MEASURES = {
    "depth": measure_depth,
    "stuck_targets": measure_stuck,
    "noise": measure_noise,
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
    measure=MEASURES,
    verdict=VERDICTS,
    build=build,
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
