"""ImageNet input: images per second per core, compared with a bare decoder.

The pipeline does what a training needs: records from disk, decoding, random resized
crop 224 and flip, whole batches in order. The bare decoder has its images in memory and
its crops drawn beforehand; it decodes, crops, resizes and (for half of the images)
mirrors with the same OpenCV calls, in one thread per core. The two take turns in every
round, and their medians are compared. Then a training is simulated whose steps take a
little longer than their batches. Goals: at least 80 % of the bare decoder's rate in
training and evaluation, on one core and on all, and at most 5 % of the time spent
waiting for input.

Command: python -m benchmarks.input_pipeline --config.data_dir=DIRECTORY
Without data_dir, JPEGs of ImageNet's usual size are generated. Needs the extra
imagenet.
Hardware: any. Time: one to two minutes.
"""

import concurrent.futures
import contextlib
import functools
import os
import pathlib
import statistics
import sys
import tempfile
import time
import types
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from benchmarks import shared
from experiments import run
from experiments.run.settings import configs
from experiments.run.trials import grid, without
from identity_matters import limits
from identity_matters.images import imagenet, miniature, streaming, views

VARIANTS = ("imagenet",)
_SETTINGS = {
    # A directory with a prepared imagenet2012; "" generates a miniature.
    "data_dir": "",
    # Images of the miniature, at most 64 of them distinct; not used with a data_dir.
    "images": 256,
    "cores": (1, 0),  # 0: all
    "batch_examples": 64,
    "batches_per_round": 8,
    "rounds": 5,
    # Duration of a simulated accelerator step, relative to the pipeline's time per
    # batch.
    "step_over_batch_seconds": 1.25,
    "least_share_of_decoder_percent": 80.0,  # goal
    "most_wait_percent": 5.0,  # goal
}
get_config = configs({"imagenet": _SETTINGS})


def trials(*, variant, data_dir, cores, **settings) -> list[dict]:
    """One trial per kind of stream and number of cores."""
    available = limits.usable_cores()
    counts = sorted({count or available for count in cores})
    if not counts or counts[0] < 1 or counts[-1] > available:
        raise ValueError(f"cores must be from 0 (all) to {available} here, got {cores}")
    imagenet.require_packages()
    if data_dir:
        imagenet.EncodedImages(data_dir, "train")
    size = without(settings, "least_share_of_decoder_percent", "most_wait_percent")
    cells = grid(kind=("train", "evaluation"), cores=counts)
    return [{**cell, "data_dir": data_dir, **size} for cell in cells]


def measure(trial: types.SimpleNamespace, key) -> dict:
    """Median images per second of pipeline and decoder, and the share spent waiting."""
    seed = int(np.asarray(jax.random.key_data(key))[-1])
    measured = shared.alone(_measure_here, trial, seed)
    return {**measured, "load_per_core": shared.load_per_core()}


def _measure_here(trial: types.SimpleNamespace, seed: int) -> dict:
    """Measures in this process, bound to the trial's cores where that is possible."""
    _bind_to_cores(trial.cores)
    examples = trial.batches_per_round * trial.batch_examples
    with tempfile.TemporaryDirectory() as scratch:
        encoded = _open(trial, pathlib.Path(scratch), seed)
        indices = np.random.default_rng(seed).integers(0, len(encoded), examples)
        images = [image for image, _, _ in encoded.read(indices)]
        decoder = _BareDecoder(images, trial.kind, trial.cores, seed)
        with contextlib.closing(_endless_stream(trial, encoded, seed)) as stream:
            seconds = _time_rounds(trial, stream, decoder)
            pipeline_rate = examples / statistics.median(seconds["pipeline"])
            decoder_rate = examples / statistics.median(seconds["decoder"])
            batch_seconds = trial.batch_examples / pipeline_rate
            step_seconds = trial.step_over_batch_seconds * batch_seconds
            waiting_share = _waiting_share(
                stream, step_seconds, steps=2 * trial.batches_per_round
            )
    return {
        "images_per_second": pipeline_rate,
        "images_per_second_per_core": pipeline_rate / trial.cores,
        "decoder_images_per_second_per_core": decoder_rate / trial.cores,
        "share_of_decoder_percent": 100 * pipeline_rate / decoder_rate,
        "wait_percent": 100 * waiting_share,
        "image_kilobytes": sum(map(len, images)) / examples / 1000,
        "round_seconds": seconds,
    }


