"""Figures of trained nets: CIFAR (Figure 1, residual ratios), ablations, deep
perceptrons.
"""

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


def ablation_points(question: str, run: Run) -> Iterator[dict]:
    """One row for each logged step of every net that the question compares."""
    asked = run.variant.endswith(f"/{question}")
    results = {result["cell"]: result for result in of_kind(run, "result")}
    for record in of_kind(run, "train") if asked else ():
        result = results[record["cell"]]
        # Leave out the depth: each depth has a panel of its own.
        net = result["net"].split("/")[0].replace("_", " ")
        convolutions = 1 + 2 * sum(result["model"]["blocks_per_stage"])
        logged = fig.pick(record, "step loss error_percent")
        yield {"net": net, "convolutions": convolutions, **logged}


def draw_ablation(points: fig.Points, canvas: fig.Canvas) -> None:
    nets = {net: net for net in split(points, "net")}
    titles = {
        panel: f"{panel[0].split('/')[0]}, {panel[1]} convolutions"
        for panel in split(points, "variant convolutions")
    }
    for axes, own in panels(
        canvas, points, "variant convolutions", titles, legend=len(nets)
    ):
        axes.set(yscale="log", xlabel="steps", ylabel="training loss")
        curves(axes, series(own, "net", nets), "step", "loss", "-")


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
            label = "the paper's test error"
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
    for axes, own in panels(canvas, points, "variant", columns=2):
        axes.set(yscale="log", xlabel="block", ylabel="mean of ‖h(x)‖ / ‖x‖")
        curves(
            axes,
            series(own, "step", "after {:,} steps".format),
            "block",
            "residual_ratio",
        )
        axes.legend()


# Trainability, gradients and weights over depth (experiments/deep_mlp.py)
_VARIANTS = ("digits/relu", "digits/linear", "digits/orthogonal")
_ACTIVATIONS = {"linear": "linear nets", "relu": "ReLU nets"}
_NETS = {  # (identity, initialization) -> label
    (True, "near_zero"): "with the identity, near zero",
    (False, "near_zero"): "without, same weights",
    (False, "standard"): "without, standard (He et al.)",
    (False, "orthogonal"): "without, orthogonal",
}
_NET_LABELS = {net: net for net in _NETS.values()}


def _labelled(run: Run) -> Iterator[dict]:
    """The records of the default variants, with labels of activation and net."""
    for record in run.records if run.variant in _VARIANTS else ():
        model = record["model"]
        net = _NETS[model["identity"], model["initialization"]]
        yield {**record, "activation": _ACTIVATIONS[model["activation"]], "net": net}


def trainability_points(run: Run) -> list[dict]:
    """One row for each net: its loss, its error, and the effective dimension at its
    start.
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
    """One row for each net with the identity: l |||A||| after training, and l x
    learning rate.
    """
    for record in _labelled(run):
        if "norm" in record:
            record["norm_times_depth"] = record["norm"] * record["depth"]
            yield fig.pick(record, "activation depth norm_times_depth rate_times_depth")


def _over_depth(
    points: fig.Points, canvas: fig.Canvas, ylabel: str
) -> Iterator[tuple[Any, list]]:
    """Panels by activation with the depths on the x axis, and one shared legend."""
    depths = sorted({point["depth"] for point in points})
    for axes, own in panels(canvas, points, "activation", legend=2):
        axes.set(xscale="log", xlabel="layers l", ylabel=ylabel)
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
        curves(axes, series(own, "net", _NET_LABELS), "depth", "train_loss")
        best = own[0]["linear_optimum_loss"]
        axes.axhline(
            best, color="black", linestyle="--", linewidth=1, label="best linear map"
        )


@fig.figure("deep_mlp", "directions", trainability_points)
def draw_directions(points: fig.Points, canvas: fig.Canvas) -> None:
    for axes, own in _over_depth(points, canvas, "effective dimension of h_{l−1}"):
        curves(
            axes, series(own, "net", _NET_LABELS), "depth", "start_effective_dimension"
        )


@fig.figure("deep_mlp", "gradients", gradient_points)
def draw_gradients(points: fig.Points, canvas: fig.Canvas) -> None:
    deepest = max(point["depth"] for point in points)
    for axes, own in panels(canvas, points, "activation", legend=2):
        axes.set(
            yscale="log", xlabel="layer j / l", ylabel="norm of the gradient to W_j"
        )
        for net, several in series(own, "net", _NET_LABELS):
            for depth, rows in split(several, "depth").items():
                style = net | {"label": f"{net['label']}, l = {depth}"}
                line = "-" if depth == deepest else "--"
                # Gradients below the range of float32 are 0.
                curve(axes, rows, "place", "gradient_norm", line, floor=1e-24, **style)


@fig.figure("deep_mlp", "norms", norm_points)
def draw_norms(points: fig.Points, canvas: fig.Canvas) -> None:
    rates = {
        rate: f"l × rate = {rate:g}"
        for rate in sorted(split(points, "rate_times_depth"))
    }
    for axes, own in _over_depth(points, canvas, "l |||A||| after training"):
        axes.set_yscale("log")
        curves(
            axes, series(own, "rate_times_depth", rates), "depth", "norm_times_depth"
        )
