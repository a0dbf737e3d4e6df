"""Arrays in, a trained net and its labels out, as docs/training.md shows it."""

import pickle

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

from identity_matters import nets, train
from identity_matters.preprocessing import Preprocessing
from identity_matters.train import net_source, progress, trained_net
from tests import forked
from tests.tables import by_name
from tests.train.striped_images import (
    CLASSES,
    NEW,
    NEW_Y,
    Own,
    X,
    Y,
    start_of,
    trained_on,
)


@pytest.mark.compiled_for_users
def test_the_papers_net_learns_digits_as_the_page_says(tmp_path, monkeypatch):
    """Runs the first example of docs/training.md.

    Its labels are those that were counted.
    """
    page = (forked.ROOT / "docs" / "training.md").read_text()
    code = page.split("```python\n")[1].split("```")[0]
    assert sum(bool(line) for line in code.splitlines()) <= 15
    monkeypatch.chdir(tmp_path)
    shown: dict = {}
    exec(code, shown)
    assert isinstance(shown["net"], nets.AllConvResidual)
    x_test = shown["x_test"]
    y_test = shown["y_test"]
    evaluations = [r for r in shown["records"] if r["kind"] == "evaluation"]
    # Chance is 90 %, and the page says about 7 %: two standard errors of 450 images are
    # 2.4 %.
    assert evaluations[0]["test_error_percent"] > 80
    assert 1 < evaluations[-1]["test_error_percent"] <= 9
    assert evaluations[-1]["test_examples"] == len(y_test) == 450

    errors = int(np.sum(shown["labels"] != y_test))
    assert evaluations[-1]["test_error_percent"] == 100 * errors / 450
    evaluation = shown["trained"].evaluate(x_test, y_test, batch_examples=200)
    assert (evaluation["errors"], evaluation["examples"]) == (errors, 450)
    assert evaluation["loss"] == pytest.approx(evaluations[-1]["test_loss"], rel=1e-4)
    loaded = train.load("net")
    np.testing.assert_array_equal(loaded.predict(x_test), shown["labels"])
    # Without the normalisation that it was trained with, the same net is wrong.
    other = Preprocessing.fit("none", shown["x"])
    bare = train.TrainedNet(loaded.net, loaded.variables, other)
    assert bare.evaluate(x_test, y_test)["errors"] > 2 * errors


def test_a_training_that_diverges_says_what_may_help():
    with pytest.raises(train.NonFiniteError, match="is nan at step") as diverged:
        trained_on(learning_rate=1e38)
    assert diverged.value.__notes__ == ["Lower learning_rate, or raise warmup_steps."]


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
    assert trained.preprocessing.pad_pixels_per_side == 1 and trained.preprocessing.flip
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
        ValueError,
        match=f"images must be {kind}, like the images that the net was trained on",
    ):
        loaded.predict(other)


def test_a_net_that_has_predicted_can_be_pickled(trained):
    trained.predict(X)
    copy = pickle.loads(pickle.dumps(trained))
    np.testing.assert_array_equal(copy.logits(X), trained.logits(X))


def test_a_training_goes_on_from_a_net_that_was_loaded(trained, tmp_path):
    """With its batch statistics, too: the first evaluation is that of the net."""
    trained.save(tmp_path / "net")
    variables = train.load(tmp_path / "net").variables
    settings = {"normalization": trained.preprocessing.normalization, "seed": 1}
    _, records = trained_on(variables=variables, **settings)
    before = trained.evaluate(NEW, NEW_Y)
    assert records[0]["step"] == 0
    assert records[0]["test_loss"] == pytest.approx(before["loss"], rel=1e-5)
    assert records[-1]["test_loss"] < before["loss"]


def test_a_trained_net_is_shown_in_one_line(trained):
    parameters = sum(x.size for x in jax.tree.leaves(trained.variables["params"]))
    images = f"uint8[n, {', '.join(map(str, X.shape[1:]))}]"
    normalization = trained.preprocessing.normalization
    assert repr(trained) == (
        f"TrainedNet(Own, {parameters} parameters, {images}, {normalization})"
    )
    assert repr(train.load("cifar10")) == (
        "TrainedNet(AllConvResidual, 13,538,736 parameters, uint8[n, 32, 32, 3],"
        " per_image)"
    )


def test_uint8_is_divided_by_255(trained):
    scaled = Preprocessing.fit("none", (X / 255).astype(np.float32))
    same = train.TrainedNet(trained.net, trained.variables, scaled)
    expected = same.logits((NEW / 255).astype(np.float32))
    np.testing.assert_allclose(trained.logits(NEW), expected, rtol=1e-5, atol=1e-6)


def test_only_kernels_decay():
    """The bias of a unit that no example reaches has no gradient, and stays."""
    net = Own(widths=(4,), normalized=False)
    start = start_of(net)
    start["params"]["Dense_0"]["bias"] = jnp.full(4, -1e3)
    trained, _ = trained_on(net=net, variables=start, weight_decay=0.5, momentum=0.0)
    after = trained.variables["params"]["Dense_0"]
    np.testing.assert_array_equal(after["bias"], start["params"]["Dense_0"]["bias"])
    kernel = np.asarray(start["params"]["Dense_0"]["kernel"])
    assert np.linalg.norm(after["kernel"]) < 0.96 * np.linalg.norm(kernel)


class Linear(nn.Module):
    """Logits that are linear in the image."""

    @nn.compact
    def __call__(self, x, train):
        return nn.Dense(CLASSES, use_bias=False)(x.reshape(len(x), -1))


