"""Figures of experiments/images/cifar.py: convergence (Figure 1) and what the blocks do."""

from matplotlib.figure import Figure as Canvas

from identity_matters import paper
from identity_matters.report.figure import Figure, Looks, curve, of_kind, panels, series
from identity_matters.runs import Run

_PLATEAU_STEP = int(paper.NUMBERS["cifar_plateau_steps"].value)
_ERRORS = {"train": "error_percent", "evaluation": "test_error_percent"}
_LABELS = {"train": "training batches", "evaluation": "test"}


def convergence_points(run: Run) -> list[dict]:
    """One row for each logged step of training, and one for each evaluation."""
    return [
        {"kind": kind, "step": record["step"], "error_percent": record[error]}
        for kind, error in _ERRORS.items()
        for record in of_kind(run, kind)
    ]


def draw_convergence(points: list[dict], canvas: Canvas) -> None:
    looks: Looks = {"columns": 2, "xlabel": "steps", "ylabel": "error (percent)"}
    for axes, own in panels(canvas, points, "variant", **looks):
        for style, rows in series(own, "kind", _LABELS):
            curve(axes, rows, "step", "error_percent", "-", linewidth=1, **style)
        if max(row["step"] for row in own) >= _PLATEAU_STEP:
            label = "the paper's best: about 50,000 steps"
            axes.axvline(_PLATEAU_STEP, color="grey", linestyle=":", label=label)
        if published := paper.TABLE_2["this paper"].get(own[0]["variant"].split("/")[0]):
            label = f"the paper's test error: {published.value:g} %"
            axes.axhline(published.value, color="grey", linewidth=0.8, label=label)
        axes.set_ylim(bottom=0)
        axes.legend()


def ratio_points(run: Run) -> list[dict]:
    """||h(x)|| / ||x|| of every block before training and at the end."""
    evaluations = of_kind(run, "evaluation")
    return [
        {"step": record["step"], "block": block, "residual_ratio": ratio}
        for record in evaluations[:1] + evaluations[1:][-1:]
        for block, ratio in enumerate(record["residual_ratio"], start=1)
    ]


def draw_ratio(points: list[dict], canvas: Canvas) -> None:
    looks: Looks = {
        "columns": 2,
        "yscale": "log",
        "xlabel": "block",
        "ylabel": "mean of ‖h(x)‖ / ‖x‖",
    }
    for axes, own in panels(canvas, points, "variant", **looks):
        for style, rows in series(own, "step", "after {:,} steps".format):
            curve(axes, rows, "block", "residual_ratio", **style)
        axes.legend()


FIGURES = (
    Figure("cifar_convergence", "cifar", convergence_points, draw_convergence),
    Figure("cifar_residual_ratio", "cifar", ratio_points, draw_ratio),
)
