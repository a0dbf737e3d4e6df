import jax
import numpy as np
import pytest

from identity_matters.training import parallel, steps
from identity_matters.training.feeds import make_feed
from tests import toy_training as toy

STEPS = 4


def make_steps(key, num_devices, evaluation_batch_examples=8, **changed):
    task = toy.make_task(**changed)
    parallel_steps = parallel.ParallelSteps(
        task,
        augmentation_key=key,
        dropout_key=key,
        devices=jax.devices()[:num_devices],
        batch_examples=8,
        evaluation_batch_examples=evaluation_batch_examples,
    )
    return task, parallel_steps


def take(task, parallel_steps, first, steps):
    """The batches of some steps as `train` takes them."""
    batch = make_feed(task.data, parallel_steps.rows, steps).take(first, first + steps)
    return parallel_steps.place(batch)


@pytest.fixture(scope="module")
def start(key):
    return jax.device_get(steps.draw_state(toy.init, toy.make_task().optimizer, key))


@pytest.fixture(scope="module")
def four(key):
    return make_steps(key, 4)


@pytest.fixture(scope="module")
def single_steps(four, start):
    """States and sums of four dispatches of one step each, on four devices."""
    task, on_four = four
    state, all_sums = on_four.replicate(start), []
    for i in range(STEPS):
        state, sums = on_four.train(state, take(task, on_four, i, 1))
        all_sums.append(on_four.read(sums))
    assert not any(one.pop("stop") for one in all_sums)
    sums = {name: np.concatenate([one[name] for one in all_sums]) for name in all_sums[0]}
    return on_four.read(state), sums


def assert_close(ours, theirs, tolerance):
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance / 10)


def test_replicating_and_reading_are_inverse(four, start):
    replicated = four[1].replicate(start)
    assert replicated["params"]["stem"]["kernel"].shape == (4, 3, 3, 1, 4)
    jax.tree.map(np.testing.assert_array_equal, four[1].read(replicated), start)


def test_one_device_and_four_agree(key, start, single_steps):
    task, on_one = make_steps(key, 1)
    state, all_sums = on_one.replicate(start), []
    for i in range(STEPS):
        state, sums = on_one.train(state, take(task, on_one, i, 1))
        all_sums.append(on_one.read(sums))
    all_sums[0].pop("stop")
    # Sums of float32 in another order; a step adds its own rounding to that of those before.
    first = {name: sums[:1] for name, sums in single_steps[1].items()}
    assert_close(all_sums[0], first, 1e-5)
    assert_close(on_one.read(state), single_steps[0], 1e-4)


def test_many_steps_in_a_dispatch_are_the_same_steps(four, start, single_steps):
    task, on_four = four
    state, sums = on_four.train(on_four.replicate(start), take(task, on_four, 0, STEPS))
    assert sums["loss"].shape == (4, STEPS)
    state, sums = on_four.read(state), on_four.read(sums)
    sums.pop("stop")
    assert state["step"] == STEPS
    assert sums["examples"].tolist() == [8] * STEPS
    # Two programs, so not bit for bit.
    assert_close((state, sums), single_steps, 1e-5)


def test_the_state_given_is_given_up(four, start):
    task, on_four = four
    state = on_four.replicate(start)
    copy = on_four.read(state)
    new, _ = on_four.train(state, take(task, on_four, 0, 1))
    jax.block_until_ready(new)
    assert state["params"]["stem"]["kernel"].is_deleted()
    jax.tree.map(np.testing.assert_array_equal, copy, start)


def by_hand(task, start):
    """The sums over the test split in one piece."""
    variables = {name: start[name] for name in ("params", "fixed", "batch_stats")}
    x = toy.eval_input(task.data.test_images)
    logits, intermediates = jax.jit(lambda v, x: toy.make_apply(None)(v, x, train=False))(
        variables, x
    )
    logs = np.asarray(jax.nn.log_softmax(logits))
    return {
        "loss": -logs[np.arange(len(x)), task.data.test_labels].sum(),
        "errors": np.sum(np.argmax(logits, axis=1) != task.data.test_labels),
        "examples": len(x),
        "residual_ratio": np.sum(intermediates["residual_ratio"], axis=1),
    }


# 13 test examples: padded in the second batch, in the only one, and on whole devices.
@pytest.mark.parametrize("evaluation_batch_examples", [8, 16, 52])
def test_every_test_example_counts_once(key, four, start, evaluation_batch_examples):
    task, on_four = four
    if evaluation_batch_examples != 8:
        task, on_four = make_steps(key, 4, evaluation_batch_examples)
    sums = on_four.evaluate(on_four.replicate(start))
    expected = by_hand(task, start)
    assert sums["examples"] == toy.TEST_EXAMPLES and sums["errors"] == expected["errors"]
    np.testing.assert_allclose(sums["loss"], expected["loss"], rtol=1e-6)
    np.testing.assert_allclose(sums["residual_ratio"], expected["residual_ratio"], rtol=1e-6)
    assert all(value.dtype == np.float64 for value in sums.values())


def test_an_evaluation_can_be_stopped(four, start):
    asked = []

    def should_stop():
        asked.append(None)
        return len(asked) == 2

    assert four[1].evaluate(four[1].replicate(start), should_stop) is None


def test_compiling_is_timed_apart(key, start):
    task, on_one = make_steps(key, 1)
    state = on_one.replicate(start)
    assert on_one.compile_seconds == 0
    state, _ = on_one.train(state, take(task, on_one, 0, 1))
    once = on_one.compile_seconds
    assert once > 0
    on_one.train(state, take(task, on_one, 1, 1))
    assert on_one.compile_seconds == once


@pytest.mark.parametrize(
    ("batch_examples", "evaluation_batch_examples", "message"),
    [
        (6, 8, "got batch_examples=6 and 4 devices"),
        (8, 10, "got evaluation_batch_examples=10 and 4 devices"),
        (0, 8, "got batch_examples=0 and 4 devices"),
    ],
)
def test_uneven_shares_are_refused(key, batch_examples, evaluation_batch_examples, message):
    with pytest.raises(ValueError, match=message):
        parallel.ParallelSteps(
            toy.make_task(),
            augmentation_key=key,
            dropout_key=key,
            devices=jax.devices(),
            batch_examples=batch_examples,
            evaluation_batch_examples=evaluation_batch_examples,
        )


def test_parts_must_divide_a_share(key):
    with pytest.raises(ValueError, match="share of a batch, 2 examples, got 3"):
        parallel.ParallelSteps(
            toy.make_task(),
            augmentation_key=key,
            dropout_key=key,
            devices=jax.devices(),
            batch_examples=8,
            evaluation_batch_examples=8,
            gradient_accumulation=3,
        )


def test_a_wish_to_stop_reaches_the_sums(four, start):
    task, on_four = four
    _, sums = on_four.train(on_four.replicate(start), take(task, on_four, 0, 1), stop=True)
    assert on_four.read(sums)["stop"]


def test_no_devices_are_refused(key):
    with pytest.raises(ValueError, match="devices must name at least one device"):
        make_steps(key, 0)
