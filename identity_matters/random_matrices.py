"""Random orthogonal and symmetric matrices, and second moments Sigma.

NumPy draws them, as everything random in the theory: JAX would compile for each shape.
"""

import numpy as np
from numpy.typing import ArrayLike


def orthogonal(
    rng: np.random.Generator,
    shape: tuple[int, ...],
    rows: int,
    columns: int | None = None,
) -> np.ndarray:
    """Random matrices with orthonormal columns: f64[*shape, rows, columns].

    They are square if `columns` is None. ValueError for more columns than rows.
    """
    if columns is None:
        columns = rows
    if columns > rows:
        raise ValueError(f"{rows} rows have no {columns} orthonormal columns")
    q, r = np.linalg.qr(rng.standard_normal((*shape, rows, columns)))
    # The signs of R's diagonal make QR unique and Q uniform.
    return q * np.sign(np.diagonal(r, axis1=-2, axis2=-1))[..., None, :]


def rotation(rng: np.random.Generator, d: int) -> np.ndarray:
    """A random rotation, f64[d, d], uniform in SO(d)."""
    Q = orthogonal(rng, (), d)
    Q[0] *= np.linalg.slogdet(Q)[0]
    return Q


def symmetric(rng: np.random.Generator, eigenvalues: ArrayLike) -> np.ndarray:
    """Symmetric matrices with eigenvalues f64[..., d], random bases: f64[..., d, d]."""
    values = np.asarray(eigenvalues, np.float64)
    return symmetric_in_basis(
        orthogonal(rng, values.shape[:-1], values.shape[-1]), values
    )


def symmetric_in_basis(basis: np.ndarray, eigenvalues: np.ndarray) -> np.ndarray:
    """Symmetric matrices with eigenvectors `basis`: f64[..., d, d], f64[..., d]."""
    matrices = (basis * eigenvalues[..., None, :]) @ basis.mT
    return (matrices + matrices.mT) / 2


def second_moments(
    rng: np.random.Generator,
    count: int,
    width: int,
    *,
    scale_log10: tuple[float, float],
    max_condition_log10: float,
    singular: bool = False,
) -> np.ndarray:
    """Random Sigma, f64[count, width, width]; about half are isotropic on their range.

    Singular ones have random ranks from 1 to width - 1 and are diagonal: this keeps
    rounding out of their null spaces, where a target with a large error would amplify
    it.

    Args:
      rng: the source of randomness.
      count, width: the shape.
      scale_log10: the (low, high) of log10 ||Sigma||.
      max_condition_log10: bounds log10 of the condition number on the range.
      singular: whether all are singular.
    Raises:
      ValueError: an argument is out of range, or `singular` with width 1.
    """
    if len(scale_log10) != 2 or not scale_log10[0] <= scale_log10[1]:
        raise ValueError(f"log10 ||Sigma|| needs (low, high), got {scale_log10}")
    if not max_condition_log10 >= 0:
        raise ValueError(
            f"max_condition_log10 must be at least 0, got {max_condition_log10}"
        )
    if singular and width < 2:
        raise ValueError(
            f"a singular Sigma that is not 0 needs width at least 2, got {width}"
        )
    scale = 10 ** rng.uniform(*scale_log10, (count, 1))
    condition_log10 = rng.uniform(0, max_condition_log10, (count, 1))
    condition_log10 *= rng.random((count, 1)) < 0.5
    exponents = rng.random((count, width))
    # Eigenvalues from scale down to scale / condition, both included.
    exponents[:, 0] = 0.0
    exponents[:, 1:2] = 1.0
    eigenvalues = scale * 10 ** (-condition_log10 * exponents)
    if not singular:
        return symmetric(rng, eigenvalues)
    # The largest eigenvalue comes first and stays.
    eigenvalues *= np.arange(width) < rng.integers(1, width, (count, 1))
    return eigenvalues[:, :, None] * np.eye(width)
