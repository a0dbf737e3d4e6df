"""Images, labels, nets and settings that cannot be trained are refused, and why."""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from identity_matters import nets, train
from identity_matters.preprocessing import Preprocessing
from identity_matters.train import trained_net
from tests.train.striped_images import (
    CLASSES,
    NEW,
    SHAPE,
    Own,
    X,
    Y,
    start_of,
    trained_on,
)


def bad_pixel(x, value):
    x = (x / 255).astype(np.float32)
    x[3, 0, 1, 0] = value
    return x


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (
            X.astype(np.int64),
            r"x must be uint8 or floating-point, got int64 .* np\.uint8\)",
        ),
        (X.astype(np.uint16), "x must be uint8 or floating-point, got uint16"),
        (X.tolist(), "x must be uint8 or floating-point, got int64"),
        (
            X.astype(np.float64),
            "x is float64 up to 149, which looks like pixels.*normalization",
        ),
        ((X[:, :, :, 0] // 9).astype(np.float32), "looks like pixels or counts"),
        (X > 9, "x must hold real numbers, got dtype bool"),
        (X * 1j, "x must hold real numbers, got dtype complex128"),
        (
            np.ma.masked_less(X, 9),
            "x must be a plain array of numbers, got a MaskedArray",
        ),
        (bad_pixel(X, np.nan), r"x must be finite, got x\[3, 0, 1, 0\] = nan"),
        (bad_pixel(X, np.inf), "x must be finite"),
        (np.full((4, *SHAPE), 1e300), "x must be finite"),
        (
            np.zeros((4, 3, 16, 16), np.uint8),
            r"channels first: pass x\.transpose\(0, 2, 3, 1\)\. If the images are 3"
            r" high and have 16 channels, .*: pass x\.swapaxes\(1, 2\)$",
        ),
        (np.zeros((0, *SHAPE), np.uint8), "x must not be empty"),
        (np.zeros(4, np.uint8), r"x must be \[n, \.\.\.\]"),
        ([["a"]], "x must hold numbers"),
        ([[1], [1, 2]], "x must be an array of numbers"),
    ],
)
def test_other_kinds_of_images_are_refused(x, message):
    with pytest.raises(ValueError, match=message) as refused:
        trained_on(x, variables=start_of(Own()))
    assert "\n" not in str(refused.value)


def test_images_without_channels_are_refused_with_the_remedy():
    said = r"images \[n, 6, 6\].*lack the axis of channels, pass images\[\.\.\., None\]"
    net = nets.make_net("resnet", num_classes=3, depth=8, width=4)
    variables = nets.init_variables(net, jax.random.key(0), SHAPE)
    with pytest.raises(ValueError, match=said) as refused:
        trained_net.count_classes(net, variables, SHAPE[:2])
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "x",
    [
        X / 255,
        (X / 255).astype(np.float16),
        (X / 255).astype(">f8"),
        (X / 255).tolist(),
    ],
)
def test_other_ways_to_hold_the_same_images_are_taken(trained, x):
    preprocessing = Preprocessing.fit("none", (X / 255).astype(np.float32))
    as_floats = train.TrainedNet(trained.net, trained.variables, preprocessing)
    np.testing.assert_allclose(
        as_floats.logits(x), trained.logits(X), rtol=1e-2, atol=1e-2
    )
    np.testing.assert_array_equal(trained.predict(jnp.asarray(X)), trained.predict(X))


@pytest.mark.parametrize(
    ("x_test", "message"),
    [
        (
            NEW / 255,
            (
                "x_test must be uint8, like the images that the net was trained on, got"
                " float64"
            ),
        ),
        (NEW.astype(np.int64), "x_test must be uint8 or floating-point, got int64"),
        (NEW[:, :5], r"x_test must be \[n, 6, 6, 1\], .* got shape \(37, 5, 6, 1\)"),
        (NEW[0], r"got shape \(6, 6, 1\); one image is x_test\[None\]"),
        (NEW[..., 0], r"got shape \(37, 6, 6\); pass x_test\[\.\.\., None\]"),
        (
            NEW.transpose(0, 3, 1, 2),
            r"is channels first; pass x_test\.transpose\(0, 2, 3, 1\)",
        ),
    ],
)
def test_test_images_are_of_the_kind_of_the_training_images(x_test, message):
    with pytest.raises(ValueError, match=message):
        trained_on(x_test=x_test)


