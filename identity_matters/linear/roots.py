"""The principal l-th root of a real matrix, to the accuracy that l factors of it need."""

import numpy as np
import scipy.linalg

# A product of l roots further than this from R, relative in Frobenius norm, is refused.
LARGEST_ERROR = 1e-10


class NoPrincipalRootError(ValueError):
    """R has no real principal root, or none that float64 can represent well enough."""


def principal_root_minus_identity(R: np.ndarray, depth: int) -> np.ndarray:
    """``R^{1/l} - I``, with the eigenvalues of the root at angles below pi / l.

    Taken from the logarithm, so that its own relative error is small: errors of ``R^{1/l}`` count l
    times in the product. Normal R (a diagonal complex Schur form) and R with well-conditioned
    eigenvectors need no more than ``lambda^{1/l}``; others take the matrix logarithm.

    Args:
      R: f64[d, d], invertible.
      depth: l.
    Returns:
      f64[d, d].
    Raises:
      NoPrincipalRootError: R has an eigenvalue on the negative real axis, or the l-th power of the
        computed root misses R by more than 1e-10.
    """
    eigenvalues, V = np.linalg.eig(R)
    on_axis = eigenvalues[(eigenvalues.imag == 0) & (eigenvalues.real <= 0)]
    if len(on_axis):
        raise NoPrincipalRootError(
            f"R must have no real eigenvalue <= 0 for a principal root, got {on_axis[0].real:.6g}"
        )
    error = np.inf
    for attempt in (_by_schur_vectors, _by_eigenvectors, _by_logarithm):
        layer = attempt(R, depth, eigenvalues, V)
        if layer is None or not np.isfinite(layer).all():
            continue
        power = np.linalg.matrix_power(np.eye(len(R)) + layer, depth)
        error = float(np.linalg.norm(power - R) / np.linalg.norm(R))
        if error <= LARGEST_ERROR:
            return layer
    raise NoPrincipalRootError(
        f"the principal root of this R is too ill-conditioned: its power misses R by {error:.3g}"
        f" relative, {LARGEST_ERROR:g} is allowed"
    )


def _by_schur_vectors(R, depth, eigenvalues, V):
    del eigenvalues, V
    T, Z = scipy.linalg.schur(R, output="complex")
    diagonal = np.diag(T)
    if np.abs(np.triu(T, 1)).max(initial=0) > len(R) * np.finfo(float).eps * np.abs(T).max():
        return None
    return ((Z * np.expm1(np.log(diagonal) / depth)) @ Z.conj().T).real


def _by_eigenvectors(R, depth, eigenvalues, V):
    # A defective R has no eigenvectors to speak of; the check of the power would refuse it too.
    if np.linalg.cond(V) > 1 / np.sqrt(np.finfo(float).eps):
        return None
    scaled = V * np.expm1(np.log(eigenvalues.astype(complex)) / depth)
    return np.linalg.solve(V.T, scaled.T).T.real


def _by_logarithm(R, depth, eigenvalues, V):
    del eigenvalues, V
    logarithm = scipy.linalg.logm(R).real
    return scipy.linalg.expm(logarithm / depth) - np.eye(len(R))
