"""Batches made ahead of their consumer, by threads or processes, with grain.

Grain gets step numbers to work on: one element is the whole batch of one step, and batches come in
the order of steps whoever makes them. The position of a stream is therefore a step number and
nothing else; grain's own iterator state would be bound to the number of workers.
"""

import dataclasses
import time
from collections.abc import Callable


@dataclasses.dataclass(frozen=True)
class Reading:
    """How batches are made: this changes the speed, never the data.

    Attributes:
      worker_threads: batches in the making at once, in each process that makes some; about one a
        core, more where storage answers slowly.
      worker_processes: processes that make batches beside this one; 0: threads of this one do,
        which is enough unless many cores wait for Python's lock.
      prefetch_batches: batches made ahead, in each process that makes some; a batch of 256 takes
        39 MB.
    Raises:
      ValueError: a number below its least value, or fewer batches ahead than threads.
    """

    worker_threads: int
    worker_processes: int
    prefetch_batches: int

    def __post_init__(self):
        for name, least in (("worker_threads", 1), ("worker_processes", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")
        if self.prefetch_batches < self.worker_threads:
            raise ValueError(
                "prefetch_batches must be at least worker_threads, or threads would idle, got"
                f" {self.prefetch_batches} and {self.worker_threads}"
            )


@dataclasses.dataclass(frozen=True)
class Share:
    """This process among those that train together; raises ValueError for one outside of them."""

    process_index: int = 0
    process_count: int = 1

    def __post_init__(self):
        if not 0 <= self.process_index < self.process_count:
            raise ValueError(
                "process_index must be from 0 to process_count - 1, got"
                f" {self.process_index} and {self.process_count}"
            )

    def rows(self, batch_examples: int) -> slice:
        """Which rows of a batch over all processes are this process's."""
        if batch_examples < 1 or batch_examples % self.process_count:
            raise ValueError(
                "batch_examples must be a multiple of the number of processes, got"
                f" batch_examples={batch_examples} and {self.process_count} processes"
            )
        size = batch_examples // self.process_count
        return slice(self.process_index * size, (self.process_index + 1) * size)


ALONE = Share()


class Stream:
    """Batches of consecutive steps, made ahead; counts how long its consumer waits for them.

    Iterating gives dicts of arrays and ends after the last step. Close it, or use it in a `with`
    statement, to end its threads and processes.

    Args:
      make_batch: ``make_batch(step) -> dict of arrays``, picklable where there are worker
        processes; an error it raises comes out of the iteration.
      first_step, steps: the batches are those of first_step, ..., first_step + steps - 1.
      reading: how they are made.
    Attributes:
      step: the step of the next batch; a stream opened with `first_step` there goes on with it.
    """

    def __init__(
        self, make_batch: Callable[[int], dict], first_step: int, steps: int, reading: Reading
    ):
        import grain.python as grain

        self.step = first_step
        dataset = grain.MapDataset.range(first_step, first_step + steps).map(make_batch)
        options = grain.ReadOptions(reading.worker_threads, reading.prefetch_batches)
        dataset = dataset.to_iter_dataset(options)
        if reading.worker_processes:
            dataset = dataset.mp_prefetch(
                grain.MultiprocessingOptions(reading.worker_processes, reading.prefetch_batches)
            )
        self._batches = iter(dataset)
        self._waited_seconds = 0.0
        self._since: float | None = None

    def __iter__(self):
        return self

    def __next__(self) -> dict:
        started = time.perf_counter()
        if self._since is None:
            self._since = started
        batch = next(self._batches)
        self._waited_seconds += time.perf_counter() - started
        self.step += 1
        return batch

    def take_seconds(self) -> tuple[float, float]:
        """(seconds waited for batches, seconds in all) since the last call.

        The first count begins when the first batch is asked for, and so holds the start of the
        threads and processes.
        """
        now = time.perf_counter()
        waited, total = self._waited_seconds, now - (now if self._since is None else self._since)
        self._waited_seconds = 0.0
        self._since = now
        return waited, total

    def close(self) -> None:
        """Ends threads and processes; batches under way are dropped."""
        self._batches.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
