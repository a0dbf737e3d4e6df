"""What a run ran on: code, versions, hardware and command, as written to environment.json."""

import datetime
import importlib.metadata
import os
import pathlib
import platform
import subprocess
import sys

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
# The packages that can change a number.
PACKAGES = ("jax", "jaxlib", "numpy", "scipy", "optax", "flax")


def describe_environment() -> dict:
    """The commit, package versions, devices and command of this process, JSON-able."""
    import jax

    devices = jax.devices()
    return {
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        **_code_version(),
        "command": _command(),
        "python": platform.python_version(),
        "packages": {name: version for name in PACKAGES if (version := _package_version(name))},
        "platform": f"{platform.system()} {platform.machine()}",
        "backend": devices[0].platform,
        "devices": [device.device_kind for device in devices],
        "cpu": _cpu_model(),
        "cpu_cores": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count(),
    }


def _code_version() -> dict:
    """The commit and whether the work tree differed from it, outside results/."""
    commit = _git("rev-parse", "HEAD")
    status = _git("status", "--porcelain", "--", ".", ":!results")
    return {"commit": commit, "dirty": None if commit is None else bool(status)}


def _git(*arguments: str) -> str | None:
    try:
        finished = subprocess.run(
            ["git", *arguments],
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
    except OSError:
        return None  # no git here: the code came as an archive, and the record says so
    return finished.stdout.strip() if finished.returncode == 0 else None


def _command() -> list[str]:
    """The command line without what differs from machine to machine."""
    arguments = [a for a in sys.argv[1:] if not a.startswith(("--results_dir", "--overwrite"))]
    here = f"{pathlib.Path.cwd()}{os.sep}"
    spec = sys.modules["__main__"].__spec__
    program = ["-m", spec.name] if spec else [pathlib.Path(sys.argv[0]).name]
    return ["python", *program, *(a.replace(here, "") for a in arguments)]


def _package_version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _cpu_model() -> str:
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor()
