"""Reference runs are judged again, and some of their trials are measured again."""

import re

import jax
import numpy as np
import pytest

import experiments
from experiments import judge
from experiments.measurements import gradient_bound
from identity_matters import runs
from tests.measured import REFERENCE, reference


def test_every_verdict_and_metric_of_the_reference_runs_comes_out_again():
    """If this fails after a change of a verdict, run experiments.judge --write.

    Benchmarks have no claim about numbers that stay; their settings may have changed
    since.
    """
    reference_runs, problems = runs.read_collection(REFERENCE)
    assert problems == []
    for run in reference_runs:
        if run.experiment in experiments.MODULES:
            assert judge.disagreements(run, judge.conclusion(run)) == [], run.path


# Reference run -> the trials that are measured again.
AGAIN = {
    "convergence/inside": (12, 15),
    "factorization/random": (5,),
    "gradient_bound/corrected": (0, 1, 18),
    "gradient_bound/iclr2017": (0,),
    "gradient_bound/v3": (2, 9),
    "landscape/critical_points": (1,),
    "landscape/hessian_at_origin": (2,),
    "landscape/negative_determinant": (1,),
    "linear_training/depth": (3,),
    "linear_training/noise": (1,),
    "linear_training/stuck_targets": (4, 14),
    "memorize/synthetic": (19,),
    "optimum/every_depth": (4, 5),
    "optimum/four_dimensions": (1,),
    "relu/origin": (2,),
    "sampled_bound/grid": (0,),
    "relu/dead_units": (2,),
    "relu/search": (0, 11),
    "relu/gradient_ratio": (1, 2),
    "relu/noise": (6,),
    "relu/training": (1,),
}
# They follow from the clock and from rounding, not from the settings and the seed.
NOT_AGAIN = re.compile("seconds|form_error")
# Run -> fields that depend on the CPU, too. Of the factorizations of one norm, LAPACK
# chooses the one from which an attack begins.
NOT_ON_ANOTHER_CPU = {
    "optimum/four_dimensions": {"start_over_optimum", "end_over_optimum"}
}


@pytest.mark.compiled_for_users
@pytest.mark.parametrize(
    ("name", "index"),
    [(name, index) for name, indices in AGAIN.items() for index in indices],
)
def test_a_trial_of_a_reference_run_comes_out_again(name, index):
    """Its numbers follow from the settings and the seed."""
    run = reference(name)
    experiment = experiments.find(run.experiment)
    every_trial, subjects = experiment.prepare(run.config, run.config)
    trial_key = jax.random.fold_in(jax.random.key(0), index)
    record = experiment.measure_trial(every_trial[index], subjects[index], trial_key)
    record = runs.from_json(runs.to_json(record))
    now = {
        field: value
        for field, value in record.items()
        if not NOT_AGAIN.search(field) and field not in NOT_ON_ANOTHER_CPU.get(name, ())
    }
    then = {field: run.records[index][field] for field in now}
    for ours, theirs in zip(jax.tree.leaves(now), jax.tree.leaves(then), strict=True):
        # Numbers that are 0 up to rounding may differ on other machines.
        assert ours == theirs or ours == pytest.approx(theirs, rel=1e-6, abs=1e-12)


# s (1-tau)^{-(l-1)} = 8 s, s, and 1 at s = 1/2, 1 and 2, up to a few roundings.
@pytest.mark.parametrize(
    ("form", "ratios", "largest"),
    [
        ("iclr2017", [4, 8, 16], 8.0),
        ("v3", [0.5, 1, 2], 1.0),
        ("corrected", [1, 1, 1], 1.0),
    ],
)
def test_ratios_at_the_tight_family_and_as_the_data_grow(form, ratios, largest):
    records = reference(f"gradient_bound/{form}").records
    point = {"width": 3, "depth": 4, "tau": 0.5}
    rows = [row for row in records[1]["rows"] if point.items() <= row.items()]
    assert [row["ratio"] for row in rows] == pytest.approx(ratios, rel=1e-13)
    # The adversary reaches the supremum and no more.
    for search in records:
        if search["kind"] == "search":
            np.testing.assert_allclose(
                search["largest_ratios"], search["predicted_ratios"], rtol=1e-5
            )
    assert gradient_bound.largest_ratio(form, 4, 0.5) == largest
