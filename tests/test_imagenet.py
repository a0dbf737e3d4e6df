"""Streams of a miniature imagenet2012: order, shares, position, evaluation, errors."""

import contextlib
import functools
import os
import pathlib
import pickle
import subprocess
import sys
import time

import jax
import numpy as np
import pytest

from experiments.images.train import IMAGENET_DATA, load_data
from identity_matters import batches
from identity_matters.images import datasets, imagenet, miniature
from tests import forked

for _module in ("tensorflow_datasets", "array_record", "grain", "cv2"):
    pytest.importorskip(_module, reason=f"{_module} is not installed (extra imagenet)")

TRAIN, VALIDATION = 26, 11
PIXELS = 32
QUICK = {"threads": 2, "processes": 0}


@pytest.fixture(scope="module")
def examples():
    """(encoded, label, name) of both splits; labels are positions, so they identify the images."""
    images = miniature.generate_jpegs(TRAIN + VALIDATION, seed=0, scale=0.25)
    train = [(image, i, f"n{i:08}_{i}.JPEG") for i, image in enumerate(images[:TRAIN])]
    validation = [(image, i, f"val_{i}.JPEG") for i, image in enumerate(images[TRAIN:])]
    return {"train": train, "validation": validation}


@pytest.fixture(scope="module")
def data_dir(examples, tmp_path_factory):
    directory = tmp_path_factory.mktemp("imagenet")
    miniature.write(directory, examples, shards=3)
    return directory


@pytest.fixture(scope="module")
def train(data_dir):
    return imagenet.EncodedImages(data_dir, "train")


def streams(encoded, reading=QUICK) -> batches.Streams:
    """The streams of a split, for training in small crops and for evaluation."""
    return batches.Streams(
        (PIXELS, PIXELS, 3),
        len(encoded),
        len(encoded),
        functools.partial(imagenet.read_train, encoded, pixels=PIXELS),
        functools.partial(imagenet.read_test, encoded),
        functools.partial(imagenet.stream, **reading),
    )


def take(encoded, count, reading=QUICK, first_step=0, rows=slice(None)) -> list[dict]:
    """`count` batches of a training stream."""
    data = streams(encoded, reading)
    make = functools.partial(batches.train_batch, data, 5, 8, rows)
    with contextlib.closing(data.stream(make, first_step, count)) as stream:
        return [{name: np.array(array) for name, array in batch.items()} for batch in stream]


def share(index: int, process_count: int, batch_examples: int) -> slice:
    """The rows of a batch that process `index` makes."""
    size = batch_examples // process_count
    return slice(index * size, (index + 1) * size)


def assert_same(found, expected):
    jax.tree.map(functools.partial(np.testing.assert_array_equal, strict=True), found, expected)


def test_records_are_parsed_as_tensorflow_datasets_does(train, data_dir, examples):
    import tensorflow_datasets as tfds

    source = imagenet.builder(data_dir).as_data_source(
        split="train", decoders={"image": tfds.decode.SkipDecoding()}
    )
    expected = [(item["image"], item["label"], item["file_name"].decode()) for item in source]
    assert list(train.read(range(len(train)))) == expected == examples["train"]
    assert list(train.read(np.array([7, 0, 25]))) == [expected[i] for i in (7, 0, 25)]


def test_images_are_the_views_of_their_epoch_and_example(train, examples):
    indices, epochs = batches.batch_plan(5, TRAIN, 8, 3, 1)
    batch = take(train, 1, first_step=3)[0]
    np.testing.assert_array_equal(batch["labels"], indices[0])
    for i, (index, epoch) in enumerate(zip(indices[0], epochs[0], strict=True)):
        image = imagenet.decode(examples["train"][index][0], "")
        view = imagenet.draw_view(*image.shape[:2], seed=5, epoch=epoch, example=index)
        expected = np.empty((PIXELS, PIXELS, 3), np.uint8)
        imagenet.train_view(image, view, expected)
        np.testing.assert_array_equal(batch["images"][i], expected)


def test_the_shares_of_all_processes_are_the_batch_of_one(train):
    shares = [take(train, 5, rows=share(index, 4, 8)) for index in range(4)]
    joined = [
        {name: np.concatenate([one[name] for one in step]) for name in step[0]}
        for step in zip(*shares, strict=True)
    ]
    assert_same(joined, take(train, 5))


def test_the_position_is_a_step_number(train):
    whole, position = take(train, 9), 4
    one_thread = {"threads": 1, "processes": 0}
    assert_same(take(train, 5, one_thread, first_step=position), whole[4:])


