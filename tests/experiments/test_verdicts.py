"""Every verdict falls with each of its conditions: one changed number turns it."""

import math
from typing import Any, NamedTuple

import jax
import pytest

import experiments
from tests.measured import reference

FAILS = "not reproduced"
REFUTED = "counterexample"
OPEN = "undecided"


class Change(NamedTuple):
    """A change of the records of a reference run, and the verdict of what it leaves.

    Attributes:
      fields: path of a number -> its new value; see `with_entry`.
      verdict: that of the changed records.
      first: the first record with these values is changed; all with the fields if None.
    """

    fields: dict[str, Any]
    verdict: str
    first: dict[str, Any] | None = None


# Trainings, by the fields that tell them apart.
SHALLOW = {"network": "residual", "depth": 8}
DEEPEST = {"network": "residual", "depth": 1202}
PLANE = {"target": "plane", "start": "zero"}
PLANE_FREED = {"target": "plane", "start": "gaussian_maps"}
NEGATIVE = {"target": "negative", "start": "zero"}
NEGATIVE_FREED = {"target": "negative", "start": "last_layer_minus_identity"}
IDENTITY = {"net": "identity", "depth": 1200}
PLAIN_NEAR_ZERO = {"net": "plain_near_zero", "depth": 1200}
PLAIN_STANDARD = {"net": "plain_standard", "depth": 1200}
LINEAR = {"net": "linear", "depth": 1200}
RELU = {"net": "relu", "depth": 1200}
EXACT_COUNTEREXAMPLE = {
    "depth": 1,
    "squared_gradient_float64": 1.0,
    "right_float64": 2.0,
}
# A critical point inside the ball that is no global minimum.
BAD_POINT = {"norms.0": 0.5, "relative_excess.0": 0.1, "gradient_norms.0": 0.0}


def _refutations_of_the_optimum(*, kind: str) -> list[Change]:
    """What refutes the closed form in both variants of the experiment `optimum`.

    `kind` is that of the records that compare layers with it.
    """
    compared = {"kind": kind}
    return [
        Change(
            first={"kind": "attack"},
            fields={"end_over_optimum": 0.999},
            verdict=REFUTED,
        ),
        Change(first=compared, fields={"least_excess": -1e-8}, verdict=REFUTED),
        Change(first=compared, fields={"searched_over_optimum": 1.1}, verdict=REFUTED),
    ]


