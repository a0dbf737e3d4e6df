"""An experiment's trials measured in this process, and figures drawn from them."""

import pathlib

import jax
from matplotlib.figure import Figure as Canvas

from identity_matters.report.figure import points_of
from identity_matters.report.figures import FIGURES
from identity_matters.runs import Run


def measure_all(arm, settings: dict) -> list[dict]:
    """The records that `arm`, a module of an experiment, makes of `settings`."""
    trials, subjects = arm.EXPERIMENT.prepare(settings, settings)
    return [
        {**trial, **arm.measure(subject, jax.random.fold_in(jax.random.key(0), index))}
        for index, (trial, subject) in enumerate(zip(trials, subjects, strict=True))
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
                "metrics": arm.verdict(settings, records).metrics,
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
