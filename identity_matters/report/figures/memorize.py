"""Figures of experiments/memorize.py: what it takes to memorise n labels."""

import math
import statistics
from collections.abc import Iterator

from identity_matters import paper
from identity_matters.report.figures.drawing import (
    Canvas,
    Looks,
    Points,
    curve,
    curves,
    panels,
    series,
    split,
)
from identity_matters.report.figures.registry import figure
from identity_matters.report.figures.style import COLOURS
from identity_matters.report.records import of_kind, pick, rows_of
from identity_matters.runs import Run

_CURVES = {
    "theorem_3_2": ("n log n + r² (Theorem 3.2)", "-"),
    "yun_2019": ("n (Yun et al. 2019)", "--"),
    "vardi_2021": ("√n (Vardi et al. 2021)", ":"),
    "counting_bound": ("counting bound, n log₂ r / 32", "-."),
}
_PRECISIONS = {"float32": "float32", "float64": "float64"}
_BELOW: Looks = {"loc": "outside lower center", "ncols": 2, "fontsize": 8}


def parameter_points(run: Run) -> Iterator[dict]:
    """One row for each network that was built, and the curves at its n and r."""
    names = (
        "labels method precision width examples block_parameters parameters certified"
        " errors"
    )
    for fit in of_kind(run, "fit"):
        n = fit["examples"]
        if "refused" not in fit:
            yield {
                **pick(fit, names),
                "theorem_3_2": n * math.log(n) + fit["num_classes"] ** 2,
                # Two hidden layers of Theta(sqrt n) nodes (arXiv 1810.07770), and
                # O~(sqrt n) parameters (arXiv 2110.03187), both as stated in the
                # abstracts.
                "yun_2019": float(n),
                "vardi_2021": math.sqrt(n),
                "counting_bound": fit["counting_lower_bound"],
            }


@figure("memorize", "parameters", parameter_points)
def draw_parameters(points: Points, canvas: Canvas) -> None:
    """A mark for each network over n, and the curves of the theory."""
    canvas.set_size_inches(7.0, 5.4)
    axes = canvas.subplots()
    points = sorted(
        points, key=lambda point: (point["method"], point["precision"], point["width"])
    )
    for looks, rows in series(points, "method width precision", _net_name):
        for certified, shown in split(rows, "certified").items():
            options = dict(looks)
            if not certified:
                # Large, so that they show around those that are certified.
                options |= {
                    "label": f"{looks['label']}, not certified",
                    "markerfacecolor": "none",
                    "markersize": 8,
                }
            curve(axes, shown, "examples", "block_parameters", line=None, **options)
    single = [point for point in points if point["precision"] == "float32"]
    if single:  # the theoretical curves belong to the float32 networks
        _draw_named_curves(axes, single)
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="examples n",
        ylabel="parameters in the blocks",
    )
    canvas.legend(**_BELOW)


def _draw_named_curves(axes, points: Points) -> None:
    """The curves of the theory; each has its name at its right end."""
    end = max(points, key=lambda point: point["examples"])
    for name, (label, line) in _CURVES.items():
        looks: Looks = {"line": line, "mark": None, "color": "grey", "linewidth": 1}
        curve(axes, points, "examples", name, **looks)
        axes.annotate(
            label,
            xy=(end["examples"], end[name]),
            xytext=(8, 0),  # to the right of the last marks
            textcoords="offset points",
            va="center",
            fontsize=7,
        )


def _net_name(net: tuple) -> str:
    """The label of (method, width, precision)."""
    method, width, precision = net
    return f"{method}, k = {width}, {precision}"


def width_points(run: Run) -> Iterator[dict]:
    """The least widths, and that of the theorem, for each n and precision."""
    printed = {
        record["examples"]: record["theorem_width"]
        for record in of_kind(run, "separation")
    }
    names = "precision examples least_fitting_width least_certified_width"
    for record in of_kind(run, "minimal_width"):
        yield {
            **pick(record, names),
            "theorem_width": printed.get(record["examples"]),
        }


