"""Figures of experiments/images/comparisons.py: arms that were tuned alike.

Every point is one final training, from the metrics of its run; docs/protocol.md has the
rules.
"""

from collections.abc import Iterator
from typing import Any

from identity_matters.report.figures.drawing import (
    Canvas,
    Looks,
    Points,
    Series,
    curves,
    data_set_of,
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
# Arms of docs/protocol.md -> their names; others have their own. The order of the first
# four is that of the same nets in the figures of deep_mlp, and so are their colours.
_ARMS = {
    "identity": "with the identity, paper's start",
    "plain_paper": "without, paper's start",
    "plain_unit_variance": "without, unit variance",
    "plain_delta_orthogonal": "without, orthogonal centres",
    "he": "He",
    "fixup": "Fixup",
    "this_paper": "this paper",
    "all_cnn_c": "All-CNN-C",
    "resnet": "ResNet",
    "densenet": "DenseNet",
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
    arms = _names(points)
    by_variant = split(points, "variant")
    canvas.set_size_inches(7.0, 0.8 + 2.6 * len(by_variant))
    grid = canvas.subplots(len(by_variant), 2, squeeze=False, sharey=True)
    for row, (variant, of_variant) in zip(grid, by_variant.items(), strict=True):
        for axes, (error, label) in zip(row, _ERRORS.items(), strict=True):
            axes.set_title(data_set_of(variant), fontsize=9)
            axes.set_ylabel(label)
            _draw_over_depth(axes, series(of_variant, "arm", arms), error)
    _explain_crosses(canvas.axes[-1])
    legend_below(canvas, canvas.axes, columns=2)


def _draw_over_depth(axes: Any, arms: Series, error: str) -> None:
    """A curve for each arm; a cross of its colour for each training that failed."""
    curves(axes, arms, "convolutions", error)
    for looks, of_arm in arms:
        _cross_failures(axes, of_arm, "convolutions", error, color=looks["color"])
    # A cross at 100 is shown whole.
    axes.set(xscale="log", xlabel="convolutions", ylim=(-3, 106))
    depths = sorted({point["convolutions"] for _, of_arm in arms for point in of_arm})
    axes.set_xticks(depths, [str(depth) for depth in depths])
    axes.set_xticks([], minor=True)


def _cross_failures(axes: Any, of_arm: Points, x: str, y: str, *, color: Any) -> Points:
    """Draws a cross for each seed of an arm that failed, and returns these points."""
    failed = [point for point in of_arm if point["failed"]]
    # A label that begins with "_" is not in the legend.
    scatter(axes, failed, x, y, **_FAILED | {"color": color, "label": "_failed"})
    return failed


def _explain_crosses(axes: Any) -> None:
    """The legend's entry for the crosses of all arms."""
    no_points: Points = []
    scatter(axes, no_points, "x", "y", **_FAILED | {"color": "grey"})


def _names(points: Points) -> dict[str, str]:
    """The arms of the points -> their names, in the order of _ARMS, others last."""
    present = split(points, "arm")
    others = {arm: arm.replace("_", " ") for arm in present if arm not in _ARMS}
    return {arm: name for arm, name in _ARMS.items() if arm in present} | others


def start_points(run: Run) -> Iterator[dict]:
    """The arms of `initialisation` and of `starts`."""
    if run.variant.endswith(("/initialisation", "/starts")):
        yield from arm_points(run)


@figure("comparisons", "starts", start_points)
def draw_starts(points: Points, canvas: Canvas) -> None:
    """A panel for each comparison, a line for each arm, a mark for each seed."""
    title = {
        variant: f"{data_set_of(variant)}, {variant.partition('/')[2]}"
        for variant in split(points, "variant")
    }
    arms = _names(points)
    for axes, of_variant in panels(
        canvas, points, "variant", title, columns=1, sharey=False
    ):
        by_arm = split(of_variant, "arm")
        names = []
        for place, arm in enumerate(sorted(by_arm, key=natural_order)):
            _draw_start(axes, by_arm[arm], place)
            rates = sorted({point["learning_rate"] for point in by_arm[arm]})
            tuned = " or ".join(f"{rate:g}" for rate in rates)
            names.append(f"{arms[arm]}, rate {tuned}")
        axes.set_yticks(range(len(names)), names)
        axes.invert_yaxis()
        axes.set(xlim=(-3, 105), xlabel="test error (percent), each seed; x: failed")


def _draw_start(axes: Any, points: Points, place: int) -> None:
    """The error of each seed of an arm, in the arm's place."""
    placed = [{**point, "place": place} for point in points]
    trained = [point for point in placed if not point["failed"]]
    failed = [point for point in placed if point["failed"]]
    error_and_place = ("test_error_percent", "place")
    scatter(axes, trained, *error_and_place, color=COLOURS[0], markersize=6)
    scatter(axes, failed, *error_and_place, **_FAILED)
    if failed:
        leftmost = min(point["test_error_percent"] for point in failed)
        _count_failures(
            axes,
            failed=len(failed),
            seeds=len(points),
            cross=(leftmost, place),
            side="left",
        )


def _count_failures(
    axes: Any, *, failed: int, seeds: int, cross: tuple[float, float], side: str
) -> None:
    """Writes how many seeds of an arm failed: their crosses may hide one another.

    The text is to the "left" or to the "right" of the cross at this place.
    """
    axes.annotate(
        f"{failed} of {seeds}",
        xy=cross,
        xytext=(-8 if side == "left" else 8, 0),
        textcoords="offset points",
        ha="right" if side == "left" else "left",
        va="center",
        fontsize=8,
    )


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
    by_arm = split(points, "arm")
    arms = {}
    for arm, name in _names(points).items():
        norm = "with" if by_arm[arm][0]["batch_norm"] else "without"
        arms[arm] = f"{name}, {norm} batch norm"
    columns = ("training_operations", "test_error_percent")
    for axes, of_variant in panels(canvas, points, "variant", data_set_of, legend=2):
        axes.set_xlabel("floating-point operations of the training")
        axes.ticklabel_format(axis="x", useMathText=True)  # x 10^14, not 1e14
        axes.set_ylabel("test error (percent)")
        for looks, rows in series(of_variant, "arm", arms):
            marker = "s" if rows[0]["batch_norm"] else "o"
            trained = [point for point in rows if not point["failed"]]
            marked = looks | {"marker": marker, "markersize": 7}
            scatter(axes, trained, *columns, **marked)
            failed = _cross_failures(axes, rows, *columns, color=looks["color"])
            if failed:
                operations, error = (failed[-1][column] for column in columns)
                _count_failures(
                    axes,
                    failed=len(failed),
                    seeds=len(rows),
                    cross=(operations, error),
                    side="right",
                )
        if any(point["failed"] for point in of_variant):
            _explain_crosses(axes)
