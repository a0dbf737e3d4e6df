"""What figures show where they are pointed at: rows that survive drawing, and their places."""

import json
import math

import matplotlib
import numpy as np
import pytest

from identity_matters.report import figure, hover
from identity_matters.report.hover import at_least, trace, traced


def toy(draw):
    return figure.Figure("toy", "toy", "Toy", "A toy.", points=lambda runs: [], draw=draw)


ROWS = [
    {"kind": "a", "depth": 1, "norm": 10.0},
    {"kind": "a", "depth": 2, "norm": 100.0},
    {"kind": "b", "depth": 4, "norm": 1000.0},
]


@pytest.mark.parametrize(
    "computed",
    [
        lambda v: v + 1,
        lambda v: 1 + v,
        lambda v: 2 * v,
        lambda v: v / 3,
        lambda v: 3 / v,
        lambda v: 1 - v,
        lambda v: v - 0.5,
    ],
)
@pytest.mark.parametrize("value", [7, 0.25])
def test_arithmetic_gives_the_same_number_of_the_same_row(computed, value):
    number = computed(trace(value, 5))
    assert number == computed(value)
    assert isinstance(number, type(computed(value)))
    assert number.row == 5


def test_what_several_rows_give_is_of_no_row():
    def draw(points, canvas):
        first, second, third = (p["norm"] for p in points)
        heights = [first + second, sum([first, second, third]) / 3, sum([third]) / 1, first / first]
        canvas.subplots().plot([1, 2, 3, 4], heights)

    (one,) = figure.render(toy(draw), ROWS).hover["series"]
    assert [point[3] for point in one["points"]] == [110.0, 370.0, 1000.0, 1.0]
    assert [point[4] for point in one["points"]] == [None, None, 0, 1]


def test_traced_numbers_are_formatted_hashed_and_sorted_as_plain_ones():
    count, share = trace(1200, 0), trace(0.5, 1)
    assert f"{count:,} {share:.2f} {count}" == "1,200 0.50 1200"
    assert {count: "x"}[1200] == "x"
    assert sorted([count, share]) == [0.5, 1200]
    assert trace(True, 3) is True
    assert trace("text", 3) == "text"
    np.testing.assert_array_equal(np.array([count, share]), [1200.0, 0.5])


def test_a_value_below_the_floor_is_drawn_there_and_keeps_its_row():
    assert at_least(trace(0.0, 4), 1e-3) == 1e-3
    assert at_least(trace(0.0, 4), 1e-3).row == 4
    assert at_least(trace(2.0, 4), 1e-3) == 2.0
    assert at_least(0.0, 1e-3) == 1e-3


def draw_two_curves(points, canvas):
    axes = canvas.subplots()
    for kind in ("a", "b"):
        rows = [p for p in points if p["kind"] == kind]
        axes.plot([r["depth"] for r in rows], [r["norm"] for r in rows], "o-", label=kind)
    axes.axhline(50.0)
    axes.set(xlim=(0, 5), ylim=(0, 500), xlabel="depth l", ylabel="norm")


def test_each_point_in_view_has_its_row_and_the_rest_has_none():
    shown = figure.render(toy(draw_two_curves), ROWS).hover
    # The third row lies above the view; the horizontal line is no data.
    assert [one["label"] for one in shown["series"]] == ["a"]
    assert shown["columns"] == ["kind", "depth", "norm"]
    assert shown["rows"] == [["a", 1, 10.0], ["a", 2, 100.0]]
    assert [point[2:] for point in shown["series"][0]["points"]] == [
        [1.0, 10.0, 0],
        [2.0, 100.0, 1],
    ]
    json.dumps(shown, allow_nan=False)


def test_places_are_those_of_the_svg():
    """A marker stands in the SVG where the hover data say that the point is."""
    drawing = figure.render(toy(draw_two_curves), ROWS)
    width, height = (
        float(part) for part in drawing.svg.split('viewBox="0 0 ')[1].split('"')[0].split()
    )
    for left, top, *_ in drawing.hover["series"][0]["points"]:
        places = [
            (float(part.split('"')[0]), float(part.split('y="')[1].split('"')[0]))
            for part in drawing.svg.split('<use xlink:href="#m')[1:]
            for part in [part.split('x="', 1)[1]]
        ]
        least = min(math.hypot(x - left * width, y - top * height) for x, y in places)
        assert least < 0.1


def test_a_value_of_several_rows_is_shown_by_its_axes():
    def draw(points, canvas):
        first, second = canvas.subplots(1, 2, sharey=True)
        first.plot([1, 2], [np.mean([p["norm"] for p in points]), 5.0])
        first.set_ylabel("mean")
        second.plot([1.0], [3.0])
        second.set_title("right")

    shown = figure.render(toy(draw), ROWS).hover
    assert shown["rows"] == []
    assert [point[4] for one in shown["series"] for point in one["points"]] == [None, None, None]
    # An inner panel takes the label of the axis that it shares.
    assert [(one["x"], one["y"], one["panel"]) for one in shown["series"]] == [
        ("x", "mean", ""),
        ("x", "mean", "right"),
    ]


def test_scatter_bars_and_stairs_have_rows():
    def draw(points, canvas):
        scatter, bars, stairs = canvas.subplots(1, 3)
        depths, norms = ([p[name] for p in points] for name in ("depth", "norm"))
        scatter.scatter(depths, norms)
        bars.bar(depths, norms)
        stairs.stairs(norms, [0, 1, 2, 3])

    shown = figure.render(toy(draw), ROWS).hover
    assert [[p[4] for p in one["points"]] for one in shown["series"]] == [[0, 1, 2]] * 3
    assert [p[2] for p in shown["series"][2]["points"]] == [0.5, 1.5, 2.5]


def test_points_that_cannot_be_drawn_are_left_out():
    def draw(points, canvas):
        axes = canvas.subplots()
        axes.plot([1, 2, 3], [1.0, math.nan, 0.0])
        axes.set_yscale("log")

    (one,) = figure.render(toy(draw), ROWS).hover["series"]
    assert [point[2] for point in one["points"]] == [1.0]


def test_every_colour_of_the_series_has_one_for_dark_pages():
    shown = {matplotlib.colors.to_hex(colour) for colour in figure.COLOURS}
    assert shown <= figure.DARK.keys()
    svg = figure.render(toy(draw_two_curves), ROWS).svg
    assert "prefers-color-scheme: dark" in svg
    assert hover.hover_data(ROWS, []) == {"columns": [], "rows": [], "series": []}


def test_tracing_leaves_the_points_alone():
    assert traced(ROWS) == ROWS
    assert traced(ROWS)[1]["norm"].row == 1
