"""Downloads and decodes a data set with tensorflow_datasets; needs TensorFlow, once."""

import importlib.util
import os
import pathlib

from identity_matters.data import arrays, imagenet
from identity_matters.data.sources import SOURCES, find_source

# tensorflow_datasets asks a dead host for minutes by default.
DOWNLOAD_RETRIES = 1
NAMES = (*SOURCES, imagenet.NAME)
# No program may download these; the builder takes both or none.
IMAGENET_ARCHIVES = ("ILSVRC2012_img_train.tar", "ILSVRC2012_img_val.tar")


def prepare(name: str, data_dir: str | os.PathLike[str]) -> list[pathlib.Path]:
    """Makes data set `name` ready for `arrays.load`, imagenet2012 for `imagenet.EncodedImages`.

    Without access to its host, put the original archive into DATA_DIR/downloads/manual/ first;
    those of imagenet2012 must always be put there.

    Args:
      name: one of `NAMES`; `digits` needs no preparation.
      data_dir: where tensorflow_datasets keeps its data sets.
    Returns:
      the directories of the decoded splits, of imagenet2012 the one that holds its files.
    Raises:
      ValueError: an unknown name, TensorFlow or an archive is missing, or the download fails.
    """
    check_name(name)
    if name == imagenet.NAME:
        return [_prepare_imagenet(pathlib.Path(data_dir).expanduser())]
    source = find_source(name)
    data_dir = pathlib.Path(data_dir).expanduser()
    if not source.tfds_name:
        return []
    directories = [data_dir / "arrays" / name / split for split in source.splits]
    if all((directory / "manifest.json").exists() for directory in directories):
        return directories
    builder = _download_and_prepare(source, data_dir)
    for split in source.splits:
        arrays.write(source, split, data_dir, *arrays.decode(source, split, builder))
    return directories


def check_name(name: str) -> None:
    """Raises ValueError for a name that is not one of `NAMES`."""
    if name not in NAMES:
        raise ValueError(f"there is no data set {name!r}; there are {', '.join(NAMES)}")


def _require_tensorflow(name: str) -> None:
    for module in ("tensorflow", "tensorflow_datasets"):
        if importlib.util.find_spec(module) is None:
            raise ValueError(
                f"preparing {name} needs {module}, which is not installed;"
                f" run: make data DATASETS={name}"
            )


def _prepare_imagenet(data_dir: pathlib.Path) -> pathlib.Path:
    """Packs the two archives into array_record files; CMYK and PNG files become RGB JPEGs."""
    _require_tensorflow(imagenet.NAME)
    builder = imagenet.builder(data_dir)
    if builder.is_prepared():
        return pathlib.Path(builder.data_dir)
    manual = data_dir / "downloads" / "manual"
    missing = [name for name in IMAGENET_ARCHIVES if not (manual / name).exists()]
    if missing:
        raise ValueError(
            f"{manual} lacks {' and '.join(missing)}; get the archives from"
            " https://image-net.org/download-images (it asks for an account) and run this again"
        )
    import tensorflow_datasets as tfds

    settings = tfds.download.DownloadConfig(manual_dir=manual, try_download_gcs=False)
    builder.download_and_prepare(download_config=settings, file_format=imagenet.FILE_FORMAT)
    return pathlib.Path(builder.data_dir)


def _download_and_prepare(source, data_dir):
    _require_tensorflow(source.name)
    import tensorflow_datasets as tfds
    from tensorflow_datasets.core.download import downloader

    downloader.MAX_RETRIES = DOWNLOAD_RETRIES
    builder = tfds.builder(
        source.tfds_name, data_dir=data_dir, file_format=arrays.FILE_FORMAT, try_gcs=False
    )
    settings = tfds.download.DownloadConfig(try_download_gcs=False)
    try:
        builder.download_and_prepare(download_config=settings, file_format=arrays.FILE_FORMAT)
    except (OSError, tfds.download.DownloadError) as error:
        manual = data_dir / "downloads" / "manual"
        raise ValueError(
            f"cannot download {source.name} ({type(error).__name__}); get the original archive from"
            f" {source.origin} into {manual} and run this again"
        ) from error
    return builder