# Reference run -> changes of its records.
FALLS = {
    "comparisons/digits/two_depths": [
        Change(
            first={"arm": "plain_unit_variance/31"},
            fields={"train_error_percent": 4.9},
            verdict=FAILS,
        ),
    ],
    "convergence/inside": [
        # A certificate is missing.
        Change(first={"depth": 8}, fields={"certified": 669}, verdict=OPEN),
        Change(first={"depth": 8}, fields={"left_the_ball": 1}, verdict=REFUTED),
        Change(first={"depth": 8}, fields={"fell_too_slowly": 1}, verdict=REFUTED),
    ],
    "convergence/escape": [
        Change(
            first={"depth": 3},
            fields={"by_noise.1.predicted_over_measured.0": 0.4},
            verdict=FAILS,
        ),
        Change(
            first={"depth": 3},
            fields={"by_noise.1.predicted_over_measured.0": 2.1},
            verdict=FAILS,
        ),
        Change(first={"depth": 3}, fields={"by_noise.1.not_reached": 1}, verdict=FAILS),
        # Too many starts are said to take too long.
        Change(first={"depth": 3}, fields={"by_noise.1.not_run": 200}, verdict=FAILS),
    ],
    "linear_training/depth": [
        Change(first=DEEPEST, fields={"converged": False}, verdict=FAILS),
        Change(first=DEEPEST, fields={"stayed_in_unit_ball": False}, verdict=FAILS),
        Change(first=SHALLOW, fields={"least_decrease_per_update": 0.0}, verdict=FAILS),
        Change(
            first={"network": "standard", "depth": 8},
            fields={"excess_risk": 0.1},
            verdict=FAILS,
        ),
    ],
    "linear_training/stuck_targets": [
        Change(first=PLANE, fields={"converged": True}, verdict=FAILS),
        Change(first=PLANE, fields={"norm": 0.79}, verdict=FAILS),
        Change(first=NEGATIVE, fields={"excess_risk": 0.3}, verdict=FAILS),
        Change(
            first={"target": "rotation"}, fields={"converged": False}, verdict=FAILS
        ),
        Change(first=NEGATIVE_FREED, fields={"converged": False}, verdict=FAILS),
        Change(first=PLANE_FREED, fields={"converged": False}, verdict=FAILS),
        Change(
            first={"start": "factorization"}, fields={"converged": False}, verdict=FAILS
        ),
    ],
    "linear_training/noise": [
        Change(
            first={"depth": 8}, fields={"converged": 0.0, "updates": 3.0}, verdict=FAILS
        ),
    ],
    "deep_mlp/digits/relu": [
        Change(first=IDENTITY, fields={"gap_closed_percent": 89.0}, verdict=FAILS),
        Change(first=IDENTITY, fields={"gap_closed_percent": ...}, verdict=FAILS),
        Change(first=IDENTITY, fields={"least_gradient_norm": 1e-9}, verdict=FAILS),
        Change(
            first=PLAIN_STANDARD, fields={"gap_closed_percent": 91.0}, verdict=FAILS
        ),
        Change(
            first=PLAIN_NEAR_ZERO, fields={"gap_closed_percent": 91.0}, verdict=FAILS
        ),
        Change(
            first=PLAIN_NEAR_ZERO, fields={"largest_gradient_norm": 1.0}, verdict=FAILS
        ),
    ],
    "deep_mlp/digits/linear": [
        Change(first=IDENTITY, fields={"norm": 0.3}, verdict=FAILS),
        Change(fields={"diverged": True}, verdict=FAILS),
    ],
    "deep_mlp/digits/orthogonal": [
        Change(first=LINEAR, fields={"gap_closed_percent": 50.0}, verdict=FAILS),
        Change(first=RELU, fields={"gap_closed_percent": 95.0}, verdict=FAILS),
    ],
    "factorization/negative_even": [
        Change(fields={"rows.1.relative_product_errors": 1e-9}, verdict=OPEN),
        Change(fields={"rows.1.bound_v3": 1e-9}, verdict=OPEN),
        Change(
            first={"dimension": 2}, fields={"rows.1.norms.polar": ...}, verdict=OPEN
        ),
        Change(fields={"rows.1.bound_iclr2017": 1e-9}, verdict=OPEN),
        Change(fields={"rows.1.bound_polar": 1e-9}, verdict=OPEN),
        # A factorization that beats the lower bound, and one that leaves a gap.
        Change(fields={"rows.1.best_over_lower_bound": 0.999}, verdict=OPEN),
        Change(fields={"rows.1.best_over_lower_bound": 1.002}, verdict=OPEN),
    ],
    "factorization/negative_odd": [
        # Only targets that are solved have to be optimal.
        Change(fields={"rows.0.best_over_lower_bound": 1.2}, verdict="holds"),
    ],
    "factorization/shortest_normal": [
        Change(fields={"rows.0.best_over_lower_bound": 1.03}, verdict=OPEN),
    ],
    "factorization/normal": [
        Change(fields={"rows.1.best_over_lower_bound": 1.2}, verdict=OPEN),
    ],
    "gradient_bound/corrected": [
        Change(first={"kind": "random"}, fields={"failures": 1}, verdict=REFUTED),
        Change(first={"kind": "random"}, fields={"points": 199}, verdict=OPEN),
        Change(first={"kind": "singular"}, fields={"failures": 1}, verdict=REFUTED),
        Change(first={"kind": "singular"}, fields={"points": 199}, verdict=OPEN),
        Change(
            first={"kind": "search"},
            fields={"largest_ratios": 1 + 1e-6},
            verdict=REFUTED,
        ),
        Change(first={"kind": "search"}, fields={"largest_ratios": 0.5}, verdict=OPEN),
        Change(first={"kind": "tight"}, fields={"largest_error": 1e-11}, verdict=OPEN),
        Change(fields={"smallest": EXACT_COUNTEREXAMPLE}, verdict=REFUTED),
    ],
    "optimum/every_depth": [
        *_refutations_of_the_optimum(kind="targets"),
        Change(
            first={"kind": "targets"}, fields={"largest_excess": 1e-8}, verdict=OPEN
        ),
        Change(
            first={"kind": "targets"},
            fields={"largest_product_error": 1e-9},
            verdict=OPEN,
        ),
        # No attack comes close.
        Change(fields={"end_over_optimum": 1.02}, verdict=OPEN),
        # Nothing is searched.
        Change(fields={"searched_over_optimum": []}, verdict="holds"),
    ],
    "optimum/four_dimensions": [
        *_refutations_of_the_optimum(kind="over_pair"),
        Change(first={"kind": "over_pair"}, fields={"attained": 700}, verdict=FAILS),
        Change(
            first={"kind": "over_pair"},
            fields={"largest_product_error": 1e-9},
            verdict=FAILS,
        ),
    ],
    "gradient_bound/v3": [
        # Only an exact counterexample refutes a printed form.
        Change(fields={"smallest": None, "smallest_with_sigma_1": None}, verdict=OPEN),
    ],
    "landscape/critical_points": [
        Change(first={"width": 2}, fields=BAD_POINT, verdict=REFUTED),
        # A point closer to the wall than the margin does not count as inside.
        Change(
            first={"width": 2}, fields={**BAD_POINT, "norms.0": 0.9999}, verdict="holds"
        ),
        # No point is found inside the ball.
        Change(fields={"norms": 1.0}, verdict=OPEN),
        # The last start is at A_i = -I, and should stay there.
        Change(
            first={"width": 2, "depth": 2},
            fields={"gradient_norms.144": 1e-300},
            verdict=OPEN,
        ),
    ],
    "landscape/hessian_at_origin": [
        Change(
            first={"depth": 3}, fields={"nets.0.gradient_norm": 1e-300}, verdict=REFUTED
        ),
        Change(
            first={"depth": 3},
            fields={"nets.0.largest_hessian_entry": 1},
            verdict=REFUTED,
        ),
        # The standard net's origin is optimal, or the residual one's is critical.
        Change(first={"depth": 3}, fields={"nets.0.excess": 0.0}, verdict=REFUTED),
        Change(
            first={"depth": 3}, fields={"nets.3.gradient_norm": 0.0}, verdict=REFUTED
        ),
        Change(fields={"depth": 2}, verdict=OPEN),
    ],
    "landscape/negative_determinant": [
        Change(first={"depth": 2}, fields={"least_over_floor": 0.999}, verdict=REFUTED),
        Change(
            first={"depth": 2}, fields={"largest_norm_over_tau": 1.001}, verdict=OPEN
        ),
        # The search is too weak to reach the floor where it is the least gradient.
        Change(first={"width": 1}, fields={"largest_over_floor": 1.001}, verdict=OPEN),
    ],
    "memorize/digits": [
        Change(first={"certified": True}, fields={"errors": 1}, verdict=REFUTED),
        # No labelling has a certified network.
        Change(fields={"certified": False}, verdict=OPEN),
    ],
    "memorize/few_numbers_trade": [
        Change(first={"width": 6}, fields={"errors": 1}, verdict=REFUTED),
        # A network stores more than is stated.
        Change(first={"width": 6}, fields={"numbers": 7460}, verdict=OPEN),
        Change(first={"width": 8}, fields={"numbers": 7412}, verdict=OPEN),
    ],
    "memorize/retrieval": [
        Change(first={"input_map": "dense"}, fields={"errors": 1}, verdict=REFUTED),
        Change(first={"input_map": "dense"}, fields={"numbers": 1509}, verdict=OPEN),
        Change(
            first={"input_map": "dense"}, fields={"table_digits": 2400}, verdict=OPEN
        ),
    ],
    "memorize/paper_method": [
        Change(fields={"norms_outside": [0, 0, 3, 3], "draws": 4}, verdict=OPEN),
        Change(fields={"norms_outside": [0, 3, 3, 3], "draws": 4}, verdict=REFUTED),
    ],
    "linear_sampled/points": [
        Change(first={"depth": 4}, fields={"violations": 1}, verdict=REFUTED),
        Change(fields={"tight": 0}, verdict=OPEN),
    ],
    "linear_sampled/noise_floor": [
        Change(
            first={"kind": "result", "depth": 8},
            fields={"excess_risk": 0.45},
            verdict=FAILS,
        ),
        Change(
            first={"kind": "result", "depth": 8},
            fields={"largest_norm": 0.2},
            verdict=FAILS,
        ),
    ],
    "sampled_bound/grid": [
        Change(first={"depth": 8}, fields={"violations": 1}, verdict=REFUTED),
        Change(first={"depth": 8}, fields={"left": 40}, verdict=REFUTED),
        Change(first={"depth": 8}, fields={"risk_bound": 1.0}, verdict=OPEN),
        Change(first={"depth": 8}, fields={"certified": False}, verdict=OPEN),
    ],
    "relu/origin": [
        Change(
            first={"depth": 3}, fields={"largest_gradient_entry": 0.1}, verdict=OPEN
        ),
        Change(first={"depth": 3}, fields={"risk": 0.0}, verdict=OPEN),
        Change(first={"depth": 3}, fields={"measured_curvature": 1.0}, verdict=OPEN),
    ],
    "relu/dead_units": [
        Change(fields={"dead": 0}, verdict=OPEN),
        Change(first={"law": "gaussian"}, fields={"dead": 19000}, verdict=OPEN),
    ],
    "relu/search": [
        Change(fields={"certificates": []}, verdict=OPEN),
        Change(
            first={"cell": 1},
            fields={"certificates.0.functional_gradient": 0.0},
            verdict=OPEN,
        ),
        Change(
            first={"bias": True}, fields={"least_functional_ratio": 0.9}, verdict=OPEN
        ),
        Change(
            first={"measured": "linear_control"}, fields={"bad_inside": 1}, verdict=OPEN
        ),
        Change(
            first={"bias": True},
            fields={"kinds": 7, "bound_coefficient": 1.0},
            verdict=OPEN,
        ),
    ],
    "relu/gradient_ratio": [
        Change(
            first={"depth": 3}, fields={"largest_right_over_left": 1.1}, verdict=REFUTED
        ),
        Change(
            first={"depth": 3}, fields={"tight_right_over_left": 1.1}, verdict=REFUTED
        ),
        Change(first={"depth": 3}, fields={"tight_right_over_left": 0.9}, verdict=OPEN),
    ],
    "relu/training": [
        Change(
            first={"errors": "teacher"},
            fields={"risk_over_promise.0": 1.01},
            verdict=REFUTED,
        ),
        Change(
            first={"errors": "teacher"},
            fields={"norm_over_promise.0": 1.01},
            verdict=REFUTED,
        ),
        Change(
            first={"errors": "teacher"},
            fields={"input_travel_over_promise.0": 1.01},
            verdict=REFUTED,
        ),
        Change(
            first={"errors": "teacher"},
            fields={"output_travel_over_promise.0": 1.01},
            verdict=REFUTED,
        ),
        Change(
            first={"errors": "teacher"},
            fields={"promised_norm.0": 1.0},
            verdict=REFUTED,
        ),
        # Tiny risks do not count.
        Change(fields={"risk_share_of_labels": 1e-4}, verdict=OPEN),
    ],
    "relu/noise": [
        Change(fields={"largest_travelled": 1e-9}, verdict=FAILS),
        Change(fields={"halved_share": 0.5}, verdict=FAILS),
    ],
}
CASES = [
    pytest.param(name, change, id=f"{name}-{'-'.join(change.fields)}-{change.verdict}")
    for name, changes in FALLS.items()
    for change in changes
]


