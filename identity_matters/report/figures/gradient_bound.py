"""Figures of eq. (2.3), in its two printed forms and corrected."""

import itertools
import statistics
from collections.abc import Iterator
from typing import Any

import numpy as np

from identity_matters.report.figures.drawing import (
    OWN,
    Canvas,
    Looks,
    Points,
    curve,
    legend_below,
    panels,
    series,
    split,
)
from identity_matters.report.figures.registry import figure
from identity_matters.report.figures.style import COLOURS
from identity_matters.report.records import of_kind
from identity_matters.runs import Run

_LABELS = {
    "iclr2017": "printed at ICLR 2017",
    "v3": "printed in v3",
    "corrected": "corrected",
}
_LARGEST_RATIO = 1e6  # that the figure of the distribution shows
_SAME_AT_EVERY_DEPTH = {"v3": "--", "corrected": "-"}  # form -> line


def distribution_points(run: Run) -> Iterator[dict]:
    """One row for each bin of log10(right/left), over all random points of the run.

    The run has counted the points by right / (left (1 + relative_tolerance)), which no
    figure tells from right/left.
    """
    records = of_kind(run, "random")
    if not records:
        return
    counts = np.sum([record["histogram_counts"] for record in records], axis=0)
    total = sum(record["points"] for record in records)
    first, last = records[0]["histogram_log10"]
    edges = np.linspace(first, last, records[0]["histogram_bins"] + 1).tolist()
    for (low, high), count in zip(itertools.pairwise(edges), counts, strict=True):
        yield {
            "form": records[0]["form"],
            "log10_ratio_from": low,
            "log10_ratio_to": high,
            "log10_ratio": (low + high) / 2,
            "points_percent": 100 * int(count) / total,
            "points": total,
            "failures_percent": run.summary["metrics"]["failures_percent"],
        }


@figure("gradient_bound", "distribution", distribution_points)
def draw_distribution(points: Points, canvas: Canvas) -> None:
    """The share of the random points above each ratio, a curve for each form."""
    axes = canvas.subplots()
    for looks, rows in series(points, "form", _LABELS):
        share = statistics.fmean(row["failures_percent"] for row in rows)
        looks["label"] += f": false at {share:.3g} % of the points"
        looks |= {"line": OWN, "mark": None}
        curve(axes, list(_shares_beyond(rows)), "ratio", "beyond_percent", **looks)
    axes.axvline(1.0, color="black", linewidth=1)
    axes.axvspan(1.0, _LARGEST_RATIO, color=COLOURS[1], alpha=0.12, linewidth=0)
    for x, y, text in (
        (0.75, 0.62, "bound false here"),
        (0.25, 0.12, "bound true here"),
    ):
        axes.text(
            x=x,
            y=y,
            s=text,
            transform=axes.transAxes,
            ha="center",
            fontsize=12,
            fontweight="bold",
        )
    axes.set(xscale="log", xlim=(1 / _LARGEST_RATIO, _LARGEST_RATIO), ylim=(0, 100))
    axes.set_xlabel("lower bound of the squared gradient / the squared gradient")
    axes.set_ylabel("percent of random points with a larger ratio")
    axes.legend(loc="upper right", frameon=True)


def _shares_beyond(bins: Points) -> Iterator[dict]:
    """The percentage of a seed's points above each edge that the figure shows."""
    for seed, of_seed in split(bins, "seed").items():
        for row in of_seed:
            edge = 10.0 ** row["log10_ratio_from"]
            if 1 / _LARGEST_RATIO <= edge <= _LARGEST_RATIO:
                beyond = sum(
                    other["points_percent"]
                    for other in of_seed
                    if other["log10_ratio_from"] >= row["log10_ratio_from"]
                )
                yield {"seed": seed, "ratio": edge, "beyond_percent": beyond}


def tight_family_points(run: Run) -> Iterator[dict]:
    """right/left at A_i = -tau I, Sigma = s I for each depth, tau, s and width."""
    for record in of_kind(run, "tight"):
        yield from ({"form": record["form"], **row} for row in record["rows"])


@figure("gradient_bound", "tight_family", tight_family_points)
def draw_tight_family(points: Points, canvas: Canvas) -> None:
    """The ratio over tau of each form and width, a panel for each s."""
    shown = sorted(points, key=lambda point: point["scale"])
    depths = sorted(split(shown, "depth"))
    for axes, in_panel in panels(canvas, shown, "scale", "s = {:g}".format):
        axes.set_yscale("log")
        axes.set(xlabel="τ", ylabel="right-hand side / squared gradient")
        # Above 10^6 there is nothing new: the ICLR form goes on as (1-tau)^{-(l-1)}.
        axes.set_ylim(0.1, 1e6)
        by_form = split(in_panel, "form")
        _draw_over_depths(axes, by_form.get("iclr2017", []), depths)
        _draw_of_every_depth(axes, by_form)
    legend_below(canvas, canvas.axes, columns=3, fontsize=8)


def _draw_over_depths(axes: Any, points: Points, depths: list[int]) -> None:
    """The form of ICLR 2017, a curve for each depth; at depth 1 it is that of v3."""
    labels = {
        depth: f"{_LABELS['iclr2017']}, ℓ = {depth}" for depth in depths if depth > 1
    }
    for looks, rows in series(points, "depth", labels):
        for of_width in split(rows, "width").values():
            curve(axes, of_width, "tau", "ratio", line=OWN, mark=None, **looks)


def _draw_of_every_depth(axes: Any, by_form: dict[str, Points]) -> None:
    """The forms that do not depend on the depth: all of their curves are alike."""
    for form, line in _SAME_AT_EVERY_DEPTH.items():
        label = f"{_LABELS[form]}, every ℓ"
        looks: Looks = {"line": line, "mark": None, "color": "black", "label": label}
        for of_one_net in split(by_form.get(form, []), "depth width").values():
            curve(axes, of_one_net, "tau", "ratio", **looks)
