"""Checkpoints that survive a kill at any moment, and notice damage.

orbax writes each checkpoint in the background under a temporary name and renames it when it is
whole. It restores wrong numbers without an error if a byte of an array file has flipped, so the
metadata of a checkpoint hold digests of its arrays and of themselves, and the settings of the run.

DIRECTORY/STEP/ is a checkpoint; DIRECTORY/damaged/ holds those that were moved aside.
"""

import contextlib
import functools
import hashlib
import json
import logging
import os
import re
import warnings
from collections.abc import Callable
from typing import Any

import flax.traverse_util
import jax
import numpy as np
from etils import epath

from identity_matters import runs

# The variables of a net.
COLLECTIONS = ("params", "fixed", "batch_stats")
# How many of the newest checkpoints stay.
KEPT = 2
# How many differences a message names.
_NAMED = 5
# What storage answers that cannot be read now; it says nothing about the files.
_STORAGE = re.compile(
    r"UNAVAILABLE|DEADLINE_EXCEEDED|PERMISSION_DENIED|UNAUTHENTICATED|RESOURCE_EXHAUSTED"
    r"|OS error (?!2\b)\d+|Input/output error|Stale file handle"
)


class CheckpointError(Exception):
    """The checkpoints cannot be used; nothing has been changed. The message says why."""


