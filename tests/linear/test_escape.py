"""docs/theory/convergence.md: the times to leave a saddle (V5, V6)."""

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
        w -= (
            step
            * 2
            * sigma
            * (p - r)
            * np.array([np.delete(w, i).prod() for i in range(w.size)])
        )
    raise AssertionError("no end")


@pytest.mark.parametrize("depth", [1, 2, 5])
@pytest.mark.parametrize(("r", "sigma"), [(-2.0, 0.3), (-0.5, 1.0), (3.0, 0.3)])
def test_descent_takes_as_long_as_predicted(depth, r, sigma):
    w = 1 + 0.2 * np.random.default_rng(depth).uniform(-1, 1, depth)
    step = 0.01 / (depth * sigma * (1 + abs(r)) ** 2)
    predicted = escape.escape_time(w, r, sigma, 1e-4) / step
    assert updates_needed(w, r, sigma, 1e-4, step) == pytest.approx(predicted, rel=0.03)


def test_two_layers_by_hand():
    """With c = 3 and sigma = 1, the integral of dw / (2 (p - r) q) is an arsinh.

    As r -> -infinity only q matters.
    """
    w = np.array([1.0, 2.0])
    r = -1e9
    end = -2.0
    risk = (end - r) ** 2
    by_hand = (math.asinh(1 / math.sqrt(3)) * 2) / (2 * 1e9)
    assert escape.escape_time(w, r, 1.0, risk) == pytest.approx(by_hand, rel=1e-6)


def test_equal_weights_never_leave():
    assert escape.escape_time([1.0, 1.0, 1.5], -1.0, 1.0, 0.1) == math.inf
    assert escape.escape_time([1.0, 1.0, 1.5], 1.0, 1.0, 0.1) < math.inf
    # For equal weights the root is at the bound |w| <= |p|^(1/l); rounding may put it
    # beyond that.
    w = [0.28956216773974824] * 2
    r = 1.1459160960279746
    risk = 0.12552844082640685
    assert escape.escape_time(w, r, 1.0, risk) > 0
    assert escape.escape_time([1.0, 1.1], 1.0, 1.0, 0.02) == 0.0  # reached at the start
    assert escape.escape_time([1.0, 1.1], 1.0, 0.5, 0.006) == 0.0


@pytest.mark.parametrize("r", [0.6, 1.65, 3.0])
@pytest.mark.parametrize("roundings", [1, 2, 4])
def test_a_way_of_a_few_roundings_takes_next_to_no_time(r, roundings):
    risk = ((1 - r) * (1 - roundings * 2.0**-52)) ** 2
    assert 0 <= escape.escape_time(np.ones(4), r, 1.0, risk) < 1e-15


@pytest.mark.parametrize("r", [1e-16, 1e-12, 1e-9, 0.5, 1 - 1e-9, 1 - 1e-14, 3.0, 1e9])
def test_two_equal_weights_in_closed_form(r):
    """dp/dt = 4 sigma p (r - p), so that p / |r - p| grows as exp(4 sigma r t)."""
    sigma = 0.3
    share = 1e-6
    risk = sigma * (share * min(r, abs(1 - r))) ** 2
    last = math.sqrt(risk / sigma)
    # log (p / |r - p|) at the end less that at the start, p = 1.
    ratio = math.log((r + math.copysign(last, 1 - r)) / last) - math.log(1 / abs(1 - r))
    exact = ratio / (4 * sigma * r)
    assert escape.escape_time([1.0, 1.0], r, sigma, risk) == pytest.approx(
        exact, rel=1e-9
    )


@pytest.mark.parametrize("r", [-1e9, -1.0, -1e-9, -1e-16, -1e-100, 1e-100, 1e-16, 0.9])
def test_one_weight_in_closed_form(r):
    risk = (1e-5 * r) ** 2 if abs(r) > 1e-50 else 1e-210
    exact = (math.log(abs(1 - r)) - math.log(risk) / 2) / 2
    assert escape.escape_time([1.0], r, 1.0, risk) == pytest.approx(exact, rel=1e-12)


def test_small_targets_take_the_times_of_an_integral_in_30_digits():
    """By Gauss-Legendre sums in multiple precision, made once."""
    known = {
        (1.0, 1.1, 1.3): (-1e-12, 1e-26, 96.290479943351122),
        (1.0, 1.000001): (-1e-20, 1e-44, 9383622.351056478),
        (1e-20, 1.0, 2.0): (-1.0, 1e-2, 0.23487567227110385),
        (0.5, 0.6, 0.7, 0.8): (1e-18, 1e-40, 2048.1571558565363),
    }
    for w, (r, risk, time) in known.items():
        assert escape.escape_time(w, r, 1.0, risk) == pytest.approx(time, rel=1e-9)


