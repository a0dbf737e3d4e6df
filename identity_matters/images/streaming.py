"""Streams of batches, made ahead by threads and processes of grain.

Grain maps over batch numbers, so the position of a stream is a step number; grain's own
iterator state would depend on the number of workers.
"""

import functools
import gc
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

from identity_matters.images.decoding import DataError

# prefetched for each thread that makes them; a batch of 256 takes 39 MB
BATCHES_PER_THREAD = 2


@functools.cache  # one thread in each process is enough
def _end_with_parent() -> None:
    """In a worker process, exits as soon as the parent process has ended."""
    if (parent := multiprocessing.parent_process()) is None:
        return

    def wait():
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def stream(
    make_batch: Callable[[int], dict],
    first: int,
    count: int,
    *,
    threads: int,
    processes: int,
) -> Any:
    """Iterates over ``make_batch(i)`` in order, and makes batches ahead.

    The iterator raises the errors of `make_batch`; its ``close()`` ends the threads and
    processes. Workers pass batches through /dev/shm; if that is too small, the iterator
    raises DataError.

    Args:
      make_batch: picklable.
      first, count: the numbers i are the `count` ones from `first`.
      threads: how many batches each worker makes at the same time: about one per core,
        more if storage is slow to answer.
      processes: the number of workers; 0 makes all batches in this process.
    """
    import grain.python as grain

    batches_ahead = BATCHES_PER_THREAD * threads
    dataset = grain.MapDataset.range(first, first + count).map(
        functools.partial(_make, make_batch)
    )
    dataset = dataset.to_iter_dataset(grain.ReadOptions(threads, batches_ahead))
    if processes:
        options = grain.MultiprocessingOptions(processes, batches_ahead)
        dataset = dataset.mp_prefetch(options)
    return _Stream(iter(dataset))


class _Stream:
    """grain's iterator, which also says what to do if /dev/shm is full."""

    def __init__(self, batches: Any):
        self._batches = batches

    def __iter__(self) -> "_Stream":
        return self

    def __next__(self) -> dict:
        try:
            return next(self._batches)
        except RuntimeError as error:
            # SIGBUS: there is no memory behind the file that the worker writes to.
            if f"exit code -{signal.SIGBUS.value}" not in str(error):
                raise
            raise DataError(
                "/dev/shm is too small for the batches of worker processes; give the"
                " container more (docker run --shm-size=8g), or set"
                " data.worker_processes=0"
            ) from error

    def close(self) -> None:
        self._batches.close()
        # The exception that ended grain's iterator keeps the last batch of each worker
        # in a reference cycle. If that lived until the program ends, its shared memory
        # would be left behind, and Python would warn about it.
        self._batches = _no_batches()
        gc.collect()


def _no_batches() -> Iterator[dict]:
    """An iterator that has ended. Unlike ``iter(())`` it can be closed, also again."""
    yield from ()


def _make(make_batch, number) -> dict:
    _end_with_parent()
    return make_batch(int(number))
