"""A figure as data: the points that it plots, taken from runs, and how they are drawn.

`draw` sees only the points, and the points are what is saved as CSV, so that a figure cannot show
what its CSV does not hold.
"""

import csv
import dataclasses
import io
import pathlib
from collections.abc import Callable
from typing import Any

import matplotlib
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure as Canvas

from identity_matters.records import Run

# Okabe and Ito's colours, which readers with colour blindness can tell apart.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_STYLE: dict[Any, Any] = {
    # Matplotlib re-exports this name, and its stubs do not.
    "axes.prop_cycle": matplotlib.cycler(color=COLOURS),  # type: ignore[attr-defined]
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "figure.constrained_layout.use": True,
    "figure.figsize": (7.0, 4.2),
    "font.size": 9.0,
    "grid.alpha": 0.3,
    "legend.frameon": False,
    "lines.markersize": 4.0,
    # The same points give the same bytes: no date, no random identifiers; text stays text.
    "svg.fonttype": "none",
    "svg.hashsalt": "identity-matters",
}


@dataclasses.dataclass(frozen=True)
class Figure:
    """One figure of the report.

    Attributes:
      name: of its files, figures/<name>.svg and .csv.
      experiment: whose runs it draws from.
      title: one line.
      caption: the claim, what to see, and the equation.
      points: ``points(runs) -> list of flat dicts``; empty where the runs hold nothing for it.
      draw: ``draw(points, canvas)`` onto a matplotlib Figure.
    """

    name: str
    experiment: str
    title: str
    caption: str
    points: Callable[[list[Run]], list[dict]]
    draw: Callable[[list[dict], Canvas], None]


def points_csv(points: list[dict]) -> str:
    """The points as CSV; the columns are the union of their keys, in order of appearance."""
    columns = list(dict.fromkeys(name for point in points for name in point))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(points)
    return text.getvalue()


def render_svg(figure: Figure, points: list[dict]) -> str:
    """The figure as SVG text."""
    with matplotlib.rc_context(_STYLE):
        canvas = Canvas()
        figure.draw(points, canvas)
        buffer = io.BytesIO()
        FigureCanvasSVG(canvas).print_svg(buffer, metadata={"Date": None, "Title": figure.title})
    # Matplotlib pads some lines with blanks, which diffs and editors then complain about.
    lines = buffer.getvalue().decode().splitlines()
    return "\n".join(line.rstrip() for line in lines) + "\n"


def save(figure: Figure, runs: list[Run], directory: pathlib.Path) -> str | None:
    """Writes <name>.svg and <name>.csv to `directory`; returns the SVG, or None without points."""
    points = figure.points([run for run in runs if run.experiment == figure.experiment])
    if not points:
        return None
    directory.mkdir(parents=True, exist_ok=True)
    svg = render_svg(figure, points)
    (directory / f"{figure.name}.svg").write_text(svg, encoding="utf-8")
    (directory / f"{figure.name}.csv").write_text(points_csv(points), encoding="utf-8")
    return svg
