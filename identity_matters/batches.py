"""Training and test examples (in memory, streamed or drawn): what each step takes.

A run sees its examples as one long sequence, the concatenated permutations of its
epochs, and step t takes the t-th slice. If the batch size does not divide the number of
examples, a batch continues into the next epoch, so every epoch visits each example
exactly once. Looking up a slice costs the same at every step, so training resumes at
any step without iterator state.
"""

import dataclasses
import functools
from collections.abc import Callable, Generator

import jax
import numpy as np

from identity_matters.array_types import Array


@dataclasses.dataclass(frozen=True, eq=False)
class Arrays:
    """Whole splits: images u8 or f32[n, ...], labels int[n].

    Raises ValueError for any others.
    """

    train_images: np.ndarray
    train_labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray

    def __post_init__(self):
        for split in ("train", "test"):
            images = getattr(self, f"{split}_images")
            labels = getattr(self, f"{split}_labels")
            if (
                images.ndim < 2
                or images.dtype not in (np.uint8, np.float32)
                or not len(images)
            ):
                raise ValueError(
                    f"{split}_images must be uint8 or float32[n, ...] with n > 0, got"
                    f" {images.dtype}{list(images.shape)}"
                )
            if labels.shape != images.shape[:1] or not np.issubdtype(
                labels.dtype, np.integer
            ):
                raise ValueError(
                    f"{split}_labels must be int[{len(images)}] as there are"
                    f" {len(images)} {split}_images, got"
                    f" {labels.dtype}{list(labels.shape)}"
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
        """See `Streams`.

        It is empty, because images and labels are on the devices already.
        """
        return {}

    def read_test(self, indices) -> dict:
        """See `Streams`; images as they are stored."""
        labels = self.test_labels[indices].astype(np.int32)
        return {"images": self.test_images[indices], "labels": labels}

    def stream(
        self, make_batch: Callable[[int], dict], first: int, count: int
    ) -> Generator[dict]:
        yield from map(make_batch, range(first, first + count))


@dataclasses.dataclass(frozen=True, eq=False)
class Streams:
    """Splits too large for memory, of which each process reads its share.

    Training images are augmented at random, depending on seed, epoch and index alone.
    The iterator of `stream` has ``close()`` and yields ``make_batch(i)`` for the
    `count` numbers i from `first`; `make_batch` must be picklable.
    """

    image_shape: tuple[int, int, int]  # (h, w, c)
    train_examples: int
    test_examples: int
    # (indices, epochs, seed) -> {"images": u8[b, h, w, c], "labels": i32[b]}
    read_train: Callable
    read_test: Callable  # (indices) -> the same for the test split, not augmented
    stream: Callable  # (make_batch, first, count) -> iterator


@dataclasses.dataclass(frozen=True, eq=False)
class Drawn:
    """Fresh training examples at each step, drawn by the devices.

    The test split is in memory. An "epoch" is one batch of `train_examples`, so that
    the key of an example depends on its step and its place in the batch alone, not on
    the device that draws it.
    """

    draw: Callable  # (keys[n]) -> {"images": f32[n, ...], "labels": [n, ...]}; jittable
    train_examples: int  # in a batch
    test_images: np.ndarray  # f32[n, ...]
    test_labels: np.ndarray  # [n, ...]

    @property
    def test_examples(self) -> int:
        return len(self.test_labels)

    def read_train(self, indices, epochs, seed: int) -> dict:
        """See `Streams`; empty, because the devices draw the examples."""
        return {}

    def read_test(self, indices) -> dict:
        """See `Streams`; examples as they are stored."""
        return {
            "images": self.test_images[indices],
            "labels": self.test_labels[indices],
        }

    def stream(
        self, make_batch: Callable[[int], dict], first: int, count: int
    ) -> Generator[dict]:
        yield from map(make_batch, range(first, first + count))


Examples = Arrays | Streams | Drawn


def batch_plan(
    seed: int, num_examples: int, batch_examples: int, first_step: int, steps: int
) -> tuple[np.ndarray, np.ndarray]:
    """The examples of `steps` steps from `first_step` on, and their epochs, from 0 on.

    Both are i32[steps, batch_examples]. `seed` and `first_step` may be 0; all others
    are positive.

    >>> indices, epochs = batch_plan(0, 5, 2, first_step=0, steps=5)
    >>> epochs.ravel()
    array([0, 0, 0, 0, 0, 1, 1, 1, 1, 1], dtype=int32)
    >>> sorted(indices[epochs == 1].tolist())
    [0, 1, 2, 3, 4]
    """
    start = first_step * batch_examples
    stop = (first_step + steps) * batch_examples
    epochs, offsets = np.divmod(np.arange(start, stop), num_examples)
    indices = np.empty(len(epochs), np.int32)
    for epoch in range(epochs[0], epochs[-1] + 1):
        is_in_epoch = epochs == epoch
        order = _permutation(seed, epoch, num_examples)
        indices[is_in_epoch] = order[offsets[is_in_epoch]]
    shape = (steps, batch_examples)
    return indices.reshape(shape), epochs.astype(np.int32).reshape(shape)


# Cached: callers ask for one step at a time, and sorting costs more than the look-up.
@functools.lru_cache(maxsize=4)
def _permutation(seed: int, epoch: int, num_examples: int) -> np.ndarray:
    """A uniformly random permutation, i64[num_examples], read-only."""
    # NumPy promises to keep the raw output of Philox; `Generator.permutation` may
    # change.
    generator = np.random.Philox(key=np.array([seed, epoch], np.uint64))
    order = np.argsort(generator.random_raw(num_examples), kind="stable")
    order.setflags(write=False)
    return order


def example_keys(key: jax.Array, epochs: Array, indices: Array) -> jax.Array:
    """A key for each example, ``fold_in(fold_in(key, epoch), index)``; jittable.

    `epochs`, `indices`: i32[n]. Raises ValueError unless `key` is a typed key of JAX's
    threefry.
    """
    # With other generators (rbg), the numbers drawn from a key change when it is
    # vmapped.
    if (generator := jax.random.key_impl(key)) != "threefry2x32":
        raise ValueError(f"key must be of the generator threefry2x32, got {generator}")

    def key_of(epoch, index):
        return jax.random.fold_in(jax.random.fold_in(key, epoch), index)

    return jax.vmap(key_of)(epochs, indices)


def train_batch(
    data: Examples, seed: int, batch_examples: int, rows: slice, step: int
) -> dict:
    """The batch of a step: its indices and epochs, i32[rows], and what was read.

    Args:
      data: `data.read_train` reads the examples.
      seed: determines their order and how they are read.
      batch_examples: of all processes together.
      rows: this process's slice of a batch.
      step: counts from 0.
    """
    all_indices, all_epochs = batch_plan(
        seed, data.train_examples, batch_examples, first_step=step, steps=1
    )
    indices = all_indices[0, rows]
    epochs = all_epochs[0, rows]
    return {
        "indices": indices,
        "epochs": epochs,
        **data.read_train(indices, epochs, seed),
    }


def evaluation_batch(
    data: Examples, batch_examples: int, rows: slice, number: int
) -> dict:
    """An evaluation's batch: {"images", "labels", "is_real": bool[rows]}.

    The last example pads the last batch.
    """
    indices = np.arange(number * batch_examples, (number + 1) * batch_examples)[rows]
    examples = data.read_test(np.minimum(indices, data.test_examples - 1))
    return {**examples, "is_real": indices < data.test_examples}
