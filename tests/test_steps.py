import jax
import jax.numpy as jnp
import numpy as np
import pytest

from identity_matters.training import steps
from tests import toy_training as toy

BATCH = 8
DEVICES = 4


@pytest.fixture(scope="module")
def batch(key):
    rng = np.random.default_rng(1)
    x = rng.random((BATCH, 4, 4, 1), np.float32)
    labels = rng.integers(0, toy.CLASSES, BATCH).astype(np.int32)
    return x, labels, jax.random.split(key, BATCH)


@pytest.fixture(scope="module")
def state(key):
    return steps.draw_state(toy.init, toy.make_task().optimizer, key)


@pytest.fixture(scope="module")
def whole(batch, state):
    """The state and sums after one step on the whole batch."""
    task = toy.make_task()
    step = steps.make_training_step(toy.make_apply(None), task.optimizer, task.schedule)
    return jax.jit(step)(state, *batch)


def test_one_step_by_hand(batch, state, whole):
    x, labels, keys = batch
    new, sums = whole
    variables = {name: state[name] for name in ("params", "fixed", "batch_stats")}

    def loss(params):
        logits, _ = toy.make_apply(None)({**variables, "params": params}, x, train=True, keys=keys)
        logs = jax.nn.log_softmax(logits)
        return -jnp.mean(jnp.take_along_axis(logs, labels[:, None], axis=1)), logits

    (value, logits), gradient = jax.jit(jax.value_and_grad(loss, has_aux=True))(state["params"])
    assert sums["loss"] / BATCH == pytest.approx(float(value), rel=1e-6)
    assert sums["errors"] == np.sum(np.argmax(logits, axis=1) != labels)
    assert sums["examples"] == BATCH
    assert sums["learning_rate"] == np.float32(0.1)
    squares = [np.sum(np.square(leaf)) for leaf in jax.tree.leaves(gradient)]
    assert sums["gradient_norm"] == pytest.approx(float(np.sqrt(np.sum(squares))), rel=1e-5)
    # The first update: velocity = gradient + penalty on the 4-D kernel only.
    stem = state["params"]["stem"]["kernel"]
    expected = stem - 0.1 * (gradient["stem"]["kernel"] + 1e-3 * stem)
    np.testing.assert_allclose(new["params"]["stem"]["kernel"], expected, rtol=1e-5, atol=1e-7)
    head = state["params"]["head"]["kernel"]
    expected = head - 0.1 * gradient["head"]["kernel"]
    np.testing.assert_allclose(new["params"]["head"]["kernel"], expected, rtol=1e-5, atol=1e-7)


def test_what_is_not_trained(batch, state, whole):
    new, _ = whole
    assert new["step"] == 1 and new["step"].dtype == jnp.int32
    np.testing.assert_array_equal(new["fixed"]["projection"], state["fixed"]["projection"])
    assert new["batch_stats"]["mean"] == pytest.approx(np.mean(batch[0]) / 2, rel=1e-6)


def test_types_are_kept(state, whole):
    new, sums = whole
    for before, after in zip(jax.tree.leaves(state), jax.tree.leaves(new), strict=True):
        assert before.dtype == after.dtype
    assert {name: value.dtype.name for name, value in sums.items()} == {
        "loss": "float32",
        "errors": "int32",
        "examples": "int32",
        "gradient_norm": "float32",
        "learning_rate": "float32",
    }


