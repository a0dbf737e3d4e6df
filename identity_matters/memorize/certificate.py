"""The certificate of a finished network, for every device that rounds to nearest.

`input_map.project` gives the same points h_i everywhere. A unit is zero on every point
that it must leave alone, and adding zero changes nothing, so h_i stays as it is until
its own block moves it. With unit roundoff u and gamma_m = m u / (1 - m u), the
pre-activation of unit i at h is then off by at most

    eta_i(h) = gamma_{k+1} (|u_i| |h| + |s_i|),

in every order of summation. The margins compared with it are themselves computed in
float64; each bound below has that error, too. Statement and proof:
docs/theory/memorize.md (E13).
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from identity_matters.memorize.network import Plan, Solution, gamma, in_blocks

# An output within this of the one-hot label is nearer to it than to any other label.
OUTPUT_TOLERANCE = 1 / 2
# The bounds are sums of positive float64 numbers. This share covers the rounding of
# their own evaluation, which is below 2^-53 times the number of terms.
EVALUATION_SLACK = 2.0**-20


class PrecisionError(ValueError):
    """The arithmetic is too coarse for the margins of the network."""


class Certificate(NamedTuple):
    """What is known about a network in float32 or float64 before it is run.

    If it holds, the network gives every example its label, on every device that rounds
    to nearest, in every order of summation and at every batch size: (E13) of
    docs/theory/memorize.md.

    Attributes:
      smallest_margin: the least distance of a pre-activation from zero: above it on the
        unit's own point, below it on points that the unit must leave alone.
      margin_over_rounding: the smallest ratio of a margin to its rounding error.
      output_error_bound: bound on |yhat - y| over all examples and outputs, if all
        margins exceed rounding.
      holds: whether all margins exceed rounding and the outputs are within
        OUTPUT_TOLERANCE.
    """

    precision: str
    smallest_margin: float
    margin_over_rounding: float
    output_error_bound: float
    holds: bool

    def require(self) -> None:
        """Raises PrecisionError unless the certificate holds."""
        if not self.holds:
            raise PrecisionError(
                f"{self.precision} is too coarse for this network: its smallest margin"
                f" is {self.smallest_margin:.2g}, {self.margin_over_rounding:.2g} times"
                " the rounding error there, and outputs may be off by"
                f" {self.output_error_bound:.2g}, of which {OUTPUT_TOLERANCE} is"
                f" allowed; {remedy(self.precision)}"
            )


def remedy(precision: str) -> str:
    """What to try if a margin is too small."""
    wider = (
        "a larger width, which helps if the inputs spread over more dimensions than"
        " it has"
    )
    return (
        f"use dtype float64, or {wider}" if precision == "float32" else f"try {wider}"
    )


def sum_error(
    terms: int, size: np.ndarray, weights: np.ndarray, dtype: DTypeLike
) -> np.ndarray:
    """Bound on |a sum of products on a device - the same in NumPy's float64|.

    It is infinite where the terms may overflow.

    Args:
      terms: m, of the sum.
      size: a bound on the sum of the sizes of its terms, any shape.
      weights: a bound on the sum of the sizes of its factors that are weights, as
        `size`.
      dtype: float32 or float64, the arithmetic of the device.
    """
    info = np.finfo(dtype)
    rounding = gamma(terms, dtype) + gamma(terms, np.float64)
    # Each of m products and m sums may be flushed to zero, and each other factor before
    # them.
    underflow = 4 * terms * float(info.tiny)
    error = (1 + EVALUATION_SLACK) * (rounding * size + underflow * (1 + weights))
    return np.where(size < float(info.max) / 2, error, np.inf)


def certify(
    plan: Plan, h: np.ndarray, y: np.ndarray, solution: Solution, dtype
) -> Certificate:
    """Bounds the rounding errors of a network for points h with labels y.

    h is what `input_map.project` gives. `dtype` is the arithmetic of the network.
    """
    n, width = h.shape
    norms = np.linalg.norm(h, axis=1)
    U_norm = np.linalg.norm(plan.U, axis=2)
    own_errors = _own_block_errors(plan, norms, U_norm, dtype)
    landing = _landing_errors(plan, h, y, solution, own_errors, dtype)
    # From here on, one entry for each unit in plan.order.
    U_norm = U_norm.reshape(-1)[:n]
    bias_size = np.abs(plan.s).reshape(-1)[:n]
    surrogate_norms = np.linalg.norm(plan.surrogates, axis=1)
    largest = max(norms.max(), surrogate_norms.max() + landing.max())
    elsewhere = sum_error(
        width + 1, U_norm * largest + bias_size, np.sqrt(width) * U_norm, dtype
    )
    elsewhere += plan.search_error
    landed = elsewhere + (1 + EVALUATION_SLACK) * U_norm * landing.max()
    margins_and_errors = (
        (_diagonals(solution.pre_activations, n), _diagonals(own_errors, n)),
        (plan.silence, elsewhere),
        (plan.surrogate_silence, landed),
    )
    smallest = min(margin.min() for margin, _ in margins_and_errors)
    ratio = min((margin / error).min() for margin, error in margins_and_errors)
    output_error = _output_error(plan, solution.output_V, landing, y[plan.order], dtype)
    return Certificate(
        precision=np.dtype(dtype).name,
        smallest_margin=float(smallest),
        margin_over_rounding=float(ratio),
        output_error_bound=float(output_error),
        holds=bool(ratio > 1 and output_error < OUTPUT_TOLERANCE),
    )


def _diagonals(matrices: np.ndarray, n: int) -> np.ndarray:
    """The first n diagonal entries of [l, k, k] matrices, matrix after matrix."""
    return np.diagonal(matrices, axis1=1, axis2=2).reshape(-1)[:n]


def _own_block_errors(plan, norms, U_norm, dtype) -> np.ndarray:
    """eta: the error of each pre-activation at points of its block: f64[l, k, k]."""
    width = U_norm.shape[1]
    point_norms = in_blocks(norms[plan.order], width)
    size = U_norm[:, :, None] * point_norms[:, None, :] + np.abs(plan.s)[:, :, None]
    return sum_error(width + 1, size, np.sqrt(width) * U_norm[:, :, None], dtype)


def _landing_errors(plan, h, y, solution, eta, dtype) -> np.ndarray:
    """Bound on the distance of each moved point from its surrogate label: f64[n]."""
    n, width = h.shape
    points = in_blocks(h[plan.order], width)
    targets = in_blocks(plan.surrogates[y[plan.order]], width)
    activations = np.maximum(solution.pre_activations, 0)
    # The effect of rounding V is known; that of the arithmetic, here and on the device,
    # is bounded.
    residual = points + (solution.V @ activations).transpose(0, 2, 1) - targets
    fires = solution.pre_activations > -eta
    V_norm = np.linalg.norm(solution.V, axis=1)[:, :, None]
    activation_error = (V_norm * (fires * eta)).sum(axis=1)
    size = (V_norm * (activations + fires * eta)).sum(axis=1)
    size += np.linalg.norm(points, axis=2) + np.linalg.norm(targets, axis=2)
    weights = np.sqrt(width) * (1 + V_norm.sum(axis=1))
    arithmetic = sum_error(width + 2, size, weights, dtype)
    total = np.linalg.norm(residual, axis=2) + activation_error
    return ((1 + EVALUATION_SLACK) * total + arithmetic).reshape(-1)[:n]


def _output_error(plan, output_V, landing, labels, dtype) -> float:
    """Bound on |yhat - y| for points within `landing` of their surrogate labels."""
    num_classes, width = plan.surrogates.shape
    radius = np.zeros(num_classes)
    np.maximum.at(radius, labels, landing)
    norms = np.linalg.norm(plan.output_U, axis=1)[:, None]
    sizes = (np.linalg.norm(plan.surrogates, axis=1) + radius)[None]
    size = norms * sizes + np.abs(plan.output_s)[:, None]
    rounding = sum_error(width + 1, size, np.sqrt(width) * norms, dtype)
    pre_activations = plan.output_U @ plan.surrogates.T + plan.output_s[:, None]
    reach = (1 + EVALUATION_SLACK) * norms * radius[None] + rounding
    sure = pre_activations > reach
    possible = pre_activations > -reach
    activations = np.maximum(pre_activations, 0)
    V_size = np.abs(output_V)
    error = np.abs(output_V @ activations - np.eye(num_classes))
    # Units that fire on the whole ball act as one linear map, bounded as a whole: on a
    # line, large slopes of both signs add up to a small one. Other units are bounded
    # one by one.
    squared_slopes = np.zeros((num_classes, num_classes))
    for axis in range(width):
        slopes = output_V @ (sure * plan.output_U[:, axis, None])
        cancellation = gamma(num_classes, np.float64) * (
            V_size @ np.abs(plan.output_U[:, axis])
        )
        squared_slopes += (np.abs(slopes) + cancellation[:, None]) ** 2
    error += np.sqrt(squared_slopes) * radius[None]
    error += V_size @ (possible * rounding + (possible & ~sure) * reach)
    largest_activations = activations + possible * reach
    error += sum_error(
        num_classes + 1,
        V_size @ largest_activations + np.eye(num_classes),
        V_size.sum(axis=1)[:, None],
        dtype,
    )
    return (1 + EVALUATION_SLACK) * error[:, np.unique(labels)].max()
