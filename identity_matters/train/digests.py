"""Digests of the metadata and arrays of a checkpoint, which show a changed byte."""

import hashlib
import json

import jax.numpy as jnp
import numpy as np

from identity_matters import runs


def seal(metadata: dict) -> dict[str, str]:
    """Metadata as text, with its digest; `unseal` leaves NaN as `runs.to_json` does."""
    text = json.dumps(runs.to_json(metadata), allow_nan=False)
    return {"text": text, "sha256": _digest(text.encode())}


def unseal(sealed: dict[str, str]) -> dict:
    """The metadata that `seal` has sealed; raises ValueError if they were changed."""
    if _digest(sealed["text"].encode()) != sealed["sha256"]:
        raise ValueError("its metadata are not those that were saved")
    return json.loads(sealed["text"])


def fingerprints(arrays: dict[str, np.ndarray]) -> dict[str, list[str]]:
    """[what `describe` says, digest of the bytes] of each array."""
    return {
        name: [describe(array), _digest(array.tobytes())]
        for name, array in arrays.items()
    }


def describe(leaf) -> str:
    """Dtype and shape of an array, such as ``float32[2, 3]``."""
    return f"{np.dtype(leaf.dtype).name}{list(leaf.shape)}"


def array_not_written(described: str) -> np.ndarray:
    """The array that was not written because it has no values.

    `described` is its dtype and shape, from `describe`. Raises ValueError if it has
    values, so that it was written and is missing now.
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
