"""Minibatch descent on linear nets: proved bounds of the risk and of staying inside.

Random R near the identity, three depths, three batch sizes, many runs each, from zero
weights. S5 (docs/theory/sampled.md) bounds the mean risk of the runs that have not left
the ball, after each number of updates, and S6 the share of runs that leave it. The runs
are NumPy's, with the gradients of the formula.

Command: python -m experiments.sampled_bound
Hardware: one CPU core. Time: 8 s. float64. The criteria were written before the first
run. Expected: no violation, and at the last update the bound is at most 3 times the
mean risk for all nine pairs of depth and batch size.
"""

import math

from experiments import run
from experiments.run.settings import configs
from experiments.run.trials import each
from experiments.run.verdicts import largest, least, total, under_attack, where

VARIANTS = {"grid": "three depths, three batch sizes"}
_GRID = {
    "depths": (2, 8, 32),  # layers
    "batches_of_examples": (8, 32, 128),
    "width": 8,  # d
    "start": 0.005,  # ||(I - R) Sigma^{1/2}||_F, the root of f(0) - C
    # the least and the largest of Sigma, evenly spaced between
    "sigma_eigenvalues": (0.9, 1.1),
    "noise_std": 0.0007,  # of the labels
    "rate_times_depth": 0.025,  # the learning rate times l
    "radius": 0.05,  # b: the ball is |||A||| <= b / l
    "updates": 200,
    "runs": 100,  # for each depth and batch size
    # The mean over runs may exceed the bound by this many of its standard errors: with
    # 201 updates in nine cells, chance alone exceeds 5 in fewer than one experiment of
    # a thousand.
    "standard_errors": 5.0,
    # most by which the bound of the last risk may exceed the mean
    "largest_factor": 3.0,
}
get_config = configs({"grid": _GRID})


def trials(*, variant: str, **settings) -> list[dict]:
    """One for each depth and batch size."""
    several = {"depths": "depth", "batches_of_examples": "batch_examples"}
    return each(settings, several, measured=variant)


def verdict(settings: dict, records: list[dict]) -> run.Verdict:
    """Holds iff nothing exceeds its bound, and the last bound is within the factor."""
    certified = where(records, certified=True)
    metrics: dict = {"cells": len(records), "certified_cells": len(certified)}
    if len(certified) < len(records):
        return run.Verdict("sampled-bound", metrics, "undecided")
    bound_over_risk = [record["risk_bound"] / record["risk"] for record in records]
    start_over_risk = [record["start_risk"] / record["risk"] for record in records]
    predicted_over_risk = [
        record["predicted_risk"] / record["risk"] for record in records
    ]
    too_many_left = [_too_many_left(settings, record) for record in records]
    metrics |= {
        "runs": settings["runs"] * len(records),
        "left_the_ball": total(records, "left"),
        "cells_with_too_many_left": sum(too_many_left),
        "largest_failure_probability": largest(records, "failure_probability"),
        "largest_norm_times_depth": largest(records, "largest_norm_times_depth"),
        "risks_above_the_bound": total(records, "violations"),
        "least_bound_over_risk": min(bound_over_risk),
        "largest_bound_over_risk": max(bound_over_risk),
        "least_start_over_risk": min(start_over_risk),
        "least_predicted_over_risk": min(predicted_over_risk),
        "largest_predicted_over_risk": max(predicted_over_risk),
        "least_depth_layers": least(records, "depth"),
        "largest_depth_layers": largest(records, "depth"),
    }
    refuted = metrics["risks_above_the_bound"] > 0 or any(too_many_left)
    is_close = max(bound_over_risk) <= settings["largest_factor"]
    return run.Verdict("sampled-bound", metrics, under_attack(refuted, is_close))


def _too_many_left(settings: dict, record: dict) -> bool:
    """Whether more runs have left the ball than S6 allows.

    Their number may exceed its mean by `standard_errors` binomial standard errors.
    """
    runs = settings["runs"]
    p = min(record["failure_probability"], 1.0)
    standard_error = math.sqrt(runs * p * (1 - p))
    return record["left"] > runs * p + settings["standard_errors"] * standard_error


EXPERIMENT = run.Experiment(
    name="sampled_bound",
    module=__name__,
    trials=trials,
    measurements="experiments.measurements.sampled_bound",
    verdict=verdict,
)

if __name__ == "__main__":
    run.main(EXPERIMENT)
