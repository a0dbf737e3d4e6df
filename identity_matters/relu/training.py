"""When gradient flow of one residual ReLU block converges to risk 0 (N16).

The condition asks for features that are independent over the sample, as in
`feature_bound`, and for a small initial error. How small depends on how much of the
features lies along the error. Symbols, besides those of the package, for the block
``V ReLU(W z)``:

* ``Z``: the inputs z_i as columns; ``zeta = ||Z||``
* ``Phi``: the features at the start, k x n; ``sigma`` is their n-th singular value
* ``b, beta``: the largest and the least singular value of B
* ``E``: the errors ``y_i - yhat_i`` at the start as columns; ``e = ||E||_F = sqrt(n
  f(0))``
* ``nu = ||B^+ E Phi^+||_F``: what V has to travel if the features stay as they are
* ``a``: the share of sigma that the features may lose on the way
"""

import math
from typing import NamedTuple

import numpy as np

from identity_matters import checks
from identity_matters.relu import origin, rounding
from identity_matters.relu.model import (
    Blocks,
    Problem,
    check_shape_of_y,
    checked_blocks,
    checked_problem,
)

_SHARES = np.linspace(0.005, 0.995, 199)  # values of a that are tried
_MARGIN = 1e-6  # relative, for the rounding of both sides of an inequality
_BISECTIONS = 50
# Between these, what N16 computes does not underflow, and sums of squares do not
# overflow. Nothing else is certified.
_LEAST = 1e-30
_LARGEST = 1e20


class Training(NamedTuple):
    """What N16 promises for gradient flow ``theta' = -grad f``, for all t >= 0.

    A promise about a training that need not be run: N16 proves these bounds from the
    start alone.

    Attributes:
      rate: f(t) <= f(0) exp(-rate t).
      output_travel: ||V(t) - V(0)||_F is at most this.
      input_travel: ||W(t) - W(0)||_F is at most this.
      norm: |||theta(t)||| is at most this; below 1.
      lost_share: a; the n-th singular value of the features loses at most this share.
    """

    rate: float
    output_travel: float
    input_travel: float
    norm: float
    lost_share: float


def certify_training(blocks: Blocks, problem: Problem) -> Training | None:
    """Whether flow from `blocks` provably stays in the unit ball and reaches f = 0.

    The promise is that of the least a at which the condition of N16 holds, which gives
    the fastest rate. Everything is computed by NumPy in float64, whatever the settings
    of JAX, and the promise is for the numbers as they are given.

    >>> # Two examples, each with a unit of its own; the labels are 2 % off.
    >>> start = Blocks(U=0.5 * np.eye(2)[None], V=np.zeros((1, 2, 2)), s=None)
    >>> identity = np.eye(2)
    >>> labels = 1.02 * identity
    >>> sample = Problem(x=identity, y=labels, A=identity, B=identity)
    >>> promise = certify_training(start, sample)
    >>> round(promise.rate, 2), round(promise.norm, 3)
    (0.49, 0.503)

    Args:
      blocks: one block: U f64[1, k, d], V f64[1, d, k], s f64[1, k] or None.
      problem: x f64[n, d_in], y f64[n, d_out], A f64[d, d_in], B f64[d_out, d].
    Returns:
      The promise, or None if the condition does not hold, or if rounding or numbers
      beyond 1e-30 to 1e20 leave it open.
    Raises:
      ValueError: there is more than one block, shapes do not fit together, or an array
        is not a plain array of finite real numbers.
    """
    start = _measure(blocks, problem)
    return None if start is None else _promise(start)


def largest_certified_size(blocks: Blocks, problem: Problem) -> float:
    """The most that errors at the start may be multiplied by; 0 if never certified.

    It is infinite if there are no errors, and that is certified. Arguments and errors
    are those of `certify_training`. The result is found by bisection, and is certified
    itself.
    """
    start = _measure(blocks, problem)
    if start is None:
        return 0.0
    if start.e == 0:
        return math.inf if _promise(start) else 0.0

    def is_certified(size: float) -> bool:
        scaled = start._replace(e=size * start.e, nu=size * start.nu)
        return _promise(scaled) is not None

    certified = 0.0
    # Errors of norm 1 at first. If that is certified, it doubles until it is not. This
    # ends: at some size V would have to leave the unit ball.
    refused = 1 / start.e
    while is_certified(refused):
        certified = refused
        refused *= 2
    for _ in range(_BISECTIONS):
        middle = (certified + refused) / 2
        if is_certified(middle):
            certified = middle
        else:
            refused = middle
    return certified


class _Start(NamedTuple):
    """The quantities of N16 at the start; see the module docstring.

    Each is on the safe side of its rounding error.

    Attributes:
      examples: n.
      zeta, sigma, b, beta, e, nu: as there.
      unresolved: bounds the rounding error of the predictions, in the Frobenius norm.
        It does not shrink with the errors, and counts as a part of E that is not seen.
      output_norm: ||V||.
      input_norm: max(||U||, ||s||).
    """

    examples: int
    zeta: float
    sigma: float
    b: float
    beta: float
    e: float
    nu: float
    unresolved: float
    output_norm: float
    input_norm: float


