"""What a figure shows where seeds, repeats or sizes differ: no one stands for all."""

from identity_matters import runs
from identity_matters.report import figures
from identity_matters.report.figures import drawing, registry
from tests.forked import ROOT


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
    assert lines_of(axes, "near the factorization") == [
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
