"""Theorem 2.1 has nothing to do with it: a toy that sums its trials, for the tests of `run`.

Command: python -m tests.toy.experiment
"""

import os
import signal
import time

import ml_collections

from experiments import run

VARIANTS = {"plain": "three numbers, at once"}
OTHER_VARIANTS = {"slow": "eight numbers, half a second each"}


def get_config(variant: str = "plain") -> ml_collections.ConfigDict:
    """The settings of `variant`."""
    if variant not in VARIANTS | OTHER_VARIANTS:
        raise ValueError(f"variant must be plain or slow, got {variant!r}")
    config = ml_collections.ConfigDict()
    config.variant = variant
    config.scale = "paper"
    last = 8 if variant == "slow" else 3
    config.values = tuple(range(1, last + 1))  # the numbers whose squares are summed
    # How long each of them takes.
    config.pause_seconds = 0.5 if variant == "slow" else 0.0
    config.action = "none"  # none, raise, memory or terminate
    return config


def trials(variant: str, values: tuple, pause_seconds: float, action: str) -> list[dict]:
    """One for each number."""
    return [{"value": value, "pause_seconds": pause_seconds, "action": action} for value in values]


def build(value: int, pause_seconds: float, action: str) -> dict:
    """What is measured: the trial, if it will do."""
    if pause_seconds < 0:
        raise ValueError(f"pause_seconds must be 0 or more, got {pause_seconds}")
    return {"value": value, "pause_seconds": pause_seconds, "action": action}


def measure(subject: dict, key) -> dict:
    """Its square."""
    del key
    time.sleep(subject["pause_seconds"])
    if subject["value"] == 2:
        if subject["action"] == "raise":
            raise FloatingPointError("the second trial fails")
        if subject["action"] == "memory":
            raise MemoryError("cannot allocate 8 TiB")
        if subject["action"] == "terminate":
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(60)
    return {"square": subject["value"] ** 2}


def verdict(settings: dict, records: list[dict]) -> run.Verdict:
    """The sum."""
    del settings
    total = sum(record["square"] for record in records)
    return run.Verdict("theorem-2-1", {"sum_of_squares": total}, "holds")


EXPERIMENT = run.Experiment("toy", trials, measure, verdict, build=build, get_config=get_config)

if __name__ == "__main__":
    run.main(EXPERIMENT)
