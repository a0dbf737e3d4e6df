"""Settings to trainings: one trial of `cifar`, `imagenet` and `ablations` is one `Training`.

Its settings are four groups, `data`, `model`, `optim` and `train`; what uses them refuses what will
not do. Small data sets are arrays in memory, ImageNet is streams: both end in one `ImageData`. A
trained net comes back in three lines:

    training, variables = load("results/local/cifar/digits/all_conv_residual/seed=0")
    print(training.evaluate(variables)["test_error_percent"])
"""

import functools
import hashlib
from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np

from experiments import run
from experiments.images.log import RESULT
from experiments.run.shared import reproduced
from identity_matters import environment, flops, nets, runs
from identity_matters.batches import Arrays, Streams
from identity_matters.images import augment, datasets, imagenet, miniature
from identity_matters.train import checkpoint, loop, multihost, parallel, step

# On an accelerator the host would be the bottleneck at one step a dispatch; on a CPU the steps of a
# dispatch are unrolled, which only takes longer to compile.
ACCELERATOR_STEPS_PER_DISPATCH = 100
# The second figure that the paper gives for ImageNet; it says little where classes are few.
TOP_K = 5
LEAST_CLASSES_FOR_TOP_K = 1000
# What a verdict takes over from the result of a training, where it is there.
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
)
# Which images, and what happens to them before the net.
DATA = {
    "dataset": "cifar10",  # all but digits need `make data`
    "normalization": "per_image",  # per_image (the paper's), mean_std or, for CIFAR, gcn_zca
    # Random crops after padding: 2 as in the paper's base code, 4 as others do; 0 for digits,
    # whose strokes reach the border.
    "pad_pixels_per_side": 2,
    # Mirror images at random; a mirrored digit is another one.
    "flip": True,
    "data_dir": "data",  # where `make data` put the data sets
}
DIGITS = {"dataset": "digits", "pad_pixels_per_side": 0, "flip": False}
IMAGENET_DATA = {
    "dataset": imagenet.NAME,
    "data_dir": "data",  # where `make data DATASETS=imagenet2012` put it
    # Above 0: a data set of so many generated training images, made in data_dir if need be.
    "miniature_examples": 0,
    # Random crops in training, the central one of the resized image in evaluation.
    "image_pixels": 224,
    "eval_shorter_side_pixels": 256,
    "normalization": "mean_std",
    # How batches are made, which changes the speed only; 0: one thread a core.
    "worker_threads": 0,
    "worker_processes": 0,
}
# The net of Table 1. Where the text leaves something open, the choice is a setting.
ALL_CONV_RESIDUAL = {
    "name": "all_conv_residual",
    "blocks_per_stage": (9, 9, 9),  # residual blocks of each stage
    "widths": (64, 128, 256),  # their channels
    "stage_strides": (1, 2, 2),  # of their first convolutions
    "stem_width": 16,
    "stem_kernel_size": 3,
    "stem_stride": 1,
    # Standard deviation of residual convolutions: paper, 1/(k^2 c), or standard, 1/(k sqrt c);
    # times initial_scale.
    "residual_init": "paper",
    "initial_scale": 1.0,
    # Slope of the activation below zero: 0.1 in the base code, 0 in the paper's formula.
    "leak": 0.0,
    "activate_first": False,  # whether a block starts with an activation, as the base code's did
    "projection": "fixed",  # the last linear map: fixed (random, not trained: the paper's), trained
    "identity": True,  # without it a block is C2(ReLU(C1 x)) alone
    "batch_norm": False,
    "compute_dtype": "float32",  # float32 or bfloat16, of convolutions; parameters are float32
}
# Momentum SGD; as in section 4 unless changed.
OPTIM = {
    "schedule": "step",  # step, cosine, linear or constant
    "learning_rate": 0.05,
    # step only: where the rate is multiplied by decay_factor.
    "boundary_steps": (30_000, 50_000),
    "decay_factor": 0.1,
    "warmup_steps": 0,  # the rate grows linearly to its value over so many steps
    "momentum": 0.9,
    "nesterov": False,
    # The gradient of weight_decay / 2 * ||w||^2 is added for: convolutions, kernels or all.
    "weight_decay": 1e-4,
    "decayed": "convolutions",
}
# How long, in what batches, and how often what is written.
TRAIN = {
    "steps": 60_000,
    "batch_examples": 128,
    "steps_per_dispatch": 0,  # 0: 100 on an accelerator if the data are in its memory, else one
    "steps_per_log": 100,
    "steps_per_evaluation": 1000,
    "steps_per_checkpoint": 1000,
    "evaluation_batch_examples": 1000,
    "devices": 0,  # 0: as many of this machine's as divide the batch
    "keep_final_checkpoint": True,
}


