"""Steps on the devices of one or several processes; the only file that uses `jax.pmap`.

Every device holds the state and, if the data are `Arrays`, the whole training split; a
training batch is then only the indices of its examples, as it is if they are `Drawn` on
the devices. All other batches hold the images.

On accelerators the steps of a dispatch are a rolled loop. On CPU, XLA's gradients of
convolutions are many times slower within a loop, so the loop is unrolled there. For a
large net on CPU, use one step per dispatch.

What `jax.pmap` asks for. It maps a function over a leading axis that has one entry for
each device of this process. So every argument gets that axis: a batch is cut into
shares (`_split`), the flag to stop is repeated for each device, and the shapes for
`lower` grow by one. Arrays that are the same on all devices are laid out by a pmap of
the identity (`_replicate`), and images are sent early by another one (`_to_devices`),
because `jax.device_put` would need a sharding whose name changes from version to
version of JAX. Results have the axis as well, so `read` takes the first device's
replica. None of this is part of the mathematics of a step, which is in `step`.
"""

import contextlib
import functools
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from identity_matters import compilations, jax_settings
from identity_matters.batches import Arrays, evaluation_batch, train_batch
from identity_matters.checks import check_whole
from identity_matters.train import program_shapes
from identity_matters.train.step import AXIS_NAME, Task, dispatch, evaluation_step

# On import: XLA reads its flags once, at the first compilation of a process.
jax_settings.use_fast_convolutions()

# evaluation batches being copied to the devices, or computed
_EVALUATIONS_IN_FLIGHT = 2
# Where the host starts each operation of each step, and so is busy until a dispatch is
# nearly over. A TPU runs the steps of a dispatch by itself.
_HOST_DRIVEN_PLATFORMS = ("cpu", "gpu")


def pick_devices(count: int, batch_examples: int) -> list[jax.Device]:
    """The first `count` devices of all processes.

    Args:
      count: 0 chooses. One process takes as many devices as divide the batch, several
        processes take all of theirs.
      batch_examples: of a training batch.
    Raises:
      ValueError: there are fewer devices, or several processes would not use all of
        theirs.
    """
    available = sorted(
        jax.devices(), key=lambda device: (device.process_index, device.id)
    )
    if count == 0 and jax.process_count() == 1:
        count = _largest_divisor(batch_examples, at_most=len(available))
    elif count == 0:
        count = len(available)
    if jax.process_count() > 1 and count != len(available):
        raise ValueError(
            f"with several processes devices must be 0, all {len(available)} of each,"
            f" got {count}"
        )
    if not 0 < count <= len(available):
        raise ValueError(
            f"devices must be 0 (chosen) to {len(available)} here, got {count}"
        )
    return available[:count]


def over_devices(
    function: Callable, devices: Sequence[jax.Device], **options: Any
) -> Callable:
    """`function` on every device at once, over AXIS_NAME.

    Each device takes its row of the arguments. `options` are those of `jax.pmap`.
    """
    return jax.pmap(function, axis_name=AXIS_NAME, devices=devices, **options)


class LoweredPart(NamedTuple):
    """A program of a training, not compiled yet.

    Attributes:
      program: for all devices.
      steps: how many it makes; 1 for an evaluation, which takes one batch.
      examples: of a step, over all devices.
    """

    program: jax.stages.Lowered
    steps: int
    examples: int


