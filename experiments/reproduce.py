"""Runs the reproduction: each default variant of each experiment without a finished run
so far.

Command: make reproduce, or python -m experiments.reproduce [--only=a,b] [--seeds="0 1"]
    [--variants=c,d] [--jobs=N] [--demo] [--report] [--overwrite]

Runs go in parallel, one per core, longest first. Each is a process of its own, forked
from one that has imported the libraries; its output goes to RESULTS_DIR/logs. With an
accelerator they include the variants that need it, and trainings have it one at a time
while the others keep to the cores. A run alone prints to the terminal. Ctrl-C or
SIGTERM stops all; the same command, without --overwrite, resumes. A failure does not
stop the others, but makes the exit code 1, as does a contradiction of the reference
(see compare.py).
"""

import collections
import contextlib
import ctypes
import dataclasses
import fcntl
import functools
import itertools
import multiprocessing
import os
import pathlib
import runpy
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from typing import Any

import rich.progress
import rich.table
import threadpoolctl
from absl import flags

import experiments
from experiments import accelerators, commands, compare
from identity_matters import environment, limits, runs
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
_REPLACES = (
    "Run all of them anew, also those that are finished, and replace what is there."
)
_OVERWRITE = flags.DEFINE_boolean("overwrite", False, _REPLACES, allow_override=True)
# an experiment is quick if its quickest variant takes at most this long
DEMO_SECONDS = 20
UNKNOWN_SECONDS = 30  # assumed for a run without a reference
STOP_SECONDS = 30  # allowed for saving after SIGTERM
RUNS_ELSEWHERE_CODE = 3  # how a run ends that another reproduction is running already
_PR_SET_PDEATHSIG = 1
# A socket's path may have about 107 bytes. That of the server below has some 30 of its
# own.
_LONGEST_TEMPORARY_DIRECTORY = 70
_SHORT_TEMPORARY_DIRECTORIES = ("/tmp", "/var/tmp", "/dev/shm")
# Importing the libraries takes longer than many a run, so one process does it for all.
_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(
    [
        "__main__",
        "experiments.images.train",
        "identity_matters.linear",
        "scipy.optimize",
    ]
)
# Where the bar of a run waits if it takes longer than expected: rich stops the clock of
# a full bar.
NEARLY_DONE = 0.95


@dataclasses.dataclass
class Job:
    """One run: what it is, how long its reference took (if there is one), and its
    process.
    """

    name: str
    variant: str
    seed: int
    reference_seconds: float | None
    problem: str | None = None  # with an existing run
    process: Any = None  # a multiprocessing process
    core: int | None = None
    task: Any = None  # its line of the progress display

    title = property(lambda self: f"{self.name} {self.variant} seed={self.seed}")
    expected_seconds = property(lambda self: self.reference_seconds or UNKNOWN_SECONDS)
    is_refused = property(
        lambda self: self.problem is not None and not _OVERWRITE.value
    )

    @property
    def path(self) -> Any:
        return runs.run_path(
            commands.RESULTS_DIR.value, self.name, self.variant, self.seed
        )

    @property
    def log(self) -> pathlib.Path:
        file = f"{self.title}.txt".replace("/", "-").replace(" ", "-")
        return pathlib.Path(commands.RESULTS_DIR.value) / "logs" / file

    def command(self) -> list[str]:
        """The arguments of ``python`` that start the run, as one could give them by
        hand.
        """
        settings = [f"--config=:{self.variant}", f"--seed={self.seed}"]
        if commands.RESULTS_DIR.value != "results/local":
            settings.append(f"--results_dir={commands.RESULTS_DIR.value}")
        if self.problem or _OVERWRITE.value:
            settings.append("--overwrite")
        return ["-m", experiments.MODULES[self.name], *settings]

    def last_line(self) -> str:
        with contextlib.suppress(OSError, IndexError):
            text = self.log.read_text(encoding="utf-8", errors="replace")
            return runs.visible(text.splitlines()[-1])
        return ""

    def summary(self) -> dict | None:
        """Its summary.json if the run is done and was not refused, else None."""
        with contextlib.suppress(runs.RunError):
            run = runs.read_run(self.path)
            return run.summary if run.status == "done" and not self.is_refused else None
        return None


