"""Gaussian arrays against those of `jax.random.normal`."""

import jax
import numpy as np
import pytest

from identity_matters import jax_settings
from identity_matters.memorize import gaussian


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    "shape", [(1,), (10,), (7, 13), (225, 8, 8), (8, 64), (257, 256)]
)
def test_they_are_the_numbers_of_jax(shape, dtype):
    key = jax_settings.random_key(3)
    drawn = gaussian.normal(key, shape, dtype)
    assert drawn.dtype == dtype
    np.testing.assert_array_equal(drawn, jax.random.normal(key, shape, dtype))


def test_they_can_be_traced():
    key = jax_settings.random_key(3)
    traced = jax.jit(lambda key: gaussian.normal(key, (7, 13), np.float32))
    np.testing.assert_array_equal(
        traced(key), gaussian.normal(key, (7, 13), np.float32)
    )
