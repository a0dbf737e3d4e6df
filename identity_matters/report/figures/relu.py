"""Figures of experiments/relu.py: bad critical points, gradient ratios, noise."""

import math
from collections.abc import Iterator
from typing import Any

from identity_matters.report.figures.drawing import (
    OWN,
    Canvas,
    Looks,
    Points,
    curve,
    curves,
    panels,
    scatter,
    series,
    split,
    with_column,
)
from identity_matters.report.figures.registry import figure
from identity_matters.report.figures.style import COLOURS
from identity_matters.report.records import of_kind, pick, rows_of
from identity_matters.runs import Run

_DRAWN_ZERO = 1e-20  # values of rounding size, 0 included, are drawn at this height
# Kinds of critical points, in the order of the legend; others are not drawn.
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
    """The risk of each critical point over its norm, a colour for each kind."""
    titles = {False: "without biases", True: "with biases"}
    kinds = {kind: kind for kind in _DRAWN_KINDS}
    for axes, panel_points in panels(canvas, points, "bias", titles):
        axes.set(yscale="log", ylabel="f / f(0); the teacher has 0")
        axes.set(xlim=(0, 2), xlabel=r"$|||\theta|||$ of the critical point")
        for looks, rows in series(panel_points, "kind", kinds):
            if looks["label"] == "outside":
                looks["color"] = "grey"
            looks["label"] += f" ({len(rows)})"
            scatter(axes, rows, "norm", "risk_share", floor=_DRAWN_ZERO, **looks)
        axes.axvline(1.0, color="black", linestyle="--", linewidth=1)
        axes.legend(
            loc="upper center", bbox_to_anchor=(0.5, -0.15), ncols=2, fontsize=7
        )


def _label(net: tuple) -> str:
    """The label of (depth, bias)."""
    depth, bias = net
    return f"ℓ = {depth}, {'biases' if bias else 'no biases'}"


def _label_with_width(net: tuple) -> str:
    """The label of (depth, width, bias)."""
    depth, width, bias = net
    return f"ℓ = {depth}, k = {width}, {'biases' if bias else 'no biases'}"


def functional_points(run: Run) -> Iterator[dict]:
    """One row for each proved minimum: the gradient in the maps, and its lower bound.

    For the last block N15 of docs/theory/relu.md gives 2 sqrt(f / n), as B has
    orthonormal rows.
    """
    for record in of_kind(run, "search", "measured"):
        examples = 2 * record["pairs"]
        for proof in record["certificates"]:
            yield {
                **pick(record, "depth width bias"),
                "least_gradient_in_the_maps": 2 * math.sqrt(proof["risk"] / examples),
                "gradient_in_the_maps": proof["functional_gradient"],
            }


@figure("relu", "functional", functional_points)
def draw_functional(points: Points, canvas: Canvas) -> None:
    """The gradient in the maps over its lower bound, a colour for each kind of net."""
    axes = canvas.subplots()
    columns = "least_gradient_in_the_maps", "gradient_in_the_maps"
    for looks, rows in series(points, "depth bias", _label):
        looks["label"] += f" ({len(rows)})"
        scatter(axes, rows, *columns, **looks)
    bounds = [point["least_gradient_in_the_maps"] for point in points]
    ends = [min(bounds), max(bounds)]
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
    """The ratios over the norm: for each net two lines, and crosses for the search."""
    axes = canvas.subplots()
    nets = series(points, "depth width bias", _label_with_width)
    for place, (looks, rows) in enumerate(nets):
        # The crosses of the nets stand side by side; several of them are 0.
        shift = 1.07 ** (place + 1)
        shifted = [{**row, "beside": row["norm"] * shift} for row in rows]
        looks |= {"floor": _DRAWN_ZERO}
        unnamed = looks | {"label": None}
        crosses = unnamed | {"line": None, "mark": "x"}
        curve(axes, rows, "norm", "median_ratio", **looks)
        curve(axes, rows, "norm", "least_ratio", line=":", **unnamed)
        curve(axes, shifted, "beside", "searched_ratio", **crosses)
    axes.set(xscale="log", yscale="log")
    axes.set(ylabel="‖∇f‖² / f (bottom: 0)")
    axes.set_xlabel(r"norm of every $U_j$, $V_j$ and $s_j$")
    _name_in_black(axes, "-", "median of random nets")
    _name_in_black(axes, ":", "least of random nets")
    _name_in_black(axes, "x", "least found by descent")
    canvas.legend(loc="outside lower center", ncols=2, fontsize=8)


def _name_in_black(axes: Any, line: str, label: str) -> None:
    """An entry of the legend for a line or mark that has every colour in the panel."""
    axes.plot([], [], line, color="black", label=label)


def training_points(run: Run) -> Iterator[dict]:
    """For each kind of problem the rows of its curves, then those of its problems."""
    for record in of_kind(run, "training", "measured"):
        yield from _risk_over_time(record)
        yield from _travel_of_problems(record)


def _kind_of_problem(record: dict) -> str:
    """The kind of the problems that a record is of, in words."""
    return f"{record['errors']}, n = {record['examples']}"


def _risk_over_time(record: dict) -> Iterator[dict]:
    """One row for each time: f / f(0), promised, and measured over the problems."""
    steps = len(record["largest_curve"]) - 1
    for index, (largest, median) in enumerate(
        zip(record["largest_curve"], record["median_curve"], strict=True)
    ):
        time = index / steps
        yield {
            "problems": _kind_of_problem(record),
            "time": time,
            "promised": record["final_share"] ** time,
            "largest": largest,
            "median": median,
        }


