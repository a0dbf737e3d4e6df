import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from identity_matters.models import layers
from tests import numpy_layers


def images(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize(
    ("stride", "padding", "before", "after"),
    [(1, "SAME", 1, 1), (2, "SAME", 0, 1), (2, 1, 1, 1), (1, 0, 0, 0)],
)
def test_convolution_against_numpy(stride, padding, before, after):
    x, kernel = images(2, 6, 4, 3), images(3, 3, 3, 5, seed=1)
    layer = layers.convolution(
        5, 3, name="conv", dtype="float32", stride=stride, padding=padding, use_bias=True
    )
    bias = images(5, seed=2)
    y = layer.apply({"params": {"kernel": kernel, "bias": bias}}, x)
    assert y.dtype == jnp.float32
    expected = numpy_layers.convolve(x, kernel, stride, before, after) + bias
    # Sums of 27 products of float32.
    np.testing.assert_allclose(y, expected, atol=1e-5)


def norm(train, axis_name=None, dtype="float32"):
    return layers.batch_norm(
        name="norm", train=train, decay=0.75, epsilon=1e-2, dtype=dtype, axis_name=axis_name
    )


PARAMS = {"scale": np.float32([1, 2, -1]), "bias": np.float32([0, 1, 2])}
STATS = {"mean": np.float32([0.5, 0, 1]), "var": np.float32([1, 4, 0.25])}


def test_batch_norm_against_numpy():
    x = 3 + 2 * images(4, 2, 3, 3)
    variables = {"params": PARAMS, "batch_stats": STATS}
    y, changed = norm(True).apply(variables, x, mutable=["batch_stats"])
    np.testing.assert_allclose(y, numpy_layers.batch_norm(x, PARAMS, 1e-2), atol=2e-5)
    stats = changed["batch_stats"]
    mean, var = x.mean(axis=(0, 1, 2)), x.var(axis=(0, 1, 2))
    np.testing.assert_allclose(stats["mean"], 0.75 * STATS["mean"] + 0.25 * mean, rtol=1e-5)
    np.testing.assert_allclose(stats["var"], 0.75 * STATS["var"] + 0.25 * var, rtol=1e-5)
    y = norm(False).apply(variables, x)
    np.testing.assert_allclose(y, numpy_layers.batch_norm(x, PARAMS, 1e-2, STATS), atol=1e-5)


def test_batch_norm_over_a_mapped_axis_is_that_of_the_whole_batch():
    # Halves of very different means: a device on its own would normalize each to zero.
    x = images(6, 2, 2, 3) + np.repeat(np.float32([0, 10]), 3)[:, None, None, None]
    variables = {"params": PARAMS, "batch_stats": STATS}

    def apply(layer, x):
        return layer.apply(variables, x, mutable=["batch_stats"])

    whole, changed = apply(norm(True), x)
    mapped = jax.vmap(lambda x: apply(norm(True, "devices"), x), axis_name="devices")
    halves, each = jax.jit(mapped)(x.reshape(2, 3, 2, 2, 3))
    np.testing.assert_allclose(halves.reshape(whole.shape), whole, atol=1e-5)
    for name in ("mean", "var"):
        for half in each["batch_stats"][name]:
            np.testing.assert_allclose(half, changed["batch_stats"][name], rtol=1e-5)


def test_batch_norm_in_bfloat16_keeps_float32_statistics():
    x = jnp.asarray(images(4, 2, 2, 3), jnp.bfloat16)
    variables = {"params": PARAMS, "batch_stats": STATS}
    y, changed = norm(True, dtype="bfloat16").apply(variables, x, mutable=["batch_stats"])
    assert y.dtype == jnp.bfloat16
    assert {leaf.dtype for leaf in jax.tree.leaves(changed)} == {np.dtype("float32")}


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
    with pytest.raises(ValueError, match="from 2 to 1 channels"):
        layers.pad_channels(x, 1)


def test_global_average_pool_is_float32():
    # In bfloat16 a sum of ones stops growing at 256; 1,024 ones must still have the mean 1.
    y = layers.global_average_pool(jnp.ones((1, 32, 32, 2), jnp.bfloat16))
    assert y.dtype == jnp.float32
    np.testing.assert_array_equal(y, [[1, 1]])


def test_leaky_relu():
    x = jnp.float32([-2, 0, 3])
    np.testing.assert_array_equal(layers.leaky_relu(x, 0.0), [0, 0, 3])
    np.testing.assert_array_equal(layers.leaky_relu(x, 0.5), [-1, 0, 3])


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


@pytest.mark.parametrize("trained", [True, False])
def test_linear(trained):
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            return layers.Linear(3, use_bias=trained, trained=trained, name="last")(x)

    x, kernel, bias = images(2, 4), images(4, 3, seed=1), images(3, seed=2)
    if trained:
        variables = {"params": {"last": {"kernel": kernel, "bias": bias}}}
    else:
        variables, bias = {"fixed": {"last": {"kernel": kernel}}}, np.zeros(3)
    created = jax.eval_shape(Net().init, jax.random.key(0), x)
    assert jax.tree.structure(created) == jax.tree.structure(variables)
    np.testing.assert_allclose(Net().apply(variables, x), x @ kernel + bias[None], atol=1e-5)
