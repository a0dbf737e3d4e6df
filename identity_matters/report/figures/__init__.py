"""The figures of the report: the points they take from runs, and how these are drawn.

`draw` sees nothing but the points of the available seeds, which are also saved as CSV.
The looks of a figure depend on nothing else: neither on the user's Matplotlib settings
nor on the time.
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
from math import inf, isnan, log10
from typing import Any, NamedTuple

import matplotlib.figure
from matplotlib import ticker
from matplotlib.backends.backend_svg import FigureCanvasSVG

from identity_matters import paper
from identity_matters.report import records
from identity_matters.report.records import MALFORMED
from identity_matters.runs import Run

Points = list[dict]
Looks = dict[str, Any]
Labels = Mapping[Any, str] | Callable[[Any], str]
Series = Iterator[tuple[Looks, Points]]

# Okabe and Ito's colours, which readers with colour blindness can tell apart.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
# Beside its colour each series has a marker and dashes, so that print in grey suffices.
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DASHES: tuple[Any, ...] = (
    "-",
    (0, (5, 1.5)),
    (0, (1, 1)),
    (0, (5, 1, 1, 1)),
    (0, (3, 1, 1, 1, 1, 1)),
    (0, (8, 3)),
    (0, (1, 3)),
)
_LINES = ("-", "--", "-.", ":")  # formats without a marker
# Symbols in which l, I, 1 and | cannot be confused.
DEPTH = r"$\ell$"
NORM = r"$|||A|||$"
DEPTH_TIMES_NORM = r"$\ell\,|||A|||$"
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
    # The same points give the same bytes:
    # no date, no random identifiers; text stays text.
    "svg.fonttype": "none",
    "svg.hashsalt": "identity-matters",
}
_SETTINGS = {**matplotlib.rcParamsDefault, **_STYLE}
# `rc_context` cannot restore the backend, and no figure here uses it.
del _SETTINGS["backend"]
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
_FEW_DECADES = 2  # a logarithmic axis over fewer has plain numbers


class Canvas(matplotlib.figure.Figure):
    """A Matplotlib figure that knows how many values its medians are of.

    Attributes:
      medians: (number of values, number of seeds) of the medians that `curve` drew.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.medians: set[tuple[int, int]] = set()


