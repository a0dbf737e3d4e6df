"""Settings of two runs, compared by their full names."""

from typing import Any, NamedTuple

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


def settings_that_matter(settings: dict) -> dict:
    """The flattened, JSON-able settings without `PLACE_SETTINGS`."""
    return {
        name: value
        for name, value in flat(to_json(settings)).items()
        if name.split(".")[-1] not in PLACE_SETTINGS
    }


class Difference(NamedTuple):
    """A setting that differs between two runs: its full name, and its two values."""

    name: str
    before: Any
    now: Any


def first_difference(before: dict, now: dict) -> Difference | None:
    """The first of `differences` by name; None if no setting that matters differs."""
    for name, (value_before, value_now) in differences(before, now).items():
        return Difference(name, value_before, value_now)
    return None


def why_not_of_variant(config: dict, defaults: dict) -> str | None:
    """How the settings of a run differ from those of its variant, if they do.

    The answer continues a message that names the run: "was made with ...".
    """
    difference = first_difference(config, defaults)
    if difference is None:
        return None
    return (
        f"was made with {difference.name}={difference.before!r}, which is"
        f" {difference.now!r} now"
    )


def differences(before: dict, now: dict) -> dict[str, tuple]:
    """Full name of each setting that differs and matters -> its two values."""
    settings_before = settings_that_matter(before)
    settings_now = settings_that_matter(now)
    return {
        name: (settings_before.get(name), settings_now.get(name))
        for name in sorted(settings_before.keys() | settings_now.keys())
        if settings_before.get(name) != settings_now.get(name)
    }