def _travel_of_problems(record: dict) -> Iterator[dict]:
    """One row for each problem: its risk, and how far both layers travelled."""
    names = (
        "risk=risk_share_of_labels input=input_travel_over_promise"
        " output=output_travel_over_promise"
    )
    for row in rows_of([record], names):
        yield {"problems": _kind_of_problem(record), **row}


@figure("relu", "training", training_points)
def draw_training(points: Points, canvas: Canvas) -> None:
    """Left the risk over time under its promise, right the distances that follow."""
    by_time, by_risk = canvas.subplots(1, 2)
    _draw_risk_over_time(by_time, with_column(points, "time"))
    _draw_travel(by_risk, with_column(points, "risk"))


def _draw_risk_over_time(axes: Any, points: Points) -> None:
    """The largest and the median risk of each kind of problem, and the promise."""
    for looks, rows in series(points, "problems"):
        few_marks = looks | {"markevery": 0.2}
        curve(axes, rows, "time", "largest", **few_marks)
        curve(axes, rows, "time", "median", line=":", **few_marks | {"label": None})
    _name_in_black(axes, "-", "largest of the problems")
    _name_in_black(axes, ":", "median of the problems")
    promised: Looks = {
        "line": "--",
        "mark": None,
        "color": "black",
        "label": "promised",
    }
    curve(axes, points, "time", "promised", **promised)
    axes.set(yscale="log", xlabel="time until the promised end", ylabel="f / f(0)")
    axes.legend(fontsize=7)


def _draw_travel(axes: Any, points: Points) -> None:
    """How far the weights of each layer travelled, over its bound: at most 1."""
    for layer, colour, mark in (
        ("output", COLOURS[0], OWN),
        ("input", COLOURS[1], "x"),
    ):
        label = f"{layer} weights"
        scatter(axes, points, "risk", layer, mark=mark, color=colour, label=label)
    axes.axhline(1.0, color="black", linestyle="--", linewidth=1)
    axes.set(
        xscale="log", ylim=(0, 1.25), xlabel="f(0) over the mean square of the labels"
    )
    axes.set_ylabel("distance travelled over its bound")
    axes.legend(fontsize=8, ncols=2, loc="upper center")


_BOUNDS_OF_RISK_SHARE = tuple(10.0**power for power in range(-14, 1))  # on f / f(0)


def noise_points(run: Run) -> Iterator[dict]:
    """The rows of the times to half the risk, then those of the shares of starts."""
    records = of_kind(run, "noise", "measured")
    yield from _times_to_half(records)
    for records_of_width in split(records, "width").values():
        yield from _shares_of_starts(records_of_width, run.config["optimal_share"])


def _times_to_half(records: list[dict]) -> Iterator[dict]:
    """One row for each net and deviation from which half the risk was reached."""
    names = "depth width bias deviation=scales median_updates_to_half"
    for row in rows_of(records, names):
        if row["median_updates_to_half"] is not None:
            yield row


def _shares_of_starts(records: list[dict], optimal_share: float) -> Iterator[dict]:
    """One row for each bound: how many noisy starts of one width end below it."""
    starts = rows_of(records, "width scale=scales share=final_risk_share")
    noisy = [start for start in starts if start["scale"] > 0]
    for bound in _BOUNDS_OF_RISK_SHARE:
        below = sum(start["share"] <= bound for start in noisy)
        yield {
            "width": noisy[0]["width"],
            "starts": len(noisy),
            "optimal_share": optimal_share,
            "bound_of_risk_share": bound,
            "share_of_starts": below / len(noisy),
        }


@figure("relu", "noise", noise_points)
def draw_noise(points: Points, canvas: Canvas) -> None:
    """Left how many noisy starts end below each bound, right how soon they halve f."""
    by_bound, by_deviation = canvas.subplots(1, 2)
    _draw_shares_of_starts(by_bound, with_column(points, "share_of_starts"))
    _draw_times_to_half(by_deviation, with_column(points, "median_updates_to_half"))
    for axes in (by_bound, by_deviation):
        axes.set_xscale("log")
        # Below the axes: inside them the names would cover the curves.
        axes.legend(
            loc="upper center", bbox_to_anchor=(0.5, -0.13), ncols=2, fontsize=8
        )
    by_bound.set_xticks(_BOUNDS_OF_RISK_SHARE[::4])


def _draw_shares_of_starts(axes: Any, points: Points) -> None:
    """A curve for each width over the bounds, and where a start counts as optimal."""
    by_width = series(points, "width", "width {}".format)
    curves(axes, by_width, "bound_of_risk_share", "share_of_starts")
    for optimal_share in split(points, "optimal_share"):
        axes.axvline(
            optimal_share, color="black", linestyle="--", linewidth=1, label="optimal"
        )
    axes.set(xlabel="bound of f / f(0)", ylabel="share of starts that end below it")
    axes.set_ylim(0, 1.05)


def _draw_times_to_half(axes: Any, points: Points) -> None:
    """A curve for each of the widest nets over the deviation of its start."""
    by_width = split(points, "width")
    widest = by_width[max(by_width)]
    for place, (looks, rows) in enumerate(series(widest, "depth bias", _label)):
        # Two nets have the same values: they stand side by side.
        shifted = [{**row, "beside": row["deviation"] * 1.3**place} for row in rows]
        curve(axes, shifted, "beside", "median_updates_to_half", **looks)
    axes.set_xlabel("deviation of the start, widest net")
    axes.set_ylabel("median updates to half the risk, if reached")
