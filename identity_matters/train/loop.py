"""A training run: restore, step, log, evaluate, save, stop.

A checkpoint stores how many records preceded it. A resumed run drops the later records
and writes them again; all their fields (docs/metrics.md) but
`records.TIMING_FIELDS` equal those of an uninterrupted run.

The order of events is that of `_Run.to_the_last_step`: at every step at which something
is due, evaluate, then save, then stop or train to the next such step. In between,
`_Run.results` and `_Run.dispatches` keep the devices busy.
"""

import collections
import contextlib
import dataclasses
import functools
import time
from collections.abc import Iterator
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
    """The run was asked to stop.

    If it keeps checkpoints, it has saved its state, and the same call resumes it.
    """


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
        """Whether `fit` should stop, as StopRequested says; once True, always True."""
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
      StopRequested: `log` asked to stop. The state has been saved if there are
        `checkpoints`.
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
            clock=_Clock(parallel),
        )
        run.start(key)
        run.to_the_last_step()
        return result(log.records), parallel.read(run.state)


class _Tracer(contextlib.AbstractContextManager):
    """Writes a trace of TRACED_DISPATCHES dispatches, unless `profile_dir` is empty."""

    def __init__(self, profile_dir: str):
        self._profile_dir = profile_dir
        self._trace = contextlib.ExitStack()
        self._dispatches = 0  # so far

    def before_dispatch(self) -> None:
        """Starts or ends the trace if that is due."""
        if self._profile_dir and self._dispatches == SKIPPED_DISPATCHES:
            self._trace.enter_context(jax.profiler.trace(self._profile_dir))
        if self._dispatches == SKIPPED_DISPATCHES + TRACED_DISPATCHES:
            self._trace.close()
        self._dispatches += 1

    def __exit__(self, *_) -> None:
        self._trace.close()


class _Clock:
    """How long steps and evaluations take, without compiling.

    Attributes:
      step_seconds: a running mean over about ten dispatches; 0 before the first.
      evaluation_seconds: of the last evaluation; 0 before the first.
    """

    def __init__(self, parallel: ParallelSteps):
        self.step_seconds = 0.0
        self.evaluation_seconds = 0.0
        self._parallel = parallel
        self.restart()

    def restart(self) -> None:
        """Restarts `seconds` and `compile_seconds` at zero."""
        self._started = time.perf_counter()
        self._compiled_before = self._parallel.compile_seconds

    @property
    def seconds(self) -> float:
        """Time since `restart`, without compiling."""
        return time.perf_counter() - self._started - self.compile_seconds

    @property
    def compile_seconds(self) -> float:
        """Time since `restart` that was spent on compiling."""
        return self._parallel.compile_seconds - self._compiled_before

    def add_dispatch(self, seconds: float, *, steps: int) -> None:
        """Adds a dispatch to `step_seconds`."""
        if self.step_seconds:
            self.step_seconds *= 1 - _NEWEST_SHARE
            self.step_seconds += _NEWEST_SHARE * seconds / steps
        else:
            self.step_seconds = seconds / steps


