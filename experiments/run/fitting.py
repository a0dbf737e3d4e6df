"""A training as a trial of an experiment: devices, loop, checkpoints and failures."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from experiments.run.endings import DivergedError
from experiments.run.signals import Interrupted
from identity_matters import flops, runs
from identity_matters.train import checkpoint, loop, multihost
from identity_matters.train.checkpoint_storage import CheckpointError
from identity_matters.train.intervals import Intervals
from identity_matters.train.parallel import ParallelSteps
from identity_matters.train.records import NonFiniteError
from identity_matters.train.step import Task


class DeviceTraining:
    """A training on some devices.

    Attributes:
      task: what is trained, and on which examples.
      parallel: its steps on the devices.
      intervals: its length, and how often it logs, evaluates and saves.
    """

    def __init__(self, task: Task, parallel: ParallelSteps, intervals: Intervals):
        self.task = task
        self.parallel = parallel
        self.intervals = intervals

    def size(self) -> dict:
        """What the training runs on and how large it is, for its result."""
        return {
            "training_flops_per_example": self.task.flops_per_example,
            "train_examples": self.task.data.train_examples,
            "devices": len(self.parallel.devices),
            "processes": jax.process_count(),
            "device_kind": self.parallel.devices[0].device_kind,
            "steps_per_dispatch": self.intervals.steps_per_dispatch,
        }

    def fit(
        self,
        log: Any,
        *,
        key: jax.Array,
        settings: dict,
        compute_dtype: str,
        belongs_to: checkpoint.NetAndPreprocessing | None = None,
    ) -> dict:
        """`loop.fit` with the checkpoints of `log`; returns the result.

        Args:
          log: the `TrainingLog` of this training.
          key: the root of all randomness.
          settings: what must be the same in a checkpoint and in the training that
            resumes from it, JSON-able; the key is added to it.
          compute_dtype: the dtype whose peak FLOP/s the log compares with.
          belongs_to: the net and the preprocessing, kept beside the variables for
            `train.load`.
        Raises:
          Interrupted: after SIGTERM, once a checkpoint is saved.
          DivergedError: a loss or gradient is not finite.
          runs.RunError: the checkpoints cannot be used.
        """
        devices = self.parallel.devices
        log.say(
            describe_devices(devices, len(jax.devices()), self.parallel.batch_examples)
        )
        peak = flops.peak_flops_per_second(devices[0].device_kind, compute_dtype)
        checkpoints = checkpoint.Checkpoints(
            log.checkpoint_dir,
            settings={**settings, "key": np.asarray(jax.random.key_data(key))},
            on_warning=log.say,
            belongs_to=belongs_to,
        )
        try:
            result, _ = loop.fit(
                self.task,
                self.parallel,
                self.intervals,
                log,
                key=key,
                checkpoints=checkpoints,
                peak_flops_per_second=peak and peak * len(devices),
                profile_dir=log.profile_dir,
            )
        except loop.StopRequested:
            raise Interrupted from None
        except NonFiniteError as error:
            raise DivergedError(str(error), error.step) from None
        except (CheckpointError, multihost.Process0Error) as error:
            raise runs.RunError(
                f"{error}; if that does not pass, --overwrite trains anew, or use"
                " another --results_dir"
            ) from None
        return result


def make_intervals(train: dict, **changes: int) -> Intervals:
    """The intervals among the settings of a training, with `changes`."""
    names = [field.name for field in dataclasses.fields(Intervals)]
    steps = {name: train[name] for name in names if name in train}
    return Intervals(**{**steps, **changes})


def describe_devices(
    used: Sequence[jax.Device], available_count: int, batch_examples: int
) -> str:
    """How many devices a training uses, of which kind, and why some stay idle."""
    kinds = ", ".join(sorted({device.device_kind for device in used}))
    text = f"training on {len(used)} of {available_count} devices ({kinds})"
    if len(used) < available_count and batch_examples % available_count:
        text += f"; {available_count} do not divide the batch of {batch_examples}"
    return text
