"""The command line of an experiment: its flags, and the settings that they choose."""

import os
import re
import runpy

import ml_collections
from absl import flags
from ml_collections import config_flags

from experiments.run import help_text
from experiments.run.experiment import Experiment, TrainingExperiment
from identity_matters import paths, runs

_HELP_FLAGS = {"--help", "-h", "--helpshort", "--helpfull"}


class HelpShown(Exception):
    """What was asked for is printed: nothing is left to do."""


def _define_flags() -> list[flags.FlagHolder]:
    """Defines the flags of every experiment; returns those that `execute` takes."""
    return [
        flags.DEFINE_integer("seed", 0, "Root of all randomness, from 0 to 2^32 - 1."),
        flags.DEFINE_string(
            "results_dir", "results/local", "Where the run directory goes."
        ),
        flags.DEFINE_boolean("overwrite", False, "Replace a run of the same name."),
    ]


def _define_training_flags() -> list[flags.FlagHolder]:
    """Defines the flags of trainings; returns those that `execute` takes."""
    flags.DEFINE_boolean(
        "distributed",
        False,
        "One of several processes, on Cloud TPU (also in GKE), SLURM or Open MPI, where"
        " JAX finds the others; anywhere else give --coordinator_address,"
        " --num_processes and --process_id.",
    )
    flags.DEFINE_string(
        "coordinator_address", None, "HOST:PORT of process 0, for all processes."
    )
    flags.DEFINE_integer("num_processes", None, "How many processes there are.")
    flags.DEFINE_integer("process_id", None, "Which of them this is, from 0.")
    return [
        flags.DEFINE_boolean(
            "tensorboard", False, "Write event files for TensorBoard, too."
        ),
        flags.DEFINE_string(
            "profile", "", "Directory for a jax.profiler trace of some steps."
        ),
        flags.DEFINE_string(
            "checkpoint_dir", "", "Where checkpoints go; the run directory if empty."
        ),
    ]


def parse(
    experiment: Experiment, argv: list[str]
) -> tuple[ml_collections.ConfigDict, dict]:
    """The settings chosen on the command line, and the options of `execution.execute`.

    ``--config=[FILE][:VARIANT]`` chooses the variant, ``--config.NAME=VALUE`` changes a
    setting. A file's get_config returns the settings of a variant with some changes;
    the scale stays the variant's. ``--help`` prints its text and raises HelpShown.

    `_choose_variant` reads ``--config=`` itself: absl's flag of that name wants a file,
    and our variants need none. absl parses all other flags, those that change settings
    among them.

    Raises:
      ValueError: the command line is invalid; the message is one line.
    """
    holders = _define_flags()
    if isinstance(experiment, TrainingExperiment):
        holders += _define_training_flags()
    config, defaults = _choose_variant(experiment, argv)
    if _HELP_FLAGS & set(argv):
        print(help_text.help_text(experiment, config, flags_of=__name__))
        raise HelpShown
    _change_settings(config, argv)
    options = {holder.name: holder.value for holder in holders}
    for name in ("results_dir", "profile", "checkpoint_dir"):
        if name in options:
            options[name] = paths.expand_home(options[name])
    if not options["results_dir"]:
        raise ValueError("results_dir must name a directory, but is empty")
    return config, {"defaults": defaults, **options}


def _choose_variant(
    experiment: Experiment, argv: list[str]
) -> tuple[ml_collections.ConfigDict, dict]:
    """The settings that --config names, and the unchanged ones of their variant."""
    choices = [
        word.removeprefix("--config=") for word in argv if word.startswith("--config=")
    ]
    file, _, variant = (choices or [""])[-1].partition(":")
    arguments = [variant] if variant else []
    if file:
        _check_is_file(experiment, file)
        config = _read_config(file, arguments)
    else:
        config = experiment.get_config(*arguments)
    defaults = experiment.get_config(config.variant).to_dict()
    config.scale = defaults["scale"]
    return config, defaults


def _check_is_file(experiment: Experiment, file: str) -> None:
    """ValueError for what is no file, as a variant without its colon."""
    if os.path.isfile(paths.expand_home(file)):
        return
    if experiment.settings_of(file):
        hint = f"to choose the variant put a colon before it: --config=:{file}"
    else:
        hint = "a variant has a colon before it: --config=:VARIANT"
    raise ValueError(f"--config={file}: there is no such file; {hint}")


def _read_config(file: str, arguments: list[str]) -> ml_collections.ConfigDict:
    """What get_config of a file of settings returns."""
    try:
        config = runpy.run_path(paths.expand_home(file))["get_config"](*arguments)
        if not {"scale", "variant"} <= set(config):
            raise ValueError("get_config must give scale and variant")
        return ml_collections.ConfigDict(config)
    except (Exception, SystemExit) as error:
        reason = f"{type(error).__name__}: {runs.first_line(error)}"
        raise ValueError(
            f"cannot read the settings from --config={file} ({reason})"
        ) from None


def _change_settings(config: ml_collections.ConfigDict, argv: list[str]) -> None:
    """Parses all flags; ``--config.NAME=VALUE`` changes `config` in place."""
    if "--config" in argv:
        raise ValueError("write --config=:VARIANT, with an equals sign")
    # Without what `_choose_variant` has read.
    argv = [word for word in argv if not word.startswith("--config=")]
    changed = [
        word.split("=")[0].lstrip("-")
        for word in argv
        if re.match("--?config[.]", word)
    ]
    for name in changed:
        if changed.count(name) > 1:  # of two tuples ml_collections would make one
            setting = name.removeprefix("config.")
            raise ValueError(f"{setting} is given twice")
    scale = config.scale
    variant = config.variant
    try:
        config_flags.DEFINE_config_dict(
            "config", config, lock_config=True, sys_argv=argv
        )
        remaining = flags.FLAGS(argv)
    except (AttributeError, KeyError) as error:
        raise ValueError(
            f"there is no setting {_misspelt(error)}; --help lists them"
        ) from None
    except (flags.Error, TypeError) as error:
        raise ValueError(runs.first_line(error)) from None
    if remaining[1:]:
        raise ValueError(f"unknown argument {remaining[1]!r}")
    if config.scale != scale or config.variant != variant:
        raise ValueError("scale and variant belong to a variant and cannot be changed")


def _misspelt(error: AttributeError | KeyError) -> str:
    """The name of a setting that does not exist.

    For a misspelt name ml_collections raises an AttributeError around the KeyError.
    """
    cause = error.args[0] if isinstance(error.args[0], KeyError) else error
    return runs.first_line(cause).strip("'\"")
