"""Properties of every network in a small form, and counts of the full networks."""

import functools
from collections.abc import Callable
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.images.settings import IMAGENET_NETS
from identity_matters import flops
from identity_matters.nets import (
    NETS,
    apply_net,
    init_variables,
    layers,
    make_net,
    variable_shapes,
)
from tests.tables import by_name

SMALL = {
    "all_conv_residual": {
        "blocks_per_stage": (1, 1),
        "stage_strides": (1, 2),
        "widths": (4, 6),
        "stem_width": 2,
        "residual_init": "standard",
        "batch_norm": True,
    },
    "all_cnn_c": {"input_dropout": 0.0},
    "resnet": {"depth": 8, "width": 2},
    "resnet_imagenet": {"depth": 18, "width": 2},
    "densenet": {"depth": 7, "growth": 2, "stem_width": 2},
    "mlp": {"depth": 5, "width": 6, "initialization": "standard"},
}
BLOCKS = {"all_conv_residual": 2, "all_cnn_c": 0, "resnet": 3}
BLOCKS |= {"resnet_imagenet": 8, "densenet": 0, "mlp": 3}
IMAGES = np.random.default_rng(0).normal(size=(4, 12, 12, 3)).astype(np.float32)
# Halves of different brightness, so that the statistics of one half are not those of
# the batch.
IMAGES[2:] += 1


class Case(NamedTuple):
    """A small network and what it gives for IMAGES in training.

    Attributes:
      net: the module.
      variables: as `init_variables` draws them with key 0.
      keys: one for each image.
      logits, intermediates: in training.
      evaluate: ``(variables, images) -> (logits, intermediates)``, compiled.
    """

    net: nn.Module
    variables: dict
    keys: jax.Array
    logits: jax.Array
    intermediates: dict
    evaluate: Callable


@functools.cache
def case(name: str) -> Case:
    net = make_net(name, num_classes=5, **SMALL[name])
    apply = functools.partial(apply_net, net)
    variables = init_variables(net, jax.random.key(0), IMAGES.shape[1:])
    keys = jax.random.split(jax.random.key(1), len(IMAGES))
    train = jax.jit(functools.partial(apply, train=True))
    logits, intermediates = train(variables, IMAGES, keys=keys)
    return Case(
        net=net,
        variables=variables,
        keys=keys,
        logits=logits,
        intermediates=intermediates,
        evaluate=jax.jit(functools.partial(apply, train=False)),
    )


each_network = pytest.mark.parametrize("name", NETS)


@pytest.mark.slow
@each_network
def test_logits_and_intermediates(name):
    network = case(name)
    logits = network.logits
    assert logits.shape == (4, 5) and logits.dtype == jnp.float32
    assert np.all(np.isfinite(logits)) and np.std(logits) > 0
    assert sorted(network.intermediates) == ["batch_stats", "residual_ratio"]
    ratio = network.intermediates["residual_ratio"]
    assert ratio.shape == (BLOCKS[name], 4) and ratio.dtype == jnp.float32
    assert np.all(ratio > 0)
    moved = jax.tree.map(
        lambda new, old: np.any(new != old),
        network.intermediates["batch_stats"],
        network.variables["batch_stats"],
    )
    assert all(jax.tree.leaves(moved))


@pytest.mark.slow
@each_network
def test_evaluation_takes_examples_one_by_one(name):
    """There is no dropout, and no example affects another.

    The running statistics stay.
    """
    network = case(name)
    logits, intermediates = network.evaluate(network.variables, IMAGES)
    swapped, _ = network.evaluate(network.variables, IMAGES[::-1])
    np.testing.assert_allclose(swapped[::-1], logits, rtol=1e-5, atol=1e-6)
    changed = IMAGES.copy()
    changed[1:] = 0
    alone, _ = network.evaluate(network.variables, changed)
    np.testing.assert_allclose(alone[0], logits[0], rtol=1e-5, atol=1e-6)
    jax.tree.map(
        np.testing.assert_array_equal,
        intermediates["batch_stats"],
        network.variables["batch_stats"],
    )


