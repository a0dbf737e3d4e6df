"""Steps on many devices: the one file that says `jax.pmap`.

Every device holds the state and the whole training split; a dispatch takes only the indices of the
examples, and runs one step or many. Each device works on an equal share of every batch.

On accelerators the steps of a dispatch are a rolled loop. On CPU XLA's gradients of convolutions
are some fifty times slower within a loop, so there the loop is unrolled: one step a dispatch is
the right choice for a large net on CPU.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from identity_matters.training import steps as training_steps
from identity_matters.training.task import Task

# The mapped axis: models that average over the whole batch, as batch norm does, name it.
AXIS_NAME = "devices"


def check_even_split(argument: str, examples: int, num_devices: int) -> None:
    """Raises ValueError unless a batch of `examples` splits evenly over `num_devices`."""
    if examples < 1 or examples % num_devices:
        raise ValueError(
            f"{argument} must be a multiple of the number of devices, got {argument}={examples}"
            f" and {num_devices} devices"
        )


class ParallelSteps:
    """The training and evaluation steps of a task, compiled for some devices, with its data there.

    Args:
      task: what is trained.
      augmentation_key, dropout_key: typed keys; with epoch and index they give every example its
        own randomness, whatever device it is on.
      devices: those to use; in a run of several processes, the devices of all of them.
      batch_examples, evaluation_batch_examples: sizes of a batch over all devices together.
    Raises:
      ValueError: no devices, or a batch that they cannot share evenly.
    """

    def __init__(
        self,
        task: Task,
        *,
        augmentation_key,
        dropout_key,
        devices: Sequence[jax.Device],
        batch_examples: int,
        evaluation_batch_examples: int,
    ):
        if not devices:
            raise ValueError("devices must name at least one device, got none")
        check_even_split("batch_examples", batch_examples, len(devices))
        check_even_split("evaluation_batch_examples", evaluation_batch_examples, len(devices))
        self.compile_seconds = 0.0
        self.on_cpu = devices[0].platform == "cpu"
        self._task = task
        self._devices = list(devices)
        self._batch_examples = batch_examples
        mine = jax.process_index()
        self._local = [i for i, device in enumerate(devices) if device.process_index == mine]
        self._programs: dict = {}
        train = _training_function(task, unroll=self.on_cpu)
        self._train = self._map(train, donate_argnums=0)
        self._evaluate = self._map(_evaluation_function(task))
        self._train_data = self.replicate(
            {
                "images": task.train_images,
                "labels": task.train_labels.astype(np.int32),
                "augmentation_key": augmentation_key,
                "dropout_key": dropout_key,
            }
        )
        self._test_data = self._share_test_set(evaluation_batch_examples)

    def replicate(self, tree: Any) -> Any:
        """`tree`, arrays on the host, with a copy on each device: the form that steps take."""
        # An identity under the same map leaves arrays laid out as the steps want them in every
        # version of JAX; `jax.device_put` needs another sharding from version to version.
        identity = self._map(lambda tree, _: tree, in_axes=(None, 0))
        return identity(tree, np.zeros(len(self._local), np.int8))

    def prepare(self, state: Any, steps: int) -> None:
        """Compiles `train` for that many rows, unless it has been compiled."""
        if ("train", steps) not in self._programs:
            rows = np.zeros((steps, self._batch_examples), np.int32)
            self._compiled("train", self._train, self._arguments(state, rows, rows), steps)

    def train(self, state: Any, indices: np.ndarray, epochs: np.ndarray) -> tuple:
        """Runs one step for each row; returns before they are done.

        Args:
          state: as `replicate` gave it, or this function; its buffers are given up.
          indices, epochs: i32[steps, batch_examples], see `Task.batch_plan`.
        Returns:
          (state, sums): `sums` of `steps.make_training_step`, each [steps]; see `read`.
        """
        arguments = self._arguments(state, indices, epochs)
        return self._compiled("train", self._train, arguments, len(indices))(*arguments)

    def evaluate(self, state: Any, should_stop: Callable[[], bool] = lambda: False) -> dict | None:
        """Runs over every test example once; None if `should_stop` said so on the way.

        Returns:
          the sums of `steps.make_evaluation_step` as float64; "examples" is the number counted.
        """
        sums = []
        for batch in range(self._test_batches):
            if should_stop():
                return None
            position = np.full(len(self._local), batch, np.int32)
            arguments = (state, self._test_data, position)
            sums.append(self._compiled("evaluate", self._evaluate, arguments)(*arguments))
            if self.on_cpu:
                # Several programs with collectives at once can starve each other of threads.
                jax.block_until_ready(sums)
        read = [self.read(one) for one in sums]
        return {
            name: np.sum([one[name] for one in read], axis=0, dtype=np.float64) for name in read[0]
        }

    @staticmethod
    def read(tree: Any) -> Any:
        """One device's copy of a replicated tree as NumPy arrays of our own; waits for it."""
        shards = jax.tree.map(lambda x: x.addressable_shards[0].data, tree)
        for shard in jax.tree.leaves(shards):
            shard.copy_to_host_async()
        # A copy: on CPU a view would show memory that a later, donating step overwrites.
        return jax.tree.map(lambda shard: np.array(shard)[0], shards)

    def _map(self, function, **options):
        return jax.pmap(function, axis_name=AXIS_NAME, devices=self._devices, **options)

    def _compiled(self, name: str, mapped, arguments, steps: int = 1):
        """The compiled program; compiling is timed apart, not hidden in a first call."""
        if (name, steps) not in self._programs:
            started = time.perf_counter()
            self._programs[name, steps] = mapped.lower(*arguments).compile()
            self.compile_seconds += time.perf_counter() - started
        return self._programs[name, steps]

    def _arguments(self, state, indices, epochs) -> tuple:
        """Those of a dispatch; the rows become i32[local devices, steps, share]."""

        def split(rows):
            shares = np.reshape(rows, (len(rows), len(self._devices), -1)).swapaxes(0, 1)
            return np.ascontiguousarray(shares[self._local], np.int32)

        return state, self._train_data, split(indices), split(epochs)

    def _share_test_set(self, batch_examples: int):
        """Each device's share of every test batch; zeros fill the last batch."""
        examples = len(self._task.test_labels)
        self._test_batches = -(-examples // batch_examples)
        padding = self._test_batches * batch_examples - examples
        data = {
            "images": self._task.test_images,
            "labels": self._task.test_labels.astype(np.int32),
            "is_real": np.ones(examples, np.bool_),
        }

        def share(array):
            padded = np.concatenate([array, np.zeros((padding, *array.shape[1:]), array.dtype)])
            shape = (self._test_batches, len(self._devices), -1, *array.shape[1:])
            return np.ascontiguousarray(padded.reshape(shape).swapaxes(0, 1)[self._local])

        return self._map(lambda tree: tree)(jax.tree.map(share, data))


def _training_function(task: Task, *, unroll: bool) -> Callable:
    """What a device runs in one dispatch, for indices and epochs i32[steps, share]."""
    step = training_steps.make_training_step(
        task.apply, task.optimizer, task.schedule, axis_name=AXIS_NAME
    )

    def one_step(state, data, index, epoch):
        augmentation_keys = task.example_keys(data["augmentation_key"], epoch, index)
        dropout_keys = task.example_keys(data["dropout_key"], epoch, index)
        x = task.train_input(data["images"][index], augmentation_keys)
        return step(state, x, data["labels"][index], dropout_keys)

    def many_steps(state, data, indices, epochs):
        if len(indices) == 1:
            state, sums = one_step(state, data, indices[0], epochs[0])
            return state, jax.tree.map(lambda x: x[None], sums)
        return jax.lax.scan(
            lambda state, row: one_step(state, data, *row), state, (indices, epochs), unroll=unroll
        )

    return many_steps


def _evaluation_function(task: Task) -> Callable:
    """What a device runs for one test batch, for its share of all of them."""
    step = training_steps.make_evaluation_step(task.apply, axis_name=AXIS_NAME)

    def one_batch(state, data, position):
        images, labels, is_real = (data[name][position] for name in ("images", "labels", "is_real"))
        return step(state, task.eval_input(images), labels, is_real)

    return one_batch
