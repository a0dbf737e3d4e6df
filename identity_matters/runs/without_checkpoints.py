"""Unfinished runs that were copied without their checkpoints, made fit to go on.

Command: python -m identity_matters.runs.without_checkpoints RUN_OR_DIRECTORY ...

A training goes on from its checkpoint, and the lines that it has written so far belong
to that. Without the checkpoint it must begin anew, and so without these lines: this
drops them. Trials that are finished keep theirs. Runs that are finished stay as they
are.
"""

import contextlib
import pathlib
import sys
from typing import Any

from identity_matters.runs import seals
from identity_matters.runs.contract import FINISHED
from identity_matters.runs.jsonio import write_atomically, write_json
from identity_matters.runs.messages import RunError, visible
from identity_matters.runs.read import read_with_lines, sealed_with
from identity_matters.runs.run_dir import lock_path

CHECKPOINTS = "checkpoints"
_RESULT = "result"  # the kind of a training's last line


def drop_training_under_way(path: Any) -> int:
    """Drops the lines of the training that an unfinished run had begun.

    Args:
      path: of the run, a `pathlib.Path`.
    Returns:
      How many lines that were; 0 for a finished run.
    Raises:
      RunError: the run has checkpoints, is being written, or is damaged.
    """
    with contextlib.ExitStack() as lock:
        lock_path(path, lock)
        run, lines = read_with_lines(path)
        if run.status in FINISHED:
            return 0
        checkpoints = path / CHECKPOINTS
        if checkpoints.is_dir() and any(checkpoints.iterdir()):
            raise RunError(f"{checkpoints}: the run goes on from these; nothing to do")
        kept = lines[: _lines_of_finished_trials(run.records)]
        # Of a run that was killed nothing is noted.
        noted = {"records": seals.noted(kept)} if "records" in run.summary else {}
        others = sealed_with(run.summary, run.config, run.environment)
        summary = seals.sealed({**run.summary, **noted}, *others)
        write_atomically(path / "metrics.jsonl", b"".join(kept).decode())
        write_json(path / "summary.json", summary)
        return len(lines) - len(kept)


def _lines_of_finished_trials(records: list[dict]) -> int:
    """How many lines are left without those of a training that has no result yet."""
    count = len(records)
    while count and _is_of_training_under_way(records[count - 1]):
        count -= 1
    return count


def _is_of_training_under_way(last: dict) -> bool:
    """Whether the last line of a run is one of a training that is not at its end."""
    return "step" in last and last.get("kind") != _RESULT


def main(arguments: list[str]) -> int:
    """Drops these lines of all runs below the arguments; 1 if any could not be used."""
    code = 0
    for argument in arguments:
        for summary in sorted(pathlib.Path(argument).rglob("summary.json")):
            path = summary.parent
            try:
                dropped = drop_training_under_way(path)
            except (RunError, OSError) as error:
                print(f"left as it is: {visible(error)}", file=sys.stderr)
                code = 1
                continue
            if dropped:
                said = f"{path}: the training under way begins anew, without its"
                print(visible(f"{said} {dropped} lines"))
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
