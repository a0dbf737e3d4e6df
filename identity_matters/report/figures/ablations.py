"""Figures of experiments/images/ablations.py: nets that differ in one choice."""

import functools
from collections.abc import Iterator
from typing import Any

from identity_matters.report.figures.drawing import (
    Canvas,
    Points,
    curve_to_its_end,
    data_set_of,
    ends_of_diverged,
    legend_below,
    series,
    split,
    with_column,
)
from identity_matters.report.figures.registry import figure
from identity_matters.report.records import of_kind, pick
from identity_matters.runs import Run

_LARGEST_LOSS = 10.0  # of a net that diverges; ten classes at random have 2.3


def ablation_points(question: str, run: Run) -> Iterator[dict]:
    """One row for each logged step and each evaluation of the nets of the question."""
    if not run.variant.endswith(f"/{question}"):
        return
    results = {result["cell"]: result for result in of_kind(run, "result")}
    for record in run.records:
        if record["kind"] not in ("train", "evaluation"):
            continue
        result = results[record["cell"]]
        row = {
            "net": result["net"].replace("_", " "),
            "convolutions": 1 + 2 * sum(result["model"]["blocks_per_stage"]),
            "step": record["step"],
            "diverged": result["diverged"],
        }
        if record["kind"] == "evaluation":
            yield {**row, "test_error_percent": record["test_error_percent"]}
        # The last record of a training may average a few batches only.
        elif record["step"] % result["train"]["steps_per_log"] == 0:
            yield {**row, **pick(record, "loss error_percent")}


def draw_ablation(points: Points, canvas: Canvas) -> None:
    """A column for each variant: training loss above, test error below."""
    nets = {net: net for net in split(points, "net")}
    columns = split(points, "variant convolutions")
    canvas.set_size_inches(7.0, 5.6)
    grid = canvas.subplots(2, len(columns), squeeze=False, sharex="col")
    for (above, below), ((variant, convolutions), shown) in zip(
        grid.T, columns.items(), strict=True
    ):
        above.set_title(
            f"{data_set_of(variant)}, {convolutions} convolutions", fontsize=9
        )
        above.set(yscale="log")
        losses = with_column(shown, "loss")
        evaluated = with_column(shown, "test_error_percent")
        # Both panels have the marks that the legend shows.
        for looks, rows in series(losses, "net", nets):
            curve_to_its_end(above, rows, "step", "loss", markevery=0.15, **looks)
        for looks, rows in series(evaluated, "net", nets):
            curve_to_its_end(below, rows, "step", "test_error_percent", **looks)
        _mark_divergence(above, losses)
        below.set(xlabel="steps", ylim=(0, 100))
    grid[0, 0].set_ylabel("training loss")
    grid[1, 0].set_ylabel("test error (percent)")
    question = points[0]["variant"].rpartition("/")[2].replace("_", " ")
    legend_below(canvas, grid[1], columns=len(nets), title=question)


def _mark_divergence(axes: Any, losses: Points) -> None:
    """Writes "diverges" where the curve of a seed ends early, and cuts the axis there.

    Of several such ends the highest decides.
    """
    ends = ends_of_diverged(losses, "net")
    heights = [min(end["loss"], _LARGEST_LOSS) for end in ends]
    for end, height in zip(ends, heights, strict=True):
        axes.annotate(" diverges", (end["step"], height), va="top")
    if heights:
        axes.set_ylim(top=max(heights))


def _declare(question: str) -> None:
    """Declares the figure of one question; all are drawn alike."""
    points = functools.partial(ablation_points, question)
    figure("ablations", question, points)(draw_ablation)


for _question in ("projection", "batch_norm", "activation"):
    _declare(_question)
