"""Names, fields and types that the files of a run may hold (docs/architecture.md)."""

import dataclasses
import math
import os
import re
from collections.abc import Callable, Mapping
from typing import Any

from etils import epath

SCHEMA = 3
FINISHED = ("done", "diverged")
CHECKPOINTS = "checkpoints"  # the directory of a run that has those of its trainings
STATUSES = ("running", *FINISHED, "interrupted", "failed")
# What a run says of its claim.
VERDICTS = (
    "holds",  # a proved statement; every attack on it failed
    "counterexample",  # a statement that a record refutes
    "reproduced",  # an empirical statement
    "not reproduced",  # an empirical statement
    "not comparable",  # a reduced run, or another question
    "undecided",  # the records do not decide
)
SCALES = ("paper", "reduced")
# in float32 mode JAX uses 32 bits of a seed: larger ones would repeat smaller ones
SEEDS = 2**32
# How many names experiment and variant have together, at most: runs are found by globs,
# which in buckets have no "**".
MOST_NAMES = 4
_PLAIN_NAME = "[A-Za-z0-9_.+@-]+"
_PATH = re.compile(f"{_PLAIN_NAME}(/{_PLAIN_NAME})*")
_METRIC = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.=:@+/-]*")
_CLAIM = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]*")
_COMMIT = re.compile("[0-9a-f]{40}|[0-9a-f]{64}")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[+-]\d\d:\d\d")
_VERSION = re.compile(r"[A-Za-z0-9_.!+-]{1,100}")


def run_path(
    results_dir: str | os.PathLike[str], experiment: str, variant: str, seed: int
) -> Any:
    """The directory of a run.

    ValueError if a name could lead out of `results_dir`, or too far down in it.
    """
    for what, name in {"experiment": experiment, "variant": variant}.items():
        if not _is_path(name):
            raise ValueError(
                f"{what} must be a relative path of plain names, got {name!r}"
            )
    name = f"{experiment}/{variant}"
    if len(name.split("/")) > MOST_NAMES:
        raise ValueError(
            f"experiment and variant must be at most {MOST_NAMES} names, got {name!r}:"
            " runs are not looked for any deeper"
        )
    return epath.Path(results_dir) / name / f"seed={seed}"


def _is_path(value: Any) -> bool:
    return isinstance(value, str) and bool(_PATH.fullmatch(value)) and ".." not in value


@dataclasses.dataclass(frozen=True)
class ValueKind:
    """The values that a field may have, in words and as a predicate."""

    words: str
    includes: Callable[[Any], bool]


def _matching(words: str, pattern: re.Pattern) -> ValueKind:
    return ValueKind(
        words, lambda value: isinstance(value, str) and bool(pattern.fullmatch(value))
    )


def _one_of(values: Any) -> ValueKind:
    # `in` takes True for 1.
    return ValueKind(
        f"one of {tuple(values)}",
        lambda value: any(
            type(value) is type(known) and value == known for known in values
        ),
    )


def _optional(kind: ValueKind) -> ValueKind:
    return ValueKind(
        f"{kind.words}, or null", lambda value: value is None or kind.includes(value)
    )


def _list_of(kind: ValueKind) -> ValueKind:
    return ValueKind(
        f"a list, each entry {kind.words}",
        lambda value: isinstance(value, list) and all(map(kind.includes, value)),
    )


def _dict_of(key: ValueKind, kind: ValueKind) -> ValueKind:
    return ValueKind(
        f"a dict, each name {key.words} and each value {kind.words}",
        lambda value: (
            isinstance(value, dict)
            and all(map(key.includes, value))
            and all(map(kind.includes, value.values()))
        ),
    )


def _is_whole(value: Any) -> bool:
    return type(value) is int and value >= 0


def _is_finite(value: Any) -> bool:
    try:
        return type(value) in (int, float) and math.isfinite(value)
    except OverflowError:  # an integer beyond float64
        return False


_TEXT = ValueKind("text", lambda value: isinstance(value, str))
_METRIC_NAME = _matching("a plain name or path", _METRIC)
_RESULT = ValueKind(
    "a finite number, true, false or null",
    lambda value: value is None or isinstance(value, bool) or _is_finite(value),
)
_DURATION = ValueKind(
    "a number of seconds", lambda value: _is_finite(value) and value >= 0
)

