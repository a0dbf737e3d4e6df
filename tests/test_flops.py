"""Counts of operations by hand, and the peaks of devices."""

import functools

import jax
import jax.numpy as jnp
import pytest

from identity_matters import flops
from identity_matters.flops import count_flops


def array(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


convolve = functools.partial(
    jax.lax.conv_general_dilated,
    window_strides=(1, 1),
    padding="SAME",
    dimension_numbers=("NHWC", "HWIO", "NHWC"),
)


def test_flops_of_one_operation_by_hand():
    assert count_flops(jnp.matmul, array(5, 2, 3), array(5, 3, 4)) == 2 * 5 * 2 * 3 * 4
    # 8 images of 6 x 6 outputs with 7 channels, each from 3 x 3 pixels with 4 channels.
    assert (
        count_flops(convolve, array(8, 6, 6, 4), array(3, 3, 4, 7))
        == 2 * 8 * 36 * 7 * 9 * 4
    )
    strided = functools.partial(convolve, window_strides=(2, 2))
    assert (
        count_flops(strided, array(8, 6, 6, 4), array(3, 3, 4, 7))
        == 2 * 8 * 9 * 7 * 9 * 4
    )
    grouped = functools.partial(convolve, feature_group_count=2)
    assert (
        count_flops(grouped, array(8, 6, 6, 4), array(3, 3, 2, 8))
        == 2 * 8 * 36 * 8 * 9 * 2
    )
    assert count_flops(lambda x: jnp.tanh(x) + x, array(3)) == 0


def test_flops_inside_other_functions():
    square = 2 * 4**3

    def product(x):
        return x @ x

    def repeated(x):
        return jax.lax.scan(lambda y, _: (y @ y, None), x, length=7)[0]

    def branches(x):
        return jax.lax.cond(x[0, 0] > 0, lambda x: x @ x @ x, lambda x: x @ x, x)

    @jax.custom_jvp
    def custom(x):
        return x @ x

    custom.defjvp(lambda primals, tangents: (custom(primals[0]), tangents[0]))
    x = array(4, 4)
    for same in (product, jax.jit(product), jax.checkpoint(product), custom):
        assert count_flops(same, x) == square
    assert count_flops(repeated, x) == 7 * square
    assert count_flops(branches, x) == 2 * square
    assert count_flops(jax.vmap(product), array(3, 4, 4)) == 3 * square


def test_while_loops():
    def counting(x):
        return jax.lax.while_loop(lambda i: i < 3, lambda i: i + 1, 0) * (x @ x)

    def multiplying(x):
        return jax.lax.while_loop(lambda x: x[0, 0] < 3, lambda x: x @ x, x)

    assert count_flops(counting, array(4, 4)) == 2 * 4**3
    with pytest.raises(ValueError, match="while loop"):
        count_flops(multiplying, array(4, 4))


def test_training_is_three_forward_passes():
    def loss(weights, x):
        for w in weights:
            x = jnp.tanh(x @ w)
        return jnp.sum(x)

    weights = [array(8, 8)] * 3
    forward = count_flops(loss, weights, array(5, 8))
    step = count_flops(jax.grad(loss, argnums=(0, 1)), weights, array(5, 8))
    assert flops.FORWARD_PASSES_PER_TRAINING_STEP * forward == step
    # The same for a convolution: each of its two gradients costs as much as the
    # convolution.
    x = array(2, 4, 4, 3)
    kernel = array(3, 3, 3, 5)

    def squares(x, kernel):
        return jnp.sum(jnp.square(convolve(x, kernel)))

    step = count_flops(jax.grad(squares, argnums=(0, 1)), x, kernel)
    # The gradient with respect to the weights runs over 4 x 4 pixels for each of 3 x 3
    # taps.
    assert step == flops.FORWARD_PASSES_PER_TRAINING_STEP * count_flops(
        squares, x, kernel
    )


@pytest.mark.parametrize(
    ("device_kind", "bfloat16", "float32"),
    [
        ("NVIDIA H100 80GB HBM3", 989.5e12, 494.7e12),
        ("Tesla V100-SXM2-16GB", None, 15.7e12),
        ("NVIDIA H200", 989.5e12, 494.7e12),
        ("TPU v5 lite", 197e12, 197e12),
        # Not in the table, although its name begins like one that is.
        ("NVIDIA L40S", None, None),
    ],
)
def test_peaks_by_name(device_kind, bfloat16, float32):
    assert flops.peak_flops_per_second(device_kind, "bfloat16") == bfloat16
    assert flops.peak_flops_per_second(device_kind, "float32") == float32


@pytest.mark.parametrize("compute_dtype", ["float64", "bf16", jnp.bfloat16])
def test_a_peak_of_another_type_is_not_that_of_float32(compute_dtype):
    with pytest.raises(ValueError, match="compute_dtype must be 'bfloat16' or"):
        flops.peak_flops_per_second("NVIDIA H200", compute_dtype)
