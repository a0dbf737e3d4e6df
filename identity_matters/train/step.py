"""The task, the optimizer, and what one device computes in a step.

An update, a dispatch and an evaluation are pure functions, which `parallel` maps over
devices; `records` makes records of their sums. The training state is one dict:

* ``step``         i32[], updates made so far
* ``params``       trained parameters, float32
* ``fixed``        drawn once, never trained: the paper's random projection (section 4)
* ``batch_stats``  running statistics of batch norm
* ``opt_state``    the optimizer's own state
"""

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from identity_matters.batches import Drawn, Examples, example_keys
from identity_matters.checks import check_choice, check_whole, real_number
from identity_matters.net_variables import COLLECTIONS

# The mapped axis; nets with statistics of the whole batch,
# such as batch norm, average over it.
AXIS_NAME = "devices"
# Rule -> whether weight decay applies to a leaf of this name and rank.
DECAYED = {
    "convolutions": lambda name, ndim: name == "kernel" and ndim == 4,
    "kernels": lambda name, ndim: name == "kernel",
    "all": lambda name, ndim: True,
}
SCHEDULES = ("step", "cosine", "constant")


def classification(logits: jax.Array, labels: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Cross entropy f32[n], and errors bool[n].

    An example is an error if its largest logit (the first, if several tie) is not that
    of its label.

    Args:
      logits: f32[n, k].
      labels: i32[n].
    """
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    return losses, jnp.argmax(logits, axis=-1) != labels


def regression(outputs: jax.Array, labels: jax.Array) -> tuple[jax.Array, None]:
    """``||y - yhat||^2``, f32[n], for outputs and labels f32[n, k].

    Nothing counts as an error.
    """
    return jnp.sum((outputs - labels) ** 2, axis=-1), None


@dataclasses.dataclass(frozen=True, eq=False)
class Task:
    """A classification or regression problem as pure functions and data.

    Of the variables, only "params" are trained; a collection that the net lacks is an
    empty dict. `apply` takes one key per example and returns logits f32[n, k] and
    intermediates: "residual_ratio", f32[blocks, n], and "batch_stats", the new running
    statistics. A net that averages over the whole batch does so over AXIS_NAME.
    """

    init: Callable  # (key) -> {"params": ..., "fixed": ..., "batch_stats": ...}
    # (variables, x: f32[n, ...], *, train, keys=None) -> (logits, intermediates)
    apply: Callable
    train_input: Callable  # (images, keys[n]) -> f32[n, ...]
    eval_input: Callable  # (images) -> f32[n, ...]
    data: Examples
    optimizer: optax.GradientTransformation
    schedule: Callable  # (step) -> f32[], for the log, times `learning_rate`
    flops_per_example: float  # floating-point operations to train on one example
    # What the optimizer's updates are multiplied by. It is an argument of the program,
    # so trainings that differ in it alone share one.
    learning_rate: float = 1.0
    top_k: int = 0  # see `evaluation_step`
    # (outputs, labels) -> (losses f32[n], errors or None)
    compare: Callable = classification
    # whether the loop over the steps of a dispatch is unrolled on CPUs, as convolutions
    # need it: see `parallel`
    unrolled_on_cpu: bool = True


def relative_schedule(
    *,
    schedule: str,
    steps: int,
    boundary_steps: Sequence[int] = (),
    decay_factor: float = 0.1,
    warmup_steps: int = 0,
) -> optax.Schedule:
    """The learning rate of each update over the largest one, by optax's schedules.

    The paper (section 4) has the one below, times 0.05; the other schedules and the
    warm-up are our additions.

    >>> factor = relative_schedule(
    ...     schedule="step", steps=60_000, boundary_steps=(30_000, 50_000)
    ... )
    >>> [round(float(factor(step)), 6) for step in (0, 29_999, 30_000, 50_000)]
    [1.0, 1.0, 0.1, 0.01]

    The first updates have 1/warmup_steps, 2/warmup_steps, ... Then "step" multiplies by
    `decay_factor` at each of `boundary_steps`, "cosine" decays along half a cosine to 0
    after the last of the `steps`, and "constant" stays at 1. Boundaries count from the
    start of the run and ascend from above `warmup_steps`. Those at or past `steps` are
    allowed, so that a run can be cut short.

    Returns ``schedule(step: i32[]) -> f32[]``, where `step` counts the updates before
    this one. Raises ValueError for an invalid argument, with its value.
    """
    # As Python's integers: short ones of NumPy would overflow.
    steps = check_whole("steps", steps)
    warmup_steps = check_whole("warmup_steps", warmup_steps, 0)
    decay_factor = real_number("decay_factor", decay_factor)
    _check_schedule(
        schedule,
        steps=steps,
        boundary_steps=boundary_steps,
        decay_factor=decay_factor,
        warmup_steps=warmup_steps,
    )
    # After the warm-up; a joined schedule counts steps from its own start.
    match schedule:
        case "step":
            after = optax.piecewise_constant_schedule(
                1.0, {step - warmup_steps: decay_factor for step in boundary_steps}
            )
        case "cosine":
            after = optax.cosine_decay_schedule(1.0, steps - warmup_steps)
        case "constant":
            after = optax.constant_schedule(1.0)
    if not warmup_steps:
        return after
    warmup = optax.linear_schedule(1 / warmup_steps, 1.0, max(warmup_steps - 1, 1))
    return optax.join_schedules([warmup, after], [warmup_steps])


def _check_schedule(
    schedule: str,
    *,
    steps: int,
    boundary_steps: Sequence[int],
    decay_factor: float,
    warmup_steps: int,
) -> None:
    """ValueError unless `relative_schedule` takes these whole and real numbers."""
    check_choice("schedule", schedule, SCHEDULES)
    if not warmup_steps < steps:
        raise ValueError(
            f"warmup_steps must be from 0 to below steps={steps}, got {warmup_steps}"
        )
    if not 0 < decay_factor <= 1:
        raise ValueError(
            f"decay_factor must be above 0 and at most 1, got {decay_factor}"
        )
    ascend = all(a < b for a, b in itertools.pairwise((warmup_steps, *boundary_steps)))
    if boundary_steps and (schedule != "step" or not ascend):
        raise ValueError(
            "boundary_steps belong to the schedule 'step' and must ascend from above"
            f" warmup_steps={warmup_steps}, got {tuple(boundary_steps)} for"
            f" {schedule!r}"
        )


def momentum_sgd(
    schedule: Callable,
    *,
    momentum: float,
    nesterov: bool,
    weight_decay: float,
    decayed: str = "convolutions",
) -> optax.GradientTransformation:
    """The optimizer of the paper (section 4), which has momentum 0.9 and decay 1e-4.

        g = gradient + weight_decay * w
        v = momentum * v + g
        w = w - rate * v

    As in TensorFlow's MomentumOptimizer, the rate, ``schedule(step)``, multiplies the
    velocity but is not part of it, so a change of rate acts at once. With `nesterov`
    the step is along ``g + momentum * v``. Weight decay is not decoupled: it goes
    through the momentum.

    Args:
      schedule: (step) -> the rate.
      momentum, weight_decay: from 0 to below 1.
      nesterov: whether to look ahead.
      decayed: "convolutions" (4-D leaves named kernel, as in the paper), "kernels" (all
        leaves named kernel) or "all".
    Raises:
      ValueError: an invalid argument, with its value. The optimizer itself raises it if
        `weight_decay` is above 0 and no parameter decays.
    """
    for name, value in (("momentum", momentum), ("weight_decay", weight_decay)):
        if not 0 <= real_number(name, value) < 1:
            raise ValueError(f"{name} must be 0 or more and below 1, got {value}")
    check_choice("decayed", decayed, DECAYED)

    def is_decayed(params):
        mask = jax.tree_util.tree_map_with_path(
            lambda path, leaf: DECAYED[decayed](
                getattr(path[-1], "key", None), leaf.ndim
            ),
            params,
        )
        if not any(jax.tree.leaves(mask)):
            raise ValueError(
                f"decayed={decayed!r} names no parameter to decay: choose another, or"
                " set weight_decay to 0"
            )
        return mask

    velocity = optax.sgd(schedule, momentum, nesterov)
    if not weight_decay:
        return velocity
    return optax.chain(optax.add_decayed_weights(weight_decay, is_decayed), velocity)


def initial_state(variables: dict, optimizer: optax.GradientTransformation) -> dict:
    """The state before the first update, for `variables` from ``Task.init``."""
    return {
        "step": jnp.zeros((), jnp.int32),
        **_variables(variables),
        "opt_state": optimizer.init(variables["params"]),
    }


def training_step(
    task: Task, state: dict, batch: dict, *, key: jax.Array, learning_rate: jax.Array
) -> tuple[dict, dict]:
    """One update: ``(state, sums)``.

    A batch is {"images": [n, ...], "labels": i32[n], "indices": i32[n], "epochs":
    i32[n]}, an equal share for each device of AXIS_NAME. The randomness of an example
    depends on `key`, its epoch and its index alone. The loss is the mean of
    `task.compare` over the whole batch, without the penalty. Where the data are
    `Drawn`, the batch has no images and labels yet. `learning_rate` is that of the
    task, f32[].

    `sums`, of the whole batch, holds loss f32[] (summed over examples), errors i32[]
    (of a classification), examples i32[], gradient_norm f32[] (of the mean loss) and
    learning_rate f32[].
    """
    augmentation_key, dropout_key = jax.random.split(key)
    epochs = batch["epochs"]
    indices = batch["indices"]
    augmentation_keys = example_keys(augmentation_key, epochs, indices)
    dropout_keys = example_keys(dropout_key, epochs, indices)
    if isinstance(task.data, Drawn):
        batch = {**batch, **task.data.draw(augmentation_keys)}
    x = task.train_input(batch["images"], augmentation_keys)
    labels = batch["labels"]
    share = _differentiate(task, state, x, labels, dropout_keys)
    gradient = jax.lax.pmean(share.gradient, AXIS_NAME)
    new_state = _updated(
        task, state, gradient, share.batch_stats, learning_rate=learning_rate
    )
    n = len(labels)
    sums = {"loss": share.loss * n, **share.counts, "examples": jnp.int32(n)}
    sums = jax.lax.psum(sums, AXIS_NAME)
    sums["gradient_norm"] = optax.tree.norm(gradient)
    sums["learning_rate"] = learning_rate * task.schedule(state["step"])
    return new_state, sums


class _Differentiated(NamedTuple):
    """The loss of one device's share of a batch, and its derivative.

    Attributes:
      loss: the mean over the share, f32[].
      gradient: of the loss, like the parameters.
      counts: {"errors": i32[]} of a classification, {} of a regression.
      batch_stats: those of the net after the forward pass.
    """

    loss: jax.Array
    gradient: Any
    counts: dict
    batch_stats: Any


def _differentiate(
    task: Task, state: dict, x: jax.Array, labels: jax.Array, dropout_keys: jax.Array
) -> _Differentiated:
    """Forward and backward pass in training mode; x is the input of the net."""

    def loss_of(params):
        variables = {**_variables(state), "params": params}
        logits, intermediates = task.apply(variables, x, train=True, keys=dropout_keys)
        losses, errors = task.compare(logits, labels)
        counts = {}
        if errors is not None:
            counts["errors"] = jnp.sum(errors, dtype=jnp.int32)
        return jnp.mean(losses), (counts, intermediates["batch_stats"])

    differentiate = jax.value_and_grad(loss_of, has_aux=True)
    (loss, (counts, batch_stats)), gradient = differentiate(state["params"])
    return _Differentiated(loss, gradient, counts, batch_stats)


def _updated(
    task: Task, state: dict, gradient: Any, batch_stats: Any, *, learning_rate: Any
) -> dict:
    """The state after an update with the gradient of the whole batch.

    `batch_stats` are those of this device.
    """
    updates, opt_state = task.optimizer.update(
        gradient, state["opt_state"], state["params"]
    )
    updates = optax.tree.scale(learning_rate, updates)
    return {
        "step": state["step"] + 1,
        "params": optax.apply_updates(state["params"], updates),
        "fixed": state["fixed"],
        # If the net averages over devices, these are equal on all of them already; if
        # it does not, the devices would drift apart without this mean.
        "batch_stats": _mean_over_devices(batch_stats),
        "opt_state": opt_state,
    }


def _mean_over_devices(batch_stats: Any) -> Any:
    """The means over AXIS_NAME, in the dtypes that the statistics have.

    The mean of whole numbers, such as a count of batches, would be a float.
    """
    return jax.tree.map(
        lambda mean, stat: mean.astype(stat.dtype),
        jax.lax.pmean(batch_stats, AXIS_NAME),
        batch_stats,
    )


def dispatch(
    task: Task, unroll: bool, state: dict, resident: dict, batches: dict, stop: Any
) -> tuple[dict, dict]:
    """Many steps in one program: ``(state, sums)``.

    Args:
      task: what is computed.
      unroll: whether the loop over the steps is unrolled.
      state: the training state.
      resident: what stays on the device: {"key", "learning_rate": f32[]} and, for
        `Arrays`, the training split.
      batches: [steps, n, ...] by name, without what is resident.
      stop: bool[], whether this process wants to stop.
    Returns:
      The state after the steps; the sums of `training_step`, each [steps], and "stop",
      whether any process wants to.
    """

    def one_step(state, batch):
        if "images" in resident:
            batch = {
                **batch,
                "images": resident["images"][batch["indices"]],
                "labels": resident["labels"][batch["indices"]],
            }
        return training_step(
            task,
            state,
            batch,
            key=resident["key"],
            learning_rate=resident["learning_rate"],
        )

    if len(batches["indices"]) == 1:
        state, sums = one_step(state, jax.tree.map(lambda x: x[0], batches))
        sums = jax.tree.map(lambda x: x[None], sums)
    else:
        state, sums = jax.lax.scan(one_step, state, batches, unroll=unroll)
    # If one process is told to stop, all learn of it at the same step.
    wanting = jax.lax.psum(stop.astype(np.int32), AXIS_NAME)
    return state, {**sums, "stop": wanting > 0}


def evaluation_step(task: Task, state: dict, batch: dict) -> dict:
    """The sums of one batch over its real examples, on all devices of AXIS_NAME.

    Args:
      task: what is computed.
      state: the training state.
      batch: {"images", "labels": i32[n] or f32[n, k], "is_real": bool[n]}.
    Returns:
      loss f32[], errors i32[] (of a classification), examples i32[], and the net's
      residual_ratio f32[blocks]. If `task.top_k` is above 0, also top_k_errors i32[],
      the examples whose label is not among the `top_k` largest logits. Ties go to the
      first, as in `argmax`.
    """
    labels = batch["labels"]
    is_real = batch["is_real"]
    x = task.eval_input(batch["images"])
    logits, intermediates = task.apply(_variables(state), x, train=False)
    losses, errors = task.compare(logits, labels)
    ratios = intermediates["residual_ratio"]
    # `where`, not a product: padding may hold values whose loss is not finite.
    sums = {
        "loss": jnp.sum(jnp.where(is_real, losses, 0)),
        "examples": jnp.sum(is_real, dtype=jnp.int32),
        "residual_ratio": jnp.sum(jnp.where(is_real[None, :], ratios, 0), axis=1),
    }
    if errors is not None:
        sums["errors"] = jnp.sum(errors & is_real, dtype=jnp.int32)
    if task.top_k:
        largest = jax.lax.top_k(logits, task.top_k)[1]
        missed = jnp.all(largest != labels[:, None], axis=-1)
        sums["top_k_errors"] = jnp.sum(missed & is_real, dtype=jnp.int32)
    return jax.lax.psum(sums, AXIS_NAME)


def _variables(state: dict) -> dict:
    return {name: state[name] for name in COLLECTIONS}
