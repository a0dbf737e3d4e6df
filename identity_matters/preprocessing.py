"""From raw images to the inputs of a net: normalisation, random crops and random flips.

`Preprocessing` is what a net was trained with and must be applied with; it is stored
beside the variables of the net. There are four normalisations:

* ``none``           x / 255 for uint8, and floating-point numbers as they are;
* ``per_image``      (x - mean) / max(std, 1/sqrt(values)) over all values of one image,
  as in the TensorFlow code that the paper's derives from (`per_image_standardization`);
* ``mean_std``       (x - mean) / std for each channel, that is, each index of the last
  axis;
* ``gcn_zca``        global contrast normalisation, then ZCA whitening (All-CNN).

What happens to an example depends on its own key alone, so neither the split of a batch
over devices nor a restart changes it. Images are padded with zeros and then cropped.
With ``per_image`` this is done to raw pixels, as in that code, so the padding counts in
mean and std; otherwise, to normalised values.
"""

import dataclasses
import functools
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from identity_matters.checks import (
    check_array_type,
    check_choice,
    check_whole,
    plain_array,
    real_array,
)
from identity_matters.normalizations import find_normalization

DTYPES = ("uint8", "float32")  # of raw images
# Non-negative images whose largest value is above
# this are taken for pixels that nobody scaled.
_LARGEST_SCALED = 2.0
# Images whose largest magnitude differs by such
# factors from that in training are of another scale.
MUCH_LARGER = 10.0
_MUCH_SMALLER = 1 / 50
# Pixels in uint8 have no outliers, so a smaller difference says that their scale is
# another one. A single image may be dark; ten at once hardly are.
_SMALLER_PIXELS = 1 / 10
_LEAST_IMAGES_NOT_ALL_DARK = 10


