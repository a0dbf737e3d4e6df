"""Figures of gradient descent on linear nets: convergence, depth, and noise."""

import statistics
from collections.abc import Iterator
from typing import Any, NamedTuple

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
)
from identity_matters.report.figures.registry import figure
from identity_matters.report.figures.style import COLOURS, DEPTH_TIMES_NORM, NORM
from identity_matters.report.records import of_kind, pick, rows_of
from identity_matters.runs import Run

# Certificates against the truth, and times to escape (experiments/convergence.py)

# The largest (f(0) - C) / sigma for the certificates V4 (with kappa = 4/3; a shorter
# step reaches as far as V1), V1 and V3 of docs/theory/convergence.md.
_CERTIFIED = {
    "certified, descent": (1 / 18, "-."),
    "certified, flow": (1 / 10, "--"),
    "certified, flow, Σ > 0": (1 / 4, ":"),
}
_ESCAPED = {-0.5: "R = −1/2", 0.5: "R = 1/2"}  # the other targets are not drawn


def inside_points(run: Run) -> list[dict]:
    """One row for each shape and size of f(0) - C beyond the certificates."""
    names = "depth width excess_over_sigma converged_percent"
    return rows_of(of_kind(run, "beyond", "question"), names)


@figure("convergence", "inside", inside_points)
def draw_inside(points: Points, canvas: Canvas) -> None:
    """The share that converged over f(0) − C, and where certificates end."""
    axes = canvas.subplots()
    nets = series(points, "depth width", lambda net: f"ℓ = {net[0]}, d = {net[1]}")
    curves(axes, nets, "excess_over_sigma", "converged_percent")
    for label, (threshold, style) in _CERTIFIED.items():
        axes.axvline(
            threshold, color="black", linestyle=style, linewidth=1, label=label
        )
    axes.set(
        xscale="log",
        xlabel=r"(f(0) − C) / $\sigma_{\min}(\Sigma)$",
        ylabel="converged from zero, %",
    )
    canvas.legend(loc="outside lower center", ncols=4, fontsize=8)


def escape_points(run: Run) -> Iterator[dict]:
    """One row for each target of `_ESCAPED`, depth and noise: medians of the draws."""
    for record in of_kind(run, "escape", "question"):
        first, *others = record["target"]  # the diagonal of R
        if others or first not in _ESCAPED:
            continue
        for entry in record["by_noise"]:
            # A draw that would take too long was not run, and counts as max_updates.
            not_run = [record["max_updates"]] * entry["not_run"]
            measured = entry["measured_updates"] + not_run
            yield {
                "target": first,
                "depth": record["depth"],
                "noise": entry["noise"],
                "predicted_updates": statistics.median_low(entry["predicted_updates"]),
                "measured_updates": statistics.median_low(measured),
            }


@figure("convergence", "escape", escape_points)
def draw_escape(points: Points, canvas: Canvas) -> None:
    """Updates to the target over depth: lines are predicted, marks measured."""
    for axes, in_panel in panels(canvas, points, "target", _ESCAPED, legend=3):
        axes.set(yscale="log", xlabel="depth ℓ", ylabel="updates to the target, median")
        for style, rows in series(in_panel, "noise", "noise {:g}".format):
            predicted = style | {"label": f"predicted, {style['label']}"}
            measured = style | {"label": f"measured, {style['label']}"}
            curve(axes, rows, "depth", "predicted_updates", mark=None, **predicted)
            curve(axes, rows, "depth", "measured_updates", line=None, **measured)


# Training over depth, stuck targets, and noise (experiments/linear_training.py)
_NETWORKS = {
    "residual": "residual, near zero",
    "standard": "standard, near zero",
    "standard_scaled": "standard, variance 1/d",
}
# The order of the curves in the legend; other starts are not drawn.
_STARTS = {
    "zero": "zero weights",
    "gaussian_maps": "fixed Gaussian maps",
    "modified_identity_maps": "fixed [I 0] and [0 I] maps",
    "last_layer_minus_identity": "last layer at −I",
    "factorization": "near the factorization",
}
# The curves of l |||A|||: column -> its looks. The bounds have those of the figures of
# factorizations.
_NORM_LOOKS: dict[str, Looks] = {
    "bound_iclr2017_times_depth": {
        "color": "0.2",
        "line": ":",
        "mark": None,
        "label": "printed bound, ICLR 2017",
    },
    "bound_v3_times_depth": {
        "color": "0.2",
        "line": "--",
        "mark": None,
        "label": "printed bound, v3",
    },
    "norm_times_depth": {
        "color": COLOURS[0],
        "line": None,
        "label": "gradient descent, at convergence",
    },
    "least_norm_times_depth": {
        "color": "0.2",
        "line": "-",
        "mark": None,
        "label": "lower bound, of every factorization",
    },
    "depth": {
        "color": "grey",
        "line": "-.",
        "mark": None,
        "label": f"the wall, {NORM} = 1",
    },
}


