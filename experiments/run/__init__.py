"""What every experiment shares: its command line, its run directory and the way through its trials.

An experiment is a list of trials, plain dicts of settings that are measured one by one. A measured
trial is one line of metrics.jsonl, so a run that was killed at any moment resumes at the first
trial that is missing. (A trial that trains an image network also writes lines and checkpoints while
it goes: see `images.log`.)

Exit codes:
  0    done
  1    failed (with a traceback where it is our mistake) or diverged (in one line)
  2    a setting, a flag, a directory or a checkpoint will not do: one line; what was measured stays
  75   SIGTERM: status "interrupted"; the same command resumes (EX_TEMPFAIL, so schedulers requeue)
  130  Ctrl-C: the same
"""

import contextlib
import ctypes
import dataclasses
import errno
import hashlib
import json
import logging as std_logging
import math
import os
import pathlib
import platform
import signal
import sys
import time
import traceback
import types
from collections.abc import Callable
from typing import Any

import jax
import ml_collections
from absl import flags, logging

from experiments.images.log import RESULT, TrainingLog
from experiments.run import command_line, several
from experiments.run.shared import generator, require_between, total, where
from identity_matters import environment, paper, runs
from identity_matters.report import groups
from identity_matters.train import multihost

# A training takes each core of a CPU for a device, with a copy of the data: a step of
# `cifar10/small` is half as fast again on two devices as on one that has both cores.
MOST_CPU_DEVICES = 16
# Programs that compile faster than this are not worth a file.
CACHED_FROM_SECONDS = 0.2
# A key is made of 32 bits of a seed; larger ones would repeat the runs of smaller ones.
SEEDS = 2**32
# Of glibc's mallopt, M_MMAP_MAX = 0 and M_TRIM_THRESHOLD = -1: no memory is given back.
MALLOC_OPTIONS = ((-4, 0), (-1, -1))
USAGE_ERROR, INTERRUPTED_CODE, CTRL_C_CODE = 2, 75, 130
# What the entries of a setting are called.
_LEAVES = {int: "whole numbers", float: "finite numbers", str: "text", bool: "True or False"}
_COMPILE_EVENT = "/jax/core/compile/backend_compile_duration"
# The flags that `main` has defined count as those of the entry point, so that --help shows them.
flags.disclaim_key_flags()


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What the records of a finished run say; the fields of the same names in summary.json."""

    claim: str
    metrics: dict
    verdict: str
    paper: dict = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Experiment:
    """An experiment as plain functions.

    Attributes:
      name: the entry point's name, and its directory under the results directory.
      trials: ``trials(**settings) -> list of dicts``, JSON-able; it only lists them.
      measure: ``measure(subject, key) -> dict`` of JSON-able values; `key` belongs to this trial
        alone. `subject` is what `build` made of the trial, or the trial where there is no `build`.
        Or one ``f(subject, rng)`` for each value of the trial's first field, which says its kind;
        `rng` is NumPy's generator of the key.
      verdict: ``verdict(settings, records) -> Verdict`` from the lines of metrics.jsonl. Or variant
        -> its claim and ``f(settings, records)``, which gives the other fields of the verdict.
      build: ``build(**trial)`` makes the objects that are measured. All are built before the run
        directory is, so that what they refuse costs nothing: keep them light.
      signed: settings that may be 0, negative or empty; all other numbers must be above 0. Of
        trainings nothing is asked here.
      trains: the trials train images: `measure` gets a `TrainingLog` as third argument, computes in
        float32, on one virtual device a core where there is no accelerator, and ends early by
        raising `Interrupted` once ``log.stop_requested()``, or `DivergedError`.
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
        """Whether trainings are built, which log their steps: for --tensorboard and --profile."""
        return self.trains and self.build is not None

    @property
    def settings_module(self):
        """The module that holds get_config and VARIANTS: that of `verdict`."""
        verdict = self.verdict
        _, first = next(iter(verdict.values())) if isinstance(verdict, dict) else ("", verdict)
        return sys.modules[first.__module__]

    def measured(self, trial: dict, subject: Any, key, log=None) -> dict:
        """What `measure` says of one trial."""
        if isinstance(self.measure, dict):
            return self.measure[next(iter(trial.values()))](subject, generator(key))
        if self.trains:
            return {"kind": RESULT, **self.measure(subject, key, log)}
        return self.measure(subject, key)

    def judge(self, settings: dict, records: list[dict]) -> Verdict:
        """What `verdict` says of the records of a run."""
        if isinstance(self.verdict, dict):
            claim, judge = self.verdict[settings["variant"]]
            return Verdict(claim, *judge(settings, records))
        return self.verdict(settings, records)

    def own_settings(self, variant: str) -> dict:
        """The settings that the experiment has for `variant`; none where it has no such variant."""
        with contextlib.suppress(ValueError):
            return self.settings_module.get_config(variant).to_dict()
        return {}

    def prepare(self, settings: dict, own: dict) -> tuple[list, list]:
        """The trials of `settings`, all but the scale, and what `build` makes of them.

        Args:
          own: the settings of the variant as it is, whose types they must have.
        Raises:
          ValueError, TypeError, OverflowError or MemoryError: a setting that will not do.
        """
        _check_types(own, settings)
        for name, value in runs.flat(settings).items() if not self.trains else ():
            if name.split(".")[-1] not in self.signed:
                require_between(0, math.inf, **{name: value})
        trials = self.trials(**settings)
        if not trials:
            raise ValueError("these settings leave nothing to measure; see --help for them")
        return trials, [self.build(**trial) for trial in trials] if self.build else trials


