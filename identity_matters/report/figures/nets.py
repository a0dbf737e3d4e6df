"""Figures of trained nets: CIFAR, ablations, deep perceptrons."""

import functools
from collections.abc import Iterator
from typing import Any

from identity_matters import paper
from identity_matters.report import figures as fig
from identity_matters.report.figures import (
    curve,
    curves,
    of_kind,
    panels,
    series,
    split,
)
from identity_matters.runs import Run

# The nets that ablations compare (experiments/images/ablations.py)


_LARGEST_LOSS = 10.0  # of a net that diverges; ten classes at random have 2.3


def ablation_points(question: str, run: Run) -> Iterator[dict]:
    """One row for each logged step and each evaluation of the nets of the question."""
    asked = run.variant.endswith(f"/{question}")
    results = {result["cell"]: result for result in of_kind(run, "result")}
    for record in run.records if asked else ():
        if record["kind"] not in ("train", "evaluation"):
            continue
        result = results[record["cell"]]
        net = {
            # Leave out the depth: each depth has a panel of its own.
            "net": result["net"].split("/")[0].replace("_", " "),
            "convolutions": 1 + 2 * sum(result["model"]["blocks_per_stage"]),
            "step": record["step"],
        }
        if record["kind"] == "evaluation":
            yield {**net, "test_error_percent": record["test_error_percent"]}
        # The last point may average a few batches only.
        elif record["step"] % result["train"]["steps_per_log"] == 0:
            yield {**net, **fig.pick(record, "loss error_percent")}


def draw_ablation(points: fig.Points, canvas: fig.Canvas) -> None:
    """A column for each data set and depth: training loss above, test error below."""
    nets = {net: net for net in split(points, "net")}
    columns = split(points, "variant convolutions")
    canvas.set_size_inches(7.0, 5.6)
    grid = canvas.subplots(2, len(columns), squeeze=False, sharex="col")
    for (above, below), ((variant, convolutions), shown) in zip(
        grid.T, columns.items(), strict=True
    ):
        above.set_title(
            f"{variant.split('/')[0]}, {convolutions} convolutions", fontsize=9
        )
        above.set(yscale="log")
        losses = [point for point in shown if "loss" in point]
        evaluated = [point for point in shown if "test_error_percent" in point]
        # Both panels have the marks that the legend shows.
        curves(above, series(losses, "net", nets), "step", "loss", markevery=0.15)
        curves(below, series(evaluated, "net", nets), "step", "test_error_percent")
        _mark_divergence(above, losses)
        below.set(xlabel="steps", ylim=(0, 100))
    grid[0, 0].set_ylabel("training loss")
    grid[1, 0].set_ylabel("test error (percent)")
    fig.legend_below(canvas, grid[1], columns=len(nets))


def _mark_divergence(axes: Any, losses: fig.Points) -> None:
    """Writes "diverges" where a curve ends early, and cuts the axis there."""
    last_step = max(point["step"] for point in losses)
    for rows in split(losses, "net").values():
        end = max(rows, key=lambda row: row["step"])
        if end["step"] < last_step:
            axes.set_ylim(top=min(end["loss"], _LARGEST_LOSS))
            axes.annotate(
                " diverges", (end["step"], min(end["loss"], _LARGEST_LOSS)), va="top"
            )


for _question in (
    "identity",
    "initialisation",
    "projection",
    "batch_norm",
    "activation",
):
    _points = functools.partial(ablation_points, _question)
    fig.figure("ablations", _question, _points)(draw_ablation)

# Convergence (Figure 1) and what the blocks do (experiments/images/cifar.py)
_PLATEAU_STEP = int(paper.NUMBERS["cifar_plateau_steps"].value)
_ERRORS = {"train": "error_percent", "evaluation": "test_error_percent"}
_LABELS = {"train": "training batches", "evaluation": "test"}


def convergence_points(run: Run) -> Iterator[dict]:
    """One row for each logged step of training, and one for each evaluation."""
    for kind, error in _ERRORS.items():
        yield from fig.rows(of_kind(run, kind), f"kind step error_percent={error}")


