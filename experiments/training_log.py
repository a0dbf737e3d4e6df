"""What a training cell writes while it goes: lines, checkpoints, TensorBoard events, progress."""

import contextlib
import sys

import tqdm
from absl import logging

from identity_matters.training import checkpoint, processes

# The kind of a cell's last line; a cell that has one is finished.
RESULT = "result"


class TrainingLog:
    """The log of the cell that is being measured; `identity_matters.training.loop` writes to it.

    Every line of the cell carries its index under "cell". A cell that is taken up again finds the
    lines that it wrote before, and drops with `rewind` those that came after its checkpoint.
    """

    def __init__(
        self, run_dir, stop_signal, tensorboard: bool, profile_dir: str, checkpoint_dir: str
    ):
        # Of several processes one writes.
        self._writes = processes.is_first()
        self.profile_dir = profile_dir if self._writes else ""
        self._checkpoint_root = checkpoint_dir
        self._run_dir = run_dir
        self._stop_signal = stop_signal
        self._tensorboard = tensorboard and self._writes
        self._writer = None
        self._bar = None

    @contextlib.contextmanager
    def cell(self, index: int, count: int):
        """Everything that is logged inside belongs to cell `index` of `count`."""
        self._index = index
        own = [i for i, record in enumerate(self._run_dir.records) if record["cell"] == index]
        self._first = own[0] if own else len(self._run_dir.records)
        description = f"cell {index + 1} of {count}" if count > 1 else None
        hidden = not (self._writes and sys.stderr.isatty())
        self._bar = tqdm.tqdm(disable=hidden, unit="step", desc=description)
        try:
            yield
        finally:
            self._bar.close()
            if self._writer is not None:
                self._writer.close()
                self._writer = None

    @property
    def checkpoint_dir(self) -> str:
        """Where the checkpoints of this cell are kept."""
        return f"{self._all_checkpoints}/cell={self._index}"

    @property
    def _all_checkpoints(self) -> str:
        if not self._checkpoint_root:
            return str(self._run_dir.path / "checkpoints")
        return f"{self._checkpoint_root.rstrip('/')}/{self._run_dir.name}"

    def delete_checkpoints(self) -> None:
        """Removes those of all cells, wherever they are."""
        if self._writes:
            checkpoint.delete(self._all_checkpoints)

    @property
    def records(self) -> list[dict]:
        """The lines of this cell so far."""
        return self._run_dir.records[self._first :]

    def append(self, record: dict) -> None:
        """Writes one line of metrics.jsonl, and the same as text and events where asked for."""
        self._run_dir.append({"cell": self._index, **record})
        if self._bar.disable:
            shown = {name: value for name, value in record.items() if not isinstance(value, list)}
            logging.info(" ".join(f"{name}={_short(value)}" for name, value in shown.items()))
        if self._tensorboard:
            self._write_events(record)

    def rewind(self, count: int) -> None:
        """Keeps the first `count` lines of this cell."""
        self._run_dir.rewind(self._first + count)

    def stop_requested(self) -> bool:
        """Whether SIGTERM has come: save, and raise `harness.Interrupted`."""
        return self._stop_signal.requested

    def progress(self, step: int, steps: int) -> None:
        """Moves the progress bar to `step` of `steps`."""
        self._bar.total = steps
        self._bar.update(step - self._bar.n)

    def _write_events(self, record: dict) -> None:
        step = record["step"]
        if self._writer is None:
            import tensorboardX

            # A resumed training writes anew what came after its checkpoint.
            directory = self._run_dir.path / "tensorboard" / f"cell={self._index}"
            self._writer = tensorboardX.SummaryWriter(str(directory), purge_step=step)
        for name, value in record.items():
            if isinstance(value, int | float) and name != "step":
                self._writer.add_scalar(f"{record['kind']}/{name}", value, step)
            elif isinstance(value, list):
                for index, one in enumerate(value, start=1):
                    self._writer.add_scalar(f"{record['kind']}/{name}/{index}", one, step)


def _short(value) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
