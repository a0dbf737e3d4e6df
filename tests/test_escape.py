"""V5 and V6 of docs/theory/convergence.md: the time to leave a saddle."""

import math

import numpy as np
import pytest

from identity_matters.linear import escape


def updates_needed(w, r, sigma, risk, step):
    w = np.array(w, np.float64)
    for update in range(10**6):
        p = w.prod()
        if sigma * (p - r) ** 2 <= risk:
            return update
        w -= step * 2 * sigma * (p - r) * np.array([np.delete(w, i).prod() for i in range(w.size)])
    raise AssertionError("no end")


@pytest.mark.parametrize("depth", [1, 2, 3, 5])
@pytest.mark.parametrize("r", [-0.5, -2.0, 0.5, 3.0])
def test_descent_takes_as_long_as_predicted(depth, r):
    rng = np.random.default_rng(depth)
    for sigma in (1.0, 0.3):
        w = 1 + 0.2 * rng.uniform(-1, 1, depth)
        step = 0.01 / (depth * sigma * (1 + abs(r)) ** 2)
        predicted = escape.escape_time(w, r, sigma, 1e-4) / step
        assert updates_needed(w, r, sigma, 1e-4, step) == pytest.approx(predicted, rel=0.03)


def test_two_layers_by_hand():
    """c = 3, sigma = 1: dw / (2 (p - r) q); at r -> -infinity only q counts: an area sine."""
    w, r, end = np.array([1.0, 2.0]), -1e9, -2.0
    risk = (end - r) ** 2
    by_hand = (math.asinh(1 / math.sqrt(3)) * 2) / (2 * 1e9)
    assert escape.escape_time(w, r, 1.0, risk) == pytest.approx(by_hand, rel=1e-6)


def test_equal_weights_never_leave():
    assert escape.escape_time([1.0, 1.0, 1.5], -1.0, 1.0, 0.1) == math.inf
    assert escape.escape_time([1.0, 1.0, 1.5], 1.0, 1.0, 0.1) < math.inf


def test_the_time_grows_by_the_depth_as_v6_says():
    """T is at least the bound of V6, and the noise's power of it is -(l-2)/2."""
    for depth in (3, 4, 5, 6):
        times = []
        for noise in (1e-4, 1e-6):
            w = 1 + noise * np.arange(depth)
            c = w[1:] ** 2 - w[0] ** 2
            bound = math.sqrt(c.min()) / (2 * (w.prod() + 1) * np.sqrt(2 * c).prod())
            times.append(escape.escape_time(w, -1.0, 1.0, 0.01))
            assert times[-1] >= bound
        slope = math.log(times[1] / times[0]) / math.log(1e-6 / 1e-4)
        assert slope == pytest.approx(-(depth - 2) / 2, abs=0.03)


def test_more_layers_are_faster_for_positive_targets_that_are_not_small():
    """From w_i = 1: dp/dt = 2 l p^{2 - 2/l} (r - p), which falls from l = 1 to 2 where p < 1/2."""

    def times(r):
        return np.array([escape.escape_time(np.ones(n), r, 1.0, 1e-6) for n in (1, 2, 3, 4, 8)])

    assert (np.diff(times(3.0)) < 0).all() and (np.diff(times(1.5)) < 0).all()
    # From l = 2 log(1 / r) = 2.77 on.
    assert (np.diff(times(0.25))[2:] < 0).all()
    assert times(0.01)[1] > 10 * times(0.01)[0]


def test_reached_at_the_start():
    assert escape.escape_time([1.0, 1.1], 1.0, 1.0, 0.02) == 0.0
    # sigma (p - r)^2 = 0.005.
    assert escape.escape_time([1.0, 1.1], 1.0, 0.5, 0.006) == 0.0


def test_small_weights_have_further_to_go_than_the_target_is_large():
    """From 0.1 the smallest weight ends near -0.69, though the product ends near -0.49."""
    predicted = escape.escape_time([0.1, 0.2], -0.5, 1.0, 1e-4) / 0.002
    assert updates_needed([0.1, 0.2], -0.5, 1.0, 1e-4, 0.002) == pytest.approx(predicted, rel=0.01)


@pytest.mark.parametrize(
    ("w", "r", "sigma", "risk", "message"),
    [
        ([1.0, -1.0], 1.0, 1.0, 0.1, "positive numbers"),
        ([1.0], 0.0, 1.0, 0.1, "r = 0"),
        ([1.0], 1.0, 1.0, 2.0, "risk below"),
        ([1.0], 1.0, -1.0, 0.1, "sigma"),
    ],
)
def test_bad_input_is_named(w, r, sigma, risk, message):
    with pytest.raises(ValueError, match=message):
        escape.escape_time(w, r, sigma, risk)
