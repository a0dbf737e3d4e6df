"""Trainings on several processes: all of them measure, and process 0 writes.

Before anything is written, they compare what must be the same in all of them.
"""

import contextlib
import json
import signal
import sys
import threading

import jax
from absl import flags
from etils import epath

from experiments.run import endings
from experiments.run.signals import Interrupted, Stop
from identity_matters import environment, runs
from identity_matters.train import multihost

# How long a process that has come to its end waits for the others to come to theirs.
# After a common end: process 0 still writes, and JAX has a limit of its own.
_DONE_SECONDS = 300
# After a signal: process 0 writes a checkpoint, but whoever sent it will not wait long.
_STOPPED_SECONDS = 60
# After an error: either it is common, so that they end in a moment, or this process has
# failed alone. Then they wait for it, and JAX ends them only when it is gone.
_FAILED_SECONDS = 10


def join() -> bool:
    """Joins the other processes if the flags ask to; True if it did.

    Raises:
      ValueError: the flags do not fit together, or a process did not come.
    """
    address = flags.FLAGS.coordinator_address
    count = flags.FLAGS.num_processes
    index = flags.FLAGS.process_id
    given = [value is not None for value in (address, count, index)]
    if not flags.FLAGS.distributed and not any(given):
        return False
    if any(given) and not all(given):
        raise ValueError(
            "give all of --coordinator_address, --num_processes and --process_id"
        )
    if index == 0:
        print(
            f"process 0 of {count} waits for the others at {address},"
            f" {multihost.START_TIMEOUT_SECONDS} s at most",
            file=sys.stderr,
        )
    multihost.initialize(
        coordinator_address=address, num_processes=count, process_id=index
    )
    # JAX has put a handler of SIGTERM below Python's, which would never see the signal.
    signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGTERM))
    return True


def leave(ending: endings.Ending) -> None:
    """Waits until all processes have come to their end, or for as long as is sensible.

    `ending` is that of this process.
    """

    def wait():
        # A process that is missing failed at the very end, when all was written.
        with contextlib.suppress(RuntimeError):
            jax.distributed.shutdown()

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    waiting.join(_seconds_to_wait(ending))


def _seconds_to_wait(ending: endings.Ending) -> float:
    if ending == endings.DONE or ending.code == endings.DIVERGED_CODE:
        return _DONE_SECONDS
    if ending.code in (endings.INTERRUPTED_CODE, endings.CTRL_C_CODE):
        return _STOPPED_SECONDS
    # A run that was skipped, too: the others may not have skipped theirs.
    return _FAILED_SECONDS


def check_stop(stop: Stop) -> None:
    """`Stop.check` in all processes, if any of them was told to stop.

    If one stopped alone, the others would wait for it.
    """
    if multihost.any_process(stop.requested is not None):
        raise stop.requested or Interrupted


def require_alike(settings: dict, others: dict, error: Exception | None) -> None:
    """`multihost.check_agreement` on `settings` and `others`, JSON-able.

    Also on what decides the programs of a run: its code, packages, settings of JAX and
    variables. Processes with different programs would wait for each other for ever.
    """
    program = environment.what_decides_numbers()
    # The first difference by name is shown: a commit says more than a digest of code.
    program["digest_of_code"] = program.pop("code")
    values = runs.flat(runs.to_json(settings)) | program | others
    multihost.check_agreement(values, error)


def open_run(results_dir, **fields) -> "runs.RunDir | SilentRun":
    """`runs.RunDir.create` on process 0, a `SilentRun` elsewhere.

    Raises:
      runs.RunError: in all processes, if that fails.
    """
    if multihost.is_process_0():
        return multihost.make_and_tell(
            lambda: runs.RunDir.create(results_dir, **fields),
            describe=SilentRun.arguments_of,
        )
    try:
        return SilentRun(**multihost.told_by_process_0())
    except multihost.Process0Error as error:
        raise runs.RunError(str(error)) from None


class SilentRun:
    """Stands in for `runs.RunDir` where nothing is written: the same, in memory."""

    def __init__(self, path: str, name: str, records: list):
        self.path = epath.Path(path)
        self.name = name
        self.records = runs.from_json(records)

    @staticmethod
    def arguments_of(run_dir: runs.RunDir) -> dict:
        """What makes a `SilentRun` that stands in for this run, JSON-able."""
        return {
            "path": str(run_dir.path),
            "name": run_dir.name,
            "records": runs.to_json(run_dir.records),
        }

    def append(self, record: dict, *, may_wait: bool = False) -> None:
        """Keeps a record as it would be read back from the file."""
        as_read = runs.from_json(json.loads(json.dumps(runs.to_json(record))))
        self.records.append(as_read)

    def flush(self) -> None:
        """Does nothing: process 0 writes."""

    def rewind(self, count: int) -> None:
        """Keeps the first `count` records."""
        del self.records[count:]

    def finish(self, status: str, **fields) -> dict:
        """The summary, which process 0 writes."""
        return {"status": status, **fields}
