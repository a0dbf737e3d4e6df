"""Minibatch descent on random problems, and the certificate of each."""

import math
import types

import numpy as np

from experiments.run.measuring import generator
from identity_matters import random_matrices
from identity_matters.linear import sampled, sampled_bound

CURVE_POINTS = 41  # points of each curve that are kept


def build(**trial) -> types.SimpleNamespace:
    """The trial; the random problem comes with the seed."""
    low, high = trial["sigma_eigenvalues"]
    if not 0 < low <= high:
        raise ValueError(
            f"sigma_eigenvalues must ascend from above 0, got {(low, high)}"
        )
    return types.SimpleNamespace(**trial)


def measure(trial, key) -> dict:
    """Curves of the mean risk over runs, of its bound, and who left the ball."""
    rng = generator(key)
    low, high = trial.sigma_eigenvalues
    eigenvalues = np.linspace(low, high, trial.width)
    problem = _random_problem(trial, rng, eigenvalues)
    descent = {
        "depth": trial.depth,
        "learning_rate": trial.rate_times_depth / trial.depth,
        "batch_examples": trial.batch_examples,
        "updates": trial.updates,
    }
    certificate = sampled_bound.certify(problem, **descent, radius=trial.radius)
    if certificate is None:
        return {"certified": False}
    runs = sampled.descend(rng, problem, **descent, runs=trial.runs)
    outside = np.maximum.accumulate(runs.norm > certificate.norm, axis=1)
    # (f - C) of the runs that have not left the ball,
    # 0 for the others: S5 bounds its mean.
    kept = np.where(outside, 0.0, runs.excess_risk)
    mean = kept.mean(axis=0)
    standard_error = kept.std(axis=0, ddof=1) / math.sqrt(trial.runs)
    bound = certificate.risk(np.arange(trial.updates + 1))
    # Rounding: at the start bound and risk are equal.
    excess = mean - bound * (1 + 1e-9)
    shown = np.unique(np.linspace(0, trial.updates, CURVE_POINTS).astype(int))
    # R is close to I, so all entries of E move
    # at the pace l, as with eigenvalues 1 in S1.
    predicted = sampled_bound.noise_floor(
        np.ones(trial.width),
        eigenvalues,
        depth=trial.depth,
        learning_rate=descent["learning_rate"],
        batch_examples=trial.batch_examples,
        noise_std=trial.noise_std,
    )
    return {
        "certified": True,
        "failure_probability": certificate.failure_probability,
        "left": int(outside[:, -1].sum()),
        "largest_norm_times_depth": float(runs.norm.max() * trial.depth),
        "violations": int(np.sum(excess > trial.standard_errors * standard_error)),
        "start_risk": float(mean[0]),
        "risk": float(mean[-1]),
        "risk_bound": float(bound[-1]),
        "predicted_risk": predicted,
        "curve_updates": shown.tolist(),
        "curve_risk": mean[shown].tolist(),
        "curve_bound": bound[shown].tolist(),
    }


def _random_problem(trial, rng, eigenvalues: np.ndarray) -> sampled.Problem:
    """R in a random direction from I, at the distance "start", and a rotated Sigma."""
    identity = np.eye(trial.width)
    Sigma = random_matrices.symmetric(rng, eigenvalues)
    direction = rng.standard_normal((trial.width, trial.width))
    root = sampled.make_problem(identity, Sigma, trial.noise_std).root
    scale = trial.start / np.linalg.norm(direction @ root)
    return sampled.make_problem(identity + scale * direction, Sigma, trial.noise_std)
