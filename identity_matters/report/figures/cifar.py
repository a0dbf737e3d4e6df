"""Figures of experiments/images/cifar.py: convergence, and what the blocks do."""

from collections.abc import Iterator
from typing import Any

from identity_matters import paper
from identity_matters.report.figures.drawing import (
    OWN,
    Canvas,
    Points,
    curve_to_its_end,
    curves,
    ends_of_diverged,
    panels,
    series,
)
from identity_matters.report.figures.registry import figure
from identity_matters.report.records import of_kind, rows_of
from identity_matters.runs import Run

_PLATEAU_STEP = int(paper.NUMBERS["cifar_plateau_steps"].value)
_ERRORS = {"train": "error_percent", "evaluation": "test_error_percent"}
_LABELS = {"train": "training batches", "evaluation": "test"}
# The evaluations of which the ratios of the blocks are shown.
_BEFORE = "before training"
_AFTER = "after training"
_BEFORE_DIVERGING = "last evaluation before it diverged"


def convergence_points(run: Run) -> Iterator[dict]:
    """One row for each logged step of training, and one for each evaluation."""
    for kind, error in _ERRORS.items():
        for row in rows_of(of_kind(run, kind), f"kind step error_percent={error}"):
            yield {**row, "diverged": run.status == "diverged"}


@figure("cifar", "convergence", convergence_points)
def draw_convergence(points: Points, canvas: Canvas) -> None:
    """Errors over the steps of each variant, beside what the paper reports."""
    for axes, in_panel in panels(canvas, points, "variant", columns=2, legend=2):
        axes.set(xlabel="steps", ylabel="error (percent)")
        for looks, rows in series(in_panel, "kind", _LABELS):
            curve_to_its_end(
                axes,
                rows,
                "step",
                "error_percent",
                line=OWN,
                mark=None,
                linewidth=1,
                **looks,
            )
        training = [row for row in in_panel if row["kind"] == "train"]
        for end in ends_of_diverged(training, "kind"):
            _mark_diverged(axes, end)
        if max(row["step"] for row in in_panel) >= _PLATEAU_STEP:
            label = "the paper's best: about 50,000 steps"
            axes.axvline(_PLATEAU_STEP, color="grey", linestyle=":", label=label)
        dataset = in_panel[0]["variant"].split("/")[0]
        if published := paper.TABLE_2["this paper"].get(dataset):
            _draw_published(axes, published.value)
        axes.set_ylim(0, 100)


def _mark_diverged(axes: Any, end: dict) -> None:
    """The word below the end of a curve."""
    axes.annotate(
        "diverges",
        xy=(end["step"], end["error_percent"]),
        xytext=(0, -6),
        textcoords="offset points",
        ha="right",
        va="top",
        fontsize=8,
    )


def _draw_published(axes: Any, percent: float) -> None:
    """A line at the paper's test error, with its value."""
    label = "the paper's test error, 13.5M parameters"
    axes.axhline(percent, color="grey", linewidth=0.8, label=label)
    # Below the left end of the line, where every curve is above it.
    axes.text(
        x=0.01,
        y=percent,
        s=f"{percent:g} %",
        transform=axes.get_yaxis_transform(),
        va="top",
        fontsize=7,
    )


def ratio_points(run: Run) -> Iterator[dict]:
    """||h(x)|| / ||x|| of every block before training and at the last evaluation."""
    evaluations = of_kind(run, "evaluation")
    last = len(evaluations) - 1
    for place, record in enumerate(evaluations):
        if place not in (0, last):
            continue
        for block, ratio in enumerate(record["residual_ratio"], start=1):
            yield {
                "step": record["step"],
                "diverged": run.status == "diverged",
                "block": block,
                "residual_ratio": ratio,
            }


@figure("cifar", "residual_ratio", ratio_points)
def draw_ratio(points: Points, canvas: Canvas) -> None:
    """The ratio over the blocks, before and after training."""
    timed = [{**point, "when": _when(point)} for point in points]
    times = {when: when for when in (_BEFORE, _AFTER, _BEFORE_DIVERGING)}
    for axes, in_panel in panels(canvas, timed, "variant", columns=2, legend=2):
        axes.set(yscale="log", xlabel="block", ylabel="mean of ‖h(x)‖ / ‖x‖")
        curves(axes, series(in_panel, "when", times), "block", "residual_ratio")


def _when(point: dict) -> str:
    """At which evaluation a ratio was measured; the last step differs by variant."""
    if point["step"] == 0:
        return _BEFORE
    return _BEFORE_DIVERGING if point["diverged"] else _AFTER
