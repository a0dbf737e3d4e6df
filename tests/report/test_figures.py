"""Figures: what is drawn, of which seeds, and that it depends on nothing else."""

import csv
import re
import statistics

import matplotlib
import pytest

from experiments import factorization as factorization_experiment
from experiments import landscape as landscape_experiment
from identity_matters import paper, runs
from identity_matters.report import figures, numbers
from identity_matters.report.figures import (
    drawing,
    factorization,
    landscape,
    registry,
    saving,
    style,
)
from identity_matters.report.records import totals_of_slices
from tests.forked import ROOT
from tests.measured import REFERENCE


def test_the_slices_of_a_network_count_together():
    def slice_of(examples, errors, certified, error, *, build, run, memory):
        return {
            "examples": examples,
            "errors": errors,
            "certified": certified,
            "max_abs_error": error,
            "build_seconds": build,
            "run_seconds": run,
            "peak_memory_gigabytes": memory,
        }

    records = [
        slice_of(20, 1, True, 0.25, build=3.0, run=0.5, memory=2.0),
        slice_of(10, 0, True, 0.125, build=1.0, run=0.25, memory=1.0),
        slice_of(20, 2, False, 0.5, build=2.0, run=1.0, memory=4.0),
        slice_of(20, 0, True, 0.125, build=5.0, run=0.5, memory=3.0),
    ]
    assert totals_of_slices(records) == [
        slice_of(10, 0, True, 0.125, build=1.0, run=0.25, memory=1.0),
        slice_of(20, 3, False, 0.5, build=2.0, run=2.0, memory=4.0),
    ]


def test_figure_1_shows_the_small_nets_beside_the_published_error():
    (figure_1,) = (
        figure for figure in figures.FIGURES if figure.name == "cifar_convergence"
    )
    records = [
        {"kind": "train", "step": 100, "error_percent": 60.0},
        {"kind": "evaluation", "step": 100, "test_error_percent": 55.0},
    ]
    canvas = drawing.Canvas()
    points = []
    for variant in ("cifar100/small", "digits/all_conv_residual"):
        summary = {
            "experiment": "cifar",
            "variant": variant,
            "seed": 0,
            "status": "done",
        }
        points += registry.points_of(figure_1, runs.Run(ROOT, {}, {}, summary, records))
    figure_1.draw(points, canvas)
    drawn = {
        axes.get_title(): [line.get_label() for line in axes.lines]
        for axes in canvas.axes
    }
    curves = ["training batches", "test"]
    published = "the paper's test error, 13.5M parameters"
    assert drawn == {
        "cifar100/small": [*curves, published],
        "digits/all_conv_residual": curves,
    }
    assert [[text.get_text() for text in axes.texts] for axes in canvas.axes] == [
        ["24.64 %"],
        [],
    ]
    (legend,) = canvas.legends  # below all panels, which are too narrow for their own
    assert [text.get_text() for text in legend.get_texts()] == [*curves, published]
    assert not any(axes.get_legend() for axes in canvas.axes)


def test_the_ratios_of_a_training_that_diverged_are_not_those_after_training():
    (ratios,) = (f for f in figures.FIGURES if f.name == "cifar_residual_ratio")
    records = [
        {"kind": "evaluation", "step": step, "residual_ratio": [0.01 + step]}
        for step in (0, 100, 200)
    ]
    canvas = drawing.Canvas()
    points = []
    for variant, status in (("cifar10/small", "done"), ("cifar100/small", "diverged")):
        summary = {
            "experiment": "cifar",
            "variant": variant,
            "seed": 0,
            "status": status,
        }
        points += registry.points_of(ratios, runs.Run(ROOT, {}, {}, summary, records))
    ratios.draw(points, canvas)
    drawn = {
        axes.get_title(): [line.get_label() for line in axes.lines]
        for axes in canvas.axes
    }
    assert drawn == {
        "cifar10/small": ["before training", "after training"],
        "cifar100/small": ["before training", "last evaluation before it diverged"],
    }


@pytest.mark.parametrize("name", paper.FIGURES)
def test_a_description_is_neither_the_title_nor_the_caption(name):
    """It is read out beside them, and says what one sees."""
    about = paper.FIGURES[name]
    assert 20 <= len(about.description.split()) <= 110
    words = set(about.description.lower().split())
    for other in (about.title, about.caption):
        assert about.description not in other
    assert len(words & set(about.caption.lower().split())) < 0.7 * len(words)
    # In sans-serif letters l, I, 1 and | are nearly the same.
    for text in about:
        assert not re.search(r"(?<![A-Za-z'’])l(?![A-Za-z'’])", text)


def test_every_figure_has_points_of_all_seeds_and_can_be_drawn_of_one_alone():
    done = [run for run in runs.read_collection(REFERENCE)[0] if run.status == "done"]
    for figure in figures.FIGURES:
        its_runs = [run for run in done if run.experiment == figure.experiment]
        points = [row for run in its_runs for row in registry.points_of(figure, run)]
        # What a benchmark times does not depend on a seed.
        is_benchmark = figure.experiment.startswith("benchmark")
        seeds = {0} if is_benchmark else {0, 1, 2}
        assert {row["seed"] for row in points} == seeds, figure.name
        canvas = drawing.Canvas()
        last = max(seeds)
        figure.draw([row for row in points if row["seed"] == last], canvas)
        assert all(axes.lines or axes.patches or axes.tables for axes in canvas.axes)