class _NotReached(NamedTuple):
    """How draws of the noise are shown that did not reach the tolerance.

    The height is relative to the largest number of updates, so that they are drawn
    above all others.
    """

    marker: str
    height: float


_NOT_REACHED = {
    "out of updates": _NotReached(marker="x", height=1.6),
    "diverged": _NotReached(marker="*", height=3.0),
}
_FEW_PLACES = 6  # a curve of fewer has its marks
_TARGETS = {
    "plane": "two eigenvalues −1, det R > 0",
    "negative": "one eigenvalue < 0, det R < 0",
}


def depth_points(run: Run) -> list[dict]:
    """One row for each trained network."""
    names = "network depth problem_seed start_gradient_norm converged updates"
    return rows_of(run.records, names) if run.variant == "depth" else []


@figure("linear_training", "depth", depth_points)
def draw_depth(points: Points, canvas: Canvas) -> None:
    """Over depth: left the gradient at the start, right the updates needed."""
    gradient, updates = canvas.subplots(1, 2)
    for place, (looks, rows) in enumerate(series(points, "network", _NETWORKS)):
        # The networks stand side by side at each depth.
        shift = 1.15 ** (place - 1)
        placed = [{**row, "place": row["depth"] * shift} for row in rows]
        # Some gradients are exactly 0 in float64.
        curve(
            gradient,
            placed,
            "place",
            "start_gradient_norm",
            line=None,
            floor=1e-20,
            **looks,
        )
        _draw_updates(updates, placed, looks)
    depths = [point["depth"] for point in points]
    for axes in (gradient, updates):
        axes.set_xscale("log", base=2)
        axes.set(
            yscale="log", xlabel="depth ℓ", xlim=(min(depths) / 1.3, max(depths) * 1.3)
        )
    gradient.set_ylabel("norm of the gradient at the start (bottom: 1e-20 or less)")
    updates.set_ylabel("updates to the tolerance")
    gradient.legend(loc=(0.02, 0.1), fontsize=7)
    if any(map(_is_mixed, split(points, "network depth").values())):
        (hollow,) = updates.plot([], [], "o", color="grey", markerfacecolor="none")
        updates.legend([hollow], ["some did not get there"], fontsize=7)


def _is_mixed(trainings: Points) -> bool:
    """Whether some of the trainings converged, and others did not."""
    return len({training["converged"] for training in trainings}) > 1


def _draw_updates(axes: Any, points: Points, looks: Looks) -> None:
    """The updates of one kind of network; hollow where some did not converge."""
    for at_place in split(points, "place").values():
        converged = [point for point in at_place if point["converged"]]
        hollow = {"markerfacecolor": "none"} if _is_mixed(at_place) else {}
        curve(axes, converged, "place", "updates", line=None, **looks | hollow)


def norm_points(run: Run) -> Iterator[dict]:
    """One row for each residual net: |||A||| l at convergence, and its bounds."""
    theory = "bound_v3_times_depth bound_iclr2017_times_depth least_norm_times_depth"
    for record in run.records if run.variant == "depth" else ():
        if record["network"] == "residual" and record["converged"]:
            yield {
                **pick(record, "depth problem_seed"),
                "norm_times_depth": record["norm"] * record["depth"],
                "largest_norm_times_depth": record["largest_norm"] * record["depth"],
                **pick(record, theory),
            }


@figure("linear_training", "norm", norm_points)
def draw_norm(points: Points, canvas: Canvas) -> None:
    """l |||A||| over depth between its bounds, a panel for each target."""
    seeds = sorted(split(points, "problem_seed"))
    titles = {seed: f"target {number}" for number, seed in enumerate(seeds, start=1)}
    top = 1.5 * max(point["bound_iclr2017_times_depth"] for point in points)
    for axes, in_panel in panels(canvas, points, "problem_seed", titles, legend=2):
        axes.set(xlabel="depth ℓ", ylabel=DEPTH_TIMES_NORM)
        axes.set(yscale="log", ylim=(1, top))
        for name, looks in _NORM_LOOKS.items():
            curve(axes, in_panel, "depth", name, **looks)
        axes.set_xscale("log", base=2)


