"""A toy experiment, for the tests of `run`: it sums its trials.

It names Theorem 2.1, as every experiment has a claim.

Command: python -m tests.toy.experiment
"""

import time
import types

from experiments import run
from experiments.run.settings import configs

VARIANTS = {"plain": "three numbers, at once", "short": "one number"}
OTHER_VARIANTS = {
    "slow": "twelve numbers, half a second each",
    "wild": "three numbers, of which the second diverges",
}
_COMMON = {
    "values": (1, 2, 3),  # the numbers whose squares are summed
    # How long each of them takes.
    "pause_seconds": 0.0,
    "action": "none",  # none, raise, memory or diverge
}
_SLOW = {"values": tuple(range(1, 13)), "pause_seconds": 0.5}
_SHORT = {"values": (1,), "scale": "reduced"}
get_config = configs(
    {
        "plain": {},
        "short": _SHORT,
        "slow": _SLOW,
        "wild": {"action": "diverge"},
    },
    _COMMON,
)


def trials(
    variant: str, values: tuple, pause_seconds: float, action: str
) -> list[dict]:
    """One trial for each number."""
    return [
        {"value": value, "pause_seconds": pause_seconds, "action": action}
        for value in values
    ]


def build(**trial) -> types.SimpleNamespace:
    """The trial; refuses a pause that is negative."""
    if trial["pause_seconds"] < 0:
        raise ValueError(
            f"pause_seconds must be 0 or more, got {trial['pause_seconds']}"
        )
    return types.SimpleNamespace(**trial)


def measure(trial: types.SimpleNamespace, key) -> dict:
    """The square of the number."""
    time.sleep(trial.pause_seconds)
    if trial.value == 2:
        if trial.action == "raise":
            raise FloatingPointError("the second trial fails")
        if trial.action == "memory":
            raise MemoryError("cannot allocate 8 TiB")
        if trial.action == "diverge":
            raise run.DivergedError("the second trial diverges")
    return {"square": trial.value**2}


def verdict(settings: dict, records: list[dict]) -> run.Verdict:
    """The sum of the squares, with the verdict "holds"."""
    total = sum(record["square"] for record in records)
    return run.Verdict("theorem-2-1", {"sum_of_squares": total}, "holds")


class _ToyExperiment(run.Experiment):
    """Like an experiment that trains, it judges runs that diverged."""

    def judge_diverged(self, settings: dict, records: list[dict]) -> run.Verdict:
        metrics = {"diverged_after_step": len(records)}
        return run.Verdict("theorem-2-1", metrics, "not reproduced")


EXPERIMENT = _ToyExperiment(
    name="toy",
    module=__name__,
    trials=trials,
    measure=measure,
    verdict=verdict,
    build=build,
    signed=("pause_seconds",),
)

if __name__ == "__main__":
    run.main(EXPERIMENT)
