"""Training on your own arrays, with the loop that the experiments use."""

import functools
import warnings
from typing import Any

import flax.core
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from identity_matters import flops, jax_settings
from identity_matters.batches import Arrays
from identity_matters.checks import check_whole, plain_array, positive_number
from identity_matters.net_variables import COLLECTIONS, of_every_collection
from identity_matters.preprocessing import (
    Preprocessing,
    check_channels_last,
    looks_unscaled,
    raw_images,
)
from identity_matters.train import net_source, trained_net, trees
from identity_matters.train.intervals import Intervals
from identity_matters.train.loop import fit
from identity_matters.train.parallel import ParallelSteps, pick_devices
from identity_matters.train.progress import ProgressLog
from identity_matters.train.records import NonFiniteError
from identity_matters.train.step import (
    Task,
    momentum_sgd,
    relative_schedule,
)

LOGS = 10  # about how many train records a run has
# The net of docs/training.md stays at chance if all its inputs are below this.
_LEAST_INPUT = 0.1
# Of how many training images, spread over all, the inputs are looked at.
_LOOKED_AT = 100


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
    normalization: str | None = None,
    pad_pixels_per_side: int = 0,
    flip: bool = False,
    schedule: str = "cosine",
    warmup_steps: int = 0,
    momentum: float = 0.9,
    weight_decay: float = 1e-4,
    seed: int = 0,
    verbose: bool = True,
) -> tuple[trained_net.TrainedNet, list[dict]]:
    """Trains a classifier on arrays with momentum SGD, data-parallel over the devices.

    Args:
      net: a flax module, called as ``net(x, train=...)``; it returns logits, or a tuple
        that starts with them. `identity_matters.nets` has some. Batch norm averages
        over each device's share of a batch, unless its `axis_name` is "devices".
      variables: the initial ones, from `net.init`.

      x, x_test: uint8, or floating-point as float32, [n, ...]; images are [n, h, w, c].
      y, y_test: int[n], labels from 0, each less than the number of logits.
      normalization: "per_image", "mean_std" or "gcn_zca", see
        `identity_matters.preprocessing`. None divides uint8 by 255 and takes other
        images as they are.
      pad_pixels_per_side, flip: random crops after padding, and mirrored images; in
        training only.

      steps: updates of the weights, each from `batch_examples` images.
      batch_examples: fewer devices are used if their number does not divide it.
      learning_rate: the largest of the training.
      schedule, warmup_steps: see `step.relative_schedule`.
      momentum, weight_decay: see `step.momentum_sgd`; all leaves named kernel decay.

      seed: the root of all randomness except the initial `variables`; less than 2^32.
      verbose: whether to show progress: a bar on a terminal, and a line for each
        record.
    Returns:
      The trained net, which knows how to preprocess new images, and the records of the
      run, one dict for each log line and evaluation (docs/metrics.md has their fields).
    Raises:
      ValueError: a setting or an array does not fit; the message names it.
      NonFiniteError: the training diverged.
    """
    net_source.check_is_linen(net)
    # As Python's integers: short ones of NumPy would overflow.
    steps = check_whole("steps", steps)
    batch_examples = check_whole("batch_examples", batch_examples)
    seed = check_whole("seed", seed, 0)
    if seed >= 2**32:
        raise ValueError(f"seed must be less than 2^32, got {seed}")
    learning_rate = positive_number("learning_rate", learning_rate)
    relative = relative_schedule(
        schedule=schedule, steps=steps, warmup_steps=warmup_steps
    )
    optimizer = momentum_sgd(
        relative,
        momentum=momentum,
        nesterov=False,
        weight_decay=weight_decay,
        decayed="kernels",
    )
    normalization = "none" if normalization is None else normalization
    images = _training_images(x, normalization)
    preprocessing = Preprocessing.fit(
        normalization,
        images,
        pad_pixels_per_side=pad_pixels_per_side,
        flip=flip,
    )
    _warn_of_tiny_inputs(images, preprocessing)
    test_images = preprocessing.check_images("x_test", x_test)
    initial = _checked_collections(variables)
    classes = trained_net.count_classes(net, initial, preprocessing.image_shape)
    task = Task(
        init=lambda key: initial,
        apply=functools.partial(trained_net.apply, net),
        train_input=preprocessing.train_input,
        eval_input=preprocessing.eval_input,
        data=_labelled(images, y, test_images, y_test, classes=classes),
        optimizer=optimizer,
        schedule=relative,
        learning_rate=learning_rate,
        flops_per_example=_training_flops_per_example(
            net, initial, preprocessing.image_shape
        ),
    )
    state, train_records = _fit(
        task, steps=steps, batch_examples=batch_examples, seed=seed, verbose=verbose
    )
    trained = {name: state[name] for name in COLLECTIONS}
    return trained_net.TrainedNet(net, trained, preprocessing), train_records


