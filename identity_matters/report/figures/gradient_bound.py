"""Figures of experiments/gradient_bound.py: eq. (2.3) in its two printed forms and corrected."""

import statistics

import numpy as np
from matplotlib.figure import Figure as Canvas
from matplotlib.lines import Line2D

from identity_matters.report.figure import Figure, Looks, curve, of_kind, panels, series, split
from identity_matters.runs import Run

_LABELS = {"iclr2017": "printed at ICLR 2017", "v3": "printed in v3", "corrected": "corrected"}
_STYLES: Looks = {"iclr2017": ":", "v3": "--", "corrected": "-"}


def distribution_points(run: Run) -> list[dict]:
    """One row for each bin of log10(right/left), over all random points of the run."""
    records = of_kind(run, "random")
    if not records:
        return []
    counts = np.sum([record["histogram_counts"] for record in records], axis=0)
    low, high = records[0]["histogram_log10"]
    edges = np.linspace(low, high, records[0]["histogram_bins"] + 1).tolist()
    total = sum(record["points"] for record in records)
    return [
        {
            "form": records[0]["form"],
            "log10_ratio_from": low,
            "log10_ratio_to": high,
            "log10_ratio": (low + high) / 2,
            "points_percent": 100 * int(count) / total,
            "points": total,
            "failures_percent": run.summary["metrics"]["failures_percent"],
        }
        for low, high, count in zip(edges[:-1], edges[1:], counts, strict=True)
    ]


def draw_distribution(points: list[dict], canvas: Canvas) -> None:
    axes = canvas.subplots()
    for style, rows in series(points, "form", _LABELS):
        share = statistics.fmean(row["failures_percent"] for row in rows)
        style["label"] += f": fails at {share:.3g} %"
        curve(axes, rows, "log10_ratio", "points_percent", "-", drawstyle="steps-mid", **style)
    axes.axvline(0.0, color="black", linestyle="--", linewidth=1)
    axes.set(yscale="log", ylabel="percent of random points per bin")
    axes.set_xlabel(
        "log10(right-hand side / squared gradient); right of the line the form is false"
    )
    axes.legend(loc="upper left")


def tight_family_points(run: Run) -> list[dict]:
    """right/left at A_i = -tau I, Sigma = s I for each depth, tau, s and width."""
    return [
        {"form": record["form"], **row}
        for record in of_kind(run, "tight")
        for row in record["rows"]
    ]


def draw_tight_family(points: list[dict], canvas: Canvas) -> None:
    narrowest = min(point["width"] for point in points)
    depths = {depth: f"l = {depth}" for depth in sorted(split(points, "depth"))}
    shown = sorted((p for p in points if p["width"] == narrowest), key=lambda p: p["scale"])
    # Beyond six decades nothing new is to be seen: the ICLR form goes on as (1-tau)^{-(l-1)}.
    looks: Looks = {
        "xlabel": "τ",
        "ylabel": "right-hand side / squared gradient",
        "ylim": (0.1, 1e6),
    }
    for axes, own in panels(canvas, shown, "scale", "Σ = {:g} I".format, yscale="log", **looks):
        for style, some in series(own, "depth", depths):
            for form, rows in split(some, "form").items():
                curve(axes, rows, "tau", "ratio", _STYLES[form], color=style["color"])
    handles = [
        *(Line2D([], [], **style) for style, _ in series(shown, "depth", depths)),
        *(Line2D([], [], color="black", linestyle=_STYLES[f], label=_LABELS[f]) for f in _LABELS),
    ]
    canvas.legend(handles=handles, loc="outside lower center", ncols=4)


FIGURES = (
    Figure("gradient_bound_distribution", "gradient_bound", distribution_points, draw_distribution),
    Figure("gradient_bound_tight_family", "gradient_bound", tight_family_points, draw_tight_family),
)
