"""What is proved with a computer, by enclosures with outward rounding: F14 and F19."""

import decimal
import functools
import itertools
import math
from fractions import Fraction

import pytest

from tests import intervals
from tests.intervals import (
    PI,
    TWO,
    UNIT,
    ZERO,
    Interval,
    arccos,
    arctan,
    between,
    exp,
    log,
    number,
)

# The eigenvalues of F14's smallest case: -A, -B and r (COSINE +- i SINE).
A = Fraction(16)
B = Fraction(1)
COSINE = Fraction(-4, 5)
CELLS = 600


@pytest.mark.parametrize(
    ("function", "reference", "points"),
    [
        (log, math.log, (0.01, 0.3, 1.0, 1.5, 2.0, 16.0, 1e9)),
        (arctan, math.atan, (0.0, 0.1, 0.9, 1.0, 1.1, 50.0)),
        (arccos, math.acos, (-0.999, -0.8, 0.0, 0.3, 0.999)),
        (exp, math.exp, (0.0, 0.7, 1.0, 3.0, 10.0)),
    ],
)
def test_enclosures_hold_the_values_and_are_narrow(function, reference, points):
    for x in points:
        enclosure = function(number(x))
        value = reference(x)
        slack = 4e-16 * max(abs(value), 1)  # of the C library's value
        assert (
            enclosure.low / intervals.ONE <= value + slack
            and enclosure.high / intervals.ONE >= value - slack
        )
        assert (enclosure.high - enclosure.low) / intervals.ONE < 1e-11 * max(
            abs(value), 1
        )
        wide = function(between(x, x + 1e-4))
        assert wide.low <= enclosure.low and wide.high >= enclosure.high


def test_pi_and_a_product_of_signs():
    assert PI.below(Fraction(314159265360, 10**11)) and PI.above(
        Fraction(314159265358, 10**11)
    )
    product = between(-2, 3) * between(-5, Fraction(1, 3))
    assert product == Interval(-15 * intervals.ONE, 10 * intervals.ONE)
    # An interval around a number is on neither side of it.
    assert not (between(1, 3).below(2) or between(1, 3).above(2))


def test_every_rounding_is_outward(monkeypatch):
    tiny = Interval(3, 3)  # its square is far below the spacing of the numbers
    assert tiny * tiny == Interval(0, 1)
    third = intervals.ONE // 3
    assert number(Fraction(1, 3)) == UNIT / number(3) == Interval(third, third + 1)
    assert UNIT / between(2, 4) == between(Fraction(1, 4), Fraction(1, 2))
    root = number(2).sqrt()
    assert root.low**2 < 2 * intervals.ONE**2 < root.high**2
    # A cosine of -1 may be in the interval.
    assert arccos(between(-2, 0)).high == PI.high
    for sign in (1, -1):
        for k in range(1, 100):
            z = number(Fraction(k, 300))
            enclosure = intervals._odd_series(Interval(z.low, z.low), sign)
            exact_z = Fraction(z.low, intervals.ONE)
            exact = sum(
                sign**i * exact_z ** (2 * i + 1) / (2 * i + 1) for i in range(30)
            )
            assert enclosure.low < exact * intervals.ONE < enclosure.high
    for k in range(1, 100):
        with decimal.localcontext(prec=50):
            exact = Fraction((decimal.Decimal(k) / 128).exp())
        enclosure = exp(number(Fraction(k, 128)))
        assert enclosure.low < exact * intervals.ONE < enclosure.high
    # What is left of a series is bounded wherever it is cut off.
    monkeypatch.setattr(intervals, "_TERMS", 3)
    for function, reference in ((log, math.log), (arctan, math.atan), (exp, math.exp)):
        enclosure = function(number(Fraction(3, 2)))
        assert enclosure.low < reference(1.5) * intervals.ONE < enclosure.high


def longest_way(r, from_lower, squared):
    """``|w_rho|`` of F10 on one of the triangle's lower edges.

    r and rho^2, which is `squared`, are intervals. The pairs (|R x|^2, <x, R x>) fill
    the triangle of (B^2, -B), (r^2, r COSINE) and (A^2, -A), so rho cos alpha_rho lies
    on the edge over rho^2.
    """
    corner = number(B if from_lower else A)
    rise = r * number(COSINE) + corner
    run = r * r - corner * corner
    # Intervals are divided by positive ones.
    slope = rise / run if from_lower else (ZERO - rise) / (ZERO - run)
    inner = slope * (squared - corner * corner) - corner
    rho = squared.sqrt()
    turned = TWO * PI - arccos(inner / rho)
    log_rho = log(rho)
    return (log_rho * log_rho + turned * turned).sqrt()


