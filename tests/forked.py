"""Runs `python -m MODULE ARGUMENTS` or `python FILE` in a process with JAX imported.

The process has its own flags, devices and exit status. It is forked from a server that
has imported the heavy libraries and computed nothing, which saves each test the seconds
of these imports. Its programs are compiled as those of the test are: quickly or as for
users. Tests of start-up itself start real interpreters.

A command that starts such a server of its own, as `experiments.reproduce` does, can
have it forked, too: see `starts_server` of `Started`.
"""

import ast
import fcntl
import multiprocessing
import os
import pathlib
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable
from multiprocessing import util
from typing import Any

from experiments.run import process as experiments_process
from identity_matters import code_version, environment
from tests import kept_programs, quick_compilation

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

# The descriptors that a process of the tests has open are below this number.
_FREE_DESCRIPTOR = 128
_LONGEST_MESSAGE_BYTES = 65536


def use_code_version(known: Callable[[], dict]) -> None:
    """Runs record ``known()`` of the code, without comparing all files each time.

    If a test takes another directory for the repository, its files are compared.
    """
    compare = environment.code_version

    def version() -> dict:
        return known() if code_version.REPOSITORY == ROOT else compare()

    environment.code_version = version


def _run(
    module: str,
    arguments: list[str],
    outputs: tuple,
    cwd: str,
    devices: int,
    starts_server: bool,
    compile_options: list[tuple[str, Any]],
    programs: pathlib.Path | None,
    code: dict,
):
    for path, stream in zip(outputs, (sys.stdout, sys.stderr), strict=True):
        stream.flush()
        with open(path, "wb") as file:
            os.dup2(file.fileno(), stream.fileno())
    os.chdir(cwd)
    quick_compilation.use_options(compile_options)
    kept_programs.use(programs)
    use_code_version(lambda: code)
    experiments_process.CACHED_FROM_SECONDS = 0.0
    if starts_server:
        _fork_its_server()
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


def _fork_its_server() -> None:
    """The fork server of `multiprocessing` that this process starts will be forked.

    It is forked here, before the command runs, so that it holds nothing of the command;
    it then waits until it is started, or until this process ends.
    """
    ours, its = socket.socketpair()
    pid = os.fork()
    if not pid:
        ours.close()
        try:
            _become_server(its)
        except Exception:
            traceback.print_exc()
        finally:
            os._exit(0)
    its.close()
    start_interpreter = util.spawnv_passfds

    def start(path: Any, arguments: list, descriptors: Iterable[int]) -> int:
        code = arguments[-1]
        if not code.startswith("from multiprocessing.forkserver import main"):
            return start_interpreter(path, arguments, descriptors)
        numbers = sorted(descriptors)
        socket.send_fds(ours, [repr((code, numbers)).encode()], numbers)
        return pid

    util.spawnv_passfds = start


def _become_server(its: socket.socket) -> None:
    """Waits for the code that an interpreter would be started with, and runs it.

    As in a new interpreter, only the descriptors that come with the code are open,
    under their numbers in the other process, and no signal has a handler.
    """
    message, received, _, _ = socket.recv_fds(its, _LONGEST_MESSAGE_BYTES, 16)
    if not message:
        return
    code, numbers = ast.literal_eval(message.decode())
    kept = [fcntl.fcntl(fd, fcntl.F_DUPFD, _FREE_DESCRIPTOR) for fd in received]
    os.closerange(3, _FREE_DESCRIPTOR)
    for number, descriptor in zip(numbers, kept, strict=True):
        os.dup2(descriptor, number)
        os.close(descriptor)
    for caught in signal.valid_signals():
        if callable(signal.getsignal(caught)):
            signal.signal(caught, signal.SIG_DFL)
    exec(code, {})


class Started:
    """A running command; `process` is its multiprocessing process.

    Args:
      module: the module's name, or the path of a file.
      cwd: the directory it runs in.
      devices: its number of CPU devices; 0 for JAX's default.
      starts_server: whether it starts a fork server, which then is forked, too.
    """

    def __init__(
        self,
        module: str,
        *arguments: object,
        cwd: object = ROOT,
        devices: int = 0,
        starts_server: bool = False,
    ):
        self._command = [module, *map(str, arguments)]
        self._directory = tempfile.TemporaryDirectory()
        directory = pathlib.Path(self._directory.name)
        self._outputs = directory / "stdout", directory / "stderr"
        command = {
            "module": module,
            "arguments": self._command[1:],
            "outputs": self._outputs,
            "cwd": str(cwd),
            "devices": devices,
            "starts_server": starts_server,
            "compile_options": quick_compilation.options_in_use,
            "programs": kept_programs.directory,
            "code": environment.code_version(),
        }
        self.process = server.Process(target=_run, kwargs=command)
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
    file = directory / "example.py"
    file.write_text(code, encoding="utf-8")
    return run(str(file), *arguments, ends=ends, cwd=directory)


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
