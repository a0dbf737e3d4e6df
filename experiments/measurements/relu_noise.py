"""Gradient descent of ReLU nets from Gaussian noise."""

from typing import Any, NamedTuple

import jax
import numpy as np

from experiments import run
from experiments.measurements.relu_nets import (
    gaussian_blocks,
    repeated_in_turn,
    rounded,
)
from experiments.run.measuring import generator
from identity_matters.relu import model, origin, problems
from identity_matters.relu.problems import Setting

_HALF = 0.5  # of f(0)


class NoiseTrial(NamedTuple):
    """What `noise` reads.

    Attributes:
      setting: how problems and their teachers are drawn.
      width: k of the nets.
      scales: deviations of the Gaussian weights at the start, 0 among them.
      starts: for each scale; each has a problem of its own, the same at every scale.
      learning_rate: the same for every update.
      records: points of the risk curve after the start.
      updates_per_record: of gradient descent.
      stalled_ratio: a net with ||grad f||^2 up to this times f has stalled.
    """

    setting: Setting
    width: int
    scales: list[float]
    starts: int
    learning_rate: float
    records: int
    updates_per_record: int
    stalled_ratio: float


def noise(trial: NoiseTrial, key: jax.Array) -> dict:
    """Gradient descent from Gaussian weights of each scale, all scales in one batch.

    Lists have an entry for each scale; "final_risk_share" and "stalled" have a list of
    all starts there.
    """
    nets, batch = _noisy_starts(trial, generator(key))
    _, numbers = model.gradient_descent(
        nets,
        batch,
        learning_rate=trial.learning_rate,
        records=trial.records,
        updates_per_record=trial.updates_per_record,
    )
    risks = np.asarray(numbers["curve"])
    shares = _by_scale(trial, risks / origin.risk_at_origin(batch)[:, None])
    if not np.isfinite(shares).all():
        raise run.DivergedError(
            f"diverged at learning rate {trial.learning_rate}; lower it"
        )
    squared_gradient = np.asarray(numbers["squared_gradient"])
    stalled = squared_gradient <= trial.stalled_ratio * risks[:, -1]
    travelled = _by_scale(trial, numbers["travelled"])
    return {
        "final_risk_share": [rounded(row) for row in shares[:, :, -1]],
        "stalled": _by_scale(trial, stalled).tolist(),
        "halved_share": (shares <= _HALF).any(axis=2).mean(axis=1).tolist(),
        "median_updates_to_half": [
            _median_updates_to_half(trial, shares_of_scale)
            for shares_of_scale in shares
        ],
        "largest_travelled": travelled.max(axis=1).tolist(),
    }


def _noisy_starts(
    trial: NoiseTrial, rng: np.random.Generator
) -> tuple[model.Blocks, model.Problem]:
    """The same starts at every scale, scale by scale, and their problems."""
    setting = trial.setting
    sample, _ = problems.realizable(rng, trial.starts, setting)
    start = gaussian_blocks(
        rng,
        1.0,
        count=trial.starts,
        depth=setting.depth,
        width=trial.width,
        d=setting.lifted_width,
    )
    if not setting.bias:
        start = start._replace(s=None)
    nets = jax.tree.map(
        lambda w: np.concatenate([scale * w for scale in trial.scales]), start
    )
    return nets, repeated_in_turn(sample, len(trial.scales))


def _by_scale(trial: NoiseTrial, values: Any) -> np.ndarray:
    """[m, ...] of the batch as [scales, starts, ...], where m is scales * starts."""
    values = np.asarray(values)
    return values.reshape(len(trial.scales), trial.starts, *values.shape[1:])


def _median_updates_to_half(trial: NoiseTrial, shares: np.ndarray) -> float | None:
    """After how many updates f is at most f(0) / 2, the median over starts.

    Args:
      trial: says how many updates lie between two records.
      shares: f / f(0) of one scale, f64[starts, records + 1].
    Returns:
      The median over the starts that come so far; None if none does.
    """
    is_half = shares <= _HALF
    updates = np.argmax(is_half, axis=1) * trial.updates_per_record
    comes_so_far = is_half.any(axis=1)
    return float(np.median(updates[comes_so_far])) if comes_so_far.any() else None