def shares(array):
    return jnp.reshape(array, (DEVICES, BATCH // DEVICES, *array.shape[1:]))


@pytest.mark.parametrize("synchronised", [True, False])
def test_shares_of_a_batch_give_the_step_of_the_whole(batch, state, whole, synchronised):
    task = toy.make_task()
    apply = toy.make_apply("d" if synchronised else None)
    step = steps.make_training_step(apply, task.optimizer, task.schedule, axis_name="d")
    split = jax.vmap(step, in_axes=(None, 0, 0, 0), axis_name="d")
    new, sums = jax.jit(split)(state, *map(shares, batch))
    # One step in float32, summed in another order.
    for ours, theirs in zip(jax.tree.leaves((new, sums)), jax.tree.leaves(whole), strict=True):
        for share in ours:
            np.testing.assert_allclose(share, theirs, rtol=1e-5, atol=1e-6)


def test_evaluation_counts_only_real_examples(batch, state):
    x, labels, _ = batch
    step = jax.jit(steps.make_evaluation_step(toy.make_apply(None)))
    is_real = np.arange(BATCH) < 5
    padded = np.where(is_real[:, None, None, None], x, np.float32(np.nan))
    sums = step(state, padded, labels, is_real)
    variables = {name: state[name] for name in ("params", "fixed", "batch_stats")}
    logits, intermediates = toy.make_apply(None)(variables, x[:5], train=False)
    losses = -np.asarray(jax.nn.log_softmax(logits))[np.arange(5), labels[:5]]
    assert sums["loss"] == pytest.approx(losses.sum(), rel=1e-6)
    assert sums["errors"] == np.sum(np.argmax(logits, axis=1) != labels[:5])
    assert sums["examples"] == 5 and sums["examples"].dtype == jnp.int32
    ratios = np.sum(intermediates["residual_ratio"], axis=1)
    np.testing.assert_allclose(sums["residual_ratio"], ratios, rtol=1e-6)


@pytest.mark.parametrize("unroll", [True, False])
@pytest.mark.parametrize("parts", [2, 4])
def test_parts_of_a_batch_give_the_step_of_the_whole(batch, state, whole, parts, unroll):
    task = toy.make_task()
    step = steps.make_training_step(
        toy.make_apply(None),
        task.optimizer,
        task.schedule,
        gradient_accumulation=parts,
        unroll=unroll,
    )
    new, sums = jax.jit(step)(state, *batch)
    # The running mean alone is another one: it is updated once a part.
    expected = np.float32(0)
    for part in np.split(batch[0], parts):
        expected = 0.5 * expected + 0.5 * np.mean(part)
    assert new["batch_stats"]["mean"] == pytest.approx(expected, rel=1e-6)
    new["batch_stats"] = whole[0]["batch_stats"]
    for ours, theirs in zip(jax.tree.leaves((new, sums)), jax.tree.leaves(whole), strict=True):
        assert ours.dtype == theirs.dtype
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def test_the_largest_logits_are_counted(state):
    """Labels 0, 1, 2, 3 of logits 3 > 2 > 1 > 0, a tie, and one example that is none."""
    logits = jnp.float32([[3, 2, 1, 0]] * 4 + [[1, 1, 1, 1]] * 2 + [[0, 1, 2, 3]])
    labels = jnp.int32([0, 1, 2, 3, 1, 2, 0])
    is_real = jnp.array([True] * 6 + [False])

    def apply(variables, x, *, train):
        return logits, {"residual_ratio": jnp.zeros((0, len(logits)), jnp.float32)}

    step = jax.jit(steps.make_evaluation_step(apply, top_k=2))
    sums = step(state, jnp.zeros((7, 1, 1, 1), jnp.float32), labels, is_real)
    # Not among the two largest: 2, 3, and of equal ones label 2.
    assert sums["top_k_errors"] == 3 and sums["errors"] == 5


def test_squared_error_by_hand():
    # (1 - 0.5)^2 + 2^2 = 4.25; (0 - 3)^2 + (1 - 1)^2 = 9.
    losses = steps.squared_error(jnp.array([[0.5, 2], [3, 1]], jnp.float32), jnp.array([0, 1]))
    assert losses.tolist() == [4.25, 9.0]


def test_another_loss_is_trained_and_evaluated(batch, state):
    x, labels, keys = batch
    task, apply = toy.make_task(), toy.make_apply(None)
    train = steps.make_training_step(
        apply, task.optimizer, task.schedule, losses_of=steps.squared_error
    )
    evaluate = steps.make_evaluation_step(apply, losses_of=steps.squared_error)
    variables = {name: state[name] for name in ("params", "fixed", "batch_stats")}
    sums = {
        True: jax.jit(train)(state, x, labels, keys)[1],
        False: jax.jit(evaluate)(state, x, labels, np.ones(BATCH, bool)),
    }
    for training, found in sums.items():
        logits = np.asarray(apply(variables, x, train=training, keys=keys)[0])
        expected = np.sum((np.eye(logits.shape[1])[labels] - logits) ** 2)
        assert float(found["loss"]) == pytest.approx(expected, rel=1e-5)
