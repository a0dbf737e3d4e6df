"""Section 5: is there a Theorem 2.2 for residual blocks with one ReLU, h + V ReLU(U h +
s)?

Command: python -m experiments.relu --config=:search
Hardware and time: one CPU core, about two minutes for the six variants, half of it for
training, and up to a minute more the first time, for compiling.

The experiment tests the literal analogue: every critical point of small norm is a
global minimum. Targets come from a teacher in the ball ``|||theta||| <= tau < 1``. For
N1 to N16 see docs/theory/relu.md.

* origin (N1, N2): zero weights are a critical point of every net, and not optimal.
  Expected: the gradient is exactly 0, and the steepest second-order descent agrees with
  the formula.
* dead_units (N6 to N8): with biases, every ball holds open sets of critical points:
  nets without a live unit. Expected: the share of Gaussian nets that are dead is p^{l
  k}.
* search: bad critical points and proved local minima away from the origin; see
  `relu_search`.
* gradient_ratio (N12): what is left of eq. (2.3), a bound on the gradient where a
  block's features are independent. Expected: the bound is never violated and holds with
  equality at V = 0.
* training (N16): starts from which gradient flow of one block provably stays in the
  ball and reaches 0; see `relu_training`. Expected: no certified problem breaks a
  promise.
* noise: gradient descent from exactly zero never moves. Expected from small Gaussian
  weights: at width 1, 40 % of the starts become optimal (f <= 1e-9 f(0)) and 40 %
  stall; at width 16, 30 % become optimal, none stalls, and the others are unfinished.

Verdicts: counterexample for the first three, holds for gradient_ratio and training,
reproduced for noise. One record can refute the literal analogue. Without one it is
undecided, and also if the numbers contradict what is proved, because then they cannot
be relied on.
"""

import collections
import dataclasses
import functools
import types

import jax
import numpy as np

from experiments import relu_search, relu_training, run
from experiments.run.measuring import generator
from experiments.run.settings import configs
from experiments.run.trials import each
from experiments.run.verdicts import (
    joined,
    largest,
    reproduced,
    total,
    under_attack,
    where,
)
from identity_matters.relu import (
    critical_points,
    feature_bound,
    model,
    origin,
    problems,
)
from identity_matters.report.records import rows

_LAWS = ("gaussian", "no bias", "s >= 0")

_SETTINGS = {
    "origin": {
        **relu_search.PROBLEMS,
        "pairs": 8,  # the sample is this many x and their negatives, so n is twice this
        # (depth, width, lifted width d, bias)
        "nets": ((1, 2, 2, False), (3, 2, 2, True), (2, 4, 4, False), (2, 4, 4, True)),
        "problems": 8,  # for each of nets
        "escape_starts": 200,  # starts of the power iteration for the steepest descent
        "step_size": 1e-4,  # of the difference quotients
        # largest relative error of a difference quotient; O(step_size^2)
        "form_tolerance": 1e-5,
    },
    "dead_units": {
        # (depth, width, d); the data are -1 and 1 for d = 1, points on a circle for d =
        # 2.
        "nets": (
            (1, 1, 1),
            (1, 2, 1),
            (2, 1, 1),
            (2, 2, 1),
            (1, 1, 2),
            (1, 2, 2),
            (2, 1, 2),
        ),
        "laws": _LAWS,
        "circle_points": 64,
        "samples": 20_000,  # random nets for each of nets and laws
        # deviation of Gaussian weights; the share does not depend on it
        "scale_of_weights": 0.01,
        "deviations": 4.5,  # binomial standard deviations that a share may be off
    },
    "search": relu_search.SETTINGS,
    "gradient_ratio": {
        **relu_search.PROBLEMS,
        "pairs": 2,  # so that width 8 has independent features
        # (depth, width, lifted width d, bias)
        "nets": ((1, 2, 2, False), (1, 2, 2, True), (1, 8, 2, True), (3, 8, 4, True)),
        "norms": (1e-3, 1e-2, 0.1, 0.3, 0.9),
        "samples": 200,  # random nets for each of norms
        "searched": 16,  # how many of them start a search
        "steps": 300,  # updates of projected Adam
        "learning_rate": 0.1,  # of the first step, in units of the norm; decays to 0
        "tight_size": 0.1,  # square root of the risk where the bound is tight
        "rounding": 1e-9,  # by how much right over left may exceed 1
    },
    "noise": {
        **relu_search.PROBLEMS,
        "pairs": 8,  # the sample is this many x and their negatives, so n is twice this
        "teacher_norm": 0.7,
        "teacher_width": 1,
        "depths": (1, 2),
        "widths": (1, 4, 16),
        "biases": (False, True),
        "scales": (0.0, 1e-6, 1e-3, 1e-1),  # standard deviations of the Gaussian start
        "starts": 24,  # for each scale; each start has its own teacher
        "learning_rate": 0.3,  # the same for every update
        "records": 100,  # points of the risk curve
        "updates_per_record": 40,
        "optimal_share": relu_search.OPTIMAL_SHARE,
        # Stalled: not optimal, and ||grad f||^2 is at most this times f: at that pace,
        # training as long again would lower f by a millionth.
        "stalled_ratio": 1e-9,
        # share of noisy starts at the largest width that must halve f
        "least_halved_share": 0.9,
    },
}

