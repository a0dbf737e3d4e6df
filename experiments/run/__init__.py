"""Shared by all experiments: the command line, the run directory and the loop over
trials.

An experiment is a list of trials, plain dicts of settings, which are measured one by
one. Each measured trial is one line of metrics.jsonl, so a run killed at any moment
resumes at the first missing trial, a training of images at its newest checkpoint (see
`images.log`).

Exit codes:
  0    done 1    failed (with a traceback if it is a bug) or diverged (one line) 2
  invalid setting, flag, run directory or checkpoint: one line; measurements are kept 75
  SIGTERM: status "interrupted"; the same command resumes (EX_TEMPFAIL, so schedulers
  requeue) 130  Ctrl-C: the same
"""

import collections
import contextlib
import dataclasses
import errno
import gc
import hashlib
import json
import logging as std_logging
import math
import os
import sys
import time
import traceback
import types
from collections.abc import Callable
from typing import Any

import jax
import ml_collections
from absl import app, flags, logging

from experiments import accelerators
from experiments.images.log import RESULT, TrainingLog
from experiments.run import command_line, process, several, signals
from experiments.run.shared import generator, require_between, total, where
from experiments.run.signals import Interrupted, stop_signal
from identity_matters import jax_settings, paper, runs
from identity_matters.report.collection import group_runs
from identity_matters.report.numbers import format_number
from identity_matters.report.sentences import headline
from identity_matters.train import multihost

