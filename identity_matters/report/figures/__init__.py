"""The figures of the report: the points that they take from runs, and how these are
drawn.

`draw` sees nothing but the points of the available seeds, which are also saved as CSV.
"""

import csv
import importlib
import io
import itertools
import operator
import pathlib
import pkgutil
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping
from math import inf, isnan
from typing import Any, NamedTuple

import matplotlib.figure
from matplotlib.backends.backend_svg import FigureCanvasSVG

from identity_matters import paper
from identity_matters.report import records
from identity_matters.report.records import MALFORMED
from identity_matters.runs import Run

Canvas = matplotlib.figure.Figure
Points = list[dict]
Looks = dict[str, Any]
Labels = Mapping[Any, str] | Callable[[Any], str]
Series = Iterator[tuple[Looks, Points]]

# Okabe and Ito's colours, which readers with colour blindness can tell apart.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_STYLE: dict[Any, Any] = {
    "axes.prop_cycle": f"cycler(color={COLOURS})",  # as in a matplotlibrc file
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "figure.constrained_layout.use": True,
    "figure.figsize": (7.0, 4.2),
    "font.size": 9.0,
    "grid.alpha": 0.3,
    "legend.frameon": False,
    "lines.markersize": 4.0,
    # The same points give the same bytes: no date, no random identifiers; text stays
    # text.
    "svg.fonttype": "none",
    "svg.hashsalt": "identity-matters",
}
# Light-mode colour -> dark-mode colour. Text, which has none in Matplotlib's SVG, has
# its own rule.
_GREYS = {
    "#ffffff": "#15181c",
    "#000000": "#e4e7eb",
    "#333333": "#c4cad0",
    "#808080": "#a5adb5",
}
# COLOURS but black
_BRIGHT = ("#4aa3e0", "#ff8a3c", "#2fc99b", "#e59cc5", "#ffc04d", "#a5dcff")
_DARK = _GREYS | {
    light.lower(): dark for light, dark in zip(COLOURS, _BRIGHT, strict=False)
}
_DARK_RULES = "".join(
    f'[style*="{kind}: {light}"]{{{kind}:{dark} !important}}'
    for light, dark in _DARK.items()
    for kind in ("fill", "stroke")
)
_DARK_STYLE = (
    f"@media (prefers-color-scheme: dark){{text{{fill:#e4e7eb}}{_DARK_RULES}}}"
)


MOST_SVG_BYTES = 700_000  # a figure with more is drawn as a picture
PIXELS_PER_INCH = 200  # of such a picture


class Figure(NamedTuple):
    """One figure of an experiment's runs; claims.toml has its title and caption.

    ``points(run)`` returns flat dicts, or none if the run has nothing for this figure;
    ``draw(points, canvas)`` draws those of all runs (see `points_of`) on a Matplotlib
    Figure.
    """

    name: str
    experiment: str
    points: Callable[[Run], Iterable[dict]]
    draw: Callable[[Points, Canvas], None]


FIGURES: list[Figure] = []


def figure(
    experiment: str, name: str, points: Callable[[Run], Iterable[dict]]
) -> Callable:
    """Registers the figure <experiment>_<name>; it decorates the function that draws
    it.
    """

    def declare(draw: Callable[[Points, Canvas], None]) -> Callable:
        FIGURES.append(Figure(f"{experiment}_{name}", experiment, points, draw))
        return draw

    return declare


# fields are given as one string, separated by spaces
pick, rows = records.pick, records.rows


def of_kind(run: Run, kind: str, name: str = "kind") -> list[dict]:
    """The run's records of one kind."""
    return [record for record in run.records if record[name] == kind]


def split(points: Points, names: str) -> dict[Any, Points]:
    """Groups the points by the value of one column, or of several, in order of
    appearance.
    """
    key = operator.itemgetter(*names.split())
    parts: dict[Any, Points] = {}
    for point in points:
        parts.setdefault(key(point), []).append(point)
    return parts


def series(points: Points, by: str, labels: Labels = str) -> Series:
    """({"color": ..., "label": ...}, points) for each value of a column, or of several.

    `labels` gives each value its label. A dict also sets the order, so that a value has
    the same colour in every panel; values that are not in it are left out.
    """
    parts = split(points, by)
    named = (
        labels
        if isinstance(labels, Mapping)
        else {value: labels(value) for value in parts}
    )
    for colour, (value, label) in zip(
        itertools.cycle(COLOURS), named.items(), strict=False
    ):
        if value in parts:
            yield {"color": colour, "label": label}, parts[value]


