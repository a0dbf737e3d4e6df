"""The command line of an experiment: flags, settings and --help."""

import ast
import importlib.util
import inspect
import re
import runpy
import sys
from typing import Any

import ml_collections
from absl import flags
from etils import epath
from ml_collections import config_flags

import experiments
from identity_matters import paths, runs


def _define_flags(experiment: Any) -> list:
    """Defines the flags, more of them for trainings; returns those that `run.execute`
    takes.
    """
    taken = [
        flags.DEFINE_integer("seed", 0, "Root of all randomness, from 0 to 2^32 - 1."),
        flags.DEFINE_string(
            "results_dir", "results/local", "Where the run directory goes."
        ),
        flags.DEFINE_boolean("overwrite", False, "Replace a run of the same name."),
    ]
    if experiment.has_step_flags:
        known = "Cloud TPU, SLURM, Open MPI or Kubernetes, which JAX recognises"
        about = (
            f"One of several processes, on {known}; anywhere else give the next three"
            " flags."
        )
        flags.DEFINE_boolean("distributed", False, about)
        address = "HOST:PORT of process 0, for all processes."
        flags.DEFINE_string("coordinator_address", None, address)
        flags.DEFINE_integer("num_processes", None, "How many processes there are.")
        flags.DEFINE_integer("process_id", None, "Which one this is, from 0.")
        elsewhere = "Where checkpoints go; the run directory if empty."
        taken += [
            flags.DEFINE_boolean(
                "tensorboard", False, "Write event files for TensorBoard, too."
            ),
            flags.DEFINE_string(
                "profile", "", "Directory for a jax.profiler trace of some steps."
            ),
            flags.DEFINE_string("checkpoint_dir", "", elsewhere),
        ]
    return taken


def parse(experiment: Any, argv: list[str]) -> tuple[ml_collections.ConfigDict, dict]:
    """The settings chosen on the command line, and the other arguments of
    `run.execute`.

    ``--config=[FILE][:VARIANT]`` chooses the variant, ``--config.NAME=VALUE`` changes a
    setting. A file's get_config gives changed settings of one of our variants, whose
    scale they get. An invalid command line raises ValueError with a message of one
    line.
    """
    defined = _define_flags(experiment)
    chosen = [a.removeprefix("--config=") for a in argv if a.startswith("--config=")]
    file, _, variant = (chosen or [""])[-1].partition(":")
    config = _load(experiment, file, variant)
    own = experiment.settings_module.get_config(config.variant).to_dict()
    config.scale = own["scale"]
    fixed = config.scale, config.variant
    if {"--help", "-h", "--helpshort", "--helpfull"} & set(argv):
        print(_help(experiment, config))
        raise SystemExit(0)
    if "--config" in argv:
        raise ValueError("write --config=:VARIANT, with an equals sign")
    argv = [a for a in argv if not a.startswith("--config=")]
    names = [a.split("=")[0].lstrip("-") for a in argv if re.match("--?config[.]", a)]
    if len(set(names)) < len(names):  # of two tuples ml_collections would make one
        raise ValueError("a setting is given twice")
    try:
        config_flags.DEFINE_config_dict(
            "config", config, lock_config=True, sys_argv=argv
        )
        rest = flags.FLAGS(argv)
    except (AttributeError, KeyError) as error:
        # For a misspelt name ml_collections raises an AttributeError around the
        # KeyError.
        cause = error.args[0] if isinstance(error.args[0], KeyError) else error
        setting = runs.first_line(cause).strip("'\"")
        raise ValueError(f"there is no setting {setting}; --help lists them") from None
    except (flags.Error, TypeError) as error:
        raise ValueError(runs.first_line(error)) from None
    if rest[1:]:
        raise ValueError(f"unknown argument {rest[1]!r}")
    if (config.scale, config.variant) != fixed:
        raise ValueError("scale and variant belong to a variant and cannot be changed")
    options = {flag.name: flag.value for flag in defined}
    for name in ("results_dir", "profile", "checkpoint_dir"):
        if name in options:
            options[name] = paths.expand_home(options[name])
    if not options["results_dir"]:
        raise ValueError("results_dir must name a directory, but is empty")
    for name in ("profile", "checkpoint_dir"):
        try:
            if options.get(name):
                epath.Path(options[name]).mkdir(parents=True, exist_ok=True)
        except Exception as error:  # of any type where a bucket does not answer
            raise ValueError(
                f"--{name} cannot be used: {runs.first_line(error)}"
            ) from None
    if options.get("tensorboard") and not importlib.util.find_spec("tensorboardX"):
        raise ValueError("--tensorboard needs tensorboardX; run: make setup-dev")
    return config, {"own": own, **options}


