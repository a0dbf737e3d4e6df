"""Interval arithmetic with fixed-point numbers, for proofs: every rounding is outward.

A number is an integer n that stands for ``n / 2^BITS``. An `Interval` holds all numbers
from `low` to `high`. No function of the C library is used, so nothing is assumed about
its errors.
"""

import functools
import math
from fractions import Fraction
from typing import NamedTuple

BITS = 48
ONE = 1 << BITS
# Terms of the series below; a bound of the rest is added.
_TERMS = 16


class Interval(NamedTuple):
    low: int
    high: int

    def __add__(self, other):
        return Interval(self.low + other.low, self.high + other.high)

    def __sub__(self, other):
        return Interval(self.low - other.high, self.high - other.low)

    def __mul__(self, other):
        ends = [a * b for a in self for b in other]
        return Interval(min(ends) >> BITS, -(-max(ends) >> BITS))

    def __truediv__(self, other):
        assert other.low > 0
        low = min((self.low << BITS) // b for b in other)
        return Interval(low, max(-((-self.high << BITS) // b) for b in other))

    def sqrt(self):
        assert self.low >= 0
        return Interval(math.isqrt(self.low << BITS), math.isqrt(self.high << BITS) + 1)

    def below(self, bound):
        return self.high < math.floor(Fraction(bound) * ONE)

    def above(self, bound):
        return self.low > math.ceil(Fraction(bound) * ONE)

    def hull(self, other):
        return Interval(min(self.low, other.low), max(self.high, other.high))


def number(value):
    """The smallest interval around a rational number, a float or a fraction."""
    exact = Fraction(value) * ONE
    return Interval(math.floor(exact), math.ceil(exact))


def between(low, high):
    return number(low).hull(number(high))


ZERO = number(0)
UNIT = number(1)
TWO = number(2)


def _increasing(function):
    """A function of intervals, from an increasing one of intervals of one point."""

    @functools.wraps(function)
    def extended(x):
        at_low = function(Interval(x.low, x.low))
        return (
            at_low.hull(function(Interval(x.high, x.high)))
            if x.high > x.low
            else at_low
        )

    return extended


def _odd_series(z, sign):
    """``z + sign z^3 / 3 + z^5 / 5 + ...`` for 0 <= z <= 1/3.

    It is artanh for the sign +1, arctan for -1.
    """
    square = z * z
    power = z
    total = ZERO
    for k in range(_TERMS):
        odd = 2 * k + 1
        term = Interval(power.low // odd, -(-power.high // odd))
        total = total - term if sign < 0 and k % 2 else total + term
        power = power * square
    # What is left is below power (1 + z^2 + ...), at most 9/8 of it.
    remainder = 2 * power.high + 2
    return Interval(total.low - remainder, total.high + remainder)


LOG_2 = TWO * _odd_series(UNIT / number(3), 1)
_FIFTH = UNIT / number(5)
_SMALL = UNIT / number(239)
PI = number(16) * _odd_series(_FIFTH, -1) - number(4) * _odd_series(_SMALL, -1)


@_increasing
def log(x):
    """log x for x > 0.

    With ``x = 2^k y`` and 1 <= y < 2, ``log y = 2 artanh((y - 1)/(y + 1))``.
    """
    k = x.low.bit_length() - 1 - BITS
    y = x / number(Fraction(2) ** k)
    return number(k) * LOG_2 + TWO * _odd_series((y - UNIT) / (y + UNIT), 1)


@_increasing
def arctan(x):
    """arctan x for x >= 0, by halving the angle twice."""
    if x.low > ONE:
        return PI / TWO - arctan(UNIT / x)
    for _ in range(2):
        x = x / (UNIT + (UNIT + x * x).sqrt())
    return number(4) * _odd_series(x, -1)


@_increasing
def exp(x):
    """exp x for x >= 0, by ``exp(x / 2^k)^{2^k}`` and the exponential series."""
    k = max(0, (x.high >> BITS).bit_length() + 3)
    z = x / number(2**k)
    term = UNIT
    total = UNIT
    for n in range(1, _TERMS):
        term = term * z
        term = Interval(term.low // n, -(-term.high // n))
        total = total + term
    total = Interval(total.low, total.high + 2 * term.high + 2)  # z < 1/4
    for _ in range(k):
        total = total * total
    return total


def arccos(x):
    """arccos of a cosine in x, by ``2 arctan sqrt((1 - x) / (1 + x))``.

    The interval may reach below -1.
    """
    narrow = Interval(max(x.low, 1 - ONE), x.high)
    angle = TWO * arctan(((UNIT - narrow) / (UNIT + narrow)).sqrt())
    return angle if x.low > -ONE else Interval(angle.low, PI.high)
