"""Figure of benchmarks/memorize_at_scale.py: what n points take, up to ImageNet's n."""

import statistics
from collections.abc import Iterator

from identity_matters.report.figures.drawing import Canvas, Points, curve, split
from identity_matters.report.figures.registry import figure
from identity_matters.report.figures.style import COLOURS
from identity_matters.report.records import pick, totals_of_slices
from identity_matters.runs import Run


def growth_points(run: Run) -> Iterator[dict]:
    """One row for each number n of points: seconds and memory."""
    for row in totals_of_slices(run.records):
        yield pick(row, "examples build_seconds run_seconds peak_memory_gigabytes")


@figure("benchmark_memorize_at_scale", "growth", growth_points)
def draw_growth(points: Points, canvas: Canvas) -> None:
    """Left the seconds to build and to run over n, right the memory."""
    canvas.set_size_inches(7.0, 3.2)
    left, right = canvas.subplots(1, 2)
    for axes in (left, right):
        axes.set(xscale="log", yscale="log", xlabel="points n")
    curve(
        left,
        points,
        "examples",
        "build_seconds",
        color=COLOURS[0],
        label="build and certify",
    )
    curve(
        left,
        points,
        "examples",
        "run_seconds",
        line="--",
        mark="s",
        color=COLOURS[1],
        label="run on all points",
    )
    _draw_square(left, points)
    left.set_ylabel("seconds")
    left.legend(fontsize=8)
    curve(right, points, "examples", "peak_memory_gigabytes", color=COLOURS[0])
    right.set_ylabel("memory at its peak, GB")


def _draw_square(axes, points: Points) -> None:
    """A line that grows as n^2, through the median time to build for the largest n."""
    by_size = split(points, "examples")
    ends = [min(by_size), max(by_size)]
    seconds = statistics.median(point["build_seconds"] for point in by_size[ends[1]])
    heights = [seconds * (n / ends[1]) ** 2 for n in ends]
    axes.plot(ends, heights, ":", color="grey", label="n²")