_SETTINGS["training"] = relu_training.SETTINGS
VARIANTS = tuple(_SETTINGS)
get_config = configs(_SETTINGS)


def trials(*, variant: str, **settings) -> list[dict]:
    """The trials of one variant; "measured" says what is measured in each."""
    if variant == "search":
        return relu_search.trials(**settings)
    if variant == "training":
        return relu_training.trials(**settings)
    measured = {"origin": "at_origin", "dead_units": "dead"}.get(variant, variant)
    if variant in ("origin", "gradient_ratio"):
        return relu_search.each_net(settings, "depth width lifted_width bias", measured)
    several = {"nets": "depth width width_in", "laws": "law"}
    if variant == "noise":
        settings["lifted_width"] = settings["width_in"]
        several = {"biases": "bias", "depths": "depth", "widths": "width"}
    return each(settings, several, measured=measured)


def build(*, measured: str, **trial) -> types.SimpleNamespace:
    """The trial with its `problems.Setting` and the nets' shape; ValueError for a bad
    setting.
    """
    if trial.get("law", "gaussian") not in _LAWS:
        raise ValueError(f"laws must be among {_LAWS}, got {trial['law']!r}")
    if measured == "dead" and trial["width_in"] > 2:
        raise ValueError(f"d of nets must be 1 or 2, got {trial['width_in']}")
    if measured == "training":
        relu_training.check(**trial)
    elif "teacher_width" in trial:
        names = [field.name for field in dataclasses.fields(problems.Setting)]
        trial["setting"] = problems.Setting(**{name: trial[name] for name in names})
        trial["shape"] = trial["depth"], trial["width"], trial["lifted_width"]
    return types.SimpleNamespace(**trial)


def at_origin(trial, key) -> dict:
    """Gradient, second-order form and steepest descent at zero weights."""
    rng = generator(key)
    count, step, bias = trial.problems, trial.step_size, trial.bias
    sample, _ = problems.realizable(rng, count, trial.setting)
    others = model.random_blocks(rng, np.ones(count), *trial.shape, bias)
    curvatures, forms, steepest = [], [], []
    for index in range(count):
        problem = problems.member(sample, index)
        curvature, w = origin.escape_curvature(problem, bias, rng, trial.escape_starts)
        curvatures.append(curvature)
        steepest.append(origin.escape_direction(w, problem, trial.depth, trial.width))
        forms.append(origin.second_order_form(problems.member(others, index), problem))
    steepest = jax.tree.map(lambda *parts: np.stack(parts), *steepest)
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


def dead(trial, key) -> dict:
    """How many random nets are strictly dead, and bounds on the expected share."""
    rng = generator(key)
    count, d = trial.samples, trial.width_in
    angle = 2 * np.pi * np.arange(trial.circle_points) / trial.circle_points
    x = (
        np.stack([np.cos(angle), np.sin(angle)], axis=1)
        if d == 2
        else np.array([[1.0], [-1.0]])
    )
    problem = problems.plain_problem(x, rng.standard_normal(x.shape))
    blocks = _gaussian(rng, trial.scale_of_weights, count, trial.depth, trial.width, d)
    least = largest = 0.0
    if trial.law == "no bias":
        blocks = blocks._replace(s=None)
    elif trial.law == "s >= 0":
        blocks = blocks._replace(s=np.abs(blocks.s))
    else:
        # The bounds belong to balls around and inside the hull of x, which are equal
        # for d = 1.
        inner = 1.0 if d == 1 else float(np.cos(np.pi / len(x)))
        shares = (
            critical_points.dead_share_on_ball(d, radius) for radius in (1.0, inner)
        )
        least, largest = (share ** (trial.depth * trial.width) for share in shares)
    return {
        "dead": int(np.asarray(critical_points.strictly_dead(blocks, problem)).sum()),
        "least_expected_share": least,
        "largest_expected_share": largest,
    }


def _gaussian(
    rng, scale: float, count: int, depth: int, width: int, d: int
) -> model.Blocks:
    shapes = (depth, width, d), (depth, d, width), (depth, width)
    return model.Blocks(
        *(scale * rng.standard_normal((count, *shape)) for shape in shapes)
    )


