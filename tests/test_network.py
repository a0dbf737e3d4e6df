"""The network's map, by hand and in the limits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from identity_matters.linear import network


def test_the_first_layer_is_applied_first():
    shear = jnp.array([[0.0, 1.0], [0.0, 0.0]])
    stretch = jnp.array([[1.0, 0.0], [0.0, 0.0]])
    # (I + stretch)(I + shear) = [[2, 2], [0, 1]]; the other order would give [[2, 1], [0, 1]].
    np.testing.assert_array_equal(
        network.product(jnp.stack([shear, stretch])), [[2.0, 2.0], [0.0, 1.0]]
    )


def test_standard_and_residual_products_agree(key):
    A = jax.random.normal(key, (5, 3, 3))
    # Five products of rounding error 1e-16 each, on entries of order 100.
    np.testing.assert_allclose(
        network.product(A), network.standard_product(A + jnp.eye(3)[None]), rtol=0, atol=1e-12
    )


def test_the_norm_is_the_largest_singular_value_of_any_layer():
    A = jnp.stack([jnp.diag(jnp.array([1.0, -3.0])), jnp.array([[0.0, 4.0], [0.0, 0.0]])])
    assert network.max_spectral_norm(A) == pytest.approx(4.0, rel=1e-15)


@pytest.mark.parametrize("shape", [(3, 3), (2, 3, 4), (0, 2, 2), (2, 0, 0)])
def test_a_wrong_shape_is_named(shape):
    with pytest.raises(ValueError, match=r"depth, d, d"):
        network.product(jnp.zeros(shape))


def test_single_precision_is_refused():
    with pytest.raises(TypeError, match="A must be float64, is float32"):
        network.product(jnp.zeros((1, 2, 2), jnp.float32))


def test_without_x64_the_error_says_how_to_enable_it():
    with jax.enable_x64(False), pytest.raises(TypeError, match="jax_enable_x64"):
        network.product(np.zeros((1, 2, 2)))
