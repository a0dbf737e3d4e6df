"""Factorizations ``R = (I + A_l) ... (I + A_1)`` into small layers (Theorem 2.1).

``R = U K V^T`` is the singular value decomposition of the target, det R > 0, and ``R =
Q P`` its polar form, ``Q = U V^T``, ``P = V K V^T``. `svd` and `psd` are the paper's,
with bounds in `identity_matters.paper`; the others are ours (F1 to F15 of
docs/theory/factorization.md).
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from identity_matters.checks import real_array, square_matrix
from identity_matters.linear.lower_bound import forced_vector
from identity_matters.linear.matrix_powers import (
    RotationForm,
    principal_root_minus_identity,
    real_rotation_form,
)
from identity_matters.linear.one_pace import isoclinic_turns, one_pace
from identity_matters.linear.optimum import (
    layers_of_blocks,
    optimal_blocks,
    slowest_in_plane,
)
from identity_matters.linear.shortest_path import PathSettings, layers_of_path, shorten
from identity_matters.linear.target import (
    NotApplicableError,
    Target,
    check_depth,
    check_target,
    contained,
)
from identity_matters.matrices import largest_spectral_norm, rotate_rows

# From a paired path the search uses exponents from this on: a small one, for which all
# layers count and not only the longest, would drive the path out of its basin.
_LEAST_STEEP_EXPONENT = 32


class Factorization(NamedTuple):
    """|||A|||, and a function that builds A, f64[depth, d, d].

    A may take gigabytes, and most candidates are never built.
    """

    norm: float
    build: Callable[[], np.ndarray]


def polar_bound(gamma: float, depth: int) -> float:
    """``(pi + 3 gamma) / l``, which bounds the polar one if l >= 3 gamma (F3).

    >>> round(polar_bound(gamma=0.5, depth=16), 4)
    0.2901
    """
    return (np.pi + 3 * gamma) / depth


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
        (F15). In four dimensions also for most normal R with such an eigenvalue (F20).
      path: a shortest path from I to R, sought numerically from the best of these and
        other starts, and never worse than they are. Takes seconds for d = 16; see
        `PathSettings`.
      best: optimal where it applies and its |||A||| is below 1, without a search.
        Otherwise whichever has the least |||A|||; path only up to d =
        `path_max_dimension`.

    The product is R up to rounding, relative to ||R||. So for an R of large condition
    number its smallest singular values may be off by cond(R) eps, and |||A||| may be
    below `norm_lower_bound` by a share of that order: the layers are then a good
    factorization of another matrix.

    Args:
      R: f64[d, d], invertible with det R > 0; see `check_target`.
      depth: l, at least 3 gamma, and for svd at least 3 (2 if R is orthogonal).
      method: one of the above.
      path_max_dimension: the largest d for which best tries path.
      path_settings: how hard path looks.
    Raises:
      ValueError: R, the depth or the method is not as above.
      NotApplicableError: a ValueError; the method does not apply to R, or LAPACK or
        SciPy cannot compute what it needs. Then best goes on with the other methods.
    """
    if method != "best" and method not in METHODS:
        raise ValueError(f"method must be one of {('best', *METHODS)}, got {method!r}")
    target = check_target(R)
    reason = ""
    if target.least_depth > 1:
        reason = f" = ceil(3 gamma) with gamma = {target.gamma:.6g}"
    depth = check_depth(depth, target.least_depth, reason)
    settings = path_settings or PathSettings()
    if method != "best":
        with contained(f"method {method}"):
            return METHODS[method](target, depth, settings).build()
    with contextlib.suppress(NotApplicableError), contained("the optimum"):
        optimal = METHODS["optimal"](target, depth, settings)
        # Only then is it proved to be the least.
        if depth >= 2 and optimal.norm < 1:
            return optimal.build()
    return _best(target, depth, settings, path_max_dimension).build()


def _best(
    target: Target, depth: int, settings: PathSettings, path_max_dimension: int
) -> Factorization:
    """The factorization with the least |||A||| of all methods that apply."""
    candidates = []
    for name, factorization in METHODS.items():
        if name == "path" and len(target.R) > path_max_dimension:
            continue
        with contextlib.suppress(NotApplicableError), contained(name):
            candidates.append(factorization(target, depth, settings))
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
    end_to_end = np.eye(len(R))
    for layer in A:
        end_to_end = end_to_end + layer @ end_to_end
    return float(np.linalg.norm(end_to_end - R) / np.linalg.norm(R))


def _psd(target: Target, depth: int, _settings: PathSettings) -> Factorization:
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
    return _turn_and_stretch(target, _no_turn(target), depth, stretch_is_P=True)


