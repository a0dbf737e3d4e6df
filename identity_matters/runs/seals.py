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

# A line of metrics.jsonl: a record, whose last field is the digest of this and all
# earlier lines. It is computed from the digest in the line before.
_LINE = re.compile(rb'(\{.*), "chain": "([0-9a-f]{16})"\}\n', re.DOTALL)


def digest(*parts: bytes) -> str:
    """The first 16 hexadecimal digits of the SHA-256 of the joined `parts`."""
    return hashlib.sha256(b"".join(parts)).hexdigest()[:16]


def sealed(value: dict, *others: dict) -> dict:
    """`value` with a "digest" of its own entries and those of `others`."""
    entries = {name: entry for name, entry in value.items() if name != "digest"}
    text = json.dumps(to_json([entries, *others]), sort_keys=True)
    return {**entries, "digest": digest(text.encode())}


def check_seal(where: Any, value: dict, *others: dict) -> None:
    """Raises MalformedFileError unless `value` has the digest that `sealed` gives it.

    `where` names the file or files in the message.
    """
    if "digest" not in value:
        raise MalformedFileError(f"{where}: has no digest")
    if value["digest"] != sealed(value, *others)["digest"]:
        raise MalformedFileError(
            f"{where}: not what the run wrote, a value was changed"
        )


def chain(line: bytes) -> str:
    """The digest in a line, which covers it and all lines before it.

    It is empty if there is none, as in b"", which stands for no line.
    """
    parts = _LINE.fullmatch(line)
    return parts[2].decode() if parts else ""


def chained_line(record: dict, previous: bytes) -> bytes:
    """The line of metrics.jsonl for `record`, after the line `previous`.

    `previous` is b"" for the first line. Raises ValueError for a record without fields,
    or with one of the name that the digest has.
    """
    if not record:
        raise ValueError("a record needs at least one field, got {}")
    if "chain" in record:
        raise ValueError("a record may not have the field chain, which is its digest")
    text = json.dumps(to_json(record), allow_nan=False).encode()
    link = digest(chain(previous).encode(), text)
    return b'%b, "chain": "%b"}\n' % (text.removesuffix(b"}"), link.encode())


def is_chained(line: bytes, previous: bytes) -> bool:
    """Whether the digest in `line` is the one that `chained_line` puts there."""
    parts = _LINE.fullmatch(line)
    if not parts:
        return False
    return parts[2].decode() == digest(chain(previous).encode(), parts[1], b"}")


def as_record(line: bytes) -> dict:
    """The record in a line, without its digest."""
    record = json.loads(line)
    record.pop("chain", None)
    # Few lines hold non-finite numbers, and converting every line would take most of
    # the time.
    return from_json(record) if b'NaN"' in line or b'Infinity"' in line else record


def noted(lines: list[bytes]) -> dict:
    """The field "records" of summary.json: the number of lines, the last digest."""
    last = lines[-1] if lines else b""
    return {"lines": len(lines), "chain": chain(last)}
