"""Small data sets: what they are, and how to load a whole split.

`digits` comes with scikit-learn. The others are read from a directory that `make data`
fills: DATA_DIR/arrays/NAME/SPLIT/ holds images.npy, labels.npy and manifest.json, with
size and sha256 of both. `preparation` writes them; reading needs no other library.
"""

import dataclasses
import hashlib
import importlib.metadata
import os
import pathlib

import numpy as np

from identity_matters import runs
from identity_matters.images import imagenet
from identity_matters.paths import expand_home


@dataclasses.dataclass(frozen=True)
class Source:
    """A labelled image data set.

    Attributes:
      name: as in settings and in `make data`.
      image_shape: (height, width, channels) of its uint8 images.
      pixel_max: the largest pixel value.
      num_classes: labels are 0 ... num_classes - 1.
      splits: their sizes, as published or as `origin` says; loading checks them.
      tfds_name: its name, with version, in tensorflow_datasets; empty if a package
        contains it.
      archive: the published file, which is downloaded.
      origin: who published it, and where.
    """

    name: str
    image_shape: tuple[int, int, int]
    pixel_max: int
    num_classes: int
    splits: dict[str, int]
    tfds_name: str
    archive: str
    origin: str

    @property
    def comes_with_package(self) -> bool:
        """Whether an installed package contains it, so that nothing is downloaded."""
        return not self.tfds_name


SOURCES = {
    "digits": Source(
        name="digits",
        image_shape=(8, 8, 1),
        pixel_max=16,
        num_classes=10,
        splits={"all": 1797, "train": 1347, "test": 450},
        tfds_name="",
        archive="",
        origin=(
            "the test set of Alpaydin & Kaynak 1998, optical recognition of handwritten"
            " digits (UCI), as scikit-learn carries it, which defines no split; ours:"
            " train is the first 1347 images in its order, test the other 450, all is"
            " both"
        ),
    ),
    "cifar10": Source(
        name="cifar10",
        image_shape=(32, 32, 3),
        pixel_max=255,
        num_classes=10,
        splits={"train": 50_000, "test": 10_000},
        tfds_name="cifar10:3.0.2",
        archive="cifar-10-binary.tar.gz",
        origin="Krizhevsky 2009, https://www.cs.toronto.edu/~kriz/cifar.html",
    ),
    "cifar100": Source(
        name="cifar100",
        image_shape=(32, 32, 3),
        pixel_max=255,
        num_classes=100,
        splits={"train": 50_000, "test": 10_000},
        tfds_name="cifar100:3.0.2",
        archive="cifar-100-binary.tar.gz",
        origin=(
            "Krizhevsky 2009, https://www.cs.toronto.edu/~kriz/cifar.html; fine labels"
        ),
    ),
}
NAMES = (*SOURCES, imagenet.NAME)


def find_source(name: str) -> Source:
    """The `Source` called `name`; raises ValueError for an unknown name."""
    if not isinstance(name, str) or name not in SOURCES:
        raise ValueError(
            f"there is no data set {name!r}; there are {', '.join(SOURCES)}"
        )
    return SOURCES[name]


def split_to_fit(name: str) -> str:
    """The split of all examples, "all", or "train" where a split is published."""
    return "all" if "all" in find_source(name).splits else "train"


def load(
    name: str, split: str, data_dir: str | os.PathLike[str] | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """All images, uint8[n, h, w, c], and labels, int64[n], of a split in SOURCES.

    Args:
      name: of the data set.
      split: one of its splits.
      data_dir: where `make data` put the data sets; `digits` needs none.
    Raises:
      ValueError: an unknown name or split, data that are not prepared, a damaged file,
        files of another data set, or no directory for a data set that needs one.

    >>> images, labels = load("digits", "train")
    >>> images.shape, labels.shape
    ((1347, 8, 8, 1), (1347,))
    """
    source = find_source(name)
    require_prepared(name, split, data_dir)
    if source.comes_with_package:
        return _checked(source, split, *_load_digits(source, split))
    assert data_dir is not None  # or it was refused
    directory = split_directory(source, split, data_dir)
    advice = f"delete {directory} and run make data again"
    try:
        manifest = runs.read_json(directory / "manifest.json")
    except runs.MalformedFileError as error:
        raise ValueError(f"{error}; {advice}") from None
    arrays = []
    for file in ("images.npy", "labels.npy"):
        path = directory / file
        expected = manifest.get(file)
        actual = _fingerprint(path) if path.exists() else "no such file"
        if actual != expected:
            raise ValueError(
                f"{path} is damaged: expected {expected}, found {actual}; {advice}"
            )
        arrays.append(np.load(path, allow_pickle=False))
    try:
        return _checked(source, split, *arrays)
    except ValueError as error:
        raise ValueError(f"{directory} is of another data set: {error}") from None


def require_prepared(
    name: str, split: str, data_dir: str | os.PathLike[str] | None
) -> None:
    """Raises as `load` does unless the split is prepared; reads no images."""
    source = find_source(name)
    if not isinstance(split, str) or split not in source.splits:
        raise ValueError(
            f"{name} has no split {split!r}; it has {', '.join(source.splits)}"
        )
    if source.comes_with_package:
        return
    if data_dir is None:
        raise ValueError(
            f"{name} is read from a directory that make data fills: pass data_dir"
        )
    if not (split_directory(source, split, data_dir) / "manifest.json").exists():
        advice = f"make data DATASETS={name} DATA_DIR={data_dir}"
        raise ValueError(f"{name} is not prepared in {data_dir}; run: {advice}")


def write(
    source: Source,
    split: str,
    data_dir: str | os.PathLike[str],
    images: np.ndarray,
    labels: np.ndarray,
) -> None:
    """Saves a decoded split; the manifest comes last and makes it valid."""
    _checked(source, split, images, labels)
    directory = split_directory(source, split, data_dir)
    directory.mkdir(parents=True, exist_ok=True)
    manifest = {}
    for name, array in (("images.npy", images), ("labels.npy", labels)):
        np.save(directory / name, array)
        manifest[name] = _fingerprint(directory / name)
    runs.write_json(directory / "manifest.json", manifest)


def split_directory(
    source: Source, split: str, data_dir: str | os.PathLike[str]
) -> pathlib.Path:
    """Where the arrays of a split are."""
    return pathlib.Path(expand_home(data_dir)) / "arrays" / source.name / split


def _fingerprint(path: pathlib.Path) -> dict:
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256")
    return {"bytes": path.stat().st_size, "sha256": digest.hexdigest()}


def _checked(source: Source, split: str, images, labels):
    """Returns the arrays; raises ValueError unless they match `source`."""
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
    # Importing scikit-learn takes far longer than reading its file.
    package = importlib.metadata.distribution("scikit-learn")
    path = str(package.locate_file("sklearn/datasets/data/digits.csv.gz"))
    table = np.loadtxt(path, delimiter=",", dtype=np.uint8)
    first = source.splits["train"] if split == "test" else 0
    table = table[first : first + source.splits[split]]
    return table[:, :-1].reshape(-1, *source.image_shape), table[:, -1]