def test_no_figure_depends_on_the_users_matplotlib_settings():
    rows = [
        {"seed": seed, "depth": depth, "norm": norm}
        for seed in (0, 1)
        for depth, norm in ((1, 0.3), (2, 0.6 + seed))
    ]
    (figure,) = (figure for figure in figures.FIGURES if figure.name == "optimum_curve")

    def draw(points, canvas):
        axes = canvas.subplots()
        axes.set(yscale="log", xlabel=style.DEPTH_TIMES_NORM)
        for looks, part in drawing.series(points, "seed"):
            drawing.curve(axes, part, "depth", "norm", **looks)

    toy = figure._replace(draw=draw)
    expected = saving.render(toy, rows)
    theirs = {
        "text.usetex": True,  # would need a LaTeX
        "font.family": "monospace",
        "axes.facecolor": "yellow",
        "lines.linewidth": 9,
        "savefig.transparent": True,
        "svg.fonttype": "path",
        "axes.formatter.use_locale": True,
    }
    with matplotlib.rc_context(theirs):
        assert saving.render(toy, rows) == expected


def test_series_differ_by_marker_and_dashes_as_well_as_by_colour():
    canvas = drawing.Canvas()
    axes = canvas.subplots()
    rows = [{"net": net, "x": x, "y": x} for net in range(7) for x in (1, 2)]
    for line, mark in (
        (None, drawing.OWN),
        (drawing.OWN, None),
        ("--", drawing.OWN),
        (None, "x"),
    ):
        for looks, part in drawing.series(rows, "net"):
            drawing.curve(axes, part, "x", "y", line=line, mark=mark, **looks)
    marks, lines, both, crosses = (axes.lines[7 * i : 7 * i + 7] for i in range(4))
    for drawn in (marks, both):
        assert [line.get_marker() for line in drawn] == [*style.MARKERS]
    assert len({str(line._unscaled_dash_pattern) for line in lines}) == 7
    assert {line.get_marker() for line in lines} == {"None"}
    assert {line.get_linestyle() for line in both} == {"--"}
    assert {line.get_marker() for line in crosses} == {"x"}
    assert {line.get_linestyle() for line in (*marks, *crosses)} == {"None"}


def test_black_marks_are_light_in_the_dark_mode():
    """Matplotlib writes no fill for black, the default, so they must inherit one."""
    (figure,) = (figure for figure in figures.FIGURES if figure.name == "optimum_curve")

    def draw(points, canvas):
        canvas.subplots().plot([1], [1], "o", color="black")

    svg = saving.render(figure._replace(draw=draw), [])
    (mark,) = re.findall(r"<g clip-path[^>]*>\s*<use [^>]*/>", svg)
    assert "fill" not in mark
    (rule,) = re.findall(
        r"@media \(prefers-color-scheme: dark\)\{svg\{fill:(#\w+)\}", svg
    )
    assert rule == "#e4e7eb"


def test_a_figure_says_what_its_medians_are_of():
    def note(*values_per_place):
        canvas = drawing.Canvas()
        rows = [
            {"seed": seed, "x": place, "y": value}
            for place, values in enumerate(values_per_place)
            for seed, value in values
        ]
        drawing.curve(canvas.subplots(), rows, "x", "y")
        drawing.finish(canvas)
        return canvas.get_suptitle()

    assert note([(0, 1.0)]) == ""
    three = [(0, 1.0), (1, 2.0), (2, 3.0)]
    assert "median of 3 seeds;" in note(three)
    assert "median of 2 to 3 seeds;" in note(three, three[:2])
    assert "median of 1 to 3 seeds;" in note(three, three[:1])
    assert "median of 6 values from 3 seeds;" in note(2 * three)
    assert "median of 2 values;" in note([(0, 1.0), (0, 2.0)])


def test_panels_of_different_numbers_of_seeds_say_how_many():
    """Else one could take a panel of one seed for one in which the seeds agree."""

    def titles(*seeds_of_panels):
        canvas = drawing.Canvas()
        points = [
            {"net": f"net {number}", "seed": seed, "x": 1, "y": 1.0}
            for number, seeds in enumerate(seeds_of_panels)
            for seed in range(seeds)
        ]
        for axes, in_panel in drawing.panels(canvas, points, "net"):
            drawing.curve(axes, in_panel, "x", "y")
        drawing.finish(canvas)
        return [axes.get_title() for axes in canvas.axes], canvas.get_suptitle()

    names, note = titles(1, 3)
    assert names == ["net 0, n = 1", "net 1, n = 3"]
    assert "median of 1 to 3 seeds;" in note
    names, _ = titles(3, 3)
    assert names == ["net 0", "net 1"]


