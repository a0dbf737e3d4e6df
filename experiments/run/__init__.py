"""Shared by all experiments: how `python -m experiments.NAME` runs one.

An experiment is a list of trials, plain dicts of settings, which are measured one by
one. Each measured trial is one line of metrics.jsonl, so a run killed at any moment
resumes at the first missing trial, a training of images at its newest checkpoint (see
`training_log`). The exit codes are listed in `endings`.

To see how a run goes, read `main` below, then `execution`. `experiment` says what an
experiment is, `settings` and `command_line` where its settings come from, `measuring`
has the loop over trials, `signals` and `endings` what stops it.
"""

import contextlib
import gc
import os
import pathlib
import sys
import traceback
from collections.abc import Iterator
from typing import NoReturn

import ml_collections
from absl import app, flags, logging

import experiments
from experiments.run import command_line, endings, signals
from experiments.run.endings import (
    CTRL_C_CODE,
    INTERRUPTED_CODE,
    RESUMES,
    DivergedError,
    SkippedError,
)
from experiments.run.experiment import (
    RESULT,
    DeviceExperiment,
    Experiment,
    TrainingExperiment,
    Verdict,
)
from experiments.run.signals import Interrupted
from identity_matters import runs

__all__ = [
    "CTRL_C_CODE",
    "INTERRUPTED_CODE",
    "RESULT",
    "RESUMES",
    "DeviceExperiment",
    "DivergedError",
    "Experiment",
    "Interrupted",
    "SkippedError",
    "TrainingExperiment",
    "Verdict",
    "main",
]


def main(experiment: Experiment) -> None:
    """Parses the command line, runs `experiment` and exits; for ``__main__``."""
    sys.unraisablehook = signals.report_unraisable
    joined = False
    ending = endings.DONE
    try:
        # After the first signal, further signals are ignored, so that the run can
        # finish ending.
        with signals.stop_signal(asks_first=False, ignored_after=True):
            with _as_usage_errors():
                _check_name(experiment)
                config, options = command_line.parse(experiment, sys.argv)
                joined = _join_processes(experiment)
            _execute(experiment, config, options)
    except command_line.HelpShown:
        pass
    # SystemExit, too: if the code of a run calls sys.exit, the run has failed.
    except BaseException as error:
        ending = endings.ending_of(
            error,
            results_dir=_directory_of("results_dir"),
            checkpoint_dir=_directory_of("checkpoint_dir"),
        )
        _report(experiment, ending)
    _flush_output()
    if joined and not ending.is_bug:
        # A bug may have hit this process alone: then JAX ends the others, which wait.
        _leave_processes(ending)
    _exit_at_once(ending.code)


def _check_name(experiment: Experiment) -> None:
    """ValueError if a file of experiments/ does not have the name of its experiment.

    That may be a copy of another file: its runs would be written among those of the
    other, and be judged as theirs.
    """
    file = getattr(experiment.settings_module, "__file__", None)
    if file is None or experiments.HERE not in pathlib.Path(file).resolve().parents:
        return
    stem = pathlib.Path(file).stem
    if experiment.name != stem:
        raise ValueError(
            f"EXPERIMENT in {stem}.py must have name={stem!r}, like its file, got"
            f" {experiment.name!r}"
        )


@contextlib.contextmanager
def _as_usage_errors() -> Iterator[None]:
    """Inside, a ValueError refuses the command line."""
    try:
        yield
    except ValueError as error:
        raise app.UsageError(runs.first_line(error)) from None


def _directory_of(flag: str) -> str:
    """The value of a flag; empty if this kind of experiment does not have it."""
    return str(flags.FLAGS[flag].value) if flag in flags.FLAGS else ""


def _execute(
    experiment: Experiment, config: ml_collections.ConfigDict, options: dict
) -> None:
    # Imported here because it needs JAX, for which --help does not wait.
    from experiments.run import execution, process

    process.configure_logging()
    execution.execute(experiment, config, **options)


def _report(experiment: Experiment, ending: endings.Ending) -> None:
    """Prints how the run ended: in one line, or the traceback of a bug."""
    if ending.message is None:
        traceback.print_exc()
        return
    # The first line of a longer message may end with a colon.
    with contextlib.suppress(BrokenPipeError):
        print(f"{experiment.name}: {ending.message.rstrip(':')}", file=sys.stderr)


def _flush_output() -> None:
    for output in (logging, sys.stdout, sys.stderr):
        with contextlib.suppress(BrokenPipeError):  # `| head` has read enough
            output.flush()


def _exit_at_once(code: int) -> NoReturn:
    """Exits without the interpreter's teardown, which XLA's threads outlive.

    About one process in a thousand died there of SIGSEGV. All that a run writes is on
    disk by now.
    """
    gc.collect()  # frees the semaphores of the processes that read images
    os._exit(code)


def _join_processes(experiment: Experiment) -> bool:
    """Joins the other processes of a training if the flags ask to; True if it did."""
    if not isinstance(experiment, TrainingExperiment):
        return False
    # Imported here because it loads the training loop, which theory runs do not need.
    from experiments.run import multiprocess

    return multiprocess.join()


def _leave_processes(ending: endings.Ending) -> None:
    """Waits for the other processes, which come to their end, too."""
    from experiments.run import multiprocess

    multiprocess.leave(ending)
