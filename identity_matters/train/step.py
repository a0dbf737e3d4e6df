"""What is trained, what one device computes for it, and the records that its sums become.

An update, a dispatch and an evaluation are pure functions, which `parallel` maps over devices.
docs/metrics.md explains the fields of the records. The state of a training is one dict:

* ``step``         i32[], updates made so far
* ``params``       what is trained, float32
* ``fixed``        drawn once, never trained: the paper's random projection (section 4)
* ``batch_stats``  running statistics of batch norm
* ``opt_state``    the optimizer's own state
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Generator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from identity_matters.batches import batch_plan, example_keys
from identity_matters.train.checkpoint import COLLECTIONS


@dataclasses.dataclass(frozen=True, eq=False)
class Arrays:
    """Whole splits, of which every device holds a copy: images u8 or f32[n, ...], labels int[n].

    Raises:
      ValueError: arrays of the wrong type, or images and labels that do not go together.
    """

    train_images: np.ndarray
    train_labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray

    def __post_init__(self):
        for split in ("train", "test"):
            images = getattr(self, f"{split}_images")
            labels = getattr(self, f"{split}_labels")
            if images.ndim < 2 or images.dtype not in (np.uint8, np.float32) or not len(images):
                raise ValueError(
                    f"{split}_images must be uint8 or float32[n, ...] with n > 0, got"
                    f" {images.dtype}{list(images.shape)}"
                )
            if labels.shape != images.shape[:1] or not np.issubdtype(labels.dtype, np.integer):
                raise ValueError(
                    f"{split}_labels must be int[{len(images)}] as there are {len(images)}"
                    f" {split}_images, got {labels.dtype}{list(labels.shape)}"
                )

    @property
    def image_shape(self) -> tuple[int, ...]:
        return self.train_images.shape[1:]

    @property
    def train_examples(self) -> int:
        return len(self.train_labels)

    @property
    def test_examples(self) -> int:
        return len(self.test_labels)

    def open_train(
        self, *, seed: int, batch_examples: int, rows: slice, first_step: int, steps: int
    ) -> Generator[dict]:
        """See `Streams`; without images and labels, which stay on the devices."""
        for step in range(first_step, first_step + steps):
            indices, epochs = batch_plan(seed, self.train_examples, batch_examples, step, 1)
            yield {"indices": indices[0, rows], "epochs": epochs[0, rows]}

    def open_test(self, *, batch_examples: int, rows: slice) -> Generator[dict]:
        """See `Streams`; the last example stands where the last batch is filled up."""
        for first in range(0, self.test_examples, batch_examples):
            positions = np.arange(first, first + batch_examples)[rows]
            is_real = positions < self.test_examples
            taken = np.minimum(positions, self.test_examples - 1)
            labels = self.test_labels[taken].astype(np.int32)
            yield {"images": self.test_images[taken], "labels": labels, "is_real": is_real}


@dataclasses.dataclass(frozen=True, eq=False)
class Streams:
    """Splits too large for memory: batches come one by one, and each process reads its share.

    Attributes:
      image_shape: (h, w, c) of what the streams give.
      train_examples, test_examples: how many there are.
      open_train: ``open_train(seed=..., batch_examples=..., rows=..., first_step=..., steps=...)``:
        an iterator with ``close()`` over {"images": u8[b, h, w, c], "labels": i32[b], "indices":
        i32[b], "epochs": i32[b]}, those rows of the batches of those steps, see
        `batches.batch_plan`.
      open_test: ``open_test(batch_examples=..., rows=...)``: the same over {"images", "labels",
        "is_real": bool[b]}; over all processes together every example is real once, and each
        process gets equally many batches.
    """

    image_shape: tuple[int, int, int]
    train_examples: int
    test_examples: int
    open_train: Callable
    open_test: Callable


@dataclasses.dataclass(frozen=True, eq=False)
class Task:
    """A classification problem as pure functions and data.

    Attributes:
      init: ``init(key) -> {"params": ..., "fixed": ..., "batch_stats": ...}``; a collection that
        the net lacks is an empty dict. Only "params" are trained.
      apply: ``apply(variables, x: f32[n, ...], *, train, keys=None) -> (logits: f32[n, k],
        intermediates)``; `keys` holds one key per example. intermediates["residual_ratio"] is
        f32[blocks, n], intermediates["batch_stats"] the new running statistics. A net that
        averages over the whole batch does so over `parallel.AXIS_NAME`.
      train_input: ``train_input(images, keys[n]) -> f32[n, ...]``.
      eval_input: ``eval_input(images) -> f32[n, ...]``.
      data: the examples.
      optimizer, schedule: see `optim`; ``schedule(step) -> f32[]`` is for the log.
      flops_per_example: floating-point operations of training on one example.
      top_k: above 0, evaluations also count the examples whose label is not among the `top_k`
        largest logits.
    """

    init: Callable
    apply: Callable
    train_input: Callable
    eval_input: Callable
    data: Arrays | Streams
    optimizer: optax.GradientTransformation
    schedule: Callable
    flops_per_example: float
    top_k: int = 0


def initial_state(variables: dict, optimizer: optax.GradientTransformation) -> dict:
    """The state before the first update, for `variables` as ``Task.init`` gives them."""
    return {
        "step": jnp.zeros((), jnp.int32),
        **_variables(variables),
        "opt_state": optimizer.init(variables["params"]),
    }


def training_step(
    task: Task, axis_name: str | None, state: dict, batch: dict, key: jax.Array
) -> tuple[dict, dict]:
    """One update: ``(state, sums)``.

    A batch is {"images": [n, ...], "labels": i32[n], "indices": i32[n], "epochs": i32[n]}. Each
    example has its own randomness, from `key`, epoch and index. The loss is the mean cross entropy
    over the whole batch; the L2 penalty is the optimizer's business and no part of it.
    With `axis_name`, each device of that mapped axis sees an equal share of the batch, and the
    gradient and the sums are those of the whole batch.

    `sums` are loss f32[] (summed), errors i32[] and examples i32[]; beside them stand
    gradient_norm f32[], the norm of the loss's gradient, and learning_rate f32[] of this update.
    """
    total, mean = _collectives(axis_name)
    augmentation_keys, dropout_keys = (
        example_keys(one, batch["epochs"], batch["indices"]) for one in jax.random.split(key)
    )
    x, labels = task.train_input(batch["images"], augmentation_keys), batch["labels"]

    def loss_of(params):
        variables = {**_variables(state), "params": params}
        logits, intermediates = task.apply(variables, x, train=True, keys=dropout_keys)
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
        errors = jnp.sum(jnp.argmax(logits, axis=-1) != labels, dtype=jnp.int32)
        return jnp.mean(losses), (errors, intermediates["batch_stats"])

    (loss, (errors, batch_stats)), gradient = jax.value_and_grad(loss_of, has_aux=True)(
        state["params"]
    )
    gradient = mean(gradient)
    updates, opt_state = task.optimizer.update(gradient, state["opt_state"], state["params"])
    new_state = {
        "step": state["step"] + 1,
        "params": optax.apply_updates(state["params"], updates),
        "fixed": state["fixed"],
        # Equal on all devices already where the net averages over them; where it does not, the
        # devices would drift apart without this.
        "batch_stats": mean(batch_stats),
        "opt_state": opt_state,
    }
    examples = jnp.int32(len(labels))
    sums = total({"loss": loss * len(labels), "errors": errors, "examples": examples})
    sums["gradient_norm"] = optax.tree.norm(gradient)
    sums["learning_rate"] = jnp.asarray(task.schedule(state["step"]), jnp.float32)
    return new_state, sums


def dispatch(
    task: Task, axis_name: str, unroll: bool, state: dict, resident: dict, batches: dict, stop: Any
) -> tuple[dict, dict]:
    """Many steps in one program: ``(state, sums)``.

    Args:
      unroll: write the steps out instead of a loop.
      resident: what stays on the device, {"key"} and, of `Arrays`, the training split.
      batches: [steps, n] by name, without images and labels where those are resident.
      stop: bool[], whether this process wants to stop.

    The sums are those of `training_step`, [steps], and "stop", whether any process wants to.
    """

    def one_step(state, batch):
        if "images" not in batch:
            taken = {name: resident[name][batch["indices"]] for name in ("images", "labels")}
            batch = {**batch, **taken}
        return training_step(task, axis_name, state, batch, resident["key"])

    if len(batches["indices"]) == 1:
        state, sums = one_step(state, jax.tree.map(lambda x: x[0], batches))
        sums = jax.tree.map(lambda x: x[None], sums)
    else:
        state, sums = jax.lax.scan(one_step, state, batches, unroll=unroll)
    # All processes learn at the same step that one of them is told to stop.
    wanting = jax.lax.psum(stop.astype(np.int32), axis_name)
    return state, {**sums, "stop": wanting > 0}


def evaluation_step(task: Task, axis_name: str | None, state: dict, batch: dict) -> dict:
    """The sums of one batch {"images", "labels": i32[n], "is_real": bool[n]}.

    They run over the examples with `is_real`, on all devices of `axis_name`: loss f32[],
    errors i32[], examples i32[], and residual_ratio f32[blocks], each block's ``||h(x)|| / ||x||``.
    With `task.top_k` above 0 there is top_k_errors i32[], the examples whose label is not among the
    `top_k` largest logits; of equal logits the first ones count as larger, as in `argmax`.
    """
    total, _ = _collectives(axis_name)
    labels, is_real = batch["labels"], batch["is_real"]
    x = task.eval_input(batch["images"])
    logits, intermediates = task.apply(_variables(state), x, train=False)
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    errors = jnp.argmax(logits, axis=-1) != labels
    ratios = intermediates["residual_ratio"]
    # `where`, not a product: padding may hold values whose loss is not finite.
    sums = {
        "loss": jnp.sum(jnp.where(is_real, losses, 0)),
        "errors": jnp.sum(errors & is_real, dtype=jnp.int32),
        "examples": jnp.sum(is_real, dtype=jnp.int32),
        "residual_ratio": jnp.sum(jnp.where(is_real[None, :], ratios, 0), axis=1),
    }
    if task.top_k:
        largest = jax.lax.top_k(logits, task.top_k)[1]
        missed = jnp.all(largest != labels[:, None], axis=-1)
        sums["top_k_errors"] = jnp.sum(missed & is_real, dtype=jnp.int32)
    return total(sums)


# From sums to records


class NonFiniteError(Exception):
    """A metric is NaN or infinite: the run has diverged.

    Attributes:
      step: the update that showed it, counted from 1, or the updates made before an evaluation.
      metric: its name in the records.
    """

    def __init__(self, step: int, metric: str, value: float):
        super().__init__(f"{metric} is {value} at step {step}")
        self.step, self.metric = step, metric

    @classmethod
    def check(cls, step: int, metric: str, value: float) -> None:
        """Raises it where `value` is not finite."""
        if not math.isfinite(value):
            raise cls(step, metric, float(value))


@dataclasses.dataclass
class MetricSums:
    """What was measured since the last train record; part of a checkpoint."""

    loss: float = 0.0
    errors: int = 0
    examples: int = 0
    gradient_norm: float = 0.0
    learning_rate: float = 0.0
    seconds: float = 0.0
    input_wait_seconds: float = 0.0
    compile_seconds: float = 0.0

    def add(self, first_step: int, sums: dict) -> None:
        """Takes in the steps of one dispatch, of which `first_step` is the first.

        Args:
          sums: see `training_step`, each [steps].
        Raises:
          NonFiniteError: the loss or the gradient of a step is not finite.
        """
        for i, loss in enumerate(sums["loss"]):
            self.gradient_norm = float(sums["gradient_norm"][i])
            NonFiniteError.check(first_step + i, "loss", loss)
            NonFiniteError.check(first_step + i, "gradient_norm", self.gradient_norm)
            self.loss += float(loss)
            self.errors += int(sums["errors"][i])
            self.examples += int(sums["examples"][i])
            self.learning_rate = float(sums["learning_rate"][i])

    def record(self, step: int, epoch: float, flops_per_example: float, peak: float | None) -> dict:
        """The train record.

        Args:
          step, epoch: updates made, and how often they went through the training split.
          peak: floating-point operations per second that all devices can do together, if known.
        """
        images_per_second = self.examples / self.seconds
        flops_per_second = images_per_second * flops_per_example
        return {
            "kind": "train",
            "step": step,
            "epoch": epoch,
            "loss": self.loss / self.examples,
            "error_percent": 100 * self.errors / self.examples,
            "learning_rate": self.learning_rate,
            "gradient_norm": self.gradient_norm,
            "images_per_second": images_per_second,
            "model_flops_per_second": flops_per_second,
            "utilization_percent": None if peak is None else 100 * flops_per_second / peak,
            # An upper bound of what the devices lost: they may have been busy meanwhile.
            "input_wait_percent": 100 * self.input_wait_seconds / self.seconds,
            "seconds": self.seconds,
            "compile_seconds": self.compile_seconds,
        }


def evaluation_record(
    step: int, epoch: float, sums: dict, seconds: float, compile_seconds: float, top_k: int = 0
) -> dict:
    """The record of one evaluation.

    Args:
      sums: see `evaluation_step`, over all examples.
      top_k: that of the sums; above 0 there is a test_top{top_k}_error_percent.
    Raises:
      NonFiniteError: the loss is not finite.
    """
    examples = int(sums["examples"])
    loss = float(sums["loss"]) / examples
    NonFiniteError.check(step, "test_loss", loss)
    errors = {"test_error_percent": "errors"}
    errors |= {f"test_top{top_k}_error_percent": "top_k_errors"} if top_k else {}
    return {
        "kind": "evaluation",
        "step": step,
        "epoch": epoch,
        "test_loss": loss,
        **{name: 100 * int(sums[counted]) / examples for name, counted in errors.items()},
        "test_examples": examples,
        "residual_ratio": (sums["residual_ratio"] / examples).tolist(),
        "seconds": seconds,
        "compile_seconds": compile_seconds,
    }


def _variables(state: dict) -> dict:
    return {name: state[name] for name in COLLECTIONS}


def _collectives(axis_name: str | None) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    """Sum and mean of a pytree over the devices of a mapped axis; the identity without one."""
    if axis_name is None:
        return (lambda tree: tree), (lambda tree: tree)
    partial = functools.partial
    return partial(jax.lax.psum, axis_name=axis_name), partial(jax.lax.pmean, axis_name=axis_name)
