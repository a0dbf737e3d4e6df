"""How `reproduce` shows what is running: progress bars, and a line for each run."""

import shlex
from typing import Any

import rich.progress
import rich.table

from experiments import commands
from experiments.jobs import Job, verdict_in_words
from identity_matters.report.numbers import duration

# A bar stops at this share when a run takes longer than expected, because rich stops
# the clock of a full bar.
NEARLY_DONE = 0.95


class Display:
    """Progress bars of the running jobs and of all together; a line for each that ends.

    Args:
      jobs: all that will run.
      at_once: how many run at a time.
      console: where all is printed.
      disable: whether to show each run's command instead of progress bars.
    """

    def __init__(
        self, jobs: list[Job], at_once: int, console: commands.Console, disable: bool
    ):
        self._console = console
        self._disabled = disable
        self._job_count = len(jobs)
        self._ended_count = 0
        self._tasks: dict[str, rich.progress.TaskID] = {}  # by title
        rest_of_line = rich.table.Column(ratio=1, no_wrap=True, overflow="ellipsis")
        self._progress = rich.progress.Progress(
            "{task.description}",
            rich.progress.BarColumn(10),
            rich.progress.TimeElapsedColumn(),
            rich.progress.TimeRemainingColumn(compact=True),
            rich.progress.TextColumn(
                "{task.fields[note]}", markup=False, table_column=rest_of_line
            ),
            console=console,
            auto_refresh=False,
            disable=disable,
            expand=True,
            # the time left is estimated from all progress so far
            speed_estimate_period=1e9,
        )
        self._whole = self._progress.add_task(
            f"{len(jobs)} runs, {at_once} at a time",
            total=sum(job.expected_seconds for job in jobs),
            note="",
        )

    def __enter__(self) -> "Display":
        self._progress.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._progress.__exit__(*error)

    def started(self, job: Job) -> None:
        """Shows a bar for a job that has started, or its command."""
        if self._disabled:
            self._console.print(f"$ python {shlex.join(job.command())}")
        self._tasks[job.title] = self._progress.add_task(
            job.title, total=job.expected_seconds, note=""
        )

    def update(self, job: Job) -> None:
        """Moves the bar of a running job, with the last line of its log beside it."""
        self._progress.update(
            self._tasks[job.title],
            completed=min(self._elapsed(job), NEARLY_DONE * job.expected_seconds),
            note=job.last_line() if self._console.is_terminal else "",
        )

    def ended(self, job: Job) -> None:
        """Hides the bar of a job that has ended, and prints its verdict."""
        self._ended_count += 1
        self._progress.update(
            self._tasks[job.title], completed=job.expected_seconds, visible=False
        )
        summary = job.summary()
        verdict = verdict_in_words(summary) if summary else "FAILED"
        left = self._progress.tasks[0].time_remaining
        are_left = self._ended_count < self._job_count
        about = f", about {duration(left)} left" if left and are_left else ""
        self._progress.print(
            f"run {self._ended_count} of {self._job_count}: {job.title}: {verdict},"
            f" {duration(self._elapsed(job))}{about}",
            soft_wrap=True,
        )

    def refresh(self) -> None:
        """Moves the bar of all jobs, and draws all bars."""
        completed = sum(task.completed for task in self._progress.tasks[1:])
        self._progress.update(self._whole, completed=completed)
        if self._console.is_terminal:
            self._progress.refresh()

    def _elapsed(self, job: Job) -> float:
        return self._progress.tasks[self._tasks[job.title]].elapsed or 0.0
