"""A figure as data: the points that it plots, taken from runs, and how they are drawn.

`draw` sees only the points, and the points are what is saved as CSV, so that a figure cannot show
what its CSV does not hold. The SVG brings its own colours for dark surroundings.
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
from identity_matters.report import hover

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


# What is drawn in the colour on the left is drawn in that on the right where the reader's screen is
# dark. Text has no colour of its own in matplotlib's SVG.
DARK = {
    "#ffffff": "#15181c",
    "#000000": "#e4e7eb",
    "#333333": "#c4cad0",
    "#808080": "#a5adb5",
    "#0072b2": "#4aa3e0",
    "#d55e00": "#ff8a3c",
    "#009e73": "#2fc99b",
    "#cc79a7": "#e59cc5",
    "#e69f00": "#ffc04d",
    "#56b4e9": "#a5dcff",
}
_DARK_RULES = "".join(
    f'[style*="{kind}: {light}"]{{{kind}:{dark} !important}}'
    for light, dark in DARK.items()
    for kind in ("fill", "stroke")
)
_DARK_STYLE = f"@media (prefers-color-scheme: dark){{text{{fill:#e4e7eb}}{_DARK_RULES}}}"


class _Canvas(Canvas):
    """A matplotlib Figure whose axes remember which rows they show."""

    def add_subplot(self, *args, **kwargs):
        return super().add_subplot(*args, **{"axes_class": hover.Axes, **kwargs})


@dataclasses.dataclass(frozen=True)
class Drawing:
    """A drawn figure: its SVG and what `hover.hover_data` says of its points."""

    svg: str
    hover: dict


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


def render(figure: Figure, points: list[dict]) -> Drawing:
    """The figure as SVG text, with the places of its points."""
    with matplotlib.rc_context(_STYLE):
        canvas = _Canvas()
        figure.draw(hover.traced(points), canvas)
        buffer = io.BytesIO()
        FigureCanvasSVG(canvas).print_svg(buffer, metadata={"Date": None, "Title": figure.title})
    # Matplotlib pads some lines with blanks, which diffs and editors then complain about.
    lines = buffer.getvalue().decode().splitlines()
    svg = "\n".join(line.rstrip() for line in lines) + "\n"
    svg = svg.replace("</style>", f"{_DARK_STYLE}</style>", 1)
    return Drawing(svg, hover.hover_data(points, hover.drawn_series(canvas)))


def own_points(figure: Figure, runs: list[Run]) -> list[dict]:
    """The points that the figure takes from these runs; empty where they hold nothing for it."""
    return figure.points([run for run in runs if run.experiment == figure.experiment])


def save(figure: Figure, runs: list[Run], directory: pathlib.Path) -> Drawing | None:
    """Writes <name>.svg and <name>.csv to `directory`; None, and no file, without points."""
    points = own_points(figure, runs)
    if not points:
        return None
    directory.mkdir(parents=True, exist_ok=True)
    drawing = render(figure, points)
    (directory / f"{figure.name}.svg").write_text(drawing.svg, encoding="utf-8")
    (directory / f"{figure.name}.csv").write_text(points_csv(points), encoding="utf-8")
    return drawing
