"""The risk at which a linear model of minibatch descent comes to rest (S1)."""

import math

import numpy as np
import pytest

from identity_matters import random_matrices
from identity_matters.linear import sampled, sampled_bound


def test_the_linear_model_is_stationary_at_the_floor():
    """The recursion of second moments of all entries, until nothing changes."""
    r = np.array([0.7, 1.0, 1.5])
    sigma = np.array([0.5, 1.0, 1.4])
    depth = 3
    B = 2
    nu = 0.7
    eta = 0.03
    speed = np.zeros((3, 3))
    for i in range(1, depth + 1):
        above = r ** (2 * (depth - i) / depth)
        below = r ** (2 * (i - 1) / depth)
        speed += np.outer(above, below)
    e = np.zeros((3, 3))
    for _ in range(5000):
        squared = e * sigma**2 * (1 + 1 / B) + sigma / B * (
            (e @ sigma)[:, None] + nu**2
        )
        e = e - 4 * eta * speed * sigma * e + 4 * (eta * speed) ** 2 * squared
    descent = {
        "depth": depth,
        "learning_rate": eta,
        "batch_examples": B,
        "noise_std": nu,
    }
    floor = sampled_bound.noise_floor(r, sigma, **descent)
    assert floor == pytest.approx(np.sum(e @ sigma), rel=1e-12)
    # Small steps: eta l d nu^2 tr Sigma / B for R = I.
    descent |= {"learning_rate": 1e-6}
    floor = sampled_bound.noise_floor(np.ones(3), sigma, **descent)
    assert floor == pytest.approx(1e-6 * depth * 3 * nu**2 * sigma.sum() / B, rel=1e-4)
    assert (
        sampled_bound.noise_floor(r, sigma, **descent | {"learning_rate": 1.0})
        == math.inf
    )


@pytest.mark.parametrize("depth", [1, 2, 7, 40])
def test_the_floor_with_its_sum_over_layers_written_out(depth):
    """Near and far target eigenvalues, equal ones, and one of Sigma that is 0."""
    r = np.array([0.3, 1.0, 1.0, np.nextafter(1.0, 2.0), 1 + 1e-7, 40.0])
    sigma = np.array([0.5, 1.0, 0.0, 0.2, 0.8, 1e-3])
    eta = 1e-4 / depth
    speed = sum(
        np.outer(r ** (2 * (depth - i) / depth), r ** (2 * (i - 1) / depth))
        for i in range(1, depth + 1)
    )
    step = eta * speed * sigma
    h = np.sum(step / 3 / (1 - step * (1 + 1 / 3)), axis=1)
    descent = {"depth": depth, "learning_rate": eta, "batch_examples": 3}
    floor = sampled_bound.noise_floor(r, sigma, **descent, noise_std=0.5)
    assert floor == pytest.approx(0.25 * np.sum(h / (1 - h)), rel=1e-13)


def test_the_floor_of_as_many_layers_as_there_can_be():
    """kappa_ab / l tends to the integral of ``r_a^{2 - 2t} r_b^{2t}``, t from 0 to 1.

    That is 3 / log 4 for the eigenvalues 1 and 2, and 1 and 4 on the diagonal.
    """
    depth = 2**62
    descent = {"depth": depth, "learning_rate": 1e-9 / depth, "batch_examples": 1}
    floor = sampled_bound.noise_floor([1.0, 2.0], [1.0, 1.0], **descent, noise_std=1.0)
    speeds = 1 + 4 + 2 * 3 / math.log(4)
    assert floor == pytest.approx(1e-9 * speeds, rel=1e-7)
    # Speeds beyond float64 are too fast, and no warning.
    assert (
        sampled_bound.noise_floor([1e300], [1.0], **descent, noise_std=1.0) == math.inf
    )


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"learning_rate": -0.1},
            "learning_rate must be above 0, got -0.1",
        ),
        ({"learning_rate": math.nan}, "learning_rate must be one finite real number"),
        ({"batch_examples": -2}, "batch_examples must be at least 1, got -2"),
        ({"batch_examples": 0}, "batch_examples must be at least 1, got 0"),
        ({"depth": 0}, "depth must be at least 1, got 0"),
        ({"depth": 2.5}, "depth must be a whole number, got 2.5"),
        ({"noise_std": math.nan}, "noise_std must be one finite real number"),
        ({"noise_std": -1.0}, "noise_std must be 0 or more, got -1.0"),
    ],
)
def test_what_has_no_noise_floor(changed, message):
    descent = {"depth": 1, "learning_rate": 0.1, "batch_examples": 2, "noise_std": 1.0}
    with pytest.raises(ValueError, match=message):
        sampled_bound.noise_floor([1.0], [1.0], **descent | changed)


def test_many_runs_reach_the_floor():
    """200 runs of the real, nonlinear descent, R far from the identity."""
    rng = np.random.default_rng(0)
    r = np.array([0.6, 1.0, 1.8])
    sigma = np.array([0.8, 1.0, 1.2])
    basis = random_matrices.rotation(rng, 3)
    R = (basis * r) @ basis.T
    Sigma = (basis * sigma) @ basis.T
    descent = {"depth": 4, "learning_rate": 0.02 / 4, "batch_examples": 8}
    problem = sampled.make_problem(R, Sigma, 0.1)
    runs = sampled.descend(rng, problem, **descent, updates=400, runs=200)
    measured = runs.excess_risk[:, 250:].mean()
    floor = sampled_bound.noise_floor(r, sigma, **descent, noise_std=0.1)
    assert measured == pytest.approx(floor, rel=0.03)
    # Without the factors of the target it would be off by more.
    plain = sampled_bound.noise_floor(np.ones(3), sigma, **descent, noise_std=0.1)
    assert abs(plain / measured - 1) > 0.05
