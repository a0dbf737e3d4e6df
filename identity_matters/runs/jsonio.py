"""JSON files: atomic writing, and strict reading.

Arrays and numbers that are not finite can be written, too.
"""

import errno
import json
import math
import os
import stat
from typing import Any

from identity_matters.runs.messages import MalformedFileError, RunError

NON_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
# What some shares (CIFS, sshfs, WSL) answer to fsync of a directory.
_NO_DIRECTORY_FSYNC = (errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP)


def to_json(value: Any) -> Any:
    """`value` for `json.dumps`.

    Arrays become numbers or lists, NaN and infinity the names in `NON_FINITE`.
    """
    if isinstance(value, dict):
        return {str(key): to_json(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(entry) for entry in value]
    if hasattr(value, "tolist"):
        return to_json(value.tolist())
    return (
        json.dumps(value)
        if isinstance(value, float) and not math.isfinite(value)
        else value
    )


def from_json(value: Any) -> Any:
    """The inverse of `to_json` for text that `json.loads` has read."""
    if isinstance(value, dict):
        return {key: from_json(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [from_json(entry) for entry in value]
    return NON_FINITE.get(value, value) if isinstance(value, str) else value


def in_bucket(path: Any) -> bool:
    """Whether `path` is in a bucket such as gs://...

    Buckets have neither locks nor appending.
    """
    return "://" in os.fspath(path)


def write_atomically(path: Any, text: str) -> None:
    """Replaces the file at `path` with `text`.

    After a crash it is the old file or the new one.
    """
    if in_bucket(path):  # a bucket replaces an object as a whole
        path.write_text(text)
        return
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    _flush_directory(path.parent)


def _flush_directory(path: Any) -> None:
    """Asks that renames in `path` reach the disk, where the file system can do that."""
    directory = os.open(path, os.O_RDONLY)
    try:
        os.fsync(directory)
    except OSError as error:
        if error.errno not in _NO_DIRECTORY_FSYNC:
            raise
    finally:
        os.close(directory)


def write_json(path: Any, value: Any) -> None:
    """Writes `value` (see `to_json`) to `path`, atomically."""
    write_atomically(path, json.dumps(to_json(value), indent=2, allow_nan=False) + "\n")


def read_json(path: Any) -> dict:
    """The JSON object in the file at `path`; raises RunError or MalformedFileError."""
    try:
        value = json.loads(read_bytes(path))
        json.dumps(value, ensure_ascii=False).encode()  # rejects lone surrogates
    except (ValueError, RecursionError) as error:
        raise MalformedFileError(f"{path}: not JSON ({error})") from None
    if not isinstance(value, dict):
        raise MalformedFileError(
            f"{path}: must hold a JSON object, holds {type(value).__name__}"
        )
    return from_json(value)


def read_bytes(path: Any) -> bytes:
    """The content of a regular file.

    Raises MalformedFileError if it is missing, RunError if it cannot be read.
    """
    try:
        if in_bucket(path):
            return path.read_bytes()
        return _read_regular_file(path)
    except FileNotFoundError:
        raise MalformedFileError(f"{path}: missing") from None
    except OSError as error:  # not MalformedFileError: what the file holds is unknown
        raise RunError(f"{path}: cannot be read ({error.strerror})") from None


def _read_regular_file(path: Any) -> bytes:
    # Without O_NONBLOCK opening a FIFO waits for a writer, for ever.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise RunError(f"{path}: cannot be read (it is not a regular file)")
        with open(descriptor, "rb", closefd=False) as file:
            return file.read()
    finally:
        os.close(descriptor)