def with_entry(value: Any, path: str, entry: Any) -> Any:
    """`value` with all numbers at a path like "rows.0.norms" set to `entry`.

    ``...`` removes them.
    """
    if path == "":
        if isinstance(entry, int | float):
            return jax.tree.map(lambda _: entry, value)
        return entry
    first, _, deeper = path.partition(".")
    if isinstance(value, list):
        at = int(first)
        return [*value[:at], with_entry(value[at], deeper, entry), *value[at + 1 :]]
    without = {name: field for name, field in value.items() if name != first}
    if entry is ... and not deeper:
        return without
    return {**without, first: with_entry(value[first], deeper, entry)}


@pytest.mark.parametrize(("name", "change"), CASES)
def test_a_verdict_falls_with_each_of_its_conditions(name, change):
    run = reference(name)
    records = list(run.records)
    top_fields = {path.partition(".")[0] for path in change.fields}
    chosen = change.first or {}
    places = [
        place
        for place, record in enumerate(records)
        if chosen.items() <= record.items() and top_fields <= record.keys()
    ]
    assert places
    for place in places[:1] if chosen else places:
        for path, entry in change.fields.items():
            records[place] = with_entry(records[place], path, entry)
    judged = experiments.find(run.experiment).judge(run.config, records)
    assert judged.verdict == change.verdict