@dataclasses.dataclass
class _Run:
    """The state of `fit`.

    Attributes:
      task, parallel, intervals, log, checkpoints, peak_flops_per_second: see `fit`.
      tracer: of the dispatches.
      exit_stack: closed at the end of the run.
      clock: restarted when an evaluation or a stretch of training begins, and when the
        results of a dispatch come in.
      order_seed: decides the order of the examples.
      state: on the devices, after all steps that were dispatched.
      step: the updates whose results have been read.
      sums: what the next train record is made of.
      evaluated: whether the evaluation that is due at `step` has been made.
      saved_step: the step of the newest checkpoint.
      stopping: whether this process, or any of several, has been told to stop.
    """

    task: Task
    parallel: ParallelSteps
    intervals: Intervals
    log: Log
    checkpoints: Checkpoints | None
    peak_flops_per_second: float | None
    tracer: _Tracer
    exit_stack: contextlib.ExitStack
    clock: _Clock
    order_seed: int = 0
    state: Any = None
    step: int = 0
    sums: MetricSums = dataclasses.field(default_factory=MetricSums)
    evaluated: bool = False
    saved_step: int | None = None
    stopping: bool = False

    # Start

    def start(self, key: jax.Array) -> None:
        """Restores the newest checkpoint, or draws the initial state."""
        self.phase("restoring")
        init_key, order_key, step_key = jax.random.split(key, 3)
        self.order_seed = int(jax.random.bits(order_key, dtype="uint32"))
        drawn = jax.device_get(
            initial_state(self.task.init(init_key), self.task.optimizer)
        )
        restored = multihost.restored_by_process_0(
            lambda: self.newest_checkpoint(like=drawn), like=drawn
        )
        if restored is None:
            self.log.rewind(0)
            state = drawn
        else:
            position, state = restored
            self.go_on_from(position)
        self.state = self.parallel.start(step_key, state)

    def newest_checkpoint(self, *, like: dict) -> tuple[dict, Any] | None:
        """What `go_on_from` takes, and the state, as arrays; None to start anew.

        Raises CheckpointError if the newest checkpoint does not fit the records.
        """
        newest = self.checkpoints.restore(like) if self.checkpoints else None
        if newest is None:
            self.check_that_no_checkpoint_is_missing()
            return None
        step, state, extra = newest
        if len(self.log.records) < extra["records"]:
            raise CheckpointError(
                f"metrics.jsonl has {len(self.log.records)} lines of this training,"
                f" but checkpoint {step} was saved after {extra['records']}: lines"
                " are lost, or the checkpoints are those of another results_dir"
            )
        return {"step": step, **extra}, state

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
                f" checkpoint in {self.checkpoints.directory}: name the directory that"
                " has it, or, if it was not copied with the records, let this training"
                " begin anew by `.venv/bin/python -m"
                " identity_matters.runs.without_checkpoints`, which takes the run's"
                " directory"
            )

    def go_on_from(self, position: dict) -> None:
        """Goes to the step of a checkpoint; `position` is what `save` wrote there."""
        self.log.rewind(position["records"])
        self.step = position["step"]
        self.saved_step = position["step"]
        self.evaluated = position["evaluated"]
        self.sums = MetricSums(**position["sums"])

    # The order of events

    def to_the_last_step(self) -> None:
        """Runs to the last step; if the log asks to stop, calls `save` and raises."""
        while True:
            self.learn_whether_to_stop(ask_others=True)
            if self.intervals.is_due("evaluation", self.step) and not self.evaluated:
                self.evaluate()
                self.learn_whether_to_stop(ask_others=True)
            if self.stopping or self.intervals.is_due("checkpoint", self.step):
                self.save()
            if self.step == self.intervals.steps and self.evaluated:
                return
            if self.stopping:
                raise StopRequested(self.how_it_stopped())
            self.train(self.intervals.next_due(self.step, "evaluation", "checkpoint"))

    def how_it_stopped(self) -> str:
        """The message of StopRequested."""
        if self.checkpoints:
            return f"stopped at step {self.step}; the same command resumes"
        return f"stopped at step {self.step}; nothing was saved, without checkpoints"

    def learn_whether_to_stop(self, *, ask_others: bool = False) -> None:
        """Sets `stopping` if the log asks to stop.

        Several processes stop at the same point. Between dispatches they do not wait to
        `ask_others`, but go by what the last one told all of them, which `count` reads.
        """
        if ask_others or self.parallel.process_count == 1:
            asked = multihost.any_process(self.log.stop_requested())
            self.stopping = self.stopping or asked

    # Training

    def train(self, until: int) -> None:
        """Runs the steps up to `until`, or fewer if the log asks to stop."""
        self.phase("training" if self.clock.step_seconds else "compiling")
        self.clock.restart()
        for last_step, sums in self.results(until):
            self.count(last_step, sums)

    def results(self, until: int) -> Iterator[tuple[int, dict]]:
        """Runs the steps up to `until`, or fewer if the log asks to stop.

        Where the devices run a dispatch without the host, the next one is dispatched
        before the results of this one are read. Elsewhere dispatching blocks, and
        reading late would book the time of each dispatch on the next record.

        Yields:
          The last step of a dispatch, and its sums as NumPy arrays, in order.
        """
        most_in_flight = 1 if self.parallel.steps_run_on_device else 0
        # (last step, sums on the devices) of each dispatch that is not read, in order.
        in_flight: collections.deque[tuple[int, Any]] = collections.deque()
        for dispatched in self.dispatches(until):
            in_flight.append(dispatched)
            if len(in_flight) > most_in_flight:
                last_step, sums = in_flight.popleft()
                yield last_step, self.parallel.read(sums)
        for last_step, sums in in_flight:
            yield last_step, self.parallel.read(sums)

    def dispatches(self, until: int) -> Iterator[tuple[int, Any]]:
        """Dispatches the steps up to `until`, or fewer if the log asks to stop.

        While a dispatch computes, the batches of the next one are copied.

        Yields:
          The last step of a dispatch, and its sums on the devices.
        """
        last_step = self.step
        batches = None
        while last_step < until:
            # Asked again after each dispatch, whose results may have been counted.
            self.learn_whether_to_stop()
            if self.stopping:
                return
            if batches is None:
                batches = self.next_batches(last_step)
            sums = self.dispatch(batches)
            last_step = self.intervals.dispatch_end(last_step)
            batches = self.next_batches(last_step) if last_step < until else None
            yield last_step, sums

    def next_batches(self, step: int) -> Any:
        """The batches of the dispatch after `step`, on their way to the devices."""
        started = time.perf_counter()
        steps = self.intervals.dispatch_end(step) - step
        batches = [next(self.batches) for _ in range(steps)]
        self.sums.input_wait_seconds += time.perf_counter() - started
        return self.parallel.place(batches)

    @functools.cached_property
    def batches(self) -> Iterator[dict]:
        """The batches of this process, opened at the first dispatch, from there on."""
        steps_left = self.intervals.steps - self.step
        stream = self.parallel.open_train(self.order_seed, self.step, steps_left)
        return self.exit_stack.enter_context(contextlib.closing(stream))

    def dispatch(self, batches: Any) -> Any:
        """Starts the steps of a dispatch; returns their sums, on the devices."""
        self.tracer.before_dispatch()
        compiled_before = self.parallel.compile_seconds
        self.state, sums = self.parallel.train(
            self.state, batches, stop=self.log.stop_requested()
        )
        if self.parallel.compile_seconds > compiled_before:
            self.phase("training")
        return sums

    def count(self, last_step: int, sums: dict) -> None:
        """Counts the sums of the dispatch up to `last_step`; logs if that is due."""
        self.stopping = self.stopping or bool(sums["stop"])
        self.count_time(steps=last_step - self.step)
        self.sums.add(self.step + 1, sums)
        self.step = last_step
        self.evaluated = False
        if self.intervals.is_due("log", self.step):
            self.log.append(
                self.sums.record(
                    step=self.step,
                    epoch=self.epochs,
                    flops_per_example=self.task.flops_per_example,
                    peak_flops_per_second=self.peak_flops_per_second,
                )
            )
            self.sums = MetricSums()
        last_loss = float(sums["loss"][-1]) / int(sums["examples"][-1])
        self.report_progress(
            last_loss,
            step_seconds=self.clock.step_seconds,
            evaluation_seconds=self.clock.evaluation_seconds,
        )

    def count_time(self, *, steps: int) -> None:
        """Counts the time since the last results for `steps` steps."""
        seconds = self.clock.seconds
        self.sums.seconds += seconds
        self.sums.compile_seconds += self.clock.compile_seconds
        self.clock.restart()
        self.clock.add_dispatch(seconds, steps=steps)

    @property
    def epochs(self) -> float:
        """Passes over the training split so far."""
        return self.step * self.parallel.batch_examples / self.task.data.train_examples

    # Evaluation

    def evaluate(self) -> None:
        """Evaluates and logs; gives up if the log asks to stop."""
        self.phase("evaluating")
        self.clock.restart()

        def should_stop(examples):
            # Before the first step, only this evaluation tells how long the run takes.
            if examples and not self.clock.step_seconds:
                self.estimate_from_evaluation(self.clock.seconds / examples)
            self.learn_whether_to_stop(ask_others=True)
            return self.stopping

        sums = self.parallel.evaluate(self.state, should_stop)
        if sums is None:
            return
        if sums["examples"] != self.task.data.test_examples:
            raise RuntimeError(
                f"evaluated {sums['examples']:.0f} examples of"
                f" {self.task.data.test_examples}"
            )
        self.clock.evaluation_seconds = self.clock.seconds
        self.log.append(
            evaluation_record(
                sums,
                step=self.step,
                epoch=self.epochs,
                seconds=self.clock.evaluation_seconds,
                compile_seconds=self.clock.compile_seconds,
                top_k=self.task.top_k,
            )
        )
        self.evaluated = True

    def estimate_from_evaluation(self, seconds_per_example: float) -> None:
        """Reports the time left, if evaluating one example takes so long."""
        step_examples = self.parallel.batch_examples
        self.report_progress(
            None,
            step_seconds=_TRAINING_PER_EVALUATION * seconds_per_example * step_examples,
            evaluation_seconds=seconds_per_example * self.task.data.test_examples,
        )

    # Checkpoints and progress

    def save(self) -> None:
        """Saves the state if there are checkpoints, once a step; process 0 writes."""
        if not self.checkpoints or self.saved_step == self.step:
            return
        if multihost.is_process_0():
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

    def report_progress(
        self, loss: float | None, *, step_seconds: float, evaluation_seconds: float
    ) -> None:
        """Calls `Log.progress`, with the time left if steps take as long as given."""
        seconds_left = self.intervals.seconds_left(
            self.step,
            step_seconds=step_seconds,
            evaluation_seconds=evaluation_seconds,
        )
        self.log.progress(self.step, loss, seconds_left)
