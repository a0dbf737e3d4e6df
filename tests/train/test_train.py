"""A net learns: arrays in, a trained net and its labels out, as docs/training.md shows
it.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from identity_matters import nets, train
from identity_matters.preprocessing import Preprocessing
from identity_matters.train import net_source, progress, trained_net
from tests import forked

CLASSES, SHAPE = 3, (6, 6, 1)


class Own(nn.Module):
    """A module that is not of this package, with batch norm and dropout."""

    widths: tuple | list = (16,)
    normalized: bool = True

    @nn.compact
    def __call__(self, x, train):
        x = x.reshape(len(x), -1)
        x = nn.BatchNorm(use_running_average=not train)(x) if self.normalized else x
        for width in self.widths:
            x = nn.relu(nn.Dense(width)(x))
        return nn.Dense(CLASSES)(nn.Dropout(0.1, deterministic=not train)(x))


def made(examples, seed=0):
    """(images u8[n, h, w, c], labels): the class of an image is where it is bright."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, CLASSES, examples)
    x = rng.integers(0, 60, (examples, *SHAPE), np.uint8)
    for label in range(CLASSES):
        x[y == label, 2 * label : 2 * label + 2] += 90
    return x, y


X, Y = made(120)
NEW, NEW_Y = made(37, seed=1)


def start_of(net, x=X):
    return net.init(jax.random.key(0), jnp.zeros((1, *x.shape[1:])), train=False)


def trained_on(
    x=X, y=Y, x_test=NEW, y_test=NEW_Y, net=None, variables=None, **settings
):
    net = net or Own()
    variables = variables or start_of(net, np.asarray(x))
    common = {"steps": 3, "learning_rate": 0.1, "batch_examples": 40, "verbose": False}
    return train.train(net, variables, x, y, x_test, y_test, **{**common, **settings})


@pytest.fixture(scope="module")
def trained():
    """A net of three steps on X, whose images were divided by 255."""
    return trained_on()[0]


def test_the_papers_net_learns_digits_as_the_page_says(tmp_path, monkeypatch):
    """Runs the first example of docs/training.md, whose labels are those that were
    counted.
    """
    page = (forked.ROOT / "docs" / "training.md").read_text()
    code = page.split("```python\n")[1].split("```")[0]
    assert sum(bool(line) for line in code.splitlines()) <= 15
    monkeypatch.chdir(tmp_path)
    shown: dict = {}
    exec(code, shown)
    assert isinstance(shown["net"], nets.AllConvResidual)
    x_test, y_test = shown["x_test"], shown["y_test"]
    evaluations = [r for r in shown["records"] if r["kind"] == "evaluation"]
    # Chance is 90 %, and the page says about 7 %: two standard errors of 450 images are
    # 2.4 %.
    assert evaluations[0]["test_error_percent"] > 80
    assert 1 < evaluations[-1]["test_error_percent"] <= 9
    assert evaluations[-1]["test_examples"] == len(y_test) == 450

    errors = int(np.sum(shown["labels"] != y_test))
    assert evaluations[-1]["test_error_percent"] == 100 * errors / 450
    found = shown["trained"].evaluate(x_test, y_test, batch_examples=200)
    assert (found["errors"], found["examples"]) == (errors, 450)
    assert found["loss"] == pytest.approx(evaluations[-1]["test_loss"], rel=1e-4)
    loaded = train.load("net")
    np.testing.assert_array_equal(loaded.predict(x_test), shown["labels"])
    # Without the normalisation that it was trained with, the same net is wrong.
    other = Preprocessing.fit("none", shown["x"])
    bare = train.TrainedNet(loaded.net, loaded.variables, other)
    assert bare.evaluate(x_test, y_test)["errors"] > 2 * errors


@pytest.mark.parametrize(
    ("normalization", "kind"),
    [
        (None, "float32"),
        ("per_image", "uint8"),
        ("gcn_zca", "uint8"),
    ],
)
def test_predict_gives_the_labels_that_evaluate_counts(normalization, kind, tmp_path):
    def as_kind(images):
        return images if kind == "uint8" else (images / 255).astype(np.float32)

    trained, records = trained_on(
        as_kind(X),
        x_test=as_kind(NEW),
        normalization=normalization,
        pad_pixels_per_side=1,
        flip=True,
        steps=20,
    )
    labels = trained.predict(as_kind(NEW), batch_examples=10)
    errors = int(np.sum(labels != NEW_Y))
    assert 100 * errors / len(NEW) == records[-1]["test_error_percent"]
    assert trained.evaluate(as_kind(NEW), NEW_Y)["errors"] == errors
    assert labels.dtype == np.int64 and labels.shape == NEW_Y.shape
    trained.save(tmp_path / "net")
    loaded = train.load(tmp_path / "net")
    np.testing.assert_array_equal(
        loaded.logits(as_kind(NEW)), trained.logits(as_kind(NEW))
    )
    assert loaded.net == trained.net
    assert loaded.preprocessing.description() == trained.preprocessing.description()
    other = as_kind(NEW) / 255 if kind == "uint8" else NEW
    with pytest.raises(
        ValueError, match=f"images must be {kind}, as the images that the net was"
    ):
        loaded.predict(other)


