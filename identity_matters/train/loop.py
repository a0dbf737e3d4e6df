"""A training run: restore, step, log, evaluate, save, stop.

A checkpoint stores how many records preceded it. A resumed run drops the later records
and writes them again; all their fields (docs/metrics.md) but
`records.TIMING_FIELDS` equal those of an uninterrupted run.

The order of events is that of `_Run.to_the_last_step`: at every step at which something
is due, evaluate, then save, then stop or train to the next such step. In between,
`_Run.train` keeps the devices busy.
"""

import collections
import contextlib
import dataclasses
import time
from typing import Any

import jax

from identity_matters.train import multihost
from identity_matters.train.checkpoint import Checkpoints
from identity_matters.train.checkpoint_storage import CheckpointError
from identity_matters.train.intervals import Intervals
from identity_matters.train.parallel import ParallelSteps
from identity_matters.train.records import MetricSums, evaluation_record, result
from identity_matters.train.step import Task, initial_state

# A trace of all dispatches would be too large to open; the first ones warm up caches.
SKIPPED_DISPATCHES = 2
TRACED_DISPATCHES = 5
# Training on an image takes about this many times as long as evaluating it.
_TRAINING_PER_EVALUATION = 3
# The share of the newest dispatch in the running mean of the seconds per step.
_NEWEST_SHARE = 0.1


class StopRequested(Exception):
    """The run was asked to stop and has saved its state; the same call resumes it."""


class Log:
    """Where `fit` writes its records; this base class keeps them in memory."""

    def __init__(self) -> None:
        self.records: list[dict] = []

    def append(self, record: dict) -> None:
        """Adds a record."""
        self.records.append(record)

    def flush(self) -> None:
        """Called before a checkpoint is saved, which counts the records so far.

        It must return only once they are on disk, or a restored checkpoint may count
        records that are lost.
        """

    def rewind(self, count: int) -> None:
        """Keeps only the first `count` records."""
        del self.records[count:]

    def stop_requested(self) -> bool:
        """Whether `fit` should save and raise StopRequested; once True, always True."""
        return False

    def phase(self, name: str, step: int, steps: int) -> None:
        """Receives what begins: "restoring", "compiling", "training", "evaluating"."""

    def progress(self, step: int, loss: float | None, seconds_left: float) -> None:
        """Called after each dispatch; in an evaluation before the first, without loss.

        Args:
          step: updates made so far.
          loss: the mean over the batch of the last one.
          seconds_left: estimated, to the end of the run.
        """


def fit(
    task: Task,
    parallel: ParallelSteps,
    intervals: Intervals,
    log: Log,
    *,
    key: jax.Array,
    checkpoints: Checkpoints | None = None,
    peak_flops_per_second: float | None = None,
    profile_dir: str = "",
) -> tuple[dict, dict]:
    """Trains `task` to its last step.

    Resumes from the newest checkpoint if there is one. Several processes make the same
    call, and log the same records up to timings.

    Args:
      task: what is trained.
      parallel: the steps of `task`.
      intervals: when what happens.
      log: receives the records; see `Log.flush` if there are `checkpoints`.
      key: a typed key, the root of all randomness.
      checkpoints: where to restore and save, closed at the end; None saves nothing.
      peak_flops_per_second: of all devices together, if known.
      profile_dir: where to write a trace of a few dispatches; empty for no trace.
    Returns:
      (`records.result` of all records, the final state as NumPy arrays).
    Raises:
      NonFiniteError: a loss or gradient is not finite.
      StopRequested: `log` asked to stop, and the state has been saved.
      CheckpointError: as `Checkpoints.restore` does, or records or a checkpoint are
        missing.
      multihost.Process0Error: process 0 could not restore; raised in the others. If it
        fails later, JAX ends them.
    """
    with contextlib.ExitStack() as exit_stack:
        exit_stack.enter_context(checkpoints or contextlib.nullcontext())
        # Without it, splitting a key gives other keys.
        exit_stack.enter_context(jax.threefry_partitionable(True))
        exit_stack.callback(parallel.stop)
        run = _Run(
            task=task,
            parallel=parallel,
            intervals=intervals,
            log=log,
            checkpoints=checkpoints,
            peak_flops_per_second=peak_flops_per_second,
            tracer=exit_stack.enter_context(_Tracer(profile_dir)),
            exit_stack=exit_stack,
        )
        run.start(key)
        run.to_the_last_step()
        return result(log.records), parallel.read(run.state)


