"""Small data sets as arrays: a whole split in memory, in well under a second.

`digits` comes with scikit-learn. The others are read from a directory that `make data` fills:
DATA_DIR/arrays/NAME/SPLIT/ holds images.npy, labels.npy and manifest.json, which gives size and
sha256 of the two. A directory that tensorflow_datasets has prepared with array_record files will
do as well; the arrays are then decoded once and kept.
"""

import hashlib
import os
import pathlib

import numpy as np

from identity_matters import json_files
from identity_matters.data.sources import Source, find_source

FILE_FORMAT = "array_record"
# Images decoded per call: reading them one by one takes twice as long.
CHUNK_EXAMPLES = 1000
_READ_BYTES = 1 << 20


def load(name: str, split: str, data_dir) -> tuple[np.ndarray, np.ndarray]:
    """All images and labels of a split.

    Args:
      name, split: see `sources`.
      data_dir: where `make data` put the data sets; `digits` needs none.
    Returns:
      uint8[n, height, width, channels] and int64[n].
    Raises:
      ValueError: an unknown name or split; the data set is not prepared in `data_dir`, and how to
        prepare it; a damaged file, and which.
    """
    source = find_source(name, split)
    if not source.tfds_name:
        return _check(source, split, *_load_digits())
    directory = _directory(source, split, data_dir)
    if not (directory / "manifest.json").exists():
        write(source, split, data_dir, *_read_prepared(source, split, data_dir))
    return _check(source, split, *_read(directory))


def require_prepared(name: str, split: str, data_dir) -> None:
    """Raises the ValueError of `load` for data that are not there, without reading any."""
    source = find_source(name, split)
    if source.tfds_name and not (_directory(source, split, data_dir) / "manifest.json").exists():
        _prepared_builder(source, data_dir)


def write(source: Source, split: str, data_dir, images, labels) -> None:
    """Keeps a decoded split below `data_dir`; the manifest comes last and makes it valid."""
    _check(source, split, images, labels)
    directory = _directory(source, split, data_dir)
    directory.mkdir(parents=True, exist_ok=True)
    manifest = {}
    for name, array in (("images.npy", images), ("labels.npy", labels)):
        temporary = directory / f".{name}.{os.getpid()}.tmp"
        with open(temporary, "wb") as file:
            np.save(file, array)
        manifest[name] = _fingerprint(temporary)
        os.replace(temporary, directory / name)
    json_files.write_json(directory / "manifest.json", manifest)


def _directory(source: Source, split: str, data_dir) -> pathlib.Path:
    return pathlib.Path(data_dir).expanduser() / "arrays" / source.name / split


def _fingerprint(path: pathlib.Path) -> dict:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(_READ_BYTES):
            digest.update(block)
    return {"bytes": path.stat().st_size, "sha256": digest.hexdigest()}


def _read(directory: pathlib.Path):
    try:
        manifest = json_files.read_json(directory / "manifest.json")
    except json_files.MalformedFileError as error:
        raise ValueError(f"{error}; delete {directory} and run make data again") from None
    arrays = []
    for name in ("images.npy", "labels.npy"):
        path = directory / name
        found = _fingerprint(path) if path.exists() else "no such file"
        if found != manifest.get(name):
            raise ValueError(
                f"{path} is damaged: expected {manifest.get(name)}, found {found};"
                f" delete {directory} and run make data again"
            )
        arrays.append(np.load(path, allow_pickle=False))
    return arrays


def _check(source: Source, split: str, images, labels):
    """Returns the arrays; raises ValueError unless they are what `source` says."""
    shape = (source.splits[split], *source.image_shape)
    if images.shape != shape or images.dtype != np.uint8:
        raise ValueError(
            f"{source.name} {split} should hold uint8{list(shape)} images,"
            f" got {images.dtype}{list(images.shape)}"
        )
    if labels.shape != shape[:1] or labels.min() < 0 or labels.max() >= source.num_classes:
        raise ValueError(
            f"{source.name} {split} should hold {shape[0]} labels below {source.num_classes}, got"
            f" {labels.shape} from {labels.min()} to {labels.max()}"
        )
    return images, labels.astype(np.int64)


def _load_digits():
    from sklearn.datasets import load_digits

    digits = load_digits()
    return digits.images.astype(np.uint8)[..., None], digits.target


def _prepared_builder(source: Source, data_dir):
    """The tensorflow_datasets builder of a data set; ValueError where it is not prepared."""
    dataset, version = source.tfds_name.split(":")
    data_dir = pathlib.Path(data_dir).expanduser()
    advice = f"{source.name} is not prepared in {data_dir}; run: make data DATASETS={source.name}"
    # Asking tensorflow_datasets takes seconds, and it cannot be prepared without this file.
    if not (data_dir / dataset / version / "dataset_info.json").exists():
        raise ValueError(advice)
    import tensorflow_datasets as tfds

    builder = tfds.builder(source.tfds_name, data_dir=data_dir, file_format=FILE_FORMAT)
    if not builder.is_prepared() or builder.info.file_format.value != FILE_FORMAT:
        raise ValueError(f"{advice} ({builder.data_dir} holds no {FILE_FORMAT} files)")
    return builder


def _read_prepared(source: Source, split: str, data_dir):
    return decode(source, split, _prepared_builder(source, data_dir))


def decode(source: Source, split: str, builder) -> tuple[np.ndarray, np.ndarray]:
    """Images and labels of a split of a prepared builder, without TensorFlow."""
    examples = builder.as_data_source(split=split)
    images = np.empty((len(examples), *source.image_shape), np.uint8)
    labels = np.empty(len(examples), np.int64)
    for start in range(0, len(examples), CHUNK_EXAMPLES):
        stop = min(start + CHUNK_EXAMPLES, len(examples))
        for i, example in enumerate(examples.__getitems__(range(start, stop)), start):
            images[i], labels[i] = example["image"], example["label"]
    return images, labels
