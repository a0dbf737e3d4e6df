"""An experiment's settings, its trials measured in this process, figures drawn from them."""

import pathlib

import jax
from matplotlib.figure import Figure as Canvas

from identity_matters.report.figure import points_of
from identity_matters.report.figures import FIGURES
from identity_matters.runs import Run, from_json, to_json


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
    return arm.EXPERIMENT.judge(settings(arm, variant), records)


def measure_all(arm, config: dict) -> list[dict]:
    """The records that `arm`, a module of an experiment, makes of its settings, as read back."""
    trials, subjects = arm.EXPERIMENT.prepare(config, config)
    return [
        from_json(to_json({**trial, **arm.EXPERIMENT.measured(trial, subject, key)}))
        for index, (trial, subject) in enumerate(zip(trials, subjects, strict=True))
        for key in [jax.random.fold_in(jax.random.key(0), index)]
    ]


def draw(arm, finished: dict[str, tuple[dict, list]], name: str = "") -> list[list[dict]]:
    """The points of the figures of `arm` whose names begin with `name`; all are drawn.

    `finished` holds settings and records by variant.
    """
    runs = [
        Run(
            path=pathlib.Path(variant),
            config=settings,
            environment={},
            summary={
                "experiment": arm.EXPERIMENT.name,
                "variant": variant,
                "seed": 0,
                "metrics": arm.EXPERIMENT.judge(settings, records).metrics,
            },
            records=records,
        )
        for variant, (settings, records) in finished.items()
    ]
    drawn = []
    own = [figure for figure in FIGURES if figure.experiment == arm.EXPERIMENT.name]
    for figure in (figure for figure in own if figure.name.startswith(name)):
        canvas = Canvas(layout="constrained")
        drawn.append([row for run in runs for row in points_of(figure, run)])
        figure.draw(drawn[-1], canvas)
        assert all(axes.lines or axes.patches for axes in canvas.axes)
    return drawn
