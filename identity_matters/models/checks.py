"""Checks of the settings that the factories take."""

from typing import Any


def check_choice(name: str, value: Any, choices: tuple) -> None:
    """Raises ValueError, naming the argument and what it may be, unless `value` is a choice."""
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}")


def check_at_least(name: str, value: Any, least: float) -> None:
    """Raises ValueError, naming the argument and both values, unless `value` >= `least`."""
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")


def check_rate(name: str, value: float) -> None:
    """Raises ValueError, naming the argument, unless 0 <= `value` < 1."""
    if not 0 <= value < 1:
        raise ValueError(f"{name} must be at least 0 and below 1, got {value}")
