"""A miniature `imagenet2012`, for tests, benchmarks and a first try.

`write` makes one from any JPEGs, `prepare` from generated images of a few classes that
a network can learn to tell apart. The files are what tensorflow_datasets' own builder
would write, except that the examples keep the order in which they are given. Making
one does not need TensorFlow.
"""

import os
import pathlib
import tempfile

import numpy as np

from identity_matters.images import imagenet
from identity_matters.paths import expand_home

# Typical of ImageNet: 500 x 375 pixels, 110 KB.
GENERATED_HEIGHT_PIXELS = 375
GENERATED_WIDTH_PIXELS = 500
_GENERATED_QUALITY = 95
_NOISE = 14.0
# What `prepare` makes.
CLASSES = 10
_SCALE = 0.25  # side lengths, as a fraction of GENERATED_*_PIXELS
_TRAIN_EXAMPLES_PER_VALIDATION = 4


def prepare(data_dir: str | os.PathLike[str], train_examples: int) -> pathlib.Path:
    """Makes a data set of `CLASSES` classes under `data_dir`, unless it exists.

    A fifth of all images, and at least `CLASSES`, are for validation. Returns the
    directory to pass on as `data_dir`. Raises ValueError for fewer training examples
    than classes.
    """
    if train_examples < CLASSES:
        raise ValueError(
            f"a miniature needs {CLASSES} examples or more, got {train_examples}"
        )
    target = (
        pathlib.Path(expand_home(data_dir)) / f"imagenet_miniature_{train_examples}"
    )
    if target.exists():
        return target
    splits = {}
    validation_examples = max(train_examples // _TRAIN_EXAMPLES_PER_VALIDATION, CLASSES)
    sizes = {"train": train_examples, "validation": validation_examples}
    for seed, (split, count) in enumerate(sizes.items()):
        labels = [i % CLASSES for i in range(count)]
        images = generate_jpegs(count, seed, scale=_SCALE, labels=labels)
        names = [f"{split}_{i}.JPEG" for i in range(count)]
        splits[split] = list(zip(images, labels, names, strict=True))
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(
        dir=target.parent, prefix=f".{target.name}."
    ) as scratch:
        made = pathlib.Path(scratch) / "made"
        write(made, splits)
        try:
            os.rename(made, target)
        except OSError:
            if not target.exists():  # else another process was faster
                raise
    return target


def generate_jpegs(
    count: int, seed: int, *, scale: float = 1.0, labels: list[int] | None = None
) -> list[bytes]:
    """`count` JPEGs of smooth random colours and some noise.

    Their sides are around `scale` times GENERATED_*_PIXELS. With `labels`, one for each
    image, the relative phases of the colours are those of the label.
    """
    import cv2

    rng = np.random.default_rng(seed)
    encoded = []
    for number in range(count):
        sides = np.array([GENERATED_HEIGHT_PIXELS, GENERATED_WIDTH_PIXELS]) * scale
        height, width = (sides * rng.uniform(0.8, 1.2, 2)).astype(int)
        smooth = _smooth_colours(
            rng,
            height=height,
            width=width,
            label=None if labels is None else labels[number],
        )
        noisy = smooth + _NOISE * rng.standard_normal((height, width, 3))
        image = np.clip(noisy[..., ::-1], 0, 255).astype(np.uint8)  # OpenCV takes BGR
        _, jpeg = cv2.imencode(
            ".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, _GENERATED_QUALITY]
        )
        encoded.append(jpeg.tobytes())
    return encoded


def _smooth_colours(
    rng: np.random.Generator, *, height: int, width: int, label: int | None
) -> np.ndarray:
    """Each colour a plane wave between 37 and 217: f64[height, width, 3].

    With a label all colours have one wave, so that their relative phases are the same
    everywhere: those of the label.
    """
    # Of each colour: the phase from one side to the other, along rows and columns.
    waves = rng.uniform(-20, 20, (3, 2))
    offsets = rng.uniform(0, 6, (3, 1, 1))  # the phase at the corner
    if label is not None:
        waves[:] = waves[:1]
        turns = np.random.default_rng(label).uniform(0, 2 * np.pi, (3, 1, 1))
        offsets = offsets[:1] + turns
    # [3, height, 1] and [3, 1, width]
    along_rows = waves[:, 0, None, None] * np.linspace(0, 1, height)[:, None]
    along_columns = waves[:, 1, None, None] * np.linspace(0, 1, width)[None, :]
    phases = along_rows + along_columns + offsets
    return (127 + 90 * np.sin(phases)).transpose(1, 2, 0)


def write(
    data_dir: str | os.PathLike[str], splits: dict, *, shards: int = 2
) -> pathlib.Path:
    """Writes an `imagenet2012` under `data_dir`; returns its folder.

    Args:
      data_dir: where to write.
      splits: for "train" and "validation", a list of (encoded image, label, file name).
      shards: the most files that a split may have.
    """
    builder = imagenet.builder(data_dir)
    import tensorflow_datasets as tfds

    directory = pathlib.Path(builder.data_dir)
    directory.mkdir(parents=True)
    examples_per_shard = -(-max(map(len, splits.values())) // shards)
    writer = tfds.core.SequentialWriter(
        builder.info, examples_per_shard, file_format=imagenet.FILE_FORMAT
    )
    writer.initialize_splits(list(splits))
    for split, examples in splits.items():
        named = [
            {"image": image, "label": label, "file_name": file_name}
            for image, label, file_name in examples
        ]
        writer.add_examples({split: named})
    writer.close_all()
    return directory
