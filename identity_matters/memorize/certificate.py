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

from identity_matters.memorize.plan import Plan, Solution, in_blocks
from identity_matters.memorize.rounding import gamma

# An output within this of the one-hot label is nearer to it than to any other label.
OUTPUT_TOLERANCE = 1 / 2
# The bounds are sums of positive float64 numbers. This share covers the rounding of
# their own evaluation, which is below 2^-53 times the number of terms.
_EVALUATION_SLACK = 2.0**-20


class PrecisionError(ValueError):
    """The arithmetic is too coarse for the margins of the network."""


class Certificate(NamedTuple):
    """What is known about a network in float32 or float64 before it is run.

    If it holds, the network gives every example its label, on every device that rounds
    to nearest, in every order of summation and at every batch size: (E13) of
    docs/theory/memorize.md.

    Attributes:
      precision: "float32" or "float64".
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
    """Bounds how far a sum of products on a device is from NumPy's in float64.

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
    # Each of the m products and of the m sums may be flushed to zero, which is an error
    # below `tiny`. So may the other factor of a product, and its weight multiplies that
    # error.
    underflow = 4 * terms * float(info.tiny)
    error = (1 + _EVALUATION_SLACK) * (rounding * size + underflow * (1 + weights))
    return np.where(size < float(info.max) / 2, error, np.inf)


class _Solved(NamedTuple):
    """A network with the points that it moves, in the order in which it moves them.

    Attributes:
      plan, solution: the first and the second layers.
      points: f64[l, k, k], [block, point, axis], the h_j; zeros beyond n.
      targets: f64[l, k, k], the surrogate labels to which they are moved.
      labels: int[n].
      point_norms: f64[l, k], |h_j|.
      unit_norms: f64[l, k], |u_i|.
      dtype: float32 or float64, the arithmetic of the network.
    """

    plan: Plan
    solution: Solution
    points: np.ndarray
    targets: np.ndarray
    labels: np.ndarray
    point_norms: np.ndarray
    unit_norms: np.ndarray
    dtype: DTypeLike

    @property
    def width(self) -> int:
        """k."""
        return self.points.shape[2]


class _Margins(NamedTuple):
    """Distances of pre-activations from zero, f64[n], and bounds on their errors."""

    margin: np.ndarray
    error: np.ndarray


def certify(
    plan: Plan, h: np.ndarray, y: np.ndarray, solution: Solution, dtype: DTypeLike
) -> Certificate:
    """Bounds the rounding errors of a network for points h with labels y (E13).

    Args:
      plan: the first layers.
      h: f64[n, k], what `input_map.project` gives.
      y: integer[n], labels.
      solution: the second layers.
      dtype: the arithmetic of the network.
    """
    width = h.shape[1]
    labels = y[plan.order]
    solved = _Solved(
        plan=plan,
        solution=solution,
        points=in_blocks(h[plan.order], width),
        targets=in_blocks(plan.surrogates[labels], width),
        labels=labels,
        point_norms=in_blocks(np.linalg.norm(h, axis=1)[plan.order], width),
        unit_norms=np.linalg.norm(plan.U, axis=2),
        dtype=dtype,
    )
    # Numbers beyond float64 become infinite or NaN, and then nothing holds.
    with np.errstate(over="ignore", invalid="ignore"):
        eta = _errors_in_block(solved)
        delta = _move_errors(solved, eta)
        margins = _margins(solved, eta, largest_delta=delta.max())
        # Unlike Python's `min`, NumPy's is NaN if one of them is.
        smallest_margin = np.min([part.margin.min() for part in margins])
        ratio = np.min([(part.margin / part.error).min() for part in margins])
        output_error = _output_error(solved, delta)
    return Certificate(
        precision=np.dtype(dtype).name,
        smallest_margin=float(smallest_margin),
        margin_over_rounding=float(ratio),
        output_error_bound=float(output_error),
        holds=bool(ratio > 1 and output_error < OUTPUT_TOLERANCE),
    )


def _errors_in_block(solved: _Solved) -> np.ndarray:
    """``eta_i(h_j) = gamma_{k+1} (|u_i| |h_j| + |s_i|)`` for i, j of the same block.

    f64[l, k, k], [block, unit, point].
    """
    unit_norms = solved.unit_norms[:, :, None]
    biases = np.abs(solved.plan.s)[:, :, None]
    return _error_of_units(
        solved,
        unit_norms=unit_norms,
        point_norms=solved.point_norms[:, None, :],
        biases=biases,
    )


