"""The pre-resized copy: same examples at the same places, smaller images, no half copies."""

import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

from identity_matters import json_files
from identity_matters.data import imagenet, jpeg, miniature, resize
from identity_matters.data.stream import Reading

for _module in ("tensorflow_datasets", "array_record", "grain", "cv2"):
    pytest.importorskip(_module, reason=f"{_module} is not installed (extra imagenet)")

ROOT = pathlib.Path(__file__).resolve().parent.parent
PIXELS = 64


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A miniature with images of shorter sides above and below `PIXELS`."""
    directory = tmp_path_factory.mktemp("source")
    images = [
        *miniature.generate_jpegs(7, 0, scale=0.4),
        *miniature.generate_jpegs(3, 1, scale=0.1),
    ]
    examples = [(image, i, f"n0_{i}.JPEG") for i, image in enumerate(images)]
    miniature.write(directory, {"train": examples, "validation": examples[4:]}, shards=2)
    return directory


def copy(source, target, **options):
    settings = {"shorter_side_pixels": PIXELS, "processes": 1, **options}
    return resize.resize(source, target, **settings)


def test_the_copy_has_the_same_examples_with_smaller_images(source, tmp_path):
    assert copy(source, tmp_path) == tmp_path / "imagenet2012" / "5.1.0"
    for split, count in (("train", 10), ("validation", 6)):
        original = imagenet.EncodedImages(source, split)
        resized = imagenet.EncodedImages(tmp_path, split)
        assert len(resized) == len(original) == count
        everything = range(count)
        pairs = zip(original.read(everything), resized.read(everything), strict=True)
        for (before, *labels), (after, *same_labels) in pairs:
            assert labels == same_labels
            image = jpeg.decode(before, "before")
            if min(image.shape[:2]) <= PIXELS:
                assert after == before
                continue
            small = jpeg.decode(after, "after")
            expected = jpeg.resize_shorter_side(image, PIXELS)
            assert min(small.shape[:2]) == PIXELS and small.shape == expected.shape
            # What JPEG at quality 95 loses of noisy colours.
            assert np.abs(small.astype(int) - expected).mean() < 6


def test_a_stream_of_the_copy_has_the_same_labels(source, tmp_path):
    copy(source, tmp_path)
    reading = Reading(worker_threads=1, worker_processes=0, prefetch_batches=1)
    labels = []
    for directory in (source, tmp_path):
        encoded = imagenet.EncodedImages(directory, "train")
        with imagenet.train_stream(
            encoded, reading, seed=0, batch_examples=4, first_step=2, steps=5, pixels=32
        ) as stream:
            labels.append(np.concatenate([batch["labels"] for batch in stream]).tolist())
    assert labels[0] == labels[1]


def test_an_interrupted_copy_goes_on_and_is_not_taken_for_a_whole_one(
    source, tmp_path, monkeypatch
):
    work = resize.resize_shard
    made = []

    def dies_at_the_third(source, *arguments):
        if len(made) == 2:
            raise KeyboardInterrupt
        made.append(source.name)
        work(source, *arguments)

    monkeypatch.setattr(resize, "resize_shard", dies_at_the_third)
    with pytest.raises(KeyboardInterrupt):
        copy(source, tmp_path)
    with pytest.raises(ValueError, match="is not prepared"):
        imagenet.EncodedImages(tmp_path, "train")
    with pytest.raises(ValueError, match="is a copy with other settings"):
        copy(source, tmp_path, shorter_side_pixels=PIXELS + 1)
    first = list(made)
    made.clear()
    progress = []
    copy(source, tmp_path, progress=lambda done, files: progress.append((done, files)))
    assert len(first) == len(made) == 2 and not set(first) & set(made)
    assert progress == [(2, 4), (3, 4), (4, 4)]
    assert len(imagenet.EncodedImages(tmp_path, "train")) == 10
    assert not list(tmp_path.rglob("*.tmp"))


def test_the_description_is_of_the_copy(source, tmp_path):
    directory = copy(source, tmp_path)
    info = json_files.read_json(directory / "dataset_info.json")
    for split in info["splits"]:
        files = directory.glob(f"imagenet2012-{split['name']}.array_record-*")
        assert int(split["numBytes"]) == sum(file.stat().st_size for file in files) > 0
    assert json_files.read_json(directory / "resized.json")["shorter_side_pixels"] == PIXELS


@pytest.mark.parametrize("processes", [1, 2])
def test_a_truncated_image_is_named_and_leaves_no_copy(tmp_path, processes):
    images = miniature.generate_jpegs(2, 0, scale=0.4)
    examples = [(images[0], 0, "n0_0.JPEG"), (images[1][:-9], 1, "n0_1.JPEG")]
    miniature.write(tmp_path / "source", {"train": examples})
    with pytest.raises(ValueError, match=r"n0_1\.JPEG is truncated"):
        copy(tmp_path / "source", tmp_path / "target", processes=processes)
    with pytest.raises(ValueError, match="is not prepared"):
        imagenet.EncodedImages(tmp_path / "target", "train")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"processes": 0}, "processes must be at least 1, got 0"),
        ({"jpeg_quality": 101}, "jpeg_quality from 1 to 100, got 64 and 101"),
        ({"shorter_side_pixels": 0}, "shorter_side_pixels must be at least 1 .* got 0 and 95"),
    ],
)
def test_bad_settings_are_refused(source, tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        copy(source, tmp_path / "target", **options)
    assert not (tmp_path / "target").exists()


def test_other_places_are_refused(source, tmp_path):
    with pytest.raises(ValueError, match="must differ"):
        copy(source, source)
    with pytest.raises(ValueError, match=f"not prepared in {tmp_path / 'nowhere'}"):
        copy(tmp_path / "nowhere", tmp_path / "target")
    miniature.write(tmp_path, {"train": [(miniature.generate_jpegs(1, 0)[0], 0, "x")]}, shards=1)
    with pytest.raises(ValueError, match="holds something else"):
        copy(source, tmp_path)


def test_the_command_makes_a_copy_and_names_what_is_wrong(source, tmp_path):
    def run(*flags):
        command = [sys.executable, "-m", "experiments.prepare_imagenet_256", *flags]
        environment = {**os.environ, "PYTHONWARNINGS": "default"}
        return subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, env=environment, timeout=120
        )

    target = f"--target_dir={tmp_path}"
    done = run(f"--source_dir={source}", target, "--shorter_side_pixels=64", "--processes=2")
    assert done.returncode == 0, done.stderr
    assert "4 of 4 files" in done.stdout and "the copy is complete" in done.stdout
    assert len(imagenet.EncodedImages(tmp_path, "validation")) == 6
    wrong = run("--source_dir=/nowhere", target)
    assert wrong.returncode == 2
    assert wrong.stderr.splitlines()[-1].startswith(
        "prepare_imagenet_256: imagenet2012 is not prepared in /nowhere"
    )
