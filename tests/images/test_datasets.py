"""Splits in memory, and what is refused.

They are `digits`, the arrays of `make data`, and copies of these.
"""

import dataclasses
import shutil
import sys

import numpy as np
import pytest

from identity_matters.images import datasets, preparation
from identity_matters.images.datasets import SOURCES
from tests.train.test_checkpoint import delete, flip_a_bit, truncate

SMALL = dataclasses.replace(SOURCES["cifar10"], splits={"train": 6, "test": 4})


@pytest.fixture
def small_cifar10(monkeypatch):
    monkeypatch.setitem(SOURCES, "cifar10", SMALL)


def _write(data_dir, split="train"):
    n = SMALL.splits[split]
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (n, *SMALL.image_shape), np.uint8)
    labels = np.arange(n) * 9 // (n - 1)
    datasets.write(SMALL, split, data_dir, images, labels)
    return images, labels


@pytest.mark.slow
def test_digits_are_those_of_scikit_learn_split_in_their_order():
    # seconds, for which every worker would wait
    from sklearn.datasets import load_digits

    published = load_digits()
    (images, labels), train, test = (
        datasets.load("digits", split) for split in ("all", "train", "test")
    )
    assert images.dtype == np.uint8 and labels.dtype == np.int64
    np.testing.assert_array_equal(images[..., 0], published.images)
    np.testing.assert_array_equal(labels, published.target)
    assert (len(train[1]), len(test[1])) == (1347, 450)
    np.testing.assert_array_equal(np.concatenate([train[0], test[0]]), images)
    np.testing.assert_array_equal(np.concatenate([train[1], test[1]]), labels)


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("images.npy", flip_a_bit),
        ("images.npy", truncate),
        ("images.npy", delete),
        ("manifest.json", truncate),
    ],
)
def test_a_damaged_file_is_named(small_cifar10, tmp_path, name, damage):
    _write(tmp_path)
    damage(tmp_path / "arrays" / "cifar10" / "train" / name)
    with pytest.raises(ValueError, match=rf"{name}.*make data"):
        datasets.load("cifar10", "train", tmp_path)


def test_arrays_that_are_not_the_split_are_not_written(tmp_path):
    images, labels = _write(tmp_path / "good")
    for wrong_images, wrong_labels, said in (
        (images.astype(np.float32), labels, r"got float32\[6, 32, 32, 3\]"),
        (images[:5], labels, r"got uint8\[5, 32, 32, 3\]"),
        (images, labels[:5], r"got \(5,\) from 0"),
        (images, np.maximum(labels, 1), "from 1 to 9"),
        (images, labels + 1, "from 1 to 10"),
    ):
        with pytest.raises(ValueError, match=said):
            datasets.write(SMALL, "train", tmp_path / "bad", wrong_images, wrong_labels)
    assert not (tmp_path / "bad").exists()


def test_where_a_data_set_is_must_be_said_unless_it_comes_with_a_package():
    assert datasets.load("digits", "test")[0].shape == (450, 8, 8, 1)
    with pytest.raises(ValueError, match=r"cifar10 is read from .*: pass data_dir"):
        datasets.load("cifar10", "test")


@pytest.mark.parametrize("wrong", ["mnist", ["digits"], None])
def test_what_is_no_name_of_a_data_set_or_split_is_said(wrong):
    with pytest.raises(ValueError, match=r"there is no data set .*; there are digits"):
        datasets.load(wrong, "train")
    with pytest.raises(ValueError, match=r"digits has no split .*; it has all, train"):
        datasets.load("digits", wrong)


def test_prepare_leaves_what_is_there_and_digits_alone(small_cifar10, tmp_path):
    assert preparation.prepare("digits", tmp_path) == []
    _write(tmp_path, "train")
    _write(tmp_path, "test")
    directories = preparation.prepare("cifar10", tmp_path)
    assert [directory.name for directory in directories] == ["train", "test"]


class _Builder(list):
    """The part of a builder of tensorflow_datasets that `preparation.decode` uses.

    As with CIFAR-100, an example has more fields than are wanted.
    """

    def as_data_source(self, split):
        assert split == "train"
        return self

    def __getitems__(self, indices):
        return [
            {
                "coarse_label": np.int64(label + 1),
                "id": f"train_{i}",
                "image": image,
                "label": label,
            }
            for i in indices
            for image, label in [self[i]]
        ]


def test_decoding_in_chunks(monkeypatch, tmp_path):
    # 6 images: a full chunk and a partial one
    monkeypatch.setattr(preparation, "CHUNK_EXAMPLES", 4)
    written = _write(tmp_path)
    builder = _Builder(zip(*written, strict=True))
    for decoded, expected in zip(
        preparation.decode(SMALL, "train", builder), written, strict=True
    ):
        np.testing.assert_array_equal(decoded, expected)


def test_a_copy_of_the_arrays_is_all_that_is_needed(
    small_cifar10, tmp_path, monkeypatch
):
    """The arrays were moved after they were made.

    None of the data libraries is installed.
    """
    for module in ("tensorflow", "tensorflow_datasets", "array_record"):
        monkeypatch.setitem(sys.modules, module, None)
    for split in ("train", "test"):
        expected = _write(tmp_path / "made", split)
        shutil.move(tmp_path / "made" / "arrays", tmp_path / split / "arrays")
        images, labels = datasets.load("cifar10", split, str(tmp_path / split))
        np.testing.assert_array_equal(images, expected[0])
        np.testing.assert_array_equal(labels, expected[1])
        assert labels.dtype == np.int64


def test_the_arrays_of_another_data_set_or_split_are_refused(
    small_cifar10, tmp_path, monkeypatch
):
    sizes = dataclasses.replace(SOURCES["cifar100"], splits=SMALL.splits)
    monkeypatch.setitem(SOURCES, "cifar100", sizes)
    _write(tmp_path, "train")
    _write(tmp_path, "test")
    arrays = tmp_path / "arrays"
    (arrays / "cifar10").rename(arrays / "cifar100")
    with pytest.raises(ValueError) as error:
        datasets.load("cifar100", "train", tmp_path)
    assert (
        str(error.value)
        == f"{arrays / 'cifar100' / 'train'} is of another data set: cifar100 train"
        " should hold 6 labels from 0 to 99, got (6,) from 0 to 9"
    )
    shutil.rmtree(arrays / "cifar100" / "train")
    (arrays / "cifar100" / "test").rename(arrays / "cifar100" / "train")
    with pytest.raises(
        ValueError, match=r"uint8\[6, 32, 32, 3\] images, got uint8\[4, 32, 32, 3\]"
    ):
        datasets.load("cifar100", "train", tmp_path)
