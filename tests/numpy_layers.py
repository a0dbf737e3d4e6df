"""Convolution, batch norm and pooling in NumPy float64, written apart from the package's layers."""

import jax
import numpy as np


def convolve(x, kernel, stride=1, before=None, after=None):
    """f[n, h, w, c] and f[k, k, c, d] to f[n, h', w', d]; `before` and `after` zeros on each side.

    Unless given, k // 2 zeros stand before and after.
    """
    x, kernel = np.asarray(x, np.float64), np.asarray(kernel, np.float64)
    k = kernel.shape[0]
    before = k // 2 if before is None else before
    after = k // 2 if after is None else after
    x = np.pad(x, ((0, 0), (before, after), (before, after), (0, 0)))
    rows = range(0, x.shape[1] - k + 1, stride)
    columns = range(0, x.shape[2] - k + 1, stride)
    out = np.zeros((len(x), len(rows), len(columns), kernel.shape[3]))
    for i, row in enumerate(rows):
        for j, column in enumerate(columns):
            patch = x[:, row : row + k, column : column + k, :]
            out[:, i, j] = patch.reshape(len(x), -1) @ kernel.reshape(-1, kernel.shape[3])
    return out


def batch_norm(x, parameters, epsilon, statistics=None):
    """Normalized by `statistics` (running "mean" and "var"), or else by the batch's own."""
    mean = x.mean(axis=(0, 1, 2)) if statistics is None else np.asarray(statistics["mean"])
    var = x.var(axis=(0, 1, 2)) if statistics is None else np.asarray(statistics["var"])
    scale, bias = np.asarray(parameters["scale"]), np.asarray(parameters["bias"])
    return (x - mean) / np.sqrt(var + epsilon) * scale + bias


def average_pool_2x2(x):
    return (x[:, ::2, ::2] + x[:, 1::2, ::2] + x[:, ::2, 1::2] + x[:, 1::2, 1::2]) / 4


def pad_channels(x, channels):
    half = (channels - x.shape[-1]) // 2
    padded = np.zeros((*x.shape[:-1], channels))
    padded[..., half : half + x.shape[-1]] = x
    return padded


def relu(x):
    return np.maximum(x, 0)


def ratios(x, h):
    """||h|| / ||x|| of each example."""
    return [np.linalg.norm(b) / np.linalg.norm(a) for a, b in zip(x, h, strict=True)]


def randomize(variables, seed=0):
    """Variables of the same shapes that are all different: variances in [0.5, 1.5]."""
    rng = np.random.default_rng(seed)

    def draw(path, leaf):
        if path[-1].key == "var":
            return rng.uniform(0.5, 1.5, leaf.shape).astype(np.float32)
        return rng.normal(0, 0.5, leaf.shape).astype(np.float32)

    return jax.tree_util.tree_map_with_path(draw, variables)
