"""Figures: what is drawn, of which seeds, and that it depends on nothing else."""

import re

import matplotlib
import pytest

from experiments import factorization as factorization_experiment
from experiments import landscape as landscape_experiment
from identity_matters import paper, runs
from identity_matters.report import collection, figures, numbers, tables
from identity_matters.report.figures import (
    drawing,
    factorization,
    landscape,
    registry,
    saving,
    style,
)
from tests.forked import ROOT
from tests.measured import REFERENCE


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
        # What a benchmark times does not depend on a seed. Of the comparison of Table
        # 2's nets one seed was run.
        is_benchmark = figure.experiment.startswith("benchmark")
        is_table_2 = figure.name == "comparisons_table_2"
        seeds = {0} if is_benchmark or is_table_2 else {0, 1, 2}
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
        # Each draw has a line of its own; those of the legend are empty.
        lines = [line for line in axes.lines if len(line.get_xdata())]
        return sorted(line.get_marker() for line in lines)

    assert ends(0, 1, 2) == ["*", "o", "x"]
    assert ends(0, 1) == ["*", "o"]


def ablation(seed, losses):
    """A run of ablations; `losses` has those of each net, fewer than 3 if it diverged.

    The training error is ten times the loss.
    """
    records = []
    for cell, (net, of_net) in enumerate(losses.items()):
        for place, loss in enumerate(of_net, start=1):
            at_step = {"cell": cell, "step": 100 * place}
            percent = 10 * loss
            train = {"kind": "train", "loss": loss, "error_percent": percent}
            records.append(at_step | train)
            evaluation = {"kind": "evaluation", "test_error_percent": percent}
            records.append(at_step | evaluation)
        result = {
            "kind": "result",
            "cell": cell,
            "net": net,
            "model": {"blocks_per_stage": [1]},
            "train": {"steps_per_log": 100},
            "diverged": len(of_net) < 3,
        }
        records.append(result)
    summary = {
        "experiment": "ablations",
        "variant": "toy/projection",
        "seed": seed,
        "status": "done",
    }
    return runs.Run(ROOT, {}, {}, summary, records)


def drawn(name, *read):
    """The canvas with the figure of this name, drawn of these runs."""
    (figure,) = (figure for figure in figures.FIGURES if figure.name == name)
    canvas = drawing.Canvas()
    figure.draw(
        [row for run in read for row in registry.points_of(figure, run)], canvas
    )
    return canvas


def lines_of(axes, label):
    """The points of each line of this label."""
    lines = [line for line in axes.lines if line.get_label() == label]
    return [line.get_xydata().tolist() for line in lines]


def test_one_seed_that_diverges_is_marked_and_leaves_no_median_of_the_others():
    first = ablation(0, {"fixed": [3.0, 2.0, 1.0], "trained": [2.0, 2.0, 2.0]})
    second = ablation(1, {"fixed": [3.0, 9.0], "trained": [4.0, 4.0, 4.0]})
    above, below = drawn("ablations_projection", first, second).axes
    assert lines_of(above, "trained") == [[[100, 3], [200, 3], [300, 3]]]
    assert lines_of(above, "fixed") == [
        [[100, 3], [200, 2], [300, 1]],
        [[100, 3], [200, 9]],
    ]
    assert lines_of(below, "fixed") == [
        [[100, 30], [200, 20], [300, 10]],
        [[100, 30], [200, 90]],
    ]
    assert [(text.get_text(), text.xy) for text in above.texts] == [
        (" diverges", (200, 9))
    ]
    assert above.get_ylim()[1] == 9


def test_nets_that_all_diverge_are_all_marked():
    run = ablation(0, {"fixed": [3.0, 4.0], "trained": [2.0, 20.0]})
    above, _ = drawn("ablations_projection", run).axes
    assert [text.xy for text in above.texts] == [(200, 4), (200, 10)]
    assert above.get_ylim()[1] == 10


