"""The records of a training, by hand."""

import math

import numpy as np
import pytest

from identity_matters.train import records as training_records


def sums(losses, gradient_norms=None):
    n = len(losses)
    return {
        "loss": np.float32(losses),
        "errors": np.full(n, 3, np.int32),
        "examples": np.full(n, 8, np.int32),
        "gradient_norm": np.float32(
            range(1, n + 1) if gradient_norms is None else gradient_norms
        ),
        "learning_rate": np.float32([1 / (i + 1) for i in range(n)]),
    }


def test_a_train_record_by_hand():
    since = training_records.MetricSums()
    since.add(1, sums([24]))
    since.add(2, sums([8, 16]))
    since.seconds = 2.0
    since.input_wait_seconds = 0.5
    record = since.record(
        step=3, epoch=0.25, flops_per_example=1e9, peak_flops_per_second=1e12
    )
    assert record == {
        "kind": "train",
        "step": 3,
        "epoch": 0.25,
        "loss": 2.0,  # 48 over 24 examples
        "error_percent": 37.5,
        "learning_rate": 0.5,  # the second of the last dispatch, as the gradient's norm
        "gradient_norm": 2.0,
        "images_per_second": 12.0,
        "model_flops_per_second": 12e9,
        "utilization_percent": 1.2,
        "input_wait_percent": 25.0,
        "seconds": 2.0,
        "compile_seconds": 0.0,
    }
    without_peak = since.record(
        step=3, epoch=0.25, flops_per_example=1e9, peak_flops_per_second=None
    )
    assert without_peak["utilization_percent"] is None


@pytest.mark.parametrize(
    ("arguments", "metric"),
    [
        (([1, math.nan, math.inf],), "loss"),
        (([1, 2, 3], [1, math.inf, 1]), "gradient_norm"),
    ],
)
def test_the_first_step_that_is_not_finite_is_named(arguments, metric):
    with pytest.raises(training_records.NonFiniteError) as stop:
        training_records.MetricSums().add(11, sums(*arguments))
    assert (stop.value.step, stop.value.metric) == (12, metric)
    assert str(stop.value) in (
        f"{metric} is nan at step 12",
        f"{metric} is inf at step 12",
    )


def evaluated(errors, loss=26.0):
    return {
        "loss": np.float64(loss),
        "errors": np.float64(errors),
        "examples": np.float64(13),
        "residual_ratio": np.float64([13, 6.5]),
    }


def test_an_evaluation_record_by_hand():
    record = training_records.evaluation_record(
        evaluated(13), step=4, epoch=1.5, seconds=0.5, compile_seconds=0.25
    )
    assert record == {
        "kind": "evaluation",
        "step": 4,
        "epoch": 1.5,
        "test_loss": 2.0,
        "test_error_percent": 100.0,
        "test_examples": 13,
        "residual_ratio": [1.0, 0.5],
        "seconds": 0.5,
        "compile_seconds": 0.25,
    }
    with pytest.raises(
        training_records.NonFiniteError, match="test_loss is nan at step 4"
    ):
        training_records.evaluation_record(
            evaluated(0, math.nan), step=4, epoch=1.5, seconds=0, compile_seconds=0
        )


def test_the_result_names_last_and_best_step_and_adds_up_seconds():
    records = []
    for step, errors in ((0, 13), (2, 0), (4, 0), (6, 13)):
        if step:
            since = training_records.MetricSums()
            since.add(step - 1, sums([8 * step, 8 * step]))
            since.seconds = 16 / step
            since.compile_seconds = 1.0
            records.append(
                since.record(
                    step=step,
                    epoch=0.0,
                    flops_per_example=1.0,
                    peak_flops_per_second=None,
                )
            )
        records.append(
            training_records.evaluation_record(
                evaluated(errors),
                step=step,
                epoch=0.0,
                seconds=0.5,
                compile_seconds=0.25,
            )
        )
    assert training_records.result(records) == {
        "steps": 6,
        "test_error_percent": 100.0,
        "test_error_best_percent": 0.0,
        "best_step": 2,
        "test_loss": 2.0,
        "test_examples": 13,
        "train_error_percent": 37.5,
        "train_loss": 6.0,
        "images_per_second": 4.0,  # of 2, 4 and 6
        "model_flops_per_second": 4.0,
        "utilization_percent": None,
        "input_wait_percent": 0.0,
        "compile_seconds": 4.0,
        "train_seconds": pytest.approx(8 + 4 + 16 / 6),
        "evaluate_seconds": 2.0,
    }
