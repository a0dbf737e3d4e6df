"""Small data sets: what they are, how to load a whole split, and how to prepare them.

`digits` comes with scikit-learn. The others are read from a directory that `make data`
fills: DATA_DIR/arrays/NAME/SPLIT/ holds images.npy, labels.npy and manifest.json, with
size and sha256 of both. Reading needs no more; only `prepare` needs
tensorflow_datasets, TensorFlow or the network.
"""

import dataclasses
import hashlib
import importlib.metadata
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
from identity_matters.paths import expand_home

CHUNK_EXAMPLES = 1000  # decoded per call, which is faster than one by one
# tensorflow_datasets' default retries an unreachable host for minutes
DOWNLOAD_RETRIES = 1
# These must be downloaded by hand, behind a login; we require both.
IMAGENET_TRAIN = "ILSVRC2012_img_train.tar"
IMAGENET_VALIDATION = "ILSVRC2012_img_val.tar"
IMAGENET_ARCHIVES = (IMAGENET_TRAIN, IMAGENET_VALIDATION)
IMAGENET_ORIGIN = "https://image-net.org/download-images (it asks for an account)"


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
    **{
        f"cifar{num_classes}": Source(
            name=f"cifar{num_classes}",
            image_shape=(32, 32, 3),
            pixel_max=255,
            num_classes=num_classes,
            splits={"train": 50_000, "test": 10_000},
            tfds_name=f"cifar{num_classes}:3.0.2",
            archive=f"cifar-{num_classes}-binary.tar.gz",
            origin=(
                f"Krizhevsky 2009, https://www.cs.toronto.edu/~kriz/cifar.html{note}"
            ),
        )
        for num_classes, note in ((10, ""), (100, "; fine labels"))
    },
}
NAMES = (*SOURCES, imagenet.NAME)


def find_source(name: str) -> Source:
    """The `Source` called `name`; raises ValueError for an unknown name."""
    if name not in SOURCES:
        raise ValueError(
            f"there is no data set {name!r}; there are {', '.join(SOURCES)}"
        )
    return SOURCES[name]


def split_to_fit(name: str) -> str:
    """The split of all examples, "all", or "train" where a split is published."""
    return "all" if "all" in find_source(name).splits else "train"


def load(
    name: str, split: str, data_dir: str | os.PathLike[str]
) -> tuple[np.ndarray, np.ndarray]:
    """All images and labels of a split in SOURCES.

    Images are uint8[n, height, width, channels], labels int64[n].

    `data_dir` is where `make data` put the data sets; `digits` needs none. Raises
    ValueError for an unknown name or split, data that are not prepared, a damaged file,
    or files of another data set.
    """
    source = find_source(name)
    require_prepared(name, split, data_dir)
    if not source.tfds_name:
        return _check(source, split, *_load_digits(source, split))
    directory = _directory(source, split, data_dir)
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
        return _check(source, split, *arrays)
    except ValueError as error:
        raise ValueError(f"{directory} is of another data set: {error}") from None


def require_prepared(name: str, split: str, data_dir: str | os.PathLike[str]) -> None:
    """Raises ValueError, as `load` does, unless the data are prepared.

    Does not read them.
    """
    source = find_source(name)
    if split not in source.splits:
        raise ValueError(
            f"{name} has no split {split!r}; it has {', '.join(source.splits)}"
        )
    if (
        source.tfds_name
        and not (_directory(source, split, data_dir) / "manifest.json").exists()
    ):
        advice = f"make data DATASETS={name} DATA_DIR={data_dir}"
        raise ValueError(f"{name} is not prepared in {data_dir}; run: {advice}")


def write(
    source: Source,
    split: str,
    data_dir: str | os.PathLike[str],
    images: np.ndarray,
    labels: np.ndarray,
) -> None:
    """Saves a decoded split under `data_dir`.

    The manifest is written last and makes it valid.
    """
    _check(source, split, images, labels)
    directory = _directory(source, split, data_dir)
    directory.mkdir(parents=True, exist_ok=True)
    manifest = {}
    for name, array in (("images.npy", images), ("labels.npy", labels)):
        np.save(directory / name, array)
        manifest[name] = _fingerprint(directory / name)
    runs.write_json(directory / "manifest.json", manifest)


