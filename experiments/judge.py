"""Judges finished runs again: do claim, verdict and metrics follow from the records?

Command: python -m experiments.judge [--write] RUN_OR_DIRECTORY ...
It prints one line for each field of a summary that differs from what today's code makes
of the records, or a single line at the end if none does. With --write it corrects these
fields, and seals runs of the older schema 2, whose digests were optional. The exit code
is 1 if a run cannot be read or judged, or disagrees and was not written.
"""

import contextlib
import importlib
import importlib.util
import math
import pathlib
from typing import Any

from absl import flags

import experiments
from experiments import commands
from experiments.run.settings import NO_VERDICT, name_run
from experiments.run.trials import without
from identity_matters import runs
from identity_matters.report.records import MALFORMED
from identity_matters.runs import seals
from identity_matters.runs.read import checked_with_lines, sealed_with

_WRITE = flags.DEFINE_boolean(
    "write", False, "Write what the records say, and seal the run."
)
FILES = ("config.json", "environment.json", "metrics.jsonl", "summary.json")
# Sums and fits may be rounded in another order
# by another processor or version of NumPy.
RELATIVE_ROUNDING = 1e-9


def conclusion(run: runs.Run) -> dict:
    """What the records of a run say: the fields of summary.json from `claim` on.

    Raises RunError if there is no such experiment or variant, if the run has other
    settings or another scale than its name says, or if the records cannot be judged.
    """
    experiment = _experiment(run)
    settings = {**run.config, "scale": _scale(run, experiment)}
    try:
        if run.status == "diverged":
            judged = experiment.judge_diverged(settings, run.records)
        else:
            judged = experiment.judge(settings, run.records)
        seconds = experiment.phase_seconds(run.records)
    except MALFORMED as error:
        why = f"{type(error).__name__}: {runs.first_line(error)}"
        raise runs.RunError(
            f"{run.path}: its records cannot be judged ({why})"
        ) from None
    if judged is None:
        raise runs.RunError(
            f"{run.path}: it diverged, and {run.experiment} has no verdict on that"
        )
    fields = {
        "seconds": seconds,
        "claim": judged.claim,
        "metrics": judged.metrics,
        "verdict": NO_VERDICT if run.summary.get("changed") else judged.verdict,
        "paper": judged.paper,
    }
    fields = runs.from_json(runs.to_json(fields))
    return fields | {
        name: runs.without_non_finite(fields[name]) for name in ("metrics", "paper")
    }


def _scale(run: runs.Run, experiment: Any) -> str:
    """The scale of a run; RunError unless name, scale and settings fit together."""
    # A run of changed settings is called VARIANT@HASH.
    changed = run.summary.get("changed", {})
    variant = run.variant.partition("@")[0] if changed else run.variant
    defaults = experiment.settings_of(variant)
    if not defaults:
        raise runs.RunError(f"{run.path}: {run.experiment} has no variant {variant!r}")
    config = {"variant": variant, **run.config, "scale": defaults["scale"]}
    name = name_run(config, defaults)
    if name.changed != changed or name.variant != run.variant:
        why_not = runs.why_not_of_variant(run.config, without(defaults, "scale"))
        raise runs.RunError(f"{run.path}: {why_not or 'has the settings of a variant'}")
    if run.summary["scale"] != name.scale:
        raise runs.RunError(f"{run.path}: its scale must be {name.scale!r}")
    return name.scale


def _experiment(run: runs.Run) -> Any:
    """The experiment or benchmark that wrote the run."""
    if run.experiment in experiments.MODULES:
        return experiments.find(run.experiment)
    module = run.experiment.replace("benchmark_", "benchmarks.", 1)
    if not module.startswith("benchmarks.") or not importlib.util.find_spec(module):
        raise runs.RunError(f"{run.path}: there is no experiment {run.experiment!r}")
    return importlib.import_module(module).EXPERIMENT


