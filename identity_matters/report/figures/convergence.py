"""Figures of experiments/convergence.py: certificates against the truth, and times to escape."""

import statistics

from matplotlib.figure import Figure as Canvas

from identity_matters.report.figure import (
    Figure,
    Looks,
    curve,
    of_kind,
    panels,
    pick,
    series,
    zipped,
)
from identity_matters.runs import Run

# Up to which (f(0) - C) / sigma each certificate holds: (V4), (V1) and (V3) of
# docs/theory/convergence.md.
_CERTIFIED = {
    "certified, descent": (1 / 18, "-."),
    "certified, flow": (1 / 10, "--"),
    "certified, flow, Σ > 0": (1 / 4, ":"),
}
_TARGETS = {-0.5: "R = −1/2", 0.5: "R = 1/2"}


def inside_points(run: Run) -> list[dict]:
    """One row for each shape and size of f(0) - C beyond the certificates."""
    names = ("excess_over_sigma", "converged_percent")
    return [
        row
        for record in of_kind(run, "beyond", "question")
        for row in zipped(pick(record, "depth", "width"), **pick(record, *names))
    ]


def draw_inside(points: list[dict], canvas: Canvas) -> None:
    axes = canvas.subplots()
    for looks, own in series(points, ("depth", "width"), lambda net: f"l = {net[0]}, d = {net[1]}"):
        curve(axes, own, "excess_over_sigma", "converged_percent", **looks)
    for label, (threshold, style) in _CERTIFIED.items():
        axes.axvline(threshold, color="black", linestyle=style, linewidth=1, label=label)
    axes.set(xscale="log", xlabel="(f(0) − C) / σ_min(Σ)", ylabel="converged from zero, %")
    axes.legend(loc="lower left", fontsize=7)


def escape_points(run: Run) -> list[dict]:
    """One row for each scalar target of `_TARGETS`, depth and noise: medians over the draws."""
    return [
        {
            "target": record["target"][0],
            "depth": record["depth"],
            "noise": entry["noise"],
            "predicted_updates": statistics.median_low(entry["predicted_updates"]),
            # A draw that was too long to run counts with the most updates.
            "measured_updates": statistics.median_low(
                entry["measured_updates"] + [record["max_updates"]] * entry["not_run"]
            ),
        }
        for record in of_kind(run, "escape", "question")
        if tuple(record["target"]) in {(r,) for r in _TARGETS}
        for entry in record["by_noise"]
    ]


def draw_escape(points: list[dict], canvas: Canvas) -> None:
    looks: Looks = {"yscale": "log", "xlabel": "depth l", "ylabel": "updates to the target, median"}
    for axes, own in panels(canvas, points, "target", _TARGETS, legend=3, **looks):
        for style, rows in series(own, "noise", "noise {:g}".format):
            for name, line in (("predicted", "-"), ("measured", "o")):
                label = f"{name}, {style['label']}"
                curve(axes, rows, "depth", f"{name}_updates", line, **style | {"label": label})


FIGURES = (
    Figure("convergence_inside", "convergence", inside_points, draw_inside),
    Figure("convergence_escape", "convergence", escape_points, draw_escape),
)