def _bind_to_cores(cores: int) -> None:
    """Binds this process to its first cores, where the system can do that."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])


def _endless_stream(
    trial: types.SimpleNamespace, encoded: imagenet.EncodedImages, seed: int
) -> Any:
    """The pipeline: batches of a split that repeats forever; an iterator to close."""
    make_batch = functools.partial(
        _read, encoded, trial.kind, seed, trial.batch_examples
    )
    return streaming.stream(
        make_batch, 0, sys.maxsize, threads=trial.cores, processes=0
    )


def _time_rounds(
    trial: types.SimpleNamespace, stream: Iterator[dict], decoder: "_BareDecoder"
) -> dict[str, list[float]]:
    """Seconds of "pipeline" and "decoder" in each round, for the same number of images.

    Args:
      trial: has the numbers of rounds, batches and cores.
      stream: the pipeline.
      decoder: has the images of a round.
    """
    buffered_batches = streaming.BATCHES_PER_THREAD * trial.cores
    seconds_to_fill = _ample_seconds_to_fill(
        images=buffered_batches * trial.batch_examples,
        decoder=decoder,
        cores=trial.cores,
    )
    # The buffer's first batches wait for the threads to start. The one after them is
    # the first that was begun while the pipeline was at work.
    _take(stream, buffered_batches + 1)
    seconds: dict[str, list[float]] = {"pipeline": [], "decoder": []}
    for _ in range(trial.rounds):
        # The buffer fills, so that the pipeline idles while the decoder is timed.
        time.sleep(seconds_to_fill)
        seconds["decoder"].append(decoder.seconds_of_a_round())
        # The buffer is emptied, so that as many batches are under way when the
        # pipeline's timing starts as when it ends.
        _take(stream, buffered_batches)
        seconds["pipeline"].append(_take(stream, trial.batches_per_round))
    return seconds


def _ample_seconds_to_fill(
    *, images: int, decoder: "_BareDecoder", cores: int
) -> float:
    """Seconds in which the pipeline makes so many images, with time to spare.

    It works on all `cores`, but gets the time that the bare decoder would need on one,
    and half as much again. With a single core, that is still enough for a pipeline of
    two thirds of the decoder's rate.
    """
    seconds_per_image_on_all = decoder.seconds_of_a_round() / decoder.examples
    seconds_per_image_on_one = cores * seconds_per_image_on_all
    return 1.5 * images * seconds_per_image_on_one


def _waiting_share(stream: Iterator[dict], step_seconds: float, steps: int) -> float:
    """The share of a simulated training's time that it waits for batches."""
    _take(stream, 1)
    started = time.perf_counter()
    waited = 0.0
    for _ in range(steps):
        time.sleep(step_seconds)
        waited += _take(stream, 1)
    return waited / (time.perf_counter() - started)


def _open(
    trial: types.SimpleNamespace, scratch: pathlib.Path, seed: int
) -> imagenet.EncodedImages:
    """The prepared data set, or a miniature of it made in `scratch`."""
    split = "validation" if trial.kind == "evaluation" else "train"
    if not trial.data_dir:
        images = miniature.generate_jpegs(min(trial.images, 64), seed)
        examples = [
            (images[i % len(images)], 0, f"n0_{i}.JPEG") for i in range(trial.images)
        ]
        miniature.write(scratch, {split: examples})
    return imagenet.EncodedImages(trial.data_dir or scratch, split)


def _read(encoded, kind: str, seed: int, size: int, number: int) -> dict:
    """Batch `number` of a split that repeats forever."""
    epochs, indices = np.divmod(
        np.arange(number * size, (number + 1) * size), len(encoded)
    )
    if kind == "evaluation":
        return imagenet.read_test(encoded, indices)
    return imagenet.read_train(encoded, indices, epochs, seed)


def _take(stream: Iterator[dict], batches: int) -> float:
    """Takes that many batches from the stream; returns the seconds."""
    started = time.perf_counter()
    for _ in range(batches):
        next(stream)
    return time.perf_counter() - started


class _BareDecoder:
    """Makes the images of a round, as the pipeline does, from bytes in memory.

    Attributes:
      examples: how many images that are.
    """

    def __init__(self, encoded: list[bytes], kind: str, threads: int, seed: int):
        import cv2

        cv2.setNumThreads(1)
        self.examples = len(encoded)
        self._encoded = [np.frombuffer(image, np.uint8) for image in encoded]
        self._threads = threads
        sides = (imagenet.IMAGE_PIXELS, imagenet.IMAGE_PIXELS)
        self._out = np.empty((self.examples, *sides, 3), np.uint8)
        if kind == "evaluation":
            self._make_image = self._make_test_image
        else:
            self._make_image = self._make_train_image
            self._views = self._draw_views(seed)

    def seconds_of_a_round(self) -> float:
        """Makes all images, each thread its share; returns the seconds."""
        started = time.perf_counter()
        with concurrent.futures.ThreadPoolExecutor(self._threads) as pool:
            list(pool.map(self._make_share, range(self._threads)))
        return time.perf_counter() - started

    def _make_share(self, thread: int) -> None:
        """Every image whose turn it is for one of the threads."""
        for i in range(thread, self.examples, self._threads):
            self._make_image(i)

    def _make_train_image(self, i: int) -> None:
        views.train_view(self._decode(i), self._views[i], self._out[i])

    def _make_test_image(self, i: int) -> None:
        views.eval_view(
            self._decode(i), imagenet.EVAL_SHORTER_SIDE_PIXELS, self._out[i]
        )

    def _decode(self, i: int) -> Any:
        """The pixels of an image, by one call and with the flags of the pipeline."""
        import cv2

        flags = cv2.IMREAD_COLOR_RGB | cv2.IMREAD_IGNORE_ORIENTATION
        return cv2.imdecode(self._encoded[i], flags)

    def _draw_views(self, seed: int) -> list[views.View]:
        """A training view of each image."""
        drawn = []
        for i in range(self.examples):
            height, width, _ = self._decode(i).shape
            view = views.draw_view(height, width, seed=seed, epoch=0, example=i)
            drawn.append(view)
        return drawn


def verdict(config: dict, records: list[dict]) -> run.Verdict:
    """Reproduced iff all streams reach both goals."""
    least = config["least_share_of_decoder_percent"]
    most = config["most_wait_percent"]
    metrics = {
        "least_share_of_decoder_percent_asked": least,
        "most_wait_percent_asked": most,
    }
    reached = True
    for record in records:
        reached &= (
            record["share_of_decoder_percent"] >= least
            and record["wait_percent"] <= most
        )
        stream = f"{record['kind']}/cores={record['cores']}"
        for name, value in record.items():
            if name.endswith(("second_per_core", "_percent")):
                metrics[f"{name}/{stream}"] = value
    return shared.judged("imagenet-input", metrics, reached, records)


EXPERIMENT = run.Experiment(
    name="benchmark_input_pipeline",
    module=__name__,
    trials=trials,
    measure=measure,
    verdict=verdict,
    signed=("cores",),
)

if __name__ == "__main__":
    run.main(EXPERIMENT)