def _no_turn(target: Target) -> RotationForm:
    """The identity of R^d as a rotation."""
    d = len(target.R)
    return RotationForm(basis=np.eye(d), angles=np.zeros(d // 2))


def _polar_form(target: Target) -> RotationForm:
    """The planes and angles of Q in ``R = Q P``."""
    return real_rotation_form(target.U @ target.Vt, _polar_factor(target))


def _polar_factor(target: Target) -> np.ndarray:
    """P, f64[d, d], in ``R = Q P``."""
    P = (target.Vt.T * target.K) @ target.Vt
    return (P + P.T) / 2


def _paired_form(
    target: Target, turn: RotationForm, planes: int, depth: int
) -> RotationForm:
    """Lengthens the `planes` largest turns, each by the best psi there (F15).

    Several become half turns, paired anew by P. The planes are invariant if R is
    normal.
    """
    largest = np.argsort(-np.abs(turn.angles), kind="stable")[:planes]
    columns = np.ravel([[2 * j, 2 * j + 1] for j in largest])
    basis, stretches = _paired_basis(turn.basis[:, columns], _polar_factor(target))
    theta = np.pi if planes > 1 else turn.angles[largest[0]]
    psi = [_best_psi(abs(theta), pair, depth) for pair in np.log(stretches)]
    lengthened = theta + np.copysign(psi, theta)
    # The other planes follow, as they are.
    others = np.setdiff1d(np.arange(len(target.R)), columns)
    return RotationForm(
        basis=np.concatenate([basis, turn.basis[:, others]], axis=1),
        angles=np.concatenate([lengthened, np.delete(turn.angles, largest)]),
    )


def _paired_basis(columns: np.ndarray, P: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A basis of the space of `columns`, f64[d, 2 k], in which P is diagonal there.

    Neighbouring eigenvalues of P share a plane. Returns the basis and the eigenvalues,
    f64[k, 2], of each plane.
    """
    eigenvalues, mixed = np.linalg.eigh(columns.T @ P @ columns)
    # A reflection would turn the plane the other way round.
    mixed[:, 0] *= np.linalg.slogdet(mixed)[0]
    return columns @ mixed, eigenvalues.reshape(-1, 2)


def _best_psi(theta: float, log_stretches: np.ndarray, depth: int) -> float:
    """psi of (F15) in a plane that turns by theta >= 0 and is stretched, f64[2]."""
    m = float(np.mean(log_stretches))
    g = float(np.ptp(log_stretches)) / 2
    return slowest_in_plane(theta, m, g, depth).psi


def _isoclinic_forms(R: np.ndarray) -> list[RotationForm]:
    """For d = 4: rotations that turn all vectors at the `forced_vector`'s pace: F13."""
    if len(R) != 4:
        return []
    x = forced_vector(R)
    if x is None:
        return []
    end = R @ x / np.linalg.norm(R @ x)
    across = (x @ end) * x - end
    angle = float(np.pi + np.arctan2(np.linalg.norm(across), -x @ end))
    return isoclinic_turns(R, x, angle)


def _turn_and_stretch(
    target: Target, turn: RotationForm, depth: int, *, stretch_is_P: bool = False
) -> Factorization:
    """The layers of the path ``X(t) = e^{t Theta} e^{t B}``, all of the same norm.

    Theta is the logarithm of `turn`. ``e^B = e^{-Theta} R`` is the polar factor P
    (`stretch_is_P`), or any matrix that has a principal root.
    """
    turning = turn.power_minus_identity(1 / depth)
    if stretch_is_P:
        stretching = (target.Vt.T * np.expm1(np.log(target.K) / depth)) @ target.Vt
    else:
        # e^{-Theta} R
        stretch = target.R + turn.power_minus_identity(-1.0) @ target.R
        stretching = principal_root_minus_identity(stretch, depth)
    # A sum of small terms: forming I + A_i would
    # cost digits, and l layers add up the errors.
    layer = turning + stretching + turning @ stretching

    def build() -> np.ndarray:
        if not turn.angles.any():
            return np.tile(layer, (depth, 1, 1))
        # Layer i + 1 is the first one, turned by e^{i Theta / l} = S D S^T.
        S = turn.basis
        A = np.empty((depth, *layer.shape))
        in_planes = S.T @ layer @ S
        for i in range(depth):
            frame = rotate_rows(S.T, -(turn.angles * (i / depth)))  # (S D)^T
            A[i] = frame.T @ (in_planes @ frame)
        return A

    return Factorization(float(np.linalg.norm(layer, 2)), build)


def _paired(target: Target, depth: int, _settings: PathSettings) -> Factorization:
    """The polar factorization, but half turns continue past pi by psi (F15)."""
    turn = _polar_form(target)
    planes = int(np.count_nonzero(turn.angles == np.pi))
    if not planes:
        raise NotApplicableError(
            "paired needs a polar factor Q with eigenvalues -1; use polar"
        )
    return _turn_and_stretch(target, _paired_form(target, turn, planes, depth), depth)


def _optimal(target: Target, depth: int, _settings: PathSettings) -> Factorization:
    """The least |||A|||, where it is known (F15, F20)."""
    try:
        blocks = optimal_blocks(target, depth)
    except NotApplicableError as not_of_f15:
        return _optimal_at_one_pace(target, depth, not_of_f15)
    norm = max(block.norm for block in blocks)
    return Factorization(norm, functools.partial(layers_of_blocks, blocks, depth))


def _optimal_at_one_pace(
    target: Target, depth: int, not_of_f15: NotApplicableError
) -> Factorization:
    """The layers of (F20) if they attain the bound; raises `not_of_f15` if not."""
    try:
        layers = one_pace(target, depth)
    except NotApplicableError:
        raise not_of_f15 from None
    if not layers.is_optimal:
        raise not_of_f15
    return _turn_and_stretch(target, layers.turn, depth)


def _svd(target: Target, depth: int, _settings: PathSettings) -> Factorization:
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


class _Start(NamedTuple):
    """A path to start from.

    Attributes:
      turn: whose path `_turn_and_stretch` gives.
      stretch_is_P: as there.
      settings: how to search from it.
    """

    turn: RotationForm
    stretch_is_P: bool
    settings: PathSettings


def _path(target: Target, depth: int, settings: PathSettings) -> Factorization:
    """The best of the starts and of the paths obtained by shortening them."""
    pieces = min(depth, settings.pieces)
    candidates = []
    paths = []
    for start in _starts(target, depth, settings):
        with contextlib.suppress(NotApplicableError), contained("a start"):
            layers = _turn_and_stretch(
                target, start.turn, depth, stretch_is_P=start.stretch_is_P
            )
            candidates.append(layers)
            path = _turn_and_stretch(
                target, start.turn, pieces, stretch_is_P=start.stretch_is_P
            )
            paths.append((layers.norm, path, start.settings))
    paths.sort(key=lambda candidate: candidate[0])
    for _, path, search_settings in paths[: settings.starts]:
        # A step of the search can be singular if R is I up to rounding.
        with contextlib.suppress(NotApplicableError), contained("a shorter path"):
            candidates.append(_shortened(path, depth, search_settings))
    return min(candidates, key=lambda candidate: candidate.norm)


def _starts(target: Target, depth: int, settings: PathSettings) -> list[_Start]:
    """The starts of `_path`, of several homotopy classes."""
    d = len(target.R)
    turn = _polar_form(target)
    starts = [
        _Start(turn, stretch_is_P=True, settings=settings),
        _Start(_no_turn(target), stretch_is_P=False, settings=settings),
    ]
    if d > 2:
        starts.append(
            _Start(turn.the_other_way(), stretch_is_P=True, settings=settings)
        )
    steep_exponents = tuple(p for p in settings.exponents if p >= _LEAST_STEEP_EXPONENT)
    steep = dataclasses.replace(
        settings, exponents=steep_exponents or settings.exponents
    )
    large_turns = int(np.count_nonzero(np.abs(turn.angles) > np.pi / 2))
    most_planes = max(min(d - 1, 1), large_turns)
    forms = [
        _paired_form(target, turn, planes, depth)
        for planes in range(1, most_planes + 1)
    ]
    forms += _isoclinic_forms(target.R)
    starts += [_Start(form, stretch_is_P=False, settings=steep) for form in forms]
    return starts


def _shortened(
    path: Factorization, depth: int, settings: PathSettings
) -> Factorization:
    """The layers of the path that the search finds from `path`."""
    layers_of_start = path.build()
    identity = np.eye(layers_of_start.shape[-1])
    shorter = shorten(identity + layers_of_start, depth, settings)
    layers = layers_of_path(shorter, depth)
    return Factorization(
        largest_spectral_norm(layers), functools.partial(np.asarray, layers)
    )


METHODS: dict[str, Callable[[Target, int, PathSettings], Factorization]] = {
    "svd": _svd,
    "polar": lambda target, depth, _: _turn_and_stretch(
        target, _polar_form(target), depth, stretch_is_P=True
    ),
    "psd": _psd,
    "root": lambda target, depth, _: _turn_and_stretch(target, _no_turn(target), depth),
    "paired": _paired,
    "optimal": _optimal,
    "path": _path,
}