def test_uint8_is_divided_by_255(trained):
    scaled = Preprocessing.fit("none", (X / 255).astype(np.float32))
    same = train.TrainedNet(trained.net, trained.variables, scaled)
    expected = same.logits((NEW / 255).astype(np.float32))
    np.testing.assert_allclose(trained.logits(NEW), expected, rtol=1e-5, atol=1e-6)


def test_only_kernels_decay():
    """The bias of a unit that no example reaches has no gradient, so it stays where it
    was.
    """
    net = Own(widths=(4,), normalized=False)
    start = start_of(net)
    start["params"]["Dense_0"]["bias"] = jnp.full(4, -1e3)
    trained, _ = trained_on(net=net, variables=start, weight_decay=0.5, momentum=0.0)
    after = trained.variables["params"]["Dense_0"]
    np.testing.assert_array_equal(after["bias"], start["params"]["Dense_0"]["bias"])
    kernel = np.asarray(start["params"]["Dense_0"]["kernel"])
    assert np.linalg.norm(after["kernel"]) < 0.96 * np.linalg.norm(kernel)


def test_augmentation_is_for_training_alone(trained):
    flipped, _ = trained_on(flip=True)
    same = train.TrainedNet(trained.net, trained.variables, flipped.preprocessing)
    np.testing.assert_array_equal(same.logits(NEW), trained.logits(NEW))
    kernels = [
        one.variables["params"]["Dense_0"]["kernel"] for one in (trained, flipped)
    ]
    assert not np.array_equal(*kernels)


def test_a_net_with_a_list_in_a_field_and_one_of_another_class(trained, tmp_path):
    net = Own(widths=[8], normalized=False)  # a list has no hash
    untrained = train.TrainedNet(net, start_of(net), trained.preprocessing)
    untrained.save(tmp_path / "net")
    assert train.load(tmp_path / "net").net == net
    assert untrained.predict(NEW).shape == NEW_Y.shape

    class Local(Own):
        pass

    local = train.TrainedNet(Local(), trained.variables, trained.preprocessing)
    local.save(tmp_path / "local")
    with pytest.raises(
        net_source.NetUnknownError, match=r"no flax module .*Local here: pass the"
    ):
        train.load(tmp_path / "local")
    found = train.load(tmp_path / "local", net=Local())
    np.testing.assert_array_equal(found.logits(NEW), local.logits(NEW))
    with pytest.raises(
        net_source.NetUnknownError, match=r"saved, .*\(16,\).*got .*\(17,\)"
    ):
        train.load(tmp_path / "local", net=Local(widths=(17,)))


@pytest.mark.parametrize(
    "description",
    [
        {"class": "os:system", "fields": {"command": "'true'"}},
        {"class": "no.such.module:Net", "fields": {}},
        {"class": "identity_matters.no_module:Net", "fields": {}},
        {"class": "identity_matters.nets:make_net", "fields": {"name": "'resnet'"}},
        {"class": "flax.linen:Dense", "fields": {"width": "3"}},
        {"class": "flax.linen:Dense", "fields": None},
    ],
)
def test_a_checkpoint_makes_nothing_but_known_nets(description):
    with pytest.raises(
        net_source.NetUnknownError, match=r"pass the same net as net=\.\.\."
    ):
        net_source.make(description)


def test_a_net_whose_module_has_moved_is_made():
    net = nets.make_net("resnet", num_classes=3, depth=8, width=4)
    described = net_source.describe(net)
    before = {**described, "class": "identity_matters.nets.rivals:ResNet"}
    assert net_source.make(before) == net
    assert net_source.make(before, net) is net


def test_fields_that_are_no_literals_need_the_net_itself():
    dense = nn.Dense(3, kernel_init=nn.initializers.ones)
    described = net_source.describe(dense)
    assert described == {"class": "flax.linen.linear:Dense", "fields": None}
    assert net_source.make(described, dense) is dense


# Images: what is refused, and why


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
            r"channels first: pass x\.transpose\(0, 2, 3, 1\)",
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
                "x_test must be uint8, as the images that the net was trained on, got"
                " float64"
            ),
        ),
        (NEW.astype(np.int64), "x_test must be uint8 or floating-point, got int64"),
        (NEW[:, :5], r"x_test must be \[n, 6, 6, 1\], .* got shape \(37, 5, 6, 1\)"),
        (NEW[0], r"got shape \(6, 6, 1\); one image is x_test\[None\]"),
        (NEW[..., 0], r"got shape \(37, 6, 6\); pass x_test\[\.\.\., None\]"),
        (
            NEW.transpose(0, 3, 1, 2),
            r"channels first: pass x_test\.transpose\(0, 2, 3, 1\)",
        ),
    ],
)
def test_test_images_are_of_the_kind_of_the_training_images(x_test, message):
    with pytest.raises(ValueError, match=message):
        trained_on(x_test=x_test)


