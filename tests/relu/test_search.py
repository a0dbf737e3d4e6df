"""Limits of the search for critical points, and their kinds."""

import types

import numpy as np
import pytest

from experiments.measurements import relu_search
from identity_matters.relu import critical_points
from identity_matters.relu.model import Blocks
from tests.relu_problems import copies, two_points


def find(problem, nets, descends):
    batch = copies(problem, len(descends))
    limits, numbers = critical_points.find(
        nets, batch, np.array(descends), steps=100, tolerance=1e-12
    )
    return limits, {**numbers, **critical_points.kink_margins(limits, batch)}


@pytest.mark.slow
def test_the_search_finds_both_minima_of_the_two_points():
    problem = two_points(0.2, 0.5)
    nets = Blocks(
        np.array([0.5, -0.5]).reshape(2, 1, 1, 1), np.full((2, 1, 1, 1), 0.1), None
    )
    limits, numbers = find(problem, nets, [True, True])
    np.testing.assert_allclose(numbers["risk"], [0.125, 0.02], rtol=1e-10)
    np.testing.assert_allclose(
        limits.V[:, 0, 0, 0] * limits.U[:, 0, 0, 0], [0.2, -0.5], rtol=1e-9
    )
    # Eigenvalues 0, along the hyperbola, and u^2 + v^2.
    across = np.squeeze(limits.U) ** 2 + np.squeeze(limits.V) ** 2
    np.testing.assert_allclose(numbers["eigenvalues"][:, 1], across, rtol=1e-9)
    np.testing.assert_allclose(numbers["eigenvalues"][:, 0], [0, 0], atol=1e-12)
    np.testing.assert_allclose(numbers["kink_margin"], [1, 1])


@pytest.mark.slow
def test_only_a_search_that_descends_leaves_the_saddle():
    """From u = v = 1/50 the origin is the nearest critical point, and no minimum.

    On the piece u > 0 the risk is ((1/5 - u v)^2 + 1/4) / 2. Its Hessian at the origin
    has the entries -1/5 beside the diagonal, and 0 on it.
    """
    near_origin = np.full((2, 1, 1, 1), 0.02)
    nets = Blocks(near_origin, near_origin, None)
    limits, numbers = find(two_points(0.2, 0.5), nets, [False, True])
    sizes = np.hypot(limits.U, limits.V).ravel()
    assert sizes[0] < 1e-9 and sizes[1] > 0.1
    np.testing.assert_allclose(numbers["risk"], [0.145, 0.125], rtol=1e-10)
    np.testing.assert_allclose(numbers["eigenvalues"][0], [-0.2, 0.2], rtol=1e-6)
    np.testing.assert_allclose(numbers["eigenvalues"][1, 0], 0, atol=1e-9)


def test_kinds_by_the_first_that_fits():
    # (value at a good point, value at a bad one)
    numbers = {
        "gradient_norm": (0.0, 1e-3),
        "max_norm": (0.5, 2.0),
        "risk_share": (0.5, 0.0),
        "dead_units": (1, 2),
        "shortest_unit": (0.1, 0.0),
        "kink_margin": (0.1, 0.0),
        "eigenvalues": ([0.0, 1.0], [-1.0, 1.0]),
    }
    # Point j is bad in the j-th and all later numbers, the last point in none.
    limits = {
        name: np.array([fault] * i + [good] * (8 - i))
        for i, (name, (good, fault)) in enumerate(numbers.items(), 1)
    }
    small = dict.fromkeys(
        ("gradient_tolerance", "optimal_share", "curvature_tolerance"), 1e-9
    )
    small |= {"kink_tolerance": 1e-6, "zero_unit_tolerance": 1e-6}
    trial = types.SimpleNamespace(units=2, radius=1.0, **small)
    assert tuple(relu_search.classify(trial, limits)) == relu_search.KINDS
    # A NaN is no small gradient, and no norm below the radius.
    last = {name: values[-1:] for name, values in limits.items()}
    for name, kind in (("gradient_norm", "not critical"), ("max_norm", "outside")):
        assert relu_search.classify(trial, {**last, name: np.array([np.nan])}) == [kind]
