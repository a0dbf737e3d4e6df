"""Checkpoints that survive a kill at any moment and detect damage.

orbax writes each checkpoint in the background under a temporary name and renames it
when it is complete. It does not notice a flipped byte in an array file. So the metadata
of a checkpoint hold digests of its arrays and of the metadata itself, along with the
settings of the run, the containers of the variables, and which net and which
preprocessing the variables belong to.
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
from typing import Any, NamedTuple

import flax.core
import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
from etils import epath

from identity_matters import runs
from identity_matters.paths import expand_home
from identity_matters.preprocessing import Preprocessing
from identity_matters.train import trees

COLLECTIONS = ("params", "fixed", "batch_stats")  # the variables of a net
KEPT = 2  # how many of the newest checkpoints are kept
# The constants of the preprocessing are arrays beside those of the state. No name of
# those starts with this, as `trees` quotes it.
_CONSTANTS = "%preprocessing."
_MOST_DIFFERENCES_LISTED = 5  # in an error message
# Errors of storage that cannot be read right now;
# they do not mean that a file is damaged.
_STORAGE = re.compile(
    r"UNAVAILABLE|DEADLINE_EXCEEDED|PERMISSION_DENIED|UNAUTHENTICATED|RESOURCE_EXHAUSTED"
    r"|OS error (?!2\b)\d+|Input/output error|Stale file handle"
)


class CheckpointError(Exception):
    """The checkpoints cannot be used.

    Nothing has been changed. The message says why.
    """


class MissingCheckpointError(CheckpointError):
    """There is no checkpoint where one was to be read."""


class NetAndPreprocessing(NamedTuple):
    """What variables belong to: a net and its preprocessing.

    The net is described as by `net_source`.
    """

    net: dict
    preprocessing: Preprocessing


class Saved(NamedTuple):
    """A checkpoint as a reader finds it; `belongs_to` is None if that was not saved."""

    step: int
    variables: dict
    belongs_to: NetAndPreprocessing | None


class Checkpoints(contextlib.AbstractContextManager):
    """The newest few states of one run in one directory; only one process uses it.

    Args:
      directory: made at the first save; it has a folder STEP for each state. ``gs://``
        works, too.
      settings: JSON-able; `restore` compares them with the saved ones, except
        `runs.PLACE_SETTINGS`, and moves damaged states aside. With None (reading only),
        nothing is compared and nothing is moved.
      on_warning: receives a line for each state that is moved aside.
      belongs_to: kept beside every state.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        settings: dict | None,
        on_warning: Callable[[str], Any] = warnings.warn,
        belongs_to: NetAndPreprocessing | None = None,
    ):
        path = expand_home(directory)
        self.directory = epath.Path(path if "://" in path else os.path.abspath(path))
        self._settings = settings
        self._belongs_to = belongs_to
        self._on_warning = on_warning

    @functools.cached_property
    def _manager(self):
        import orbax.checkpoint as ocp  # slow, and not all callers save or restore

        # orbax logs some ten lines per save to absl's logger,
        # which the whole program shares.
        logging.getLogger("absl").addFilter(_is_not_of_orbax)
        # All processes hold the same state:
        # one writes it, and the others need no storage.
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
                cleanup_tmp_directories=self._settings is not None,
                multiprocessing_options=alone,
            ),
        )

    def save(self, step: int, state: dict, extra: dict, variables: Any = None) -> None:
        """Starts writing a checkpoint.

        If that fails, the next `save` or leaving `with` raises.

        Args:
          step: must be larger than that of every checkpoint so far.
          state: a dict of pytrees of NumPy arrays that nobody changes afterwards.
          extra: JSON-able.
          variables: what `read` gives back in its containers: a mapping of the same
            items as `state`. By default, those items of `state` that are in
            `COLLECTIONS`.
        Raises:
          CheckpointError: there is a checkpoint of this step or a later one.
          trees.NotStorableError: something would not come back as it is; nothing was
            written.
        """
        if variables is None:
            variables = {name: state[name] for name in COLLECTIONS if name in state}
        skeleton, _ = trees.split(variables)
        arrays = {name: np.asarray(leaf) for name, leaf in trees.names(state).items()}
        metadata: dict[str, Any] = {
            "step": step,
            "settings": self._settings,
            "arrays": _fingerprints(arrays),
            "extra": extra,
            "variables": skeleton,
        }
        if self._belongs_to is not None:
            net, preprocessing = self._belongs_to
            constants = {
                _CONSTANTS + name: x for name, x in preprocessing.constants.items()
            }
            metadata["net"] = net
            metadata["preprocessing"] = preprocessing.description()
            metadata["constants"] = _fingerprints(constants)
            arrays |= constants
        # orbax fails on an array without values,
        # and then stalls the end of the process.
        written = {name: x for name, x in arrays.items() if x.size}
        if not written:
            raise trees.NotStorableError(
                "there is nothing to save: no array has any values"
            )
        self._write(step, written, json.dumps(runs.to_json(metadata), allow_nan=False))

    def _write(self, step: int, arrays: dict[str, np.ndarray], metadata: str) -> None:
        import orbax.checkpoint as ocp

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
                state=ocp.args.StandardSave(arrays),
                metadata=ocp.args.JsonSave(
                    {"text": metadata, "sha256": _digest(metadata.encode())}
                ),
            ),
        )

    def restore(self, like: Any) -> tuple[int, Any, dict] | None:
        """The newest undamaged checkpoint: (step, state, extra).

        It is None if there are no checkpoints at all.

        Damaged ones that are newer are moved to DIRECTORY/damaged/, each with a
        warning. `state` holds NumPy arrays in the structure of `like`, a pytree of the
        expected shapes and dtypes. Raises CheckpointError if settings, names, shapes or
        dtypes differ, all (readers: the newest) are damaged, or storage fails.
        """
        newest = self._newest_undamaged(like)
        if newest is None:
            return None
        step, metadata, arrays = newest
        leaves = [arrays[name] for name in trees.names(like)]
        state = jax.tree.unflatten(jax.tree.structure(like), leaves)
        return step, state, runs.from_json(metadata["extra"])

    def read(self) -> Saved | None:
        """The variables in the newest checkpoint, in their containers.

        It is None if there are no checkpoints.

        Raises CheckpointError as `restore` does.
        """
        newest = self._newest_undamaged(None)
        if newest is None:
            return None
        step, metadata, arrays = newest
        if "variables" not in metadata:  # written before containers were kept
            nested = flax.traverse_util.unflatten_dict(arrays, sep=".")
            return Saved(
                step, {name: nested.get(name, {}) for name in COLLECTIONS}, None
            )
        belongs_to = None
        if "net" in metadata:
            constants = {
                name.removeprefix(_CONSTANTS): arrays[name]
                for name in metadata["constants"]
            }
            preprocessing = Preprocessing.from_description(
                metadata["preprocessing"], constants
            )
            belongs_to = NetAndPreprocessing(metadata["net"], preprocessing)
        return Saved(step, trees.join(metadata["variables"], arrays), belongs_to)

    def _newest_undamaged(self, like: Any) -> tuple[int, dict, dict] | None:
        """(step, metadata, arrays by name), or None; see `restore`.

        `like` is None for `read`.
        """
        if not self.directory.exists():
            return None
        if not self.directory.is_dir():
            raise CheckpointError(
                f"{self.directory} is a file; a checkpoint is a directory"
            )
        damaged: dict[int, str] = {}  # step -> what is wrong with it
        for step in self._steps_newest_first():
            try:
                metadata, arrays = self._read(step, like)
            except (CheckpointError, MemoryError):
                raise
            # What orbax raises depends on the damage; it can be a bare Exception.
            except Exception as error:
                line = f"{type(error).__name__}: {runs.first_line(error)}"
                if self._settings is None or _is_of_storage(error):
                    raise CheckpointError(
                        f"checkpoint {step} in {self.directory} cannot be read now"
                        f" ({line})"
                    ) from error
                damaged[step] = line
            else:
                self._move_damaged_aside(damaged, used=step)
                return step, metadata, arrays
        if damaged:
            why = "; ".join(f"{step}: {line}" for step, line in damaged.items())
            raise CheckpointError(
                f"all checkpoints in {self.directory} are damaged ({why})"
            )
        return None

    def _steps_newest_first(self) -> list[int]:
        try:
            return sorted(self._manager.all_steps(), reverse=True)
        except Exception as error:  # of any type, as that of a damaged checkpoint
            line = runs.first_line(error)
            raise CheckpointError(f"{self.directory} cannot be read ({line})") from None

    def _move_damaged_aside(self, damaged: dict[int, str], *, used: int) -> None:
        for step, line in damaged.items():
            self._on_warning(
                f"checkpoint {step} is damaged ({line}) and was moved to"
                f" {self._move_aside(step)}; checkpoint {used} is used"
            )
        if damaged:
            self._manager.reload()

    def __exit__(self, *_) -> None:
        """Waits until every save is on disk; raises if one failed."""
        if "_manager" in self.__dict__:
            self._manager.close()

    def _read(self, step: int, like: Any) -> tuple[dict, dict]:
        """(metadata, arrays) of one checkpoint.

        Raises CheckpointError on a mismatch, other errors on damage.
        """
        import orbax.checkpoint as ocp

        # One item after the other: arrays are read only if the metadata fit.
        sealed = self._manager.restore(
            step, args=ocp.args.Composite(metadata=ocp.args.JsonRestore())
        )["metadata"]
        if _digest(sealed["text"].encode()) != sealed["sha256"]:
            raise ValueError("its metadata are not those that were saved")
        metadata = json.loads(sealed["text"])
        if metadata["step"] != step:
            raise ValueError(f"it was saved as step {metadata['step']}")
        self._check_it_is_of_this_run(step, metadata, like)
        described = metadata["arrays"] | metadata.get("constants", {})
        arrays = self._manager.restore(
            step, args=ocp.args.Composite(state=ocp.args.StandardRestore())
        )["state"]
        # Those without values were not written.
        for name, (description, _) in described.items():
            if name not in arrays:
                arrays[name] = _without_values(description)
        if _fingerprints(arrays) != described:
            raise ValueError("its arrays are not those that were saved")
        return metadata, arrays

    def _check_it_is_of_this_run(self, step: int, metadata: dict, like: Any) -> None:
        """Raises CheckpointError if arrays or settings are not those of this run."""
        different = []
        if like is not None:
            saved = {
                name: described for name, (described, _) in metadata["arrays"].items()
            }
            expected = {name: _describe(x) for name, x in trees.names(like).items()}
            different += _differences("array", saved, expected)
        if self._settings is not None:
            different += _differences("setting", metadata["settings"], self._settings)
        if different:
            text = "; ".join(different[:_MOST_DIFFERENCES_LISTED])
            if len(different) > _MOST_DIFFERENCES_LISTED:
                text += f"; and {len(different) - _MOST_DIFFERENCES_LISTED} more"
            raise CheckpointError(
                f"the checkpoint {self.directory / str(step)} is of another run: {text}"
            )

    def _move_aside(self, step: int):
        """Renames a checkpoint so that orbax no longer sees it.

        Returns its new path.
        """
        aside = self.directory / "damaged"
        aside.mkdir(parents=True, exist_ok=True)
        earlier = sum(path.name.split(".")[0] == str(step) for path in aside.iterdir())
        target = aside / (f"{step}.{earlier}" if earlier else str(step))
        return (self.directory / str(step)).rename(target)