def test_images_of_another_scale_are_said():
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


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (Y + 1, "y must be from 0 to 2, got 1 to 3"),
        (Y - 1, "y must be from 0 to 2, got -1 to 1"),
        (Y[:-1], r"y must be int\[120\], one of each image, got \(119,\)"),
        (Y[:, None], r"y must be int\[120\]"),
        (np.eye(3)[Y], r"y must be int\[120\]"),
        (Y.astype(float), "y must be whole numbers from 0, got dtype float64"),
        (Y.astype(str), "y must hold numbers"),
        (np.ma.masked_equal(Y, 1), "y must be a plain array"),
        (Y.astype(bool), "y must be whole numbers"),
    ],
)
def test_labels_that_do_not_fit_are_refused(trained, y, message):
    with pytest.raises(ValueError, match=message):
        trained_on(y=y)
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


@pytest.mark.parametrize(
    ("net", "variables", "message"),
    [
        (
            NnxNet(),
            {"params": {}},
            r"got NnxNet, which is of flax\.nnx: it holds its own variab",
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
        (Own(), {"batch_stats": {}}, "variables must have params"),
        (Own(), [1], "variables must be a dict, got list"),
        (Own(widths=(17,)), start_of(Own()), r"cannot take images \[n, 6, 6, 1\]"),
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
            "normalization must be one of none, per_image, mean_std, gc",
        ),
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
    broken = jax.tree.map(lambda leaf: leaf * np.nan, trained.variables)
    with pytest.raises(ValueError, match=r"the net gives NaN for images\[0\]"):
        train.TrainedNet(trained.net, broken, trained.preprocessing).predict(NEW)


# What is on disk


@pytest.mark.parametrize("where", ["own.py", "missing", "~/missing", "empty"])
def test_where_there_is_no_net_it_is_said(where, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text("")
    (tmp_path / "empty").mkdir()
    before = sorted(tmp_path.rglob("*"))
    for load in (train.load, train.load_variables):
        said = (
            "is a file; a checkpoint is a directory"
            if where == "own.py"
            else "no checkpoint in"
        )
        with pytest.raises(train.CheckpointError, match=said) as refused:
            load(where)
        assert str(tmp_path / where.removeprefix("~/")) in str(refused.value)
    assert sorted(tmp_path.rglob("*")) == before


def test_variables_alone_are_not_applied(trained, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    train.save_variables("~/alone", trained.variables)
    with pytest.raises(
        train.CheckpointError, match="holds variables without their net and prepro"
    ):
        train.load(tmp_path / "alone")
    net, preprocessing = trained.net, trained.preprocessing
    found = train.load("~/alone", net=net, preprocessing=preprocessing)
    np.testing.assert_array_equal(found.logits(NEW), trained.logits(NEW))
    trained.save("~/whole")
    with pytest.raises(train.CheckpointError, match="holds a preprocessing already"):
        train.load("~/whole", preprocessing=preprocessing)
    with pytest.raises(
        train.CheckpointError, match="holds checkpoint 0 already: use another"
    ):
        trained.save("~/whole")
    with pytest.raises(ValueError, match="preprocessing must be"):
        train.TrainedNet(net, trained.variables, None)


def test_a_shipped_net_is_loaded_by_its_name(trained, tmp_path, monkeypatch):
    monkeypatch.setattr(trained_net, "SHIPPED", tmp_path / "shipped")
    monkeypatch.chdir(tmp_path)
    assert train.shipped_nets() == []
    trained.save(tmp_path / "shipped" / "stripes")
    assert train.shipped_nets() == ["stripes"]
    np.testing.assert_array_equal(
        train.load("stripes").logits(NEW), trained.logits(NEW)
    )
    with pytest.raises(
        train.CheckpointError, match=r"no checkpoint in .*stripe; .* are: stripes"
    ):
        train.load("stripe")
    # A directory of that name comes first.
    (tmp_path / "stripes").mkdir()
    with pytest.raises(train.CheckpointError, match="no checkpoint in"):
        train.load("stripes")


# What a training shows


def test_a_training_shows_short_lines_and_keeps_all_fields(capsys):
    _, records = trained_on(steps=20, verbose=True)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(records) == 21
    assert lines[0].startswith("step 0/20: test loss ")
    assert lines[1].startswith("step 2/20: loss ") and " images/s, 0:0" in lines[1]
    assert "left" not in lines[-1] and max(map(len, lines)) < 80
    assert {"gradient_norm", "learning_rate", "seconds", "compile_seconds"} <= records[
        1
    ].keys()
    _, again = trained_on(steps=20)
    assert capsys.readouterr().out == ""
    assert [r.get("loss") for r in again] == [r.get("loss") for r in records]


def test_a_bar_on_a_terminal(monkeypatch, capsys):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    with progress.ProgressLog(verbose=True) as log:
        log.phase("training", 0, 10)
        log.progress(4, 2.0, 75.0)
        log.append({"kind": "train", "step": 4, "loss": 2.0, "images_per_second": 30.0})
        log.progress(8, 1.5, 3.0)
    shown = capsys.readouterr()
    assert "step 4/10: loss 2, 30 images/s, 1:15 left" in shown.out
    assert "training" in shown.err and "left=0:03" in shown.err and "8/10" in shown.err
