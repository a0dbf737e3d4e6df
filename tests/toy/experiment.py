"""Theorem 2.1 has nothing to do with it: a toy that sums its cells, for the tests of the harness.

Command: python -m tests.toy.experiment --config=tests/toy/config.py
"""

import os
import signal
import time

from experiments import harness


def plan(variant: str, values: tuple, pause_seconds: float, action: str) -> list[dict]:
    if variant != "plain":
        raise ValueError(f"variant must be plain, got {variant!r}")
    if not values:
        raise ValueError("values must not be empty")
    if pause_seconds < 0:
        raise ValueError(f"pause_seconds must be 0 or more, got {pause_seconds}")
    return [{"value": value, "pause_seconds": pause_seconds, "action": action} for value in values]


def measure(cell: dict, key) -> dict:
    del key
    time.sleep(cell["pause_seconds"])
    if cell["action"] == "raise" and cell["value"] == 2:
        raise FloatingPointError("the second cell fails")
    if cell["action"] == "terminate" and cell["value"] == 2:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)
    return {"square": cell["value"] ** 2}


def conclude(config: dict, records: list[dict]) -> harness.Conclusion:
    del config
    total = sum(record["square"] for record in records)
    return harness.Conclusion("Theorem 2.1", {"sum_of_squares": total}, "not comparable")


EXPERIMENT = harness.Experiment("toy", plan, measure, conclude)

if __name__ == "__main__":
    harness.run(EXPERIMENT)