@figure("memorize", "width", width_points)
def draw_widths(points: Points, canvas: Canvas) -> None:
    """The least widths over n, and the width that the proof prints."""
    axes = canvas.subplots()
    for looks, rows in series(points, "precision", _PRECISIONS):
        # Large hollow marks, so that equal widths show inside them.
        hollow = {"markerfacecolor": "none", "markersize": 8}
        certified = {"label": f"{looks['label']}, certified", **hollow}
        fitting = {"label": f"{looks['label']}, fits all labels"}
        for column, line, options in (
            ("least_certified_width", "--", certified),
            ("least_fitting_width", "-", fitting),
        ):
            curve(axes, rows, "examples", column, line=line, **looks | options)
    of_theorem: Looks = {
        "color": "black",
        "label": "10 log n / ρ² (proof of Theorem 3.2)",
    }
    curve(axes, points, "examples", "theorem_width", line=":", mark="^", **of_theorem)
    axes.set(xscale="log", yscale="log", xlabel="examples n", ylabel="width k")
    ticks = (1, 2, 3, 4, 10, 30, 100)
    axes.set_yticks(ticks, [str(tick) for tick in ticks])
    axes.set_yticks([], minor=True)
    canvas.legend(**_BELOW)


def precision_points(run: Run) -> Iterator[dict]:
    """Error against margin: one row for each network that was run."""
    names = "smallest_margin max_abs_error output_error_bound errors certified"
    for record in of_kind(run, "precision"):
        for name in ("float32", "float64"):
            if "refused" not in (result := record[f"{name}_result"]):
                same = {"precision": name, "pair_distance": record["pair_distance"]}
                yield {**same, **pick(result, names)}


@figure("memorize", "precision", precision_points)
def draw_precision(points: Points, canvas: Canvas) -> None:
    """The error and its certified bound over the distance of a pair."""
    axes = canvas.subplots()
    # Without a certificate its bound need not hold.
    certified = [point for point in points if point["certified"]]
    for column, shown, label, line in (
        ("max_abs_error", points, "measured", "-"),
        ("output_error_bound", certified, "certificate's bound", ":"),
    ):
        for looks, rows in series(shown, "precision", _PRECISIONS):
            options = looks | {"label": f"{looks['label']}, {label}"}
            curve(axes, rows, "pair_distance", column, line=line, **options)
    axes.axhline(0.5, color="black", linestyle="--", linewidth=1)
    axes.set(xscale="log", yscale="log")
    axes.set(xlabel="distance of the two inputs of each pair", ylabel="max |ŷ − y|")
    canvas.legend(**_BELOW)


def descent_points(run: Run) -> Iterator[dict]:
    """Errors of SGD over steps, and those of the constructed network."""
    for record in of_kind(run, "sgd"):
        constructed = 100 * record["constructed"]["errors"] / record["examples"]
        for point in record["curve"]:
            percent = 100 * point["errors"] / record["examples"]
            errors = {
                "errors_percent": percent,
                "constructed_errors_percent": constructed,
            }
            yield {
                **pick(record, "examples learning_rate"),
                "step": point["step"],
                **errors,
            }


@figure("memorize", "descent", descent_points)
def draw_descent(points: Points, canvas: Canvas) -> None:
    """The errors of SGD over its steps; a line for the constructed network."""
    axes = canvas.subplots()
    rates = series(points, "learning_rate", "SGD with momentum, rate {:g}".format)
    curves(axes, rates, "step", "errors_percent")
    constructed = max(point["constructed_errors_percent"] for point in points)
    axes.axhline(constructed, color="black", linewidth=2, label="constructed")
    axes.set(xlabel="steps", ylabel="training errors (percent)", ylim=(-3, 100))
    canvas.legend(**_BELOW)


def few_numbers_points(run: Run) -> Iterator[dict]:
    """One row for each size of the groups, from trials that set it."""
    names = "dataset examples group_points numbers group_numbers certified"
    for record in of_kind(run, "few_numbers"):
        if "word_bits" not in record:
            row = pick(record, f"{names} counting_bound=counting_lower_bound")
            each = ("numbers", "group_numbers", "counting_bound")
            yield row | {
                f"{name}_per_example": row[name] / row["examples"] for name in each
            }


_TITLES = {"digits": "digits", "cifar10": "CIFAR-10, random labels"}
# Column -> the looks of its curve.
_FEW_NUMBERS_LOOKS: dict[str, Looks] = {
    "numbers_per_example": {"color": COLOURS[0], "label": "the whole network"},
    "group_numbers_per_example": {
        "line": "--",
        "mark": "s",
        "color": COLOURS[1],
        "label": "the groups alone",
    },
    "counting_bound_per_example": {
        "line": ":",
        "mark": None,
        "color": "black",
        "label": "counting bound, numbers of 53 bits",
    },
}


@figure("memorize", "few_numbers", few_numbers_points)
def draw_few_numbers(points: Points, canvas: Canvas) -> None:
    """Stored numbers per example over the size of a group, and the bound."""
    for axes, in_panel in panels(canvas, points, "dataset", _TITLES, legend=2):
        axes.set(
            yscale="log", xlabel="images per group", ylabel="stored numbers per example"
        )
        for name, looks in _FEW_NUMBERS_LOOKS.items():
            curve(axes, in_panel, "group_points", name, **looks)
        axes.axhline(1.0, color="grey", linewidth=1, label="one number per example")