@dataclasses.dataclass(frozen=True, eq=False)
class Preprocessing:
    """How raw images become the inputs of a net, in training and afterwards.

    >>> images = np.arange(32, dtype=np.uint8).reshape(2, 4, 4, 1)
    >>> per_image = Preprocessing.fit(
    ...     "per_image", images, pad_pixels_per_side=1, flip=True
    ... )
    >>> float(per_image.eval_input(images).std())  # the whole images
    1.0
    >>> keys = jax.random.split(jax.random.key(0), 2)
    >>> per_image.train_input(images, keys).shape  # crops
    (2, 4, 4, 1)

    Attributes:
      normalization: a name of `normalizations.NORMALIZATIONS`.
      constants: f32 arrays by name, which the normalisation has taken from the training
        images.
      image_shape: the shape of one raw image, (h, w, c) for crops and flips.
      dtype: of raw images, "uint8" or "float32".
      pad_pixels_per_side: zeros added on each side before a random crop of the image's
        own size; 0 takes the whole image.
      flip: whether training mirrors images left to right with probability 1/2.
      largest: the largest magnitude in the training images, or None if it is not known,
        as for uint8 of checkpoints that were saved before it was stored. Then the
        scale of other images is not checked.

    Raises ValueError if they do not fit together.
    """

    normalization: str
    constants: dict
    image_shape: tuple[int, ...]
    dtype: str = "uint8"
    pad_pixels_per_side: int = 0
    flip: bool = False
    largest: float | None = None

    def __post_init__(self):
        needed = set(find_normalization(self.normalization).constants)
        if set(self.constants) != needed:
            raise ValueError(
                f"{self.normalization} needs the constants {sorted(needed)}, got"
                f" {sorted(self.constants)}"
            )
        check_choice("dtype", self.dtype, DTYPES)
        _check_augmentation(self.pad_pixels_per_side, self.flip, self.image_shape)

    @classmethod
    def fit(
        cls,
        normalization: str,
        images: np.ndarray,
        *,
        pad_pixels_per_side: int = 0,
        flip: bool = False,
    ) -> "Preprocessing":
        """The preprocessing for these training images, u8 or finite f32[n, ...].

        Raises ValueError for an unknown name, other images, a negative padding, a
        constant channel (``mean_std``), and numbers with which float32 cannot compute
        the normalisation: above 1e15 in size for ``per_image`` and ``gcn_zca``, which
        square them, and above 1e37 for ``mean_std``.
        """
        images = plain_array("images", images)
        if images.dtype.name not in DTYPES or images.ndim < 2 or not images.size:
            raise ValueError(
                "images must be uint8 or float32[n, ...], got"
                f" {images.dtype}{[*images.shape]}"
            )
        largest = _largest_magnitude(images)
        if not np.isfinite(largest):
            raise ValueError("images must be finite, got NaN or infinity")
        # Before constants are computed, which may take minutes.
        normalizer = find_normalization(normalization)
        _check_augmentation(pad_pixels_per_side, flip, images.shape[1:])
        if largest > normalizer.largest:
            raise ValueError(
                f"images must be at most {normalizer.largest:g} in size for"
                f" {normalization}, got {largest:.3g}: scale them"
            )
        constants = normalizer.fit(images)
        return cls(
            normalization=normalization,
            constants={
                name: np.asarray(value, np.float32) for name, value in constants.items()
            },
            image_shape=images.shape[1:],
            dtype=images.dtype.name,
            pad_pixels_per_side=int(pad_pixels_per_side),
            flip=flip,
            largest=largest,
        )

    def train_input(self, images, keys):
        """Inputs f32[n, ...] for training, augmented by the typed keys [n]; jittable.

        Raises ValueError unless `images` have the shape and dtype of the raw ones, and
        there is a key for each.
        """
        x = self._as_float32(images)
        if keys.shape[:1] != x.shape[:1]:
            raise ValueError(
                f"keys must be one for each of {len(x)} images, got shape {keys.shape};"
                " jax.random.split(key, len(images)) makes them"
            )
        if self.normalization == "per_image":
            return self._normalize(self._crop_and_flip(x, keys))
        return self._crop_and_flip(self._normalize(x), keys)

    def eval_input(self, images):
        """Inputs f32[n, ...] for evaluation, neither cropped nor flipped; jittable.

        Raises ValueError unless `images` have the shape and dtype of the raw ones.
        It does not look at their scale; `check_images` does.
        """
        return self._normalize(self._as_float32(images))

    def check_images(self, name: str, images: Any) -> np.ndarray:
        """A user's argument `name` as raw images of the training's kind.

        They are u8 or f32[n, ...]. Warns if their scale differs from that in training;
        for darker uint8 images, only if there are ten or more. Raises ValueError, as
        `raw_images` does, for images of another dtype or shape.
        """
        given = plain_array(name, images)
        raw = raw_images(name, given)
        if raw.dtype != self.dtype:
            raise ValueError(
                f"{name} must be {self.dtype}, like the images that the net was trained"
                f" on, got {given.dtype}"
            )
        if raw.shape[1:] != self.image_shape:
            raise ValueError(
                f"{name} must be {shown_shape(self.image_shape)}, as the images that"
                " the net was trained on, got shape"
                f" {raw.shape}{self._shape_advice(name, raw.shape)}"
            )
        self._warn_of_another_scale(name, raw)
        return raw

    def description(self) -> dict:
        """All but the constants, JSON-able; `from_description` is the inverse."""
        return {
            "normalization": self.normalization,
            "image_shape": list(self.image_shape),
            "dtype": self.dtype,
            "pad_pixels_per_side": self.pad_pixels_per_side,
            "flip": self.flip,
            "largest": self.largest,
        }

    @classmethod
    def from_description(cls, description: dict, constants: dict) -> "Preprocessing":
        shape = tuple(description["image_shape"])
        return cls(**{**description, "image_shape": shape, "constants": constants})

    def _as_float32(self, images):
        check_array_type("images", images)
        if images.dtype != self.dtype or images.shape[1:] != self.image_shape:
            raise ValueError(
                f"images must be {self.dtype}{shown_shape(self.image_shape)}, got"
                f" {images.dtype}{[*images.shape]}"
            )
        return jnp.asarray(images, jnp.float32)

    def _normalize(self, x):
        return find_normalization(self.normalization).apply(self.constants, x)

    def _crop_and_flip(self, x, keys):
        """A random crop of each zero-padded image, randomly mirrored.

        A TPU would copy crops one after the other, and takes products instead; both
        give the same images, to the last bit.

        Args:
          x: f32[b, h, w, c].
          keys: typed keys [b].
        Returns:
          f32[b, h, w, c].
        """
        pad = self.pad_pixels_per_side
        if not pad and not self.flip:
            return x
        has_raw_pixels = self.dtype == "uint8" and self.normalization == "per_image"
        return jax.lax.platform_dependent(
            x,
            keys,
            tpu=functools.partial(
                _crop_and_flip_by_products,
                # Pixels of 8 bits are exact in the bfloat16 of TPUs.
                precision=None if has_raw_pixels else jax.lax.Precision.HIGHEST,
                pad=pad,
                flip=self.flip,
            ),
            default=functools.partial(
                _crop_and_flip_by_slices, pad=pad, flip=self.flip
            ),
        )

    def _shape_advice(self, name: str, shape: tuple) -> str:
        if shape == self.image_shape:
            return f"; one image is {name}[None]"
        if (*shape[1:], 1) == self.image_shape:
            return f"; pass {name}[..., None]"
        if len(shape) == 4 and (*shape[2:], shape[1]) == self.image_shape:
            return f", which is channels first; pass {name}.transpose(0, 2, 3, 1)"
        return ""

    def _warn_of_another_scale(self, name: str, images: np.ndarray) -> None:
        if not self.largest:
            return
        factor = _largest_magnitude(images) / self.largest
        # Images that are black altogether are of every scale.
        is_smaller = 0 < factor < _MUCH_SMALLER
        if self.dtype == "uint8":
            are_many = len(images) >= _LEAST_IMAGES_NOT_ALL_DARK
            is_smaller = are_many and 0 < factor < _SMALLER_PIXELS
        if factor > MUCH_LARGER or is_smaller:
            warnings.warn(
                f"the values of {name} go up to {factor * self.largest:.3g}, those of"
                f" the training images went up to {self.largest:.3g}: scale both in the"
                " same way",
                stacklevel=4,
            )


