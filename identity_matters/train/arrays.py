"""Training and prediction on your own arrays, with the loop that the experiments use."""

import functools
import inspect
import os
from typing import Any

import flax.errors
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from identity_matters import flops, jax_settings, runs
from identity_matters.batches import Arrays
from identity_matters.checks import check_whole
from identity_matters.train.checkpoint import COLLECTIONS, Checkpoints
from identity_matters.train.loop import Intervals, Log, fit
from identity_matters.train.parallel import ParallelSteps, pick_devices
from identity_matters.train.step import Task, learning_rate_schedule, momentum_sgd

LOGS = 10  # about how many train records a run has


def train(
    net: nn.Module,
    variables: dict,
    x: Any,
    y: Any,
    x_test: Any,
    y_test: Any,
    *,
    steps: int,
    learning_rate: float,
    batch_examples: int = 128,
    schedule: str = "cosine",
    warmup_steps: int = 0,
    momentum: float = 0.9,
    weight_decay: float = 1e-4,
    seed: int = 0,
    verbose: bool = True,
) -> tuple[dict, list[dict]]:
    """Trains a classifier on arrays with momentum SGD, data-parallel over the devices.

    Args:
      net: a flax module, called as ``net(x, train=...)``; it returns logits, or a tuple that starts
        with them. `identity_matters.nets` has some.
      variables: from `net.init`, but for `identity_matters.nets` from `nets.init_variables`.
      x, x_test: float32 or uint8[n, ...]; uint8 is divided by 255.
      y, y_test: int[n], labels from 0, each less than the number of logits.
      steps, learning_rate, schedule, warmup_steps: see `step.learning_rate_schedule`.
      batch_examples: fewer devices are used if their number does not divide it.
      weight_decay: applied to every leaf named kernel.

    Returns (the trained variables, the records of the run). Raises ValueError for an invalid
    setting or array, and step.NonFiniteError if the training diverges.
    """
    if check_whole("seed", seed, 0) >= 2**32:
        raise ValueError(f"seed must be less than 2^32, got {seed}")
    every = max(steps // LOGS, 1)
    data = Arrays(_as_images(x), np.asarray(y), _as_images(x_test), np.asarray(y_test))
    rate = learning_rate_schedule(
        schedule=schedule, learning_rate=learning_rate, steps=steps, warmup_steps=warmup_steps
    )
    start = {name: variables.get(name, {}) for name in COLLECTIONS}
    classes, example = _classes_and_example(net, start, data.train_images)
    _classes_and_example(net, start, data.test_images)
    least, largest = (f(np.append(data.train_labels, data.test_labels)) for f in (np.min, np.max))
    if least < 0 or largest >= classes:
        raise ValueError(f"labels must be from 0 to {classes - 1}, got {least} to {largest}")
    forward = flops.count_flops(lambda v, x: _apply(net, v, x, train=False)[0], start, example)
    task = Task(
        init=lambda key: start,
        apply=functools.partial(_apply, net),
        train_input=lambda images, keys: _as_input(images),
        eval_input=_as_input,
        data=data,
        optimizer=momentum_sgd(
            rate, momentum=momentum, nesterov=False, weight_decay=weight_decay, decayed="kernels"
        ),
        schedule=rate,
        flops_per_example=flops.FORWARD_PASSES_PER_TRAINING_STEP * forward,
    )
    parallel = ParallelSteps(
        task,
        devices=pick_devices(0, batch_examples),
        batch_examples=batch_examples,
        evaluation_batch_examples=batch_examples,
    )
    log, intervals = Log(verbose), Intervals(steps, 1, every, every, steps)
    _, state = fit(task, parallel, intervals, log, key=jax_settings.random_key(seed))
    return {name: state[name] for name in COLLECTIONS}, log.records


def predict(net: nn.Module, variables: dict, x: Any, *, batch_examples: int = 1000) -> np.ndarray:
    """The logits of a net, f32[n, k]; the predicted label is their argmax.

    `variables` are from `train` or `checkpoint.load_variables`; for `net` and `x` see `train`.
    Raises ValueError if `x` is empty or the net cannot take it.
    """
    x = _as_images(x)
    _classes_and_example(net, variables, x)
    # Compiled at each call: a net with a list in a field cannot be hashed, so jit cannot know it.
    logits = jax.jit(lambda images: _apply(net, variables, _as_input(images), train=False)[0])
    starts = range(0, len(x), batch_examples)
    return np.concatenate([np.asarray(logits(x[i : i + batch_examples])) for i in starts])


def save_variables(directory: str | os.PathLike[str], variables: dict) -> None:
    """Saves variables for `load_variables`; names in them must have no dot.

    Raises CheckpointError if `directory` holds a checkpoint already.
    """
    with Checkpoints(directory, settings={}) as checkpoints:
        checkpoints.save(0, jax.device_get(variables), {})


def _classes_and_example(net, variables, x) -> tuple[int, jax.ShapeDtypeStruct]:
    """How many logits the net gives, and what it takes; ValueError if it cannot take x."""
    has, unboxed = map(jax.tree.structure, (variables, nn.meta.unbox(variables)))
    if str(has) != str(unboxed):
        raise ValueError("nets of identity_matters.nets need nets.init_variables, not net.init")
    example = jax.ShapeDtypeStruct((1, *x.shape[1:]), jnp.float32)
    try:
        if not x.size:
            raise ValueError("it is empty")
        logits, _ = jax.eval_shape(lambda v, x: _apply(net, v, x, train=False), variables, example)
        _, classes = logits.shape
    except (TypeError, ValueError, flax.errors.FlaxError) as error:
        raise ValueError(
            f"x must be [n, ...], n from 1, as the net takes it (one example is x[None]), got shape"
            f" {x.shape}: {runs.first_line(error)}"
        ) from error
    return classes, example


def _as_images(x) -> np.ndarray:
    x = np.asarray(x)
    return x if x.dtype == np.uint8 else x.astype(np.float32)


def _as_input(images):
    scale = 255 if images.dtype == np.uint8 else 1
    return jnp.asarray(images, jnp.float32) / scale


def _apply(net, variables, x, *, train, keys=None):
    arguments: dict = {"train": train, "mutable": ["batch_stats"] if train else []}
    if train:
        # The nets of this suite take one dropout key per example, other flax modules a single rng.
        own = "keys" in inspect.signature(type(net).__call__).parameters
        arguments |= {"keys": keys} if own else {"rngs": {"dropout": keys[0]}}
    outputs, changed = net.apply(variables, x, **arguments)
    logits = outputs[0] if isinstance(outputs, tuple) else outputs
    return logits, {
        "residual_ratio": jnp.zeros((0, len(x)), jnp.float32),
        "batch_stats": (changed if train else variables).get("batch_stats", {}),
    }
