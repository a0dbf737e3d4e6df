"""Settings of the nets that are out of range, and images that do not fit."""

import math

import jax
import numpy as np
import pytest

from identity_matters.nets import NETS, init_variables, make_net, variable_shapes

TWO_STAGES = {
    "blocks_per_stage": (1, 1),
    "stage_strides": (1, 2),
    "widths": (4, 6),
    "stem_width": 2,
}
# The settings that have no default.
NEEDED = {"mlp": {"depth": 5, "width": 6}}


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("vgg", {}, "the net must be one of all_conv_residual, .* got 'vgg'"),
        ("resnet", {"num_classes": 0}, "num_classes must be at least 1, got 0"),
        (
            "densenet",
            {"compute_dtype": "half"},
            "compute_dtype must be one of .* got 'half'",
        ),
        ("resnet", {"depth": 109}, r"depth must be 6 b \+ 2 .* got 109"),
        ("resnet_imagenet", {"depth": 50}, "depth must be one of 18, 34, got 50"),
        ("densenet", {"depth": 101}, r"depth must be 3 m \+ 4 .* got 101"),
        (
            "all_cnn_c",
            {"dropout": -0.1},
            "dropout must be at least 0 and below 1, got -0.1",
        ),
        (
            "all_conv_residual",
            {"projection": "none"},
            "one of fixed, trained, got 'none'",
        ),
        # For an array, `in` would compare entry by entry.
        (
            "mlp",
            {"depth": 2, "width": 4, "activation": np.array(["relu"])},
            "one of relu, linear, got array",
        ),
        (
            "all_conv_residual",
            {"widths": (4, 7)},
            r"one entry for each stage, got .* \(4, 7\)",
        ),
        (
            "all_conv_residual",
            {"blocks_per_stage": (), "widths": (), "stage_strides": ()},
            r"one entry for each stage, got \(\), \(\) and \(\)",
        ),
        (
            "all_conv_residual",
            {"widths": (64, 48, 48)},
            "must not shrink from stem_width 16 on",
        ),
        (
            "all_conv_residual",
            {"blocks_per_stage": (2, 0, 1)},
            "must be at least 1, got 0",
        ),
        (
            "all_conv_residual",
            {"initial_scale": math.nan},
            "initial_scale must be one finite real number, got nan",
        ),
        (
            "all_conv_residual",
            {"initial_scale": -0.5},
            "initial_scale must be 0 or more, got -0.5",
        ),
        ("mlp", {"depth": 1, "width": 4}, "depth must be at least 2, got 1"),
        (
            "all_conv_residual",
            {**TWO_STAGES, "image": (5, 4)},
            "a map of 5 x 4",
        ),
        ("densenet", {"depth": 7, "image": (6, 6)}, "a map of 3 x 3"),
        ("all_cnn_c", {"image": (8, 8)}, r"9 or more pixels a side, got \(8, 8\)"),
    ],
)
def test_settings_out_of_range_and_images_that_do_not_fit_are_named(
    name, settings, message
):
    settings = {"num_classes": 10, "image": (32, 32), **settings}
    image = settings.pop("image")
    with pytest.raises(ValueError, match=message):
        variable_shapes(make_net(name, **settings), (*image, 1))


@pytest.mark.parametrize(
    ("image_shape", "message"),
    [
        (8, r"must be \(h, w, c\), got 8"),
        ((8, 8), r"must be \(h, w, c\), got \(8, 8\)"),
        ((8, 8, 0), "must be at least 1, got 0"),
        ((8.0, 8, 1), "must be a whole number, got 8.0"),
        (("8", 8, 1), "must be a whole number, got '8'"),
    ],
)
def test_a_shape_that_is_not_an_image_s_is_named(image_shape, message):
    net = make_net("mlp", num_classes=2, depth=2, width=3)
    with pytest.raises(ValueError, match=f"image_shape {message}"):
        variable_shapes(net, image_shape)


def test_several_keys_are_not_one():
    net = make_net("mlp", num_classes=2, depth=2, width=3)
    keys = jax.random.split(jax.random.key(0))
    message = r"must be one key, got keys of shape \(2,\); jax.vmap over them draws"
    for several in (keys, jax.random.key_data(keys)):
        with pytest.raises(ValueError, match=message):
            init_variables(net, several, (2, 2, 1))
        with pytest.raises(ValueError, match=message):
            net.init(several, np.zeros((1, 2, 2, 1), np.float32))


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("all_conv_residual", {"batch_norm": "False"}),
        ("all_conv_residual", {"identity": "no"}),
        ("all_conv_residual", {"activate_first": None}),
        ("all_conv_residual", {"gate": 1}),
        ("mlp", {"identity": 1}),
    ],
)
def test_switches_are_true_or_false(name, settings):
    """Most other values count as true, "False" among them."""
    [(field, value)] = settings.items()
    with pytest.raises(
        ValueError, match=f"^{field} must be True or False, got {value!r}"
    ):
        make_net(name, num_classes=10, **NEEDED.get(name, {}) | settings)


COUNTS = {
    "all_conv_residual": [
        "num_classes",
        "stem_width",
        "stem_kernel_size",
        "stem_stride",
    ],
    "all_cnn_c": ["num_classes", "width"],
    "resnet": ["num_classes", "depth", "width"],
    "resnet_imagenet": ["num_classes", "depth", "width"],
    "densenet": ["num_classes", "depth", "growth", "stem_width"],
    "mlp": ["num_classes", "depth", "width"],
}


@pytest.mark.parametrize("name", NETS)
def test_counts_are_whole_numbers_and_not_0(name):
    settings = {"num_classes": 10, **NEEDED.get(name, {})}
    for field in COUNTS[name]:
        for bad in (2.5, 34.0, True, "8", None):
            with pytest.raises(ValueError, match=f"^{field} must be a whole number"):
                make_net(name, **settings | {field: bad})
        with pytest.raises(ValueError, match=f"^{field} must be .*, got 0$"):
            make_net(name, **settings | {field: 0})


@pytest.mark.parametrize("field", ["blocks_per_stage", "widths", "stage_strides"])
def test_stages_have_whole_numbers(field):
    *others, _ = TWO_STAGES[field]
    with pytest.raises(ValueError, match=f"^{field} must be a whole number, got 64.0"):
        make_net(
            "all_conv_residual", num_classes=10, **TWO_STAGES | {field: (*others, 64.0)}
        )
    with pytest.raises(ValueError, match=f"^{field} must be a tuple, got 64"):
        make_net("all_conv_residual", num_classes=10, **TWO_STAGES | {field: 64})


@pytest.mark.parametrize("bad", [math.inf, "1", None, 1j])
@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("all_conv_residual", "initial_scale"),
        ("all_conv_residual", "leak"),
        ("all_cnn_c", "dropout"),
        ("mlp", "initial_scale"),
    ],
)
def test_scales_and_rates_are_finite_numbers(name, field, bad):
    with pytest.raises(ValueError, match=f"^{field} must "):
        make_net(name, num_classes=10, **NEEDED.get(name, {}) | {field: bad})
