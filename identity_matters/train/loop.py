"""A training run: restore, step, log, evaluate, save, stop; its records and its result.

A checkpoint stores how many records preceded it. A resumed run drops the later records
and writes them again; all fields (docs/metrics.md) but `TIMING_FIELDS` equal those of
an uninterrupted run.
"""

import collections
import contextlib
import dataclasses
import statistics
import time
from typing import Any

import jax

from identity_matters.train import multihost
from identity_matters.train.checkpoint import CheckpointError, Checkpoints
from identity_matters.train.parallel import ParallelSteps
from identity_matters.train.step import (
    MetricSums,
    Task,
    evaluation_record,
    initial_state,
)

# A trace of all dispatches would be too large to open, and the first ones warm up
# caches.
SKIPPED_DISPATCHES, TRACED_DISPATCHES = 2, 5
SPEEDS = (
    "images_per_second",
    "model_flops_per_second",
    "utilization_percent",
    "input_wait_percent",
)
TIMING_FIELDS = (*SPEEDS, "seconds", "compile_seconds")


class StopRequested(Exception):
    """The run was asked to stop and has saved its state; the same call resumes it."""


class Log:
    """Where `fit` writes its records; this base class keeps them in memory.

    `rewind` keeps the first `count`. Once `stop_requested` is True, `fit` saves and
    raises. `phase` says what begins. `progress` comes after each dispatch, and in a
    first evaluation without loss.
    """

    def __init__(self) -> None:
        self.records: list[dict] = []

    def append(self, record: dict) -> None:
        self.records.append(record)

    def rewind(self, count: int) -> None:
        del self.records[count:]

    def stop_requested(self) -> bool:
        return False

    def phase(self, name: str, step: int, steps: int) -> None: ...
    def progress(self, step: int, loss: float | None, seconds_left: float) -> None: ...


@dataclasses.dataclass(frozen=True)
class Intervals:
    """How often a run dispatches, logs, evaluates and saves, in steps; ValueError for
    less than 1.

    Logs, evaluations and checkpoints are also due at the last step, and an evaluation
    also before the first. A dispatch ends wherever something is due. Its end depends
    only on where it starts, so a resumed run executes the same programs as an
    uninterrupted one.

    >>> every = Intervals(100, 10, 25, 50, 50)
    >>> every.dispatch_end(20), every.next_due(20, "evaluation")
    (25, 50)
    >>> every.is_due("log", 75)
    True
    """

    steps: int
    steps_per_dispatch: int
    steps_per_log: int
    steps_per_evaluation: int
    steps_per_checkpoint: int

    def __post_init__(self):
        for name, value in dataclasses.asdict(self).items():
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")

    def is_due(self, name: str, step: int) -> bool:
        """Whether a log, evaluation or checkpoint is due at `step`."""
        return step % getattr(self, f"steps_per_{name}") == 0 or step == self.steps

    def next_due(self, step: int, *names: str) -> int:
        """The first step after `step` at which any of `names` is due."""
        intervals = [getattr(self, f"steps_per_{name}") for name in names]
        return min(self.steps, *(step - step % every + every for every in intervals))

    def dispatch_end(self, step: int) -> int:
        """The last step of the dispatch that starts after `step`."""
        due = self.next_due(step, "log", "evaluation", "checkpoint")
        return min(due, step + self.steps_per_dispatch)


def result(records: list[dict]) -> dict:
    """Summarizes a complete run's records, with test errors at the last and the best
    step.

    A regression has no errors: its best step is that with the least test loss.
    """
    train = [record for record in records if record["kind"] == "train"]
    evaluations = [record for record in records if record["kind"] == "evaluation"]
    last = evaluations[-1]
    judged = "test_error_percent" if "test_error_percent" in last else "test_loss"
    best = min(evaluations, key=lambda record: record[judged])
    errors: dict = {}
    for name in (name for name in last if name.endswith("_error_percent")):
        errors |= {
            name: last[name],
            name.replace("_percent", "_best_percent"): best[name],
        }
    if "error_percent" in train[-1]:
        errors["train_error_percent"] = train[-1]["error_percent"]

    def median(name):
        known = [record[name] for record in train if record[name] is not None]
        return statistics.median(known) if known else None

    return {
        "steps": last["step"],
        **errors,
        "best_step": best["step"],
        "test_loss": last["test_loss"],
        "test_examples": last["test_examples"],
        "train_loss": train[-1]["loss"],
        **{name: median(name) for name in SPEEDS},
        "compile_seconds": sum(
            record["compile_seconds"] for record in train + evaluations
        ),
        "train_seconds": sum(record["seconds"] for record in train),
        "evaluate_seconds": sum(record["seconds"] for record in evaluations),
    }


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
    """Trains `task` to its last step, resuming from the newest checkpoint if there is
    one.

    Several processes make the same call, and log the same records up to timings. The
    typed `key` is the root of all randomness. With `checkpoints`, which are closed at
    the end, a record must be on disk when ``log.append`` returns.
    `peak_flops_per_second` is that of all devices together, if known. A trace of a few
    dispatches goes to `profile_dir`, unless that is empty.

    Returns (`result` of all records, the final state as NumPy arrays). Raises
    NonFiniteError if a loss or gradient is not finite, StopRequested if `log` asked to
    stop, and CheckpointError as `Checkpoints.restore` does, or if records or a
    checkpoint are missing. If process 0 cannot restore, the others raise
    multihost.Process0Error; if it fails later, JAX ends them.
    """
    run = _Run(
        task, parallel, intervals, log, checkpoints, peak_flops_per_second, profile_dir
    )
    with run.held:
        run.held.enter_context(checkpoints or contextlib.nullcontext())
        # Without it, splitting a key gives other keys.
        run.held.enter_context(jax.threefry_partitionable(True))
        run.held.callback(parallel.stop)
        run.held.enter_context(run.tracing)
        run.start(key)
        run.go_on()
        return result(log.records), parallel.read(run.state)


