"""A list whose items several processes compute, each forked from this one.

What is computed need not be picklable, only the results. The processes end by
themselves once no item is left, so none outlives this one for long if it is killed.
"""

import multiprocessing
import sys
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any, TypeVar

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def compute(
    function: Callable[[_Item], _Result], items: Sequence[_Item], processes: int
) -> list[_Result]:
    """``[function(item) for item in items]``, computed by several processes.

    Do not call it with more than one process once JAX has started threads: a fork would
    wait for them for ever. Only Linux can be relied on to fork Python safely. Elsewhere
    this process computes all items.

    Args:
      function: makes a picklable result of an item.
      items: are taken in order, the next one by whichever process is free.
      processes: at most so many, this one included.
    Raises:
      ChildProcessError: one of the processes was killed, or could not send its results.
      Exception: what `function` raises, in whichever process.
    """
    if sys.platform != "linux":
        processes = 1
    forking = multiprocessing.get_context("fork")
    next_index = forking.Value("l", 0)
    connections = []
    for _ in range(min(processes, len(items)) - 1):
        connection, of_child = forking.Pipe(duplex=False)
        arguments = (of_child, function, items, next_index)
        forking.Process(target=_compute_and_send, args=arguments, daemon=True).start()
        of_child.close()  # so that reading ends if the child does
        connections.append(connection)
    results = _compute_the_next(function, items, next_index)
    for connection in connections:
        results |= _received(connection)
    return [results[index] for index in range(len(items))]


def _compute_the_next(
    function: Callable, items: Sequence, next_index: Any
) -> dict[int, Any]:
    """The results of those items that no other process has taken, by their places."""
    results: dict[int, Any] = {}
    while True:
        with next_index.get_lock():
            index = next_index.value
            next_index.value += 1
        if index >= len(items):
            return results
        results[index] = function(items[index])


def _compute_and_send(
    connection: Connection, function: Callable, items: Sequence, next_index: Any
) -> None:
    """What a child does. Ctrl-C reaches it as well, and ends it without a word."""
    try:
        connection.send(_compute_the_next(function, items, next_index))
    except KeyboardInterrupt:
        pass
    except Exception as error:
        connection.send(error)


def _received(connection: Connection) -> dict[int, Any]:
    """The results that a child sends; raises what it raised."""
    try:
        results = connection.recv()
    except EOFError:
        raise ChildProcessError("a process ended before it sent its results") from None
    if isinstance(results, Exception):
        raise results
    return results
