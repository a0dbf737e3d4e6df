"""Does training stay near the identity, and how long does leaving a saddle take?

(V1) to (V6) of docs/theory/convergence.md answer both questions.

* inside: random problems that `will_converge` certifies. At every update, gradient
  descent with the certified step size must stay within the certified radius and lower
  the risk as fast as certified. Further trials, whose settings begin with "beyond_", go
  far beyond what is certified and count how often descent converges.
* escape: how many updates descent from noise of several sizes takes to reach a scalar
  or diagonal target, against the number that the integral (V5) predicts.

Command: python -m experiments.convergence --config=:inside
Hardware and time: 2 CPU cores, 15 to 25 s per variant. float64.
Expected: no certified problem fails, and descent still converges far beyond the
certificate. Predicted and measured updates agree to a few percent. With noise 0.01, a
negative target is predicted to take about 400 updates at 2 layers and 300,000 at 6; a
positive one is predicted to take 110 to 190 at every depth.
"""

import math

import numpy as np

from experiments import run
from experiments.run.settings import configs, require_between
from experiments.run.trials import each
from experiments.run.verdicts import joined, reproduced, total, under_attack, where

_SETTINGS = {
    "inside": {
        "depths": (1, 2, 4, 8, 32),  # l, each combined with every width
        "widths": (1, 2, 4),  # d
        "problems": 670,  # problems per depth and width: 10,050 in all
        "updates": 100,  # of gradient descent on each problem
        # s_0 over the largest certified s_0, uniform on this range
        "shares": (0.05, 0.999),
        "sigma_condition_log10": 3.0,  # log10 of the largest condition number of Sigma
        # percent of the Sigma with d > 1 that have an eigenvalue 0
        "singular_percent": 25.0,
        # (f - C) / sigma at zero weights, which is s_0^2; (V4) ends at 0.1
        "beyond_excess_over_sigma": (0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0),
        "beyond_shapes": ((2, 2), (8, 2), (2, 4), (8, 4)),  # pairs (l, d)
        "beyond_problems": 40,  # problems per excess and shape
        # like sigma_condition_log10; no Sigma is singular
        "beyond_condition_log10": 1.0,
        "beyond_updates": 2000,  # with step size 1 / (4 l ||Sigma|| (1 + s_0)^2)
        "beyond_converged": 1e-6,  # converged: f - C is at most this times f(0) - C
    },
    "escape": {
        "depths": (2, 3, 4, 5, 6),  # l
        # standard deviation of w around 1; clipped at 3 deviations
        "noises": (0.01, 0.05, 0.2),
        "draws": 32,  # starts per depth, target and noise
        # diagonals of R
        "targets": ((-0.5,), (-2.0,), (-0.5, -1.5, 0.8), (0.5,), (2.0,)),
        # step size times l sigma (1 + max |r|)^2, to follow the flow
        "learning_rate_scale": 0.1,
        "risk": 1e-6,  # an entry has reached its target once its f - C is at most this
        # starts predicted to need more than half of this are not run
        "max_updates": 3_000_000,
        # largest ratio of prediction and measurement, either way; above 1
        "largest_factor": 2.0,
    },
}
# The verdict asks that at most this share of the starts is not run.
_MOST_NOT_RUN_SHARE = 0.05
VARIANTS = tuple(_SETTINGS)
get_config = configs(_SETTINGS)


def trials(*, variant: str, **settings) -> list[dict]:
    """One trial for each depth and width, and for each target or shape beyond."""
    if variant == "escape":
        require_between(1, math.inf, largest_factor=settings["largest_factor"])
        several = {"depths": "depth", "targets": "target"}
        return each(settings, several, question="escape")
    certified = {}
    beyond = {}
    for name, value in settings.items():
        if name.startswith("beyond_"):
            beyond[name.removeprefix("beyond_")] = value
        else:
            certified[name] = value
    return [
        *each(certified, {"depths": "depth", "widths": "width"}, question="certified"),
        *each(beyond, {"shapes": "depth width"}, question="beyond"),
    ]