def main(_) -> int:
    _end_with_make()
    _shorten_temporary_directory()
    try:
        jobs = _jobs()
        logs = pathlib.Path(commands.RESULTS_DIR.value) / "logs"
        logs.mkdir(parents=True, exist_ok=True)
    except (ValueError, OSError) as error:
        raise flags.ValidationError(str(error)) from None
    console = commands.Console()
    waiting, finished_before = [], 0
    for job in jobs:
        job.problem = _why_not(job)
        if job.is_refused:
            advice = "make reproduce OVERWRITE=1 runs it anew"
            console.print(f"{job.path}: {job.problem}; {advice}")
        elif _OVERWRITE.value or job.problem or job.summary() is None:
            waiting.append(job)
        else:
            finished_before += 1
    if finished_before:
        console.print(f"{finished_before} finished already, {len(waiting)} run now")
    _exit_at_signals()
    started, report = time.monotonic(), None
    try:
        _run_all(waiting, console)
        if _REPORT.value:
            console.print("writing the report")
            places = (commands.RESULTS_DIR, commands.REFERENCE_DIR)
            chosen = [f"--{place.name}={place.value}" for place in places]
            command = [sys.executable, "-m", "experiments.report", *chosen]
            report = subprocess.run(command, stdout=subprocess.DEVNULL, check=False)
    except SystemExit:
        running = [
            job.process
            for job in waiting
            if job.process and job.process.exitcode is None
        ]
        if running:
            console.print(
                f"stopping; what is trained is saved first, for {STOP_SECONDS} s at"
                " most"
            )
        _end(running)
        without = ", without OVERWRITE=1," if _OVERWRITE.value else ""
        console.print(f"interrupted; the same command{without} resumes")
        raise
    failed = _conclude(jobs, len(waiting), time.monotonic() - started, console)
    return failed or int(report is not None and report.returncode != 0)


def _jobs() -> list[Job]:
    """The runs that the flags select; raises ValueError for unknown names or invalid
    seeds.
    """
    unknown = [name for name in _ONLY.value if name not in experiments.MODULES]
    if unknown:
        known = ", ".join(experiments.MODULES)
        raise ValueError(f"there is no experiment {unknown[0]!r}; there are {known}")
    if _VARIANTS.value and len(set(_ONLY.value)) != 1:
        raise ValueError("--variants needs one experiment, named by --only")
    seeds = _SEEDS.value
    if not seeds or not all(
        word.isdecimal() and int(word) < runs.SEEDS for word in seeds
    ):
        wanted = f"numbers from 0 to {runs.SEEDS - 1}, separated by blanks or commas"
        raise ValueError(f"--seeds must be {wanted}, got {' '.join(seeds)!r}")
    names = _ONLY.value or experiments.MODULES
    chosen = [
        v for name in _VARIANTS.value for v in experiments.find_variants(names[0], name)
    ]
    # Each run once, also if it is named twice: "cifar10" includes cifar10/small.
    found = [
        _job(name, variant, seed)
        for name in dict.fromkeys(names)
        for variant in dict.fromkeys(chosen or _default_variants(name))
        for seed in dict.fromkeys(map(int, seeds))
    ]
    if _DEMO.value:
        slowest_first = sorted(found, key=lambda job: -job.expected_seconds)
        quickest = {(job.name, job.seed): job for job in slowest_first}
        found = [
            job for job in quickest.values() if job.expected_seconds <= DEMO_SECONDS
        ]
    return found


