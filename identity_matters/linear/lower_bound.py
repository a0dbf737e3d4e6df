"""How small can |||A||| be? Lower bounds for every factorization of R (ours, not the paper's).

Proofs: F4 and F10 to F14 of docs/theory/factorization.md.
"""

import functools
from collections.abc import Callable

import numpy as np
import scipy.optimize
from numpy.typing import ArrayLike

from identity_matters import solvers
from identity_matters.linear.target import check_depth, check_target

# How many random vectors L-BFGS may start from (always the same ones), and how many steps it takes.
_RANDOM_DIRECTIONS, _ITERATIONS = 64, 200
# Grid points in rho and in y, and how many of the highest peaks in y are refined.
_RADII, _MULTIPLIERS, _PEAKS = 512, 48, 2
# A depth that stands for the limit; the relative distance of the two y around the best one.
_MANY_LAYERS, _NEAR = 10**6, 1e-4


def norm_lower_bound(
    R: ArrayLike, depth: int, *, ascents: int = 16, half_turns: bool = True
) -> float:
    """A lower bound on |||A||| over all factorizations ``R = (I + A_l) ... (I + A_1)``.

    For every x != 0, with phi in [0, pi] the angle between x and R x (F4),

        |||A||| >= |exp(w(x) / l) - 1|,   w(x) = log(|R x| / |x|) + i phi.

    Every x gives a bound. We climb from the `ascents` best of many, for R and for R^T: their
    maximum is the same, but one climb may miss it. With `half_turns`, `half_turn_bound` counts as
    well if R has negative eigenvalues. F11 to F14 say where the larger bound is optimal.

    For one layer the result is exact, ||R - I||. For more it is at most 1: a larger value, which
    only a few layers can have, proves |||A||| >= 1 and no more. Bounds hold up to rounding. Raises
    ValueError unless R, f64[d, d], is invertible with det R > 0 and l >= 1.

    >>> round(norm_lower_bound(-np.eye(2), depth=8), 12)  # 2 sin(pi / 16)
    0.390180644032
    """
    depth = check_depth(depth)
    target = check_target(R)
    R = target.R
    if depth == 1:
        return float(np.linalg.norm(R - np.eye(len(R)), 2))
    both = (R,) if target.is_symmetric else (R, R.T)
    bounds = [_best_direction(M, depth, ascents) for M in both]
    if half_turns:
        bounds.append(half_turn_bound(R, depth))
    return float(min(1.0, max(bounds)))


def _best_direction(R: np.ndarray, depth: int, ascents: int) -> float:
    """The largest ``|exp(w(x) / l) - 1|`` found."""
    d = len(R)
    eigenvectors = np.linalg.eig(R)[1]
    generator = np.random.default_rng(0)
    starts = [
        np.linalg.svd(R)[2].T,
        eigenvectors.real,
        eigenvectors.imag[:, np.abs(eigenvectors.imag).max(axis=0) > 0],
        generator.standard_normal((d, _RANDOM_DIRECTIONS)),
    ]
    X = np.concatenate(starts, axis=1)
    values = depth * np.abs(np.expm1(_log_length_and_angle(R, X) / depth))
    best = values.max()
    for index in np.argsort(-values)[:ascents]:
        x = X[:, index] / np.linalg.norm(X[:, index])
        _, lowest = solvers.lbfgs(
            _negated_bound_and_gradient, x, (R, depth), iterations=_ITERATIONS, tolerance=1e-12
        )
        best = max(best, -lowest)
    return float(best / depth)


def _log_length_and_angle(R: np.ndarray, X: np.ndarray) -> np.ndarray:
    """``w(x)`` of every column x of `X`, c128[n]."""
    X = X / np.linalg.norm(X, axis=0)
    image = R @ X
    along = np.sum(X * image, axis=0)
    # arctan2 keeps its digits near 0 and pi, where arccos loses half of them.
    phi = np.arctan2(np.linalg.norm(image - along * X, axis=0), along)
    return np.log(np.linalg.norm(image, axis=0)) + 1j * phi


def _negated_bound_and_gradient(x: np.ndarray, R: np.ndarray, depth: int):
    """``-l |exp(w(x) / l) - 1|`` and its gradient in x. The factor l keeps it of order 1."""
    w = _log_length_and_angle(R, x[:, None])[0]
    image = R @ x
    length, image_length = np.linalg.norm(x), np.linalg.norm(image)
    pulled_back = R.T @ image / image_length**2
    log_gradient = pulled_back - x / length**2
    cosine, sine = np.cos(w.imag), np.sin(w.imag)
    cosine_gradient = (image + R.T @ x) / (length * image_length) - cosine * (
        pulled_back + x / length**2
    )
    # The angle has a kink at 0 and pi; there the gradient is that of the length alone.
    angle_gradient = -cosine_gradient / sine if sine > 1e-12 else np.zeros_like(x)
    moved = np.expm1(w / depth)
    if moved == 0:
        return 0.0, np.zeros_like(x)
    slope = np.conj(moved) / abs(moved) * np.exp(w / depth)
    gradient = slope.real * log_gradient - slope.imag * angle_gradient
    return -depth * abs(moved), -gradient


