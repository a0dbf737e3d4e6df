"""The experiment on ReLU residual nets, small: verdicts that can turn, bad settings, figures."""

import copy

import pytest

from experiments import relu
from tests import measured

SMALL = {
    "origin": {
        "nets": ((1, 2, 2, False),),
        "problems": 2,
    },
    "dead_units": {"nets": ((1, 1, 1), (2, 1, 1)), "samples": 2000},
    "search": {
        "nets": ((1, 1, 2, False, 8),),
        "problems": 4,
        "starts": 2,
        "steps": 40,
        "control.depths": (2,),
        "control.problems": 2,
    },
    "gradient_ratio": {
        "nets": ((1, 4, 2, True),),
        "norms": (0.1, 0.5),
        "samples": 20,
        "searched": 2,
        "steps": 20,
    },
    "noise": {
        "depths": (1,),
        "widths": (1, 8),
        "biases": (False,),
        "starts": 6,
        "updates_per_record": 20,
    },
}
EXPECTED = {
    "origin": "counterexample",
    "dead_units": "counterexample",
    "search": "counterexample",
    "gradient_ratio": "holds",
    "noise": "reproduced",
}


def run(variant):
    config = measured.settings(relu, variant, **SMALL[variant])
    records = measured.measure_all(relu, config)
    if variant == "search":
        # So few starts need not meet a minimum that can be proved.
        records[0]["certificates"] = [proof(0.1, 0.2)]
    return config, records


def proof(risk, risk_above, problem=0, functional_gradient=1.0):
    """The numbers of a certificate that the verdict reads."""
    names = ("risk_share", "norm", "teacher_norm", "kink_distance", "curvature", "radius")
    own = {"risk": risk, "risk_above": risk_above, "problem": problem, "functional_ratio": 1.0}
    return {**dict.fromkeys(names, 0.25), **own, "functional_gradient": functional_gradient}


# What a record would hold if the claim were otherwise, and the verdict then.
TURNS = [
    ("origin", "at_origin", {"largest_gradient_entry": 0.1}, "undecided"),
    ("origin", "at_origin", {"risk": [0.0, 0.0]}, "undecided"),
    ("origin", "at_origin", {"measured_curvature": [1.0, 1.0]}, "undecided"),
    ("dead_units", "dead", {"dead": 0}, "undecided"),
    ("dead_units", "dead", {"dead": 1900}, "undecided"),
    ("search", "search", {"certificates": []}, "undecided"),
    ("search", "search", {"least_functional_ratio": 0.9}, "undecided"),
    ("search", "search", {"certificates": [proof(0.1, 0.2, 0, 0.0)]}, "undecided"),
    ("search", "linear_control", {"bad_inside": 1}, "undecided"),
    ("search", "search", {"kinds": [7] * 24, "bound_coefficient": [1.0] * 24}, "undecided"),
    ("gradient_ratio", "gradient_ratio", {"largest_right_over_left": 1.1}, "counterexample"),
    ("gradient_ratio", "gradient_ratio", {"tight_right_over_left": [1.1]}, "counterexample"),
    ("gradient_ratio", "gradient_ratio", {"tight_right_over_left": [0.9]}, "undecided"),
    ("noise", "noise", {"largest_travelled": [1e-9] * 4}, "not reproduced"),
    ("noise", "noise", {"halved_share": [0.5] * 4}, "not reproduced"),
]


def verdict_with(config, records, kind, change):
    records = copy.deepcopy(records)
    for record in records:
        if record["measured"] == kind:
            record.update(change)
    return relu.EXPERIMENT.judge(config, records).verdict


# Variant -> its figure and how many points the small run has at least.
FIGURES = {"search": ("limits", 5), "gradient_ratio": ("gradient_ratio", 2), "noise": ("noise", 8)}


# One test a variant, so that workers in parallel measure each of them once.
@pytest.mark.parametrize("variant", relu.VARIANTS)
def test_the_verdict_is_that_of_the_numbers_and_figures_draw_them(variant):
    config, records = run(variant)
    found = relu.EXPERIMENT.judge(config, records)
    assert found.verdict == EXPECTED[variant], found.metrics
    assert found.claim == relu.VERDICTS[variant][0]
    for turned, kind, change, verdict in TURNS:
        if turned == variant:
            assert verdict_with(config, records, kind, change) == verdict, change
    if variant == "search":
        config["least_proved_minima"] = 2
        assert relu.EXPERIMENT.judge(config, records).verdict == "undecided"
        assert found.metrics["linear_starts"] == 12
    if variant == "noise":
        check_that_all_noisy_starts_are_counted(found.metrics)
    if variant in FIGURES:
        name, least = FIGURES[variant]
        (points,) = measured.draw(relu, {variant: (config, records)}, f"relu_{name}")
        assert len(points) >= least


def check_that_all_noisy_starts_are_counted(metrics):
    for width in (1, 8):
        ends = [metrics[f"{end}_share_at_width_{width}"] for end in ("optimal", "stalled")]
        assert sum(ends) + metrics[f"unfinished_share_at_width_{width}"] == pytest.approx(1.0)
        # Three noisy scales, six starts each.
        assert metrics[f"starts_at_width_{width}"] == 18


def test_one_minimum_found_twice_counts_once_and_biases_apart():
    config = measured.settings(relu, "search", **SMALL["search"])
    kinds = ("optimal", "saddle", "no negative curvature", "outside", "not critical")
    common = {"measured": "search", "kind_names": kinds, "problems": 2}
    # Starts 0 to 2 belong to problem 0, 3 to 5 to problem 1.
    without = {
        "bias": False,
        "kinds": [1, 1, 2, 2, 3, 4],
        "risk_share": [0.1, 0.1, 0.2, 0.1, 0.5, 0.5],
        "dead_units": [0, 0, 1, 0, 1, 1],
        # Two intervals of problem 0 meet, one of problem 1 is the same as one of them.
        "certificates": [proof(0.10, 0.12), proof(0.11, 0.13), proof(0.2, 0.3), proof(0.2, 0.3, 1)],
    }
    biased = {**without, "bias": True, "kinds": [0] * 5 + [2], "certificates": []}
    flat = {"descends": [True] * 6, "bound_coefficient": [0.0] * 6, "least_functional_ratio": 1.0}
    control = {"measured": "linear_control", "risk_share": [], "critical_inside": 0}
    metrics = relu.EXPERIMENT.judge(
        config,
        [{**common, **flat, **without}, {**common, **flat, **biased}, {**control, "bad_inside": 0}],
    ).metrics
    expected = {
        "critical_inside_without_biases": 4,
        "bad_without_biases": 4,
        "distinct_bad_without_biases": 3,
        "bad_with_a_dead_unit_without_biases": 1,
        "proofs_without_biases": 4,
        "distinct_proved_without_biases": 3,
        "critical_inside_with_biases": 6,
        "bad_with_biases": 1,
        "proofs_with_biases": 0,
        "distinct_proved_minima": 3,
    }
    assert {name: metrics[name] for name in expected} == expected
