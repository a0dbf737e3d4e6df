import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from identity_matters import diagnostics
from identity_matters.models import layers
from identity_matters.models.densenet import BATCH_NORM_EPSILON, densenet
from tests import numpy_layers
from tests.numpy_layers import relu


def shapes_of(model, image_shape=(32, 32, 3)):
    return jax.eval_shape(lambda key: model.init(key, image_shape), jax.random.key(0))


def test_parameters_and_convolutions():
    variables = shapes_of(densenet(num_classes=10))
    assert diagnostics.count_parameters(variables["params"]) == 27_249_082
    convolutions = [leaf for leaf in jax.tree.leaves(variables["params"]) if leaf.ndim == 4]
    # With the linear layer 100 layers.
    assert len(convolutions) == 99
    assert [leaf.shape for leaf in convolutions if leaf.shape[0] == 1] == [
        (1, 1, 784, 784),
        (1, 1, 1552, 1552),
    ]


def test_parameters_with_the_stem_of_the_released_code():
    variables = shapes_of(densenet(num_classes=10, stem_width=48))
    assert diagnostics.count_parameters(variables["params"]) == 28_071_706


def test_network_against_numpy():
    x = np.random.default_rng(3).normal(size=(2, 8, 4, 1)).astype(np.float32)
    model = densenet(num_classes=3, depth=10, growth=2, stem_width=3)
    variables = numpy_layers.randomize(shapes_of(model, x.shape[1:]))
    logits, intermediates = jax.jit(functools.partial(model.apply, train=False))(variables, x)
    params, stats = variables["params"], variables["batch_stats"]

    def composite(x, name):
        x = relu(
            numpy_layers.batch_norm(
                x, params[f"{name}_norm"], BATCH_NORM_EPSILON, stats[f"{name}_norm"]
            )
        )
        return numpy_layers.convolve(x, params[f"{name}_conv"]["kernel"])

    x = numpy_layers.convolve(x, params["stem"]["kernel"])
    for block in (1, 2, 3):
        for layer in (1, 2):
            x = np.concatenate([x, composite(x, f"block{block}_layer{layer}")], axis=-1)
        if block < 3:
            x = numpy_layers.average_pool_2x2(composite(x, f"transition{block}"))
    assert x.shape == (2, 2, 1, 15)
    x = relu(numpy_layers.batch_norm(x, params["norm"], BATCH_NORM_EPSILON, stats["norm"]))
    expected = x.mean(axis=(1, 2)) @ params["linear"]["kernel"] + params["linear"]["bias"]
    np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-4)
    assert intermediates["residual_ratio"].shape == (0, 2)


def test_every_convolution_but_the_first_has_a_dropout_of_its_own(monkeypatch):
    calls = []

    def record(x, keys, rate, layer):
        calls.append((x.shape[-1], rate, layer))
        return x

    monkeypatch.setattr(layers, "dropout", record)
    model = densenet(num_classes=3, depth=10, growth=2, stem_width=3, dropout=0.2)
    x = jax.ShapeDtypeStruct((1, 8, 8, 1), jnp.float32)
    jax.eval_shape(functools.partial(model.apply, train=False), shapes_of(model, x.shape[1:]), x)
    assert calls == []
    jax.eval_shape(functools.partial(model.apply, train=True), shapes_of(model, x.shape[1:]), x)
    # Two layers a block, and the transitions of widths 3 + 4 and 7 + 4 between them.
    assert [call[:2] for call in calls] == [(width, 0.2) for width in (2, 2, 7, 2, 2, 11, 2, 2)]
    assert len({layer for _, _, layer in calls}) == 8


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"depth": 101}, r"depth must be 3 m \+ 4 .* got 101"),
        ({"depth": 4}, r"depth must be 3 m \+ 4 .* got 4"),
        ({"growth": 0}, "growth must be at least 1, got 0"),
        ({"stem_width": 0}, "stem_width must be at least 1, got 0"),
        ({"dropout": 1.0}, "dropout must be at least 0 and below 1, got 1.0"),
        ({"num_classes": 0}, "num_classes must be at least 1, got 0"),
        ({"compute_dtype": "half"}, "compute_dtype must be one of .* got 'half'"),
    ],
)
def test_errors(options, message):
    with pytest.raises(ValueError, match=message):
        densenet(**{"num_classes": 10, **options})


def test_sides_that_cannot_be_halved_are_refused(key):
    with pytest.raises(ValueError, match="a map of 3 x 3"):
        densenet(num_classes=3, depth=7).init(key, (6, 6, 1))
