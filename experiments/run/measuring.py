"""The loop over the trials of a run, which goes on where an earlier process stopped."""

import contextlib
import functools
import time
from typing import Any, NamedTuple

import jax
import numpy as np
from absl import logging

from experiments.run.experiment import Experiment
from experiments.run.signals import Stop
from identity_matters import compilations


def generator(key: jax.Array) -> np.random.Generator:
    """A NumPy generator seeded by a trial's key.

    JAX would compile a sampler for every shape.
    """
    return np.random.default_rng(np.asarray(jax.random.key_data(key)))


def measure_trials(
    experiment: Experiment,
    trials: list[dict],
    built: list,
    *,
    key: jax.Array,
    run_dir: Any,
    stop: Stop,
    logs: Any = None,
) -> None:
    """Measures the trials that `run_dir` does not hold yet, each with its own key.

    Args:
      experiment: says how.
      trials: one dict for each trial, with which its record begins.
      built: what `experiment.build` made of each.
      key: the run's key; that of a trial is folded with its index.
      run_dir: a `runs.RunDir`, whose records tell what is done.
      stop: is checked before each trial.
      logs: the `TrainingLogs` of experiments that take a log.
    """
    check_stop = stop.check
    if logs:
        # Imported here because theory runs do not need it.
        from experiments.run import multiprocess

        check_stop = functools.partial(multiprocess.check_stop, stop)
    recorded = {record["cell"] for record in experiment.results(run_dir.records)}
    if recorded:
        logging.info("resuming after %d of %d trials", len(recorded), len(trials))
    seconds_of_done: list[float] = []
    compiling: list[float] = []
    with compilations.listening(compiling.append):
        for index, trial in enumerate(trials):
            if index not in recorded:
                check_stop()
                record = _measure_one(
                    experiment,
                    trial,
                    built[index],
                    index=index,
                    count=len(trials),
                    key=jax.random.fold_in(key, index),
                    logs=logs,
                    compiling=compiling,
                )
                run_dir.append(record.fields)
                seconds_of_done.append(record.wall_seconds)
                left = len(trials) - len(recorded) - len(seconds_of_done)
                seconds_left = left * sum(seconds_of_done) / len(seconds_of_done)
                _log_trial(index, trials, record.wall_seconds, seconds_left)
            # Also for recorded trials:
            # the last process may have been killed before it got here.
            if logs and not getattr(built[index], "keeps_checkpoint", True):
                logs.delete_checkpoints(index)


class _Record(NamedTuple):
    """The fields of a line of metrics.jsonl, and how long the trial took just now."""

    fields: dict
    wall_seconds: float


def _measure_one(
    experiment: Experiment,
    trial: dict,
    built: Any,
    *,
    index: int,
    count: int,
    key: jax.Array,
    logs: Any,
    compiling: list[float],
) -> _Record:
    """Measures trial `index` of `count`; see `measure_trials`.

    `compiling` receives the seconds of each compilation.
    """
    compiling.clear()
    started = time.perf_counter()
    with logs.trial(index, count) if logs else contextlib.nullcontext() as log:
        measured = experiment.measure_trial(trial, built, key, log)
    wall_seconds = time.perf_counter() - started
    earlier_seconds = log.earlier_seconds if log else 0.0
    # A resumed training already counts the compiling of earlier processes.
    added = {
        "compile_seconds": sum(compiling),
        "seconds": earlier_seconds + wall_seconds,
    }
    for name in added.keys() & measured.keys():
        del added[name]
    # dict() refuses a repeated name, so no measured value overwrites a setting.
    fields = dict(cell=index, **trial, **measured, **added)
    return _Record(fields, wall_seconds)


def _log_trial(
    index: int, trials: list[dict], seconds: float, seconds_left: float
) -> None:
    done = f"trial {index + 1} of {len(trials)}{_label(trials[index], trials)}"
    left = f", about {seconds_left:.0f} s left" if seconds_left >= 1 else ""
    logging.info("%s: %.1f s%s", done, seconds, left)


def _label(trial: dict, trials: list[dict]) -> str:
    """The scalar settings that distinguish this trial from the others."""
    distinguishing = [
        f"{name} {value}"
        for name, value in trial.items()
        if isinstance(value, int | float | str)
        and any(other.get(name) != value for other in trials)
    ]
    return f" ({', '.join(distinguishing)})" if distinguishing else ""
