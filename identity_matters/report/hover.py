"""What a figure shows where it is pointed at: each drawn point's place and the row it comes from.

`traced` hands the points to a figure's `draw` with numbers that remember their row, also through
arithmetic, and `Axes` keeps the rows of what is plotted. `drawn_series` then reads from the
finished figure where each point stands. A builder of figures need not know of any of this.
"""

import math
import operator
from typing import Any

import matplotlib.axes
import numpy as np
from matplotlib.collections import PathCollection
from matplotlib.colors import to_hex
from matplotlib.container import BarContainer
from matplotlib.figure import Figure as Canvas
from matplotlib.lines import Line2D
from matplotlib.patches import StepPatch
from numpy.typing import ArrayLike

# Points this much outside the axes still count as inside: half of a marker on the edge.
_EDGE_PIXELS = 2.0
# The row of a number that was computed from several rows: it is a value of none of them.
_SEVERAL = -1


def _keeping_row(operation):
    """`operation` with its left and its right operand a traced number, which passes on its row."""

    def left(self, other):
        row = self.row if getattr(other, "row", self.row) == self.row else _SEVERAL
        return trace(operation(self.plain, getattr(other, "plain", other)), row)

    def right(self, other):
        return trace(operation(other, self.plain), self.row)

    return left, right


class _Arithmetic:
    """Sums, differences, products and quotients of a traced number have its row, too.

    But for a plain float on the left of a traced int, where Python asks the float alone: the result
    has no row, and its point is shown by its axes.
    """

    row: int

    __add__, __radd__ = _keeping_row(operator.add)
    __sub__, __rsub__ = _keeping_row(operator.sub)
    __mul__, __rmul__ = _keeping_row(operator.mul)
    __truediv__, __rtruediv__ = _keeping_row(operator.truediv)


class _TracedInt(_Arithmetic, int):
    @property
    def plain(self) -> int:
        return int(self)


class _TracedFloat(_Arithmetic, float):
    @property
    def plain(self) -> float:
        return float(self)


def trace(value: Any, row: int | None) -> Any:
    """`value` if it is no number or `row` is None, else an equal number whose `.row` is `row`."""
    if row is None or isinstance(value, bool) or not isinstance(value, int | float):
        return value
    number = _TracedInt(value) if isinstance(value, int) else _TracedFloat(value)
    number.row = row
    return number


def traced(points: list[dict]) -> list[dict]:
    """The points with every number traced to its index in the list."""
    return [
        {name: trace(value, row) for name, value in point.items()}
        for row, point in enumerate(points)
    ]


def at_least(value: float, floor: float) -> float:
    """The larger of the two with the row of `value`: for zeros on a logarithmic axis."""
    return value if value >= floor else trace(floor, getattr(value, "row", None))


def _rows(values) -> list[int | None]:
    if not np.iterable(values):
        return []
    rows = (getattr(value, "row", None) for value in values)
    return [None if row == _SEVERAL else row for row in rows]


class Axes(matplotlib.axes.Axes):
    """Axes that remember of each line, scatter plot, group of bars and stairs the rows it shows."""

    def __init__(self, *args, **kwargs):
        self.rows_of = {}
        super().__init__(*args, **kwargs)

    def plot(self, *args, **kwargs) -> list[Line2D]:
        lines = super().plot(*args, **kwargs)
        data = [argument for argument in args if not isinstance(argument, str)]
        if len(lines) == 1 and len(data) in (1, 2):
            self.rows_of[lines[0]] = _rows(data[-1])
        return lines

    def scatter(
        self, x: float | ArrayLike, y: float | ArrayLike, *args, **kwargs
    ) -> PathCollection:
        drawn = super().scatter(x, y, *args, **kwargs)
        self.rows_of[drawn] = _rows(y)
        return drawn

    def stairs(self, values: ArrayLike, *args, **kwargs) -> StepPatch:
        drawn = super().stairs(values, *args, **kwargs)
        self.rows_of[drawn] = _rows(values)
        return drawn

    def bar(self, x: float | ArrayLike, height: float | ArrayLike, *args, **kwargs) -> BarContainer:
        drawn = super().bar(x, height, *args, **kwargs)
        self.rows_of[drawn] = _rows(height)
        return drawn


