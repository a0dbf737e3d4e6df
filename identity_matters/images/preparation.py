"""Preparing data sets: downloads, checks of archives, and arrays for `datasets.load`.

Only this needs TensorFlow or the network. tensorflow_datasets is needed here, and for
ImageNet and its miniature.
"""

import importlib.util
import os
import pathlib
import tarfile
import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np

from identity_matters import runs
from identity_matters.images import imagenet
from identity_matters.images.datasets import Source, find_source, split_directory, write
from identity_matters.paths import expand_home

CHUNK_EXAMPLES = 1000  # decoded per call, which is faster than one by one
# tensorflow_datasets' default retries an unreachable host for minutes
DOWNLOAD_RETRIES = 1
# These must be downloaded by hand, behind a login. Both must be there from the start:
# else one of them would be missed only after hours of work on the other.
IMAGENET_TRAIN = "ILSVRC2012_img_train.tar"
IMAGENET_VALIDATION = "ILSVRC2012_img_val.tar"
IMAGENET_ARCHIVES = (IMAGENET_TRAIN, IMAGENET_VALIDATION)
IMAGENET_ORIGIN = "https://image-net.org/download-images (it asks for an account)"


def decode(source: Source, split: str, builder: Any) -> tuple[np.ndarray, np.ndarray]:
    """Images and labels of a split of a prepared builder, without TensorFlow."""
    examples = builder.as_data_source(split=split)
    images = np.empty((len(examples), *source.image_shape), np.uint8)
    labels = np.empty(len(examples), np.int64)
    for start in range(0, len(examples), CHUNK_EXAMPLES):
        stop = min(start + CHUNK_EXAMPLES, len(examples))
        for i, example in enumerate(examples.__getitems__(range(start, stop)), start):
            images[i] = example["image"]
            labels[i] = example["label"]
    return images, labels


def prepare(name: str, data_dir: str | os.PathLike[str]) -> list[pathlib.Path]:
    """Makes a data set of `datasets.NAMES` readable.

    `datasets.load` reads it, and imagenet2012 `imagenet.EncodedImages`.

    If the host of the data is unreachable, put the original archive into
    DATA_DIR/downloads/manual/ first; those of imagenet2012 always go there. Returns the
    directories of the decoded splits, or of the files of imagenet2012.

    Raises:
      ValueError: for an unknown name; if TensorFlow or an archive is missing, if an
        archive is damaged or not the published one, or if the download fails. It names
        the archive.
    """
    data_dir = pathlib.Path(expand_home(data_dir))
    if name == imagenet.NAME:
        builder = _prepared_builder(
            name,
            tfds_name=name,
            data_dir=data_dir,
            archives=IMAGENET_ARCHIVES,
            origin=IMAGENET_ORIGIN,
        )
        return [pathlib.Path(builder.data_dir)]
    source = find_source(name)
    if source.comes_with_package:
        return []
    directories = [split_directory(source, split, data_dir) for split in source.splits]
    if not all((directory / "manifest.json").exists() for directory in directories):
        _write_splits(source, data_dir)
    return directories


def _write_splits(source: Source, data_dir: pathlib.Path) -> None:
    """Prepares, decodes and writes all splits; ValueError as `prepare`."""
    builder = _prepared_builder(
        source.name,
        tfds_name=source.tfds_name,
        data_dir=data_dir,
        archives=(source.archive,),
        origin=source.origin,
    )
    for split in source.splits:
        try:
            images, labels = decode(source, split, builder)
        except Exception as error:  # of any type, from three libraries
            raise ValueError(
                f"the files of {source.name} in {builder.data_dir} cannot be read"
                f" ({_in_short(error)}); delete that directory and run make data again"
            ) from error
        write(source, split, data_dir, images, labels)


def _prepared_builder(
    name: str,
    *,
    tfds_name: str,
    data_dir: pathlib.Path,
    archives: tuple[str, ...],
    origin: str,
) -> Any:
    """The prepared builder; that of imagenet2012 turns CMYK and PNG into RGB JPEGs."""
    _require_tensorflow(name)
    builder = imagenet.builder(data_dir, tfds_name)
    if imagenet.is_prepared(builder):
        return builder
    manual = data_dir / "downloads" / "manual"
    advice = f"from {origin} into {manual} and run this again"
    if name == imagenet.NAME:
        missing = [archive for archive in archives if not (manual / archive).exists()]
        if missing:
            raise ValueError(
                f"{manual} lacks {' and '.join(missing)}; get them {advice}"
            )
        synsets = builder.info.features["label"].names
        check_archives(manual, synsets, imagenet.PUBLISHED_EXAMPLES["validation"])
    try:
        _download_and_prepare(builder, manual)
    # what a damaged archive raises depends on where it is damaged
    except Exception as error:
        raise ValueError(
            f"{name} cannot be prepared ({_in_short(error)}); if the download failed or"
            f" {' or '.join(archives)} is damaged, get the original {advice}"
        ) from error
    return builder


def _require_tensorflow(name: str) -> None:
    """ValueError if a package is missing that prepares data sets such as `name`."""
    for module in ("tensorflow", "tensorflow_datasets"):
        if importlib.util.find_spec(module) is None:
            raise ValueError(
                f"preparing {name} needs {module}, which is not installed; run: make"
                f" data DATASETS={name}"
            )


def _download_and_prepare(builder: Any, manual: pathlib.Path) -> None:
    """Downloads what the builder needs, unless it lies in `manual`, and prepares it."""
    import tensorflow_datasets as tfds
    from tensorflow_datasets.core.download import downloader

    downloader.MAX_RETRIES = DOWNLOAD_RETRIES
    settings = tfds.download.DownloadConfig(manual_dir=manual, try_download_gcs=False)
    builder.download_and_prepare(
        download_config=settings, file_format=imagenet.FILE_FORMAT
    )


def check_archives(
    manual: pathlib.Path, synsets: Sequence[str], validation_images: int
) -> None:
    """Checks the names in ImageNet's two archives, before hours are spent on them.

    tensorflow_datasets numbers the validation images by their sorted names and looks
    their labels up in a list, so other names, or names with a directory in front, get
    wrong labels.

    Args:
      manual: the directory with `IMAGENET_ARCHIVES`.
      synsets: names of the classes; the training archive holds an archive for each.
      validation_images: how many images the validation archive holds.

    Raises:
      ValueError: if an archive is damaged or repacked; the message names it.
    """
    images = [
        f"ILSVRC2012_val_{number:08d}.JPEG"
        for number in range(1, validation_images + 1)
    ]
    published = {
        IMAGENET_VALIDATION: images,
        IMAGENET_TRAIN: [f"{synset}.tar" for synset in synsets],
    }
    for archive, names in published.items():
        path = manual / archive
        advice = f"get the original from {IMAGENET_ORIGIN}"
        try:
            with tarfile.open(path, "r:") as members:
                names_in_archive = members.getnames()
        except (OSError, EOFError, tarfile.TarError) as error:
            raise ValueError(
                f"{path} is damaged ({_in_short(error)}); {advice}"
            ) from None
        if sorted(names_in_archive) != sorted(names):
            first = min({*names_in_archive} ^ {*names}, default="one name twice")
            raise ValueError(
                f"{path} is not the published archive: it should hold {len(names)}"
                f" files, {names[0]} to {names[-1]}, holds"
                f" {len(names_in_archive)}, and differs at {first}; {advice}"
            )


def _in_short(error: Exception) -> str:
    """Type and message of an error of another library, in few words."""
    return textwrap.shorten(f"{type(error).__name__}: {runs.first_line(error)}", 200)
