"""Measures of thousands of large layers: the largest spectral norm, and the product's error."""

import numpy as np

# Relative accuracy of max_spectral_norm, far above the rounding of a Cholesky factorization.
_CERTIFIED_TO = 1e-9
# Layers are checked a few at a time, so that temporaries stay small beside a stack of gigabytes.
_CHUNK_ENTRIES = 2**21


def max_spectral_norm(A: np.ndarray) -> float:
    """``|||A||| = max_i ||A_i||`` of a large stack, to 1e-9 relative and never above the truth.

    An SVD of every layer is too slow for thousands of layers of width 256. One SVD gives a first
    value tau; a Cholesky factorization proves ``((1 + 1e-9) tau)^2 I - A_i^T A_i`` positive
    definite, that is ``||A_i|| < (1 + 1e-9) tau``; only a layer where it fails gets an SVD of its
    own and raises tau. Layers equal to the one before them are skipped.

    Args:
      A: f64[depth, d, d].
    Returns:
      The largest singular value of any layer.
    """
    depth, d, _ = A.shape
    tau = _spectral_norm(A[0])
    chunk_layers = max(1, _CHUNK_ENTRIES // d**2)
    for start in range(0, depth, chunk_layers):
        tau = _raise_to_chunk(tau, _without_repeats(A[start : start + chunk_layers]))
    return tau


def _spectral_norm(layer: np.ndarray) -> float:
    return float(np.linalg.norm(layer, 2))


def _without_repeats(layers: np.ndarray) -> np.ndarray:
    differs = np.ones(len(layers), dtype=bool)
    differs[1:] = (layers[1:] != layers[:-1]).any(axis=(1, 2))
    return layers[differs]


def _raise_to_chunk(tau: float, layers: np.ndarray) -> float:
    # The Frobenius norm is never below the spectral norm and costs next to nothing.
    suspects = layers[np.linalg.norm(layers, axis=(1, 2)) > tau]
    grams = np.swapaxes(suspects, 1, 2) @ suspects
    if len(grams) and _all_below(tau, grams):
        return tau
    for layer, gram in zip(suspects, grams, strict=True):
        if not _all_below(tau, gram):
            tau = max(tau, _spectral_norm(layer))
    return tau


def _all_below(tau: float, grams: np.ndarray) -> bool:
    limit = ((1 + _CERTIFIED_TO) * tau) ** 2
    try:
        np.linalg.cholesky(limit * np.eye(grams.shape[-1]) - grams)
    except np.linalg.LinAlgError:
        return False
    return True


def relative_product_error(A: np.ndarray, R: np.ndarray) -> float:
    """``||(I + A_l) ... (I + A_1) - R||_F / ||R||_F``, multiplied out layer by layer in float64.

    Args:
      A: f64[depth, d, d]; ``A[0]`` is applied first.
      R: f64[d, d].
    """
    end_to_end = np.eye(len(R))
    for layer in A:
        end_to_end = end_to_end + layer @ end_to_end
    return float(np.linalg.norm(end_to_end - R) / np.linalg.norm(R))