@pytest.mark.slow
@each_network
def test_training_does_not_depend_on_how_the_batch_is_divided(name):
    """Two devices (a mapped axis) with two examples each against one with four."""
    network = case(name)
    net = make_net(name, num_classes=5, axis_name="devices", **SMALL[name])
    apply = functools.partial(apply_net, net, network.variables, train=True)
    mapped = jax.jit(jax.vmap(lambda x, keys: apply(x, keys=keys), axis_name="devices"))
    images = IMAGES.reshape(2, 2, *IMAGES.shape[1:])
    halves, each = mapped(images, network.keys.reshape(2, 2))
    # Batch norm divides by deviations, which magnifies rounding.
    np.testing.assert_allclose(
        halves.reshape(4, 5), network.logits, rtol=1e-4, atol=1e-5
    )
    whole = jax.tree.map(
        lambda statistic: np.stack([statistic, statistic]),
        network.intermediates["batch_stats"],
    )
    close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-6)
    jax.tree.map(close, each["batch_stats"], whole)


@pytest.mark.slow
@each_network
def test_bfloat16_is_close_to_float32(name):
    network = case(name)
    logits, _ = network.evaluate(network.variables, IMAGES)
    net = make_net(name, num_classes=5, compute_dtype="bfloat16", **SMALL[name])
    evaluate = jax.jit(functools.partial(apply_net, net, train=False))
    rounded, _ = evaluate(network.variables, IMAGES)
    train = functools.partial(apply_net, net, train=True)
    _, intermediates = jax.eval_shape(
        train, network.variables, IMAGES, keys=network.keys
    )
    assert rounded.dtype == jnp.float32
    assert intermediates["residual_ratio"].dtype == jnp.float32
    assert {leaf.dtype for leaf in jax.tree.leaves(intermediates["batch_stats"])} <= {
        np.dtype("float32")
    }
    # bfloat16 rounds to 0.4 %; there are a handful of layers.
    error = np.linalg.norm(rounded - logits) / np.linalg.norm(logits)
    assert 0 < error < 0.05


@each_network
def test_products_outside_convolutions_have_full_precision(name):
    """CPUs do not show it: accelerators would round the factors."""
    net = make_net(name, num_classes=5, **SMALL[name])
    apply = functools.partial(apply_net, net, train=False)
    program = jax.jit(apply).lower(case(name).variables, IMAGES).as_text()
    products = [line for line in program.splitlines() if "dot_general" in line]
    # The mean of the last maps of All-CNN-C is all that is left of a linear layer.
    assert len(products) >= (name != "all_cnn_c")
    assert all("precision = [HIGHEST, HIGHEST]" in line for line in products)


def test_keys_are_asked_for_where_there_is_dropout():
    network = case("all_cnn_c")
    apply = functools.partial(apply_net, network.net, train=True)
    train = functools.partial(jax.eval_shape, apply)
    with pytest.raises(ValueError, match="one key for each of 4 examples, got none"):
        train(network.variables, IMAGES)
    with pytest.raises(
        ValueError, match=r"each of 4 examples, got keys of shape \(3,\)"
    ):
        train(network.variables, IMAGES, keys=network.keys[:3])


@pytest.mark.parametrize("key", [0, jnp.int32(0), np.zeros(2, np.uint32), {}])
def test_a_number_is_no_key(key):
    net = make_net("mlp", num_classes=5, **SMALL["mlp"])
    for init, images in ((net.init, IMAGES), (init_variables, IMAGES.shape[1:])):
        arguments = (key, images) if init == net.init else (net, key, images)
        with pytest.raises(TypeError, match=r"such as jax\.random\.key\(0\), got"):
            init(*arguments)


class Linear(nn.Module):
    """A module that is not of this package."""

    @nn.compact
    def __call__(self, x, train):
        return nn.Dense(2)(x.reshape(len(x), -1))


