"""The figures that there are: `figure` declares one, and FIGURES has them all."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from identity_matters.report.figures.drawing import Canvas, Points
from identity_matters.runs import Run


class Figure(NamedTuple):
    """One figure of an experiment's runs; claims.toml has the text about it.

    Attributes:
      name: <experiment>_<name>, also the name of its files.
      experiment: whose runs it shows.
      points: takes a run; returns flat dicts, or none if the run has nothing to show.
      draw: draws the points of all runs (see `points_of`) on a canvas.
    """

    name: str
    experiment: str
    points: Callable[[Run], Iterable[dict]]
    draw: Callable[[Points, Canvas], None]


FIGURES: list[Figure] = []


def figure(
    experiment: str, name: str, points: Callable[[Run], Iterable[dict]]
) -> Callable:
    """Decorates the function that draws the figure <experiment>_<name>."""

    def declare(draw: Callable[[Points, Canvas], None]) -> Callable:
        FIGURES.append(Figure(f"{experiment}_{name}", experiment, points, draw))
        return draw

    return declare


def points_of(figure: Figure, run: Run) -> Points:
    """The points that the figure takes from a run, with the run's variant and seed."""
    return [
        {"variant": run.variant, "seed": run.seed, **row} for row in figure.points(run)
    ]