class ParallelSteps:
    """The training and evaluation steps of a task on several devices.

    `start` copies the data to the devices; a program is compiled at its first use.

    Args:
      task: what is computed, and its data.
      devices: the same list in all processes, see `pick_devices`.
      batch_examples: of a training step, over all devices.
      evaluation_batch_examples: of an evaluation, over all devices; rounded up to a
        multiple of their number. Padding of the last batch is not counted.
    Attributes:
      devices, batch_examples: as given.
      process_count: the number of processes that own these devices.
      rows: this process's slice of a training batch.
      on_cpu: whether the devices are CPUs.
      steps_run_on_device: whether the devices run all steps of a dispatch without the
        host.
      compile_seconds: spent on compiling so far; it only grows.
    Raises:
      ValueError: the devices cannot share a training batch evenly.
    """

    def __init__(
        self,
        task: Task,
        *,
        devices: Sequence[jax.Device],
        batch_examples: int,
        evaluation_batch_examples: int,
    ):
        if batch_examples < 1 or batch_examples % len(devices):
            raise ValueError(
                "batch_examples must be a positive multiple of the number of devices,"
                f" got {batch_examples} and {len(devices)} devices"
            )
        check_whole("evaluation_batch_examples", evaluation_batch_examples)
        self.devices = list(devices)
        self.batch_examples = batch_examples
        self.compile_seconds = 0.0
        self.on_cpu = devices[0].platform == "cpu"
        self.steps_run_on_device = devices[0].platform not in _HOST_DRIVEN_PLATFORMS
        self._task = task

        owners = [device.process_index for device in devices]
        self.process_count = len(set(owners))
        self._local_device_count = owners.count(jax.process_index())
        self._first_device = owners.index(jax.process_index())

        # a share: the examples of one device
        self._share = batch_examples // len(devices)
        self._evaluation_share = -(-evaluation_batch_examples // len(devices))
        self.rows = self._rows_of_this_process(self._share)

        unroll = self.on_cpu and task.unrolled_on_cpu
        self._train = self._map(
            functools.partial(dispatch, task, unroll), donate_argnums=0
        )
        self._evaluate = self._map(functools.partial(evaluation_step, task))
        self._to_devices = self._map(lambda tree: tree)
        self._compiled: set = set()
        self._resident: Any = None

    # Placement

    def start(self, key: jax.Array, state: Any) -> Any:
        """Copies what stays on the devices there.

        Args:
          key: a typed key, the root of the steps' randomness.
          state: of host arrays.
        Returns:
          The state on the devices.
        """
        resident: dict[str, Any] = {
            "key": key,
            "learning_rate": np.float32(self._task.learning_rate),
        }
        data = self._task.data
        if isinstance(data, Arrays):
            resident["images"] = data.train_images
            resident["labels"] = data.train_labels.astype(np.int32)
        self._resident = self._replicate(resident)
        return self._replicate(state)

    def stop(self) -> None:
        """Frees the training data on the devices."""
        self._resident = None

    def open_train(self, seed: int, first_step: int, steps: int) -> Any:
        """Iterates over this process's rows of each `train_batch`.

        `seed` determines the order of the examples, and how they are read. ``close()``
        of the iterator ends its readers.
        """
        make_batch = functools.partial(
            train_batch, self._task.data, seed, self.batch_examples, self.rows
        )
        return self._task.data.stream(make_batch, first_step, steps)

    def place(self, batches: list[dict]) -> Any:
        """Arranges a dispatch's batches, from `open_train`, for `train`.

        If they have images, starts copying them to the devices.
        """
        split = {
            name: self._split([batch[name] for batch in batches]) for name in batches[0]
        }
        # Indices are small enough to travel with the call.
        return self._to_devices(split) if "images" in split else split

    @staticmethod
    def read(tree: Any) -> Any:
        """Copies a tree to NumPy arrays, once it is computed.

        Of each array, it is the replica of one device.
        """
        shards = jax.tree.map(lambda x: x.addressable_shards[0].data, tree)
        # A copy: on CPU a view would alias a buffer that a later step donates.
        return jax.tree.map(lambda shard: np.array(shard)[0], jax.device_get(shards))

    # Steps

    def train(self, state: Any, batch: Any, stop: bool = False) -> tuple:
        """Starts the steps of a dispatch; returns without waiting for them.

        Args:
          state: from `start` or an earlier call; its buffers are donated.
          batch: from `place`.
          stop: whether this process wants to stop.
        Returns:
          (state, sums) on the devices, see `step.dispatch` and `read`.
        """
        steps = jax.tree.leaves(batch)[0].shape[1]
        stop_on_each = np.full(self._local_device_count, stop, np.bool_)
        arguments = (state, self._resident, batch, stop_on_each)
        return self._call(("train", steps), self._train, arguments)

    def evaluate(
        self, state: Any, should_stop: Callable[[int], bool] = lambda examples: False
    ) -> dict | None:
        """The sums of `step.evaluation_step`, as float64, over every test example once.

        `should_stop` is called before each batch with the number of examples so far,
        padding included. It must return the same in all processes; after True the
        result is None.
        """
        # On CPU, several programs with collectives
        # at once can starve the devices of threads.
        in_flight = 1 if self.on_cpu else _EVALUATIONS_IN_FLIGHT
        examples_of_batch = self._evaluation_share * len(self.devices)
        sums: list[Any] = []
        with contextlib.closing(self._open_evaluation(examples_of_batch)) as stream:
            for batch in stream:
                if should_stop(len(sums) * examples_of_batch):
                    return None
                arguments = (state, self._place_evaluation(batch))
                sums.append(self._call("evaluate", self._evaluate, arguments))
                # Wait for the oldest batch that may still be in flight.
                jax.block_until_ready(sums[-in_flight:][0])
        return jax.tree.map(
            lambda *parts: np.sum(parts, axis=0, dtype=np.float64),
            *[self.read(batch_sums) for batch_sums in sums],
        )

    # Lowering

    def lower(self, part: str, steps: int) -> LoweredPart:
        """The program of `part` from shapes alone: the devices may be absent.

        Args:
          part: "train" or "evaluate".
          steps: of a dispatch; an evaluation always takes one batch.
        """
        if part == "train":
            shapes: tuple = program_shapes.training_shapes(
                self._task, steps=steps, share=self._share
            )
            return LoweredPart(
                program=self._lower(self._train, shapes),
                steps=steps,
                examples=self.batch_examples,
            )
        shapes = program_shapes.evaluation_shapes(
            self._task, share=self._evaluation_share
        )
        return LoweredPart(
            program=self._lower(self._evaluate, shapes),
            steps=1,
            examples=self._evaluation_share * len(self.devices),
        )

    def _lower(self, mapped: Any, shapes: tuple) -> jax.stages.Lowered:
        """A mapped function for arguments that have these shapes on each device."""
        with_device_axis = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(
                (self._local_device_count, *x.shape), x.dtype
            ),
            shapes,
        )
        return mapped.lower(*with_device_axis)

    def _rows_of_this_process(self, share: int) -> slice:
        """The rows of a batch that the devices of this process take."""
        first_row = self._first_device * share
        return slice(first_row, first_row + self._local_device_count * share)

    def _map(self, function: Callable, **options: Any) -> Any:
        return over_devices(function, self.devices, **options)

    def _replicate(self, tree: Any) -> Any:
        """`tree` on every device."""
        # The second argument only gives pmap an axis to map over.
        identity = self._map(lambda tree, _: tree, in_axes=(None, 0))
        return identity(tree, np.zeros(self._local_device_count, np.int8))

    def _split(self, steps: list[np.ndarray]) -> np.ndarray:
        """[rows, ...] of each step -> [local devices, steps, share, ...]."""
        # One step is not copied: a batch of ImageNet is 39 MB.
        rows = np.stack(steps) if len(steps) > 1 else steps[0][None]
        shares = np.reshape(
            rows, (len(steps), self._local_device_count, -1, *rows.shape[2:])
        )
        return np.ascontiguousarray(shares.swapaxes(0, 1))

    def _open_evaluation(self, batch_examples: int) -> Any:
        """Iterates over this process's rows of each `evaluation_batch`."""
        data = self._task.data
        make_batch = functools.partial(
            evaluation_batch,
            data,
            batch_examples,
            self._rows_of_this_process(self._evaluation_share),
        )
        return data.stream(make_batch, 0, -(-data.test_examples // batch_examples))

    def _place_evaluation(self, batch: dict) -> Any:
        shape = (self._local_device_count, self._evaluation_share)
        shares = jax.tree.map(lambda x: x.reshape(*shape, *x.shape[1:]), batch)
        return self._to_devices(shares)

    def _call(self, program: Any, mapped: Callable, arguments: tuple) -> Any:
        """Calls `mapped`; counts what the first call compiles.

        `program` tells apart what is compiled separately.
        """
        if program in self._compiled:
            return mapped(*arguments)
        self._compiled.add(program)
        # A first call traces, lowers and compiles, until the last compilation ends.
        # Where the host drives the devices, the call then runs the program, too.
        last_end = started = time.perf_counter()

        def note_end(_: float) -> None:
            nonlocal last_end
            last_end = time.perf_counter()

        with compilations.listening(note_end):
            results = mapped(*arguments)
        self.compile_seconds += last_end - started
        return results


def _largest_divisor(whole: int, *, at_most: int) -> int:
    return next(n for n in range(at_most, 0, -1) if whole % n == 0)