def gradient_ratio(trial, key) -> dict:
    """The feature bound on random nets, in a search that attacks it, and where it is
    tight.
    """
    rng = generator(key)
    sample, _ = problems.realizable(rng, trial.samples, trial.setting)
    measured, bound = collections.defaultdict(list), 0.0
    for norm in trial.norms:
        norms = np.full(trial.samples, norm)
        blocks = model.random_blocks(rng, norms, *trial.shape, trial.bias)
        found = jax.vmap(feature_bound.bound_and_squared_gradient)(blocks, sample)
        right, left, value = map(np.asarray, found)
        # what right / left is where left = 0
        at_rest = np.where(right > 0, np.inf, 0.0)
        over = np.divide(right, left, out=at_rest, where=left > 0)
        bound = max(bound, float(over.max()))
        measured["least_ratio"].append(float((left / value).min()))
        measured["median_ratio"].append(float(np.median(left / value)))
        some = jax.tree.map(
            lambda part: np.asarray(part)[: trial.searched], (blocks, sample)
        )
        options = {"steps": trial.steps, "learning_rate": trial.learning_rate}
        search = functools.partial(feature_bound.search, *some, norm, **options)
        measured["searched_ratio"].append(float(search(objective="ratio").min()))
        if trial.width >= 2 * trial.pairs:
            bound = max(bound, float(1 / search(objective="slack").min()))
    tight = [_tight_ratio(rng, trial, norm) for norm in trial.norms]
    return {
        **measured,
        "largest_right_over_left": bound,
        "tight_right_over_left": tight,
    }


def _tight_ratio(rng, trial, norm: float) -> float | None:
    """Right over left at V = 0 with equal blocks and errors along the last singular
    vector.
    """
    if trial.width < 2 * trial.pairs:
        return None
    samples, _ = problems.realizable(rng, trial.samples, trial.setting)
    one = model.random_blocks(
        rng, np.full(trial.samples, norm), 1, *trial.shape[1:], trial.bias
    )
    nets = jax.tree.map(lambda part: np.repeat(part, trial.depth, axis=1), one)
    nets = nets._replace(V=np.zeros_like(nets.V))
    # If no unit is active on an example, both sides are 0: take the net with the
    # largest factor.
    best = int(np.argmax(jax.vmap(feature_bound.coefficient)(nets, samples)))
    blocks, problem = problems.member((nets, samples), best)
    problem = feature_bound.tight_problem(blocks, problem, trial.tight_size)
    right, left, _ = feature_bound.bound_and_squared_gradient(blocks, problem)
    return float(right / left)


def noise(trial, key) -> dict:
    """Gradient descent from Gaussian weights of each scale, all scales in one batch."""
    rng = generator(key)
    scales = trial.scales
    sample, _ = problems.realizable(rng, trial.starts, trial.setting)
    start = _gaussian(rng, 1.0, trial.starts, *trial.shape)
    if not trial.bias:
        start = start._replace(s=None)
    batch = jax.tree.map(lambda part: np.concatenate([part] * len(scales)), sample)
    nets = jax.tree.map(
        lambda w: np.concatenate([scale * w for scale in scales]), start
    )
    length = {"records": trial.records, "updates_per_record": trial.updates_per_record}
    _, numbers = model.gradient_descent(
        nets, batch, learning_rate=trial.learning_rate, **length
    )

    def by_scale(values):
        return np.asarray(values).reshape(
            len(scales), trial.starts, *np.shape(values)[1:]
        )

    risks = np.asarray(numbers["curve"])
    share = by_scale(risks / origin.risk_at_origin(batch)[:, None])
    if not np.isfinite(share).all():
        raise run.DivergedError(
            f"diverged at learning rate {trial.learning_rate}; lower it"
        )
    stalled = (
        np.asarray(numbers["squared_gradient"]) <= trial.stalled_ratio * risks[:, -1]
    )
    halved = (share <= 0.5).any(axis=2)
    updates = np.argmax(share <= 0.5, axis=2) * trial.updates_per_record
    to_half = [some[ok] for some, ok in zip(updates, halved, strict=True)]
    return {
        "final_risk_share": [relu_search.short(row) for row in share[:, :, -1]],
        "stalled": by_scale(stalled).tolist(),
        "halved_share": halved.mean(axis=1).tolist(),
        "median_updates_to_half": [
            float(np.median(n)) if len(n) else None for n in to_half
        ],
        "largest_travelled": by_scale(numbers["travelled"]).max(axis=1).tolist(),
    }


