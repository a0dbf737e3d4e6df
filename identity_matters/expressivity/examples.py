"""Checks of the labelled examples that a network is to memorise."""

import hashlib

import numpy as np


def check_examples(x, y, num_classes: int) -> None:
    """Raises ValueError unless `x` and `y` are n labelled examples in d dimensions.

    Args:
      x: array[n, d] of finite numbers, n and d at least 1.
      y: integer array[n] with values in 0 ... num_classes - 1.
      num_classes: r, at least 1.
    """
    if x.ndim != 2 or 0 in x.shape:
        raise ValueError(f"x must have shape [n, d] with n and d at least 1, got {x.shape}")
    if num_classes < 1:
        raise ValueError(f"num_classes must be at least 1, got {num_classes}")
    if y.shape != x.shape[:1] or not np.issubdtype(y.dtype, np.integer):
        raise ValueError(f"y must be {len(x)} integers, one for each row of x, got {y.dtype}{y.shape}")
    outside = np.flatnonzero((y < 0) | (y >= num_classes))
    if outside.size:
        i = outside[0]
        raise ValueError(f"labels must lie in 0 ... {num_classes - 1}, but y[{i}] = {y[i]}")
    # The sum of a row is finite only if every entry is, short of overflow; so look again if not.
    suspects = np.flatnonzero(~np.isfinite(x.sum(1)))
    for i in suspects:
        if not np.isfinite(x[i]).all():
            raise ValueError(f"x must be finite, but x[{i}] holds NaN or infinity")


def distinct_examples(x, y) -> np.ndarray:
    """Indices of the first occurrences of the distinct rows of `x`, in order.

    Args:
      x: f[n, d]; rows count as equal when every entry is (0.0 and -0.0 are).
      y: integer[n].
    Returns:
      i64[m], m <= n.
    Raises:
      ValueError: two equal rows have different labels, which no function of x can fit.
    """
    first, kept = {}, []
    for i, row in enumerate(x):
        # Adding 0.0 turns -0.0, whose bits differ, into 0.0.
        digest = hashlib.blake2b((row + 0.0).tobytes(), digest_size=16).digest()
        j = first.setdefault(digest, i)
        if j == i:
            kept.append(i)
        elif y[i] != y[j]:
            raise ValueError(
                f"inputs {j} and {i} are identical but have labels {y[j]} and {y[i]}:"
                " no network can fit both"
            )
    return np.array(kept)
