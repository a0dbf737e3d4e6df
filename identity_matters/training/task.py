"""What `loop.fit` trains: a model, its data and its update rule, put together by the caller."""

import dataclasses
from collections.abc import Callable

import numpy as np
import optax


@dataclasses.dataclass(frozen=True, eq=False)
class Task:
    """A classification problem as pure functions and whole arrays.

    Attributes:
      init: ``init(key) -> {"params": ..., "fixed": ..., "batch_stats": ...}``; a collection that
        the model lacks is an empty dict. Only "params" are trained.
      apply: ``apply(variables, x: f32[n, h, w, c], *, train, keys=None) -> (logits: f32[n, k],
        intermediates)``; `keys` holds one key per example. intermediates["residual_ratio"] is
        f32[blocks, n], intermediates["batch_stats"] the new running statistics. A model that
        averages over the whole batch does so over `parallel.AXIS_NAME`.
      train_input: ``train_input(images: u8[n, h, w, c], keys[n]) -> f32[n, h, w, c]``.
      eval_input: ``eval_input(images: u8[n, h, w, c]) -> f32[n, h, w, c]``.
      batch_plan: ``batch_plan(first_step, steps) -> (indices: i32[steps, batch], epochs: the
        same)``: which training examples each step sees; a step's row depends on the step alone.
      example_keys: ``example_keys(key, epochs: i32[n], indices: i32[n]) -> keys[n]``.
      train_images, test_images: u8[n, h, w, c].
      train_labels, test_labels: int[n].
      optimizer: see `optimizer`.
      schedule: ``schedule(step) -> f32[]``, the learning rate, for the log.
      flops_per_example: floating-point operations of training on one example.
    Raises:
      ValueError: arrays of the wrong type, or images and labels that do not go together.
    """

    init: Callable
    apply: Callable
    train_input: Callable
    eval_input: Callable
    batch_plan: Callable
    example_keys: Callable
    train_images: np.ndarray
    train_labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray
    optimizer: optax.GradientTransformation
    schedule: Callable
    flops_per_example: float

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