def largest_on_edge(r, from_lower):
    """An enclosure of the largest ``|w_rho|`` on an edge."""
    low, high = (B * B, r * r) if from_lower else (r * r, A * A)
    ends = [low + (high - low) * Fraction(k, CELLS) for k in range(CELLS + 1)]
    cells = [
        longest_way(number(r), from_lower, between(*cell))
        for cell in itertools.pairwise(ends)
    ]
    points = [longest_way(number(r), from_lower, number(end)) for end in ends]
    return Interval(
        max(point.low for point in points), max(cell.high for cell in cells)
    )


@pytest.mark.slow
def test_the_longest_ways_of_the_two_edges_change_places():
    """So they are equal for an r in (9, 9.25).

    There F14 says that L is larger than both.
    """
    before = [largest_on_edge(Fraction(9), from_lower) for from_lower in (True, False)]
    after = [
        largest_on_edge(Fraction(37, 4), from_lower) for from_lower in (True, False)
    ]
    assert before[0].below(Fraction(4429, 1000)) and before[1].above(
        Fraction(4431, 1000)
    )
    assert after[0].above(Fraction(4439, 1000)) and after[1].below(Fraction(4437, 1000))


def test_the_longest_ways_are_not_at_a_corner():
    """Where those of both edges are equal, for an r in [9, 9.25].

    For every such r a vector of the lower edge goes further than those at the corners.
    """
    ends = [9 + Fraction(k, 100) for k in range(26)]
    for cell in itertools.pairwise(ends):
        way = longest_way(between(*cell), from_lower=True, squared=number(43))
        assert way.above(Fraction(442, 100))
    log_r = log(between(9, Fraction(37, 4)))
    turned = TWO * PI - arccos(number(COSINE))
    assert (log_r * log_r + turned * turned).sqrt().below(Fraction(44, 10))
    for modulus in (A, B):
        log_modulus = log(number(modulus))
        assert (log_modulus * log_modulus + PI * PI).sqrt().below(Fraction(44, 10))


# F19, pairs alone are within 23 percent: |q + i (pi + psi)| <= 1.23 |g + i pi| for
# 0 <= q <= g, where cos psi = cosh q / cosh g.

LARGEST_RATIO = Fraction(123, 100)


@functools.cache
def cosh(x):
    """cosh x for a fraction x >= 0."""
    power = exp(number(x))
    return (power + UNIT / power) / TWO


def is_proved(q_low, q_high, g_low, g_high):
    """Whether the inequality holds on a box.

    Its corners have the largest q, psi and 1/g.
    """
    cosine = cosh(q_low) / cosh(g_high)
    # At q = g the cosine is 1 and psi is 0.
    psi = (
        arccos(cosine)
        if cosine.below(1)
        else ZERO.hull(arccos(number(Fraction(999, 1000))))
    )
    turned = PI + psi
    q = number(q_high)
    g = number(g_low)
    left = q * q + turned * turned
    right = number(LARGEST_RATIO) * number(LARGEST_RATIO) * (g * g + PI * PI)
    return left.high < right.low


@pytest.mark.slow
def test_pairs_alone_are_within_23_percent():
    """By bisection up to g = 21, and beyond it with q <= g and psi < pi / 2."""
    half_pi = PI / TWO
    turned = PI + half_pi
    g = number(21)
    # (g^2 + (3 pi/2)^2) / (g^2 + pi^2) falls as g grows.
    assert (turned * turned + g * g).high < (
        number(LARGEST_RATIO) * (PI * PI + g * g)
    ).low
    boxes = [(Fraction(0), Fraction(21), Fraction(0), Fraction(21))]
    tried = 0
    while boxes:
        q_low, q_high, g_low, g_high = boxes.pop()
        if q_low > g_high:
            continue
        tried += 1
        assert tried < 50_000
        if is_proved(q_low, min(q_high, g_high), g_low, g_high):
            continue
        if q_high - q_low > g_high - g_low:
            middle = (q_low + q_high) / 2
            boxes += [(q_low, middle, g_low, g_high), (middle, q_high, g_low, g_high)]
        else:
            middle = (g_low + g_high) / 2
            boxes += [(q_low, q_high, g_low, middle), (q_low, q_high, middle, g_high)]
    assert tried > 100  # the bisection was needed