def settings(scale: str, data: dict, model: dict, optim: dict, **train) -> dict:
    """The settings of a variant but for its name, by what differs from the defaults above.

    Args:
      data: at least "dataset".
      model: a net of another name is taken as it is.
    """
    common = IMAGENET_DATA if data["dataset"] == imagenet.NAME else DATA
    return {
        "scale": scale,
        "data": {**common, **data},
        "model": model if "name" in model else {**ALL_CONV_RESIDUAL, **model},
        "optim": {**OPTIM, **optim},
        "train": {**TRAIN, **train},
    }


def steps_at(batch_examples: int, *epochs: int) -> tuple[int, ...]:
    """Steps after which so many epochs over CIFAR's training images are complete."""
    examples = datasets.SOURCES["cifar10"].splits["train"]
    return tuple(epoch * examples // batch_examples for epoch in epochs)


class ImageData(NamedTuple):
    """Examples, and what makes a net's input of them.

    Attributes:
      examples: the splits.
      train_input, eval_input: see `step.Task`.
      fingerprint: JSON-able; differs where the examples do, for all that is likely.
    """

    examples: Arrays | Streams
    train_input: Callable
    eval_input: Callable
    fingerprint: dict


def classes_and_shape(data: dict) -> tuple[int, tuple[int, int, int]]:
    """(number of classes, (height, width, channels)) of the group `data`; no image is read."""
    if data["dataset"] == imagenet.NAME:
        return imagenet.NUM_CLASSES, (data["image_pixels"], data["image_pixels"], 3)
    source = datasets.find_source(data["dataset"])
    return source.num_classes, source.image_shape


def load_data(data: dict) -> ImageData:
    """The data that the group `data` describes; those that fit into memory are loaded once.

    Raises:
      ValueError: a setting that will not do; a data set that is not there, or damaged.
    """
    return (_load_imagenet if data["dataset"] == imagenet.NAME else _load_arrays)(**data)


@functools.lru_cache(maxsize=1)
def _load_arrays(dataset, normalization, pad_pixels_per_side, flip, data_dir) -> ImageData:
    train, test = (datasets.load(dataset, split, data_dir) for split in ("train", "test"))
    constants = augment.fit_normalization(normalization, train[0])
    inputs = augment.make_inputs(
        normalization, constants, pad_pixels_per_side=pad_pixels_per_side, flip=flip
    )
    digest = hashlib.sha256()
    for array in (*train, *test):
        digest.update(np.ascontiguousarray(array))
    return ImageData(Arrays(*train, *test), *inputs, {"sha256": digest.hexdigest()})


def _load_imagenet(
    *, data_dir, miniature_examples, image_pixels, eval_shorter_side_pixels, normalization,
    worker_threads, worker_processes, **_,
) -> ImageData:  # fmt: skip
    if normalization not in ("mean_std", "per_image"):
        raise ValueError(f"normalization must be mean_std or per_image, got {normalization!r}")
    if not 1 <= image_pixels <= eval_shorter_side_pixels:
        raise ValueError(
            "image_pixels must be from 1 to eval_shorter_side_pixels, got"
            f" {image_pixels} and {eval_shorter_side_pixels}"
        )
    if min(worker_threads, worker_processes) < 0:
        raise ValueError(
            "worker_threads and worker_processes must be at least 0, got"
            f" {worker_threads} and {worker_processes}"
        )
    imagenet.require_packages()
    if miniature_examples:
        data_dir = miniature.prepare(data_dir, miniature_examples)
    train, test = (imagenet.EncodedImages(data_dir, split) for split in ("train", "validation"))
    examples = Streams(
        (image_pixels, image_pixels, 3),
        len(train),
        len(test),
        functools.partial(imagenet.read_train, train, pixels=image_pixels),
        functools.partial(
            imagenet.read_test, test, pixels=image_pixels,
            shorter_side_pixels=eval_shorter_side_pixels,
        ),
        functools.partial(
            imagenet.stream, threads=worker_threads or environment.usable_cores(),
            processes=worker_processes,
        ),
    )  # fmt: skip
    constants = imagenet.CHANNEL_CONSTANTS if normalization == "mean_std" else {}
    inputs = augment.make_inputs(normalization, constants, pad_pixels_per_side=0, flip=False)
    fingerprint = {"train": train.fingerprint(), "validation": test.fingerprint()}
    return ImageData(examples, *inputs, fingerprint)


def make_optimizer(*, steps, momentum, nesterov, weight_decay, decayed, **schedule):
    """The group `optim` as (optax transformation, schedule)."""
    rate = step.learning_rate_schedule(steps=steps, **schedule)
    transformation = step.momentum_sgd(
        rate, momentum=momentum, nesterov=nesterov, weight_decay=weight_decay, decayed=decayed
    )
    return transformation, rate


def make_net(model: dict, num_classes: int, image_shape) -> tuple:
    """(net, its parameters, operations of one image's forward pass) of the group `model`.

    Raises:
      ValueError: a setting that will not do, or images that the net cannot take.
    """
    net = nets.make_net(num_classes=num_classes, axis_name=step.AXIS_NAME, **model)
    variables = nets.variable_shapes(net, image_shape)
    image = jax.ShapeDtypeStruct((1, *image_shape), "float32")
    forward = flops.count_flops(
        lambda v, x: nets.apply_net(net, v, x, train=False)[0], variables, image
    )
    return net, flops.count_parameters(variables["params"]), forward


class Training:
    """One training, built of its settings.

    Args:
      devices: those to use; by default as the settings say.
      images: in place of those that `data` describes.
    Attributes:
      dataset, num_classes: of the images.
      net: a flax module; `parameters` counts its own.
      task, parallel, intervals: what `loop.fit` takes.
      fingerprint: of the images; several processes must agree in it.
      keeps_checkpoint: whether its last checkpoint stays.
    Raises:
      ValueError or TypeError: a setting or data that will not do.
    """

    def __init__(
        self, *, data: dict, model: dict, optim: dict, train: dict, devices=None,
        images: ImageData | None = None, **labels,
    ):  # fmt: skip
        self.dataset = data["dataset"]
        self.num_classes, shape = classes_and_shape(data)
        self.net, self.parameters, forward = make_net(model, self.num_classes, shape)
        optimizer, rate = make_optimizer(steps=train["steps"], **optim)
        devices = devices or parallel.pick_devices(train["devices"], train["batch_examples"])
        one_by_one = self.dataset == imagenet.NAME or devices[0].platform == "cpu"
        chosen = 1 if one_by_one else ACCELERATOR_STEPS_PER_DISPATCH
        every = {name: train[name] for name in train if name.startswith("steps")}
        every["steps_per_dispatch"] = every["steps_per_dispatch"] or chosen
        self.intervals = loop.Intervals(**every)
        images = images or load_data(data)
        self.fingerprint = images.fingerprint
        self.keeps_checkpoint = train["keep_final_checkpoint"]
        self._settings = {**labels, "data": data, "model": model, "optim": optim, "train": train}
        self.task = step.Task(
            init=functools.partial(nets.init_variables, self.net, image_shape=shape),
            apply=functools.partial(nets.apply_net, self.net),
            train_input=images.train_input,
            eval_input=images.eval_input,
            data=images.examples,
            optimizer=optimizer,
            schedule=rate,
            flops_per_example=flops.FORWARD_PASSES_PER_TRAINING_STEP * forward,
            top_k=TOP_K if self.num_classes >= LEAST_CLASSES_FOR_TOP_K else 0,
        )
        self.parallel = parallel.ParallelSteps(
            self.task,
            devices=devices,
            batch_examples=train["batch_examples"],
            evaluation_batch_examples=train["evaluation_batch_examples"],
        )

    def run(self, key, log, *, keep_diverged: bool = False) -> dict:
        """Trains; the last and the best test error, how long it took, and what was chosen for it.

        Args:
          key: the root of initial weights, order of examples, augmentation and dropout.
          log: see `log.TrainingLog`.
          keep_diverged: a loss that is not finite is a result ("diverged": True), not an error.
        Raises:
          run.Interrupted: SIGTERM came; a checkpoint was saved.
          run.DivergedError: a loss was not finite.
          runs.RunError: checkpoints that cannot be used.
        """
        devices = self.parallel.devices
        kind, dtype = devices[0].device_kind, self._settings["model"]["compute_dtype"]
        peak = flops.peak_flops_per_second(kind, dtype)
        size = {
            "parameters": self.parameters,
            "training_flops_per_example": self.task.flops_per_example,
            "num_classes": self.num_classes,
            "train_examples": self.task.data.train_examples,
            "devices": len(devices),
            "processes": jax.process_count(),
            "device_kind": kind,
            "steps_per_dispatch": self.intervals.steps_per_dispatch,
        }
        # What a checkpoint must agree in with the training that goes on from it.
        identity = {**self._settings, "key": np.asarray(jax.random.key_data(key))}
        kept = checkpoint.Checkpoints(log.checkpoint_dir, settings=identity, on_warning=log.say)
        peak = peak and peak * len(devices)
        more = {"checkpoints": kept, "peak_flops_per_second": peak, "profile_dir": log.profile_dir}
        try:
            result, _ = loop.fit(self.task, self.parallel, self.intervals, log, key=key, **more)
        except loop.StopRequested:
            raise run.Interrupted from None
        except (checkpoint.CheckpointError, multihost.Process0Error) as error:
            raise runs.RunError(
                f"{error}; --overwrite trains anew, or use another --results_dir"
            ) from None
        except step.NonFiniteError as error:
            if not keep_diverged:
                raise run.DivergedError(str(error)) from None
            return {**size, "diverged": True, "diverged_step": error.step}
        return {**size, "diverged": False, **result}

    def evaluate(self, variables: dict) -> dict:
        """The evaluation record of the net with these variables, as of the last step."""
        sums = self.parallel.evaluate(self.parallel.start(jax.random.key(0), variables))
        steps, examples = self.intervals.steps, self.task.data.train_examples
        epoch = steps * self.parallel.batch_examples / examples
        return step.evaluation_record(steps, epoch, sums, 0.0, 0.0, self.task.top_k)


def load(run_dir: str, trial: int = 0) -> tuple[Training, dict]:
    """A finished training as it was recorded, and the last variables of its net.

    Args:
      run_dir: one run of `cifar`, `imagenet` or `ablations` that keeps its last checkpoint.
      trial: which of its trainings.
    Raises:
      checkpoint.CheckpointError: there is no checkpoint, or it is damaged.
      runs.RunError: the run cannot be read, is of another experiment, or that training is not
        finished.
    """
    found = runs.read_run(run_dir)
    if not {"model", "optim"} <= found.config.keys():
        raise runs.RunError(f"{run_dir}: a run of {found.experiment}, which keeps no trained net")
    results = [r for r in found.records if r.get("kind") == RESULT and r["cell"] == trial]
    if not results:
        raise runs.RunError(f"{run_dir}: training {trial} is not finished")
    groups = {name: results[0][name] for name in ("data", "model", "optim", "train")}
    groups["train"]["devices"] = 0  # it may have been trained on more than there are here
    variables = checkpoint.load_variables(found.path / "checkpoints" / f"cell={trial}")
    return Training(**groups), variables


def one_training(*, variant: str, **groups) -> list[dict]:
    """The trials of a variant that is one training."""
    del variant
    return [groups]


def result_metrics(records: list[dict], *more: str) -> dict:
    """`METRICS`, and `more`, of the one training of a run, where they are there."""
    (result,) = [record for record in records if record["kind"] == RESULT]
    return {name: result[name] for name in (*METRICS, *more) if result.get(name) is not None}


def compared(
    claim: str, measured: dict, published: dict, window_percent: float, comparable: bool = True
) -> run.Verdict:
    """Reproduced iff the best step's errors are at most `window_percent` above the published ones.

    Args:
      published: error by name, "test_error" say. They may be those of the best step; the last
        step's error is given beside.
      comparable: whether the published errors are those of this very net.
    """
    steps = [f"{name}{step}_percent" for name in published for step in ("", "_best")]
    printed = dict(zip(steps, np.repeat(list(published.values()), 2).tolist(), strict=True))
    holds = all(
        measured[f"{name}_best_percent"] <= value + window_percent
        for name, value in published.items()
    )
    said = reproduced(holds) if comparable else "not comparable"
    return run.Verdict(claim, measured, said, paper=printed)
