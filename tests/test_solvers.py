"""The shared solvers on problems whose answers are known."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from identity_matters import solvers


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
    np.testing.assert_allclose(fit.theta, jnp.stack([roots, roots**2], axis=1), atol=1e-11)
    assert jnp.linalg.norm(fit.residual, axis=1).max() <= 1e-12
    np.testing.assert_allclose(fit.jacobian[:, 1, 0], -20 * fit.theta[:, 0], rtol=1e-14)


def test_least_squares_stops_where_it_is_told_to():
    def without_root(x):
        return jnp.array([x[0], 1.0])

    stay = solvers.least_squares(without_root, jnp.array([1.0]), steps=0, tolerance=1e-9)
    assert stay.theta == 1.0
    near = solvers.least_squares(
        without_root, jnp.array([1.0]), steps=100, tolerance=1e-9, slope_tolerance=0.5
    )
    least = solvers.least_squares(without_root, jnp.array([1.0]), steps=100, tolerance=1e-9)
    assert 1e-3 < abs(near.theta[0]) <= 0.5
    assert abs(least.theta[0]) < 1e-8


def test_least_squares_survives_a_jacobian_of_zero():
    fit = solvers.least_squares(lambda x: x**2 + 1, jnp.zeros(2), steps=5, tolerance=1e-9)
    np.testing.assert_array_equal(fit.theta, jnp.zeros(2))


def test_projected_adam_returns_the_best_and_not_the_last():
    # From next to the minimum steps of size 1 and 1/2 can only lead away.
    best, value = solvers.projected_adam(
        lambda x: jnp.abs(x - 1e-9), lambda x: x, jnp.zeros(()), steps=2, learning_rate=1.0
    )
    assert (best, value) == (0.0, pytest.approx(1e-9))


def test_projected_adam_keeps_the_best_where_the_objective_ends():
    # log(x) is NaN below 0, and the gradient drives x there.
    best, value = solvers.projected_adam(
        lambda x: jnp.log(x), lambda x: x, jnp.asarray(0.25), steps=10, learning_rate=0.1
    )
    assert 0 < best < 0.25 and value == jnp.log(best)
    _, nowhere = solvers.projected_adam(
        lambda x: jnp.log(x), lambda x: x, jnp.asarray(-1.0), steps=3, learning_rate=0.1
    )
    assert nowhere == jnp.inf
