"""The settings of the process that measures: JAX, memory, cache and logging."""

import contextlib
import ctypes
import logging as std_logging
import os
import platform

import jax
from absl import logging

from identity_matters import jax_settings, limits, paths

# Training uses each CPU core as a device, up to this many, each with a copy of the
# data. A step of `cifar10/small` is 1.5 times as fast on two devices as on one that has
# both cores.
MOST_CPU_DEVICES = 16
CACHED_FROM_SECONDS = 0.2  # programs that compile faster are not cached on disk
# (option, value) for glibc's mallopt: M_MMAP_MAX = 0, M_TRIM_THRESHOLD = -1. Freed
# memory is kept.
MALLOC_OPTIONS = ((-4, 0), (-1, -1))
# Settings of JAX that change numbers,
# and that users may have changed in their environment.
NUMERICAL_SETTINGS = {
    "jax_default_prng_impl": jax_settings.GENERATOR,
    "jax_threefry_partitionable": True,
    "jax_random_seed_offset": 0,
    "jax_default_matmul_precision": None,
    "jax_numpy_dtype_promotion": "standard",
    "jax_disable_jit": False,
}


def configure_for_theory() -> None:
    """Fixes what changes numbers, whatever the environment says: float64, on the CPU.

    Also beside an accelerator: TPUs have no float64, and programs of microseconds only
    wait for a GPU. Compiling them takes longer than many of them run.
    """
    _configure_numbers(float64=True)
    jax.config.update("jax_platforms", "cpu")
    jax_settings.use_quick_compilation()
    _configure_cache()


def configure_for_devices(least_cpu_devices: int = 1) -> None:
    """Fixes what changes numbers: float32, on the devices that JAX finds.

    A CPU gets as many virtual devices as it has cores, rounded down to a power of two
    and at most MOST_CPU_DEVICES, or `least_cpu_devices` if that is more. The user's own
    JAX_NUM_CPU_DEVICES stays.
    """
    _configure_numbers(float64=False)
    if "JAX_NUM_CPU_DEVICES" not in os.environ:
        # A power of two divides the usual batch sizes.
        cores = 1 << (limits.usable_cores().bit_length() - 1)
        devices = max(min(cores, MOST_CPU_DEVICES), least_cpu_devices)
        jax.config.update("jax_num_cpu_devices", devices)
    _keep_freed_memory()
    _configure_cache()


def _configure_numbers(float64: bool) -> None:
    for name, value in NUMERICAL_SETTINGS.items():
        jax.config.update(name, value)
    jax.config.update("jax_enable_x64", float64)


def _keep_freed_memory() -> None:
    """Lets glibc keep freed memory.

    Otherwise the kernel clears fresh memory for each step on a CPU, 8 % of the time of
    `cifar10/small`. Arrays of 64 MB and more are still returned; M_ARENA_MAX = 1 would
    keep them, too, but slows narrow nets by as much: their threads wait for each other.
    """
    if platform.libc_ver()[0] == "glibc":
        for option, value in MALLOC_OPTIONS:
            ctypes.CDLL(None).mallopt(option, value)


def _configure_cache() -> None:
    """Keeps compiled programs on disk, unless there is no home directory.

    Several processes do so only if JAX_COMPILATION_CACHE_DIR names a directory, which
    must be one that they share. Process 0 alone writes programs. If the others cannot
    read them, they compile while process 0 does not, and on GPUs they may wait for it:
    XLA lets each process time a part of the algorithms, and they exchange the times.
    """
    is_alone = not jax.distributed.is_initialized()
    if is_alone and jax.config.values["jax_compilation_cache_dir"] is None:
        with contextlib.suppress(ValueError):
            caches = os.environ.get("XDG_CACHE_HOME") or paths.expand_home("~/.cache")
            cache = os.path.join(caches, "identity_matters", "jax")
            jax.config.update("jax_compilation_cache_dir", cache)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", CACHED_FROM_SECONDS)


def configure_logging() -> None:
    """Logs plain lines to standard error, and silences JAX below WARNING."""
    logging.use_absl_handler()
    logging.set_verbosity(logging.INFO)
    logging.get_absl_handler().setFormatter(std_logging.Formatter("%(message)s"))
    # JAX logs every accelerator that this machine does not have.
    std_logging.getLogger("jax").setLevel(std_logging.WARNING)
