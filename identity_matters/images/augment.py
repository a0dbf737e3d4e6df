"""Normalisation, random crops and random flips: pure functions of a batch, jittable.

What happens to an example depends on its own key alone, so neither the split of a batch over
devices nor a restart changes it. There are three normalisations:

* ``per_image``      (x - mean) / max(std, 1/sqrt(values)) over all values of one image, as in the
  TensorFlow code that the paper's derives from (`per_image_standardization`);
* ``mean_std``       (x - mean) / std for each channel;
* ``gcn_zca``        global contrast normalisation, then ZCA whitening (All-CNN).

Images are padded with zeros and then cropped. With ``per_image`` this is done to raw pixels, as in
that code, so the padding counts in mean and std; otherwise, to normalised values.
"""

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

# As in pylearn2's make_cifar10_gcn_whitened.py: the norm of every image after contrast
# normalisation, the divisor below which it is not rescaled, and what ZCA adds to the variances.
GCN_NORM = 55.0
GCN_LEAST_NORM = 1e-8
ZCA_BIAS = 0.1
_CHUNK_EXAMPLES = 4096  # in fitting a normalisation: 100 MB of CIFAR images in float64


def fit_normalization(name: str, images: np.ndarray) -> dict:
    """The constants of a normalisation, f32 arrays by name, from training images uint8[n, h, w, c].

    Raises ValueError for an unknown `name`, other images, and a constant channel (``mean_std``).
    """
    fit, _ = _find(name)
    _as_float32(images[:1])  # checks them
    return {key: np.asarray(value, np.float32) for key, value in fit(images).items()}


def make_inputs(
    name: str, constants: dict, *, pad_pixels_per_side: int, flip: bool
) -> tuple[Callable, Callable]:
    """Functions from raw images to network inputs, for training and for evaluation.

    >>> constants = {"shift": np.zeros((1, 1, 1, 1)), "divisor": np.full((1, 1, 1, 1), 255)}
    >>> train_input, eval_input = make_inputs(
    ...     "mean_std", constants, pad_pixels_per_side=1, flip=True
    ... )
    >>> images = np.full((2, 4, 4, 1), 255, np.uint8)
    >>> float(eval_input(images).min())  # the whole image
    1.0
    >>> train_input(images, jax.random.split(jax.random.key(0), 2)).shape  # a crop of its size
    (2, 4, 4, 1)

    `constants` are from `fit_normalization` of the same `name`. `pad_pixels_per_side` zeros are
    added on each side before the crop; 0 takes the whole image. `flip` mirrors images left to right
    with probability 1/2. Raises ValueError for an unknown name or a negative padding.

    Returns train_input(images uint8[b, h, w, c], keys[b]) -> f32[b, h, w, c], with typed keys, and
    eval_input(images) -> f32[b, h, w, c], which does not crop or flip. Both raise ValueError for
    images of another rank or dtype.
    """
    normalize = functools.partial(_find(name)[1], constants)
    if pad_pixels_per_side < 0:
        raise ValueError(f"pad_pixels_per_side must be at least 0, got {pad_pixels_per_side}")

    def train_input(images, keys):
        x = _as_float32(images)
        if name == "per_image":
            return normalize(_crop_and_flip(x, keys, pad_pixels_per_side, flip))
        return _crop_and_flip(normalize(x), keys, pad_pixels_per_side, flip)

    return train_input, lambda images: normalize(_as_float32(images))


def _find(name: str) -> tuple[Callable, Callable]:
    if name not in NORMALIZATIONS:
        raise ValueError(f"normalization must be one of {', '.join(NORMALIZATIONS)}, got {name!r}")
    return NORMALIZATIONS[name]


def _as_float32(images):
    if images.dtype != np.uint8 or images.ndim != 4 or not images.size:
        raise ValueError(f"images must be uint8[n, h, w, c], got {images.dtype}{[*images.shape]}")
    return jnp.asarray(images, jnp.float32)


def _crop_and_flip(x, keys, pad: int, flip: bool):
    """A random crop of each zero-padded x f32[b, h, w, c], of x's own size, randomly mirrored."""

    def one(x, key):
        crop_key, flip_key = jax.random.split(key)
        if pad:
            row, column = jax.random.randint(crop_key, (2,), 0, 2 * pad + 1, jnp.int32)
            padded = jnp.pad(x, ((pad, pad), (pad, pad), (0, 0)))
            x = jax.lax.dynamic_slice(padded, (row, column, jnp.int32(0)), x.shape)
        if flip:
            x = jnp.where(jax.random.bernoulli(flip_key), x[:, ::-1], x)
        return x

    return jax.vmap(one)(x, keys)


def _standardize(_constants, x):
    mean = jnp.mean(x, axis=(1, 2, 3), keepdims=True)
    std = jnp.std(x, axis=(1, 2, 3), keepdims=True)
    return (x - mean) / jnp.maximum(std, math.prod(x.shape[1:]) ** -0.5)


def _fit_mean_std(images):
    values = images[..., 0].size
    mean = images.sum(axis=(0, 1, 2), dtype=np.int64) / values
    squares = np.einsum("nhwc,nhwc->c", images, images, dtype=np.int64)
    variance = squares / values - mean**2
    if not np.all(variance > 0):
        raise ValueError(f"every channel of images must vary, got variances {variance}")
    shape = (1, 1, 1, -1)
    return {"shift": mean.reshape(shape), "divisor": np.sqrt(variance).reshape(shape)}


def _normalize_contrast(x):
    """Each image of x f32[b, h, w, c], less its mean, rescaled to the norm GCN_NORM."""
    x = x - jnp.mean(x, axis=(1, 2, 3), keepdims=True)
    divisor = jnp.sqrt(jnp.sum(x * x, axis=(1, 2, 3), keepdims=True)) / GCN_NORM
    return x / jnp.where(divisor < GCN_LEAST_NORM, 1.0, divisor)


def _fit_zca(images):
    """Mean m f32[d] and ``W = (C + ZCA_BIAS I)^{-1/2}`` f32[d, d], C the covariance of images."""
    normalize = jax.jit(_normalize_contrast)
    total, products = np.zeros(()), np.zeros(())
    for start in range(0, len(images), _CHUNK_EXAMPLES):
        chunk = images[start : start + _CHUNK_EXAMPLES].astype(np.float32)
        x = np.asarray(normalize(chunk), np.float64).reshape(len(chunk), -1)
        total, products = total + x.sum(axis=0), products + x.T @ x
    mean = total / len(images)
    variances, axes = np.linalg.eigh(products / len(images) - np.outer(mean, mean))
    # Rounding may leave the variance of a constant direction a little below 0.
    scales = (np.maximum(variances, 0.0) + ZCA_BIAS) ** -0.5
    return {"mean": mean, "whitening": (axes * scales) @ axes.T}


def _whiten(constants, x):
    flat = _normalize_contrast(x).reshape(len(x), -1)
    centered = flat - constants["mean"][None, :]
    # Accelerators would round the factors to bfloat16 or TF32; this product costs little.
    whitened = jnp.matmul(centered, constants["whitening"], precision="highest")
    return whitened.reshape(x.shape)


# Name -> (fit(images) -> constants by name, apply(constants, x f32[b, h, w, c])).
NORMALIZATIONS: dict[str, tuple[Callable, Callable]] = {
    "per_image": (lambda images: {}, _standardize),
    "mean_std": (_fit_mean_std, lambda fit, x: (x - fit["shift"]) / fit["divisor"]),
    "gcn_zca": (_fit_zca, _whiten),
}
