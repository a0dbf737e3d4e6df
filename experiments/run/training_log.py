"""What a training writes as it goes: records, checkpoints, events, progress."""

import contextlib
import dataclasses
import time
from typing import Any

from absl import logging
from etils import epath

from experiments.run.experiment import RESULT
from experiments.run.signals import Stop
from experiments.run.verdicts import where
from identity_matters import runs
from identity_matters.train import multihost
from identity_matters.train.progress import Progress

LONG_SECONDS = 3600  # a training that will take longer says so early
DISPATCHES_BEFORE_ESTIMATE = 5  # the time left can be estimated after them


@dataclasses.dataclass
class _Current:
    """The training that is under way.

    Attributes:
      index: of the training.
      first_record: the place of its first record among those of the run.
      progress: shows how far it is.
      until_it_ends: what is closed when it ends.
      dispatches: how many there were so far.
      has_warned: whether it was said that it takes long.
      phases: how many have begun.
      writer: of TensorBoard's events, once there are some.
    """

    index: int
    first_record: int
    progress: Progress
    until_it_ends: contextlib.ExitStack
    dispatches: int = 0
    has_warned: bool = False
    phases: int = 0
    writer: Any = None


class TrainingLog:
    """The log of a run's trainings, with the methods of `train.loop.Log`.

    Each record has the training's index as "cell". A resumed training finds the records
    that it wrote before; `rewind` drops those that came after its checkpoint.

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
        self.profile_dir = profile if self._writes else ""
        if checkpoint_dir:
            self._checkpoints = epath.Path(checkpoint_dir) / run_dir.name
        else:
            self._checkpoints = run_dir.path / "checkpoints"
        self._shares_checkpoints = bool(checkpoint_dir) and "://" not in checkpoint_dir
        self._run_dir = run_dir
        self._stop = stop
        self._tensorboard = tensorboard and self._writes
        self._current: _Current  # set by `trial`

    @contextlib.contextmanager
    def trial(self, index: int, count: int):
        """Everything that is logged inside belongs to training `index` of `count`."""
        with contextlib.ExitStack() as until_it_ends:
            progress = Progress(
                label=f"run {index + 1} of {count}, " if count > 1 else "",
                hidden=not self._writes,
                write=lambda line: logging.info("%s", line),
            )
            self._current = _Current(
                index=index,
                first_record=self._place_of_first_record(index),
                progress=until_it_ends.enter_context(progress),
                until_it_ends=until_it_ends,
            )
            if self._writes and self._shares_checkpoints:
                # A run in another results directory must
                # not write to the same --checkpoint_dir.
                self._checkpoints.mkdir(parents=True, exist_ok=True)
                runs.lock_path(self._checkpoints, until_it_ends)
            yield

    def _place_of_first_record(self, index: int) -> int:
        """Where in the run's records those of a training begin, or will."""
        for place, record in enumerate(self._run_dir.records):
            if record["cell"] == index:
                return place
        return len(self._run_dir.records)

    @property
    def checkpoint_dir(self) -> epath.Path:
        """Where the checkpoints of this training are kept."""
        return self._checkpoints_of(self._current.index)

    def _checkpoints_of(self, index: int) -> epath.Path:
        return self._checkpoints / f"cell={index}"

    def delete_checkpoints(self, index: int | None = None) -> None:
        """Deletes the checkpoints of training `index`, or of all, wherever they are."""
        path = self._checkpoints if index is None else self._checkpoints_of(index)
        if self._writes and path.exists():
            with contextlib.ExitStack() as lock:
                if self._shares_checkpoints:
                    runs.lock_path(self._checkpoints, lock)
                path.rmtree()

    @property
    def records(self) -> list[dict]:
        """The records of this training."""
        return self._run_dir.records[self._current.first_record :]

    def append(self, record: dict) -> None:
        """Writes a record to metrics.jsonl, as text and as events for TensorBoard."""
        self._run_dir.append({"cell": self._current.index, **record}, may_wait=True)
        self.say(self._current.progress.line(record))
        if self._tensorboard:
            self._write_events(record)

    def flush(self) -> None:
        """Puts all records on disk."""
        self._run_dir.flush()

    def results(self) -> list[dict]:
        """The results of all trainings of this run that are finished."""
        return where(self._run_dir.records, kind=RESULT)

    def rewind(self, count: int) -> None:
        """Drops all records of this training but the first `count`."""
        self._run_dir.rewind(self._current.first_record + count)

    def stop_requested(self) -> bool:
        """Whether SIGTERM or Ctrl-C has come; then save and raise `run.Interrupted`."""
        return self._stop.requested is not None

    def say(self, line: str) -> None:
        """Logs one line, above the progress bar if there is one."""
        self._current.progress.say(line)

    def phase(self, name: str, step: int, steps: int) -> None:
        """Shows what begins at `step` of `steps`."""
        self._current.progress.phase(name, step, steps)
        if self._current.phases and name == "compiling" and step:
            self.say(f"resuming from step {step} of {steps}")
        self._current.phases += 1

    def progress(self, step: int, loss: float | None, seconds_left: float) -> None:
        """Moves the bar to `step`; says once, early on, if the training will be long.

        The loss is None in the evaluation before the first step.
        """
        current = self._current
        if loss is not None:
            current.dispatches += 1
        early = current.dispatches in (0, DISPATCHES_BEFORE_ESTIMATE)
        if early and seconds_left > LONG_SECONDS and not current.has_warned:
            current.has_warned = True
            self.say(_long_training(seconds_left))
        current.progress.progress(step, loss, seconds_left)

    def _write_events(self, record: dict) -> None:
        step = record["step"]
        if self._current.writer is None:
            import tensorboardX

            # A resumed training writes the events after its checkpoint again.
            directory = (
                self._run_dir.path / "tensorboard" / f"cell={self._current.index}"
            )
            writer = tensorboardX.SummaryWriter(str(directory), purge_step=step)
            self._current.writer = self._current.until_it_ends.enter_context(writer)
        for name, value in _scalars(record).items():
            self._current.writer.add_scalar(f"{record['kind']}/{name}", value, step)


def _long_training(seconds_left: float) -> str:
    end = time.localtime(time.time() + seconds_left)
    return (
        f"this takes about {seconds_left / 3600:.1f} hours on this machine, until"
        f" {time.strftime('%Y-%m-%d %H:%M', end)}; stop it at any time, and the same"
        " command goes on from there"
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