def test_a_logarithmic_axis_of_less_than_two_decades_has_plain_numbers():
    def labels(top):
        canvas = drawing.Canvas()
        axes = canvas.subplots()
        axes.set(yscale="log", ylim=(0.1, top))
        drawing.finish(canvas)
        canvas.draw_without_rendering()
        shown = [*axes.get_yticklabels(), *axes.get_yticklabels(minor=True)]
        return [label.get_text() for label in shown if label.get_text()]

    assert {"0.1", "0.2", "0.5", "1"} <= set(labels(3.0))
    assert not any("$" in label for label in labels(3.0))
    assert any("$" in label for label in labels(1e6))


def test_figures_use_the_limits_of_the_verdicts():
    settings = landscape_experiment.get_config("critical_points")
    assert 1 - settings.wall_margin == landscape.LARGEST_NORM_INSIDE
    assert settings.excess_tolerance == landscape.LARGEST_RELATIVE_EXCESS
    accepted = 1 + factorization.ACCEPTED_EXCESS_PERCENT / 100
    for variant in ("shortest_random", "shortest_normal"):
        settings = factorization_experiment.get_config(variant)
        assert settings.max_best_over_lower_bound == accepted


def test_a_draw_that_stops_before_the_last_update_has_diverged():
    """The setting decides, not the longest of the draws in the figure."""
    record = {
        "target": "plane",
        "depth": 2,
        "noise_stds": [0.1],
        "updates": [[30, 40, 100]],
        "converged": [[True, False, False]],
        "descent": {"max_updates": 100},
    }

    def ends(*kept):
        canvas = drawing.Canvas()
        lists = {
            name: [[record[name][0][i] for i in kept]]
            for name in ("updates", "converged")
        }
        summary = {"experiment": "linear_training", "variant": "noise", "seed": 0}
        run = runs.Run(ROOT, {}, {}, summary, [record | lists])
        (figure,) = (f for f in figures.FIGURES if f.name == "linear_training_noise")
        figure.draw(registry.points_of(figure, run), canvas)
        (axes,) = canvas.axes
        # The lines of the legend are empty.
        lines = [line for line in axes.lines if len(line.get_xdata())]
        marked = sorted(line.get_marker() for line in lines)
        return marked, [text.get_text() for text in axes.texts]

    assert ends(0, 1, 2) == (["*", "o", "x"], ["1", "1"])
    assert ends(0, 1) == (["*", "o"], ["1"])
    assert ends(0, 1, 1) == (["*", "o"], ["2"])  # on one another, and counted


def test_a_curve_shows_the_median_and_the_range_of_the_seeds():
    canvas = drawing.Canvas()
    axes = canvas.subplots()
    rows = [{"depth": 1, "norm": value} for value in (1.0, 2.0, 9.0)]
    rows += [{"depth": 4, "norm": value} for value in (0.0, None, float("nan"))]
    drawing.curve(axes, rows, "depth", "norm", floor=0.5)
    (line,), (band,) = axes.lines, axes.collections
    assert line.get_xydata().tolist() == [[1, 2], [4, 0.5]]
    assert band.get_paths()[0].get_extents().extents.tolist() == [1, 0.5, 4, 9]
    drawing.curve(axes, [{"depth": 1, "norm": 1.0}], "depth", "norm")
    assert len(axes.collections) == 1  # one value has no range


def test_names_are_sorted_by_the_numbers_in_them():
    names = ["net/15", "net/7", "b", "3", "\u0663", "net/7/x"]
    assert sorted(names, key=numbers.natural_order) == [
        "3",
        "b",
        "net/7",
        "net/7/x",
        "net/15",
        "\u0663",
    ]


def plotted(figure: str) -> list[dict[str, str]]:
    """The points of a committed figure."""
    with open(ROOT / "results/figures" / f"{figure}.csv", newline="") as file:
        return list(csv.DictReader(file))


def description_of(figure: str) -> str:
    return " ".join(paper.FIGURES[figure].description.split())


def test_a_description_gives_the_errors_that_sgd_ends_with():
    ends = [row for row in plotted("memorize_descent") if row["step"] == "4000"]
    percents = [
        float(row["errors_percent"]) for row in ends if row["learning_rate"] == "0.01"
    ]
    assert 9 < statistics.median(percents) < 12
    assert "with rate 0.01 to about 10" in description_of("memorize_descent")


def test_a_description_gives_the_range_of_updates_that_free_stuck_targets():
    converged = [
        (row["depth"], int(row["updates"]))
        for row in plotted("linear_training_noise")
        if row["converged"] == "True"
    ]
    by_depth = {depth: [n for of, n in converged if of == depth] for depth in "24"}
    assert (min(by_depth["2"]), max(by_depth["2"])) == (8, 55)
    assert 18_500 < max(by_depth["4"]) < 19_500
    said = description_of("linear_training_noise")
    assert "2 layers draws take 8 to 55 updates" in said
    assert "4 layers up to 19,000" in said


def test_the_caption_of_the_wall_says_that_some_points_are_beyond_the_axis():
    assert max(float(row["norm"]) for row in plotted("landscape_wall")) > 3
    caption = " ".join(paper.FIGURES["landscape_wall"].caption.split())
    assert "points beyond 3" in caption