@pytest.mark.parametrize("risk", [0.81, 0.25, 1e-2, 1e-6, 1e-12])
@pytest.mark.parametrize("w", [1e-30, 1e-11, 1e-8, 1e-3])
def test_two_small_equal_weights_in_closed_form(w, risk):
    """p / (1 - p) grows as exp(4 t) for r = sigma = 1."""
    last = math.sqrt(risk)
    exact = (math.log((1 - last) / last) - math.log(w**2 / (1 - w**2))) / 4
    assert escape.escape_time([w, w], 1.0, 1.0, risk) == pytest.approx(exact, rel=1e-12)


def test_small_starts_take_the_times_of_an_integral_in_40_digits():
    """By Gauss-Legendre sums in multiple precision, made once."""
    known = {
        (1e-11, 1e-11, 1e-11): (1.0, 0.25, 49999999999.574874),
        (1e-8,) * 6: (1.0, 0.01, 1.2499999999999997e31),
        (1e-11, 1e-3, 0.5, 2.0): (1e-3, 1e-8, 2620.2611168369458),
        # To the side of the saddle: |w| is at most 1e-11 at the end, |u| is about 1.
        (1e-13, 1.0): (1.0, (1 - 1e-11) ** 2, 4.9500004137518522e-12),
        (1.0, 1 + 1e-12, 1.5): (-1.0, (1 - 1e-13) ** 2, 6.1244314303692896),
    }
    for w, (r, risk, time) in known.items():
        assert escape.escape_time(w, r, 1.0, risk) == pytest.approx(
            time, rel=1e-12, abs=0
        )


def test_weights_far_below_the_target_are_no_warning():
    """w_r / w is beyond float64 at the start."""
    # p / (1 - p) grows from 1e-620 to 1.
    time = escape.escape_time([1e-310, 1e-310], 1.0, 1.0, 0.25)
    assert time == pytest.approx(620 * math.log(10) / 4, rel=1e-9)
    assert escape.escape_time(np.full(6, 1e-310), 1.0, 1.0, 0.25) == math.inf


def test_a_path_that_spans_more_powers_of_ten_than_float64():
    """From 1e-217 to -1e98: the arsinh of `test_two_layers_by_hand` is a logarithm."""
    w = np.array([1e-217, 2e-217])
    r = -1e199
    sigma = 1e-150
    risk = 0.999**2 * 1e248  # sigma r^2 at p = r / 1000
    root_of_c = math.sqrt(3) * 1e-217
    way = math.asinh(1 / math.sqrt(3)) + math.log(2e98) - math.log(root_of_c)
    assert escape.escape_time(w, r, sigma, risk) == pytest.approx(
        way / (2 * sigma * abs(r)), rel=1e-5
    )


def test_times_beyond_float64_are_infinite_without_a_warning():
    assert escape.escape_time(np.full(2000, 0.5), 1.0, 1.0, 0.1) == math.inf
    assert 0 < escape.escape_time(np.full(300, 0.999), 1.0, 1.0, 0.01) < math.inf


def test_the_time_grows_by_the_depth_as_v6_says():
    """T is at least the bound of V6 and grows as the noise to the power -(l-2)/2."""
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
    """From w_i = 1, dp/dt = 2 l p^{2 - 2/l} (r - p).

    That is less for l = 2 than for l = 1 if p < 1/2.
    """

    def times(r):
        return [escape.escape_time(np.ones(n), r, 1.0, 1e-6) for n in (1, 2, 3, 4, 8)]

    assert (np.diff(times(3.0)) < 0).all() and (np.diff(times(1.5)) < 0).all()
    # For l above 2 log(1 / r) = 2.77.
    assert (np.diff(times(0.25))[2:] < 0).all()
    assert times(0.01)[1] > 10 * times(0.01)[0]


def test_small_weights_have_further_to_go_than_the_target_is_large():
    """From 0.1 the smallest weight ends near -0.69.

    The product ends near -0.49.
    """
    predicted = escape.escape_time([0.1, 0.2], -0.5, 1.0, 1e-4) / 0.002
    assert updates_needed([0.1, 0.2], -0.5, 1.0, 1e-4, 0.002) == pytest.approx(
        predicted, rel=0.01
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([1.0, -1.0], 1.0, 1.0, 0.1), "positive numbers"),
        (([1.0, np.nan], 1.0, 1.0, 0.1), "w must be finite"),
        (([1.0], math.inf, 1.0, 0.1), "r must be one finite real number"),
        (
            (np.full(2000, 2.0), 1.0, 1.0, 0.1),
            "product of w must be within the range",
        ),
        (([1.0], 0.0, 1.0, 0.1), "r = 0"),
        (([1.0], 1.0, 1.0, 2.0), "0 < risk < sigma"),
        (([1.0], 1.0, -1.0, 0.1), "sigma"),
    ],
)
def test_bad_input_is_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        escape.escape_time(*arguments)