def _directory(source: Source, split: str, data_dir) -> pathlib.Path:
    return pathlib.Path(expand_home(data_dir)) / "arrays" / source.name / split


def _fingerprint(path: pathlib.Path) -> dict:
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256")
    return {"bytes": path.stat().st_size, "sha256": digest.hexdigest()}


def _check(source: Source, split: str, images, labels):
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


def prepare(name: str, data_dir: str | os.PathLike[str]) -> list[pathlib.Path]:
    """Prepares a data set of `NAMES`.

    It is read by `load`, imagenet2012 by `imagenet.EncodedImages`.

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
        builder = _built(name, name, data_dir, IMAGENET_ARCHIVES, IMAGENET_ORIGIN)
        return [pathlib.Path(builder.data_dir)]
    source = find_source(name)
    if not source.tfds_name:
        return []
    directories = [_directory(source, split, data_dir) for split in source.splits]
    if not all((directory / "manifest.json").exists() for directory in directories):
        builder = _built(
            name, source.tfds_name, data_dir, (source.archive,), source.origin
        )
        for split in source.splits:
            try:
                images, labels = decode(source, split, builder)
            except Exception as error:  # of any type, from three libraries
                raise ValueError(
                    f"the files of {name} in {builder.data_dir} cannot be read"
                    f" ({_in_short(error)}); delete that directory and run make data"
                    " again"
                ) from error
            write(source, split, data_dir, images, labels)
    return directories


def _built(
    name: str,
    tfds_name: str,
    data_dir: pathlib.Path,
    archives: tuple[str, ...],
    origin: str,
) -> Any:
    """The prepared builder.

    That of imagenet2012 turns CMYK and PNG files into RGB JPEGs.
    """
    for module in ("tensorflow", "tensorflow_datasets"):
        if importlib.util.find_spec(module) is None:
            advice = f"run: make data DATASETS={name}"
            raise ValueError(
                f"preparing {name} needs {module}, which is not installed; {advice}"
            )
    import tensorflow_datasets as tfds
    from tensorflow_datasets.core.download import downloader

    downloader.MAX_RETRIES = DOWNLOAD_RETRIES
    builder = imagenet.builder(data_dir, tfds_name)
    if builder.is_prepared():
        return builder
    manual = data_dir / "downloads" / "manual"
    again = f"from {origin} into {manual} and run this again"
    if name == imagenet.NAME:
        missing = [archive for archive in archives if not (manual / archive).exists()]
        if missing:
            raise ValueError(
                f"{manual} lacks {' and '.join(missing)}; get them {again}"
            )
        synsets = builder.info.features["label"].names
        check_archives(manual, synsets, imagenet.PUBLISHED_EXAMPLES["validation"])
    settings = tfds.download.DownloadConfig(manual_dir=manual, try_download_gcs=False)
    try:
        builder.download_and_prepare(
            download_config=settings, file_format=imagenet.FILE_FORMAT
        )
    # what a damaged archive raises depends on where it is damaged
    except Exception as error:
        raise ValueError(
            f"{name} cannot be prepared ({_in_short(error)}); if the download failed or"
            f" {' or '.join(archives)} is damaged, get the original {again}"
        ) from error
    return builder


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
                held = members.getnames()
        except (OSError, EOFError, tarfile.TarError) as error:
            raise ValueError(
                f"{path} is damaged ({_in_short(error)}); {advice}"
            ) from None
        if sorted(held) != sorted(names):
            first = min({*held} ^ {*names}, default="one name twice")
            raise ValueError(
                f"{path} is not the published archive: it should hold {len(names)}"
                f" files, {names[0]} to {names[-1]}, holds {len(held)}, and differs at"
                f" {first}; {advice}"
            )


def _in_short(error: Exception) -> str:
    """Type and message of an error of another library, in few words."""
    return textwrap.shorten(f"{type(error).__name__}: {runs.first_line(error)}", 200)
