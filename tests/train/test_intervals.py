"""When a training dispatches, logs, evaluates and saves."""

import dataclasses

import pytest

from identity_matters.train.intervals import Intervals


def test_the_time_left_is_that_of_steps_and_evaluations():
    intervals = Intervals(
        steps=100,
        steps_per_dispatch=1,
        steps_per_log=10,
        steps_per_evaluation=30,
        steps_per_checkpoint=50,
    )
    # 60 steps; evaluations at 60, 90 and 100.
    left = intervals.seconds_left(40, step_seconds=2.0, evaluation_seconds=7.0)
    assert left == 60 * 2 + 3 * 7


def test_dispatches_end_where_something_is_due():
    intervals = Intervals(
        steps=50,
        steps_per_dispatch=8,
        steps_per_log=10,
        steps_per_evaluation=25,
        steps_per_checkpoint=33,
    )
    ends = []
    step = 0
    while step < 50:
        step = intervals.dispatch_end(step)
        ends.append(step)
    assert ends == [8, 10, 18, 20, 25, 30, 33, 40, 48, 50]


@pytest.mark.parametrize(
    ("name", "due"),
    [("log", [4, 6]), ("evaluation", [0, 3, 6]), ("checkpoint", [5, 6])],
)
def test_only_an_evaluation_is_due_before_the_first_step(name, due):
    intervals = Intervals(
        steps=6,
        steps_per_dispatch=1,
        steps_per_log=4,
        steps_per_evaluation=3,
        steps_per_checkpoint=5,
    )
    assert [step for step in range(7) if intervals.is_due(name, step)] == due


@pytest.mark.parametrize(
    "name", [field.name for field in dataclasses.fields(Intervals)]
)
def test_intervals_below_one_are_refused(name):
    every = dict.fromkeys((field.name for field in dataclasses.fields(Intervals)), 1)
    with pytest.raises(ValueError, match=f"{name} must be at least 1, got 0"):
        Intervals(**{**every, name: 0})