class UsageError(Exception):
    """The command cannot be carried out as given; nothing has been written."""


class DivergedError(Exception):
    """A training met a value that is not finite; the message names step and metric."""


class Interrupted(BaseException):
    """SIGTERM came. No Exception, so that no code on the way takes it for a failure."""


@contextlib.contextmanager
def stop_signal(asks_first: bool):
    """SIGTERM asks a training to stop (`requested`), which saves; all else is stopped at once."""
    stop = types.SimpleNamespace(requested=False)

    def handle(signum, frame):
        del signum, frame
        if stop.requested or not asks_first:
            raise Interrupted
        stop.requested = True

    previous = signal.signal(signal.SIGTERM, handle)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGTERM, previous)


def main(experiment: Experiment) -> None:
    """Parses the command line, runs `experiment` and exits. Call it from ``__main__``."""
    sys.unraisablehook = _tell_unraisable
    joined, message, code = False, None, 0
    try:
        with stop_signal(asks_first=False):
            try:
                config, options = command_line.parse(experiment, sys.argv)
                joined = experiment.has_step_flags and several.join()
            except ValueError as error:
                raise UsageError(runs.first_line(error)) from None
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
        # Not after a mistake that only this process made: the others wait for it, and JAX ends
        # them. Whoever is missing here has failed at the very end, after all was written.
        with contextlib.suppress(RuntimeError):
            jax.distributed.shutdown()
    # Without the interpreter's teardown: XLA's threads outlive it, and about one process in a
    # thousand died of SIGSEGV in it. All that a run writes is on disk by now.
    os._exit(code)


def _tell_unraisable(failure) -> None:
    """Python's own hook, but for the tracebacks of tensorstore's threads after a failure.

    orbax gives up at the first array that fails; what the others answer finds its loop closed.
    """
    if str(failure.exc_value) != "Event loop is closed":
        sys.__unraisablehook__(failure)


def _configure_logging() -> None:
    """Plain lines on standard error, without JAX's own."""
    logging.use_absl_handler()
    logging.set_verbosity(logging.INFO)
    logging.get_absl_handler().setFormatter(std_logging.Formatter("%(message)s"))
    # JAX logs every accelerator that this machine does not have.
    std_logging.getLogger("jax").setLevel(std_logging.WARNING)


def _ending(error: BaseException) -> tuple[int, str | None]:
    """The exit code for `error`, and the line that says all; None where that takes a traceback."""
    if isinstance(error, UsageError | runs.RunError):
        return USAGE_ERROR, str(error)
    if isinstance(error, DivergedError):
        return 1, str(error)
    if isinstance(error, Interrupted | KeyboardInterrupt):
        code = INTERRUPTED_CODE if isinstance(error, Interrupted) else CTRL_C_CODE
        return code, "interrupted; the same command, without --overwrite, resumes"
    return 1, _known_failure(error, flags.FLAGS["results_dir"].value)


