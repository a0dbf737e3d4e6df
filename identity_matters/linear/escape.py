"""How long does gradient descent take to leave the saddle of a negative target? Scalar nets.

``f(w) = sigma (w_1 ... w_l - r)^2`` with ``w_i = 1 + A_i``. From ``w_1 = ... = w_l`` and r < 0 it
never reaches the optimum: the weights shrink to the saddle 0 together. Differences in the start
break the tie. Gradient flow keeps ``w_i^2 - w_j^2`` (Arora, Cohen & Hazan, 1802.06509). With
``c_i = w_i^2 - w_min^2 >= 0`` the smallest weight w moves by

    dw/dt = -2 sigma (p - r) q,    q = prod_{i != min} sqrt(w^2 + c_i),    p = w q,

and the time is one integral over w. Near w = 0, q is about ``prod sqrt(c_i)``. For noise of size
delta the time grows like ``delta^{-(l-2)/2}``, exponentially in the depth, as Shamir (1809.08587)
proved for nets of this kind. Statements and proofs: docs/theory/convergence.md.
"""

import math

import numpy as np
import scipy.integrate
import scipy.optimize
from numpy.typing import ArrayLike


def escape_time(w: ArrayLike, r: float, sigma: float, risk: float) -> float:
    """Time of gradient flow from `w` until ``f - C = sigma (prod w - r)^2`` is at most `risk`.

    Gradient descent of a small step size eta takes about ``escape_time / eta`` updates. With
    diagonal target, second moment and weights there is one such net for each entry: the largest of
    their times counts.

    One weight, r = -1: p = w, dw/dt = -2 (w + 1), from 1 until w + 1 = 0.1.

    >>> round(escape_time([1.0], -1.0, 1.0, 0.01), 6), round(math.log(2 / 0.1) / 2, 6)
    (1.497866, 1.497866)

    Args:
      w: f64[l], the start, all above 0.
      r: the target, not 0.
      sigma: the second moment of the input, above 0.
      risk: where to stop, above 0 and below ``sigma r^2``, the risk at the saddle.
    Returns:
      The time; math.inf for r < 0 if two weights share the least value.
    Raises:
      ValueError: an argument out of range; the message names it.
    """
    w = np.sort(np.asarray(w, np.float64))
    if w.ndim != 1 or not w.size or not (w > 0).all():
        raise ValueError(f"w must be a row of positive numbers, got {w}")
    if not (sigma > 0 and r != 0 and 0 < risk < sigma * r * r):
        raise ValueError(
            f"sigma and risk must be positive and risk below sigma r^2, got r = {r},"
            f" sigma = {sigma}, risk = {risk}"
        )
    least, others = w[0], w[1:] ** 2 - w[0] ** 2

    def rest(x):
        return math.prod(np.sqrt(x * x + others))

    end = r + math.copysign(math.sqrt(risk / sigma), least * rest(least) - r)
    if sigma * (least * rest(least) - r) ** 2 <= risk:
        return 0.0
    if r < 0 and others.size and others[0] == 0:
        return math.inf
    # p is increasing in w, and |p| >= |w|^l.
    bound = max(least, abs(end), abs(end) ** (1 / w.size))
    last = scipy.optimize.brentq(lambda x: x * rest(x) - end, -bound, bound, xtol=1e-15)

    # x = g sinh(u) resolves the peak at 0, whose width is g.
    g = math.sqrt(others[0]) if others.size and others[0] > 0 else 1.0

    def integrand(u):
        x = g * math.sinh(u)
        speed = 2 * sigma * abs(x * rest(x) - r) * rest(x)
        return g * math.cosh(u) / speed

    low, high = sorted((math.asinh(last / g), math.asinh(least / g)))
    time, _ = scipy.integrate.quad(integrand, low, high, limit=500)
    return time
