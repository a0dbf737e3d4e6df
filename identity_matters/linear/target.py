"""The conditions of Theorem 2.1 on the target R, and its gamma."""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from identity_matters import matrices
from identity_matters.checks import check_whole, square_matrix

# 3 gamma comes from computed singular values:
# rounding may lift it just above a whole number.
_ROUNDING_LAYERS = 1e-9

# Where ||R - I|| is at most this, we compute with R - I, which keeps all its digits
# there.
_NEAR_IDENTITY = 0.5

# Of determinants in messages; the exponential of a larger one may overflow.
_LARGEST_SHOWN_LOG = 700.0

check_depth = functools.partial(check_whole, "depth")


class NotApplicableError(ValueError):
    """This method cannot factorize this R at this depth; another one may."""


@contextlib.contextmanager
def not_applicable_if_lapack_fails(what: str) -> Iterator[None]:
    """Turns the errors of LAPACK and SciPy within the block into a NotApplicableError.

    Both raise LinAlgError or ValueError where an iteration or their own arithmetic
    fails, although the matrix is finite. So every ValueError and ArithmeticError within
    the block counts as theirs. They also warn then, NumPy too. All warnings are
    silenced, and the caller checks the result instead.
    """
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            yield
    except NotApplicableError:
        raise
    except (ValueError, ArithmeticError, np.linalg.LinAlgError) as error:
        reason = str(error).partition("\n")[0]
        raise NotApplicableError(f"{what} cannot be computed: {reason}") from error


class Target(NamedTuple):
    """A checked target with its singular value decomposition ``R = U diag(K) V^T``.

    Attributes:
      R, U, Vt: f64[d, d].
      K: f64[d], positive, in decreasing order.
      gamma: that of Theorem 2.1, the largest |log K_i|.
    """

    R: np.ndarray
    U: np.ndarray
    K: np.ndarray
    Vt: np.ndarray
    gamma: float

    @property
    def least_depth(self) -> int:
        """``max(1, ceil(3 gamma))``, the fewest layers that Theorem 2.1 allows."""
        return max(1, int(np.ceil(3 * self.gamma - _ROUNDING_LAYERS)))

    @property
    def is_symmetric(self) -> bool:
        """Whether ``R = R^T`` up to the rounding of its entries."""
        rounding = len(self.R) * np.finfo(float).eps * self.K[0]
        return bool(np.abs(self.R - self.R.T).max() <= rounding)


def check_target(R: ArrayLike) -> Target:
    """Decomposes R; refuses it unless layers with ||A_i|| < 1 can make it.

    Raises:
      ValueError: R is not a square matrix of finite real numbers, is singular to
        float64 precision (``sigma_min <= d eps sigma_max``, or beyond 1e-150 or 1e150),
        or has det R < 0.
    """
    R = square_matrix("R", R)
    with not_applicable_if_lapack_fails("the singular values of R"):
        U, K, Vt = np.linalg.svd(R)
    rounding = len(R) * np.finfo(float).eps * K[0]
    least_to_largest = f"{K[-1]:.3g} to {K[0]:.3g}"
    if K[-1] <= rounding and K[0] <= 1e150:
        raise ValueError(
            f"R must be invertible beyond rounding, here {rounding:.3g}, got singular"
            f" values {least_to_largest}"
        )
    if K[-1] <= 1e-150 or K[0] > 1e150:
        raise ValueError(
            "R must have singular values within 1e-150 to 1e150, got"
            f" {least_to_largest}"
        )
    if matrices.determinant_sign(R) < 0:
        # The determinant itself may be outside the range of float64.
        log_determinant = float(np.log(K).sum())
        shown = f"-exp({log_determinant:.6g})"
        if abs(log_determinant) < _LARGEST_SHOWN_LOG:
            shown = f"{-np.exp(log_determinant):.6g}"
        raise ValueError(f"det R must be positive, got {shown}; negate a row of R")
    gamma = float(max(abs(np.log(K[0])), abs(np.log(K[-1]))))
    return Target(R=R, U=U, K=K, Vt=Vt, gamma=gamma)


class Shifted(NamedTuple):
    """``R = shift I + matrix``, with all digits near the identity.

    Attributes:
      matrix: f64[d, d], R - I near the identity, else R.
      shift: 1 near the identity, else 0.
    """

    matrix: np.ndarray
    shift: float

    @classmethod
    def of(cls, R: np.ndarray) -> Shifted:
        E = R - np.eye(len(R))
        if np.linalg.norm(E, 2) <= _NEAR_IDENTITY:
            return cls(matrix=E, shift=1.0)
        return cls(matrix=R, shift=0.0)
