"""Settings of two runs, compared by their full names."""

from typing import Any

from identity_matters.runs.jsonio import to_json

# Settings for where the data are and how they are loaded; they affect no result.
PLACE_SETTINGS = ("data_dir", "cache", "worker_threads", "worker_processes")


def flat(settings: dict, prefix: str = "") -> dict:
    """Flattens nested settings to a dict of full names.

    >>> flat({"seed": 0, "optim": {"momentum": 0.9, "nesterov": False}, "nets": {}})
    {'seed': 0, 'optim.momentum': 0.9, 'optim.nesterov': False, 'nets': {}}
    """
    flattened: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, dict) and value:
            flattened |= flat(value, f"{prefix}{name}.")
        else:
            flattened[prefix + name] = value
    return flattened


def that_matter(settings: dict) -> dict:
    """The flattened, JSON-able settings without `PLACE_SETTINGS`."""
    return {
        name: value
        for name, value in flat(to_json(settings)).items()
        if name.split(".")[-1] not in PLACE_SETTINGS
    }


def differences(before: dict, now: dict) -> dict[str, tuple]:
    """Full name of each setting that differs and matters -> its two values."""
    settings_before = that_matter(before)
    settings_now = that_matter(now)
    return {
        name: (settings_before.get(name), settings_now.get(name))
        for name in sorted(settings_before.keys() | settings_now.keys())
        if settings_before.get(name) != settings_now.get(name)
    }
