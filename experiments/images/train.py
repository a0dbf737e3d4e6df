"""Turns settings into trainings: a trial of `cifar`, `imagenet` or `ablations` is one.

A trial of `comparisons` makes its own, by `protocol.make_training`.

`settings` explains the four groups of settings, each of which is checked by the code
that uses it. `load` reads a trained net back; docs/training.md has an example.

From a command to a gradient: `Training.run` below calls `DeviceTraining.fit`
(experiments/run/fitting.py) for devices and checkpoints, that calls `loop.fit` for the
order of events, that `ParallelSteps.train` for the devices, and each device runs
`step.dispatch`, whose `training_step` has the gradient (identity_matters/train/).
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import NamedTuple

import jax
import optax

from experiments import run
from experiments.images.data import ImageData, classes_and_shape, load_data
from experiments.images.settings import ACCELERATOR_STEPS_PER_DISPATCH
from experiments.run.fitting import DeviceTraining, make_intervals
from experiments.run.training_log import TrainingLog
from experiments.run.verdicts import where
from identity_matters import flops, nets, runs
from identity_matters.checks import positive_number
from identity_matters.images import decoding, imagenet
from identity_matters.train import (
    checkpoint,
    net_source,
    parallel,
    records,
    step,
    trained_net,
)
from identity_matters.train.intervals import Intervals

# The paper's second error for ImageNet is top-5; it says little where classes are few.
TOP_K = 5
LEAST_CLASSES_FOR_TOP_K = 1000
GROUPS = ("data", "model", "optim", "train")


def make_optimizer(
    *,
    steps: int,
    momentum: float,
    nesterov: bool,
    weight_decay: float,
    decayed: str,
    learning_rate: float,
    **schedule,
) -> tuple[optax.GradientTransformation, optax.Schedule, float]:
    """What the group `optim` describes.

    Args:
      steps: the length of the training.
      momentum, nesterov, weight_decay, decayed: see `step.momentum_sgd`.
      learning_rate: the largest of the training.
      schedule: the other settings; see `step.relative_schedule`.
    Returns:
      (optimizer, schedule, learning rate), as `step.Task` wants them.
    """
    rate = positive_number("learning_rate", learning_rate)
    relative = step.relative_schedule(steps=steps, **schedule)
    optimizer = step.momentum_sgd(
        relative,
        momentum=momentum,
        nesterov=nesterov,
        weight_decay=weight_decay,
        decayed=decayed,
    )
    return optimizer, relative, rate


class _Net(NamedTuple):
    """A net, and how large it is.

    Attributes:
      net: the module.
      parameters: how many are trained.
      forward_flops: of one image's forward pass.
    """

    net: nets.base.Net
    parameters: int
    forward_flops: int


def _make_net(model: dict, num_classes: int, image_shape: tuple) -> _Net:
    """The net that the group `model` describes.

    Args:
      model: the group of settings.
      num_classes: of the data set.
      image_shape: (h, w, c).
    Raises:
      ValueError: a setting is invalid, or the net cannot take images of this shape.
    """
    _require_settings_of_net(model)
    net = nets.make_net(num_classes=num_classes, axis_name=step.AXIS_NAME, **model)
    shapes = nets.variable_shapes(net, image_shape)
    forward_flops = flops.count_flops(
        lambda variables, x: nets.apply_net(net, variables, x, train=False)[0],
        shapes,
        jax.ShapeDtypeStruct((1, *image_shape), "float32"),
    )
    parameters = flops.count_parameters(shapes["params"])
    return _Net(net, parameters, forward_flops)


def _require_settings_of_net(model: dict) -> None:
    """Refuses the settings of another net, as when only its name was changed."""
    net = nets.NETS.get(model["name"])
    if net is None:
        return  # `nets.make_net` says which nets there are
    known = {field.name for field in dataclasses.fields(net)}
    unknown = model.keys() - known - {"name"}
    if unknown:
        raise ValueError(
            f"model.{min(unknown)} is not a setting of the net {model['name']}"
        )


class _Plan(NamedTuple):
    """All of a training but its images.

    Attributes:
      num_classes: of the data set.
      image_shape: (h, w, c).
      sized_net: the net, and how large it is.
      optimizer: of the parameters.
      schedule: the learning rate of each step, over the largest one.
      learning_rate: the largest of the training.
      devices: those that share a step.
      intervals: how long it is, and how often it logs, evaluates and saves.
    """

    num_classes: int
    image_shape: tuple[int, int, int]
    sized_net: _Net
    optimizer: optax.GradientTransformation
    schedule: optax.Schedule
    learning_rate: float
    devices: Sequence[jax.Device]
    intervals: Intervals


def _make_plan(
    *,
    data: dict,
    model: dict,
    optim: dict,
    train: dict,
    devices: Sequence[jax.Device] | None,
) -> _Plan:
    """What the settings describe, apart from images.

    Args:
      data, model, optim, train: the groups of settings.
      devices: by default those that the settings ask for.
    Raises:
      ValueError: a setting is invalid, or the net cannot take images of this shape.
    """
    num_classes, image_shape = classes_and_shape(data)
    sized_net = _make_net(model, num_classes, image_shape)
    optimizer, schedule, learning_rate = make_optimizer(steps=train["steps"], **optim)
    if devices is None:
        devices = parallel.pick_devices(train["devices"], train["batch_examples"])
    intervals = make_intervals(
        train, steps_per_dispatch=_steps_per_dispatch(data, train, devices)
    )
    return _Plan(
        num_classes=num_classes,
        image_shape=image_shape,
        sized_net=sized_net,
        optimizer=optimizer,
        schedule=schedule,
        learning_rate=learning_rate,
        devices=devices,
        intervals=intervals,
    )


def _steps_per_dispatch(data: dict, train: dict, devices: Sequence[jax.Device]) -> int:
    """The setting; where that is 0, many for images in an accelerator's memory."""
    if train["steps_per_dispatch"]:
        return train["steps_per_dispatch"]
    is_streamed = data["dataset"] == imagenet.NAME
    if is_streamed or devices[0].platform == "cpu":
        return 1
    return ACCELERATOR_STEPS_PER_DISPATCH


