"""Winograd's method against XLA's direct convolution, and where it hands over to it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from identity_matters.models import winograd

NUMBERS = ("NHWC", "HWIO", "NHWC")


def direct(x, kernel, padding="SAME", strides=(1, 1)):
    return lax.conv_general_dilated(x, kernel, strides, padding, dimension_numbers=NUMBERS)


@pytest.fixture(scope="module")
def case():
    keys = jax.random.split(jax.random.key(3), 3)
    x = jax.random.normal(keys[0], (2, 4, 6, 3), jnp.float64)
    kernel = jax.random.normal(keys[1], (3, 3, 3, 5), jnp.float64)
    return x, kernel, jax.random.normal(keys[2], (2, 4, 6, 5), jnp.float64)


def test_it_is_a_convolution_to_the_last_digits(case):
    x, kernel, _ = case
    assert np.asarray(winograd.convolve(x, kernel)) == pytest.approx(
        np.asarray(direct(x, kernel)), abs=1e-13
    )


def test_its_gradients_are_those_of_a_convolution(case):
    x, kernel, cotangent = case
    ours = jax.vjp(winograd.convolve, x, kernel)[1](cotangent)
    theirs = jax.vjp(direct, x, kernel)[1](cotangent)
    for mine, reference in zip(ours, theirs, strict=True):
        assert np.asarray(mine) == pytest.approx(np.asarray(reference), abs=1e-12)


def test_float32_stays_float32_and_close(case):
    x, kernel, _ = (array.astype(jnp.float32) for array in case)
    ours = winograd.convolve(x, kernel)
    assert ours.dtype == jnp.float32
    # Outputs are of order 10: some ten roundings of 6e-8.
    assert np.asarray(ours) == pytest.approx(np.asarray(direct(x, kernel)), abs=2e-5)


def products(function, *shapes):
    text = str(jax.make_jaxpr(function)(*(jnp.zeros(shape, jnp.float32) for shape in shapes)))
    return text.count("dot_general"), text.count("conv_general_dilated")


@pytest.mark.parametrize(
    ("strides", "padding", "x", "kernel", "expected"),
    [
        ((1, 1), "SAME", (1, 8, 8, 64), (3, 3, 64, 64), (16, 0)),
        ((2, 2), "SAME", (1, 8, 8, 64), (3, 3, 64, 64), (0, 1)),
        ((1, 1), "VALID", (1, 8, 8, 64), (3, 3, 64, 64), (0, 1)),
        ((1, 1), "SAME", (1, 9, 8, 64), (3, 3, 64, 64), (0, 1)),
        ((1, 1), "SAME", (1, 8, 8, 64), (1, 1, 64, 64), (0, 1)),
        ((1, 1), "SAME", (1, 8, 6, 64), (3, 3, 64, 64), (0, 1)),
        ((1, 1), "SAME", (1, 8, 8, 63), (3, 3, 63, 64), (0, 1)),
    ],
)
def test_it_is_used_where_it_applies(strides, padding, x, kernel, expected):
    def convolution(x, kernel):
        return winograd.conv_general_dilated(x, kernel, strides, padding, dimension_numbers=NUMBERS)

    assert products(convolution, x, kernel) == expected


def test_a_dilated_kernel_is_handed_over():
    def dilated(x, kernel):
        return winograd.conv_general_dilated(
            x, kernel, (1, 1), "SAME", rhs_dilation=(2, 2), dimension_numbers=NUMBERS
        )

    assert products(dilated, (1, 8, 8, 64), (3, 3, 64, 64)) == (0, 1)


def test_odd_sides_are_refused():
    with pytest.raises(ValueError, match="even sides"):
        winograd.convolve(jnp.zeros((1, 3, 4, 2)), jnp.zeros((3, 3, 2, 2)))
