"""The bound on the gradient of ReLU nets, under attack, and where it is tight (N12)."""

import collections
import dataclasses
import functools
from collections.abc import Callable
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


def gradient_ratio(trial: RatioTrial, key: jax.Array) -> dict:
    """The feature bound on random nets, under attack, and where it is tight (N12).

    Lists have an entry for each norm.
    """
    rng = generator(key)
    sample, _ = problems.realizable(rng, trial.samples, trial.setting)
    measured = collections.defaultdict(list)
    largest_over = 0.0
    for norm in trial.norms:
        norms = np.full(trial.samples, norm)
        blocks = random_blocks(rng, norms, trial.setting, trial.width)
        right, left, value = map(
            np.asarray,
            jax.vmap(feature_bound.bound_and_squared_gradient)(blocks, sample),
        )
        # what right / left is where left = 0
        at_rest = np.where(right > 0, np.inf, 0.0)
        over = np.divide(right, left, out=at_rest, where=left > 0)
        largest_over = max(largest_over, float(over.max()))
        measured["least_ratio"].append(float((left / value).min()))
        measured["median_ratio"].append(float(np.median(left / value)))
        search = _search_from(trial, blocks, sample, norm)
        measured["searched_ratio"].append(float(search(objective="ratio").min()))
        if trial.can_have_independent_features:
            slack = float(search(objective="slack").min())
            largest_over = max(largest_over, 1 / slack)
    return {
        **measured,
        "largest_right_over_left": largest_over,
        "tight_right_over_left": [
            _tight_ratio(trial, rng, norm) for norm in trial.norms
        ],
    }


def _search_from(
    trial: RatioTrial, blocks: model.Blocks, sample: model.Problem, norm: float
) -> Callable[..., np.ndarray]:
    """`feature_bound.search` from the first of these nets; it takes the objective."""
    first_blocks, first_sample = jax.tree.map(
        lambda part: np.asarray(part)[: trial.searched], (blocks, sample)
    )
    return functools.partial(
        feature_bound.search,
        first_blocks,
        first_sample,
        norm,
        steps=trial.steps,
        learning_rate=trial.learning_rate,
    )


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