def test_figure_1_has_a_curve_for_each_seed_if_one_diverges():
    def cifar(seed, status, errors):
        records = [
            {"kind": "train", "step": 100 * place, "error_percent": error}
            for place, error in enumerate(errors, start=1)
        ]
        summary = {
            "experiment": "cifar",
            "variant": "cifar10/small",
            "seed": seed,
            "status": status,
        }
        return runs.Run(ROOT, {}, {}, summary, records)

    done = cifar(0, "done", [60.0, 50.0, 40.0])
    diverged = cifar(1, "diverged", [80.0])
    (axes,) = drawn("cifar_convergence", done, diverged).axes
    assert lines_of(axes, "training batches") == [
        [[100, 60], [200, 50], [300, 40]],
        [[100, 80]],
    ]
    marked = [text for text in axes.texts if text.get_text() == "diverges"]
    assert [text.xy for text in marked] == [(100, 80)]


def test_the_bars_of_stored_numbers_are_medians_over_the_seeds():
    def retrieval(seed, words):
        record = {
            "kind": "retrieval",
            "dataset": "digits",
            "examples": 26,
            "features": 4,
            "num_classes": 10,
            "counting_lower_bound": 5.0,
            "input_map": "dense",
            "input_map_numbers": 6,
            "word_numbers": words,
            "numbers": 100 + words,
        }
        summary = {"experiment": "memorize", "variant": "toy", "seed": seed}
        return runs.Run(ROOT, {}, {}, summary, [record])

    read = [retrieval(seed, words) for seed, words in enumerate((30, 50, 10))]
    (axes,) = drawn("memorize_floor", *read).axes
    widths = {
        container.get_label(): [bar.get_width() for bar in container]
        for container in axes.containers
    }
    # From the bottom: the table, 13 labels a word, one hidden layer. The 26 labels are
    # 2 groups of 3 numbers, or 52 numbers in one hidden layer.
    assert widths["input map"] == [6, 4, 4]
    assert widths["numbers that hold labels"] == [30, 6, 52]


def descent_run(variant, *records, seed=0):
    summary = {"experiment": "linear_training", "variant": variant, "seed": seed}
    return runs.Run(ROOT, {}, {}, summary, list(records))


def test_updates_of_nets_of_which_some_did_not_converge_are_hollow():
    def trained(depth, problem_seed, converged, updates):
        return {
            "network": "residual",
            "depth": depth,
            "problem_seed": problem_seed,
            "start_gradient_norm": 1.0,
            "converged": converged,
            "updates": updates,
        }

    all_of_2 = [trained(2, 0, True, 10), trained(2, 1, True, 30)]
    one_of_4 = [trained(4, 0, True, 50), trained(4, 1, False, 900)]
    none_of_8 = [trained(8, 0, False, 900), trained(8, 1, False, 900)]
    read = descent_run("depth", *all_of_2, *one_of_4, *none_of_8)
    _, updates = drawn("linear_training_depth", read).axes
    lines = [line for line in updates.lines if len(line.get_xdata())]
    heights = {
        line.get_ydata()[0]: line.get_markerfacecolor() == "none" for line in lines
    }
    assert heights == {20: False, 50: True}
    (entry,) = updates.get_legend().get_texts()
    assert entry.get_text() == "some did not get there"
    _, updates = drawn("linear_training_depth", descent_run("depth", *all_of_2)).axes
    assert updates.get_legend() is None


def test_every_repeat_of_a_start_has_its_curve():
    def stuck(repeat, risks):
        return {
            "target": "plane",
            "start": "factorization",
            "width": 4,
            "repeat": repeat,
            "predicted_stall_excess_risk": 1.0,
            "curve_updates": list(range(len(risks))),
            "curve_excess_risk": risks,
        }

    read = descent_run("stuck_targets", stuck(0, [2.0, 1.0]), stuck(1, [3.0, 2.0, 1.0]))
    (axes,) = drawn("linear_training_stuck", read).axes
    assert lines_of(axes, "beside the factorization") == [
        [[0, 2], [1, 1]],
        [[0, 3], [1, 2], [2, 1]],
    ]


