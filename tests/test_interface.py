"""What every network promises, each in a small form."""

import functools
import typing

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from identity_matters.models.interface import COLLECTIONS, Model
from identity_matters.models.registry import MODELS

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
BLOCKS = {
    "all_conv_residual": 2,
    "all_cnn_c": 0,
    "resnet": 3,
    "resnet_imagenet": 8,
    "densenet": 0,
    "mlp": 3,
}
IMAGES = np.random.default_rng(0).normal(size=(4, 12, 12, 3)).astype(np.float32)
# Halves of different brightness, so that statistics of a half are not those of the whole.
IMAGES[2:] += 1


class Case(typing.NamedTuple):
    model: Model
    variables: dict
    keys: jax.Array
    train: tuple  # logits and intermediates
    evaluate: typing.Callable


@functools.cache
def case(name) -> Case:
    model = MODELS[name](num_classes=5, **SMALL[name])
    variables = model.init(jax.random.key(0), IMAGES.shape[1:])
    keys = jax.random.split(jax.random.key(1), len(IMAGES))
    train = jax.jit(functools.partial(model.apply, train=True))(variables, IMAGES, keys=keys)
    evaluate = jax.jit(functools.partial(model.apply, train=False))
    return Case(model, variables, keys, train, evaluate)


each_network = pytest.mark.parametrize("name", MODELS)


@each_network
def test_variables(name):
    variables = case(name).variables
    assert sorted(variables) == sorted(COLLECTIONS)
    for path, leaf in jax.tree_util.tree_leaves_with_path(variables):
        assert all(isinstance(entry, jax.tree_util.DictKey) for entry in path)
        assert isinstance(leaf, jax.Array) and leaf.dtype == jnp.float32
        expected = ("mean", "var") if path[0].key == "batch_stats" else ("kernel", "bias", "scale")
        assert path[-1].key in expected
        assert (leaf.ndim == 1) == (path[-1].key != "kernel")


@each_network
def test_logits_and_intermediates(name):
    _, variables, _, (logits, intermediates), _ = case(name)
    assert logits.shape == (4, 5) and logits.dtype == jnp.float32
    assert np.all(np.isfinite(logits)) and np.std(logits) > 0
    assert sorted(intermediates) == ["batch_stats", "residual_ratio"]
    ratio = intermediates["residual_ratio"]
    assert ratio.shape == (BLOCKS[name], 4) and ratio.dtype == jnp.float32
    assert np.all(ratio > 0)
    stats = intermediates["batch_stats"]
    assert jax.tree.structure(stats) == jax.tree.structure(variables["batch_stats"])
    for new, old in zip(
        jax.tree.leaves(stats), jax.tree.leaves(variables["batch_stats"]), strict=True
    ):
        assert np.any(new != old) and new.dtype == jnp.float32


@each_network
def test_evaluation_takes_examples_one_by_one(name):
    """Neither dropout nor the batch matters, and the running statistics stay."""
    _, variables, _, _, evaluate = case(name)
    logits, intermediates = evaluate(variables, IMAGES)
    swapped, _ = evaluate(variables, IMAGES[::-1])
    np.testing.assert_allclose(swapped[::-1], logits, rtol=1e-5, atol=1e-6)
    changed = IMAGES.copy()
    changed[1:] = 0
    alone, _ = evaluate(variables, changed)
    np.testing.assert_allclose(alone[0], logits[0], rtol=1e-5, atol=1e-6)
    for new, old in zip(
        jax.tree.leaves(intermediates["batch_stats"]),
        jax.tree.leaves(variables["batch_stats"]),
        strict=True,
    ):
        np.testing.assert_array_equal(new, old)


@each_network
def test_training_does_not_depend_on_how_the_batch_is_divided(name):
    """Two devices (a mapped axis) of two examples each against one of four."""
    _, variables, keys, (logits, intermediates), _ = case(name)
    model = MODELS[name](num_classes=5, axis_name="devices", **SMALL[name])
    apply = functools.partial(model.apply, variables, train=True)
    mapped = jax.jit(jax.vmap(lambda x, keys: apply(x, keys=keys), axis_name="devices"))
    halves, each = mapped(IMAGES.reshape(2, 2, *IMAGES.shape[1:]), keys.reshape(2, 2))
    # Batch norm divides by deviations, which magnifies rounding.
    np.testing.assert_allclose(halves.reshape(4, 5), logits, rtol=1e-4, atol=1e-5)
    for half, whole in zip(
        jax.tree.leaves(each["batch_stats"]),
        jax.tree.leaves(intermediates["batch_stats"]),
        strict=True,
    ):
        np.testing.assert_allclose(half, np.stack([whole, whole]), rtol=1e-4, atol=1e-6)


@each_network
def test_bfloat16_is_close_to_float32(name):
    _, variables, keys, _, evaluate = case(name)
    logits, _ = evaluate(variables, IMAGES)
    model = MODELS[name](num_classes=5, compute_dtype="bfloat16", **SMALL[name])
    found, _ = jax.jit(functools.partial(model.apply, train=False))(variables, IMAGES)
    train = functools.partial(model.apply, train=True)
    _, intermediates = jax.eval_shape(train, variables, IMAGES, keys=keys)
    assert found.dtype == jnp.float32
    assert intermediates["residual_ratio"].dtype == jnp.float32
    assert {leaf.dtype for leaf in jax.tree.leaves(intermediates["batch_stats"])} <= {
        np.dtype("float32")
    }
    # bfloat16 rounds to 0.4 %; a handful of layers.
    error = np.linalg.norm(found - logits) / np.linalg.norm(logits)
    assert 0 < error < 0.05


@each_network
def test_keys_are_asked_for_where_there_is_dropout(name):
    model, variables, keys, _, _ = case(name)
    train = functools.partial(jax.eval_shape, functools.partial(model.apply, train=True))
    if name == "all_cnn_c":
        with pytest.raises(ValueError, match="one key for each of 4 examples, got none"):
            train(variables, IMAGES)
        with pytest.raises(ValueError, match=r"each of 4 examples, got keys of shape \(3,\)"):
            train(variables, IMAGES, keys=keys[:3])
    else:
        assert train(variables, IMAGES)[0].shape == (4, 5)
    evaluate = functools.partial(model.apply, train=False)
    assert jax.eval_shape(evaluate, variables, IMAGES)[0].shape == (4, 5)


@each_network
def test_init_follows_the_key(name):
    model, variables, _, _, _ = case(name)
    again = model.init(jax.random.key(0), IMAGES.shape[1:])
    other = model.init(jax.random.key(2), IMAGES.shape[1:])
    for path, leaf in jax.tree_util.tree_leaves_with_path(variables):
        same, different = again, other
        for entry in path:
            same, different = same[entry.key], different[entry.key]
        np.testing.assert_array_equal(leaf, same)
        assert np.any(leaf != different) == (path[-1].key == "kernel")


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (jnp.zeros((12, 12, 3), jnp.float32), r"got float32\[12, 12, 3\]"),
        (jnp.zeros((1, 12, 12, 3), jnp.uint8), r"got uint8\[1, 12, 12, 3\]"),
        (jnp.zeros((1, 12, 12, 3), jnp.float64), r"got float64\[1, 12, 12, 3\]"),
    ],
)
def test_inputs_are_checked(x, message):
    network = case("resnet")
    with pytest.raises(ValueError, match=message):
        network.model.apply(network.variables, x, train=False)
