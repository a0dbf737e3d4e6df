"""Minibatch descent on random problems, and the certificate of each."""

import math
import types

import numpy as np

from experiments.run.measuring import generator
from identity_matters import random_matrices
from identity_matters.linear import sampled, sampled_bound

CURVE_POINTS = 41  # points of each curve that are kept


def build(**trial) -> types.SimpleNamespace:
    """The trial with its learning rate and the eigenvalues of Sigma, f64[width].

    The random problem comes with the seed.
    """
    low, high = trial["sigma_eigenvalues"]
    if not 0 < low <= high:
        raise ValueError(
            f"sigma_eigenvalues must ascend from above 0, got {(low, high)}"
        )
    built = types.SimpleNamespace(**trial)
    built.learning_rate = built.rate_times_depth / built.depth
    built.eigenvalues = np.linspace(low, high, built.width)
    return built


def measure(trial, key) -> dict:
    """Curves of the mean risk over runs, of its bound, and who left the ball."""
    rng = generator(key)
    problem = _random_problem(trial, rng)
    certificate = _certify(trial, problem)
    if certificate is None:
        return {"certified": False}
    runs = _descend(trial, problem, rng)
    outside = np.maximum.accumulate(runs.norm > certificate.norm, axis=1)
    # f - C of the runs that have not left the ball, 0 of the others:
    # S5 bounds its mean.
    risk_inside = np.where(outside, 0.0, runs.excess_risk)
    mean = risk_inside.mean(axis=0)
    bound = certificate.risk(np.arange(trial.updates + 1))
    return {
        "certified": True,
        "failure_probability": certificate.failure_probability,
        "left": int(outside[:, -1].sum()),
        "largest_norm_times_depth": float(runs.norm.max() * trial.depth),
        "violations": _count_violations(trial, risk_inside, bound),
        "start_risk": float(mean[0]),
        "risk": float(mean[-1]),
        "risk_bound": float(bound[-1]),
        "predicted_risk": _predicted_risk(trial),
        **_kept_curves(mean, bound),
    }


def _certify(trial, problem: sampled.Problem) -> sampled_bound.Certificate | None:
    """The certificate of (S5) and (S6), if there is one."""
    return sampled_bound.certify(
        problem,
        depth=trial.depth,
        learning_rate=trial.learning_rate,
        batch_examples=trial.batch_examples,
        updates=trial.updates,
        radius=trial.radius,
    )


def _descend(trial, problem: sampled.Problem, rng) -> sampled.Descents:
    """Minibatch descent from zero weights, many times."""
    return sampled.descend(
        rng,
        problem,
        depth=trial.depth,
        learning_rate=trial.learning_rate,
        batch_examples=trial.batch_examples,
        updates=trial.updates,
        runs=trial.runs,
    )


def _predicted_risk(trial) -> float:
    """The noise floor (S1).

    R is close to I: all entries of E move at the pace l, as with eigenvalues 1.
    """
    return sampled_bound.noise_floor(
        np.ones(trial.width),
        trial.eigenvalues,
        depth=trial.depth,
        learning_rate=trial.learning_rate,
        batch_examples=trial.batch_examples,
        noise_std=trial.noise_std,
    )


def _kept_curves(mean: np.ndarray, bound: np.ndarray) -> dict:
    """CURVE_POINTS points, from the start to the end, of curves f64[updates + 1]."""
    updates = len(mean) - 1
    points = np.unique(np.linspace(0, updates, CURVE_POINTS).astype(int))
    return {
        "curve_updates": points.tolist(),
        "curve_risk": mean[points].tolist(),
        "curve_bound": bound[points].tolist(),
    }


def _count_violations(trial, risk_inside: np.ndarray, bound: np.ndarray) -> int:
    """After how many updates the mean risk is above its bound, by more than chance.

    Args:
      trial: its `standard_errors` are what chance may do.
      risk_inside: f64[runs, updates + 1].
      bound: f64[updates + 1], of the mean over all runs.
    """
    standard_error = risk_inside.std(axis=0, ddof=1) / math.sqrt(trial.runs)
    # At the start bound and risk are equal up to rounding.
    excess = risk_inside.mean(axis=0) - bound * (1 + 1e-9)
    return int(np.sum(excess > trial.standard_errors * standard_error))


def _random_problem(trial, rng) -> sampled.Problem:
    """R in a random direction from I, at the distance "start", and a rotated Sigma."""
    identity = np.eye(trial.width)
    Sigma = random_matrices.symmetric(rng, trial.eigenvalues)
    direction = rng.standard_normal((trial.width, trial.width))
    root = sampled.make_problem(identity, Sigma, trial.noise_std).root
    scale = trial.start / np.linalg.norm(direction @ root)
    return sampled.make_problem(identity + scale * direction, Sigma, trial.noise_std)