def half_turn_bound(R: np.ndarray, depth: int) -> float:
    """The largest ``|exp(w / l) - 1|`` found for vectors that are forced to go the long way round.

    Let alpha be the largest angle between x and R x among the x with ``|R x| = rho |x|``. If the
    number of negative eigenvalues of R above -rho is odd (F10),

        |||A||| >= min(1, |exp(w / l) - 1|),   w = log rho + i (2 pi - alpha).

    For every y, ``rho cos alpha >= lambda_min((R + R^T) / 2 + y R^T R) - y rho^2``. Any rho and y
    give a bound; we try many rho between paired neighbours -a < -b among the negative eigenvalues,
    and y between 1/2a and 1/2b, where the best one lies.

    R is f64[d, d] with det R > 0, and l >= 2; the result is 0 without negative eigenvalues. It
    holds for a matrix within rounding of R: one that has the computed eigenvalues.
    """
    return _half_turn(R, depth)[0]


def forced_vector(R: np.ndarray) -> np.ndarray | None:
    """The unit vector x, f64[d], behind `half_turn_bound` for many layers; None if there is none.

    ``|R x| = rho``; its angle to R x is alpha, up to the grid in rho. F13 builds on x.
    """
    length, y, rho = _half_turn(R, _MANY_LAYERS)
    if not length:
        return None
    # Where the least eigenvalue is multiple, as for normal R, x lies between the eigenvectors on
    # either side of y: |R x| falls along the way from one to the other.
    before, after = (
        np.linalg.eigh((R + R.T) / 2 + near * R.T @ R)[1][:, 0]
        for near in (y * (1 - _NEAR), y * (1 + _NEAR))
    )
    after *= np.copysign(1, before @ after)

    def too_long(share: float) -> float:
        x = before + share * (after - before)
        return float(np.linalg.norm(R @ x) / np.linalg.norm(x)) / rho - 1

    between = too_long(0) * too_long(1) < 0
    x = before + (scipy.optimize.brentq(too_long, 0, 1) if between else 0.5) * (after - before)
    return x / np.linalg.norm(x)


def _half_turn(R: np.ndarray, depth: int) -> tuple[float, float, float]:
    """`half_turn_bound`, its y and its rho; zeros if R has no negative eigenvalues."""
    eigenvalues = np.linalg.eigvals(R)
    moduli = np.sort(-eigenvalues.real[(eigenvalues.imag == 0) & (eigenvalues.real < 0)])
    symmetric_part, gram, norm = (R + R.T) / 2, R.T @ R, np.linalg.norm(R, 2)

    def best_for(rho: np.ndarray, log_y: float) -> tuple[float, float, float]:
        y = np.exp(log_y)
        # Subtract what rounding may add: near alpha = pi, arccos would turn eps into sqrt(eps).
        rounding = 4 * len(R) * np.finfo(float).eps * (1 + y * norm) * norm
        least = np.linalg.eigvalsh(symmetric_part + y * gram)[0] - rounding
        alpha = np.arccos(np.clip(least / rho - y * rho, -1, 1))
        w = np.log(rho) + 1j * (2 * np.pi - alpha)
        bounds = np.abs(np.expm1(w / depth))
        return float(bounds.max()), float(y), float(rho[bounds.argmax()])

    best = 0.0, 0.0, 0.0
    # det R > 0 makes their number even, unless rounding has moved one across 0.
    for b, a in moduli.reshape(-1, 2) if len(moduli) % 2 == 0 else ():
        reach = functools.partial(best_for, np.geomspace(b, a, _RADII))
        grid = np.linspace(-np.log(2 * a), -np.log(2 * b), _MULTIPLIERS)
        reached = np.array([reach(log_y)[0] for log_y in grid])
        before, after = np.roll(reached, 1), np.roll(reached, -1)
        peaks = np.flatnonzero((reached > before) & (reached >= after))
        highest = peaks[np.argsort(-reached[peaks])][:_PEAKS]
        closer = (_peak_near(reach, grid, i, xatol=1e-6) for i in highest)
        best = max(best, reach(-np.log(a + b)), *closer)
    return best


def _peak_near(function: Callable, grid: np.ndarray, i: int, xatol: float):
    """``function(x)`` where its first value peaks between the neighbours of ``grid[i]``."""
    found = scipy.optimize.minimize_scalar(
        lambda x: -function(x)[0],
        bounds=(grid[max(i - 1, 0)], grid[min(i + 1, len(grid) - 1)]),
        method="bounded",
        options={"xatol": xatol},
    )
    return function(found.x)


def slowest_in_plane(theta: float, m: float, g: float) -> tuple[float, float]:
    """The least path length for R = Q P in the plane, and the psi of the vector that needs it.

    Q turns by theta in [0, pi] radians; P stretches by ``e^{m+g}`` and ``e^{m-g}``, g >= 0. A
    vector that P stretches by ``e^{m+q}`` is turned by psi, to either side, with
    ``cos psi = cosh q / cosh g``. By F11 the length is the largest ``hypot(|m| + q, theta + psi)``
    over q in [0, g].
    """

    def length_and_psi(u):
        # In u = arcsin(q / g) the ends are smooth. arctan2 keeps its digits near 0.
        q = g * np.sin(u)
        sinh = np.sqrt(np.maximum(0, np.sinh(g) ** 2 - np.sinh(q) ** 2))
        psi = np.arctan2(sinh, np.cosh(q))
        return np.hypot(abs(m) + q, theta + psi), psi

    # There may be two maxima, so a grid comes first.
    grid = np.linspace(0, np.pi / 2, _RADII)
    i = int(np.argmax(length_and_psi(grid)[0]))
    length, psi = max(length_and_psi(grid[i]), _peak_near(length_and_psi, grid, i, xatol=1e-9))
    return float(length), float(psi)
