"""Nets at zero weights, dead nets, the gradient's bound, and descent from noise.

Each measurement takes a key and a trial of a type of its own, which lists the settings
that it reads; `experiments.relu` has their values. `relu_search` and `relu_training`
measure the other two variants.

A batch of m nets is a `model.Blocks` whose arrays have a leading axis of m; a batch of
m problems is such a `model.Problem`. Net i of a batch belongs to problem i. The axes
that follow are those of `identity_matters.relu.model`:

    symbol   setting        what it counts
    l        depth          blocks of a net
    k        width          units of a block
    d        lifted_width   coordinates that the blocks read and write
    d_in     width_in       inputs and outputs of a net
    n        2 pairs        examples of a problem
"""

import collections
import dataclasses
import functools
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax
import numpy as np

from experiments import run
from experiments.measurements import relu_search, relu_training
from experiments.run.measuring import generator
from identity_matters.relu import (
    critical_points,
    feature_bound,
    model,
    origin,
    problems,
)
from identity_matters.relu.problems import Setting

LAWS = ("gaussian", "no bias", "s >= 0")


def _random_blocks(
    rng: np.random.Generator, norms: np.ndarray, setting: Setting, width: int
) -> model.Blocks:
    """A batch of random nets, one of each norm.

    Args:
      rng: draws them.
      norms: f64[m], of all parts of a net.
      setting: `depth`, `lifted_width` and `bias` of the nets are those of the teachers.
      width: k.
    """
    return model.random_blocks(
        rng,
        norms,
        depth=setting.depth,
        width=width,
        dimension=setting.lifted_width,
        bias=setting.bias,
    )


# At zero weights


class OriginTrial(NamedTuple):
    """What `at_origin` reads.

    Attributes:
      setting: how problems and their teachers are drawn.
      width: k of the nets.
      problems: how many are drawn.
      escape_starts: starts of the power iteration for a problem's steepest descent.
      step_size: of the difference quotients.
    """

    setting: Setting
    width: int
    problems: int
    escape_starts: int
    step_size: float


def at_origin(trial: OriginTrial, key: jax.Array) -> dict:
    """Gradient, second-order form and steepest descent at zero weights (N1, N2).

    Lists have an entry for each problem.
    """
    rng = generator(key)
    step = trial.step_size
    sample, _ = problems.realizable(rng, trial.problems, trial.setting)
    others = _random_blocks(rng, np.ones(trial.problems), trial.setting, trial.width)
    steepest, curvatures = _steepest_descents(trial, rng, sample)
    # Three nets for each problem: at zero, one step along its steepest descent, and one
    # step along another direction.
    nets = jax.tree.map(
        lambda along, other: np.concatenate(
            [np.zeros_like(along), step * along, step * other]
        ),
        steepest,
        others,
    )
    batch = _repeated_in_turn(sample, 3)
    risks, gradients = jax.vmap(model.risk_and_gradient)(nets, batch)
    at_zero, along, other = np.asarray(risks).reshape(3, trial.problems)
    gradient_entries_at_zero = [
        abs(part[: trial.problems]).max() for part in jax.tree.leaves(gradients)
    ]
    hessian_entry = origin.largest_autodiff_hessian_entry(
        *problems.member((nets, sample), 0)
    )
    forms = [
        origin.second_order_form(*problems.member((others, sample), index))
        for index in range(trial.problems)
    ]
    return {
        "risk": at_zero.tolist(),
        "largest_gradient_entry": float(max(gradient_entries_at_zero)),
        "largest_autodiff_hessian_entry": hessian_entry,
        "escape_curvature": curvatures,
        "measured_curvature": ((at_zero - along) / step**2).tolist(),
        "form_error": np.abs((other - at_zero) / step**2 - forms).tolist(),
    }


def _steepest_descents(
    trial: OriginTrial, rng: np.random.Generator, sample: model.Problem
) -> tuple[model.Blocks, list[float]]:
    """Each problem's direction of steepest second-order descent, and its curvature."""
    directions = []
    curvatures = []
    for index in range(trial.problems):
        problem = problems.member(sample, index)
        curvature, w = origin.escape_curvature(
            problem, trial.setting.bias, rng, trial.escape_starts
        )
        direction = origin.escape_direction(
            w, problem, trial.setting.depth, trial.width
        )
        directions.append(direction)
        curvatures.append(curvature)
    return jax.tree.map(lambda *parts: np.stack(parts), *directions), curvatures


def _repeated_in_turn(batch: Any, times: int) -> Any:
    """Members 0, ..., m - 1 of a batch, and the same again, so many times."""
    return jax.tree.map(lambda part: np.concatenate([part] * times), batch)


# Dead nets


class DeadTrial(NamedTuple):
    """What `dead` reads. Its nets read and write d = `width_in` coordinates.

    Attributes:
      depth, width: l and k of the nets.
      width_in: d, which is 1 or 2.
      law: of the biases, one of `LAWS`.
      samples: how many nets are drawn.
      scale_of_weights: their standard deviation.
      circle_points: examples for d = 2.
    """

    depth: int
    width: int
    width_in: int
    law: str
    samples: int
    scale_of_weights: float
    circle_points: int


