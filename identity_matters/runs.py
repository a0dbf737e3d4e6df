"""Run directories: what an experiment writes, and what the report and other people's scripts read.

One run is one directory ``<results_dir>/<experiment>/<variant>/seed=<k>/`` that holds

* ``config.json``       the settings it ran with,
* ``environment.json``  the code, versions, hardware and command (and those of every resumption),
* ``metrics.jsonl``     one JSON object a line, appended as the run goes,
* ``summary.json``      the contract that tables and scripts rely on (see `check_summary`).

Digests show whether a line or value was changed, lost or doubled (docs/architecture.md). Results
may be in a bucket (gs://...). Buckets have no locks, so start each run only once.
"""

import contextlib
import dataclasses
import errno
import fcntl
import hashlib
import json
import math
import os
import re
import sys
import time
from typing import Any

from etils import epath

from identity_matters import environment

SCHEMA = 2
FINISHED = ("done", "diverged")
STATUSES = ("running", *FINISHED, "interrupted", "failed")
VERDICTS = {  # verdict of a run on its claim -> the CSS class that colours it in the report
    "holds": "good",  # a proved statement; every attack on it failed
    "counterexample": "odd",  # a statement that a record refutes
    "reproduced": "good",  # an empirical statement
    "not reproduced": "bad",  # an empirical statement
    "not comparable": "",  # a reduced run, or another question
    "undecided": "odd",  # the records do not decide
}
SCALES = ("paper", "reduced")
# Settings for where the data are and how they are loaded. They do not affect any result.
PLACE_SETTINGS = ("data_dir", "cache", "worker_threads", "worker_processes")
_LINE_END = 31  # length of the end of each line: `, "chain": "16 digits"}` and a newline
FULL_DISK = (errno.ENOSPC, errno.EDQUOT)  # the disk is full, or a quota is exceeded
NON_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_NAME = re.compile(r"[A-Za-z0-9_.+@-]+(/[A-Za-z0-9_.+@-]+)*")


class RunError(Exception):
    """A run directory cannot be used; the message names it and says what to do."""


class MalformedFileError(RunError):
    """A file is missing or malformed; the message names it and says what is wrong."""


def first_line(error: BaseException) -> str:
    """The first line of the error's message, or the name of its type if the message is empty."""
    # str() of a KeyError is the repr of its key.
    text = str(error.args[0] if isinstance(error, KeyError) and error.args else error).strip()
    return text.splitlines()[0] if text else type(error).__name__


