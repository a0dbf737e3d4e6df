"""Downloads and decodes a data set with tensorflow_datasets; needs TensorFlow, once."""

import importlib.util
import os
import pathlib

from identity_matters.data import arrays
from identity_matters.data.sources import find_source

# tensorflow_datasets asks a dead host for minutes by default.
DOWNLOAD_RETRIES = 1


def prepare(name: str, data_dir: str | os.PathLike[str]) -> list[pathlib.Path]:
    """Makes data set `name` ready for `arrays.load`.

    Without access to its host, put the original archive into DATA_DIR/downloads/manual/ first.

    Args:
      name: see `sources`; `digits` needs no preparation.
      data_dir: where tensorflow_datasets keeps its data sets.
    Returns:
      the directories of the decoded splits.
    Raises:
      ValueError: an unknown name, TensorFlow is missing, or the download fails.
    """
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


def _download_and_prepare(source, data_dir):
    for module in ("tensorflow", "tensorflow_datasets"):
        if importlib.util.find_spec(module) is None:
            raise ValueError(
                f"preparing {source.name} needs {module}, which is not installed;"
                " run: make data DATASETS=" + source.name
            )
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
