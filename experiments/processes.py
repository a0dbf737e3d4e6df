"""The processes of `reproduce`: forked, one per core; none outlives `reproduce`.

Importing the libraries takes longer than many a run, so one process does it for all of
them, from which each run is forked.
"""

import contextlib
import ctypes
import fcntl
import gc
import multiprocessing
import multiprocessing.connection
import os
import runpy
import signal
import sys
import tempfile
import threading
import time
from typing import Any

import threadpoolctl
from absl import flags

from experiments.run.endings import CTRL_C_CODE, INTERRUPTED_CODE

STOP_SECONDS = 30  # allowed for saving after SIGTERM
RUNS_ELSEWHERE_CODE = 3  # how a run ends that another reproduction is running already
_PR_SET_PDEATHSIG = 1
# A socket's path may have about 107 bytes.
# That of the server below has some 30 of its own.
_LONGEST_TEMPORARY_DIRECTORY = 70
_SHORT_TEMPORARY_DIRECTORIES = ("/tmp", "/var/tmp", "/dev/shm")
_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(
    [
        "__main__",
        "experiments.images.train",
        "identity_matters.linear.factorization",
        "scipy.optimize",
    ]
)


def shorten_temporary_directory() -> None:
    """Lets the server's socket be where its path is short enough.

    TMPDIR stays for the runs.

    Raises:
      flags.ValidationError: if there is no other place.
    """
    if len(os.fsencode(tempfile.gettempdir())) <= _LONGEST_TEMPORARY_DIRECTORY:
        return
    for directory in _SHORT_TEMPORARY_DIRECTORIES:
        if os.access(directory, os.W_OK):
            tempfile.tempdir = directory
            return
    places = ", ".join(_SHORT_TEMPORARY_DIRECTORIES)
    raise flags.ValidationError(
        f"TMPDIR is longer than {_LONGEST_TEMPORARY_DIRECTORY} bytes, too long for a"
        f" socket, and none of {places} can be written to; set a shorter TMPDIR"
    )


def exit_at_signals() -> None:
    """Signals raise SystemExit, with the codes of a run that they interrupt.

    Not those that whoever started this process lets it ignore, as `nohup` does.
    """
    codes = {
        signal.SIGTERM: INTERRUPTED_CODE,
        signal.SIGHUP: INTERRUPTED_CODE,
        signal.SIGINT: CTRL_C_CODE,
    }
    for sent, code in codes.items():
        if signal.getsignal(sent) is not signal.SIG_IGN:
            signal.signal(sent, lambda *_, code=code: sys.exit(code))


def end_with_make() -> None:
    """If `make` is killed, so is this process, and with it all runs."""
    libc = ctypes.CDLL(None)
    if "MAKELEVEL" in os.environ and hasattr(libc, "prctl"):
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def start(command: list[str], log: str | None, core: int | None) -> Any:
    """Starts ``python *command``.

    Args:
      command: what follows ``python``.
      log: where its output goes; to the terminal if None.
      core: the only one that it may use; all if None.
    Returns:
      A multiprocessing process.
    """
    process = _SERVER.Process(target=_run, args=(command, log, core))
    process.start()  # if a signal interrupts it, the run ends with this process
    return process


def _run(command: list[str], log: str | None, core: int | None) -> None:
    """What runs in the process of a job: ``python *command``."""
    gc.freeze()  # no collection looks through the libraries again
    multiprocessing.set_start_method(None, force=True)  # the default, as in any process
    os.setsid()  # Ctrl-C reaches only `main`, which then sends SIGTERM to all runs
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # the fork server may ignore it
    parent = multiprocessing.parent_process()
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    if log is not None:
        _print_to(log)
    if core is not None:  # XLA starts a thread for each core that it may use
        os.sched_setaffinity(0, {core})
        threadpoolctl.threadpool_limits(1)
    _, module, *arguments = command
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _print_to(log: str) -> None:
    """Sends all output to `log`; ends the process if another one is writing there."""
    with open(log, "ab") as output:
        try:
            # Kept until the last copy of the descriptor
            # is closed, when the process ends.
            fcntl.flock(output.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os._exit(RUNS_ELSEWHERE_CODE)
        except OSError:  # a file system without locks
            pass
        output.truncate(0)
        for stream in (sys.stdout, sys.stderr):
            os.dup2(output.fileno(), stream.fileno())


def _end_with(parent: Any) -> None:
    """Kills this run once `main` has ended; what the run has measured is on disk."""
    parent.join()
    os.kill(os.getpid(), signal.SIGKILL)


def wait_until_any_ends(processes: list, seconds: float) -> None:
    """Returns when any of these processes has ended, at the latest after `seconds`."""
    multiprocessing.connection.wait(
        [process.sentinel for process in processes], timeout=seconds
    )


def end(processes: list) -> None:
    """Asks all these runs to stop, and kills those that do not within STOP_SECONDS."""
    for process in processes:
        process.terminate()
    # A second signal ends the wait.
    with contextlib.suppress(SystemExit):
        latest = time.monotonic() + STOP_SECONDS
        for process in processes:
            process.join(max(0.0, latest - time.monotonic()))
    for process in processes:
        process.kill()
        process.join()
