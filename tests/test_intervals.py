import pytest

from identity_matters.training.intervals import Intervals

SETTINGS = {
    "steps": 50,
    "steps_per_dispatch": 8,
    "steps_per_log": 10,
    "steps_per_evaluation": 25,
    "steps_per_checkpoint": 40,
}


def test_dispatches_end_where_something_is_due():
    intervals = Intervals(**SETTINGS)
    ends, step = [], 0
    while step < 50:
        step = intervals.dispatch_end(step)
        ends.append(step)
    assert ends == [8, 10, 18, 20, 25, 30, 38, 40, 48, 50]
    assert intervals.dispatch_lengths(20, 40) == {5, 8, 2}


def test_what_is_due_when():
    intervals = Intervals(**{**SETTINGS, "steps": 45})
    due = {
        name: [s for s in range(46) if intervals.is_due(name, s)]
        for name in ("log", "evaluation", "checkpoint")
    }
    assert due == {
        "log": [0, 10, 20, 30, 40, 45],
        "evaluation": [0, 25, 45],
        "checkpoint": [0, 40, 45],
    }
    assert intervals.next_due(25, "evaluation", "checkpoint") == 40
    assert intervals.next_due(40, "evaluation", "checkpoint") == 45


@pytest.mark.parametrize("name", SETTINGS)
def test_intervals_below_one_are_refused(name):
    with pytest.raises(ValueError, match=f"{name} must be at least 1, got 0"):
        Intervals(**{**SETTINGS, name: 0})