def test_the_range_of_norms_says_how_many_seeds_diverged():
    def nets(seed, *norms_at_depth):
        records = []
        for depth, norm in zip((2, 4), norms_at_depth, strict=True):
            measured = {"diverged": True} if norm is None else {"norm": norm}
            model = {
                "identity": True,
                "initialization": "near_zero",
                "activation": "relu",
            }
            net = {"model": model, "depth": depth, "rate_times_depth": 0.5}
            records.append({"diverged": False, **net, **measured})
        summary = {"experiment": "deep_mlp", "variant": "digits/relu", "seed": seed}
        return runs.Run(ROOT, {}, {}, summary, records)

    read = [nets(0, 1.0, None), nets(1, None, None), nets(2, 1.5, None)]
    (axes,) = drawn("deep_mlp_norms", *read).axes
    (table,) = axes.tables
    assert table[1, 0].get_text().get_text() == "2–3 (2 of 3)"
    assert table[1, 1].get_text().get_text() == "diverged"


def test_a_form_that_is_the_same_at_every_depth_is_drawn_at_all_of_them():
    rows = [
        {"depth": depth, "width": width, "tau": 0.5, "scale": 1.0, "ratio": ratio}
        for depth, width, ratio in ((1, 1, 1.0), (4, 1, 1.5), (4, 3, 2.0))
    ]
    record = {"kind": "tight", "form": "corrected", "rows": rows}
    summary = {"experiment": "gradient_bound", "variant": "corrected", "seed": 0}
    (axes,) = drawn(
        "gradient_bound_tight_family", runs.Run(ROOT, {}, {}, summary, [record])
    ).axes
    ratios = [ratio for ((_, ratio),) in lines_of(axes, "corrected, every ℓ")]
    assert ratios == [1, 1.5, 2]


def test_the_square_of_n_goes_through_the_median_of_the_builds():
    def built(seed, build_seconds):
        records = [
            {
                "examples": n,
                "errors": 0,
                "certified": True,
                "max_abs_error": 0.0,
                "build_seconds": build_seconds,
                "run_seconds": 1.0,
                "peak_memory_gigabytes": 1.0,
            }
            for n in (10, 20)
        ]
        summary = {
            "experiment": "benchmark_memorize_at_scale",
            "variant": "toy",
            "seed": seed,
        }
        return runs.Run(ROOT, {}, {}, summary, records)

    read = [built(seed, seconds) for seed, seconds in enumerate((100.0, 8.0, 4.0))]
    left, _ = drawn("benchmark_memorize_at_scale_growth", *read).axes
    assert lines_of(left, "n²") == [[[10, 2], [20, 8]]]


def test_the_time_to_half_the_risk_is_that_of_the_starts_that_get_there():
    record = {
        "measured": "noise",
        "depth": 1,
        "width": 4,
        "bias": False,
        "scales": [0.0, 0.1],
        "median_updates_to_half": [None, 40.0],  # nothing moves from exactly 0
        "final_risk_share": [[1.0, 1.0], [1e-3, 1.0]],
    }
    summary = {"experiment": "relu", "variant": "noise", "seed": 0}
    read = runs.Run(ROOT, {"optimal_share": 1e-6}, {}, summary, [record])
    _, times = drawn("relu_noise", read).axes
    (line,) = times.lines
    assert line.get_xydata().tolist() == [[0.1, 40]]
    assert times.get_ylabel().endswith(", if reached")


def comparison(variant, arms, seed=0):
    """A run of comparisons; `arms` has (rate, test error or None if it diverged)."""
    metrics = {}
    for arm, (rate, error) in arms.items():
        metrics[f"learning_rate/{arm}"] = rate
        metrics[f"at_edge_of_grid/{arm}"] = int(rate == 0.3)
        metrics[f"failed/{arm}"] = int(error is None or error >= 80)
        metrics[f"training_flops_per_example/{arm}"] = 10.0 * len(arm)
        if error is not None:
            metrics[f"test_error_percent/{arm}"] = error
            metrics[f"train_error_percent/{arm}"] = error / 2
    summary = {"variant": variant, "seed": seed, "metrics": metrics}
    config = {"train": {"steps": 100, "batch_examples": 8}}
    return runs.Run(ROOT, config, {}, {"experiment": "comparisons", **summary}, [])