def _error_of_units(
    solved: _Solved,
    *,
    unit_norms: np.ndarray,
    point_norms: np.ndarray | float,
    biases: np.ndarray,
) -> np.ndarray:
    """``gamma_{k+1} (|u_i| |h_j| + |s_i|)``, the rounding of ``<u_i, h_j> + s_i``.

    Args:
      solved: says how many channels there are, and the dtype.
      unit_norms: |u_i|.
      point_norms: |h_j|.
      biases: |s_i|; all three broadcast.
    """
    return sum_error(
        terms=solved.width + 1,
        size=unit_norms * point_norms + biases,
        # |u|_1 <= sqrt(k) |u|
        weights=np.sqrt(solved.width) * unit_norms,
        dtype=solved.dtype,
    )


def _move_errors(solved: _Solved, eta: np.ndarray) -> np.ndarray:
    """delta_j: how far each moved point may be from its surrogate label: f64[n].

    It is |h_j + sum_i v_i a_i - q_{y_j}|, which is known, the effect of errors eta_i of
    the activations a_i, sum_i |v_i| eta_i, and the rounding of the sum itself.
    """
    pre_activations = solved.solution.pre_activations
    V = solved.solution.V
    a = np.maximum(pre_activations, 0)
    # Elsewhere the unit is zero as computed, too, and eta counts as 0.
    may_fire = pre_activations > -eta
    # f64[l, k, 1], the norm of each column v_i
    V_norm = np.linalg.norm(V, axis=1)[:, :, None]

    # The effect of rounding V is known;
    # that of the arithmetic, here and on the device, is bounded.
    residual = solved.points + (V @ a).transpose(0, 2, 1) - solved.targets
    activation_error = (V_norm * (may_fire * eta)).sum(axis=1)
    size = (V_norm * (a + may_fire * eta)).sum(axis=1)
    size += np.linalg.norm(solved.points, axis=2) + np.linalg.norm(
        solved.targets, axis=2
    )
    # k products, h_j, and q_{y_j}, which is subtracted here in float64. The error is a
    # norm over k coordinates, at most sqrt(k) times the largest of them. In each, the
    # weights are at most sum_i |v_i|, to which `sum_error` adds 1.
    sum_rounding = sum_error(
        terms=solved.width + 2,
        size=size,
        weights=np.sqrt(solved.width) * (1 + V_norm.sum(axis=1)),
        dtype=solved.dtype,
    )
    total = np.linalg.norm(residual, axis=2) + activation_error
    delta = (1 + _EVALUATION_SLACK) * total + sum_rounding
    return delta.reshape(-1)[: len(solved.labels)]


def _margins(
    solved: _Solved, eta: np.ndarray, largest_delta: float
) -> tuple[_Margins, _Margins, _Margins]:
    """The margins of all units: on their own points, on later ones, on moved ones.

    Moved points lie within `largest_delta` of their surrogate labels.
    """
    n = len(solved.labels)
    error = _error_anywhere(solved, largest_delta) + solved.plan.search_error
    # A pre-activation changes by |u_i| delta within delta of a surrogate label.
    unit_norms = solved.unit_norms.reshape(-1)[:n]
    error_around = error + (1 + _EVALUATION_SLACK) * unit_norms * largest_delta
    pre_activations = solved.solution.pre_activations
    return (
        _Margins(_diagonals(pre_activations, n), _diagonals(eta, n)),
        _Margins(solved.plan.point_margin, error),
        _Margins(solved.plan.surrogate_margin, error_around),
    )


def _error_anywhere(solved: _Solved, largest_delta: float) -> np.ndarray:
    """eta_i at the largest point that the unit must leave alone, moved or not: f64[n].

    One entry for each unit, in plan.order.
    """
    n = len(solved.labels)
    unit_norms = solved.unit_norms.reshape(-1)[:n]
    biases = np.abs(solved.plan.s).reshape(-1)[:n]
    surrogate_norms = np.linalg.norm(solved.plan.surrogates, axis=1)
    largest_point = max(solved.point_norms.max(), surrogate_norms.max() + largest_delta)
    return _error_of_units(
        solved, unit_norms=unit_norms, point_norms=largest_point, biases=biases
    )


def _diagonals(matrices: np.ndarray, n: int) -> np.ndarray:
    """The first n diagonal entries of [l, k, k] matrices, matrix after matrix."""
    return np.diagonal(matrices, axis1=1, axis2=2).reshape(-1)[:n]


