"""JSON files that survive crashes, and numbers that JSON lacks.

Whole files are written to a temporary name, synced and renamed, so that a reader finds the old
text or the new one and nothing between. NaN and the infinities are written as the strings of
`NON_FINITE` and read back as floats.
"""

import json
import math
import os
import pathlib
from typing import Any

NON_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


class MalformedFileError(Exception):
    """A file is missing or not what it should be; the message names it and says what is wrong."""


def to_json(value: Any) -> Any:
    """`value` with arrays and scalars of NumPy or JAX as plain numbers, ready for `json.dumps`."""
    if isinstance(value, dict):
        return {str(key): to_json(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(entry) for entry in value]
    if hasattr(value, "tolist"):
        return to_json(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    return value


def from_json(value: Any) -> Any:
    """The inverse of `to_json` for text that `json.loads` has read."""
    if isinstance(value, dict):
        return {key: from_json(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [from_json(entry) for entry in value]
    return NON_FINITE.get(value, value) if isinstance(value, str) else value


def flat(settings: dict, prefix: str = "") -> dict:
    """Nested settings by their full names.

    >>> flat({"seed": 0, "optim": {"momentum": 0.9, "nesterov": False}, "nets": {}})
    {'seed': 0, 'optim.momentum': 0.9, 'optim.nesterov': False, 'nets': {}}
    """
    named: dict[str, Any] = {}
    for name, value in settings.items():
        nested = isinstance(value, dict) and value
        named |= flat(value, f"{prefix}{name}.") if nested else {prefix + name: value}
    return named


def write_atomically(path: pathlib.Path, text: str) -> None:
    """Replaces the file at `path` by `text`: all of it or, after a crash, none of it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with open(temporary, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def write_json(path: pathlib.Path, value: Any) -> None:
    """Writes `value` (see `to_json`) to `path`, atomically."""
    text = json.dumps(to_json(value), indent=2, sort_keys=False, allow_nan=False)
    write_atomically(path, text + "\n")


def read_json(path: pathlib.Path) -> dict:
    """The JSON object in the file at `path`; raises MalformedFileError."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise MalformedFileError(f"{path}: missing") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise MalformedFileError(f"{path}: not JSON ({error})") from None
    if not isinstance(value, dict):
        raise MalformedFileError(f"{path}: must hold a JSON object, holds {type(value).__name__}")
    return from_json(value)


def read_complete_lines(path: pathlib.Path) -> tuple[list[dict], int]:
    """The records of a .jsonl file and the number of bytes that they fill.

    A last line without its newline was cut short by a crash and is left out.
    """
    if not path.exists():
        return [], 0
    content = path.read_bytes()
    length = content.rfind(b"\n") + 1
    entries = []
    for number, line in enumerate(content[:length].splitlines(), start=1):
        try:
            entry = json.loads(line)
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise MalformedFileError(f"{path}:{number}: not JSON ({error})") from None
        if not isinstance(entry, dict):
            raise MalformedFileError(f"{path}:{number}: must be a JSON object")
        entries.append(from_json(entry))
    return entries, length