@fig.figure("cifar", "convergence", convergence_points)
def draw_convergence(points: fig.Points, canvas: fig.Canvas) -> None:
    for axes, own in panels(canvas, points, "variant", columns=2, legend=2):
        axes.set(xlabel="steps", ylabel="error (percent)")
        curves(
            axes,
            series(own, "kind", _LABELS),
            "step",
            "error_percent",
            "-",
            linewidth=1,
        )
        if max(row["step"] for row in own) >= _PLATEAU_STEP:
            label = "the paper's best: about 50,000 steps"
            axes.axvline(_PLATEAU_STEP, color="grey", linestyle=":", label=label)
        if published := paper.TABLE_2["this paper"].get(
            own[0]["variant"].split("/")[0]
        ):
            label = "the paper's test error, 13.5M parameters"
            axes.axhline(published.value, color="grey", linewidth=0.8, label=label)
            # Beside the left end of the line, where every curve is far above it.
            where = {
                "transform": axes.get_yaxis_transform(),
                "va": "bottom",
                "fontsize": 8,
            }
            axes.text(0.01, published.value, f"{published.value:g} %", **where)
        axes.set_ylim(0, 100)


def ratio_points(run: Run) -> Iterator[dict]:
    """||h(x)|| / ||x|| of every block before training and at the end."""
    evaluations = of_kind(run, "evaluation")
    for record in evaluations[:1] + evaluations[1:][-1:]:
        for block, ratio in enumerate(record["residual_ratio"], start=1):
            yield {"step": record["step"], "block": block, "residual_ratio": ratio}


@fig.figure("cifar", "residual_ratio", ratio_points)
def draw_ratio(points: fig.Points, canvas: fig.Canvas) -> None:
    # Variants train for different numbers of steps.
    timed = [
        {**point, "when": "after training" if point["step"] else "before training"}
        for point in points
    ]
    times = {when: when for when in ("before training", "after training")}
    for axes, in_panel in panels(canvas, timed, "variant", columns=2, legend=2):
        axes.set(yscale="log", xlabel="block", ylabel="mean of ‖h(x)‖ / ‖x‖")
        curves(axes, series(in_panel, "when", times), "block", "residual_ratio")


# Trainability, gradients and weights over depth (experiments/deep_mlp.py)
_VARIANTS = ("digits/relu", "digits/linear", "digits/orthogonal")
_ACTIVATIONS = {"linear": "linear nets", "relu": "ReLU nets"}
_NO_GRADIENT = 1e-24  # where 0 is drawn
_NETS = {  # (identity, initialization) -> label
    (True, "near_zero"): "with the identity, near zero",
    (False, "near_zero"): "without, same weights",
    (False, "standard"): "without, standard (He et al.)",
    (False, "orthogonal"): "without, orthogonal",
}
_NET_LABELS = {net: net for net in _NETS.values()}
# Its curve may lie on that of the nets with the identity: these show between dashes.
_DASHED = _NETS[False, "orthogonal"]


def _labelled(run: Run) -> Iterator[dict]:
    """The records of the default variants, with labels of activation and net."""
    for record in run.records if run.variant in _VARIANTS else ():
        model = record["model"]
        net = _NETS[model["identity"], model["initialization"]]
        yield {**record, "activation": _ACTIVATIONS[model["activation"]], "net": net}


def trainability_points(run: Run) -> list[dict]:
    """One row for each net: its loss and error.

    It also has the effective dimension at its start.
    """
    diverged = {"train_loss": float("inf"), "train_error_percent": None}
    names = (
        "train_loss train_error_percent linear_optimum_loss start_effective_dimension"
    )
    nets = [diverged | record for record in _labelled(run)]
    return fig.rows(nets, f"activation net depth {names}")


def gradient_points(run: Run) -> list[dict]:
    """One row for each layer of the nets of 16 layers and of the deepest ones."""
    nets = list(_labelled(run))
    deepest = max((record["depth"] for record in nets), default=0)
    shown = [record for record in nets if record["depth"] in (16, deepest)]
    for record in shown:
        record["places"] = [layer / record["depth"] for layer in record["layers"]]
    names = "layer=layers place=places gradient_norm=gradient_norms"
    return fig.rows(shown, f"activation net depth {names}")


