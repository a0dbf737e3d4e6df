"""Gradient flow of one ReLU block from certified starts: a variant of relu.py.

N16 of docs/theory/relu.md promises that the flow stays in a ball and that f falls at a
stated rate. The errors at the start point in random directions, and their size is drawn
up to the largest that is certified. The blocks start from U = norm (Q, -Q) / sqrt 2
with Q orthogonal, and one output is read. We integrate the flow by Runge-Kutta steps
until the promised f is `final_share` of f(0).

Expected: 336 certified problems a seed. None breaks its promise, and nearly all have a
risk of at least 1e-3 of the labels' mean square. The input weights U travel at most a
fifth of their bound, the output weights V at most three quarters.
"""

import numpy as np

from experiments import run
from experiments.run.trials import each
from experiments.run.verdicts import joined, under_attack

# Fields of records: what was measured, over what was promised.
_OVER_PROMISE = (
    "risk_over_promise",
    "norm_over_promise",
    "input_travel_over_promise",
    "output_travel_over_promise",
)
SETTINGS = {
    "training": {
        "nets": ((16, 64), (20, 64)),  # (examples n, dimension d); blocks are 2 d wide
        # directions of the errors at the start
        "errors": ("gaussian", "teacher", "one-sided"),
        "problems": 56,  # for each of nets and errors
        "input_norm": 0.9,  # ||U|| at the start
        "output_norms": (0.0, 0.02),  # ||V|| at the start; drawn from these
        # range of the errors' size, as a share of the largest certified
        "size_shares": (0.7, 1.0),
        "teacher_width": 4,  # units of the net whose outputs are the errors
        "one_sided_spread": 0.3,  # deviation of one-sided errors, around 1
        "final_share": 1e-3,  # f(t) / f(0) that is promised at the end
        "steps": 140,  # Runge-Kutta steps until then
        # step times the largest curvature, below the 2.78 where the method fails
        "largest_step": 2.5,
        "rounding": 1e-6,  # relative amount by which a promise may be exceeded
        # a problem counts from this f(0) over the labels' square
        "least_risk_share_of_labels": 1e-3,
        "least_problems": 300,  # that the verdict needs
    }
}


def trials(**settings) -> list[dict]:
    """A trial for each of "nets" and "errors"."""
    several = {"nets": "examples width_in", "errors": "errors"}
    return each(settings, several, measured="training")


def verdict(settings: dict, records: list[dict]) -> run.Verdict:
    """A counterexample if a problem breaks a promise.

    Undecided if too few problems have a risk that counts.
    """
    risk_shares = joined(records, "risk_share_of_labels")
    counted = risk_shares >= settings["least_risk_share_of_labels"]
    ratios = {name: joined(records, name) for name in _OVER_PROMISE}
    inside = joined(records, "promised_norm") < 1
    broken = ~inside
    for values in ratios.values():
        broken |= values > 1 + settings["rounding"]
    metrics = {
        "certified_problems": len(counted),
        "problems_with_a_risk_that_counts": int(counted.sum()),
        "promises_broken": int(broken.sum()),
        "least_risk_share_of_labels": float(risk_shares.min()),
        "median_risk_share_of_labels": float(np.median(risk_shares)),
        "largest_final_risk_share": float(joined(records, "final_risk_share").max()),
    }
    for name, values in ratios.items():
        metrics[f"largest_{name}"] = float(values.max())
    enough = metrics["problems_with_a_risk_that_counts"] >= settings["least_problems"]
    return run.Verdict(
        claim="relu-blocks-train",
        metrics=metrics,
        verdict=under_attack(bool(broken.any()), enough),
    )