class Figure(NamedTuple):
    """One figure of an experiment's runs; claims.toml has the text about it.

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
    """Decorates the function that draws the figure <experiment>_<name>."""

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
    """Groups points by one or more columns, in order of appearance."""
    key = operator.itemgetter(*names.split())
    parts: dict[Any, Points] = {}
    for point in points:
        parts.setdefault(key(point), []).append(point)
    return parts


def series(points: Points, by: str, labels: Labels = str) -> Series:
    """(looks, points) for each value of a column, or of several.

    The looks are a color, a marker, dashes and a label, as `curve` takes them. `labels`
    gives each value its label. A dict also sets the order, so that a value has the same
    colour in every panel; values that are not in it are left out.
    """
    parts = split(points, by)
    if not isinstance(labels, Mapping):
        labels = {value: labels(value) for value in parts}
    looks = itertools.cycle(zip(COLOURS, MARKERS, DASHES, strict=True))
    for (colour, marker, dashes), (value, label) in zip(
        looks, labels.items(), strict=False
    ):
        if value in parts:
            yield (
                {"color": colour, "marker": marker, "dashes": dashes, "label": label},
                parts[value],
            )


def panels(
    canvas: Canvas,
    points: Points,
    by: str,
    titles: Labels = str,
    columns: int = 3,
    legend: int = 0,
    sharey: bool = True,
) -> Iterator[tuple[Any, Points]]:
    """(axes, points) for each value of a column, named by `titles` as in `series`.

    The panels share one y axis, unless `sharey` is False, and a legend of `legend`
    columns below them, unless that is 0.
    """
    parts = list(series(points, by, titles))
    columns = min(columns, len(parts))
    height = -(-len(parts) // columns)
    if height > 1:
        canvas.set_size_inches(2.4 * columns + 0.6, 2.4 * height + 0.8)
    grid = canvas.subplots(height, columns, squeeze=False, sharey=sharey).flatten()
    for unused in grid[len(parts) :]:
        unused.remove()
    for place, (axes, (looks, own)) in enumerate(zip(grid, parts, strict=False)):
        axes.set_title(looks["label"], fontsize=9)
        yield axes, own
        if place % columns:
            axes.set_ylabel("")
    if legend:
        legend_below(canvas, canvas.axes, legend)


def legend_below(canvas: Canvas, panels_with_labels: Iterable, columns: int) -> None:
    """One legend of these axes, below the figure, without repeated labels."""
    entries: dict[str, Any] = {}
    for axes in panels_with_labels:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    canvas.legend(
        entries.values(), entries.keys(), loc="outside lower center", ncols=columns
    )


def curve(
    axes: Any,
    points: Points,
    x: str,
    y: str,
    fmt: str = "o-",
    floor: float = -inf,
    **looks: Any,
) -> None:
    """Draws the median of column y at each value of column x, and the values' range.

    Points without a value (None or NaN) are left out.

    Args:
      axes: where to draw.
      points: the points of one series.
      x: the column of the horizontal axis.
      y: the column of the vertical axis.
      fmt: as for `axes.plot`; "o" in it stands for the marker of the series, and "-"
        alone for its dashes.
      floor: smaller values are drawn at this one, since a logarithmic axis has no 0.
      looks: those of a `series`, and options of `axes.plot`.
    """
    drawn = split([p for p in points if p[y] is not None and not isnan(p[y])], x)
    if not drawn:
        return
    places = sorted(drawn)
    heights = [[max(point[y], floor) for point in drawn[place]] for place in places]
    for same_place in drawn.values():
        seeds = {point.get("seed") for point in same_place}
        axes.figure.medians.add((len(same_place), len(seeds)))
    medians = [statistics.median(values) for values in heights]
    least = [min(values) for values in heights]
    largest = [max(values) for values in heights]
    (line,) = axes.plot(places, medians, **_plot_options(fmt, looks))
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


def _plot_options(fmt: str, looks: Looks) -> Looks:
    """Options of `axes.plot` for `fmt` and the looks of a series; see `curve`."""
    options = dict(looks)
    series_marker = options.pop("marker", "o")
    series_dashes = options.pop("dashes", "-")
    line = fmt if fmt in _LINES else fmt.strip("".join(MARKERS) + "x*.")
    marker = fmt.replace(line, "") if line else fmt
    options["marker"] = series_marker if marker == "o" else marker or "None"
    options["linestyle"] = series_dashes if fmt == "-" else line or "None"
    return options


def curves(
    axes: Any, parts: Series, x: str, y: str, fmt: str = "o-", **options: Any
) -> None:
    """A `curve` for each part of a `series`."""
    for looks, points in parts:
        curve(axes, points, x, y, fmt, **looks | options)


def scatter(
    axes: Any,
    points: Points,
    x: str,
    y: str,
    fmt: str = "o",
    floor: float = -inf,
    **looks: Any,
) -> None:
    """Draws every point, as `curve` draws medians; the marks "o" are translucent."""
    options = _plot_options(fmt, looks)
    if fmt == "o":
        options = {"alpha": 0.5, "markeredgewidth": 0} | options
    heights = [max(point[y], floor) for point in points]
    axes.plot([point[x] for point in points], heights, **options)


def _finish(canvas: Canvas) -> None:
    """Says what medians are of, and writes plain numbers on short logarithmic axes."""
    if note := _median_note(canvas.medians):
        canvas.suptitle(note, x=0.995, ha="right", fontsize=7, color="grey")
    for axes in canvas.axes:
        for axis in (axes.xaxis, axes.yaxis):
            if axis.get_scale() == "log":
                _write_plain_numbers(axis)


def _median_note(medians: set[tuple[int, int]]) -> str:
    """What the lines, marks, bands and bars of a figure are, or "" without medians."""
    several = {(values, seeds) for values, seeds in medians if values > 1}
    if not several:
        return ""
    most_seeds = max(seeds for _, seeds in several)
    if all(values == seeds for values, seeds in several):
        of = _from_to([seeds for _, seeds in several]) + " seeds"
    else:
        of = _from_to([values for values, _ in several]) + " values"
        if most_seeds > 1:
            of += f" from {most_seeds} seeds"
    return f"lines and marks: median of {of}; bands and bars: their range"


def _from_to(numbers: list[int]) -> str:
    least, largest = min(numbers), max(numbers)
    return f"{least}" if least == largest else f"{least} to {largest}"


def _write_plain_numbers(axis: Any) -> None:
    """Ticks like 0.2, 0.5, 1 on a base-10 axis of few decades, not 2 x 10^-1."""
    low, high = sorted(axis.get_view_interval())
    decades = log10(high / low)
    if axis.get_transform().base != 10 or decades >= _FEW_DECADES:
        return
    if isinstance(axis.get_major_locator(), ticker.FixedLocator):
        return
    digits = (1, 2, 5) if decades > 0.7 else range(1, 10)
    axis.set_major_locator(ticker.LogLocator(base=10, subs=digits))
    axis.set_major_formatter(ticker.StrMethodFormatter("{x:,g}"))
    axis.set_minor_formatter(ticker.NullFormatter())


def render(figure: Figure, points: Points) -> str:
    """The figure as SVG text."""
    with matplotlib.rc_context(_SETTINGS):
        canvas = Canvas()
        figure.draw(points, canvas)
        _finish(canvas)
        title = paper.FIGURES[figure.name].title
        svg = _as_svg(canvas, title)
        if len(svg) > MOST_SVG_BYTES:
            # So many points or lines are drawn as one picture,
            # whose size does not grow with them.
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
    """Writes <name>.svg and <name>.csv to `directory`.

    If the runs have no points, it writes no files.

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
