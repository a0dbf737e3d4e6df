"""Batches, the training and evaluation steps on them, and how devices share a batch."""

import functools
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from identity_matters.batches import batch_plan, example_keys, train_batch
from identity_matters.train import parallel
from identity_matters.train import step as steps
from tests import toy_training as toy

# Equal bits are promised of the programs that users run.
pytestmark = pytest.mark.compiled_for_users

# 7 examples in batches of 3: seven steps are three epochs, and most epochs end inside a
# batch.
EXAMPLES = 7
BATCH_EXAMPLES = 3
STEPS = 7


@pytest.mark.parametrize("batch_examples", [1, 3, 7, 20])
def test_every_epoch_visits_each_example_once(batch_examples):
    steps = 3 * EXAMPLES
    indices, epochs = batch_plan(0, EXAMPLES, batch_examples, 0, steps)
    assert indices.shape == epochs.shape == (steps, batch_examples)
    assert indices.dtype == epochs.dtype == np.int32
    # The epochs come in order, and none is left out.
    np.testing.assert_array_equal(epochs.ravel(), np.arange(epochs.size) // EXAMPLES)
    for epoch in range(3 * batch_examples):
        assert sorted(indices[epochs == epoch]) == list(range(EXAMPLES))


@pytest.mark.parametrize("first_step", [0, 2, STEPS - 1])
def test_any_step_can_be_looked_up(first_step):
    whole = batch_plan(5, EXAMPLES, BATCH_EXAMPLES, 0, STEPS)
    for last in range(first_step + 1, STEPS + 1):
        later = batch_plan(5, EXAMPLES, BATCH_EXAMPLES, first_step, last - first_step)
        for batch, expected in zip(later, whole, strict=True):
            np.testing.assert_array_equal(batch, expected[first_step:last])


def test_the_order_is_the_same_on_every_machine_and_version():
    assert batch_plan(3, 8, 8, 1, 1)[0].tolist() == [[7, 3, 5, 6, 4, 0, 2, 1]]


def test_a_key_depends_on_epoch_and_example_alone(key):
    epochs = np.array([0, 0, 1, 1, 2, 2], np.int32)
    indices = np.array([4, 0, 4, 0, 0, 3], np.int32)
    keys = jax.jit(example_keys)(key, epochs, indices)
    assert keys.shape == (6,)
    for place in range(6):
        expected = jax.random.fold_in(
            jax.random.fold_in(key, epochs[place]), indices[place]
        )
        assert keys[place] == expected
    assert len(np.unique(jax.random.key_data(keys).reshape(6, -1), axis=0)) == 6


def test_unusable_keys_are_refused():
    zeros = jnp.zeros(3, jnp.int32)
    with pytest.raises(ValueError, match="generator threefry2x32, got rbg"):
        example_keys(jax.random.key(0, impl="rbg"), zeros, zeros)


BATCH = 8


@pytest.fixture(scope="module")
def batch():
    """Inputs as the net takes them: without augmentation. The net has dropout."""
    rng = np.random.default_rng(1)
    return {
        "images": rng.random((BATCH, 4, 4, 1), np.float32),
        "labels": rng.integers(0, toy.CLASSES, BATCH).astype(np.int32),
        "indices": np.arange(BATCH, dtype=np.int32),
        "epochs": np.ones(BATCH, np.int32),
    }


@pytest.fixture(scope="module")
def state(key):
    return steps.initial_state(toy.init(key), toy.make_task().optimizer)


def on_devices(step, batch, devices=1):
    """``step(share)`` on each device, or on one device that has the whole batch."""
    shares = jax.tree.map(lambda x: x.reshape(devices, -1, *x.shape[1:]), batch)
    outputs = jax.jit(jax.vmap(step, axis_name=steps.AXIS_NAME))(shares)
    return outputs if devices > 1 else jax.tree.map(lambda x: x[0], outputs)


def train(state, batch, key, axis_name=steps.AXIS_NAME, devices=1):
    task = toy.make_task(
        apply=toy.make_apply(axis_name), train_input=lambda images, keys: images
    )
    return on_devices(
        lambda share: steps.training_step(
            task, state, share, key=key, learning_rate=jnp.float32(task.learning_rate)
        ),
        batch,
        devices,
    )


def evaluate(apply, state, batch, **settings):
    task = toy.make_task(apply=apply, eval_input=lambda images: images, **settings)
    return on_devices(lambda share: steps.evaluation_step(task, state, share), batch)


@pytest.fixture(scope="module")
def whole(batch, state, key):
    """The state and sums after one step on the whole batch."""
    return train(state, batch, key)


def test_one_step_by_hand(batch, state, whole, key):
    new, sums = whole
    variables = {name: state[name] for name in ("params", "fixed", "batch_stats")}
    x = batch["images"]
    labels = batch["labels"]
    keys = example_keys(jax.random.split(key)[1], batch["epochs"], batch["indices"])

    def loss(params):
        logits, _ = toy.make_apply(None)(
            {**variables, "params": params}, x, train=True, keys=keys
        )
        logs = jax.nn.log_softmax(logits)
        return -jnp.mean(jnp.take_along_axis(logs, labels[:, None], axis=1)), logits

    (value, logits), gradient = jax.jit(jax.value_and_grad(loss, has_aux=True))(
        state["params"]
    )
    assert sums["loss"] / BATCH == pytest.approx(float(value), rel=1e-6)
    assert sums["errors"] == np.sum(np.argmax(logits, axis=1) != labels)
    assert sums["examples"] == BATCH
    assert sums["learning_rate"] == np.float32(0.1)
    squares = [np.sum(np.square(leaf)) for leaf in jax.tree.leaves(gradient)]
    assert sums["gradient_norm"] == pytest.approx(
        float(np.sqrt(np.sum(squares))), rel=1e-5
    )
    # The first update: velocity = gradient + penalty on the 4-D kernel only.
    for layer, penalty in (("stem", 1e-3), ("head", 0.0)):
        before = state["params"][layer]["kernel"]
        expected = before - 0.1 * (gradient[layer]["kernel"] + penalty * before)
        np.testing.assert_allclose(
            new["params"][layer]["kernel"], expected, rtol=1e-5, atol=1e-7
        )


def test_augmentation_and_dropout_draw_from_different_keys(batch, state, key):
    """Each example's keys are those of its epoch and index.

    They come from one half of the step's key.
    """
    seen = {}

    def train_input(images, keys):
        seen["augmentation"] = keys
        return images

    def apply(variables, x, *, train, keys=None):
        seen["dropout"] = keys
        return toy.make_apply()(variables, x, train=train, keys=keys)

    task = toy.make_task(apply=apply, train_input=train_input)

    def keys_of_step(share):
        steps.training_step(task, state, share, key=key, learning_rate=jnp.float32(0.1))
        return {purpose: jax.random.key_data(keys) for purpose, keys in seen.items()}

    drawn = on_devices(keys_of_step, batch)
    for purpose, half in zip(
        ("augmentation", "dropout"), jax.random.split(key), strict=True
    ):
        expected = example_keys(half, batch["epochs"], batch["indices"])
        np.testing.assert_array_equal(drawn[purpose], jax.random.key_data(expected))
    assert not np.any(np.all(drawn["augmentation"] == drawn["dropout"], axis=1))


def test_what_is_not_trained_and_types(batch, state, whole):
    new, sums = whole
    assert new["step"] == 1
    np.testing.assert_array_equal(
        new["fixed"]["projection"], state["fixed"]["projection"]
    )
    assert new["batch_stats"]["mean"] == pytest.approx(
        np.mean(batch["images"]) / 2, rel=1e-6
    )
    for before, after in zip(jax.tree.leaves(state), jax.tree.leaves(new), strict=True):
        assert before.dtype == after.dtype
    counts = {name for name, value in sums.items() if value.dtype == jnp.int32}
    assert counts == {"errors", "examples"}


@pytest.mark.parametrize("synchronised", [True, False])
def test_shares_of_a_batch_give_the_step_of_the_whole(
    batch, state, whole, key, synchronised
):
    axis_name = steps.AXIS_NAME if synchronised else None
    new, sums = train(state, batch, key, axis_name=axis_name, devices=4)
    # The sums of one float32 step, in another order.
    for ours, theirs in zip(
        jax.tree.leaves((new, sums)), jax.tree.leaves(whole), strict=True
    ):
        for share in ours:
            np.testing.assert_allclose(share, theirs, rtol=1e-5, atol=1e-6)


def by_hand(state, x, labels):
    """The sums of an evaluation of all examples at once."""
    variables = {name: state[name] for name in ("params", "fixed", "batch_stats")}
    apply = functools.partial(toy.make_apply(None), train=False)
    logits, intermediates = jax.jit(apply)(variables, x)
    logs = np.asarray(jax.nn.log_softmax(logits))
    return {
        "loss": -logs[np.arange(len(x)), labels].sum(),
        "errors": np.sum(np.argmax(logits, axis=1) != labels),
        "examples": len(x),
        "residual_ratio": np.sum(intermediates["residual_ratio"], axis=1),
    }


def test_evaluation_counts_only_real_examples(batch, state):
    x = batch["images"]
    labels = batch["labels"]
    is_real = np.arange(BATCH) < 5
    padded = np.where(is_real[:, None, None, None], x, np.float32(np.nan))
    sums = evaluate(
        toy.make_apply(None), state, {**batch, "images": padded, "is_real": is_real}
    )
    assert sums["examples"].dtype == jnp.int32
    for name, expected in by_hand(state, x[:5], labels[:5]).items():
        np.testing.assert_allclose(sums[name], expected, rtol=1e-6)


def test_the_largest_logits_are_counted(state):
    """Labels 0 to 3 with logits 3 > 2 > 1 > 0, two ties, and one padding example."""
    logits = jnp.float32([[3, 2, 1, 0]] * 4 + [[1, 1, 1, 1]] * 2 + [[0, 1, 2, 3]])
    batch = {
        "images": jnp.zeros((7, 1, 1, 1), jnp.float32),
        "labels": jnp.int32([0, 1, 2, 3, 1, 2, 0]),
        "is_real": jnp.array([True] * 6 + [False]),
    }

    def apply(variables, x, *, train):
        return logits, {"residual_ratio": jnp.zeros((0, len(logits)), jnp.float32)}

    sums = evaluate(apply, state, batch, top_k=2)
    # Not among the two largest: labels 2 and 3, and label 2 of the ties.
    assert sums["top_k_errors"] == 3 and sums["errors"] == 5


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"train_images": np.zeros((20, 4))},
            r"train_images must be .* got float64\[20, 4\]",
        ),
        (
            {"test_labels": np.zeros(5, int)},
            r"test_labels must be int\[13\] as .* got int64\[5\]",
        ),
        ({"test_images": np.zeros((0, 4), np.uint8)}, r"with n > 0, got uint8\[0, 4\]"),
    ],
)
def test_arrays_are_checked(changed, message):
    with pytest.raises(ValueError, match=message):
        toy.make_task(**changed)


