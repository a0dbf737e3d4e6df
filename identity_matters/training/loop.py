"""A training run: restore, step, log, evaluate, save, stop.

A checkpoint knows how many records there were when it was saved; a resumed run drops the later
ones and writes them anew.
"""

import collections
import dataclasses
import functools
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from identity_matters.training import measurements, peaks
from identity_matters.training.checkpoint import Checkpoints
from identity_matters.training.checkpoint_contents import CheckpointMismatchError
from identity_matters.training.intervals import Intervals
from identity_matters.training.measurements import SinceLog
from identity_matters.training.parallel import ParallelSteps
from identity_matters.training.profiling import Profiler
from identity_matters.training.steps import draw_state
from identity_matters.training.task import Task


class StopRequested(Exception):
    """The run was asked to stop and has saved its state; the same call goes on from `step`."""

    def __init__(self, step: int):
        super().__init__(f"stopped at step {step}; the same command goes on from there")
        self.step = step


def fit(
    task: Task,
    log: Any,
    *,
    key: jax.Array,
    steps: int,
    batch_examples: int,
    steps_per_dispatch: int,
    steps_per_log: int,
    steps_per_evaluation: int,
    steps_per_checkpoint: int,
    evaluation_batch_examples: int,
    devices: Sequence[jax.Device],
    compute_dtype: str,
    checkpoints: Checkpoints,
    profile_dir: str = "",
) -> dict:
    """Trains `task` for `steps` updates, from the newest checkpoint on if there is one.

    Args:
      task: what is trained, see `task.Task`.
      log: the run's records: ``records: list[dict]``, ``append(dict)``, on disk when it returns,
        ``rewind(count)``, ``stop_requested() -> bool``, and ``progress(step, steps)``, called
        after every dispatch.
      key: a typed key, the root of all randomness.
      batch_examples, evaluation_batch_examples: over all `devices` together.
      steps_per_dispatch: at most so many steps run without the host; 1 on CPU, see `parallel`.
      steps_per_log, steps_per_evaluation, steps_per_checkpoint: all are also due at the last step,
        an evaluation before the first one too.
      compute_dtype: "float32" or "bfloat16"; only for the devices' peak.
      profile_dir: where a trace of a few dispatches goes, if given.
    Returns:
      `measurements.result` of all records.
    Raises:
      ValueError: a setting that will not do; nothing has been written.
      CheckpointMismatchError: see `Checkpoints.restore`, or a checkpoint of another `key`.
      measurements.NonFiniteError: a loss or gradient is not finite.
      StopRequested: `log` asked to stop, and the state has been saved.
    """
    intervals = Intervals(
        steps, steps_per_dispatch, steps_per_log, steps_per_evaluation, steps_per_checkpoint
    )
    init_key, augmentation_key, dropout_key = jax.random.split(key, 3)
    parallel = ParallelSteps(
        task,
        augmentation_key=augmentation_key,
        dropout_key=dropout_key,
        devices=devices,
        batch_examples=batch_examples,
        evaluation_batch_examples=evaluation_batch_examples,
    )
    peak = peaks.peak_flops_per_second(devices[0].device_kind, compute_dtype)
    with Profiler(profile_dir) as profiler:
        run = _Run(
            task=task,
            log=log,
            intervals=intervals,
            parallel=parallel,
            checkpoints=checkpoints,
            profiler=profiler,
            key_data=np.asarray(jax.random.key_data(key)).tolist(),
            epochs_of=lambda step: step * batch_examples / len(task.train_labels),
            flops_peak=None if peak is None else peak * len(devices),
        )
        try:
            run.start(init_key)
            run.go_on()
        finally:
            checkpoints.wait()
    return measurements.result(log.records)


