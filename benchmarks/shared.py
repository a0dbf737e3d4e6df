"""Shared by benchmarks: processes of their own, timing, growth, verdicts under load."""

import multiprocessing
import os
import pathlib
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import jax
import numpy as np

from experiments import run
from experiments.run.verdicts import reproduced
from identity_matters import limits

# Load average per core above which times say little. A benchmark alone brings it near
# 1.
MOST_LOAD_PER_CORE = 1.25

# How much of what a crashed process printed its error shows: lines, characters of each.
_LAST_LINES = 3
_LONGEST_LINE = 120


class CrashedError(Exception):
    """A process ended without an answer; the message says how, with its last lines."""


def alone(function: Callable[..., Any], *arguments: Any) -> Any:
    """``function(*arguments)``, all picklable, in a new process.

    What the process prints as errors is shown when it has ended.

    Raises:
      CrashedError: the process gave no answer.
      Exception: what `function` raised.
    """
    context = multiprocessing.get_context("spawn")
    with tempfile.NamedTemporaryFile() as file:
        errors = pathlib.Path(file.name)
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(
            target=_answer, args=(sender, errors, function, arguments)
        )
        process.start()
        sender.close()  # so that the end of the process is the end of the pipe
        try:
            answer = receiver.recv()
        except EOFError:
            answer = None
        process.join()
        printed = errors.read_text(errors="replace")
    sys.stderr.write(printed)
    if answer is None:
        raise CrashedError(_how_it_ended(process.exitcode, printed))
    result, raised = answer
    if raised is not None:
        raise raised
    return result


def _answer(
    sender: Connection,
    errors: pathlib.Path,
    function: Callable[..., Any],
    arguments: tuple,
) -> None:
    """Sends (result, None) or (None, exception); stderr goes into a file."""
    with errors.open("a") as file:
        # Of the process, not of Python alone: compilers write there, too.
        os.dup2(file.fileno(), sys.stderr.fileno())
    answer: tuple[Any, Exception | None]
    try:
        answer = (function(*arguments), None)
    except Exception as error:
        answer = (None, error)
    sender.send(answer)


def _how_it_ended(exit_code: int | None, printed: str) -> str:
    """The signal or the exit code of a process, and the last lines that it printed."""
    if exit_code is not None and exit_code < 0:
        ending = signal.Signals(-exit_code).name
    else:
        ending = f"exit code {exit_code}"
    lines = [line.strip() for line in printed.splitlines() if line.strip()]
    last = [line[:_LONGEST_LINE] for line in lines[-_LAST_LINES:]]
    return f"{ending}: {' | '.join(last)}" if last else ending


def seconds_in_turns(
    candidates: dict[str, Callable[[], Any]], rounds: int
) -> dict[str, float]:
    """Median seconds of each candidate, as ``NAME_seconds``.

    Each round times all in turn.
    """
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(rounds):
        for name, candidate in candidates.items():
            started = time.perf_counter()
            jax.block_until_ready(candidate())
            seconds[name].append(time.perf_counter() - started)
    return {
        f"{name}_seconds": statistics.median(times) for name, times in seconds.items()
    }


def load_per_core() -> float:
    """The load average of the last minute, over the cores that this process may use."""
    return os.getloadavg()[0] / limits.usable_cores()


def exponent(records: list[dict], size: str, seconds: str) -> float:
    """The p of the least-squares fit seconds ~ size^p, for two fields of records."""
    sizes = [record[size] for record in records]
    times = [record[seconds] for record in records]
    return float(np.polyfit(np.log(sizes), np.log(times), 1)[0])


def peak_memory_gigabytes() -> float:
    """The largest resident memory of this process so far.

    Not by getrusage: its maximum survives exec, so it may be the parent's.
    """
    status = pathlib.Path("/proc/self/status").read_text(encoding="ascii")
    kibibytes = next(
        line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")
    )
    return int(kibibytes) * 1024 / 1e9


def judged(
    claim: str,
    metrics: dict,
    reached: bool,
    records: list[dict],
    most_load_per_core: float = MOST_LOAD_PER_CORE,
) -> run.Verdict:
    """Reproduced iff the goals are reached; undecided if missed on a loaded machine."""
    loads = [record["load_per_core"] for record in records if "load_per_core" in record]
    load = max(loads, default=0.0)
    if reached or load <= most_load_per_core:
        return run.Verdict(claim, metrics, reproduced(reached))
    print(f"undecided: load average {load:.2f} a core")
    return run.Verdict(claim, {**metrics, "load_per_core": load}, "undecided")
