"""Training and test examples, in memory or streamed, and which of them each step takes.

A run sees its examples as one long sequence, the concatenated permutations of its epochs, and step
t takes the t-th slice. If the batch size does not divide the number of examples, a batch continues
into the next epoch, so every epoch visits each example exactly once. Looking up a slice costs the
same at every step, so training resumes at any step without iterator state.
"""

import dataclasses
import functools
from collections.abc import Callable, Generator

import jax
import numpy as np

from identity_matters.array_types import Array


@dataclasses.dataclass(frozen=True, eq=False)
class Arrays:
    """Whole splits: images u8 or f32[n, ...], labels int[n]. Every device holds the train split.

    Raises ValueError for arrays of the wrong type, or images and labels that do not match.
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
        """See `Streams`; empty, because images and labels are on the devices already."""
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
    """Splits too large for memory: batches are read one by one, and each process reads its share.

    Attributes:
      image_shape: (h, w, c) of the images.
      train_examples, test_examples: how many there are.
      read_train: ``read_train(indices, epochs, seed)`` returns {"images": u8[b, h, w, c], "labels":
        i32[b]}, with random augmentation that depends on seed, epoch and index alone.
      read_test: ``read_test(indices)`` returns the same for the test split, without augmentation.
      stream: ``stream(make_batch, first, count)`` returns an iterator with ``close()`` over
        ``make_batch(i)`` for the `count` numbers i from `first`; `make_batch` must be picklable.
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
    """The examples of the steps `first_step`, ..., `first_step + steps - 1`, and their epochs.

    >>> indices, epochs = batch_plan(0, 5, 2, first_step=0, steps=5)
    >>> epochs.ravel()
    array([0, 0, 0, 0, 0, 1, 1, 1, 1, 1], dtype=int32)
    >>> sorted(indices[epochs == 1].tolist())
    [0, 1, 2, 3, 4]

    Args:
      seed, first_step: at least 0; all others at least 1.
    Returns:
      (indices, epochs), both i32[steps, batch_examples]; epochs count from 0.
    """
    start, stop = first_step * batch_examples, (first_step + steps) * batch_examples
    epochs, offsets = np.divmod(np.arange(start, stop), num_examples)
    indices = np.empty(len(epochs), np.int32)
    for epoch in range(epochs[0], epochs[-1] + 1):
        here = epochs == epoch
        indices[here] = _permutation(seed, epoch, num_examples)[offsets[here]]
    shape = (steps, batch_examples)
    return indices.reshape(shape), epochs.astype(np.int32).reshape(shape)


# Cached: callers ask for one step at a time, and sorting costs more than the look-up.
@functools.lru_cache(maxsize=4)
def _permutation(seed: int, epoch: int, num_examples: int) -> np.ndarray:
    """A uniformly random permutation, i64[num_examples], read-only.

    It sorts the raw output of Philox, which NumPy promises to keep; `Generator.permutation` may
    change between versions.
    """
    generator = np.random.Philox(key=np.array([seed, epoch], np.uint64))
    order = np.argsort(generator.random_raw(num_examples), kind="stable")
    order.setflags(write=False)
    return order


def example_keys(key: jax.Array, epochs: Array, indices: Array) -> jax.Array:
    """A key for each example, ``fold_in(fold_in(key, epoch), index)``: keys[n]; jittable.

    `epochs` and `indices` are i32[n]. Raises ValueError unless `key` is a typed key of JAX's
    threefry generator.
    """
    # With other generators (rbg), the numbers drawn from a key change when it is vmapped.
    if (generator := jax.random.key_impl(key)) != "threefry2x32":
        raise ValueError(f"key must be of the generator threefry2x32, got {generator}")
    fold = jax.random.fold_in
    return jax.vmap(lambda epoch, index: fold(fold(key, epoch), index))(epochs, indices)


def train_batch(
    data: Arrays | Streams, seed: int, batch_examples: int, rows: slice, step: int
) -> dict:
    """{"indices", "epochs": i32[rows]} of a step, and what `data.read_train` returns for them.

    Args:
      seed: determines the order of the examples and the randomness in reading them.
      batch_examples, rows: the batch size over all processes, and this process's slice of a batch.
    """
    plan = batch_plan(seed, data.train_examples, batch_examples, step, 1)
    indices, epochs = (part[0, rows] for part in plan)
    return {"indices": indices, "epochs": epochs, **data.read_train(indices, epochs, seed)}


def evaluation_batch(data: Arrays | Streams, batch_examples: int, rows: slice, number: int) -> dict:
    """{"images", "labels", "is_real": bool[rows]}; the last example pads the last batch."""
    indices = np.arange(number * batch_examples, (number + 1) * batch_examples)[rows]
    found = data.read_test(np.minimum(indices, data.test_examples - 1))
    return {**found, "is_real": indices < data.test_examples}