# On several devices.


def make_steps(**changed):
    batches = {"batch_examples": 8, "evaluation_batch_examples": 8, **changed}
    task = toy.make_task()
    return task, parallel.ParallelSteps(task, devices=jax.devices()[:4], **batches)


def test_running_a_program_for_the_first_time_does_not_count_as_compiling():
    """The host drives a GPU's loop, so the first call returns when it is over."""
    _, on_four = make_steps()
    compiled = jax.jit(lambda x: x + 1)

    def compile_and_run(x):
        y = compiled(x)
        time.sleep(1.0)
        return y

    on_four._call("a program", compile_and_run, (jnp.ones(3),))
    assert 0 < on_four.compile_seconds < 1.0
    before = on_four.compile_seconds
    on_four._call("a program", compile_and_run, (jnp.ones(4),))
    assert on_four.compile_seconds == before


def test_the_state_given_is_given_up_and_what_was_read_stays(key, state):
    _, on_four = make_steps()
    replicated = on_four.start(key, jax.device_get(state))
    copy = on_four.read(replicated)
    new, _ = on_four.train(replicated, on_four.place(list(on_four.open_train(0, 0, 1))))
    jax.block_until_ready(new)
    assert replicated["params"]["stem"]["kernel"].is_deleted()
    assert new["params"]["stem"]["kernel"].shape == (4, 3, 3, 1, 4)
    jax.tree.map(np.testing.assert_array_equal, copy, jax.device_get(state))