_PARTS = {
    "input_map": ("input map", COLOURS[0], "//"),
    "words": ("numbers that hold labels", COLOURS[1], ""),
    "shared": ("everything else", COLOURS[2], ".."),
}


_LABELS_PER_WORD = 13  # of the network of (E11), which is counted and not run


def floor_points(run: Run) -> Iterator[dict]:
    """One row for each network: the parts of its stored numbers.

    Two networks are counted by their formulas; those of the records were built.
    """
    records = [
        record for record in of_kind(run, "retrieval") if "refused" not in record
    ]
    if not records:
        return
    dataset = pick(records[0], "dataset examples counting_bound=counting_lower_bound")
    sizes = (_one_hidden_layer(records[0]), _groups_of_neighbours(records[0]))
    for parts in (*sizes, *map(_retrieval, records)):
        yield {**dataset, **parts}


def _one_hidden_layer(record: dict) -> dict:
    """The parts of the network with n hidden units: d, and two numbers a unit."""
    return {
        "network": "one hidden layer (Zhang et al. 2016)",
        "input_map": record["features"],
        "words": 2 * record["examples"],
        "shared": 0,
    }


def _groups_of_neighbours(record: dict) -> dict:
    """The parts of the network of (E11), of width 6."""
    counted = paper.few_numbers(
        examples=record["examples"],
        features=record["features"],
        num_classes=record["num_classes"],
        group_points=_LABELS_PER_WORD,
    )
    return {
        "network": f"{_LABELS_PER_WORD} labels a word",
        "input_map": counted.input_map,
        "words": counted.groups,
        "shared": counted.shared,
    }


def _retrieval(record: dict) -> dict:
    """The parts of a network that looks its labels up in a table, as it was built."""
    input_map = record["input_map_numbers"]
    words = record["word_numbers"]
    return {
        "network": f"table, {record['input_map']} input map",
        "input_map": input_map,
        "words": words,
        "shared": record["numbers"] - input_map - words,
    }


@figure("memorize", "floor", floor_points)
def draw_floor(points: Points, canvas: Canvas) -> None:
    """A bar for each network, of the median over the seeds of each of its parts."""
    for axes, in_panel in panels(canvas, points, "dataset", _TITLES, legend=2):
        names = list(dict.fromkeys(point["network"] for point in in_panel))[::-1]
        by_name = split(in_panel, "network")
        left = [0.0] * len(names)
        for part, (label, colour, hatch) in _PARTS.items():
            sizes = [
                statistics.median(point[part] for point in by_name[name])
                for name in names
            ]
            axes.barh(
                names,
                sizes,
                left=left,
                color=colour,
                hatch=hatch,
                edgecolor="white",
                label=label,
            )
            left = [start + size for start, size in zip(left, sizes, strict=True)]
        bound = in_panel[0]["counting_bound"]
        axes.axvline(bound, color="black", linestyle=":", label="counting bound")
        axes.set(xlabel="stored numbers")


def trade_points(run: Run) -> list[dict]:
    """One row per word size and width: stored numbers, and their bound."""
    records = [
        record for record in of_kind(run, "few_numbers") if "word_bits" in record
    ]
    stored = "numbers group_numbers counting_bound=counting_lower_bound"
    return rows_of(records, f"examples word_bits width group_points {stored}")


@figure("memorize", "trade", trade_points)
def draw_trade(points: Points, canvas: Canvas) -> None:
    """Stored numbers over the bits of a number, a curve for each width."""
    columns = {"numbers": "the whole network", "group_numbers": "the groups alone"}
    rows = [
        {**point, "part": part, "stored": point[part]}
        for part in columns
        for point in points
    ]
    for axes, in_panel in panels(canvas, rows, "part", columns, legend=2):
        axes.set(xlabel="bits of a number")
        axes.set_ylabel(f"stored numbers, n = {_examples(points)}")
        curves(
            axes, series(in_panel, "width", "width {}".format), "word_bits", "stored"
        )
        curve(
            axes,
            in_panel,
            "word_bits",
            "counting_bound",
            line=":",
            mark=None,
            color="black",
            label="counting bound",
        )
        axes.set_ylim(bottom=0)


def _examples(points: Points) -> str:
    """The numbers of examples in words: "16,384"."""
    return " and ".join(f"{n:,}" for n in sorted(split(points, "examples")))
