"""Gradient flow of one ReLU block from certified starts, against its promises."""

from typing import NamedTuple

import jax
import numpy as np

from experiments.run.measuring import generator
from identity_matters import random_matrices
from identity_matters.relu import flow, model, training
from identity_matters.relu.model import Blocks, Problem

ERRORS = ("gaussian", "teacher", "one-sided")


def check(*, errors: str, examples: int, width_in: int, **_) -> None:
    """ValueError for errors of an unknown kind, or a block narrower than the sample."""
    if errors not in ERRORS:
        raise ValueError(f"errors must be among {ERRORS}, got {errors!r}")
    if examples > 2 * width_in:
        got = f"got {examples} > {2 * width_in}"
        raise ValueError(
            f"nets need at most 2 d examples, for independent features, {got}"
        )


class TrainingTrial(NamedTuple):
    """What `flow_and_promises` reads; `experiments.relu_training` has the values.

    Attributes:
      examples: n.
      width_in: d, of inputs and blocks; a block has 2 d units.
      errors: the direction of the errors at the start, one of `ERRORS`.
      problems: how many are drawn.
      input_norm: ||U|| at the start.
      output_norms: ||V|| at the start is drawn from these.
      size_shares: the range of the errors' size, over the largest that is certified.
      teacher_width: units of the net whose outputs are the errors "teacher".
      one_sided_spread: deviation of the errors "one-sided", around 1.
      final_share: f(t) / f(0) that is promised at the end of the flow.
      steps: Runge-Kutta steps until then.
      largest_step: times the largest curvature; a longer step is refused.
    """

    examples: int
    width_in: int
    errors: str
    problems: int
    input_norm: float
    output_norms: list[float]
    size_shares: list[float]
    teacher_width: int
    one_sided_spread: float
    final_share: float
    steps: int
    largest_step: float


def flow_and_promises(trial: TrainingTrial, key: jax.Array) -> dict:
    """The promises for random problems, and what the flow does (N16).

    Except for the curves, lists have an entry for each problem.
    """
    rng = generator(key)
    pairs = [_certified_problem(trial, rng) for _ in range(trial.problems)]
    blocks, sample = jax.tree.map(lambda *parts: np.stack(parts), *pairs)
    promised = _stacked_promises(pairs)
    time = np.log(1 / trial.final_share) / promised["rate"]
    _require_small_steps(trial, pairs, time / trial.steps)
    end, curves = flow.flow(blocks, sample, time, steps=trial.steps)
    curves = {name: np.asarray(curve) for name, curve in curves.items()}
    share = curves["risk"] / curves["risk"][:, :1]
    promised_share = trial.final_share ** np.linspace(0, 1, trial.steps + 1)
    labels = np.mean(np.sum(sample.y**2, axis=2), axis=1)
    travel = {
        name: curves[name].max(axis=1) / promised[name]
        for name in ("input_travel", "output_travel")
    }
    return {
        "risk_share_of_labels": (curves["risk"][:, 0] / labels).tolist(),
        "risk_over_promise": (share / promised_share).max(axis=1).tolist(),
        "final_risk_share": share[:, -1].tolist(),
        "norm_over_promise": (model.max_norm(end) / promised["norm"]).tolist(),
        "promised_norm": promised["norm"].tolist(),
        "input_travel_over_promise": travel["input_travel"].tolist(),
        "output_travel_over_promise": travel["output_travel"].tolist(),
        # Over the time until the promised end, from 0 to 1.
        "largest_curve": share.max(axis=0).tolist(),
        "median_curve": np.median(share, axis=0).tolist(),
    }


def _stacked_promises(pairs: list[tuple[Blocks, Problem]]) -> dict[str, np.ndarray]:
    """The certified promise of each problem, as one array for each of its fields."""
    promises = []
    for blocks, problem in pairs:
        promise = training.certify_training(blocks, problem)
        if promise is None:
            raise ArithmeticError("a problem of less than certified size is refused")
        promises.append(promise)
    return {
        name: np.array([getattr(promise, name) for promise in promises])
        for name in promises[0]._fields
    }


def _certified_problem(
    trial: TrainingTrial, rng: np.random.Generator
) -> tuple[Blocks, Problem]:
    """A start and a sample; the errors have a random share of the certified size."""
    blocks, unlabelled = _start(trial, rng)
    predictions = np.asarray(model.forward(blocks, unlabelled)[0])
    errors = _errors(trial, rng, np.asarray(unlabelled.x))
    direction = unlabelled._replace(y=predictions + errors)
    largest_size = training.largest_certified_size(blocks, direction)
    least_share, largest_share = trial.size_shares
    size = largest_size * rng.uniform(least_share, largest_share)
    return blocks, unlabelled._replace(y=predictions + size * errors)


def _start(trial: TrainingTrial, rng: np.random.Generator) -> tuple[Blocks, Problem]:
    """One block at the start, and inputs of length 1 with labels 0, f64[n, 1]."""
    n = trial.examples
    d = trial.width_in
    x = rng.standard_normal((n, d))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    Q = random_matrices.orthogonal(rng, (), d, d)
    U = trial.input_norm * np.concatenate([Q, -Q]) / np.sqrt(2)
    V = model.random_layers(rng, np.ones(1), depth=1, rows=d, columns=2 * d)[0]
    V = V * rng.choice(trial.output_norms)
    output_map = rng.standard_normal((1, d))
    output_map /= np.linalg.norm(output_map)
    unlabelled = Problem(x, y=np.zeros((n, 1)), A=np.eye(d), B=output_map)
    return Blocks(U[None], V, None), unlabelled


def _errors(
    trial: TrainingTrial, rng: np.random.Generator, x: np.ndarray
) -> np.ndarray:
    """Errors in a random direction, f64[n, 1], not yet of the right size."""
    n, d = x.shape
    if trial.errors == "gaussian":
        return rng.standard_normal((n, 1))
    if trial.errors == "one-sided":
        return 1 + trial.one_sided_spread * rng.standard_normal((n, 1))
    hidden = np.maximum(x @ rng.standard_normal((d, trial.teacher_width)), 0)
    return hidden @ rng.standard_normal((trial.teacher_width, 1))


def _require_small_steps(
    trial: TrainingTrial, pairs: list[tuple[Blocks, Problem]], step_sizes: np.ndarray
) -> None:
    """Refuses step sizes, one for each problem, at which Runge-Kutta may miss the flow.

    Raises:
      ArithmeticError: a curvature is too large for a step.
    """
    for (blocks, problem), step_size in zip(pairs, step_sizes, strict=True):
        _, _, pre = model.forward(blocks, problem)
        largest_feature = np.linalg.norm(np.maximum(np.asarray(pre[0]), 0), 2)
        # The curvature at the start, and a quarter more: during training the features
        # and V grow little.
        curvature = 1.25 * 2 / len(problem.x) * largest_feature**2
        if step_size * curvature > trial.largest_step:
            raise ArithmeticError(
                f"a step of {step_size:.3g} is too long; increase steps"
            )