def _job(name: str, variant: str, seed: int) -> Job:
    """A job, with the median seconds that its reference runs took, over all seeds."""
    took = []
    for path in pathlib.Path(commands.REFERENCE_DIR.value, name, variant).glob(
        "seed=*"
    ):
        with contextlib.suppress(runs.RunError, *MALFORMED):
            summary = runs.read_json(path / "summary.json")
            took += (
                [summary["seconds"]["total"]] if summary.get("status") == "done" else []
            )
    return Job(name, variant, seed, statistics.median(took) if took else None)


def _default_variants(name: str) -> tuple[str, ...]:
    """The variants to reproduce on this machine; prints those left out, with their
    commands.
    """
    if accelerators.are_usable():
        return experiments.variants(name, "VARIANTS", "ACCELERATOR_VARIANTS")
    for variant in (
        () if _DEMO.value else experiments.variants(name, "ACCELERATOR_VARIANTS")
    ):
        command = f"python -m {experiments.MODULES[name]} --config=:{variant}"
        print(f"left out because it needs an accelerator: {name} {variant} ({command})")
    return experiments.variants(name, "VARIANTS")


def _why_not(job: Job) -> str | None:
    """Why an existing run can be neither kept nor resumed; None if it can, or there is
    none.
    """
    own = experiments.find(job.name).own_settings(job.variant)
    own.pop("scale", None)
    try:
        if job.summary() is None:
            runs.unfinished(job.path, own, _code_and_packages())
            return None
        config = runs.read_run(job.path).config
    except runs.RunError as error:
        return str(error).removeprefix(f"{job.path}: ").partition("; --overwrite")[0]
    for name, (before, now) in runs.differences(config, own).items():
        return f"was made with {name}={before!r}, which is {now!r} now"
    return None


@functools.cache
def _code_and_packages() -> dict:
    return environment.code_and_packages()


def _shorten_temporary_directory() -> None:
    """Lets the server's socket be where the path is short enough; TMPDIR stays for the
    runs.

    Raises:
      flags.ValidationError: if there is no other place.
    """
    if len(os.fsencode(tempfile.gettempdir())) <= _LONGEST_TEMPORARY_DIRECTORY:
        return
    for directory in _SHORT_TEMPORARY_DIRECTORIES:
        if os.access(directory, os.W_OK):
            tempfile.tempdir = directory
            return
    places = ", ".join(_SHORT_TEMPORARY_DIRECTORIES)
    raise flags.ValidationError(
        f"TMPDIR is longer than {_LONGEST_TEMPORARY_DIRECTORY} bytes, too long for a"
        f" socket, and none of {places} can be written to; set a shorter TMPDIR"
    )


def _exit_at_signals() -> None:
    """Signals raise SystemExit, with the codes of a run that they interrupt.

    Not those that whoever started this process lets it ignore, as `nohup` does.
    """
    codes = {signal.SIGTERM: 75, signal.SIGHUP: 75, signal.SIGINT: 130}
    for sent, code in codes.items():
        if signal.getsignal(sent) is not signal.SIG_IGN:
            signal.signal(sent, lambda *_, code=code: sys.exit(code))


def _end_with_make() -> None:
    """If `make` is killed, so is this process, and with it all runs."""
    libc = ctypes.CDLL(None)
    if "MAKELEVEL" in os.environ and hasattr(libc, "prctl"):
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _start(job: Job, core: int | None, alone: bool) -> None:
    """Starts the run on the given core, or on all cores if `core` is None.

    If it does not run `alone`, its output goes to its log.
    """
    log = None if alone else str(job.log)
    process = _SERVER.Process(target=_run, args=(job.command(), log, core))
    process.start()  # if a signal interrupts it, the run ends with this process
    job.process, job.core = process, core


