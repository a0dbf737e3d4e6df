"""Figures of experiments/images/comparisons.py: arms that were tuned alike.

Every point is one final training, from the metrics of its run; docs/protocol.md has the
rules.
"""

from collections.abc import Iterator

from identity_matters.report.figures.drawing import (
    Canvas,
    Looks,
    Points,
    curves,
    legend_below,
    panels,
    scatter,
    series,
    split,
)
from identity_matters.report.figures.registry import figure
from identity_matters.report.figures.style import COLOURS
from identity_matters.report.numbers import natural_order
from identity_matters.runs import Run

_ERRORS = {
    "train_error_percent": "training error (percent)",
    "test_error_percent": "test error (percent)",
}
_DIVERGED_PERCENT = 100.0  # where the error of a net that diverged is drawn
_WITH_BATCH_NORM = ("resnet", "densenet")  # of the arms of `table_2`
_FAILED: Looks = {"mark": "x", "color": "black", "markersize": 9.0, "label": "failed"}


def arm_points(run: Run) -> Iterator[dict]:
    """One row for each arm: its rate, errors, and whether it failed."""
    metrics = run.summary["metrics"]
    for name, rate in metrics.items():
        measured, _, arm = name.partition("/")
        if measured == "learning_rate":
            yield {
                "arm": arm,
                "learning_rate": rate,
                "failed": metrics[f"failed/{arm}"],
                "at_edge_of_grid": metrics[f"at_edge_of_grid/{arm}"],
                **{
                    error: metrics.get(f"{error}/{arm}", _DIVERGED_PERCENT)
                    for error in _ERRORS
                },
            }


def identity_points(run: Run) -> Iterator[dict]:
    """The arms of `identity`, with the number of convolutions as a column."""
    if run.variant.endswith("/identity"):
        for point in arm_points(run):
            arm, _, convolutions = point["arm"].partition("/")
            yield {**point, "arm": arm, "convolutions": int(convolutions)}


@figure("comparisons", "identity", identity_points)
def draw_identity(points: Points, canvas: Canvas) -> None:
    """A row for each data set: training and test error over depth."""
    arms = {arm: arm.replace("_", " ") for arm in split(points, "arm")}
    by_variant = split(points, "variant")
    canvas.set_size_inches(7.0, 0.8 + 2.6 * len(by_variant))
    grid = canvas.subplots(len(by_variant), 2, squeeze=False, sharey=True)
    for row, (variant, of_variant) in zip(grid, by_variant.items(), strict=True):
        depths = sorted(split(of_variant, "convolutions"))
        for axes, (error, label) in zip(row, _ERRORS.items(), strict=True):
            axes.set_title(variant.partition("/")[0], fontsize=9)
            curves(axes, series(of_variant, "arm", arms), "convolutions", error)
            for looks, of_arm in series(of_variant, "arm", arms):
                failed = [point for point in of_arm if point["failed"]]
                crosses = _FAILED | {"color": looks["color"]}
                scatter(axes, failed, "convolutions", error, **crosses)
            axes.set(xscale="log", ylim=(-3, 103), ylabel=label)
            axes.set(xlabel="convolutions")
            axes.set_xticks(depths, [str(depth) for depth in depths])
            axes.set_xticks([], minor=True)
    legend_below(canvas, canvas.axes, columns=3)


def start_points(run: Run) -> Iterator[dict]:
    """The arms of `initialisation` and of `starts`."""
    if run.variant.endswith(("/initialisation", "/starts")):
        yield from arm_points(run)


@figure("comparisons", "starts", start_points)
def draw_starts(points: Points, canvas: Canvas) -> None:
    """A panel for each comparison, a line for each arm, a mark for each seed."""
    title = {
        variant: variant.replace("/", ", ") for variant in split(points, "variant")
    }
    for axes, of_variant in panels(
        canvas, points, "variant", title, columns=1, sharey=False
    ):
        by_arm = split(of_variant, "arm")
        names = []
        for place, arm in enumerate(sorted(by_arm, key=natural_order)):
            of_arm = by_arm[arm]
            placed = [{**point, "place": place} for point in of_arm]
            trained = [point for point in placed if not point["failed"]]
            failed = [point for point in placed if point["failed"]]
            error_and_place = ("test_error_percent", "place")
            scatter(axes, trained, *error_and_place, color=COLOURS[0], markersize=6)
            scatter(axes, failed, *error_and_place, **_FAILED)
            rates = sorted({point["learning_rate"] for point in of_arm})
            tuned = " or ".join(f"{rate:g}" for rate in rates)
            names.append(f"{arm.replace('_', ' ')}, rate {tuned}")
        axes.set_yticks(range(len(names)), names)
        axes.invert_yaxis()
        axes.set(xlim=(-3, 105), xlabel="test error (percent), each seed; x: failed")


def table_2_points(run: Run) -> Iterator[dict]:
    """The arms of `table_2`, with operations and batch norm as columns."""
    if run.variant.endswith("/table_2"):
        metrics = run.summary["metrics"]
        train = run.config["train"]
        examples = train["steps"] * train["batch_examples"]
        for point in arm_points(run):
            per_example = metrics[f"training_flops_per_example/{point['arm']}"]
            yield {
                **point,
                "training_operations": examples * per_example,
                "batch_norm": point["arm"] in _WITH_BATCH_NORM,
            }


@figure("comparisons", "table_2", table_2_points)
def draw_table_2(points: Points, canvas: Canvas) -> None:
    """A panel for each data set; a circle has no batch norm, a square has."""
    title = {variant: variant.partition("/")[0] for variant in split(points, "variant")}
    arms = {}
    for arm, of_arm in split(points, "arm").items():
        norm = "with" if of_arm[0]["batch_norm"] else "without"
        arms[arm] = f"{arm.replace('_', ' ')}, {norm} batch norm"
    columns = ("training_operations", "test_error_percent")
    for axes, of_variant in panels(canvas, points, "variant", title, legend=2):
        axes.set(xscale="log", xlabel="training operations")
        axes.set_ylabel("test error (percent)")
        for looks, rows in series(of_variant, "arm", arms):
            marker = "s" if rows[0]["batch_norm"] else "o"
            scatter(axes, rows, *columns, **looks | {"marker": marker, "markersize": 7})
        if failed := [point for point in of_variant if point["failed"]]:
            scatter(axes, failed, *columns, **_FAILED)
