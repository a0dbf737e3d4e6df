"""Turns settings into trainings: a trial of `cifar`, `imagenet` or `ablations` is a
`Training`.

Settings form four groups, `data`, `model`, `optim` and `train`, each checked by the
code that uses it. `load` reads a trained net back; docs/training.md has an example.
"""

import functools
import hashlib
import math
from typing import NamedTuple

import jax
import numpy as np

from experiments import run
from experiments.images.log import RESULT
from experiments.parts import fit
from experiments.run.shared import reproduced
from identity_matters import flops, limits, nets, runs
from identity_matters.batches import Arrays, Streams
from identity_matters.images import datasets, imagenet, miniature
from identity_matters.preprocessing import Preprocessing
from identity_matters.train import (
    checkpoint,
    loop,
    net_source,
    parallel,
    step,
    trained_net,
)

# Single-step dispatches would make the host the bottleneck of an accelerator. On a CPU
# the steps of a dispatch are unrolled, which only takes longer to compile.
ACCELERATOR_STEPS_PER_DISPATCH = 100
# The paper's second error for ImageNet is top-5; it says little where classes are few.
TOP_K = 5
LEAST_CLASSES_FOR_TOP_K = 1000
METRICS = (
    "test_error_percent",
    "test_error_best_percent",
    "best_step",
    "test_examples",
    "train_error_percent",
    "train_loss",
    "steps",
    "parameters",
    "images_per_second",
    "model_flops_per_second",
    "utilization_percent",
    "train_seconds",
    "evaluate_seconds",
    "test_top5_error_percent",
    "test_top5_error_best_percent",
)
# Which images, and how they are preprocessed.
DATA = {
    "dataset": "cifar10",  # all but digits need `make data`
    # per_image (the paper's), mean_std or, for CIFAR, gcn_zca
    "normalization": "per_image",
    # Random crops after padding: 2 as in the paper's base code, 4 as in others; 0 for
    # digits, whose strokes reach the border.
    "pad_pixels_per_side": 2,
    # Mirror images at random; not for digits, which lose their meaning when mirrored.
    "flip": True,
    "data_dir": "data",  # where `make data` put the data sets
}
DIGITS = {"dataset": "digits", "pad_pixels_per_side": 0, "flip": False}
DIGITS_EVERY = {"steps_per_evaluation": 100, "steps_per_checkpoint": 100}
IMAGENET_DATA = {
    "dataset": imagenet.NAME,
    "data_dir": "data",  # where `make data DATASETS=imagenet2012` put it
    # If above 0: use this many generated training images instead, made in data_dir if
    # missing.
    "miniature_examples": 0,
    # Random crops in training; in evaluation the central crop of the resized image.
    "image_pixels": 224,
    "eval_shorter_side_pixels": 256,
    "normalization": "mean_std",
    # How batches are made, which affects speed only; 0 threads: one per core.
    "worker_threads": 0,
    "worker_processes": 0,
}
# The net of Table 1; what the paper leaves open is a setting.
ALL_CONV_RESIDUAL = {
    "name": "all_conv_residual",
    "blocks_per_stage": (9, 9, 9),  # residual blocks in each stage
    "widths": (64, 128, 256),  # channels of each stage
    "stage_strides": (1, 2, 2),  # stride of the first convolution of each stage
    "stem_width": 16,
    "stem_kernel_size": 3,
    "stem_stride": 1,
    # Standard deviation of initial residual weights: paper, 1/(k^2 c), or standard,
    # 1/(k sqrt c); multiplied by initial_scale.
    "residual_init": "paper",
    "initial_scale": 1.0,  # factor of the initial deviation of residual weights
    # Slope of the activation below zero: 0.1 in the base code, 0 in the paper's
    # formula.
    "leak": 0.0,
    # whether a block starts with an activation, as in the base code
    "activate_first": False,
    # last linear map: fixed (the paper's: random, not trained) or trained
    "projection": "fixed",
    "identity": True,  # if False, a block is C2(ReLU(C1 x)) alone
    "batch_norm": False,  # section 4 says that with it a net of this size overfits
    # of convolutions: float32 or bfloat16; parameters are float32
    "compute_dtype": "float32",
}
# Momentum SGD, by default as in section 4.
OPTIM = {
    "schedule": "step",  # step, cosine or constant
    "learning_rate": 0.05,
    # For schedule step: the steps at which the learning rate is multiplied by
    # decay_factor.
    "boundary_steps": (30_000, 50_000),
    "decay_factor": 0.1,
    # steps over which the learning rate grows linearly to its full value
    "warmup_steps": 0,
    "momentum": 0.9,
    "nesterov": False,
    # L2 penalty weight_decay / 2 * ||w||^2; decayed says on what: convolutions, kernels
    # or all.
    "weight_decay": 1e-4,
    "decayed": "convolutions",
}
# Length, batch sizes, and how often to log, evaluate and save.
TRAIN = {
    "steps": 60_000,
    "batch_examples": 128,
    # 0: 100 on an accelerator if the data are in its memory, else 1
    "steps_per_dispatch": 0,
    "steps_per_log": 100,
    "steps_per_evaluation": 1000,
    "steps_per_checkpoint": 1000,
    "evaluation_batch_examples": 1000,
    "devices": 0,  # 0: as many devices of this machine as divide the batch
    "keep_final_checkpoint": True,
}


