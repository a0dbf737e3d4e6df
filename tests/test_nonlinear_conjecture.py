"""The experiment on ReLU residual nets, small: verdicts that can turn, bad settings, figures."""

import copy
import pathlib

import jax
import pytest
from matplotlib.figure import Figure

from experiments import nonlinear_conjecture
from experiments.configs import nonlinear_conjecture as configs
from identity_matters.records import Run
from identity_matters.report.figures import nonlinear_conjecture as figures

SMALL = {
    "origin": {"nets": ((1, 2, 2, False),), "problems": 2},
    "dead_units": {"nets": ((1, 1, 1), (2, 1, 1)), "samples": 2000},
    "search": {"nets": ((1, 1, 2, False, 8),), "problems": 4, "starts": 2, "steps": 40},
    "gradient_ratio": {
        "nets": ((1, 4, 2, True),),
        "norms": (0.1, 0.5),
        "samples": 20,
        "searched": 2,
        "steps": 20,
    },
    "noise": {"depths": (1,), "widths": (1, 8), "biases": (False,), "starts": 6, "updates": 2000},
}
NESTED = {
    "origin": {"hexagon": {"sizes": (1.0,), "width": 2, "starts": 8, "steps": 60}},
    "search": {
        "by_hand": {"depths": (2,), "widths": (2,), "nearby_points": 20},
        "control": {"depth": 1, "starts": 4},
    },
}
EXPECTED = {
    "origin": "counterexample found",
    "dead_units": "counterexample found",
    "search": "counterexample found",
    "gradient_ratio": "reproduced",
    "noise": "reproduced",
}


def settings(variant, **changes):
    config = configs.get_config(variant)
    config.update({**SMALL[variant], **changes})
    for name, inner in NESTED.get(variant, {}).items():
        config[name].update(inner)
    config = config.to_dict()
    del config["scale"]
    return config


def run(variant):
    config = settings(variant)
    records = [
        {
            **cell,
            **nonlinear_conjecture.measure(cell, jax.random.fold_in(jax.random.key(0), index)),
        }
        for index, cell in enumerate(nonlinear_conjecture.plan(**config))
    ]
    return config, records


# What a record would hold if the claim were otherwise, and the verdict then.
TURNS = [
    ("origin", "at_origin", {"largest_gradient_entry": 0.1}, "reproduced"),
    ("origin", "at_origin", {"measured_curvature": [1.0, 1.0]}, "not reproduced"),
    ("origin", "on_hexagon", {"curvature_without_bias": 0.1}, "not reproduced"),
    ("dead_units", "dead", {"dead": 0}, "reproduced"),
    ("dead_units", "dead", {"dead": 1900}, "not reproduced"),
    ("dead_units", "dead", {"moving_dead_nets": 1}, "not reproduced"),
    ("search", "by_hand", {"moves": [True]}, "reproduced"),
    ("search", "by_hand", {"least_rise_nearby": [-1e-3]}, "reproduced"),
    ("search", "linear_control", {"linear_bad_inside": 1}, "not reproduced"),
    ("gradient_ratio", "gradient_ratio", {"largest_right_over_left": 1.1}, "not reproduced"),
    ("gradient_ratio", "gradient_ratio", {"tight_right_over_left": [0.9]}, "not reproduced"),
    ("noise", "noise", {"largest_travelled": [1e-9] * 4}, "not reproduced"),
    ("noise", "noise", {"success_share": [0.5] * 4}, "not reproduced"),
]


def verdict_with(config, records, kind, change):
    records = copy.deepcopy(records)
    for record in records:
        if record["measured"] == kind:
            record.update(change)
        if record["measured"] == "search":
            record["certificates"] = []
    return nonlinear_conjecture.conclude(config, records).verdict


# One test a variant, so that workers in parallel measure each of them once.
@pytest.mark.parametrize("variant", configs.VARIANTS)
def test_the_verdict_is_that_of_the_numbers_and_figures_draw_them(variant):
    config, records = run(variant)
    conclusion = nonlinear_conjecture.conclude(config, records)
    assert conclusion.verdict == EXPECTED[variant], conclusion.metrics
    assert conclusion.claim == nonlinear_conjecture.CLAIMS[variant]
    for turned, kind, change, verdict in TURNS:
        if turned == variant:
            assert verdict_with(config, records, kind, change) == verdict, change
    if variant == "search":
        check_that_a_proof_is_a_counterexample(config, records)
    if variant in FIGURES:
        check_figure(*FIGURES[variant], variant, config, records)


def check_that_a_proof_is_a_counterexample(config, records):
    names = ("risk_share", "norm", "teacher_norm", "kink_distance", "curvature", "radius")
    for record in records:
        if record["measured"] == "by_hand":
            record["moves"] = [True]
        elif record["measured"] == "search":
            record["certificates"] = [dict.fromkeys(names, 0.25)]
    conclusion = nonlinear_conjecture.conclude(config, records)
    assert conclusion.verdict == "counterexample found"
    assert conclusion.metrics["worst_proved_risk_share"] == 0.25


@pytest.mark.parametrize(
    ("variant", "change", "message"),
    [
        ("origin", {"nets": ()}, "nets must name at least one net, is empty"),
        ("origin", {"nets": ((1, 2, 2),)}, r"each of nets must be .*, got \(1, 2, 2\)"),
        ("origin", {"step_size": 0.0}, "step_size must be positive, got 0.0"),
        ("dead_units", {"laws": ("uniform",)}, "got 'uniform'"),
        ("dead_units", {"nets": ((0, 1, 1),)}, "depth must be at least 1, got 0"),
        ("search", {"problems": 0}, "problems must be at least 1, got 0"),
        ("gradient_ratio", {"rounding": -1.0}, "rounding must be positive, got -1.0"),
        ("noise", {"records": 3}, "records must divide updates, got 3"),
    ],
)
def test_plan_refuses(variant, change, message):
    with pytest.raises(ValueError, match=message):
        nonlinear_conjecture.plan(**settings(variant, **change))


def test_plan_and_config_refuse_an_unknown_variant():
    with pytest.raises(ValueError, match="got 'leaky'"):
        nonlinear_conjecture.plan(variant="leaky")
    with pytest.raises(ValueError, match="got 'leaky'"):
        configs.get_config("leaky")


# Variant -> its figure and how many points the small run has at least.
FIGURES = dict(
    zip(
        ("search", "gradient_ratio", "noise"),
        zip(figures.FIGURES, (5, 2, 8), strict=True),
        strict=True,
    )
)


def check_figure(figure, least, variant, config, records):
    summary = {"experiment": "nonlinear_conjecture", "variant": variant, "seed": 0}
    finished = Run(pathlib.Path(variant), config, {}, summary, records)
    points = figure.points([finished])
    assert len(points) >= least
    canvas = Figure(layout="constrained")
    figure.draw(points, canvas)
    assert all(axes.lines for axes in canvas.axes)
    assert figure.points([]) == []
