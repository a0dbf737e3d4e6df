"""Factorizations ``R = (I + A_l) ... (I + A_1)`` into small layers (Theorem 2.1).

``R = U K V^T`` is the singular value decomposition of the target, det R > 0, and ``R =
Q P`` its polar form, ``Q = U V^T``, ``P = V K V^T``. `svd` and `psd` are the paper's,
with bounds in `identity_matters.paper`; the others are ours. Proofs: F1 to F3, F15 and
F20; docs/theory/factorization.md says where.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from identity_matters import matrices
from identity_matters.checks import (
    check_choice,
    check_whole,
    non_negative_number,
    real_array,
    square_matrix,
)
from identity_matters.linear.matrix_powers import real_rotation_form
from identity_matters.linear.one_pace import one_pace_at_bound
from identity_matters.linear.optimum import layers_of_blocks, optimal_blocks
from identity_matters.linear.path_starts import lengthened_turn, path_starts
from identity_matters.linear.shortest_path import PathSettings, layers_of_path, shorten
from identity_matters.linear.target import (
    NotApplicableError,
    Target,
    check_depth,
    check_target,
    not_applicable_if_lapack_fails,
)
from identity_matters.linear.turn_and_stretch import (
    Factorization,
    no_turn,
    polar_form,
    turn_and_stretch,
)
from identity_matters.matrices import largest_spectral_norm


def polar_bound(gamma: float, depth: int) -> float:
    """``(pi + 3 gamma) / l``, a bound of |||A||| for method polar if l >= 3 gamma (F3).

    ValueError unless gamma is 0 or more, and the depth at least 1.

    >>> round(polar_bound(gamma=0.5, depth=16), 4)
    0.2901
    """
    depth = check_depth(depth)
    return (np.pi + 3 * non_negative_number("gamma", gamma)) / depth


def factorize(
    R: ArrayLike,
    depth: int,
    method: str = "best",
    *,
    path_max_dimension: int = 16,
    path_settings: PathSettings | None = None,
) -> np.ndarray:
    """Writes R as a product of `depth` layers ``I + A_i`` of small norm.

    >>> R = np.array([[0.0, -2.0], [2.0, 0.0]])  # a quarter turn and a stretch by 2
    >>> A = factorize(R, depth=8, method="polar")
    >>> # All layers are alike.
    >>> bool(np.allclose(np.linalg.matrix_power(np.eye(2) + A[0], 8), R))
    True
    >>> np.linalg.norm(A, 2, axis=(1, 2)).round(4)
    array([0.2238, 0.2238, 0.2238, 0.2238, 0.2238, 0.2238, 0.2238, 0.2238])
    >>> factorize(np.diag([1.0, -1.0]), depth=8)
    Traceback (most recent call last):
    ValueError: det R must be positive, got -1; negate a row of R

    Methods:
      svd: the paper's appendix A.1: layers for V^T, K and U; at least 3, or 2 for
        orthogonal R.
      polar: every layer turns and stretches at once. All have the same norm, at most
        `polar_bound`. For normal R whose negative eigenvalues have even multiplicity it
        is the least, if below 1.
      psd: R^{1/l} for a symmetric positive definite R.
      root: the principal root, if R has no negative eigenvalue; for normal R as good as
        polar.
      paired: for Q with eigenvalues -1: like polar, but each half turn continues past
        pi by the angle that is optimal in its plane.
      optimal: for 2 x 2 R, symmetric R, and normal R without a nonreal eigenvalue over
        a pair of neighbouring negative ones: the least |||A||| wherever that is below 1
        (F15). In four dimensions also for normal R with such an eigenvalue, where the
        layers of F20 attain the bound.
      path: a shortest path from I to R, sought numerically from the best of these and
        other starts, and never worse than they are. Takes seconds for d = 16; see
        `PathSettings`.
      best: optimal where it applies and its |||A||| is below 1, without a search.
        Otherwise whichever has the least |||A|||; path only up to d =
        `path_max_dimension`.

    The product is R up to rounding, relative to ||R||; that of root, and of the
    factorizations that contain one, may miss it by 1e-10. So for an R of large
    condition number its smallest singular values may be off by cond(R) eps, and |||A|||
    may be below `norm_lower_bound` by a share of that order: the layers are then a good
    factorization of another matrix.

    Args:
      R: f64[d, d], invertible with det R > 0; see `check_target`.
      depth: l, at least 3 gamma, and for svd at least 3 (2 if R is orthogonal).
      method: one of the above.
      path_max_dimension: the largest d for which best tries path, 0 or more.
      path_settings: how hard path looks.
    Raises:
      ValueError: R, the depth or the method is not as above.
      NotApplicableError: a ValueError; the method does not apply to R, or LAPACK or
        SciPy cannot compute what it needs. Then best goes on with the other methods.
    """
    check_choice("method", method, ("best", *METHODS))
    path_max_dimension = check_whole("path_max_dimension", path_max_dimension, 0)
    target = check_target(R)
    reason = ""
    if target.least_depth > 1:
        reason = f" = ceil(3 gamma) with gamma = {target.gamma:.6g}"
    depth = check_depth(depth, target.least_depth, reason)
    settings = path_settings or PathSettings()
    if method != "best":
        with not_applicable_if_lapack_fails(f"method {method}"):
            return _by_method(method, target, depth, settings).build()
    with (
        contextlib.suppress(NotApplicableError),
        not_applicable_if_lapack_fails("the optimum"),
    ):
        optimal = _optimal(target, depth)
        # Only then is it proved to be the least.
        if depth >= 2 and optimal.norm < 1:
            return optimal.build()
    return _best(target, depth, settings, path_max_dimension).build()


def _by_method(
    method: str, target: Target, depth: int, settings: PathSettings
) -> Factorization:
    """The factorization of one of `METHODS`."""
    if method == "path":
        return _path(target, depth, settings)
    return _WITHOUT_SEARCH[method](target, depth)


def _best(
    target: Target, depth: int, settings: PathSettings, path_max_dimension: int
) -> Factorization:
    """The factorization with the least |||A||| of all methods that apply."""
    candidates = []
    for method in METHODS:
        if method == "path" and len(target.R) > path_max_dimension:
            continue
        with (
            contextlib.suppress(NotApplicableError),
            not_applicable_if_lapack_fails(method),
        ):
            candidates.append(_by_method(method, target, depth, settings))
    if not candidates:
        raise NotApplicableError(
            "no method can factorize R: LAPACK fails on its polar form"
        )
    return min(candidates, key=lambda candidate: candidate.norm)


def relative_product_error(A: np.ndarray, R: np.ndarray) -> float:
    """``||(I + A_l) ... (I + A_1) - R||_F / ||R||_F``: f64[].

    A is f64[depth, d, d], R is f64[d, d]. For an R of large condition number it may be
    of the order of eps although the product is another matrix: ``||(I + A_l) ... (I +
    A_1) R^{-1} - I||`` can be larger by cond(R).
    """
    A = real_array("A", A, axes=3)
    R = square_matrix("R", R)
    if A.shape[1:] != R.shape:
        raise ValueError(f"A must be [depth, {len(R)}, {len(R)}], got {A.shape}")
    error = matrices.residual_product(A) - R
    # Frobenius norms square the entries, which may be beyond float64 or below it.
    exponent = matrices.exponents(R)
    scaled_error = matrices.times_powers_of_2(error, -exponent)
    scaled_R = matrices.times_powers_of_2(R, -exponent)
    return float(np.linalg.norm(scaled_error) / np.linalg.norm(scaled_R))


def _polar(target: Target, depth: int) -> Factorization:
    """Every layer turns by a share of Q and stretches by a share of P."""
    return turn_and_stretch(target, polar_form(target), depth, stretch_is_P=True)


def _root(target: Target, depth: int) -> Factorization:
    """R^{1/l}: every layer stretches by a share of R, and none turns."""
    return turn_and_stretch(target, no_turn(target), depth)


def _psd(target: Target, depth: int) -> Factorization:
    """R^{1/l}: the polar factorization without a turn."""
    if not target.is_symmetric:
        asymmetry = np.abs(target.R - target.R.T).max()
        raise NotApplicableError(
            f"method psd needs a symmetric R, got |R - R^T| = {asymmetry:.3g}"
        )
    least = np.linalg.eigvalsh(target.R)[0]
    if least <= 0:
        raise NotApplicableError(
            f"psd needs a positive definite R, got eigenvalue {least:.6g}"
        )
    return turn_and_stretch(target, no_turn(target), depth, stretch_is_P=True)


def _paired(target: Target, depth: int) -> Factorization:
    """The polar factorization, but half turns continue past pi by psi (F15)."""
    turn = polar_form(target)
    planes = int(np.count_nonzero(turn.angles == np.pi))
    if not planes:
        raise NotApplicableError(
            "paired needs a polar factor Q with eigenvalues -1; use polar"
        )
    return turn_and_stretch(target, lengthened_turn(target, turn, planes, depth), depth)


def _optimal(target: Target, depth: int) -> Factorization:
    """The least |||A|||, where it is known (F15, F20)."""
    try:
        blocks = optimal_blocks(target, depth)
    except NotApplicableError:
        at_one_pace = one_pace_at_bound(target, depth)
        if at_one_pace is None:
            raise
        return turn_and_stretch(target, at_one_pace.turn, depth)
    norm = max(block.norm for block in blocks)
    return Factorization(norm, functools.partial(layers_of_blocks, blocks, depth))


def _svd(target: Target, depth: int) -> Factorization:
    """Appendix A.1: q layers for V^T, p for K and q for U, with 2 q + p = l."""
    U = target.U.copy()
    Vt = target.Vt.copy()
    if np.linalg.slogdet(U)[0] < 0:
        # det R > 0, so det V = -1 as well: negate the last vector of both.
        U[:, -1] *= -1
        Vt[-1] *= -1
    left = real_rotation_form(U)
    right = real_rotation_form(Vt)
    angle = max(left.largest_angle, right.largest_angle)
    q, norm = _layers_of_each_turn(target, depth, angle)
    p = depth - 2 * q

    def build() -> np.ndarray:
        A = np.empty((depth, *U.shape))
        # A part may have no layers; 1 / q would then be infinite.
        if q > 0:
            A[:q] = right.power_minus_identity(1 / q)
            A[depth - q :] = left.power_minus_identity(1 / q)
        if p > 0:
            A[q : q + p] = np.diag(np.expm1(np.log(target.K) / p))
        return A

    return Factorization(norm, build)


def _layers_of_each_turn(target: Target, depth: int, angle: float) -> tuple[int, float]:
    """The best q for `_svd` if U and V turn by at most `angle`, and |||A|||.

    That is the largest of the three parts' norms.
    """
    rounding = len(target.R) * np.finfo(float).eps
    # The fewest layers for each of V^T and U, and for K.
    least_q = int(angle > rounding)
    least_p = int(target.gamma > rounding)
    q = np.arange(least_q, (depth - least_p) // 2 + 1)
    if len(q) == 0:
        raise NotApplicableError(
            f"method svd needs depth at least {2 * least_q + least_p}, got {depth}"
        )
    p = depth - 2 * q
    turn_norms = 2 * np.sin(angle / (2 * np.maximum(q, 1)))
    logs = np.log(target.K[[0, -1], None]) / np.maximum(p, 1)
    stretch_norms = np.where(p > 0, np.abs(np.expm1(logs)).max(axis=0), 0.0)
    # |||A||| is the largest norm of the three parts.
    norms = np.maximum(turn_norms, stretch_norms)
    best = np.argmin(norms)
    return int(q[best]), float(norms[best])


class _Search(NamedTuple):
    """A search to come.

    Attributes:
      start_norm: |||A||| of the start, in as many layers as asked for.
      pieces: the start in as many layers as the search has pieces.
      settings: how to search.
    """

    start_norm: float
    pieces: Factorization
    settings: PathSettings


def _path(target: Target, depth: int, settings: PathSettings) -> Factorization:
    """The best of the starts and of the paths obtained by shortening them."""
    candidates = []
    searches = []
    for start in path_starts(target, depth, settings):
        with (
            contextlib.suppress(NotApplicableError),
            not_applicable_if_lapack_fails("a start"),
        ):
            layers = start.layers(target, depth)
            candidates.append(layers)
            pieces = start.layers(target, min(depth, settings.pieces))
            searches.append(
                _Search(start_norm=layers.norm, pieces=pieces, settings=start.settings)
            )
    searches.sort(key=lambda search: search.start_norm)
    for search in searches[: settings.starts]:
        # A step of the search can be singular if R is I up to rounding.
        with (
            contextlib.suppress(NotApplicableError),
            not_applicable_if_lapack_fails("a shorter path"),
        ):
            candidates.append(_shortened(search, depth))
    if not candidates:
        raise NotApplicableError("no start of the search for a path applies to R")
    return min(candidates, key=lambda candidate: candidate.norm)


def _shortened(search: _Search, depth: int) -> Factorization:
    """The layers of the path that the search finds."""
    layers_of_start = search.pieces.build()
    identity = np.eye(layers_of_start.shape[-1])
    shorter = shorten(identity + layers_of_start, depth, search.settings)
    layers = layers_of_path(shorter, depth)
    return Factorization(norm=largest_spectral_norm(layers), build=lambda: layers)


_WITHOUT_SEARCH: dict[str, Callable[[Target, int], Factorization]] = {
    "svd": _svd,
    "polar": _polar,
    "psd": _psd,
    "root": _root,
    "paired": _paired,
    "optimal": _optimal,
}
# All methods but best, which tries them in this order.
METHODS = (*_WITHOUT_SEARCH, "path")
