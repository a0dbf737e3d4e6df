"""Copies a finished run into results/reference, as it is.

Command: make promote RUN=results/local/EXPERIMENT/VARIANT/seed=0
Only a run that is done, at paper scale or marked reduced, made at a commit without uncommitted
changes may be a reference: otherwise nobody could make it again.
"""

import pathlib
import shutil
import sys

from absl import app, flags

from identity_matters import records
from identity_matters.json_files import MalformedFileError

_REFERENCE_DIR = flags.DEFINE_string("reference_dir", "results/reference", "Where it goes.")
_FILES = ("config.json", "environment.json", "metrics.jsonl", "summary.json")


def _main(argv) -> int:
    if len(argv) < 2:
        print("promote: name one or more run directories", file=sys.stderr)
        return 2
    runs = []
    for path in argv[1:]:
        try:
            run = records.read_run(path)
            _check_promotable(run)
        except (records.RunError, MalformedFileError) as error:
            print(f"promote: {error}", file=sys.stderr)
            return 2
        runs.append(run)
    for run in runs:
        target = records.run_path(_REFERENCE_DIR.value, run.experiment, run.variant, run.seed)
        target.mkdir(parents=True, exist_ok=True)
        for name in _FILES:
            shutil.copyfile(pathlib.Path(run.path) / name, target / name)
        print(target)
    return 0


def _check_promotable(run: records.Run) -> None:
    """Raises RunError where the run is not done or its code cannot be had again."""
    if run.status != "done":
        raise records.RunError(f"{run.path}: only a finished run can be promoted, is {run.status}")
    environments = [run.environment, *run.environment.get("resumed", [])]
    commits = {environment["commit"] for environment in environments}
    if None in commits or any(environment["dirty"] for environment in environments):
        raise records.RunError(f"{run.path}: was not made at a commit without changes; run it anew")
    if len(commits) > 1:
        raise records.RunError(f"{run.path}: was made at several commits, {sorted(commits)}")


if __name__ == "__main__":
    app.run(lambda argv: sys.exit(_main(argv)))
