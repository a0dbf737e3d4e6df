"""Shared by benchmarks: processes of their own, timing, growth, verdicts under load."""

import concurrent.futures
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from experiments import run
from experiments.run.verdicts import reproduced
from identity_matters import limits

# Load average per core above which times say little. A benchmark alone brings it near
# 1.
MOST_LOAD_PER_CORE = 1.25


def alone(function: Callable[..., Any], *arguments: Any) -> Any:
    """``function(*arguments)``, all picklable, in a new process.

    Raises:
      BrokenProcessPool: the process crashed.
    """
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(function, *arguments).result()


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