@dataclasses.dataclass
class _Run:
    """The moving parts of `fit`; `tracing` is closed after the trace, `held` at the
    end.
    """

    task: Task
    parallel: ParallelSteps
    intervals: Intervals
    log: Log
    checkpoints: Checkpoints | None
    peak: float | None
    profile_dir: str
    order_seed: int = 0
    stream: Any = None
    state: Any = None
    step: int = 0  # the updates whose results have been read
    evaluated: bool = False  # whether the evaluation due at `step` has been made
    saved_step: int | None = None
    # whether this process, or any of several, has been told to stop
    stopping: bool = False
    sums: MetricSums = dataclasses.field(default_factory=MetricSums)
    clock: float = 0.0  # when the results of the last dispatch came in
    step_seconds: float = 0.0
    evaluation_seconds: float = 0.0
    dispatches: int = 0
    tracing: contextlib.ExitStack = dataclasses.field(
        default_factory=contextlib.ExitStack
    )
    held: contextlib.ExitStack = dataclasses.field(default_factory=contextlib.ExitStack)

    def start(self, key: jax.Array) -> None:
        """Restores the newest checkpoint, or draws the initial state."""
        self.phase("restoring")
        init_key, order_key, step_key = jax.random.split(key, 3)
        self.order_seed = int(jax.random.bits(order_key, dtype="uint32"))
        drawn = initial_state(self.task.init(init_key), self.task.optimizer)
        state = jax.device_get(drawn)

        def restore():
            nonlocal state
            found = self.checkpoints.restore(drawn) if self.checkpoints else None
            if found is None:
                # The first checkpoint is on disk before the second one is due.
                behind = max((record["step"] for record in self.log.records), default=0)
                if (
                    self.checkpoints
                    and behind > 2 * self.intervals.steps_per_checkpoint
                ):
                    raise CheckpointError(
                        f"metrics.jsonl goes on to step {behind}, but there is no"
                        f" checkpoint in {self.checkpoints.directory}"
                    )
                return None
            step, state, extra = found
            if len(self.log.records) < extra["records"]:
                raise CheckpointError(
                    f"metrics.jsonl has {len(self.log.records)} lines of this training,"
                    f" but checkpoint {step} was saved after {extra['records']}: lines"
                    " are lost, or the checkpoints are those of another results_dir"
                )
            return {"step": step, **extra}

        found = multihost.on_process_0(restore)
        self.log.rewind(found["records"] if found else 0)
        if found:
            self.step = self.saved_step = found["step"]
            self.evaluated = found["evaluated"]
            self.sums = MetricSums(**found["sums"])
            state = multihost.arrays_from_process_0(state)
        self.state = self.parallel.start(step_key, state)

    def go_on(self) -> None:
        """Runs to the last step; if the log asks to stop, saves and raises
        StopRequested.
        """
        due = self.intervals.is_due
        while True:
            if due("evaluation", self.step) and not self.evaluated:
                self.evaluate()
            stopping = self.stop_requested()
            unsaved = self.saved_step != self.step
            if unsaved and (stopping or (due("checkpoint", self.step) and self.step)):
                self.save()
            if self.step == self.intervals.steps and self.evaluated:
                return
            if stopping:
                raise StopRequested(
                    f"stopped at step {self.step}; the same command resumes"
                )
            self.train(self.intervals.next_due(self.step, "evaluation", "checkpoint"))

    def stop_requested(self) -> bool:
        """Whether to stop; several processes go by what the last dispatch told all of
        them.
        """
        if self.parallel.process_count == 1:
            self.stopping = self.stopping or self.log.stop_requested()
        return self.stopping

    def train(self, until: int) -> None:
        """Runs the steps up to `until`, or fewer if the log asks to stop."""
        self.phase("training" if self.dispatches else "compiling")
        issued = self.step
        in_flight: collections.deque = collections.deque()
        # On accelerators the next dispatch is under way while the sums of this one are
        # read.
        ahead = 0 if self.parallel.on_cpu else 1
        batch = None
        self.clock = time.perf_counter()
        while issued < until or in_flight:
            stopping = self.stop_requested()
            if issued < until and not stopping:
                batch = self.next_batch(issued) if batch is None else batch
                self.trace()
                wanted = self.log.stop_requested()
                self.state, sums = self.parallel.train(self.state, batch, wanted)
                compile_seconds = self.take_compile_seconds()
                self.sums.compile_seconds += compile_seconds
                self.clock += compile_seconds
                if compile_seconds:
                    self.phase("training")
                issued = self.intervals.dispatch_end(issued)
                in_flight.append((issued, sums))
                # The next images are copied while this dispatch computes.
                batch = self.next_batch(issued) if issued < until else None
            elif not in_flight:
                return
            if len(in_flight) > ahead or issued == until or stopping:
                self.consume(*in_flight.popleft())

    def next_batch(self, step: int):
        """The batches of the dispatch after `step`, on their way to the devices."""
        started = time.perf_counter()
        if self.stream is None:
            stream = self.parallel.open_train(
                self.order_seed, step, self.intervals.steps - step
            )
            self.stream = self.held.enter_context(contextlib.closing(stream))
        batches = [
            next(self.stream) for _ in range(step, self.intervals.dispatch_end(step))
        ]
        self.sums.input_wait_seconds += time.perf_counter() - started
        return self.parallel.place(batches)

    def consume(self, end: int, device_sums) -> None:
        """Reads the sums of the dispatch that ended at `end`; logs if due."""
        sums = self.parallel.read(device_sums)
        self.stopping = self.stopping or bool(sums["stop"])
        now = time.perf_counter()
        seconds, self.clock = now - self.clock, now
        self.sums.seconds += seconds
        self.sums.add(self.step + 1, sums)
        each = seconds / (end - self.step)
        # A running mean over about ten dispatches.
        self.step_seconds = (
            0.9 * self.step_seconds + 0.1 * each if self.step_seconds else each
        )
        self.step, self.evaluated = end, False
        if self.intervals.is_due("log", end):
            flops = self.task.flops_per_example
            self.log.append(self.sums.record(end, self.epochs, flops, self.peak))
            self.sums = MetricSums()
        loss = float(sums["loss"][-1]) / int(sums["examples"][-1])
        left = self.seconds_left(self.step_seconds, self.evaluation_seconds)
        self.log.progress(end, loss, left)

    def evaluate(self) -> None:
        """Evaluates and logs; gives up if the log asks to stop."""
        self.phase("evaluating")
        started, test_examples = time.perf_counter(), self.task.data.test_examples

        def should_stop(examples):
            # Before the first step, only this evaluation tells how long the run will
            # take: training on an image takes three times as long as evaluating it.
            if examples and not self.step_seconds:
                seconds = time.perf_counter() - started - self.parallel.compile_seconds
                step_seconds = 3 * seconds / examples * self.parallel.batch_examples
                left = self.seconds_left(
                    step_seconds, seconds / examples * test_examples
                )
                self.log.progress(self.step, None, left)
            return self.stop_requested()

        sums = self.parallel.evaluate(self.state, should_stop)
        if sums is None:
            return
        if sums["examples"] != test_examples:
            raise RuntimeError(
                f"evaluated {sums['examples']:.0f} examples of {test_examples}"
            )
        compile_seconds = self.take_compile_seconds()
        self.evaluation_seconds = time.perf_counter() - started - compile_seconds
        times = self.evaluation_seconds, compile_seconds
        self.log.append(
            evaluation_record(self.step, self.epochs, sums, *times, self.task.top_k)
        )
        self.evaluated = True

    def seconds_left(self, step_seconds: float, evaluation_seconds: float) -> float:
        """Estimated time to the end of the run, given how long a step and an evaluation
        take.
        """
        intervals = self.intervals
        evaluations = -(-intervals.steps // intervals.steps_per_evaluation)
        evaluations -= self.step // intervals.steps_per_evaluation
        return (
            intervals.steps - self.step
        ) * step_seconds + evaluations * evaluation_seconds

    @property
    def epochs(self) -> float:
        """Passes over the training split so far."""
        return self.step * self.parallel.batch_examples / self.task.data.train_examples

    def save(self) -> None:
        if self.checkpoints and multihost.is_process_0():
            extra: dict[str, Any] = {"sums": dataclasses.asdict(self.sums)}
            extra |= {"records": len(self.log.records), "evaluated": self.evaluated}
            self.checkpoints.save(self.step, self.parallel.read(self.state), extra)
        self.saved_step = self.step

    def phase(self, name: str) -> None:
        self.log.phase(name, self.step, self.intervals.steps)

    def take_compile_seconds(self) -> float:
        """Seconds spent on compiling since the last call."""
        seconds, self.parallel.compile_seconds = self.parallel.compile_seconds, 0.0
        return seconds

    def trace(self) -> None:
        """Starts or ends the trace if that is due before the next dispatch."""
        if self.profile_dir and self.dispatches == SKIPPED_DISPATCHES:
            self.tracing.enter_context(jax.profiler.trace(self.profile_dir))
        if self.dispatches == SKIPPED_DISPATCHES + TRACED_DISPATCHES:
            self.tracing.close()
        self.dispatches += 1
