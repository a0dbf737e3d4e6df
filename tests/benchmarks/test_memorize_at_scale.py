"""Theorem 3.2 at ImageNet's size, on a few points: slices, and what they sum up to."""

import jax
import numpy as np

from benchmarks import memorize_at_scale
from tests import measured

SMALL = {
    "examples": (20, 50),
    "num_classes": 5,
    "width": 4,
    "slice_examples": 20,
    "batch_examples": 8,
    "tile_points": 16,
}


def records():
    listed = measured.trials(memorize_at_scale, "imagenet", **SMALL)
    key = jax.random.key(0)
    return [
        {**trial, **memorize_at_scale.EXPERIMENT.measure_trial(trial, built, key)}
        for trial, built in zip(
            listed,
            measured.build_all(memorize_at_scale, "imagenet", **SMALL),
            strict=True,
        )
    ]


def test_slices_cover_all_points_of_each_size_once():
    slices = [
        (trial["examples"], trial["first_of_slice"], trial["slice_examples"])
        for trial in measured.trials(memorize_at_scale, "imagenet", **SMALL)
    ]
    assert slices == [(20, 0, 20), (50, 0, 20), (50, 20, 20), (50, 40, 10)]


def test_all_slices_of_a_size_run_through_one_network(monkeypatch):
    built = []
    real = memorize_at_scale.construct.memorize

    def memorize(x, *arguments, **options):
        built.append(len(x))
        return real(x, *arguments, **options)

    memorize_at_scale._build.cache_clear()
    monkeypatch.setattr(memorize_at_scale.construct, "memorize", memorize)
    measured_slices = records()
    assert built == [20, 50]
    # a network built anew, as after an interruption, is the same
    memorize_at_scale._build.cache_clear()
    slices_of_rebuilt = records()
    for field in ("certified", "errors", "max_abs_error", "output_error_bound"):
        assert [r[field] for r in slices_of_rebuilt] == [
            r[field] for r in measured_slices
        ]


def test_the_verdict_counts_every_slice():
    sound = records()
    concluded = measured.judged(memorize_at_scale, "imagenet", sound)
    assert concluded.verdict == "holds"
    assert concluded.metrics["examples"] == 50
    assert concluded.metrics["certified_networks"] == concluded.metrics["networks"] == 2
    run_seconds = sum(record["run_seconds"] for record in sound[1:])
    np.testing.assert_allclose(concluded.metrics["run_seconds"], run_seconds)
    for slice_with_an_error in range(4):
        wrong = [dict(record) for record in sound]
        wrong[slice_with_an_error]["errors"] = 1
        refuted = measured.judged(memorize_at_scale, "imagenet", wrong)
        assert refuted.verdict == "counterexample"
        assert refuted.metrics["errors"] == 1
    uncertified = [
        {**record, "certified": record["examples"] == 20} for record in sound
    ]
    assert measured.judged(memorize_at_scale, "imagenet", uncertified).verdict == (
        "undecided"
    )
