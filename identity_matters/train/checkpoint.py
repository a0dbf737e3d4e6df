"""Checkpoints that survive a kill at any moment and detect damage.

orbax writes each checkpoint in the background under a temporary name and renames it when it is
complete. It does not notice a flipped byte in an array file. So the metadata of a checkpoint hold
digests of its arrays and of the metadata itself, along with the settings of the run.
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

COLLECTIONS = ("params", "fixed", "batch_stats")  # the variables of a net
KEPT = 2  # how many of the newest checkpoints are kept
_NAMED = 5  # how many differences an error message lists
# Errors of storage that cannot be read right now; they do not mean that a file is damaged.
_STORAGE = re.compile(
    r"UNAVAILABLE|DEADLINE_EXCEEDED|PERMISSION_DENIED|UNAUTHENTICATED|RESOURCE_EXHAUSTED"
    r"|OS error (?!2\b)\d+|Input/output error|Stale file handle"
)


class CheckpointError(Exception):
    """The checkpoints cannot be used; nothing has been changed. The message says why."""


class Checkpoints(contextlib.AbstractContextManager):
    """The newest few states of one run in one directory; only one process uses it.

    `directory`, made at the first save, has a folder STEP for each state; ``gs://`` works, too.
    `restore` checks the JSON-able `settings` against the saved ones, except `runs.PLACE_SETTINGS`,
    and moves damaged states aside, with a line to `on_warning`; for readers, None, it does neither.
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
        import orbax.checkpoint as ocp  # slow, and not all callers save or restore

        # orbax logs some ten lines per save to absl's logger, which the whole program shares.
        logging.getLogger("absl").addFilter(_is_not_of_orbax)
        # All processes hold the same state: one writes it, and the others need no storage.
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
        """Starts writing a checkpoint; if that fails, the next `save` or leaving `with` raises.

        `state` is a pytree of NumPy arrays that nobody changes afterwards; `extra` is JSON-able.
        Raises CheckpointError unless `step` is larger than that of every checkpoint so far.
        """
        import orbax.checkpoint as ocp

        newest = self._manager.latest_step()
        if newest is not None and step <= newest:
            # orbax would write nothing and return False.
            raise CheckpointError(
                f"{self.directory} holds checkpoint {newest} already: use another directory"
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
        """The newest undamaged checkpoint, (step, state, extra); None if there are none at all.

        Damaged ones that are newer are moved to DIRECTORY/damaged/, each with a warning. `state`
        holds NumPy arrays in the structure of `like`, a pytree of the expected shapes and dtypes;
        without it, a dict with keys like "params.stem.kernel". Raises CheckpointError if settings,
        names, shapes or dtypes differ, all (readers: the newest) are damaged, or storage fails.
        """
        if not self.directory.exists():
            return None
        damaged: dict[int, str] = {}
        try:
            steps = sorted(self._manager.all_steps(), reverse=True)
        except Exception as error:  # of any type, as below
            line = runs.first_line(error)
            raise CheckpointError(f"{self.directory} cannot be read ({line})") from None
        for step in steps:
            try:
                found = step, *self._read(step, like)
                break
            except (CheckpointError, MemoryError):
                raise
            # What orbax raises depends on the damage; it can be a bare Exception.
            except Exception as error:
                line = f"{type(error).__name__}: {runs.first_line(error)}"
                gone = isinstance(error, FileNotFoundError | NotADirectoryError)
                storage = (isinstance(error, OSError) and not gone) or _STORAGE.search(str(error))
                if storage or self._settings is None:
                    what = f"checkpoint {step} in {self.directory} cannot be read now"
                    raise CheckpointError(f"{what} ({line})") from error
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

    def __exit__(self, *_) -> None:
        """Waits until every save is on disk; raises if one failed."""
        if "_manager" in self.__dict__:
            self._manager.close()

    def _read(self, step: int, like):
        """(state, extra) of one checkpoint; CheckpointError on a mismatch, any other on damage."""
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
        """Renames a checkpoint so that orbax no longer sees it; returns its new path."""
        aside = self.directory / "damaged"
        aside.mkdir(parents=True, exist_ok=True)
        earlier = sum(path.name.split(".")[0] == str(step) for path in aside.iterdir())
        target = aside / (f"{step}.{earlier}" if earlier else str(step))
        return (self.directory / str(step)).rename(target)


def load_variables(directory: str | os.PathLike[str]) -> dict:
    """The variables in the newest checkpoint of `directory`: {"params", "fixed", "batch_stats"}.

    Raises CheckpointError if there is no checkpoint, or as `Checkpoints.restore` does.
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
    """Leaves by name, such as "params.stem.kernel", in the order of the tree."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in leaves}


def _describe(leaf) -> str:
    return f"{np.dtype(leaf.dtype).name}{list(leaf.shape)}"


def _digest(held: bytes) -> str:
    return hashlib.sha256(held).hexdigest()
