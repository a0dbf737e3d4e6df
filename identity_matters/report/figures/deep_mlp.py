"""Figures of experiments/deep_mlp.py: trainability, gradients, weights over depth."""

from collections.abc import Iterator
from typing import Any

from identity_matters.report.figures.drawing import (
    Canvas,
    Points,
    curve,
    panels,
    series,
    split,
)
from identity_matters.report.figures.registry import figure
from identity_matters.report.figures.style import DEPTH_TIMES_NORM
from identity_matters.report.records import pick, rows_of
from identity_matters.runs import Run

_VARIANTS = ("digits/relu", "digits/linear", "digits/orthogonal")
_ACTIVATIONS = {"linear": "linear nets", "relu": "ReLU nets"}
_NO_GRADIENT = 1e-24  # where 0 is drawn
_LARGEST_LOSS = 2.0  # where larger losses are drawn, those of diverged nets among them
_SHALLOW_DEPTH = 16  # of the nets whose gradients are shown beside the deepest nets'
NETS = {  # (identity, initialization) -> label
    (True, "near_zero"): "with the identity, near zero",
    (False, "near_zero"): "without, same weights",
    (False, "standard"): "without, standard (He et al.)",
    (False, "orthogonal"): "without, orthogonal",
}
_NET_LABELS = {net: net for net in NETS.values()}
# The orthogonal nets' curve may lie on that of the nets with the identity: these show
# between its dashes.
_LINES = dict.fromkeys(NETS.values(), "-") | {NETS[False, "orthogonal"]: "--"}


def _labelled(run: Run) -> Iterator[dict]:
    """The records of the default variants, with labels of activation and net."""
    if run.variant not in _VARIANTS:
        return
    for record in run.records:
        model = record["model"]
        net = NETS[model["identity"], model["initialization"]]
        yield {**record, "activation": _ACTIVATIONS[model["activation"]], "net": net}


def trainability_points(run: Run) -> list[dict]:
    """Loss, error, and effective dimension at the start, of each net."""
    diverged = {"train_loss": float("inf"), "train_error_percent": None}
    names = (
        "train_loss train_error_percent linear_optimum_loss start_effective_dimension"
    )
    nets = [diverged | record for record in _labelled(run)]
    return rows_of(nets, f"activation net depth {names}")


def gradient_points(run: Run) -> list[dict]:
    """One row for each layer of the nets of _SHALLOW_DEPTH and of the deepest ones."""
    nets = list(_labelled(run))
    deepest = max((record["depth"] for record in nets), default=0)
    shown = [record for record in nets if record["depth"] in (_SHALLOW_DEPTH, deepest)]
    placed = [
        {**record, "places": [layer / record["depth"] for layer in record["layers"]]}
        for record in shown
    ]
    names = "layer=layers place=places gradient_norm=gradient_norms"
    return rows_of(placed, f"activation net depth {names}")


def norm_points(run: Run) -> Iterator[dict]:
    """l |||A||| after training and l x learning rate of each net with the identity.

    A net that diverged has no norm.
    """
    for record in _labelled(run):
        if record["model"]["identity"]:
            norm = None if record["diverged"] else record["norm"] * record["depth"]
            yield {
                **pick(record, "activation depth"),
                "norm_times_depth": norm,
                **pick(record, "rate_times_depth"),
            }


def _draw_nets(axes: Any, points: Points, x: str, y: str, **options: Any) -> None:
    """A curve of column y over column x for each kind of net."""
    for looks, rows in series(points, "net", _NET_LABELS):
        curve(axes, rows, x, y, line=_LINES[rows[0]["net"]], **looks | options)


def _over_depth(
    points: Points, canvas: Canvas, ylabel: str
) -> Iterator[tuple[Any, list]]:
    """Panels by activation with the depths on the x axis, and one shared legend."""
    depths = sorted({point["depth"] for point in points})
    for axes, in_panel in panels(canvas, points, "activation", legend=2):
        axes.set(xscale="log", xlabel="layers ℓ", ylabel=ylabel)
        axes.set_xticks(depths, map(str, depths))
        axes.set_xticks([], minor=True)
        yield axes, in_panel