def _check_augmentation(
    pad_pixels_per_side: int, flip: bool, image_shape: tuple[int, ...]
) -> None:
    """Raises ValueError unless images of this shape can be augmented in this way."""
    check_whole("pad_pixels_per_side", pad_pixels_per_side, 0)
    if not isinstance(flip, bool):
        raise ValueError(f"flip must be True or False, got {flip!r}")
    augments = bool(pad_pixels_per_side) or flip
    if augments and len(image_shape) != 3:
        raise ValueError(
            "pad_pixels_per_side and flip are for images [n, h, w, c], got"
            f" {shown_shape(image_shape)}"
        )


def raw_images(name: str, images: Any) -> np.ndarray:
    """A user's argument `name` as raw images, u8 or f32[n, ...].

    Other floating types are converted. Raises ValueError for anything else: integers
    other than uint8, because nobody can say how to scale them; NaN or infinity; complex
    numbers and booleans; masks and units; an empty array; an array without an axis of
    examples.
    """
    array = real_array(name, images, dtype=None)
    if array.ndim < 2:
        raise ValueError(
            f"{name} must be [n, ...] with an axis of examples, got {array.shape}"
        )
    if array.dtype == np.uint8:
        return array
    if jnp.issubdtype(array.dtype, jnp.integer):
        raise ValueError(
            f"{name} must be uint8 or floating-point, got {array.dtype} from"
            f" {array.min()} to {array.max()}: pass pixels of 0 to 255 as"
            f" np.asarray({name}, np.uint8), and other numbers scaled, as float32"
        )
    return real_array(name, array, dtype=np.float32)


