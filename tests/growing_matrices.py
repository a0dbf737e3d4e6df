"""Well-conditioned matrices whose entries grow by 2^64 in elimination.

From them LU takes the wrong sign of the determinant. Sums and products of their entries
are exact, so that the sign is known.
"""

import fractions

import numpy as np

DIMENSION = 66


def growing(seed: int) -> np.ndarray:
    """f64[66, 66] of condition number below 1e4; the seed chooses the last two rows."""
    rng = np.random.default_rng(seed)
    m = DIMENSION - 2
    R = np.zeros((DIMENSION, DIMENSION))
    # Each row of the upper part subtracts nearly all rows above it.
    R[:m, :m] = np.eye(m) - 0.96875 * np.tril(np.ones((m, m)), -1)
    R[:m, m:] = 1
    R[m:, :m] = rng.integers(-60, 61, (2, m)) / 64
    R[m:, m] = rng.integers(-60, 61, 2) / 64
    R[m:, m + 1] = R[m:, m] + rng.integers(-64, 65, 2) / 64
    return R


def exact_determinant_sign(R: np.ndarray) -> int:
    """The sign of det R by elimination in rational arithmetic."""
    rows = [[fractions.Fraction(entry) for entry in row] for row in R.tolist()]
    sign = 1
    for step in range(len(rows)):
        pivot = next((i for i in range(step, len(rows)) if rows[i][step]), None)
        if pivot is None:
            return 0
        if pivot != step:
            rows[step], rows[pivot] = rows[pivot], rows[step]
            sign = -sign
        head = rows[step]
        sign = sign if head[step] > 0 else -sign
        for row in rows[step + 1 :]:
            share = row[step] / head[step]
            for column in range(step, len(rows)):
                row[column] -= share * head[column]
    return sign
