"""A net learns: arrays in, trained variables and predictions out, as docs/training.md shows it."""

import pathlib

import flax.linen as nn
import jax
import numpy as np
import pytest

from identity_matters import train


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """The variables of the first example on the page, which saves its net in `here`."""
    page = (pathlib.Path(__file__).parent.parent / "docs" / "training.md").read_text()
    code = page.split("```python\n")[1].split("```")[0]
    assert len(code.strip().splitlines()) <= 15
    found = {"here": tmp_path_factory.mktemp("page")}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(found["here"])
        exec(code, found)
    return found


def test_it_learns_digits(shown):
    records = shown["records"]
    evaluations = [r for r in records if r["kind"] == "evaluation"]
    # Chance is 90 %. When the window was chosen, the error was 6.0 %.
    assert evaluations[0]["test_error_percent"] > 80
    assert 1 < evaluations[-1]["test_error_percent"] < 15
    assert evaluations[-1]["test_examples"] == len(shown["y_test"]) == 450
    train_records = [r for r in records if r["kind"] == "train"]
    assert train_records[-1]["loss"] < 0.25 * train_records[0]["loss"]


def test_predictions_are_those_of_the_evaluation_and_of_the_saved_net(shown):
    net, variables, x_test = shown["net"], shown["variables"], shown["x_test"]
    logits = train.predict(net, variables, x_test, batch_examples=200)
    assert logits.shape == (450, 10) and logits.dtype == np.float32
    np.testing.assert_array_equal(logits.argmax(axis=1), shown["labels"])
    error_percent = 100 * np.mean(shown["labels"] != shown["y_test"])
    assert error_percent == pytest.approx(shown["records"][-1]["test_error_percent"])
    loaded = train.load_variables(shown["here"] / "net")
    jax.tree.map(np.testing.assert_array_equal, loaded, jax.device_get(variables))


def test_a_flax_module_of_ones_own():
    class Own(nn.Module):
        normalized: bool = True
        widths: tuple | list = (32,)

        @nn.compact
        def __call__(self, x, train):
            x = nn.BatchNorm(use_running_average=not train)(x) if self.normalized else x
            for width in self.widths:
                x = nn.relu(nn.Dense(width)(x))
            return nn.Dense(3)(nn.Dropout(0.1, deterministic=not train)(x))

    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 120)
    x = np.eye(5)[y] + 0.1 * rng.normal(size=(120, 5))
    net = Own()
    start = net.init(jax.random.key(0), x[:1], train=False)
    variables, records = train.train(
        net, start, x, y, x, y, steps=40, learning_rate=0.2, batch_examples=40, verbose=False
    )
    assert records[-1]["test_error_percent"] < 5
    assert np.mean(train.predict(net, variables, x).argmax(1) == y) > 0.95
    plain = Own(normalized=False, widths=[32])  # a list has no hash
    own = plain.init(jax.random.key(0), x[:1], train=False)
    assert train.predict(plain, own, x).shape == (120, 3)


@pytest.mark.parametrize("shape", [(0, 8, 8, 1), (8, 8, 1), (2, 9, 9, 3), ()])
def test_what_a_net_cannot_predict_is_refused_in_one_line(shown, shape):
    with pytest.raises(ValueError, match=r"x must be \[n, ...\], n from 1.*x\[None\]") as refused:
        train.predict(shown["net"], shown["variables"], np.zeros(shape))
    assert f"got shape {shape}" in str(refused.value) and "\n" not in str(refused.value)


def test_labels_and_variables_that_do_not_fit_are_refused(shown):
    net, x = shown["net"], shown["x_test"]
    wrong = x, np.full(len(x), 10)
    with pytest.raises(ValueError, match="labels must be from 0 to 9, got 10 to 10"):
        train.train(net, shown["variables"], *wrong, *wrong, steps=1, learning_rate=0.1)
    with pytest.raises(ValueError, match=r"seed must be less than 2\^32"):  # it would be seed 0
        train.train(net, {}, *wrong, *wrong, steps=1, learning_rate=0.1, seed=2**32)
