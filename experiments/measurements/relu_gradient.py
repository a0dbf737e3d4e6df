"""The bound on the gradient of ReLU nets, under attack, and where it is tight (N12)."""

import dataclasses
from typing import NamedTuple

import jax
import numpy as np

from experiments.measurements.relu_nets import random_blocks
from experiments.run.measuring import generator
from identity_matters.relu import feature_bound, model, problems
from identity_matters.relu.problems import Setting


class RatioTrial(NamedTuple):
    """What `gradient_ratio` reads.

    Attributes:
      setting: how problems and their teachers are drawn.
      width: k of the nets.
      norms: of the nets; each is measured by itself.
      samples: nets of each norm, with a problem each.
      searched: how many of them start a search for small gradients.
      steps, learning_rate: of the search; see `feature_bound.search`.
      tight_size: square root of the risk where the bound is tight.
    """

    setting: Setting
    width: int
    norms: list[float]
    samples: int
    searched: int
    steps: int
    learning_rate: float
    tight_size: float

    @property
    def can_have_independent_features(self) -> bool:
        """Whether a block has a unit for each example: else the bound is 0."""
        return self.width >= 2 * self.setting.pairs


class _AtNorm(NamedTuple):
    """What is measured of the nets of one norm. Left and right are those of the bound.

    Attributes:
      least_ratio, median_ratio: of ||grad f||^2 / f, over the random nets.
      searched_ratio: the least ||grad f||^2 / f that a search meets.
      largest_right_over_left: over the random nets and the searches.
    """

    least_ratio: float
    median_ratio: float
    searched_ratio: float
    largest_right_over_left: float


def gradient_ratio(trial: RatioTrial, key: jax.Array) -> dict:
    """The feature bound on random nets, under attack, and where it is tight (N12).

    Lists have an entry for each norm.
    """
    rng = generator(key)
    sample, _ = problems.realizable(rng, trial.samples, trial.setting)
    by_norm = [_measure_norm(trial, rng, sample, norm) for norm in trial.norms]
    return {
        "least_ratio": [at_norm.least_ratio for at_norm in by_norm],
        "median_ratio": [at_norm.median_ratio for at_norm in by_norm],
        "searched_ratio": [at_norm.searched_ratio for at_norm in by_norm],
        "largest_right_over_left": float(
            np.max([at_norm.largest_right_over_left for at_norm in by_norm], initial=0)
        ),
        "tight_right_over_left": [
            _tight_ratio(trial, rng, norm) for norm in trial.norms
        ],
    }


def _measure_norm(
    trial: RatioTrial, rng: np.random.Generator, sample: model.Problem, norm: float
) -> _AtNorm:
    """Random nets of one norm, one for each problem, and searches from the first."""
    norms = np.full(trial.samples, norm)
    blocks = random_blocks(rng, norms, trial.setting, trial.width)
    bound, squared_gradient, risk = map(
        np.asarray, jax.vmap(feature_bound.bound_and_squared_gradient)(blocks, sample)
    )
    ratios = squared_gradient / risk
    largest_right_over_left = float(_right_over_left(bound, squared_gradient).max())
    start, problem = jax.tree.map(
        lambda part: np.asarray(part)[: trial.searched], (blocks, sample)
    )
    searched_ratios = feature_bound.search(
        start,
        problem,
        norm,
        objective="ratio",
        steps=trial.steps,
        learning_rate=trial.learning_rate,
    )
    if trial.can_have_independent_features:
        left_over_right = feature_bound.search(
            start,
            problem,
            norm,
            objective="slack",
            steps=trial.steps,
            learning_rate=trial.learning_rate,
        )
        # Unlike `max`, this is NaN if one of the two is.
        largest_right_over_left = float(
            np.maximum(largest_right_over_left, 1 / float(left_over_right.min()))
        )
    return _AtNorm(
        least_ratio=float(ratios.min()),
        median_ratio=float(np.median(ratios)),
        searched_ratio=float(searched_ratios.min()),
        largest_right_over_left=largest_right_over_left,
    )


def _right_over_left(right: np.ndarray, left: np.ndarray) -> np.ndarray:
    """right / left, f64[m]; where left = 0 it is inf, or 0 if right is 0, too."""
    where_left_is_0 = np.where(right > 0, np.inf, 0.0)
    return np.divide(right, left, out=where_left_is_0, where=left > 0)


def _tight_ratio(
    trial: RatioTrial, rng: np.random.Generator, norm: float
) -> float | None:
    """Right over left at V = 0, equal blocks, errors along the last singular vector."""
    if not trial.can_have_independent_features:
        return None
    sample, _ = problems.realizable(rng, trial.samples, trial.setting)
    of_one_block = random_blocks(
        rng,
        np.full(trial.samples, norm),
        dataclasses.replace(trial.setting, depth=1),
        trial.width,
    )
    nets = jax.tree.map(
        lambda part: np.repeat(part, trial.setting.depth, axis=1), of_one_block
    )
    nets = nets._replace(V=np.zeros_like(nets.V))
    # If no unit is active on an example, both sides are 0:
    # take the net with the largest factor.
    best = int(np.argmax(jax.vmap(feature_bound.coefficient)(nets, sample)))
    blocks, problem = problems.member((nets, sample), best)
    problem = feature_bound.tight_problem(blocks, problem, trial.tight_size)
    right, left, _ = feature_bound.bound_and_squared_gradient(blocks, problem)
    return float(right / left)
