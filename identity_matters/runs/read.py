"""Run directories as read back, checked against their contract and seals."""

import dataclasses
import os
from typing import Any

from etils import epath

from identity_matters.runs import contract, seals
from identity_matters.runs.jsonio import read_bytes, read_json
from identity_matters.runs.messages import MalformedFileError, RunError
from identity_matters.runs.settings_diff import settings_that_matter


@dataclasses.dataclass(frozen=True)
class Run:
    """A run directory as read back. `records` are the lines of metrics.jsonl."""

    path: Any
    config: dict
    environment: dict
    summary: dict
    records: list

    @property
    def experiment(self) -> str:
        return self.summary["experiment"]

    @property
    def variant(self) -> str:
        return self.summary["variant"]

    @property
    def seed(self) -> int:
        return self.summary["seed"]

    @property
    def status(self) -> str:
        return self.summary["status"]

    @property
    def is_judged(self) -> bool:
        """Whether it has a verdict; one that is finished may lack it if it diverged."""
        return self.status in contract.FINISHED and "verdict" in self.summary

    @property
    def environments(self) -> list[dict]:
        """The environment that the run began in, and that of each resumption."""
        return [self.environment, *self.environment.get("resumed", [])]


def read_run(path: str | os.PathLike[str]) -> Run:
    """Reads a run.

    Raises RunError, which names a file that is missing, malformed or breaks the
    contract.
    """
    return read_with_lines(epath.Path(path))[0]


def sealed_with(summary: dict, config: dict, environment: dict) -> list[dict]:
    """What the digest in `summary` covers besides the summary itself.

    For a finished run that is all of config.json and environment.json. Resuming an
    unfinished run rewrites both, so its summary covers only the settings that affect
    results.
    """
    if summary["status"] in contract.FINISHED:
        return [config, environment]
    return [settings_that_matter(config)]


def read_with_lines(path: Any) -> tuple[Run, list[bytes]]:
    """A run, and the lines of metrics.jsonl except a last one that a crash cut short.

    Raises RunError as `read_run` does. Whether an unfinished run lost lines at its end
    is not checked; see `run_dir.read_resumable`.
    """
    return checked_with_lines(
        path,
        summary=read_json(path / "summary.json"),
        config=read_json(path / "config.json"),
        environment=read_json(path / "environment.json"),
    )


def checked_with_lines(
    path: Any, *, summary: dict, config: dict, environment: dict
) -> tuple[Run, list[bytes]]:
    """As `read_with_lines`, with the values of three of the files at `path` given."""
    _check(path / "summary.json", contract.check_summary, summary)
    _check(path / "environment.json", contract.check_environment, environment)
    seals.check_seal(path / "environment.json", environment)
    _check_seal_of_summary(path, summary, config, environment)
    is_finished = summary["status"] in contract.FINISHED
    file = path / "metrics.jsonl"
    text = read_bytes(file) if is_finished or file.exists() else b""
    lines = _whole_lines(text)
    records = _records(file, lines)
    if is_finished:
        has_half_a_line = sum(map(len, lines)) < len(text)
        noted = summary.get("records")
        if has_half_a_line or noted != seals.noted(lines):
            raise MalformedFileError(
                f"{file}: not as the run left it: {len(lines)} lines, noted {noted}"
            )
    return Run(path, config, environment, summary, records), lines


def _check_seal_of_summary(
    path: Any, summary: dict, config: dict, environment: dict
) -> None:
    """Raises MalformedFileError, which names all files that the seal covers."""
    files = "summary.json"
    if summary["status"] in contract.FINISHED:
        files = "summary.json, config.json or environment.json"
    others = sealed_with(summary, config, environment)
    seals.check_seal(f"{path}/{files}", summary, *others)


def _whole_lines(text: bytes) -> list[bytes]:
    """The lines with their ends, except a last one that a crash cut short."""
    end_of_last = text.rfind(b"\n") + 1
    return text[:end_of_last].splitlines(keepends=True)


def _check(path: Any, check: Any, value: dict) -> None:
    try:
        check(value)
    except ValueError as error:
        raise MalformedFileError(f"{path}: {error}") from None


def _records(file: Any, lines: list[bytes]) -> list[dict]:
    """The records in the lines of metrics.jsonl.

    Raises MalformedFileError, which names a wrong line.
    """
    records = []
    previous = b""
    for number, line in enumerate(lines, start=1):
        if not seals.is_chained(line, previous):
            raise MalformedFileError(
                f"{file}:{number}: this line, or one before it, was changed, lost or"
                " doubled"
            )
        try:
            records.append(seals.as_record(line))
        except (AttributeError, TypeError, ValueError, RecursionError) as error:
            raise MalformedFileError(
                f"{file}:{number}: not a JSON object ({error})"
            ) from None
        previous = line
    return records


def read_collection(root: str | os.PathLike[str]) -> tuple[list[Run], list[str]]:
    """All runs below `root`, sorted by path, and a message for each unreadable one."""
    runs: list[Run] = []
    problems: list[str] = []
    for path in _run_paths(epath.Path(root)):
        try:
            run = read_run(path)
            expected = contract.run_path(root, run.experiment, run.variant, run.seed)
            if expected != path:
                raise RunError(f"{path}: its summary.json belongs at {expected}")
            runs.append(run)
        except (RunError, ValueError, OSError) as error:
            where = "" if str(path) in str(error) else f"{path}: "
            problems.append(f"{where}{error}")
    return runs, problems


def _run_paths(top: Any) -> list[Any]:
    paths: list[Any] = []
    for count in range(1, contract.MOST_NAMES + 1):
        paths += top.glob("*/" * count + "seed=*")
    return sorted(paths)
