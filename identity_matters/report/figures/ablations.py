"""Figures of experiments/images/ablations.py: training curves of the nets that are compared."""

from matplotlib.figure import Figure as Canvas

from identity_matters.report.figure import Figure, Looks, curve, of_kind, panels, series, split
from identity_matters.runs import Run


def curve_points(run: Run) -> list[dict]:
    """One row for each logged step of every net."""
    results = {result["cell"]: result for result in of_kind(run, "result")}
    return [
        {
            # The depth, where nets of several are compared, has panels.
            "net": result["net"].split("/")[0].replace("_", " "),
            "convolutions": 1 + 2 * sum(result["model"]["blocks_per_stage"]),
            "step": record["step"],
            "loss": record["loss"],
            "error_percent": record["error_percent"],
        }
        for record in of_kind(run, "train")
        for result in [results[record["cell"]]]
    ]


def _title(panel: tuple[str, int]) -> str:
    variant, convolutions = panel
    return f"{variant.split('/')[0]}, {convolutions} convolutions"


def _draw(points: list[dict], canvas: Canvas) -> None:
    nets = {net: net for net in split(points, "net")}
    looks: Looks = {
        "yscale": "log",
        "xlabel": "steps",
        "ylabel": "training loss",
        "legend": len(nets),
    }
    for axes, own in panels(canvas, points, ("variant", "convolutions"), _title, **looks):
        for style, rows in series(own, "net", nets):
            curve(axes, rows, "step", "loss", "-", **style)


def _figure(question: str) -> Figure:
    return Figure(
        name=f"ablations_{question}",
        experiment="ablations",
        points=lambda run: curve_points(run) if run.variant.endswith(f"/{question}") else [],
        draw=_draw,
    )


FIGURES = tuple(
    map(_figure, ("identity", "initialisation", "projection", "batch_norm", "activation"))
)
