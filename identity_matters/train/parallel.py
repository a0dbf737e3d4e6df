"""Steps on the devices of one or several processes; the only file that uses `jax.pmap`.

Every device holds the state and, if the data are `Arrays`, the whole training split; a
training batch is then only the indices of its examples, as it is if they are `Drawn` on
the devices. All other batches hold the images.

On accelerators the steps of a dispatch are a rolled loop. On CPU, XLA's gradients of
convolutions are many times slower within a loop, so the loop is unrolled there. For a
large net on CPU, use one step per dispatch.
"""

import contextlib
import functools
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from identity_matters import jax_settings
from identity_matters.batches import Arrays, Streams, evaluation_batch, train_batch
from identity_matters.checks import check_whole
from identity_matters.train.step import (
    AXIS_NAME,
    Task,
    dispatch,
    evaluation_step,
    initial_state,
)

# On import: XLA reads its flags once, at the first compilation of a process.
jax_settings.use_fast_convolutions()

# evaluation batches being copied to the devices, or computed
_EVALUATIONS_IN_FLIGHT = 2


def pick_devices(count: int, batch_examples: int) -> list[jax.Device]:
    """The first `count` devices; 0: the most that divide the batch, or all of several
    processes.

    Raises ValueError if there are fewer, or if several processes would not use all of
    theirs.
    """
    available = sorted(
        jax.devices(), key=lambda device: (device.process_index, device.id)
    )
    if count == 0:
        divides = (n for n in range(len(available), 0, -1) if batch_examples % n == 0)
        count = next(divides) if jax.process_count() == 1 else len(available)
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
    """`function` on every device at once, each with its row of the arguments, over
    AXIS_NAME.

    `options` are those of `jax.pmap`.
    """
    return jax.pmap(function, axis_name=AXIS_NAME, devices=devices, **options)


