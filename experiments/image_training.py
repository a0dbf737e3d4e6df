"""Puts data, model, optimiser and training loop together: one cell is one training.

A cell holds the groups `data`, `model`, `optim` and `train` of the settings; each is splatted into
one function here, so that a misspelt or unused setting is an error. What each setting means stands
in experiments/configs/training_groups.py.
"""

import functools
import inspect
import shutil

import jax
import numpy as np

from experiments import harness
from identity_matters import diagnostics, records
from identity_matters.data import arrays, augment, batches, sources
from identity_matters.models import registry
from identity_matters.training import (
    checkpoint,
    loop,
    measurements,
    optimizer,
    parallel,
    schedule,
    task,
)

# On an accelerator the host would be the bottleneck at one step a dispatch; on a CPU the steps of a
# dispatch are unrolled, which only takes longer to compile.
ACCELERATOR_STEPS_PER_DISPATCH = 100


def check_cell(*, data: dict, model: dict, optim: dict, train: dict) -> None:
    """Raises ValueError or TypeError where `measure` would, as far as that takes no computing."""
    check_net(data, model)
    _check_train(**train)
    make_optimizer(steps=train["steps"], **optim)


def check_net(data: dict, model: dict) -> None:
    """`check_cell` for the groups `data` and `model` alone."""
    source = _check_data(**data)
    settings = dict(model)
    name = settings.pop("name")
    _check_names(registry.MODELS, "model.name", name)
    _check_known(registry.MODELS[name], settings, "model")
    net = make_net(name, settings, source.num_classes)
    # Tracing the net finds out whether it can take images of this size.
    jax.eval_shape(lambda key: net.init(key, source.image_shape), jax.random.key(0))


def _check_names(known, what: str, name: str) -> None:
    if name not in known:
        raise ValueError(f"{what} must be one of {', '.join(known)}, got {name!r}")


def _check_known(function, settings: dict, group: str) -> None:
    known = inspect.signature(function).parameters
    for name in settings:
        if name not in known:
            raise ValueError(f"{function.__name__} has no setting {group}.{name}")


def _check_data(
    dataset, normalization, pad_pixels_per_side, flip, random_labels, data_dir, cache
) -> sources.Source:
    source = sources.find_source(dataset)
    _check_names(augment.NORMALIZATIONS, "data.normalization", normalization)
    if pad_pixels_per_side < 0:
        raise ValueError(f"data.pad_pixels_per_side must be 0 or more, got {pad_pixels_per_side}")
    for name, value in {"flip": flip, "random_labels": random_labels}.items():
        if not isinstance(value, bool):
            raise ValueError(f"data.{name} must be True or False, got {value!r}")
    for split in ("train", "test"):
        arrays.require_prepared(dataset, split, data_dir, cache)
    return source


def _check_train(
    steps,
    batch_examples,
    steps_per_dispatch,
    steps_per_log,
    steps_per_evaluation,
    steps_per_checkpoint,
    evaluation_batch_examples,
    devices,
    keep_final_checkpoint,
) -> None:
    least_one = {
        "steps": steps,
        "batch_examples": batch_examples,
        "steps_per_log": steps_per_log,
        "steps_per_evaluation": steps_per_evaluation,
        "steps_per_checkpoint": steps_per_checkpoint,
        "evaluation_batch_examples": evaluation_batch_examples,
    }
    for name, value in least_one.items():
        if value < 1:
            raise ValueError(f"train.{name} must be at least 1, got {value}")
    for name, value in {"steps_per_dispatch": steps_per_dispatch, "devices": devices}.items():
        if value < 0:
            raise ValueError(f"train.{name} must be 0 (chosen for you) or more, got {value}")
    if not isinstance(keep_final_checkpoint, bool):
        raise ValueError(
            f"train.keep_final_checkpoint must be True or False, got {keep_final_checkpoint!r}"
        )
    pick_devices(devices, batch_examples)


