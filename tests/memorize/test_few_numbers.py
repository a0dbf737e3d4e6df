"""Fewer numbers than examples.

The network in float64 against exact integer arithmetic.
"""

import types

import jax
import numpy as np
import pytest

from identity_matters import paper
from identity_matters.flops import count_parameters
from identity_matters.memorize import (
    few_numbers,
    hashing,
    machine,
    memorize_with_few_numbers,
    retrieval,
    verify,
)
from identity_matters.memorize.certificate import PrecisionError
from tests import machine_in_numpy
from tests.machine_in_numpy import whole
from tests.tables import by_name


def _problem(n, features, num_classes, largest=255, offset=0):
    rng = np.random.default_rng(0)
    x = offset + rng.integers(-largest, largest + 1, (n, features))
    return x, rng.integers(0, num_classes, n)


def _in_whole_numbers(network, x):
    """The forward pass in Python integers, and the largest of its terms and sums."""
    largest = 0

    def product(A, b, added):
        """A b + added.

        Partial sums, in any order, lie between the sums of terms of one sign.
        """
        nonlocal largest
        above, below = (
            np.maximum(sign * A, 0) @ np.maximum(b, 0)
            + np.maximum(-sign * A, 0) @ np.maximum(-b, 0)
            + np.maximum(sign * added, 0)
            for sign in (1, -1)
        )
        largest = max(largest, above.max(), below.max())
        return above - below

    def block(h, U, V, s):
        nonlocal largest
        h = h + product(V, np.maximum(product(U, h, s[:, None]), 0), 0 * h)
        largest = max(largest, abs(h).max())
        return h

    h = np.repeat(whole(network.start)[:, None], len(x), axis=1)
    h[:1] = product(whole(network.input_map), whole(x).T, h[:1])
    U, V, s = map(whole, network.select)
    for threshold, word, constant in zip(
        *map(
            whole,
            (network.thresholds, network.word_increments, network.constant_increments),
        ),
        strict=True,
    ):
        V[[few_numbers.WORD, *range(6, len(s))], 1] = word
        V[few_numbers.CONSTANT, 1] = constant
        h = block(h, U, V, np.concatenate([s[:1] - threshold, s[1:]]))

    for stage in network.stages:
        for U, V, s in machine_in_numpy.blocks(stage):
            h = block(h, whole(U), whole(V), whole(s))
    U, V, s = map(whole, network.output)
    return product(
        V, np.maximum(product(U, h, s[:, None]), 0), np.zeros((1, 1), object)
    ).T, largest


@pytest.mark.slow
@by_name(
    {
        "n": 100,
        "features": 7,
        "num_classes": 10,
        "group_points": 10,
        "inputs": (),
        "precision": {},
    },
    {
        "n": 101,
        "features": 3,
        "num_classes": 2,
        "group_points": 20,
        "inputs": (),
        "precision": {},
    },
    {
        "n": 12,
        "features": 5,
        "num_classes": 100,
        "group_points": 4,
        "inputs": (),
        "precision": {},
    },
    {
        "n": 7,
        "features": 2,
        "num_classes": 1,
        "group_points": 7,
        "inputs": (),
        "precision": {},
    },
    {
        "n": 1,
        "features": 3,
        "num_classes": 4,
        "group_points": 1,
        "inputs": (),
        "precision": {},
    },
    {
        "n": 60,
        "features": 9,
        "num_classes": 3,
        "group_points": 1,
        "inputs": (),
        "precision": {},
    },
    # Moduli larger than any word of seven labels of 100 classes; points far from 0
    # on the line.
    {
        "n": 12,
        "features": 2,
        "num_classes": 100,
        "group_points": 4,
        "inputs": (2**45,),
        "precision": {},
    },
    {
        "n": 12,
        "features": 1,
        "num_classes": 100,
        "group_points": 4,
        "inputs": (255, 2**46),
        "precision": {},
    },
    {
        "n": 100,
        "features": 3,
        "num_classes": 10,
        "group_points": 14,
        "inputs": (),
        "precision": {"word_bits": 27, "width": 7},
    },
    {
        "n": 101,
        "features": 2,
        "num_classes": 10,
        "group_points": 17,
        "inputs": (),
        "precision": {"word_bits": 34, "width": 8},
    },
    {
        "n": 30,
        "features": 2,
        "num_classes": 3,
        "group_points": 1,
        "inputs": (),
        "precision": {"word_bits": 21, "width": 9},
    },
)
def test_float64_computes_what_whole_numbers_do(
    n, features, num_classes, group_points, inputs, precision
):
    x, y = _problem(n, features, num_classes, *inputs)
    network, certificate = memorize_with_few_numbers(
        *(x, y, num_classes), group_points=group_points, **precision
    )
    outputs, largest = _in_whole_numbers(network, x)
    np.testing.assert_array_equal(outputs, np.eye(num_classes)[y])
    np.testing.assert_array_equal(
        few_numbers.forward(network, x.astype(float)), outputs
    )
    assert certificate.holds
    assert largest <= certificate.largest_integer <= 2 ** precision.get("word_bits", 53)
    result = verify(network, x, y, run=few_numbers.forward)
    assert (result.errors, result.max_abs_error) == (0, 0.0)


