"""Computing with whole numbers in float64, without rounding.

float64 holds every integer up to 2^53, and so it adds and multiplies integers without
rounding as long as no sum exceeds that.
"""

from typing import NamedTuple

EXACT_BITS = 53


class ExactCertificate(NamedTuple):
    """Whether the network computes without rounding, as known before it is run.

    Attributes:
      largest_integer: a bound on all parameters, terms and partial sums.
      holds: whether it is at most 2^b, for the b bits that the network may use.
    """

    largest_integer: int
    holds: bool


def exact_certificate(largest_integer: int, bits: int = EXACT_BITS) -> ExactCertificate:
    """The certificate of a network whose numbers are at most `largest_integer`."""
    return ExactCertificate(largest_integer, holds=largest_integer <= 2**bits)
