"""Memorisation by retrieval.

The network in float64 and NumPy against exact integer arithmetic.
"""

import types

import jax
import numpy as np
import pytest

from experiments.measurements.memorize_points import distinct_whole_points
from identity_matters.memorize import (
    machine,
    memorize_by_retrieval,
    peeling,
    retrieval,
    verify,
)
from identity_matters.memorize.certificate import PrecisionError
from tests import machine_in_numpy
from tests.tables import by_name


def _problem(n, features, num_classes):
    rng = np.random.default_rng(n)
    return distinct_whole_points(rng, (n, features)), rng.integers(0, num_classes, n)


@pytest.mark.slow
@by_name(
    {"n": 1, "features": 3, "num_classes": 4, "factored": False},
    {"n": 2, "features": 2, "num_classes": 1, "factored": False},
    {"n": 60, "features": 6, "num_classes": 2, "factored": True},
    {"n": 101, "features": 7, "num_classes": 3, "factored": True},  # a prime: no factor
    {"n": 100, "features": 5, "num_classes": 10, "factored": False},
    {"n": 40, "features": 12, "num_classes": 100, "factored": True},
)
def test_float64_computes_what_whole_numbers_do(n, features, num_classes, factored):
    x, y = _problem(n, features, num_classes)
    network, certificate = memorize_by_retrieval(
        x, y, num_classes, factored_input_map=factored
    )
    exact, largest = machine_in_numpy.run_exactly(network, x)
    np.testing.assert_array_equal(exact, np.eye(num_classes)[y])
    assert certificate.holds
    assert largest <= certificate.largest_integer <= 2**53
    assert largest >= certificate.largest_integer / 4  # the bound is not far off
    outputs = retrieval.forward(network, x.astype(float))
    np.testing.assert_array_equal(outputs, exact.astype(float))
    np.testing.assert_array_equal(machine_in_numpy.run_in_float64(network, x), outputs)
    assert verify(network, x, y, run=retrieval.forward) == (0, 0.0)


@pytest.mark.parametrize(
    ("changed", "largest"),
    [
        # Doubled in the hash; and z falls by one interval for each word.
        ({"large": 1000}, 2 * 1000),
        ({"interval": 100, "words": 20}, 2 * 100 * 21),
        # Words, and what the extraction of digits makes of them.
        ({"base": 10, "digits": 3, "offset": 0}, 1000),
        ({"base": 10, "digits": 3, "offset": 500}, 9 * 100 + 1),
        ({"base": 2, "digits": 3, "offset": 8}, 2 * 2 * 3),
    ],
)
def test_the_bound_on_all_whole_numbers_by_hand(changed, largest):
    least = {"large": 1, "interval": 1, "words": 1, "base": 2, "digits": 1, "offset": 0}
    layout = types.SimpleNamespace(**(least | changed))
    assert retrieval._largest_integer(layout) == largest


@pytest.mark.parametrize("factored", [False, True])
def test_every_stored_number_is_counted(factored):
    n = 3000
    num_classes = 10
    x, y = _problem(n, 24, num_classes)
    network, _ = memorize_by_retrieval(x, y, num_classes, factored_input_map=factored)
    words = retrieval.word_numbers(network)
    assert 1.222 * n / 16 < words < 1.25 * n / 16 + 1
    # E14: 14 blocks of 2 * 36 + 6 numbers, a zero before the words, the shift of t, and
    # how often the passes, rounds, doublings, subtractions of a place, digits and
    # counts are repeated.
    shared = 14 * 78 + 1 + 1 + 6
    output = (num_classes + 2) * (6 + 1 + num_classes)
    input_map = 4 + 6 if factored else 1 + 24
    assert retrieval.stored_numbers(network) == input_map + words + shared + output
    assert verify(network, x, y, run=retrieval.forward).errors == 0


def test_points_at_equal_distances_are_hashed_apart():
    """Without folds the hash would spread them evenly.

    Then no cell would have a single point.
    """
    n = 4000
    y = np.random.default_rng(0).integers(0, 10, n)
    network, _ = memorize_by_retrieval(7 * np.arange(n)[:, None] - 500, y, 10)
    assert retrieval.word_numbers(network) < 1.25 * n / 16 + 1


