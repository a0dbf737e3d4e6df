"""How a run ends: which exit code means what, and what is printed.

Exit codes:

* 0: done; or skipped, in one line, on a machine that cannot run it
* 1: failed, with a traceback if it is a bug
* 2: an invalid setting, flag, run directory or checkpoint, in one line
* 4: a training diverged, in one line; 3 is a code of `experiments.processes`
* 75: SIGTERM (EX_TEMPFAIL, so that schedulers requeue it)
* 130: Ctrl-C

After the last two, and after a failure of the machine, the same command resumes the
run; with --overwrite it would begin anew (`RESUMES`).
"""

import contextlib
import errno
import os
import pathlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from absl import app

from experiments.run.signals import Interrupted
from identity_matters import runs

FAILED_CODE = 1
USAGE_ERROR_CODE = 2
DIVERGED_CODE = 4
INTERRUPTED_CODE = 75
CTRL_C_CODE = 130
# What every message says of a run that is not finished.
RESUMES = "the same command, without --overwrite, resumes"
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


class DivergedError(Exception):
    """A training hit a value that is not finite; the message names step and metric.

    Attributes:
      step: where it did, if the training counts steps.
    """

    def __init__(self, message: str, step: int | None = None):
        super().__init__(message)
        self.step = step


class SkippedError(Exception):
    """This machine cannot run what was asked for. That is no failure; it says why.

    Only `trials` of an experiment may raise it, before anything is written.
    """


class Ending(NamedTuple):
    """An exit code, and the one line to print; a bug has a traceback instead."""

    code: int
    message: str | None

    @property
    def is_bug(self) -> bool:
        """Whether nothing is known of the error but its traceback."""
        return self.code != 0 and self.message is None


DONE = Ending(0, message=None)


def ending_of(
    error: BaseException, results_dir: str, checkpoint_dir: str = ""
) -> Ending:
    """How the command ends after `error`.

    The directories are those of the command line; `checkpoint_dir` is empty if it was
    not given.
    """
    if isinstance(error, app.UsageError | runs.RunError):
        return Ending(USAGE_ERROR_CODE, str(error))
    if isinstance(error, SkippedError):
        return Ending(DONE.code, f"skipped: {error}")
    if isinstance(error, DivergedError):
        advice = "a lower learning rate or a longer warm-up may prevent it"
        return Ending(DIVERGED_CODE, f"diverged: {error}; {advice}")
    if isinstance(error, Interrupted):
        return Ending(INTERRUPTED_CODE, f"interrupted; {RESUMES}")
    if isinstance(error, KeyboardInterrupt):
        return Ending(CTRL_C_CODE, f"interrupted; {RESUMES}")
    if isinstance(error, BrokenPipeError):  # `| head` has read enough
        return Ending(FAILED_CODE, "the pipe that it wrote to was closed")
    failure = machine_failure(error, results_dir, checkpoint_dir)
    return Ending(FAILED_CODE, failure)


def machine_failure(
    error: BaseException, results_dir: str, checkpoint_dir: str = ""
) -> str | None:
    """One line for a failure of the machine; None for a bug."""
    text = runs.first_line(error)
    # In words, not by errno: orbax reports a full
    # disk as RESOURCE_EXHAUSTED, in words alone.
    if any(os.strerror(number) in str(error) for number in runs.FULL_DISK):
        # Errors of writing, also those of orbax, do not say where.
        directories = " or ".join(filter(None, (results_dir, checkpoint_dir)))
        place = getattr(error, "filename", None) or directories
        return (
            f"the disk of {place} is full: free some space there; {RESUMES}, nothing"
            " that was recorded is lost"
        )
    if isinstance(error, OSError) and error.errno in _MACHINE_ERRORS:
        return f"the machine failed ({text}); once it works {RESUMES}"
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
    if path is None:
        return False
    place = pathlib.Path(os.path.abspath(path))
    return place.is_relative_to(os.path.abspath(directory))


@contextlib.contextmanager
def recorded(run_dir: Any, fields_if_diverged: Callable[[], dict]) -> Iterator[None]:
    """Records in summary.json why a run stopped early.

    Args:
      run_dir: of the run.
      fields_if_diverged: called if it diverged; the other fields of its summary.
    """
    try:
        yield
    except (Interrupted, KeyboardInterrupt):
        run_dir.finish("interrupted")
        raise
    except DivergedError as error:
        run_dir.finish("diverged", error=str(error), **fields_if_diverged())
        raise
    except BaseException as error:
        reason = f"{type(error).__name__}: {runs.first_line(error)}"
        with contextlib.suppress(OSError):  # on a full disk the status stays "running"
            run_dir.finish("failed", error=reason)
        raise
