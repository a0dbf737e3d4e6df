"""What a training writes as it goes: records, checkpoints, events, progress."""

import contextlib
import importlib.util
import time
from collections.abc import Iterator
from typing import Any

from absl import logging
from etils import epath

from experiments.run.endings import RESUMES
from experiments.run.experiment import RESULT
from experiments.run.signals import Stop
from experiments.run.verdicts import seconds_with_compiling, where
from identity_matters import runs
from identity_matters.train import multihost
from identity_matters.train.progress import Progress

LONG_SECONDS = 3600  # a training that will take longer says so early
DISPATCHES_BEFORE_ESTIMATE = 5  # the time left can be estimated after them


def check_options(
    *, tensorboard: bool = False, profile: str = "", checkpoint_dir: str = ""
) -> None:
    """Makes the directories for profiles and checkpoints.

    The options are those of `TrainingLogs`. ValueError for a directory that cannot be
    made, or TensorBoard where it is missing.
    """
    directories = {"profile": profile, "checkpoint_dir": checkpoint_dir}
    for name, directory in directories.items():
        try:
            if directory:
                epath.Path(directory).mkdir(parents=True, exist_ok=True)
        except Exception as error:  # of any type where a bucket does not answer
            raise ValueError(
                f"--{name} cannot be used: {runs.first_line(error)}"
            ) from None
    if tensorboard and not importlib.util.find_spec("tensorboardX"):
        raise ValueError("--tensorboard needs tensorboardX; run: make setup-dev")


class TrainingLogs:
    """The logs of a run's trainings, and where their checkpoints are.

    Args:
      run_dir: the `runs.RunDir` that records go to.
      stop: whether SIGTERM or Ctrl-C has come.
      tensorboard: whether to write event files for TensorBoard.
      profile: where a trace of some steps goes; none if empty.
      checkpoint_dir: where checkpoints go; the run directory if empty.
    """

    def __init__(
        self,
        run_dir: Any,
        stop: Stop,
        tensorboard: bool = False,
        profile: str = "",
        checkpoint_dir: str = "",
    ):
        self._writes = multihost.is_process_0()
        self._profile_dir = profile if self._writes else ""
        if checkpoint_dir:
            self._checkpoints = epath.Path(checkpoint_dir) / run_dir.name
        else:
            self._checkpoints = run_dir.path / runs.CHECKPOINTS
        # A bucket has no locks, and the run directory has its own.
        self._locks_checkpoints = bool(checkpoint_dir) and "://" not in checkpoint_dir
        self._run_dir = run_dir
        self._stop = stop
        self._tensorboard = tensorboard and self._writes

    @contextlib.contextmanager
    def trial(self, index: int, count: int) -> Iterator["TrainingLog"]:
        """The log of training `index` of `count`, open inside."""
        with contextlib.ExitStack() as until_it_ends:
            progress = Progress(
                label=f"run {index + 1} of {count}, " if count > 1 else "",
                hidden=not self._writes,
                write=lambda line: logging.info("%s", line),
            )
            until_it_ends.enter_context(progress)
            events = None
            if self._tensorboard:
                directory = self._run_dir.path / "tensorboard" / f"cell={index}"
                events = until_it_ends.enter_context(_Events(directory))
            if self._writes and self._locks_checkpoints:
                # A run in another results directory must
                # not write to the same --checkpoint_dir.
                self._checkpoints.mkdir(parents=True, exist_ok=True)
                runs.lock_path(self._checkpoints, until_it_ends)
            yield TrainingLog(
                index=index,
                run_dir=self._run_dir,
                stop=self._stop,
                progress=progress,
                events=events,
                checkpoint_dir=self._checkpoints_of(index),
                profile_dir=self._profile_dir,
            )

    def _checkpoints_of(self, index: int) -> epath.Path:
        return self._checkpoints / f"cell={index}"

    def delete_checkpoints(self, index: int | None = None) -> None:
        """Deletes the checkpoints of training `index`, or of all, wherever they are."""
        path = self._checkpoints if index is None else self._checkpoints_of(index)
        if self._writes and path.exists():
            with contextlib.ExitStack() as lock:
                if self._locks_checkpoints:
                    runs.lock_path(self._checkpoints, lock)
                path.rmtree()


