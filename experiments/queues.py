"""Queues of `reproduce`: which jobs run at a time, and where.

Runs go in parallel, one per core, longest first. With an accelerator,
one training at a time runs on it, and the other runs use the CPU cores.
"""

import os

import experiments
from experiments import accelerators, commands, processes
from experiments.display import Display
from experiments.jobs import Job
from experiments.run import DeviceExperiment
from identity_matters import limits

UPDATE_SECONDS = 0.25  # between two looks at the logs of the running processes


class Queue:
    """Jobs that wait for places of one kind; the one that takes longest goes first.

    Args:
      jobs: those to run.
      places: a core for each of the runs at a time, or None where a run may use all.
    """

    def __init__(self, jobs: list[Job], places: list[int | None]):
        self.waiting = sorted(jobs, key=lambda job: job.expected_seconds)
        self.free_places = list(places)
        self.running: list[Job] = []

    def start_jobs(self, alone: bool) -> list[Job]:
        """Starts jobs while there are free places; returns those it has started."""
        started = []
        while self.waiting and self.free_places:
            job = self.waiting.pop()
            job.start(self.free_places.pop(), alone)
            self.running.append(job)
            started.append(job)
        return started

    def take_ended_jobs(self) -> list[Job]:
        """The jobs that have ended since the last call; their places are free again."""
        ended = [job for job in self.running if job.has_ended]
        for job in ended:
            self.running.remove(job)
            self.free_places.append(job.core)
        return ended


def run_all(jobs: list[Job], at_once: int, console: commands.Console) -> None:
    """Runs all jobs, as many at a time as there are places, and shows their progress.

    Runs that go one at a time write to the terminal themselves.

    Args:
      jobs: those to run.
      at_once: how many may run at a time; 0 means one for each core.
      console: where their progress is shown.
    """
    queues, most_at_once = _queues(jobs, _cores(at_once))
    alone = most_at_once <= 1
    with Display(jobs, most_at_once, console, disable=alone) as display:
        while any(queue.waiting or queue.running for queue in queues):
            for queue in queues:
                for job in queue.start_jobs(alone):
                    display.started(job)
            running = [job.process for queue in queues for job in queue.running]
            processes.wait_until_any_ends(running, UPDATE_SECONDS)
            for queue in queues:
                for job in queue.running:
                    display.update(job)
                for job in queue.take_ended_jobs():
                    display.ended(job)
            display.refresh()


def _queues(jobs: list[Job], cores: list[int | None]) -> tuple[list[Queue], int]:
    """The jobs, by what they compute on, and how many run at a time."""
    trainings = []
    if len(cores) > 1 and accelerators.are_usable():
        trainings = [job for job in jobs if _trains(job)]
    others = [job for job in jobs if job not in trainings]
    # Trainings have the accelerator one at a time.
    at_once = min(len(cores), len(others)) + min(1, len(trainings))
    if at_once <= 1:
        # Runs that go one at a time may use all cores.
        return [Queue(jobs, [None])], min(1, len(jobs))
    return [Queue(trainings, [None]), Queue(others, cores)], at_once


def _trains(job: Job) -> bool:
    """Whether a job uses the accelerator, if there is one."""
    return isinstance(experiments.find(job.name), DeviceExperiment)


def _cores(at_once: int) -> list[int | None]:
    """A core for each run at a time; None if cores cannot be chosen.

    `at_once` says how many runs, and 0 means one for each core.
    """
    cores: list[int | None] = [None] * limits.usable_cores()
    if hasattr(os, "sched_getaffinity"):
        # a container may allow fewer
        cores = [*sorted(os.sched_getaffinity(0))[: len(cores)]]
    return [cores[place % len(cores)] for place in range(at_once or len(cores))]
