"""Steps on many devices, of one process or several: the one file that says `jax.pmap`.

Every device holds the state, and the whole training split where that is arrays; a dispatch then
takes only the indices of its examples. Where the data are streams it takes the images themselves.
A dispatch runs one step or many, and each device works on an equal share of every batch.

On accelerators the steps of a dispatch are a rolled loop. On CPU XLA's gradients of convolutions
are some fifty times slower within a loop, so there the loop is unrolled: one step a dispatch is
the right choice for a large net on CPU.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from identity_matters.training import programs
from identity_matters.training.task import Arrays, Task

# The mapped axis: models that average over the whole batch, as batch norm does, name it.
AXIS_NAME = "devices"
# Batches of an evaluation that are on their way to the devices or being computed.
_EVALUATIONS_IN_FLIGHT = 2


def check_even_split(argument: str, examples: int, num_devices: int) -> None:
    """Raises ValueError unless a batch of `examples` splits evenly over `num_devices`."""
    if examples < 1 or examples % num_devices:
        raise ValueError(
            f"{argument} must be a multiple of the number of devices, got {argument}={examples}"
            f" and {num_devices} devices"
        )


class ParallelSteps:
    """The training and evaluation steps of a task, compiled for some devices.

    Args:
      task: what is trained.
      augmentation_key, dropout_key: typed keys; with epoch and index they give every example its
        own randomness, whatever device it is on.
      devices: those to use, in the order of processes where there are several; all processes must
        name the same ones.
      batch_examples, evaluation_batch_examples: sizes of a batch over all devices together.
      gradient_accumulation: in so many parts, one after the other, each device works through its
        share of a batch.
    Attributes:
      rows: those of a batch over all devices that are this process's.
      process_count: how many processes have devices among them.
    Raises:
      ValueError: no devices, devices in another order, or a batch that they cannot share evenly.
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
        gradient_accumulation: int = 1,
    ):
        if not devices:
            raise ValueError("devices must name at least one device, got none")
        check_even_split("batch_examples", batch_examples, len(devices))
        check_even_split("evaluation_batch_examples", evaluation_batch_examples, len(devices))
        share = batch_examples // len(devices)
        if gradient_accumulation < 1 or share % gradient_accumulation:
            raise ValueError(
                f"gradient_accumulation must divide a device's share of a batch, {share} examples,"
                f" got {gradient_accumulation}"
            )
        order = [device.process_index for device in devices]
        if order != sorted(order):
            raise ValueError(f"devices must be in the order of their processes, got {order}")
        self.compile_seconds = 0.0
        self.on_cpu = devices[0].platform == "cpu"
        self.process_count = len(set(order))
        self._task = task
        self._devices = list(devices)
        self._local = order.count(jax.process_index())
        first = order.index(jax.process_index())
        self.rows = slice(first * share, (first + self._local) * share)
        self._first_local = first
        self._evaluation_batch_examples = evaluation_batch_examples
        self._programs: dict = {}
        train = programs.training(task, AXIS_NAME, gradient_accumulation, unroll=self.on_cpu)
        self._train = self._map(train, donate_argnums=0)
        self._identity = self._map(lambda tree: tree)
        resident = {"augmentation_key": augmentation_key, "dropout_key": dropout_key}
        if isinstance(task.data, Arrays):
            resident |= {
                "images": task.data.train_images,
                "labels": task.data.train_labels.astype(np.int32),
            }
            self._test_data = self._share_test_set(task.data)
            self._evaluate = self._map(programs.evaluation_by_position(task, AXIS_NAME))
        else:
            self._evaluate = self._map(programs.evaluation_of_images(task, AXIS_NAME))
        self._resident = self.replicate(resident)

    def replicate(self, tree: Any) -> Any:
        """`tree`, arrays on the host, with a copy on each device: the form that steps take."""
        # An identity under the same map leaves arrays laid out as the steps want them in every
        # version of JAX; `jax.device_put` needs another sharding from version to version.
        identity = self._map(lambda tree, _: tree, in_axes=(None, 0))
        return identity(tree, np.zeros(self._local, np.int8))

    def place(self, batch: dict) -> Any:
        """A batch as `train` takes it; images begin their way to the devices.

        Args:
          batch: what a feed gave for `rows`, arrays [steps, rows, ...] by name.
        """
        split = {name: self._split(rows) for name, rows in batch.items()}
        # Indices are small enough to travel with the call.
        return self._identity(split) if "images" in split else split

    def prepare(self, state: Any, steps: int) -> None:
        """Compiles `train` for that many rows, unless it has been, or its first call does that."""
        if ("train", steps) in self._programs or self.process_count > 1:
            return
        shape = (steps, self.rows.stop - self.rows.start)
        batch = {name: np.zeros(shape, np.int32) for name in ("indices", "epochs")}
        if not isinstance(self._task.data, Arrays):
            batch["images"] = np.zeros((*shape, *self._task.data.image_shape), np.uint8)
            batch["labels"] = np.zeros(shape, np.int32)
        arguments = (state, self._resident, self.place(batch), self._flags(False))
        self._compile("train", self._train, arguments, steps)

    def train(self, state: Any, batch: Any, stop: bool = False) -> tuple:
        """Runs the steps of a batch; returns before they are done.

        Args:
          state: as `replicate` gave it, or this function; its buffers are given up.
          batch: as `place` gave it.
          stop: whether this process wants to stop.
        Returns:
          (state, sums): `sums` of `steps.make_training_step`, each [steps], and "stop", whether any
          process wants to; see `read`.
        """
        steps = jax.tree.leaves(batch)[0].shape[1]
        arguments = (state, self._resident, batch, self._flags(stop))
        return self._call("train", self._train, arguments, steps)

    def evaluate(self, state: Any, should_stop: Callable[[], bool] = lambda: False) -> dict | None:
        """Runs over every test example once; None if `should_stop` said so on the way.

        With several processes `should_stop` must say the same in all of them.

        Returns:
          the sums of `steps.make_evaluation_step` as float64; "examples" is the number counted.
        """
        sums = []
        # Several programs with collectives at once can starve a CPU's devices of threads.
        in_flight = 1 if self.on_cpu else _EVALUATIONS_IN_FLIGHT
        for arguments in self._evaluation_arguments(state):
            if should_stop():
                return None
            sums.append(self._call("evaluate", self._evaluate, arguments))
            jax.block_until_ready(sums[-in_flight:][0])
        read = [self.read(one) for one in sums]
        return {
            name: np.sum([one[name] for one in read], axis=0, dtype=np.float64) for name in read[0]
        }

    def _evaluation_arguments(self, state):
        """Those of each batch of an evaluation."""
        if isinstance(self._task.data, Arrays):
            for batch in range(self._test_batches):
                yield state, self._test_data, np.full(self._local, batch, np.int32)
            return
        stream = self._task.data.open_test(self._evaluation_batch_examples)
        try:
            for batch in stream:
                one = {name: self._split(rows[None]) for name, rows in batch.items()}
                yield state, self._identity(one)
        finally:
            stream.close()

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

    def _call(self, name: str, mapped, arguments, steps: int = 1):
        """``mapped(*arguments)``; compiling is timed apart, not hidden in a first call."""
        if self.process_count == 1:
            self._compile(name, mapped, arguments, steps)
            return self._programs[name, steps](*arguments)
        # A program compiled ahead takes the arrays of all processes, which none of them has; the
        # first call is little else than compiling, since it does not wait for its results.
        started = time.perf_counter()
        results = mapped(*arguments)
        if (name, steps) not in self._programs:
            self._programs[name, steps] = mapped
            self.compile_seconds += time.perf_counter() - started
        return results

    def _compile(self, name: str, mapped, arguments, steps: int) -> None:
        if (name, steps) not in self._programs:
            started = time.perf_counter()
            self._programs[name, steps] = mapped.lower(*arguments).compile()
            self.compile_seconds += time.perf_counter() - started

    def _flags(self, value: bool):
        return np.full(self._local, value, np.bool_)

    def _split(self, rows):
        """[steps, rows, ...] -> [local devices, steps, share, ...]."""
        shares = np.reshape(rows, (len(rows), self._local, -1, *rows.shape[2:]))
        return np.ascontiguousarray(shares.swapaxes(0, 1))

    def _share_test_set(self, data: Arrays):
        """Each device's share of every test batch; zeros fill the last batch."""
        batch_examples = self._evaluation_batch_examples
        examples = data.test_examples
        self._test_batches = -(-examples // batch_examples)
        padding = self._test_batches * batch_examples - examples
        arrays = {
            "images": data.test_images,
            "labels": data.test_labels.astype(np.int32),
            "is_real": np.ones(examples, np.bool_),
        }
        local = slice(self._first_local, self._first_local + self._local)

        def share(array):
            padded = np.concatenate([array, np.zeros((padding, *array.shape[1:]), array.dtype)])
            shape = (self._test_batches, len(self._devices), -1, *array.shape[1:])
            return np.ascontiguousarray(padded.reshape(shape).swapaxes(0, 1)[local])

        return self._identity(jax.tree.map(share, arrays))