class TrainingLog:
    """The log of one training, with the methods of `train.loop.Log`.

    Each record has the training's index as "cell". A resumed training finds the records
    that it wrote before; `rewind` drops those that came after its checkpoint.

    Args:
      index: of the training.
      run_dir: the `runs.RunDir` that records go to.
      stop: whether SIGTERM or Ctrl-C has come.
      progress: shows how far the training is.
      events: those of TensorBoard, if they are wanted.
      checkpoint_dir: where the checkpoints of this training are kept.
      profile_dir: where a trace of some steps goes; none if empty.
    Attributes:
      earlier_seconds: of the records of earlier processes that this one goes on from.
    """

    def __init__(
        self,
        *,
        index: int,
        run_dir: Any,
        stop: Stop,
        progress: Progress,
        events: "_Events | None",
        checkpoint_dir: epath.Path,
        profile_dir: str,
    ):
        self.checkpoint_dir = checkpoint_dir
        self.profile_dir = profile_dir
        self.earlier_seconds = 0.0
        self._index = index
        self._run_dir = run_dir
        self._stop = stop
        self._progress = progress
        self._events = events
        self._first_record = _place_of_first_record(run_dir.records, index)
        self._dispatches = 0
        self._has_warned = False  # that it takes long

    @property
    def records(self) -> list[dict]:
        """The records of the run from this training's first on.

        While it trains, these are its own: later trainings have not begun.
        """
        return self._run_dir.records[self._first_record :]

    def append(self, record: dict) -> None:
        """Writes a record to metrics.jsonl, as text and as events for TensorBoard."""
        self._run_dir.append({"cell": self._index, **record}, may_wait=True)
        self.say(self._progress.line(record))
        if self._events is not None:
            self._events.write(record)

    def flush(self) -> None:
        """Puts all records on disk."""
        self._run_dir.flush()

    def results(self) -> list[dict]:
        """The results of all trainings of this run that are finished."""
        return where(self._run_dir.records, kind=RESULT)

    def rewind(self, count: int) -> None:
        """Drops all records of this training but the first `count`.

        A training does so once, before it writes a record.
        """
        self._run_dir.rewind(self._first_record + count)
        self.earlier_seconds = seconds_with_compiling(self.records)

    def stop_requested(self) -> bool:
        """Whether SIGTERM or Ctrl-C has come.

        If so, save a checkpoint and raise `run.Interrupted`.
        """
        return self._stop.requested is not None

    def say(self, line: str) -> None:
        """Logs one line, above the progress bar if there is one."""
        self._progress.say(line)

    def phase(self, name: str, step: int, steps: int) -> None:
        """Shows what begins at `step` of `steps`."""
        self._progress.phase(name, step, steps)
        if name == "compiling" and step:
            self.say(f"resuming from step {step} of {steps}")

    def progress(self, step: int, loss: float | None, seconds_left: float) -> None:
        """Moves the bar to `step`; says once, early on, if the training will be long.

        The loss is None in the evaluation before the first step.
        """
        if loss is not None:
            self._dispatches += 1
        early = self._dispatches in (0, DISPATCHES_BEFORE_ESTIMATE)
        if early and seconds_left > LONG_SECONDS and not self._has_warned:
            self._has_warned = True
            self.say(_long_training(seconds_left))
        self._progress.progress(step, loss, seconds_left)


class _Events(contextlib.AbstractContextManager):
    """Event files for TensorBoard in a directory, which the first record makes."""

    def __init__(self, directory: epath.Path):
        self._directory = directory
        self._writer: Any = None

    def write(self, record: dict) -> None:
        """Writes the numbers of a record."""
        step = record["step"]
        if self._writer is None:
            import tensorboardX

            # A resumed training writes the events after its checkpoint again.
            self._writer = tensorboardX.SummaryWriter(
                str(self._directory), purge_step=step
            )
        for name, value in _scalars(record).items():
            self._writer.add_scalar(f"{record['kind']}/{name}", value, step)

    def __exit__(self, *_) -> None:
        if self._writer is not None:
            self._writer.close()


def _place_of_first_record(records: list[dict], index: int) -> int:
    """Where among a run's records those of training `index` begin, or will."""
    for place, record in enumerate(records):
        if record["cell"] == index:
            return place
    return len(records)


def _long_training(seconds_left: float) -> str:
    end = time.localtime(time.time() + seconds_left)
    return (
        f"this takes about {seconds_left / 3600:.1f} hours on this machine, until"
        f" {time.strftime('%Y-%m-%d %H:%M', end)}; stop it at any time, {RESUMES} it"
    )


def _scalars(record: dict) -> dict[str, float]:
    """The numbers of a record; entry i of a list is called NAME/i, from 1."""
    entries = {}
    for name, value in record.items():
        if isinstance(value, list):
            for place, entry in enumerate(value, start=1):
                entries[f"{name}/{place}"] = entry
        elif name != "step":
            entries[name] = value
    return {
        name: entry for name, entry in entries.items() if isinstance(entry, int | float)
    }