class ParallelSteps:
    """The training and evaluation steps of a task on `devices`, the same list in all
    processes.

    `start` copies the data to the devices; a program is compiled at its first use.
    Batch sizes are over all devices. Raises ValueError if the devices cannot share a
    training batch evenly; an evaluation batch is rounded up so that they can. Padding
    of the last one is not counted. `rows` is this process's slice of a training batch.
    `compile_seconds` is a total; callers may reset it.
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
        order = [device.process_index for device in devices]
        self.process_count = len(set(order))
        self._task = task
        first, self._local = (
            order.index(jax.process_index()),
            order.count(jax.process_index()),
        )
        shares = (
            batch_examples // len(devices),
            -(-evaluation_batch_examples // len(devices)),
        )
        self._share, self._test_share = shares
        self.rows, self._test_rows = (
            slice(first * n, (first + self._local) * n) for n in shares
        )
        self._compiled: set = set()
        unroll = self.on_cpu and task.unrolled_on_cpu
        self._train = self._map(
            functools.partial(dispatch, task, unroll), donate_argnums=0
        )
        self._evaluate = self._map(functools.partial(evaluation_step, task))
        self._to_devices = self._map(lambda tree: tree)
        self._resident: Any = None

    def start(self, key: jax.Array, state: Any) -> Any:
        """Copies data, typed key and host arrays `state` to the devices; returns
        `state` there.
        """
        resident: dict[str, Any] = {"key": key}
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
        """Iterates over this process's rows of each `train_batch`; ``close()`` ends the
        readers.
        """
        data = self._task.data
        make = functools.partial(
            train_batch, data, seed, self.batch_examples, self.rows
        )
        return data.stream(make, first_step, steps)

    def place(self, batches: list[dict]) -> Any:
        """Arranges a dispatch's batches, from `open_train`, for `train`; starts copying
        images.
        """
        split = {
            name: self._split([batch[name] for batch in batches]) for name in batches[0]
        }
        # Indices are small enough to travel with the call.
        return self._to_devices(split) if "images" in split else split

    def lower(self, part: str, steps: int) -> tuple[jax.stages.Lowered, int, int]:
        """The program of `part`, "train" or "evaluate", from shapes alone: devices may
        be absent.

        `steps` is that of a dispatch; an evaluation always takes one batch. Returns the
        program, its number of steps, and the examples per step over all devices.
        """
        data, like = self._task.data, jax.ShapeDtypeStruct
        resident, key = isinstance(data, Arrays), jax.random.key(0)
        state = initial_state(self._task.init(key), self._task.optimizer)

        def examples(*shape):
            if isinstance(data, Streams):
                images, labels = like(data.image_shape, np.uint8), like((), np.int32)
            else:
                one = data.read_test(np.arange(1))
                images, labels = one["images"][0], one["labels"][0]
            of_each = {"images": images, "labels": labels}
            return jax.tree.map(lambda x: like((*shape, *x.shape), x.dtype), of_each)

        arguments: tuple
        if part == "train":
            program, share = self._train, self._share
            batch = {
                name: like((steps, share), np.int32) for name in ("indices", "epochs")
            }
            stays = {"key": key, **(examples(data.train_examples) if resident else {})}
            batch |= examples(steps, share) if isinstance(data, Streams) else {}
            arguments = state, stays, batch, like((), np.bool_)
        else:
            program, share, steps = self._evaluate, self._test_share, 1
            arguments = state, {**examples(share), "is_real": like((share,), np.bool_)}
        # pmap wants a leading axis over this process's devices.
        arguments = jax.tree.map(
            lambda x: like((self._local, *x.shape), x.dtype), arguments
        )
        return program.lower(*arguments), steps, share * len(self.devices)

    def train(self, state: Any, batch: Any, stop: bool = False) -> tuple:
        """Starts the steps of a dispatch and returns (state, sums), see `step.dispatch`
        and `read`.

        `batch` is from `place`, `state` from `start` or an earlier call; its buffers
        are donated.
        """
        steps = jax.tree.leaves(batch)[0].shape[1]
        arguments = state, self._resident, batch, np.full(self._local, stop, np.bool_)
        return self._call(("train", steps), self._train, arguments)

    def evaluate(
        self, state: Any, should_stop: Callable[[int], bool] = lambda examples: False
    ) -> dict | None:
        """The sums of `step.evaluation_step`, as float64, over every test example once.

        `should_stop` is called before each batch with the number of examples so far,
        padding included. It must return the same in all processes; after True the
        result is None.
        """
        sums: list[Any] = []
        # On CPU, several programs with collectives at once can starve the devices of
        # threads.
        in_flight = 1 if self.on_cpu else _EVALUATIONS_IN_FLIGHT
        data, share = self._task.data, self._test_share
        whole = share * len(self.devices)
        make = functools.partial(evaluation_batch, data, whole, self._test_rows)
        with contextlib.closing(
            data.stream(make, 0, -(-data.test_examples // whole))
        ) as stream:
            for batch in stream:
                if should_stop(len(sums) * whole):
                    return None
                shares = jax.tree.map(
                    lambda x: x.reshape(self._local, share, *x.shape[1:]), batch
                )
                arguments = state, self._to_devices(shares)
                sums.append(self._call("evaluate", self._evaluate, arguments))
                jax.block_until_ready(sums[-in_flight:][0])
        read = map(self.read, sums)
        return jax.tree.map(
            lambda *parts: np.sum(parts, axis=0, dtype=np.float64), *read
        )

    @staticmethod
    def read(tree: Any) -> Any:
        """Copies one device's replica of a tree to NumPy arrays; waits until it is
        computed.
        """
        shards = jax.tree.map(lambda x: x.addressable_shards[0].data, tree)
        # A copy: on CPU a view would alias a buffer that a later step donates.
        return jax.tree.map(lambda shard: np.array(shard)[0], jax.device_get(shards))

    def _map(self, function, **options):
        return over_devices(function, self.devices, **options)

    def _replicate(self, tree):
        # The same pmap of the identity lays arrays out as the steps want them in every
        # version of JAX; the sharding that `jax.device_put` would need changes from
        # version to version.
        identity = self._map(lambda tree, _: tree, in_axes=(None, 0))
        return identity(tree, np.zeros(self._local, np.int8))

    def _call(self, program, mapped, arguments):
        """Calls `mapped`; dispatch is asynchronous, so a first call is almost all
        compilation.
        """
        started = time.perf_counter()
        results = mapped(*arguments)
        if program not in self._compiled:
            self._compiled.add(program)
            self.compile_seconds += time.perf_counter() - started
        return results

    def _split(self, steps):
        """[rows, ...] of each step -> [local devices, steps, share, ...]."""
        # One step is not copied: a batch of ImageNet is 39 MB.
        rows = np.stack(steps) if len(steps) > 1 else steps[0][None]
        shares = np.reshape(rows, (len(rows), self._local, -1, *rows.shape[2:]))
        return np.ascontiguousarray(shares.swapaxes(0, 1))
