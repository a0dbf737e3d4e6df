"""Theorem 2.1 has nothing to do with it: a toy that sums its trials, for the tests of
`run`.

Command: python -m tests.toy.experiment
"""

import time

from experiments import run
from experiments.run.shared import configs

VARIANTS = {"plain": "three numbers, at once", "short": "one number"}
OTHER_VARIANTS = {"slow": "twelve numbers, half a second each"}
_COMMON = {
    "values": (1, 2, 3),  # the numbers whose squares are summed
    # How long each of them takes.
    "pause_seconds": 0.0,
    "action": "none",  # none, raise or memory
}
_SLOW = {"values": tuple(range(1, 13)), "pause_seconds": 0.5}
_SHORT = {"values": (1,), "scale": "reduced"}
get_config = configs({"plain": {}, "short": _SHORT, "slow": _SLOW}, _COMMON)


def trials(
    variant: str, values: tuple, pause_seconds: float, action: str
) -> list[dict]:
    """One trial for each number."""
    return [
        {"value": value, "pause_seconds": pause_seconds, "action": action}
        for value in values
    ]


def build(value: int, pause_seconds: float, action: str) -> dict:
    """The subject of the measurement, which is the trial itself."""
    if pause_seconds < 0:
        raise ValueError(f"pause_seconds must be 0 or more, got {pause_seconds}")
    return {"value": value, "pause_seconds": pause_seconds, "action": action}


def measure(subject: dict, key) -> dict:
    """The square of the number."""
    time.sleep(subject["pause_seconds"])
    if subject["value"] == 2:
        if subject["action"] == "raise":
            raise FloatingPointError("the second trial fails")
        if subject["action"] == "memory":
            raise MemoryError("cannot allocate 8 TiB")
    return {"square": subject["value"] ** 2}


def verdict(settings: dict, records: list[dict]) -> run.Verdict:
    """The sum of the squares, with the verdict "holds"."""
    total = sum(record["square"] for record in records)
    return run.Verdict("theorem-2-1", {"sum_of_squares": total}, "holds")


EXPERIMENT = run.Experiment(
    "toy", trials, measure, verdict, build, signed=("pause_seconds",)
)

if __name__ == "__main__":
    run.main(EXPERIMENT)
