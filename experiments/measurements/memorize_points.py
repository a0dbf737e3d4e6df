"""The points of `memorize`, images or random ones, and their labels.

Networks of real numbers take unit vectors, and those of whole numbers take pixels or
random numbers like them.
"""

import functools
from typing import NamedTuple

import jax
import numpy as np

from identity_matters.images import datasets
from identity_matters.memorize.examples import random_generator

SYNTHETIC = "synthetic"
_LARGEST_PIXEL = 255
# How often whole numbers are drawn until all points differ, and the most pairs of equal
# points that a draw may be expected to have: with 2, about one draw of 7 has none.
_MOST_DRAWS = 100
_MOST_EXPECTED_REPEATS = 2


class Data(NamedTuple):
    """Which points; see the settings in `experiments.memorize`.

    Attributes:
      dataset: the name of a data set of images, or "synthetic".
      examples: n.
      features: d.
      num_classes: r.
      data_dir: where the data set is, if it is prepared.
    """

    dataset: str
    examples: int
    features: int
    num_classes: int
    data_dir: str


def require_prepared(data: Data) -> None:
    """Raises ValueError if images are not prepared."""
    if data.dataset != SYNTHETIC:
        datasets.require_prepared(
            data.dataset, datasets.split_to_fit(data.dataset), data.data_dir
        )


def check_unit_vectors(features: int) -> None:
    """Raises ValueError unless there are enough unit vectors of so many features."""
    if features < 2:
        raise ValueError(
            "features must be at least 2: on a line, unit vectors are 1 and -1 only"
        )


def check_distinct(examples: int, features: int) -> None:
    """Raises ValueError if so many random whole points would hardly ever all differ."""
    pairs = examples * (examples - 1) // 2
    if pairs > _MOST_EXPECTED_REPEATS * (_LARGEST_PIXEL + 1) ** features:
        raise ValueError(
            f"examples must be fewer or features more: {examples} random points of"
            f" {features} whole numbers from 0 to {_LARGEST_PIXEL} hardly ever differ"
        )


def unit_vectors(data: Data, key: jax.Array) -> np.ndarray:
    """Unit vectors, f32[n, d], as Assumption 3.1 requires: images or random."""
    if data.dataset == SYNTHETIC:
        shape = (data.examples, data.features)
        return _unit_rows(random_generator(key).standard_normal(shape, np.float32))
    images, _ = load_images(data.dataset, data.data_dir)
    return images[: data.examples]


@functools.lru_cache(maxsize=1)
def load_images(dataset: str, data_dir: str) -> tuple[np.ndarray, np.ndarray]:
    """Images as unit vectors, f32[n, d], and their labels."""
    images, labels = datasets.load(dataset, datasets.split_to_fit(dataset), data_dir)
    x = images.reshape(len(images), -1).astype(np.float32)
    x /= datasets.find_source(dataset).pixel_max
    return _unit_rows(x), labels


def _unit_rows(x: np.ndarray) -> np.ndarray:
    # In place: the training images of CIFAR-10 are 600 MB in float32.
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    return x


def pairs_of_unit_vectors(
    key: jax.Array, *, pairs: int, features: int, distance: float
) -> np.ndarray:
    """Pairs (i, pairs + i) of unit vectors at a distance, f64[2 pairs, features]."""
    rng = random_generator(key)
    shape = (pairs, features)
    first = _unit_rows(rng.standard_normal(shape))
    tangent = rng.standard_normal(shape)
    tangent = _unit_rows(
        tangent - np.sum(tangent * first, axis=1, keepdims=True) * first
    )
    # On the sphere, a chord of this length spans this angle.
    angle = 2 * np.arcsin(distance / 2)
    second = np.cos(angle) * first + np.sin(angle) * tangent
    return np.concatenate([first, second])


def whole_points(data: Data, key: jax.Array) -> np.ndarray:
    """Whole numbers, [n, d]: pixels, or random ones."""
    if data.dataset == SYNTHETIC:
        return distinct_whole_points(
            random_generator(key), (data.examples, data.features)
        )
    images, _ = datasets.load(
        data.dataset, datasets.split_to_fit(data.dataset), data.data_dir
    )
    return images[: data.examples].reshape(data.examples, -1)


def distinct_whole_points(
    rng: np.random.Generator, shape: tuple[int, int]
) -> np.ndarray:
    """Random whole numbers from 0 to 255, i64[n, d].

    They are redrawn until all rows differ.

    Raises:
      ValueError: they hardly ever do; see `check_distinct`.
    """
    check_distinct(*shape)
    for _ in range(_MOST_DRAWS):
        x = rng.integers(0, _LARGEST_PIXEL, shape, endpoint=True)
        if len(np.unique(x, axis=0)) == len(x):
            return x
    raise ValueError(f"points of shape {shape} repeated in each of {_MOST_DRAWS} draws")


def true_labels(data: Data) -> np.ndarray:
    """The labels of images, int[n]."""
    _, labels = load_images(data.dataset, data.data_dir)
    return labels[: data.examples]


def random_labels(key: jax.Array, num_classes: int, count: int) -> np.ndarray:
    """Independent uniform labels, i64[count]."""
    return random_generator(key).integers(0, num_classes, count)