def test_a_changed_number_is_an_error():
    x, y = _problem(300, 6, 10)
    network, _ = memorize_by_retrieval(x, y, 10, factored_input_map=True)

    def errors(changed):
        return verify(changed, x, y, run=retrieval.forward).errors

    assert errors(network) == 0
    assert errors(network._replace(columns=network.columns.at[1].add(1))) > 200
    assert errors(network._replace(start=network.start + 1)) > 200
    parts = list(network.passes.parts)
    assert isinstance(parts[2], machine.Sweep)
    # A word holds 16 of 384 digits: about one point in eight uses one of them.
    parts[2] = parts[2]._replace(numbers=parts[2].numbers.at[5].add(1e15 + 1))
    assert (
        0
        < errors(network._replace(passes=network.passes._replace(parts=tuple(parts))))
        < 100
    )
    assert errors(network._replace(passes=network.passes._replace(repeats=2))) > 200


def test_the_network_finds_the_cells_that_the_table_was_filled_for():
    """The hash in blocks is the hash in NumPy, and so is the place."""
    x, y = _problem(50, 4, 10)
    network, _ = memorize_by_retrieval(x, y, 10)
    t = int(network.start) + (x @ np.asarray(network.columns)).astype(np.int64)
    rng = np.random.default_rng(0)
    layout = retrieval._draw_layout(10, 16, 4, rng)
    h = np.zeros((6, len(t)))
    h[retrieval.HASH] = t
    h = np.asarray(machine.run(jax.numpy.asarray(h), retrieval._hash_blocks(layout)))
    z = retrieval.hash_numbers(t, layout)
    np.testing.assert_array_equal(h[retrieval.HASH], z)
    h = np.asarray(machine.run(jax.numpy.asarray(h), retrieval._place_blocks(layout)))
    place, z = retrieval.place_and_rest(z, layout)
    np.testing.assert_array_equal(h[retrieval.PLACE], place)
    np.testing.assert_array_equal(h[retrieval.HASH], z)
    cells = h[retrieval.PLACE] * layout.words + h[retrieval.HASH] // layout.interval
    np.testing.assert_array_equal(cells, retrieval.edge_cells(t, layout)[:, 0])
    assert np.all(h[retrieval.SCRATCH] == 0)
    # All cells are hit about equally often.
    t = 1 + np.arange(20_000)
    counts = np.bincount(retrieval.edge_cells(t, layout).ravel(), minlength=64)
    assert np.abs(counts / (60_000 / 64) - 1).max() < 0.2


def test_peeling_in_any_order_gives_the_labels():
    rng = np.random.default_rng(0)
    cells = rng.integers(0, 1300, (1000, 3))
    labels = rng.integers(0, 7, 1000)
    rounds = peeling.peel(cells, 1300)
    assert sorted(np.concatenate([edges for edges, _ in rounds])) == list(range(1000))
    table = peeling.fill(rounds, cells, labels, 1300, 7)
    np.testing.assert_array_equal(table[cells].sum(axis=1) % 7, labels)
    # Below 1.222 cells for each edge a part of the hypergraph stays.
    assert peeling.peel(rng.integers(0, 11_000, (10_000, 3)), 11_000) is None
    # An edge whose cells are all the same can never go.
    assert peeling.peel(np.zeros((1, 3), int), 5) is None


def test_words_hold_as_many_labels_as_fit():
    for num_classes in (1, 2, 3, 5, 10, 16, 100, 1000, 2**20):
        base = max(2, num_classes)
        digits = retrieval.digits_per_word(num_classes)
        sizes = [
            max(base**count - base**count // 2, (base - 1) * base ** (count - 1) + 1)
            for count in (digits, digits + 1)
        ]
        assert sizes[0] <= 2**53 < sizes[1]


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"x": np.array([[0.5], [1.0]])}, ValueError, "whole numbers"),
        ({"y": np.array([0, 10])}, ValueError, r"y\[1\] = 10"),
        ({"x": np.array([[2**50], [1]])}, PrecisionError, "beyond 2\\^49"),
        ({"key": 0}, ValueError, "key must be one typed PRNG key"),
        ({"num_classes": 2**30}, ValueError, "1073741824 classes takes .* GB of the"),
        (
            {"x": np.ma.array([[1], [2]], mask=[[0], [1]])},
            ValueError,
            "got a MaskedArray",
        ),
    ],
)
def test_bad_input_is_named(changes, error, message):
    arguments = {
        "x": np.array([[1], [2]]),
        "y": np.array([0, 1]),
        "num_classes": 10,
        **changes,
    }
    with pytest.raises(error, match=message):
        memorize_by_retrieval(**arguments)


def test_a_table_that_cannot_be_filled_is_refused(monkeypatch):
    monkeypatch.setattr(retrieval, "CELLS_PER_POINT", 0.5)
    monkeypatch.setattr(retrieval, "TABLE_DRAWS", 3)
    x, y = _problem(200, 4, 10)
    with pytest.raises(ValueError, match="no table found for 200 points in 3 draws"):
        memorize_by_retrieval(x, y, 10)