@pytest.mark.parametrize(
    ("changed", "largest"),
    [
        # Sums of the input map, moved by the least of them.
        ({"largest_sum": 1000, "t": np.array([-300, 5])}, 1300),
        ({"large": 1000}, 2 * 1000),
        ({"base": 10, "digits": 3}, 1000),
        ({"num_classes": 7, "digits": 2, "words": 5}, 2 * 7 * 2 * 5),
    ],
)
def test_the_bound_on_all_whole_numbers_by_hand(changed, largest):
    values = {"largest_sum": 1, "t": np.zeros(1), "large": 1, "base": 2}
    values |= {"digits": 1, "words": 1, "num_classes": 1} | changed
    numbers = types.SimpleNamespace(**values)
    bound = few_numbers._largest_integer(numbers, numbers, numbers, numbers.num_classes)
    assert bound == largest


@pytest.mark.slow
@pytest.mark.parametrize("width", [6, 8])
def test_fewer_numbers_than_examples_all_of_them_counted(width):
    n = 4000
    k = width
    x, y = _problem(n, 20, 10)
    network, _ = memorize_with_few_numbers(x, y, 10, group_points=12, width=k)
    # 1 block selects, 6 hash, 3 find the place and 4 the digits; 6 parts and 3 stages
    # each store a number of repeats. If k > 6, 1 more block moves words up, with 2 more
    # numbers of repeats.
    blocks, repeats = (14, 9) if k == 6 else (15, 11)
    output = 12 * k + 10 * 12 + 12
    shared = 20 + k + blocks * (2 * k**2 + k) + repeats + output
    assert count_parameters(network) == shared + (k - 3) * -(-n // 12) < n
    stated = paper.few_numbers(
        examples=n, features=20, num_classes=10, group_points=12, width=k
    )
    assert stated.input_map + stated.shared == shared
    assert sum(stated) == count_parameters(network)
    assert verify(network, x, y, run=few_numbers.forward).errors == 0


def test_the_claim_states_the_numbers_of_e11():
    claim = paper.CLAIMS["few-numbers"]
    stated = paper.few_numbers(
        examples=50_000, features=3072, num_classes=10, group_points=13
    )
    # 50,000 / 13 is 3,846.2.
    assert stated == (3072, 3 * 3847, 1311)
    assert f"d + 3⌈n/m⌉ + {stated.shared} stored numbers" in " ".join(
        claim.statement.split()
    )
    constant = stated.shared - 10**2 - 9 * 10
    assert rf"d+3\,\lceil n/m\rceil+r^2+9r+{constant}" in claim.latex[0]


@pytest.mark.slow
def test_a_changed_number_is_an_error():
    x, y = _problem(300, 7, 10)
    network, _ = memorize_with_few_numbers(x, y, 10, group_points=10)

    def errors(**changes):
        changed = network._replace(**changes)
        return verify(changed, x, y, run=few_numbers.forward).errors

    assert errors() == 0
    # Each threshold is the first point of its group; moved up by one, it may miss that
    # point.
    moved = [errors(thresholds=network.thresholds.at[i].add(1)) for i in range(29)]
    assert set(moved) == {0, 1} and sum(moved) > 15
    assert errors(word_increments=network.word_increments.at[5].add(10.0**14)) > 0
    assert (
        errors(constant_increments=network.constant_increments.at[5].add(1000003.0)) > 0
    )
    assert errors(input_map=network.input_map.at[0, 0].add(1)) > 0
    for i, stage in enumerate(network.stages):
        once_less = stage._replace(repeats=stage.repeats - 1)
        assert (
            errors(stages=(*network.stages[:i], once_less, *network.stages[i + 1 :]))
            > 0
        )


@pytest.mark.slow
def test_equal_inputs_with_equal_labels_and_the_key():
    x, y = _problem(60, 4, 10)
    twice = np.concatenate([x, x]), np.concatenate([y, y])
    network, _ = memorize_with_few_numbers(*twice, group_points=6)
    assert len(network.thresholds) == 10
    assert verify(network, *twice, run=few_numbers.forward).errors == 0
    with_same_key, _ = memorize_with_few_numbers(
        x, y, group_points=6, key=jax.random.key(0)
    )
    np.testing.assert_array_equal(network.input_map, with_same_key.input_map)
    other, _ = memorize_with_few_numbers(x, y, group_points=6, key=jax.random.key(1))
    assert (network.input_map != other.input_map).any()


def test_blocks_find_the_places_that_the_constants_were_searched_for():
    rng = np.random.default_rng(0)
    hash_of_groups = hashing.draw_hash(5000, place_bits=4, word_bits=53, rng=rng)
    t = rng.integers(0, 5001, 40)
    constants = rng.integers(0, hash_of_groups.small, 40)
    h = np.zeros((6, 40))
    h[few_numbers.POINT] = t
    h[few_numbers.CONSTANT] = constants
    for stage in (
        few_numbers._hash(hash_of_groups, 6),
        few_numbers._find_place(hash_of_groups, 6),
    ):
        h = np.asarray(machine.run(jax.numpy.asarray(h), stage))
    places = hash_of_groups.places(t, constants)
    assert len(set(places)) > 8
    np.testing.assert_array_equal(h[few_numbers.PLACE], places)


def test_words_hold_as_many_labels_as_fit():
    assert [hashing.slots(r) for r in (1, 2, 10, 1000, 2**53)] == [53, 53, 15, 5, 1]
    assert [hashing.slots(10, bits) for bits in (26, 27, 49, 50)] == [7, 8, 14, 15]
    assert [hashing.places_per_group(10, 53, width) for width in (6, 8, 12)] == [
        15,
        45,
        63,
    ]


@pytest.mark.parametrize(
    "changes, error, message",
    [
        ({"x": np.array([[0.5], [1.0]])}, ValueError, "whole numbers"),
        ({"group_points": 16}, ValueError, "holds 15 labels of 10 classes, .* 16"),
        (
            {"group_points": 15},
            ValueError,
            r"one in 8.8e\+05 hash .* may be at most 14",
        ),
        ({"key": 0}, ValueError, "key must be one typed PRNG key"),
        (
            {"num_classes": 2**30, "group_points": 1},
            ValueError,
            "1073741824 classes takes .* GB of the",
        ),
        (
            {"x": np.array([[2**62], [2**62 + 1]])},
            ValueError,
            "in float64 .*: subtract an offset",
        ),
        (
            {"x": np.ma.array([[1], [2]], mask=[[0], [1]])},
            ValueError,
            "got a MaskedArray",
        ),
        ({"group_points": 0}, ValueError, "group_points must be at least 1"),
        ({"y": np.array([0, 10])}, ValueError, r"y\[1\] = 10"),
        ({"x": np.array([[2**50], [1]])}, PrecisionError, "beyond 2\\^49"),
        (
            {"x": np.array([[2**20], [1]]), "word_bits": 20},
            PrecisionError,
            "beyond 2\\^16",
        ),
        ({"word_bits": 7}, ValueError, "word_bits must be at least 8, got 7"),
    ],
)
def test_bad_input_is_named(changes, error, message):
    arguments = {
        "x": np.array([[1], [2]]),
        "y": np.array([0, 1]),
        "group_points": 2,
        **changes,
    }
    with pytest.raises(error, match=message):
        memorize_with_few_numbers(**{"num_classes": 10, **arguments})


def test_a_group_without_a_constant_is_refused(monkeypatch):
    monkeypatch.setattr(hashing, "SEARCH_DRAWS", 1)
    monkeypatch.setattr(hashing, "SEARCH_HASHES", 1)
    x, y = _problem(60, 4, 10)
    with pytest.raises(ValueError, match="no hash constant found for"):
        memorize_with_few_numbers(x, y, 10, group_points=14)


@pytest.mark.parametrize(
    "build",
    [few_numbers.memorize_with_few_numbers, retrieval.memorize_by_retrieval],
)
def test_whole_numbers_need_float64_and_no_other_type_is_advised(build):
    x = np.arange(6)[:, None]
    with jax.enable_x64(False), pytest.raises(TypeError, match=r"True\) first$"):
        build(x, np.arange(6) % 2)


@pytest.mark.parametrize(
    ("count", "message"),
    [
        (lambda: hashing.slots(0), "num_classes must be at least 1, got 0"),
        (lambda: hashing.slots(10, 0), "word_bits must be at least 1, got 0"),
        (lambda: hashing.places_per_group(10, 53, 2), "width must be at least 6, got"),
        (lambda: hashing.largest_group(10, 60), "word_bits must be at most 53, got 60"),
        (lambda: hashing.largest_group(10, chance=0), "chance must be above 0 and at"),
        (lambda: retrieval.digits_per_word(0), "num_classes must be at least 1, got 0"),
    ],
)
def test_counts_of_no_network_are_refused(count, message):
    with pytest.raises(ValueError, match=message):
        count()