def read_saved(directory: str | os.PathLike[str]) -> Saved:
    """The newest checkpoint in `directory`; a leading ``~`` is your home.

    Raises MissingCheckpointError if there is none, or as `Checkpoints.restore` does.
    """
    with Checkpoints(directory, settings=None) as checkpoints:
        saved = checkpoints.read()
    if saved is None:
        inside = checkpoints.directory / "checkpoints"
        cells = sorted(map(str, inside.glob("cell=*"))) if inside.exists() else []
        advice = f"; those of this run are in {', '.join(cells)}" if cells else ""
        raise MissingCheckpointError(
            f"there is no checkpoint in {checkpoints.directory}{advice}"
        )
    return saved


def save_variables(directory: str | os.PathLike[str], variables: dict) -> None:
    """Saves nested dicts, lists and tuples of arrays for `load_variables`.

    What `load_variables` gives back has the same collections, containers, keys, shapes
    and dtypes, with NumPy arrays as leaves. The net and the preprocessing are not
    saved: see `TrainedNet.save`.

    Args:
      directory: made if missing; a leading ``~`` is your home.
      variables: the collections of a net by name.
    Raises:
      trees.NotStorableError: something would not come back as it is; nothing was
        written.
      CheckpointError: `directory` holds a checkpoint already, or is a file.
    """
    write_variables(Checkpoints(directory, settings={}), variables)


