"""The group `data` of a training's settings, and the examples that it describes.

Small data sets are arrays in memory, ImageNet is streams: both end in one `ImageData`.
"""

import dataclasses
import functools
import hashlib
from collections.abc import Callable

import numpy as np

from identity_matters import environment
from identity_matters.batches import Arrays, Streams
from identity_matters.images import augment, datasets, imagenet, miniature

CIFAR_TRAIN_EXAMPLES = 50_000
# Batches made ahead for each thread that makes them.
BATCHES_PER_THREAD = 2


def settings(dataset: str, **changes) -> dict:
    """Which images, and what happens to them before the net."""
    return {
        "dataset": dataset,  # digits, cifar10 or cifar100; the latter two need `make data`
        "normalization": "per_image",  # per_image (the paper's), mean_std or gcn_zca
        # Random crops after padding: 2 as in the paper's base code, 4 as others do; 0 for digits,
        # whose strokes reach the border.
        "pad_pixels_per_side": 0 if dataset == "digits" else 2,
        # Mirror images at random; a mirrored digit is another one.
        "flip": dataset != "digits",
        "data_dir": "data",  # where `make data` put the data sets
        **changes,
    }


def imagenet_settings(**changes) -> dict:
    """The same for ImageNet."""
    return {
        "dataset": imagenet.NAME,
        "data_dir": "data",  # where `make data DATASETS=imagenet2012` put it
        # Above 0: a data set of so many generated training images, made in data_dir if need be.
        "miniature_examples": 0,
        # Random crops in training, the central one of the resized image in evaluation.
        "image_pixels": 224,
        "eval_shorter_side_pixels": 256,
        # mean_std (of the training images' channels) or per_image. The paper does not say.
        "normalization": "mean_std",
        # How batches are made, which changes the speed only; 0: one thread a core.
        "worker_threads": 0,
        "worker_processes": 0,
        **changes,
    }


def steps_at(batch_examples: int, *epochs: int) -> tuple[int, ...]:
    """Steps after which so many epochs over CIFAR's training images are complete."""
    return tuple(epoch * CIFAR_TRAIN_EXAMPLES // batch_examples for epoch in epochs)


@dataclasses.dataclass(frozen=True)
class ImageData:
    """Examples, and what makes a net's input of them.

    Attributes:
      num_classes, image_shape: labels are 0 ... num_classes - 1; (height, width, channels).
      examples: the splits.
      train_input, eval_input: see `step.Task`.
      fingerprint: JSON-able; differs where the examples do, for all that is likely.
    """

    num_classes: int
    image_shape: tuple[int, int, int]
    examples: Arrays | Streams
    train_input: Callable
    eval_input: Callable
    fingerprint: dict


def size(data: dict) -> tuple[int, tuple[int, int, int]]:
    """(num_classes, image_shape) of the group `data`, before any image is read."""
    if data["dataset"] == imagenet.NAME:
        return imagenet.NUM_CLASSES, (data["image_pixels"], data["image_pixels"], 3)
    source = datasets.find_source(data["dataset"])
    return source.num_classes, source.image_shape


def load(data: dict) -> ImageData:
    """The data that the group `data` describes; equal groups are loaded once.

    Raises:
      ValueError: a setting that will not do; a data set that is not there, or damaged.
    """
    make = _load_imagenet if data["dataset"] == imagenet.NAME else _load_arrays
    return ImageData(*size(data), *make(**data))


@functools.lru_cache(maxsize=1)
def _load_arrays(dataset, normalization, pad_pixels_per_side, flip, data_dir) -> tuple:
    train, test = (datasets.load(dataset, split, data_dir) for split in ("train", "test"))
    constants = augment.fit_normalization(normalization, train[0])
    inputs = augment.make_inputs(
        normalization, constants, pad_pixels_per_side=pad_pixels_per_side, flip=flip
    )
    digest = hashlib.sha256()
    for array in (*train, *test):
        digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8))
    return Arrays(*train, *test), *inputs, {"sha256": digest.hexdigest()}


def _load_imagenet(
    dataset, data_dir, miniature_examples, image_pixels, eval_shorter_side_pixels, normalization,
    worker_threads, worker_processes,
) -> tuple:  # fmt: skip
    del dataset
    if normalization not in ("mean_std", "per_image"):
        raise ValueError(f"normalization must be mean_std or per_image, got {normalization!r}")
    if not 1 <= image_pixels <= eval_shorter_side_pixels:
        raise ValueError(
            "image_pixels must be from 1 to eval_shorter_side_pixels, got"
            f" {image_pixels} and {eval_shorter_side_pixels}"
        )
    imagenet.require_packages()
    threads = worker_threads or environment.usable_cores()
    reading = imagenet.Reading(threads, worker_processes, BATCHES_PER_THREAD * threads)
    if miniature_examples:
        data_dir = miniature.prepare(data_dir, miniature_examples)
    train, test = (imagenet.EncodedImages(data_dir, split) for split in ("train", "validation"))
    examples = Streams(
        (image_pixels, image_pixels, 3),
        len(train),
        len(test),
        functools.partial(imagenet.read_train, train, pixels=image_pixels),
        functools.partial(
            imagenet.read_test, test, pixels=image_pixels,
            shorter_side_pixels=eval_shorter_side_pixels,
        ),
        functools.partial(imagenet.stream, reading),
    )  # fmt: skip
    constants = imagenet.CHANNEL_CONSTANTS if normalization == "mean_std" else {}
    inputs = augment.make_inputs(normalization, constants, pad_pixels_per_side=0, flip=False)
    return examples, *inputs, {"train": train.fingerprint(), "validation": test.fingerprint()}
