"""Figures of the landscape: the wall at |||A||| = 1, the origin, and det R < 0."""

from collections.abc import Iterator
from typing import Any

from identity_matters.report.figures.drawing import (
    OWN,
    Canvas,
    Points,
    curve,
    panels,
    scatter,
    series,
    split,
)
from identity_matters.report.figures.registry import figure
from identity_matters.report.figures.style import NORM
from identity_matters.report.records import of_kind, pick, rows_of
from identity_matters.runs import Run

# Of a critical point that the verdict calls inside the ball, and of a global minimum.
LARGEST_NORM_INSIDE = 0.99
LARGEST_RELATIVE_EXCESS = 1e-9


def wall_points(run: Run) -> Iterator[dict]:
    """One row for each critical point reached: |||A||| and its relative excess risk."""
    names = "width depth started_at_norm=started_at_norms norm=norms relative_excess"
    tests = "gradient_norms gradient_tolerance"
    for row in rows_of(of_kind(run, "critical_points"), f"{names} {tests}"):
        gradient_norm = row.pop("gradient_norms")
        if gradient_norm <= row.pop("gradient_tolerance"):
            row["norm"] = float(f"{row['norm']:.6g}")
            row["relative_excess"] = float(f"{row['relative_excess']:.3g}")
            yield row


@figure("landscape", "wall", wall_points)
def draw_wall(points: Points, canvas: Canvas) -> None:
    """The excess risk of each critical point over its norm.

    Points up to LARGEST_NORM_INSIDE are counted, and those at the wall or beyond. What
    is between may be no critical point, as near a degenerate one gradients are small.
    """
    canvas.set_size_inches(7.0, 3.5)
    axes = canvas.subplots()
    starts = {False: "search from near", True: r"search from far, and $A_i = -I$"}
    by_start = [{**point, "far": point["started_at_norm"] >= 1} for point in points]
    for style, rows in series(by_start, "far", starts):
        scatter(axes, rows, "norm", "relative_excess", floor=1e-24, **style)
    axes.axvline(1.0, color="black", linestyle="--", linewidth=1)
    inside = [point for point in points if point["norm"] <= LARGEST_NORM_INSIDE]
    outside = [point for point in points if point["norm"] >= 1]
    _write_count(axes, 0.5, "near the identity", inside)
    _write_count(axes, 2.0, "far from the identity", outside)
    axes.set(yscale="log", xlim=(0, 3))
    axes.set_xlabel(f"{NORM}: how far the layers are from the identity")
    axes.set_ylabel("risk above the optimum, relative")
    axes.legend(loc=(0.6, 0.22))


def _write_count(axes: Any, x: float, where: str, critical_points: Points) -> None:
    """Writes how many of these critical points are no global minima."""
    not_optimal = sum(
        point["relative_excess"] > LARGEST_RELATIVE_EXCESS for point in critical_points
    )
    counts = f"{not_optimal:,} of {len(critical_points):,}"
    text = f"{where}:\n{counts}\nare not optimal"
    axes.text(x=x, y=1e-8, s=text, ha="center", va="center", fontsize=11)


def origin_points(run: Run) -> list[dict]:
    """One row per Hessian eigenvalue at 0; least width, R farthest from I."""
    by_width = split(of_kind(run, "hessian_at_origin"), "width")
    farthest: list[dict] = []
    for record in by_width[min(by_width)] if by_width else ():
        size = max(net["target_size"] for net in record["nets"])
        farthest += [
            record | net for net in record["nets"] if net["target_size"] == size
        ]
    names = (
        "net width depth target_size gradient_norm"
        " hessian_eigenvalue=hessian_eigenvalues"
    )
    return rows_of(farthest, names)


@figure("landscape", "origin", origin_points)
def draw_origin(points: Points, canvas: Canvas) -> None:
    """At zero weights: left the eigenvalues over depth, right the gradient."""
    spectrum, gradient = canvas.subplots(1, 2)
    nets = {"residual": "residual net", "standard": "standard net"}
    marks = {"residual net": (OWN, 0.12), "standard net": ("x", -0.12)}
    for style, rows in series(points, "net", nets):
        mark, offset = marks[style["label"]]
        rows = [{**row, "place": row["depth"] + offset} for row in rows]
        opaque = style | {"mark": mark, "alpha": 1.0}
        scatter(spectrum, rows, "place", "hessian_eigenvalue", **opaque)
        curve(gradient, rows, "place", "gradient_norm", line=None, mark=mark, **style)
    spectrum.set(xlabel="depth ℓ", ylabel="eigenvalues of the Hessian at zero weights")
    gradient.set(xlabel="depth ℓ", ylabel="norm of the gradient at zero weights")
    spectrum.legend()
    gradient.legend()


def negative_determinant_points(run: Run) -> Iterator[dict]:
    """The least ||grad f||_F and its floor in each ball, first R and Sigma."""
    for record in of_kind(run, "negative_determinant"):
        least = record["least_gradient_norms"][0]
        floors = record["floors"][0]
        for tau, norm, floor in zip(record["taus"], least, floors, strict=True):
            same = pick(record, "width depth")
            yield {
                **same,
                "tau": tau,
                "room": 1 - tau,
                "least_gradient_norm": norm,
                "floor": floor,
            }


@figure("landscape", "negative_determinant", negative_determinant_points)
def draw_negative_determinant(points: Points, canvas: Canvas) -> None:
    """The least gradient over its floor, as the ball grows to norm 1."""
    points = sorted(points, key=lambda point: (point["width"], point["depth"]))
    ratios = [
        {**point, "over_floor": point["least_gradient_norm"] / point["floor"]}
        for point in points
    ]
    for axes, in_panel in panels(canvas, ratios, "width", "d = {}".format, legend=4):
        axes.set(xscale="log", xlabel="1 − τ")
        axes.set_yscale("log")
        axes.set_ylabel(r"least gradient norm found in $B_\tau$ / its floor")
        for looks, rows in series(in_panel, "depth", "ℓ = {}".format):
            curve(axes, rows, "room", "over_floor", **looks)
        axes.axhline(1, color="black", linestyle="--", linewidth=1, label="the floor")
        axes.invert_xaxis()
