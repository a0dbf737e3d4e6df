"""Nets at zero weights, dead nets, the gradient's bound, and descent from noise.

`relu_search` and `relu_training` measure the other two variants.
"""

import collections
import dataclasses
import functools
import types
from collections.abc import Callable

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

LAWS = ("gaussian", "no bias", "s >= 0")


def build(*, measured: str, **trial) -> types.SimpleNamespace:
    """The trial with its `problems.Setting` and the nets' shape.

    Raises:
      ValueError: a setting cannot be used.
    """
    built = types.SimpleNamespace(**trial)
    if trial.get("law", "gaussian") not in LAWS:
        raise ValueError(f"laws must be among {LAWS}, got {trial['law']!r}")
    if measured == "dead" and trial["width_in"] > 2:
        raise ValueError(f"d of nets must be 1 or 2, got {trial['width_in']}")
    if measured == "training":
        relu_training.check(**trial)
    elif "teacher_width" in trial:
        names = [field.name for field in dataclasses.fields(problems.Setting)]
        built.setting = problems.Setting(**{name: trial[name] for name in names})
        built.shape = (trial["depth"], trial["width"], trial["lifted_width"])
    return built


def _random_blocks(trial, rng, norms: np.ndarray) -> model.Blocks:
    """Random nets of the trial's shape, one of each of these norms."""
    depth, width, lifted_width = trial.shape
    return model.random_blocks(rng, norms, depth, width, lifted_width, trial.bias)


def at_origin(trial, key) -> dict:
    """Gradient, second-order form and steepest descent at zero weights."""
    rng = generator(key)
    count = trial.problems
    step = trial.step_size
    sample, _ = problems.realizable(rng, count, trial.setting)
    others = _random_blocks(trial, rng, np.ones(count))
    steepest, curvatures, forms = _directions(trial, rng, sample, others)
    # Nets at zero, one step along the steepest direction, and one step along another.
    nets = jax.tree.map(
        lambda s, o: np.concatenate([np.zeros_like(s), step * s, step * o]),
        steepest,
        others,
    )
    batch = jax.tree.map(lambda part: np.concatenate([part] * 3), sample)
    risks, gradient = jax.vmap(model.risk_and_gradient)(nets, batch)
    zero, along, other = np.asarray(risks).reshape(3, count)
    entries = [abs(part[:count]).max() for part in jax.tree.leaves(gradient)]
    hessian_entry = origin.largest_autodiff_hessian_entry(
        *problems.member((nets, sample), 0)
    )
    return {
        "risk": zero.tolist(),
        "largest_gradient_entry": float(max(entries)),
        "largest_autodiff_hessian_entry": hessian_entry,
        "escape_curvature": curvatures,
        "measured_curvature": ((zero - along) / step**2).tolist(),
        "form_error": np.abs((other - zero) / step**2 - forms).tolist(),
    }


def _directions(trial, rng, sample, others) -> tuple[model.Blocks, list, list]:
    """The steepest second-order descent of each problem, and two of its numbers.

    Returns:
      The directions; the curvatures along them; and the second-order forms of `others`.
    """
    steepest = []
    curvatures = []
    forms = []
    for index in range(trial.problems):
        problem = problems.member(sample, index)
        curvature, w = origin.escape_curvature(
            problem, trial.bias, rng, trial.escape_starts
        )
        curvatures.append(curvature)
        steepest.append(origin.escape_direction(w, problem, trial.depth, trial.width))
        forms.append(origin.second_order_form(problems.member(others, index), problem))
    stacked = jax.tree.map(lambda *parts: np.stack(parts), *steepest)
    return stacked, curvatures, forms


def dead(trial, key) -> dict:
    """How many random nets are strictly dead, and bounds on the expected share."""
    rng = generator(key)
    d = trial.width_in
    x = _points_on_sphere(trial)
    problem = problems.plain_problem(x, rng.standard_normal(x.shape))
    blocks = _gaussian(
        rng,
        trial.scale_of_weights,
        count=trial.samples,
        depth=trial.depth,
        width=trial.width,
        d=d,
    )
    least_share = 0.0
    largest_share = 0.0
    if trial.law == "no bias":
        blocks = blocks._replace(s=None)
    elif trial.law == "s >= 0":
        blocks = blocks._replace(s=np.abs(np.asarray(blocks.s)))
    else:
        # The bounds belong to balls around and inside the hull of x, which are equal
        # for d = 1.
        inner = 1.0 if d == 1 else float(np.cos(np.pi / len(x)))
        units = trial.depth * trial.width
        least_share = critical_points.dead_share_on_ball(d, 1.0) ** units
        largest_share = critical_points.dead_share_on_ball(d, inner) ** units
    is_dead = np.asarray(critical_points.strictly_dead(blocks, problem))
    return {
        "dead": int(is_dead.sum()),
        "least_expected_share": least_share,
        "largest_expected_share": largest_share,
    }


def _points_on_sphere(trial) -> np.ndarray:
    """-1 and 1 for d = 1, evenly spaced points on the circle for d = 2: f64[n, d]."""
    if trial.width_in == 1:
        return np.array([[1.0], [-1.0]])
    angle = 2 * np.pi * np.arange(trial.circle_points) / trial.circle_points
    return np.stack([np.cos(angle), np.sin(angle)], axis=1)


