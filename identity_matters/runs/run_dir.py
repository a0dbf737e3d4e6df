"""A run being written: created or resumed, appended to, finished."""

import contextlib
import errno
import fcntl
import os
import sys
import time
from typing import Any

from identity_matters import environment as environments
from identity_matters.runs import contract, seals
from identity_matters.runs.jsonio import (
    from_json,
    in_bucket,
    read_bytes,
    to_json,
    write_json,
)
from identity_matters.runs.messages import (
    MalformedFileError,
    NotResumableError,
    RunError,
    first_line,
)
from identity_matters.runs.metrics_file import metrics_file
from identity_matters.runs.read import Run, read_with_lines, sealed_with
from identity_matters.runs.settings_diff import first_difference

FULL_DISK = (errno.ENOSPC, errno.EDQUOT)  # the disk is full, or a quota is exceeded
_NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)
_ANEW = "--overwrite runs it anew"


class RunDir:
    """A run being written, from `create` to `finish`.

    `records` are the lines of metrics.jsonl.
    """

    def __init__(
        self,
        path: Any,
        *,
        config: dict,
        environment: dict,
        summary: dict,
        lines: list[bytes],
    ):
        name = contract.run_path(
            "", summary["experiment"], summary["variant"], summary["seed"]
        )
        self.path = path
        self.name = os.fspath(name)
        self.records = [seals.as_record(line) for line in lines]
        self._config = config
        self._environment = environment
        self._summary = summary
        self._metrics = metrics_file(path / "metrics.jsonl", lines)
        self._lock = contextlib.ExitStack()
        self._started_seconds = time.monotonic()

    @classmethod
    def create(
        cls,
        results_dir: str | os.PathLike[str],
        *,
        experiment: str,
        variant: str,
        seed: int,
        config: dict,
        scale: str = "paper",
        overwrite: bool = False,
        **extra,
    ) -> "RunDir":
        """Starts a run, or resumes the unfinished one with the same name and settings.

        Args:
          results_dir, experiment, variant, seed: say where the run is; see
            `contract.run_path`.
          config: its settings, JSON-able.
          scale: "paper" or "reduced".
          overwrite: replaces a run that would be refused.
          extra: more fields of summary.json.

        Raises:
          OSError: the disk is full.
          RunError: the directory cannot be written to or is locked by another process;
            or its run is finished, damaged, or was begun with other settings, code,
            packages or JAX settings.
        """
        summary = {
            "schema": contract.SCHEMA,
            "experiment": experiment,
            "variant": variant,
            "seed": seed,
            "scale": scale,
            "status": "running",
            **extra,
        }
        contract.check_summary(summary)
        path = contract.run_path(results_dir, experiment, variant, seed)
        config = from_json(to_json(config))
        try:
            with contextlib.ExitStack() as lock:
                _open_directory(path, lock, overwrite)
                run = cls._started(path, config, summary)
                # From here on the run keeps the lock.
                run._lock = lock.pop_all()
                return run
        # A bucket needs a package, such as gcsfs, that may not be installed.
        except (OSError, ImportError) as error:
            if getattr(error, "errno", None) in FULL_DISK:
                raise
            raise RunError(f"{path}: cannot be written ({first_line(error)})") from None

    @classmethod
    def _started(cls, path: Any, config: dict, summary: dict) -> "RunDir":
        """Writes the files of a run in the open directory `path`."""
        environment = environments.describe()
        before, lines = read_resumable(path, config, environment)
        if before:
            resumed = [*before.get("resumed", []), environment]
            environment = {**before, "resumed": resumed}
        environment = seals.sealed(environment)
        run = cls(
            path,
            config=config,
            environment=environment,
            summary=summary,
            lines=lines,
        )
        write_json(path / "config.json", config)
        write_json(path / "environment.json", environment)
        run._drop_half_written_line()
        run._write_summary(summary)
        return run

    def append(self, record: dict, *, may_wait: bool = False) -> None:
        """Appends one line to metrics.jsonl, which is on disk unless it may wait.

        Args:
          record: the line.
          may_wait: in a bucket, the line is only kept in memory, until `flush` or
            another change of the file.
        """
        lines = self._metrics.lines
        previous = lines[-1] if lines else b""
        line = seals.chained_line(record, previous)
        self._metrics.append(line, may_wait=may_wait)
        self.records.append(seals.as_record(line))

    def flush(self) -> None:
        """Writes the lines that wait; then all lines are on disk."""
        self._metrics.flush()

    def rewind(self, count: int) -> None:
        """Keeps the first `count` lines; a resumed training writes the others again."""
        self._metrics.keep(count)
        del self.records[count:]

    def _drop_half_written_line(self) -> None:
        """Removes what a killed process has left of a line at the end of the file."""
        self._metrics.keep(len(self._metrics.lines))

    def _write_summary(self, summary: dict) -> None:
        others = sealed_with(summary, self._config, self._environment)
        write_json(self.path / "summary.json", seals.sealed(summary, *others))

    def finish(self, status: str, **fields) -> dict:
        """Writes the summary with `fields` (see `contract`), and unlocks the run.

        Returns the summary. Metrics that are not finite become null.
        """
        summary = {**self._summary, "status": status, **fields}
        for name in ("metrics", "paper"):
            if name in summary:
                summary[name] = contract.without_non_finite(
                    from_json(to_json(summary[name]))
                )
        total = round(time.monotonic() - self._started_seconds, 3)
        summary["seconds"] = {"total": total, **summary.get("seconds", {})}
        summary["records"] = seals.noted(self._metrics.lines)
        contract.check_summary(summary)
        with self._lock:
            self.flush()
            self._write_summary(summary)
        return summary