def _training_images(x: Any, normalization: str) -> np.ndarray:
    """x as raw images, channels last.

    ValueError if nothing will bring large numbers to scale.
    """
    images = raw_images("x", x)
    check_channels_last("x", images)
    if normalization == "none" and looks_unscaled(images):
        raise ValueError(
            f"x is {plain_array('x', x).dtype} up to {images.max():g}, which looks like"
            " pixels or counts that are not scaled: choose a normalization, or scale x"
            " and x_test"
        )
    return images


def _warn_of_tiny_inputs(images: np.ndarray, preprocessing: Preprocessing) -> None:
    """Warns if the preprocessing leaves little of the training images.

    So it does with small numbers in uint8, over 255, and ``per_image`` with numbers
    that vary little.
    """
    spread = images[:: -(-len(images) // _LOOKED_AT)]
    largest = float(np.abs(preprocessing.eval_input(spread)).max())
    if largest < _LEAST_INPUT:
        warnings.warn(
            f"the inputs of the net are at most {largest:.2g}, made from x, which is"
            f" {images.dtype} up to {images.max():.3g}: choose another normalization,"
            " or scale x and x_test",
            stacklevel=3,
        )


def _labelled(
    images: np.ndarray, y: Any, test_images: np.ndarray, y_test: Any, *, classes: int
) -> Arrays:
    """Both splits with their labels, which must be below `classes`."""
    labels = trained_net.whole_labels("y", y, examples=len(images), classes=classes)
    test_labels = trained_net.whole_labels(
        "y_test", y_test, examples=len(test_images), classes=classes
    )
    return Arrays(
        train_images=images,
        train_labels=labels,
        test_images=test_images,
        test_labels=test_labels,
    )


def _fit(
    task: Task, *, steps: int, batch_examples: int, seed: int, verbose: bool
) -> tuple[dict, list[dict]]:
    """The final state and the records of a training without checkpoints."""
    parallel = ParallelSteps(
        task,
        devices=pick_devices(0, batch_examples),
        batch_examples=batch_examples,
        evaluation_batch_examples=batch_examples,
    )
    steps_per_record = max(steps // LOGS, 1)
    intervals = Intervals(
        steps=steps,
        steps_per_dispatch=1,
        steps_per_log=steps_per_record,
        steps_per_evaluation=steps_per_record,
        steps_per_checkpoint=steps,
    )
    with ProgressLog(verbose) as log:
        try:
            _, state = fit(
                task, parallel, intervals, log, key=jax_settings.random_key(seed)
            )
        except NonFiniteError as error:
            error.add_note("Lower learning_rate, or raise warmup_steps.")
            raise
    return state, log.records


def _checked_collections(variables: Any) -> dict:
    """The user's variables, as the three collections of a training state.

    Raises ValueError if there are other collections, nothing to train, or numbers that
    are not finite.
    """
    if not isinstance(variables, dict | flax.core.FrozenDict):
        raise ValueError(f"variables must be a dict, got {type(variables).__name__}")
    others = sorted(str(name) for name in variables if name not in COLLECTIONS)
    if others:
        raise ValueError(
            f"the net has the collections {', '.join(others)}, which training would"
            f" lose: only {', '.join(COLLECTIONS)} are kept from step to step"
        )
    if not jax.tree.leaves(variables.get("params", {})):
        raise ValueError("variables must have params, those that are trained")
    for name, leaf in trees.names(variables).items():
        if not np.isfinite(plain_array(f"{name} of variables", leaf)).all():
            raise ValueError(
                f"variables must be finite, which {name} is not. If a net of"
                " identity_matters is part of another module, only its own init draws"
                " its weights: put these into the variables of the other"
            )
    return of_every_collection(variables)


def _training_flops_per_example(
    net: nn.Module, variables: dict, image_shape: tuple
) -> float:
    example = jax.ShapeDtypeStruct((1, *image_shape), jnp.float32)
    forward = flops.count_flops(
        lambda v, x: trained_net.apply(net, v, x, train=False)[0], variables, example
    )
    return flops.FORWARD_PASSES_PER_TRAINING_STEP * forward