def test_other_modules_are_sent_to_their_own_init_and_apply():
    net = Linear()
    message = (
        r"^net must be one of identity_matters\.nets, got a Linear: call net\.init"
    )
    with pytest.raises(TypeError, match=message):
        init_variables(net, jax.random.key(0), IMAGES.shape[1:])
    with pytest.raises(TypeError, match=message):
        variable_shapes(net, IMAGES.shape[1:])
    variables = net.init(jax.random.key(0), IMAGES, train=False)
    with pytest.raises(TypeError, match=r"got a Linear: call net\.apply$"):
        apply_net(net, variables, IMAGES, train=False)


def test_an_ensemble_by_vmap_is_the_nets_of_its_keys():
    net = make_net("mlp", num_classes=5, **SMALL["mlp"])
    init = functools.partial(init_variables, net, image_shape=IMAGES.shape[1:])
    keys = jax.random.split(jax.random.key(3), 2)
    one_by_one = [init(key) for key in keys]
    expected = jax.tree.map(lambda *leaves: np.stack(leaves), *one_by_one)
    raw_keys = jax.random.key_data(keys)
    for init_all in (jax.vmap(init), jax.jit(jax.vmap(init))):
        for together in (init_all(keys), init_all(raw_keys)):
            jax.tree.map(np.testing.assert_array_equal, together, expected)
    shapes = jax.eval_shape(jax.vmap(init), keys)
    assert jax.tree.map(np.shape, expected) == jax.tree.map(lambda x: x.shape, shapes)
    logits, _ = jax.vmap(lambda v: net.apply(v, IMAGES, train=False))(expected)
    alone, _ = net.apply(one_by_one[1], IMAGES, train=False)
    np.testing.assert_allclose(logits[1], alone, rtol=1e-5, atol=1e-6)


@each_network
def test_what_is_no_batch_of_images_is_refused(name):
    """Flax's convolutions take one image; the means over the map would be wrong."""
    if name == "mlp":
        pytest.skip("it flattens inputs of any shape")
    network = case(name)
    message = r"must be \[n, h, w, c\], got shape .*image\[None\]"
    with pytest.raises(ValueError, match=message):
        network.net.init(jax.random.key(0), IMAGES[0])
    for images in (IMAGES[0], IMAGES[None]):
        with pytest.raises(ValueError, match=message):
            jax.eval_shape(
                functools.partial(network.net.apply, train=False),
                network.variables,
                images,
            )


def test_variables_of_init_can_be_applied_without_batch_norm():
    net = make_net("mlp", num_classes=5, **SMALL["mlp"])
    variables = net.init(jax.random.key(0), IMAGES)
    assert "batch_stats" not in variables
    _, intermediates = apply_net(net, variables, IMAGES, train=False)
    assert intermediates["batch_stats"] == {}


@pytest.mark.slow
@each_network
def test_init_follows_the_key(name):
    net = make_net(name, num_classes=5, **SMALL[name])
    variables = case(name).variables
    with_same_key = init_variables(net, jax.random.key(0), IMAGES.shape[1:])
    other = init_variables(net, jax.random.key(2), IMAGES.shape[1:])
    jax.tree.map(np.testing.assert_array_equal, with_same_key, variables)
    # As with any Flax module, also within `jax.jit`; collections that the net lacks are
    # left out.
    full = {collection: leaves for collection, leaves in variables.items() if leaves}
    for init in (functools.partial(net.init, train=False), jax.jit(net.init)):
        jax.tree.map(
            np.testing.assert_array_equal, init(jax.random.key(0), IMAGES), full
        )
    drawn = jax.tree.map(
        lambda leaf, other_leaf: bool(np.any(leaf != other_leaf)), variables, other
    )
    for path, is_drawn in jax.tree_util.tree_leaves_with_path(drawn):
        assert is_drawn == (path[-1].key == "kernel")


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        ((12, 12, 3), "float32"),
        ((1, 12, 12, 3), "uint8"),
        ((0, 12, 12, 3), "float32"),
    ],
)
def test_inputs_are_checked(shape, dtype):
    network = case("resnet")
    images = jnp.zeros(shape, dtype)
    with pytest.raises(ValueError, match=f"got {dtype}.{str([*shape])[1:-1]}."):
        apply_net(network.net, network.variables, images, train=False)
    with pytest.raises(TypeError, match="x must be a NumPy or JAX array, got a list"):
        apply_net(network.net, network.variables, [[]], train=False)


