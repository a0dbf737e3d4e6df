"""Figures of minibatch descent on linear nets: the risk's floor and proved bound."""

from collections.abc import Iterator

from identity_matters.report.figures.drawing import (
    Canvas,
    Looks,
    Points,
    curve,
    panels,
    series,
)
from identity_matters.report.figures.registry import figure
from identity_matters.report.figures.style import COLOURS, DEPTH_TIMES_NORM
from identity_matters.report.records import of_kind
from identity_matters.runs import Run

_MARK_EVERY = 5  # of the updates whose risk is known


def bound_points(run: Run) -> Iterator[dict]:
    """One row for each depth, batch size and number of updates that was kept."""
    for record in run.records:
        if record["certified"]:
            curves = (record[f"curve_{name}"] for name in ("updates", "risk", "bound"))
            for updates, risk, bound in zip(*curves, strict=True):
                yield {
                    "depth": record["depth"],
                    "batch_examples": record["batch_examples"],
                    "updates": updates,
                    "risk": risk,
                    "bound": bound,
                    "predicted_risk": record["predicted_risk"],
                }


@figure("sampled_bound", "risk", bound_points)
def draw_bound(points: Points, canvas: Canvas) -> None:
    """The measured risk over the updates, its proved bound and its floor."""
    for axes, in_panel in panels(canvas, points, "depth", "{} layers".format, legend=3):
        axes.set(yscale="log", xlabel="updates", ylabel="f − C, mean over runs")
        for looks, rows in series(in_panel, "batch_examples", "B = {}".format):
            label = looks["label"]
            curve(
                axes,
                rows,
                "updates",
                "risk",
                markevery=_MARK_EVERY,
                **looks | {"label": f"measured, {label}"},
            )
            curve(
                axes,
                rows,
                "updates",
                "bound",
                line="--",
                markevery=_MARK_EVERY,
                **looks | {"label": f"bound, {label}"},
            )
            floor = looks | {"label": f"floor (S1), {label}", "linewidth": 0.8}
            curve(axes, rows, "updates", "predicted_risk", line=":", mark=None, **floor)


def floor_points(run: Run) -> Iterator[dict]:
    """One row for each evaluation of the trainings whose floor is predicted."""
    results = {
        record["cell"]: record
        for record in run.records
        if "predicted_excess_risk" in record
    }
    if not results:
        return  # another variant, whose records have no kind
    for record in of_kind(run, "evaluation"):
        if result := results.get(record["cell"]):
            yield {
                "depth": result["depth"],
                "step": record["step"],
                "excess_risk": record["test_loss"],
                "predicted_excess_risk": result["predicted_excess_risk"],
                # For these nets, bounds of ||A_i|| from above, not ||h|| / ||x||.
                "norm": max(record["residual_ratio"]),
            }


@figure("linear_sampled", "floor", floor_points)
def draw_floor(points: Points, canvas: Canvas) -> None:
    """Left the risk over the updates and its predicted floor, right l |||A|||."""
    left, right = canvas.subplots(1, 2)
    with_product = [{**p, "norm_times_depth": p["depth"] * p["norm"]} for p in points]
    for looks, rows in series(with_product, "depth", "{} layers".format):
        curve(left, rows, "step", "excess_risk", markevery=_MARK_EVERY, **looks)
        floor: Looks = {"line": ":", "mark": None, "color": looks["color"]}
        curve(left, rows, "step", "predicted_excess_risk", **floor)
        curve(right, rows, "step", "norm_times_depth", markevery=_MARK_EVERY, **looks)
    left.plot([], [], ":", color=COLOURS[-1], label="floor that is predicted (S1)")
    left.set(yscale="log", xlabel="updates", ylabel="f − C")
    right.set(xlabel="updates", ylabel=f"{DEPTH_TIMES_NORM}, at most")
    left.legend(fontsize=8)
