"""One run from its settings to its verdict: prepare, measure, conclude."""

import dataclasses
from typing import Any

import jax
import ml_collections
from absl import app, logging

from experiments import accelerators
from experiments.run import endings, process, refusals
from experiments.run.conclusion import last_lines
from experiments.run.experiment import (
    DeviceExperiment,
    Experiment,
    TrainingExperiment,
    Verdict,
)
from experiments.run.measuring import measure_trials
from experiments.run.settings import NO_VERDICT, RunName, name_run
from experiments.run.signals import Interrupted, Stop, stop_signal
from experiments.run.trials import without
from identity_matters import jax_settings, runs

# `multiprocess` and `training_log` load the training loop, and with it flax and orbax.
# They are imported inside the functions that need them: theory runs do not.


def execute(
    experiment: Experiment,
    config: ml_collections.ConfigDict,
    *,
    seed: int,
    results_dir: Any,
    defaults: dict | None = None,
    overwrite: bool = False,
    **log_options: Any,
) -> dict:
    """Runs or resumes one run of `experiment`; returns its summary.

    Args:
      experiment: what to run.
      config: its settings.
      seed: the root of all randomness, from 0 to 2^32 - 1.
      results_dir: where the run directory goes.
      defaults: the unchanged settings of the variant; by default those of `config`. If
        they differ, the run is called VARIANT@HASH (see docs/architecture.md).
      overwrite: whether to replace a run of the same name.
      log_options: of trainings; see `TrainingLogs`.
    Raises:
      app.UsageError: an invalid setting or seed, or processes that differ; nothing has
        been written.
      runs.RunError: as `runs.RunDir.create` does.
      DivergedError: a training diverged.
      Interrupted, KeyboardInterrupt: after either the same call resumes, without
        `overwrite`.
    """
    # Several processes must stop together, at points that all of them come to. After
    # the last of these points they do not stop at all.
    with stop_signal(asks_first=_are_several(experiment)) as stop:
        prepared = _prepare(
            experiment,
            config.to_dict(),
            defaults=defaults,
            seed=seed,
            log_options=log_options,
            stop=stop,
        )
        run_dir = _open_run(prepared, results_dir, overwrite)
        with endings.recorded(
            run_dir, fields_if_diverged=lambda: _fields_if_diverged(prepared, run_dir)
        ):
            _measure(prepared, run_dir, overwrite, log_options, stop)
            verdict = prepared.experiment.judge(
                prepared.judged_settings, run_dir.records
            )
            fields = _conclusion(prepared, verdict, run_dir.records)
            summary = run_dir.finish("done", **fields)
    if _writes(experiment):
        logging.info("%s", last_lines(summary, run_dir.path, results_dir))
    return summary


@dataclasses.dataclass(frozen=True)
class _Prepared:
    """A run that can be measured; nothing of it has been written.

    Attributes:
      experiment: what it is a run of.
      settings: without the scale.
      name: its variant, scale and changes.
      seed: the root of all randomness.
      trials: one dict for each trial.
      built: what the experiment made of each.
    """

    experiment: Experiment
    settings: dict
    name: RunName
    seed: int
    trials: list[dict]
    built: list

    @property
    def judged_settings(self) -> dict:
        """What a verdict is told of the settings."""
        return {**self.settings, "scale": self.name.scale}


def _prepare(
    experiment: Experiment,
    config: dict,
    *,
    defaults: dict | None,
    seed: int,
    log_options: dict,
    stop: Stop,
) -> _Prepared:
    """Configures the process, checks settings and options and builds the trials."""
    defaults = defaults or config
    settings = without(config, "scale")
    name = name_run(config, defaults)
    _configure_process(experiment, settings)
    refusal = None
    try:
        _check_log_options(experiment, log_options)
        trials, built = _check_and_build(experiment, settings, defaults, seed)
    except Exception as error:
        if not _is_refusal(experiment, error):
            if name.changed:
                error.add_note(f"with changed settings: {name.changed}")
            raise
        refusal = ValueError(runs.first_line(error))
        trials, built = [], []
    # All processes come to this point, also those that refuse.
    _require_agreement(experiment, settings, seed, built, refusal, stop)
    _warn_of_hours(experiment, settings["variant"], built)
    return _Prepared(
        experiment=experiment,
        settings=settings,
        name=name,
        seed=seed,
        trials=trials,
        built=built,
    )


def _check_log_options(experiment: Experiment, log_options: dict) -> None:
    """`training_log.check_options`, in the process that writes."""
    if isinstance(experiment, TrainingExperiment) and _writes(experiment):
        from experiments.run import training_log

        training_log.check_options(**log_options)


def _check_and_build(
    experiment: Experiment, settings: dict, defaults: dict, seed: int
) -> tuple[list[dict], list]:
    """See `Experiment.prepare`; also refuses a name or seed that no run may have."""
    runs.run_path("", experiment.name, settings["variant"], seed)
    if not 0 <= seed < runs.SEEDS:
        raise ValueError(f"seed must be from 0 to {runs.SEEDS - 1}, got {seed}")
    return experiment.prepare(settings, without(defaults, "scale"))


