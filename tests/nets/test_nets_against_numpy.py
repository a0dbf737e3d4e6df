"""The networks of section 4 and of Table 2 against NumPy in float64.

Their initial weights.
"""

import functools
import math
import re

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.lib.stride_tricks import sliding_window_view

from identity_matters.nets import (
    apply_net,
    init_variables,
    layers,
    make_net,
    tiny_maps,
    variable_shapes,
)
from identity_matters.nets.all_conv_residual import AllConvResidual

# What batch norm adds to variances: in the paper's base code, and Torch's default.
BASE_CODE_EPSILON = 1e-3
TORCH_EPSILON = 1e-5


def convolve(x, kernel, stride=1, before=None, after=None):
    """Convolves f[n, h, w, c] with f[k, k, c, d]; returns f[n, h', w', d].

    Pads both axes with `before` and `after` zeros, each k // 2 by default.
    """
    x = np.asarray(x, np.float64)
    kernel = np.asarray(kernel, np.float64)
    k = kernel.shape[0]
    before = k // 2 if before is None else before
    after = k // 2 if after is None else after
    x = np.pad(x, ((0, 0), (before, after), (before, after), (0, 0)))
    patches = sliding_window_view(x, (k, k), axis=(1, 2))[:, ::stride, ::stride]
    return np.einsum("nhwcij,ijcd->nhwd", patches, kernel)


def normalize_batch(x, parameters, epsilon, statistics=None):
    """Normalizes by those of the batch, or by `statistics`.

    These are running ones, "mean" and "var".
    """
    mean = (
        x.mean(axis=(0, 1, 2)) if statistics is None else np.asarray(statistics["mean"])
    )
    var = x.var(axis=(0, 1, 2)) if statistics is None else np.asarray(statistics["var"])
    scale = np.asarray(parameters["scale"])
    bias = np.asarray(parameters["bias"])
    return (x - mean) / np.sqrt(var + epsilon) * scale + bias


def average_pool_2x2(x):
    return (x[:, ::2, ::2] + x[:, 1::2, ::2] + x[:, ::2, 1::2] + x[:, 1::2, 1::2]) / 4


def pad_channels(x, channels):
    half = (channels - x.shape[-1]) // 2
    padded = np.zeros((*x.shape[:-1], channels))
    padded[..., half : half + x.shape[-1]] = x
    return padded


def relu(x):
    return np.maximum(x, 0)


def norm_ratios(x, h):
    """||h|| / ||x|| of each example."""
    return [np.linalg.norm(b) / np.linalg.norm(a) for a, b in zip(x, h, strict=True)]


def randomize(variables, seed=0):
    """Random variables of the same shapes; variances lie in [0.5, 1.5]."""
    rng = np.random.default_rng(seed)

    def draw(path, leaf):
        if path[-1].key == "var":
            return rng.uniform(0.5, 1.5, leaf.shape).astype(np.float32)
        return rng.normal(0, 0.5, leaf.shape).astype(np.float32)

    return jax.tree_util.tree_map_with_path(draw, variables)


TINY = {
    "blocks_per_stage": (2, 1),
    "widths": (4, 7),
    "stage_strides": (1, 2),
    "stem_width": 2,
    "num_classes": 3,
}

IMAGES = np.random.default_rng(7).normal(size=(3, 4, 6, 2)).astype(np.float32)


@functools.cache
def network(train, dtype, **options):
    """(shapes of the variables, compiled apply) of a tiny network."""
    net = AllConvResidual(compute_dtype=dtype, **TINY, **options)
    apply = functools.partial(apply_net, net, train=train)
    return variable_shapes(net, IMAGES.shape[1:]), jax.jit(apply)


def run(train=False, dtype="float32", scale=1.0, **options):
    """(variables, logits, intermediates) of a network whose variables are all random.

    `scale` multiplies the weights of the blocks.
    """
    shapes, apply = network(train, dtype, **options)
    variables = randomize(shapes)
    for name, block in variables["params"].items():
        if "block" in name:
            variables["params"][name] = jax.tree.map(
                lambda leaf: leaf * np.float32(scale), block
            )
    return variables, *apply(variables, IMAGES)