def _run(command: list[str], log: str | None, core: int | None) -> None:
    """What runs in the process of a job: ``python *command``."""
    multiprocessing.set_start_method(None, force=True)  # the default, as in any process
    os.setsid()  # Ctrl-C reaches only `main`, which then sends SIGTERM to all runs
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # it may be ignored there
    parent = multiprocessing.parent_process()
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    if log is not None:
        _print_to(log)
    if core is not None:  # XLA starts a thread for each core that it may use
        os.sched_setaffinity(0, {core})
        threadpoolctl.threadpool_limits(1)
    _, module, *arguments = command
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _print_to(log: str) -> None:
    """Sends all output to `log`; ends the process if another reproduction is running
    this run.
    """
    with open(log, "ab") as output:
        try:
            # Kept until the last copy of the descriptor is closed, when the process
            # ends.
            fcntl.flock(output.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os._exit(RUNS_ELSEWHERE_CODE)
        except OSError:  # a file system without locks
            pass
        output.truncate(0)
        for stream in (sys.stdout, sys.stderr):
            os.dup2(output.fileno(), stream.fileno())


def _end_with(parent: Any) -> None:
    """Kills this run once `main` has ended; what the run has measured is on disk."""
    parent.join()
    os.kill(os.getpid(), signal.SIGKILL)


def _end(processes: list) -> None:
    """Asks all these runs to stop, and kills those that do not within STOP_SECONDS."""
    for process in processes:
        process.terminate()
    # A second signal ends the wait.
    with contextlib.suppress(SystemExit):
        latest = time.monotonic() + STOP_SECONDS
        for process in processes:
            process.join(max(0.0, latest - time.monotonic()))
    for process in processes:
        process.kill()
        process.join()


def _slots() -> tuple[list, list]:
    """Places of runs: a core for each run at a time, and [None] if there is an
    accelerator.

    A core is None if it cannot be chosen, or if the run may use all of them.
    """
    cores: list[int | None] = [None] * limits.usable_cores()
    if hasattr(os, "sched_getaffinity"):
        # a container may allow fewer
        cores = sorted(os.sched_getaffinity(0))[: len(cores)]
    at_once = _JOBS.value or len(cores)
    on_cores = [cores[i % len(cores)] for i in range(at_once)]
    return on_cores, [None] if at_once > 1 and accelerators.are_usable() else []


def _run_all(jobs: list[Job], console: commands.Console) -> None:
    on_cores, on_accelerator = _slots()
    trainings = [
        job for job in jobs if on_accelerator and experiments.find(job.name).trains
    ]
    at_once = min(len(on_cores), len(jobs) - len(trainings)) + min(1, len(trainings))
    # Runs that go one at a time may use all cores, and write to the terminal.
    alone = at_once <= 1
    if alone:
        on_cores, trainings, at_once = [None], [], min(1, len(jobs))
    queues = [
        # Each with its free slots; the longest runs are last, and start first.
        (sorted(group, key=lambda job: job.expected_seconds), slots)
        for group, slots in (
            (trainings, on_accelerator),
            ([job for job in jobs if job not in trainings], on_cores),
        )
    ]
    running: list[tuple[Job, list]] = []
    rest_of_line = rich.table.Column(ratio=1, no_wrap=True, overflow="ellipsis")
    with rich.progress.Progress(
        "{task.description}",
        rich.progress.BarColumn(10),
        rich.progress.TimeElapsedColumn(),
        rich.progress.TimeRemainingColumn(compact=True),
        rich.progress.TextColumn(
            "{task.fields[note]}", markup=False, table_column=rest_of_line
        ),
        console=console,
        auto_refresh=False,
        disable=alone,
        expand=True,
        # the time left is estimated from all progress so far
        speed_estimate_period=1e9,
    ) as shown:
        expected = sum(job.expected_seconds for job in jobs)
        whole = shown.add_task(
            f"{len(jobs)} runs, {at_once} at a time", total=expected, note=""
        )
        while running or any(waiting for waiting, _ in queues):
            for waiting, free in queues:
                while waiting and free:
                    job = waiting.pop()
                    if alone:
                        console.print(f"$ python {shlex.join(job.command())}")
                    _start(job, free.pop(), alone)
                    job.task = shown.add_task(
                        job.title, total=job.expected_seconds, note=""
                    )
                    running.append((job, free))
            time.sleep(0.25)
            for job, free in list(running):
                passed = shown.tasks[job.task].elapsed
                completed = min(passed, NEARLY_DONE * job.expected_seconds)
                note = job.last_line() if console.is_terminal else ""
                shown.update(job.task, completed=completed, note=note)
                if job.process.exitcode is None:
                    continue
                running.remove((job, free))
                free.append(job.core)
                shown.update(job.task, completed=job.expected_seconds, visible=False)
                count = (
                    len(jobs)
                    - len(running)
                    - sum(len(waiting) for waiting, _ in queues)
                )
                said = (job.summary() or {"verdict": "FAILED"})["verdict"]
                line = f"run {count} of {len(jobs)}: {job.title}: {said}"
                left = shown.tasks[0].time_remaining
                about = f", about {duration(left)} left" if left and running else ""
                shown.print(f"{line}, {duration(passed)}{about}", soft_wrap=True)
            shown.update(
                whole, completed=sum(task.completed for task in shown.tasks[1:])
            )
            if console.is_terminal:
                shown.refresh()


def _conclude(
    jobs: list[Job], run_now: int, seconds: float, console: commands.Console
) -> int:
    """Prints all results, of the runs made now and of earlier ones; returns the exit
    code.
    """
    table = rich.table.Table(box=None, pad_edge=False)
    for name in ("experiment", "runs", "verdicts", "seconds", "in the reference"):
        table.add_column(
            name, justify="left" if name in ("experiment", "verdicts") else "right"
        )
    every, notes = collections.Counter(), []
    for name, own in itertools.groupby(jobs, key=lambda job: job.name):
        counts, took, there = collections.Counter(), 0.0, 0.0
        for job in own:
            if summary := job.summary():
                counts[summary["verdict"]] += 1
                took += summary["seconds"]["total"]
                there += job.reference_seconds or 0.0
            else:
                counts["failed"] += 1
                if (
                    job.process is not None
                    and job.process.exitcode == RUNS_ELSEWHERE_CODE
                ):
                    why = "another process is running it"
                elif job.log.exists() and not job.is_refused:
                    why = f"{job.last_line()} ({job.log})"
                else:
                    why = "see above"
                notes.append(f"failed: {job.title}: {why}")
        row = str(counts.total()), commands.counted(counts), f"{took:.0f}"
        table.add_row(name, *row, f"{there:.0f}" if there else "")
        every += counts
    console.print(table)
    many = "" if len(jobs) == 1 else "s"
    when = f"{run_now} now in {duration(seconds)}" if run_now else "none of them now"
    console.print(f"{len(jobs)} run{many}, {when}: {commands.counted(every)}")
    yours = collection.read("yours", commands.RESULTS_DIR.value)
    reference = collection.read("reference", commands.REFERENCE_DIR.value)
    run_here = {f"{job.name}/{job.variant}" for job in jobs}
    here = [group for group in yours.groups if group.name in run_here]
    notes += [
        f"contradiction: {x}" for x in collection.contradictions(here, reference.groups)
    ]
    for note in notes:
        console.print(note, style="red")
    for line in compare.versions(yours, reference):
        console.print(line, style="yellow")
    report = pathlib.Path(commands.RESULTS_DIR.value) / "report.html"
    if report.exists():
        console.print(f"report: {report.resolve().as_uri()}")
    where = (
        "" if str(report.parent) == "results/local" else f" RESULTS_DIR={report.parent}"
    )
    console.print(
        f"`make compare{where}` prints the paper's results, the reference's and yours"
    )
    return 1 if notes else 0


if __name__ == "__main__":
    commands.run(main)
