"""ResNet-34 by its counts, and a small one against NumPy."""

import functools

import jax
import numpy as np
import pytest

from identity_matters import diagnostics
from identity_matters.models.resnet import BATCH_NORM_EPSILON
from identity_matters.models.resnet_imagenet import resnet_imagenet
from tests import numpy_layers
from tests.numpy_layers import relu


def shapes_of(model, image_shape):
    return jax.eval_shape(lambda key: model.init(key, image_shape), jax.random.key(0))


def test_parameters_and_multiplications():
    model = resnet_imagenet(num_classes=1000)
    variables = shapes_of(model, (224, 224, 3))
    assert diagnostics.count_parameters(variables["params"]) == 21_797_672
    convolutions = [leaf for leaf in jax.tree.leaves(variables["params"]) if leaf.ndim == 4]
    # 34 layers are 33 convolutions and the linear one; three shortcuts have one each.
    assert len(convolutions) == 33 + 3
    images = jax.ShapeDtypeStruct((1, 224, 224, 3), "float32")
    flops = diagnostics.count_flops(
        lambda v, x: model.apply(v, x, train=False)[0], variables, images
    )
    # He et al. count 3.6e9 without shortcuts.
    assert flops / 2 == pytest.approx(3.66e9, rel=0.02)


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


def test_network_against_numpy():
    x = np.random.default_rng(3).normal(size=(2, 32, 32, 1)).astype(np.float32)
    model = resnet_imagenet(num_classes=3, depth=18, width=2)
    variables = numpy_layers.randomize(shapes_of(model, x.shape[1:]))
    logits, intermediates = jax.jit(functools.partial(model.apply, train=False))(variables, x)
    params, stats = variables["params"], variables["batch_stats"]

    def norm(x, name):
        return numpy_layers.batch_norm(x, params[name], BATCH_NORM_EPSILON, stats[name])

    def convolve(x, name, stride=1):
        return numpy_layers.convolve(x, params[name]["kernel"], stride)

    x = largest_of_three(relu(norm(convolve(x, "stem", 2), "norm")))
    ratios = []
    for stage in (1, 2, 3, 4):
        for block in (1, 2):
            name = f"stage{stage}_block{block}"
            stride = 2 if stage > 1 and block == 1 else 1
            h = relu(norm(convolve(x, f"{name}_conv1", stride), f"{name}_norm1"))
            h = norm(convolve(h, f"{name}_conv2"), f"{name}_norm2")
            if stride == 2:
                kernel = params[f"{name}_down"]["kernel"][0, 0]
                x = norm(x[:, ::2, ::2] @ kernel, f"{name}_down_norm")
            ratios.append(numpy_layers.ratios(x, h))
            x = relu(x + h)
    linear = params["linear"]
    expected = x.mean(axis=(1, 2)) @ linear["kernel"] + linear["bias"]
    np.testing.assert_allclose(logits, expected, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(intermediates["residual_ratio"], ratios, rtol=1e-3)


def test_other_depths_are_refused():
    with pytest.raises(ValueError, match="depth must be one of 18, 34, got 50"):
        resnet_imagenet(num_classes=10, depth=50)
