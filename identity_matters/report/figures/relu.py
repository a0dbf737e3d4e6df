"""Figures of experiments/relu.py: bad critical points, gradient ratios, noise."""

import math
from collections.abc import Iterator

from identity_matters.report.figures.drawing import (
    Canvas,
    Points,
    curve,
    curves,
    panels,
    scatter,
    series,
    split,
)
from identity_matters.report.figures.registry import figure
from identity_matters.report.figures.style import COLOURS
from identity_matters.report.records import of_kind, pick, rows_of
from identity_matters.runs import Run

_DRAWN_ZERO = 1e-20  # values of rounding size, 0 included, are drawn at this height
# on f / f(0), in the noise figure
_BOUNDS = tuple(10.0**power for power in range(-14, 1))
_DRAWN_KINDS = (
    "optimal",
    "no negative curvature",
    "saddle",
    "all dead",
    "zero unit",
    "outside",
)


def limit_points(run: Run) -> Iterator[dict]:
    """One row for each critical point that the searches reached, kinks left out."""
    names = "depth width maps bias pairs descends kind=kinds norm=max_norm risk_share"
    for record in of_kind(run, "search", "measured"):
        maps = record["lifted_width"] > record["width_in"]
        for row in rows_of([{**record, "maps": maps}], names):
            row["kind"] = record["kind_names"][row["kind"]]
            if row["kind"] in _DRAWN_KINDS:
                yield row


@figure("relu", "limits", limit_points)
def draw_limits(points: Points, canvas: Canvas) -> None:
    titles = {False: "without biases", True: "with biases"}
    for axes, panel_points in panels(canvas, points, "bias", titles):
        axes.set(yscale="log", ylabel="f / f(0); the teacher has 0")
        axes.set(xlim=(0, 2), xlabel=r"$|||\theta|||$ of the critical point")
        labels = {kind: kind for kind in _DRAWN_KINDS}
        for style, rows in series(panel_points, "kind", labels):
            looks = {**style, "label": f"{style['label']} ({len(rows)})"}
            if style["label"] == "outside":
                looks["color"] = "grey"
            scatter(axes, rows, "norm", "risk_share", floor=_DRAWN_ZERO, **looks)
        axes.axvline(1.0, color="black", linestyle="--", linewidth=1)
        axes.legend(
            loc="upper center", bbox_to_anchor=(0.5, -0.15), ncols=2, fontsize=7
        )


def _label(net: tuple) -> str:
    """The label of (depth, bias) or (depth, width, bias)."""
    depth, *width, bias = net
    names = [
        f"ℓ = {depth}",
        *(f"k = {k}" for k in width),
        "biases" if bias else "no biases",
    ]
    return ", ".join(names)


def functional_points(run: Run) -> Iterator[dict]:
    """One row for each proved minimum: the gradient in the maps, and its lower bound.

    For the last block N15 of docs/theory/relu.md gives 2 sqrt(f / n), as B has
    orthonormal rows.
    """
    for record in of_kind(run, "search", "measured"):
        for proof in record["certificates"]:
            least = 2 * math.sqrt(proof["risk"] / (2 * record["pairs"]))
            found = proof["functional_gradient"]
            sides = {"least_gradient_in_the_maps": least, "gradient_in_the_maps": found}
            yield {**pick(record, "depth width bias"), **sides}


@figure("relu", "functional", functional_points)
def draw_functional(points: Points, canvas: Canvas) -> None:
    axes = canvas.subplots()
    columns = "least_gradient_in_the_maps", "gradient_in_the_maps"
    for style, rows in series(points, "depth bias", _label):
        style["label"] += f" ({len(rows)})"
        scatter(axes, rows, *columns, **style)
    ends = [end([point[columns[0]] for point in points]) for end in (min, max)]
    axes.plot(ends, ends, color="black", linestyle="--", linewidth=1, label="the bound")
    axes.set(xscale="log", yscale="log")
    axes.set(
        xlabel="least gradient by (N15), 2 √(f / n)", ylabel="gradient in the maps"
    )
    axes.legend(fontsize=8)


def ratio_points(run: Run) -> list[dict]:
    """One row for each net and norm: least, median and searched ‖∇f‖² / f."""
    records = of_kind(run, "gradient_ratio", "measured")
    counted = [{**record, "examples": 2 * record["pairs"]} for record in records]
    names = "norm=norms median_ratio least_ratio searched_ratio"
    return rows_of(counted, f"depth width bias examples {names}")


@figure("relu", "gradient_ratio", ratio_points)
def draw_ratio(points: Points, canvas: Canvas) -> None:
    axes = canvas.subplots()
    for place, (style, rows) in enumerate(series(points, "depth width bias", _label)):
        # The crosses of the nets stand side by side; several of them are 0.
        shift = 1.07 ** (place + 1)
        rows = [{**row, "beside": row["norm"] * shift} for row in rows]
        for line, x, name in (
            ("o-", "norm", "median_ratio"),
            ("o:", "norm", "least_ratio"),
            ("x", "beside", "searched_ratio"),
        ):
            curve(axes, rows, x, name, line, floor=_DRAWN_ZERO, **style)
            style["label"] = None
    axes.set(xscale="log", yscale="log")
    axes.set(ylabel="‖∇f‖² / f (bottom: 0)")
    axes.set_xlabel(r"norm of every $U_j$, $V_j$ and $s_j$")
    for line, label in (
        ("-", "median of random nets"),
        (":", "least of random nets"),
        ("x", "least found by descent"),
    ):
        axes.plot([], [], line, color="black", label=label)
    canvas.legend(loc="outside lower center", ncols=2, fontsize=8)