def test_long_images_of_many_channels_can_be_wide_or_high():
    """[n, 3, w, c] is refused in training, but a net that takes it predicts it."""
    series = X.reshape(120, 1, 6, 6)
    with pytest.raises(ValueError, match=r"pass x\.swapaxes\(1, 2\)"):
        trained_on(x=series)
    turned = series.swapaxes(1, 2)
    trained_on(x=turned, x_test=NEW.reshape(37, 6, 1, 6))
    net = Own()
    preprocessing = Preprocessing.fit("none", series)
    trained = train.TrainedNet(net, start_of(net), preprocessing)
    assert len(trained.predict(series)) == 120


def test_images_of_another_scale_give_a_warning():
    as_float = (X / 255).astype(np.float32)
    net = Own()
    preprocessing = Preprocessing.fit("none", as_float)
    trained = train.TrainedNet(net, start_of(net), preprocessing)
    with pytest.warns(
        UserWarning, match=r"go up to 149, those of the training .* up to 0\.584"
    ):
        trained.predict(NEW.astype(np.float32))
    with pytest.warns(UserWarning, match="scale both in the same way"):
        trained_on(as_float, x_test=as_float / 255, y_test=Y)
    trained.predict(0 * as_float)  # black at every scale


def test_pixels_of_another_scale_give_a_warning():
    """uint8 of 0 to 16 in training: 0 to 1 and 0 to 255 are other scales."""
    net = Own()
    images = X // 9
    assert images.max() == 16
    preprocessing = Preprocessing.fit("mean_std", images)
    trained = train.TrainedNet(net, start_of(net), preprocessing)
    trained.predict(images)
    with pytest.warns(UserWarning, match=r"go up to 1, those of .* up to 16: scale"):
        trained.predict(images // 16)
    with pytest.warns(UserWarning, match=r"go up to 240, those of .* up to 16: scale"):
        trained.predict(images * 15)
    trained.predict(0 * images)
    # One image, or a few, may be dark.
    trained.predict(images[:9] // 16)


def test_the_scale_of_pixels_is_kept_with_the_net(tmp_path):
    net = Own()
    trained = train.TrainedNet(net, start_of(net), Preprocessing.fit("none", X))
    trained.save(tmp_path / "net")
    loaded = train.load(tmp_path / "net").preprocessing
    assert loaded.largest == 149
    # Checkpoints from before it was stored have null, or no such entry.
    unknown = {**loaded.description(), "largest": None}
    missing = {key: value for key, value in unknown.items() if key != "largest"}
    for description in (unknown, missing):
        older = Preprocessing.from_description(description, loaded.constants)
        older.check_images("images", X // 149)


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (Y + 1, "y must be from 0 to 2, got 1 to 3"),
        (Y - 1, "y must be from 0 to 2, got -1 to 1"),
        (Y[:-1], r"y must be 120 integers, one for each example, got int64\(119,\)"),
        (Y[:, None], "y must be 120 integers"),
        (np.eye(3)[Y], r"y must be 120 .*; if its rows are one-hot, pass .*argmax"),
        (Y.astype(float), "y must hold integers, got dtype float64; number the"),
        (Y.astype(str), "y must hold numbers.*; number the classes"),
        (None, "y must be an array of numbers, got None"),
        (np.ma.masked_equal(Y, 1), "y must be a plain array"),
        (Y.astype(bool), "y must hold integers, got dtype bool"),
    ],
)
def test_labels_that_do_not_fit_are_refused(trained, y, message):
    with pytest.raises(ValueError, match=message):
        trained_on(y=y)
    with pytest.raises(ValueError, match=message.replace("y must", "y_test must")):
        trained_on(x_test=X, y_test=y)
    assert trained.evaluate(X, Y.tolist())["examples"] == len(Y)
    with pytest.raises(ValueError, match=message.replace("y must", "labels must")):
        trained.evaluate(X, y)


class NnxNet(nnx.Module):
    def __call__(self, x, train):
        return x


class Counting(nn.Module):
    @nn.compact
    def __call__(self, x, train):
        self.variable("counters", "calls", lambda: jnp.zeros(()))
        return nn.Dense(CLASSES)(x.reshape(len(x), -1))


class NotLogits(nn.Module):
    @nn.compact
    def __call__(self, x, train):
        return nn.Dense(CLASSES)(x)


class Labels(nn.Module):
    @nn.compact
    def __call__(self, x, train):
        logits = nn.Dense(CLASSES)(x.reshape(len(x), -1))
        return nn.one_hot(logits.argmax(axis=1), CLASSES, dtype=jnp.int32)


def with_an_infinity():
    variables = start_of(Own())
    layer = variables["params"]["Dense_0"]
    layer["bias"] = layer["bias"].at[0].set(jnp.inf)
    return variables


@pytest.mark.parametrize(
    ("net", "variables", "message"),
    [
        (
            NnxNet(),
            {"params": {}},
            r"got NnxNet, which is of flax\.nnx: it holds its own variables, ",
        ),
        (
            Own,
            {"params": {"w": 1}},
            "net must be an instance, got the class Own itself",
        ),
        ("resnet", {"params": {"w": 1}}, "net must be a flax.linen.Module, got str"),
        (
            Counting(),
            None,
            "the net has the collections counters, which training would lose",
        ),
        (NotLogits(), None, r"must give logits \[n, k\], got \(2, 6, 6, 3\)"),
        (Labels(), None, "the net must give floating-point logits, got int32"),
        (Own(), {"batch_stats": {}}, "variables must have params"),
        (Own(), [1], "variables must be a dict, got list"),
        (Own(widths=(17,)), start_of(Own()), r"cannot take images \[n, 6, 6, 1\]"),
        (Own(), with_an_infinity(), r"variables must be finite, which params\.Dense_0"),
    ],
)
def test_nets_that_cannot_be_trained_are_refused(net, variables, message):
    with pytest.raises(ValueError, match=message) as refused:
        trained_on(net=net, variables=variables or start_of(net))
    assert "\n" not in str(refused.value)


class Boxed(nn.Module):
    @nn.compact
    def __call__(self, x, train):
        init = nn.with_partitioning(nn.initializers.ones, (None, None))
        return nn.Dense(CLASSES, kernel_init=init)(x.reshape(len(x), -1))


class Around(nn.Module):
    """A module of a user around a net of this package."""

    net: nn.Module

    @nn.compact
    def __call__(self, x, train):
        return self.net(x, train=train)[0]


def test_a_net_inside_another_module_needs_its_own_weights():
    inner = nets.make_net("resnet", num_classes=CLASSES, depth=8, width=4)
    around = Around(inner)
    start = start_of(around)
    for variables in (start, nn.meta.unbox(start)):
        with pytest.raises(
            ValueError, match=r"finite, which params\.net\..* its own init"
        ):
            trained_on(net=around, variables=variables)
    drawn = {name: {"net": part} for name, part in start_of(inner).items()}
    trained_on(net=around, variables=drawn)


def test_a_training_is_not_traced():
    drawn = jax.tree.map(lambda leaf: leaf[None], start_of(Own()))
    with pytest.raises(ValueError, match=r"variables .* outside of jax\.jit"):
        jax.vmap(lambda variables: trained_on(variables=variables)[1])(drawn)


def test_counts_of_a_few_bits_do_not_overflow(trained):
    # Eight batches of 32 are 256 images.
    _, records = trained_on(steps=np.int8(9), batch_examples=np.int8(32))
    assert records[-1]["step"] == 9
    # The second batch of 100 ends beyond 127.
    images = np.concatenate([X, X])
    np.testing.assert_array_equal(
        trained.predict(images, batch_examples=np.int8(100)), trained.predict(images)
    )


@pytest.mark.parametrize(
    ("x", "normalization"),
    [
        (X // 10, None),
        (1e-17 * X, "per_image"),
        (1e-17 * X, "gcn_zca"),
    ],
)
def test_inputs_that_vanish_give_a_warning(x, normalization):
    with pytest.warns(UserWarning, match="the inputs of the net are at most"):
        trained_on(x, x_test=x, y_test=Y, normalization=normalization)


def test_one_black_image_does_not_make_inputs_vanish():
    trained_on(x=np.concatenate([0 * X[:1], X[1:]]))


def test_boxed_variables_are_refused():
    with pytest.raises(ValueError, match=r"unbox them by flax\.linen\.meta\.unbox"):
        trained_on(net=Boxed())
    trained_on(net=Boxed(), variables=nn.meta.unbox(start_of(Boxed())))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"steps": 2.5}, r"steps must be a whole number, got 2\.5"),
        ({"steps": 0}, "steps must be at least 1, got 0"),
        ({"learning_rate": "0.1"}, "learning_rate must"),
        ({"learning_rate": -0.1}, r"learning_rate must be above 0, got -0\.1"),
        (
            {"learning_rate": float("inf")},
            "learning_rate must be one finite real number",
        ),
        ({"momentum": None}, "momentum must"),
        ({"weight_decay": "1e-4"}, "weight_decay must"),
        ({"batch_examples": 64.0}, r"batch_examples must be a whole number, got 64\.0"),
        ({"warmup_steps": 1.5}, r"warmup_steps must be a whole number, got 1\.5"),
        ({"warmup_steps": 3}, "warmup_steps must be from 0 to below steps=3, got 3"),
        ({"seed": 2**32}, r"seed must be less than 2\^32"),  # it would be seed 0
        ({"seed": "1"}, "seed must be a whole number"),
        ({"schedule": "linear"}, "schedule must be one of step, cosine, constant"),
        (
            {"normalization": "batch"},
            "normalization must be one of none, .*, gcn_zca, got 'batch'",
        ),
        (
            {"normalization": ["per_image"]},
            r"normalization must be one of none, .*, gcn_zca, got \['per_image'\]",
        ),
        ({"schedule": ["cosine"]}, r"schedule must be one of .*, got \['cosine'\]"),
        ({"pad_pixels_per_side": 1.0}, "pad_pixels_per_side must be a whole number"),
        ({"pad_pixels_per_side": -1}, "pad_pixels_per_side must be at least 0"),
        ({"flip": "yes"}, "flip must be True or False, got 'yes'"),
        (
            {"x": X.reshape(120, 36), "x_test": NEW.reshape(37, 36), "flip": True},
            "are for images",
        ),
    ],
)
def test_settings_that_do_not_fit_are_named(settings, message):
    with pytest.raises(ValueError, match=message):
        trained_on(**settings)


