"""Which examples each step of training takes, and the random key of each.

The examples of a run are one long sequence, the concatenated permutations of its epochs, and step
t takes the t-th slice of it. Where the number of examples is no multiple of the batch, a batch
reaches over into the next epoch, so that every epoch visits each example exactly once.

Both functions look positions up, so that training can go on from any step without any state.
"""

import functools

import jax
import numpy as np

from identity_matters.array_types import Array

# The others (rbg) draw different numbers from a key when it comes in a batch of keys.
_GENERATOR = "threefry2x32"


def batch_plan(
    seed: int, num_examples: int, batch_examples: int, first_step: int, steps: int
) -> tuple[np.ndarray, np.ndarray]:
    """The examples of the steps `first_step`, ..., `first_step + steps - 1`.

    Takes O(batch_examples * steps + num_examples) wherever `first_step` lies.

    >>> indices, epochs = batch_plan(0, 5, 2, first_step=0, steps=5)
    >>> epochs.ravel()
    array([0, 0, 0, 0, 0, 1, 1, 1, 1, 1], dtype=int32)
    >>> sorted(indices[epochs == 1].tolist())
    [0, 1, 2, 3, 4]

    Args:
      seed, first_step: from 0; all others from 1.
    Returns:
      indices i32[steps, batch_examples], which examples, and epochs i32[steps, batch_examples],
      in which epoch, from 0.
    """
    start, stop = first_step * batch_examples, (first_step + steps) * batch_examples
    epochs, offsets = np.divmod(np.arange(start, stop), num_examples)
    indices = np.empty(len(epochs), np.int32)
    for epoch in range(epochs[0], epochs[-1] + 1):
        here = epochs == epoch
        indices[here] = _permutation(seed, epoch, num_examples)[offsets[here]]
    shape = (steps, batch_examples)
    return indices.reshape(shape), epochs.astype(np.int32).reshape(shape)


# Where each call asks for one step, sorting anew for each would cost more than the look-up.
@functools.lru_cache(maxsize=4)
def _permutation(seed: int, epoch: int, num_examples: int) -> np.ndarray:
    """A uniformly random permutation, i64[num_examples], read-only.

    It sorts the raw output of Philox, which NumPy promises to keep; the stream of
    `Generator.permutation` may change from one version to the next.
    """
    generator = np.random.Philox(key=np.array([seed, epoch], np.uint64))
    order = np.argsort(generator.random_raw(num_examples), kind="stable")
    order.setflags(write=False)
    return order


def example_keys(key: jax.Array, epochs: Array, indices: Array) -> jax.Array:
    """A key for each example in each epoch, which depends on nothing else; jittable.

    Args:
      key: the typed root key of the data, of JAX's threefry.
      epochs, indices: i32[n], as `batch_plan` returns them.
    Returns:
      keys[n], ``fold_in(fold_in(key, epoch), index)``.
    Raises:
      ValueError: the keys are not threefry's.
    """
    generator = jax.random.key_impl(key)
    if generator != _GENERATOR:
        raise ValueError(f"key must be of the generator {_GENERATOR}, got {generator}")
    fold = jax.random.fold_in
    return jax.vmap(lambda epoch, index: fold(fold(key, epoch), index))(epochs, indices)
