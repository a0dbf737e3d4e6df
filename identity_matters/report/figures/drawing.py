"""What figures are drawn with: series, panels, curves, and one legend below.

A figure's points are flat dicts, the rows of a table; functions here take the names of
its columns. `with_column` takes the rows of one kind where a figure has two, `series`
gives each value of a column its looks, `panels` its axes, and `curve` draws the median
and the range of the points at each place.
"""

import itertools
import operator
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping
from math import inf, isnan, log10
from typing import Any

import matplotlib.figure
from matplotlib import ticker

from identity_matters.report.figures.style import COLOURS, DASHES, MARKERS

Points = list[dict]
Looks = dict[str, Any]
Labels = Mapping[Any, str] | Callable[[Any], str]
Series = list[tuple[Looks, Points]]

OWN = "own"  # stands for the marker, or for the dashes, that a series has
_DATA_SETS = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100"}
_FEW_DECADES = 2  # a logarithmic axis over fewer has plain numbers


class Canvas(matplotlib.figure.Figure):
    """A Matplotlib figure that knows how many values its medians are of.

    Attributes:
      medians: (number of values, number of seeds) at the places of the curves that
        `curve` drew.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.medians: set[tuple[int, int]] = set()


def split(points: Points, names: str) -> dict[Any, Points]:
    """Groups points by one or more columns, in order of appearance.

    Args:
      points: rows of a table.
      names: the columns, separated by spaces.

    Returns:
      The points of each value; of several columns, of each tuple of values.
    """
    key = operator.itemgetter(*names.split())
    parts: dict[Any, Points] = {}
    for point in points:
        parts.setdefault(key(point), []).append(point)
    return parts


def data_set_of(variant: str) -> str:
    """The name of the data set of a variant of trainings: "CIFAR-10"."""
    data_set = variant.partition("/")[0]
    return _DATA_SETS.get(data_set, data_set)


def with_column(points: Points, name: str) -> Points:
    """The rows that have a column.

    A figure of two panels may have rows of two kinds, which differ in their columns.
    """
    return [point for point in points if name in point]


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
    return [
        (
            {"color": colour, "marker": marker, "dashes": dashes, "label": label},
            parts[value],
        )
        for (colour, marker, dashes), (value, label) in zip(
            looks, labels.items(), strict=False
        )
        if value in parts
    ]


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

    The caller draws each panel before it asks for the next one; then the panel loses
    its y label unless it is the first of a row, and after the last panel the legend is
    made. The panels share one y axis, unless `sharey` is False, and a legend of
    `legend` columns below them, unless that is 0. If their numbers of seeds differ,
    each title says how many.
    """
    parts = series(points, by, titles)
    columns = min(columns, len(parts))
    rows = -(-len(parts) // columns)
    if rows > 1:
        # One column has room for long names beside its axis.
        canvas.set_size_inches(max(2.4 * columns + 0.6, 5.4), 2.4 * rows + 0.8)
    grid = canvas.subplots(rows, columns, squeeze=False, sharey=sharey).flatten()
    for unused in grid[len(parts) :]:
        unused.remove()
    seeds = [len({point.get("seed") for point in in_panel}) for _, in_panel in parts]
    for place, (axes, (looks, in_panel)) in enumerate(zip(grid, parts, strict=False)):
        title = looks["label"]
        if len(set(seeds)) > 1:
            title += f", n = {seeds[place]}"
        axes.set_title(title, fontsize=9)
        yield axes, in_panel
        # By now the caller has drawn the panel.
        is_first_of_row = place % columns == 0
        if not is_first_of_row:
            axes.set_ylabel("")
    if legend:
        legend_below(canvas, canvas.axes, legend)


def legend_below(
    canvas: Canvas, panels_with_labels: Iterable, columns: int, **options: Any
) -> None:
    """One legend of these axes, below the figure, without repeated labels.

    The options are those of Matplotlib's `legend`.
    """
    entries: dict[str, Any] = {}
    for axes in panels_with_labels:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    canvas.legend(
        entries.values(),
        entries.keys(),
        loc="outside lower center",
        ncols=columns,
        **options,
    )


def curve(
    axes: Any,
    points: Points,
    x: str,
    y: str,
    *,
    line: str | None = "-",
    mark: str | None = OWN,
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
      line: a line style of Matplotlib, OWN for the dashes of the series, or None.
      mark: a marker of Matplotlib, OWN for that of the series, or None.
      floor: smaller values are drawn at this one, since a logarithmic axis has no 0.
      looks: those of a `series`, and options of `axes.plot`. Without those of a series,
        OWN is "o" and a solid line.
    """
    with_value = [p for p in points if p[y] is not None and not isnan(p[y])]
    if not with_value:
        return
    at_place = split(with_value, x)
    axes.figure.medians |= {
        (len(same_place), len({point.get("seed") for point in same_place}))
        for same_place in at_place.values()
    }
    places = sorted(at_place)
    heights = [[max(point[y], floor) for point in at_place[place]] for place in places]
    medians = [statistics.median(values) for values in heights]
    (drawn,) = axes.plot(places, medians, **_plot_options(line, mark, looks))
    _draw_ranges(axes, drawn, places, heights)


def _draw_ranges(axes: Any, line: Any, places: list, heights: list[list]) -> None:
    """The range of the heights at each place: a band along the line, or else bars."""
    least = [min(values) for values in heights]
    largest = [max(values) for values in heights]
    if least == largest:
        return
    colour = line.get_color()
    if line.get_linestyle() == "None" or len(places) == 1:
        axes.vlines(places, least, largest, color=colour, alpha=0.6)
        return
    # "steps-post" of a line is "post" of a band.
    step = line.get_drawstyle().partition("-")[2] or None
    axes.fill_between(
        places, least, largest, step=step, color=colour, alpha=0.2, linewidth=0
    )


def _plot_options(line: str | None, mark: str | None, looks: Looks) -> Looks:
    """Options of `axes.plot` for a line and a mark; see `curve`."""
    options = dict(looks)
    own_marker = options.pop("marker", "o")
    own_dashes = options.pop("dashes", "-")
    # None is the user's default for Matplotlib; "None" is nothing.
    options["marker"] = own_marker if mark == OWN else mark or "None"
    options["linestyle"] = own_dashes if line == OWN else line or "None"
    return options


def curves(axes: Any, parts: Series, x: str, y: str, **options: Any) -> None:
    """A `curve` with these options for each part of a `series`."""
    for looks, points in parts:
        curve(axes, points, x, y, **looks | options)


def curve_to_its_end(axes: Any, points: Points, x: str, y: str, **options: Any) -> None:
    """A `curve` with these options; one for each seed if they end at different places.

    The median of the seeds that are left would jump where one of them ends.
    """
    by_seed = list(split(points, "seed").values())
    ends = {max(point[x] for point in of_seed) for of_seed in by_seed}
    for part in by_seed if len(ends) > 1 else [points]:
        curve(axes, part, x, y, **options)


def ends_of_diverged(points: Points, names: str) -> Points:
    """The last point of each training that diverged.

    Args:
      points: of trainings; the column "diverged" says which of them did.
      names: the columns, separated by spaces, that tell trainings apart, without the
        seed.
    """
    diverged = [point for point in points if point["diverged"]]
    return [
        max(of_training, key=operator.itemgetter("step"))
        for of_training in split(diverged, f"{names} seed").values()
    ]


def scatter(
    axes: Any,
    points: Points,
    x: str,
    y: str,
    *,
    mark: str = OWN,
    floor: float = -inf,
    **looks: Any,
) -> None:
    """Draws a mark for every point; those of the series are translucent."""
    options = _plot_options(None, mark, looks)
    if mark == OWN:
        options = {"alpha": 0.5, "markeredgewidth": 0} | options
    heights = [max(point[y], floor) for point in points]
    axes.plot([point[x] for point in points], heights, **options)


def finish(canvas: Canvas) -> None:
    """Says what medians are of, and writes plain numbers on short logarithmic axes."""
    if note := _median_note(canvas.medians):
        canvas.suptitle(note, x=0.995, ha="right", fontsize=7, color="grey")
    for axes in canvas.axes:
        for axis in (axes.xaxis, axes.yaxis):
            if axis.get_scale() == "log":
                _write_plain_numbers(axis)


def _median_note(medians: set[tuple[int, int]]) -> str:
    """What the lines, marks, bands and bars of a figure are, or "" without medians."""
    if all(values == 1 for values, _ in medians):
        return ""
    most_seeds = max(seeds for _, seeds in medians)
    if all(values == seeds for values, seeds in medians):
        of = _from_to([seeds for _, seeds in medians]) + " seeds"
    else:
        of = _from_to([values for values, _ in medians]) + " values"
        if most_seeds > 1:
            of += f" from {most_seeds} seeds"
    return f"lines and marks: median of {of}; bands and bars: their range"


def _from_to(numbers: list[int]) -> str:
    """The range of the numbers in words: "3", or "2 to 3"."""
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
