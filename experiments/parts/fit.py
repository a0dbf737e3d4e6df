"""A training as a trial of an experiment: checkpoints, the peak of the devices,
failures.
"""

from typing import Any

import jax
import numpy as np

from experiments import run
from identity_matters import flops, runs
from identity_matters.train import checkpoint, loop, multihost
from identity_matters.train.parallel import ParallelSteps
from identity_matters.train.step import Task


def fit(
    task: Task,
    steps: ParallelSteps,
    intervals: loop.Intervals,
    log: Any,
    *,
    key: jax.Array,
    settings: dict,
    compute_dtype: str,
    belongs_to: checkpoint.NetAndPreprocessing | None = None,
) -> tuple[dict, dict]:
    """`loop.fit` with the checkpoints of `log`, a `TrainingLog`: (result, last state).

    Args:
      key: the root of all randomness.
      settings: what must be the same in a checkpoint and in the training that resumes
        from it, JSON-able; the key is added to it.
      belongs_to: the net and the preprocessing, kept beside the variables for
        `train.load`.
      compute_dtype: the dtype whose peak FLOP/s the log compares with.
    Raises:
      run.Interrupted: after SIGTERM, once a checkpoint is saved.
      runs.RunError: the checkpoints cannot be used.
      step.NonFiniteError: a loss or gradient is not finite.
    """
    devices = steps.devices
    log.say(describe_devices(devices, len(jax.devices()), steps.batch_examples))
    kind = devices[0].device_kind
    peak = flops.peak_flops_per_second(kind, compute_dtype)
    drawn = {"key": np.asarray(jax.random.key_data(key))}
    kept = checkpoint.Checkpoints(
        log.checkpoint_dir,
        settings=settings | drawn,
        on_warning=log.say,
        belongs_to=belongs_to,
    )
    try:
        result, state = loop.fit(
            task,
            steps,
            intervals,
            log,
            key=key,
            checkpoints=kept,
            peak_flops_per_second=peak and peak * len(devices),
            profile_dir=log.profile_dir,
        )
    except loop.StopRequested:
        raise run.Interrupted from None
    except (checkpoint.CheckpointError, multihost.Process0Error) as error:
        advice = (
            "if that does not pass, --overwrite trains anew, or use another"
            " --results_dir"
        )
        raise runs.RunError(f"{error}; {advice}") from None
    return result, state


def describe_devices(used: list, available_count: int, batch_examples: int) -> str:
    """How many of how many devices a training uses, of which kind, and why it leaves
    some idle.
    """
    kinds = ", ".join(sorted({device.device_kind for device in used}))
    text = f"training on {len(used)} of {available_count} devices ({kinds})"
    if len(used) < available_count and batch_examples % available_count:
        text += f"; {available_count} do not divide the batch of {batch_examples}"
    return text


def size(task: Task, steps: ParallelSteps, intervals: loop.Intervals) -> dict:
    """What a training ran on and how large it was, for its result."""
    return {
        "training_flops_per_example": task.flops_per_example,
        "train_examples": task.data.train_examples,
        "devices": len(steps.devices),
        "processes": jax.process_count(),
        "device_kind": steps.devices[0].device_kind,
        "steps_per_dispatch": intervals.steps_per_dispatch,
    }