TRAINED = {"projection": "trained"}
BLOCKS_34 = IMAGENET_NETS["blocks_of_34_layers"]
AS_PRINTED = IMAGENET_NETS["parameters_as_printed"]


# The last number is in 10^9 multiplications per image, None if it is not known.
@pytest.mark.slow
@by_name(
    # Table 1; its 13,541,306 and 13,564,436 with a trained head include biases,
    # ours has none.
    {
        "name": "all_conv_residual",
        "settings": {},
        "num_classes": 10,
        "parameters": 13_538_736,
        "convolutions": 55,
        "multiplications": 1.973,
    },
    {
        "name": "all_conv_residual",
        "settings": TRAINED,
        "num_classes": 10,
        "parameters": 13_541_306 - 10,
        "convolutions": 55,
        "multiplications": 1.973,
    },
    {
        "name": "all_conv_residual",
        "settings": TRAINED,
        "num_classes": 100,
        "parameters": 13_564_436 - 100,
        "convolutions": 55,
        "multiplications": 1.973,
    },
    # Both readings of "the 34-layer network"; a 7x7 stem at 112 pixels a side, then
    # 56 to 7.
    {
        "name": "all_conv_residual",
        "settings": BLOCKS_34,
        "num_classes": 1000,
        "parameters": 21_095_616,
        "convolutions": 33,
        "multiplications": 3.50,
    },
    {
        "name": "all_conv_residual",
        "settings": AS_PRINTED,
        "num_classes": 1000,
        "parameters": 35_693_760,
        "convolutions": 45,
        "multiplications": 5.2,
    },
    {
        "name": "all_cnn_c",
        "settings": {},
        "num_classes": 10,
        "parameters": 1_369_738,
        "convolutions": 9,
        "multiplications": None,
    },
    # Layers, counting the linear one: 110; 34 and three shortcuts (3.6 without
    # them); 100.
    {
        "name": "resnet",
        "settings": {},
        "num_classes": 10,
        "parameters": 1_727_962,
        "convolutions": 109,
        "multiplications": None,
    },
    {
        "name": "resnet_imagenet",
        "settings": {},
        "num_classes": 1000,
        "parameters": 21_797_672,
        "convolutions": 33 + 3,
        "multiplications": 3.66,
    },
    {
        "name": "densenet",
        "settings": {},
        "num_classes": 10,
        "parameters": 27_249_082,
        "convolutions": 99,
        "multiplications": None,
    },
    {
        "name": "densenet",
        "settings": {"stem_width": 48},
        "num_classes": 10,
        "parameters": 28_071_706,
        "convolutions": 99,
        "multiplications": None,
    },
)
def test_published_counts(
    name, settings, num_classes, parameters, convolutions, multiplications
):
    net = make_net(name, num_classes=num_classes, **settings)
    image_shape = (224, 224, 3) if num_classes == 1000 else (32, 32, 3)
    shapes = variable_shapes(net, image_shape)
    assert flops.count_parameters(shapes["params"]) == parameters
    kernels = [leaf for leaf in jax.tree.leaves(shapes["params"]) if leaf.ndim == 4]
    assert len(kernels) == convolutions
    if multiplications:
        apply = functools.partial(apply_net, net, train=False)
        image = jax.ShapeDtypeStruct((1, *image_shape), jnp.float32)
        billions = flops.count_flops(apply, shapes, image) / 2e9
        assert billions == pytest.approx(
            multiplications, rel=0.05 if num_classes == 1000 else 5e-4
        )


# Layers.


def test_relu_has_derivative_0_at_0():
    x = jnp.array([-1.0, 0.0, 2.0])
    slopes = jax.vmap(jax.grad(lambda x: layers.leaky_relu(x, 0.0)))(x)
    assert slopes.tolist() == [0.0, 0.0, 1.0]
    assert layers.leaky_relu(x, 0.5).tolist() == [-0.5, 0.0, 2.0]


@pytest.mark.parametrize("shape", [(3, 4), (4, 3)])
def test_pooling_leaves_no_pixels_out(shape):
    with pytest.raises(ValueError, match="pooling by 2 needs sides that it divides"):
        layers.average_pool(jnp.ones((1, *shape, 2)), 2)


