"""When gradient flow of one residual ReLU block converges to risk 0 (N16).

It asks for features that are independent over the sample, as in `feature_bound`, and
for a small initial error. How small depends on how much of the features lies along the
error. Symbols, beside those of the package, for the block ``V ReLU(W z)``:

* ``Z``: the inputs z_i as columns; ``zeta = ||Z||``
* ``Phi``: the features at the start, k x n; ``sigma`` is their n-th singular value
* ``b, beta``: the largest and the least singular value of B
* ``E``: the errors ``y_i - yhat_i`` at the start as columns; ``e = ||E||_F = sqrt(n
  f(0))``
* ``nu = ||B^+ E Phi^+||_F``: what V has to travel if the features stay as they are
* ``a``: the share of sigma that the features may lose on the way
"""

from typing import NamedTuple

import numpy as np

from identity_matters.relu import model, origin
from identity_matters.relu.model import Blocks, Problem

_SHARES = np.linspace(0.005, 0.995, 199)  # values of a that are tried
_MARGIN = 1e-6  # relative, for the rounding of both sides of an inequality
_BISECTIONS = 50
# What is computed may be off by so many roundings, and one for each dimension, of the
# sum of the sizes that it is made of.
_ROUNDINGS = 64


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

    Of the values of a at which the condition of N16 holds, the least counts: the
    fastest rate.

    Args:
      blocks: one block: U f64[1, k, d], V f64[1, d, k], s f64[1, k] or None.
      problem: x f64[n, d_in], y f64[n, d_out], A f64[d, d_in], B f64[d_out, d].
    Returns:
      The promise, or None if the condition does not hold.
    Raises:
      ValueError: there is more than one block.
    """
    start = _measure(blocks, problem)
    return None if start is None else _promise(start)


def largest_certified_size(blocks: Blocks, problem: Problem) -> float:
    """The most that errors at the start may be multiplied by; 0 if never certified.

    Arguments and errors are those of `certify_training`. The result is found by
    bisection, and is certified itself.
    """
    start = _measure(blocks, problem)
    if start is None or start.e == 0:
        return 0.0

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

    That is where the features are dependent or B has no full row rank. Raises
    ValueError if there is more than one block.
    """
    if len(blocks.U) != 1:
        raise ValueError(f"the condition is for nets of one block, got {len(blocks.U)}")
    predictions, _, pre = model.forward(blocks, problem)
    features = np.maximum(np.asarray(pre[0]), 0).T
    errors = (np.asarray(problem.y) - np.asarray(predictions)).T
    rounding = _relative_rounding(blocks, problem)
    sizes = _sizes(blocks, problem)
    values = _singular_values(
        features,
        np.asarray(problem.B),
        rounding=rounding,
        size_of_features=sizes.features,
    )
    if values is None:
        return None
    z = origin.unit_inputs(problem, bias=blocks.s is not None)
    nu = _travel_of_V(
        features,
        np.linalg.pinv(np.asarray(problem.B)) @ errors,
        sigma=values.sigma,
        rounding=rounding,
        size_of_features=sizes.features,
        rounding_of_map=rounding * values.norm_of_map / values.beta,
    )
    input_norms = [np.linalg.norm(weights, 2) for weights in _input_weights(blocks)]
    return _Start(
        examples=len(problem.x),
        zeta=float(np.linalg.norm(z, 2) + rounding * sizes.inputs),
        sigma=values.sigma,
        b=values.norm_of_map * (1 + rounding),
        beta=values.beta,
        e=float(np.linalg.norm(errors) * (1 + rounding)),
        nu=nu,
        unresolved=rounding * values.norm_of_map * sizes.outputs,
        output_norm=float(np.linalg.norm(np.asarray(blocks.V[0]), 2)),
        input_norm=float(max(input_norms)),
    )


def _relative_rounding(blocks: Blocks, problem: Problem) -> float:
    """The rounding error of what is computed, relative to the sizes of its terms."""
    examples, inputs = np.shape(problem.x)
    outputs, dimension = np.shape(problem.B)
    width = np.shape(blocks.U)[1]
    roundings = _ROUNDINGS + examples + inputs + outputs + dimension + width
    return roundings * float(np.finfo(float).eps)