def test_a_net_that_gives_nan_says_so(trained):
    nan = jax.tree.map(lambda leaf: leaf * np.nan, trained.variables)
    huge = jax.tree.map(lambda leaf: 3e38 * np.sign(leaf), trained.variables)
    for variables in (nan, huge):
        broken = train.TrainedNet(trained.net, variables, trained.preprocessing)
        unusable = r"the net gives NaN for images\[0\]: its variables are not usable"
        with pytest.raises(ValueError, match=unusable):
            broken.predict(X)


class Masked(nn.Module):
    """Its logits go up to `largest`; the last class is ruled out."""

    largest: float

    @nn.compact
    def __call__(self, x, train):
        logits = nn.Dense(CLASSES)(x.reshape(len(x), -1)) * self.largest
        return logits.at[:, -1].set(-jnp.inf)


def test_an_infinite_logit_has_no_loss_and_is_refused(trained):
    net = Masked(largest=1.0)
    masked = train.TrainedNet(net, start_of(net), trained.preprocessing)
    assert np.isfinite(masked.evaluate(X, np.zeros_like(Y))["loss"])
    infinite = train.TrainedNet(
        Masked(largest=float("inf")), masked.variables, masked.preprocessing
    )
    with pytest.raises(ValueError, match=r"the net gives infinity for images\[\d+\]"):
        infinite.predict(X)


@pytest.mark.filterwarnings("ignore:the values of images go up to")
def test_images_that_overflow_in_a_healthy_net_are_to_blame():
    net = Own()
    images = (X / 255).astype(np.float32)
    preprocessing = Preprocessing.fit("mean_std", images)
    trained = train.TrainedNet(net, start_of(net), preprocessing)
    large = images.copy()
    large[3] = np.where(large[3] > large[3].mean(), 3e38, -3e38)
    scale = r"images\[3\]: the image's values go up to 3e\+38, .* up to 0\.584: scale"
    with pytest.raises(ValueError, match=scale):
        trained.predict(large)
    unknown = dataclasses.replace(preprocessing, largest=None)
    trained = train.TrainedNet(net, start_of(net), unknown)
    either = r"its variables, or the image's values, up to 3e\+38, are not usable"
    with pytest.raises(ValueError, match=either):
        trained.predict(large)
