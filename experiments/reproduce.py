"""Runs the reproduction: each default variant that has no finished run so far.

Command: make reproduce, or python -m experiments.reproduce [--only=a,b] [--seeds="0 1"]
    [--variants=c,d] [--jobs=N] [--demo] [--report] [--overwrite]

Runs go in parallel, one per core, longest first. Each is a separate process, forked
from one that has imported the libraries; its output goes to RESULTS_DIR/logs. With an
accelerator, the variants that need it run too; trainings use it one at a time, while
all other runs use the cores. A run alone prints to the terminal. Ctrl-C or SIGTERM
stops all; the same command, without --overwrite, resumes. A failure does not stop the
others, but makes the exit code 1, as does a contradiction of the reference (see
compare.py).
"""

import collections
import contextlib
import itertools
import pathlib
import statistics
import subprocess
import sys
import time
from typing import NamedTuple

import rich.table
from absl import flags

import experiments
from experiments import accelerators, commands, compare, processes
from experiments.jobs import Job, failure_of, problem_of, verdict_in_words
from experiments.queues import run_all
from identity_matters import runs
from identity_matters.report import collection
from identity_matters.report.numbers import duration
from identity_matters.report.records import MALFORMED

_SEEDS = flags.DEFINE_spaceseplist(
    "seeds", ["0"], "Seeds of the runs.", comma_compat=True
)
_ONLY = flags.DEFINE_list("only", [], "Experiments to run; all of the suite if empty.")
_VARIANTS = flags.DEFINE_list(
    "variants",
    [],
    "Variants of one experiment, or a data set for all of its variants; if empty, the"
    " defaults.",
)
_JOBS = flags.DEFINE_integer(
    "jobs", 0, "Runs at a time; 0 means one per core.", lower_bound=0
)
_DEMO = flags.DEFINE_boolean(
    "demo", False, "Only the quickest variant of each quick experiment."
)
_REPORT = flags.DEFINE_boolean("report", False, "Write the report at the end.")
_OVERWRITE = flags.DEFINE_boolean(
    "overwrite",
    False,
    "Run all of them anew, also those that are finished, and replace what is there.",
    allow_override=True,
)
# an experiment is quick if its quickest variant takes at most this long
DEMO_SECONDS = 20


def main(_) -> int:
    processes.end_with_make()
    processes.shorten_temporary_directory()
    try:
        jobs = _jobs()
        logs = pathlib.Path(commands.RESULTS_DIR.value) / "logs"
        logs.mkdir(parents=True, exist_ok=True)
    except (ValueError, OSError) as error:
        raise flags.ValidationError(str(error)) from None
    console = commands.Console()
    waiting = _jobs_to_run(jobs, console)
    processes.exit_at_signals()
    started = time.monotonic()
    report_code = 0
    try:
        run_all(waiting, _JOBS.value, console)
        if _REPORT.value:
            console.print("writing the report")
            report_code = _write_report()
    except SystemExit:
        _stop(waiting, console)
        raise
    failed = _conclude(jobs, len(waiting), time.monotonic() - started, console)
    return failed or int(report_code != 0)


def _jobs_to_run(jobs: list[Job], console: commands.Console) -> list[Job]:
    """The jobs without a finished run; says of the others why they do not run."""
    waiting = []
    finished_before = 0
    for job in jobs:
        job.problem = problem_of(job)
        if job.is_refused:
            advice = "make reproduce OVERWRITE=1 runs it anew"
            console.print(f"{job.problem}; {advice}")
        elif job.overwrite or job.summary() is None:
            waiting.append(job)
        else:
            finished_before += 1
    if finished_before:
        console.print(f"{finished_before} finished already, {len(waiting)} run now")
    return waiting


def _write_report() -> int:
    """Writes the report in a process of its own; returns its exit code."""
    places = [
        f"--{flag.name}={flag.value}"
        for flag in (commands.RESULTS_DIR, commands.REFERENCE_DIR)
    ]
    command = [sys.executable, "-m", "experiments.report", *places]
    return subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode


