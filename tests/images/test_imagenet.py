"""Streams of a miniature imagenet2012: order, shares, position, evaluation, errors."""

import contextlib
import functools
import io
import os
import pathlib
import pickle
import shutil
import subprocess
import sys
import tarfile
import time

import jax
import numpy as np
import pytest

from experiments.images.data import load_data
from experiments.images.settings import IMAGENET_DATA
from identity_matters import batches
from identity_matters.images import (
    decoding,
    imagenet,
    miniature,
    preparation,
    streaming,
    views,
)
from tests import forked

for _module in ("tensorflow_datasets", "array_record", "grain", "cv2"):
    pytest.importorskip(_module, reason=f"{_module} is not installed (extra imagenet)")

TRAIN = 26
VALIDATION = 11
PIXELS = 32
QUICK = {"threads": 2, "processes": 0}


@pytest.fixture(scope="module")
def examples():
    """(encoded, label, name) of both splits.

    Labels are positions, so they identify the images.
    """
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
        functools.partial(streaming.stream, **reading),
    )


def take(encoded, count, reading=QUICK, first_step=0, rows=slice(None)) -> list[dict]:
    """`count` batches of a training stream."""
    data = streams(encoded, reading)
    make = functools.partial(batches.train_batch, data, 5, 8, rows)
    with contextlib.closing(data.stream(make, first_step, count)) as stream:
        return [
            {name: np.array(array) for name, array in batch.items()} for batch in stream
        ]


def share(index: int, process_count: int, batch_examples: int) -> slice:
    """The rows of a batch that process `index` makes."""
    size = batch_examples // process_count
    return slice(index * size, (index + 1) * size)


def assert_same(actual, expected):
    jax.tree.map(
        functools.partial(np.testing.assert_array_equal, strict=True), actual, expected
    )


def test_records_are_parsed_as_tensorflow_datasets_does(train, data_dir, examples):
    import tensorflow_datasets as tfds

    source = imagenet.builder(data_dir).as_data_source(
        split="train", decoders={"image": tfds.decode.SkipDecoding()}
    )
    expected = [
        (item["image"], item["label"], item["file_name"].decode()) for item in source
    ]
    assert list(train.read(range(len(train)))) == expected == examples["train"]
    assert list(train.read(np.array([7, 0, 25]))) == [expected[i] for i in (7, 0, 25)]


def test_images_are_the_views_of_their_epoch_and_example(train, examples):
    indices, epochs = batches.batch_plan(5, TRAIN, 8, 3, 1)
    batch = take(train, 1, first_step=3)[0]
    np.testing.assert_array_equal(batch["labels"], indices[0])
    for i, (index, epoch) in enumerate(zip(indices[0], epochs[0], strict=True)):
        image = decoding.decode(examples["train"][index][0], "")
        view = views.draw_view(*image.shape[:2], seed=5, epoch=epoch, example=index)
        expected = np.empty((PIXELS, PIXELS, 3), np.uint8)
        views.train_view(image, view, expected)
        np.testing.assert_array_equal(batch["images"][i], expected)


def test_the_shares_of_all_processes_are_the_batch_of_one(train):
    shares = [take(train, 5, rows=share(index, 4, 8)) for index in range(4)]
    joined = [
        {name: np.concatenate([part[name] for part in step]) for name in step[0]}
        for step in zip(*shares, strict=True)
    ]
    assert_same(joined, take(train, 5))


def test_the_position_is_a_step_number(train):
    whole = take(train, 9)
    position = 4
    one_thread = {"threads": 1, "processes": 0}
    assert_same(take(train, 5, one_thread, first_step=position), whole[4:])


