"""Figures of experiments/landscape.py: the wall at |||A||| = 1, the origin, and det R < 0."""

from matplotlib.figure import Figure as Canvas

from identity_matters.report.figure import (
    Figure,
    Looks,
    curve,
    of_kind,
    panels,
    pick,
    scatter,
    series,
    zipped,
)
from identity_matters.runs import Run

# Excess risks of rounding size, 0 included, are drawn at this height of the logarithmic axis.
_DRAWN_ZERO = 1e-24
_LARGEST_DRAWN_NORM = 3.0


def wall_points(run: Run) -> list[dict]:
    """One row for each critical point reached: |||A||| and its relative excess risk."""
    names = ("started_at_norms", "norms", "relative_excess", "gradient_norms")
    return [
        {
            **pick(record, "width", "depth"),
            "started_at_norm": row["started_at_norms"],
            "norm": float(f"{row['norms']:.6g}"),
            "relative_excess": float(f"{row['relative_excess']:.3g}"),
        }
        for record in of_kind(run, "critical_points")
        for row in zipped({}, **pick(record, *names))
        if row["gradient_norms"] <= record["gradient_tolerance"]
    ]


def draw_wall(points: list[dict], canvas: Canvas) -> None:
    axes = canvas.subplots()
    starts = {False: "start inside the ball", True: "start outside, and A_i = −I"}
    points = [{**point, "outside": point["started_at_norm"] >= 1} for point in points]
    for style, rows in series(points, "outside", starts):
        scatter(axes, rows, "norm", "relative_excess", floor=_DRAWN_ZERO, **style)
    axes.axvline(1.0, color="black", linestyle="--", linewidth=1)
    axes.set(yscale="log", xlim=(0, _LARGEST_DRAWN_NORM), xlabel="|||A||| of the critical point")
    axes.set_ylabel("excess risk / risk of the map 0")
    axes.legend(loc="center right")


def origin_points(run: Run) -> list[dict]:
    """One row for each Hessian eigenvalue at zero weights; R far from I, the first width."""
    records = of_kind(run, "hessian_at_origin")
    narrowest = min((record["width"] for record in records), default=0)
    return [
        {
            "net": net["net"],
            "width": record["width"],
            "depth": record["depth"],
            "target_size": net["target_size"],
            "gradient_norm": net["gradient_norm"],
            "hessian_eigenvalue": eigenvalue,
        }
        for record in records
        if record["width"] == narrowest
        for net in record["nets"]
        if net["target_size"] == max(other["target_size"] for other in record["nets"])
        for eigenvalue in net["hessian_eigenvalues"]
    ]


def draw_origin(points: list[dict], canvas: Canvas) -> None:
    spectrum, gradient = canvas.subplots(1, 2)
    nets = {"residual": "residual net", "standard": "standard net"}
    for (style, rows), (marker, offset) in zip(
        series(points, "net", nets), (("o", 0.12), ("x", -0.12)), strict=True
    ):
        rows = [{**row, "place": row["depth"] + offset} for row in rows]
        scatter(spectrum, rows, "place", "hessian_eigenvalue", marker, **style, alpha=1.0)
        curve(gradient, rows, "place", "gradient_norm", marker, **style)
    for axes, name in (
        (spectrum, "eigenvalues of the Hessian"),
        (gradient, "norm of the gradient"),
    ):
        axes.set(xlabel="depth l", ylabel=f"{name} at zero weights")
        axes.legend()


def negative_determinant_points(run: Run) -> list[dict]:
    """One row for each ball of the first R and Sigma: the least ||grad f||_F in it, its floor."""
    return [
        row
        for record in of_kind(run, "negative_determinant")
        for row in zipped(
            pick(record, "width", "depth"),
            tau=record["taus"],
            room=[1 - tau for tau in record["taus"]],
            least_gradient_norm=record["least_gradient_norms"][0],
            floor=record["floors"][0],
        )
    ]


def draw_negative_determinant(points: list[dict], canvas: Canvas) -> None:
    points = sorted(points, key=lambda point: (point["width"], point["depth"]))
    looks: Looks = {"xscale": "log", "yscale": "log", "xlabel": "1 − τ"}
    looks["ylabel"] = "least norm of the gradient in B_τ"
    for axes, own in panels(canvas, points, "width", "d = {}".format, **looks):
        for style, rows in series(own, "depth", "l = {}, found".format):
            curve(axes, rows, "room", "least_gradient_norm", "o", **style)
            curve(axes, rows, "room", "floor", "--", **style | {"label": "its floor"})
        axes.invert_xaxis()
    canvas.axes[0].legend(fontsize=7)


FIGURES = (
    Figure("landscape_wall", "landscape", wall_points, draw_wall),
    Figure("landscape_origin", "landscape", origin_points, draw_origin),
    Figure(
        "landscape_negative_determinant",
        "landscape",
        negative_determinant_points,
        draw_negative_determinant,
    ),
)
