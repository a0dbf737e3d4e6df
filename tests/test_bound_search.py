"""Exact counterexamples by hand, and the adversary against the supremum known in closed form."""

from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from identity_matters.linear import bound_search, landscape


def test_exact_point_by_hand():
    half = Fraction(1, 2)
    point = bound_search.scalar_point([-half, -half], 1, 1, "iclr2017")
    assert (point.squared_gradient, point.right) == (Fraction(9, 8), Fraction(9, 4))
    assert point.fails
    assert not bound_search.scalar_point([-half, -half], 1, 1, "corrected").fails


@pytest.mark.parametrize("form", ["iclr2017", "v3"])
def test_smallest_counterexample_is_the_hand_example(form):
    point = bound_search.smallest_scalar_counterexample(
        form, max_depth=1, max_integer=3, max_sigma=3
    )
    assert (point.a, point.R, point.Sigma) == ((0,), 2, 2)
    assert (point.squared_gradient, point.right) == (16, 32)


def test_small_data_break_only_the_iclr_form():
    sizes = {"max_depth": 2, "max_integer": 3, "max_sigma": 1}
    point = bound_search.smallest_scalar_counterexample("iclr2017", **sizes)
    assert point.a == (Fraction(-1, 2), Fraction(-1, 2))
    assert bound_search.smallest_scalar_counterexample("v3", **sizes) is None


def test_lattice_does_not_break_the_corrected_form():
    found = bound_search.smallest_scalar_counterexample(
        "corrected", max_depth=3, max_integer=3, max_sigma=3
    )
    assert found is None


@pytest.mark.parametrize(("form", "supremum"), [("iclr2017", 2.0), ("v3", 1.0), ("corrected", 1.0)])
def test_adversary_reaches_the_supremum_and_not_more(form, supremum):
    # d = 1, l = 2, tau = 1/2, ||Sigma|| <= 1: sup right/left = (1 - tau)^{-1} = 2 for ICLR 2017.
    rng = np.random.default_rng(0)
    starts = 4
    A = 0.5 * rng.uniform(-1, 1, (starts, 2, 1, 1))
    E, Sigma = rng.standard_normal((starts, 1, 1)), rng.uniform(0.1, 1, (starts, 1, 1))

    def attack(layers, error, second_moment):
        return bound_search.worst_case(
            layers, error, second_moment, 0.5, form, steps=300, learning_rate=0.1
        )

    A, R, Sigma = jax.jit(jax.vmap(attack))(A, E, Sigma)
    assert jnp.abs(A).max() <= 0.5 * (1 + 1e-14)
    assert Sigma.max() <= 1 + 1e-14
    ratios = landscape.right_over_left(A, R, Sigma, np.full(starts, 2), form)
    # Below: how far 300 Adam steps come from every start. Above: rounding.
    assert ratios.min() > supremum * (1 - 1e-6)
    assert ratios.max() < supremum * (1 + 1e-12)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"a": []}, "at least 1 layer, got none"),
        ({"a": [0, -1]}, r"max \|a_i\| < 1, got 1"),
        ({"Sigma": 0}, "Sigma must be positive, got 0"),
        ({"form": "v2"}, "got 'v2'"),
    ],
)
def test_exact_point_refuses(change, message):
    with pytest.raises(ValueError, match=message):
        bound_search.scalar_point(**{"a": [0], "R": 1, "Sigma": 1, "form": "v3", **change})


def test_lattice_refuses():
    with pytest.raises(ValueError, match="max_sigma must be at least 1, got 0"):
        bound_search.smallest_scalar_counterexample("v3", max_depth=1, max_integer=1, max_sigma=0)