def _stop(jobs: list[Job], console: commands.Console) -> None:
    """Ends the runs of these jobs that are running."""
    running = [job.process for job in jobs if job.process and not job.has_ended]
    if running:
        console.print(
            "stopping; what is trained is saved first, for"
            f" {processes.STOP_SECONDS} s at most"
        )
    processes.end(running)
    without = ", without OVERWRITE=1," if _OVERWRITE.value else ""
    console.print(f"interrupted; the same command{without} resumes")


def _jobs() -> list[Job]:
    """The runs that the flags select.

    Raises:
      ValueError: an unknown name or an invalid seed.
    """
    seeds = _seeds()
    names = _ONLY.value or list(experiments.MODULES)
    _check_names(names)
    # Each run once, also if it is named twice: "cifar10" includes cifar10/small.
    jobs = [
        _job(name, variant, seed)
        for name in dict.fromkeys(names)
        for variant in dict.fromkeys(_variants(name))
        for seed in dict.fromkeys(seeds)
    ]
    return _quick_jobs(jobs) if _DEMO.value else jobs


def _check_names(names: list[str]) -> None:
    for name in names:
        if name not in experiments.MODULES:
            known = ", ".join(experiments.MODULES)
            raise ValueError(f"there is no experiment {name!r}; there are {known}")
    if _VARIANTS.value and len(set(_ONLY.value)) != 1:
        raise ValueError("--variants needs one experiment, named by --only")


def _seeds() -> list[int]:
    words = _SEEDS.value
    are_seeds = [word.isdecimal() and int(word) < runs.SEEDS for word in words]
    if not words or not all(are_seeds):
        raise ValueError(
            f"--seeds must be numbers from 0 to {runs.SEEDS - 1}, separated by blanks"
            f" or commas, got {' '.join(words)!r}"
        )
    return [int(word) for word in words]


def _variants(name: str) -> tuple[str, ...]:
    """The variants of an experiment that the flags select, or its defaults.

    Raises:
      ValueError: a variant that is named does not exist, or none is named of an
        experiment that is, and that has no defaults.
    """
    if not _VARIANTS.value:
        variants = _default_variants(name)
        if name in _ONLY.value and not variants:
            raise ValueError(
                f"{name} runs only variants that are named (VARIANT=... for make,"
                f" --variants=...); it has {', '.join(experiments.variants(name))}"
            )
        return variants
    return tuple(
        variant
        for wanted in _VARIANTS.value
        for variant in experiments.find_variants(name, wanted)
    )


def _quick_jobs(jobs: list[Job]) -> list[Job]:
    """The quickest job of each experiment and seed, if it is quick at all."""
    slowest_first = sorted(jobs, key=lambda job: -job.expected_seconds)
    # Of the jobs with one key a dict keeps the last, which is the quickest.
    quickest = {(job.name, job.seed): job for job in slowest_first}
    return [job for job in quickest.values() if job.expected_seconds <= DEMO_SECONDS]


def _job(name: str, variant: str, seed: int) -> Job:
    """A job, with the median seconds that its reference runs took, over all seeds."""
    reference = pathlib.Path(commands.REFERENCE_DIR.value, name, variant)
    seconds = []
    for path in reference.glob("seed=*"):
        with contextlib.suppress(runs.RunError, *MALFORMED):
            summary = runs.read_json(path / "summary.json")
            if summary.get("status") in runs.FINISHED:
                seconds.append(summary["seconds"]["total"])
    return Job(
        name=name,
        variant=variant,
        seed=seed,
        reference_seconds=statistics.median(seconds) if seconds else None,
        results_dir=commands.RESULTS_DIR.value,
        overwrite=_OVERWRITE.value,
    )