@figure("deep_mlp", "trainability", trainability_points)
def draw_trainability(points: Points, canvas: Canvas) -> None:
    """The loss of each kind of net over its depth, and that of the best map."""
    points = [
        {**point, "train_loss": min(point["train_loss"], _LARGEST_LOSS)}
        for point in points
    ]
    for axes, in_panel in _over_depth(points, canvas, "training loss E ‖y − f(x)‖²"):
        _draw_nets(axes, in_panel, "depth", "train_loss")
        best = in_panel[0]["linear_optimum_loss"]
        axes.axhline(
            best, color="black", linestyle="--", linewidth=1, label="best linear map"
        )


@figure("deep_mlp", "directions", trainability_points)
def draw_directions(points: Points, canvas: Canvas) -> None:
    """The effective dimension before the last layer, at the start."""
    for axes, in_panel in _over_depth(
        points, canvas, r"effective dimension of $h_{\ell-1}$"
    ):
        _draw_nets(axes, in_panel, "depth", "start_effective_dimension")


@figure("deep_mlp", "gradients", gradient_points)
def draw_gradients(points: Points, canvas: Canvas) -> None:
    """A row for each depth, a column for each activation."""
    named = [
        {**point, "panel": f"{point['activation']}, {point['depth']:,} layers"}
        for point in sorted(points, key=lambda point: point["depth"])
    ]
    for axes, in_panel in panels(canvas, named, "panel", columns=2, legend=2):
        axes.set(yscale="log", xlabel="layer j / ℓ")
        axes.set_ylabel(r"norm of the gradient to $W_j$")
        # Gradients below the range of float32 are 0.
        _draw_nets(
            axes, in_panel, "place", "gradient_norm", floor=_NO_GRADIENT, markevery=9
        )
        axes.text(0.02, 1.5 * _NO_GRADIENT, "0 in float32", va="bottom", fontsize=7)


@figure("deep_mlp", "norms", norm_points)
def draw_norms(points: Points, canvas: Canvas) -> None:
    """A table for each activation: a row for each rate, a column for each depth."""
    activations = sorted(split(points, "activation"))
    grid = canvas.subplots(len(activations), 1, squeeze=False)
    for axes, activation in zip(grid.flat, activations, strict=True):
        axes.axis("off")
        axes.set_title(
            f"{activation}: {DEPTH_TIMES_NORM} after training, range over seeds",
            fontsize=9,
        )
        of_activation = [p for p in points if p["activation"] == activation]
        _write_table(
            axes,
            cells=split(of_activation, "rate_times_depth depth"),
            rates=sorted(split(points, "rate_times_depth")),
            depths=sorted(split(points, "depth")),
        )


def _write_table(
    axes: Any,
    *,
    cells: dict[tuple[float, int], Points],
    rates: list[float],
    depths: list[int],
) -> None:
    """The ranges of the points of each (l x learning rate, depth)."""
    rows = [
        [_range(cells.get((rate, depth), [])) for depth in depths] for rate in rates
    ]
    table = axes.table(
        rows,
        rowLabels=[f"ℓ × rate = {rate:g}" for rate in rates],
        colLabels=[f"ℓ = {depth}" for depth in depths],
        cellLoc="center",
        loc="center",
    )
    table.auto_set_font_size(False)
    table.set_fontsize(7.5)
    table.scale(1, 1.3)


def _range(points: Points) -> str:
    """The least and largest l |||A||| of the seeds, or "" without any.

    It says how many seeds have one, if others diverged.
    """
    norms = [point["norm_times_depth"] for point in points]
    known = [norm for norm in norms if norm is not None]
    if not norms:
        return ""
    if not known:
        return "diverged"
    ends = dict.fromkeys((f"{min(known):.3g}", f"{max(known):.3g}"))
    of_seeds = f" ({len(known)} of {len(norms)})" if len(known) < len(norms) else ""
    return "–".join(ends) + of_seeds