def _measure(blocks: Blocks, problem: Problem) -> _Start | None:
    """The quantities of N16; None where it cannot apply, up to rounding.

    That is where the features are dependent, B has no full row rank, or an entry is too
    large. Arguments and errors are those of `certify_training`.
    """
    blocks, problem = _checked(blocks, problem)
    B = np.asarray(problem.B)
    if not _are_moderate(blocks, problem):
        return None
    z = origin.unit_inputs(problem, bias=blocks.s is not None).T
    weights = origin.unit_weights(blocks)
    V = blocks.V[0]
    features = np.maximum(weights @ z, 0)
    errors = problem.y.T - B @ (problem.A @ problem.x.T + V @ features)
    error = rounding.relative_error(blocks, problem, np.float64)
    sizes = rounding.sizes(blocks, problem)
    values = _singular_values(
        features,
        B,
        error_of_features=float(error * sizes.features[0]),
        relative_error=error,
    )
    if values is None:
        return None
    size_of_map = float(np.linalg.norm(B))
    nu = _travel_of_V(
        features,
        B,
        errors,
        values=values,
        size_of_product=float(size_of_map * sizes.features[0]),
        relative_error=error,
    )
    return _Start(
        examples=len(problem.x),
        zeta=float(np.linalg.norm(z, 2) * (1 + error) + error * sizes.inputs),
        sigma=values.sigma,
        b=values.norm_of_map * (1 + error),
        beta=values.beta,
        e=float(np.linalg.norm(errors) * (1 + error)),
        nu=nu,
        unresolved=float(error * size_of_map * sizes.outputs),
        output_norm=float(np.linalg.norm(V, 2)),
        input_norm=_input_norm(blocks),
    )


def _checked(blocks: Blocks, problem: Problem) -> tuple[Blocks, Problem]:
    """One block and a sample with y, as finite floats; ValueError for others."""
    blocks = checked_blocks("net", blocks)
    if len(blocks.U) != 1:
        raise ValueError(f"the condition is for nets of one block, got {len(blocks.U)}")
    problem = checked_problem(problem, dimension=blocks.U.shape[2])
    problem = problem._replace(y=checks.real_array("y", problem.y, axes=2))
    check_shape_of_y(problem, (len(problem.x), len(problem.B)))
    return blocks, problem


def _are_moderate(blocks: Blocks, problem: Problem) -> bool:
    """Whether no entry is so large that a sum of squares could overflow."""
    arrays = [array for array in (*blocks, *problem) if array is not None]
    return max(float(np.abs(array).max()) for array in arrays) <= _LARGEST


def _input_norm(blocks: Blocks) -> float:
    """max(||U||, ||s||) of the first block."""
    norm_of_U = float(np.linalg.norm(blocks.U[0], 2))
    if blocks.s is None:
        return norm_of_U
    return max(norm_of_U, float(np.linalg.norm(blocks.s[0])))


class _SingularValues(NamedTuple):
    """Those of Phi and B that N16 needs.

    Attributes:
      sigma: a lower bound of the n-th of Phi, at least `_LEAST`.
      beta: a lower bound of the d_out-th of B, at least `_LEAST`.
      norm_of_map: the largest of B, as computed.
    """

    sigma: float
    beta: float
    norm_of_map: float


def _singular_values(
    features: np.ndarray,
    output_map: np.ndarray,
    *,
    error_of_features: float,
    relative_error: float,
) -> _SingularValues | None:
    """None if the columns of Phi or the rows of B may be dependent, or almost are.

    Args:
      features: Phi, f64[k, n].
      output_map: B, f64[d_out, d].
      error_of_features: how far Phi, and so its singular values, may be off.
      relative_error: of the singular values of B, over the largest.
    """
    width, examples = features.shape
    outputs, dimension = output_map.shape
    if width < examples or outputs > dimension:
        return None
    of_features = np.linalg.svd(features, compute_uv=False)
    of_map = np.linalg.svd(output_map, compute_uv=False)
    sigma = rounding.least_singular_value(of_features, error_of_features)
    beta = rounding.least_singular_value(of_map, relative_error * of_map[0])
    if min(sigma, beta) < _LEAST:
        return None
    return _SingularValues(
        sigma=float(sigma), beta=float(beta), norm_of_map=float(of_map[0])
    )


def _travel_of_V(
    features: np.ndarray,
    output_map: np.ndarray,
    errors: np.ndarray,
    *,
    values: _SingularValues,
    size_of_product: float,
    relative_error: float,
) -> float:
    """nu: an upper bound of ``||Vstar||_F``, the shortest Vstar with B Vstar Phi = E.

    For any V, ``B^+ (B V Phi) Phi^+`` is no longer than V. So ``||Vstar||_F`` is at
    most ``||V||_F + ||B V Phi - E||_F / (beta sigma)``, whatever rounding has made of
    ``B^+ E Phi^+``, which is taken for V.

    Args:
      features: Phi, f64[k, n].
      output_map: B, f64[d_out, d].
      errors: E, f64[d_out, n].
      values: the singular values.
      size_of_product: of ``||B||_F`` and the size of the features.
      relative_error: of what is computed.
    """
    # A nu beyond float64 is infinite or NaN, and not certified.
    with np.errstate(over="ignore", invalid="ignore"):
        travel = np.linalg.pinv(output_map) @ errors @ np.linalg.pinv(features)
        length = np.linalg.norm(travel)
        missed = np.linalg.norm(output_map @ travel @ features - errors)
        missed += relative_error * (length * size_of_product + np.linalg.norm(errors))
        return float(length + missed / (values.beta * values.sigma))


