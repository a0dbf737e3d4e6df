"""identity_matters/nets/starts.py: what the starts of the net keep or switch off."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from identity_matters.nets import apply_net, init_variables, make_net, starts

IMAGES = np.random.default_rng(0).normal(size=(16, 8, 8, 3)).astype(np.float32)
DEEP = {"blocks_per_stage": (5, 5, 5), "widths": (16, 32, 64), "identity": False}


def last_map_rms(**settings) -> float:
    """Root mean square of the pooled features: the means over the net's last map.

    That is what the head sees, before the projection.
    """
    net = make_net("all_conv_residual", num_classes=64, **{**DEEP, **settings})
    variables = init_variables(net, jax.random.key(0), IMAGES.shape[1:])
    # The identity in place of the projection shows the pooled features.
    variables["fixed"]["projection"]["kernel"] = jnp.eye(64)
    features, _ = apply_net(net, variables, IMAGES, train=False)
    return float(jnp.sqrt(jnp.mean(jnp.square(features))))


@pytest.mark.slow
@pytest.mark.parametrize("start", ["unit_variance", "delta_orthogonal"])
def test_plain_nets_keep_the_size_of_their_maps(start):
    """31 convolutions.

    The last map has 2 x 2 pixels. If they have variance 1, their mean has a root mean
    square between 1/2, where they are independent, and 1, where they are equal. Small
    maps and few images make it vary by a factor of 2 or so around that.
    """
    assert 0.2 < last_map_rms(residual_init=start) < 3
    assert last_map_rms(residual_init="standard") < 1e-4


@pytest.mark.parametrize(
    ("sides", "stride", "share"),
    # The share of a 3 x 3 kernel that lies on the map: (3 s - 2) / 3 s for each side s
    # at stride 1.
    [
        ((8, 8), 1, (22 / 24) ** 2),
        ((4, 4), 1, (10 / 12) ** 2),
        ((2, 2), 1, (4 / 6) ** 2),
        ((2, 4), 1, (4 / 6) * (10 / 12)),
        ((4, 4), 2, (5 / 6) ** 2),
        ((5, 5), 2, (7 / 9) ** 2),
    ],
)
def test_window_sums_count_what_padding_leaves(sides, stride, share):
    sums = starts._window_sums(np.ones(sides), 3, stride)
    assert sums.mean() / 9 == pytest.approx(share)
    ones = jnp.ones((1, *sides, 1)), jnp.ones((3, 3, 1, 1))
    numbers = ("NHWC", "HWIO", "NHWC")
    by_convolution = jax.lax.conv_general_dilated(
        *ones, (stride,) * 2, "SAME", dimension_numbers=numbers
    )
    np.testing.assert_array_equal(by_convolution[0, :, :, 0], sums)


def test_deviations_of_unit_variance_by_hand():
    """The sides of a map of ones, 8 pixels, after one to three sums of neighbours.

    They add up to 8, 22, 62 and 176. Each kernel makes up for the growth in both sides,
    and for its input channels.
    """
    start = starts.make_start("unit_variance", scale=1.0, blocks=1, map_shape=(8, 8))
    generator = np.random.default_rng(0)
    for init, shape, variance in (
        (start.stem(3, 1), (3, 3, 3, 512), 1 / (3 * (22 / 8) ** 2)),
        (start.first_in_block(1), (3, 3, 16, 64), 1 / (16 * (62 / 22) ** 2)),
        (start.second_in_block(), (3, 3, 64, 16), 2 / (64 * (176 / 62) ** 2)),
    ):
        kernel = init(None, shape).draw(generator, shape)
        # The deviation of 9,216 numbers or more is known to 0.7 %.
        assert np.std(kernel) == pytest.approx(np.sqrt(variance), rel=0.02)


@pytest.mark.parametrize("name", starts.NAMES)
def test_the_scale_is_that_of_the_blocks_and_not_of_the_stem(name):
    shape = (3, 3, 16, 16)

    def sizes(scale: float) -> np.ndarray:
        start = starts.make_start(name, scale=scale, blocks=4, map_shape=(8, 8))
        inits = [start.stem(3, 1), start.first_in_block(1), start.second_in_block()]
        generators = [np.random.default_rng(seed) for seed in range(3)]
        kernels = [
            init(None, shape).draw(generator, shape)
            for init, generator in zip(inits, generators, strict=True)
        ]
        return np.array([np.linalg.norm(kernel) for kernel in kernels])

    np.testing.assert_allclose(sizes(0.5), sizes(1.0) * [1, 0.5, 0.5], rtol=1e-5)


def test_unit_variance_follows_the_strides_of_a_net():
    """Sides of 8 pixels, 4 after the stem, and 2 after the first block.

    The stem's windows see 5, 7, 6 and 4 of 8 neighbours, 5.5 on average. Those of the
    second block see the whole map, four pixels.
    """
    net = make_net(
        "all_conv_residual",
        num_classes=2,
        residual_init="unit_variance",
        stem_kernel_size=7,
        stem_stride=2,
        blocks_per_stage=(2,),
        widths=(32,),
        stage_strides=(2,),
    )
    params = init_variables(net, jax.random.key(0), (8, 8, 3))["params"]
    stem = params["stem"]["kernel"]
    assert stem.shape == (7, 7, 3, 16)
    assert np.std(stem) == pytest.approx(np.sqrt(1 / (5.5**2 * 3)), rel=0.05)
    # 9,216 numbers each.
    for conv, gain in (("conv1", 1), ("conv2", 2)):
        deviation = np.std(params["stage1_block2"][conv]["kernel"])
        assert deviation == pytest.approx(np.sqrt(gain / (4 * 32)), rel=0.03)


def test_delta_orthogonal_kernels_are_orthogonal_in_the_centre_and_zero_elsewhere():
    net = make_net(
        "all_conv_residual", num_classes=2, residual_init="delta_orthogonal", **DEEP
    )
    params = init_variables(net, jax.random.key(0), IMAGES.shape[1:])["params"]
    # C_1 widens from 16 to 32 channels; C_2 comes after a ReLU.
    for block, conv, gain in (
        ("stage2_block1", "conv1", 2),
        ("stage1_block2", "conv2", 2),
    ):
        kernel = np.array(params[block][conv]["kernel"])
        centre = kernel[1, 1].copy()
        np.testing.assert_allclose(
            centre @ centre.T, gain * np.eye(len(centre)), atol=1e-5
        )
        kernel[1, 1] = 0
        assert not kernel.any()


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{"residual_init": "fixup"}, {"gate": True}])
def test_nets_that_start_as_the_identity_can_leave_it(settings):
    net = make_net(
        "all_conv_residual", num_classes=5, **{**DEEP, "identity": True, **settings}
    )
    variables = init_variables(net, jax.random.key(0), IMAGES.shape[1:])

    def loss(params):
        logits, intermediates = apply_net(
            net, {**variables, "params": params}, IMAGES, train=True
        )
        return jnp.mean(jnp.square(logits - 1)), intermediates["residual_ratio"]

    gradient, ratios = jax.grad(loss, has_aux=True)(variables["params"])
    assert not ratios.any()
    block = gradient["stage2_block2"]
    moved = block["gate"] if "gate" in settings else block["conv2"]["kernel"]
    assert np.abs(moved).max() > 0
    if "gate" not in settings:  # He's deviation over sqrt(15 blocks), 9,216 numbers
        first = np.std(variables["params"]["stage2_block2"]["conv1"]["kernel"])
        assert first == pytest.approx(np.sqrt(2 / (9 * 32) / 15), rel=0.03)
