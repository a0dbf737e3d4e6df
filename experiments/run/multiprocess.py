"""Trainings on several processes: all of them measure, and process 0 writes.

Before anything is written, they compare what must be the same in all of them.
"""

import json
import sys

import jax
from absl import flags
from etils import epath

from identity_matters import code_version, runs
from identity_matters.train import multihost


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
    return True


def leave() -> None:
    """Waits until all processes have come to their end."""
    jax.distributed.shutdown()


def require_alike(settings: dict, others: dict, error: Exception | None) -> None:
    """`multihost.check_agreement` on versions, `settings` and `others`, JSON-able."""
    commit = code_version.code_version()["commit"]
    versions = {"jax": jax.__version__, "commit": commit}
    values = runs.flat(runs.to_json(settings)) | versions | others
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
