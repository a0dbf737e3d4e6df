"""An experiment's settings, its trials measured in this process, figures drawn from them."""

import pathlib

import jax
from matplotlib.figure import Figure as Canvas

from identity_matters.report.figure import points_of
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
    return [arm.build(**trial) for trial in trials(arm, variant, **changes)]


def judged(arm, variant: str, records: list[dict]):
    """The conclusion that `arm` draws from `records` of `variant`."""
    return arm.verdict(settings(arm, variant), records)


def measure_all(arm, config: dict) -> list[dict]:
    """The records that `arm`, a module of an experiment, makes of its settings, as read back."""
    return [
        from_json(to_json({**trial, **arm.measure(arm.build(**trial), key)}))
        for index, trial in enumerate(arm.trials(**config))
        for key in [jax.random.fold_in(jax.random.key(0), index)]
    ]


def draw(figures, arm, finished: dict[str, tuple[dict, list]]) -> list[list[dict]]:
    """The points of each figure, from settings and records by variant; all are drawn."""
    runs = [
        Run(
            path=pathlib.Path(variant),
            config=settings,
            environment={},
            summary={
                "experiment": arm.EXPERIMENT.name,
                "variant": variant,
                "seed": 0,
                "metrics": arm.verdict(settings, records).metrics,
            },
            records=records,
        )
        for variant, (settings, records) in finished.items()
    ]
    drawn = []
    for figure in figures:
        canvas = Canvas(layout="constrained")
        drawn.append([row for run in runs for row in points_of(figure, run)])
        figure.draw(drawn[-1], canvas)
        assert all(axes.lines or axes.patches for axes in canvas.axes)
    return drawn
