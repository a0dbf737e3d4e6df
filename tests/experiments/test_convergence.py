"""experiments/convergence.py: trials of which no problem is certified."""

import jax

from experiments import convergence
from experiments.measurements import convergence as measurements


def test_where_nothing_is_certified_nothing_is_trained():
    # ||Sigma|| is about 1e150 or 1e-150 here: it cannot be squared in float64.
    trial = measurements.build(
        question="certified",
        depth=2,
        width=2,
        problems=4,
        updates=3,
        shares=(0.1, 0.2),
        sigma_condition_log10=600.0,
        singular_percent=0.0,
    )
    record = measurements.measure_certified(trial, jax.random.key(0))
    assert record == {"certified": 0, "left_the_ball": 0, "fell_too_slowly": 0}


def test_the_medians_of_the_updates_are_called_predicted():
    """Two of the three starts would take too long and were not run."""

    def record(depth, target, predicted):
        quietest = {
            "noise": 0.01,
            "predicted_updates": predicted,
            "predicted_over_measured": [1.0],
            "not_run": 2,
            "not_reached": 0,
        }
        return {"depth": depth, "target": [target], "by_noise": [quietest]}

    records = [
        record(2, -0.5, [10.0, 20.0, 30.0]),
        record(3, -0.5, [100.0, 2000.0, 3000.0]),
        record(3, 0.5, [5.0, 6.0, 7.0]),
    ]
    settings = convergence.get_config("escape").to_dict()
    settings |= {"depths": (2, 3), "noises": (0.01,)}
    judged = convergence.VERDICTS["escape"](settings, records)
    medians = {
        name: value for name, value in judged.metrics.items() if "median" in name
    }
    assert medians == {
        "median_predicted_updates_negative_shallowest": 20,
        "median_predicted_updates_negative_deepest": 2000,
        "median_predicted_updates_positive_deepest": 6,
    }
