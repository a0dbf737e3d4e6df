"""Accelerators of this machine, and whether JAX computes on them."""

import importlib.util
import os
import subprocess
import time

import jax
import numpy as np

import experiments
from identity_matters import limits

# What JAX needs for an accelerator -> what it computes on.
PLUGINS = {"jax_cuda12_plugin": "GPU", "jax_cuda13_plugin": "GPU", "libtpu": "TPU"}
_FIND_LOCK_SCRIPT = experiments.HERE.parent / "requirements" / "accelerator.sh"
_FIND_LOCK_SECONDS = 60
# Trainings that take at least this long are announced before they begin;
# `training_log` announces shorter ones, of an hour or more, as they go.
LONG_HOURS = 2
_PRODUCT_SIDE = 1024  # of the matrices whose product is timed: 2 GFLOP


def find_lock() -> str:
    """The lock in requirements/ that fits this machine: cpu, cuda12, cuda13 or tpu.

    Raises:
      ValueError: if there is an accelerator that cannot be used; the message says what
        is missing.
    """
    try:
        finished = subprocess.run(
            [str(_FIND_LOCK_SCRIPT)],
            capture_output=True,
            text=True,
            timeout=_FIND_LOCK_SECONDS,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):  # no bash, say
        return "cpu"
    if finished.returncode:
        raise ValueError(finished.stderr.strip())
    return finished.stdout.strip()


def installed_plugin() -> str | None:
    """The plugin of `PLUGINS` that this environment has, if any."""
    return next((name for name in PLUGINS if importlib.util.find_spec(name)), None)


def are_usable() -> bool:
    """Whether trainings would run on an accelerator, as far as known without JAX."""
    if os.environ.get("JAX_PLATFORMS") == "cpu" or installed_plugin() is None:
        return False
    try:
        return find_lock() != "cpu"
    except ValueError:
        return False


def require_used() -> None:
    """Refuses to train on the CPU by accident.

    JAX falls back to the CPU silently if its plugin is missing, or finds no device.
    Setting JAX_PLATFORMS, to whatever value, says what is wanted.

    Raises:
      ValueError: if JAX computes on the CPU although an accelerator or its plugin is
        here.
    """
    if os.environ.get("JAX_PLATFORMS") or jax.default_backend() != "cpu":
        return
    advice = "to train on the CPU all the same, set JAX_PLATFORMS=cpu"
    if plugin := installed_plugin():
        raise ValueError(
            f"{plugin} is installed, but JAX finds no {PLUGINS[plugin]}; {advice}"
        )
    try:
        lock = find_lock()
    except ValueError as error:
        raise ValueError(f"{error}; {advice}") from None
    if lock != "cpu":
        raise ValueError(
            "there is an accelerator, but this environment is for CPUs; run: make"
            f" setup ACCEL={lock}; {advice}"
        )


def least_cpu_hours(flops: float) -> float:
    """Hours that this many operations take here, at the speed of matrix products."""
    matrix = np.ones((_PRODUCT_SIDE, _PRODUCT_SIDE), np.float32)
    best_seconds = float("inf")
    for _ in range(3):
        started = time.perf_counter()
        matrix @ matrix
        best_seconds = min(best_seconds, time.perf_counter() - started)
    return flops / (2 * _PRODUCT_SIDE**3 / best_seconds) / 3600


def warning_of_hours(flops: float, instead: str) -> str | None:
    """A warning before a training of this many operations begins on a CPU.

    None if it will not take long.

    Args:
      flops: floating-point operations of all its steps.
      instead: what could be trained here instead, in words.
    """
    if jax.default_backend() != "cpu":
        return None
    hours = least_cpu_hours(flops)
    if hours < LONG_HOURS:
        return None
    return (
        f"no accelerator found: this takes at least {hours:.3g} hours on"
        f" {limits.usable_cores()} cores, even at the speed of matrix products;"
        f" {instead}"
    )