class Checkpoints(contextlib.AbstractContextManager):
    """The newest few states of one run in one directory; of several processes, one uses it.

    Args:
      directory: where they go, made when the first one is saved; a ``gs://`` path will do.
      settings: JSON-able; only a run with the same settings restores a checkpoint, wherever its
        data lie. None: a reader that takes any.
      on_warning: called with one line for each damaged checkpoint.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        settings: dict | None,
        on_warning: Callable[[str], Any] = warnings.warn,
    ):
        path = os.fspath(directory)
        self.directory = epath.Path(path if "://" in path else os.path.abspath(path))
        self._settings = settings
        self._on_warning = on_warning

    @functools.cached_property
    def _manager(self):
        import orbax.checkpoint as ocp  # takes a second

        # orbax tells some ten lines about each save to absl's logger, which programs share.
        logging.getLogger("absl").addFilter(_is_not_of_orbax)
        # The states of all processes are the same: one writes, the others need no storage.
        own = jax.process_index()
        alone = ocp.options.MultiprocessingOptions(
            primary_host=own, active_processes={own}, barrier_sync_key_prefix=f"process{own}"
        )
        self.directory.mkdir(parents=True, exist_ok=True)
        return ocp.CheckpointManager(
            self.directory,
            options=ocp.CheckpointManagerOptions(
                max_to_keep=KEPT,
                create=False,
                cleanup_tmp_directories=self._settings is not None,
                multiprocessing_options=alone,
            ),
        )

    def save(self, step: int, state: Any, extra: dict) -> None:
        """Begins to write a checkpoint; the next `save` or `close` raises what fails.

        Args:
          step: larger than that of every checkpoint there.
          state: a pytree of NumPy arrays that nobody changes afterwards.
          extra: JSON-able.
        Raises:
          CheckpointError: `step` is not larger.
        """
        import orbax.checkpoint as ocp

        newest = self._manager.latest_step()
        if newest is not None and step <= newest:
            # orbax would write nothing and return False.
            raise CheckpointError(
                f"{self.directory}: checkpoint {newest} is there already, so that {step} cannot be"
                " saved; does another run write here?"
            )
        arrays = {name: np.asarray(leaf) for name, leaf in _named_leaves(state).items()}
        held = {
            "step": step,
            "settings": self._settings,
            "arrays": {name: (_describe(x), _digest(x.tobytes())) for name, x in arrays.items()},
            "extra": extra,
        }
        text = json.dumps(runs.to_json(held), allow_nan=False)
        self._manager.save(
            step,
            args=ocp.args.Composite(
                state=ocp.args.StandardSave(arrays),
                metadata=ocp.args.JsonSave({"text": text, "sha256": _digest(text.encode())}),
            ),
        )

    def restore(self, like: Any = None) -> tuple | None:
        """The newest checkpoint that is whole, or None where there is none at all.

        Damaged ones newer than it are moved to DIRECTORY/damaged/, each with a warning.

        Args:
          like: a pytree with the shapes and dtypes to expect; `jax.ShapeDtypeStruct` will do. None
            takes whatever there is.
        Returns:
          (step, state, extra): `state` of NumPy arrays, like `like` or else a dict by name,
          "params.stem.kernel" say; `extra` as it was saved.
        Raises:
          CheckpointError: the newest whole checkpoint has other settings, or an array of another
            name, shape or dtype; all are damaged; or the storage does not answer.
        """
        if not self.directory.exists():
            return None
        damaged: dict[int, str] = {}
        try:
            steps = sorted(self._manager.all_steps(), reverse=True)
        except Exception as error:  # by what is damaged, as below
            raise CheckpointError(
                f"{self.directory} cannot be read ({runs.first_line(error)})"
            ) from None
        for step in steps:
            try:
                found = step, *self._read(step, like)
                break
            except (CheckpointError, MemoryError):
                raise
            # orbax raises bare Exception too, by what is damaged.
            except Exception as error:
                line = f"{type(error).__name__}: {runs.first_line(error)}"
                missing = isinstance(error, FileNotFoundError | NotADirectoryError)
                if (isinstance(error, OSError) and not missing) or _STORAGE.search(str(error)):
                    raise CheckpointError(
                        f"checkpoint {step} in {self.directory} cannot be read now ({line})"
                    ) from error
                damaged[step] = line
        else:
            if not damaged:
                return None
            why = "; ".join(f"{step}: {line}" for step, line in damaged.items())
            raise CheckpointError(f"all checkpoints in {self.directory} are damaged ({why})")
        for step, line in damaged.items():
            self._on_warning(
                f"checkpoint {step} is damaged ({line}) and was moved to {self._move_aside(step)};"
                f" checkpoint {found[0]} is used"
            )
        if damaged:
            self._manager.reload()
        return found

    def close(self) -> None:
        """Returns when everything saved is on disk; raises what made a save fail."""
        if "_manager" in self.__dict__:
            self._manager.close()

    def __exit__(self, *_):
        self.close()

    def _read(self, step: int, like):
        """(state, extra) of one checkpoint; raises on mismatch, and anything at all on damage."""
        import orbax.checkpoint as ocp

        def restore(item, how):
            return self._manager.restore(step, args=ocp.args.Composite(**{item: how}))[item]

        metadata = restore("metadata", ocp.args.JsonRestore())
        if _digest(metadata["text"].encode()) != metadata["sha256"]:
            raise ValueError("its metadata are not those that were saved")
        held = json.loads(metadata["text"])
        if held["step"] != step:
            raise ValueError(f"it was saved as step {held['step']}")
        compared = []
        if like is not None:
            there = {name: described for name, (described, _) in held["arrays"].items()}
            here = {name: _describe(x) for name, x in _named_leaves(like).items()}
            compared.append(("array", there, here))
        if self._settings is not None:
            compared.append(("setting", held["settings"], self._settings))
        different = [
            f"the {what} {name} is {a!r} there and {b!r} here"
            for what, there, here in compared
            for name, (a, b) in runs.differences(there, here).items()
        ]
        if different:
            more = f"; and {len(different) - _NAMED} more" if len(different) > _NAMED else ""
            raise CheckpointError(
                f"the checkpoint {self.directory / str(step)} is of another run:"
                f" {'; '.join(different[:_NAMED])}{more}"
            )
        arrays = restore("state", ocp.args.StandardRestore())
        found = {name: [_describe(x), _digest(x.tobytes())] for name, x in arrays.items()}
        if found != held["arrays"]:
            raise ValueError("its arrays are not those that were saved")
        extra = runs.from_json(held["extra"])
        if like is None:
            return arrays, extra
        leaves = [arrays[name] for name in _named_leaves(like)]
        return jax.tree.unflatten(jax.tree.structure(like), leaves), extra

    def _move_aside(self, step: int):
        """Renames a checkpoint so that orbax no longer sees it; returns where it is now."""
        aside = self.directory / "damaged"
        aside.mkdir(parents=True, exist_ok=True)
        earlier = sum(path.name.split(".")[0] == str(step) for path in aside.iterdir())
        target = aside / (f"{step}.{earlier}" if earlier else str(step))
        return (self.directory / str(step)).rename(target)


def load_variables(directory: str | os.PathLike[str]) -> dict:
    """The net of the newest checkpoint in `directory`: {"params", "fixed", "batch_stats"}.

    Raises:
      CheckpointError: there is none, or see `Checkpoints.restore`.
    """
    with Checkpoints(directory, settings=None) as checkpoints:
        found = checkpoints.restore()
    if found is None:
        raise CheckpointError(f"there is no checkpoint in {directory}")
    state = flax.traverse_util.unflatten_dict(found[1], sep=".")
    return {name: state.get(name, {}) for name in COLLECTIONS}


def _is_not_of_orbax(record: logging.LogRecord) -> bool:
    return "/orbax/" not in record.pathname


def _named_leaves(tree: Any) -> dict:
    """Leaf by name, "params.stem.kernel" say, in the order of the tree."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in leaves}


def _describe(leaf) -> str:
    return f"{np.dtype(leaf.dtype).name}{list(leaf.shape)}"


def _digest(held: bytes) -> str:
    return hashlib.sha256(held).hexdigest()