def _artists(axes):
    """(artist, colour, x, y) of everything in `axes` that is drawn at data coordinates."""
    for line in axes.lines:
        if line.get_transform() is axes.transData:
            yield line, line.get_color(), line.get_xdata(orig=False), line.get_ydata(orig=False)
    for collection in axes.collections:
        if isinstance(collection, PathCollection) and len(collection.get_facecolor()):
            x, y = np.asarray(collection.get_offsets()).T
            yield collection, collection.get_facecolor()[0], x, y
    for patch in axes.patches:
        if isinstance(patch, StepPatch):
            values, edges, _ = patch.get_data()
            yield patch, patch.get_edgecolor(), (edges[:-1] + edges[1:]) / 2, values
    for bars in axes.containers:
        if isinstance(bars, BarContainer):
            x = np.array([bar.get_x() + bar.get_width() / 2 for bar in bars])
            y = np.array([bar.get_y() + bar.get_height() for bar in bars])
            yield bars, bars[0].get_facecolor(), x, y


def _label_of(axes, siblings, name: str) -> str:
    """The label of an axis, or that of an axis which shares its scale: inner panels have none."""
    labels = (getattr(one, f"get_{name}label")() for one in (axes, *siblings))
    return next(filter(None, labels), name)


def _points(axes, rows, x, y) -> list[list]:
    """[left, top, x, y, row] of each point in view; left and top are shares of the figure."""
    with np.errstate(all="ignore"):
        pixels = axes.transData.transform(np.column_stack([x, y]).astype(float))
    width, height = axes.figure.bbox.size
    low, high = axes.bbox.min - _EDGE_PIXELS, axes.bbox.max + _EDGE_PIXELS
    points = []
    for index, (across, up) in enumerate(pixels):
        if not (math.isfinite(across) and math.isfinite(up)):
            continue
        if np.all((low <= (across, up)) & ((across, up) <= high)):
            place = [round(across / width, 4), round(1 - up / height, 4)]
            row = rows[index] if index < len(rows) else None
            points.append([*place, float(x[index]), float(y[index]), row])
    return points


def drawn_series(canvas: Canvas) -> list[dict]:
    """What a finished figure shows, a dict for each curve: its labels, colour and points in view.

    Args:
      canvas: a matplotlib Figure that has been drawn, so that its layout is settled.
    """
    series = []
    for axes in canvas.axes:
        rows_of = getattr(axes, "rows_of", {})
        x_label = _label_of(axes, axes.get_shared_x_axes().get_siblings(axes), "x")
        y_label = _label_of(axes, axes.get_shared_y_axes().get_siblings(axes), "y")
        for artist, colour, x, y in _artists(axes):
            points = _points(axes, rows_of.get(artist, []), x, y)
            if points:
                label = str(artist.get_label())
                series.append(
                    {
                        "panel": axes.get_title(),
                        "label": "" if label.startswith("_") else label,
                        "colour": to_hex(colour),
                        "x": x_label,
                        "y": y_label,
                        "points": points,
                    }
                )
    return series


def hover_data(points: list[dict], series: list[dict]) -> dict:
    """The series, and of `points` the rows that they show: {"columns", "rows", "series"}.

    In the result a point's row is its place in "rows", or None where the drawn value was computed
    from several rows; its x and y then say what it is.
    """
    shown = dict.fromkeys(p[4] for one in series for p in one["points"] if p[4] is not None)
    place = {row: index for index, row in enumerate(shown)}
    columns = list(dict.fromkeys(name for row in shown for name in points[row]))
    return {
        "columns": columns,
        "rows": [[points[row].get(name, "") for name in columns] for row in shown],
        "series": [
            {**one, "points": [[*p[:4], place.get(p[4])] for p in one["points"]]} for one in series
        ],
    }
