"""What `loop.fit` trains: a model, its data and its update rule, put together by the caller."""

import dataclasses
from collections.abc import Callable

import numpy as np
import optax


@dataclasses.dataclass(frozen=True, eq=False)
class Arrays:
    """Whole splits, of which every device holds a copy.

    Attributes:
      batch_plan: ``batch_plan(first_step, steps) -> (indices: i32[steps, batch], epochs: the
        same)``: which training examples each step sees; a step's row depends on the step alone.
      train_images, test_images: u8[n, h, w, c].
      train_labels, test_labels: int[n].
    Raises:
      ValueError: arrays of the wrong type, or images and labels that do not go together.
    """

    batch_plan: Callable
    train_images: np.ndarray
    train_labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray

    def __post_init__(self):
        for split in ("train", "test"):
            images = getattr(self, f"{split}_images")
            labels = getattr(self, f"{split}_labels")
            if images.ndim != 4 or images.dtype != np.uint8:
                raise ValueError(
                    f"{split}_images must be uint8[n, h, w, c], got {images.dtype}"
                    f"{list(images.shape)}"
                )
            if labels.shape != images.shape[:1] or not np.issubdtype(labels.dtype, np.integer):
                raise ValueError(
                    f"{split}_labels must be int[{len(images)}] as there are {len(images)}"
                    f" {split}_images, got {labels.dtype}{list(labels.shape)}"
                )
            if not len(images):
                raise ValueError(f"{split}_images are empty")

    @property
    def train_examples(self) -> int:
        return len(self.train_labels)

    @property
    def test_examples(self) -> int:
        return len(self.test_labels)


@dataclasses.dataclass(frozen=True, eq=False)
class Streams:
    """Splits that fit no memory: batches come one by one, each process reading its own share.

    A process's share of a batch are its rows process_index * b, ..., (process_index + 1) * b - 1.

    Attributes:
      image_shape: (h, w, c) of what the streams give.
      train_examples, test_examples: how many there are.
      open_train: ``open_train(first_step, steps)``: an iterator with ``close()`` over
        {"images": u8[b, h, w, c], "labels": i32[b], "indices": i32[b], "epochs": i32[b]}, the
        shares of the batches of those steps; a step's batch depends on the step alone.
      open_test: ``open_test(batch_examples)``: the same over {"images", "labels", "is_real":
        bool[b]}; over all processes together every example is real once, and each process gets
        equally many batches.
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
        the model lacks is an empty dict. Only "params" are trained.
      apply: ``apply(variables, x: f32[n, h, w, c], *, train, keys=None) -> (logits: f32[n, k],
        intermediates)``; `keys` holds one key per example. intermediates["residual_ratio"] is
        f32[blocks, n], intermediates["batch_stats"] the new running statistics. A model that
        averages over the whole batch does so over `parallel.AXIS_NAME`.
      train_input: ``train_input(images: u8[n, h, w, c], keys[n]) -> f32[n, h, w, c]``.
      eval_input: ``eval_input(images: u8[n, h, w, c]) -> f32[n, h, w, c]``.
      example_keys: ``example_keys(key, epochs: i32[n], indices: i32[n]) -> keys[n]``.
      data: the examples.
      optimizer: see `optimizer`.
      schedule: ``schedule(step) -> f32[]``, the learning rate, for the log.
      flops_per_example: floating-point operations of training on one example.
      top_k: evaluations count, beside the errors, the examples whose label is not among the
        `top_k` largest logits; 0: they do not.
    """

    init: Callable
    apply: Callable
    train_input: Callable
    eval_input: Callable
    example_keys: Callable
    data: Arrays | Streams
    optimizer: optax.GradientTransformation
    schedule: Callable
    flops_per_example: float
    top_k: int = 0