def test_means_of_pixels_are_float32():
    # In bfloat16 a sum of ones stops growing at 256; 1,024 ones must still have the
    # mean 1.
    ones = jnp.ones((1, 32, 32, 2), jnp.bfloat16)
    y = layers.global_average_pool(ones)
    assert y.dtype == jnp.float32
    np.testing.assert_array_equal(y, [[1, 1]])
    pooled = layers.average_pool(ones, 32)
    assert pooled.dtype == ones.dtype
    np.testing.assert_array_equal(pooled.astype(np.float32), [[[[1, 1]]]])


@functools.partial(jax.jit, static_argnums=(2, 3))
def drop(x, keys, rate, layer):
    return layers.dropout(x, keys, rate, layer)


@pytest.mark.slow
def test_dropout_keeps_the_mean_and_its_rate(key):
    x = jnp.ones((50, 20, 20), jnp.float32)
    y = np.asarray(drop(x, jax.random.split(key, 50), 0.2, 3))
    assert y.dtype == np.float32
    np.testing.assert_array_equal(np.unique(y), np.float32([0, 1.25]))
    # 20,000 numbers: the standard deviation of the mean is 0.4 / sqrt(20000) = 0.003.
    assert np.mean(y == 0) == pytest.approx(0.2, abs=0.012)


@pytest.mark.slow
def test_dropout_depends_on_the_examples_own_key_and_the_layer(key):
    x = jnp.ones((4, 30), jnp.float32)
    keys = jax.random.split(key, 4)
    y = drop(x, keys, 0.5, 0)
    order = np.array([2, 0, 3, 1])
    np.testing.assert_array_equal(drop(x, keys[order], 0.5, 0), y[order])
    np.testing.assert_array_equal(drop(x[:2], keys[:2], 0.5, 0), y[:2])
    assert (np.asarray(drop(x, keys, 0.5, 1)) != y).any(axis=1).all()
    assert drop(x.astype(jnp.bfloat16), keys, 0.5, 0).dtype == jnp.bfloat16
    assert len(np.unique(np.asarray(y), axis=0)) == 4


@pytest.mark.parametrize("size", [1e-30, 1e-23, 1.0, 1e20, 1e37])
def test_residual_ratio_of_what_float32_cannot_square(size):
    x = jnp.full((1, 4), size, jnp.float32)
    np.testing.assert_allclose(layers.residual_ratio(x, x / 8), [0.125], rtol=1e-6)


def test_residual_ratios_have_gradients_where_an_image_is_zero():
    x = jnp.float32([[3, 4], [0, 0], [3, 4]])
    h = jnp.float32([[0, 1], [0, 0], [0, 0]])

    def total(x, h):
        return layers.residual_ratio(x, h).sum()

    of_x, of_h = jax.grad(total, argnums=(0, 1))(x, h)
    # 1 / |x| falls by x / |x|^3.
    np.testing.assert_allclose(of_x, [[-3 / 125, -4 / 125], [0, 0], [0, 0]], rtol=1e-6)
    np.testing.assert_allclose(of_h, [[0, 1 / 5], [0, 0], [0, 0]], rtol=1e-6)


def test_residual_ratio_by_hand_and_in_float32():
    x = jnp.float32([[[3], [4]], [[0], [2]], [[0], [0]]])
    h = jnp.float32([[[0], [1]], [[6], [8]], [[0], [0]]])
    np.testing.assert_allclose(layers.residual_ratio(x, h), [0.2, 5, 0], rtol=1e-6)
    # In bfloat16, of 8 bits, the sum of squares 100^2 + 999 would be another number.
    x = jnp.ones((1, 1000), jnp.bfloat16)
    h = jnp.full((1, 1000), 0.5, jnp.bfloat16)
    ratio = layers.residual_ratio(x.at[0, 0].set(100), h)
    assert ratio.dtype == jnp.float32
    np.testing.assert_allclose(ratio, [np.sqrt(250 / 10999)], rtol=1e-6)
