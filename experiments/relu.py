"""Section 5: is there a Theorem 2.2 for residual blocks with one ReLU?

Such a block is h + V ReLU(U h + s).

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
reproduced for noise. One record can refute the literal analogue. Without one the
verdict is undecided. So it is if the numbers contradict what is proved, because then
they cannot be relied on.
"""

from typing import NamedTuple

import numpy as np

from experiments import relu_search, relu_training, run
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

_PARTS_OF_NETS = "depth width lifted_width bias"  # what a trial calls them

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
        # (depth, width, d); the data are -1 and 1
        # for d = 1, points on a circle for d = 2.
        "nets": (
            (1, 1, 1),
            (1, 2, 1),
            (2, 1, 1),
            (2, 2, 1),
            (1, 1, 2),
            (1, 2, 2),
            (2, 1, 2),
        ),
        "laws": ("gaussian", "no bias", "s >= 0"),  # of the biases
        "circle_points": 64,
        "samples": 20_000,  # random nets for each of nets and laws
        # deviation of Gaussian weights; the share does not depend on it
        "scale_of_weights": 0.01,
        "deviations": 4.5,  # binomial standard deviations that a share may be off
    },
    **relu_search.SETTINGS,
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
    **relu_training.SETTINGS,
}
VARIANTS = tuple(_SETTINGS)
get_config = configs(_SETTINGS)


def trials(*, variant: str, **settings) -> list[dict]:
    """The trials of one variant; "measured" says what is measured in each."""
    match variant:
        case "search":
            return relu_search.trials(**settings)
        case "training":
            return relu_training.trials(**settings)
        case "origin":
            return relu_search.each_net(settings, _PARTS_OF_NETS, "at_origin")
        case "gradient_ratio":
            return relu_search.each_net(settings, _PARTS_OF_NETS, "gradient_ratio")
        case "dead_units":
            several = {"nets": "depth width width_in", "laws": "law"}
            return each(settings, several, measured="dead")
        case "noise":
            settings["lifted_width"] = settings["width_in"]
            several = {"biases": "bias", "depths": "depth", "widths": "width"}
            return each(settings, several, measured="noise")
    raise ValueError(f"there is no variant {variant!r}")


def _origin_verdict(settings: dict, records: list[dict]) -> run.Verdict:
    """A counterexample: the gradient is 0 where f is not, and f falls as N2 says."""
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
    is_bad_point = metrics["largest_gradient_entry"] == 0 and metrics["least_risk"] > 0
    as_proved = max(*curvature_errors, *form_errors) <= settings["form_tolerance"]
    return run.Verdict(
        "nonlinear-conjecture", metrics, under_attack(is_bad_point and as_proved)
    )


def _dead_verdict(settings: dict, records: list[dict]) -> run.Verdict:
    """A counterexample: Gaussian nets are dead, as often as N7 says.

    Without negative biases none is, as 0 is inside the hull of the examples (N8).
    """
    gaussian = where(records, law="gaussian")
    others = [record for record in records if record["law"] != "gaussian"]
    deviations = [_deviations_from_the_formula(record) for record in gaussian]
    metrics = {
        "gaussian_nets": total(gaussian, "samples"),
        "dead_gaussian_nets": total(gaussian, "dead"),
        "largest_deviations_from_the_formula": float(max(deviations, default=0.0)),
        "nets_without_negative_biases": total(others, "samples"),
        "dead_nets_without_negative_biases": total(others, "dead"),
    }
    some_are_dead = metrics["dead_gaussian_nets"] > 0
    as_proved = (
        metrics["largest_deviations_from_the_formula"] <= settings["deviations"]
        and metrics["dead_nets_without_negative_biases"] == 0
    )
    return run.Verdict(
        "nonlinear-away-from-origin", metrics, under_attack(some_are_dead and as_proved)
    )


def _deviations_from_the_formula(record: dict) -> float:
    """By how many binomial standard deviations the share of dead nets is off."""
    share = record["dead"] / record["samples"]
    low = record["least_expected_share"]
    high = record["largest_expected_share"]
    deviation = np.sqrt(high * (1 - high) / record["samples"])
    return max(low - share, share - high, 0.0) / deviation


def _ratio_verdict(settings: dict, records: list[dict]) -> run.Verdict:
    """The bound of N12 is never exceeded and holds with equality somewhere."""
    tight_ratios = [
        ratio
        for record in records
        for ratio in record["tight_right_over_left"]
        if ratio is not None
    ]
    most = max([largest(records, "largest_right_over_left"), *tight_ratios])
    metrics = {
        "nets": sum(record["samples"] * len(record["norms"]) for record in records),
        "largest_right_over_left": most,
        "least_tight_right_over_left": min(tight_ratios, default=None),
    }
    rounding = settings["rounding"]
    is_broken = most > 1 + rounding
    is_tight = bool(tight_ratios) and min(tight_ratios) >= 1 - rounding
    return run.Verdict(
        "independent-features", metrics, under_attack(is_broken, is_tight)
    )


def _noise_verdict(settings: dict, records: list[dict]) -> run.Verdict:
    """Descent from zero never moves; at the largest width nearly all others halve f."""
    widths = sorted({record["width"] for record in records})
    by_width = {
        width: _ends_at_noise(where(records, width=width), settings["optimal_share"])
        for width in widths
    }
    steps_from_zero = _values(records, "largest_travelled", from_zero=True).tolist()
    largest_step_from_zero = max(steps_from_zero, default=None)
    metrics = {"largest_step_from_zero": largest_step_from_zero}
    for width, ends in by_width.items():
        for name, value in ends._asdict().items():
            metrics[f"{name}_at_width_{width}"] = value
    holds = (
        by_width[widths[-1]].halved_share >= settings["least_halved_share"]
        and largest_step_from_zero == 0
    )
    return run.Verdict("nonlinear-noise", metrics, reproduced(holds))


class _Ends(NamedTuple):
    """Where descent from noise ends: metrics, whose names the width completes.

    Attributes:
      starts: how many there are.
      halved_share: of the starts that halve f on the way.
      optimal_share: of those that end with an optimal f.
      stalled_share: of those that are not optimal and have stalled.
      unfinished_share: of all others.
    """

    starts: int
    halved_share: float
    optimal_share: float
    stalled_share: float
    unfinished_share: float


def _ends_at_noise(records: list[dict], optimal_at_most: float) -> _Ends:
    """Where descent ends from the starts of these records that are not zero.

    f / f(0) up to `optimal_at_most` is optimal.
    """
    halved_shares = _values(records, "halved_share", from_zero=False)
    risk_shares = _values(records, "final_risk_share", from_zero=False)
    optimal = risk_shares <= optimal_at_most
    stalled = ~optimal & _values(records, "stalled", from_zero=False)
    return _Ends(
        starts=len(optimal),
        halved_share=float(halved_shares.mean()),
        optimal_share=float(optimal.mean()),
        stalled_share=float(stalled.mean()),
        unfinished_share=float((~optimal & ~stalled).mean()),
    )


def _values(records: list[dict], name: str, *, from_zero: bool) -> np.ndarray:
    """A field with an entry for each scale: its values at scale 0, or at all others.

    They are in one flat array.
    """
    of_records = []
    for record in records:
        is_zero = np.array(record["scales"]) == 0
        of_records.append(np.ravel(np.array(record[name])[is_zero == from_zero]))
    return np.concatenate(of_records)


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
    measurements="experiments.measurements.relu",
    verdict=VERDICTS,
    kind_field="measured",
    signed=("scales", "output_norms"),
)

if __name__ == "__main__":
    run.main(EXPERIMENT)
