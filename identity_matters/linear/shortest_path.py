"""Numerical shortest paths from I to R: the least |||A||| that we can find for small d.

* ``M_i``: pieces of the path, M_m ... M_1 = R, f64[m, d, d]
* ``Y_i``: moves of the nodes, Y_0 = Y_m = I: M_i becomes Y_i M_i Y_{i-1}^{-1}, R stays
* ``s``: m / l, the share of a piece that one layer covers
* ``G_i``: (M_i^s - I) / s, l/m times the layer of piece i; log M_i as s -> 0, M_i - I
  at s = 1
* ``p``: exponent of the smoothed maximum, (sum_i tr (G_i^T G_i)^{p/2})^{1/p}
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from identity_matters import lbfgs
from identity_matters.checks import check_whole
from identity_matters.linear.target import NotApplicableError

# The series converge in a dozen terms for pieces near I.
_MOST_TERMS = 400
# Terms of the binomial series for M_i^s in the objective; the layers do not use it.
_POWER_TERMS = 8


@dataclasses.dataclass(frozen=True)
class PathSettings:
    """How hard to look for a short path; ValueError for a setting out of range.

    Attributes:
      pieces: of a path, at least 1; it has one per layer if there are fewer layers.
      exponents: p, all even and at least 2; the smoothed norm is minimised for each in
        turn.
      iterations: the most steps of L-BFGS for an exponent, at least 1.
      starts: how many starting paths, those of least norm, are shortened; 0 or more.
    """

    pieces: int = 24
    exponents: tuple[int, ...] = (4, 8, 16, 32, 64, 128, 256)
    iterations: int = 100
    starts: int = 2

    def __post_init__(self):
        check_whole("pieces", self.pieces)
        check_whole("iterations", self.iterations)
        check_whole("starts", self.starts, 0)
        if not isinstance(self.exponents, (tuple, list)):
            raise ValueError(f"exponents must be a tuple, got {self.exponents!r}")
        for exponent in self.exponents:
            if check_whole("exponents", exponent, 2) % 2:
                raise ValueError(f"exponents must be even, got {exponent}")


def shorten(pieces: np.ndarray, depth: int, settings: PathSettings) -> np.ndarray:
    """Moves the nodes of a path, with pieces f64[m, d, d] near I, to lower |||A|||."""
    m, d, _ = pieces.shape
    if m == 1:
        return pieces
    no_moves = np.tile(np.eye(d), (m - 1, 1, 1)).ravel()
    coefficients = _power_series(m / depth, _POWER_TERMS)
    for exponent in settings.exponents:
        moves, _ = lbfgs.minimize(
            smoothed_norm_and_gradient,
            no_moves,
            (pieces, coefficients, exponent),
            iterations=settings.iterations,
        )
        # The next moves start from these pieces, so that they stay near I and
        # well-conditioned.
        pieces, _ = moved(moves, pieces)
    return pieces


def _power_series(share: float, terms: int) -> list[float]:
    """Coefficients c_1, c_2, ... of ``((1 + a)^s - 1) / s = c_1 a + c_2 a^2 + ...``."""
    coefficients = [1.0]
    if share >= 1:
        # A piece for each layer: the series is a itself.
        return coefficients
    for k in range(1, terms):
        coefficients.append(coefficients[-1] * (share - k) / (k + 1))
    return coefficients


def moved(moves: np.ndarray, pieces: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The moved pieces, f64[m, d, d], and the inverses of the moves, f64[m - 1, d, d].

    Args:
      moves: Y_1 ... Y_{m-1}, f64[(m - 1) d d].
      pieces: f64[m, d, d].
    """
    m, d, _ = pieces.shape
    identity = np.eye(d)[None]
    Y = np.concatenate([identity, moves.reshape(m - 1, d, d), identity])
    inverses = np.linalg.inv(Y)
    return Y[1:] @ pieces @ inverses[:-1], inverses[1:-1]


def smoothed_norm_and_gradient(
    moves: np.ndarray,
    pieces: np.ndarray,
    coefficients: Sequence[float],
    exponent: float,
) -> tuple[float, np.ndarray]:
    """``log (sum_i tr (G_i^T G_i)^{p/2})^{1/p}`` and its gradient, f64[(m - 1) d d].

    The eigendecomposition of G^T G avoids overflow and derivatives of eigenvectors.

    Args:
      moves: Y_1 ... Y_{m-1}, f64[(m - 1) d d].
      pieces: M, f64[m, d, d], before the moves.
      coefficients: c_k of ``G = c_1 A + c_2 A^2 + ...`` with A = M - I.
      exponent: p.
    """
    M, inverse_moves = moved(moves, pieces)
    A = M - np.eye(M.shape[-1])
    horner = _horner(A, coefficients)
    G = A @ horner[-1]
    log_sum, G_gradient = _log_sum_and_gradient(G, exponent)
    A_gradient = _gradient_through_horner(A, horner, G_gradient)
    # A move of a node changes the piece that ends there and the one that begins there.
    ends = A_gradient[:-1] @ M[:-1].mT
    begins = M[1:].mT @ A_gradient[1:]
    gradient = (ends - begins) @ inverse_moves.mT
    return log_sum / exponent, gradient.ravel()


