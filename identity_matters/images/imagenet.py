"""ImageNet (ILSVRC2012) as streams of batches: tensorflow_datasets' `imagenet2012`,
read by grain.

Grain maps over batch numbers, so the position of a stream is a step number; grain's own
iterator state would depend on the number of workers. Augmentation depends on (seed,
epoch, example) alone. So batches do not depend on how many threads, workers or hosts
read, nor on where a stream began.

OpenCV decodes fast, and its wheel needs neither TensorFlow nor a compiler. It releases
Python's interpreter lock, so threads are enough unless many cores wait for the lock.
"""

import functools
import hashlib
import importlib.util
import math
import multiprocessing
import os
import pathlib
import re
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from identity_matters import runs
from identity_matters.paths import expand_home

NAME = "imagenet2012"
FILE_FORMAT = "array_record"
NUM_CLASSES = 1000
# Published sizes; a smaller data set works, too, but not for a reported result.
PUBLISHED_EXAMPLES = {"train": 1_281_167, "validation": 50_000}
IMAGE_PIXELS = 224
EVAL_SHORTER_SIDE_PIXELS = 256
# prefetched for each thread that makes them; a batch of 256 takes 39 MB
BATCHES_PER_THREAD = 2
_NEEDED = ("tensorflow_datasets", "array_record", "grain", "cv2")
# Mean and standard deviation of the training images' channels, in pixel values: the
# usual ones (torchvision's 0.485, 0.456, 0.406 and 0.229, 0.224, 0.225), for the
# normalisation mean_std.
CHANNEL_CONSTANTS = {
    "shift": np.array([[[[123.675, 116.28, 103.53]]]], np.float32),
    "divisor": np.array([[[[58.395, 57.12, 57.375]]]], np.float32),
}
_FINGERPRINTED = 64
# A training crop covers this share of the image's area, at this aspect ratio (width /
# height): the usual values (Szegedy et al. 2015; torchvision's RandomResizedCrop).
AREA_SHARE = (0.08, 1.0)
ASPECT_RATIO = (3 / 4, 4 / 3)
_LOG_ASPECT = (math.log(ASPECT_RATIO[0]), math.log(ASPECT_RATIO[1]))
# draws until one fits; then the largest central crop of an allowed aspect ratio
ATTEMPTS = 10
# Philox has a counter of four 64-bit words: the second is the example, the third the
# purpose. The order of an epoch (`batches`) uses the same keys with both at 0.
_PURPOSE_VIEW = 1
# Resizing is bilinear below this factor and, to avoid aliasing, by area from it on,
# which is rare.
_AREA_FROM_FACTOR = 2.0
_JPEG_START = b"\xff\xd8\xff"
# A marker of a JPEG. In the data of a scan ff 00 stands for the byte ff, and ff d0 to
# ff d7 are restart markers; further bytes ff before a marker are padding.
_JPEG_MARKER = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]")
_JPEG_IMAGE_START, _JPEG_IMAGE_END, _JPEG_ALONE = 0xD8, 0xD9, 0x01
_PNG_START, _PNG_END = b"\x89PNG\r\n\x1a\n", b"IEND"


class DataError(ValueError):
    """An image or file of the data set, or the memory for batches, fails while batches
    are made.
    """


class EncodedImages:
    """The encoded images of "train" or "validation": random access, from any thread or
    process.

    Raises ValueError if a package is missing or the split is not prepared in
    `data_dir`. Reading a damaged file raises DataError, which names the file.
    """

    def __init__(self, data_dir: str | os.PathLike[str], split: str):
        require_packages()
        import tensorflow_datasets as tfds

        self.data_dir = pathlib.Path(expand_home(data_dir))
        self.split = split
        prepared = builder(self.data_dir)
        if not prepared.is_prepared():
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
        """JSON-able: the number of examples; a digest of some labels, file names and
        file sizes.
        """
        some = np.unique(np.linspace(0, len(self) - 1, _FINGERPRINTED).astype(np.int64))
        digest = hashlib.sha256()
        for image, label, name in self.read(some):
            digest.update(f"{name} {label} {len(image)}\n".encode())
        return {"examples": len(self), "sha256": digest.hexdigest()}

    def read(self, indices: Iterable[int]) -> Iterator[tuple[bytes, int, str]]:
        """Yields (encoded image, label, file name) for each of `indices`: int[n]."""
        # One by one: array_record's `__getitems__` starts new threads for each call,
        # one per file.
        for index in map(int, indices):
            try:
                record = _parse(self._source[index])
            except Exception as error:
                info = builder(self.data_dir).info.splits[self.split]
                file = np.searchsorted(
                    np.cumsum(info.shard_lengths), index, side="right"
                )
                raise DataError(
                    f"{info.filepaths[file]} is damaged: record {index} of the"
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
            f"{data_dir} holds {dataset} in another form than {FILE_FORMAT} files"
            f" ({runs.first_line(error.__cause__ or error)}); prepare it in another"
            f" directory: make data DATASETS={dataset} DATA_DIR=..."
        ) from error


