"""Numbers as people write them, in tables and in sentences.

Nothing but a number, true, false or null is put into words: no text of a run gets
through here.
"""

import decimal
import re
import statistics
from typing import Any

# Where a number is still written in full.
# An int is a count, and all of its digits are meant. Beyond 15 nobody reads them, and
# readers of JSON that keep numbers as float64 lose some.
_COUNTS_BELOW = 10**15
# The whole part of a float: 123,457 is easier to read than 1.235e+05. A longer one
# would show many more digits than were asked for.
_WHOLE_PARTS_BELOW = 10**6
# The fraction of a float: nobody needs that of 1,234.5, even if five digits were asked
# for.
_FRACTIONS_BELOW = 1000
_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def _is_number(value: Any) -> bool:
    """Whether this is an ordinary number, so that statistics of several stay finite."""
    return type(value) in (int, float) and abs(value) < 1e300


def _as_word(value: object) -> str:
    """A value that is not an ordinary number, as text.

    Examples are "true", "None", "inf" and "1e+305". Raises TypeError for text.
    """
    if isinstance(value, bool):
        return str(value).lower()
    if value is None:
        return str(value)
    if isinstance(value, int | float):
        return f"{float(value):g}"
    raise TypeError(
        f"a result must be a number, true, false or null, not {type(value).__name__}"
    )


def format_number(value: object, digits: int = 4) -> str:
    """Formats a number for the tables: counts in full, others to `digits` digits.

    A count is an int below 10^15. Below a million, others are rounded to integers from
    1,000 on and where they would need an exponent. Raises TypeError for what is neither
    a number nor true, false or null.
    """
    if not isinstance(value, int | float) or not _is_number(value):
        return _as_word(value)
    if _is_count(value):
        return f"{value:,}"
    if abs(value) < _WHOLE_PARTS_BELOW and not _reaches_units(value, digits):
        return f"{value:,.0f}"
    return f"{value:.{digits}g}"


def _is_count(value: float) -> bool:
    """Whether `format_number` writes all digits, however few are asked for."""
    return isinstance(value, int) and abs(value) < _COUNTS_BELOW


def _reaches_units(value: float, digits: int) -> bool:
    """Whether `digits` digits write a whole part, below 1,000, without an exponent.

    Digits that are left are a fraction: 12.3 is 12 at two digits, and 12.3 at three.
    """
    rounded = abs(float(f"{value:.{digits}g}"))
    return abs(value) < _FRACTIONS_BELOW and rounded < 10**digits


def mean_sd(values: list) -> str:
    """Mean ± standard deviation, or the value alone if all are equal.

    If one is not an ordinary number, the different values are listed instead.
    """
    if not all(map(_is_number, values)):
        return _listed(values)
    if len(set(values)) == 1:
        return format_number(values[0])
    deviation = format_number(statistics.stdev(values), digits=2)
    return f"{format_number(statistics.fmean(values))} ± {deviation}"


def _listed(values: list) -> str:
    """The different values in their order, as they are."""
    words = (str(value) if _is_number(value) else _as_word(value) for value in values)
    return ", ".join(dict.fromkeys(words))


def in_words(values: list, digits: int = 2, extreme: str = "") -> str:
    """Values in a sentence: their range, or one number if its ends look the same.

    Both ends have `digits` digits. `extreme` "max" or "min" gives only that value,
    rounded so that it bounds all of them.

    >>> [in_words(x) for x in ([4, 8, 4], [0.6012, 0.6026], [50_000], [1.6e32])]
    ['4–8', '0.60', '50,000', '1.6 × 10³²']
    >>> [in_words([0.6386, 0.6412], extreme=extreme) for extreme in ("min", "max")]
    ['0.63', '0.65']
    """
    if not all(map(_is_number, values)):
        return _listed(values)
    if extreme == "min":
        return _end_in_words(min(values), digits, extreme)
    if extreme == "max":
        return _end_in_words(max(values), digits, extreme)
    ends = [_end_in_words(end, digits) for end in (min(values), max(values))]
    # A dash behind an exponent, or before a sign, would be read as a minus.
    has_sign_or_exponent = any("-" in end or "×" in end for end in ends)
    return (" to " if has_sign_or_exponent else "–").join(dict.fromkeys(ends))


def _end_in_words(value: float, digits: int, extreme: str = "") -> str:
    """One end of a range to `digits` digits; see `in_words` for `extreme`."""
    # Decided before it is rounded: a bound of 1 + 2e-16 is written as 1.0, not as 1.
    has_fraction = not float(value).is_integer()
    if extreme and not _is_count(value):
        value = _bound(value, digits, extreme)
    if has_fraction and _reaches_units(value, digits):
        # "#" keeps the trailing zeros, which show the precision: 1.0.
        text = f"{value:#.{digits}g}"
    else:
        text = format_number(value, digits)
    return _with_power_of_ten(text)


def _with_power_of_ten(text: str) -> str:
    """The text of a number with its exponent, if any, as in 1.6 × 10³²."""
    mantissa, _, exponent = text.partition("e")
    # "#" leaves a point behind the last digit: "12.", "1.e-11".
    mantissa = mantissa.removesuffix(".")
    if not exponent:
        return mantissa
    return f"{mantissa} × 10{str(int(exponent)).translate(_SUPERSCRIPTS)}"


def _bound(value: float, digits: int, extreme: str) -> float:
    """The nearest number of `digits` digits from `value` up ("max") or down ("min").

    Digits after the ninth are rounded off first, as they may be rounding errors of
    float64: 1 + 2e-16 is at most 1.0.
    """
    exact = decimal.Context(prec=9).create_decimal_from_float(value)
    digits_of_whole_part = exact.adjusted() + 1
    if _FRACTIONS_BELOW <= abs(value) < _WHOLE_PARTS_BELOW:
        # The whole part is written in full, and no fraction.
        digits = digits_of_whole_part
    elif abs(value) < _FRACTIONS_BELOW:
        digits = max(digits, digits_of_whole_part)
    rounding = decimal.ROUND_CEILING if extreme == "max" else decimal.ROUND_FLOOR
    context = decimal.Context(prec=digits, rounding=rounding)
    return float(context.create_decimal(exact))


def count_of(count: int, noun: str) -> str:
    """Such as "1 run" or "2 runs"."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def duration(seconds: float) -> str:
    """Seconds in the unit that suits them: "42 s", "5.3 min", "2.1 h"."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def natural_order(name: str) -> list[str | int]:
    """A key that sorts net/7 before net/15."""
    # Text and digits alternate, so that a number is only compared with a number.
    parts = re.split("([0-9]+)", name)
    return [int(part) if place % 2 else part for place, part in enumerate(parts)]
