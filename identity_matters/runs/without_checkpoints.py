"""Unfinished runs that were copied without their checkpoints, made fit to go on.

Command: .venv/bin/python -m identity_matters.runs.without_checkpoints RUN ...
    A directory of runs may stand for all of them.

A training goes on from its checkpoint, and the lines that it has written so far belong
to that. Without the checkpoint it must begin anew, and so without these lines: this
drops them. Trials that are finished keep theirs. Runs that are finished stay as they
are.
"""

import contextlib
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

from identity_matters.runs import seals
from identity_matters.runs.contract import CHECKPOINTS, FINISHED
from identity_matters.runs.jsonio import write_atomically, write_json
from identity_matters.runs.messages import RunError, visible
from identity_matters.runs.read import read_with_lines, sealed_with
from identity_matters.runs.run_dir import lock_path

# The kinds of the lines that a training writes before its result.
_OF_TRAINING = ("train", "evaluation")
# The flag of a run that keeps them elsewhere.
_ELSEWHERE = "--checkpoint_dir"
_NO_RUN = 2  # exit code: no run was named


def drop_training_under_way(path: Any) -> int:
    """Drops the lines of the training that an unfinished run had begun.

    Args:
      path: of the run, a `pathlib.Path`.
    Returns:
      How many lines that were; 0 for a finished run.
    Raises:
      RunError: the run has checkpoints, also elsewhere, is being written, or is
        damaged.
    """
    with contextlib.ExitStack() as lock:
        lock_path(path, lock)
        run, lines = read_with_lines(path)
        if run.status in FINISHED:
            return 0
        checkpoints = path / CHECKPOINTS
        if checkpoints.is_dir() and any(checkpoints.iterdir()):
            raise RunError(f"{checkpoints}: the run goes on from these; nothing to do")
        if _keeps_checkpoints_elsewhere(run.environments):
            raise RunError(
                f"{path}: its checkpoints are where its {_ELSEWHERE} says, and the run"
                " goes on from these"
            )
        kept = lines[: _lines_of_finished_trials(run.records)]
        summary = {**run.summary, "records": seals.noted(kept)}
        others = sealed_with(summary, run.config, run.environment)
        write_atomically(path / "metrics.jsonl", b"".join(kept).decode())
        write_json(path / "summary.json", seals.sealed(summary, *others))
        return len(lines) - len(kept)


def _keeps_checkpoints_elsewhere(environments: Sequence[dict]) -> bool:
    """Whether a command of the run named another directory for its checkpoints."""
    words = [word for environment in environments for word in environment["command"]]
    return any(word.lstrip("-").startswith(_ELSEWHERE.lstrip("-")) for word in words)


def _lines_of_finished_trials(records: list[dict]) -> int:
    """How many lines are left without those of a training that has no result yet."""
    count = len(records)
    while count and _is_of_training_under_way(records[count - 1]):
        count -= 1
    return count


def _is_of_training_under_way(last: dict) -> bool:
    """Whether the last line of a run is one of a training that is not at its end."""
    return last.get("kind") in _OF_TRAINING and "step" in last


def main(arguments: list[str]) -> int:
    """Drops these lines of all runs below the arguments.

    Returns the exit code: 1 if any could not be used, 2 if there is none.
    """
    paths = [
        summary.parent
        for argument in arguments
        for summary in sorted(pathlib.Path(argument).rglob("summary.json"))
    ]
    if not paths:
        named = ", ".join(arguments) or "name the directory of a run"
        print(visible(f"there is no run: {named}"), file=sys.stderr)
        return _NO_RUN
    code = 0
    for path in paths:
        try:
            dropped = drop_training_under_way(path)
        except (RunError, OSError) as error:
            print(f"left as it is: {visible(error)}", file=sys.stderr)
            code = 1
            continue
        print(visible(f"{path}: {_what_was_dropped(dropped)}"))
    return code


def _what_was_dropped(lines: int) -> str:
    if not lines:
        return "no training is under way"
    count = "1 line" if lines == 1 else f"{lines} lines"
    return f"the training under way begins anew, without its {count}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
