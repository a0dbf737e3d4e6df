"""Figures of Theorem 2.1: factorizations against bounds, and the optimum."""

import itertools
from collections.abc import Iterator
from typing import Any

from matplotlib import ticker

from identity_matters.report.figures.drawing import (
    Canvas,
    Looks,
    Points,
    curve,
    panels,
    scatter,
    series,
    split,
)
from identity_matters.report.figures.registry import figure
from identity_matters.report.figures.style import DEPTH_TIMES_NORM
from identity_matters.report.records import of_kind
from identity_matters.runs import Run

# Factorizations (experiments/factorization.py)
_BOUND_STYLES = {
    "bound_iclr2017": ("printed bound, ICLR 2017", ":"),
    "bound_v3": ("printed bound, v3", "--"),
    "bound_polar": ("(π + 3γ)/ℓ", "-."),
    "lower_bound": ("lower bound", "-"),
}
_METHODS = {
    "svd": "svd (the paper's)",
    "polar": "polar",
    "psd": "positive root",
    "root": "principal root",
    "path": "shortest path",
    "paired": "paired",
}
# Dimensions beside 16 and 256, on the axis nearly at the same place. Random targets of
# two dimensions differ in their norms, so a line through both would jump.
_NOT_JOINED = (17, 255)
_NO_EXCESS = 0.01  # a smaller excess, in percent, counts as none
ACCEPTED_EXCESS_PERCENT = 2  # over F4 and F10, by the verdict
_PANELS = {"random": "random", "ill_conditioned": "ill-conditioned", "normal": "normal"}
# Variants whose names do not say what R is.
_KINDS = {
    "ill_conditioned": "ill-conditioned",
    "near_minus_identity": "near −I",
    "negative_even": "symmetric, even",
    "negative_odd": "symmetric, odd",
    "psd": "positive definite",
    "shortest_normal": "simple negative eigenvalues, d ≤ 8",
    "shortest_random": "random, d ≤ 8",
}
_BOUNDS_OF_PATHS = {
    "vector_lower_bound": "vectors one by one (F4)",
    "lower_bound": "and together (F10)",
}
_OF_PATHS = {
    "shortest_normal": "normal R, simple negative eigenvalues",
    "shortest_random": "Gaussian R",
}


def norm_points(run: Run) -> Iterator[dict]:
    """l |||A||| at the largest depth and strength, by every method and bound."""
    strongest = max((record.get("strength", 0) for record in run.records), default=0)
    for record in run.records if run.variant in _PANELS else ():
        if record.get("strength", 0) == strongest and record["rows"]:
            row = max(record["rows"], key=lambda row: row["depth"])
            norms = row["depth_times_norms"] | {
                b: row["depth"] * row[b] for b in _BOUND_STYLES
            }
            same = {"dimension": record["dimension"], "depth_layers": row["depth"]}
            for name, norm in norms.items():
                yield {**same, "curve": name, "depth_times_norm": norm}


@figure("factorization", "norms", norm_points)
def draw_norms(points: Points, canvas: Canvas) -> None:
    """l |||A||| of each method over the dimension, between the bounds."""
    names = ("dimension", "depth_times_norm")
    shown = [point for point in points if point["dimension"] not in _NOT_JOINED]
    for axes, in_panel in panels(canvas, shown, "variant", _PANELS, legend=4):
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_locator(ticker.LogLocator(base=4, subs=[0.5]))
        axes.xaxis.set_major_formatter("{x:.0f}")
        axes.set_yscale("log")
        axes.set(xlabel="dimension d", ylabel=DEPTH_TIMES_NORM)
        for bound, (label, line) in _BOUND_STYLES.items():
            rows = [point for point in in_panel if point["curve"] == bound]
            looks: Looks = {"color": "0.2", "linewidth": 1.0, "label": label}
            curve(axes, rows, *names, line=line, mark=None, **looks)
        # Hollow markers, so that equal norms of other methods show through.
        for looks, rows in series(in_panel, "curve", _METHODS):
            curve(axes, rows, *names, line=None, markerfacecolor="none", **looks)
        axes.set_xlim(left=1.8)  # so that 2 has its tick


def gap_points(run: Run) -> Iterator[dict]:
    """The largest excess of |||A||| over the lower bound by dimension and method.

    Rows whose lower bound is 0, or only |||A||| >= 1, are left out: the ratio to these
    says nothing.
    """
    largest: dict[tuple[int, str], float] = {}
    for record in run.records:
        for row in record["rows"]:
            for method, excess in _excesses(row):
                place = (record["dimension"], method)
                largest[place] = max(excess, largest.get(place, 0.0))
    for (dimension, method), excess in largest.items():
        yield {"dimension": dimension, "method": method, "excess_percent": excess}


def _excesses(row: dict) -> Iterator[tuple[str, float]]:
    """(method, excess over the lower bound in percent) of "polar" and of the "best"."""
    bound = row["lower_bound"]
    if bound <= 0 or row["lower_bound_is_1"]:
        return
    for method, name in (("polar", "polar"), ("best", row["best_method"])):
        norm = row["norms"].get(name)
        if norm is not None:
            yield method, 100 * (norm / bound - 1)


