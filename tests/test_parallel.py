import jax
import numpy as np
import pytest

from identity_matters.batches import batch_plan
from identity_matters.train import parallel, step
from identity_matters.train.step import Feed, Streams
from tests import toy_training as toy


def make_steps(num_devices, evaluation_batch_examples=8, batch_examples=8):
    task = toy.make_task()
    return task, parallel.ParallelSteps(
        task,
        devices=jax.devices()[:num_devices],
        batch_examples=batch_examples,
        evaluation_batch_examples=evaluation_batch_examples,
    )


def take(task, parallel_steps, first, steps):
    """The batches of some steps as `train` takes them."""
    feed = Feed(task.data, 8, parallel_steps.rows, first + steps, seed=0)
    return parallel_steps.place(feed.take(first, first + steps))


@pytest.fixture(scope="module")
def start(key):
    return jax.device_get(step.initial_state(toy.init(key), toy.make_task().optimizer))


def test_the_state_given_is_given_up_and_what_was_read_stays(key, start):
    task, on_four = make_steps(4)
    state = on_four.start(key, start)
    copy = on_four.read(state)
    new, _ = on_four.train(state, take(task, on_four, 0, 1))
    jax.block_until_ready(new)
    assert state["params"]["stem"]["kernel"].is_deleted()
    assert new["params"]["stem"]["kernel"].shape == (4, 3, 3, 1, 4)
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
        "residual_ratio": np.sum(intermediates["residual_ratio"], axis=1),
    }


# 13 test examples: padded in the second batch (6 becomes 8), and in the only one, whole devices.
@pytest.mark.parametrize("evaluation_batch_examples", [6, 52])
def test_every_test_example_counts_once(key, start, evaluation_batch_examples):
    task, on_four = make_steps(4, evaluation_batch_examples)
    sums = on_four.evaluate(on_four.start(key, start))
    assert sums["examples"] == toy.TEST_EXAMPLES
    for name, expected in by_hand(task, start).items():
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
        make_steps(**{"num_devices": 4, **arguments})


def test_devices_are_picked():
    assert len(parallel.pick_devices(0, 8)) == 4
    assert len(parallel.pick_devices(0, 6)) == 3
    assert parallel.pick_devices(2, 8) == jax.devices()[:2]
    with pytest.raises(ValueError, match=r"devices must be 0 \(chosen\) to 4 here, got 5"):
        parallel.pick_devices(5, 8)


def test_a_stream_opens_once():
    opened = []

    def open_train(seed, batch_examples, rows, first_step, steps):
        assert (batch_examples, rows) == (4, slice(0, 2))
        # Batches that hold their own step.
        images = np.zeros((2, 1, 1, 1), np.uint8)
        last = first_step + steps
        opened.append(
            {"images": images, "labels": np.full(2, step + seed)}
            for step in range(first_step, last)
        )
        return opened[-1]

    feed = Feed(Streams((1, 1, 1), 20, 5, open_train, None), 4, slice(0, 2), steps=7, seed=90)
    feed.close()
    assert not opened
    one = feed.take(3, 4)
    assert one["images"].shape == (1, 2, 1, 1, 1) and one["labels"].tolist() == [[93, 93]]
    assert feed.take(4, 6)["labels"].tolist() == [[94, 94], [95, 95]]
    assert len(opened) == 1
    feed.close()
    assert next(opened[0], None) is None


def test_arrays_give_each_process_its_rows():
    data = toy.make_task().data
    halves = [Feed(data, 8, rows, 4, seed=0).take(1, 3) for rows in (slice(0, 4), slice(4, 8))]
    indices, epochs = batch_plan(0, toy.TRAIN_EXAMPLES, 8, first_step=1, steps=2)
    for name, whole in (("indices", indices), ("epochs", epochs)):
        both = np.concatenate([half[name] for half in halves], axis=1)
        np.testing.assert_array_equal(both, whole)