@pytest.mark.parametrize(("process_count", "batch_examples"), [(1, 6), (2, 6), (3, 12)])
def test_evaluation_visits_every_image_once(data_dir, examples, process_count, batch_examples):
    validation, shares = imagenet.EncodedImages(data_dir, "validation"), []
    for index in range(process_count):
        rows = share(index, process_count, batch_examples)
        data, count = streams(validation), -(-VALIDATION // batch_examples)
        make = functools.partial(batches.evaluation_batch, data, batch_examples, rows)
        with contextlib.closing(data.stream(make, 0, count)) as stream:
            shares.append(list(stream))
    assert {len(share) for share in shares} == {-(-VALIDATION // batch_examples)}
    rows = [batch for step in zip(*shares, strict=True) for batch in step]
    images, labels, is_real = (
        np.concatenate([batch[name] for batch in rows]) for name in ("images", "labels", "is_real")
    )
    assert images.dtype == np.uint8 and labels.dtype == np.int32 and is_real.dtype == np.bool_
    assert is_real.tolist() == [True] * VALIDATION + [False] * (len(is_real) - VALIDATION)
    assert labels[is_real].tolist() == list(range(VALIDATION))
    assert set(labels[~is_real]) <= {VALIDATION - 1}
    expected = np.empty((224, 224, 3), np.uint8)
    for i in range(VALIDATION):
        imagenet.eval_view(imagenet.decode(examples["validation"][i][0], ""), 256, expected)
        np.testing.assert_array_equal(images[i], expected)


def test_a_truncated_image_is_named_and_tells_data_sets_apart(train, examples, tmp_path):
    broken = list(examples["train"])
    broken[9] = (broken[9][0][:-100], 9, "n00000009_9.JPEG")
    miniature.write(tmp_path, {"train": broken})
    encoded = imagenet.EncodedImages(tmp_path, "train")
    with pytest.raises(ValueError, match=r"n00000009_9\.JPEG is truncated"):
        take(encoded, 4)
    # Processes compare these to see whether they have the same data.
    assert encoded.fingerprint() != train.fingerprint()


def test_a_damaged_file_is_named(examples, tmp_path):
    """Changes four bytes of the second of three files, which holds records 9 to 17."""
    directory = miniature.write(tmp_path, {"train": examples["train"]}, shards=3)
    path = sorted(directory.glob("*.array_record-*"))[1]
    content = bytearray(path.read_bytes())
    first = len(content) // 20
    content[first : first + 4] = bytes(255 - byte for byte in content[first : first + 4])
    path.write_bytes(content)
    encoded = imagenet.EncodedImages(tmp_path, "train")
    assert len(list(encoded.read(range(9)))) == 9
    with pytest.raises(ValueError, match=rf"{path.name} is damaged: record \d+ of the train"):
        list(encoded.read(range(9, 18)))


_WORKERS = """
import functools, multiprocessing, os, pathlib, pickle, sys
if __name__ == "__main__":
    import jax, numpy as np
    from absl import flags
    from identity_matters.images import imagenet
    from identity_matters import batches
    from tests import test_imagenet
    flags.FLAGS.mark_as_parsed()
    encoded = imagenet.EncodedImages(sys.argv[1], "train")
    data = test_imagenet.streams(encoded, {"threads": 1, "processes": 2})
    stream = data.stream(functools.partial(batches.train_batch, data, 5, 8, slice(None)), 1, 1000)
    made = jax.tree.map(np.array, [next(stream) for _ in range(5)])  # not in shared memory
    pathlib.Path("made").write_bytes(pickle.dumps(made))
    print(*[child.pid for child in multiprocessing.active_children()], flush=True)
    os.kill(os.getpid(), 9)
"""


@pytest.mark.skipif(not pathlib.Path("/proc/self").exists(), reason="processes are read in /proc")
def test_workers_make_the_same_batches_and_end_with_a_killed_parent(train, data_dir, tmp_path):
    program = tmp_path / "workers.py"
    program.write_text(_WORKERS)
    # Not through a pipe: the workers would keep it open.
    with open(tmp_path / "out", "w") as out:
        done = subprocess.run(
            [sys.executable, str(program), str(data_dir)],
            env={**os.environ, "PYTHONPATH": str(forked.ROOT)},
            cwd=tmp_path,
            stdout=out,
            timeout=120,
        )
    assert done.returncode == -9
    workers = (tmp_path / "out").read_text().split()
    assert_same(pickle.loads((tmp_path / "made").read_bytes()), take(train, 5, first_step=1))
    assert len(workers) == 2
    deadline = time.monotonic() + 20
    while any(_is_alive(pid) for pid in workers):
        assert time.monotonic() < deadline, f"still there: {workers}"
        time.sleep(0.1)


def _is_alive(pid: str) -> bool:
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.parametrize("numbers", [(-1, 0), (1, -1)])
def test_bad_numbers_of_workers_are_refused(numbers):
    workers = dict(zip(("worker_threads", "worker_processes"), numbers, strict=True))
    with pytest.raises(ValueError, match=r"at least 0, got {} and {}$".format(*numbers)):
        load_data({**IMAGENET_DATA, **workers})


def test_what_is_not_there_is_named(examples, tmp_path):
    for empty in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(ValueError, match=f"not prepared in {empty}; see: make data"):
            imagenet.EncodedImages(empty, "train")
    miniature.write(tmp_path, {"train": examples["train"]})
    with pytest.raises(ValueError, match="has no validation split"):
        imagenet.EncodedImages(tmp_path, "validation")


def test_a_missing_package_is_named(data_dir, monkeypatch):
    monkeypatch.setattr(imagenet, "_NEEDED", ("grain", "no_such_package"))
    with pytest.raises(ValueError, match="imagenet2012 needs no_such_package; run: pip install"):
        imagenet.EncodedImages(data_dir, "train")


def test_preparing_without_tensorflow_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match="preparing imagenet2012 needs tensorflow, which is not"):
        datasets.prepare("imagenet2012", tmp_path)
