"""What experiments/convergence.py refuses, and verdicts that flip."""

import pytest

from experiments import convergence


def _settings(variant, **changes):
    settings = convergence.get_config(variant).to_dict() | changes
    del settings["scale"]
    return settings


def _inside_records():
    measured = {
        "certified": 670,
        "not_certified": 0,
        "left_the_ball": 0,
        "fell_too_slowly": 0,
        "largest_norm_over_radius": 0.9,
        "converged_percent": [100.0] * 5 + [90.0, 60.0, 20.0],
    }
    return [trial | measured for trial in convergence.trials(**_settings("inside"))]


def test_one_certified_problem_that_fails_is_a_counterexample():
    found = convergence.verdict(_settings("inside"), _inside_records())
    assert found.verdict == "holds"
    assert found.metrics["certified_problems"] == 15 * 670 >= 10_000
    assert found.metrics["least_converged_percent_up_to_1_sigma"] == 100
    assert found.metrics["converged_percent_at_largest_excess"] == 20
    for name in ("left_the_ball", "fell_too_slowly"):
        records = _inside_records()
        records[3][name] = 1
        assert convergence.verdict(_settings("inside"), records).verdict == "counterexample"


def _escape_records():
    def entry(noise, depth):
        return {
            "noise": noise,
            "predicted_updates": [100.0 * depth] * 3,
            "predicted_over_measured": [1.0, 0.9, 1.1],
            "not_run": 0,
            "not_reached": 0,
        }

    return [
        trial | {"by_noise": [entry(noise, trial["depth"]) for noise in trial["noises"]]}
        for trial in convergence.trials(**_settings("escape"))
    ]


def test_every_draw_must_be_predicted_within_the_factor():
    settings = _settings("escape")
    found = convergence.verdict(settings, _escape_records())
    assert found.verdict == "reproduced"
    assert found.metrics["median_updates_negative_shallowest"] == 200
    assert found.metrics["median_updates_negative_deepest"] == 600
    for change in ({"predicted_over_measured": [1.0, 0.4]}, {"predicted_over_measured": [2.1]},
                   {"not_reached": 1}):  # fmt: skip
        records = _escape_records()
        records[7]["by_noise"][1] |= change
        assert convergence.verdict(settings, records).verdict == "not reproduced"


@pytest.mark.parametrize(
    ("variant", "changes", "message"),
    [
        ("inside", {"depths": (0,)}, r"depths must be above 0, got \(0,\)"),
        ("inside", {"widths": ()}, "widths must hold one value at least, is empty"),
        ("inside", {"shares": (0.5, 1.0)}, "shares must"),
        ("escape", {"targets": ((0.0,),)}, "r = 0"),
        ("escape", {"risk": 1.0}, "risk below"),
        ("escape", {"largest_factor": 1.0}, "largest_factor must be above 1, got 1.0"),
    ],
)
def test_settings_that_cannot_be_used_are_refused_before_a_run(variant, changes, message):
    with pytest.raises(ValueError, match=message):
        settings = _settings(variant, **changes)
        convergence.EXPERIMENT.prepare(settings, settings)