def reference(
    variables, x, leak=0.0, activate_first=False, identity=True, batch_norm=False
):
    """(logits, ratios) in training, in NumPy, as the network's docstring has it."""
    params = variables["params"]

    def activate(x):
        return np.where(x > 0, x, leak * x)

    def normalize(x, params, name):
        return normalize_batch(x, params[name], BASE_CODE_EPSILON) if batch_norm else x

    x = convolve(x, params["stem"]["kernel"])
    ratios = []
    for name, width, stride in (
        ("stage1_block1", 4, 1),
        ("stage1_block2", 4, 1),
        ("stage2_block1", 7, 2),
    ):
        block = params[name]
        h = normalize(x, block, "norm1")
        h = activate(h) if activate_first else h
        before = 1 if stride == 1 else 0
        h = convolve(h, block["conv1"]["kernel"], stride, before, after=1)
        h = activate(normalize(h, block, "norm2"))
        h = convolve(h, block["conv2"]["kernel"])
        x = average_pool_2x2(x) if stride == 2 else x
        x = pad_channels(x, width)
        ratios.append(norm_ratios(x, h))
        x = x + h if identity else h
    x = normalize(x, params, "norm")
    x = activate(x) if activate_first else x
    return x.mean(axis=(1, 2)) @ variables["fixed"]["projection"]["kernel"], np.array(
        ratios
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"identity": False},
        {"leak": 0.1, "activate_first": True},
        {"batch_norm": True},
        {"batch_norm": True, "activate_first": True},
    ],
)
def test_network_against_numpy(options):
    variables, logits, intermediates = run(train=True, **options)
    expected, ratios = reference(variables, IMAGES, **options)
    assert logits.dtype == intermediates["residual_ratio"].dtype == jnp.float32
    # A few thousand float32 products each, the largest about a hundred times the
    # result.
    np.testing.assert_allclose(
        logits, expected, rtol=1e-3, atol=1e-4 * np.abs(expected).max()
    )
    np.testing.assert_allclose(intermediates["residual_ratio"], ratios, rtol=1e-4)


@pytest.mark.slow
def test_bfloat16_convolutions_do_not_round_small_residuals_away():
    """Blocks that add about 1e-4 of their input.

    Bfloat16 keeps 8 bits, so its steps are 4e-3.
    """
    _, base, _ = run(dtype="bfloat16", scale=0.0)
    _, moved, intermediates = run(dtype="bfloat16", scale=3e-3)
    _, exact_base, _ = run(scale=0.0)
    _, exact_moved, _ = run(scale=3e-3)
    assert np.all(np.asarray(intermediates["residual_ratio"]) < 1e-3)
    assert moved.dtype == jnp.float32
    # Convolutions in bfloat16 are accurate to about a percent.
    difference = np.asarray(exact_moved - exact_base)
    np.testing.assert_allclose(
        moved - base, difference, atol=0.05 * np.abs(difference).max()
    )


def test_bfloat16_is_what_the_convolutions_compute_in():
    net = AllConvResidual(compute_dtype="bfloat16", **TINY)
    variables = variable_shapes(net, IMAGES.shape[1:])
    assert {leaf.dtype for leaf in jax.tree.leaves(variables)} == {np.dtype("float32")}
    jaxpr = jax.make_jaxpr(functools.partial(apply_net, net, train=True))(
        variables, IMAGES
    )
    # The seventh convolution has maps smaller than its kernel: a product. The last map
    # is float32.
    lines = str(jaxpr).splitlines()
    text = [
        line
        for line in lines
        if re.search("= (conv_general_dilated|dot_general)", line)
    ]
    assert [line.count("bf16[") for line in text] == [1] * 7 + [0]
    assert ["dot_general" in line for line in text] == [False] * 6 + [True] * 2


