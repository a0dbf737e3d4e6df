import dataclasses
import subprocess
import sys
import time

import numpy as np
import pytest

from identity_matters.data import arrays, prepare
from identity_matters.data.sources import SOURCES

SMALL = dataclasses.replace(SOURCES["cifar10"], splits={"train": 6, "test": 4})


@pytest.fixture
def small_cifar10(monkeypatch):
    monkeypatch.setitem(SOURCES, "cifar10", SMALL)


def _write(data_dir, split="train"):
    n = SMALL.splits[split]
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (n, *SMALL.image_shape), np.uint8)
    labels = rng.integers(0, 10, n)
    arrays.write(SMALL, split, data_dir, images, labels)
    return images, labels


def test_digits_come_with_scikit_learn():
    images, labels = arrays.load("digits", "train", data_dir="/nowhere")
    assert images.shape == (1797, 8, 8, 1) and images.dtype == np.uint8 and images.max() == 16
    # As published: 178 zeros, 182 ones, ... 180 nines.
    assert np.bincount(labels).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]


def test_what_was_written_is_read(small_cifar10, tmp_path):
    images, labels = _write(tmp_path)
    read_images, read_labels = arrays.load("cifar10", "train", tmp_path)
    np.testing.assert_array_equal(read_images, images)
    np.testing.assert_array_equal(read_labels, labels)
    assert read_labels.dtype == np.int64
    arrays.require_prepared("cifar10", "train", tmp_path)


@pytest.mark.parametrize("damage", ["flip", "truncate", "delete", "manifest"])
def test_a_damaged_file_is_named(small_cifar10, tmp_path, damage):
    _write(tmp_path)
    directory = tmp_path / "arrays" / "cifar10" / "train"
    path = directory / ("manifest.json" if damage == "manifest" else "images.npy")
    content = bytearray(path.read_bytes())
    if damage == "flip":
        content[-1] ^= 1
    elif damage in ("truncate", "manifest"):
        del content[-5:]
    path.write_bytes(content)
    if damage == "delete":
        path.unlink()
    with pytest.raises(ValueError, match=rf"{path.name}.*make data"):
        arrays.load("cifar10", "train", tmp_path)


def test_wrong_arrays_are_not_kept(tmp_path):
    images, labels = _write(tmp_path)
    with pytest.raises(ValueError, match=r"uint8\[6, 32, 32, 3\] images, got uint8\[5, 32"):
        arrays.write(SMALL, "train", tmp_path, images[:5], labels)
    with pytest.raises(ValueError, match=r"6 labels below 10, got \(6,\) from 10 to 10"):
        arrays.write(SMALL, "train", tmp_path, images, np.full(6, 10))


def test_unprepared_data_are_answered_quickly_with_what_to_run(tmp_path):
    started = time.perf_counter()
    for check in (arrays.load, arrays.require_prepared):
        with pytest.raises(ValueError) as error:
            check("cifar10", "train", tmp_path)
        expected = f"cifar10 is not prepared in {tmp_path}; run: make data DATASETS=cifar10"
        assert str(error.value) == expected
    assert time.perf_counter() - started < 5
    assert list(tmp_path.iterdir()) == []


def test_prepare_leaves_what_is_there_and_digits_alone(small_cifar10, tmp_path):
    assert prepare.prepare("digits", tmp_path) == []
    _write(tmp_path, "train")
    _write(tmp_path, "test")
    directories = prepare.prepare("cifar10", tmp_path)
    assert [directory.name for directory in directories] == ["train", "test"]
    assert arrays.load("cifar10", "test", tmp_path)[0].shape == (4, 32, 32, 3)


class _Builder:
    """What `arrays.decode` asks of a prepared tensorflow_datasets builder."""

    def __init__(self, images, labels):
        self._rows = list(zip(images, labels, strict=True))

    def as_data_source(self, split):
        assert split == "train"
        return self

    def __len__(self):
        return len(self._rows)

    def __getitems__(self, indices):
        return [dict(zip(("image", "label"), self._rows[i], strict=True)) for i in indices]


def test_decoding_in_chunks(monkeypatch, tmp_path):
    monkeypatch.setattr(arrays, "CHUNK_EXAMPLES", 4)  # 6 images: a full chunk and a partial one
    images, labels = _write(tmp_path)
    decoded_images, decoded_labels = arrays.decode(SMALL, "train", _Builder(images, labels))
    np.testing.assert_array_equal(decoded_images, images)
    np.testing.assert_array_equal(decoded_labels, labels)


def test_a_prepared_directory_is_decoded_once(small_cifar10, monkeypatch, tmp_path):
    images, labels = _write(tmp_path / "elsewhere")
    builder = _Builder(images, labels)
    monkeypatch.setattr(arrays, "_prepared_builder", lambda source, data_dir: builder)
    for _ in range(2):
        np.testing.assert_array_equal(arrays.load("cifar10", "train", tmp_path)[0], images)
        monkeypatch.delattr(_Builder, "__getitems__", raising=False)


def test_preparing_without_tensorflow_says_so(monkeypatch, tmp_path):
    monkeypatch.setattr(prepare.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match="preparing cifar10 needs tensorflow"):
        prepare.prepare("cifar10", tmp_path)


def test_the_entry_point_answers_bad_names_with_one_line(tmp_path):
    command = [sys.executable, "-m", "experiments.prepare_data", f"--data_dir={tmp_path}"]
    for datasets, message in (("", "name some of digits"), ("mnist", "no data set 'mnist'")):
        done = subprocess.run(
            [*command, f"--datasets={datasets}"], capture_output=True, text=True, check=False
        )
        assert done.returncode == 2 and message in done.stderr
        assert len(done.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []
