"""How a run ends: what signals do, which exit code means what, and what is printed.

Exit codes:

* 0: done
* 1: failed, with a traceback if it is a bug; or diverged, in one line
* 2: an invalid setting, flag, run directory or checkpoint, in one line
* 75: SIGTERM; the same command resumes (EX_TEMPFAIL, so that schedulers requeue it)
* 130: Ctrl-C; the same command resumes
"""

import contextlib
import dis
import errno
import os
import signal
import sys
import threading
import traceback
from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

from absl import app, logging

from identity_matters import runs

FAILED_CODE = 1
USAGE_ERROR_CODE = 2
INTERRUPTED_CODE = 75
CTRL_C_CODE = 130
RESEND_SECONDS = 0.05  # a signal whose exception was lost is sent again after this time
# Packages whose `raise` statements refuse what users typed.
OUR_PACKAGES = ("identity_matters", "experiments", "benchmarks")
# Names of errors that only the machine can cause, besides a full disk.
_MACHINE_ERROR_NAMES = (
    "EACCES",
    "EFBIG",
    "EHOSTDOWN",
    "EIO",
    "EMFILE",
    "ENFILE",
    "ENODEV",
    "ENOMEM",
    "ENOTCONN",
    "ENXIO",
    "EREMOTEIO",
    "EROFS",
    "ESTALE",
    "ETIMEDOUT",
)
_MACHINE_ERRORS = {
    getattr(errno, name)
    for name in _MACHINE_ERROR_NAMES
    if hasattr(errno, name)  # not every system has all of them
}

_resent_signals: list[threading.Timer] = []  # those that may not have fired yet


class Interrupted(BaseException):
    """SIGTERM came; no Exception, so that no handler takes it for a failure."""


class DivergedError(Exception):
    """A training hit a value that is not finite; the message names step and metric.

    Attributes:
      step: where it did, if the training counts steps.
    """

    def __init__(self, message: str, step: int | None = None):
        super().__init__(message)
        self.step = step


# Signal that stops a run -> the exception that it raises.
STOP_SIGNALS = {signal.SIGTERM: Interrupted, signal.SIGINT: KeyboardInterrupt}


class Stop:
    """Whether SIGTERM or Ctrl-C has come: `requested` is their exception, or None."""

    def __init__(self) -> None:
        self.requested: type[BaseException] | None = None

    def check(self) -> None:
        """Raises the exception of the signal that has come, if one has."""
        if self.requested is not None:
            raise self.requested


@contextlib.contextmanager
def stop_signal(asks_first: bool, ignored_after: bool = False) -> Iterator[Stop]:
    """Catches SIGTERM and Ctrl-C inside; yields a `Stop`.

    A signal that is ignored stays so. Whoever started this process wants that: shells
    let the background jobs of a script ignore Ctrl-C.

    Args:
      asks_first: the first of them only sets `requested`; any other raises its
        exception, too.
      ignored_after: both are ignored from then on; if false, all is as before.
    """
    stop = Stop()

    def handle(number, _):
        waits = asks_first and stop.requested is None
        stop.requested = STOP_SIGNALS[number]
        if not waits:
            raise stop.requested
        if number == signal.SIGINT:
            logging.info(
                "stopping after the next steps, with a checkpoint; Ctrl-C again kills"
            )

    previous = {
        number: signal.signal(number, handle)
        for number in STOP_SIGNALS
        if signal.getsignal(number) is not signal.SIG_IGN
    }
    try:
        yield stop
    finally:
        while _resent_signals:
            _resent_signals.pop().cancel()
        for number, handler in previous.items():
            signal.signal(number, signal.SIG_IGN if ignored_after else handler)


def report_unraisable(failure) -> None:
    """A `sys.unraisablehook` that loses no signal and hides orbax's late errors.

    Python ignores what a signal handler raises if it happens to run inside a callback
    of the garbage collector, of which JAX has one. The signal is then sent again.
    "Event loop is closed" comes from every array that orbax abandons after another one
    failed.
    """
    for number, exception in STOP_SIGNALS.items():
        if isinstance(failure.exc_value, exception):
            _send_again(number)
            return
    if str(failure.exc_value) != "Event loop is closed":
        sys.__unraisablehook__(failure)