def require_packages() -> None:
    """Raises ValueError if a package that reading needs is not installed."""
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        advice = "run: pip install 'identity-matters[imagenet]'"
        raise ValueError(f"reading {NAME} needs {', '.join(missing)}; {advice}")


@functools.cache
def _end_with_parent() -> None:
    """In a worker process, exits as soon as the parent process has ended, for whatever
    reason.
    """
    if (parent := multiprocessing.parent_process()) is None:
        return

    def wait():
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def stream(
    make_batch: Callable[[int], dict],
    first: int,
    count: int,
    *,
    threads: int,
    processes: int,
) -> Any:
    """Iterates over ``make_batch(i)`` for the `count` numbers i from `first`, in order,
    prefetched.

    `make_batch` is picklable; the iterator raises its errors, and ``close()`` ends its
    threads and processes. Each of `processes` workers, or this process if that is 0,
    makes `threads` batches at the same time: about one per core, more if storage is
    slow to answer. Workers pass batches through /dev/shm; if that is too small, the
    iterator raises DataError.
    """
    import grain.python as grain

    ahead = BATCHES_PER_THREAD * threads
    dataset = grain.MapDataset.range(first, first + count).map(
        functools.partial(_make, make_batch)
    )
    dataset = dataset.to_iter_dataset(grain.ReadOptions(threads, ahead))
    if processes:
        dataset = dataset.mp_prefetch(grain.MultiprocessingOptions(processes, ahead))
    return _Stream(iter(dataset))


class _Stream:
    """grain's iterator, which also says what to do if /dev/shm is full."""

    def __init__(self, batches: Any):
        self._batches = batches

    def __iter__(self) -> "_Stream":
        return self

    def __next__(self) -> dict:
        try:
            return next(self._batches)
        except RuntimeError as error:
            # SIGBUS: there is no memory behind the file that the worker writes to.
            if f"exit code -{signal.SIGBUS.value}" not in str(error):
                raise
            raise DataError(
                "/dev/shm is too small for the batches of worker processes; give the"
                " container more (docker run --shm-size=8g), or set"
                " data.worker_processes=0"
            ) from error

    def close(self) -> None:
        self._batches.close()


def _make(make_batch, number) -> dict:
    _end_with_parent()
    return make_batch(int(number))


def read_train(
    encoded: EncodedImages, indices, epochs, seed: int, *, pixels: int = IMAGE_PIXELS
) -> dict:
    """Training images for `indices` and `epochs`, int[b], each with a random crop and
    flip.

    Returns {"images": u8[b, pixels, pixels, 3], "labels": i32[b]}. Errors are those of
    `decode`.
    """

    def view(image, place, out):
        whose = {"epoch": int(epochs[place]), "example": int(indices[place])}
        train_view(image, draw_view(*image.shape[:2], seed=seed, **whose), out)

    return _views(encoded, indices, pixels, view)


def read_test(
    encoded: EncodedImages,
    indices,
    *,
    pixels: int = IMAGE_PIXELS,
    shorter_side_pixels: int = EVAL_SHORTER_SIDE_PIXELS,
) -> dict:
    """The same for evaluation: central crops of images resized to
    `shorter_side_pixels`.
    """
    return _views(
        encoded,
        indices,
        pixels,
        lambda image, _, out: eval_view(image, shorter_side_pixels, out),
    )


def _views(encoded, indices, pixels: int, view: Callable) -> dict:
    images = np.empty((len(indices), pixels, pixels, 3), np.uint8)
    labels = np.empty(len(indices), np.int32)
    for place, (data, label, name) in enumerate(encoded.read(indices)):
        view(decode(data, name), place, images[place])
        labels[place] = label
    return {"images": images, "labels": labels}


class Crop(NamedTuple):
    """A rectangle of an image, in pixels."""

    top: int
    left: int
    height: int
    width: int


@functools.cache
def _cv2():
    """OpenCV, with one thread per call: the pipeline processes many images at once
    already.
    """
    import cv2

    cv2.setNumThreads(1)
    return cv2