class _OutputUnits(NamedTuple):
    """The units i of the last block on the balls around the surrogate labels q_j.

    Attributes:
      radius: f64[r], delta of each class: the radius of its ball.
      pre_activations: f64[r, r], p_i(q_j).
      rounding: f64[r, r], eta_i on the ball.
      reach: f64[r, r], |u_i| delta + eta_i: how far the pre-activation may be off.
      always_fires: bool[r, r], on the whole ball.
      may_fire: bool[r, r], somewhere on the ball.
    """

    radius: np.ndarray
    pre_activations: np.ndarray
    rounding: np.ndarray
    reach: np.ndarray
    always_fires: np.ndarray
    may_fire: np.ndarray


def _output_units(solved: _Solved, delta: np.ndarray) -> _OutputUnits:
    """The units of the last block if each point j is within delta_j of its q."""
    plan = solved.plan
    radius = np.zeros(len(plan.surrogates))
    np.maximum.at(radius, solved.labels, delta)
    unit_norms = np.linalg.norm(plan.output_U, axis=1)[:, None]
    largest_points = (np.linalg.norm(plan.surrogates, axis=1) + radius)[None]
    biases = np.abs(plan.output_s)[:, None]
    rounding = _error_of_units(
        solved, unit_norms=unit_norms, point_norms=largest_points, biases=biases
    )
    pre_activations = plan.output_U @ plan.surrogates.T + plan.output_s[:, None]
    reach = (1 + _EVALUATION_SLACK) * unit_norms * radius[None] + rounding
    return _OutputUnits(
        radius=radius,
        pre_activations=pre_activations,
        rounding=rounding,
        reach=reach,
        always_fires=pre_activations > reach,
        may_fire=pre_activations > -reach,
    )


def _output_error(solved: _Solved, delta: np.ndarray) -> float:
    """`output_error_bound`: the largest |yhat - y| over outputs and classes in y."""
    errors = _output_errors(solved, _output_units(solved, delta))
    largest = errors[:, np.unique(solved.labels)].max()
    return (1 + _EVALUATION_SLACK) * largest


def _output_errors(solved: _Solved, units: _OutputUnits) -> np.ndarray:
    """Bounds on the error of each output on the ball around each surrogate label q.

    f64[r, r], [output, class]. With the ball's radius delta, the one-hot label e of the
    class, and the units i that fire on the whole ball (always), on a part of it (part)
    or on either (may), the bound is, by (E13),

          | V ReLU(p(q)) - e |                       known_error
        + | sum_always V_i u_i | delta               affine_error
        + sum_may  |V_i| eta_i
        + sum_part |V_i| (|u_i| delta + eta_i)       activation_error, both sums
        + the rounding of the sum over all units     sum_rounding

    The eta_i of a unit that fires on a part counts in both sums. Once would be enough;
    twice only makes the bound larger.
    """
    V = solved.solution.output_V
    V_size = np.abs(V)
    num_classes = len(V)
    one_hot_labels = np.eye(num_classes)
    a = np.maximum(units.pre_activations, 0)
    fires_on_a_part = units.may_fire & ~units.always_fires

    known_error = np.abs(V @ a - one_hot_labels)
    affine_error = _slope_norms(solved, units) * units.radius[None]
    activation_error = V_size @ (
        units.may_fire * units.rounding + fires_on_a_part * units.reach
    )
    # r products, and e, which is subtracted here in float64.
    sum_rounding = sum_error(
        terms=num_classes + 1,
        size=V_size @ (a + units.may_fire * units.reach) + one_hot_labels,
        weights=V_size.sum(axis=1)[:, None],
        dtype=solved.dtype,
    )
    return known_error + affine_error + activation_error + sum_rounding


def _slope_norms(solved: _Solved, units: _OutputUnits) -> np.ndarray:
    """|sum_i V_{.i} u_i| over the units i that fire on the whole ball: f64[r, r].

    Together they are one affine map, bounded as a whole: on a line, large slopes of
    both signs add up to a small one.
    """
    V = solved.solution.output_V
    num_classes = len(V)
    squares = np.zeros((num_classes, num_classes))
    for axis in range(solved.width):
        u = solved.plan.output_U[:, axis]
        slopes = V @ (units.always_fires * u[:, None])
        cancellation = gamma(num_classes, np.float64) * (np.abs(V) @ np.abs(u))
        squares += (np.abs(slopes) + cancellation[:, None]) ** 2
    return np.sqrt(squares)