def _default_variants(name: str) -> tuple[str, ...]:
    """The variants to reproduce on this machine; prints the commands of the others."""
    if accelerators.are_usable():
        return experiments.variants(name, "VARIANTS", "ACCELERATOR_VARIANTS")
    if not _DEMO.value:
        for variant in experiments.variants(name, "ACCELERATOR_VARIANTS"):
            command = f"python -m {experiments.MODULES[name]} --config=:{variant}"
            print(
                "left out because it needs an accelerator:"
                f" {name} {variant} ({command})"
            )
    return experiments.variants(name, "VARIANTS")


class _Ended(NamedTuple):
    """A job at the end, and the summary of its run; None if it has not finished."""

    job: Job
    summary: dict | None


def _conclude(
    jobs: list[Job], run_now: int, seconds: float, console: commands.Console
) -> int:
    """Prints all results, of the runs made now and of earlier ones.

    Returns:
      The exit code.
    """
    ended = [_Ended(job, job.summary()) for job in jobs]
    _print_table(ended, console)
    plural = "" if len(jobs) == 1 else "s"
    when = f"{run_now} now in {duration(seconds)}" if run_now else "none of them now"
    console.print(
        f"{len(jobs)} run{plural}, {when}: {commands.counted(_verdicts(ended))}"
    )
    yours = collection.read("yours", commands.RESULTS_DIR.value)
    reference = collection.read("reference", commands.REFERENCE_DIR.value)
    problems = [
        f"failed: {job.title}: {failure_of(job)}"
        for job, summary in ended
        if summary is None
    ]
    problems += [
        f"contradiction: {contradiction}"
        for contradiction in _contradictions(jobs, yours, reference)
    ]
    for problem in problems:
        console.print(problem, style="red")
    for line in compare.versions(yours, reference):
        console.print(line, style="yellow")
    _print_places(console)
    return 1 if problems else 0


def _print_table(ended: list[_Ended], console: commands.Console) -> None:
    """Prints a row for each experiment, with the seconds of its finished runs."""
    table = rich.table.Table(box=None, pad_edge=False)
    table.add_column("experiment")
    table.add_column("runs", justify="right")
    table.add_column("verdicts")
    table.add_column("seconds", justify="right")
    table.add_column("in the reference", justify="right")
    for name, group in itertools.groupby(ended, key=lambda run: run.job.name):
        runs_of_name = list(group)
        seconds = 0.0
        reference_seconds = 0.0
        for job, summary in runs_of_name:
            if summary is not None:
                seconds += summary["seconds"]["total"]
                reference_seconds += job.reference_seconds or 0.0
        table.add_row(
            name,
            str(len(runs_of_name)),
            commands.counted(_verdicts(runs_of_name)),
            f"{seconds:.0f}",
            f"{reference_seconds:.0f}" if reference_seconds else "",
        )
    console.print(table)


def _verdicts(ended: list[_Ended]) -> collections.Counter:
    """How many of the runs have which verdict, or "failed"."""
    return collections.Counter(
        "failed" if summary is None else verdict_in_words(summary)
        for _, summary in ended
    )


def _contradictions(
    jobs: list[Job], yours: collection.Collection, reference: collection.Collection
) -> list[str]:
    """Where the runs of these jobs, also earlier ones, contradict the reference."""
    names = {f"{job.name}/{job.variant}" for job in jobs}
    groups = [group for group in yours.groups if group.name in names]
    return collection.contradictions(groups, reference.groups)


def _print_places(console: commands.Console) -> None:
    """Says where the report is, and which command compares."""
    report = pathlib.Path(commands.RESULTS_DIR.value) / "report.html"
    if report.exists():
        console.print(f"report: {report.resolve().as_uri()}")
    is_usual = str(report.parent) == "results/local"
    where = "" if is_usual else f" RESULTS_DIR={report.parent}"
    console.print(
        f"`make compare{where}` prints the paper's results, the reference's and yours"
    )


if __name__ == "__main__":
    commands.run(main)
