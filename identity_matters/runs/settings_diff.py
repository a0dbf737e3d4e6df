"""Settings of two runs, compared by their full names."""

from typing import Any

from identity_matters.runs.jsonio import to_json

# Settings for where the data are and how they are loaded. They do not affect any
# result.
PLACE_SETTINGS = ("data_dir", "cache", "worker_threads", "worker_processes")


def flat(settings: dict, prefix: str = "") -> dict:
    """Flattens nested settings to a dict of full names.

    >>> flat({"seed": 0, "optim": {"momentum": 0.9, "nesterov": False}, "nets": {}})
    {'seed': 0, 'optim.momentum': 0.9, 'optim.nesterov': False, 'nets': {}}
    """
    named: dict[str, Any] = {}
    for name, value in settings.items():
        nested = isinstance(value, dict) and value
        named |= flat(value, f"{prefix}{name}.") if nested else {prefix + name: value}
    return named


def that_matter(settings: dict) -> dict:
    """The flattened, JSON-able settings without `PLACE_SETTINGS`."""
    named = flat(to_json(settings))
    return {
        n: value for n, value in named.items() if n.split(".")[-1] not in PLACE_SETTINGS
    }


def differences(before: dict, now: dict) -> dict[str, tuple]:
    """Full name of each setting that differs -> its two values.

    Those of `PLACE_SETTINGS` are ignored.
    """
    a, b = that_matter(before), that_matter(now)
    return {
        name: (a.get(name), b.get(name))
        for name in sorted(a.keys() | b.keys())
        if a.get(name) != b.get(name)
    }