def settings(scale: str, data: dict, model: dict, optim: dict, **train) -> dict:
    """The settings of a variant, except its name, given how they differ from the
    defaults above.

    `data` must hold "dataset". A `model` with a "name" does not get the defaults of
    Table 1's net.
    """
    common = IMAGENET_DATA if data["dataset"] == imagenet.NAME else DATA
    model = model if "name" in model else {**ALL_CONV_RESIDUAL, **model}
    data, optim, train = {**common, **data}, {**OPTIM, **optim}, {**TRAIN, **train}
    return {
        "scale": scale,
        "data": data,
        "model": model,
        "optim": optim,
        "train": train,
    }


def steps_at(batch_examples: int, *epochs: int) -> tuple[int, ...]:
    """The step at which each number of epochs over CIFAR's training images is
    complete.
    """
    examples = datasets.SOURCES["cifar10"].splits["train"]
    return tuple(epoch * examples // batch_examples for epoch in epochs)


def dispatches_at(batch_examples: int, *epochs: int) -> tuple[int, ...]:
    """`steps_at`, rounded to whole dispatches of an accelerator.

    A shorter last dispatch is a program of its own, which takes as long to compile as
    the first: 15 minutes for DenseNet on a TPU.
    """
    unit = ACCELERATOR_STEPS_PER_DISPATCH
    return tuple(
        round(step / unit) * unit for step in steps_at(batch_examples, *epochs)
    )


class ImageData(NamedTuple):
    """Examples, what makes a net's inputs of them, and their digests."""

    examples: Arrays | Streams
    preprocessing: Preprocessing
    fingerprint: dict


def classes_and_shape(data: dict) -> tuple[int, tuple[int, int, int]]:
    """(number of classes, (height, width, channels)) for the group `data`; reads no
    images.
    """
    if data["dataset"] == imagenet.NAME:
        if "image_pixels" not in data:
            raise ValueError(
                f"{imagenet.NAME} needs the settings of the experiment imagenet"
            )
        return imagenet.NUM_CLASSES, (data["image_pixels"], data["image_pixels"], 3)
    source = datasets.find_source(data["dataset"])
    return source.num_classes, source.image_shape


def load_data(data: dict) -> ImageData:
    """The data of the group `data`; ValueError if it is invalid, or the data missing or
    damaged.
    """
    return (_load_imagenet if data["dataset"] == imagenet.NAME else _load_arrays)(
        **data
    )


@functools.lru_cache(maxsize=1)
def _load_arrays(dataset, normalization, data_dir, **augmentation) -> ImageData:
    train, test = (
        datasets.load(dataset, split, data_dir) for split in ("train", "test")
    )
    preprocessing = Preprocessing.fit(normalization, train[0], **augmentation)
    digest = hashlib.sha256()
    for array in (*train, *test):
        digest.update(np.ascontiguousarray(array))
    return ImageData(
        Arrays(*train, *test), preprocessing, {"sha256": digest.hexdigest()}
    )


def _load_imagenet(
    *,
    data_dir,
    miniature_examples,
    image_pixels,
    eval_shorter_side_pixels,
    normalization,
    worker_threads,
    worker_processes,
    **_,
) -> ImageData:
    if normalization not in ("mean_std", "per_image"):
        raise ValueError(
            f"normalization must be mean_std or per_image, got {normalization!r}"
        )
    if not 1 <= image_pixels <= eval_shorter_side_pixels:
        got = f"got {image_pixels} and {eval_shorter_side_pixels}"
        raise ValueError(
            f"image_pixels must be from 1 to eval_shorter_side_pixels, {got}"
        )
    if min(worker_threads, worker_processes) < 0:
        got = f"got {worker_threads} and {worker_processes}"
        raise ValueError(
            f"worker_threads and worker_processes must be at least 0, {got}"
        )
    imagenet.require_packages()
    if miniature_examples:
        data_dir = miniature.prepare(data_dir, miniature_examples)
    train, test = (
        imagenet.EncodedImages(data_dir, split) for split in ("train", "validation")
    )
    read_train = functools.partial(imagenet.read_train, train, pixels=image_pixels)
    pixels = {"pixels": image_pixels, "shorter_side_pixels": eval_shorter_side_pixels}
    read_test = functools.partial(imagenet.read_test, test, **pixels)
    threads = worker_threads or limits.usable_cores()
    stream = functools.partial(
        imagenet.stream, threads=threads, processes=worker_processes
    )
    shape = (image_pixels, image_pixels, 3)
    examples = Streams(shape, len(train), len(test), read_train, read_test, stream)
    constants = imagenet.CHANNEL_CONSTANTS if normalization == "mean_std" else {}
    preprocessing = Preprocessing(normalization, constants, image_shape=shape)
    fingerprint = {"train": train.fingerprint(), "validation": test.fingerprint()}
    return ImageData(examples, preprocessing, fingerprint)


def make_optimizer(*, steps, momentum, nesterov, weight_decay, decayed, **schedule):
    """(optax transformation, learning-rate schedule) for the group `optim`."""
    rate = step.learning_rate_schedule(steps=steps, **schedule)
    decay = {"weight_decay": weight_decay, "decayed": decayed}
    return step.momentum_sgd(rate, momentum=momentum, nesterov=nesterov, **decay), rate


def make_net(model: dict, num_classes: int, image_shape) -> tuple:
    """(net, number of parameters, FLOPs of one image's forward pass) for the group
    `model`.

    Raises ValueError if a setting is invalid, or the net cannot take images of this
    shape.
    """
    net = nets.make_net(num_classes=num_classes, axis_name=step.AXIS_NAME, **model)
    shapes = nets.variable_shapes(net, image_shape)
    x = jax.ShapeDtypeStruct((1, *image_shape), "float32")
    forward = flops.count_flops(
        lambda v, x: nets.apply_net(net, v, x, train=False)[0], shapes, x
    )
    return net, flops.count_parameters(shapes["params"]), forward


class Training:
    """One training, built from its settings; ValueError or TypeError if it cannot be.

    `devices` are by default those that the settings ask for, `images` those that `data`
    describes. The `fingerprint`, that of the images, must be the same in all processes.
    """

    def __init__(
        self,
        *,
        data: dict,
        model: dict,
        optim: dict,
        train: dict,
        devices=None,
        images: ImageData | None = None,
        **labels,
    ):
        self.dataset = data["dataset"]
        self.num_classes, shape = classes_and_shape(data)
        self.net, self.parameters, forward = make_net(model, self.num_classes, shape)
        optimizer, rate = make_optimizer(steps=train["steps"], **optim)
        devices = devices or parallel.pick_devices(
            train["devices"], train["batch_examples"]
        )
        one_by_one = self.dataset == imagenet.NAME or devices[0].platform == "cpu"
        chosen = 1 if one_by_one else ACCELERATOR_STEPS_PER_DISPATCH
        every = {name: train[name] for name in train if name.startswith("steps")}
        every["steps_per_dispatch"] = every["steps_per_dispatch"] or chosen
        self.intervals = loop.Intervals(**every)
        images = images or load_data(data)
        self.fingerprint = images.fingerprint
        self.preprocessing = images.preprocessing
        self.keeps_checkpoint = train["keep_final_checkpoint"]
        self._settings = {
            **labels,
            "data": data,
            "model": model,
            "optim": optim,
            "train": train,
        }
        self.task = step.Task(
            init=functools.partial(nets.init_variables, self.net, image_shape=shape),
            apply=functools.partial(nets.apply_net, self.net),
            train_input=images.preprocessing.train_input,
            eval_input=images.preprocessing.eval_input,
            data=images.examples,
            optimizer=optimizer,
            schedule=rate,
            flops_per_example=flops.FORWARD_PASSES_PER_TRAINING_STEP * forward,
            top_k=TOP_K if self.num_classes >= LEAST_CLASSES_FOR_TOP_K else 0,
        )
        sizes = {
            name: train[name]
            for name in ("batch_examples", "evaluation_batch_examples")
        }
        self.parallel = parallel.ParallelSteps(self.task, devices=devices, **sizes)

    @property
    def flops(self) -> float:
        """Floating-point operations of all training steps."""
        return (
            self.task.flops_per_example
            * self.parallel.batch_examples
            * self.intervals.steps
        )

    def run(self, key, log, *, keep_diverged: bool = False) -> dict:
        """Trains; returns the last and the best test error, the timings, and what was
        trained on.

        `key` is the root of all randomness: initial weights, example order,
        augmentation, dropout. A loss or gradient that is not finite raises
        run.DivergedError or, with `keep_diverged`, gives {"diverged": True, ...}.
        Raises run.Interrupted after SIGTERM, once a checkpoint is saved, and
        runs.RunError for checkpoints that cannot be used.
        """
        size = {
            "parameters": self.parameters,
            "num_classes": self.num_classes,
            **fit.size(self.task, self.parallel, self.intervals),
        }
        try:
            result, _ = fit.fit(
                self.task,
                self.parallel,
                self.intervals,
                log,
                key=key,
                settings=self._settings | {"images": self.fingerprint},
                compute_dtype=self._settings["model"]["compute_dtype"],
                belongs_to=checkpoint.NetAndPreprocessing(
                    net_source.describe(self.net), self.preprocessing
                ),
            )
        except imagenet.DataError as error:
            raise runs.RunError(f"{error}; the same command then resumes") from None
        except step.NonFiniteError as error:
            if not keep_diverged:
                raise run.DivergedError(str(error)) from None
            return {**size, "diverged": True, "diverged_step": error.step}
        return {**size, "diverged": False, **result}

    def evaluate(self, variables: dict) -> dict:
        """The evaluation record of the net with these variables, labelled with the last
        step.
        """
        sums = self.parallel.evaluate(self.parallel.start(jax.random.key(0), variables))
        steps, examples = self.intervals.steps, self.task.data.train_examples
        epoch = steps * self.parallel.batch_examples / examples
        return step.evaluation_record(steps, epoch, sums, 0.0, 0.0, self.task.top_k)


def load(run_dir: str, trial: int = 0) -> tuple[Training, trained_net.TrainedNet]:
    """Rebuilds a finished training, number `trial` of a run, from its settings, and its
    last net.

    The training needs its data. `identity_matters.train.load` reads the net alone, from
    the checkpoint. Raises checkpoint.CheckpointError if that was not kept or is
    damaged, and runs.RunError if the run is unreadable, of another experiment, or has
    not finished the training.
    """
    found = runs.read_run(run_dir)
    if not {"model", "optim"} <= found.config.keys():
        raise runs.RunError(
            f"{run_dir}: a run of {found.experiment}, which keeps no trained net"
        )
    results = [
        r for r in found.records if r.get("kind") == RESULT and r["cell"] == trial
    ]
    if not results:
        raise runs.RunError(f"{run_dir}: training {trial} is not finished")
    groups = {name: results[0][name] for name in ("data", "model", "optim", "train")}
    # the run may have had more devices than there are here
    groups["train"]["devices"] = 0
    variables = checkpoint.load_variables(found.path / "checkpoints" / f"cell={trial}")
    training = Training(**groups)
    return training, trained_net.TrainedNet(
        training.net, variables, training.preprocessing
    )


def one_training(*, variant: str, **groups) -> list[dict]:
    """The trials of a variant with a single training."""
    return [groups]


def result_metrics(records: list[dict], *more: str) -> dict:
    """The fields `METRICS` and `more`, where present, of the only training of a run."""
    (result,) = [record for record in records if record["kind"] == RESULT]
    return {
        name: result[name] for name in (*METRICS, *more) if result.get(name) is not None
    }


# The margin of `error_difference_percent` in standard errors: about one point for
# 10,000 images and errors of 15 %. As both classifiers see the same images, the true
# standard error is likely smaller. It leaves out the spread over seeds, which is why
# several are run. Our choice.
STANDARD_ERRORS = 2.0


def error_difference_percent(baseline: dict, other: dict) -> tuple[float, float]:
    """(test error of `other` minus that of `baseline`, margin that it must exceed), in
    points.

    The margin is `STANDARD_ERRORS` sqrt(sum p (1 - p) / n) over the two classifiers,
    with error p on n test images. A net that diverged is wrong on every image.

    Args:
      baseline, other: "test_error_percent" and "test_examples", or "diverged": True.
    """
    both = (baseline, other)
    errors = [
        1.0 if net.get("diverged") else net["test_error_percent"] / 100 for net in both
    ]
    examples = [net.get("test_examples", 1) for net in both]
    variance = sum(p * (1 - p) / n for p, n in zip(errors, examples, strict=True))
    return 100 * (errors[1] - errors[0]), 100 * STANDARD_ERRORS * math.sqrt(variance)


def compared(
    claim: str,
    measured: dict,
    published: dict,
    window_percent: float,
    comparable: bool = True,
) -> run.Verdict:
    """Reproduced iff the best step's errors exceed those published by at most
    `window_percent`.

    `published` maps a name ("test_error", say) to an error in percent, perhaps that of
    the best step; the last step's error is reported, too. `comparable`: whether it is
    that of the same net.
    """
    steps = [f"{name}{step}_percent" for name in published for step in ("", "_best")]
    printed = dict(
        zip(steps, np.repeat(list(published.values()), 2).tolist(), strict=True)
    )
    best = {name: measured[f"{name}_best_percent"] for name in published}
    holds = all(best[name] <= published[name] + window_percent for name in published)
    said = reproduced(holds) if comparable else "not comparable"
    return run.Verdict(claim, measured, said, paper=printed)