def stuck_points(run: Run) -> list[dict]:
    """The curves of all repeats, with the widest Gaussian maps, point by point."""
    if run.variant != "stuck_targets":
        return []
    widest = max(record["width"] for record in run.records)
    shown = [
        record
        for record in run.records
        if record["start"] != "gaussian_maps" or record["width"] == widest
    ]
    lists = "updates=curve_updates excess_risk=curve_excess_risk"
    return rows_of(
        shown, f"target start width repeat predicted_stall_excess_risk {lists}"
    )


@figure("linear_training", "stuck", stuck_points)
def draw_stuck(points: Points, canvas: Canvas) -> None:
    """The excess risk of each start over the updates, and the predicted stall."""
    for axes, in_panel in panels(canvas, points, "target", _TARGETS, legend=3):
        axes.set(yscale="log", xlabel="updates", ylabel="excess risk f − C")
        for style, of_start in series(in_panel, "start", _STARTS):
            if len(split(of_start, "updates")) < _FEW_PLACES:
                style |= {"line": "-", "mark": OWN}
            else:
                style |= {"line": OWN, "mark": None}
            # The modified identity maps reach the optimum up to rounding.
            style |= {"linewidth": 1, "floor": 1e-16}
            # Runs stop after different numbers of updates, so a median would jump.
            for rows in split(of_start, "seed repeat").values():
                curve(axes, rows, "updates", "excess_risk", **style)
        predicted = in_panel[0]["predicted_stall_excess_risk"]
        axes.axhline(
            predicted,
            color="black",
            linestyle=":",
            linewidth=1,
            label="predicted stall",
        )
        # A symmetric logarithmic axis starts at 0, as the curves do.
        axes.set_xscale("symlog", linthresh=1)
        axes.set_xlim(left=0)


def noise_points(run: Run) -> list[dict]:
    """One row for each draw; without convergence, with the updates until it stopped."""
    if run.variant != "noise":
        return []
    records = [
        {**record, "max_updates": record["descent"]["max_updates"]}
        for record in run.records
    ]
    names = "target depth noise_std=noise_stds updates converged max_updates"
    return rows_of(records, names)


@figure("linear_training", "noise", noise_points)
def draw_noise(points: Points, canvas: Canvas) -> None:
    """The updates of each draw over the noise, a colour for each depth."""
    depths = {depth: f"ℓ = {depth}" for depth in sorted(split(points, "depth"))}
    targets = dict(reversed(_TARGETS.items()))
    most_updates = max(point["updates"] for point in points)
    for axes, in_panel in panels(canvas, points, "target", targets, legend=5):
        axes.set(xscale="log", xlabel="standard deviation of the noise")
        axes.set(yscale="log", ylabel="updates to the tolerance, each draw")
        for place, (looks, of_depth) in enumerate(series(in_panel, "depth", depths)):
            # Shift the depths sideways, so that their points do not overlap.
            shift = 1.12 ** (place - len(depths) / 2)
            placed = [{**row, "place": row["noise_std"] * shift} for row in of_depth]
            reached = [row for row in placed if row["converged"]]
            not_reached = [row for row in placed if not row["converged"]]
            scatter(axes, reached, "place", "updates", **looks)
            # The counts of neighbouring depths stand on either side of their marks.
            side = "left" if place == len(depths) - 1 else "right"
            _draw_not_reached(
                axes, not_reached, most_updates, colour=looks["color"], side=side
            )
        for label, shown_as in _NOT_REACHED.items():
            # Grey: of every depth.
            axes.plot([], [], shown_as.marker, color="grey", label=label)


def _draw_not_reached(
    axes: Any, points: Points, most_updates: int, *, colour: str, side: str
) -> None:
    """Marks draws that did not reach the tolerance, above all others, and counts them.

    At its own height a draw that diverged would look the fastest: it stopped early.
    The marks of one place lie on one another.
    """
    marked: list[dict] = []
    for point in points:
        out_of_updates = point["updates"] >= point["max_updates"]
        ending = "out of updates" if out_of_updates else "diverged"
        top = _NOT_REACHED[ending].height * most_updates
        marked.append({**point, "ending": ending, "top": top})
    for (ending, place, top), alike in split(marked, "ending place top").items():
        marker = _NOT_REACHED[ending].marker
        scatter(axes, alike, "place", "top", mark=marker, color=colour)
        axes.annotate(
            str(len(alike)),
            xy=(place, top),
            xytext=(0, 3),  # above the mark
            textcoords="offset points",
            ha=side,
            va="bottom",
            fontsize=7,
            color=colour,
        )
