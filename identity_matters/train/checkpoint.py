"""Checkpoints that survive a kill at any moment and detect damage.

A run saves and restores its state with `Checkpoints`. Variables alone are written by
`save_variables` and read, also from the checkpoints of a run, by `read_saved`.

Both ways lead through `checkpoint_storage`, which keeps named arrays and metadata. The
metadata hold digests of the arrays and of themselves, the settings of the run, the
containers of the variables, and which net and which preprocessing the variables belong
to.
"""

import contextlib
import functools
import os
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.core
import flax.traverse_util
import jax
import numpy as np
from etils import epath

from identity_matters import runs
from identity_matters.net_variables import COLLECTIONS, of_every_collection
from identity_matters.preprocessing import Preprocessing
from identity_matters.train import digests, rounding, trees
from identity_matters.train.checkpoint_storage import (
    CheckpointError,
    DamageError,
    MissingCheckpointError,
    Storage,
)

# The constants of the preprocessing are saved beside the arrays of the state, under
# names with this prefix. No array of the state has such a name: `trees` percent-encodes
# "%".
_CONSTANTS = "%preprocessing."
_MOST_DIFFERENCES_LISTED = 5  # in an error message


class NetAndPreprocessing(NamedTuple):
    """What variables belong to: a net and its preprocessing.

    The net is described as by `net_source`.
    """

    net: dict
    preprocessing: Preprocessing


class Saved(NamedTuple):
    """The variables of a checkpoint; `belongs_to` is None if that was not saved."""

    step: int
    variables: dict
    belongs_to: NetAndPreprocessing | None


