"""The other networks of Table 2 against NumPy, their dropout and their initial weights."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from identity_matters.nets import apply_net, init_variables, layers, make_net, variable_shapes
from identity_matters.nets.rivals import BATCH_NORM_EPSILON
from tests import numpy_layers
from tests.numpy_layers import relu


def evaluate(name, x, **settings):
    """(params, running statistics, logits, residual ratios) where all variables are different."""
    net = make_net(name, **settings)
    variables = numpy_layers.randomize(variable_shapes(net, x.shape[1:]))
    logits, intermediates = jax.jit(functools.partial(apply_net, net, train=False))(variables, x)
    ratios = intermediates["residual_ratio"]
    return variables["params"], variables["batch_stats"], logits, ratios


def images(*shape):
    return np.random.default_rng(3).normal(size=shape).astype(np.float32)


def norm(x, params, stats, name):
    return numpy_layers.batch_norm(x, params[name], BATCH_NORM_EPSILON, stats[name])


def classify(x, params):
    return x.mean(axis=(1, 2)) @ params["linear"]["kernel"] + params["linear"]["bias"]


def residual(x, params, stats, stride):
    h = numpy_layers.convolve(x, params["conv1"]["kernel"], stride)
    h = numpy_layers.convolve(relu(norm(h, params, stats, "norm1")), params["conv2"]["kernel"])
    return norm(h, params, stats, "norm2")


def largest_of_three(x):
    """The maximum over 3 x 3 pixels at stride 2, with one pixel of -inf around."""
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)), constant_values=-np.inf)
    height, width = -(-x.shape[1] // 2), -(-x.shape[2] // 2)
    shifts = [
        padded[:, i : i + 2 * height - 1 : 2, j : j + 2 * width - 1 : 2]
        for i in range(3)
        for j in range(3)
    ]
    return np.max(shifts, axis=0)


def test_resnet_against_numpy():
    # Odd sides: 5 x 7, 3 x 4, 2 x 2.
    x = images(2, 5, 7, 1)
    params, stats, logits, found = evaluate("resnet", x, num_classes=3, depth=14, width=2)
    x = relu(norm(numpy_layers.convolve(x, params["stem"]["kernel"]), params, stats, "norm"))
    ratios = []
    for stage, width in ((1, 2), (2, 4), (3, 8)):
        for block in (1, 2):
            name = f"stage{stage}_block{block}"
            stride = 2 if stage > 1 and block == 1 else 1
            h = residual(x, params[name], stats[name], stride)
            x = numpy_layers.pad_channels(x[:, ::stride, ::stride], width)
            ratios.append(numpy_layers.ratios(x, h))
            x = relu(x + h)
    np.testing.assert_allclose(logits, classify(x, params), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(found, ratios, rtol=1e-4)


def test_resnet_imagenet_against_numpy():
    x = images(2, 32, 32, 1)
    params, stats, logits, found = evaluate("resnet_imagenet", x, num_classes=3, depth=18, width=2)
    stem = numpy_layers.convolve(x, params["stem"]["kernel"], 2)
    x = largest_of_three(relu(norm(stem, params, stats, "norm")))
    ratios = []
    for stage in (1, 2, 3, 4):
        for block in (1, 2):
            name = f"stage{stage}_block{block}"
            stride = 2 if stage > 1 and block == 1 else 1
            h = residual(x, params[name], stats[name], stride)
            if stride == 2:
                down = x[:, ::2, ::2] @ params[name]["down"]["kernel"][0, 0]
                x = norm(down, params[name], stats[name], "down_norm")
            ratios.append(numpy_layers.ratios(x, h))
            x = relu(x + h)
    np.testing.assert_allclose(logits, classify(x, params), rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(found, ratios, rtol=1e-3)


def test_densenet_against_numpy():
    x = images(2, 8, 4, 1)
    settings = {"depth": 10, "growth": 2, "stem_width": 3}
    params, stats, logits, found = evaluate("densenet", x, num_classes=3, **settings)

    def composite(x, name):
        x = relu(norm(x, params, stats, f"{name}_norm"))
        return numpy_layers.convolve(x, params[f"{name}_conv"]["kernel"])

    x = numpy_layers.convolve(x, params["stem"]["kernel"])
    for block in (1, 2, 3):
        for layer in (1, 2):
            x = np.concatenate([x, composite(x, f"block{block}_layer{layer}")], axis=-1)
        if block < 3:
            x = numpy_layers.average_pool_2x2(composite(x, f"transition{block}"))
    assert x.shape == (2, 2, 1, 15)
    x = relu(norm(x, params, stats, "norm"))
    np.testing.assert_allclose(logits, classify(x, params), rtol=1e-4, atol=1e-4)
    assert found.shape == (0, 2)


def test_all_cnn_c_against_numpy():
    x = images(2, 9, 11, 1)
    net = make_net("all_cnn_c", num_classes=5)
    variables = init_variables(net, jax.random.key(0), x.shape[1:])
    params = jax.tree.map(
        # Biases start at 0; others must show.
        lambda leaf: leaf if leaf.ndim == 4 else np.linspace(-0.1, 0.2, len(leaf), dtype="f4"),
        variables["params"],
    )
    logits, _ = apply_net(net, {**variables, "params": params}, x, train=False)
    for index in range(1, 10):
        layer = params[f"conv{index}"]
        stride, zeros = 2 if index in (3, 6) else 1, 1 if index < 7 else 0
        x = numpy_layers.convolve(x, layer["kernel"], stride, zeros, zeros)
        x = relu(x + np.asarray(layer["bias"]))
    assert x.shape == (2, 1, 1, 5)
    np.testing.assert_allclose(logits, x.mean(axis=(1, 2)), rtol=1e-4, atol=1e-5)
    assert np.any(logits)


def test_where_dropout_stands(monkeypatch):
    calls = []

    def record(x, keys, rate, layer):
        calls.append((x.shape[1:], rate, layer))
        return x

    monkeypatch.setattr(layers, "dropout", record)
    net = make_net("all_cnn_c", num_classes=10)
    shapes = variable_shapes(net, (32, 32, 3))
    x = jax.ShapeDtypeStruct((2, 32, 32, 3), jnp.float32)
    jax.eval_shape(functools.partial(apply_net, net, train=False), shapes, x)
    assert calls == []
    jax.eval_shape(functools.partial(apply_net, net, train=True), shapes, x)
    expected = [((32, 32, 3), 0.2), ((16, 16, 96), 0.5), ((8, 8, 192), 0.5)]
    assert [call[:2] for call in calls] == expected
    assert len({layer for _, _, layer in calls}) == 3


def test_initial_weights_of_torch(key):
    net = make_net("resnet", num_classes=100, depth=8, width=32)
    params = init_variables(net, key, (8, 8, 3))["params"]
    # 36,864 numbers: known to 0.4 %.
    kernel = params["stage2_block1"]["conv2"]["kernel"]
    assert np.std(kernel) == pytest.approx(np.sqrt(2 / (9 * 64)), rel=0.02)
    linear = np.abs(params["linear"]["kernel"])
    assert 0.99 < np.max(linear) * np.sqrt(128) <= 1
    assert not np.any(params["linear"]["bias"])


def test_running_statistics_move_by_a_tenth(key):
    x = images(4, 5, 7, 1)
    net = make_net("resnet", num_classes=3, depth=8, width=2)
    variables = init_variables(net, key, x.shape[1:])
    _, intermediates = jax.jit(functools.partial(apply_net, net, train=True))(variables, x)
    stem = numpy_layers.convolve(x, variables["params"]["stem"]["kernel"])
    found = intermediates["batch_stats"]["norm"]
    np.testing.assert_allclose(found["mean"], 0.1 * stem.mean(axis=(0, 1, 2)), rtol=1e-3, atol=1e-6)
    np.testing.assert_allclose(found["var"], 0.9 + 0.1 * stem.var(axis=(0, 1, 2)), rtol=1e-4)
