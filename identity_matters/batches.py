"""The examples of a training, in memory or as streams, and which of them each step takes.

The examples of a run are one long sequence, the concatenated permutations of its epochs, and step
t takes the t-th slice of it. Where the number of examples is no multiple of the batch, a batch
reaches over into the next epoch, so that every epoch visits each example exactly once. Positions
are looked up, so that training can go on from any step without any state.
"""

import dataclasses
import functools
from collections.abc import Callable, Generator

import jax
import numpy as np

from identity_matters.array_types import Array


@dataclasses.dataclass(frozen=True, eq=False)
class Arrays:
    """Whole splits, of which every device holds a copy: images u8 or f32[n, ...], labels int[n].

    Raises:
      ValueError: arrays of the wrong type, or images and labels that do not go together.
    """

    train_images: np.ndarray
    train_labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray

    def __post_init__(self):
        for split in ("train", "test"):
            images = getattr(self, f"{split}_images")
            labels = getattr(self, f"{split}_labels")
            if images.ndim < 2 or images.dtype not in (np.uint8, np.float32) or not len(images):
                raise ValueError(
                    f"{split}_images must be uint8 or float32[n, ...] with n > 0, got"
                    f" {images.dtype}{list(images.shape)}"
                )
            if labels.shape != images.shape[:1] or not np.issubdtype(labels.dtype, np.integer):
                raise ValueError(
                    f"{split}_labels must be int[{len(images)}] as there are {len(images)}"
                    f" {split}_images, got {labels.dtype}{list(labels.shape)}"
                )

    @property
    def image_shape(self) -> tuple[int, ...]:
        return self.train_images.shape[1:]

    @property
    def train_examples(self) -> int:
        return len(self.train_labels)

    @property
    def test_examples(self) -> int:
        return len(self.test_labels)

    def read_train(self, indices, epochs, seed: int) -> dict:
        """See `Streams`; nothing, because images and labels stay on the devices."""
        return {}

    def read_test(self, indices) -> dict:
        """See `Streams`."""
        labels = self.test_labels[indices].astype(np.int32)
        return {"images": self.test_images[indices], "labels": labels}

    def stream(self, make_batch: Callable[[int], dict], first: int, count: int) -> Generator[dict]:
        """See `Streams`."""
        yield from map(make_batch, range(first, first + count))


@dataclasses.dataclass(frozen=True, eq=False)
class Streams:
    """Splits too large for memory: batches come one by one, and each process reads its share.

    Attributes:
      image_shape: (h, w, c) of the images.
      train_examples, test_examples: how many there are.
      read_train: ``read_train(indices, epochs, seed)``: {"images": u8[b, h, w, c], "labels":
        i32[b]}, with random crops and the like that depend on seed, epoch and index alone.
      read_test: ``read_test(indices)``: the same of the test split.
      stream: ``stream(make_batch, first, count)``: an iterator with ``close()`` over
        ``make_batch(first)``, ... of `count` numbers; `make_batch` can be pickled.
    """

    image_shape: tuple[int, int, int]
    train_examples: int
    test_examples: int
    read_train: Callable
    read_test: Callable
    stream: Callable


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
    """A key for each example that depends on the epoch and the example alone; jittable.

    Args:
      key: the typed root key of the data, of JAX's threefry.
      epochs, indices: i32[n], as `batch_plan` returns them.
    Returns:
      keys[n], ``fold_in(fold_in(key, epoch), index)``.
    Raises:
      ValueError: the keys are not threefry's.
    """
    # Other generators (rbg) draw different numbers from a key when it comes in a batch of keys.
    if (generator := jax.random.key_impl(key)) != "threefry2x32":
        raise ValueError(f"key must be of the generator threefry2x32, got {generator}")
    fold = jax.random.fold_in
    return jax.vmap(lambda epoch, index: fold(fold(key, epoch), index))(epochs, indices)


def train_batch(
    data: Arrays | Streams, seed: int, batch_examples: int, rows: slice, step: int
) -> dict:
    """{"indices", "epochs": i32[rows]} of a step, and what is read of them.

    Args:
      seed: of the order of the examples, and of what is random about reading them.
      batch_examples, rows: of a batch over all processes, and those that are this process's.
    """
    plan = batch_plan(seed, data.train_examples, batch_examples, step, 1)
    indices, epochs = (part[0, rows] for part in plan)
    return {"indices": indices, "epochs": epochs, **data.read_train(indices, epochs, seed)}


def evaluation_batch(data: Arrays | Streams, batch_examples: int, rows: slice, number: int) -> dict:
    """{"images", "labels", "is_real": bool[rows]}; the last example fills up the last batch."""
    indices = np.arange(number * batch_examples, (number + 1) * batch_examples)[rows]
    found = data.read_test(np.minimum(indices, data.test_examples - 1))
    return {**found, "is_real": indices < data.test_examples}