def _send_again(number: int) -> None:
    main_thread = threading.main_thread().ident
    timer = threading.Timer(RESEND_SECONDS, signal.pthread_kill, (main_thread, number))
    timer.daemon = True
    _resent_signals.append(timer)
    timer.start()


def is_refusal(error: BaseException, packages: Collection[str] = OUR_PACKAGES) -> bool:
    """Whether an error of `trials` or `build` refuses what the user asked for.

    Checks of settings refuse with a `raise` statement. A ValueError or TypeError that
    Python or another library raises is a bug, whose traceback must be seen. Numbers
    that are too large to compute with, and files that cannot be read, are the user's.

    Args:
      error: the error, with its traceback.
      packages: whose `raise` statements count.
    """
    if isinstance(error, runs.RunError | OSError | OverflowError | MemoryError):
        return True
    if not isinstance(error, ValueError | TypeError) or error.__traceback__ is None:
        return False
    innermost, _ = list(traceback.walk_tb(error.__traceback__))[-1]
    module = innermost.f_globals.get("__name__", "")
    if module != "__main__" and module.split(".")[0] not in packages:
        return False
    return _was_raised_by_a_statement(error)


def _was_raised_by_a_statement(error: BaseException) -> bool:
    """Whether a `raise` statement raised it, and not an operation such as None + 1."""
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    if last is None:
        return False
    code = last.tb_frame.f_code.co_code
    return dis.opname[code[last.tb_lasti]] == "RAISE_VARARGS"


class Ending(NamedTuple):
    """An exit code, and the one line to print; a bug has a traceback instead."""

    code: int
    message: str | None

    @property
    def is_bug(self) -> bool:
        """Whether nothing is known of the error but its traceback."""
        return self.code != 0 and self.message is None


DONE = Ending(0, message=None)


def ending_of(error: BaseException, results_dir: str) -> Ending:
    """How the command ends after `error`."""
    resumes = "interrupted; the same command, without --overwrite, resumes"
    if isinstance(error, app.UsageError | runs.RunError):
        return Ending(USAGE_ERROR_CODE, str(error))
    if isinstance(error, DivergedError):
        return Ending(FAILED_CODE, str(error))
    if isinstance(error, Interrupted):
        return Ending(INTERRUPTED_CODE, resumes)
    if isinstance(error, KeyboardInterrupt):
        return Ending(CTRL_C_CODE, resumes)
    if isinstance(error, BrokenPipeError):  # `| head` has read enough
        return Ending(FAILED_CODE, "the pipe that it wrote to was closed")
    return Ending(FAILED_CODE, machine_failure(error, results_dir))


def machine_failure(error: BaseException, results_dir: str) -> str | None:
    """One line for a failure of the machine; None for a bug."""
    text = runs.first_line(error)
    # In words, not by errno: orbax reports a full
    # disk as RESOURCE_EXHAUSTED, in words alone.
    if any(os.strerror(number) in str(error) for number in runs.FULL_DISK):
        place = getattr(error, "filename", None) or results_dir
        return (
            f"the disk of {place} is full: free some space there; the same command"
            " resumes, nothing that was recorded is lost"
        )
    if isinstance(error, OSError) and error.errno in _MACHINE_ERRORS:
        return f"the machine failed ({text}); once it works the same command resumes"
    if isinstance(error, FileNotFoundError) and _is_below(error.filename, results_dir):
        return f"files of the run were deleted while it ran ({text})"
    if (
        isinstance(error, MemoryError)
        or "RESOURCE_EXHAUSTED" in text
        or "Out of memory" in text
    ):
        return f"out of memory ({text}); choose smaller settings"
    return None


def _is_below(path: Any, directory: str) -> bool:
    return path is not None and os.path.abspath(path).startswith(
        os.path.abspath(directory)
    )


@contextlib.contextmanager
def recorded(run_dir: Any) -> Iterator[None]:
    """Writes into summary.json how a run ended that does not reach its end."""
    try:
        yield
    except (Interrupted, KeyboardInterrupt):
        run_dir.finish("interrupted")
        raise
    except DivergedError as error:
        run_dir.finish("diverged", error=str(error))
        raise
    except BaseException as error:
        reason = f"{type(error).__name__}: {runs.first_line(error)}"
        with contextlib.suppress(OSError):  # on a full disk the status stays "running"
            run_dir.finish("failed", error=reason)
        raise