def pick_devices(count: int, batch_examples: int) -> list:
    """The first `count` devices; for 0 as many as divide the batch."""
    available = jax.local_devices()
    if count > len(available):
        raise ValueError(f"train.devices must be at most {len(available)} here, got {count}")
    if count and batch_examples % count:
        raise ValueError(
            f"train.batch_examples must be a multiple of train.devices, got {batch_examples} and"
            f" {count}"
        )
    divisors = (n for n in range(len(available), 0, -1) if batch_examples % n == 0)
    return available[: count or next(divisors)]


def make_optimizer(
    *, steps, schedule_name, learning_rate, boundary_steps, decay_factor, warmup_steps, momentum,
    nesterov, weight_decay, decayed,
):  # fmt: skip
    """The group `optim` as (optax transformation, schedule); ValueError for one that won't do."""
    rate = schedule.learning_rate_schedule(
        schedule=schedule_name,
        learning_rate=learning_rate,
        steps=steps,
        boundary_steps=tuple(boundary_steps),
        decay_factor=decay_factor,
        warmup_steps=warmup_steps,
    )
    transformation = optimizer.make_optimizer(
        rate, momentum=momentum, nesterov=nesterov, weight_decay=weight_decay, decayed=decayed
    )
    return transformation, rate


def measure(cell: dict, key, log, *, keep_diverged: bool = False) -> dict:
    """Trains what `cell` says; the last and the best test error and how long it took.

    Args:
      cell: the groups of settings; other fields are left alone.
      key: the root of initial weights, order of examples, augmentation and dropout.
      log: see `training_log.TrainingLog`.
      keep_diverged: a loss that is not finite is a result ("diverged": True), not an error.
    Raises:
      harness.Interrupted: SIGTERM came; a checkpoint was saved.
      harness.DivergedError: a loss was not finite.
    """
    groups = {name: dict(cell[name]) for name in ("data", "model", "optim", "train")}
    settings = groups["train"]
    keep = settings.pop("keep_final_checkpoint")
    devices = pick_devices(settings.pop("devices"), settings["batch_examples"])
    # Zeros fill the last batch; they are not counted.
    batch = settings["evaluation_batch_examples"]
    settings["evaluation_batch_examples"] = -(-batch // len(devices)) * len(devices)
    work = make_task(
        key,
        groups["data"],
        groups["model"],
        groups["optim"],
        settings["steps"],
        settings["batch_examples"],
    )
    if not settings["steps_per_dispatch"]:
        on_cpu = devices[0].platform == "cpu"
        settings["steps_per_dispatch"] = 1 if on_cpu else ACCELERATOR_STEPS_PER_DISPATCH
    size = {
        "parameters": count_trained(work),
        "training_flops_per_example": work.flops_per_example,
        "num_classes": sources.find_source(groups["data"]["dataset"]).num_classes,
        "devices": len(devices),
        "device_kind": devices[0].device_kind,
    }
    checkpoints = checkpoint.Checkpoints(log.checkpoint_dir, settings=_identity(cell, key))
    try:
        result = loop.fit(
            work,
            log,
            key=key,
            devices=devices,
            compute_dtype=groups["model"]["compute_dtype"],
            checkpoints=checkpoints,
            profile_dir=log.profile_dir,
            **settings,
        )
    except loop.StopRequested:
        raise harness.Interrupted from None
    except checkpoint.CheckpointMismatchError as error:
        raise records.RunError(f"{error}; move it away, or use another --results_dir") from None
    except measurements.NonFiniteError as error:
        if not keep_diverged:
            raise harness.DivergedError(str(error)) from None
        result = {"diverged": True, "diverged_step": error.step}
    else:
        result = {"diverged": False, **result}
    finally:
        checkpoints.close()
    if not keep:
        shutil.rmtree(log.checkpoint_dir, ignore_errors=True)
    return {**size, **result}


def _identity(cell: dict, key) -> dict:
    """What a checkpoint must agree in with the training that goes on from it."""
    data = {k: v for k, v in cell["data"].items() if k not in records.PLACE_SETTINGS}
    return {**cell, "data": data, "key": np.asarray(jax.random.key_data(key)).tolist()}


def count_trained(work: task.Task) -> int:
    """Trained parameters of the model of `work`."""
    return diagnostics.count_parameters(jax.eval_shape(work.init, jax.random.key(0))["params"])


def make_task(
    key, data: dict, model: dict, optim: dict, steps: int, batch_examples: int
) -> task.Task:
    """The pure functions and arrays that `training.loop` runs.

    Args:
      key: as in `measure`.
      data, model, optim: groups of settings.
      steps: the length of the schedule.
      batch_examples: of a step, over all devices.
    """
    try:
        source, train, test, (train_input, eval_input) = load_data(key, **data)
    except ValueError as error:
        raise harness.UsageError(str(error)) from None
    name, own = model["name"], {k: v for k, v in model.items() if k != "name"}
    net = make_net(name, own, source.num_classes)
    transformation, rate = make_optimizer(steps=steps, **optim)
    order_seed = int(jax.random.bits(jax.random.fold_in(key, _ORDER), dtype="uint32"))
    return task.Task(
        init=functools.partial(net.init, image_shape=source.image_shape),
        apply=net.apply,
        train_input=train_input,
        eval_input=eval_input,
        batch_plan=functools.partial(batches.batch_plan, order_seed, len(train[0]), batch_examples),
        example_keys=batches.example_keys,
        train_images=train[0],
        train_labels=train[1].astype(np.int32),
        test_images=test[0],
        test_labels=test[1].astype(np.int32),
        optimizer=transformation,
        schedule=rate,
        flops_per_example=diagnostics.training_flops(
            forward_flops(name, own, source.num_classes, source.image_shape)
        ),
    )


def make_net(name: str, settings: dict, num_classes: int):
    """The Model called `name`; its batch norm averages over all devices of a step."""
    if settings.get("convolution") == "auto":
        on_cpu = jax.default_backend() == "cpu"
        settings = {**settings, "convolution": "winograd" if on_cpu else "direct"}
    axis = parallel.AXIS_NAME
    return registry.MODELS[name](num_classes=num_classes, axis_name=axis, **settings)


def forward_flops(name: str, settings: dict, num_classes: int, image_shape) -> int:
    """Floating-point operations of one image's forward pass; a product with its sum counts two.

    They are those of direct convolutions, however the convolutions are computed.
    """
    direct = {"convolution": "direct"} if "convolution" in settings else {}
    net = make_net(name, {**settings, **direct}, num_classes)
    variables = jax.eval_shape(lambda key: net.init(key, image_shape), jax.random.key(0))
    image = jax.ShapeDtypeStruct((1, *image_shape), "float32")
    return diagnostics.count_flops(lambda v, x: net.apply(v, x, train=False)[0], variables, image)


# Purposes that the cell's key is split into here; the loop folds in others of its own.
_ORDER, _LABELS = 2**31 - 1, 2**31 - 2


def load_data(
    key, dataset, normalization, pad_pixels_per_side, flip, random_labels, data_dir, cache
):  # fmt: skip
    """The group `data`: source, (images, labels) of train and of test, `augment.make_inputs`."""
    source = sources.find_source(dataset)
    train, test = (arrays.load(dataset, split, data_dir, cache) for split in ("train", "test"))
    if random_labels:
        label_key = jax.random.fold_in(key, _LABELS)
        labels = jax.random.randint(label_key, train[1].shape, 0, source.num_classes)
        train = train[0], np.asarray(labels)
    constants = augment.fit_normalization(normalization, train[0], source.pixel_max)
    inputs = augment.make_inputs(
        normalization, constants, pad_pixels_per_side=pad_pixels_per_side, flip=flip
    )
    return source, train, test, inputs