def decode(encoded: bytes, name: str) -> np.ndarray:
    """Decodes a JPEG or a PNG, whatever its file name, as RGB: u8[height, width, 3].

    Grey, CMYK and transparent images are converted. Orientation metadata is ignored, as
    in TensorFlow. Bytes after the image's end do no harm.

    Raises:
      DataError: with `name`, if the file has no end marker, the decoder gives up, or it
        is of neither kind. Decoders fill what they cannot read with grey; as with
        TensorFlow, damage within an image that has its end marker goes unnoticed.
    """
    # OpenCV 5 rejects most truncated files; earlier versions fill them up with grey or
    # old memory.
    if encoded.startswith(_JPEG_START):
        complete = _has_jpeg_end(encoded)
    elif encoded.startswith(_PNG_START):
        complete = _PNG_END in encoded
    else:
        raise DataError(
            f"{name} is neither a JPEG nor a PNG: it begins with {encoded[:8].hex()}"
        )
    if not complete:
        raise DataError(
            f"{name} is truncated: {len(encoded)} bytes without an end marker"
        )
    cv2 = _cv2()
    flags = cv2.IMREAD_COLOR_RGB | cv2.IMREAD_IGNORE_ORIENTATION
    try:
        image = cv2.imdecode(np.frombuffer(encoded, np.uint8), flags)
    except cv2.error as error:
        raise DataError(f"{name} cannot be decoded: {error.err}") from None
    if image is None:
        raise DataError(
            f"{name} cannot be decoded: it is damaged or of an unknown kind"
        )
    return image


def _has_jpeg_end(encoded: bytes) -> bool:
    """Whether the markers of a JPEG, followed from its start, reach the end of its
    image.

    The lengths of segments are respected, so thumbnails, which lie within segments, do
    not count, nor does what follows the image.
    """
    position = 2  # after the marker of the image's start
    while marker := _JPEG_MARKER.search(encoded, position):
        position = marker.end()
        kind = encoded[position - 1]
        if kind == _JPEG_IMAGE_END:
            return True
        if kind == _JPEG_IMAGE_START:  # another image follows one that was cut
            return False
        if kind != _JPEG_ALONE:
            position += max(2, int.from_bytes(encoded[position : position + 2], "big"))
    return False


def draw_view(
    height: int, width: int, *, seed: int, epoch: int, example: int
) -> tuple[Crop, bool]:
    """A random crop, uniform in position, area and log aspect ratio, and whether it is
    mirrored.
    """
    # The raw stream, which NumPy promises to keep; its distributions may change.
    key = np.array([seed, epoch], np.uint64)
    counter = np.array([0, example, _PURPOSE_VIEW, 0], np.uint64)
    raw = np.random.Philox(key=key, counter=counter).random_raw(2 * ATTEMPTS + 3)
    down, across, mirror, *draws = ((raw >> np.uint64(11)) * 2.0**-53).tolist()
    for area_draw, aspect_draw in zip(draws[::2], draws[1::2], strict=True):
        share = AREA_SHARE[0] + (AREA_SHARE[1] - AREA_SHARE[0]) * area_draw
        area = share * height * width
        aspect = math.exp(
            _LOG_ASPECT[0] + (_LOG_ASPECT[1] - _LOG_ASPECT[0]) * aspect_draw
        )
        crop_width, crop_height = (
            round(math.sqrt(area * aspect)),
            round(math.sqrt(area / aspect)),
        )
        if 0 < crop_width <= width and 0 < crop_height <= height:
            top = int(down * (height - crop_height + 1))
            left = int(across * (width - crop_width + 1))
            return Crop(top, left, crop_height, crop_width), mirror < 0.5
    aspect = min(max(width / height, ASPECT_RATIO[0]), ASPECT_RATIO[1])
    crop_height = min(height, max(1, round(width / aspect)))
    crop_width = min(width, max(1, round(height * aspect)))
    top, left = (height - crop_height) // 2, (width - crop_width) // 2
    return Crop(top, left, crop_height, crop_width), mirror < 0.5


def train_view(image: np.ndarray, view: tuple[Crop, bool], out: np.ndarray) -> None:
    """Writes the view of u8[h, w, 3] `image` that `draw_view` chose to `out`: u8[p, p,
    3].
    """
    (top, left, height, width), mirrored = view
    _resize(image[top : top + height, left : left + width], out)
    if mirrored:
        _cv2().flip(out, 1, dst=out)


def eval_view(image: np.ndarray, shorter_side_pixels: int, out: np.ndarray) -> None:
    """Writes the centre of `image`, resized to `shorter_side_pixels` >= p, to `out`
    u8[p, p, 3].
    """
    pixels = len(out)
    sides = image.shape[:2]
    height, width = (round(side * shorter_side_pixels / min(sides)) for side in sides)
    resized = np.empty((height, width, 3), np.uint8)
    _resize(image, resized)
    top, left = ((side - pixels) // 2 for side in resized.shape[:2])
    out[:] = resized[top : top + pixels, left : left + pixels]


def _resize(image: np.ndarray, out: np.ndarray) -> None:
    cv2 = _cv2()
    height, width = out.shape[:2]
    factor = max(image.shape[0] / height, image.shape[1] / width)
    method = cv2.INTER_AREA if factor >= _AREA_FROM_FACTOR else cv2.INTER_LINEAR
    cv2.resize(image, (width, height), dst=out, interpolation=method)
