"""Estimates the effect of rounding on a finished network, built by `construct`.

A unit is zero on every point that it must leave alone, and adding zero changes no bit. So a point
carries the error of A_0 x, of norm eps_h, and no more until its own block moves it. With unit
roundoff u, the pre-activation of unit i at h is off by at most

    eta_i(h) = |u_i| eps_h + (k + 1) u (|u_i| |h| + |s_i|).

eps_h is measured, so this is an estimate and no proof (docs/theory/memorize.md, E9).
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from identity_matters.memorize.network import Plan, in_blocks

# An output within this of the one-hot label is nearer to it than to any other label.
OUTPUT_TOLERANCE = 1 / 2


class PrecisionError(ValueError):
    """The arithmetic is too coarse for the margins of the network."""


class Certificate(NamedTuple):
    """What is known about a network in float32 or float64 (`precision`) before it is run.

    Attributes:
      smallest_margin: the least distance of a pre-activation from zero: above it on the unit's
        own point, below it on points that the unit must leave alone.
      margin_over_rounding: the smallest ratio of a margin to its rounding error eta.
      output_error_bound: bound on |yhat - y| over all examples and outputs, if eps_h is a bound.
      holds: whether all margins exceed rounding and the outputs are within OUTPUT_TOLERANCE.
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
                f"{self.precision} is too coarse for this network: its smallest margin is"
                f" {self.smallest_margin:.2g}, {self.margin_over_rounding:.2g} times the rounding"
                f" error there, and outputs may be off by {self.output_error_bound:.2g}, of which"
                f" {OUTPUT_TOLERANCE} is allowed; {remedy(self.precision)}"
            )


def remedy(precision: str) -> str:
    """What to try if a margin is too small."""
    wider = "a larger width, which helps if the inputs spread over more dimensions than it has"
    return f"use dtype float64, or {wider}" if precision == "float32" else f"try {wider}"


def certify(
    plan: Plan,
    h: np.ndarray,
    y: np.ndarray,
    V: np.ndarray,
    own: np.ndarray,
    pre_activations: np.ndarray,
    output_V: np.ndarray,
    eps_h: float,
    dtype: DTypeLike,
) -> Certificate:
    """Estimates rounding errors; for the arrays see `construct.solve_blocks` and `solve_output`."""
    n, width = h.shape
    u = np.finfo(dtype).eps / 2
    norms = np.linalg.norm(h, axis=1)
    U_norm = np.linalg.norm(plan.U, axis=2)
    dot_error = (width + 1) * u
    ordered_norm = in_blocks(norms[plan.order], width)
    eta = U_norm[:, :, None] * (eps_h + dot_error * ordered_norm[:, None, :])
    eta += dot_error * np.abs(plan.s)[:, :, None]
    landing = _landing_errors(plan, h, y, V, pre_activations, eta, u)
    U_norm, s = U_norm.reshape(-1)[:n], np.abs(plan.s).reshape(-1)[:n]
    largest = max(norms.max(), np.linalg.norm(plan.surrogates, axis=1).max() + landing.max())
    eta_elsewhere = U_norm * (eps_h + dot_error * largest) + dot_error * s
    own_eta = np.diagonal(eta, axis1=1, axis2=2).reshape(-1)[:n]
    eta_landed = eta_elsewhere + U_norm * landing.max()
    margins = own, plan.silence, plan.surrogate_silence
    errors = own_eta, eta_elsewhere + plan.search_error, eta_landed
    ratio = min((margin / error).min() for margin, error in zip(margins, errors, strict=True))
    output_error = _output_error(plan, output_V, landing, y[plan.order], u)
    return Certificate(
        precision=np.dtype(dtype).name,
        smallest_margin=float(min(margin.min() for margin in margins)),
        margin_over_rounding=float(ratio),
        output_error_bound=float(output_error),
        holds=bool(ratio > 1 and output_error < OUTPUT_TOLERANCE),
    )


def _landing_errors(plan, h, y, V, pre_activations, eta, u) -> np.ndarray:
    """Bound on the distance of each moved point from its surrogate label: f64[n], in plan.order."""
    n, width = h.shape
    activations = np.maximum(pre_activations, 0)
    points, targets = (in_blocks(a, width) for a in (h[plan.order], plan.surrogates[y[plan.order]]))
    # The rounding of V is known; that of the network's own arithmetic is bounded.
    residual = points + (V @ activations).transpose(0, 2, 1) - targets
    V_norm = np.linalg.norm(V, axis=1)[:, :, None]
    fires = pre_activations > -eta
    evaluation = (V_norm * (fires * eta + (width + 1) * u * activations)).sum(1)
    rounding = u * (np.linalg.norm(points, axis=2) + np.linalg.norm(targets, axis=2))
    return (np.linalg.norm(residual, axis=2) + evaluation + rounding).reshape(-1)[:n]


def _output_error(plan, output_V, landing, labels, u) -> float:
    """Bound on |yhat - y| if points land within the largest `landing` of their class from q_j."""
    num_classes, width = plan.surrogates.shape
    radius = np.zeros(num_classes)
    np.maximum.at(radius, labels, landing)
    norms = np.linalg.norm(plan.output_U, axis=1)[:, None]
    sizes = (np.linalg.norm(plan.surrogates, axis=1) + radius)[None]
    rounding = (width + 1) * u * (norms * sizes + np.abs(plan.output_s)[:, None])
    pre_activations = plan.output_U @ plan.surrogates.T + plan.output_s[:, None]
    reach = norms * radius[None] + rounding
    sure, possible = pre_activations > reach, pre_activations > -reach
    activations = np.maximum(pre_activations, 0)
    error = np.abs(output_V @ activations - np.eye(num_classes))
    # Units that fire on the whole ball act as one linear map, bounded as a whole: on a line, large
    # slopes of both signs add up to a small one. Other units are bounded one by one.
    slopes = np.zeros((num_classes, num_classes))
    for axis in range(width):
        slopes += (output_V @ (sure * plan.output_U[:, axis, None])) ** 2
    error += np.sqrt(slopes) * radius[None]
    single = possible * rounding + (possible & ~sure) * reach + (num_classes + 1) * u * activations
    error += np.abs(output_V) @ single
    return error[:, np.unique(labels)].max()
