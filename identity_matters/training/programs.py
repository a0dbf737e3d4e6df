"""What one device computes in a dispatch, before it is mapped over devices; see `parallel`."""

from collections.abc import Callable

import jax
import numpy as np

from identity_matters.training import steps as training_steps
from identity_matters.training.task import Task


def training(task: Task, axis_name: str, gradient_accumulation: int, *, unroll: bool) -> Callable:
    """One dispatch, ``(state, resident, rows, stop: bool[]) -> (state, sums)``.

    Args:
      axis_name: the mapped axis of the devices.
      gradient_accumulation: see `steps.make_training_step`.
      unroll: write the steps of a dispatch out instead of a loop.
    Returns:
      a function of the state; of what stays on the device, the keys and the training split if it is
      arrays; of rows [steps, share] by name, see `feeds`; and of whether this process wants to
      stop. Its sums are those of the steps, [steps], and "stop", whether any process wants to.
    """
    step = training_steps.make_training_step(
        task.apply,
        task.optimizer,
        task.schedule,
        axis_name=axis_name,
        gradient_accumulation=gradient_accumulation,
        unroll=unroll,
    )

    def one_step(state, resident, row):
        augmentation_keys, dropout_keys = (
            task.example_keys(resident[name], row["epochs"], row["indices"])
            for name in ("augmentation_key", "dropout_key")
        )
        if "images" in row:
            images, labels = row["images"], row["labels"]
        else:
            images, labels = (resident[name][row["indices"]] for name in ("images", "labels"))
        return step(state, task.train_input(images, augmentation_keys), labels, dropout_keys)

    def many_steps(state, resident, rows, stop):
        if len(rows["indices"]) == 1:
            state, sums = one_step(state, resident, jax.tree.map(lambda x: x[0], rows))
            sums = jax.tree.map(lambda x: x[None], sums)
        else:
            state, sums = jax.lax.scan(
                lambda state, row: one_step(state, resident, row), state, rows, unroll=unroll
            )
        # All processes learn at the same step that one of them is told to stop.
        wanting = jax.lax.psum(stop.astype(np.int32), axis_name)
        return state, {**sums, "stop": wanting > 0}

    return many_steps


def evaluation_by_position(task: Task, axis_name: str) -> Callable:
    """What a device runs for one test batch, for its share of all of them."""
    step = _evaluation_step(task, axis_name)

    def one_batch(state, data, position):
        images, labels, is_real = (data[name][position] for name in ("images", "labels", "is_real"))
        return step(state, task.eval_input(images), labels, is_real)

    return one_batch


def evaluation_of_images(task: Task, axis_name: str) -> Callable:
    """What a device runs for one test batch, given its share of it."""
    step = _evaluation_step(task, axis_name)

    def one_batch(state, batch):
        images, labels, is_real = (batch[name][0] for name in ("images", "labels", "is_real"))
        return step(state, task.eval_input(images), labels, is_real)

    return one_batch


def _evaluation_step(task: Task, axis_name: str) -> Callable:
    return training_steps.make_evaluation_step(task.apply, top_k=task.top_k, axis_name=axis_name)
