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
        return _load_imagenet(data)
    return _load_arrays(**data)


@functools.lru_cache(maxsize=1)
def _load_arrays(
    dataset: str, normalization: str, data_dir: str, **augmentation
) -> ImageData:
    """Data in memory. The settings are keywords, by which they are cached."""
    train_images, train_labels = datasets.load(dataset, "train", data_dir)
    test_images, test_labels = datasets.load(dataset, "test", data_dir)
    digest = hashlib.sha256()
    for array in (train_images, train_labels, test_images, test_labels):
        digest.update(np.ascontiguousarray(array).data)
    return ImageData(
        examples=Arrays(
            train_images=train_images,
            train_labels=train_labels,
            test_images=test_images,
            test_labels=test_labels,
        ),
        preprocessing=Preprocessing.fit(normalization, train_images, **augmentation),
        fingerprint={"sha256": digest.hexdigest()},
    )


def _load_imagenet(data: dict) -> ImageData:
    """ImageNet, or its miniature, as streams of images that are decoded on the way."""
    _check_imagenet_settings(data)
    imagenet.require_packages()
    directory: str | pathlib.Path = data["data_dir"]
    if data["miniature_examples"]:
        directory = miniature.prepare(data["data_dir"], data["miniature_examples"])
    train = imagenet.EncodedImages(directory, "train")
    validation = imagenet.EncodedImages(directory, "validation")
    shape = (data["image_pixels"], data["image_pixels"], 3)
    has_constants = data["normalization"] == "mean_std"
    return ImageData(
        examples=_streams(train, validation, shape, data),
        preprocessing=Preprocessing(
            data["normalization"],
            imagenet.CHANNEL_CONSTANTS if has_constants else {},
            image_shape=shape,
        ),
        fingerprint={
            "train": train.fingerprint(),
            "validation": validation.fingerprint(),
        },
    )


def _check_imagenet_settings(data: dict) -> None:
    """Raises ValueError for a setting of the group `data` that cannot be used."""
    normalization = data["normalization"]
    if normalization not in ("mean_std", "per_image"):
        raise ValueError(
            f"normalization must be mean_std or per_image, got {normalization!r}"
        )
    pixels = data["image_pixels"]
    shorter_side = data["eval_shorter_side_pixels"]
    if not 1 <= pixels <= shorter_side:
        raise ValueError(
            "image_pixels must be from 1 to eval_shorter_side_pixels, got"
            f" {pixels} and {shorter_side}"
        )
    threads = data["worker_threads"]
    processes = data["worker_processes"]
    if min(threads, processes) < 0:
        raise ValueError(
            "worker_threads and worker_processes must be at least 0, got"
            f" {threads} and {processes}"
        )


def _streams(
    train: imagenet.EncodedImages,
    validation: imagenet.EncodedImages,
    shape: tuple[int, int, int],
    data: dict,
) -> Streams:
    """Both splits, decoded by as many threads and processes as the settings say."""
    return Streams(
        image_shape=shape,
        train_examples=len(train),
        test_examples=len(validation),
        read_train=functools.partial(
            imagenet.read_train, train, pixels=data["image_pixels"]
        ),
        read_test=functools.partial(
            imagenet.read_test,
            validation,
            pixels=data["image_pixels"],
            shorter_side_pixels=data["eval_shorter_side_pixels"],
        ),
        stream=functools.partial(
            streaming.stream,
            threads=data["worker_threads"] or limits.usable_cores(),
            processes=data["worker_processes"],
        ),
    )
