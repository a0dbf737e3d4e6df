"""Digests that show whether a value or a line was changed, lost or doubled.

Whoever changes a value on purpose can compute its digest anew: a digest finds
accidents. That the verdict and metrics follow from the records is checked by judging
them again (experiments/judge.py).
"""

import hashlib
import json
import re
from typing import Any

from identity_matters.runs.jsonio import from_json, to_json
from identity_matters.runs.messages import MalformedFileError

# A line of metrics.jsonl: a record, whose last
# field is the digest of this and all earlier lines.
_LINE = re.compile(rb'(\{.*), "chain": "([0-9a-f]{16})"\}\n', re.DOTALL)


def digest(*parts: bytes) -> str:
    """The first 16 hexadecimal digits of the SHA-256 of the joined `parts`."""
    return hashlib.sha256(b"".join(parts)).hexdigest()[:16]


def sealed(value: dict, *others: dict) -> dict:
    """`value` with a "digest" of its own entries and those of `others`."""
    entries = {name: entry for name, entry in value.items() if name != "digest"}
    text = json.dumps(to_json([entries, *others]), sort_keys=True)
    return {**entries, "digest": digest(text.encode())}


def check_seal(path: Any, value: dict, *others: dict) -> None:
    """Raises MalformedFileError unless `value` has the right digest.

    It is the one that `sealed` gives it.
    """
    if "digest" not in value:
        raise MalformedFileError(f"{path}: has no digest")
    if value["digest"] != sealed(value, *others)["digest"]:
        raise MalformedFileError(f"{path}: not what the run wrote, a value was changed")


def chain(lines: list[bytes]) -> str:
    """The digest in the last line, which covers all `lines`.

    It is empty if there are none.
    """
    line = _LINE.fullmatch(lines[-1]) if lines else None
    return line[2].decode() if line else ""


def chained_line(record: dict, before: list[bytes]) -> bytes:
    """The line of metrics.jsonl for `record`, which follows the lines `before`."""
    text = json.dumps(to_json(record), allow_nan=False).encode()
    own_digest = digest(chain(before).encode(), text)
    return b'%b, "chain": "%b"}\n' % (text.removesuffix(b"}"), own_digest.encode())


def is_chained(line: bytes, before: list[bytes]) -> bool:
    """Whether the digest of `line` is right after the lines `before`."""
    found = _LINE.fullmatch(line)
    if not found:
        return False
    return found[2].decode() == digest(chain(before).encode(), found[1], b"}")


def as_record(line: bytes) -> dict:
    """The record in a line, without its digest."""
    record = json.loads(line)
    record.pop("chain", None)
    # Few lines hold non-finite numbers,
    # and converting every line would take most of the time.
    return from_json(record) if b'NaN"' in line or b'Infinity"' in line else record


def noted(lines: list[bytes]) -> dict:
    """The field "records" of summary.json.

    It holds how many lines there are, and the digest of the last one.
    """
    return {"lines": len(lines), "chain": chain(lines)}
