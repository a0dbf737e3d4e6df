"""Normalisations of images: what is fitted in training, and how it is applied."""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from identity_matters.checks import check_choice

# These three are as in pylearn2's make_cifar10_gcn_whitened.py.
GCN_NORM = 55.0  # of every image after contrast normalisation
# An image is not rescaled if the divisor, its norm over GCN_NORM, is below this.
_GCN_LEAST_DIVISOR = 1e-8
_ZCA_BIAS = 0.1  # what is added to the variances
LARGEST_PIXEL = 255  # of uint8
# Float32 holds the sums of squares of 80 million numbers of this size.
_LARGEST_TO_SQUARE = 1e15
# Float32 holds differences of such numbers, and the reciprocal of their deviation.
_LARGEST_TO_SUBTRACT = 1e37
# How many rows are converted to float64 at once in fitting: images (`_fit_zca`, 100 MB
# of CIFAR), or pixels (`_fit_mean_std`).
_CHUNK_ROWS = 4096


class Normalization(NamedTuple):
    """A normalisation.

    `fit(images)` gives constants by name, f64 or f32; `apply(constants, x: f32[n,
    ...])` uses them. Float32 computes it for numbers up to `largest` in size.
    """

    constants: tuple[str, ...]
    fit: Callable[[np.ndarray], dict]
    apply: Callable[[dict, jax.Array], jax.Array]
    largest: float


def find_normalization(name: str) -> Normalization:
    """The normalisation of this name; ValueError if there is none."""
    return NORMALIZATIONS[check_choice("normalization", name, NORMALIZATIONS)]


def _fit_divisor(images: np.ndarray) -> dict:
    """The number that brings pixels to [0, 1]: of bytes 255, of floats 1."""
    divisor = LARGEST_PIXEL if images.dtype == np.uint8 else 1
    return {"divisor": np.full((1,) * images.ndim, divisor)}


def _standardize(_constants: dict, x: jax.Array) -> jax.Array:
    """Each image of x f32[b, ...] less its mean, over its standard deviation.

    An image of n numbers counts as one with a deviation of at least 1 / sqrt n.
    """
    axes = tuple(range(1, x.ndim))
    mean = jnp.mean(x, axis=axes, keepdims=True)
    std = _root(jnp.var(x, axis=axes, keepdims=True))
    return (x - mean) / jnp.maximum(std, math.prod(x.shape[1:]) ** -0.5)


def _root(squares: jax.Array) -> jax.Array:
    """The root, with a finite slope at 0: so a uniform image has a gradient."""
    return jnp.sqrt(jnp.maximum(squares, jnp.finfo(squares.dtype).tiny))


def _fit_mean_std(images: np.ndarray) -> dict:
    """The mean and the standard deviation of each channel over all images' pixels."""
    channels = images.shape[-1]
    flat = images.reshape(-1, channels)
    if images.dtype == np.uint8:
        mean = flat.sum(axis=0, dtype=np.int64) / len(flat)
        squares = np.einsum("ic,ic->c", flat, flat, dtype=np.int64)
        variance = squares / len(flat) - mean**2
    else:
        mean = flat.mean(axis=0, dtype=np.float64)
        variance = np.zeros(channels)
        for start in range(0, len(flat), _CHUNK_ROWS):
            variance += ((flat[start : start + _CHUNK_ROWS] - mean) ** 2).sum(axis=0)
        variance /= len(flat)
    # The least normal float32: XLA takes smaller divisors for 0.
    if not np.all(np.sqrt(variance) >= np.finfo(np.float32).tiny):
        raise ValueError(f"every channel of images must vary, got variances {variance}")
    shape = (1,) * (images.ndim - 1) + (channels,)
    return {"shift": mean.reshape(shape), "divisor": np.sqrt(variance).reshape(shape)}


def _normalize_contrast(x: jax.Array) -> jax.Array:
    """Each image of x f32[b, ...], less its mean, rescaled to the norm GCN_NORM."""
    axes = tuple(range(1, x.ndim))
    x = x - jnp.mean(x, axis=axes, keepdims=True)
    divisor = _root(jnp.sum(x * x, axis=axes, keepdims=True)) / GCN_NORM
    return x / jnp.where(divisor < _GCN_LEAST_DIVISOR, 1.0, divisor)


def _fit_zca(images: np.ndarray) -> dict:
    """The mean m, f64[d], and the whitening matrix of images, f64[d, d].

    It is ``W = (C + _ZCA_BIAS I)^{-1/2}``, C the covariance.
    """
    normalize = jax.jit(_normalize_contrast)
    total = np.zeros(())
    products = np.zeros(())
    for start in range(0, len(images), _CHUNK_ROWS):
        chunk = images[start : start + _CHUNK_ROWS].astype(np.float32)
        x = np.asarray(normalize(chunk), np.float64).reshape(len(chunk), -1)
        total = total + x.sum(axis=0)
        products = products + x.T @ x
    mean = total / len(images)
    variances, axes = np.linalg.eigh(products / len(images) - np.outer(mean, mean))
    # Rounding may leave the variance of a constant direction a little below 0.
    scales = (np.maximum(variances, 0.0) + _ZCA_BIAS) ** -0.5
    return {"mean": mean, "whitening": (axes * scales) @ axes.T}


def _whiten(constants: dict, x: jax.Array) -> jax.Array:
    """The images x f32[b, ...] as (c - m) W, with m and W of `_fit_zca`.

    c are the images after `_normalize_contrast`.
    """
    flat = _normalize_contrast(x).reshape(len(x), constants["mean"].size)
    centered = flat - constants["mean"][None, :]
    # Accelerators would round the factors to bfloat16 or TF32; this product costs
    # little.
    whitened = jnp.matmul(centered, constants["whitening"], precision="highest")
    return whitened.reshape(x.shape)


NORMALIZATIONS = {
    "none": Normalization(
        constants=("divisor",),
        fit=_fit_divisor,
        apply=lambda constants, x: x / constants["divisor"],
        largest=math.inf,
    ),
    "per_image": Normalization(
        constants=(),
        fit=lambda images: {},
        apply=_standardize,
        largest=_LARGEST_TO_SQUARE,
    ),
    "mean_std": Normalization(
        constants=("shift", "divisor"),
        fit=_fit_mean_std,
        apply=lambda constants, x: (x - constants["shift"]) / constants["divisor"],
        largest=_LARGEST_TO_SUBTRACT,
    ),
    "gcn_zca": Normalization(
        constants=("mean", "whitening"),
        fit=_fit_zca,
        apply=_whiten,
        largest=_LARGEST_TO_SQUARE,
    ),
}
