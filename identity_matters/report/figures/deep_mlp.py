"""Figures of experiments/deep_mlp.py: trainability, gradients and weights over depth."""

from collections.abc import Iterator
from typing import Any

from matplotlib.figure import Figure as Canvas

from identity_matters.report.figure import Figure, Looks, curve, panels, series, split, zipped
from identity_matters.runs import Run

# Losses of nets that diverged are drawn at this height, and gradients below float32 at that.
_DRAWN_DIVERGED_LOSS = 2.0
_DRAWN_ZERO_GRADIENT = 1e-24
_VARIANTS = ("digits/relu", "digits/linear", "digits/orthogonal")
_ACTIVATIONS = {"linear": "linear nets", "relu": "ReLU nets"}
# (identity, initialization) -> label.
_NETS = {
    (True, "near_zero"): "with the identity, near zero",
    (False, "near_zero"): "without, same weights",
    (False, "standard"): "without, standard (He et al.)",
    (False, "orthogonal"): "without, orthogonal",
}
_LABELS = {net: net for net in _NETS.values()}


def _labelled(run: Run) -> Iterator[tuple[dict, dict]]:
    """The nets of the default variants: (labels, record)."""
    if run.variant in _VARIANTS:
        for record in run.records:
            model = record["model"]
            net = _NETS[model["identity"], model["initialization"]]
            activation, depth = _ACTIVATIONS[model["activation"]], record["depth"]
            yield {"activation": activation, "net": net, "depth": depth}, record


def trainability_points(run: Run) -> list[dict]:
    """One row for each net: its loss and error, and how many directions are left at its start."""
    return [
        {
            **labels,
            "train_loss": record.get("train_loss", float("inf")),
            "train_error_percent": record.get("train_error_percent"),
            "linear_optimum_loss": record["linear_optimum_loss"],
            "start_effective_dimension": record["start_effective_dimension"],
        }
        for labels, record in _labelled(run)
    ]


def gradient_points(run: Run) -> list[dict]:
    """One row for each layer of the deepest nets and of those of 16 layers."""
    nets = list(_labelled(run))
    deepest = max((labels["depth"] for labels, _ in nets), default=0)
    return [
        row
        for labels, record in nets
        if labels["depth"] in (16, deepest)
        for row in zipped(
            labels,
            layer=record["layers"],
            place=[layer / labels["depth"] for layer in record["layers"]],
            gradient_norm=record["gradient_norms"],
        )
    ]


def norm_points(run: Run) -> list[dict]:
    """One row for each net with the identity: l |||A||| at its end, and its l x rate."""
    return [
        {
            "activation": labels["activation"],
            "depth": labels["depth"],
            "norm_times_depth": record["norm"] * record["depth"],
            "rate_times_depth": record["rate_times_depth"],
        }
        for labels, record in _labelled(run)
        if "norm" in record
    ]


def _over_depth(points: list[dict], canvas: Canvas, ylabel: str) -> Iterator[tuple[Any, list]]:
    """Panels by activation over the depths that there are, with one legend."""
    depths = sorted({point["depth"] for point in points})
    looks: Looks = {"ylabel": ylabel, "xscale": "log", "xlabel": "layers l", "legend": 2}
    for axes, own in panels(canvas, points, "activation", **looks):
        axes.set_xticks(depths, map(str, depths))
        axes.set_xticks([], minor=True)
        yield axes, own


def draw_trainability(points: list[dict], canvas: Canvas) -> None:
    for axes, own in _over_depth(points, canvas, "training loss E ‖y − f(x)‖²"):
        for style, rows in series(own, "net", _LABELS):
            losses = [min(row["train_loss"], _DRAWN_DIVERGED_LOSS) for row in rows]
            shown = [{"depth": r["depth"], "loss": x} for r, x in zip(rows, losses, strict=True)]
            curve(axes, shown, "depth", "loss", **style)
        best = own[0]["linear_optimum_loss"]
        axes.axhline(best, color="black", linestyle="--", linewidth=1, label="best linear map")


def draw_directions(points: list[dict], canvas: Canvas) -> None:
    for axes, own in _over_depth(points, canvas, "effective dimension of h_{l−1}"):
        for style, rows in series(own, "net", _LABELS):
            curve(axes, rows, "depth", "start_effective_dimension", **style)


def draw_gradients(points: list[dict], canvas: Canvas) -> None:
    deepest = max(point["depth"] for point in points)
    looks: Looks = {
        "yscale": "log",
        "xlabel": "layer j / l",
        "ylabel": "norm of the gradient to W_j",
    }
    for axes, own in panels(canvas, points, "activation", legend=2, **looks):
        for net, several in series(own, "net", _LABELS):
            for depth, rows in split(several, "depth").items():
                style = net | {"label": f"{net['label']}, l = {depth}"}
                line = "-" if depth == deepest else "--"
                curve(
                    axes, rows, "place", "gradient_norm", line, floor=_DRAWN_ZERO_GRADIENT, **style
                )


def draw_norms(points: list[dict], canvas: Canvas) -> None:
    rates = {rate: f"l × rate = {rate:g}" for rate in sorted(split(points, "rate_times_depth"))}
    for axes, own in _over_depth(points, canvas, "l |||A||| after training"):
        axes.set_yscale("log")
        for style, rows in series(own, "rate_times_depth", rates):
            curve(axes, rows, "depth", "norm_times_depth", **style)


FIGURES = (
    Figure("deep_mlp_trainability", "deep_mlp", trainability_points, draw_trainability),
    Figure("deep_mlp_directions", "deep_mlp", trainability_points, draw_directions),
    Figure("deep_mlp_gradients", "deep_mlp", gradient_points, draw_gradients),
    Figure("deep_mlp_norms", "deep_mlp", norm_points, draw_norms),
)
