"""JPEG and PNG files as arrays, and resizing, by OpenCV.

OpenCV decodes fast, and its wheel needs neither TensorFlow nor a compiler. It releases
Python's interpreter lock, so threads are enough unless many cores wait for the lock.
"""

import functools
import re
from typing import Any

import numpy as np

# Resizing is bilinear below this factor.
# From it on, which is rare, it is by area, to avoid aliasing.
_AREA_FROM_FACTOR = 2.0
_JPEG_START = b"\xff\xd8\xff"
# A marker of a JPEG. In the data of a scan ff 00 stands for the byte ff, and ff d0 to
# ff d7 are restart markers; further bytes ff before a marker are padding.
_JPEG_MARKER = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]")
_JPEG_IMAGE_START = 0xD8
_JPEG_IMAGE_END = 0xD9
_JPEG_ALONE = 0x01  # a marker without a segment
_PNG_START = b"\x89PNG\r\n\x1a\n"
_PNG_END = b"IEND"


class DataError(ValueError):
    """Batches cannot be made: an image, a file or the memory for them fails."""


@functools.cache
def opencv() -> Any:
    """OpenCV, with one thread per call: many images are processed at once already."""
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
    # OpenCV 5 rejects most truncated files;
    # earlier versions fill them up with grey or old memory.
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
    cv2 = opencv()
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
    """Whether the markers of a JPEG, from its start, reach the end of its image.

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


def resize(image: np.ndarray, out: np.ndarray) -> None:
    """Writes `image` u8[h, w, 3], resized, to `out` u8[h', w', 3]."""
    cv2 = opencv()
    height, width = out.shape[:2]
    factor = max(image.shape[0] / height, image.shape[1] / width)
    method = cv2.INTER_AREA if factor >= _AREA_FROM_FACTOR else cv2.INTER_LINEAR
    cv2.resize(image, (width, height), dst=out, interpolation=method)