def _inside(settings: dict, records: list[dict]) -> run.Verdict:
    """Every certified problem stays in the ball and falls as fast as is promised.

    Beyond the certificate nothing is promised. There the metrics say how often descent
    converges.
    """
    certified = where(records, question="certified")
    beyond = where(records, question="beyond")
    converged = np.mean([record["converged_percent"] for record in beyond], axis=0)
    up_to_1 = np.array(settings["beyond_excess_over_sigma"]) <= 1
    metrics = {
        "certified_problems": total(certified, "certified"),
        "left_the_ball": total(certified, "left_the_ball"),
        "fell_too_slowly": total(certified, "fell_too_slowly"),
        "least_converged_percent_up_to_1_sigma": min(
            converged[up_to_1].tolist(), default=None
        ),
    }
    failed = metrics["left_the_ball"] + metrics["fell_too_slowly"]
    # Problems are drawn below the largest size that is certified.
    all_certified = metrics["certified_problems"] == total(certified, "problems")
    verdict = under_attack(failed > 0, all_certified)
    return run.Verdict("iterates-stay-inside", metrics, verdict)


def _escape(settings: dict, records: list[dict]) -> run.Verdict:
    """The predicted times are as measured up to a factor, and no start stays.

    A start with too long a predicted time is not run, which could hide that the
    prediction is wrong. So nearly all starts must be run. The metrics
    "median_predicted_updates_..." are of all starts, also of those that are not run.
    """
    by_noise = [
        {**record, **entry} for record in records for entry in record["by_noise"]
    ]
    ratios = joined(by_noise, "predicted_over_measured").tolist()
    least_ratio = min(ratios, default=math.nan)
    largest_ratio = max(ratios, default=math.nan)
    shallowest = min(settings["depths"])
    deepest = max(settings["depths"])
    quietest = where(by_noise, noise=min(settings["noises"]))
    metrics = {
        "runs": len(ratios),
        "not_run": total(by_noise, "not_run"),
        "not_reached": total(by_noise, "not_reached"),
        "least_predicted_over_measured": least_ratio,
        "largest_predicted_over_measured": largest_ratio,
        "median_predicted_updates_negative_shallowest": _median_predicted_updates(
            quietest, shallowest, negative=True
        ),
        "median_predicted_updates_negative_deepest": _median_predicted_updates(
            quietest, deepest, negative=True
        ),
        "median_predicted_updates_positive_deepest": _median_predicted_updates(
            quietest, deepest, negative=False
        ),
    }
    factor = settings["largest_factor"]
    within = 1 / factor <= least_ratio and largest_ratio <= factor
    draws = metrics["runs"] + metrics["not_run"]
    nearly_all_run = metrics["not_run"] <= _MOST_NOT_RUN_SHARE * draws
    verdict = reproduced(within and nearly_all_run and not metrics["not_reached"])
    return run.Verdict("time-to-escape", metrics, verdict)


def _median_predicted_updates(
    records: list[dict], depth: int, *, negative: bool
) -> float:
    """The median of the predicted updates over scalar targets of one sign."""
    scalar = [
        record
        for record in where(records, depth=depth)
        if len(record["target"]) == 1 and (record["target"][0] < 0) == negative
    ]
    return float(np.median(joined(scalar, "predicted_updates")))


VERDICTS = {
    "inside": _inside,
    "escape": _escape,
}
EXPERIMENT = run.Experiment(
    name="convergence",
    module=__name__,
    trials=trials,
    measurements="experiments.measurements.convergence",
    verdict=VERDICTS,
    kind_field="question",
    signed=(
        "targets",
        "sigma_condition_log10",
        "singular_percent",
        "beyond_condition_log10",
    ),
)

if __name__ == "__main__":
    run.main(EXPERIMENT)