def _load(experiment: Any, file: str, variant: str) -> ml_collections.ConfigDict:
    arguments = [variant] if variant else []
    if not file:
        return experiment.settings_module.get_config(*arguments)
    try:
        config = runpy.run_path(paths.expand_home(file))["get_config"](*arguments)
        if not {"scale", "variant"} <= set(config):
            raise ValueError("get_config must give scale and variant")
        return ml_collections.ConfigDict(config)
    except (Exception, SystemExit) as error:
        why = f"{type(error).__name__}: {runs.first_line(error)}"
        raise ValueError(
            f"cannot read the settings from --config={file} ({why})"
        ) from None


def _help(experiment: Any, config: ml_collections.ConfigDict) -> str:
    """What --help prints: the docstring, variants, settings with their comments, and
    flags.
    """
    module = experiment.settings_module
    # Not __doc__, which python -OO leaves out.
    about = ast.get_docstring(ast.parse(inspect.getsource(sys.modules["__main__"])))
    lines = [about or experiment.name, "", "variants (--config=:VARIANT):"]
    for kind, note in experiments.KINDS.items():
        known = getattr(module, kind, ())
        for variant in known:
            about = [known[variant]] if isinstance(known, dict) else []
            lines.append(
                f"  {variant:30} {'; '.join([*about, note]).strip('; ')}".rstrip()
            )
    lines += ["", f"settings of {config.variant} (--config.NAME=VALUE changes one):"]
    # Some settings are in a module that several experiments share.
    others = [value for value in vars(module).values() if inspect.ismodule(value)]
    shared = [value for value in others if value.__name__.startswith("experiments.")]
    own, *others = map(inspect.getsource, [module, *shared])
    # The variant's own block is searched first, then the shared modules, then all of
    # this one.
    block = own.partition(f'"{config.variant}": {{')[2]
    source = "\n".join([block, *others, own])
    for name, value in runs.flat(config.to_dict()).items():
        if name not in ("variant", "scale"):
            lines.append(f"  {name} = {value!r}"[:100])
            lines += [f"      {text}" for text in _comment_on(name, source)]
    return "\n".join(
        [*lines, "", "flags:", *flags.FLAGS.module_help(__name__).splitlines()[2:]]
    )


def _comment_on(name: str, source: str) -> list[str]:
    """The comment beside or above the first assignment to a setting that has one."""
    group, _, setting = name.rpartition(".")
    # A group that is written out explains its own settings.
    opened = rf'^( *)"{group}": {{(?:  # [^\n]*)?\n'
    written = re.search(rf"{opened}(.*?)^\1}}", source, re.MULTILINE | re.DOTALL)
    source = written[2] if written and f'"{setting}":' in written[2] else source
    value = rf"""(?:config\.|["'])?{re.escape(setting)}["']?\s*[:=][^=\n].*?"""
    pattern = rf"((?:^[ ]*# .*\n)*)^[ ]*{value}(?:  # (.*))?$"
    for above, beside in re.findall(pattern, source, re.MULTILINE):
        if above or beside:
            return (
                [beside]
                if beside
                else [line.strip("# ") for line in above.splitlines()]
            )
    return []
