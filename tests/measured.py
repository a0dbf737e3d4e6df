"""An experiment's settings, and its trials measured in this process or in a reference run."""

import functools
import pathlib

import jax

from identity_matters.runs import Run, from_json, read_run, to_json

REFERENCE = pathlib.Path(__file__).resolve().parent.parent / "results" / "reference"


@functools.cache
def reference(name: str) -> Run:
    """The reference run of seed 0 that is called experiment/variant."""
    return read_run(REFERENCE / name / "seed=0")


def settings(arm, variant: str, **changes) -> dict:
    """Those of `variant` as `arm.trials` takes them; "a.b" changes b of the group a."""
    config = arm.get_config(variant)
    config.update_from_flattened_dict(changes)
    config = config.to_dict()
    del config["scale"]
    return config


def trials(arm, variant: str, **changes) -> list[dict]:
    """Those of `variant` with settings changed."""
    return arm.trials(**settings(arm, variant, **changes))


def build_all(arm, variant: str, **changes) -> list:
    """What is measured of each trial; raises ValueError for settings that will not do."""
    changed = settings(arm, variant, **changes)
    return arm.EXPERIMENT.prepare(changed, settings(arm, variant))[1]


def judged(arm, variant: str, records: list[dict]):
    """The conclusion that `arm` draws from `records` of `variant`."""
    return arm.verdict(settings(arm, variant), records)


def measure_all(arm, config: dict) -> list[dict]:
    """The records that `arm`, a module of an experiment, makes of its settings, as read back."""
    trials, subjects = arm.EXPERIMENT.prepare(config, config)
    return [
        from_json(to_json({**trial, **arm.measure(subject, key)}))
        for index, (trial, subject) in enumerate(zip(trials, subjects, strict=True))
        for key in [jax.random.fold_in(jax.random.key(0), index)]
    ]
