"""What a checkpoint says about itself: its step, whose it is, and digests of all it holds."""

import hashlib
import json
from typing import Any

import jax
import numpy as np

from identity_matters import json_files

# How many differences a message names.
_NAMED_AT_MOST = 5


class CheckpointMismatchError(Exception):
    """A checkpoint is whole but belongs to another run; nothing has been changed."""


class DamagedError(Exception):
    """A checkpoint does not hold what was saved."""


def named_leaves(tree: Any) -> dict:
    """Leaf by name, "params.stem.kernel" say, in the order of the tree."""
    flat, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in flat}


def as_json(value: Any) -> Any:
    """`value` as it comes back from a JSON file."""
    return json.loads(json.dumps(json_files.to_json(value), allow_nan=False))


def seal(step: int, settings: dict, leaves: dict, extra: dict) -> dict:
    """The metadata of a checkpoint of `leaves`, NumPy arrays by name; JSON-able.

    They are one text with its own digest, lest a damaged setting look like another one.
    """
    body = json.dumps(
        {
            "step": step,
            "settings": settings,
            "arrays": _descriptions(leaves),
            "digest": _digest(leaves),
            "extra": as_json(extra),
        }
    )
    return {"body": body, "sha256": hashlib.sha256(body.encode()).hexdigest()}


def unseal(metadata: dict, step: int) -> dict:
    """The body of the metadata of checkpoint `step`; raises DamagedError unless it is whole."""
    if hashlib.sha256(metadata["body"].encode()).hexdigest() != metadata["sha256"]:
        raise DamagedError("its metadata are not those that were saved")
    body = json.loads(metadata["body"])
    if body["step"] != step:
        raise DamagedError(f"it was saved as step {body['step']}")
    return body


def check_same_run(where: str, body: dict, settings: dict, leaves: dict) -> None:
    """Raises CheckpointMismatchError with what differs, and both values.

    Args:
      settings, leaves: those of this run; leaves need a shape and a dtype only.
    """
    saved, ours = json_files.flat(body["settings"]), json_files.flat(settings)
    _check_equal(where, "the setting", saved, ours)
    _check_equal(where, "the array", body["arrays"], _descriptions(leaves))


def check_digest(body: dict, leaves: dict) -> None:
    """Raises DamagedError unless `leaves` are those of which `body` was made."""
    if _digest(leaves) != body["digest"]:
        raise DamagedError("its arrays are not those that were saved")


def _descriptions(leaves: dict) -> dict:
    return {name: f"{np.dtype(x.dtype).name}{list(x.shape)}" for name, x in leaves.items()}


def _digest(leaves: dict) -> str:
    """sha256 over names, types and bytes; hashing lets other threads run."""
    digest = hashlib.sha256()
    for name, description in sorted(_descriptions(leaves).items()):
        digest.update(f"{name} {description}\n".encode())
        digest.update(np.ascontiguousarray(leaves[name]).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def _check_equal(where: str, what: str, saved: dict, ours: dict) -> None:
    absent = "absent"
    different = [
        f"{what} {name} is {saved.get(name, absent)!r} there and {ours.get(name, absent)!r} here"
        for name in sorted(saved.keys() | ours.keys())
        if saved.get(name, absent) != ours.get(name, absent)
    ]
    if different:
        more = len(different) - _NAMED_AT_MOST
        raise CheckpointMismatchError(
            f"{where} is of another run: {'; '.join(different[:_NAMED_AT_MOST])}"
            + (f"; and {more} more" if more > 0 else "")
        )