def test_each_labelling_needs_a_certified_network():
    run = reference("memorize/digits")
    records = [
        {**record, "certified": False} if record.get("labels") == "true" else record
        for record in run.records
    ]
    judged = experiments.find(run.experiment).judge(run.config, records)
    assert judged.verdict == OPEN


# A number that each of these verdicts rests on, in the last record that has it: a
# comparison with NaN is false, and Python's max and min pass over it.
NAN_IN = [
    ("convergence/escape", "by_noise.2.predicted_over_measured.31"),
    ("convergence/inside", "fell_too_slowly"),
    ("factorization/negative_even", "rows.1.norms.polar"),
    ("factorization/negative_even", "rows.1.relative_product_errors.optimal"),
    ("gradient_bound/corrected", "largest_ratio"),
    ("landscape/critical_points", "relative_excess.0"),
    ("landscape/hessian_at_origin", "nets.0.excess"),
    ("landscape/negative_determinant", "least_over_floor"),
    ("linear_sampled/devices", "weight_differences.3"),
    ("linear_sampled/noise_floor", "excess_risk"),
    ("linear_sampled/points", "largest_margin"),
    ("linear_training/depth", "excess_risk"),
    ("memorize/digits", "constructed.max_abs_error"),
    ("optimum/every_depth", "end_over_optimum.11"),
    ("relu/gradient_ratio", "largest_right_over_left"),
    ("relu/training", "risk_over_promise.0"),
    ("sampled_bound/grid", "risk"),
]


@pytest.mark.parametrize(("name", "path"), NAN_IN)
def test_no_claim_is_confirmed_by_a_nan(name, path):
    run = reference(name)
    assert run.summary["verdict"] in ("holds", "reproduced")
    first, _, _ = path.partition(".")
    records = list(run.records)
    place = max(i for i, record in enumerate(records) if first in record)
    records[place] = with_entry(records[place], path, math.nan)
    judged = experiments.find(run.experiment).judge(run.config, records)
    assert judged.verdict == OPEN