def _known_failure(error: BaseException, results_dir: str) -> str | None:
    """One line about a failure of the machine; None where it is a mistake of the program."""
    text = runs.first_line(error)
    # orbax says so in words alone, and calls it RESOURCE_EXHAUSTED.
    words = [os.strerror(number) for number in runs.FULL_DISK]
    if getattr(error, "errno", None) in runs.FULL_DISK or any(w in str(error) for w in words):
        return (
            f"the disk of {getattr(error, 'filename', None) or results_dir} is full: free some"
            " space there; the same command resumes, nothing that was recorded is lost"
        )
    if isinstance(error, OSError) and error.errno in (errno.EIO, errno.EROFS, errno.ESTALE):
        return f"storage failed ({text}); once it works the same command resumes"
    if isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in text or "Out of memory" in text:
        return f"out of memory ({text}); choose smaller settings"
    return None


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

    A run whose settings differ from the variant's own, more than in places of data, has a directory
    of its own, VARIANT@HASH, is of scale "reduced", and its verdict is "not comparable".

    Args:
      own: the settings that `config` is compared with; `config` itself if None.
      log_options: see `TrainingLog`; trainings only.
    Raises:
      DivergedError: a training met a value that is not finite; the run is closed as "diverged".
      Interrupted, KeyboardInterrupt: SIGTERM or Ctrl-C came; the same call resumes.
      UsageError: a setting, the seed or the results directory will not do; nothing was written.
      runs.RunError: see `runs.RunDir.create`.
    """
    settings = config.to_dict()
    scale, variant = settings.pop("scale"), settings["variant"]
    own = {k: v for k, v in (own or settings).items() if k != "scale"}
    changes = runs.differences(own, settings)
    place, extra = variant, {}
    if changes:
        extra["changed"] = {name: now for name, (_, now) in changes.items()}
        digest = hashlib.sha256(json.dumps(extra["changed"], sort_keys=True).encode()).hexdigest()
        place, scale = f"{variant}@{digest[:8]}", "reduced"
    _configure_process(experiment.trains)
    if not multihost.is_process_0():
        logging.set_verbosity(logging.WARNING)
    trials, subjects, problem = [], [], None
    try:
        if not 0 <= seed < SEEDS:
            raise ValueError(f"seed must be from 0 to {SEEDS - 1}, got {seed}")
        trials, subjects = experiment.prepare(settings, own)
    except (ValueError, TypeError, OverflowError, MemoryError) as error:
        wrong = "a setting is of the wrong type: " if isinstance(error, TypeError) else ""
        problem = ValueError(f"{wrong}{runs.first_line(error)}")
    data = [getattr(subject, "fingerprint", None) for subject in subjects]
    alike = {"experiment": experiment.name, "seed": seed, "data": data}
    try:
        several.require_alike(settings, alike, problem)
    except ValueError as error:
        raise UsageError(str(error)) from None
    run_dir = several.open_run(
        results_dir,
        experiment=experiment.name,
        variant=place,
        seed=seed,
        config=settings,
        scale=scale,
        overwrite=overwrite,
        **extra,
    )
    logging.info("writing %s", run_dir.path)
    try:
        with stop_signal(asks_first=experiment.trains) as stop:
            log = TrainingLog(run_dir, stop, **log_options)
            if overwrite:
                log.delete_checkpoints()
            run_trials(experiment, trials, subjects, jax.random.key(seed), run_dir, log)
            found = experiment.judge({**settings, "scale": scale}, run_dir.records)
        if changes:
            found = dataclasses.replace(found, verdict="not comparable")
        seconds = phase_seconds(run_dir.records, experiment.trains)
        summary = run_dir.finish("done", seconds=seconds, **dataclasses.asdict(found))
    except (Interrupted, KeyboardInterrupt):
        run_dir.finish("interrupted")
        raise
    except DivergedError as error:
        run_dir.finish("diverged", error=str(error))
        raise
    except BaseException as error:
        with contextlib.suppress(OSError):  # on a full disk the status stays "running"
            run_dir.finish("failed", error=f"{type(error).__name__}: {runs.first_line(error)}")
        raise
    if multihost.is_process_0():
        logging.info("%s", _result(summary, run_dir.path))
    return summary


def _check_types(own: dict, settings: dict) -> None:
    """Raises ValueError for a value of another type than the variant's own value of the setting.

    What ml_collections leaves open: the entries of tuples, and numbers that are not finite.
    """
    before, now = runs.flat(own), runs.flat(settings)
    for name in before.keys() & now.keys():
        kinds = set(map(type, jax.tree.leaves(before[name])))
        kind = float if kinds == {int, float} else kinds.pop() if len(kinds) == 1 else None
        if before[name] == now[name] or kind not in _LEAVES:
            continue
        for value in jax.tree.leaves(now[name]):
            fits = type(value) is kind or (kind is float and type(value) is int)
            if not fits or (kind is float and not math.isfinite(value)):
                raise ValueError(f"{name} must hold {_LEAVES[kind]}, got {value!r}")


def _configure_process(trains: bool) -> None:
    """Float64 for the theory, float32 for training; compiled programs and memory are kept."""
    jax.config.update("jax_enable_x64", not trains)
    if trains and "JAX_NUM_CPU_DEVICES" not in os.environ:
        # A power of two divides the batch.
        cores = 1 << (environment.usable_cores().bit_length() - 1)
        jax.config.update("jax_num_cpu_devices", min(cores, MOST_CPU_DEVICES))
    if trains and platform.libc_ver()[0] == "glibc":
        # On a CPU each step would get its memory anew from the kernel, which clears it: 8 % of the
        # time of `cifar10/small`. Arrays of 64 MB and more still come and go; M_ARENA_MAX = 1 keeps
        # them, too, but slows narrow nets down by as much, whose threads then wait for each other.
        for option, value in MALLOC_OPTIONS:
            ctypes.CDLL(None).mallopt(option, value)
    if jax.config.jax_compilation_cache_dir is None:
        caches = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
        jax.config.update("jax_compilation_cache_dir", str(caches / "identity_matters" / "jax"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", CACHED_FROM_SECONDS)


def _result(summary: dict, path: Any) -> str:
    """How a run ends: the verdict, the paper's words beside ours, and where to look further."""
    claim = paper.CLAIMS[paper.claim_id(summary["claim"])]
    changed = "".join(f", with {n}={value!r}" for n, value in summary.get("changed", {}).items())
    said = groups.headline(claim.id, groups.group_runs([runs.read_run(path)]))
    if not said:  # the sentences of the claim are of other variants
        shown = list(summary["metrics"].items())[:4]
        said = ", ".join(f"{name} = {groups.format_number(value)}" for name, value in shown)
    report = path.parents[len(summary["variant"].split("/")) + 1] / "report.html"
    lines = (
        f"{claim.title}: {summary['verdict']}{changed}",
        f"  paper   {claim.published}",
        f"  ours    {said}",
        f"  all     {path}/summary.json, every trial in metrics.jsonl",
        f"  report  {report}, which `make report` writes; `make compare` prints all claims",
    )
    return "\n".join(lines)