@figure("factorization", "gap", gap_points)
def draw_gaps(points: Points, canvas: Canvas) -> None:
    """A panel for each method; variants without an excess are only named."""
    drawn = {}
    at_the_bound = []
    for variant, of_variant in sorted(split(points, "variant").items()):
        name = _KINDS.get(variant, variant)
        if max(point["excess_percent"] for point in of_variant) >= _NO_EXCESS:
            drawn[variant] = name
        else:
            at_the_bound.append(name)
    titles = "{} factorization".format
    for axes, in_panel in panels(canvas, points, "method", titles, legend=2):
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter("{x:.0f}")
        axes.set_yscale("log")
        axes.set(ylim=(0.7 * _NO_EXCESS, 100), xlabel="dimension d")
        axes.set_ylabel("excess over the lower bound, percent")
        for looks, of_variant in series(in_panel, "variant", drawn):
            _draw_gaps_of(axes, of_variant, looks)
    last_panel = canvas.axes[-1]
    last_panel.text(
        x=0.03,
        y=0.97,
        s="\n".join(["at the bound, and not drawn,", "in both panels:", *at_the_bound]),
        transform=last_panel.transAxes,
        va="top",
        fontsize=8,
    )


def _draw_gaps_of(axes: Any, points: Points, looks: Looks) -> None:
    """The curve of one variant, and its points at the dimensions of _NOT_JOINED."""
    columns = ("dimension", "excess_percent")
    joined = [point for point in points if point["dimension"] not in _NOT_JOINED]
    alone = [point for point in points if point["dimension"] in _NOT_JOINED]
    curve(axes, joined, *columns, floor=_NO_EXCESS, **looks)
    unnamed = looks | {"label": None, "markerfacecolor": "none"}
    curve(axes, alone, *columns, line=None, floor=_NO_EXCESS, **unnamed)


def shortest_points(run: Run) -> Iterator[dict]:
    """The excess of the best |||A||| over two bounds, F4 and the larger of F4 and F10.

    Both are lower bounds of docs/theory/factorization.md.
    """
    for target, record in enumerate(run.records if run.variant in _OF_PATHS else ()):
        for row, bound in itertools.product(record["rows"], _BOUNDS_OF_PATHS):
            yield {
                "dimension": record["dimension"],
                "target": target,
                "bound": bound,
                "excess_percent": (
                    100 * (row["norms"][row["best_method"]] / row[bound] - 1)
                ),
            }


@figure("factorization", "shortest", shortest_points)
def draw_shortest(points: Points, canvas: Canvas) -> None:
    """The excess of each target over both bounds, and what the verdict accepts."""
    for axes, in_panel in panels(canvas, points, "variant", _OF_PATHS, legend=2):
        axes.set_yscale("symlog", linthresh=_NO_EXCESS)
        axes.set(ylim=(0, 100), ylabel="excess of the shortest path, percent")
        axes.set_xlabel("dimension d, targets side by side")
        placed = list(_side_by_side(in_panel))
        for looks, rows in series(placed, "bound", _BOUNDS_OF_PATHS):
            scatter(axes, rows, "place", "excess_percent", **looks, clip_on=False)
        axes.axhline(
            ACCEPTED_EXCESS_PERCENT, color="0.2", linewidth=1.0, linestyle="--"
        )


def _side_by_side(points: Points) -> Iterator[dict]:
    """The points with a "place" within 0.35 of their dimension for each target."""
    for dimension, same in split(points, "dimension").items():
        targets = list(split(same, "target seed").values())
        for number, rows in enumerate(targets):
            offset = 0.7 * (number + 0.5) / len(targets) - 0.35
            for row in rows:
                yield {**row, "place": dimension + offset}


# The optimum at every depth (experiments/optimum.py)
_OF_OPTIMUM = {
    "polar": "polar layers",
    "optimal": "optimum, attained",
    "vectors": "bound by single vectors",
}


def optimum_points(run: Run) -> Iterator[dict]:
    """l |||A||| over l for each target of the run's curves."""
    for record in of_kind(run, "curve"):
        for row in record["rows"]:
            for name in _OF_OPTIMUM:
                yield {
                    "largest": -record["diagonal"][0],
                    "least": -record["diagonal"][1],
                    "depth_layers": row["depth"],
                    "curve": name,
                    "norm": row[name],
                    "depth_times_norm": row["depth"] * row[name],
                }


@figure("optimum", "curve", optimum_points)
def draw_optimum(points: Points, canvas: Canvas) -> None:
    """l |||A||| over l: the optimum between polar layers and the bound."""
    shown = [point for point in points if point["norm"] < 1]
    title = "R = −diag({0:g}, 1/{0:g})".format
    for axes, in_panel in panels(canvas, shown, "largest", title, legend=3):
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter("{x:.0f}")
        axes.set(xlabel="layers ℓ", ylabel=DEPTH_TIMES_NORM)
        for looks, rows in series(in_panel, "curve", _OF_OPTIMUM):
            line = "-" if looks["label"] == _OF_OPTIMUM["optimal"] else "--"
            curve(axes, rows, "depth_layers", "depth_times_norm", line=line, **looks)
