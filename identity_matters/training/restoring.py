"""The newest checkpoint for all processes of a run, of which the first reads it."""

from typing import Any

from identity_matters.training import processes
from identity_matters.training.checkpoint import Checkpoints
from identity_matters.training.checkpoint_contents import CheckpointMismatchError


def restore_newest(checkpoints: Checkpoints, like: Any, key_data: list) -> tuple | None:
    """(step, state, extra) of the newest whole checkpoint, or None where there is none.

    Args:
      like: see `Checkpoints.restore`.
      key_data: of the run's root key; extra["key"] must be the same.
    Raises:
      CheckpointMismatchError: see `Checkpoints.restore`, or a checkpoint of another key.
      processes.FirstProcessError: the first process raised this or another error.
    """
    state = None

    def read():
        nonlocal state
        found = checkpoints.restore(like)
        if found is None:
            return None
        step, state, extra = found
        if extra["key"] != key_data:
            raise CheckpointMismatchError(
                f"the checkpoint {checkpoints.directory}/{step} is of another run:"
                f" its key is {extra['key']} there and {key_data} here"
            )
        return {"step": step, "extra": extra}

    found = processes.on_first(read)
    if found is None:
        return None
    return found["step"], processes.arrays_from_first(state, like), found["extra"]