def dead(trial: DeadTrial, key: jax.Array) -> dict:
    """How many random nets are strictly dead, and bounds on the expected share."""
    rng = generator(key)
    x = _points_on_sphere(trial)
    problem = problems.plain_problem(x, rng.standard_normal(x.shape))
    blocks = _gaussian(
        rng,
        trial.scale_of_weights,
        count=trial.samples,
        depth=trial.depth,
        width=trial.width,
        d=trial.width_in,
    )
    least_share = 0.0
    largest_share = 0.0
    match trial.law:
        case "no bias":
            blocks = blocks._replace(s=None)
        case "s >= 0":
            blocks = blocks._replace(s=np.abs(np.asarray(blocks.s)))
        case _:
            least_share, largest_share = _dead_shares(trial)
    is_dead = np.asarray(critical_points.strictly_dead(blocks, problem))
    return {
        "dead": int(is_dead.sum()),
        "least_expected_share": least_share,
        "largest_expected_share": largest_share,
    }


def _points_on_sphere(trial: DeadTrial) -> np.ndarray:
    """-1 and 1 for d = 1, evenly spaced points on the circle for d = 2: f64[n, d]."""
    if trial.width_in == 1:
        return np.array([[1.0], [-1.0]])
    angle = 2 * np.pi * np.arange(trial.circle_points) / trial.circle_points
    return np.stack([np.cos(angle), np.sin(angle)], axis=1)


def _dead_shares(trial: DeadTrial) -> tuple[float, float]:
    """Bounds on the share of Gaussian nets that are strictly dead: p^(l k) (N7).

    p, the share of dead units, is known for data that fill a ball. The ball around the
    examples and the ball inside their hull bound it. For d = 1 the two are the same.
    """
    d = trial.width_in
    inner_radius = 1.0 if d == 1 else float(np.cos(np.pi / trial.circle_points))
    units = trial.depth * trial.width
    least_share = critical_points.dead_share_on_ball(d, 1.0) ** units
    largest_share = critical_points.dead_share_on_ball(d, inner_radius) ** units
    return least_share, largest_share


def _gaussian(
    rng: np.random.Generator,
    scale: float,
    *,
    count: int,
    depth: int,
    width: int,
    d: int,
) -> model.Blocks:
    """A batch of `count` nets with Gaussian weights of this deviation."""
    return model.Blocks(
        U=scale * rng.standard_normal((count, depth, width, d)),
        V=scale * rng.standard_normal((count, depth, d, width)),
        s=scale * rng.standard_normal((count, depth, width)),
    )


# The bound on the gradient


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
        blocks = _random_blocks(rng, norms, trial.setting, trial.width)
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
    of_one_block = model.random_blocks(
        rng,
        np.full(trial.samples, norm),
        depth=1,
        width=trial.width,
        dimension=trial.setting.lifted_width,
        bias=trial.setting.bias,
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


# Descent from noise


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
        "final_risk_share": [relu_search.short(row) for row in shares[:, :, -1]],
        "stalled": _by_scale(trial, stalled).tolist(),
        "halved_share": (shares <= 0.5).any(axis=2).mean(axis=1).tolist(),
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
    start = _gaussian(
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
    return nets, _repeated_in_turn(sample, len(trial.scales))


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
    is_half = shares <= 0.5
    updates = np.argmax(is_half, axis=1) * trial.updates_per_record
    comes_so_far = is_half.any(axis=1)
    return float(np.median(updates[comes_so_far])) if comes_so_far.any() else None


# Kind of a trial -> what measures it, and what that reads.
MEASURES = {
    "at_origin": at_origin,
    "dead": dead,
    "search": relu_search.search,
    "linear_control": relu_search.linear_control,
    "gradient_ratio": gradient_ratio,
    "noise": noise,
    "training": relu_training.train,
}
_TRIALS: dict[str, Any] = {
    "at_origin": OriginTrial,
    "dead": DeadTrial,
    "search": relu_search.SearchTrial,
    "linear_control": relu_search.ControlTrial,
    "gradient_ratio": RatioTrial,
    "noise": NoiseTrial,
    "training": relu_training.TrainingTrial,
}


def build(*, measured: str, **settings) -> tuple:
    """What the measurement of this kind reads, one of `_TRIALS`.

    Its field `setting`, if there is one, is made of the settings of that name's fields.

    Raises:
      ValueError: a setting cannot be used.
    """
    if measured == "dead":
        _check_dead(**settings)
    if measured == "training":
        relu_training.check(**settings)
    trial_type = _TRIALS[measured]
    if "setting" in trial_type._fields:
        of_problems = [field.name for field in dataclasses.fields(Setting)]
        settings["setting"] = Setting(**_only(settings, of_problems))
    return trial_type(**_only(settings, trial_type._fields))


def _check_dead(*, law: str, width_in: int, **_) -> None:
    """ValueError for an unknown law of the biases, or d above 2."""
    if law not in LAWS:
        raise ValueError(f"laws must be among {LAWS}, got {law!r}")
    if width_in > 2:
        raise ValueError(f"d of nets must be 1 or 2, got {width_in}")


def _only(settings: dict, names: Iterable[str]) -> dict:
    """The settings of these names."""
    return {name: settings[name] for name in names}