@pytest.mark.parametrize("size", [1, 2, 3, 7])
@pytest.mark.parametrize("sides", [(2, 2), (1, 4), (6, 2)])
def test_convolutions_of_maps_smaller_than_the_kernel(size, sides):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((3, *sides, 4))
    kernel = rng.standard_normal((size, size, 4, 5))
    net = nn.Conv(
        5, (size, size), use_bias=False, conv_general_dilated=tiny_maps.convolution
    )
    maps = net.apply({"params": {"kernel": kernel}}, x.astype(np.float32))
    expected = convolve(x, kernel, before=(size - 1) // 2, after=size // 2)
    np.testing.assert_allclose(maps, expected, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize("side", [2, 4], ids=["by_patches", "by_xla"])
def test_the_gradient_of_a_bfloat16_kernel_is_summed_in_float32(side):
    """Every image has the same gradient: a sum in bfloat16 stops growing at 256."""
    images = jnp.ones((4096, side, side, 1), jnp.bfloat16)
    conv = nn.Conv(
        1,
        (3, 3),
        use_bias=False,
        dtype=jnp.bfloat16,
        conv_general_dilated=tiny_maps.convolution,
    )

    def total(kernel):
        y = conv.apply({"params": {"kernel": kernel}}, images)
        return jnp.sum(y.astype(jnp.float32))

    gradient = jax.jit(jax.grad(total))(jnp.ones((3, 3, 1, 1), jnp.float32))
    # An entry of the kernel meets every pixel but those that its shift moves outside.
    inside = np.array([side - 1, side, side - 1])
    expected = 4096 * np.outer(inside, inside)
    np.testing.assert_allclose(gradient[:, :, 0, 0], expected, rtol=0.004)


@pytest.mark.parametrize(
    ("options", "deviation"),
    [
        ({}, 1 / (9 * 64)),
        ({"initial_scale": 0.5}, 0.5 / (9 * 64)),
        ({"residual_init": "standard"}, 1 / 24),
        ({"residual_init": "standard", "initial_scale": 2.0}, 2 / 24),
        ({"residual_init": "he"}, math.sqrt(2) / 24),
        ({"projection": "trained"}, 1 / (9 * 64)),
    ],
)
def test_deviations_of_initial_weights(key, options, deviation):
    stages = {
        "blocks_per_stage": (1,),
        "widths": (64,),
        "stage_strides": (1,),
        "stem_width": 16,
    }
    net = AllConvResidual(num_classes=100, **stages, **options)
    variables = init_variables(net, key, (8, 8, 3))
    block = variables["params"]["stage1_block1"]
    stem = variables["params"]["stem"]
    # Standard deviations of 9,216 numbers (16 or 64 to 64 channels) are known to 0.7 %;
    # stem 3.4 %.
    for name in ("conv1", "conv2"):
        assert np.std(block[name]["kernel"]) == pytest.approx(deviation, rel=0.03)
        assert np.abs(block[name]["kernel"]).max() > 3 * deviation
    assert np.std(stem["kernel"]) == pytest.approx(1 / (3 * math.sqrt(16)), rel=0.15)
    kind = "params" if options.get("projection") == "trained" else "fixed"
    projection = np.asarray(variables[kind]["projection"]["kernel"])
    limit = math.sqrt(3 / 64)
    assert 0.99 * limit < np.abs(projection).max() <= limit
    assert projection.std() == pytest.approx(limit / math.sqrt(3), rel=0.05)


# The other networks of Table 2.


def evaluate(name, x, **settings):
    """(params, running statistics, logits, residual ratios) with random variables."""
    net = make_net(name, **settings)
    variables = randomize(variable_shapes(net, x.shape[1:]))
    logits, intermediates = jax.jit(functools.partial(apply_net, net, train=False))(
        variables, x
    )
    ratios = intermediates["residual_ratio"]
    return variables["params"], variables["batch_stats"], logits, ratios


def images(*shape):
    return np.random.default_rng(3).normal(size=shape).astype(np.float32)


def norm(x, params, stats, name):
    return normalize_batch(x, params[name], TORCH_EPSILON, stats[name])


def classify(x, params):
    return x.mean(axis=(1, 2)) @ params["linear"]["kernel"] + params["linear"]["bias"]


def residual(x, params, stats, stride):
    h = convolve(x, params["conv1"]["kernel"], stride)
    h = convolve(relu(norm(h, params, stats, "norm1")), params["conv2"]["kernel"])
    return norm(h, params, stats, "norm2")


@pytest.mark.slow
def test_resnet_against_numpy():
    # Odd sides: 5 x 7, 3 x 4, 2 x 2.
    x = images(2, 5, 7, 1)
    params, stats, logits, intermediates = evaluate(
        "resnet", x, num_classes=3, depth=14, width=2
    )
    x = relu(norm(convolve(x, params["stem"]["kernel"]), params, stats, "norm"))
    ratios = []
    for stage, width in ((1, 2), (2, 4), (3, 8)):
        for block in (1, 2):
            name = f"stage{stage}_block{block}"
            stride = 2 if stage > 1 and block == 1 else 1
            h = residual(x, params[name], stats[name], stride)
            x = pad_channels(x[:, ::stride, ::stride], width)
            ratios.append(norm_ratios(x, h))
            x = relu(x + h)
    np.testing.assert_allclose(logits, classify(x, params), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(intermediates, ratios, rtol=1e-4)


@pytest.mark.slow
def test_resnet_imagenet_against_numpy():
    x = images(2, 32, 32, 1)
    params, stats, logits, intermediates = evaluate(
        "resnet_imagenet", x, num_classes=3, depth=18, width=2
    )
    stem = convolve(x, params["stem"]["kernel"], 2)
    x = relu(norm(stem, params, stats, "norm"))
    # The maximum over 3 x 3 pixels at stride 2, padded with one pixel of -inf.
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)), constant_values=-np.inf)
    x = sliding_window_view(padded, (3, 3), axis=(1, 2))[:, ::2, ::2].max(axis=(4, 5))
    ratios = []
    for stage in (1, 2, 3, 4):
        for block in (1, 2):
            name = f"stage{stage}_block{block}"
            stride = 2 if stage > 1 and block == 1 else 1
            h = residual(x, params[name], stats[name], stride)
            if stride == 2:
                down = x[:, ::2, ::2] @ params[name]["down"]["kernel"][0, 0]
                x = norm(down, params[name], stats[name], "down_norm")
            ratios.append(norm_ratios(x, h))
            x = relu(x + h)
    np.testing.assert_allclose(logits, classify(x, params), rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(intermediates, ratios, rtol=1e-3)


@pytest.mark.slow
def test_densenet_against_numpy():
    x = images(2, 8, 4, 1)
    settings = {"depth": 10, "growth": 2, "stem_width": 3}
    params, stats, logits, intermediates = evaluate(
        "densenet", x, num_classes=3, **settings
    )

    def composite(x, name):
        x = relu(norm(x, params, stats, f"{name}_norm"))
        return convolve(x, params[f"{name}_conv"]["kernel"])

    x = convolve(x, params["stem"]["kernel"])
    for block in (1, 2, 3):
        for layer in (1, 2):
            x = np.concatenate([x, composite(x, f"block{block}_layer{layer}")], axis=-1)
        if block < 3:
            x = average_pool_2x2(composite(x, f"transition{block}"))
    assert x.shape == (2, 2, 1, 15)
    x = relu(norm(x, params, stats, "norm"))
    np.testing.assert_allclose(logits, classify(x, params), rtol=1e-4, atol=1e-4)
    assert intermediates.shape == (0, 2)


@pytest.mark.slow
def test_all_cnn_c_against_numpy():
    x = images(2, 9, 11, 1)
    net = make_net("all_cnn_c", num_classes=5)
    variables = init_variables(net, jax.random.key(0), x.shape[1:])
    params = jax.tree.map(
        # Biases start at 0; these are not 0, so that a missing bias would show.
        lambda leaf: (
            leaf if leaf.ndim == 4 else np.linspace(-0.1, 0.2, len(leaf), dtype="f4")
        ),
        variables["params"],
    )
    logits, _ = apply_net(net, {**variables, "params": params}, x, train=False)
    for index in range(1, 10):
        layer = params[f"conv{index}"]
        stride = 2 if index in (3, 6) else 1
        zeros = 1 if index < 7 else 0
        x = convolve(x, layer["kernel"], stride, zeros, zeros)
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
    # From 32 channels to 64: the standard deviation of 18,432 numbers is known to 0.5
    # %.
    kernel = params["stage2_block1"]["conv1"]["kernel"]
    assert np.std(kernel) == pytest.approx(np.sqrt(2 / (9 * 64)), rel=0.02)
    linear = np.abs(params["linear"]["kernel"])
    assert 0.99 < np.max(linear) * np.sqrt(128) <= 1
    assert not np.any(params["linear"]["bias"])


@pytest.mark.slow
def test_running_statistics_move_by_a_tenth(key):
    x = images(4, 5, 7, 1)
    net = make_net("resnet", num_classes=3, depth=8, width=2)
    variables = init_variables(net, key, x.shape[1:])
    _, intermediates = jax.jit(functools.partial(apply_net, net, train=True))(
        variables, x
    )
    stem = convolve(x, variables["params"]["stem"]["kernel"])
    statistics = intermediates["batch_stats"]["norm"]
    np.testing.assert_allclose(
        statistics["mean"], 0.1 * stem.mean(axis=(0, 1, 2)), rtol=1e-3, atol=1e-6
    )
    np.testing.assert_allclose(
        statistics["var"], 0.9 + 0.1 * stem.var(axis=(0, 1, 2)), rtol=1e-4
    )
