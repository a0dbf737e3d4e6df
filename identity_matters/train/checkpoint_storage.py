"""One directory of checkpoints on a disk or in a bucket, as orbax keeps them.

orbax writes each checkpoint in the background under a temporary name and renames it
when it is complete. It does not notice a flipped byte in an array file, so `Storage`
writes digests beside the arrays and compares them whenever it reads. No other module
knows orbax.
"""

import contextlib
import logging
import os
import re
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from etils import epath

from identity_matters import runs
from identity_matters.paths import expand_home
from identity_matters.train import digests, trees

KEPT = 2  # how many of the newest checkpoints are kept
# Words of errors of storage that cannot be read right now. They do not mean that a file
# is damaged. OS error 2 is not among them: that is a missing file.
_FAILS_NOW = re.compile(
    r"UNAVAILABLE|DEADLINE_EXCEEDED|PERMISSION_DENIED|UNAUTHENTICATED|RESOURCE_EXHAUSTED"
    r"|OS error (?!2\b)\d+|Input/output error|Stale file handle"
)


class CheckpointError(Exception):
    """The checkpoints cannot be used.

    Nothing has been changed. The message says why.
    """


class MissingCheckpointError(CheckpointError):
    """There is no checkpoint where one was to be read."""


class DamageError(Exception):
    """A checkpoint does not come back as it was saved.

    The message is the error that showed it, in one line.
    """