def to_json(value: Any) -> Any:
    """`value` for `json.dumps`: arrays as numbers or lists, NaN and infinity as in `NON_FINITE`."""
    if isinstance(value, dict):
        return {str(key): to_json(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(entry) for entry in value]
    if hasattr(value, "tolist"):
        return to_json(value.tolist())
    return json.dumps(value) if isinstance(value, float) and not math.isfinite(value) else value


def from_json(value: Any) -> Any:
    """The inverse of `to_json` for text that `json.loads` has read."""
    if isinstance(value, dict):
        return {key: from_json(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [from_json(entry) for entry in value]
    return NON_FINITE.get(value, value) if isinstance(value, str) else value


def flat(settings: dict, prefix: str = "") -> dict:
    """Flattens nested settings to a dict of full names.

    >>> flat({"seed": 0, "optim": {"momentum": 0.9, "nesterov": False}, "nets": {}})
    {'seed': 0, 'optim.momentum': 0.9, 'optim.nesterov': False, 'nets': {}}
    """
    named: dict[str, Any] = {}
    for name, value in settings.items():
        nested = isinstance(value, dict) and value
        named |= flat(value, f"{prefix}{name}.") if nested else {prefix + name: value}
    return named


def differences(before: dict, now: dict) -> dict[str, tuple]:
    """Full name of each setting that differs -> its two values; ignores `PLACE_SETTINGS`."""
    a, b = flat(to_json(before)), flat(to_json(now))
    return {
        name: (a.get(name), b.get(name))
        for name in sorted(a.keys() | b.keys())
        if a.get(name) != b.get(name) and name.split(".")[-1] not in PLACE_SETTINGS
    }


def _in_bucket(path: Any) -> bool:
    return "://" in os.fspath(path)


def write_atomically(path: Any, text: str) -> None:
    """Replaces the file at `path` with `text`; after a crash it is the old file or the new one."""
    if _in_bucket(path):  # a bucket replaces an object as a whole
        path.write_text(text)
        return
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    _flush_directory(path.parent)


def _flush_directory(path: Any) -> None:
    """Asks that renames in `path` reach the disk; some shares (CIFS, sshfs, WSL) cannot do that."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP):
            raise
    finally:
        os.close(descriptor)


def write_json(path: Any, value: Any) -> None:
    """Writes `value` (see `to_json`) to `path`, atomically."""
    write_atomically(path, json.dumps(to_json(value), indent=2, allow_nan=False) + "\n")


def read_json(path: Any) -> dict:
    """The JSON object in the file at `path`; raises RunError or MalformedFileError."""
    try:
        value = json.loads(_read_bytes(path))
        json.dumps(value, ensure_ascii=False).encode()  # rejects lone surrogates
    except (ValueError, RecursionError) as error:
        raise MalformedFileError(f"{path}: not JSON ({error})") from None
    if not isinstance(value, dict):
        raise MalformedFileError(f"{path}: must hold a JSON object, holds {type(value).__name__}")
    return from_json(value)


def _read_bytes(path: Any) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise MalformedFileError(f"{path}: missing") from None
    except OSError as error:  # not MalformedFileError: what the file holds is unknown
        raise RunError(f"{path}: cannot be read ({error.strerror})") from None


def _sealed(value: dict, *others: dict) -> dict:
    """`value` with a "digest" of its own entries and those of `others`."""
    held = {name: entry for name, entry in value.items() if name != "digest"}
    text = json.dumps(to_json([held, *others]), sort_keys=True).encode()
    return {**held, "digest": hashlib.sha256(text).hexdigest()[:16]}


def _check_seal(path: Any, value: dict, *others: dict) -> None:
    """Raises MalformedFileError if `value` is empty or its digest is wrong; old files have none."""
    if not value or value.get("digest") not in (None, _sealed(value, *others)["digest"]):
        raise MalformedFileError(f"{path}: not what the run wrote, a value was changed")


def run_path(results_dir: str | os.PathLike[str], experiment: str, variant: str, seed: int) -> Any:
    """The directory of a run; ValueError if a name could lead out of `results_dir`."""
    for what, name in {"experiment": experiment, "variant": variant}.items():
        if not _NAME.fullmatch(name) or ".." in name:
            raise ValueError(f"{what} must be a relative path of plain names, got {name!r}")
    return epath.Path(results_dir) / experiment / variant / f"seed={seed}"


class RunDir:
    """A run being written, from `create` to `finish`; `records` are the lines of metrics.jsonl."""

    def __init__(self, path: Any, config: dict, summary: dict, lines: list[bytes]):
        named = (summary[field] for field in ("experiment", "variant", "seed"))
        self.path, self.name = path, os.fspath(run_path("", *named))
        self._config = config
        self._summary = summary
        self._lines, self.records = lines, [_as_record(line) for line in lines]
        self._held = contextlib.ExitStack()
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

        `extra` holds more JSON-able fields of summary.json. Raises OSError if the disk is full, and
        RunError if the directory cannot be written to or is locked by another process, or if its
        run is finished, damaged or has other settings; `overwrite` replaces such a run instead.
        """
        summary = {"schema": SCHEMA, "experiment": experiment, "variant": variant, "seed": seed}
        summary |= {"scale": scale, "status": "running", **extra}
        check_summary(summary)
        path = run_path(results_dir, experiment, variant, seed)
        config = from_json(to_json(config))
        try:
            with contextlib.ExitStack() as held:
                path.mkdir(parents=True, exist_ok=True)
                if not _in_bucket(path):
                    lock_directory(path, held)
                    for left in path.glob(".*.tmp"):  # left by writers that were killed
                        left.unlink()
                for entry in path.iterdir() if overwrite else ():
                    entry.rmtree() if entry.is_dir() else entry.unlink()
                ran_on = environment.describe()
                before, lines = unfinished(path, config)
                if before:
                    ran_on = {**before, "resumed": [*before.get("resumed", []), ran_on]}
                write_json(path / "config.json", config)
                write_json(path / "environment.json", _sealed(ran_on))
                run = cls(path, config, summary, lines)
                run._write(len(lines))
                write_json(path / "summary.json", summary)
                run._held = held.pop_all()
                return run
        except (OSError, ImportError) as error:
            if getattr(error, "errno", None) in FULL_DISK:
                raise
            raise RunError(f"{path}: cannot be written ({first_line(error)})") from None

    def append(self, record: dict) -> None:
        """Appends one line to metrics.jsonl; it is on disk when this returns."""
        text = json.dumps(to_json(record), allow_nan=False).encode()
        self._write(len(self._lines), _chained(text, self._lines))

    def rewind(self, count: int) -> None:
        """Keeps the first `count` lines; a resumed training writes the others again."""
        self._write(count)

    def _write(self, count: int, *new: bytes) -> None:
        """Keeps the first `count` lines of metrics.jsonl and appends the lines `new`."""
        kept, path = self._lines[:count], self.path / "metrics.jsonl"
        if _in_bucket(path):  # objects in a bucket cannot grow
            path.write_bytes(b"".join([*kept, *new]))
        else:
            with open(path, "ab") as file:
                file.truncate(sum(map(len, kept)))
                file.writelines(new)
                file.flush()
                os.fsync(file.fileno())
        self._lines[count:] = new
        self.records[count:] = map(_as_record, new)

    def finish(self, status: str, **fields) -> dict:
        """Writes and returns the summary with `fields` (see `check_summary`); unlocks the run."""
        summary = {**self._summary, "status": status, **fields}
        total = round(time.monotonic() - self._started_seconds, 3)
        summary["seconds"] = {"total": total, **summary.get("seconds", {})}
        summary["records"] = _noted(self._lines)
        check_summary(summary)
        with self._held:
            write_json(self.path / "summary.json", _sealed(summary, self._config))
        return summary


def _digest(lines: list[bytes]) -> bytes:
    """The digest at the end of the last line, which covers all `lines`; empty if there are none."""
    return lines[-1][-19:-3] if lines else b""


def _noted(lines: list[bytes]) -> dict:
    return {"lines": len(lines), "chain": _digest(lines).decode()}


def _chained(text: bytes, before: list[bytes]) -> bytes:
    """The record `text`, which is JSON, as the line of metrics.jsonl that follows `before`."""
    chain = hashlib.sha256(_digest(before) + text).hexdigest()[:16]
    return b'%b, "chain": "%b"}\n' % (text[:-1], chain.encode())


def _as_record(line: bytes) -> dict:
    """The record in a line, without its digest."""
    record = json.loads(line)
    record.pop("chain", None)
    # Few lines hold non-finite numbers, and converting every line would take most of the time.
    return from_json(record) if b'NaN"' in line or b'Infinity"' in line else record


def lock_directory(path: Any, held: contextlib.ExitStack) -> None:
    """Locks `path` until `held` is closed or the process ends; RunError if another has the lock."""
    descriptor = os.open(path, os.O_RDONLY)
    held.callback(os.close, descriptor)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise RunError(f"{path}: another process is writing here") from None
    except OSError as error:
        if error.errno not in (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP):
            raise
        why = f"this file system has no locks ({error.strerror})"
        print(f"{path}: {why}; start a run only once", file=sys.stderr)


def unfinished(path: Any, config: dict) -> tuple[dict, list[bytes]]:
    """Environment and lines of the unfinished run, or empty; RunError if it cannot be resumed."""
    again = "--overwrite runs it anew"
    if not (path / "summary.json").exists():
        for left in (path / "metrics.jsonl", path / "checkpoints"):
            if left.exists() and (any(left.iterdir()) if left.is_dir() else left.read_bytes()):
                raise RunError(
                    f"{path / 'summary.json'}: missing beside {left.name}; put it back, or {again}"
                )
        return {}, []
    try:
        run, lines = _read(path)
        changed = differences(run.config, config)
        if not changed:
            _check_seal(path / "summary.json", run.summary, run.config)
            # None if the process was killed; the lines that it lost are measured again.
            noted = run.summary.get("records")
            if noted and _noted(lines[: noted["lines"]]) != noted:
                raise RunError(
                    f"{path / 'metrics.jsonl'}: has {len(lines)} of the {noted['lines']} lines that"
                    f" the run wrote; put them back, or {again}"
                )
    except MalformedFileError as error:
        raise RunError(f"{error}; {again}") from None
    each = (f" with {name}={a!r}, this one has {b!r}" for name, (a, b) in changed.items())
    with_what = next(each, "")
    if run.status in FINISHED:
        raise RunError(
            f"{path}: this run is {run.status}{with_what}; {again}, another --results_dir keeps it"
        )
    if changed:
        raise RunError(f"{path}: there is an unfinished run{with_what}; {again}")
    return run.environment, lines


@dataclasses.dataclass(frozen=True)
class Run:
    """A run directory as read back. `records` are the lines of metrics.jsonl."""

    path: Any
    config: dict
    environment: dict
    summary: dict
    records: list
    experiment = property(lambda self: self.summary["experiment"])
    variant = property(lambda self: self.summary["variant"])
    seed = property(lambda self: self.summary["seed"])
    status = property(lambda self: self.summary["status"])


def check_summary(summary: dict) -> None:
    """Raises ValueError if `summary` breaks the contract of summary.json."""
    done = summary.get("status") == "done"
    kinds: dict[str, type] = {"experiment": str, "variant": str, "seed": int}
    one_of: dict[str, tuple] = {"schema": (SCHEMA,), "status": STATUSES, "scale": SCALES}
    if done:
        kinds |= {"claim": str, "metrics": dict, "paper": dict, "seconds": dict}
        one_of |= {"verdict": tuple(VERDICTS)}
    for name, kind in kinds.items():
        if type(summary.get(name)) is not kind:
            raise ValueError(f"{name} must be {kind.__name__}, is {summary.get(name)!r}")
    for name, known in one_of.items():
        if summary.get(name) not in known:
            raise ValueError(f"{name} must be one of {known}, is {summary.get(name)!r}")
    if done and (unknown := summary["paper"].keys() - summary["metrics"].keys()):
        raise ValueError(f"paper has values of {sorted(unknown)}, which metrics lacks")


def read_run(path: str | os.PathLike[str]) -> Run:
    """Reads a run; RunError names a file that is missing, malformed or breaks the contract."""
    return _read(epath.Path(path))[0]


def _read(path: Any) -> tuple[Run, list[bytes]]:
    """A run, and the lines of metrics.jsonl except a last one that a crash cut short."""
    summary = read_json(path / "summary.json")
    try:
        check_summary(summary)
    except ValueError as error:
        raise MalformedFileError(f"{path / 'summary.json'}: {error}") from None
    config, ran_on = (read_json(path / f"{name}.json") for name in ("config", "environment"))
    _check_seal(path / "environment.json", ran_on)
    file = path / "metrics.jsonl"
    finished = summary["status"] in FINISHED
    text = _read_bytes(file) if finished or file.exists() else b""
    whole = text[: text.rfind(b"\n") + 1]
    lines, records = whole.splitlines(keepends=True), []
    for index, line in enumerate(lines):
        if line != _chained(line[:-_LINE_END] + b"}", lines[index - 1 : index]):
            raise MalformedFileError(
                f"{file}:{index + 1}: this line, or one before it, was changed, lost or doubled"
            )
        try:
            records.append(_as_record(line))
        except (AttributeError, TypeError, ValueError, RecursionError) as error:
            raise MalformedFileError(f"{file}:{index + 1}: no JSON object ({error})") from None
    if finished:
        _check_seal(f"{path / 'summary.json'} or config.json", summary, config)
        noted = summary.get("records")
        if whole != text or noted != _noted(lines):
            raise MalformedFileError(
                f"{file}: not as the run left it: {len(lines)} lines, noted {noted}"
            )
    return Run(path, config, ran_on, summary, records), lines


def read_collection(root: str | os.PathLike[str]) -> tuple[list[Run], list[str]]:
    """All runs below `root`, sorted by path, and a message for each one that cannot be read."""
    found: list[Run] = []
    problems: list[str] = []
    # Globs in buckets have no "**"; variants are up to three names deep.
    top, depths = epath.Path(root), ("*", "*/*", "*/*/*", "*/*/*/*")
    for path in sorted(path for depth in depths for path in top.glob(f"{depth}/seed=*")):
        try:
            run = read_run(path)
            if (expected := run_path(root, run.experiment, run.variant, run.seed)) != path:
                raise RunError(f"{path}: its summary.json belongs at {expected}")
            found.append(run)
        except (RunError, ValueError, OSError) as error:
            where = "" if str(path) in str(error) else f"{path}: "
            problems.append(f"{where}{error}")
    return found, problems