def _gaussian(
    rng: np.random.Generator,
    scale: float,
    *,
    count: int,
    depth: int,
    width: int,
    d: int,
) -> model.Blocks:
    """Blocks of `count` nets with Gaussian weights of this deviation."""
    return model.Blocks(
        U=scale * rng.standard_normal((count, depth, width, d)),
        V=scale * rng.standard_normal((count, depth, d, width)),
        s=scale * rng.standard_normal((count, depth, width)),
    )


def gradient_ratio(trial, key) -> dict:
    """The feature bound on random nets, under attack, and where it is tight."""
    rng = generator(key)
    sample, _ = problems.realizable(rng, trial.samples, trial.setting)
    measured = collections.defaultdict(list)
    largest_over = 0.0
    for norm in trial.norms:
        norms = np.full(trial.samples, norm)
        blocks = _random_blocks(trial, rng, norms)
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
        if trial.width >= 2 * trial.pairs:
            slack = float(search(objective="slack").min())
            largest_over = max(largest_over, 1 / slack)
    return {
        **measured,
        "largest_right_over_left": largest_over,
        "tight_right_over_left": [
            _tight_ratio(rng, trial, norm) for norm in trial.norms
        ],
    }


def _search_from(trial, blocks, sample, norm: float) -> Callable[..., np.ndarray]:
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


def _tight_ratio(rng, trial, norm: float) -> float | None:
    """Right over left at V = 0, equal blocks, errors along the last singular vector."""
    if trial.width < 2 * trial.pairs:
        return None
    samples, _ = problems.realizable(rng, trial.samples, trial.setting)
    _, width, lifted_width = trial.shape
    of_one_block = model.random_blocks(
        rng, np.full(trial.samples, norm), 1, width, lifted_width, trial.bias
    )
    nets = jax.tree.map(lambda part: np.repeat(part, trial.depth, axis=1), of_one_block)
    nets = nets._replace(V=np.zeros_like(nets.V))
    # If no unit is active on an example, both sides are 0:
    # take the net with the largest factor.
    best = int(np.argmax(jax.vmap(feature_bound.coefficient)(nets, samples)))
    blocks, problem = problems.member((nets, samples), best)
    problem = feature_bound.tight_problem(blocks, problem, trial.tight_size)
    right, left, _ = feature_bound.bound_and_squared_gradient(blocks, problem)
    return float(right / left)


def noise(trial, key) -> dict:
    """Gradient descent from Gaussian weights of each scale, all scales in one batch."""
    rng = generator(key)
    nets, batch = _noisy_starts(trial, rng)
    _, numbers = model.gradient_descent(
        nets,
        batch,
        learning_rate=trial.learning_rate,
        records=trial.records,
        updates_per_record=trial.updates_per_record,
    )

    def by_scale(values) -> np.ndarray:
        values = np.asarray(values)
        return values.reshape(len(trial.scales), trial.starts, *values.shape[1:])

    risks = np.asarray(numbers["curve"])
    share = by_scale(risks / origin.risk_at_origin(batch)[:, None])
    if not np.isfinite(share).all():
        raise run.DivergedError(
            f"diverged at learning rate {trial.learning_rate}; lower it"
        )
    squared_gradient = np.asarray(numbers["squared_gradient"])
    stalled = squared_gradient <= trial.stalled_ratio * risks[:, -1]
    halved = np.asarray(share <= 0.5).any(axis=2)
    updates_to_half = np.argmax(share <= 0.5, axis=2) * trial.updates_per_record
    medians = [
        float(np.median(updates[is_halved])) if is_halved.any() else None
        for updates, is_halved in zip(updates_to_half, np.asarray(halved), strict=True)
    ]
    return {
        "final_risk_share": [relu_search.short(row) for row in share[:, :, -1]],
        "stalled": by_scale(stalled).tolist(),
        "halved_share": halved.mean(axis=1).tolist(),
        "median_updates_to_half": medians,
        "largest_travelled": by_scale(numbers["travelled"]).max(axis=1).tolist(),
    }


def _noisy_starts(trial, rng) -> tuple[model.Blocks, model.Problem]:
    """The same starts at every scale, scale by scale, and their problems."""
    sample, _ = problems.realizable(rng, trial.starts, trial.setting)
    depth, width, lifted_width = trial.shape
    start = _gaussian(
        rng, 1.0, count=trial.starts, depth=depth, width=width, d=lifted_width
    )
    if not trial.bias:
        start = start._replace(s=None)
    scales = trial.scales
    batch = jax.tree.map(lambda part: np.concatenate([part] * len(scales)), sample)
    nets = jax.tree.map(
        lambda w: np.concatenate([scale * w for scale in scales]), start
    )
    return nets, batch


MEASURES = {
    "at_origin": at_origin,
    "dead": dead,
    "search": relu_search.search,
    "linear_control": relu_search.linear_control,
    "gradient_ratio": gradient_ratio,
    "noise": noise,
    "training": relu_training.train,
}