class Storage(contextlib.AbstractContextManager):
    """Named arrays and metadata, with their digests, for each step in one directory.

    Args:
      directory: as of `Checkpoints`; a leading ``~`` is your home.
      removes_unfinished: whether what a killed process has left is deleted. Not for
        those who only read: the process that writes it may be alive.
    """

    def __init__(self, directory: str | os.PathLike[str], *, removes_unfinished: bool):
        path = expand_home(directory)
        if not path:
            raise CheckpointError("the directory's name is empty")
        self.directory = epath.Path(path if "://" in path else os.path.abspath(path))
        self._removes_unfinished = removes_unfinished
        self._opened: Any = None  # orbax's manager, once something is read or written

    def write(
        self, step: int, *, arrays: dict[str, np.ndarray], metadata: dict
    ) -> None:
        """Starts writing a checkpoint; see `Checkpoints.save`.

        Args:
          step: must be larger than that of every checkpoint so far.
          arrays: by name.
          metadata: JSON-able after `runs.to_json`. Its "step" is `step`; its "arrays"
            and, if there are any, "constants" are the `digests.fingerprints` of
            `arrays`.
        """
        import orbax.checkpoint as ocp

        # orbax fails on an array without values, and then stalls the end of the
        # process.
        written = {name: x for name, x in arrays.items() if x.size}
        if not written:
            raise trees.NotStorableError(
                "there is nothing to save: no array has any values"
            )
        sealed = digests.seal(metadata)
        if self.directory.exists() and not self.directory.is_dir():
            raise CheckpointError(
                f"{self.directory} is a file; checkpoints need a directory"
            )
        newest = self._manager.latest_step()
        if newest is not None and step <= newest:
            # orbax would write nothing and return False.
            raise CheckpointError(
                f"{self.directory} holds checkpoint {newest} already: use another"
                " directory"
            )
        self._manager.save(
            step,
            args=ocp.args.Composite(
                state=ocp.args.StandardSave(written), metadata=ocp.args.JsonSave(sealed)
            ),
        )

    def steps_newest_first(self) -> list[int]:
        """The steps of the complete checkpoints, damaged or not.

        Raises CheckpointError if the directory is a file or cannot be read.
        """
        if not self.directory.exists():
            return []
        if not self.directory.is_dir():
            raise CheckpointError(
                f"{self.directory} is a file; a checkpoint is a directory"
            )
        try:
            return sorted(self._manager.all_steps(), reverse=True)
        except Exception as error:  # of any type, as that of a damaged checkpoint
            line = runs.first_line(error)
            raise CheckpointError(f"{self.directory} cannot be read ({line})") from None

    def read(
        self, step: int, check: Callable[[dict], None] = lambda metadata: None
    ) -> tuple[dict, dict[str, np.ndarray]]:
        """(metadata, arrays by name) of one checkpoint, exactly as they were saved.

        Args:
          step: one of `steps_newest_first`.
          check: called with the metadata before the arrays are read; it raises
            CheckpointError if they do not fit.
        Raises:
          DamageError: something is missing or is not what was saved.
          CheckpointError: storage fails, or `check` has raised it.
        """
        try:
            metadata = self._read_metadata(step)
            check(metadata)
            return metadata, self._read_arrays(step, metadata)
        except (CheckpointError, MemoryError):
            raise
        # What orbax raises depends on the damage; it can be a bare Exception.
        except Exception as error:
            line = f"{type(error).__name__}: {runs.first_line(error)}"
            if _is_failure_of_storage(error):
                raise CheckpointError(
                    f"checkpoint {step} in {self.directory} cannot be read now ({line})"
                ) from error
            raise DamageError(line) from error

    def move_aside(self, step: int) -> epath.Path:
        """Renames a checkpoint so that orbax does not see it; returns its new path."""
        aside = self.directory / "damaged"
        aside.mkdir(parents=True, exist_ok=True)
        earlier = sum(path.name.split(".")[0] == str(step) for path in aside.iterdir())
        target = aside / (f"{step}.{earlier}" if earlier else str(step))
        moved = (self.directory / str(step)).rename(target)
        self._manager.reload()  # it keeps a list of the checkpoints
        return moved

    def close(self) -> None:
        """Waits until every checkpoint is on disk; raises if one failed."""
        if self._opened is not None:
            self._opened.close()

    def __exit__(self, *_) -> None:
        self.close()

    @property
    def _manager(self) -> Any:
        """orbax's manager of the directory; both are made if they are missing."""
        if self._opened is None:
            self._opened = self._open()
        return self._opened

    def _open(self) -> Any:
        """Makes the directory if it is missing, and orbax's manager of it."""
        import orbax.checkpoint as ocp  # slow, and not all callers save or restore

        # orbax logs some ten lines per save to absl's logger, which the whole program
        # shares.
        logging.getLogger("absl").addFilter(_is_not_of_orbax)
        # All processes hold the same state: one writes it, and the others need no
        # storage.
        process = jax.process_index()
        alone = ocp.options.MultiprocessingOptions(
            primary_host=process,
            active_processes={process},
            barrier_sync_key_prefix=f"process{process}",
        )
        self.directory.mkdir(parents=True, exist_ok=True)
        return ocp.CheckpointManager(
            self.directory,
            options=ocp.CheckpointManagerOptions(
                max_to_keep=KEPT,
                create=False,
                cleanup_tmp_directories=self._removes_unfinished,
                multiprocessing_options=alone,
            ),
        )

    def _read_metadata(self, step: int) -> dict:
        """The metadata of one checkpoint; raises ValueError if they were changed."""
        import orbax.checkpoint as ocp

        sealed = self._manager.restore(
            step, args=ocp.args.Composite(metadata=ocp.args.JsonRestore())
        )["metadata"]
        metadata = digests.unseal(sealed)
        if metadata["step"] != step:
            raise ValueError(f"it was saved as step {metadata['step']}")
        return metadata

    def _read_arrays(self, step: int, metadata: dict) -> dict[str, np.ndarray]:
        """The arrays of one checkpoint; raises ValueError if they were changed."""
        import orbax.checkpoint as ocp

        arrays = self._manager.restore(
            step, args=ocp.args.Composite(state=ocp.args.StandardRestore())
        )["state"]
        saved = metadata["arrays"] | metadata.get("constants", {})
        for name, (described, _) in saved.items():
            if name not in arrays:
                arrays[name] = digests.array_not_written(described)
        if digests.fingerprints(arrays) != saved:
            raise ValueError("its arrays are not those that were saved")
        return arrays


def _is_not_of_orbax(record: logging.LogRecord) -> bool:
    return "/orbax/" not in record.pathname


def _is_failure_of_storage(error: Exception) -> bool:
    """Whether storage cannot be read right now, which does not mean damage."""
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return bool(_FAILS_NOW.search(str(error)))
    return isinstance(error, OSError) or bool(_FAILS_NOW.search(str(error)))
