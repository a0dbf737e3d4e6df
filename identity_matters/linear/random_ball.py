"""Random points of B_tau, drawn to break eq. (2.3) if it can be broken.

Samplers of their layers:

* ``uniform``: Gaussian directions, each layer at its own norm, uniform on [0, tau];
* ``boundary``: the same directions with every layer at norm tau;
* ``diagonal``: layers that are all diagonal in one random orthonormal basis;
* ``mixture``: each layer is one of ``-tau I``, ``tau I``, 0, -tau times a reflection,
  Gaussian;
* ``extremal``: ``-tau I`` plus noise of log-uniform size, where the corrected form is
  tight.
"""

from typing import Any, NamedTuple

import numpy as np

from identity_matters import matrices
from identity_matters.checks import check_choice
from identity_matters.matrices import spectral_norms
from identity_matters.random_matrices import (
    orthogonal,
    second_moments,
    symmetric_in_basis,
)

# The least relative size of the noise around -tau I; rounding would hide smaller noise.
_LEAST_NOISE_LOG10 = -8.0


class Points(NamedTuple):
    """A batch of points.

    Attributes:
      A: f64[n, max_depth, d, d], zero layers from `depth` on.
      R: f64[n, d, d].
      Sigma: f64[n, d, d].
      depth: i64[n].
    """

    A: np.ndarray
    R: np.ndarray
    Sigma: np.ndarray
    depth: np.ndarray


def layers(
    rng: np.random.Generator, sampler: str, tau: np.ndarray, max_depth: int, width: int
) -> np.ndarray:
    """Layers with ``|||A||| <= tau`` up to rounding: f64[n, max_depth, width, width].

    `tau` is f64[n]. Raises ValueError unless `sampler` is one of `SAMPLERS`.
    """
    check_choice("sampler", sampler, SAMPLERS)
    radius = np.broadcast_to(tau[:, None], (len(tau), max_depth))
    return _LAYER_SAMPLERS[sampler](rng, radius, width)


# Each takes radii, f64[n, depth], which are equal within a point, and returns layers,
# f64[n, depth, width, width].


def _uniform_layers(
    rng: np.random.Generator, radius: np.ndarray, width: int
) -> np.ndarray:
    """Gaussian directions, norms uniform on [0, radius]."""
    gaussian = rng.standard_normal((*radius.shape, width, width))
    return _with_norms(gaussian, radius * rng.random(radius.shape))


def _boundary_layers(
    rng: np.random.Generator, radius: np.ndarray, width: int
) -> np.ndarray:
    """Gaussian directions, all of norm `radius`."""
    gaussian = rng.standard_normal((*radius.shape, width, width))
    return _with_norms(gaussian, radius)


def _with_norms(layers: np.ndarray, norms: np.ndarray) -> np.ndarray:
    """The layers, f64[..., d, d], scaled to these spectral norms, f64[...]."""
    return layers * (norms / spectral_norms(layers))[..., None, None]


def _diagonal_layers(
    rng: np.random.Generator, radius: np.ndarray, width: int
) -> np.ndarray:
    """Diagonal in one random basis for each point.

    Half of the eigenvalues sit at -tau or tau, the corners of the set.
    """
    values = rng.uniform(-1, 1, (*radius.shape, width))
    values = np.where(rng.random(values.shape) < 0.5, np.sign(values), values)
    basis = orthogonal(rng, (len(radius), 1), width)
    return symmetric_in_basis(basis, values * radius[..., None])


def _mixture_layers(
    rng: np.random.Generator, radius: np.ndarray, width: int
) -> np.ndarray:
    """Each is one of -tau I, tau I, 0, -tau times a reflection, a Gaussian one."""
    eye = np.eye(width)
    gaussian = rng.standard_normal((*radius.shape, width, width))
    kinds = rng.integers(0, 5, radius.shape)[..., None, None]
    axis = gaussian[..., :1] / np.linalg.norm(gaussian[..., :1], axis=-2, keepdims=True)
    gaussian /= np.linalg.norm(gaussian, axis=(-2, -1), keepdims=True)
    negated_reflection = 2 * axis @ axis.mT - eye
    directions = np.choose(kinds, [-eye, eye, 0 * eye, negated_reflection, gaussian])
    return directions * radius[..., None, None]


def _extremal_layers(
    rng: np.random.Generator, radius: np.ndarray, width: int
) -> np.ndarray:
    """-tau I plus noise, whose size is log-uniform and the same within a point."""
    gaussian = rng.standard_normal((*radius.shape, width, width))
    noise_log10 = rng.uniform(_LEAST_NOISE_LOG10, 0, (len(radius), 1))
    noise = gaussian * 10 ** noise_log10[..., None, None]
    # The Frobenius norm bounds the spectral one from above at a fraction of its cost.
    largest_norm = 1 + np.linalg.norm(noise, axis=(-2, -1))
    return (noise - np.eye(width)) * (radius / largest_norm)[..., None, None]


_LAYER_SAMPLERS = {
    "uniform": _uniform_layers,
    "boundary": _boundary_layers,
    "diagonal": _diagonal_layers,
    "mixture": _mixture_layers,
    "extremal": _extremal_layers,
}
SAMPLERS = tuple(_LAYER_SAMPLERS)


def points(
    rng: np.random.Generator,
    sampler: str,
    count: int,
    width: int,
    depths: tuple[int, int],
    max_tau: float,
    **second_moment_settings: Any,
) -> Points:
    """`count` points with depths drawn uniformly from ``depths[0] ... depths[1]``.

    Half of the tau, on average, are uniform on (0, max_tau); the others, with uniform
    log(1 - tau), lie nearer to the wall at 1. Keyword arguments are those of
    `second_moments`. Raises what it and `layers` raise, and ValueError for depths below
    1 and unless ``0 < max_tau < 1``.
    """
    if depths[0] < 1 or not 0 < max_tau < 1:
        raise ValueError(
            f"depths must be from 1, and 0 < max_tau < 1, got {depths} and {max_tau}"
        )
    uniform = rng.uniform(0, max_tau, count)
    near_wall = 1 - (1 - max_tau) ** rng.random(count)
    # A uniform draw may be 0, but the radius must be positive.
    tau = np.maximum(np.where(rng.random(count) < 0.5, uniform, near_wall), 1e-6)
    depth = rng.integers(depths[0], depths[1] + 1, count)
    max_depth = depths[1]
    A = layers(rng, sampler, tau, max_depth=max_depth, width=width)
    A[np.arange(max_depth) >= depth[:, None]] = 0.0
    Sigma = second_moments(rng, count, width, **second_moment_settings)
    return Points(A=A, R=targets_of_layers(rng, A), Sigma=Sigma, depth=depth)


def targets_of_layers(rng: np.random.Generator, A: np.ndarray) -> np.ndarray:
    """Random R for the layers A, f64[n, depth, d, d] -> f64[n, d, d].

    A third are Gaussian of log-uniform size (half of these with det R < 0), a third the
    product of the layers plus a tenth of such a matrix, and a third that product plus a
    rank-one error.
    """
    count, _, width, _ = A.shape
    product = matrices.residual_product(np.moveaxis(A, 1, 0))
    size = 10 ** rng.uniform(-2, 2, (count, 1, 1))
    gaussian = rng.standard_normal((count, width, width))
    rank_one = gaussian[:, :, :1] * rng.standard_normal((count, 1, width))
    kinds = rng.integers(0, 3, (count, 1, 1))
    near_product = product + 0.1 * size * gaussian
    return np.choose(kinds, [size * gaussian, near_product, product + size * rank_one])
