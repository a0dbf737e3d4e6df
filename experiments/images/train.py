"""Settings to trainings: one trial of `cifar`, `imagenet` and `ablations` is one `Training`.

Its settings are four groups, `data` (see `data`), `model`, `optim` and `train`; what uses them
refuses what will not do. A trained net comes back in three lines:

    training, state = load("results/local/cifar/digits/all_conv_residual/seed=0")
    print(training.evaluate(state)["test_error_percent"])
"""

import functools

import jax
import numpy as np

from experiments import run
from experiments.images import data as image_data
from experiments.images.log import RESULT
from experiments.run.shared import reproduced
from identity_matters import flops, nets, runs
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


# The net of Table 1. Where the text leaves something open, the choice is a setting.
ALL_CONV_RESIDUAL = {
    "name": "all_conv_residual",
    "blocks_per_stage": (9, 9, 9),  # residual blocks of the three stages
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
    "steps_per_dispatch": 0,  # 0: one on a CPU, 100 on an accelerator
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
      model: a net of another name is taken as it is.
    """
    return {
        "scale": scale,
        "data": data,
        "model": model if "name" in model else {**ALL_CONV_RESIDUAL, **model},
        "optim": {**OPTIM, **optim},
        "train": {**TRAIN, **train},
    }


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
    net = nets.make_net(num_classes=num_classes, axis_name=parallel.AXIS_NAME, **model)
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
      images: an `image_data.ImageData` in place of the one that `data` describes.
    Attributes:
      dataset, data: its name, and an `image_data.ImageData`.
      net: a flax module; `parameters` counts its own.
      task, parallel, intervals: what `loop.fit` takes.
      fingerprint: of the data; several processes must agree in it.
      keeps_checkpoint: whether its last checkpoint stays.
    Raises:
      ValueError or TypeError: a setting or data that will not do.
    """

    def __init__(
        self, *, data: dict, model: dict, optim: dict, train: dict, devices=None, images=None,
        **labels,
    ):  # fmt: skip
        self.dataset = data["dataset"]
        num_classes, shape = image_data.size(data)
        self.net, self.parameters, forward = make_net(model, num_classes, shape)
        optimizer, rate = make_optimizer(steps=train["steps"], **optim)
        devices = devices or parallel.pick_devices(train["devices"], train["batch_examples"])
        streamed = self.dataset == image_data.imagenet.NAME
        one_by_one = streamed or devices[0].platform == "cpu"
        self.intervals = loop.Intervals(
            train["steps"],
            train["steps_per_dispatch"] or (1 if one_by_one else ACCELERATOR_STEPS_PER_DISPATCH),
            train["steps_per_log"],
            train["steps_per_evaluation"],
            train["steps_per_checkpoint"],
        )
        self.data = images or image_data.load(data)
        self.fingerprint = self.data.fingerprint
        self.keeps_checkpoint = train["keep_final_checkpoint"]
        self._settings = {**labels, "data": data, "model": model, "optim": optim, "train": train}
        self.task = step.Task(
            init=functools.partial(nets.init_variables, self.net, image_shape=shape),
            apply=functools.partial(nets.apply_net, self.net),
            train_input=self.data.train_input,
            eval_input=self.data.eval_input,
            data=self.data.examples,
            optimizer=optimizer,
            schedule=rate,
            flops_per_example=flops.training_flops(forward),
            top_k=TOP_K if num_classes >= LEAST_CLASSES_FOR_TOP_K else 0,
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
            "num_classes": self.data.num_classes,
            "train_examples": self.task.data.train_examples,
            "devices": len(devices),
            "processes": jax.process_count(),
            "device_kind": kind,
            "steps_per_dispatch": self.intervals.steps_per_dispatch,
        }
        # What a checkpoint must agree in with the training that goes on from it.
        identity = {**self._settings, "key": np.asarray(jax.random.key_data(key))}
        try:
            result, _ = loop.fit(
                self.task,
                self.parallel,
                self.intervals,
                log,
                key=key,
                checkpoints=checkpoint.Checkpoints(
                    log.checkpoint_dir, settings=identity, on_warning=log.say
                ),
                peak_flops_per_second=None if peak is None else peak * len(devices),
                profile_dir=log.profile_dir,
            )
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

    def evaluate(self, state: dict) -> dict:
        """The evaluation record of a state, see `step.evaluation_record`."""
        sums = self.parallel.evaluate(self.parallel.start(jax.random.key(0), state))
        updates, examples = int(state["step"]), self.task.data.train_examples
        epoch = updates * self.parallel.batch_examples / examples
        return step.evaluation_record(updates, epoch, sums, 0.0, 0.0, self.task.top_k)


def load(run_dir: str, trial: int = 0) -> tuple[Training, dict]:
    """A finished training as it was recorded, and its last state.

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
    groups = {name: _with_tuples(results[0][name]) for name in ("data", "model", "optim", "train")}
    groups["train"]["devices"] = 0  # it may have been trained on more than there are here
    training = Training(**groups)
    directory = found.path / "checkpoints" / f"cell={trial}"
    like = step.initial_state(training.task.init(jax.random.key(0)), training.task.optimizer)
    with checkpoint.Checkpoints(directory, settings=None) as checkpoints:
        restored = checkpoints.restore(like)
    if restored is None:
        raise checkpoint.CheckpointError(f"there is no checkpoint in {directory}")
    return training, restored[1]


def _with_tuples(settings: dict) -> dict:
    """Lists, which is what JSON makes of tuples, as tuples again."""
    return {k: tuple(v) if isinstance(v, list) else v for k, v in settings.items()}


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