# 13 test examples: batches of 3 become 4, the last is padded; of 52, whole devices
# are padding.
@pytest.mark.parametrize("evaluation_batch_examples", [3, 52])
def test_every_test_example_counts_once(key, state, evaluation_batch_examples):
    task, on_four = make_steps(evaluation_batch_examples=evaluation_batch_examples)
    sums = on_four.evaluate(on_four.start(key, jax.device_get(state)))
    images = toy.eval_input(task.data.test_images)
    labels = task.data.test_labels
    for name, expected in by_hand(state, images, labels).items():
        np.testing.assert_allclose(sums[name], expected, rtol=1e-6)
        assert sums[name].dtype == np.float64


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_examples": 6}, "got 6 and 4 devices"),
        ({"batch_examples": 0}, "got 0 and 4 devices"),
        ({"evaluation_batch_examples": 0}, "must be at least 1, got 0"),
    ],
)
def test_what_cannot_be_shared_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        make_steps(**arguments)


def test_devices_are_picked():
    assert len(parallel.pick_devices(0, 8)) == 4
    assert len(parallel.pick_devices(0, 6)) == 3
    assert parallel.pick_devices(2, 8) == jax.devices()[:2]
    for count in (5, -1):
        said = rf"devices must be 0 \(chosen\) to 4 here, got {count}"
        with pytest.raises(ValueError, match=said):
            parallel.pick_devices(count, 8)


@pytest.mark.parametrize("dispatch", [1, 3])
def test_devices_share_the_rows_of_each_step(dispatch):
    _, on_four = make_steps()
    batches = list(on_four.open_train(seed=0, first_step=1, steps=dispatch))
    expected = batch_plan(0, toy.TRAIN_EXAMPLES, 8, 1, dispatch)
    for name, whole in zip(("indices", "epochs"), expected, strict=True):
        shares = on_four.place(batches)[name]
        assert shares.shape == (4, dispatch, 2)
        np.testing.assert_array_equal(np.concatenate(shares, axis=1), whole)


def test_arrays_give_each_process_its_rows():
    data = toy.make_task().data
    whole = batch_plan(0, toy.TRAIN_EXAMPLES, 8, 2, 1)
    for rows in (slice(0, 4), slice(4, 8)):
        share = train_batch(data, 0, 8, rows, step=2)
        for name, expected in zip(("indices", "epochs"), whole, strict=True):
            np.testing.assert_array_equal(share[name], expected[0, rows])
