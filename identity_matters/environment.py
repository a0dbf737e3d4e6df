"""What a run ran on: its code, package versions, machine, JAX settings and command."""

import contextlib
import datetime
import importlib.metadata
import os
import pathlib
import platform
import re
import sys

from identity_matters import limits
from identity_matters.code_version import code_version

# Packages that can change a number.
PACKAGES = ("jax", "jaxlib", "numpy", "scipy", "optax", "flax")
# Settings of JAX, from its configuration or a variable JAX_..., that can change a
# number.
JAX_SETTINGS = (
    "jax_allow_f16_reductions",
    "jax_default_matmul_precision",
    "jax_default_prng_impl",
    "jax_disable_jit",
    "jax_disable_most_optimizations",
    "jax_enable_x64",
    "jax_exec_time_optimization_effort",
    "jax_high_dynamic_range_gumbel",
    "jax_numpy_dtype_promotion",
    "jax_optimization_level",
    "jax_random_seed_offset",
    "jax_softmax_custom_jvp",
    "jax_threefry_gpu_kernel_lowering",
    "jax_threefry_partitionable",
)
# Variables that compilers and libraries read. Each holds flags, separated by blanks.
VARIABLES = (
    "XLA_FLAGS",
    "LIBTPU_INIT_ARGS",
    "NVIDIA_TF32_OVERRIDE",
    "CUBLAS_WORKSPACE_CONFIG",
)
# Of a flag that changes no number that is computed.
_CHANGES_NO_NUMBER = re.compile(
    "dump|host_platform_device_count|parallel_codegen_split_count"
)
# What must stay the same, besides the code, if a run is resumed -> what a message calls
# it.
_KEPT = {
    "packages": "with other packages",
    "jax_settings": "with other settings of JAX",
    "variables": "with other variables",
}
# Flags that only say where a run is; the value of the first one is a directory.
_RESULTS_FLAG = "results_dir"
_RUN_FLAGS = (_RESULTS_FLAG, "overwrite")


def describe() -> dict:
    """This process's code, packages, devices, settings and command, JSON-able."""
    import jax

    devices = jax.devices()
    return {
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        **code_and_packages(),
        "command": _command(),
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "backend": devices[0].platform,
        "devices": [device.device_kind for device in devices],
        "cpu": cpu_model(),
        "cpu_cores": limits.usable_cores(),
        **_jax_settings_and_variables(),
    }


def what_decides_numbers() -> dict:
    """The part of `describe` that must be the same in all processes of a run."""
    described = {**code_and_packages(), **_jax_settings_and_variables()}
    # A file that is no code may be in one checkout alone.
    del described["dirty"]
    return described


def code_and_packages() -> dict:
    """The part of `describe` that does not need JAX."""
    versions = {name: importlib.metadata.version(name) for name in PACKAGES}
    return {**code_version(), "packages": versions}


def why_not_resumed(before: dict, now: dict) -> str | None:
    """Says why a run must not be resumed; None if it may be.

    A resumed run must draw the numbers that it would have drawn undisturbed. Other
    devices and another number of cores are allowed: the report names them.

    Args:
      before: environment of the run, as in environment.json.
      now: the environment to resume it in, or the parts of it that are known.
    """
    if "code" in before and before["code"] != now["code"]:
        commits = f"commit {_named(before)}, here {_named(now)}"
        return f"begun by other code ({commits}); that code can resume it"
    for field, words in _KEPT.items():
        if field in before and field in now:
            for name in sorted(before[field].keys() | now[field].keys()):
                value_before = before[field].get(name)
                value_now = now[field].get(name)
                if value_before != value_now:
                    return f"begun {words} ({name} {value_before}, here {value_now})"
    return None


def _named(environment: dict) -> str:
    commit = environment.get("commit") or "unknown"
    return (
        f"{commit[:12]} with uncommitted changes"
        if environment.get("dirty")
        else commit[:12]
    )


def _jax_settings_and_variables() -> dict:
    import jax

    return {
        "jax_settings": _jax_settings(jax.config.values),
        "variables": _variables(),
    }


def _jax_settings(values: dict) -> dict:
    """The current `JAX_SETTINGS` that this JAX has, enumerations by their value."""
    shown = {}
    for name in JAX_SETTINGS:
        if name in values:
            value = getattr(values[name], "value", values[name])
            plain = value is None or isinstance(value, bool | int | float | str)
            shown[name] = value if plain else str(value)
    return shown


def _variables() -> dict:
    """The `VARIABLES` that are set, without flags that change no number."""
    shown = {}
    for name in VARIABLES:
        text = os.environ.get(name, "").strip()
        # XLA_FLAGS may name a file of flags.
        if name == "XLA_FLAGS" and text and not text.startswith("-"):
            with contextlib.suppress(OSError):
                text = pathlib.Path(text).read_text(encoding="utf-8", errors="replace")
        flags = [flag for flag in text.split() if not _CHANGES_NO_NUMBER.search(flag)]
        if flags:
            shown[name] = " ".join(flags)
    return shown


def _command() -> list[str]:
    """The command line without what only says where the run is.

    That is `_RUN_FLAGS`, and the working directory in all other arguments.
    """
    arguments = _without_run_flags(sys.argv[1:])
    return ["python", *_program(), *(_relative(argument) for argument in arguments)]


def _without_run_flags(arguments: list[str]) -> list[str]:
    """The arguments without `_RUN_FLAGS` and their values."""
    kept = []
    remaining = iter(arguments)
    for argument in remaining:
        name, equals_sign, _ = argument.partition("=")
        flag = name.lstrip("-") if argument.startswith("-") else None
        if flag not in _RUN_FLAGS:
            kept.append(argument)
        elif flag == _RESULTS_FLAG and not equals_sign:
            # Its value is the next argument.
            next(remaining, None)
    return kept


def _program() -> list[str]:
    """What `python` was started with: -m and a module, or the name of a file."""
    spec = sys.modules["__main__"].__spec__
    return ["-m", spec.name] if spec else [pathlib.Path(sys.argv[0]).name]


def _relative(argument: str) -> str:
    """The argument with paths below the working directory relative to it."""
    return argument.replace(f"{pathlib.Path.cwd()}{os.sep}", "")


def cpu_model() -> str:
    """What the processor calls itself; empty if nothing says it."""
    with contextlib.suppress(OSError):
        text = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8")
        if line := re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE):
            return line[1]
    return platform.processor()