def _open_directory(path: Any, lock: contextlib.ExitStack, overwrite: bool) -> None:
    """Makes, locks and, with `overwrite`, empties the directory of a run."""
    path.mkdir(parents=True, exist_ok=True)
    if not in_bucket(path):
        lock_path(path, lock)
        for left_over in path.glob(".*.tmp"):  # by writers that were killed
            left_over.unlink()
    if not overwrite:
        return
    for entry in path.iterdir():
        if entry.is_dir():
            entry.rmtree()
        else:
            entry.unlink()


def lock_path(path: Any, lock: contextlib.ExitStack) -> None:
    """Locks a file or directory until `lock` is closed or the process ends.

    Raises RunError if another process has the lock.
    """
    descriptor = os.open(path, os.O_RDONLY)
    lock.callback(os.close, descriptor)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise RunError(f"{path}: another process is writing here") from None
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        why = f"this file system has no locks ({error.strerror})"
        print(f"{path}: {why}; start a run only once", file=sys.stderr)


def read_resumable(
    path: Any, config: dict, environment: dict
) -> tuple[dict, list[bytes]]:
    """Environment and lines of the run to resume at `path`, or empty if there is none.

    Refuses a run that cannot be resumed.

    Args:
      path: the directory of the run.
      config: the settings to resume with.
      environment: the one to resume in, or the parts of it that are known.

    Raises:
      NotResumableError: there is a run that is finished, or that other settings, code,
        packages or JAX settings began; a file of it is malformed or lacks lines; or
        there are results without a run.
      RunError: its files cannot be read.
    """
    if not (path / "summary.json").exists():
        _require_empty(path)
        return {}, []
    try:
        run, lines = read_with_lines(path)
        _require_noted_lines(run, lines)
    except MalformedFileError as error:
        raise NotResumableError(str(error), _ANEW) from None
    change = first_difference(run.config, config)
    with_change = ""
    if change is not None:
        with_change = (
            f" with {change.name}={change.before!r}, this one has {change.now!r}"
        )
    if run.status in contract.FINISHED:
        raise NotResumableError(
            f"{path}: this run is {run.status}{with_change}",
            f"{_ANEW}, another --results_dir keeps it",
        )
    if change is not None:
        raise NotResumableError(
            f"{path}: there is an unfinished run{with_change}", _ANEW
        )
    why_not = environments.why_not_resumed(run.environments[-1], environment)
    if why_not:
        raise NotResumableError(f"{path}: there is an unfinished run {why_not}", _ANEW)
    return run.environment, lines


def why_not_resumable(path: Any, config: dict, environment: dict) -> str | None:
    """Why a run cannot begin or go on at `path`, if it cannot.

    The arguments are those of `read_resumable`. The answer names the directory, or a
    file in it, and does not say what to do.
    """
    try:
        read_resumable(path, config, environment)
    except NotResumableError as error:
        return error.reason
    except RunError as error:
        return str(error)
    return None


def _require_empty(path: Any) -> None:
    """NotResumableError if results lie in `path`, which has no summary.json."""
    for left in (path / "metrics.jsonl", path / contract.CHECKPOINTS):
        if left.exists() and (
            any(left.iterdir()) if left.is_dir() else read_bytes(left)
        ):
            raise NotResumableError(
                f"{path / 'summary.json'}: missing beside {left.name}",
                f"put it back, or {_ANEW}",
            )


def _require_noted_lines(run: Run, lines: list[bytes]) -> None:
    """Raises MalformedFileError if an interrupted run has lost lines."""
    # Nothing is noted if the process was killed; the lines that it lost are measured
    # again.
    noted = run.summary.get("records")
    if noted and seals.noted(lines[: noted["lines"]]) != noted:
        raise MalformedFileError(
            f"{run.path / 'metrics.jsonl'}: has {len(lines)} of the {noted['lines']}"
            " lines that the run wrote; put them back"
        )
