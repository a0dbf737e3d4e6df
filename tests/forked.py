"""Runs `python -m MODULE ARGUMENTS` or `python FILE` in a process with JAX imported.

The process has its own flags, devices and exit status. It is forked from a server that
has imported the heavy libraries and computed nothing, which saves each test the seconds
of these imports. Its programs are compiled as those of the test are: quickly or as for
users. Tests of start-up itself start real interpreters.
"""

import multiprocessing
import os
import pathlib
import runpy
import subprocess
import sys
import tempfile
import time
from typing import Any

from tests import quick_compilation

ROOT = pathlib.Path(__file__).resolve().parent.parent
PRELOADED = [
    "experiments.images.train",
    "flax.linen",
    "identity_matters.report.build",
    "matplotlib.pyplot",
    "optax",
    "orbax.checkpoint",
    "scipy.optimize",
    "sklearn.datasets",
    "sklearn.linear_model",
    "tests.forked",
    "tests.freeze_heap",  # the last
]

server = multiprocessing.get_context("forkserver")
server.set_forkserver_preload(PRELOADED)


def _run(
    module: str,
    arguments: list[str],
    outputs: tuple,
    cwd: str,
    devices: int,
    compile_options: list[tuple[str, Any]],
):
    for path, stream in zip(outputs, (sys.stdout, sys.stderr), strict=True):
        stream.flush()
        with open(path, "wb") as file:
            os.dup2(file.fileno(), stream.fileno())
    os.chdir(cwd)
    quick_compilation.use_options(compile_options)
    sys.argv = [module, *arguments]
    if devices:
        # Trainings read the variable; JAX is imported already and reads only its
        # configuration.
        os.environ["JAX_NUM_CPU_DEVICES"] = str(devices)
        sys.modules["jax"].config.update("jax_num_cpu_devices", devices)
    if module.endswith(".py"):
        runpy.run_path(module, run_name="__main__")
    else:
        runpy.run_module(module, run_name="__main__", alter_sys=True)


class Started:
    """A running command; `process` is its multiprocessing process.

    Args:
      module: the module's name, or the path of a file.
      cwd: the directory it runs in.
      devices: its number of CPU devices; 0 for JAX's default.
    """

    def __init__(
        self, module: str, *arguments: object, cwd: object = ROOT, devices: int = 0
    ):
        self._command = [module, *map(str, arguments)]
        self._directory = tempfile.TemporaryDirectory()
        directory = pathlib.Path(self._directory.name)
        self._outputs = directory / "stdout", directory / "stderr"
        command = (module, self._command[1:], self._outputs, str(cwd), devices)
        options = quick_compilation.options_in_use
        self.process = server.Process(target=_run, args=(*command, options))
        self.process.start()

    def wait(self, timeout_seconds: float = 280) -> subprocess.CompletedProcess:
        """The result of the command, as from `subprocess.run`, with its output as text.

        Raises:
            subprocess.TimeoutExpired: after `timeout_seconds`; the process is killed.
        """
        with self._directory:
            self.process.join(timeout_seconds)
            if self.process.exitcode is None:
                self.process.kill()
                self.process.join()
                raise subprocess.TimeoutExpired(self._command, timeout_seconds)
            texts = [path.read_text() for path in self._outputs]
            return subprocess.CompletedProcess(
                self._command, self.process.exitcode, *texts
            )


def run(module: str, *arguments: object, ends: int | None = None, **where: Any):
    """Runs the command to its end; its exit status must be `ends`, if that is given."""
    finished = Started(module, *arguments, **where).wait()
    assert ends in (None, finished.returncode), finished.stderr
    return finished


def run_code(code: str, directory: pathlib.Path, *arguments: object, ends: int = 0):
    """Runs `code` as the file example.py in `directory`."""
    (directory / "example.py").write_text(code, encoding="utf-8")
    return run(str(directory / "example.py"), *arguments, ends=ends, cwd=directory)


def shell(
    *command: object, cwd: object = ROOT, **environment: str
) -> subprocess.CompletedProcess:
    """Runs any command with these environment variables added; its output is text."""
    return subprocess.run(
        [*map(str, command)],
        cwd=str(cwd),
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


def until(condition, process, timeout_seconds: float = 100) -> None:
    """Waits until ``condition()`` is true.

    Fails if `process` ends first or it takes too long.
    """
    deadline = time.monotonic() + timeout_seconds
    while not condition():
        assert process.is_alive() and time.monotonic() < deadline
        time.sleep(0.02)
