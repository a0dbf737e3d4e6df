"""Table 1 and the ImageNet net by their counts: parameters, shapes, operations."""

import functools

import jax
import jax.numpy as jnp
import pytest

from identity_matters import diagnostics
from identity_matters.models.all_conv_residual import IMAGENET, all_conv_residual


def shapes_of(model, image_shape=(32, 32, 3)):
    return jax.eval_shape(lambda key: model.init(key, image_shape), jax.random.key(0))


@pytest.mark.parametrize(
    ("reading", "parameters", "multiplications"),
    [
        # Of a 7x7 stem at 112 pixels a side, and stages at 56, 28, 14 and 7.
        ("blocks_of_34_layers", 21_095_616, 3.5e9),
        ("parameters_as_printed", 35_693_760, 5.2e9),
    ],
)
def test_both_readings_of_the_imagenet_net(reading, parameters, multiplications):
    model = all_conv_residual(num_classes=1000, **IMAGENET[reading])
    variables = shapes_of(model, (224, 224, 3))
    assert diagnostics.count_parameters(variables["params"]) == parameters
    assert variables["fixed"]["projection"]["kernel"].shape == (512, 1000)
    images = jax.ShapeDtypeStruct((1, 224, 224, 3), "float32")
    flops = diagnostics.count_flops(
        lambda v, x: model.apply(v, x, train=False)[0], variables, images
    )
    assert flops / 2 == pytest.approx(multiplications, rel=0.05)


@pytest.mark.parametrize(
    ("options", "parameters"),
    [
        # PAPER, section 3, counted from Table 1; the last two as in the notes on its 13.59M.
        ({"num_classes": 10}, 13_538_736),
        ({"num_classes": 100}, 13_538_736),
        ({"num_classes": 10, "projection": "trained"}, 13_541_306 - 10),
        ({"num_classes": 100, "projection": "trained"}, 13_564_436 - 100),
    ],
)
def test_parameters_of_table_1(options, parameters):
    # The counts 13,541,306 and 13,564,436 of a trained head include its biases; ours has none.
    variables = shapes_of(all_conv_residual(**options))
    assert diagnostics.count_parameters(variables["params"]) == parameters
    classes = options["num_classes"]
    fixed = 0 if "projection" in options else 256 * classes
    assert diagnostics.count_parameters(variables["fixed"]) == fixed
    assert variables["batch_stats"] == {}


def test_parameters_of_each_stage():
    params = shapes_of(all_conv_residual(num_classes=10))["params"]
    counts = [
        diagnostics.count_parameters([params[name] for name in params if name.startswith(stage)])
        for stage in ("stem", "stage1", "stage2", "stage3")
    ]
    assert counts == [432, 635_904, 2_580_480, 10_321_920]


def test_55_convolutions_and_their_operations():
    model = all_conv_residual(num_classes=10)
    x = jax.ShapeDtypeStruct((1, 32, 32, 3), jnp.float32)
    apply = functools.partial(model.apply, train=False)
    variables = shapes_of(model)
    assert str(jax.make_jaxpr(apply)(variables, x)).count("conv_general_dilated[") == 55
    # 1.973 GMAC an image, 11.8 GFLOP in training.
    flops = diagnostics.count_flops(apply, variables, x)
    assert flops / 2 == pytest.approx(1.973e9, abs=5e5)
    assert diagnostics.training_flops(flops) == pytest.approx(11.8e9, abs=5e7)


def test_kernels_have_the_shapes_of_table_1():
    params = shapes_of(all_conv_residual(num_classes=10))["params"]
    for name, shape in (
        ("stem", (3, 3, 3, 16)),
        ("stage1_block1", (3, 3, 16, 64)),
        ("stage2_block1", (3, 3, 64, 128)),
        ("stage3_block1", (3, 3, 128, 256)),
        ("stage3_block9", (3, 3, 256, 256)),
    ):
        first = params[name] if name == "stem" else params[name]["conv1"]
        assert first["kernel"].shape == shape
    assert "stage3_block10" not in params
