"""What a training shows: a bar on a terminal, short lines, and the time left."""

import contextlib
import sys
from collections.abc import Callable
from typing import TextIO

import tqdm

from identity_matters.train.loop import Log

# Field of a record -> how a line shows it. The records themselves keep all fields.
_SHOWN = {
    "loss": "loss {:.3g}",
    "error_percent": "error {:.3g} %",
    "test_loss": "test loss {:.3g}",
    "test_error_percent": "test error {:.2f} %",
    "test_top5_error_percent": "top-5 error {:.2f} %",
    "images_per_second": "{:.3g} images/s",
}


def hours_minutes_seconds(seconds: float) -> str:
    """Minutes and seconds, with hours if there are any.

    >>> hours_minutes_seconds(173.4), hours_minutes_seconds(7200.0)
    ('2:53', '2:00:00')
    """
    minutes, left = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{left:02}" if hours else f"{minutes}:{left:02}"


def short_line(record: dict, steps: int, seconds_left: float | None = None) -> str:
    """A record of `loop.fit` as one line for a reader.

    >>> record = {"kind": "train", "step": 20, "loss": 2.28, "images_per_second": 222.2}
    >>> short_line(record, 200, 173.4)
    'step 20/200: loss 2.28, 222 images/s, 2:53 left'
    """
    shown = [
        text.format(record[name]) for name, text in _SHOWN.items() if name in record
    ]
    if seconds_left is not None and record["step"] < steps:
        shown.append(f"{hours_minutes_seconds(seconds_left)} left")
    return f"step {record['step']}/{steps}: {', '.join(shown)}"


class Progress(contextlib.AbstractContextManager):
    """A bar on standard error, if that is a terminal, and lines that do not disturb it.

    Args:
      label: what comes before the phase, for example "run 1 of 3, ".
      hidden: whether there is never a bar.
      write: writes a line where there is no bar.
      beside_bar: the file of lines where there is one.
    """

    def __init__(
        self,
        *,
        label: str = "",
        hidden: bool = False,
        write: Callable[[str], None] = print,
        beside_bar: TextIO | None = None,
    ):
        self._label = label
        self._hidden = hidden
        self._write = write
        self._beside_bar = beside_bar
        self._steps = 0
        self._seconds_left: float | None = None
        self._shown: dict[str, str] = {}
        self._bar: tqdm.tqdm | None = None

    def say(self, line: str) -> None:
        """Writes one line, above the bar if there is one."""
        if self._bar is None or self._bar.disable:
            self._write(line)
        else:
            self._bar.write(line, file=self._beside_bar or sys.stderr)

    def phase(self, name: str, step: int, steps: int) -> None:
        """Says what begins: see `loop.Log`."""
        self._steps = steps
        if self._bar is None:
            # None: hidden unless standard error is a terminal.
            disable = True if self._hidden else None
            self._bar = tqdm.tqdm(
                disable=disable, total=steps, initial=step, unit="step"
            )
        self._bar.set_description(f"{self._label}{name}")

    def progress(self, step: int, loss: float | None, seconds_left: float) -> None:
        """Moves the bar to `step`."""
        assert self._bar is not None  # a phase has begun
        if loss is not None:
            self._shown["loss"] = f"{loss:.4f}"
        self._seconds_left = seconds_left
        self._shown["left"] = hours_minutes_seconds(seconds_left)
        self._bar.set_postfix(self._shown, refresh=False)
        self._bar.update(step - self._bar.n)

    def line(self, record: dict) -> str:
        """The `short_line` of a record of this training.

        What is new in it is also shown beside the bar.
        """
        if "test_error_percent" in record:
            self._shown["test error"] = f"{record['test_error_percent']:.2f} %"
        if "images_per_second" in record:
            self._shown["images/s"] = f"{record['images_per_second']:.4g}"
        return short_line(record, self._steps, self._seconds_left)

    def close(self) -> None:
        """Ends the bar."""
        if self._bar is not None:
            self._bar.close()

    def __exit__(self, *_) -> None:
        self.close()


class ProgressLog(Log, contextlib.AbstractContextManager):
    """Keeps the records in memory.

    If `verbose`, shows the bar and a line for each record.
    """

    def __init__(self, verbose: bool) -> None:
        super().__init__()
        write = _print_at_once if verbose else _discard
        self._progress = Progress(
            hidden=not verbose, write=write, beside_bar=sys.stdout
        )

    def append(self, record: dict) -> None:
        super().append(record)
        self._progress.say(self._progress.line(record))

    def phase(self, name: str, step: int, steps: int) -> None:
        self._progress.phase(name, step, steps)

    def progress(self, step: int, loss: float | None, seconds_left: float) -> None:
        self._progress.progress(step, loss, seconds_left)

    def __exit__(self, *_) -> None:
        self._progress.close()


def _print_at_once(line: str) -> None:
    print(line, flush=True)


def _discard(line: str) -> None:
    pass
