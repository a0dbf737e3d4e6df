"""ImageNet (ILSVRC2012): the files of tensorflow_datasets' `imagenet2012`, in batches.

A batch depends on the seed, the epoch and the examples alone, not on how many threads,
workers or hosts read, nor on where a stream began (see `streaming`).
"""

import hashlib
import importlib.util
import logging
import os
import pathlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from identity_matters import runs
from identity_matters.images import decoding, views
from identity_matters.images.decoding import DataError
from identity_matters.paths import expand_home

NAME = "imagenet2012"
FILE_FORMAT = "array_record"
NUM_CLASSES = 1000
# Published sizes; a smaller data set works, too, but not for a reported result.
PUBLISHED_EXAMPLES = {"train": 1_281_167, "validation": 50_000}
IMAGE_PIXELS = 224
EVAL_SHORTER_SIDE_PIXELS = 256
_NEEDED = ("tensorflow_datasets", "array_record", "grain", "cv2")
# Mean and standard deviation of the training images' channels for `mean_std`, in pixel
# values: torchvision's 0.485, 0.456, 0.406 and 0.229, 0.224, 0.225, times 255.
CHANNEL_CONSTANTS = {
    "shift": np.array([[[[123.675, 116.28, 103.53]]]], np.float32),
    "divisor": np.array([[[[58.395, 57.12, 57.375]]]], np.float32),
}
# How many images a fingerprint reads.
_FINGERPRINT_IMAGES = 64


class EncodedImages:
    """The encoded images of a split, "train" or "validation".

    Access is random, from any thread or process. Raises ValueError if a package is
    missing or the split is not prepared in `data_dir`. Reading a damaged file raises
    DataError, which names the file.
    """

    def __init__(self, data_dir: str | os.PathLike[str], split: str):
        require_packages()
        import tensorflow_datasets as tfds

        self.data_dir = pathlib.Path(expand_home(data_dir))
        self.split = split
        prepared = builder(self.data_dir)
        if not is_prepared(prepared):
            raise ValueError(
                f"{NAME} is not prepared in {self.data_dir}; see: make data"
                f" DATASETS={NAME}"
            )
        if split not in prepared.info.splits:
            raise ValueError(
                f"{prepared.data_dir} has no {split} split; was its archive missing?"
            )
        raw = tfds.decode.DeserializeMethod.RAW_BYTES
        self._source = prepared.as_data_source(split=split, deserialize_method=raw)

    def __reduce__(self):
        # Worker processes open the files themselves.
        return EncodedImages, (self.data_dir, self.split)

    def __len__(self) -> int:
        return len(self._source)

    def fingerprint(self) -> dict:
        """The number of examples, and a digest of some examples, JSON-able.

        The digest is of the labels, file names and file sizes of images that are spread
        over the split.
        """
        spread = np.linspace(0, len(self) - 1, _FINGERPRINT_IMAGES).astype(np.int64)
        digest = hashlib.sha256()
        for image, label, name in self.read(np.unique(spread)):
            digest.update(f"{name} {label} {len(image)}\n".encode())
        return {"examples": len(self), "sha256": digest.hexdigest()}

    def read(self, indices: Iterable[int]) -> Iterator[tuple[bytes, int, str]]:
        """Yields (encoded image, label, file name) for each of `indices`: int[n]."""
        # One by one: array_record's `__getitems__` starts a thread per file and call.
        for index in map(int, indices):
            try:
                record = _parse(self._source[index])
            except Exception as error:
                split = builder(self.data_dir).info.splits[self.split]
                ends = np.cumsum(split.shard_lengths)
                file = split.filepaths[np.searchsorted(ends, index, side="right")]
                raise DataError(
                    f"{file} is damaged: record {index} of the"
                    f" {self.split} split cannot be read ({error})"
                ) from error
            yield record


def _parse(record: bytes) -> tuple[bytes, int, str]:
    """Parses a serialized tf.train.Example, faster than tensorflow_datasets does."""
    from tensorflow_datasets.proto import tf_example_pb2

    feature = tf_example_pb2.Example.FromString(record).features.feature
    label = feature["label"].int64_list.value[0]
    if not 0 <= label < NUM_CLASSES:  # tensorflow_datasets writes -1 for unknown
        raise ValueError(f"its label is {label}, and labels are 0 to {NUM_CLASSES - 1}")
    return (
        feature["image"].bytes_list.value[0],
        label,
        feature["file_name"].bytes_list.value[0].decode(),
    )


def builder(data_dir: str | os.PathLike[str], name: str = NAME) -> Any:
    """The builder of tensorflow_datasets for `name` in `data_dir`, prepared or not.

    Raises:
      ValueError: if `data_dir` holds the data set in another format, as
        tensorflow_datasets itself prepares it by default, or is damaged.
    """
    import tensorflow_datasets as tfds

    try:
        return tfds.builder(name, data_dir=data_dir, file_format=FILE_FORMAT)
    except Exception as error:  # its own errors have no common type
        dataset = name.partition(":")[0]
        raise ValueError(
            f"{data_dir} does not hold {dataset} as {FILE_FORMAT} files"
            f" ({runs.first_line(error.__cause__ or error)}); prepare it in another"
            f" directory: make data DATASETS={dataset} DATA_DIR=..."
        ) from error


def is_prepared(builder: Any) -> bool:
    """Whether the files of a `builder` are there.

    tensorflow_datasets would warn of a directory that it does not find; callers have
    messages of their own.
    """
    logger = logging.getLogger("absl")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        return builder.is_prepared()
    finally:
        logger.setLevel(level)


def require_packages() -> None:
    """Raises ValueError if a package that reading needs is not installed."""
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        advice = "run: pip install 'identity-matters[imagenet]'"
        raise ValueError(f"reading {NAME} needs {', '.join(missing)}; {advice}")


def read_train(
    encoded: EncodedImages, indices, epochs, seed: int, *, pixels: int = IMAGE_PIXELS
) -> dict:
    """Training images for `indices` and `epochs`, int[b], cropped and flipped.

    Each image gets its own random crop and flip in each epoch. Returns {"images":
    u8[b, pixels, pixels, 3], "labels": i32[b]}. Raises DataError for a damaged file or
    an image that cannot be decoded.
    """

    def write(image, place, out):
        height, width = image.shape[:2]
        view = views.draw_view(
            height,
            width,
            seed=seed,
            epoch=int(epochs[place]),
            example=int(indices[place]),
        )
        views.train_view(image, view, out)

    return _batch(encoded, indices, pixels, write)


def read_test(
    encoded: EncodedImages,
    indices,
    *,
    pixels: int = IMAGE_PIXELS,
    shorter_side_pixels: int = EVAL_SHORTER_SIDE_PIXELS,
) -> dict:
    """Test images at `indices`: the shorter side is resized, then the centre is cut.

    Returns and raises as `read_train` does.
    """

    def write(image, place, out):
        views.eval_view(image, shorter_side_pixels, out)

    return _batch(encoded, indices, pixels, write)


def _batch(encoded, indices, pixels: int, write: Callable) -> dict:
    """A batch; ``write(image, place, out)`` writes what a net sees of an image."""
    images = np.empty((len(indices), pixels, pixels, 3), np.uint8)
    labels = np.empty(len(indices), np.int32)
    for place, (data, label, name) in enumerate(encoded.read(indices)):
        write(decoding.decode(data, name), place, images[place])
        labels[place] = label
    return {"images": images, "labels": labels}