def _configure_process(experiment: Experiment, settings: dict) -> None:
    """Sets JAX up for this kind of experiment; UsageError if there is no device."""
    if isinstance(experiment, DeviceExperiment):
        process.configure_for_devices(_most_devices(settings))
    else:
        process.configure_for_theory()
    try:
        jax.devices()
    except (AssertionError, RuntimeError) as error:  # JAX_PLATFORMS names another one
        platforms = jax.config.values["jax_platforms"]
        reason = f"{platforms}: {runs.first_line(error)}"
        raise app.UsageError(f"JAX finds no device, {reason}") from None
    if isinstance(experiment, TrainingExperiment):
        try:
            accelerators.require_used()
        except ValueError as error:
            raise app.UsageError(str(error)) from None
    if not _writes(experiment):
        logging.set_verbosity(logging.WARNING)


def _most_devices(settings: dict) -> int:
    """The most devices that the settings ask for at once; 1 if they do not say.

    The settings are checked only later, when JAX is set up.
    """
    counts = settings.get("device_counts", ())
    whole = [count for count in counts if type(count) is int]
    return max(whole, default=1)


def _are_several(experiment: Experiment) -> bool:
    """Whether other processes take part; only trainings may have several.

    This does not look for devices, since JAX may not be set up yet.
    """
    is_training = isinstance(experiment, TrainingExperiment)
    return is_training and jax.distributed.is_initialized()


def _writes(experiment: Experiment) -> bool:
    """Whether this process writes."""
    return not _are_several(experiment) or jax.process_index() == 0


def _is_refusal(experiment: Experiment, error: Exception) -> bool:
    """Whether `error` refuses the settings; if not, it is a bug or a full disk."""
    packages = {*refusals.OUR_PACKAGES, experiment.module.split(".")[0]}
    # A full disk is not the settings' fault: `endings` knows what to say about it. With
    # several processes the others must hear of it, as of any refusal.
    disk_is_full = getattr(error, "errno", None) in runs.FULL_DISK
    is_of_disk = disk_is_full and jax.process_count() == 1
    return not is_of_disk and refusals.is_refusal(error, packages)


def _require_agreement(
    experiment: Experiment,
    settings: dict,
    seed: int,
    built: list,
    refusal: ValueError | None,
    stop: Stop,
) -> None:
    """UsageError if any process refuses the settings, or if processes differ.

    If any was told to stop, all of them stop.
    """
    try:
        if isinstance(experiment, TrainingExperiment):
            from experiments.run import multiprocess

            alike = {
                "experiment": experiment.name,
                "seed": seed,
                "data": [getattr(part, "fingerprint", None) for part in built],
            }
            multiprocess.require_alike(settings, alike, refusal)
            multiprocess.check_stop(stop)
        elif refusal is not None:
            raise refusal
    except ValueError as error:
        raise app.UsageError(str(error)) from None


def _warn_of_hours(experiment: Experiment, variant: str, built: list) -> None:
    """Says how long a training of the paper's size will take on a CPU."""
    instead = getattr(experiment.settings_module, "ON_A_CPU", None)
    if instead and experiment.settings_of(variant)["scale"] == "paper":
        flops = sum(training.flops for training in built)
        if warning := accelerators.warning_of_hours(flops, instead):
            logging.info("%s", warning)


def _open_run(prepared: _Prepared, results_dir: Any, overwrite: bool) -> Any:
    """The directory of the run, new or to be resumed."""
    fields: dict = {
        "experiment": prepared.experiment.name,
        "variant": prepared.name.variant,
        "seed": prepared.seed,
        "scale": prepared.name.scale,
        "config": prepared.settings,
        "overwrite": overwrite,
    }
    if prepared.name.changed:
        fields["changed"] = prepared.name.changed
    if isinstance(prepared.experiment, TrainingExperiment):
        from experiments.run import multiprocess

        run_dir = multiprocess.open_run(results_dir, **fields)
    else:
        run_dir = runs.RunDir.create(results_dir, **fields)
    logging.info("writing %s", run_dir.path)
    return run_dir


def _measure(
    prepared: _Prepared, run_dir: Any, overwrite: bool, log_options: dict, stop: Stop
) -> None:
    """Measures all trials that are missing."""
    takes_log = isinstance(prepared.experiment, DeviceExperiment)
    with stop_signal(asks_first=takes_log, stop=stop):
        logs = None
        if takes_log:
            from experiments.run.training_log import TrainingLogs

            logs = TrainingLogs(run_dir, stop, **log_options)
            if overwrite:
                logs.delete_checkpoints()
        try:
            measure_trials(
                prepared.experiment,
                prepared.trials,
                prepared.built,
                key=jax_settings.random_key(prepared.seed),
                run_dir=run_dir,
                stop=stop,
                logs=logs,
            )
        except Interrupted:
            # A training that was asked to stop raises Interrupted, also after Ctrl-C.
            raise (stop.requested or Interrupted) from None


def _conclusion(prepared: _Prepared, verdict: Verdict, records: list[dict]) -> dict:
    """What the summary says of a run that was judged."""
    if prepared.name.changed:
        verdict = dataclasses.replace(verdict, verdict=NO_VERDICT)
    seconds = prepared.experiment.phase_seconds(records)
    return {"seconds": seconds, **dataclasses.asdict(verdict)}


def _fields_if_diverged(prepared: _Prepared, run_dir: Any) -> dict:
    """What the summary says of a run that diverged; nothing if that has no verdict."""
    records = run_dir.records
    verdict = prepared.experiment.judge_diverged(prepared.judged_settings, records)
    return _conclusion(prepared, verdict, records) if verdict else {}
