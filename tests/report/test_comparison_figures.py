"""The figures of the comparisons, and the table of their arms."""

from identity_matters import runs
from identity_matters.report import collection, figures, tables
from identity_matters.report.figures import deep_mlp, drawing, registry, saving, style
from tests.forked import ROOT


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
    with_identity = "with the identity, paper's start"
    assert marks(test, with_identity) == [(7, 10), (31, 8)]
    assert marks(train, with_identity) == [(7, 5), (31, 4)]
    assert marks(test, "_failed") == [(7, 90), (31, 100)]
    (legend,) = canvas.legends
    assert legend.get_texts()[-1].get_text() == "failed"


def test_an_arm_has_the_colour_of_the_same_net_among_the_perceptrons():
    """The order of the dicts gives the colours."""
    arms = [
        "identity",
        "plain_paper",
        "plain_unit_variance",
        "plain_delta_orthogonal",
    ]
    run = comparison("digits/identity", {f"{arm}/7": (0.1, 9.0) for arm in arms[::-1]})
    canvas, _ = drawn_comparison("identity", run)
    _, test = canvas.axes
    colours = {line.get_label(): line.get_color() for line in test.lines}
    assert list(colours.values())[:4] == list(style.COLOURS[:4])
    perceptrons = [label.split(",")[0] for label in deep_mlp.NETS.values()]
    assert [label.split(",")[0] for label in list(colours)[:4]] == perceptrons
    assert list(deep_mlp.NETS)[-1] == (False, "orthogonal")
    assert "orthogonal" in list(colours)[3]


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
    assert names == ["He, rate 0.03", "paper, rate 0.1 or 0.3"]
    assert [label.get_text() for label in second.get_yticklabels()] == [
        "gate, rate 0.1"
    ]
    assert marks(first, "failed") == [(100, 0)]


def test_seeds_that_failed_are_counted_where_their_crosses_lie_on_one_another():
    seeds = [
        comparison("cifar10/initialisation", {"paper": (0.1, error)}, seed)
        for seed, error in enumerate((None, 20.0, None))
    ]
    canvas, _ = drawn_comparison("starts", *seeds)
    (axes,) = canvas.axes
    assert axes.get_title() == "CIFAR-10, initialisation"
    assert marks(axes, "failed") == [(100, 0), (100, 0)]
    assert [text.get_text() for text in axes.texts] == ["2 of 3"]


def test_table_2_is_drawn_over_operations_with_batch_norm_as_a_marker():
    arms = {"this_paper": (0.1, 12.0), "resnet": (0.1, 9.0)}
    canvas, _ = drawn_comparison("table_2", comparison("cifar10/table_2", arms))
    (axes,) = canvas.axes
    # 100 steps of 8 examples; ten operations for each letter of the name.
    assert marks(axes, "ResNet, with batch norm") == [(48_000, 9)]
    assert marks(axes, "this paper, without batch norm") == [(80_000, 12)]
    shapes = {line.get_label(): line.get_marker() for line in axes.lines}
    assert shapes["ResNet, with batch norm"] == "s"
    assert shapes["this paper, without batch norm"] == "o"


def test_table_2_counts_the_seeds_of_an_arm_that_failed():
    """Their crosses are at the same place, and no other mark is there."""
    arms = {"this_paper": (0.1, None), "resnet": (0.1, 9.0)}
    seeds = [comparison("cifar10/table_2", arms, seed) for seed in (0, 1)]
    trained = comparison("cifar10/table_2", {**arms, "this_paper": (0.1, 12.0)}, 2)
    canvas, _ = drawn_comparison("table_2", *seeds, trained)
    (axes,) = canvas.axes
    assert marks(axes, "this paper, without batch norm") == [(80_000, 12)]
    assert marks(axes, "_failed") == [(80_000, 100), (80_000, 100)]
    assert [text.get_text() for text in axes.texts] == ["2 of 3"]
    (legend,) = canvas.legends
    assert [text.get_text() for text in legend.get_texts()] == [
        "this paper, without batch norm",
        "ResNet, with batch norm",
        "failed",
    ]


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