class _SingularValues(NamedTuple):
    """Those of Phi and B that N16 needs.

    Attributes:
      sigma: a lower bound of the n-th of Phi, positive.
      beta: a lower bound of the d_out-th of B, positive.
      norm_of_map: the largest of B, as computed.
    """

    sigma: float
    beta: float
    norm_of_map: float


def _singular_values(
    features: np.ndarray,
    output_map: np.ndarray,
    *,
    rounding: float,
    size_of_features: float,
) -> _SingularValues | None:
    """None if the columns of Phi or the rows of B may be dependent.

    Args:
      features: Phi, f64[k, n].
      output_map: B, f64[d_out, d].
      rounding: a relative error.
      size_of_features: see `_Sizes`.
    """
    width, examples = features.shape
    outputs, dimension = output_map.shape
    if width < examples or outputs > dimension:
        return None
    of_features = np.linalg.svd(features, compute_uv=False)
    of_map = np.linalg.svd(output_map, compute_uv=False)
    sigma = float(of_features[-1] - rounding * size_of_features)
    beta = float(of_map[-1] - rounding * of_map[0])
    if min(sigma, beta) <= 0:
        return None
    return _SingularValues(sigma=sigma, beta=beta, norm_of_map=float(of_map[0]))


def _travel_of_V(
    features: np.ndarray,
    pulled_back: np.ndarray,
    *,
    sigma: float,
    rounding: float,
    size_of_features: float,
    rounding_of_map: float,
) -> float:
    """nu: an upper bound of ``||Vstar||_F``, the shortest Vstar with Vstar Phi = B^+ E.

    ``||Vstar - travel||`` is at most what the computed `travel` misses, over sigma.

    Args:
      features: Phi, f64[k, n].
      pulled_back: ``B^+ E``, f64[d, n].
      sigma: a lower bound of Phi's least singular value.
      rounding: a relative error.
      size_of_features: see `_Sizes`.
      rounding_of_map: that error times ``||B|| / beta``.
    """
    travel = pulled_back @ np.linalg.pinv(features)
    missed = np.linalg.norm(travel @ features - pulled_back)
    missed += rounding * np.linalg.norm(travel) * size_of_features
    missed += rounding_of_map * np.linalg.norm(pulled_back)
    return float(np.linalg.norm(travel) + missed / sigma)


def _input_weights(blocks: Blocks) -> list[np.ndarray]:
    """U, f64[k, d], and s, f64[k, 1], if there are biases, of the first block."""
    if blocks.s is None:
        return [np.asarray(blocks.U[0])]
    return [np.asarray(blocks.U[0]), np.asarray(blocks.s[0])[:, None]]


class _Sizes(NamedTuple):
    """How large the sums are that a forward pass rounds.

    Bounds on the Frobenius norms of the block's inputs, features and outputs, with the
    size of every term in place of the term.
    """

    inputs: float
    features: float
    outputs: float


def _sizes(blocks: Blocks, problem: Problem) -> _Sizes:
    """The `_Sizes` of the first block."""
    inputs = np.linalg.norm(problem.A) * np.linalg.norm(problem.x)
    if blocks.s is not None:
        inputs = np.hypot(inputs, np.sqrt(len(problem.x)))
    features = np.linalg.norm(np.hstack(_input_weights(blocks))) * inputs
    outputs = inputs + np.linalg.norm(np.asarray(blocks.V[0])) * features
    return _Sizes(
        inputs=float(inputs), features=float(features), outputs=float(outputs)
    )


def _promise(start: _Start) -> Training | None:
    """The promise for the least a at which the condition of N16 holds, or None."""
    start = start._replace(
        e=start.e + start.unresolved,
        nu=start.nu + start.unresolved / (start.beta * start.sigma),
    )
    kept = (1 - _SHARES) * start.beta * start.sigma
    lost = _SHARES * start.sigma
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
    if start.nu == 0:  # the features fit the sample already: nothing has to move
        return _Travel(np.zeros_like(kept), np.zeros_like(kept))
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
