"""One frozen record for each data set: its size, its classes and where it comes from."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Source:
    """A labelled image data set.

    Attributes:
      name: as settings and `make data` name it.
      image_shape: (height, width, channels) of its uint8 images.
      pixel_max: the largest pixel value.
      num_classes: labels are 0 ... num_classes - 1.
      splits: examples of each split, as published unless `origin` says otherwise; loading checks
        them.
      tfds_name: its name, with version, in tensorflow_datasets; empty if it comes with a package.
      origin: who published it, and where.
    """

    name: str
    image_shape: tuple[int, int, int]
    pixel_max: int
    num_classes: int
    splits: dict[str, int]
    tfds_name: str
    origin: str


_SOURCES = (
    Source(
        name="digits",
        image_shape=(8, 8, 1),
        pixel_max=16,
        num_classes=10,
        splits={"all": 1797, "train": 1347, "test": 450},
        tfds_name="",
        origin="the test set of Alpaydin & Kaynak 1998, optical recognition of handwritten digits"
        " (UCI), as scikit-learn carries it, which defines no split; ours: train is the first 1347"
        " images in its order, test the other 450, all is both",
    ),
    Source(
        name="cifar10",
        image_shape=(32, 32, 3),
        pixel_max=255,
        num_classes=10,
        splits={"train": 50_000, "test": 10_000},
        tfds_name="cifar10:3.0.2",
        origin="Krizhevsky 2009, https://www.cs.toronto.edu/~kriz/cifar.html",
    ),
    Source(
        name="cifar100",
        image_shape=(32, 32, 3),
        pixel_max=255,
        num_classes=100,
        splits={"train": 50_000, "test": 10_000},
        tfds_name="cifar100:3.0.2",
        origin="Krizhevsky 2009, https://www.cs.toronto.edu/~kriz/cifar.html; fine labels",
    ),
)

SOURCES = {source.name: source for source in _SOURCES}


def find_source(name: str, split: str | None = None) -> Source:
    """The record of data set `name`; raises ValueError for an unknown name or split."""
    if name not in SOURCES:
        raise ValueError(f"there is no data set {name!r}; there are {', '.join(SOURCES)}")
    source = SOURCES[name]
    if split is not None and split not in source.splits:
        raise ValueError(f"{name} has the splits {', '.join(source.splits)}, not {split!r}")
    return source
