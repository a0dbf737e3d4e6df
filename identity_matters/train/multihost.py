"""Joins processes, checks that they agree, and sends them what process 0 read.

Process 0 writes records and checkpoints and sends the others what it restored, so no
other process needs access to that storage. If one process is lost, the others end, too:
those that wait for it in a collective get an error, and JAX aborts the rest after
`HEARTBEAT_TIMEOUT_SECONDS` of silence.
"""

import collections
import json
import re
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils

from identity_matters import runs

# slow storage blocks a process for much less; JAX's default is 100
HEARTBEAT_TIMEOUT_SECONDS = 30
# how long processes wait for one another; also JAX's default
START_TIMEOUT_SECONDS = 300
# JAX would abort with a C++ stack trace, so its own timeout is this much longer than
# ours.
_ABORT_SECONDS = 60

_Made = TypeVar("_Made")


class Process0Error(Exception):
    """Process 0 failed while the others waited for it.

    The message repeats its error.
    """


def initialize(
    coordinator_address: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
    heartbeat_timeout_seconds: int = HEARTBEAT_TIMEOUT_SECONDS,
    start_timeout_seconds: float = START_TIMEOUT_SECONDS,
) -> None:
    """Joins the other processes; must come before anything that touches devices.

    JAX detects the cluster on Cloud TPU, also in GKE, SLURM and Open MPI; elsewhere in
    Kubernetes only with the package `kubernetes`, which is no dependency. Otherwise,
    pass the "HOST:PORT" of process 0, the number of processes and the index of this
    one, from 0. Raises ValueError if the three do not fit together, the address is not
    HOST:PORT, JAX detects no cluster, or a process does not join in time. Then exit
    within a minute, or JAX aborts.
    """
    if coordinator_address is not None and not re.fullmatch(
        r".+:\d+", coordinator_address
    ):
        raise ValueError(
            f"coordinator_address must be HOST:PORT, got {coordinator_address!r}"
        )
    failures = []

    def join():
        try:
            jax.distributed.initialize(
                coordinator_address,
                num_processes,
                process_id,
                initialization_timeout=int(start_timeout_seconds) + _ABORT_SECONDS,
                heartbeat_timeout_seconds=heartbeat_timeout_seconds,
            )
        except Exception as error:
            failures.append(runs.first_line(error))

    # In a second thread, so that this one handles signals and times out before JAX
    # aborts.
    joining = threading.Thread(target=join, daemon=True)
    joining.start()
    joining.join(start_timeout_seconds)
    if joining.is_alive():
        failures.append(f"not all of them came within {start_timeout_seconds:.0f} s")
    if failures:
        given = f"{coordinator_address=}, {num_processes=}, {process_id=}"
        raise ValueError(f"the processes could not be joined: {failures[0]} ({given})")


def is_process_0() -> bool:
    """Whether this process is the one that writes."""
    return jax.process_index() == 0


def gather(value: Any) -> list:
    """The JSON-able `value` of every process, in process order."""
    encoded = json.dumps(value).encode()
    if jax.process_count() == 1:
        return [json.loads(encoded)]
    sizes = multihost_utils.process_allgather(np.int32(len(encoded)))
    # All send the same number of bytes. JSON may end with blanks.
    padded = np.frombuffer(encoded.ljust(max(sizes)), np.uint8)
    return [json.loads(bytes(row)) for row in multihost_utils.process_allgather(padded)]


def any_process(flag: bool) -> bool:
    """Whether `flag` is True in this process or in another, which all make this call.

    So it can be decided in common what only some were told, such as to stop.
    """
    return any(gather(flag))


def check_agreement(values: dict, error: Exception | None = None) -> None:
    """Raises ValueError, in all processes, unless `values` are the same in all of them.

    Values are JSON-able; those of `runs.PLACE_SETTINGS` may differ. An `error` in one
    process makes all of them raise, and the message names that process. A process alone
    raises `error` itself. All must also have the same number of devices.
    """
    _require_equally_many_devices()
    gathered = gather({"values": values, "error": error and runs.first_line(error)})
    if error is not None and len(gathered) == 1:
        raise error
    for index, other in enumerate(gathered):
        if other["error"] is not None:
            raise ValueError(f"process {index}: {other['error']}")
    for index, other in enumerate(gathered):
        differences = runs.differences(gathered[0]["values"], other["values"])
        if differences:
            name, (value_of_0, value) = next(iter(differences.items()))
            raise ValueError(
                f"process {index} has {name}={value!r}, process 0 has"
                f" {name}={value_of_0!r}"
            )


def _require_equally_many_devices() -> None:
    """ValueError in all processes unless they have equally many devices.

    JAX cannot `gather` then.
    """
    counts = collections.Counter(device.process_index for device in jax.devices())
    for index, count in counts.items():
        if count != counts[0]:
            raise ValueError(
                f"process {index} has devices={count}, process 0 has"
                f" devices={counts[0]}: all must have the same number;"
                " JAX_NUM_CPU_DEVICES sets that of CPUs"
            )


def restored_by_process_0(
    restore: Callable[[], tuple[Any, Any] | None], *, like: Any
) -> tuple[Any, Any] | None:
    """Calls ``restore()`` in process 0; returns its result in all processes.

    Args:
      restore: returns (something JSON-able, a tree of arrays), or None if there is
        nothing to restore.
      like: a tree with the shapes and dtypes of that tree, the same in all processes.
    Raises:
      Process0Error: as `told_by_process_0` does.
    """
    if is_process_0():
        restored = make_and_tell(restore, describe=_without_arrays)
        if restored is None:
            return None
        description, arrays = restored
    else:
        description = told_by_process_0()
        if description is None:
            return None
        arrays = like
    return description, arrays_from_process_0(arrays)


def _without_arrays(restored: tuple[Any, Any] | None) -> Any:
    """The part of what `restored_by_process_0` restores that is sent as JSON."""
    return None if restored is None else restored[0]


def make_and_tell(
    make: Callable[[], _Made], *, describe: Callable[[_Made], Any]
) -> _Made:
    """Process 0 makes something, and tells the others what.

    Each call in process 0 meets one call of `told_by_process_0` in every other process:
    both make one `gather`, which waits for all of them.

    Args:
      make: makes anything.
      describe: of what was made, something JSON-able.
    Returns:
      What was made. If either function fails, its error is raised here, and the others
      are told.
    """
    try:
        made = make()
        description = describe(made)
    except Exception as error:
        gather({"error": f"{type(error).__name__}: {error}"})
        raise
    gather({"description": description})
    return made


def told_by_process_0() -> Any:
    """What process 0 describes in `make_and_tell`, in another process.

    Raises Process0Error if process 0 failed to make it.
    """
    sent = gather(None)[0]
    if "error" in sent:
        raise Process0Error(sent["error"])
    return sent["description"]


def arrays_from_process_0(tree: Any) -> Any:
    """Broadcasts the arrays of process 0, bit for bit.

    The others pass equal shapes and dtypes.
    """
    if jax.process_count() == 1:
        return tree

    def send(leaf):
        # Sent as bytes: JAX's broadcast is a sum, in which -0.0 would lose its sign.
        as_bytes = np.ascontiguousarray(leaf).reshape(-1).view(np.uint8)
        sent = np.asarray(multihost_utils.broadcast_one_to_all(as_bytes), np.uint8)
        return sent.view(leaf.dtype).reshape(leaf.shape)

    return jax.tree.map(send, tree)
