"""Projections against their definition, and projected Adam on problems with known minima."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from identity_matters.linear import projected


def test_clipping_is_the_identity_inside_and_scales_multiples_of_orthogonal_matrices():
    inside = jnp.array([[0.1, 0.2], [0.0, -0.3]])
    np.testing.assert_allclose(projected.clip_singular_values(inside, 0.5), inside, atol=1e-16)
    rotation = jnp.array([[0.0, -1.0], [1.0, 0.0]])
    np.testing.assert_allclose(
        projected.clip_singular_values(3 * rotation, 0.5), 0.5 * rotation, atol=1e-15
    )


def test_both_constraints_at_once():
    A = jnp.array([[[2.0, 0.0], [0.0, 0.25]], [[0.0, -0.125], [0.0, 0.0]]])
    # Eigenvalues 1.5 and -0.5 with eigenvectors (1, 1) and (1, -1): clipped to 1 and 0.25.
    Sigma = jnp.array([[0.5, 1.0], [1.0, 0.5]])
    layers, second_moment = projected.clip_layers_and_second_moment(A, Sigma, 0.5, 0.25, 1.0)
    np.testing.assert_allclose(layers[0], [[0.5, 0.0], [0.0, 0.25]], atol=1e-15)
    np.testing.assert_allclose(layers[1], A[1], atol=1e-15)
    np.testing.assert_allclose(second_moment, [[0.625, 0.375], [0.375, 0.625]], atol=1e-15)


def test_minimise_stops_at_the_boundary():
    def objective(x):
        return jnp.sum((x - 2.0) ** 2)

    best, value = projected.minimise(
        objective, lambda x: jnp.minimum(x, 1.0), jnp.zeros(3), steps=100, learning_rate=0.1
    )
    np.testing.assert_array_equal(best, jnp.ones(3))
    assert value == 3.0


def test_minimise_returns_the_best_and_not_the_last():
    # From next to the minimum steps of size 1 and 1/2 can only lead away.
    best, value = projected.minimise(
        lambda x: jnp.abs(x - 1e-9), lambda x: x, jnp.zeros(()), steps=2, learning_rate=1.0
    )
    assert (best, value) == (0.0, pytest.approx(1e-9))


def test_minimise_under_vmap():
    def one(target):
        return projected.minimise(
            lambda x: (x - target) ** 2, lambda x: x, jnp.zeros(()), steps=200, learning_rate=0.2
        )[0]

    targets = jnp.array([1.0, -2.0])
    # Adam with a rate that falls to 0 ends well within 1e-3 of a quadratic's minimum.
    np.testing.assert_allclose(jax.vmap(one)(targets), targets, atol=1e-3)
