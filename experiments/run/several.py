"""Runs on several processes: all of them measure, and process 0 writes.

Before anything is written, they compare what must be the same in all of them.
"""

import json
import sys

import jax
from absl import flags
from etils import epath

from identity_matters import environment, runs
from identity_matters.train import multihost


def join() -> bool:
    """Joins the other processes if the flags ask to; True if it did. ValueError if it
    fails.
    """
    chosen = flags.FLAGS
    explicit = (chosen.coordinator_address, chosen.num_processes, chosen.process_id)
    if not chosen.distributed and all(value is None for value in explicit):
        return False
    if None in explicit and explicit != (None, None, None):
        raise ValueError(
            "give all of --coordinator_address, --num_processes and --process_id"
        )
    if chosen.process_id == 0:
        where = (
            f"at {chosen.coordinator_address}, {multihost.START_TIMEOUT_SECONDS} s at"
            " most"
        )
        print(
            f"process 0 of {chosen.num_processes} waits for the others {where}",
            file=sys.stderr,
        )
    multihost.initialize(*explicit)
    return True


def require_alike(settings: dict, others: dict, error: Exception | None) -> None:
    """`multihost.check_agreement` on versions, `settings` and `others`, which are
    JSON-able.
    """
    versions = {"jax": jax.__version__, "commit": environment.code_version()["commit"]}
    multihost.check_agreement(
        runs.flat(runs.to_json(settings)) | versions | others, error
    )


def open_run(results_dir, **fields):
    """`runs.RunDir.create` on process 0, a `SilentRun` elsewhere; RunError in all if
    that fails.
    """
    made = []

    def make():
        made.append(runs.RunDir.create(results_dir, **fields))
        records = runs.to_json(made[0].records)
        return {"path": str(made[0].path), "name": made[0].name, "records": records}

    try:
        found = multihost.on_process_0(make)
    except multihost.Process0Error as error:
        raise runs.RunError(str(error)) from None
    return made[0] if made else SilentRun(**found)


class SilentRun:
    """Stands in for `runs.RunDir` where nothing is written: the same records, in
    memory.
    """

    def __init__(self, path: str, name: str, records: list):
        self.path = epath.Path(path)
        self.name = name
        self.records = runs.from_json(records)

    def append(self, record: dict) -> None:
        self.records.append(
            runs.from_json(json.loads(json.dumps(runs.to_json(record))))
        )

    def rewind(self, count: int) -> None:
        del self.records[count:]

    def finish(self, status: str, **fields) -> dict:
        return {"status": status, **fields}
