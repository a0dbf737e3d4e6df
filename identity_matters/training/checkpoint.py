"""Checkpoints that survive a kill at any moment and notice damage.

orbax writes each checkpoint under a temporary name and renames it when it is whole. It restores
wrong numbers without an error if a byte of an array file has flipped, so every checkpoint carries
digests of its arrays and of all the rest (see `checkpoint_contents`).

DIRECTORY/STEP/ is a checkpoint, DIRECTORY/damaged/ holds those that were moved aside.
"""

import concurrent.futures
import os
import warnings
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from identity_matters import json_files
from identity_matters.training import checkpoint_contents as contents
from identity_matters.training.checkpoint_contents import CheckpointMismatchError

# Failures that say nothing about the files: the checkpoint stays where it is.
_NOT_DAMAGE = (CheckpointMismatchError, MemoryError, PermissionError)


class Checkpoints:
    """The newest few states of one run in one directory; of several processes, one uses it.

    Args:
      directory: where they go, made when the first one is saved; a ``gs://`` path will do.
      settings: JSON-able; what a checkpoint must agree on with the run that restores it.
      keep: how many of the newest checkpoints stay.
      on_warning: called with one line for each damaged checkpoint.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        settings: dict,
        keep: int = 2,
        on_warning: Callable[[str], None] = warnings.warn,
    ):
        if keep < 1:
            raise ValueError(f"keep must be at least 1, got {keep}")
        directory = str(directory)
        self.directory = directory if "://" in directory else os.path.abspath(directory)
        self._settings = contents.as_json(settings)
        self._keep = keep
        self._on_warning = on_warning
        self._store: Any = None
        self._pending: concurrent.futures.Future | None = None
        self._executor = concurrent.futures.ThreadPoolExecutor(1, "checkpoint")

    def restore(self, like: Any) -> tuple | None:
        """The newest checkpoint that is whole, or None where there is none.

        Damaged ones newer than it are moved to DIRECTORY/damaged/, each with a warning.

        Args:
          like: a pytree with the shapes and dtypes to expect; `jax.ShapeDtypeStruct` will do.
        Returns:
          (step, state, extra): `state` like `like`, of NumPy arrays; `extra` as it was saved.
        Raises:
          CheckpointMismatchError: the newest whole checkpoint has other settings, or an array of
            another name, shape or dtype; the message names it and both values.
        """
        if not _path(self.directory).exists():
            return None
        damaged, found = {}, None
        with self._open(for_writing=False) as store:
            for step in reversed(store.steps()):
                try:
                    found = step, *self._read(store, step, like)
                    break
                except _NOT_DAMAGE:
                    raise
                # orbax raises bare Exception too, by what is damaged.
                except Exception as error:
                    damaged[step] = error
        # Only now: had the one before been of another run, nothing would have been touched.
        instead = "there is no older one" if found is None else f"checkpoint {found[0]} is used"
        for step, failure in damaged.items():
            target = self._move_aside(step)
            reason = (str(failure).strip().splitlines() or [""])[0]
            self._on_warning(
                f"checkpoint {step} is damaged ({type(failure).__name__}: {reason}) and was moved"
                f" to {target}; {instead}"
            )
        return found

    def save(self, step: int, state: Any, extra: dict) -> None:
        """Writes a checkpoint in the background; waits first for the one before.

        Args:
          step: larger than that of every checkpoint there.
          state: a pytree of NumPy arrays that nobody changes afterwards.
          extra: JSON-able.
        Raises:
          whatever made the previous save fail. The next `save`, `wait` or `close` raises what makes
          this one fail, a ValueError if `step` is not larger.
        """
        self.wait()
        self._pending = self._executor.submit(self._write, step, state, extra)

    def wait(self) -> None:
        """Returns when everything saved is on disk; raises what made a save fail."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()
        if self._store is not None:
            self._store.wait()

    def close(self) -> None:
        """Waits, and lets the threads go."""
        try:
            self.wait()
        finally:
            self._executor.shutdown()
            if self._store is not None:
                self._store.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def _write(self, step: int, state, extra: dict) -> None:
        if self._store is None:
            self._store = self._open(for_writing=True)
        arrays = {name: np.asarray(leaf) for name, leaf in contents.named_leaves(state).items()}
        self._store.save(step, arrays, contents.seal(step, self._settings, arrays, extra))

    def _read(self, store, step: int, like):
        """(state, extra) of one checkpoint; raises on mismatch, and anything at all on damage."""
        body = contents.unseal(store.read_metadata(step), step)
        expected = contents.named_leaves(like)
        where = f"the checkpoint {self.directory}/{step}"
        contents.check_same_run(where, body, self._settings, expected)
        arrays = store.read_arrays(step, expected)
        contents.check_digest(body, arrays)
        state = jax.tree.unflatten(jax.tree.structure(like), list(arrays.values()))
        return state, json_files.from_json(body["extra"])

    def _open(self, *, for_writing: bool):
        from identity_matters.training.orbax_store import OrbaxStore

        return OrbaxStore(self.directory, keep=self._keep, for_writing=for_writing)

    def _move_aside(self, step: int):
        """Renames a checkpoint so that orbax no longer sees it; returns where it is now."""
        aside = _path(self.directory) / "damaged"
        aside.mkdir(parents=True, exist_ok=True)
        earlier = sum(path.name.split(".")[0] == str(step) for path in aside.iterdir())
        target = aside / (f"{step}.{earlier}" if earlier else str(step))
        return (_path(self.directory) / str(step)).rename(target)


def delete(directory: str | os.PathLike[str]) -> None:
    """Removes a directory of checkpoints, which nobody may be writing, if it is there."""
    path = _path(str(directory))
    if path.exists():
        path.rmtree()


def _path(directory: str):
    """A path that may be ``gs://``."""
    from etils import epath

    return epath.Path(directory)
