"""What an experiment is, and the three kinds of it.

* `Experiment`: theory, in float64 on the CPU.
* `DeviceExperiment`: float32, on what JAX finds.
* `TrainingExperiment`: its trials are trainings, with checkpoints and many devices.
"""

import contextlib
import dataclasses
import importlib
import math
import sys
import types
from collections.abc import Callable, Mapping
from typing import Any

import ml_collections

from experiments.run.settings import check_settings, require_between
from experiments.run.verdicts import (
    CONFIRMED,
    holds_nan,
    seconds_with_compiling,
    total,
    where,
)
from identity_matters import runs

# The kind of a training's last record; a training that has one is finished.
RESULT = "result"


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What a finished run's records show; summary.json has fields of the same names."""

    claim: str
    metrics: dict
    verdict: str
    paper: dict = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Experiment:
    """An experiment as plain functions. It runs in float64, on the CPU.

    Attributes:
      name: that of the entry point's file, and of its directory under the results
        directory.
      module: ``__name__`` of the module with `get_config` and `VARIANTS`.
      trials: ``trials(**settings) -> list of dicts``, JSON-able; it measures nothing.
      verdict: ``verdict(settings, records) -> Verdict`` from the lines of
        metrics.jsonl. Or a dict from the variant to such a function.
      measure: ``measure(trial, key) -> dict`` of JSON-able values. `trial` is what
        `build` returns; each trial has a key of its own. Or a dict from the kind of a
        trial to such a function.
      build: ``build(**trial)`` makes the object to measure, by default a namespace of
        the trial's settings. All trials are built before the run directory is created,
        so that an invalid setting costs nothing; keep it cheap.
      measurements: the name of a module that has `measure`, or the dict as `MEASURES`,
        and perhaps `build`, in place of the two fields. It is imported when a run
        begins: --help, verdicts and reports do not wait for JAX and SciPy.
      kind_field: the field of a trial that says of which kind it is.
      signed: settings that may be 0, negative or empty; no other may be.
      may_be_nan: fields of a record that may hold a NaN, such as the curve of a
        training that blew up. One in any other field leaves the verdict open.
    """

    name: str
    module: str
    trials: Callable[..., list[dict]]
    verdict: Callable[..., Verdict] | Mapping[str, Callable[..., Verdict]]
    measure: Callable[..., dict] | Mapping[str, Callable[..., dict]] | None = None
    build: Callable[..., Any] = types.SimpleNamespace
    measurements: str = ""
    kind_field: str = "kind"
    signed: tuple[str, ...] = ()
    may_be_nan: tuple[str, ...] = ()

    @property
    def settings_module(self) -> types.ModuleType:
        """The module with `get_config` and `VARIANTS`."""
        return sys.modules[self.module]

    def get_config(self, *variant: str) -> ml_collections.ConfigDict:
        """The settings of a variant, by default of the first; ValueError if unknown."""
        return self.settings_module.get_config(*variant)

    def settings_of(self, variant: str) -> dict:
        """The unchanged settings of a variant; {} if there is no such variant."""
        with contextlib.suppress(ValueError):
            return self.get_config(variant).to_dict()
        return {}

    def prepare(self, settings: dict, defaults: dict) -> tuple[list[dict], list]:
        """The trials of `settings`, and what `build` returns for each of them.

        Args:
          settings: without the scale.
          defaults: the unchanged settings of the variant.
        Raises:
          ValueError: for settings that cannot be used; also other errors, which
            `refusals.is_refusal` tells from bugs.
        """
        check_settings(defaults, settings)
        self.check_signs(settings)
        trials = self.trials(**settings)
        if not trials:
            raise ValueError(
                "these settings leave nothing to measure; see --help for them"
            )
        build = getattr(self._measurements_module(), "build", self.build)
        return trials, [build(**trial) for trial in trials]

    def check_signs(self, settings: dict) -> None:
        """Refuses numbers that are not above 0, except in `signed` settings."""
        for name, value in runs.flat(settings).items():
            if name.split(".")[-1] not in self.signed:
                require_between(0, math.inf, **{name: value})

    def measure_trial(self, trial: dict, built: Any, key: Any, log: Any = None) -> dict:
        """The result of `measure` for one trial."""
        measure = self.measure_for(trial)
        if measure is None:
            raise TypeError(f"the experiment {self.name} has no `measure`")
        return measure(built, key)

    def measure_for(self, trial: dict) -> Callable[..., dict] | None:
        """The function that measures trials of this kind, if there is one."""
        measure = self._measure_or_measures()
        if isinstance(measure, Mapping):
            return measure[trial[self.kind_field]]
        return measure

    def _measure_or_measures(
        self,
    ) -> Callable[..., dict] | Mapping[str, Callable[..., dict]] | None:
        """The function for all trials, or one for each kind; the module's go first."""
        module = self._measurements_module()
        if module is None:
            return self.measure
        if hasattr(module, "MEASURES"):
            return module.MEASURES
        # The module of linear_sampled has only `build`.
        return getattr(module, "measure", self.measure)

    def _measurements_module(self) -> types.ModuleType | None:
        """The module `measurements`, imported here and not before; None without one."""
        return importlib.import_module(self.measurements) if self.measurements else None

    def judge(self, settings: dict, records: list[dict]) -> Verdict:
        """The verdict of the settings' variant on these records.

        What is not a number is neither within a bound nor above it, so a claim is not
        confirmed by records that hold one: it is undecided.
        """
        verdict = self.verdict
        if isinstance(verdict, Mapping):
            verdict = verdict[settings["variant"]]
        judged = verdict(settings, records)
        if judged.verdict in CONFIRMED and self._hold_nan(records):
            return dataclasses.replace(judged, verdict="undecided")
        return judged

    def _hold_nan(self, records: list[dict]) -> bool:
        """Whether a field that is not in `may_be_nan` holds a NaN."""
        return any(
            holds_nan(value)
            for record in records
            for name, value in record.items()
            if name not in self.may_be_nan
        )

    def judge_diverged(self, settings: dict, records: list[dict]) -> Verdict | None:
        """The verdict of a run that diverged; None where it says nothing of a claim."""
        return None

    def results(self, records: list[dict]) -> list[dict]:
        """The records that finish a trial: here, all of them."""
        return records

    def phase_seconds(self, records: list[dict]) -> dict[str, float]:
        """Seconds by phase over all trials, also those of interrupted processes."""
        compiling = total(records, "compile_seconds")
        measuring = total(records, "seconds") - compiling
        return _with_total({"compile": compiling, "measure": measuring})