@pytest.mark.parametrize(("process_count", "batch_examples"), [(1, 6), (2, 6), (3, 12)])
def test_evaluation_visits_every_image_once(
    data_dir, examples, process_count, batch_examples
):
    validation = imagenet.EncodedImages(data_dir, "validation")
    shares = []
    for index in range(process_count):
        rows = share(index, process_count, batch_examples)
        data = streams(validation)
        count = -(-VALIDATION // batch_examples)
        make = functools.partial(batches.evaluation_batch, data, batch_examples, rows)
        with contextlib.closing(data.stream(make, 0, count)) as stream:
            shares.append(list(stream))
    assert {len(share) for share in shares} == {-(-VALIDATION // batch_examples)}
    rows = [batch for step in zip(*shares, strict=True) for batch in step]
    images, labels, is_real = (
        np.concatenate([batch[name] for batch in rows])
        for name in ("images", "labels", "is_real")
    )
    assert (
        images.dtype == np.uint8
        and labels.dtype == np.int32
        and is_real.dtype == np.bool_
    )
    assert is_real.tolist() == [True] * VALIDATION + [False] * (
        len(is_real) - VALIDATION
    )
    assert labels[is_real].tolist() == list(range(VALIDATION))
    assert set(labels[~is_real]) <= {VALIDATION - 1}
    expected = np.empty((224, 224, 3), np.uint8)
    for i in range(VALIDATION):
        views.eval_view(
            decoding.decode(examples["validation"][i][0], ""), 256, expected
        )
        np.testing.assert_array_equal(images[i], expected)


def test_a_truncated_image_is_named_and_tells_data_sets_apart(
    train, examples, tmp_path
):
    broken = list(examples["train"])
    broken[9] = (broken[9][0][:-100], 9, "n00000009_9.JPEG")
    miniature.write(tmp_path, {"train": broken})
    encoded = imagenet.EncodedImages(tmp_path, "train")
    with pytest.raises(ValueError, match=r"n00000009_9\.JPEG is truncated"):
        take(encoded, 4)
    # Processes compare these to see whether they have the same data.
    assert encoded.fingerprint() != train.fingerprint()


def test_a_fingerprint_tells_data_by_size_label_and_name_of_every_image():
    class Encoded(list):
        read = staticmethod(lambda places: [encoded[place] for place in places])

    fingerprints = []
    first = (b"abc", 1, "a.JPEG")
    for second in (
        first,
        (b"abcd", *first[1:]),
        (b"abc", 2, "a.JPEG"),
        (b"abc", 1, "b"),
    ):
        encoded = Encoded([first, second])
        fingerprints.append(imagenet.EncodedImages.fingerprint(encoded))
    # Of 1000 equal images, as many are looked at as of 100.
    for count in (100, 1000):
        encoded = Encoded([first] * count)
        fingerprints.append(imagenet.EncodedImages.fingerprint(encoded))
    assert all(fingerprints.count(each) == 1 for each in fingerprints)


def test_a_damaged_file_is_named(examples, tmp_path):
    """Changes four bytes of the second of three files, which holds records 9 to 17."""
    directory = miniature.write(tmp_path, {"train": examples["train"]}, shards=3)
    path = sorted(directory.glob("*.array_record-*"))[1]
    content = bytearray(path.read_bytes())
    first = len(content) // 20
    content[first : first + 4] = bytes(
        255 - byte for byte in content[first : first + 4]
    )
    path.write_bytes(content)
    encoded = imagenet.EncodedImages(tmp_path, "train")
    assert len(list(encoded.read(range(9)))) == 9
    with pytest.raises(
        ValueError, match=rf"{path.name} is damaged: record \d+ of the train"
    ):
        list(encoded.read(range(9, 18)))


_WORKERS = """
import functools, multiprocessing, os, pathlib, pickle, sys
if __name__ == "__main__":
    import jax, numpy as np
    from absl import flags
    from identity_matters.images import imagenet
    from identity_matters import batches
    from tests.images import test_imagenet
    flags.FLAGS.mark_as_parsed()
    encoded = imagenet.EncodedImages(sys.argv[1], "train")
    data = test_imagenet.streams(encoded, {"threads": 1, "processes": 2})
    make_batch = functools.partial(batches.train_batch, data, 5, 8, slice(None))
    stream = data.stream(make_batch, 1, 1000)
    # Copies, which are not in shared memory.
    made = jax.tree.map(np.array, [next(stream) for _ in range(5)])
    pathlib.Path("made").write_bytes(pickle.dumps(made))
    print(*[child.pid for child in multiprocessing.active_children()], flush=True)
    os.kill(os.getpid(), 9)
"""


@pytest.mark.skipif(
    not pathlib.Path("/proc/self").exists(), reason="processes are read in /proc"
)
def test_workers_make_the_same_batches_and_end_with_a_killed_parent(
    train, data_dir, tmp_path
):
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
    assert_same(
        pickle.loads((tmp_path / "made").read_bytes()), take(train, 5, first_step=1)
    )
    assert len(workers) == 2
    deadline = time.monotonic() + 20
    while any(_is_alive(pid) for pid in workers):
        assert time.monotonic() < deadline, f"still there: {workers}"
        time.sleep(0.1)


_WHOLE_STREAM = """
import time
import numpy as np
from absl import flags
from identity_matters.images import streaming

def batch(number):
    return {"images": np.zeros((256, 1024), np.uint8)}

def main():
    flags.FLAGS.mark_as_parsed()
    stream = streaming.stream(batch, 0, 6, threads=1, processes=2)
    print(sum(1 for _ in stream))
    stream.close()
    stream.close()  # does nothing more
    time.sleep(3)  # a thread of grain frees the memory, also on a busy machine

if __name__ == "__main__":
    main()
"""


def test_workers_leave_no_shared_memory_behind(tmp_path):
    program = tmp_path / "whole_stream.py"
    program.write_text(_WHOLE_STREAM)
    done = forked.shell(sys.executable, str(program), PYTHONPATH=str(forked.ROOT))
    assert (done.returncode, done.stdout, done.stderr) == (0, "6\n", "")


def _is_alive(pid: str) -> bool:
    try:
        return (
            pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
            != "Z"
        )
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.parametrize("numbers", [(-1, 0), (1, -1)])
def test_bad_numbers_of_workers_are_refused(numbers):
    workers = dict(zip(("worker_threads", "worker_processes"), numbers, strict=True))
    with pytest.raises(
        ValueError, match=r"at least 0, got {} and {}$".format(*numbers)
    ):
        load_data({**IMAGENET_DATA, **workers})


def test_what_is_not_there_is_named(examples, tmp_path, caplog):
    for empty in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(
            ValueError, match=f"not prepared in {empty}; see: make data"
        ):
            imagenet.EncodedImages(empty, "train")
    assert caplog.messages == []  # by tensorflow_datasets
    miniature.write(tmp_path, {"train": examples["train"]})
    with pytest.raises(ValueError, match="has no validation split"):
        imagenet.EncodedImages(tmp_path, "validation")


def test_a_missing_package_is_named(data_dir, monkeypatch):
    monkeypatch.setattr(imagenet, "_NEEDED", ("grain", "no_such_package"))
    with pytest.raises(
        ValueError,
        match=(
            r"imagenet2012 needs no_such_package; run: pip install"
            r" 'identity-matters\[imagenet\]'"
        ),
    ):
        imagenet.EncodedImages(data_dir, "train")


@pytest.mark.parametrize("label", [-1, imagenet.NUM_CLASSES])
def test_a_label_that_no_class_has_is_refused(examples, train, monkeypatch, label):
    """tensorflow_datasets writes -1 for unknown.

    A loss would take it for the last class.
    """
    from tensorflow_datasets.proto import tf_example_pb2

    record = tf_example_pb2.Example()
    feature = record.features.feature
    feature["image"].bytes_list.value.append(examples["train"][0][0])
    feature["label"].int64_list.value.append(label)
    feature["file_name"].bytes_list.value.append(b"x.JPEG")
    monkeypatch.setattr(train, "_source", [record.SerializeToString()])
    with pytest.raises(
        decoding.DataError,
        match=rf"record 0 .*\(its label is {label}, and labels are 0 to 999",
    ):
        list(train.read([0]))


def test_data_in_tensorflow_datasets_own_format_are_named_and_left_alone(
    data_dir, tmp_path
):
    shutil.copytree(data_dir, tmp_path / "own")
    (info,) = (tmp_path / "own").rglob("dataset_info.json")
    info.write_text(info.read_text().replace("array_record", "tfrecord"))
    said = f"{tmp_path / 'own'} does not hold imagenet2012 as array_record files"
    with pytest.raises(
        ValueError, match=rf"^{said} .*make data DATASETS=imagenet2012 DATA_DIR="
    ):
        imagenet.EncodedImages(tmp_path / "own", "train")


def test_only_too_little_shared_memory_is_reported_as_such_in_one_line():
    class Batches:
        def __init__(self, code):
            self.code = code

        def __next__(self):
            raise RuntimeError(
                f"Worker process was terminated unexpectedly with exit code {self.code}"
            )

    with pytest.raises(
        decoding.DataError, match=r"/dev/shm is too small .*worker_processes=0"
    ):
        next(streaming._Stream(Batches(-7)))
    with pytest.raises(RuntimeError, match="exit code -9"):
        next(streaming._Stream(Batches(-9)))


# The archives of ImageNet, which users get by hand.

SYNSETS = ("n01440764", "n01443537", "n01484850")
IMAGES = [f"ILSVRC2012_val_{number:08d}.JPEG" for number in (1, 2, 3, 4)]


def write_tar(path, names, content=b"x" * 2000):
    with tarfile.open(path, "w") as archive:
        for name in names:
            member = tarfile.TarInfo(name)
            if name.endswith("/"):
                member.type = tarfile.DIRTYPE
                archive.addfile(member)
            else:
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))


@pytest.fixture
def archives(tmp_path):
    train, validation = (tmp_path / name for name in preparation.IMAGENET_ARCHIVES)
    write_tar(train, [f"{synset}.tar" for synset in SYNSETS])
    write_tar(validation, IMAGES)
    preparation.check_archives(tmp_path, SYNSETS, len(IMAGES))
    return tmp_path


@pytest.mark.parametrize(
    ("archive", "names"),
    [
        # tensorflow_datasets would give these labels by their place among the sorted
        # names.
        (
            preparation.IMAGENET_VALIDATION,
            [f"n0144076{i}/{name}" for i, name in enumerate(IMAGES)],
        ),
        (preparation.IMAGENET_VALIDATION, ["val/", *IMAGES]),
        (preparation.IMAGENET_VALIDATION, [f"./{name}" for name in IMAGES]),
        (preparation.IMAGENET_VALIDATION, IMAGES[:-1]),
        (preparation.IMAGENET_VALIDATION, [*IMAGES, IMAGES[0]]),
        (preparation.IMAGENET_VALIDATION, []),
        (preparation.IMAGENET_TRAIN, [f"{synset}/" for synset in SYNSETS]),
        (preparation.IMAGENET_TRAIN, [f"train/{synset}.tar" for synset in SYNSETS]),
        (preparation.IMAGENET_TRAIN, [f"{synset}.tar" for synset in SYNSETS[:-1]]),
    ],
)
def test_a_repacked_archive_is_refused(archives, archive, names):
    write_tar(archives / archive, names)
    with pytest.raises(
        ValueError, match=rf"^{archives / archive} is not the published archive: "
    ):
        preparation.check_archives(archives, SYNSETS, len(IMAGES))


@pytest.mark.parametrize("archive", preparation.IMAGENET_ARCHIVES)
@pytest.mark.parametrize("how", ["cut", "web page", "empty"])
def test_a_damaged_archive_is_refused_at_once(archives, archive, how):
    path = archives / archive
    whole = path.read_bytes()
    path.write_bytes(
        {"cut": whole[:3000], "web page": b"<html>Sign in</html>", "empty": b""}[how]
    )
    with pytest.raises(
        ValueError, match=rf"^{path} is (damaged|not the published archive).*: "
    ):
        preparation.check_archives(archives, SYNSETS, len(IMAGES))


class _Unprepared:
    """The part of a builder that `preparation._prepared_builder` uses.

    What it downloads is damaged.
    """

    data_dir = "somewhere"
    error: Exception = RuntimeError()

    def is_prepared(self):
        return False

    def download_and_prepare(self, **_):
        raise self.error


@pytest.mark.parametrize(
    "error",
    [
        tarfile.ReadError("unexpected end of data"),
        KeyError("x"),
        AssertionError(),
        OSError("no"),
    ],
)
def test_whatever_tensorflow_datasets_raises_one_line_names_the_archive(
    tmp_path, monkeypatch, error
):
    builder = _Unprepared()
    builder.error = error
    monkeypatch.setattr(preparation.importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(imagenet, "builder", lambda data_dir, name: builder)
    with pytest.raises(ValueError) as caught:
        preparation.prepare("cifar10", tmp_path)
    (line,) = str(caught.value).splitlines()
    assert line.startswith(f"cifar10 cannot be prepared ({type(error).__name__}")
    assert (
        "cifar-10-binary.tar.gz is damaged, get the original from Krizhevsky 2009"
        in line
    )
    assert f"into {tmp_path / 'downloads' / 'manual'}" in line


def test_preparing_without_tensorflow_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(preparation.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        ValueError,
        match="preparing imagenet2012 needs tensorflow, which is not installed; ",
    ):
        preparation.prepare("imagenet2012", tmp_path)