def run_trials(
    experiment: Experiment, trials: list, subjects: list, key, run_dir, log: TrainingLog
) -> None:
    """Measures the trials that `run_dir` does not hold yet, each with a key of its own."""
    recorded = {
        record["cell"]
        for record in run_dir.records
        if not experiment.trains or record["kind"] == RESULT
    }
    if recorded:
        logging.info("resuming after %d of %d trials", len(recorded), len(trials))
    done_seconds: list[float] = []
    with _compile_clock() as compiling:
        for index, (trial, subject) in enumerate(zip(trials, subjects, strict=True)):
            if index not in recorded:
                compiling["seconds"] = 0.0
                started = time.perf_counter()
                with log.trial(index, len(trials)):
                    own_key = jax.random.fold_in(key, index)
                    measured = {**experiment.measured(trial, subject, own_key, log)}
                seconds = time.perf_counter() - started
                # A training that was resumed knows what earlier processes compiled.
                measured.setdefault("compile_seconds", compiling["seconds"])
                measured.setdefault("seconds", seconds)
                # No setting hides behind a measured value: dict refuses a name that comes twice.
                run_dir.append(dict(cell=index, **trial, **measured))
                done_seconds.append(seconds)
                left = len(trials) - len(recorded) - len(done_seconds)
                seconds_left = left * sum(done_seconds) / len(done_seconds)
                said = f"trial {index + 1} of {len(trials)}{_label(trial, trials)}: {seconds:.1f} s"
                about = f", about {seconds_left:.0f} s left" if seconds_left >= 1 else ""
                logging.info("%s%s", said, about)
            # Of recorded ones, too: the last process may have been killed before it came here.
            if not getattr(subject, "keeps_checkpoint", True):
                log.delete_checkpoints(index)


def _label(trial: dict, trials: list[dict]) -> str:
    """The settings that tell this trial from the others, as far as they are short."""
    own = {
        name: value
        for name, value in trial.items()
        if isinstance(value, int | float | str) and any(t.get(name) != value for t in trials)
    }
    text = ", ".join(f"{name} {value}" for name, value in own.items())
    return f" ({text})" if text else ""


@contextlib.contextmanager
def _compile_clock():
    """Gives a dict in which "seconds" grows by what XLA compiles, until it is left."""
    clock = {"seconds": 0.0}

    def listen(event: str, duration_seconds: float, **_):
        clock["seconds"] += duration_seconds if event == _COMPILE_EVENT else 0.0

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield clock
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


def phase_seconds(records: list[dict], trains: bool) -> dict:
    """Seconds by phase over all trials, those of earlier, interrupted processes included."""
    kinds = ("train", "evaluation")
    logged = [record for record in records if trains and record["kind"] in kinds]
    compile_seconds = total(logged or records, "compile_seconds")
    if logged:
        train, evaluate = (total(where(logged, kind=kind), "seconds") for kind in kinds)
        phases = {"compile": compile_seconds, "train": train, "evaluate": evaluate}
    else:
        measure = total(records, "seconds") - compile_seconds
        phases = {"compile": compile_seconds, "measure": measure}
    phases["total"] = sum(phases.values())
    return {phase: round(seconds, 3) for phase, seconds in phases.items()}
