import jax
import numpy as np
import pytest

from experiments import memorize
from identity_matters.images import datasets


def test_all_digits_are_fitted_in_their_order():
    data = {"dataset": "digits", "examples": (0, 5), "data_dir": "/nowhere"}
    cells = memorize.trials(variant="digits", separation={**data, "features": 0, "num_classes": 0})
    assert [memorize.build(**cell)["examples"] for cell in cells] == [1797, 5]
    assert [(cell["features"], cell["num_classes"]) for cell in cells] == [(64, 10)] * 2
    x, y = memorize.load_images("digits", "/nowhere")
    images, labels = datasets.load("digits", "all", "/nowhere")
    np.testing.assert_array_equal(y, labels)
    flat = images.reshape(1797, 64) / 16
    norms = np.linalg.norm(flat, axis=1, keepdims=True)
    np.testing.assert_allclose(x, flat / norms, rtol=1e-6, atol=1e-7)


def test_other_data_sets_are_fitted_on_their_training_split():
    assert memorize.split_to_fit("cifar10") == "train"
    assert memorize.split_to_fit("cifar100") == "train"


FIT = {"kind": "fit", "dataset": "digits", "examples": 9, "labels": "random"}
BUILT = {
    "max_abs_error": 0.1,
    "block_parameters": 27,
    "build_seconds": 1.0,
    "verify_seconds": 1.0,
}
GOOD = {**FIT, **BUILT, "certified": True, "errors": 0}
ERRING = {**FIT, **BUILT, "certified": False, "errors": 2}
REFUSED = {**FIT, "refused": "too coarse"}


@pytest.mark.parametrize(
    "records, verdict",
    [
        ([GOOD, ERRING, REFUSED], "holds"),
        ([{**GOOD, "errors": 1}, ERRING, REFUSED], "counterexample"),
        ([ERRING, REFUSED], "undecided"),  # of this labelling there is no certified network
        ([GOOD, {**ERRING, "labels": "true"}], "undecided"),
    ],
)
def test_refused_networks_and_errors_that_are_not_certified_are_counted(records, verdict):
    conclusion = memorize.verdict({}, records)
    assert (conclusion.claim, conclusion.verdict) == ("theorem-3-2", verdict)
    assert conclusion.metrics["networks"] == len(records)
    assert conclusion.metrics["refused_networks"] == records.count(REFUSED)
    assert conclusion.metrics["uncertified_networks"] == 1
    assert conclusion.metrics["uncertified_errors"] == 2


def test_the_printed_width_loses_norms_and_a_wide_one_does_not(monkeypatch):
    data = {"dataset": "synthetic", "examples": 300, "features": 1000, "num_classes": 2}
    settings = {**data, "data_dir": "", "draws": 4}
    record = memorize.measure({**settings, "kind": "printed_width"}, jax.random.key(0))
    outside = np.array(record["norms_outside"])
    # Binomial counts: four deviations of the mean of four.
    expected = record["expected_norms_outside"]
    assert abs(outside.mean() - expected) < 4 * np.sqrt(expected / 4) and outside.min() > 0

    def verdict(record, least_share=0.5):
        config = {
            "printed_width": {**settings, "examples": (300,), "least_inside_share": least_share}
        }
        [cell] = memorize.trials(variant="paper_method", **config)
        conclusion = memorize.verdict(config, [{**cell, **record}])
        assert conclusion.claim == "theorem-3-2-constant"
        return conclusion.verdict

    assert verdict(record) == "counterexample"
    assert verdict({**record, "norms_outside": [0, 0, 3, 3]}) == "undecided"
    assert verdict({**record, "norms_outside": [0, 0, 3, 3]}, 0.6) == "counterexample"
    monkeypatch.setattr("identity_matters.paper.theorem_3_2_width", lambda n, rho: 4000)
    wide = memorize.measure({**settings, "kind": "printed_width"}, jax.random.key(0))
    assert verdict(wide) == "undecided" and wide["expected_norms_outside"] < 1e-6


def test_the_trade_builds_the_largest_groups_and_names_the_best_width():
    settings = memorize.get_config("few_numbers_trade").to_dict()["few_numbers"]
    small = {**settings, "examples": (60,), "word_bits": (34, 53), "widths": (6, 7)}
    cells = [memorize.build(**cell) for cell in memorize.trials(variant="", few_numbers=small)]
    sizes = [(cell["word_bits"], cell["width"], cell["group_points"]) for cell in cells]
    # 8!/8^8 = 0.0024 is above 0.002, and so are 11 of 15 among 16, and their like among 16 and 32.
    assert sizes == [(34, 6, 8), (34, 7, 12), (53, 6, 11), (53, 7, 16)]
    measured = memorize.measure(cells[1], jax.random.key(0))
    assert measured["certified"] and measured["errors"] == 0
    assert measured["largest_integer"] <= 2**34
    assert measured["group_numbers"] == 4 * 5
    assert measured["counting_lower_bound"] == pytest.approx(60 * np.log2(10) / 34)
    # 4 of the projection, 100 + 10 r of the output, and the rest that does not depend on r.
    assert measured["numbers"] == 4 + 4 * 5 + 100 + 10 * 10 + 30 * 49 + 18 * 7 + 13

    numbers = [9, 7, 5, 6]
    records = [
        {**cell, **measured, "numbers": count} for cell, count in zip(cells, numbers, strict=True)
    ]
    conclusion = memorize.verdict({"few_numbers": small}, records)
    assert (conclusion.claim, conclusion.verdict) == ("few-numbers", "holds")
    wanted = {
        "best_width_bits34": 7,
        "best_width_bits53": 6,
        "numbers_bits34_width6": 9,
        "numbers_bits53_width7": 6,
        "fewest_numbers": 5,
    }
    assert {name: conclusion.metrics[name] for name in wanted} == wanted


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"least_hash_chance": 1.0}, "least_hash_chance must be between 0 and 1"),
        ({"word_bits": (54,)}, "word_bits must be at most 53, got 54"),
        ({"widths": (5,)}, "width must be at least 6, got 5"),
    ],
)
def test_bad_settings_of_the_trade_are_named(changes, message):
    settings = memorize.get_config("few_numbers_trade").to_dict()["few_numbers"]
    [cell, *_] = memorize.trials(variant="", few_numbers={**settings, **changes})
    with pytest.raises(ValueError, match=message):
        memorize.build(**cell)
