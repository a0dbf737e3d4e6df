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
# How many sizes are drawn until one fits.
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


class View(NamedTuple):
    """What training sees of an image: a crop of it, which may be mirrored."""

    crop: Crop
    is_mirrored: bool


def draw_view(height: int, width: int, *, seed: int, epoch: int, example: int) -> View:
    """A random crop of an image, and whether it is mirrored.

    The crop is uniform in position, area and log aspect ratio. If none of ATTEMPTS
    draws fits into the image, it is the largest central one of an allowed aspect ratio.
    """
    draws = _uniform_draws(3 + 2 * ATTEMPTS, seed=seed, epoch=epoch, example=example)
    down = draws[0]
    across = draws[1]
    is_mirrored = draws[2] < 0.5
    for attempt in range(ATTEMPTS):
        area_draw = draws[3 + 2 * attempt]
        aspect_draw = draws[4 + 2 * attempt]
        area = _between(AREA_SHARE, area_draw) * height * width
        aspect = math.exp(_between(_LOG_ASPECT, aspect_draw))
        crop_width = round(math.sqrt(area * aspect))
        crop_height = round(math.sqrt(area / aspect))
        if 0 < crop_width <= width and 0 < crop_height <= height:
            top = int(down * (height - crop_height + 1))
            left = int(across * (width - crop_width + 1))
            crop = Crop(top=top, left=left, height=crop_height, width=crop_width)
            return View(crop, is_mirrored)
    return View(_largest_central_crop(height, width), is_mirrored)


def _uniform_draws(count: int, *, seed: int, epoch: int, example: int) -> list[float]:
    """Uniform numbers from 0 to below 1, the same for an example in an epoch."""
    # The raw stream, which NumPy promises to keep; its distributions may change.
    key = np.array([seed, epoch], np.uint64)
    counter = np.array([0, example, _PURPOSE_VIEW, 0], np.uint64)
    raw = np.random.Philox(key=key, counter=counter).random_raw(count)
    # The highest 53 bits, as many as a float64 holds.
    return ((raw >> np.uint64(11)) * 2.0**-53).tolist()


def _between(limits: tuple[float, float], share: float) -> float:
    """The number that lies this share of the way between two limits."""
    least, largest = limits
    return least + (largest - least) * share


def _largest_central_crop(height: int, width: int) -> Crop:
    """The largest crop of an allowed aspect ratio, in the centre."""
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


def train_view(image: np.ndarray, view: View, out: np.ndarray) -> None:
    """Writes a view of `image`, u8[h, w, 3], to `out`, u8[p, p, 3]."""
    crop = view.crop
    rows = slice(crop.top, crop.top + crop.height)
    columns = slice(crop.left, crop.left + crop.width)
    decoding.resize(image[rows, columns], out)
    if view.is_mirrored:
        decoding.opencv().flip(out, 1, dst=out)


def eval_view(image: np.ndarray, shorter_side_pixels: int, out: np.ndarray) -> None:
    """Writes the centre of `image`, u8[h, w, 3], to `out`, u8[p, p, 3].

    First the image is resized, so that its shorter side is `shorter_side_pixels`, which
    is at least p. Torchvision rounds the longer side down, not to the nearest, and
    filters whenever it shrinks an image; `decoding.resize` does so from a factor of 2.
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
