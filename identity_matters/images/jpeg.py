"""Encoded images to network inputs: decoding, random resized crops, centre crops, flips.

What a training image becomes depends on (seed, epoch, example) alone, so that neither threads,
processes nor a restart change it. Resizing is linear where it shrinks less than twofold and by
area beyond that, which does not alias; few crops of ImageNet are that large.

OpenCV decodes; it is the fastest decoder among the wheels that need neither TensorFlow nor a
compiler. It releases Python's interpreter lock, so that threads are enough to use all cores.
"""

import functools
import math
from typing import NamedTuple

import numpy as np

# A training crop covers this share of the image's area, at this ratio of width to height: the
# usual ones (Szegedy et al. 2015; torchvision's RandomResizedCrop).
AREA_SHARE = (0.08, 1.0)
ASPECT_RATIO = (3 / 4, 4 / 3)
_LOG_ASPECT = (math.log(ASPECT_RATIO[0]), math.log(ASPECT_RATIO[1]))
# Crops drawn until one fits the image; after that the largest central one of such a ratio is taken.
ATTEMPTS = 10
# Philox has a 256-bit counter: the second word is the example, the third says what for. The order
# of an epoch (`batches`) uses the same keys with both at 0.
_PURPOSE_VIEW = 1
_AREA_FROM_FACTOR = 2.0
_JPEG_START = b"\xff\xd8\xff"
_JPEG_SCAN = b"\xff\xda"
_JPEG_END = b"\xff\xd9"
_PNG_START = b"\x89PNG\r\n\x1a\n"
_PNG_END = b"IEND"


class Crop(NamedTuple):
    """A rectangle of an image, in pixels."""

    top: int
    left: int
    height: int
    width: int


@functools.cache
def _cv2():
    """OpenCV, one thread a call: the pipeline computes many images at once already."""
    import cv2

    cv2.setNumThreads(1)
    return cv2


def decode(encoded: bytes, name: str) -> np.ndarray:
    """Decodes a JPEG, or a PNG whatever it is called, as RGB: u8[height, width, 3].

    Greyscale images get three equal channels, CMYK and transparent ones are converted. An
    orientation in the file's metadata is ignored, as by TensorFlow's decoder.

    Args:
      name: what the image is called in errors.
    Raises:
      ValueError: `name` is truncated, damaged or neither JPEG nor PNG.
    """
    # OpenCV 5 refuses most truncated files, earlier versions none: they fill in grey or old memory.
    if encoded.startswith(_JPEG_START):
        # An end marker follows the last scan; a thumbnail's own lies before the image's first one.
        complete = encoded.rfind(_JPEG_END) > encoded.rfind(_JPEG_SCAN)
    elif encoded.startswith(_PNG_START):
        complete = _PNG_END in encoded
    else:
        raise ValueError(f"{name} is neither a JPEG nor a PNG: it begins with {encoded[:8].hex()}")
    if not complete:
        raise ValueError(f"{name} is truncated: {len(encoded)} bytes without an end marker")
    cv2 = _cv2()
    flags = cv2.IMREAD_COLOR_RGB | cv2.IMREAD_IGNORE_ORIENTATION
    try:
        image = cv2.imdecode(np.frombuffer(encoded, np.uint8), flags)
    except cv2.error as error:
        raise ValueError(f"{name} cannot be decoded: {error.err}") from None
    if image is None:
        raise ValueError(f"{name} cannot be decoded: it is damaged or of an unknown kind")
    return image


def draw_view(height: int, width: int, *, seed: int, epoch: int, example: int) -> tuple[Crop, bool]:
    """A random crop of an image, and whether it is mirrored.

    The area is uniform in AREA_SHARE, the logarithm of the aspect ratio uniform in that of
    ASPECT_RATIO, the place uniform.

    Args:
      height, width: of the image, in pixels.
      seed, epoch, example: what the randomness depends on, each from 0 to 2^64 - 1.
    """
    # The raw stream, which NumPy promises to keep; those of its distributions may change.
    key = np.array([seed, epoch], np.uint64)
    counter = np.array([0, example, _PURPOSE_VIEW, 0], np.uint64)
    generator = np.random.Philox(key=key, counter=counter)
    raw = generator.random_raw(2 * ATTEMPTS + 3)
    uniform = ((raw >> np.uint64(11)) * 2.0**-53).tolist()
    down, across, mirror = uniform[:3]
    for attempt in range(ATTEMPTS):
        area_draw, aspect_draw = uniform[3 + 2 * attempt : 5 + 2 * attempt]
        share = AREA_SHARE[0] + (AREA_SHARE[1] - AREA_SHARE[0]) * area_draw
        area = share * height * width
        aspect = math.exp(_LOG_ASPECT[0] + (_LOG_ASPECT[1] - _LOG_ASPECT[0]) * aspect_draw)
        crop_width, crop_height = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
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
    """Writes the view of u8[h, w, 3] `image` that `draw_view` chose to `out`: u8[p, p, 3]."""
    (top, left, height, width), mirrored = view
    _resize(image[top : top + height, left : left + width], out)
    if mirrored:
        _cv2().flip(out, 1, dst=out)


def eval_view(image: np.ndarray, shorter_side_pixels: int, out: np.ndarray) -> None:
    """Writes the central crop of `image`, resized to `shorter_side_pixels`, to `out`: u8[p, p, 3].

    The crop must fit the resized image.
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


def encode(image: np.ndarray, quality: int) -> bytes:
    """u8[h, w, 3] RGB as a JPEG of `quality` 1 to 100."""
    cv2 = _cv2()
    settings = [cv2.IMWRITE_JPEG_QUALITY, quality]
    _, encoded = cv2.imencode(".jpg", cv2.cvtColor(image, cv2.COLOR_RGB2BGR), settings)
    return encoded.tobytes()
