"""The jobs of `reproduce`: each is a run, with its command, process, log and result."""

import contextlib
import dataclasses
import functools
import pathlib
from typing import Any

import experiments
from experiments import processes
from experiments.run.endings import DIVERGED_CODE
from experiments.run.trials import without
from identity_matters import environment, runs

UNKNOWN_SECONDS = 30  # assumed for a run without a reference
_ENDED_CODES = (0, DIVERGED_CODE)  # of a run that has come to its end


@dataclasses.dataclass
class Job:
    """One run: what it is, and its process.

    Attributes:
      name: of the experiment.
      variant: of the experiment.
      seed: of the run.
      reference_seconds: how long its reference took, if there is one.
      results_dir: where its run directory and its log go.
      overwrite: whether to replace an existing run.
      problem: why an existing run can be neither kept nor resumed; names the run.
      process: a multiprocessing process, once it has started.
      core: the only core that it may use; None if it may use all.
      has_log: whether the process writes to `log`; if not, to the terminal.
    """

    name: str
    variant: str
    seed: int
    reference_seconds: float | None
    results_dir: str = "results/local"
    overwrite: bool = False
    problem: str | None = None
    process: Any = None
    core: int | None = None
    has_log: bool = False

    @property
    def title(self) -> str:
        """What the run is called in messages."""
        return f"{self.name} {self.variant} seed={self.seed}"

    @property
    def expected_seconds(self) -> float:
        """How long its reference took, if known; otherwise a guess."""
        return self.reference_seconds or UNKNOWN_SECONDS

    @property
    def is_refused(self) -> bool:
        """Whether an existing run stands in the way."""
        return self.problem is not None and not self.overwrite

    @property
    def has_ended(self) -> bool:
        """Whether its process has come to an end."""
        return self.process.exitcode is not None

    @property
    def has_failed(self) -> bool:
        """Whether it was started and has not come to its end.

        What lies at its path may then be an earlier run.
        """
        return self.process is not None and self.process.exitcode not in _ENDED_CODES

    @property
    def path(self) -> Any:
        """The directory of the run."""
        return runs.run_path(self.results_dir, self.name, self.variant, self.seed)

    @property
    def log(self) -> pathlib.Path:
        """Where its output goes, unless it runs alone: see `has_log`."""
        file = f"{self.title}.txt".replace("/", "-").replace(" ", "-")
        return pathlib.Path(self.results_dir) / "logs" / file

    def start(self, core: int | None, alone: bool) -> None:
        """Starts the run on the given core, or on all cores if `core` is None.

        Its output goes to its log, unless it runs `alone`.
        """
        self.has_log = not alone
        log = str(self.log) if self.has_log else None
        self.process = processes.start(self.command(), log, core)
        self.core = core

    def command(self) -> list[str]:
        """The arguments of ``python`` that start the run, as one would type them."""
        settings = [f"--config=:{self.variant}", f"--seed={self.seed}"]
        if self.results_dir != "results/local":
            settings.append(f"--results_dir={self.results_dir}")
        if self.overwrite:
            settings.append("--overwrite")
        return ["-m", experiments.MODULES[self.name], *settings]

    def last_line(self) -> str:
        """The last line of its log, or nothing."""
        with contextlib.suppress(OSError, IndexError):
            text = self.log.read_text(encoding="utf-8", errors="replace")
            return runs.visible(text.splitlines()[-1])
        return ""

    def finished_run(self) -> runs.Run | None:
        """The run at its path if that has a verdict, also one that is refused."""
        with contextlib.suppress(runs.RunError):
            run = runs.read_run(self.path)
            return run if run.is_judged else None
        return None

    def summary(self) -> dict | None:
        """Its summary.json if that has a verdict; None if it was refused or failed."""
        if self.is_refused or self.has_failed:
            return None
        run = self.finished_run()
        return None if run is None else run.summary


def problem_of(job: Job) -> str | None:
    """Why an existing run can be neither kept nor resumed, if there is a reason.

    The reason names the run, or one of its files.
    """
    defaults = without(experiments.find(job.name).settings_of(job.variant), "scale")
    finished = job.finished_run()
    if finished is None:
        return runs.why_not_resumable(job.path, defaults, _code_and_packages())
    change = runs.why_not_of_variant(finished.config, defaults)
    return None if change is None else f"{job.path}: {change}"


@functools.cache
def _code_and_packages() -> dict:
    return environment.code_and_packages()


def verdict_in_words(summary: dict) -> str:
    """The verdict of a run, which says if the training diverged."""
    diverged = "diverged: " if summary["status"] == "diverged" else ""
    return diverged + summary["verdict"]


def failure_of(job: Job) -> str:
    """Why a run has failed, if known, for a line of text."""
    if (
        job.process is not None
        and job.process.exitcode == processes.RUNS_ELSEWHERE_CODE
    ):
        return "another process is running it"
    if job.has_log:
        return f"{job.last_line()} ({job.log})"
    return "see above"
