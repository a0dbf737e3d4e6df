"""One directory of checkpoints as orbax keeps it, for one process; importing it takes a second.

orbax could write with all processes of a run at once. Their states are the same, so that one of
them is enough, and the others need not see its storage.
"""

import logging

import jax
import numpy as np
import orbax.checkpoint as ocp
from etils import epath


class OrbaxStore:
    """Named NumPy arrays and JSON-able metadata by step.

    Args:
      directory: absolute, or ``gs://``.
      keep: how many of the newest steps stay.
      for_writing: make the directory, and clear away what a killed process left half-written.
    """

    def __init__(self, directory: str, *, keep: int, for_writing: bool):
        _quieten_orbax()
        alone = ocp.options.MultiprocessingOptions()
        if jax.process_count() > 1:
            # Whoever opens a store has it to itself: the others are told what was read.
            own = jax.process_index()
            alone = ocp.options.MultiprocessingOptions(
                primary_host=own, active_processes={own}, barrier_sync_key_prefix=f"process{own}"
            )
        if for_writing:
            epath.Path(directory).mkdir(parents=True, exist_ok=True)
        registry = ocp.type_handlers.create_type_handler_registry((np.ndarray, _OneByOne()))
        self._manager = ocp.CheckpointManager(
            directory,
            options=ocp.CheckpointManagerOptions(
                max_to_keep=keep,
                create=False,
                cleanup_tmp_directories=for_writing,
                multiprocessing_options=alone,
            ),
            item_handlers={
                "state": ocp.PyTreeCheckpointHandler(type_handler_registry=registry),
                "metadata": ocp.JsonCheckpointHandler(),
            },
        )

    def steps(self) -> list[int]:
        return sorted(self._manager.all_steps())

    def save(self, step: int, arrays: dict, metadata: dict) -> None:
        """Starts to write a step; raises ValueError unless it is above those there."""
        # orbax would write nothing and return False.
        if self.steps() and step <= self.steps()[-1]:
            raise ValueError(
                f"step must be above {self.steps()[-1]}, the newest in {self._manager.directory},"
                f" got {step}"
            )
        items = {
            "state": ocp.args.PyTreeSave(arrays),
            "metadata": ocp.args.JsonSave(metadata),
        }
        self._manager.save(step, args=ocp.args.Composite(**items))

    def read_metadata(self, step: int) -> dict:
        """Raises anything at all where files are damaged."""
        items = {"metadata": ocp.args.JsonRestore()}
        return self._manager.restore(step, args=ocp.args.Composite(**items))["metadata"]

    def read_arrays(self, step: int, shapes: dict) -> dict:
        """The arrays of `shapes`, which need a shape and a dtype; raises as `read_metadata`."""
        blank = {name: np.empty(leaf.shape, leaf.dtype) for name, leaf in shapes.items()}
        how = ocp.args.PyTreeRestore(
            blank, restore_args=ocp.checkpoint_utils.construct_restore_args(blank)
        )
        state = self._manager.restore(step, args=ocp.args.Composite(state=how))["state"]
        return {name: np.asarray(state[name]) for name in blank}

    def wait(self) -> None:
        """Returns when everything is on disk; raises what went wrong."""
        self._manager.wait_until_finished()

    def close(self) -> None:
        self._manager.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class _OneByOne(ocp.type_handlers.NumpyHandler):
    """Reads one array after the other.

    orbax reads all at once, gives up at the first that is damaged, and closes its event loop; the
    answers to the others then arrive at a closed loop and are printed as errors of their own.
    """

    async def deserialize(self, infos, args=None):
        arrays = []
        for i, info in enumerate(infos):
            arrays += await super().deserialize([info], None if args is None else [args[i]])
        return arrays


class _NotOrbax(logging.Filter):
    def filter(self, record):
        return "/orbax/" not in record.pathname


_NOT_ORBAX = _NotOrbax()


def _quieten_orbax() -> None:
    """orbax tells some ten lines about each save to absl's logger, which programs share."""
    logging.getLogger("absl").addFilter(_NOT_ORBAX)
