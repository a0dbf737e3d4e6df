"""Data sets of the published sizes, for programs that are compiled or timed only."""

from typing import Any

import numpy as np

from experiments.images.data import ImageData, classes_and_shape
from identity_matters.batches import Arrays, Streams
from identity_matters.images import datasets, imagenet
from identity_matters.preprocessing import Preprocessing

# Images that a normalisation is fitted to; programs contain its constants.
_FITTED_EXAMPLES = 8


def stand_in(data: dict) -> ImageData:
    """Data of the published size: zeros for CIFAR, empty streams for ImageNet.

    Args:
      data: the group of settings.
    """
    if data["dataset"] == imagenet.NAME:
        return _stand_in_for_streams(data)
    return _stand_in_for_arrays(data)


def _stand_in_for_streams(data: dict) -> ImageData:
    """Streams of the size of ImageNet that cannot be read."""
    _, shape = classes_and_shape(data)
    preprocessing = Preprocessing(
        data["normalization"], imagenet.CHANNEL_CONSTANTS, image_shape=shape
    )
    examples = Streams(
        image_shape=shape,
        train_examples=imagenet.PUBLISHED_EXAMPLES["train"],
        test_examples=imagenet.PUBLISHED_EXAMPLES["validation"],
        read_train=_read_nothing,
        read_test=_read_nothing,
        stream=_read_nothing,
    )
    return ImageData(examples, preprocessing, {})


def _stand_in_for_arrays(data: dict) -> ImageData:
    """Zeros, with constants of the normalisation that were fitted to random images."""
    _, shape = classes_and_shape(data)
    # Zeros cannot be normalised.
    random = np.random.default_rng(0).integers(
        0, 256, (_FITTED_EXAMPLES, *shape), np.uint8
    )
    preprocessing = Preprocessing.fit(
        data["normalization"],
        random,
        pad_pixels_per_side=data["pad_pixels_per_side"],
        flip=data["flip"],
    )
    examples_in = datasets.find_source(data["dataset"]).splits
    examples = Arrays(
        train_images=np.zeros((examples_in["train"], *shape), np.uint8),
        train_labels=np.zeros(examples_in["train"], np.int64),
        test_images=np.zeros((examples_in["test"], *shape), np.uint8),
        test_labels=np.zeros(examples_in["test"], np.int64),
    )
    return ImageData(examples, preprocessing, {})


def _read_nothing(*_: Any, **__: Any) -> Any:
    raise AssertionError("a program that is only compiled reads no images")