class Training(DeviceTraining):
    """One training, built from its settings; see also `DeviceTraining`.

    Args:
      data, model, optim, train: the groups of settings.
      devices: by default those that the settings ask for.
      images: by default those that `data` describes.
      labels: other fields of the trial, such as the name of the net in a comparison.
    Attributes:
      fingerprint: of the images; it must be the same in all processes.
      keeps_checkpoint: whether the last checkpoint stays.
    Raises:
      ValueError: a setting cannot be used.
    """

    def __init__(
        self,
        *,
        data: dict,
        model: dict,
        optim: dict,
        train: dict,
        devices: Sequence[jax.Device] | None = None,
        images: ImageData | None = None,
        **labels,
    ):
        # Reading the images takes longest: what does not need them is checked before.
        plan = _make_plan(
            data=data, model=model, optim=optim, train=train, devices=devices
        )
        if images is None:
            images = load_data(data)
        task = _make_task(plan, images)
        steps_on_devices = parallel.ParallelSteps(
            task,
            devices=plan.devices,
            batch_examples=train["batch_examples"],
            evaluation_batch_examples=train["evaluation_batch_examples"],
        )
        super().__init__(task, steps_on_devices, plan.intervals)
        self.dataset = data["dataset"]
        self.num_classes = plan.num_classes
        self.net = plan.sized_net.net
        self.parameters = plan.sized_net.parameters
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

    @property
    def flops(self) -> float:
        """Floating-point operations of all training steps."""
        examples = self.parallel.batch_examples * self.intervals.steps
        return self.task.flops_per_example * examples

    def run(self, key, log: TrainingLog, *, keep_diverged: bool = False) -> dict:
        """Trains; returns the last and the best test error, timings, size and devices.

        Args:
          key: the root of all randomness: initial weights, example order,
            augmentation, dropout.
          log: of this training.
          keep_diverged: return {"diverged": True, ...} instead of raising an error.
        Raises:
          run.DivergedError: a loss or gradient is not finite.
          run.Interrupted: after SIGTERM, once a checkpoint is saved.
          runs.RunError: the checkpoints cannot be used, or an image cannot be read.
        """
        size = {
            "parameters": self.parameters,
            "num_classes": self.num_classes,
            **self.size(),
        }
        try:
            result = self.fit(
                log,
                key=key,
                settings={**self._settings, "images": self.fingerprint},
                compute_dtype=self.net.compute_dtype,
                belongs_to=checkpoint.NetAndPreprocessing(
                    net_source.describe(self.net), self.preprocessing
                ),
            )
        except decoding.DataError as error:
            raise runs.RunError(f"{error}; then {run.RESUMES}") from None
        except run.DivergedError as error:
            if not keep_diverged:
                raise
            return {**size, "diverged": True, "diverged_step": error.step}
        return {**size, "diverged": False, **result}

    def evaluate(self, variables: dict) -> dict:
        """The evaluation record of the net with these variables, at the last step."""
        state = self.parallel.start(jax.random.key(0), variables)
        steps = self.intervals.steps
        examples = steps * self.parallel.batch_examples
        sums = self.parallel.evaluate(state)
        assert sums is not None  # nobody asks it to stop
        return records.evaluation_record(
            sums,
            step=steps,
            epoch=examples / self.task.data.train_examples,
            seconds=0.0,
            compile_seconds=0.0,
            top_k=self.task.top_k,
        )


