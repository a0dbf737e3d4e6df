"""Copies the files of a finished run into results/reference, unchanged.

Command: make promote RUN=results/local/EXPERIMENT/VARIANT/seed=0

A reference must be a finished run, perhaps one that diverged, with the settings of its
variant, made at one commit of this clone without uncommitted changes: otherwise nobody
could repeat it. Its records are judged again, and must give the claim, verdict and
metrics of its summary.
"""

import os
import pathlib
import shutil

from experiments import commands, judge
from identity_matters import code_version, paper, runs
from identity_matters.paths import expand_home


def _main(paths: list[str]) -> int:
    try:
        promoted = [_promotable(pathlib.Path(expand_home(path))) for path in paths]
        for run, target in promoted:
            replaced = _copy(run, target)
            commands.show(
                f"{target}{', which was there, is replaced' if replaced else ''}"
            )
    except (ValueError, OSError) as error:
        raise runs.RunError(str(error)) from None
    return 0


def _promotable(path: pathlib.Path) -> tuple[runs.Run, pathlib.Path]:
    """The run and its place in the reference.

    Raises:
      runs.RunError, ValueError: it must not go there.
    """
    run = runs.read_run(path)
    if run.status not in runs.FINISHED:
        raise runs.RunError(
            f"{path}: only a finished run can be promoted; it is {run.status}"
        )
    if run.summary.get("changed"):
        raise runs.RunError(f"{path}: its settings are not those of a variant")
    target = _target(path, run)
    _require_one_commit(path, run)
    _require_judgement(path, run)
    return run, target


def _target(path: pathlib.Path, run: runs.Run) -> pathlib.Path:
    """The place of the run in the reference."""
    # summary.json may come from somebody else; it must not send the copy anywhere else.
    place = runs.run_path("", run.experiment, run.variant, run.seed)
    if path.resolve().parts[-len(place.parts) :] != place.parts:
        raise runs.RunError(f"{path}: its summary.json belongs at {place}")
    links = [name for name in judge.FILES if (path / name).is_symlink()]
    if links:
        raise runs.RunError(f"{path / links[0]}: is a link; only files are copied")
    reference = pathlib.Path(commands.REFERENCE_DIR.value)
    target = reference / place
    if target.resolve() == path.resolve():
        raise runs.RunError(f"{path}: is in the reference already")
    if target.resolve() != reference.resolve() / place:
        raise runs.RunError(f"{target}: leads out of the reference by a link")
    return target


def _require_one_commit(path: pathlib.Path, run: runs.Run) -> None:
    """Refuses runs that were not made by the code of one commit of this clone."""
    if any(
        entry["commit"] is None or entry["dirty"] is not False
        for entry in run.environments
    ):
        raise runs.RunError(
            f"{path}: was not made at a commit without changes; run it anew at one,"
            " with --overwrite, or OVERWRITE=1 for make"
        )
    commits = {entry["commit"] for entry in run.environments}
    if len(commits) > 1:
        raise runs.RunError(f"{path}: was made at several commits, {sorted(commits)}")
    (commit,) = commits
    of_commit = code_version.digest_of_commit(commit)
    if of_commit is None:
        raise runs.RunError(
            f"{path}: its commit {commit} is not in this clone; fetch it first"
        )
    # Runs of schema 2, sealed since, do not say what code they ran.
    if any(entry.get("code", of_commit) != of_commit for entry in run.environments):
        raise runs.RunError(
            f"{path}: was made by other code than that of its commit {commit}"
        )


def _require_judgement(path: pathlib.Path, run: runs.Run) -> None:
    """Refuses runs whose records do not give the summary, or whose claim is unknown."""
    if differences := judge.disagreements(run, judge.conclusion(run)):
        raise runs.RunError(f"{path}: {differences[0]}")
    if run.summary["claim"] not in paper.CLAIMS:
        raise runs.RunError(f"{path}: there is no claim {run.summary['claim']!r}")


def _copy(run: runs.Run, target: pathlib.Path) -> bool:
    """Copies a run to `target`; returns whether it replaced another.

    What is at `target` is a whole run at any time, or nothing: if the copy is cut off
    between its two renames, the old run lies beside `target`, and the next promotion
    puts it back.
    """
    fresh = target.with_name(f".new-{target.name}")
    old = target.with_name(f".old-{target.name}")
    target.parent.mkdir(parents=True, exist_ok=True)
    if old.exists() and not target.exists():
        old.rename(target)
    for left_over in (fresh, old):
        shutil.rmtree(left_over, ignore_errors=True)
    fresh.mkdir()
    for name in judge.FILES:
        shutil.copyfile(run.path / name, fresh / name, follow_symlinks=False)
    # The digests in the summary cover the other files.
    if runs.read_run(fresh).summary != run.summary:
        raise runs.RunError(f"{run.path}: changed while it was copied")
    replaces = target.exists()
    if replaces:
        os.rename(target, old)
    os.rename(fresh, target)
    shutil.rmtree(old, ignore_errors=True)
    return replaces


if __name__ == "__main__":
    commands.run(_main, takes="one or more run directories")
