"""Gradient descent on deep linear nets, from all the starts of `linear_training`."""

import dataclasses
import math
import types

import numpy as np

from experiments.linear_training import RESIDUAL
from experiments.run.measuring import generator
from experiments.run.trials import without
from identity_matters import paper, random_matrices
from identity_matters.linear import (
    descent,
    factorization,
    lower_bound,
    model,
    random_targets,
)

CURVE_POINTS = 100  # most points of a curve that are kept


def build(**trial) -> types.SimpleNamespace:
    """The trial with R and Sigma, f64[d, d], and a `descent.Rules` per rate factor."""
    if trial["variant"] == "stuck_targets" and trial["depth"] < 3:
        raise ValueError(
            f"depth must be at least 3 for a drift by a power law, got {trial['depth']}"
        )
    built = types.SimpleNamespace(**trial)
    built.R, built.Sigma = _problem(trial)
    # Residual nets start near the identity map;
    # its risk is the yardstick for all networks.
    identity = np.zeros((1, *built.R.shape))
    yardstick = float(model.excess_risk(identity, built.R, built.Sigma))
    rules = {
        **without(trial["descent"], "relative_risk_tolerance"),
        "risk_tolerance": trial["descent"]["relative_risk_tolerance"] * yardstick,
    }
    rate = descent.largest_stable_learning_rate(built.R, built.Sigma, trial["depth"])
    built.rules = [
        descent.Rules(factor * rate, **rules)
        for factor in trial.get("rate_factors", (1.0,))
    ]
    return built


def _problem(trial: dict) -> tuple[np.ndarray, np.ndarray]:
    """R and Sigma, f64[d, d] each."""
    if trial["variant"] != "depth":
        R = np.asarray(trial["R"])
        return R, np.eye(len(R))
    rng = np.random.default_rng(trial["problem_seed"])
    R = random_targets.polar_target(
        rng, trial["width"], trial["angles_radians"], trial["gamma"]
    )
    return R, random_matrices.symmetric(rng, trial["sigma_eigenvalues"])


def descend(trial, A, rules: descent.Rules, *maps) -> dict:
    """One run of gradient descent as JSON-able values.

    Args:
      trial: with R and Sigma.
      A: f64[depth, width, width], the start.
      rules: of the descent.
      maps: the input and the output map, if there are any.
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
    depth = trial.depth
    A = trial.std * rng.standard_normal((depth, trial.width, trial.width))
    if trial.network != RESIDUAL:
        # The matrices of a standard network are W = I + A.
        A = A - np.eye(trial.width)
    best = min((descend(trial, A, rules) for rules in trial.rules), key=_rank)
    # (2.3) promises this for the largest norm of all iterates. That of the recorded
    # ones may be smaller; then more is asked of the run than (2.3) promises.
    promised = descent.guaranteed_decrease(
        depth, best["largest_norm"], min(trial.sigma_eigenvalues), best["learning_rate"]
    )
    bound_v3 = paper.theorem_2_1_bound_v3(trial.gamma, depth)
    bound_iclr2017 = paper.theorem_2_1_bound_iclr2017(trial.gamma, depth)
    measured = best | {
        "promised_decrease_per_update": promised,
        "bound_v3_times_depth": depth * bound_v3,
        "bound_iclr2017_times_depth": depth * bound_iclr2017,
    }
    if trial.network == RESIDUAL:
        least_norm = lower_bound.norm_lower_bound(trial.R, depth)
        measured["least_norm_times_depth"] = depth * least_norm
    return measured


def _rank(done: dict) -> tuple[int, float]:
    """Converged runs come first, by their updates; then the others, by excess risk."""
    return (0, done["updates"]) if done["converged"] else (1, done["excess_risk"])


def measure_stuck(trial, key) -> dict:
    """One run, from zero or with a cure, and what the theory predicts from zero."""
    A, maps = _start_and_maps(trial, generator(key))
    R = trial.R
    rate = descent.largest_stable_learning_rate(R, trial.Sigma, trial.depth, *maps)
    (rules,) = trial.rules
    done = descend(trial, A, dataclasses.replace(rules, learning_rate=rate), *maps)
    eigenvalues = np.linalg.eigvals(R)
    negative = eigenvalues[(eigenvalues.imag == 0) & (eigenvalues.real < 0)].real
    distance_to_edge = _falling_eigenvalue(
        largest_modulus=np.max(-negative, initial=0.0),
        depth=trial.depth,
        rate=rate,
        updates=done["updates"],
    )
    return done | {
        "predicted_stall_excess_risk": float(np.sum(negative**2)),
        "predicted_distance_to_edge": distance_to_edge,
    }


def _falling_eigenvalue(
    *, largest_modulus: float, depth: int, rate: float, updates: int
) -> float:
    """The equal layers' eigenvalue w for a negative eigenvalue lambda of R.

    From zero, where w = 1, it follows ``w' = -2 |lambda| w^(l-1)`` while w^l is small
    compared with |lambda|. So it falls towards 0 by a power law:

        w(t) = (1 + 2 |lambda| (l - 2) t)^(-1 / (l - 2)),   t = rate * updates.

    Args:
      largest_modulus: |lambda| of the negative eigenvalue that falls fastest.
      depth: l, at least 3.
      rate: the learning rate.
      updates: of gradient descent.
    """
    growth = 1 + 2 * largest_modulus * (depth - 2) * rate * updates
    return float(growth ** (-1 / (depth - 2)))


def _start_and_maps(trial, rng) -> tuple[np.ndarray, tuple]:
    """The first weights, and the input and output map, if there are any."""
    A = np.zeros((trial.depth, trial.width, trial.width))
    match trial.start:
        case "zero":
            return A, ()
        case "factorization":
            A = np.asarray(factorization.factorize(trial.R, trial.depth, "polar"))
            return A + trial.noise_std * rng.standard_normal(A.shape), ()
        case "last_layer_minus_identity":
            A[-1] = -np.eye(trial.width)  # zero-asymmetric, Wu et al. 2019
            return A, ()
        case "gaussian_maps":
            return A, descent.gaussian_maps(rng, len(trial.R), trial.width)
        case "modified_identity_maps":
            return A, descent.modified_identity_maps(len(trial.R))
    raise ValueError(f"there is no start {trial.start!r}")


def measure_noise(trial, key) -> dict:
    """All noise sizes and draws for one target and depth, as lists [size][draw]."""
    rng = generator(key)
    (rules,) = trial.rules
    sizes = (len(trial.noise_stds), trial.draws)
    weights = (trial.depth, *trial.R.shape)
    noise = rng.standard_normal((*sizes, *weights))
    noise *= np.reshape(trial.noise_stds, (-1, 1, 1, 1, 1))
    ends = descent.descend_many(noise.reshape(-1, *weights), trial.R, rules)
    measured = {name: values.reshape(sizes).tolist() for name, values in ends.items()}
    return {"learning_rate": rules.learning_rate, **measured}


MEASURES = {
    "depth": measure_depth,
    "stuck_targets": measure_stuck,
    "noise": measure_noise,
}
