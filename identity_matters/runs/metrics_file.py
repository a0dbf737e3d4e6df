"""metrics.jsonl while its run is being written, on a disk or in a bucket."""

import os
from typing import Any

from identity_matters.runs.jsonio import in_bucket


def metrics_file(path: Any, lines: list[bytes]) -> "OnDisk | InBucket":
    """The file at `path`, whose whole lines are `lines`."""
    return InBucket(path, lines) if in_bucket(path) else OnDisk(path, lines)


class OnDisk:
    """A file that grows by its new line, however long it is.

    If a call fails, `lines` stay as they were. The next call cuts off whatever stands
    behind them in the file.
    """

    def __init__(self, path: Any, lines: list[bytes]):
        self.lines = lines
        self._path = path
        self._size = sum(map(len, lines))  # bytes

    def append(self, line: bytes, *, may_wait: bool = False) -> None:
        """Adds a line, which is on disk when this returns."""
        self._write_behind(self._size, line)
        self._size += len(line)
        self.lines.append(line)

    def keep(self, count: int) -> None:
        """Keeps the first `count` lines, and nothing behind them."""
        size = self._size - sum(map(len, self.lines[count:]))
        self._write_behind(size, b"")
        self._size = size
        del self.lines[count:]

    def flush(self) -> None:
        """Does nothing: no line waits."""

    def _write_behind(self, size: int, text: bytes) -> None:
        """Replaces all but the first `size` bytes of the file by `text`."""
        with open(self._path, "ab") as file:
            file.truncate(size)
            file.write(text)
            file.flush()
            os.fsync(file.fileno())


class InBucket:
    """An object that is written as a whole, since objects cannot grow.

    Google's take one write a second.
    """

    def __init__(self, path: Any, lines: list[bytes]):
        self.lines = lines
        self._path = path
        self._has_waiting_lines = False

    def append(self, line: bytes, *, may_wait: bool = False) -> None:
        """Adds a line, which stays in memory if it may wait."""
        if may_wait:
            self._has_waiting_lines = True
        else:
            self._write([*self.lines, line])
        self.lines.append(line)

    def keep(self, count: int) -> None:
        """Keeps the first `count` lines, and nothing behind them."""
        self._write(self.lines[:count])
        del self.lines[count:]

    def flush(self) -> None:
        """Writes the lines that wait."""
        if self._has_waiting_lines:
            self._write(self.lines)

    def _write(self, lines: list[bytes]) -> None:
        self._path.write_bytes(b"".join(lines))
        self._has_waiting_lines = False
