"""Random crops and flips of an image for training, its centre for evaluation."""

import math
from typing import NamedTuple

import numpy as np

from identity_matters.images import decoding

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


class Crop(NamedTuple):
    """A rectangle of an image, in pixels."""

    top: int
    left: int
    height: int
    width: int


def draw_view(
    height: int, width: int, *, seed: int, epoch: int, example: int
) -> tuple[Crop, bool]:
    """A random crop of an image, and whether it is mirrored.

    The crop is uniform in position, area and log aspect ratio. If none of ATTEMPTS
    draws fits into the image, it is the largest central one of an allowed aspect ratio.
    """
    draws = _uniform_draws(3 + 2 * ATTEMPTS, seed=seed, epoch=epoch, example=example)
    down, across, mirror, *draws_of_sizes = draws
    mirrored = mirror < 0.5
    for area_draw, aspect_draw in zip(
        draws_of_sizes[::2], draws_of_sizes[1::2], strict=True
    ):
        area = _between(AREA_SHARE, area_draw) * height * width
        aspect = math.exp(_between(_LOG_ASPECT, aspect_draw))
        crop_width = round(math.sqrt(area * aspect))
        crop_height = round(math.sqrt(area / aspect))
        if 0 < crop_width <= width and 0 < crop_height <= height:
            top = int(down * (height - crop_height + 1))
            left = int(across * (width - crop_width + 1))
            return Crop(top, left, crop_height, crop_width), mirrored
    return _largest_central_crop(height, width), mirrored


def _uniform_draws(count: int, *, seed: int, epoch: int, example: int) -> list[float]:
    """Uniform numbers from 0 to below 1, the same for an example in an epoch."""
    # The raw stream, which NumPy promises to keep; its distributions may change.
    key = np.array([seed, epoch], np.uint64)
    counter = np.array([0, example, _PURPOSE_VIEW, 0], np.uint64)
    raw = np.random.Philox(key=key, counter=counter).random_raw(count)
    # The highest 53 bits, as many as a float64 holds.
    return ((raw >> np.uint64(11)) * 2.0**-53).tolist()


def _between(limits: tuple[float, float], share: float) -> float:
    least, largest = limits
    return least + (largest - least) * share


def _largest_central_crop(height: int, width: int) -> Crop:
    least_aspect, largest_aspect = ASPECT_RATIO
    aspect = min(max(width / height, least_aspect), largest_aspect)
    crop_height = min(height, max(1, round(width / aspect)))
    crop_width = min(width, max(1, round(height * aspect)))
    return Crop(
        top=(height - crop_height) // 2,
        left=(width - crop_width) // 2,
        height=crop_height,
        width=crop_width,
    )


def train_view(image: np.ndarray, view: tuple[Crop, bool], out: np.ndarray) -> None:
    """Writes the view that `draw_view` chose, of `image` u8[h, w, 3], to `out`.

    `out` is u8[p, p, 3].
    """
    (top, left, height, width), mirrored = view
    decoding.resize(image[top : top + height, left : left + width], out)
    if mirrored:
        decoding.opencv().flip(out, 1, dst=out)


def eval_view(image: np.ndarray, shorter_side_pixels: int, out: np.ndarray) -> None:
    """Writes the centre of `image` u8[h, w, 3], resized, to `out` u8[p, p, 3].

    Its shorter side is resized to `shorter_side_pixels`, at least p.
    """
    pixels = len(out)
    height, width = image.shape[:2]
    shorter_side = min(height, width)
    resized_height = round(height * shorter_side_pixels / shorter_side)
    resized_width = round(width * shorter_side_pixels / shorter_side)
    resized = np.empty((resized_height, resized_width, 3), np.uint8)
    decoding.resize(image, resized)
    top = (resized_height - pixels) // 2
    left = (resized_width - pixels) // 2
    out[:] = resized[top : top + pixels, left : left + pixels]
