"""The plans and the verdicts of experiments/linear_training.py; its runs are tested elsewhere."""

import pytest

from experiments import linear_training
from experiments.configs.linear_training import VARIANTS, get_config


def _settings(variant):
    config = get_config(variant).to_dict()
    del config["scale"]
    return config


def _depth_records():
    """Records of the cells as the claim wants them."""
    records = []
    for cell in linear_training.plan(**_settings("depth")):
        residual = cell["network"] == "residual"
        records.append(
            {
                **cell,
                "converged": residual,
                "updates": 100 if residual else 0,
                "start_excess_risk": 1.0,
                "excess_risk": 1e-9 if residual else 1.0,
                "stayed_in_unit_ball": residual and cell["depth"] > 1,
                "norm": 2 / cell["depth"],
                "bound_v3_times_depth": 14.0,
                "least_norm_times_depth": 1.7,
                "promised_decrease_per_update": 0.1 if residual else 0.0,
                "least_decrease_per_update": 0.2,
                "start_gradient_norm": 1.0 if residual else 0.0,
            }
        )
    return records


def _verdict(variant, records):
    return linear_training.conclude(_settings(variant), records).verdict


@pytest.mark.parametrize(
    ("network", "depth", "broken"),
    [
        ("residual", 1202, {"converged": False}),
        ("residual", 64, {"stayed_in_unit_ball": False}),
        ("residual", 8, {"least_decrease_per_update": 0.05}),
        ("standard", 8, {"excess_risk": 0.9}),
    ],
)
def test_depth_is_reproduced_only_if_every_part_holds(network, depth, broken):
    records = _depth_records()
    conclusion = linear_training.conclude(_settings("depth"), records)
    assert conclusion.verdict == "reproduced"
    assert conclusion.metrics["deepest_trained_residual_layers"] == 1202
    # At depth 1 the start leaves the ball, where Theorem 2.1 promises nothing.
    assert conclusion.metrics["residual_left_unit_ball_runs"] == 2
    first = next(r for r in records if (r["network"], r["depth"]) == (network, depth))
    first |= broken
    assert _verdict("depth", records) == "not reproduced"


def _stuck_records():
    records = []
    for cell in linear_training.plan(**_settings("stuck_targets")):
        stuck = cell["target"] in ("plane", "negative") and cell["start"] in ("zero", "noise")
        predicted = {"plane": 2.0, "negative": 0.25}.get(cell["target"], 0.0)
        records.append(
            {
                **cell,
                "predicted_stall_excess_risk": predicted,
                "excess_risk": 1.0001 * predicted if stuck else 1e-9,
                "converged": not stuck,
                "updates": 20_000 if stuck else 10,
                "norm": 0.8,
            }
        )
    return records


@pytest.mark.parametrize(
    ("target", "start", "broken"),
    [
        ("plane", "zero", {"excess_risk": 1e-9, "converged": True}),
        ("negative", "zero", {"excess_risk": 0.3}),
        ("rotation", "zero", {"converged": False}),
        ("negative", "last_layer_minus_identity", {"converged": False}),
        ("plane", "gaussian_maps", {"converged": False}),
        ("plane", "factorization", {"converged": False}),
    ],
)
def test_stuck_targets_are_reproduced_only_if_every_part_holds(target, start, broken):
    records = _stuck_records()
    assert _verdict("stuck_targets", records) == "reproduced"
    first = next(r for r in records if (r["target"], r["start"]) == (target, start))
    first |= broken
    assert _verdict("stuck_targets", records) == "not reproduced"


def test_noise_has_no_say_in_the_verdict():
    records = _stuck_records()
    for record in records:
        if record["start"] == "noise":
            record |= {"converged": True, "excess_risk": 1e-9}
    assert _verdict("stuck_targets", records) == "reproduced"


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(
    ("setting", "value"), [("max_updates", 0), ("record_every", 0), ("divergence_factor", 1.0)]
)
def test_bad_descent_settings_are_named(variant, setting, value):
    settings = _settings(variant)
    settings["descent"][setting] = value
    with pytest.raises(ValueError, match=f"descent.{setting} must be .*, got {value}"):
        linear_training.plan(**settings)


@pytest.mark.parametrize(
    ("variant", "setting", "value"),
    [
        ("depth", "depths", (0, 2)),
        ("depth", "width", 1),
        ("depth", "gamma", float("nan")),
        ("depth", "starts", 0),
        ("stuck_targets", "plane_diagonal", (-1.0, 1.0, 1.0, 1.0)),
        ("stuck_targets", "negative_diagonal", (1.0, 1.0, 1.0, 1.0)),
        ("stuck_targets", "map_widths", (2,)),
        ("stuck_targets", "noise_std", 0.0),
    ],
)
def test_bad_problem_settings_are_named(variant, setting, value):
    settings = _settings(variant)
    settings["problem"][setting] = value
    with pytest.raises(ValueError, match=f"problem.{setting}.* must be .*, got"):
        linear_training.plan(**settings)
