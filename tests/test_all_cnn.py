import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from identity_matters import diagnostics
from identity_matters.models import layers
from identity_matters.models.all_cnn import all_cnn_c
from tests import numpy_layers
from tests.numpy_layers import relu


def shapes_of(model, image_shape=(32, 32, 3)):
    return jax.eval_shape(lambda key: model.init(key, image_shape), jax.random.key(0))


def test_parameters_and_convolutions():
    model = all_cnn_c(num_classes=10)
    variables = shapes_of(model)
    assert diagnostics.count_parameters(variables["params"]) == 1_369_738
    assert variables["fixed"] == variables["batch_stats"] == {}
    x = jax.ShapeDtypeStruct((1, 32, 32, 3), jnp.float32)
    jaxpr = str(jax.make_jaxpr(functools.partial(model.apply, train=False))(variables, x))
    assert jaxpr.count("conv_general_dilated[") == 9
    # The map is 8 x 8 after the strides and 6 x 6 behind the convolution without padding.
    assert "f32[1,8,8,192]" in jaxpr and "f32[1,6,6,10]" in jaxpr


def test_network_against_numpy(key):
    x = np.random.default_rng(3).normal(size=(2, 9, 11, 1)).astype(np.float32)
    model = all_cnn_c(num_classes=5)
    variables = model.init(key, x.shape[1:])
    params = jax.tree.map(
        # Biases start at 0; others must show.
        lambda leaf: leaf if leaf.ndim == 4 else np.linspace(-0.1, 0.2, len(leaf), dtype="f4"),
        variables["params"],
    )
    logits, intermediates = jax.jit(functools.partial(model.apply, train=False))(
        {**variables, "params": params}, x
    )
    for index in range(1, 10):
        layer = params[f"conv{index}"]
        stride, zeros = 2 if index in (3, 6) else 1, 1 if index < 7 else 0
        x = numpy_layers.convolve(x, layer["kernel"], stride, zeros, zeros)
        x = relu(x + np.asarray(layer["bias"]))
    assert x.shape == (2, 1, 1, 5)
    np.testing.assert_allclose(logits, x.mean(axis=(1, 2)), rtol=1e-4, atol=1e-5)
    assert np.any(logits)
    assert intermediates["residual_ratio"].shape == (0, 2)


def test_dropout_stands_at_the_image_and_behind_the_strides(key, monkeypatch):
    calls = []

    def record(x, keys, rate, layer):
        calls.append((x.shape[1:], rate, layer))
        return x

    monkeypatch.setattr(layers, "dropout", record)
    model = all_cnn_c(num_classes=10)
    x = jax.ShapeDtypeStruct((2, 32, 32, 3), jnp.float32)
    jax.eval_shape(functools.partial(model.apply, train=False), shapes_of(model), x)
    assert calls == []
    jax.eval_shape(functools.partial(model.apply, train=True), shapes_of(model), x)
    assert [call[:2] for call in calls] == [
        ((32, 32, 3), 0.2),
        ((16, 16, 96), 0.5),
        ((8, 8, 192), 0.5),
    ]
    assert len({layer for _, _, layer in calls}) == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"input_dropout": 1.0}, "input_dropout must be at least 0 and below 1, got 1.0"),
        ({"dropout": -0.1}, "dropout must be at least 0 and below 1, got -0.1"),
        ({"num_classes": 0}, "num_classes must be at least 1, got 0"),
        ({"compute_dtype": "half"}, "compute_dtype must be one of .* got 'half'"),
    ],
)
def test_errors(options, message):
    with pytest.raises(ValueError, match=message):
        all_cnn_c(**{"num_classes": 10, **options})


def test_small_images_are_refused(key):
    with pytest.raises(ValueError, match="at least 9 pixels a side, got 8 x 8"):
        all_cnn_c(num_classes=10).init(key, (8, 8, 1))
