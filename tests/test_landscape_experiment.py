"""The searches for bad critical points at small sizes, and verdicts that can fail."""

import numpy as np
import pytest

from experiments import landscape as arm
from tests import measured

SMALL = {
    "critical_points": {
        "widths": (2,),
        "depths": (1, 2),
        "target_sizes": (0.2, 0.8),
        "start_taus": (0.1, 0.9),
        "outside_norms": (2.0,),
        "starts": 3,
        "steps": 60,
        "least_inside": 5,
    },
    "hessian_at_origin": {"widths": (1,), "depths": (2, 3)},
    "negative_determinant": {
        "widths": (1,),
        "depths": (1, 2),
        "taus": (0.3, 0.9),
        "problems": 2,
        "starts": 2,
        "steps": 60,
    },
}


@pytest.fixture(scope="module")
def runs():
    configs = {name: measured.settings(arm, name, **SMALL[name]) for name in arm.VARIANTS}
    return {v: (config, measured.measure_all(arm, config)) for v, config in configs.items()}


@pytest.mark.parametrize("variant", arm.VARIANTS)
def test_verdicts(runs, variant):
    assert arm.EXPERIMENT.judge(*runs[variant]).verdict == "holds"


def test_bad_critical_points_are_found_but_only_outside(runs):
    metrics = arm.EXPERIMENT.judge(*runs["critical_points"]).metrics
    assert metrics["starts"] == 2 * 2 * 3 * 3
    assert metrics["critical_points_inside"] >= 5
    assert metrics["critical_points_not_optimal"] > 0
    # Searches that end at a degenerate point stop a little before it.
    assert metrics["least_norm_of_critical_points_not_optimal"] > 0.99
    assert metrics["largest_right_over_left_at_starts"] <= 1 + 1e-12
    assert metrics["minus_identity_largest_gradient_norm"] == 0


def one_bad_point_inside(record):
    bad = {"norms": 0.5, "relative_excess": 0.1, "gradient_norms": 0.0}
    return {**record, **{name: [value, *record[name][1:]] for name, value in bad.items()}}


def no_critical_points(record):
    return {**record, "gradient_norms": [1.0] * (len(record["norms"]) - 1) + [0.0]}


def first_net(**change):
    return lambda record: {**record, "nets": [{**record["nets"][0], **change}, *record["nets"][1:]]}


@pytest.mark.parametrize(
    ("variant", "change", "says"),
    [
        ("critical_points", one_bad_point_inside, "counterexample"),
        ("critical_points", no_critical_points, "undecided"),
        ("hessian_at_origin", first_net(gradient_norm=1e-300), "counterexample"),
        ("hessian_at_origin", first_net(largest_hessian_entry=1e-300), "counterexample"),
        ("hessian_at_origin", lambda r: {**r, "depth": 2}, "undecided"),
        ("negative_determinant", lambda r: {**r, "least_over_floor": 0.999}, "counterexample"),
        ("negative_determinant", lambda r: {**r, "largest_norm_over_tau": 1.001}, "undecided"),
    ],
)
def test_verdicts_can_fail(runs, variant, change, says):
    config, records = runs[variant]
    assert arm.EXPERIMENT.judge(config, [change(record) for record in records]).verdict == says


def test_the_wall_margin_decides_what_is_inside(runs):
    config, records = runs["critical_points"]
    changed = {**config, "wall_margin": 0.6, "least_inside": 1}
    beyond = arm.EXPERIMENT.judge(changed, [one_bad_point_inside(record) for record in records])
    assert beyond.metrics["largest_norm_called_inside"] == pytest.approx(0.4)
    # The bad point at norm 1/2 is no longer called inside.
    assert beyond.verdict == "holds"


def test_nets_at_the_origin_by_hand():
    trial = {"kind": "hessian_at_origin", "width": 1, "depth": 2, "max_condition_log10": 0.0}
    found = arm.at_origin({**trial, "target_sizes": (0.0,)}, np.random.default_rng(0))
    # R = Sigma = 1. Standard: f = (ab - 1)^2 at 0. Residual: at its optimum, f'' = 2 (1,1)(1,1)^T.
    standard, residual = found["nets"]
    assert (standard["gradient_norm"], standard["excess"]) == (0.0, 1.0)
    assert standard["hessian_eigenvalues"] == pytest.approx([-2.0, 2.0])
    assert (residual["gradient_norm"], residual["excess"]) == (0.0, 0.0)
    # The zero eigenvalue comes with the rounding of the other, 4.
    assert residual["hessian_eigenvalues"] == pytest.approx([0.0, 4.0], abs=1e-14)


def test_figures_draw_what_was_measured(runs):
    wall, origin, negative = measured.draw(arm, runs)
    metrics = arm.EXPERIMENT.judge(*runs["critical_points"]).metrics
    # And those reached from A_i = -I, which is critical with two layers and moves on with one.
    assert len(wall) == metrics["critical_points"] + 2
    assert len(origin) == 2 * (2 + 3)
    assert len(negative) == 2 * 2