def _horner(A: np.ndarray, coefficients: Sequence[float]) -> list[np.ndarray]:
    """Horner's partial sums of ``c_1 I + c_2 A + c_3 A^2 + ...``, f64[m, d, d] each.

    The last one is the sum itself.
    """
    identity = np.eye(A.shape[-1])
    sums = [np.broadcast_to(coefficients[-1] * identity, A.shape)]
    for c in reversed(coefficients[:-1]):
        sums.append(c * identity + A @ sums[-1])
    return sums


def _log_sum_and_gradient(G: np.ndarray, exponent: float) -> tuple[float, np.ndarray]:
    """``log sum_i tr (G_i^T G_i)^{p/2}``, and 1/p of its gradient, f64[m, d, d]."""
    squares, V = np.linalg.eigh(G.mT @ G)
    logs = np.log(np.maximum(squares, np.finfo(float).tiny))
    half = exponent / 2
    log_sum = half * logs.max() + np.log(np.sum(np.exp(half * (logs - logs.max()))))
    weights = np.exp((half - 1) * logs - log_sum)
    return log_sum, G @ ((V * weights[:, None, :]) @ V.mT)


def _gradient_through_horner(
    A: np.ndarray, horner: list[np.ndarray], G_gradient: np.ndarray
) -> np.ndarray:
    """The gradient in A, f64[m, d, d], of a function of G with this gradient in G."""
    A_gradient = np.zeros_like(A)
    # A times the last partial sum is G. Each of the others enters the next one times A.
    gradient_in_product = G_gradient
    for partial_sum in reversed(horner):
        A_gradient += gradient_in_product @ partial_sum.mT
        gradient_in_product = A.mT @ gradient_in_product
    return A_gradient


def layers_of_path(pieces: np.ndarray, depth: int) -> np.ndarray:
    """Cuts a path M, f64[m, d, d], m <= depth, into layers of equal length.

    Returns f64[depth, d, d]. For m = depth each piece gives a layer. Otherwise piece i
    is ``exp(t log M_i)`` at constant speed, in a time proportional to ``||log M_i||``,
    and a layer that crosses nodes is a product of such parts. Raises NotApplicableError
    if a piece is too far from I for its logarithm.
    """
    m, d, _ = pieces.shape
    if m == depth:
        return pieces - np.eye(d)
    logs = _logarithms(pieces)
    lengths = np.linalg.norm(logs, 2, axis=(1, 2))
    if not lengths.any():
        return np.zeros((depth, d, d))
    nodes = np.concatenate([[0.0], np.cumsum(lengths)])
    cuts = np.linspace(0.0, nodes[-1], depth + 1)
    begins = np.maximum(cuts[:-1, None], nodes[:-1])
    ends = np.minimum(cuts[1:, None], nodes[1:])
    # shares[k, i] is the fraction of piece i that falls into layer k.
    shares = np.maximum(ends - begins, 0) / np.where(lengths > 0, lengths, 1)
    # Layer by layer, and within one in the order of the path.
    layers, touched = np.nonzero(shares)
    parts = _exponentials_minus_identity(
        shares[layers, touched, None, None] * logs[touched]
    )
    A = np.zeros((depth, d, d))
    for k, part in zip(layers, parts, strict=True):
        A[k] += part + part @ A[k]
    return A


def _logarithms(pieces: np.ndarray) -> np.ndarray:
    """``log M = 2 artanh C = 2 (C + C^3/3 + ...)``, C = (M - I) (M + I)^{-1}.

    Unlike `scipy.linalg.logm` it takes all pieces at once, and keeps the digits of
    M - I. Raises NotApplicableError if an M is too far from I.
    """
    identity = np.eye(pieces.shape[-1])
    # C has the eigenvalues (mu - 1) / (mu + 1). At 0.9 the series still ends within
    # _MOST_TERMS: 0.9^400 < eps.
    mu = np.linalg.eigvals(pieces)
    if (np.abs(mu - 1) > 0.9 * np.abs(mu + 1)).any():
        distance = np.linalg.norm(pieces - identity, 2, axis=(1, 2)).max()
        raise NotApplicableError(
            f"R needs more pieces: with {len(pieces)} one is at distance {distance:.3g}"
            " from I"
        )
    C = np.linalg.solve(pieces + identity, pieces - identity)
    square = C @ C
    power = C
    total = C.copy()
    for n in range(3, _MOST_TERMS, 2):
        power = power @ square
        total += power / n
        if np.abs(power).max() <= np.finfo(float).eps * np.abs(total).max():
            break
    return 2 * total


def _exponentials_minus_identity(exponents: np.ndarray) -> np.ndarray:
    """``exp(B) - I = B + B^2/2 + ...``; small B keep all their digits."""
    term = exponents
    total = exponents.copy()
    for n in range(2, _MOST_TERMS):
        term = term @ exponents / n
        total += term
        if np.abs(term).max() <= np.finfo(float).eps * np.abs(total).max():
            break
    return total
