"""Small data sets as arrays: a whole split in memory, in well under a second.

`digits` comes with scikit-learn. The others are read from a directory that `make data` fills:
DATA_DIR/arrays/NAME/SPLIT/ holds images.npy, labels.npy and manifest.json, which gives size and
sha256 of the two. A directory that tensorflow_datasets has prepared with array_record files will
do as well; the arrays are then decoded once and kept.

DATA_DIR/arrays/NAME can be copied to machines that have nothing else of the data set, not even
tensorflow_datasets: it is a `cache`.
"""

import hashlib
import importlib.util
import os
import pathlib
from typing import Any

import numpy as np

from identity_matters import json_files
from identity_matters.data.sources import Source, find_source

FILE_FORMAT = "array_record"
# Images decoded per call: reading them one by one takes twice as long.
CHUNK_EXAMPLES = 1000
_READ_BYTES = 1 << 20


def load(
    name: str, split: str, data_dir: str | os.PathLike[str], cache: str | os.PathLike[str] = ""
) -> tuple[np.ndarray, np.ndarray]:
    """All images and labels of a split.

    Args:
      name, split: see `sources`.
      data_dir: where `make data` put the data sets; `digits` needs none.
      cache: a copy of DATA_DIR/arrays/NAME. Where it is given the split is read from it alone,
        without a look at `data_dir`.
    Returns:
      uint8[n, height, width, channels] and int64[n].
    Raises:
      ValueError: an unknown name or split; the data set is not prepared in `data_dir` or not in
        `cache`, and how to get it there; a damaged file, and which; another data set's files; a
        `cache` of `digits`, which never reads one.
    """
    source = find_source(name, split)
    if cache:
        return _read_cache(source, split, cache)
    if not source.tfds_name:
        return _check(source, split, *_load_digits(source, split))
    directory = _directory(source, split, data_dir)
    if not (directory / "manifest.json").exists():
        write(source, split, data_dir, *_read_prepared(source, split, data_dir))
    advice = f"delete {directory} and run make data again"
    return _check(source, split, *_read(directory, advice))


def require_prepared(
    name: str, split: str, data_dir: str | os.PathLike[str], cache: str | os.PathLike[str] = ""
) -> None:
    """Raises the ValueError of `load` for data that are not there, without reading any."""
    source = find_source(name, split)
    if cache:
        _find_cache(source, split, cache)
    elif source.tfds_name and not (_directory(source, split, data_dir) / "manifest.json").exists():
        _prepared_builder(source, data_dir)


def write(
    source: Source,
    split: str,
    data_dir: str | os.PathLike[str],
    images: np.ndarray,
    labels: np.ndarray,
) -> None:
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


def _read(directory: pathlib.Path, advice: str):
    try:
        manifest = json_files.read_json(directory / "manifest.json")
    except json_files.MalformedFileError as error:
        raise ValueError(f"{error}; {advice}") from None
    arrays = []
    for name in ("images.npy", "labels.npy"):
        path = directory / name
        found = _fingerprint(path) if path.exists() else "no such file"
        if found != manifest.get(name):
            raise ValueError(
                f"{path} is damaged: expected {manifest.get(name)}, found {found}; {advice}"
            )
        arrays.append(np.load(path, allow_pickle=False))
    return arrays


def _find_cache(source: Source, split: str, cache) -> pathlib.Path:
    if not source.tfds_name:
        raise ValueError(f"{source.name} comes with scikit-learn: cache must be empty, got {cache}")
    directory = pathlib.Path(cache).expanduser() / split
    if not (directory / "manifest.json").exists():
        raise ValueError(
            f"cache {cache} holds no {split} split of {source.name}; copy DATA_DIR/arrays/"
            f"{source.name} there from a machine that ran: make data DATASETS={source.name}"
        )
    return directory


def _read_cache(source: Source, split: str, cache):
    directory = _find_cache(source, split, cache)
    images, labels = _read(directory, advice=f"copy {directory} anew")
    try:
        return _check(source, split, images, labels)
    except ValueError as error:
        raise ValueError(f"{directory} is of another data set: {error}") from None


def _check(source: Source, split: str, images, labels):
    """Returns the arrays; raises ValueError unless they are what `source` says."""
    shape = (source.splits[split], *source.image_shape)
    if images.shape != shape or images.dtype != np.uint8:
        raise ValueError(
            f"{source.name} {split} should hold uint8{list(shape)} images,"
            f" got {images.dtype}{list(images.shape)}"
        )
    # The largest label tells CIFAR-10 from CIFAR-100, whose images have the same shape.
    last = source.num_classes - 1
    if labels.shape != shape[:1] or labels.min() != 0 or labels.max() != last:
        raise ValueError(
            f"{source.name} {split} should hold {shape[0]} labels from 0 to {last},"
            f" got {labels.shape} from {labels.min()} to {labels.max()}"
        )
    return images, labels.astype(np.int64)


def _load_digits(source: Source, split: str):
    # Importing scikit-learn takes 3 s of CPU time, reading its file 6 ms.
    spec = importlib.util.find_spec("sklearn")
    if spec is None or spec.origin is None:
        raise ValueError("digits comes with scikit-learn, which is not installed here")
    package = pathlib.Path(spec.origin).parent
    path = package / "datasets" / "data" / "digits.csv.gz"
    # A row holds the pixels and the label.
    table = np.loadtxt(path, delimiter=",", dtype=np.uint8)
    train_examples = source.splits["train"]
    rows = {
        "all": slice(None),
        "train": slice(train_examples),
        "test": slice(train_examples, None),
    }[split]
    return table[rows, :-1].reshape(-1, *source.image_shape), table[rows, -1]


def _prepared_builder(source: Source, data_dir):
    """The tensorflow_datasets builder of a data set; ValueError where it is not prepared."""
    dataset, version = source.tfds_name.split(":")
    data_dir = pathlib.Path(data_dir).expanduser()
    advice = f"{source.name} is not prepared in {data_dir}; run: make data DATASETS={source.name}"
    # Asking tensorflow_datasets takes seconds, and it cannot be prepared without this file.
    if not (data_dir / dataset / version / "dataset_info.json").exists():
        raise ValueError(advice)
    if importlib.util.find_spec("tensorflow_datasets") is None:
        raise ValueError(
            f"{source.name} lies undecoded in {data_dir}, and tensorflow_datasets is not installed;"
            f" run: make data DATASETS={source.name}"
        )
    import tensorflow_datasets as tfds

    builder = tfds.builder(source.tfds_name, data_dir=data_dir, file_format=FILE_FORMAT)
    if not builder.is_prepared() or builder.info.file_format.value != FILE_FORMAT:
        raise ValueError(f"{advice} ({builder.data_dir} holds no {FILE_FORMAT} files)")
    return builder


def _read_prepared(source: Source, split: str, data_dir):
    return decode(source, split, _prepared_builder(source, data_dir))


def decode(source: Source, split: str, builder: Any) -> tuple[np.ndarray, np.ndarray]:
    """Images and labels of a split of a prepared builder, without TensorFlow."""
    examples = builder.as_data_source(split=split)
    images = np.empty((len(examples), *source.image_shape), np.uint8)
    labels = np.empty(len(examples), np.int64)
    for start in range(0, len(examples), CHUNK_EXAMPLES):
        stop = min(start + CHUNK_EXAMPLES, len(examples))
        for i, example in enumerate(examples.__getitems__(range(start, stop)), start):
            images[i], labels[i] = example["image"], example["label"]
    return images, labels
