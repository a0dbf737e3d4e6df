"""Copies the files of a finished run into results/reference, unchanged.

Command: make promote RUN=results/local/EXPERIMENT/VARIANT/seed=0
A reference must be a finished run with the settings of its variant, made at one commit without
uncommitted changes: otherwise nobody could make it again.
"""

import pathlib
import shutil

from experiments import commands
from identity_matters import runs

_FILES = ("config.json", "environment.json", "metrics.jsonl", "summary.json")


def _main(paths: list[str]) -> int:
    try:
        for source, target in [_promotable(pathlib.Path(path)) for path in paths]:
            fresh = target.with_name(f".{target.name}")  # a run is copied as a whole or not at all
            shutil.rmtree(fresh, ignore_errors=True)
            fresh.mkdir(parents=True)
            for name in _FILES:
                shutil.copyfile(source / name, fresh / name)
            print(f"{target}{', which was there, is replaced' if target.exists() else ''}")
            shutil.rmtree(target, ignore_errors=True)
            fresh.rename(target)
    except (ValueError, OSError) as error:
        raise runs.RunError(str(error)) from None
    return 0


def _promotable(path: pathlib.Path) -> tuple[pathlib.Path, pathlib.Path]:
    """The run's path and its place in the reference; RunError or ValueError if not allowed."""
    run = runs.read_run(path)
    if run.status != "done":
        raise runs.RunError(f"{path}: only a finished run can be promoted; it is {run.status}")
    if run.summary.get("changed"):
        raise runs.RunError(f"{path}: its settings are not those of a variant")
    environments = [run.environment, *run.environment.get("resumed", [])]
    commits = {environment.get("commit") for environment in environments}
    if None in commits or any(entry.get("dirty") is not False for entry in environments):
        raise runs.RunError(f"{path}: was not made at a commit without changes; run it anew")
    if len(commits) > 1:
        raise runs.RunError(f"{path}: was made at several commits, {sorted(commits)}")
    # summary.json may come from somebody else; it must not send the copy anywhere else.
    place = runs.run_path("", run.experiment, run.variant, run.seed)
    if path.resolve().parts[-len(place.parts) :] != place.parts:
        raise runs.RunError(f"{path}: its summary.json belongs at {place}")
    target = pathlib.Path(commands.REFERENCE_DIR.value) / place
    if target.resolve() == path.resolve():
        raise runs.RunError(f"{path}: is in the reference already")
    return path, target


if __name__ == "__main__":
    commands.run(_main, takes="one or more run directories")
