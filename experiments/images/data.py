"""The images of a training, from the settings of the group `data`."""

import functools
import hashlib
import pathlib
from typing import NamedTuple

import numpy as np

from identity_matters import limits
from identity_matters.batches import Arrays, Streams
from identity_matters.images import datasets, imagenet, miniature, streaming
from identity_matters.preprocessing import Preprocessing


class ImageData(NamedTuple):
    """Examples, what makes a net's inputs of them, and their digests."""

    examples: Arrays | Streams
    preprocessing: Preprocessing
    fingerprint: dict


def classes_and_shape(data: dict) -> tuple[int, tuple[int, int, int]]:
    """(number of classes, (height, width, channels)); reads no images.

    Args:
      data: the group of settings.
    Raises:
      ValueError: there is no such data set, or the group belongs to another.
    """
    if data["dataset"] != imagenet.NAME:
        source = datasets.find_source(data["dataset"])
        return source.num_classes, source.image_shape
    if "image_pixels" not in data:
        raise ValueError(
            f"{imagenet.NAME} needs the settings of the experiment imagenet"
        )
    return imagenet.NUM_CLASSES, (data["image_pixels"], data["image_pixels"], 3)


def load_data(data: dict) -> ImageData:
    """The images that the group `data` describes.

    Raises:
      ValueError: the settings are invalid, or the data are missing or damaged.
    """
    if data["dataset"] == imagenet.NAME:
        return _load_imagenet(**data)
    return _load_arrays(**data)


@functools.lru_cache(maxsize=1)
def _load_arrays(
    dataset: str, normalization: str, data_dir: str, **augmentation
) -> ImageData:
    train_images, train_labels = datasets.load(dataset, "train", data_dir)
    test_images, test_labels = datasets.load(dataset, "test", data_dir)
    arrays = (train_images, train_labels, test_images, test_labels)
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(np.ascontiguousarray(array).data)
    return ImageData(
        examples=Arrays(*arrays),
        preprocessing=Preprocessing.fit(normalization, train_images, **augmentation),
        fingerprint={"sha256": digest.hexdigest()},
    )


def _load_imagenet(
    *,
    dataset: str,
    data_dir: str,
    miniature_examples: int,
    image_pixels: int,
    eval_shorter_side_pixels: int,
    normalization: str,
    worker_threads: int,
    worker_processes: int,
) -> ImageData:
    if normalization not in ("mean_std", "per_image"):
        raise ValueError(
            f"normalization must be mean_std or per_image, got {normalization!r}"
        )
    if not 1 <= image_pixels <= eval_shorter_side_pixels:
        raise ValueError(
            "image_pixels must be from 1 to eval_shorter_side_pixels, got"
            f" {image_pixels} and {eval_shorter_side_pixels}"
        )
    if min(worker_threads, worker_processes) < 0:
        raise ValueError(
            "worker_threads and worker_processes must be at least 0, got"
            f" {worker_threads} and {worker_processes}"
        )
    imagenet.require_packages()
    directory: str | pathlib.Path = data_dir
    if miniature_examples:
        directory = miniature.prepare(data_dir, miniature_examples)
    train = imagenet.EncodedImages(directory, "train")
    validation = imagenet.EncodedImages(directory, "validation")
    shape = (image_pixels, image_pixels, 3)
    return ImageData(
        examples=Streams(
            shape,
            len(train),
            len(validation),
            functools.partial(imagenet.read_train, train, pixels=image_pixels),
            functools.partial(
                imagenet.read_test,
                validation,
                pixels=image_pixels,
                shorter_side_pixels=eval_shorter_side_pixels,
            ),
            functools.partial(
                streaming.stream,
                threads=worker_threads or limits.usable_cores(),
                processes=worker_processes,
            ),
        ),
        preprocessing=Preprocessing(
            normalization,
            imagenet.CHANNEL_CONSTANTS if normalization == "mean_std" else {},
            image_shape=shape,
        ),
        fingerprint={
            "train": train.fingerprint(),
            "validation": validation.fingerprint(),
        },
    )