def _promise(start: _Start) -> Training | None:
    """The promise for the least a at which the condition of N16 holds, or None."""
    start = start._replace(
        e=start.e + start.unresolved,
        nu=start.nu + start.unresolved / (start.beta * start.sigma),
    )
    measured = (start.zeta, start.sigma, start.b, start.beta, start.e, start.nu)
    # Unlike Python's `min` and `max`, NumPy's are NaN if one of the numbers is.
    if not (np.min(measured) >= _LEAST and np.max(measured) <= _LARGEST):
        return None
    kept = (1 - _SHARES) * start.beta * start.sigma
    lost = _SHARES * start.sigma
    with np.errstate(over="ignore"):  # infinity is on the safe side
        by_error = _travel_by_error(start, kept)
        by_features = _travel_by_features(start, kept, lost)
    output_travel = np.minimum(by_error.output, by_features.output)
    input_travel = np.minimum(by_error.input, by_features.input)
    norms = np.maximum(
        start.input_norm + input_travel, start.output_norm + output_travel
    )
    holds = start.zeta * input_travel * (1 + _MARGIN) < lost
    holds &= norms * (1 + _MARGIN) < 1
    if not holds.any():
        return None
    first = int(np.argmax(holds))
    return Training(
        rate=float(4 / start.examples * kept[first] ** 2) * (1 - _MARGIN),
        output_travel=float(output_travel[first]) * (1 + _MARGIN),
        input_travel=float(input_travel[first]) * (1 + _MARGIN),
        norm=float(norms[first]) * (1 + _MARGIN),
        lost_share=float(_SHARES[first]),
    )


class _Travel(NamedTuple):
    """How far the weights travel, at most, for each share a.

    Attributes:
      output: f64[shares], bounds ``||V(t) - V(0)||_F``.
      input: f64[shares], bounds ``||W(t) - W(0)||_F``.
    """

    output: np.ndarray
    input: np.ndarray


def _travel_by_error(start: _Start, kept: np.ndarray) -> _Travel:
    """By the error (omega_2 of N16), which falls at least as fast as `kept` makes it.

    With kept = (1 - a) beta sigma, ``||W - W_0||_F`` is at most

        omega_2 = b zeta / kept^2 (v_0 e_0 + e_0^2 / (2 kept)).
    """
    output = start.e / kept
    area = start.output_norm * start.e + start.e * output / 2
    return _Travel(output=output, input=start.b * start.zeta * area / kept**2)


def _travel_by_features(start: _Start, kept: np.ndarray, lost: np.ndarray) -> _Travel:
    """By the features at the start (omega_1 of N16): V stays near where they lead.

    ``||V - V_0||_F <= nu (1 + sqrt(1 + eta^2))``, and ``||W - W_0||_F`` is at most

        omega_1 = b zeta nu / (beta (1-a) sigma) ((v_0 + nu) x + nu S)
        eta = b / beta a / (1-a) (1 + v_0 / nu)

    x and S are those of `_longest_path` and `_area_under_circle`.

    Args:
      start: the quantities at the start; `output_norm` is v_0.
      kept: f64[shares], (1 - a) beta sigma.
      lost: f64[shares], a sigma.
    """
    eta = start.b * lost / kept * (1 + start.output_norm / start.nu)
    radius = np.hypot(1, eta)
    # ||W - W_0||_F grows with the integral of ||V|| <= v_0 + nu + nu sqrt(...) (N16).
    in_V = (start.output_norm + start.nu) * _longest_path(eta, radius)
    swept = in_V + start.nu * _area_under_circle(eta, radius)
    output = start.nu * (1 + radius)
    return _Travel(output=output, input=start.b * start.zeta * start.nu * swept / kept)


def _longest_path(eta: np.ndarray, radius: np.ndarray) -> np.ndarray:
    """``x = eta + sqrt(1 + eta^2)``, where ``1 + 2 eta u - u^2`` becomes 0.

    u is the integrated error, scaled. ``0 <= D <= nu^2 (1 + 2 eta u - u^2)`` in the
    proof of N16, so that u is at most x.
    """
    return eta + radius


def _area_under_circle(eta: np.ndarray, radius: np.ndarray) -> np.ndarray:
    """``S``, the integral of ``sqrt(1 + eta^2 - (u - eta)^2)`` over u from 0 to x.

    The circle has its centre at eta and the radius ``sqrt(1 + eta^2)``; so
    ``S = (eta + (1 + eta^2) (pi / 2 + arctan eta)) / 2``.
    """
    return (eta + radius**2 * (np.pi / 2 + np.arctan(eta))) / 2
