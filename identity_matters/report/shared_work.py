"""A list whose items several processes compute, each forked from this one.

What is computed need not be picklable, only the results.
"""

import multiprocessing
import pickle
import sys
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple, TypeVar

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


class _Worker(NamedTuple):
    """Another process, and the end of the pipe from which its results are read."""

    process: BaseProcess
    results: Connection


def compute(
    function: Callable[[_Item], _Result], items: Sequence[_Item], processes: int
) -> list[_Result]:
    """``[function(item) for item in items]``, computed by several processes.

    Of p processes each computes every p-th item. Do not use more than one once JAX has
    started threads: a forked child may wait for ever for a lock that one of them held.
    Only Linux can be relied on to fork Python safely. Elsewhere this process computes
    all items.

    Args:
      function: makes a picklable result of an item.
      items: what it is called with.
      processes: the most processes to use, this one included.
    Raises:
      ChildProcessError: one of the processes was killed, or its error cannot be sent.
      Exception: what `function` raises, in whichever process. No process is left.
    """
    processes = min(processes, len(items)) if sys.platform == "linux" else 1
    if processes <= 1:
        return [function(item) for item in items]
    workers: list[_Worker] = []
    try:
        for share in range(1, processes):
            workers.append(_start(function, items[share::processes], workers))
        shares = [[function(item) for item in items[::processes]]]
        shares += [_received(worker.results) for worker in workers]
    except BaseException:
        for worker in workers:
            worker.process.terminate()
        raise
    finally:
        for worker in workers:
            worker.process.join()
            worker.results.close()
    return [
        shares[place % processes][place // processes] for place in range(len(items))
    ]


def _start(function: Callable, items: Sequence, earlier: list[_Worker]) -> _Worker:
    """A process that computes these items."""
    forking = multiprocessing.get_context("fork")
    results, of_child = forking.Pipe(duplex=False)
    # If the child kept these ends, it would not notice that this process has ended.
    of_parent = [results, *(worker.results for worker in earlier)]
    process = forking.Process(
        target=_compute_and_send,
        args=(of_child, of_parent, function, items),
        daemon=True,
    )
    process.start()
    of_child.close()  # so that reading ends if the child does
    return _Worker(process, results)


def _compute_and_send(
    connection: Connection,
    of_parent: list[Connection],
    function: Callable,
    items: Sequence,
) -> None:
    """What a child does. Ctrl-C reaches it as well, and ends it silently."""
    for end in of_parent:
        end.close()
    try:
        connection.send([function(item) for item in items])
    except KeyboardInterrupt:
        pass
    except Exception as error:
        connection.send(_sendable(error))


def _sendable(error: Exception) -> Exception:
    """The error, or one that says the same if it would not arrive as it is."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return ChildProcessError(f"{type(error).__name__}: {error}")
    return error


def _received(connection: Connection) -> list[Any]:
    """The results that a child sends; raises what it raised."""
    try:
        results = connection.recv()
    except EOFError:
        raise ChildProcessError("a process ended before it sent its results") from None
    if isinstance(results, Exception):
        raise results
    return results
