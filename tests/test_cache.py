"""`arrays.load` from a cache, a copy of the directory that `make data` writes."""

import dataclasses
import shutil
import sys
import time

import numpy as np
import pytest

from identity_matters.data import arrays
from identity_matters.data.sources import SOURCES

SIZES = {"train": 6, "test": 4}


@pytest.fixture
def cache(monkeypatch, tmp_path):
    """A cache of a small CIFAR-10, moved from where it was made; nothing can be imported."""
    for name in ("cifar10", "cifar100"):
        monkeypatch.setitem(SOURCES, name, dataclasses.replace(SOURCES[name], splits=SIZES))
    for module in ("tensorflow", "tensorflow_datasets", "array_record"):
        monkeypatch.setitem(sys.modules, module, None)
    source = SOURCES["cifar10"]
    for split, n in SIZES.items():
        images = np.random.default_rng(n).integers(0, 256, (n, *source.image_shape), np.uint8)
        arrays.write(source, split, tmp_path / "made", images, np.arange(n) * 9 // (n - 1))
    shutil.move(tmp_path / "made" / "arrays" / "cifar10", tmp_path / "cache")
    return tmp_path / "cache"


@pytest.mark.parametrize("split", SIZES)
def test_the_cache_is_all_that_is_needed(cache, split):
    arrays.require_prepared("cifar10", split, "/nowhere", cache)
    images, labels = arrays.load("cifar10", split, "/nowhere", str(cache))
    n = SIZES[split]
    expected = np.random.default_rng(n).integers(0, 256, (n, 32, 32, 3), np.uint8)
    np.testing.assert_array_equal(images, expected)
    assert labels.tolist() == {6: [0, 1, 3, 5, 7, 9], 4: [0, 3, 6, 9]}[n]
    assert labels.dtype == np.int64


def _one_line(call, *arguments) -> str:
    with pytest.raises(ValueError) as error:
        call(*arguments)
    message = str(error.value)
    assert "\n" not in message
    return message


def test_a_cache_without_the_split_is_answered_quickly(cache):
    shutil.rmtree(cache / "test")
    started = time.perf_counter()
    for directory, split in ((cache, "test"), (cache / "nowhere", "train")):
        for call in (arrays.load, arrays.require_prepared):
            # Data prepared in data_dir do not stand in for a cache.
            assert _one_line(call, "cifar10", split, cache.parent, directory) == (
                f"cache {directory} holds no {split} split of cifar10; copy DATA_DIR/arrays/cifar10"
                " there from a machine that ran: make data DATASETS=cifar10"
            )
    assert time.perf_counter() - started < 5


@pytest.mark.parametrize("name", ["images.npy", "labels.npy", "manifest.json"])
def test_a_damaged_cache_is_named(cache, name):
    path = cache / "train" / name
    path.write_bytes(path.read_bytes()[:-3])
    message = _one_line(arrays.load, "cifar10", "train", "/nowhere", cache)
    assert str(path) in message and message.endswith(f"; copy {cache / 'train'} anew")


def test_the_cache_of_another_data_set_is_refused(cache):
    message = _one_line(arrays.load, "cifar100", "train", "/nowhere", cache)
    assert message == (
        f"{cache / 'train'} is of another data set: cifar100 train should hold 6 labels from 0"
        " to 99, got (6,) from 0 to 9"
    )
    shutil.rmtree(cache / "train")
    (cache / "test").rename(cache / "train")
    message = _one_line(arrays.load, "cifar10", "train", "/nowhere", cache)
    assert "should hold uint8[6, 32, 32, 3] images, got uint8[4, 32, 32, 3]" in message


def test_a_cache_that_would_never_be_read_is_refused(cache):
    for call in (arrays.load, arrays.require_prepared):
        message = _one_line(call, "digits", "train", "/nowhere", cache)
        assert message == f"digits comes with scikit-learn: cache must be empty, got {cache}"
