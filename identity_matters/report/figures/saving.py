"""Figures as files: the drawing as SVG, its points as CSV.

A run whose records are malformed is left out of a figure and named; the figure shows
the other runs.
"""

import csv
import io
import pathlib
from typing import NamedTuple

import matplotlib
from matplotlib.backends.backend_svg import FigureCanvasSVG

from identity_matters import paper
from identity_matters.report.figures import style
from identity_matters.report.figures.drawing import Canvas, Points, finish
from identity_matters.report.figures.registry import Figure, points_of
from identity_matters.report.records import MALFORMED
from identity_matters.runs import Run

MOST_SVG_BYTES = 700_000  # a figure with more is drawn as a picture
PIXELS_PER_INCH = 200  # of such a picture


class _Drawn(NamedTuple):
    """A figure of some runs.

    Attributes:
      runs: those that have points.
      points: the points of all of them.
      svg: the text of the figure, or "" without points.
    """

    runs: list[Run]
    points: Points
    svg: str


def save(
    figure: Figure, runs: list[Run], directory: pathlib.Path
) -> tuple[list[Run], list[str]]:
    """Writes <name>.svg and <name>.csv to `directory`; without points, no files.

    Returns:
      The runs that are shown, and a message for each whose records are malformed.
    """
    problems: list[str] = []
    try:
        drawn = _draw(figure, runs)
    except MALFORMED:
        drawn, problems = _draw_one_by_one(figure, runs)
    if drawn.points:
        svg_path = directory / f"{figure.name}.svg"
        svg_path.write_text(drawn.svg, encoding="utf-8")
        write_csv(directory / f"{figure.name}.csv", drawn.points)
    return drawn.runs, problems


def _draw(figure: Figure, runs: list[Run]) -> _Drawn:
    """The figure of the runs; raises one of MALFORMED if a run cannot be drawn."""
    shown: list[Run] = []
    points: Points = []
    for run in runs:
        if points_of_run := points_of(figure, run):
            shown.append(run)
            points += points_of_run
    svg = render(figure, points) if points else ""
    return _Drawn(shown, points, svg)


def _draw_one_by_one(figure: Figure, runs: list[Run]) -> tuple[_Drawn, list[str]]:
    """The figure of the runs that can be drawn, and a message for each that cannot.

    Each run is added to those before it, since drawing may fail for a point that was
    taken from a run without an error.
    """
    drawn = _draw(figure, [])
    problems = []
    for run in runs:
        try:
            drawn = _draw(figure, [*drawn.runs, run])
        except MALFORMED as error:
            problems.append(
                f"{run.path}: figure {figure.name}: {type(error).__name__} {error}"
            )
    return drawn, problems


def render(figure: Figure, points: Points) -> str:
    """The figure as SVG text; the same points give the same text."""
    title = paper.FIGURES[figure.name].title
    with matplotlib.rc_context(style.SETTINGS):
        canvas = Canvas()
        figure.draw(points, canvas)
        finish(canvas)
        svg = _as_svg(canvas, title)
        if len(svg.encode()) > MOST_SVG_BYTES:
            _make_marks_a_picture(canvas)
            svg = _as_svg(canvas, title)
    return svg.replace("</style>", f"{style.DARK_STYLE}</style>", 1)


def _make_marks_a_picture(canvas: Canvas) -> None:
    """Lines and marks become one picture, whose size does not grow with them."""
    canvas.set_dpi(PIXELS_PER_INCH)
    for axes in canvas.axes:
        for drawn in (*axes.lines, *axes.collections):
            drawn.set_rasterized(True)


def _as_svg(canvas: Canvas, title: str) -> str:
    """The SVG text that Matplotlib writes, without a date."""
    buffer = io.BytesIO()
    FigureCanvasSVG(canvas).print_svg(buffer, metadata={"Date": None, "Title": title})
    # Matplotlib leaves trailing spaces, which diffs and editors complain about.
    lines = buffer.getvalue().decode().splitlines()
    return "\n".join(line.rstrip() for line in lines) + "\n"


def write_csv(path: pathlib.Path, table: list[dict]) -> None:
    """Writes rows as comma-separated values; their columns need not be the same."""
    columns = list(dict.fromkeys(name for row in table for name in row))
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(table)