@by_name(
    {
        "settings": {"schedule": "constant", "momentum": 0.5, "batch_examples": 120},
        "factors": (1.0, 1.0, 1.0, 1.0, 1.0),
    },
    # Three steps from 1 along half a cosine, after two of warm-up.
    {
        "settings": {"warmup_steps": 2, "batch_examples": 120},
        "factors": (0.5, 1.0, 1.0, 0.75, 0.25),
    },
)
def test_five_steps_by_hand(settings, factors):
    """Of softmax regression; each batch is all images, so their order is no matter."""
    net = Linear()
    start = start_of(net)
    trained, records = trained_on(
        net=net,
        variables=start,
        steps=5,
        learning_rate=0.3,
        weight_decay=0.1,
        **settings,
    )
    inputs = X.reshape(len(X), -1) / 255
    one_hot = np.eye(CLASSES)[Y]
    kernel = np.asarray(start["params"]["Dense_0"]["kernel"], np.float64)
    velocity = np.zeros_like(kernel)
    for factor in factors:
        shares = scipy.special.softmax(inputs @ kernel, axis=1)
        gradient = inputs.T @ (shares - one_hot) / len(X) + 0.1 * kernel
        velocity = settings.get("momentum", 0.9) * velocity + gradient
        kernel -= 0.3 * factor * velocity
    np.testing.assert_allclose(
        trained.variables["params"]["Dense_0"]["kernel"], kernel, rtol=0, atol=1e-5
    )
    rates = [r["learning_rate"] for r in records if r["kind"] == "train"]
    np.testing.assert_allclose(rates, 0.3 * np.array(factors), rtol=1e-6)
    # The net has 36 times 3 weights, with a product and a sum each, three times over.
    flops = [
        r["model_flops_per_second"] / r["images_per_second"] for r in records[1::2]
    ]
    np.testing.assert_allclose(flops, 3 * 2 * 36 * 3)


def test_dropout_in_any_net_differs_from_step_to_step_and_with_the_seed():
    """Nothing else does: all images are alike, and hardly anything is learned."""
    alike = np.repeat(X[:1], len(X), axis=0)
    net = Own(normalized=False)
    _, records = trained_on(alike, 0 * Y, net=net, steps=2, learning_rate=1e-9)
    _, of_another_seed = trained_on(
        alike, 0 * Y, net=net, steps=2, learning_rate=1e-9, seed=1
    )
    losses = [r["loss"] for r in (*records, *of_another_seed) if r["kind"] == "train"]
    assert len(losses) == 4 and np.diff(np.sort(losses)).min() > 1e-4


def test_losses_of_a_net_in_bfloat16_are_those_of_its_logits():
    class Bfloat16(nn.Module):
        @nn.compact
        def __call__(self, x, train):
            return nn.Dense(3, dtype=jnp.bfloat16)(x.reshape(len(x), -1))

    trained, records = trained_on(net=Bfloat16())
    expected = trained.evaluate(NEW, NEW_Y)["loss"]  # in float64
    assert records[-1]["test_loss"] == pytest.approx(expected, rel=1e-6)


def test_running_statistics_keep_their_dtype():
    class Counting(nn.Module):
        @nn.compact
        def __call__(self, x, train):
            count = self.variable("batch_stats", "count", jnp.zeros, (), jnp.int32)
            if train:
                count.value += 1
            return nn.Dense(3)(x.reshape(len(x), -1))

    trained, _ = trained_on(net=Counting(), steps=3)
    count = trained.variables["batch_stats"]["count"]
    assert count == 3 and count.dtype == np.int32


def test_augmentation_is_for_training_alone(trained):
    flipped, _ = trained_on(flip=True)
    same = train.TrainedNet(trained.net, trained.variables, flipped.preprocessing)
    np.testing.assert_array_equal(same.logits(NEW), trained.logits(NEW))
    kernels = [
        net_of_three_steps.variables["params"]["Dense_0"]["kernel"]
        for net_of_three_steps in (trained, flipped)
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
    loaded = train.load(tmp_path / "local", net=Local())
    np.testing.assert_array_equal(loaded.logits(NEW), local.logits(NEW))
    with pytest.raises(
        net_source.NetUnknownError, match=r"saved, .*\(16,\).*got .*\(17,\)"
    ):
        train.load(tmp_path / "local", net=Local(widths=(17,)))


def test_a_class_that_has_moved_to_another_module_is_the_same(trained, tmp_path):
    in_a_notebook = type("Own", (Own,), {"__module__": "__main__"})
    train.TrainedNet(in_a_notebook(), trained.variables, trained.preprocessing).save(
        tmp_path / "net"
    )
    loaded = train.load(tmp_path / "net", net=Own())
    np.testing.assert_array_equal(loaded.logits(NEW), trained.logits(NEW))


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


@pytest.mark.parametrize("where", ["own.py", "missing", "~/missing", "empty"])
def test_a_missing_net_is_reported(where, tmp_path, monkeypatch):
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
        train.CheckpointError,
        match="holds variables without their net and preprocessing",
    ):
        train.load(tmp_path / "alone")
    net = trained.net
    preprocessing = trained.preprocessing
    loaded = train.load("~/alone", net=net, preprocessing=preprocessing)
    np.testing.assert_array_equal(loaded.logits(NEW), trained.logits(NEW))
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
    _, quiet = trained_on(steps=20)
    assert capsys.readouterr().out == ""
    assert [r.get("loss") for r in quiet] == [r.get("loss") for r in records]


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
