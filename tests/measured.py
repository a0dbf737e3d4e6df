"""An experiment's settings and trials, and its reference runs."""

import functools
import pathlib

from identity_matters.runs import Run, read_run

REFERENCE = pathlib.Path(__file__).resolve().parent.parent / "results" / "reference"


@functools.cache
def reference(name: str) -> Run:
    """The reference run with seed 0 of `name`, which is experiment/variant."""
    return read_run(REFERENCE / name / "seed=0")


def reference_runs(name: str) -> list[Run]:
    """The reference runs of `name`, experiment/variant, with every seed."""
    return [read_run(path) for path in sorted((REFERENCE / name).glob("seed=*"))]


def settings(arm, variant: str, **changes) -> dict:
    """The settings of `variant`, as `arm.trials` takes them.

    A change "a.b" is of b in the group a.
    """
    config = arm.get_config(variant)
    config.update_from_flattened_dict(changes)
    config = config.to_dict()
    del config["scale"]
    return config


def trials(arm, variant: str, **changes) -> list[dict]:
    """The trials of `variant` with these settings changed."""
    return arm.trials(**settings(arm, variant, **changes))


def build_all(arm, variant: str, **changes) -> list:
    """What is measured for each trial; raises ValueError for unusable settings."""
    changed = settings(arm, variant, **changes)
    return arm.EXPERIMENT.prepare(changed, settings(arm, variant))[1]


def judged(arm, variant: str, records: list[dict]):
    """The conclusion that `arm` draws from `records` of `variant`."""
    return arm.EXPERIMENT.judge(settings(arm, variant), records)
