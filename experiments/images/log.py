"""What a training writes as it goes: records, checkpoints, TensorBoard events,
progress.
"""

import contextlib
import time

from absl import logging
from etils import epath

from identity_matters import runs
from identity_matters.train import multihost
from identity_matters.train.progress import Progress

# the kind of a training's last record; a training that has one is finished
RESULT = "result"
LONG_SECONDS = 3600  # a training that will take longer says so early
DISPATCHES_BEFORE_ESTIMATE = 5  # the time left can be estimated after them


class TrainingLog:
    """The log of the current training; see `loop.Log`. Its options are flags of the
    same names.

    Each record has the training's index as "cell". A resumed training finds the records
    that it wrote before; `rewind` drops those that came after its checkpoint.
    """

    def __init__(
        self, run_dir, stop_signal, tensorboard=False, profile="", checkpoint_dir=""
    ):
        self._writes = multihost.is_process_0()
        self.profile_dir = profile if self._writes else ""
        elsewhere = epath.Path(checkpoint_dir) / run_dir.name
        self._checkpoints = (
            elsewhere if checkpoint_dir else run_dir.path / "checkpoints"
        )
        self._shares_checkpoints = bool(checkpoint_dir) and "://" not in checkpoint_dir
        self._run_dir = run_dir
        self.stop_signal = stop_signal
        self._tensorboard = tensorboard and self._writes

    @contextlib.contextmanager
    def trial(self, index: int, count: int):
        """Everything that is logged inside belongs to training `index` of `count`."""
        self._index = index
        own = [
            i
            for i, record in enumerate(self._run_dir.records)
            if record["cell"] == index
        ]
        self._first = own[0] if own else len(self._run_dir.records)
        self._dispatches, self._told = 0, False
        self._phases = 0
        self._writer = None
        with contextlib.ExitStack() as self._open:
            self._progress = self._open.enter_context(
                Progress(
                    label=f"run {index + 1} of {count}, " if count > 1 else "",
                    hidden=not self._writes,
                    write=lambda line: logging.info("%s", line),
                )
            )
            if self._writes and self._shares_checkpoints:
                # A run in another results directory must not write to the same
                # --checkpoint_dir.
                self._checkpoints.mkdir(parents=True, exist_ok=True)
                runs.lock_path(self._checkpoints, self._open)
            yield

    @property
    def checkpoint_dir(self) -> epath.Path:
        """Where the checkpoints of this training are kept."""
        return self._checkpoints / f"cell={self._index}"

    def delete_checkpoints(self, index: int | None = None) -> None:
        """Deletes the checkpoints of training `index`, or of all, wherever they are."""
        path = (
            self._checkpoints if index is None else self._checkpoints / f"cell={index}"
        )
        if self._writes and path.exists():
            with contextlib.ExitStack() as held:
                if self._shares_checkpoints:
                    runs.lock_path(self._checkpoints, held)
                path.rmtree()

    @property
    def records(self) -> list[dict]:
        return self._run_dir.records[self._first :]

    def append(self, record: dict) -> None:
        """Writes one record to metrics.jsonl, as text and, if asked to, as TensorBoard
        events.
        """
        self._run_dir.append({"cell": self._index, **record})
        self.say(self._progress.line(record))
        if self._tensorboard:
            self._write_events(record)

    def results(self) -> list[dict]:
        """The results of all trainings of this run that are finished."""
        return [record for record in self._run_dir.records if record["kind"] == RESULT]

    def rewind(self, count: int) -> None:
        self._run_dir.rewind(self._first + count)

    def stop_requested(self) -> bool:
        """Whether SIGTERM or Ctrl-C has come; then save and raise `run.Interrupted`."""
        return self.stop_signal.requested is not None

    def say(self, line: str) -> None:
        """Logs one line, above the progress bar if there is one."""
        self._progress.say(line)

    def phase(self, name: str, step: int, steps: int) -> None:
        self._progress.phase(name, step, steps)
        if self._phases and name == "compiling" and step:
            self.say(f"resuming from step {step} of {steps}")
        self._phases += 1

    def progress(self, step: int, loss: float | None, seconds_left: float) -> None:
        """Moves the bar to `step`; says once, early on, if the training will take
        long.
        """
        if loss is not None:
            self._dispatches += 1
        early = self._dispatches in (0, DISPATCHES_BEFORE_ESTIMATE)
        if early and seconds_left > LONG_SECONDS and not self._told:
            self._told = True
            end = time.strftime(
                "%Y-%m-%d %H:%M", time.localtime(time.time() + seconds_left)
            )
            long = (
                f"this takes about {seconds_left / 3600:.1f} hours on this machine,"
                f" until {end}"
            )
            self.say(
                f"{long}; stop it at any time, and the same command goes on from there"
            )
        self._progress.progress(step, loss, seconds_left)

    def _write_events(self, record: dict) -> None:
        step = record["step"]
        if self._writer is None:
            import tensorboardX

            # A resumed training writes the events after its checkpoint again.
            directory = self._run_dir.path / "tensorboard" / f"cell={self._index}"
            writer = tensorboardX.SummaryWriter(str(directory), purge_step=step)
            self._writer = self._open.enter_context(writer)
        for name, value in record.items():
            for place, one in enumerate(
                value if isinstance(value, list) else [value], start=1
            ):
                if isinstance(one, int | float) and name != "step":
                    suffix = f"/{place}" if isinstance(value, list) else ""
                    self._writer.add_scalar(
                        f"{record['kind']}/{name}{suffix}", one, step
                    )