def drawn_comparison(name, *compared):
    (figure,) = (
        figure for figure in figures.FIGURES if figure.name == f"comparisons_{name}"
    )
    points = [row for run in compared for row in registry.points_of(figure, run)]
    canvas = drawing.Canvas()
    figure.draw(points, canvas)
    saving.render(figure, points)
    return canvas, points


def marks(axes, label):
    """The points of the lines of this label."""
    lines = [line for line in axes.lines if line.get_label() == label]
    return [tuple(place) for line in lines for place in line.get_xydata().tolist()]


def test_the_identity_is_compared_over_depth_and_failures_are_marked():
    arms = {
        "identity/7": (0.1, 10.0),
        "identity/31": (0.1, 8.0),
        "plain_paper/7": (0.3, 90.0),
        "plain_paper/31": (0.3, None),
    }
    run = comparison("digits/identity", arms)
    other = comparison("digits/table_2", {"resnet": (0.1, 9.0)})
    canvas, points = drawn_comparison("identity", run, other)
    assert {row["arm"] for row in points} == {"identity", "plain_paper"}
    train, test = canvas.axes
    assert marks(test, "identity") == [(7, 10), (31, 8)]
    assert marks(train, "identity") == [(7, 5), (31, 4)]
    assert marks(test, "failed") == [(7, 90), (31, 100)]


def test_starts_are_compared_with_their_tuned_rates():
    arms = {"paper": (0.1, 20.0), "he": (0.03, None)}
    seeds = [
        comparison("cifar10/initialisation", arms),
        comparison("cifar10/initialisation", {"paper": (0.3, 22.0)}, seed=1),
        comparison("cifar10/starts", {"gate": (0.1, 30.0)}),
    ]
    canvas, _ = drawn_comparison("starts", *seeds)
    first, second = canvas.axes
    names = [label.get_text() for label in first.get_yticklabels()]
    assert names == ["he, rate 0.03", "paper, rate 0.1 or 0.3"]
    assert [label.get_text() for label in second.get_yticklabels()] == [
        "gate, rate 0.1"
    ]
    assert marks(first, "failed") == [(100, 0)]


def test_table_2_is_drawn_over_operations_with_batch_norm_as_a_marker():
    arms = {"this_paper": (0.1, 12.0), "resnet": (0.1, 9.0)}
    canvas, _ = drawn_comparison("table_2", comparison("cifar10/table_2", arms))
    (axes,) = canvas.axes
    # 100 steps of 8 examples; ten operations for each letter of the name.
    assert marks(axes, "resnet, with batch norm") == [(48_000, 9)]
    assert marks(axes, "this paper, without batch norm") == [(80_000, 12)]
    shapes = {line.get_label(): line.get_marker() for line in axes.lines}
    assert shapes["resnet, with batch norm"] == "s"
    assert shapes["this paper, without batch norm"] == "o"


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


def test_the_table_of_arms_has_the_rate_of_each_seed_and_says_what_failed():
    seeds = (
        comparison("digits/identity", {"net/15": (0.1, 20.0), "net/7": (0.3, 4.0)}),
        comparison("digits/identity", {"net/15": (0.1, None), "net/7": (0.1, 6.0)}, 1),
    )
    shallow, deep = tables.arms_table(collection.Group(seeds))
    assert [shallow["arm"], deep["arm"]] == ["net/7", "net/15"]
    assert shallow["learning rate"] == "0.3 (edge), 0.1"
    assert shallow["test error (%)"] == "5 ± 1.4"
    assert shallow["failed"] == "0 of 2"
    assert deep["learning rate"] == "0.1, 0.1"
    assert deep["test error (%)"] == "20 (n = 1)"
    assert deep["failed"] == "1 of 2"


def test_other_experiments_have_no_arms():
    run = runs.Run(ROOT, {}, {}, {"experiment": "cifar", "metrics": {}}, [])
    assert [*tables.arms_table(collection.Group((run,)))] == []


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