def training_points(run: Run) -> Iterator[dict]:
    """Curves of the risk of each kind of problem, and one row for each problem."""
    for record in of_kind(run, "training", "measured"):
        kind = {"problems": f"{record['errors']}, n = {record['examples']}"}
        steps = len(record["largest_curve"]) - 1
        for index, (most, median) in enumerate(
            zip(record["largest_curve"], record["median_curve"], strict=True)
        ):
            time = index / steps
            promised = record["final_share"] ** time
            yield {
                **kind,
                "time": time,
                "promised": promised,
                "largest": most,
                "median": median,
            }
        yield from (
            {**kind, **row}
            for row in rows_of(
                [record],
                "risk=risk_share_of_labels input=input_travel_over_promise "
                "output=output_travel_over_promise",
            )
        )


@figure("relu", "training", training_points)
def draw_training(points: Points, canvas: Canvas) -> None:
    by_time, by_risk = canvas.subplots(1, 2)
    timed = [point for point in points if "time" in point]
    for style, rows in series(timed, "problems", "{}".format):
        looks = {**style, "markevery": 0.2}
        curve(by_time, rows, "time", "largest", "o-", **looks)
        curve(by_time, rows, "time", "median", "o:", **looks | {"label": None})
    by_time.plot([], [], "-", color="black", label="largest of the problems")
    by_time.plot([], [], ":", color="black", label="median of the problems")
    curve(by_time, timed, "time", "promised", "--", color="black", label="promised")
    by_time.set(yscale="log", xlabel="time until the promised end", ylabel="f / f(0)")
    by_time.legend(fontsize=7)
    problems = [point for point in points if "risk" in point]
    for name, color, mark in (
        ("output", COLOURS[0], "o"),
        ("input", COLOURS[1], "x"),
    ):
        scatter(
            by_risk, problems, "risk", name, mark, color=color, label=f"{name} weights"
        )
    by_risk.axhline(1.0, color="black", linestyle="--", linewidth=1)
    by_risk.set(
        xscale="log", ylim=(0, 1.25), xlabel="f(0) over the mean square of the labels"
    )
    by_risk.set_ylabel("distance travelled over its bound")
    by_risk.legend(fontsize=8, ncols=2, loc="upper center")


def noise_points(run: Run) -> Iterator[dict]:
    """Times to half the risk, and the share of noisy starts that reach each bound."""
    records = of_kind(run, "noise", "measured")
    for row in rows_of(
        records, "depth width bias deviation=scales median_updates_to_half"
    ):
        if row["median_updates_to_half"] is not None:
            yield row
    for width, records_of_width in split(records, "width").items():
        starts = rows_of(records_of_width, "scale=scales share=final_risk_share")
        ends = [start["share"] for start in starts if start["scale"] > 0]
        for bound in _BOUNDS:
            yield {
                "width": width,
                "starts": len(ends),
                "optimal_share": run.config["optimal_share"],
                "bound_of_risk_share": bound,
                "share_of_starts": sum(share <= bound for share in ends) / len(ends),
            }


@figure("relu", "noise", noise_points)
def draw_noise(points: Points, canvas: Canvas) -> None:
    by_bound, by_scale = canvas.subplots(1, 2)
    shares = [point for point in points if "share_of_starts" in point]
    by_width = series(shares, "width", "width {}".format)
    curves(by_bound, by_width, "bound_of_risk_share", "share_of_starts", "o-")
    for optimal in split(shares, "optimal_share"):
        by_bound.axvline(
            optimal, color="black", linestyle="--", linewidth=1, label="optimal"
        )
    by_bound.set(xlabel="bound of f / f(0)", ylabel="share of starts that end below it")
    by_bound.set_ylim(0, 1.05)
    times = [point for point in points if "median_updates_to_half" in point]
    widest = [p for p in times if p["width"] == max(point["width"] for point in times)]
    nets = series(widest, "depth bias", _label)
    for place, (looks, rows) in enumerate(nets):
        # Two nets have the same values: they stand side by side.
        placed = [{**row, "place": row["deviation"] * 1.3**place} for row in rows]
        curve(by_scale, placed, "place", "median_updates_to_half", "o-", **looks)
    by_scale.set_xlabel("deviation of the start, widest net")
    by_scale.set_ylabel("median updates to half the risk")
    for axes in (by_bound, by_scale):
        axes.set_xscale("log")
        # Below the axes: inside them the names would cover the curves.
        axes.legend(
            loc="upper center", bbox_to_anchor=(0.5, -0.13), ncols=2, fontsize=8
        )
    by_bound.set_xticks(_BOUNDS[::4])
