import jax
import jax.numpy as jnp
import numpy as np
import pytest

from identity_matters.batches import batch_plan, example_keys

# 7 examples in batches of 3: seven steps are three epochs, and most epochs end inside a batch.
EXAMPLES, BATCH, STEPS = 7, 3, 7


@pytest.mark.parametrize("batch_examples", [1, 3, 7, 20])
def test_every_epoch_visits_each_example_once(batch_examples):
    steps = 3 * EXAMPLES
    indices, epochs = batch_plan(0, EXAMPLES, batch_examples, 0, steps)
    assert indices.shape == epochs.shape == (steps, batch_examples)
    assert indices.dtype == epochs.dtype == np.int32
    # One epoch after the other, and none is left out.
    np.testing.assert_array_equal(epochs.ravel(), np.arange(epochs.size) // EXAMPLES)
    for epoch in range(3 * batch_examples):
        assert sorted(indices[epochs == epoch]) == list(range(EXAMPLES))


def test_a_batch_reaches_over_into_the_next_epoch():
    _, epochs = batch_plan(0, EXAMPLES, BATCH, 2, 1)
    assert epochs.tolist() == [[0, 1, 1]]


@pytest.mark.parametrize("first_step", [0, 2, STEPS - 1])
def test_any_step_can_be_looked_up(first_step):
    indices, epochs = batch_plan(5, EXAMPLES, BATCH, 0, STEPS)
    for steps in range(1, STEPS - first_step + 1):
        here = slice(first_step, first_step + steps)
        later_indices, later_epochs = batch_plan(5, EXAMPLES, BATCH, first_step, steps)
        np.testing.assert_array_equal(later_indices, indices[here])
        np.testing.assert_array_equal(later_epochs, epochs[here])


def test_epochs_and_seeds_differ():
    orders = {
        tuple(batch_plan(seed, 50, 50, epoch, 1)[0][0].tolist())
        for seed in (0, 1, 2**63)
        for epoch in range(4)
    }
    assert len(orders) == 12


def test_the_order_is_the_same_on_every_machine_and_version():
    assert batch_plan(0, 8, 8, 0, 1)[0].tolist() == [[0, 2, 1, 5, 4, 3, 6, 7]]


def test_orders_are_uniform():
    firsts, _ = batch_plan(3, 4, 4, 0, 4000)
    counts = np.array([np.bincount(firsts[:, place], minlength=4) for place in range(4)])
    # Binomial(4000, 1/4) has the standard deviation 27; five of them.
    assert np.abs(counts - 1000).max() < 137


def test_a_key_depends_on_epoch_and_example_alone(key):
    epochs = np.array([0, 0, 1, 1, 2, 2], np.int32)
    indices = np.array([4, 0, 4, 0, 0, 3], np.int32)
    keys = jax.jit(example_keys)(key, epochs, indices)
    assert keys.shape == (6,)
    for place in range(6):
        expected = jax.random.fold_in(jax.random.fold_in(key, epochs[place]), indices[place])
        assert keys[place] == expected
    assert len(np.unique(jax.random.key_data(keys).reshape(6, -1), axis=0)) == 6


def test_unusable_keys_are_refused():
    zeros = jnp.zeros(3, jnp.int32)
    with pytest.raises(ValueError, match="generator threefry2x32, got rbg"):
        example_keys(jax.random.key(0, impl="rbg"), zeros, zeros)