USAGE_ERROR, INTERRUPTED_CODE, CTRL_C_CODE = 2, 75, 130
# Numbers of errors that only the machine can cause, beside a full disk.
_MACHINE_ERRORS = {
    getattr(errno, name)
    for name in (
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
    if hasattr(errno, name)  # not every system has all of them
}
# How error messages describe the values of a setting, by type.
_LEAVES = {
    int: "whole numbers",
    float: "finite numbers",
    str: "text",
    bool: "True or False",
}
_COMPILE_EVENT = "/jax/core/compile/backend_compile_duration"


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What a finished run's records show; summary.json has fields of the same names."""

    claim: str
    metrics: dict
    verdict: str
    paper: dict = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Experiment:
    """An experiment as plain functions.

    Attributes:
      name: the entry point's name, and its directory under the results directory.
      trials: ``trials(**settings) -> list of dicts``, JSON-able; it measures nothing.
      measure: ``measure(subject, key) -> dict`` of JSON-able values. `subject` is what
        `build` returns, or the trial if there is no `build`; each trial has a key of
        its own. Or a dict: kind of trial (its first value) -> ``f(subject, rng)``, with
        a NumPy generator from the key, and `subject`, a dict, read as attributes.
      verdict: ``verdict(settings, records) -> Verdict`` from the lines of
        metrics.jsonl. Or a dict: variant -> (claim, ``f(settings, records)``), where f
        returns the other fields of Verdict.
      build: ``build(**trial)`` makes the object to measure. All trials are built before
        the run directory is created, so that an invalid setting costs nothing; keep it
        cheap.
      signed: settings that may be 0, negative or empty; no other may be, except in
        trainings.
      trains: whether trials train image networks. `measure` then takes a `TrainingLog`
        as third argument and runs in float32, on a CPU with one virtual device per
        core. It stops early by raising `Interrupted` once ``log.stop_requested()``, or
        `DivergedError`.
    """

    name: str
    trials: Callable[..., list]
    measure: Callable[..., dict] | dict[str, Callable[..., dict]]
    verdict: Callable[..., Verdict] | dict[str, tuple[str, Callable[..., tuple]]]
    build: Callable[..., Any] | None = None
    signed: tuple[str, ...] = ()
    trains: bool = False

    @property
    def has_step_flags(self) -> bool:
        """Whether trials log training steps: only then --tensorboard, --profile etc.
        exist.
        """
        return self.trains and self.build is not None

    @property
    def settings_module(self):
        """The module with get_config and VARIANTS, which is the one that defines
        `verdict`.
        """
        verdict = self.verdict
        _, first = (
            next(iter(verdict.values())) if isinstance(verdict, dict) else ("", verdict)
        )
        return sys.modules[first.__module__]

    def measured(self, trial: dict, subject: Any, key, log=None) -> dict:
        if isinstance(self.measure, dict):
            measure = self.measure[next(iter(trial.values()))]
            return measure(types.SimpleNamespace(**subject), generator(key))
        if self.trains:
            return {"kind": RESULT, **self.measure(subject, key, log)}
        return self.measure(subject, key)

    def judge(self, settings: dict, records: list[dict]) -> Verdict:
        if isinstance(self.verdict, dict):
            claim, judge = self.verdict[settings["variant"]]
            return Verdict(claim, *judge(settings, records))
        return self.verdict(settings, records)

    def own_settings(self, variant: str) -> dict:
        """The experiment's own settings for `variant`; {} if it has no such variant."""
        with contextlib.suppress(ValueError):
            return self.settings_module.get_config(variant).to_dict()
        return {}

    def prepare(self, settings: dict, own: dict) -> tuple[list, list]:
        """The trials of `settings` (without the scale), and what `build` returns for
        each.

        The settings must have the types of `own`, the unchanged ones of the variant. An
        invalid one raises ValueError, TypeError, OverflowError or MemoryError.
        """
        _check_types(own, settings)
        for name, value in (
            runs.flat(settings).items() if not self.has_step_flags else ()
        ):
            if name.split(".")[-1] not in self.signed:
                require_between(0, math.inf, **{name: value})
        trials = self.trials(**settings)
        if not trials:
            raise ValueError(
                "these settings leave nothing to measure; see --help for them"
            )
        return trials, (
            [self.build(**trial) for trial in trials] if self.build else trials
        )


class DivergedError(Exception):
    """A training hit a value that is not finite; the message names the step and the
    metric.
    """


def main(experiment: Experiment) -> None:
    """Parses the command line, runs `experiment` and exits: for ``__main__``."""
    sys.unraisablehook = signals.tell_unraisable
    joined, message, code = False, None, 0
    try:
        # Once a run is ending, it ends.
        with stop_signal(asks_first=False, ignored_after=True):
            try:
                config, options = command_line.parse(experiment, sys.argv)
                joined = experiment.has_step_flags and several.join()
            except ValueError as error:
                raise app.UsageError(runs.first_line(error)) from None
            _configure_logging()
            execute(experiment, config, **options)
    except SystemExit as stop:  # --help
        code = stop.code
    except BaseException as error:
        code, message = _ending(error)
        if message is None:
            traceback.print_exc()
        else:
            print(f"{experiment.name}: {message.rstrip(':')}", file=sys.stderr)
    logging.flush()
    sys.stdout.flush()
    sys.stderr.flush()
    if joined and (message or not code):
        # Not after a bug, which may have hit this process alone: JAX ends the others,
        # which wait for it. A process missing here failed at the very end, after
        # everything was written.
        with contextlib.suppress(RuntimeError):
            jax.distributed.shutdown()
    gc.collect()  # frees the semaphores of the processes that read images
    # Skips the interpreter's teardown, which XLA's threads outlive: about one process
    # in a thousand died there of SIGSEGV. All that a run writes is on disk by now.
    os._exit(code)


def _configure_logging() -> None:
    """Logs plain lines to standard error, and silences JAX below WARNING."""
    logging.use_absl_handler()
    logging.set_verbosity(logging.INFO)
    logging.get_absl_handler().setFormatter(std_logging.Formatter("%(message)s"))
    # JAX logs every accelerator that this machine does not have.
    std_logging.getLogger("jax").setLevel(std_logging.WARNING)


def _ending(error: BaseException) -> tuple[int, str | None]:
    """The exit code for `error`, and its one-line message, or None if it needs a
    traceback.
    """
    if isinstance(error, app.UsageError | runs.RunError):
        return USAGE_ERROR, str(error)
    if isinstance(error, DivergedError):
        return 1, str(error)
    if isinstance(error, Interrupted | KeyboardInterrupt):
        code = INTERRUPTED_CODE if isinstance(error, Interrupted) else CTRL_C_CODE
        return code, "interrupted; the same command, without --overwrite, resumes"
    return 1, _known_failure(error, flags.FLAGS["results_dir"].value)


def _known_failure(error: BaseException, results_dir: str) -> str | None:
    """One line for a failure of the machine; None for a bug."""
    text = runs.first_line(error)
    # In words, not by errno: orbax reports a full disk as RESOURCE_EXHAUSTED, in words
    # alone.
    if any(os.strerror(number) in str(error) for number in runs.FULL_DISK):
        disk = f"the disk of {getattr(error, 'filename', None) or results_dir} is full"
        resumes = "the same command resumes, nothing that was recorded is lost"
        return f"{disk}: free some space there; {resumes}"
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


def execute(
    experiment: Experiment,
    config: ml_collections.ConfigDict,
    *,
    seed: int,
    results_dir,
    own: dict | None = None,
    overwrite: bool = False,
    **log_options,
) -> dict:
    """Runs or resumes one run of `experiment`; returns its summary.

    If `config` differs from `own`, other than in `runs.PLACE_SETTINGS`, the run is
    VARIANT@HASH (see docs/architecture.md). `log_options` of trainings: see
    `TrainingLog`. Raises app.UsageError before anything is written, for an invalid
    setting or seed and for processes that differ; runs.RunError as `runs.RunDir.create`
    does; DivergedError; and Interrupted or KeyboardInterrupt, after which the same call
    resumes.
    """
    settings = config.to_dict()
    scale, variant = settings.pop("scale"), settings["variant"]
    own = {k: v for k, v in (own or settings).items() if k != "scale"}
    changes, extra = runs.differences(own, settings), {}
    if changes:
        extra["changed"] = {name: now for name, (_, now) in changes.items()}
        digest = hashlib.sha256(
            json.dumps(extra["changed"], sort_keys=True).encode()
        ).hexdigest()
        variant, scale = f"{variant}@{digest[:8]}", "reduced"
    process.configure(experiment.trains, max(settings.get("device_counts", (1,))))
    try:
        jax.devices()
    # JAX_PLATFORMS names what is not here
    except (AssertionError, RuntimeError) as error:
        why = f"{jax.config.jax_platforms}: {runs.first_line(error)}"
        raise app.UsageError(f"JAX finds no device, {why}") from None
    if experiment.has_step_flags:
        try:
            accelerators.require_used()
        except ValueError as error:
            raise app.UsageError(str(error)) from None
    if not multihost.is_process_0():
        logging.set_verbosity(logging.WARNING)
    trials, subjects, problem = [], [], None
    try:
        if not 0 <= seed < runs.SEEDS:
            raise ValueError(f"seed must be from 0 to {runs.SEEDS - 1}, got {seed}")
        trials, subjects = experiment.prepare(settings, own)
    except (
        ValueError,
        TypeError,
        OverflowError,
        MemoryError,
        OSError,
        runs.RunError,
    ) as error:
        if getattr(error, "errno", None) in runs.FULL_DISK and jax.process_count() == 1:
            raise
        if isinstance(error, TypeError) and not changes:
            # the settings are those of the variant, so this is a bug of the experiment
            raise
        wrong = "a setting is of the wrong type or for another net: "
        wrong = wrong if isinstance(error, TypeError) else ""
        problem = ValueError(f"{wrong}{runs.first_line(error)}")
    data = [getattr(subject, "fingerprint", None) for subject in subjects]
    alike = {"experiment": experiment.name, "seed": seed, "data": data}
    try:
        several.require_alike(settings, alike, problem)
    except ValueError as error:
        raise app.UsageError(str(error)) from None
    instead = getattr(experiment.settings_module, "ON_A_CPU", None)
    if instead and experiment.own_settings(settings["variant"])["scale"] == "paper":
        flops = sum(subject.flops for subject in subjects)
        if warning := accelerators.warning_of_hours(flops, instead):
            logging.info("%s", warning)
    named = {
        "experiment": experiment.name,
        "variant": variant,
        "seed": seed,
        "scale": scale,
    }
    run_dir = several.open_run(
        results_dir, **named, config=settings, overwrite=overwrite, **extra
    )
    logging.info("writing %s", run_dir.path)
    try:
        with stop_signal(asks_first=experiment.trains) as stop:
            log = TrainingLog(run_dir, stop, **log_options)
            if overwrite:
                log.delete_checkpoints()
            key = jax_settings.random_key(seed)
            run_trials(experiment, trials, subjects, key, run_dir, log)
            found = experiment.judge({**settings, "scale": scale}, run_dir.records)
        if changes:
            found = dataclasses.replace(found, verdict="not comparable")
        seconds = phase_seconds(run_dir.records, experiment.trains)
        summary = run_dir.finish("done", seconds=seconds, **dataclasses.asdict(found))
    except (Interrupted, KeyboardInterrupt) as error:
        run_dir.finish("interrupted")
        # A training that was asked to stop raises Interrupted, also after Ctrl-C.
        raise (stop.requested or error) from None
    except DivergedError as error:
        run_dir.finish("diverged", error=str(error))
        raise
    except BaseException as error:
        with contextlib.suppress(OSError):  # on a full disk the status stays "running"
            run_dir.finish(
                "failed", error=f"{type(error).__name__}: {runs.first_line(error)}"
            )
        raise
    if multihost.is_process_0():
        logging.info("%s", _result(summary, run_dir.path))
    return summary


def _check_types(own: dict, settings: dict) -> None:
    """Raises ValueError for what ml_collections lets pass: wrong types in tuples, NaN,
    infinity.
    """
    before, now = runs.flat(own), runs.flat(settings)
    for name in before.keys() & now.keys():
        kinds = set(map(type, jax.tree.leaves(before[name])))
        kind = (
            float if kinds == {int, float} else kinds.pop() if len(kinds) == 1 else None
        )
        if before[name] == now[name] or kind not in _LEAVES:
            continue
        for value in jax.tree.leaves(now[name]):
            fits = type(value) is kind or (kind is float and type(value) is int)
            if not fits or (kind is float and not math.isfinite(value)):
                raise ValueError(f"{name} must hold {_LEAVES[kind]}, got {value!r}")


def _result(summary: dict, path: Any) -> str:
    """The lines that a run ends with: verdict, the paper's result, ours, where to find
    more.
    """
    claim = paper.CLAIMS[summary["claim"]]
    changed = ", ".join(
        f"{n}={value!r}" for n, value in summary.get("changed", {}).items()
    )
    said = headline(claim.id, group_runs([runs.read_run(path)]))
    if not said:  # the claim's headline covers other variants only
        shown = list(summary["metrics"].items())[:4]
        said = ", ".join(f"{name} = {format_number(value)}" for name, value in shown)
    root = path.parents[len(summary["variant"].split("/")) + 1]
    flag = "" if str(root) == "results/local" else f" RESULTS_DIR={root}"
    return (
        f"{claim.title}: {summary['verdict']}{changed and f', with {changed}'}\n"
        f"  paper   {claim.published}\n"
        f"  ours    {said}\n"
        f"  all     {path}/summary.json, every trial in metrics.jsonl\n"
        f"  report  `make report{flag}` writes {root}/report.html\n"
        f"  claims  `make compare{flag}` prints all of them"
    )


def run_trials(
    experiment: Experiment, trials, subjects, key, run_dir, log: TrainingLog
) -> None:
    """Measures the trials that `run_dir` does not hold yet, each with its own key."""
    results = [
        r for r in run_dir.records if not experiment.trains or r["kind"] == RESULT
    ]
    recorded = {record["cell"] for record in results}
    if recorded:
        logging.info("resuming after %d of %d trials", len(recorded), len(trials))
    done_seconds: list[float] = []
    # JAX's event -> its seconds
    compiling: dict[str, float] = collections.defaultdict(float)

    def listen(event: str, seconds: float, **_):
        compiling[event] += seconds

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        for index, (trial, subject) in enumerate(zip(trials, subjects, strict=True)):
            if index not in recorded:
                log.stop_signal.check()
                compiling.clear()
                started = time.perf_counter()
                with log.trial(index, len(trials)):
                    own_key = jax.random.fold_in(key, index)
                    measured = {**experiment.measured(trial, subject, own_key, log)}
                seconds = time.perf_counter() - started
                # A resumed training already counts the compile time of earlier
                # processes.
                measured.setdefault("compile_seconds", compiling[_COMPILE_EVENT])
                measured.setdefault("seconds", seconds)
                # dict() refuses a repeated name, so no measured value overwrites a
                # setting.
                run_dir.append(dict(cell=index, **trial, **measured))
                done_seconds.append(seconds)
                left = len(trials) - len(recorded) - len(done_seconds)
                seconds_left = left * sum(done_seconds) / len(done_seconds)
                said = (
                    f"trial {index + 1} of {len(trials)}{_label(trial, trials)}:"
                    f" {seconds:.1f} s"
                )
                about = (
                    f", about {seconds_left:.0f} s left" if seconds_left >= 1 else ""
                )
                logging.info("%s%s", said, about)
            # Also for recorded trials: the last process may have been killed before it
            # got here.
            if not getattr(subject, "keeps_checkpoint", True):
                log.delete_checkpoints(index)
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


def _label(trial: dict, trials: list[dict]) -> str:
    """The scalar settings that distinguish this trial from the others."""
    scalars = {name: v for name, v in trial.items() if isinstance(v, int | float | str)}
    own = [f"{n} {v}" for n, v in scalars.items() if any(t.get(n) != v for t in trials)]
    return f" ({', '.join(own)})" if own else ""


def phase_seconds(records: list[dict], trains: bool) -> dict:
    """Seconds per phase over all trials, including those of interrupted processes."""
    kinds = ("train", "evaluation")
    logged = [record for record in records if trains and record["kind"] in kinds]
    phases = {"compile": total(logged or records, "compile_seconds")}
    if logged:
        train, evaluate = (total(where(logged, kind=kind), "seconds") for kind in kinds)
        phases |= {"train": train, "evaluate": evaluate}
    else:
        phases["measure"] = total(records, "seconds") - phases["compile"]
    phases["total"] = sum(phases.values())
    return {phase: round(seconds, 3) for phase, seconds in phases.items()}
