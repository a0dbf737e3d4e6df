"""The environment of a run: its code, package versions, machine and command."""

import contextlib
import datetime
import importlib.metadata
import itertools
import os
import pathlib
import platform
import re
import subprocess
import sys

from identity_matters import limits

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
PACKAGES = ("jax", "jaxlib", "numpy", "scipy", "optax", "flax")  # they can change a number
GIT_TIMEOUT_SECONDS = 30


def describe() -> dict:
    """The commit, package versions, devices and command of this process, JSON-able."""
    import jax

    devices = jax.devices()
    return {
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        **code_version(),
        "command": _command(),
        "python": platform.python_version(),
        "packages": {name: importlib.metadata.version(name) for name in PACKAGES},
        "platform": f"{platform.system()} {platform.machine()}",
        "backend": devices[0].platform,
        "devices": [device.device_kind for device in devices],
        "cpu": _cpu_model(),
        "cpu_cores": limits.usable_cores(),
    }


def code_version() -> dict:
    """The commit, and whether the work tree differs from it outside results/; None if unknown."""
    top = _git("rev-parse", "--show-toplevel")
    # An installed copy of the library may lie inside one of the user's repositories.
    if top is None or pathlib.Path(top).resolve() != REPOSITORY:
        return {"commit": None, "dirty": None}
    status = _git("status", "--porcelain", "--", ".", ":!results")
    return {"commit": _git("rev-parse", "HEAD"), "dirty": None if status is None else bool(status)}


def _git(*arguments: str) -> str | None:
    # Without --no-optional-locks a killed `git status` leaves .git/index.lock behind.
    command = ["git", "-C", str(REPOSITORY), "--no-optional-locks", *arguments]
    try:
        output = subprocess.check_output(
            command, stderr=subprocess.DEVNULL, text=True, timeout=GIT_TIMEOUT_SECONDS
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return output.strip()


def _command() -> list[str]:
    """The command line without --results_dir, --overwrite and the path of the working directory."""
    arguments = [
        argument
        for before, argument in itertools.pairwise(sys.argv)
        if before.lstrip("-") != "results_dir"
        and not re.match("--?(results_dir|overwrite)", argument)
    ]
    here = f"{pathlib.Path.cwd()}{os.sep}"
    spec = sys.modules["__main__"].__spec__
    program = ["-m", spec.name] if spec else [pathlib.Path(sys.argv[0]).name]
    return ["python", *program, *(a.replace(here, "") for a in arguments)]


def _cpu_model() -> str:
    with contextlib.suppress(OSError):
        text = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8")
        if found := re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE):
            return found[1]
    return platform.processor()
