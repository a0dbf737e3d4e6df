import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from identity_matters.nets import init_variables, layers
from identity_matters.nets.rivals import ResNet


def images(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


KERNEL = (3, 3, 16, 64)


@pytest.mark.parametrize(
    ("kernel_init", "deviation", "limit"),
    [
        # k = 3, c = 64 and 144 inputs: 1 / (9 * 64), 1 / (3 * 8), sqrt(2 / 576).
        (layers.paper(), 1 / 576, None),
        (layers.paper(3.0), 3 / 576, None),
        (layers.standard(), 1 / 24, None),
        (layers.standard(0.5), 0.5 / 24, None),
        (layers.HE_FAN_OUT, math.sqrt(2) / 24, None),
        (layers.UNIFORM_UNIT, 1 / 12, 1 / math.sqrt(48)),
        (layers.TORCH_LINEAR, 1 / (12 * math.sqrt(3)), 1 / 12),
    ],
)
def test_initial_weights(kernel_init, deviation, limit):
    drawn = kernel_init(None, KERNEL)
    kernel = drawn.draw(np.random.default_rng(0), KERNEL)
    assert kernel.shape == KERNEL and kernel.dtype == np.float32
    # 9,216 numbers: the deviation is known to 0.7 %, the mean to 1 % of it.
    assert np.std(kernel) == pytest.approx(deviation, rel=0.03)
    assert abs(np.mean(kernel)) < 0.04 * deviation
    if limit is None:
        assert np.abs(kernel).max() > 3 * deviation
    else:
        assert 0.99 * limit < np.abs(kernel).max() <= limit


def test_kernels_are_independent_of_one_another():
    net = ResNet(num_classes=2, depth=8, width=16)
    params = init_variables(net, jax.random.key(0), (8, 8, 3))["params"]
    kernels = [np.ravel(params["stage1_block1"][name]["kernel"]) for name in ("conv1", "conv2")]
    # Correlation of 2,304 independent pairs: deviation 1/48.
    assert abs(np.corrcoef(*kernels)[0, 1]) < 0.1


def test_average_pool_by_hand():
    x = jnp.arange(16, dtype=jnp.float32).reshape(1, 4, 4, 1)
    y = layers.average_pool(x, 2)
    # Rows 0 and 1 start 0 1 4 5: their mean is 2.5.
    np.testing.assert_array_equal(y[0, :, :, 0], [[2.5, 4.5], [10.5, 12.5]])
    assert y.dtype == jnp.float32
    np.testing.assert_array_equal(layers.average_pool(x, 1), x)


def test_average_pool_refuses_odd_sides():
    with pytest.raises(ValueError, match=r"pooling by 2 .* 3 x 4"):
        layers.average_pool(jnp.zeros((1, 3, 4, 1), jnp.float32), 2)


def test_pad_channels_by_hand():
    x = jnp.ones((1, 1, 1, 2), jnp.float32)
    np.testing.assert_array_equal(layers.pad_channels(x, 6)[0, 0, 0], [0, 0, 1, 1, 0, 0])
    np.testing.assert_array_equal(layers.pad_channels(x, 3)[0, 0, 0], [1, 1, 0])
    assert layers.pad_channels(x, 2) is x


def test_global_average_pool_is_float32():
    # In bfloat16 a sum of ones stops growing at 256; 1,024 ones must still have the mean 1.
    y = layers.global_average_pool(jnp.ones((1, 32, 32, 2), jnp.bfloat16))
    assert y.dtype == jnp.float32
    np.testing.assert_array_equal(y, [[1, 1]])


@functools.partial(jax.jit, static_argnums=(2, 3))
def drop(x, keys, rate, layer):
    return layers.dropout(x, keys, rate, layer)


def test_dropout_keeps_the_mean_and_its_rate(key):
    x = jnp.ones((50, 20, 20), jnp.float32)
    y = np.asarray(drop(x, jax.random.split(key, 50), 0.2, 3))
    assert y.dtype == np.float32
    np.testing.assert_array_equal(np.unique(y), np.float32([0, 1.25]))
    # 20,000 numbers: the deviation of the mean is 0.4 / sqrt(20000) = 0.003.
    assert np.mean(y == 0) == pytest.approx(0.2, abs=0.012)


def test_dropout_depends_on_the_examples_own_key_and_the_layer(key):
    x, keys = jnp.ones((4, 30), jnp.float32), jax.random.split(key, 4)
    y = drop(x, keys, 0.5, 0)
    order = np.array([2, 0, 3, 1])
    np.testing.assert_array_equal(drop(x, keys[order], 0.5, 0), y[order])
    np.testing.assert_array_equal(drop(x[:2], keys[:2], 0.5, 0), y[:2])
    assert (np.asarray(drop(x, keys, 0.5, 1)) != y).any(axis=1).all()
    assert len(np.unique(np.asarray(y), axis=0)) == 4


def test_dropout_does_not_depend_on_x64(key):
    """Probabilities in float64 would draw other masks, and slower, in tests than in training."""
    x, keys = jnp.ones((4, 30), jnp.float32), jax.random.split(key, 4)
    inside = drop(x, keys, 0.3, 0)
    with jax.enable_x64(False):
        np.testing.assert_array_equal(drop(x, keys, 0.3, 0), inside)


def test_dropout_errors(key):
    x = jnp.ones((3, 2), jnp.float32)
    assert layers.dropout(x, None, 0.0, layer=0) is x
    with pytest.raises(ValueError, match="each of 3 examples, got none"):
        layers.dropout(x, None, 0.5, layer=0)
    with pytest.raises(ValueError, match=r"each of 3 examples, got keys of shape \(2,\)"):
        layers.dropout(x, jax.random.split(key, 2), 0.5, layer=0)


def test_residual_ratio_by_hand():
    x = jnp.float32([[[3], [4]], [[0], [2]], [[0], [0]]])
    h = jnp.float32([[[0], [1]], [[6], [8]], [[0], [0]]])
    ratio = layers.residual_ratio(x, h)
    assert ratio.dtype == jnp.float32
    np.testing.assert_allclose(ratio, [0.2, 5, 0], rtol=1e-6)


def test_residual_ratio_of_bfloat16_is_computed_in_float32():
    # In bfloat16 the sum of squares, 1,000 ones and a half, would be another number.
    x, h = jnp.ones((1, 1000), jnp.bfloat16), jnp.full((1, 1000), 0.5, jnp.bfloat16)
    ratio = layers.residual_ratio(x.at[0, 0].set(100), h)
    assert ratio.dtype == jnp.float32
    np.testing.assert_allclose(ratio, [np.sqrt(250 / 10999)], rtol=1e-6)