def write_variables(checkpoints: Checkpoints, variables: Any) -> None:
    """Saves variables as the only checkpoint, and closes.

    Raises as `save_variables` does.
    """
    if not isinstance(variables, dict | flax.core.FrozenDict):
        kind = type(variables).__name__
        raise trees.NotStorableError(
            f"variables must be a dict of collections, got a {kind}"
        )
    skeleton, arrays = trees.split(variables)
    host = trees.join(skeleton, jax.device_get(arrays))
    with checkpoints:
        checkpoints.save(0, dict(host), {}, variables=host)


def load_variables(directory: str | os.PathLike[str]) -> dict:
    """The variables in the newest checkpoint of `directory`, as they were saved.

    Those of a training are {"params", "fixed", "batch_stats"}. To apply the net, use
    `load`, which also knows how its images must be preprocessed. Raises CheckpointError
    as `read_saved` does.
    """
    return read_saved(directory).variables


def _is_of_storage(error: Exception) -> bool:
    """Whether storage cannot be read right now, which does not mean damage."""
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return bool(_STORAGE.search(str(error)))
    return isinstance(error, OSError) or bool(_STORAGE.search(str(error)))


def _is_not_of_orbax(record: logging.LogRecord) -> bool:
    return "/orbax/" not in record.pathname


def _fingerprints(arrays: dict[str, np.ndarray]) -> dict[str, list[str]]:
    """[shape and dtype, digest of the bytes] of each array."""
    return {
        name: [_describe(array), _digest(array.tobytes())]
        for name, array in arrays.items()
    }


def _differences(kind: str, saved: dict, expected: dict) -> list[str]:
    """A text for each array or setting, by `kind`, that is another in a checkpoint."""
    return [
        f"the {kind} {name} is {there!r} there and {here!r} here"
        for name, (there, here) in runs.differences(saved, expected).items()
    ]


def _describe(leaf) -> str:
    return f"{np.dtype(leaf.dtype).name}{list(leaf.shape)}"


def _without_values(described: str) -> np.ndarray:
    """An array without values, like that which `_describe` has described.

    Raises ValueError if no axis has the length 0.
    """
    dtype, _, shape = described.removesuffix("]").partition("[")
    array = np.zeros(
        [int(length) for length in shape.split(",") if length], jnp.dtype(dtype)
    )
    if array.size:
        raise ValueError(f"an array {described} is missing")
    return array


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