class Checkpoints(contextlib.AbstractContextManager):
    """The newest few states of one run in one directory; only one process uses it.

    Args:
      directory: made at the first save; it has a folder STEP for each state. ``gs://``
        works, too.
      settings: JSON-able, and saved with every state. `restore` compares them with the
        saved ones, except `runs.PLACE_SETTINGS`.
      on_warning: receives a line for each damaged state that is moved aside.
      belongs_to: kept beside every state.

    Attributes:
      directory: the absolute path.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        settings: dict,
        on_warning: Callable[[str], Any] = warnings.warn,
        belongs_to: NetAndPreprocessing | None = None,
    ):
        self._storage = Storage(directory, removes_unfinished=True)
        self.directory = self._storage.directory
        self._settings = settings
        self._belongs_to = belongs_to
        self._on_warning = on_warning

    def save(self, step: int, state: dict, extra: dict) -> None:
        """Starts writing a checkpoint of a run.

        If that fails, the next `save` or leaving `with` raises.

        Args:
          step: must be larger than that of every checkpoint so far.
          state: a dict of pytrees of NumPy arrays that nobody changes afterwards.
            `read_saved` gives its items that are in `COLLECTIONS` as variables.
          extra: JSON-able.
        Raises:
          CheckpointError: there is a checkpoint of this step or a later one, or
            `directory` is a file.
          trees.NotStorableError: something would not come back as it is; nothing was
            written.
        """
        variables = {name: state[name] for name in COLLECTIONS if name in state}
        skeleton, _ = trees.split(variables)
        self._write(step, state, extra=extra, skeleton=skeleton)

    def save_variables(
        self,
        variables: dict | flax.core.FrozenDict,
        *,
        rounded_to: float | None = None,
    ) -> None:
        """Starts writing variables that are of no run, as checkpoint 0.

        Args:
          variables: collections of NumPy or JAX arrays, by name.
          rounded_to: large arrays are kept as multiples of this; see `rounding`.
        Raises:
          CheckpointError, trees.NotStorableError: as `save` does.
        """
        skeleton, _ = trees.split(variables)
        self._write(
            0,
            jax.device_get(variables),
            extra={},
            skeleton=skeleton,
            rounded_to=rounded_to,
        )

    def _write(
        self,
        step: int,
        tree: Any,
        *,
        extra: dict,
        skeleton: Any,
        rounded_to: float | None = None,
    ) -> None:
        """Starts writing the arrays of `tree`, and metadata.

        `skeleton`, from `trees.split`, has the names of arrays in the places where
        `read_saved` puts them. They are names of arrays in `tree`, since `trees.names`
        and `trees.split` name a leaf alike.
        """
        arrays = {name: np.asarray(leaf) for name, leaf in trees.names(tree).items()}
        rounded: list[str] = []
        if rounded_to is not None:
            arrays, rounded = rounding.to_multiples(arrays, rounded_to)
        metadata: dict[str, Any] = {
            "step": step,
            "settings": self._settings,
            "arrays": digests.fingerprints(arrays),
            "extra": extra,
            "variables": skeleton,
        }
        if rounded_to is not None:
            metadata["multiples"] = {"step": float(rounded_to), "rounded": rounded}
        constants = {}
        if self._belongs_to is not None:
            net, preprocessing = self._belongs_to
            for name, array in preprocessing.constants.items():
                constants[_CONSTANTS + name] = array
            metadata["net"] = net
            metadata["preprocessing"] = preprocessing.description()
            metadata["constants"] = digests.fingerprints(constants)
        self._storage.write(step, arrays=arrays | constants, metadata=metadata)

    def restore(self, like: Any) -> tuple[int, Any, dict] | None:
        """The newest undamaged checkpoint, or None if there are no checkpoints.

        Damaged ones that are newer are moved to DIRECTORY/damaged/, each with a
        warning.

        Args:
          like: a pytree of the expected shapes and dtypes.
        Returns:
          (step, state, extra): `state` holds NumPy arrays in the structure of `like`.
        Raises:
          CheckpointError: settings, names, shapes or dtypes differ, all checkpoints are
            damaged, `directory` is a file, or storage fails. Nothing was moved.
        """
        damaged: dict[int, str] = {}  # step -> what is wrong with it
        for step in self._storage.steps_newest_first():
            try:
                metadata, arrays = self._storage.read(
                    step, check=functools.partial(self._check_it_is_of_this_run, like)
                )
            except DamageError as damage:
                damaged[step] = str(damage)
                continue
            self._move_aside(damaged, used=step)
            leaves = [arrays[name] for name in trees.names(like)]
            state = jax.tree.unflatten(jax.tree.structure(like), leaves)
            return step, state, runs.from_json(metadata["extra"])
        if damaged:
            why = "; ".join(f"{step}: {line}" for step, line in damaged.items())
            raise CheckpointError(
                f"all checkpoints in {self.directory} are damaged ({why})"
            )
        return None

    def __exit__(self, *_) -> None:
        """Waits until every save is on disk; raises if one failed."""
        self._storage.close()

    def _check_it_is_of_this_run(self, like: Any, metadata: dict) -> None:
        """Raises CheckpointError if arrays or settings are not those of this run."""
        saved = {name: described for name, (described, _) in metadata["arrays"].items()}
        expected = {name: digests.describe(x) for name, x in trees.names(like).items()}
        different = [
            *_differences("array", saved, expected),
            *_differences("setting", metadata["settings"], self._settings),
        ]
        if different:
            text = "; ".join(different[:_MOST_DIFFERENCES_LISTED])
            if len(different) > _MOST_DIFFERENCES_LISTED:
                text += f"; and {len(different) - _MOST_DIFFERENCES_LISTED} more"
            path = self.directory / str(metadata["step"])
            raise CheckpointError(f"the checkpoint {path} is from another run: {text}")

    def _move_aside(self, damaged: dict[int, str], *, used: int) -> None:
        """Moves each damaged step aside, with a warning that names step `used`."""
        for step, line in damaged.items():
            self._on_warning(
                f"checkpoint {step} is damaged ({line}) and was moved to"
                f" {self._storage.move_aside(step)}; checkpoint {used} is used"
            )


def read_saved(directory: str | os.PathLike[str]) -> Saved:
    """The newest checkpoint in `directory`, whose files stay as they are.

    Args:
      directory: of a run or of `save_variables`; a leading ``~`` is your home.
    Raises:
      MissingCheckpointError: there is none.
      CheckpointError: it is damaged, `directory` is a file, or storage fails.
    """
    with Storage(directory, removes_unfinished=False) as storage:
        steps = storage.steps_newest_first()
        if not steps:
            raise _missing(storage.directory)
        newest = steps[0]
        try:
            metadata, arrays = storage.read(newest)
        except DamageError as damage:
            # An older one in its place would pass for the newest.
            raise CheckpointError(
                f"checkpoint {newest} in {storage.directory} is damaged ({damage})"
            ) from damage
    if "variables" not in metadata:  # written before containers were kept
        nested = flax.traverse_util.unflatten_dict(arrays, sep=".")
        return Saved(newest, of_every_collection(nested), belongs_to=None)
    if "multiples" in metadata:
        arrays = rounding.from_multiples(arrays, **metadata["multiples"])
    variables = trees.join(metadata["variables"], arrays)
    return Saved(newest, variables, _net_and_preprocessing(metadata, arrays))


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
    write_variables(directory, variables, belongs_to=None)


def write_variables(
    directory: str | os.PathLike[str],
    variables: Any,
    *,
    belongs_to: NetAndPreprocessing | None,
    rounded_to: float | None = None,
) -> None:
    """Saves variables, and what they belong to, as the only checkpoint.

    Large arrays are kept as multiples of `rounded_to`, if it is given; see `rounding`.
    Raises as `save_variables` does.
    """
    if not isinstance(variables, dict | flax.core.FrozenDict):
        kind = type(variables).__name__
        raise trees.NotStorableError(
            f"variables must be a dict of collections, got a {kind}"
        )
    # They are of no run, so there are no settings to save with them.
    with Checkpoints(directory, settings={}, belongs_to=belongs_to) as checkpoints:
        checkpoints.save_variables(variables, rounded_to=rounded_to)


def load_variables(directory: str | os.PathLike[str]) -> dict:
    """The variables in the newest checkpoint of `directory`, as they were saved.

    Those of a training are {"params", "fixed", "batch_stats"}. To apply the net, use
    `load`, which also knows how its images must be preprocessed. Raises CheckpointError
    as `read_saved` does.
    """
    return read_saved(directory).variables


def _missing(directory: epath.Path) -> MissingCheckpointError:
    """The error for a directory without checkpoints; that of a run gets advice."""
    inside = directory / "checkpoints"
    cells = sorted(map(str, inside.glob("cell=*"))) if inside.exists() else []
    advice = f"; those of this run are in {', '.join(cells)}" if cells else ""
    return MissingCheckpointError(f"there is no checkpoint in {directory}{advice}")


def _net_and_preprocessing(
    metadata: dict, arrays: dict[str, np.ndarray]
) -> NetAndPreprocessing | None:
    """What the variables of a checkpoint belong to, if that was saved."""
    if "net" not in metadata:
        return None
    constants = {
        name.removeprefix(_CONSTANTS): arrays[name] for name in metadata["constants"]
    }
    preprocessing = Preprocessing.from_description(metadata["preprocessing"], constants)
    return NetAndPreprocessing(metadata["net"], preprocessing)


def _differences(kind: str, saved: dict, expected: dict) -> list[str]:
    """A text for each array or setting, by `kind`, that differs in a checkpoint."""
    return [
        f"the {kind} {name} is {there!r} there and {here!r} here"
        for name, (there, here) in runs.differences(saved, expected).items()
    ]
