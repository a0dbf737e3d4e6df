import functools

import jax
import numpy as np
import pytest

from identity_matters import diagnostics
from identity_matters.models.resnet import BATCH_NORM_EPSILON, resnet
from tests import numpy_layers
from tests.numpy_layers import relu


def shapes_of(model, image_shape=(32, 32, 3)):
    return jax.eval_shape(lambda key: model.init(key, image_shape), jax.random.key(0))


def test_parameters_and_convolutions():
    model = resnet(num_classes=10)
    variables = shapes_of(model)
    assert diagnostics.count_parameters(variables["params"]) == 1_727_962
    convolutions = [leaf for leaf in jax.tree.leaves(variables["params"]) if leaf.ndim == 4]
    # With the linear layer 110 layers.
    assert len(convolutions) == 109
    # A mean and a variance for each convolution's output.
    assert len(jax.tree.leaves(variables["batch_stats"])) == 2 * 109


def test_network_against_numpy():
    # Odd sides: 5 x 7, 3 x 4, 2 x 2.
    x = np.random.default_rng(3).normal(size=(2, 5, 7, 1)).astype(np.float32)
    model = resnet(num_classes=3, depth=14, width=2)
    variables = numpy_layers.randomize(shapes_of(model, x.shape[1:]))
    logits, intermediates = jax.jit(functools.partial(model.apply, train=False))(variables, x)
    params, stats = variables["params"], variables["batch_stats"]

    def norm(x, params, stats, name):
        return numpy_layers.batch_norm(x, params[name], BATCH_NORM_EPSILON, stats[name])

    x = relu(norm(numpy_layers.convolve(x, params["stem"]["kernel"]), params, stats, "norm"))
    ratios = []
    for stage, width in ((1, 2), (2, 4), (3, 8)):
        for block in (1, 2):
            name = f"stage{stage}_block{block}"
            stride = 2 if stage > 1 and block == 1 else 1
            h = numpy_layers.convolve(x, params[name]["conv1"]["kernel"], stride)
            h = relu(norm(h, params[name], stats[name], "norm1"))
            h = numpy_layers.convolve(h, params[name]["conv2"]["kernel"])
            h = norm(h, params[name], stats[name], "norm2")
            x = numpy_layers.pad_channels(x[:, ::stride, ::stride], width)
            ratios.append(numpy_layers.ratios(x, h))
            x = relu(x + h)
    linear = params["linear"]
    expected = x.mean(axis=(1, 2)) @ linear["kernel"] + linear["bias"]
    np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(intermediates["residual_ratio"], ratios, rtol=1e-4)


def test_initial_weights(key):
    params = resnet(num_classes=100, depth=8, width=32).init(key, (8, 8, 3))["params"]
    # 36,864 numbers: known to 0.4 %.
    kernel = params["stage2_block1"]["conv2"]["kernel"]
    assert np.std(kernel) == pytest.approx(np.sqrt(2 / (9 * 64)), rel=0.02)
    linear = np.abs(params["linear"]["kernel"])
    assert 0.99 < np.max(linear) * np.sqrt(128) <= 1
    assert not np.any(params["linear"]["bias"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"depth": 109}, r"depth must be 6 b \+ 2 .* got 109"),
        ({"depth": 2}, r"depth must be 6 b \+ 2 .* got 2"),
        ({"width": 0}, "width must be at least 1, got 0"),
        ({"num_classes": 0}, "num_classes must be at least 1, got 0"),
        ({"compute_dtype": "half"}, "compute_dtype must be one of .* got 'half'"),
    ],
)
def test_errors(options, message):
    with pytest.raises(ValueError, match=message):
        resnet(**{"num_classes": 10, **options})