class _Tracer(contextlib.AbstractContextManager):
    """Writes a trace of TRACED_DISPATCHES dispatches, unless `profile_dir` is empty."""

    def __init__(self, profile_dir: str):
        self._profile_dir = profile_dir
        self._trace = contextlib.ExitStack()

    def before_dispatch(self, number: int) -> None:
        """Starts or ends the trace if that is due; `number` counts from 0."""
        if self._profile_dir and number == SKIPPED_DISPATCHES:
            self._trace.enter_context(jax.profiler.trace(self._profile_dir))
        if number == SKIPPED_DISPATCHES + TRACED_DISPATCHES:
            self._trace.close()

    def __exit__(self, *_) -> None:
        self._trace.close()


@dataclasses.dataclass
class _Run:
    """The state of `fit`.

    Attributes:
      task, parallel, intervals, log, checkpoints, peak_flops_per_second: see `fit`.
      tracer: of the dispatches.
      exit_stack: closed at the end of the run.
      order_seed: decides the order of the examples.
      batches: the stream of batches, opened at the first dispatch.
      state: on the devices, after all steps that were dispatched.
      step: the updates whose results have been read.
      evaluated: whether the evaluation that is due at `step` has been made.
      saved_step: the step of the newest checkpoint.
      stopping: whether this process, or any of several, has been told to stop.
      sums: what the next train record is made of.
      dispatches: made by this process so far.
      dispatched_step: the updates that were dispatched.
      in_flight: for each dispatch whose results have not been read, its last step and
        its sums, on the devices.
      placed_batches: those of the next dispatch, if they are on their way.
      results_time: when the results of the last dispatch came in, later by what was
        spent on compiling since.
      step_seconds: a running mean over about ten dispatches; 0 before the first.
      evaluation_seconds: of the last evaluation.
    """

    task: Task
    parallel: ParallelSteps
    intervals: Intervals
    log: Log
    checkpoints: Checkpoints | None
    peak_flops_per_second: float | None
    tracer: _Tracer
    exit_stack: contextlib.ExitStack
    order_seed: int = 0
    batches: Any = None
    state: Any = None
    step: int = 0
    evaluated: bool = False
    saved_step: int | None = None
    stopping: bool = False
    sums: MetricSums = dataclasses.field(default_factory=MetricSums)
    dispatches: int = 0
    dispatched_step: int = 0
    in_flight: collections.deque = dataclasses.field(default_factory=collections.deque)
    placed_batches: Any = None
    results_time: float = 0.0
    step_seconds: float = 0.0
    evaluation_seconds: float = 0.0

    # Start

    def start(self, key: jax.Array) -> None:
        """Restores the newest checkpoint, or draws the initial state."""
        self.phase("restoring")
        init_key, order_key, step_key = jax.random.split(key, 3)
        self.order_seed = int(jax.random.bits(order_key, dtype="uint32"))
        drawn = initial_state(self.task.init(init_key), self.task.optimizer)
        state = jax.device_get(drawn)

        def restore():
            # The others receive what this returns; the arrays follow below.
            nonlocal state
            newest = self.newest_checkpoint(like=drawn)
            if newest is None:
                return None
            step, state, extra = newest
            return {"step": step, **extra}

        restored = multihost.on_process_0(restore)
        if restored is None:
            self.log.rewind(0)
        else:
            self.log.rewind(restored["records"])
            self.step = restored["step"]
            self.dispatched_step = restored["step"]
            self.saved_step = restored["step"]
            self.evaluated = restored["evaluated"]
            self.sums = MetricSums(**restored["sums"])
            state = multihost.arrays_from_process_0(state)
        self.state = self.parallel.start(step_key, state)

    def newest_checkpoint(self, *, like: dict) -> tuple[int, Any, dict] | None:
        """As `Checkpoints.restore` returns it; None if there is none to go on from.

        Raises CheckpointError if it does not fit the records.
        """
        newest = self.checkpoints.restore(like) if self.checkpoints else None
        if newest is None:
            self.check_that_no_checkpoint_is_missing()
            return None
        step, _, extra = newest
        if len(self.log.records) < extra["records"]:
            raise CheckpointError(
                f"metrics.jsonl has {len(self.log.records)} lines of this training,"
                f" but checkpoint {step} was saved after {extra['records']}: lines"
                " are lost, or the checkpoints are those of another results_dir"
            )
        return newest

    def check_that_no_checkpoint_is_missing(self) -> None:
        """Raises CheckpointError if the records go on so far that there must be one."""
        if not self.checkpoints:
            return
        last_recorded_step = max(
            (record["step"] for record in self.log.records), default=0
        )
        # The first checkpoint is on disk before the second one is due.
        if last_recorded_step > 2 * self.intervals.steps_per_checkpoint:
            raise CheckpointError(
                f"metrics.jsonl goes on to step {last_recorded_step}, but there is no"
                f" checkpoint in {self.checkpoints.directory}"
            )

    # The order of events

    def to_the_last_step(self) -> None:
        """Runs to the last step; if the log asks to stop, saves and raises."""
        while True:
            if self.intervals.is_due("evaluation", self.step) and not self.evaluated:
                self.evaluate()
            stopping = self.stop_requested()
            if stopping or self.checkpoint_is_due():
                self.save()
            if self.step == self.intervals.steps and self.evaluated:
                return
            if stopping:
                raise StopRequested(
                    f"stopped at step {self.step}; the same command resumes"
                )
            self.train(self.intervals.next_due(self.step, "evaluation", "checkpoint"))

    def checkpoint_is_due(self) -> bool:
        return self.step > 0 and self.intervals.is_due("checkpoint", self.step)

    def stop_requested(self) -> bool:
        """Whether to stop.

        Several processes go by what the last dispatch told all of them, so that they
        stop at the same step.
        """
        if self.parallel.process_count == 1:
            self.stopping = self.stopping or self.log.stop_requested()
        return self.stopping

    # Training

    def train(self, until: int) -> None:
        """Runs the steps up to `until`, or fewer if the log asks to stop.

        On accelerators the next dispatch runs while the results of this one are read.
        """
        self.phase("training" if self.dispatches else "compiling")
        self.results_time = time.perf_counter()
        most_in_flight = 0 if self.parallel.on_cpu else 1
        while self.step < until:
            stopping = self.stop_requested()
            if self.dispatched_step < until and not stopping:
                self.start_dispatch(until)
            elif not self.in_flight:
                return
            nothing_follows = self.dispatched_step == until or stopping
            if len(self.in_flight) > most_in_flight or nothing_follows:
                self.read_oldest()

    def start_dispatch(self, until: int) -> None:
        """Starts a dispatch, and has the batches of the one after it copied."""
        batches = self.placed_batches
        if batches is None:
            batches = self.next_batches()
        sums = self.dispatch(batches)
        self.dispatched_step = self.intervals.dispatch_end(self.dispatched_step)
        self.in_flight.append((self.dispatched_step, sums))
        # These are copied while the dispatch computes.
        self.placed_batches = (
            self.next_batches() if self.dispatched_step < until else None
        )

    def read_oldest(self) -> None:
        """Reads the results of the dispatch that has been in flight for longest."""
        end, sums = self.in_flight.popleft()
        self.read_results(end, sums)

    def next_batches(self) -> Any:
        """The batches of the next dispatch, on their way to the devices."""
        started = time.perf_counter()
        step = self.dispatched_step
        if self.batches is None:
            self.batches = self.exit_stack.enter_context(
                contextlib.closing(
                    self.parallel.open_train(
                        self.order_seed, step, self.intervals.steps - step
                    )
                )
            )
        steps = self.intervals.dispatch_end(step) - step
        batches = [next(self.batches) for _ in range(steps)]
        self.sums.input_wait_seconds += time.perf_counter() - started
        return self.parallel.place(batches)

    def dispatch(self, batches: Any) -> Any:
        """Starts the steps of a dispatch; returns their sums, on the devices."""
        self.tracer.before_dispatch(self.dispatches)
        self.dispatches += 1
        compiled_before = self.parallel.compile_seconds
        self.state, sums = self.parallel.train(
            self.state, batches, stop=self.log.stop_requested()
        )
        compile_seconds = self.parallel.compile_seconds - compiled_before
        if compile_seconds:
            self.sums.compile_seconds += compile_seconds
            self.results_time += compile_seconds
            self.phase("training")
        return sums

    def read_results(self, end: int, device_sums: Any) -> None:
        """Waits for the dispatch that ends at step `end`; logs if that is due."""
        sums = self.parallel.read(device_sums)
        self.stopping = self.stopping or bool(sums["stop"])
        self.count_time(steps=end - self.step)
        self.sums.add(self.step + 1, sums)
        self.step = end
        self.evaluated = False
        if self.intervals.is_due("log", end):
            self.log.append(
                self.sums.record(
                    step=end,
                    epoch=self.epochs,
                    flops_per_example=self.task.flops_per_example,
                    peak_flops_per_second=self.peak_flops_per_second,
                )
            )
            self.sums = MetricSums()
        seconds_left = self.intervals.seconds_left(
            end,
            step_seconds=self.step_seconds,
            evaluation_seconds=self.evaluation_seconds,
        )
        last_loss = float(sums["loss"][-1]) / int(sums["examples"][-1])
        self.log.progress(end, last_loss, seconds_left)

    def count_time(self, *, steps: int) -> None:
        """Counts the time since the last results for `steps` steps."""
        now = time.perf_counter()
        seconds = now - self.results_time
        self.results_time = now
        self.sums.seconds += seconds
        if self.step_seconds:
            self.step_seconds *= 1 - _NEWEST_SHARE
            self.step_seconds += _NEWEST_SHARE * seconds / steps
        else:
            self.step_seconds = seconds / steps

    @property
    def epochs(self) -> float:
        """Passes over the training split so far."""
        return self.step * self.parallel.batch_examples / self.task.data.train_examples

    # Evaluation

    def evaluate(self) -> None:
        """Evaluates and logs; gives up if the log asks to stop."""
        self.phase("evaluating")
        started = time.perf_counter()
        compiled_before = self.parallel.compile_seconds

        def seconds_without_compiling():
            compile_seconds = self.parallel.compile_seconds - compiled_before
            return time.perf_counter() - started - compile_seconds

        def should_stop(examples):
            # Before the first step, only this evaluation tells how long the run takes.
            if examples and not self.step_seconds:
                self.estimate_from_evaluation(seconds_without_compiling() / examples)
            return self.stop_requested()

        sums = self.parallel.evaluate(self.state, should_stop)
        if sums is None:
            return
        if sums["examples"] != self.task.data.test_examples:
            raise RuntimeError(
                f"evaluated {sums['examples']:.0f} examples of"
                f" {self.task.data.test_examples}"
            )
        self.evaluation_seconds = seconds_without_compiling()
        self.log.append(
            evaluation_record(
                sums,
                step=self.step,
                epoch=self.epochs,
                seconds=self.evaluation_seconds,
                compile_seconds=self.parallel.compile_seconds - compiled_before,
                top_k=self.task.top_k,
            )
        )
        self.evaluated = True

    def estimate_from_evaluation(self, seconds_per_example: float) -> None:
        """Reports the time left, if evaluating one example takes so long."""
        step_examples = self.parallel.batch_examples
        seconds_left = self.intervals.seconds_left(
            self.step,
            step_seconds=_TRAINING_PER_EVALUATION * seconds_per_example * step_examples,
            evaluation_seconds=seconds_per_example * self.task.data.test_examples,
        )
        self.log.progress(self.step, None, seconds_left)

    # Checkpoints and progress

    def save(self) -> None:
        """Saves the state, unless `step` is saved; only process 0 writes."""
        if self.saved_step == self.step:
            return
        if self.checkpoints and multihost.is_process_0():
            extra = {
                "sums": dataclasses.asdict(self.sums),
                "records": len(self.log.records),
                "evaluated": self.evaluated,
            }
            self.log.flush()
            self.checkpoints.save(self.step, self.parallel.read(self.state), extra)
        self.saved_step = self.step

    def phase(self, name: str) -> None:
        self.log.phase(name, self.step, self.intervals.steps)