def disagreements(run: runs.Run, judged: dict) -> list[str]:
    """One line for each field of summary.json that is not as `conclusion` judged it."""
    written = runs.flat({name: run.summary.get(name) for name in judged})
    concluded = runs.flat(judged)
    return [
        f"{name} is {written.get(name)!r}, the records say {concluded.get(name)!r}"
        for name in sorted(written.keys() | concluded.keys())
        if name not in written
        or name not in concluded
        or not _agree(written[name], concluded[name])
    ]


def _agree(a: Any, b: Any) -> bool:
    if type(a) is float and type(b) is float:
        return math.isclose(a, b, rel_tol=RELATIVE_ROUNDING)
    return type(a) is type(b) and a == b


def _main(paths: list[str]) -> int:
    directories = [
        directory
        for path in paths
        for directory in _run_directories(pathlib.Path(path))
    ]
    right = 0
    for directory in directories:
        try:
            right += _judge(directory)
        except runs.RunError as error:
            commands.show(str(error))
    if right < len(directories):
        return 1
    plural = "" if right == 1 else "s"
    commands.show(
        f"{right} run{plural}: claims, verdicts and metrics follow from the records"
    )
    return 0


def _judge(path: pathlib.Path) -> bool:
    """Judges a run, and writes the judgement with --write; whether all is right then.

    Raises RunError if the run cannot be read or judged, or if with --write another
    process is writing it.
    """
    with contextlib.ExitStack() as lock:
        if _WRITE.value:
            runs.lock_path(path, lock)
        return _judge_as_it_is(path)


def _judge_as_it_is(path: pathlib.Path) -> bool:
    """See `_judge`; with --write the run must be locked."""
    run, is_sealed = _read(path)
    if run.status not in runs.FINISHED:
        raise runs.RunError(
            f"{path}: only a finished run can be judged; it is {run.status}"
        )
    judged = conclusion(run)
    different = disagreements(run, judged)
    for line in different:
        commands.show(f"{path}: {line}")
    is_right = is_sealed and not different
    if not is_right and _WRITE.value:
        _write(path, run, judged if different else {})
        commands.show(f"{path}: {'written and sealed' if different else 'sealed'}")
        return True
    if not is_sealed and not different:
        commands.show(f"{path}: of the older schema; --write seals it")
    return is_right


def _run_directories(path: pathlib.Path) -> list[pathlib.Path]:
    """The run at `path`, or all runs below it."""
    if (path / "summary.json").exists():
        return [path]
    below = [summary.parent for summary in sorted(path.rglob("summary.json"))]
    if not below:
        raise flags.ValidationError(f"{path}: there is no run")
    return below


def _read(path: pathlib.Path) -> tuple[runs.Run, bool]:
    """The run, and whether it is sealed; schema 2 is read as if it were schema 3."""
    summary = runs.read_json(path / "summary.json")
    if summary.get("schema") != runs.SCHEMA - 1:
        return runs.read_run(path), True
    config = runs.read_json(path / "config.json")
    environment = runs.read_json(path / "environment.json")
    # Digests were optional, but must be right if they are there.
    if "digest" in environment:
        seals.check_seal(path / "environment.json", environment)
    if "digest" in summary:
        seals.check_seal(path / "summary.json", summary, config)
    summary, environment = _sealed(
        {**summary, "schema": runs.SCHEMA}, config, environment
    )
    run, _ = checked_with_lines(
        path, summary=summary, config=config, environment=environment
    )
    return run, False


def _write(path: pathlib.Path, run: runs.Run, judged: dict) -> None:
    """Seals the run; the fields in `judged` replace those of its summary."""
    summary, environment = _sealed(
        {**run.summary, **judged}, run.config, run.environment
    )
    runs.write_json(path / "environment.json", environment)
    runs.write_json(path / "summary.json", summary)


def _sealed(summary: dict, config: dict, environment: dict) -> tuple[dict, dict]:
    """The summary and the environment of a run, with the digests of both."""
    environment = seals.sealed(environment)
    others = sealed_with(summary, config, environment)
    return seals.sealed(summary, *others), environment


if __name__ == "__main__":
    commands.run(_main, takes="run directories, or directories of runs")