_ALWAYS = {
    "schema": _one_of((SCHEMA,)),
    "experiment": ValueKind("a relative path of plain names", _is_path),
    "variant": ValueKind("a relative path of plain names", _is_path),
    "seed": ValueKind(
        f"a whole number below {SEEDS}",
        lambda value: _is_whole(value) and value < SEEDS,
    ),
    "status": _one_of(STATUSES),
    "scale": _one_of(SCALES),
}
# All of these belong to a run that is done; another run may have some.
_CONCLUSION = {
    "claim": _matching("the id of a claim", _CLAIM),
    "metrics": _dict_of(_METRIC_NAME, _RESULT),
    "paper": _dict_of(_METRIC_NAME, _RESULT),
    "verdict": _one_of(VERDICTS),
    "seconds": _dict_of(_METRIC_NAME, _DURATION),
    "records": ValueKind(
        '{"lines": a whole number, "chain": text}',
        lambda value: (
            isinstance(value, dict)
            and value.keys() == {"lines", "chain"}
            and _is_whole(value["lines"])
            and isinstance(value["chain"], str)
        ),
    ),
}
_SOMETIMES = {
    "changed": _dict_of(_METRIC_NAME, ValueKind("any", lambda value: True)),
    "error": _TEXT,
    "digest": _TEXT,
}
_SETTING = ValueKind(
    "text, a number, true, false or null",
    lambda v: _RESULT.includes(v) or type(v) is str,
)
_ENVIRONMENT = {
    "started": _matching("a time with its zone", _TIME),
    "commit": _optional(_matching("a commit", _COMMIT)),
    "dirty": _optional(
        ValueKind("true or false", lambda value: isinstance(value, bool))
    ),
    "command": _list_of(_TEXT),
    "python": _matching("a version", _VERSION),
    "packages": _dict_of(
        _matching("a package", _VERSION), _matching("a version", _VERSION)
    ),
    "platform": _TEXT,
    "backend": _TEXT,
    "devices": ValueKind(
        "a list of text, not empty", lambda v: _list_of(_TEXT).includes(v) and bool(v)
    ),
    "cpu": _TEXT,
    "cpu_cores": ValueKind(
        "a whole number above 0", lambda value: _is_whole(value) and value > 0
    ),
}
_ENVIRONMENT_SINCE_SCHEMA_3 = {  # absent from older runs
    "code": _TEXT,
    "jax_settings": _dict_of(_METRIC_NAME, _SETTING),
    "variables": _dict_of(_METRIC_NAME, _TEXT),
}


def _require(value: dict, kinds: Mapping[str, ValueKind], may_be_absent: bool) -> None:
    """Raises ValueError, which names a field, unless the fields are of these kinds."""
    for name, kind in kinds.items():
        if name not in value:
            if may_be_absent:
                continue
            raise ValueError(f"{name} is missing, it must be {kind.words}")
        if not kind.includes(value[name]):
            raise ValueError(
                f"{name} must be {kind.words}, is {_shortened(value[name])}"
            )


def _shortened(value: Any, most: int = 100) -> str:
    text = repr(value)
    return text if len(text) <= most else f"{text[:most]}..."


def check_summary(summary: dict) -> None:
    """Raises ValueError if `summary` breaks the contract of summary.json."""
    if summary.get("schema") == SCHEMA - 1:
        raise ValueError(
            f"schema {SCHEMA - 1}, of an older version; run it anew, or if it is"
            " finished seal it: python -m experiments.judge --write RUN"
        )
    _require(summary, _ALWAYS, may_be_absent=False)
    _require(summary, _CONCLUSION, may_be_absent=summary["status"] != "done")
    _require(summary, _SOMETIMES, may_be_absent=True)
    if unknown := summary.get("paper", {}).keys() - summary.get("metrics", {}).keys():
        raise ValueError(f"paper has values of {sorted(unknown)}, which metrics lacks")


def check_environment(environment: dict) -> None:
    """Raises ValueError if `environment` breaks the contract of environment.json."""
    resumed = environment.get("resumed", [])
    if not isinstance(resumed, list) or not all(
        isinstance(entry, dict) for entry in resumed
    ):
        raise ValueError("resumed must be a list of environments")
    for described in (environment, *resumed):
        _require(described, _ENVIRONMENT, may_be_absent=False)
        _require(described, _ENVIRONMENT_SINCE_SCHEMA_3, may_be_absent=True)


def without_non_finite(values: dict) -> dict:
    """Metrics for summary.json: null for what is not finite.

    The records still hold the value.
    """
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in values.items()
    }