def _make_task(plan: _Plan, images: ImageData) -> step.Task:
    """What is trained, and on which examples."""
    net = plan.sized_net.net
    forward_flops = plan.sized_net.forward_flops
    is_top_k_scored = plan.num_classes >= LEAST_CLASSES_FOR_TOP_K
    return step.Task(
        init=functools.partial(nets.init_variables, net, image_shape=plan.image_shape),
        apply=functools.partial(nets.apply_net, net),
        train_input=images.preprocessing.train_input,
        eval_input=images.preprocessing.eval_input,
        data=images.examples,
        optimizer=plan.optimizer,
        schedule=plan.schedule,
        learning_rate=plan.learning_rate,
        flops_per_example=flops.FORWARD_PASSES_PER_TRAINING_STEP * forward_flops,
        top_k=TOP_K if is_top_k_scored else 0,
    )


def load(run_dir: str, trial: int = 0) -> tuple[Training, trained_net.TrainedNet]:
    """Rebuilds a finished training from its settings, and its last net.

    The training needs its data. `identity_matters.train.load` reads the net alone, from
    the checkpoint.

    Args:
      run_dir: the directory of the run.
      trial: which of its trainings.
    Raises:
      CheckpointError: the checkpoint was not kept or is damaged.
      runs.RunError: the run is unreadable, of another experiment, or has not finished
        the training.
    """
    source = runs.read_run(run_dir)
    if not {"model", "optim"} <= source.config.keys():
        raise runs.RunError(
            f"{run_dir}: a run of {source.experiment}, which keeps no trained net"
        )
    finished = [record for record in source.records if record.get("kind") == run.RESULT]
    results = where(finished, cell=trial)
    if not results:
        raise runs.RunError(f"{run_dir}: training {trial} is not finished")
    groups = {name: results[0][name] for name in GROUPS}
    # the run may have had more devices than there are here
    groups["train"]["devices"] = 0
    checkpoints = source.path / runs.CHECKPOINTS
    variables = checkpoint.load_variables(checkpoints / f"cell={trial}")
    training = Training(**groups)
    return training, trained_net.TrainedNet(
        training.net, variables, training.preprocessing
    )