def panels(
    canvas: Canvas,
    points: Points,
    by: str,
    titles: Labels = str,
    columns: int = 3,
    legend: int = 0,
) -> Iterator[tuple[Any, Points]]:
    """(axes, points) for each value of a column, named by `titles` as in `series`.

    The panels share one y axis and, unless `legend` is 0, a legend of that many columns
    below them.
    """
    parts = list(series(points, by, titles))
    columns = min(columns, len(parts))
    height = -(-len(parts) // columns)
    if height > 1:
        canvas.set_size_inches(2.4 * columns + 0.6, 2.4 * height + 0.8)
    grid = canvas.subplots(height, columns, squeeze=False, sharey=True).flatten()
    for unused in grid[len(parts) :]:
        unused.remove()
    entries: dict[str, Any] = {}
    for place, (axes, (looks, own)) in enumerate(zip(grid, parts, strict=False)):
        axes.set_title(looks["label"], fontsize=9)
        yield axes, own
        if place % columns:
            axes.set_ylabel("")
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    if legend:
        canvas.legend(
            entries.values(), entries.keys(), loc="outside lower center", ncols=legend
        )


def curve(
    axes: Any,
    points: Points,
    x: str,
    y: str,
    fmt: str = "o-",
    floor: float = -inf,
    **options: Any,
) -> None:
    """Draws the median of column y at each value of column x, and the range of the
    values.

    Points without a value (None or NaN) are left out. Values below `floor` are drawn at
    `floor`, since a logarithmic axis has no 0. `fmt` and `options` go to `axes.plot`.
    """
    held = split([p for p in points if p[y] is not None and not isnan(p[y])], x)
    places = sorted(held)
    heights = [[max(point[y], floor) for point in held[place]] for place in places]
    if not heights:
        return
    medians, least, largest = (
        [*map(of, heights)] for of in (statistics.median, min, max)
    )
    (line,) = axes.plot(places, medians, fmt, **options)
    if least == largest:
        return
    colour = line.get_color()
    if line.get_linestyle() == "None" or len(places) == 1:
        axes.vlines(places, least, largest, color=colour, alpha=0.6)
    else:
        step = line.get_drawstyle().partition("-")[2] or None
        axes.fill_between(
            places, least, largest, step=step, color=colour, alpha=0.2, linewidth=0
        )


def curves(
    axes: Any, parts: Series, x: str, y: str, fmt: str = "o-", **options: Any
) -> None:
    """A `curve` for each part of a `series`."""
    for looks, own in parts:
        curve(axes, own, x, y, fmt, **looks | options)


def scatter(
    axes: Any,
    points: Points,
    x: str,
    y: str,
    fmt: str = "o",
    floor: float = -inf,
    **options: Any,
) -> None:
    """Draws every point, values below `floor` at `floor`; discs are translucent."""
    disc: Looks = {"alpha": 0.5, "markeredgewidth": 0} if fmt == "o" else {}
    heights = [max(point[y], floor) for point in points]
    axes.plot([point[x] for point in points], heights, fmt, **disc | options)


def render(figure: Figure, points: Points) -> str:
    """The figure as SVG text."""
    with matplotlib.rc_context(_STYLE):
        canvas = Canvas()
        figure.draw(points, canvas)
        title = paper.FIGURES[figure.name].title
        svg = _as_svg(canvas, title)
        if len(svg) > MOST_SVG_BYTES:
            # So many points or lines are drawn as one picture, whose size does not grow
            # with them.
            canvas.set_dpi(PIXELS_PER_INCH)
            for axes in canvas.axes:
                for drawn in (*axes.lines, *axes.collections):
                    drawn.set_rasterized(True)
            svg = _as_svg(canvas, title)
    return svg.replace("</style>", f"{_DARK_STYLE}</style>", 1)


def _as_svg(canvas: Canvas, title: str) -> str:
    buffer = io.BytesIO()
    FigureCanvasSVG(canvas).print_svg(buffer, metadata={"Date": None, "Title": title})
    # Matplotlib leaves trailing spaces, which diffs and editors complain about.
    lines = buffer.getvalue().decode().splitlines()
    return "\n".join(line.rstrip() for line in lines) + "\n"


def points_of(figure: Figure, run: Run) -> list[dict]:
    """The points that the figure takes from a run, with the run's variant and seed."""
    return [
        {"variant": run.variant, "seed": run.seed, **row} for row in figure.points(run)
    ]


def write_csv(path: pathlib.Path, table: list[dict]) -> None:
    """Writes rows as comma-separated values; their columns need not be the same."""
    columns = list(dict.fromkeys(name for row in table for name in row))
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(table)


def save(
    figure: Figure, runs: list[Run], directory: pathlib.Path
) -> tuple[list[Run], list[str]]:
    """Writes <name>.svg and <name>.csv to `directory`; no files if the runs have no
    points.

    Returns the runs that are shown, and a message for each whose records are malformed.
    """
    problems = []
    try:
        shown, points, svg = _drawn(figure, runs)
    except MALFORMED:
        # Add the runs one by one; skip those that cannot be drawn with the ones before.
        shown, points, svg = _drawn(figure, [])
        for run in runs:
            try:
                shown, points, svg = _drawn(figure, [*shown, run])
            except MALFORMED as error:
                problems.append(
                    f"{run.path}: figure {figure.name}: {type(error).__name__} {error}"
                )
    if points:
        (directory / f"{figure.name}.svg").write_text(svg, encoding="utf-8")
        write_csv(directory / f"{figure.name}.csv", points)
    return shown, problems


def _drawn(figure: Figure, runs: list[Run]) -> tuple[list[Run], Points, str]:
    """The runs that have points, the points, and the figure as SVG text."""
    found = [(run, points_of(figure, run)) for run in runs]
    points = [row for _, own in found for row in own]
    return (
        [run for run, own in found if own],
        points,
        render(figure, points) if points else "",
    )


# Importing the modules of this package registers their figures.
for _module in pkgutil.iter_modules(__path__, f"{__name__}."):
    importlib.import_module(_module.name)