def _origin_verdict(settings: dict, records: list[dict]) -> run.Verdict:
    nets = where(records, measured="at_origin")
    predicted = joined(nets, "escape_curvature")
    curvature_errors = np.abs(joined(nets, "measured_curvature") / predicted - 1)
    form_errors = joined(nets, "form_error") / predicted
    metrics = {
        "problems": len(predicted),
        "largest_gradient_entry": largest(nets, "largest_gradient_entry"),
        "least_risk": float(joined(nets, "risk").min()),
        "largest_autodiff_hessian_entry": largest(
            nets, "largest_autodiff_hessian_entry"
        ),
        "least_escape_curvature": float(predicted.min()),
        "largest_relative_error_of_the_escape_curvature": float(curvature_errors.max()),
        "largest_relative_error_of_the_form": float(form_errors.max()),
    }
    found = metrics["largest_gradient_entry"] == 0 and metrics["least_risk"] > 0
    as_proved = max(*curvature_errors, *form_errors) <= settings["form_tolerance"]
    return run.Verdict(
        "nonlinear-conjecture", metrics, under_attack(found and as_proved)
    )


def _dead_verdict(settings: dict, records: list[dict]) -> run.Verdict:
    gaussian = where(records, law="gaussian")
    others = [record for record in records if record["law"] != "gaussian"]
    shares = [record["dead"] / record["samples"] for record in gaussian]
    off = []
    for share, record in zip(shares, gaussian, strict=True):
        low, high = record["least_expected_share"], record["largest_expected_share"]
        deviation = np.sqrt(high * (1 - high) / record["samples"])
        off.append(max(low - share, share - high, 0.0) / deviation)
    metrics = {
        "gaussian_nets": total(gaussian, "samples"),
        "dead_gaussian_nets": total(gaussian, "dead"),
        "largest_deviations_from_the_formula": float(max(off, default=0.0)),
        "nets_without_negative_biases": total(others, "samples"),
        "dead_nets_without_negative_biases": total(others, "dead"),
    }
    found = metrics["dead_gaussian_nets"] > 0
    as_proved = metrics["largest_deviations_from_the_formula"] <= settings["deviations"]
    as_proved = as_proved and metrics["dead_nets_without_negative_biases"] == 0
    return run.Verdict(
        "nonlinear-away-from-origin", metrics, under_attack(found and as_proved)
    )


def _ratio_verdict(settings: dict, records: list[dict]) -> run.Verdict:
    tight = [
        r
        for record in records
        for r in record["tight_right_over_left"]
        if r is not None
    ]
    most = max([largest(records, "largest_right_over_left"), *tight])
    metrics = {
        "nets": sum(record["samples"] * len(record["norms"]) for record in records),
        "largest_right_over_left": most,
        "least_tight_right_over_left": min(tight, default=None),
    }
    broken = most > 1 + settings["rounding"]
    is_tight = bool(tight) and min(tight) >= 1 - settings["rounding"]
    return run.Verdict("independent-features", metrics, under_attack(broken, is_tight))


def _noise_verdict(settings: dict, records: list[dict]) -> run.Verdict:
    by_scale = rows(records, "width scale=scales halved_share largest_travelled")
    starts = rows(records, "width scale=scales final_risk_share stalled")
    from_zero = where(by_scale, scale=0)
    metrics = {"largest_step_from_zero": largest(from_zero, "largest_travelled")}
    for width in sorted({record["width"] for record in records}):
        of_width = (where(some, width=width) for some in (by_scale, starts))
        noisy, ends = ([row for row in own if row["scale"] != 0] for own in of_width)
        optimal = joined(ends, "final_risk_share") <= settings["optimal_share"]
        stalled = ~optimal & joined(ends, "stalled").astype(bool)
        metrics |= {
            f"starts_at_width_{width}": len(optimal),
            f"halved_share_at_width_{width}": float(
                joined(noisy, "halved_share").mean()
            ),
            f"optimal_share_at_width_{width}": float(optimal.mean()),
            f"stalled_share_at_width_{width}": float(stalled.mean()),
            f"unfinished_share_at_width_{width}": float((~optimal & ~stalled).mean()),
        }
    halved = metrics[f"halved_share_at_width_{width}"] >= settings["least_halved_share"]
    return run.Verdict(
        "nonlinear-noise",
        metrics,
        reproduced(halved and metrics["largest_step_from_zero"] == 0),
    )


MEASURES = {
    "at_origin": at_origin,
    "dead": dead,
    "search": relu_search.search,
    "linear_control": relu_search.linear_control,
    "gradient_ratio": gradient_ratio,
    "noise": noise,
    "training": relu_training.train,
}
VERDICTS = {
    "origin": _origin_verdict,
    "dead_units": _dead_verdict,
    "search": relu_search.verdict,
    "gradient_ratio": _ratio_verdict,
    "noise": _noise_verdict,
    "training": relu_training.verdict,
}
EXPERIMENT = run.Experiment(
    name="relu",
    module=__name__,
    trials=trials,
    measure=MEASURES,
    verdict=VERDICTS,
    build=build,
    kind_field="measured",
    signed=("scales", "output_norms"),
)

if __name__ == "__main__":
    run.main(EXPERIMENT)
