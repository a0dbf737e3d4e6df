"""experiments/memorize.py: its data, the printed width, and the groups of a trade."""

import math

import jax
import numpy as np
import pytest

from experiments import memorize
from experiments.measurements import memorize as measurements
from experiments.measurements.memorize_points import (
    Data,
    distinct_whole_points,
    load_images,
)
from identity_matters.images import datasets


def test_all_digits_are_fitted_in_their_order():
    data = {"dataset": "digits", "examples": (0, 5), "data_dir": "/nowhere"}
    cells = memorize.trials(
        variant="digits", separation={**data, "features": 0, "num_classes": 0}
    )
    assert [measurements.build(**cell).data.examples for cell in cells] == [1797, 5]
    assert [(cell["features"], cell["num_classes"]) for cell in cells] == [(64, 10)] * 2
    x, y = load_images("digits", "/nowhere")
    images, labels = datasets.load("digits", "all")
    np.testing.assert_array_equal(y, labels)
    flat = images.reshape(1797, 64) / 16
    norms = np.linalg.norm(flat, axis=1, keepdims=True)
    np.testing.assert_allclose(x, flat / norms, rtol=1e-6, atol=1e-7)


def test_the_printed_width_loses_norms_and_a_wide_one_does_not(monkeypatch):
    data = Data(
        dataset="synthetic",
        examples=300,
        features=1000,
        num_classes=2,
        data_dir="",
    )
    trial = measurements.PrintedWidthTrial(data, draws=4)
    record = measurements.measure_printed_width(trial, jax.random.key(0))
    outside = np.array(record["norms_outside"])
    # Binomial counts: four standard deviations of the mean of four draws.
    expected = record["expected_norms_outside"]
    assert (
        abs(outside.mean() - expected) < 4 * np.sqrt(expected / 4) and outside.min() > 0
    )

    monkeypatch.setattr("identity_matters.paper.theorem_3_2_width", lambda n, rho: 4000)
    wide = measurements.measure_printed_width(trial, jax.random.key(0))
    assert not any(wide["norms_outside"]) and wide["expected_norms_outside"] < 1e-6


def chance_of_distinct_cells(points, places, cells):
    """The chance that a random map sends points to different cells that have a place.

    Each place belongs to a cell; of more places than cells, not all are usable.
    """
    usable = min(places, cells)
    return math.prod(max(0, usable - taken) / cells for taken in range(points))


def best_chance(points, places, powers):
    """The larger chance, over the possible numbers of cells."""
    return max(chance_of_distinct_cells(points, places, cells) for cells in powers)


def test_the_trade_builds_the_largest_groups():
    settings = memorize.get_config("few_numbers_trade").to_dict()["few_numbers"]
    small = {**settings, "examples": (60,), "word_bits": (34, 53), "widths": (6, 7)}
    cells = [
        measurements.build(**cell)
        for cell in memorize.trials(variant="", few_numbers=small)
    ]
    sizes = [(cell.word_bits, cell.width, cell.group_points) for cell in cells]
    assert sizes == [(34, 6, 8), (34, 7, 12), (53, 6, 11), (53, 7, 16)]
    # A group has 10 places with 34 bits, 15 with 53, and twice as many with width 7. It
    # is hashed to a power of two of cells, the one below or above that number.
    least = settings["least_hash_chance"]
    for points, places, powers in (
        (8, 10, (8, 16)),
        (12, 20, (16, 32)),
        (11, 15, (8, 16)),
        (16, 30, (16, 32)),
    ):
        assert best_chance(points, places, powers) >= least
        assert best_chance(points + 1, places, powers) < least
    measured = measurements.measure_few_numbers(cells[1], jax.random.key(0))
    assert measured["certified"] and measured["errors"] == 0
    assert measured["largest_integer"] <= 2**34
    groups = 5  # of up to 12 of the 60 points
    k = 7  # the width
    r = 10  # classes
    assert measured["group_numbers"] == (k - 3) * groups
    assert measured["counting_lower_bound"] == pytest.approx(60 * np.log2(10) / 34)
    projection = 4  # the dimension of the points
    # (E11) of docs/theory/memorize.md
    shared = r**2 + (k + 3) * r + 30 * k**2 + 18 * k + 13
    assert measured["numbers"] == projection + (k - 3) * groups + shared


def test_random_whole_points_differ_or_are_refused():
    # 20 numbers out of 256: about every second draw contains a repetition.
    for seed in range(20):
        x = distinct_whole_points(np.random.default_rng(seed), (20, 1))
        assert len(np.unique(x, axis=0)) == 20
    # 300 points of one number from 0 to 255 cannot differ, and 100 hardly ever do.
    for examples in (100, 300):
        with pytest.raises(ValueError, match="examples must be fewer or features more"):
            distinct_whole_points(np.random.default_rng(0), (examples, 1))
        settings = memorize.get_config("few_numbers").to_dict()["few_numbers"]
        small = {
            "dataset": "synthetic",
            "examples": (examples,),
            "features": 1,
            "num_classes": 2,
        }
        trial, *_ = memorize.trials(variant="", few_numbers={**settings, **small})
        with pytest.raises(ValueError, match="examples must be fewer or features more"):
            measurements.build(**trial)