@dataclasses.dataclass
class _Run:
    """The moving parts of `fit`.

    Attributes:
      step: updates made, of which the results have been taken in.
      evaluated: whether the evaluation that is due at `step` has been made.
      saved_step: that of the newest checkpoint.
      clock: when the results of the last dispatch came in.
    """

    task: Task
    log: Any
    intervals: Intervals
    parallel: ParallelSteps
    checkpoints: Checkpoints
    profiler: Profiler
    key_data: list
    epochs_of: Callable[[int], float]
    flops_peak: float | None
    state: dict = dataclasses.field(default_factory=dict)
    step: int = 0
    evaluated: bool = False
    saved_step: int | None = None
    since_log: SinceLog = dataclasses.field(default_factory=SinceLog)
    clock: float = 0.0

    def start(self, init_key) -> None:
        """Takes up the newest checkpoint, or draws the initial state."""
        draw = functools.partial(draw_state, self.task.init, self.task.optimizer)
        restored = self.checkpoints.restore(jax.eval_shape(draw, init_key))
        if restored is None:
            self.log.rewind(0)
            state = jax.device_get(draw(init_key))
        else:
            self.step, state, extra = restored
            if extra["key"] != self.key_data:
                raise CheckpointMismatchError(
                    f"the checkpoint {self.checkpoints.directory}/{self.step} is of another run:"
                    f" its key is {extra['key']} there and {self.key_data} here"
                )
            self.log.rewind(extra["records"])
            self.saved_step = self.step
            self.evaluated = extra["evaluated"]
            self.since_log = SinceLog(**extra["since_log"])
        self.state = self.parallel.replicate(state)

    def go_on(self) -> None:
        """Runs to the last step; raises StopRequested after saving where the log asks for it."""
        due = self.intervals.is_due
        while True:
            if due("evaluation", self.step) and not self.evaluated:
                self.evaluate()
            stopping = self.log.stop_requested()
            unsaved = self.saved_step != self.step
            if unsaved and (stopping or (due("checkpoint", self.step) and self.step)):
                self.save()
            if self.step == self.intervals.steps and self.evaluated:
                return
            if stopping:
                self.checkpoints.wait()
                raise StopRequested(self.step)
            self.train(self.intervals.next_due(self.step, "evaluation", "checkpoint"))

    def train(self, until: int) -> None:
        """Runs the steps up to `until`, or fewer where the log asks to stop."""
        indices, epochs = self.task.batch_plan(self.step, until - self.step)
        first = issued = self.step
        for steps in self.intervals.dispatch_lengths(first, until):
            self.parallel.prepare(self.state, steps)
        self.since_log.compile_seconds += self.take_compile_seconds()
        in_flight: collections.deque = collections.deque()
        # On accelerators the next dispatch is under way while the sums of this one are read.
        ahead = 0 if self.parallel.on_cpu else 1
        stopping = False
        self.clock = time.perf_counter()
        while issued < until or in_flight:
            stopping = stopping or self.log.stop_requested()
            if issued < until and not stopping:
                end = self.intervals.dispatch_end(issued)
                rows = slice(issued - first, end - first)
                self.profiler.dispatch_starts()
                self.state, sums = self.parallel.train(self.state, indices[rows], epochs[rows])
                in_flight.append((end, sums))
                issued = end
            elif not in_flight:
                return
            if len(in_flight) > ahead or issued == until or stopping:
                self.take_in(*in_flight.popleft())

    def take_in(self, end: int, sums) -> None:
        """Reads the sums of the dispatch that ended at `end`, and logs where that is due."""
        sums = self.parallel.read(sums)
        self.profiler.dispatch_done()
        now = time.perf_counter()
        self.since_log.seconds += now - self.clock
        self.clock = now
        self.since_log.add(self.step + 1, sums)
        self.step, self.evaluated = end, False
        if self.intervals.is_due("log", end):
            flops = self.task.flops_per_example
            self.log.append(
                measurements.train_record(
                    end, self.epochs_of(end), self.since_log, flops, self.flops_peak
                )
            )
            self.since_log = SinceLog()
        self.log.progress(end, self.intervals.steps)

    def evaluate(self) -> None:
        """Evaluates and logs; leaves it undone where the log asks to stop."""
        started = time.perf_counter()
        sums = self.parallel.evaluate(self.state, self.log.stop_requested)
        if sums is None:
            return
        if sums["examples"] != len(self.task.test_labels):
            raise RuntimeError(
                f"the evaluation counted {sums['examples']:.0f} examples of"
                f" {len(self.task.test_labels)}"
            )
        compile_seconds = self.take_compile_seconds()
        seconds = time.perf_counter() - started - compile_seconds
        self.log.append(
            measurements.evaluation_record(
                self.step, self.epochs_of(self.step), sums, seconds, compile_seconds
            )
        )
        self.evaluated = True

    def save(self) -> None:
        extra = {
            "key": self.key_data,
            "records": len(self.log.records),
            "evaluated": self.evaluated,
            "since_log": dataclasses.asdict(self.since_log),
        }
        self.checkpoints.save(self.step, self.parallel.read(self.state), extra)
        self.saved_step = self.step

    def take_compile_seconds(self) -> float:
        """Seconds spent on compiling since the last call."""
        seconds, self.parallel.compile_seconds = self.parallel.compile_seconds, 0.0
        return seconds