def check_channels_last(name: str, images: np.ndarray) -> None:
    """Raises ValueError for training images that are channels first by their shape.

    So is [n, 1 or 3, more than 4, more than 4], for which the error says how to
    pass images that are 1 or 3 pixels high and have more than 4 channels.
    """
    shape = images.shape
    if len(shape) == 4 and shape[1] in (1, 3) and min(shape[2:]) > 4:
        raise ValueError(
            f"{name} must be [n, height, width, channels], got shape {shape}, which"
            f" looks like channels first: pass {name}.transpose(0, 2, 3, 1). If the"
            f" images are {shape[1]} high and have {shape[3]} channels, turn them, so"
            f" that they are {shape[1]} wide: pass {name}.swapaxes(1, 2)"
        )


def looks_unscaled(images: np.ndarray) -> bool:
    """Whether float32 images seem to be pixels, 0 to 255, or counts, not scaled."""
    if (
        images.dtype != np.float32
        or images.min() < 0
        or images.max() <= _LARGEST_SCALED
    ):
        return False
    return images.ndim == 4 or bool(np.all(images == np.rint(images)))


def shown_shape(image_shape: tuple[int, ...]) -> str:
    """The shape of n images, as in "[n, 32, 32, 3]"."""
    return f"[{', '.join(map(str, ('n', *image_shape)))}]"


def _largest_magnitude(images: np.ndarray) -> float:
    return float(max(abs(float(images.min())), abs(float(images.max()))))


def _crop_and_flip_by_slices(x, keys, *, pad: int, flip: bool):
    """Crops of x f[b, h, w, c] after padding, some of them mirrored: by slices.

    Args:
      x: the images; a crop has their size.
      keys: keys[b].
      pad: pixels of zeros on each side; 0 for no crops.
      flip: whether to mirror half of the images.
    """

    def crop(x, key):
        row, column, is_mirrored = _draw_crop(key, pad=pad, flip=flip)
        if pad:
            padded = jnp.pad(x, ((pad, pad), (pad, pad), (0, 0)))
            x = jax.lax.dynamic_slice(padded, (row, column, jnp.int32(0)), x.shape)
        if flip:
            x = jnp.where(is_mirrored, x[:, ::-1], x)
        return x

    return jax.vmap(crop)(x, keys)


def _crop_and_flip_by_products(
    x, keys, *, pad: int, flip: bool, precision: jax.lax.Precision | None
):
    """The same by products with matrices of zeros and ones, of this precision.

    Row i of a crop is row ``row + i - pad`` of the image, or of the padding if there is
    no such row; columns alike.
    """
    _, height, width, _ = x.shape

    def choose(key):
        """The matrices [h, h] and [w, w] that choose one image's rows and columns."""
        row, column, is_mirrored = _draw_crop(key, pad=pad, flip=flip)
        rows = jnp.arange(height)
        columns = jnp.arange(width)
        columns = jnp.where(is_mirrored, columns[::-1], columns)
        return (
            jax.nn.one_hot(rows + row - pad, height, dtype=x.dtype),
            jax.nn.one_hot(columns + column - pad, width, dtype=x.dtype),
        )

    row_choices, column_choices = jax.vmap(choose)(keys)
    x = jnp.einsum("bip,bpwc->biwc", row_choices, x, precision=precision)
    return jnp.einsum("bjq,biqc->bijc", column_choices, x, precision=precision)


def _draw_crop(key, *, pad: int, flip: bool) -> tuple:
    """(row, column) of a crop's corner in the padded image; whether it is mirrored."""
    crop_key, flip_key = jax.random.split(key)
    row = column = jnp.int32(pad)
    if pad:
        row, column = jax.random.randint(crop_key, (2,), 0, 2 * pad + 1, jnp.int32)
    is_mirrored = jnp.bool_(False)
    if flip:
        # Of a Python float, JAX would draw other bits where it computes in 64 bits.
        is_mirrored = jax.random.bernoulli(flip_key, jnp.float32(0.5))
    return row, column, is_mirrored
