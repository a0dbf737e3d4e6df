"""Searches for critical points and small gradients, and derivatives at zero weights."""

import types

import jax.numpy as jnp
import numpy as np

from experiments.run.measuring import generator
from experiments.run.settings import require_between
from identity_matters import matrices, random_matrices
from identity_matters.linear import (
    critical_points,
    gradient_bound,
    model,
    random_ball,
    random_targets,
)


def build(**trial) -> types.SimpleNamespace:
    """The trial, with the ranges of its random data.

    Raises:
      ValueError: a setting cannot be used.
    """
    # ||Sigma|| = 1 loses nothing: the scale of the data only rescales f.
    condition = trial["max_condition_log10"]
    data = {"scale_log10": (0.0, 0.0), "max_condition_log10": condition}
    # Raises if the condition number is out of range.
    random_matrices.second_moments(np.random.default_rng(0), 1, trial["width"], **data)
    require_between(0, 1, taus=trial.get("taus", 0.5))
    sizes = trial.get("target_sizes", (0.0,))
    if not sizes or min(sizes) < 0 or max(sizes) > 100:  # exp of it must be finite
        raise ValueError(f"target_sizes must be from 0 to 100, got {sizes}")
    return types.SimpleNamespace(**trial, data=data)


def from_many_starts(trial, key) -> dict:
    """Where searches for critical points end from random starts of given |||A|||.

    The last entry of every list is of the start at the zero map.
    """
    rng = generator(key)
    target_sizes, start_norms = _start_grid(trial)
    count = len(target_sizes)
    # Drawn in the middle of the ball and then scaled, as some starts are outside it.
    half = np.full(count, 0.5)
    A = random_ball.layers(rng, "boundary", half, trial.depth, trial.width)
    A *= (start_norms / half)[:, None, None, None]
    R = random_targets.exponential_targets(rng, target_sizes, trial.width)
    Sigma = random_matrices.second_moments(rng, count, trial.width, **trial.data)
    # The last start is A_i = -I, the zero map,
    # where the search must stay unless depth is 1.
    minus_identity = -np.eye(trial.width) * np.ones((1, trial.depth, 1, 1))
    A = np.concatenate([A, minus_identity])
    R = np.concatenate([R, R[-1:]])
    Sigma = np.concatenate([Sigma, Sigma[-1:]])
    limits = critical_points.find_critical_points(
        _with_zero_layers(A, trial.max_depth),
        R,
        Sigma,
        trial.depth,
        steps=trial.steps,
        gradient_tolerance=trial.gradient_tolerance,
    )
    risk_of_zero_map = np.einsum("nij,njk,nik->n", R, Sigma, R)
    relative_excess = np.asarray(limits["excess"]) / risk_of_zero_map
    norms = matrices.spectral_norms(np.asarray(limits["A"])).max(axis=1)
    return {
        "started_at_norms": [*start_norms.tolist(), 1.0],
        "norms": norms.tolist(),
        "relative_excess": relative_excess.tolist(),
        "gradient_norms": limits["gradient_norm"].tolist(),
    }


def _start_grid(trial) -> tuple[np.ndarray, np.ndarray]:
    """The size of the target and the norm of each start, f64[n] each."""
    sizes, norms = np.meshgrid(
        np.repeat(trial.target_sizes, trial.starts), trial.start_norms
    )
    return np.ravel(sizes), np.ravel(norms)


def _with_zero_layers(A: np.ndarray, depth: int) -> np.ndarray:
    """The nets f64[n, l, d, d] with zero layers up to this depth."""
    return np.pad(A, ((0, 0), (0, depth - A.shape[1]), (0, 0), (0, 0)))


def at_origin(trial, key) -> dict:
    """Gradient and Hessian of the standard and of the residual net at zero weights."""
    rng = generator(key)
    sizes = trial.target_sizes
    R = random_targets.exponential_targets(rng, sizes, trial.width)
    Sigma = random_matrices.second_moments(rng, len(sizes), trial.width, **trial.data)
    zero = np.zeros((trial.depth, trial.width, trial.width))
    # The standard net at W_i = 0 is the residual net at A_i = W_i - I = -I.
    weights = {"standard": zero - np.eye(trial.width), "residual": zero}
    nets = []
    for size, target, moment in zip(sizes, R, Sigma, strict=True):
        for name, A in weights.items():
            excess, gradient = model.excess_risk_and_gradient(A, target, moment)
            hessian = critical_points.risk_hessian(A, target, moment)
            net = {
                "net": name,
                "target_size": float(size),
                "gradient_norm": float(jnp.linalg.norm(gradient)),
                "largest_hessian_entry": float(jnp.abs(hessian).max()),
                "hessian_eigenvalues": np.linalg.eigvalsh(np.asarray(hessian)).tolist(),
                "excess": float(excess),
            }
            nets.append(net)
    return {"nets": nets}


def negative_determinant(trial, key) -> dict:
    """The least ||grad f||_F found over B_tau for det R < 0, against its floor."""
    rng = generator(key)
    shape = (trial.problems, len(trial.taus), trial.starts)
    tau = np.tile(np.repeat(trial.taus, trial.starts), trial.problems)
    R = random_targets.exponential_targets(rng, np.ones(trial.problems), trial.width)
    # Flipping the sign of one output makes the determinant
    # negative and keeps the singular values.
    R[:, 0] *= -1
    Sigma = random_matrices.second_moments(
        rng, trial.problems, trial.width, **trial.data
    )
    A = random_ball.layers(rng, "uniform", tau, trial.depth, trial.width)
    problem = np.repeat(np.arange(trial.problems), len(trial.taus) * trial.starts)
    best, gradient_norm = critical_points.least_gradients(
        _with_zero_layers(A, trial.max_depth),
        R[problem],
        Sigma[problem],
        tau,
        trial.depth,
        steps=trial.steps,
        learning_rate=trial.learning_rate,
    )
    least_norms = np.asarray(gradient_norm).reshape(shape).min(axis=2)
    squared_floors = [
        [
            gradient_bound.squared_gradient_floor(target, moment, trial.depth, radius)
            for radius in trial.taus
        ]
        for target, moment in zip(R, Sigma, strict=True)
    ]
    floors = np.sqrt(squared_floors)
    ratios = least_norms / floors
    norms = matrices.spectral_norms(np.asarray(best)).max(axis=1)
    return {
        "least_gradient_norms": least_norms.tolist(),
        "floors": floors.tolist(),
        "least_over_floor": float(ratios.min()),
        "largest_over_floor": float(ratios.max()),
        "largest_norm_over_tau": float((norms / tau).max()),
    }


MEASURES = {
    "critical_points": from_many_starts,
    "hessian_at_origin": at_origin,
    "negative_determinant": negative_determinant,
}
