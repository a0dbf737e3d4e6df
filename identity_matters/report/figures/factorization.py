"""Figures of Theorem 2.1: the norms of the factorizations, and how far from optimal they are."""

import itertools
from typing import Any

from matplotlib.figure import Figure as Canvas

from identity_matters.report.figure import Figure, Looks, curve, panels, series, split
from identity_matters.runs import Run

_BOUND_STYLES = {
    "bound_iclr2017": ("printed bound, ICLR 2017", ":"),
    "bound_v3": ("printed bound, v3", "--"),
    "bound_polar": ("(π + 3γ)/l", "-."),
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
_PANELS = {"random": "random", "ill_conditioned": "ill-conditioned", "normal": "normal"}


def norm_points(run: Run) -> list[dict]:
    """l |||A||| of every method and bound at the largest depth of each target."""
    if run.variant not in _PANELS:
        return []
    strongest = max((record.get("strength", 0) for record in run.records), default=0)
    points = []
    for record in run.records:
        if record.get("strength", 0) != strongest or not record["rows"]:
            continue
        row = max(record["rows"], key=lambda row: row["depth"])
        values = {name: row["depth"] * row[name] for name in _BOUND_STYLES}
        points += [
            {
                "dimension": record["dimension"],
                "depth_layers": row["depth"],
                "curve": curve,
                "depth_times_norm": value,
            }
            for curve, value in {**row["depth_times_norms"], **values}.items()
        ]
    return points


def draw_norms(points: list[dict], canvas: Canvas) -> None:
    looks: Looks = {"ylabel": "l · |||A|||", "yscale": "log"}
    for axes, own in panels(canvas, points, "variant", _PANELS, legend=4, **looks):
        _scale_dimensions(axes)
        for name, (label, line) in _BOUND_STYLES.items():
            rows = [point for point in own if point["curve"] == name]
            style: Looks = {"color": "0.2", "linewidth": 1.0, "label": label}
            curve(axes, rows, "dimension", "depth_times_norm", line, **style)
        for style, rows in series(own, "curve", _METHODS):
            # Hollow, so that an equal norm of another method shows through.
            curve(axes, rows, "dimension", "depth_times_norm", "o", markerfacecolor="none", **style)


def _scale_dimensions(axes: Any) -> None:
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:.0f}")
    axes.set_xlabel("dimension d")


def gap_points(run: Run) -> list[dict]:
    """The largest excess of |||A||| over the lower bound, over the depths where that is below 1."""
    largest: dict[tuple[int, str], float] = {}
    for record in run.records:
        for row in record["rows"]:
            if row["lower_bound"] > 0 and not row["lower_bound_is_1"]:
                for method in ("polar", "best"):
                    norm = row["norms"].get(row["best_method"] if method == "best" else method)
                    if norm is not None:
                        place = record["dimension"], method
                        excess = 100 * (norm / row["lower_bound"] - 1)
                        largest[place] = max(excess, largest.get(place, 0.0))
    return [
        {"dimension": dimension, "method": method, "excess_percent": excess}
        for (dimension, method), excess in largest.items()
    ]


def draw_gaps(points: list[dict], canvas: Canvas) -> None:
    variants = {name: name.replace("_", " ") for name in sorted(split(points, "variant"))}
    markers = dict(zip(variants.values(), itertools.cycle("osv^Dx*P"), strict=False))
    # Optimal to rounding is 0, which a logarithmic axis has no place for.
    looks: Looks = {"ylabel": "excess over the lower bound, percent", "ylim": (0, 100)}
    for axes, own in panels(canvas, points, "method", "{} factorization".format, **looks):
        _scale_dimensions(axes)
        axes.set_yscale("symlog", linthresh=0.01)
        for style, rows in series(own, "variant", variants):
            marker = markers[style["label"]]
            curve(axes, rows, "dimension", "excess_percent", f"{marker}-", **style)
    canvas.axes[-1].legend()


def shortest_points(run: Run) -> list[dict]:
    """The excess of the best |||A||| over the bound from vectors alone, and with half turns."""
    if not run.variant.startswith("shortest"):
        return []
    return [
        {
            "dimension": record["dimension"],
            "target": target,
            "bound": bound,
            "excess_percent": 100 * (row["norms"][row["best_method"]] / row[bound] - 1),
        }
        for target, record in enumerate(run.records)
        for row in record["rows"]
        for bound in _BOUNDS_OF_PATHS
    ]


_BOUNDS_OF_PATHS = {
    "vector_lower_bound": "vectors one by one (F4)",
    "lower_bound": "and together (F10)",
}


def draw_shortest(points: list[dict], canvas: Canvas) -> None:
    looks: Looks = {"ylabel": "excess of the shortest path, percent", "ylim": (0, 100)}
    titles = {
        "shortest_normal": "normal R, simple negative eigenvalues",
        "shortest_random": "Gaussian R",
    }
    for axes, own in panels(canvas, points, "variant", titles, legend=2, **looks):
        axes.set_yscale("symlog", linthresh=0.01)
        axes.set_xlabel("target, by dimension")
        order = sorted({(row["dimension"], row["target"], row["seed"]) for row in own})
        for style, rows in series(own, "bound", _BOUNDS_OF_PATHS):
            places = [
                {**row, "place": order.index((row["dimension"], row["target"], row["seed"]))}
                for row in rows
            ]
            curve(axes, places, "place", "excess_percent", "o", **style)
        axes.axhline(2, color="0.2", linewidth=1.0, linestyle="--")


FIGURES = (
    Figure("factorization_norms", "factorization", norm_points, draw_norms),
    Figure("factorization_gap", "factorization", gap_points, draw_gaps),
    Figure("factorization_shortest", "factorization", shortest_points, draw_shortest),
)
