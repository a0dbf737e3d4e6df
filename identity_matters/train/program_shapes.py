"""Arguments of `step.dispatch` and `step.evaluation_step`, to compile for one device.

The state and the key are arrays, all others only shapes and dtypes.
From them a program can be compiled for devices that are absent. Images that are
streamed need not be there either; of other data, the first test example is read.
"""

from typing import Any

import jax
import numpy as np

from identity_matters.batches import Arrays, Streams
from identity_matters.train.step import Task, initial_state


def training_shapes(
    task: Task, *, steps: int, share: int
) -> tuple[Any, dict, dict, jax.ShapeDtypeStruct]:
    """(state, resident, batches, stop) of `step.dispatch`.

    Args:
      steps: of the dispatch.
      share: the examples that a device takes in each step.
    """
    key = jax.random.key(0)
    resident: dict[str, Any] = {
        "key": key,
        "learning_rate": jax.ShapeDtypeStruct((), np.float32),
    }
    batches = {
        name: jax.ShapeDtypeStruct((steps, share), np.int32)
        for name in ("indices", "epochs")
    }
    if isinstance(task.data, Arrays):
        resident |= _examples(task, task.data.train_examples)
    if isinstance(task.data, Streams):
        batches |= _examples(task, steps, share)
    stop = jax.ShapeDtypeStruct((), np.bool_)
    return _state(task), resident, batches, stop


def evaluation_shapes(task: Task, *, share: int) -> tuple[Any, dict]:
    """(state, batch) of `step.evaluation_step`, for `share` examples a device."""
    batch = _examples(task, share)
    batch["is_real"] = jax.ShapeDtypeStruct((share,), np.bool_)
    return _state(task), batch


def _state(task: Task) -> dict:
    return initial_state(task.init(jax.random.key(0)), task.optimizer)


def _examples(task: Task, *leading: int) -> dict[str, jax.ShapeDtypeStruct]:
    """Images and labels [*leading, ...]."""
    image: Any
    label: Any
    if isinstance(task.data, Streams):
        image = jax.ShapeDtypeStruct(task.data.image_shape, np.uint8)
        label = jax.ShapeDtypeStruct((), np.int32)
    else:
        first = task.data.read_test(np.arange(1))
        image = first["images"][0]
        label = first["labels"][0]
    return {
        "images": jax.ShapeDtypeStruct((*leading, *image.shape), image.dtype),
        "labels": jax.ShapeDtypeStruct((*leading, *label.shape), label.dtype),
    }