class DeviceExperiment(Experiment):
    """An experiment in float32, on the accelerators or CPU cores that JAX finds.

    ``measure(trial, key, log)`` also takes a `training_log.TrainingLog`; by default it
    is ``trial.run(key, log)`` of what `build` returns. It stops early by raising
    `Interrupted` once ``log.stop_requested()``.
    """

    def measure_trial(self, trial: dict, built: Any, key: Any, log: Any = None) -> dict:
        measure = self.measure_for(trial)
        result = measure(built, key, log) if measure else built.run(key, log)
        return {"kind": RESULT, **result}

    def results(self, records: list[dict]) -> list[dict]:
        """The last record of each finished trial."""
        return where(records, kind=RESULT)

    def phase_seconds(self, records: list[dict]) -> dict[str, float]:
        """Seconds by phase over all trials, also those of interrupted processes.

        "other" is what the finished trials took beyond their logged steps and
        evaluations: drawing the initial state, saving checkpoints, what came after the
        last record of a training that diverged.
        """
        logged = [
            record for record in records if record["kind"] in ("train", "evaluation")
        ]
        if not logged:
            return super().phase_seconds(records)
        return _with_total(
            {
                "compile": total(logged, "compile_seconds"),
                "train": total(where(logged, kind="train"), "seconds"),
                "evaluate": total(where(logged, kind="evaluation"), "seconds"),
                "other": _seconds_beyond(logged, self.results(records)),
            }
        )


@dataclasses.dataclass(frozen=True)
class TrainingExperiment(DeviceExperiment):
    """An experiment whose trials are trainings: they log steps and keep checkpoints.

    Such a command has more flags, --tensorboard and --distributed among them. `measure`
    may also raise `DivergedError`. What `build` returns may have these attributes:

    * keeps_checkpoint: whether checkpoints stay after the training; by default they do.
    * fingerprint: must be the same in all processes, such as a digest of the data.
    * flops: operations of the training, for a warning if there is no accelerator.

    Attributes:
      diverged_verdict: ``diverged_verdict(settings, records) -> Verdict`` of a run that
        ended with `DivergedError`. Without it such a run has no verdict.
    """

    diverged_verdict: Callable[..., Verdict] | None = None

    def judge_diverged(self, settings: dict, records: list[dict]) -> Verdict | None:
        if self.diverged_verdict is None:
            return None
        return self.diverged_verdict(settings, records)

    def check_signs(self, settings: dict) -> None:
        """Leaves signs to the code that trains: 0 often stands for a default."""


def _seconds_beyond(logged: list[dict], results: list[dict]) -> float:
    """The seconds of the trials with these results that no logged record has.

    In older runs the seconds of a resumed trial are those since it was last resumed.
    They may be fewer than the logged ones; then nothing is known of the others.
    """
    beyond = 0.0
    for result in results:
        logged_of_trial = where(logged, cell=result["cell"])
        beyond += max(0.0, result["seconds"] - seconds_with_compiling(logged_of_trial))
    return beyond


def _with_total(phases: dict[str, float]) -> dict[str, float]:
    phases = phases | {"total": sum(phases.values())}
    return {phase: round(seconds, 3) for phase, seconds in phases.items()}
