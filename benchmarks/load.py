"""On a machine that does other work a benchmark refutes nothing."""

import dataclasses
import os

from experiments import run
from identity_matters import environment

# Load average, over cores, above which times say little. A benchmark itself brings it near 1.
MOST_PER_CORE = 1.25


def per_core() -> float:
    """The load average of the last minute, over the cores that this process may use."""
    return os.getloadavg()[0] / environment.usable_cores()


def judged(found: run.Verdict, records: list[dict], most: float = MOST_PER_CORE) -> run.Verdict:
    """`found`, but "undecided" where it is "not reproduced" and the load was above `most`."""
    load = max((r["load_per_core"] for r in records if "load_per_core" in r), default=0.0)
    if found.verdict != "not reproduced" or load <= most:
        return found
    print(f"undecided: load average {load:.2f} a core")
    metrics = {**found.metrics, "load_per_core": load}
    return dataclasses.replace(found, metrics=metrics, verdict="undecided")
