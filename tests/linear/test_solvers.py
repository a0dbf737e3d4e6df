"""The shared solvers, and critical points of linear nets with known answers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from identity_matters import solvers
from identity_matters.linear import critical_points, model


@pytest.mark.slow
def test_least_squares_solves_a_batch_of_nonlinear_systems():
    def solve(root, start):
        # Rosenbrock's valley, with its minimum at (root, root^2).
        return solvers.least_squares(
            lambda x: jnp.array([root - x[0], 10 * (x[1] - x[0] ** 2)]),
            start,
            steps=200,
            tolerance=1e-12,
        )

    roots = jnp.array([1.0, -2.0])
    fit = jax.vmap(solve)(roots, jnp.array([[-1.2, 1.0], [3.0, 3.0]]))
    np.testing.assert_allclose(
        fit.theta, jnp.stack([roots, roots**2], axis=1), atol=1e-11
    )
    assert jnp.linalg.norm(fit.residual, axis=1).max() <= 1e-12
    np.testing.assert_allclose(fit.jacobian[:, 1, 0], -20 * fit.theta[:, 0], rtol=1e-14)


def test_least_squares_stops_where_it_is_told_to():
    def without_root(x):
        return jnp.array([x[0], 1.0])

    stay = solvers.least_squares(
        without_root, jnp.array([1.0]), steps=0, tolerance=1e-9
    )
    assert stay.theta == 1.0
    near = solvers.least_squares(
        without_root, jnp.array([1.0]), steps=100, tolerance=1e-9, slope_tolerance=0.5
    )
    least = solvers.least_squares(
        without_root, jnp.array([1.0]), steps=100, tolerance=1e-9
    )
    assert 1e-3 < abs(near.theta[0]) <= 0.5
    assert abs(least.theta[0]) < 1e-8


def test_one_step_is_one_step():
    """Of Levenberg-Marquardt on x - 1, short by its damping.

    Of Adam, as long as its rate.
    """
    fit = solvers.least_squares(lambda x: x - 1, jnp.zeros(1), steps=1, tolerance=1e-9)
    assert 0.9 < fit.theta[0] < 1
    best, _ = solvers.projected_adam(
        lambda x: jnp.abs(x - 1), lambda x: x, jnp.zeros(()), steps=1, learning_rate=0.5
    )
    assert best == pytest.approx(0.5, rel=1e-6)


def test_least_squares_survives_a_jacobian_of_zero():
    fit = solvers.least_squares(
        lambda x: x**2 + 1, jnp.zeros(2), steps=5, tolerance=1e-9
    )
    np.testing.assert_array_equal(fit.theta, jnp.zeros(2))


def test_projected_adam_returns_the_best_and_not_the_last():
    # This close to the minimum, steps of size 1 and 1/2 can only lead away.
    best, value = solvers.projected_adam(
        lambda x: jnp.abs(x - 1e-9),
        lambda x: x,
        jnp.zeros(()),
        steps=2,
        learning_rate=1.0,
    )
    assert (best, value) == (0.0, pytest.approx(1e-9))


def test_projected_adam_keeps_the_best_where_the_objective_ends():
    # log(x) is NaN below 0, and the gradient drives x there.
    best, value = solvers.projected_adam(
        lambda x: jnp.log(x),
        lambda x: x,
        jnp.asarray(0.25),
        steps=10,
        learning_rate=0.1,
    )
    assert 0 < best < 0.25 and value == jnp.log(best)
    _, nowhere = solvers.projected_adam(
        lambda x: jnp.log(x), lambda x: x, jnp.asarray(-1.0), steps=3, learning_rate=0.1
    )
    assert nowhere == jnp.inf


# Critical points and Hessians.

R = jnp.array([[1.2, 0.3], [-0.1, 0.9]])
SIGMA = jnp.array([[1.0, 0.2], [0.2, 0.5]])


@pytest.mark.slow
def test_hessian_matches_reverse_mode_on_the_risk(key):
    A = 0.5 * jax.random.normal(key, (3, 2, 2))
    reference = jax.hessian(lambda a: model.excess_risk(a, R, SIGMA))(A).reshape(12, 12)
    # Entries of order 10, a few dozen roundings.
    np.testing.assert_allclose(
        critical_points.risk_hessian(A, R, SIGMA), reference, atol=1e-13
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "Sigma", [SIGMA, jnp.ones((2, 2))], ids=["regular", "singular"]
)
def test_critical_points_inside_are_optimal_for_singular_data_too(key, Sigma):
    # Three starts of two layers, padded with a third layer of zeros.
    A = jnp.pad(
        0.1 * jax.random.normal(key, (3, 2, 2, 2)), ((0, 0), (0, 1), (0, 0), (0, 0))
    )
    targets, moments = (jnp.broadcast_to(M, (3, 2, 2)) for M in (R, Sigma))
    points = critical_points.find_critical_points(
        A, targets, moments, 2, steps=60, gradient_tolerance=1e-12
    )
    assert not points["A"][:, 2:].any()
    assert points["gradient_norm"].max() <= 1e-12
    assert np.linalg.norm(points["A"], 2, axis=(2, 3)).max() < 0.9
    # f - C <= ||grad||^2 / (4 l (1-tau)^{2l-2} sigma_+) with 1 - tau > 0.1: below
    # 1e-23.
    assert points["excess"].max() < 1e-22


SEARCH = {
    "A": np.zeros((4, 3, 2, 2)),
    "R": np.broadcast_to(R, (4, 2, 2)),
    "Sigma": np.broadcast_to(SIGMA, (4, 2, 2)),
    "depth": 3,
}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        # A search of a shallower net would count the other layers in the risk alone:
        # its ends would look like critical points that are not optimal.
        ({"A": np.full((4, 3, 2, 2), 0.1), "depth": 2}, "A must be 0 in all layers"),
        ({"depth": 0}, "depth must be at least 1, got 0"),
        ({"depth": 4}, "depth must be from 1 to 3, the layers of A, got 4"),
        ({"R": R}, r"R must be 4 x 2 x 2, .* got shape \(2, 2\); np.broadcast_to"),
        ({"A": np.zeros((3, 2, 2))}, r"A must be \[n, max_depth, d, d\]"),
        ({"A": np.full((4, 3, 2, 2), np.nan)}, "A must be finite"),
        (
            {"Sigma": np.broadcast_to([[1.0, 2.0], [0.0, 1.0]], (4, 2, 2))},
            r"Sigma must be symmetric, but \|Sigma - Sigma\^T\| reaches 2.0",
        ),
    ],
)
def test_searches_that_would_be_about_another_net_are_refused(change, message):
    arguments = SEARCH | change
    with pytest.raises(ValueError, match=message):
        critical_points.find_critical_points(
            **arguments, steps=5, gradient_tolerance=1e-12
        )
    with pytest.raises(ValueError, match=message):
        critical_points.least_gradients(
            **arguments, tau=np.full(4, 0.5), steps=5, learning_rate=0.1
        )


@pytest.mark.parametrize("tau", [0.5, np.full(4, 1.0), np.zeros(4), np.full(3, 0.5)])
def test_radii_that_make_no_ball_are_refused(tau):
    with pytest.raises(ValueError, match="tau must be 4 numbers above 0 and below 1"):
        critical_points.least_gradients(**SEARCH, tau=tau, steps=5, learning_rate=0.1)


def test_one_program_serves_all_learning_rates():
    arguments = SEARCH | {"tau": np.full(4, 0.5), "steps": 5}
    critical_points.least_gradients(**arguments, learning_rate=0.1)
    programs = critical_points._least_gradients._cache_size()
    critical_points.least_gradients(**arguments, learning_rate=0.03)
    assert critical_points._least_gradients._cache_size() == programs