def norm_points(run: Run) -> Iterator[dict]:
    """One row for each net with the identity.

    It has l |||A||| after training, and l x learning rate.
    """
    for record in _labelled(run):
        if "norm" in record:
            record["norm_times_depth"] = record["norm"] * record["depth"]
            yield fig.pick(record, "activation depth norm_times_depth rate_times_depth")


def _draw_nets(axes: Any, points: fig.Points, x: str, y: str, **options: Any) -> None:
    """A curve of column y over column x for each kind of net."""
    for looks, rows in series(points, "net", _NET_LABELS):
        line = "o--" if looks["label"] == _DASHED else "o-"
        curve(axes, rows, x, y, line, **looks | options)


def _over_depth(
    points: fig.Points, canvas: fig.Canvas, ylabel: str
) -> Iterator[tuple[Any, list]]:
    """Panels by activation with the depths on the x axis, and one shared legend."""
    depths = sorted({point["depth"] for point in points})
    for axes, own in panels(canvas, points, "activation", legend=2):
        axes.set(xscale="log", xlabel="layers ℓ", ylabel=ylabel)
        axes.set_xticks(depths, map(str, depths))
        axes.set_xticks([], minor=True)
        yield axes, own


@fig.figure("deep_mlp", "trainability", trainability_points)
def draw_trainability(points: fig.Points, canvas: fig.Canvas) -> None:
    # The losses of diverged nets are drawn at 2.
    points = [
        {**point, "train_loss": min(point["train_loss"], 2.0)} for point in points
    ]
    for axes, own in _over_depth(points, canvas, "training loss E ‖y − f(x)‖²"):
        _draw_nets(axes, own, "depth", "train_loss")
        best = own[0]["linear_optimum_loss"]
        axes.axhline(
            best, color="black", linestyle="--", linewidth=1, label="best linear map"
        )


@fig.figure("deep_mlp", "directions", trainability_points)
def draw_directions(points: fig.Points, canvas: fig.Canvas) -> None:
    for axes, own in _over_depth(
        points, canvas, r"effective dimension of $h_{\ell-1}$"
    ):
        _draw_nets(axes, own, "depth", "start_effective_dimension")


@fig.figure("deep_mlp", "gradients", gradient_points)
def draw_gradients(points: fig.Points, canvas: fig.Canvas) -> None:
    """A row for each depth, a column for each activation."""
    named = [
        {**point, "panel": f"{point['activation']}, {point['depth']:,} layers"}
        for point in sorted(points, key=lambda point: point["depth"])
    ]
    for axes, own in panels(canvas, named, "panel", columns=2, legend=2):
        axes.set(yscale="log", xlabel="layer j / ℓ")
        axes.set_ylabel(r"norm of the gradient to $W_j$")
        # Gradients below the range of float32 are 0.
        _draw_nets(axes, own, "place", "gradient_norm", floor=_NO_GRADIENT, markevery=9)
        axes.text(0.02, 1.5 * _NO_GRADIENT, "0 in float32", va="bottom", fontsize=7)


@fig.figure("deep_mlp", "norms", norm_points)
def draw_norms(points: fig.Points, canvas: fig.Canvas) -> None:
    rates = sorted(split(points, "rate_times_depth"))
    depths = sorted(split(points, "depth"))
    shared = sorted(split(points, "activation"))
    for axes, activation in zip(
        canvas.subplots(len(shared), 1, squeeze=False).flat, shared, strict=True
    ):
        axes.axis("off")
        axes.set_title(
            f"{activation}: {fig.DEPTH_TIMES_NORM} after training, range over seeds",
            fontsize=9,
        )
        cells = split(
            [point for point in points if point["activation"] == activation],
            "rate_times_depth depth",
        )
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


def _range(points: fig.Points) -> str:
    """The least and largest l |||A||| of the seeds, or "" without any."""
    norms = [point["norm_times_depth"] for point in points]
    if not norms:
        return ""
    ends = dict.fromkeys((f"{min(norms):.3g}", f"{max(norms):.3g}"))
    return "–".join(ends)
