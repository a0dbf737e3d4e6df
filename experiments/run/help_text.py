"""What --help prints, with the comments that explain the settings in the source."""

import ast
import inspect
import re
import sys
import types

import ml_collections
from absl import flags

import experiments
from experiments.run.experiment import Experiment
from identity_matters import runs

_LONGEST_LINE = 100


def help_text(
    experiment: Experiment, config: ml_collections.ConfigDict, flags_of: str
) -> str:
    """The docstring, the variants, the settings with their comments, and the flags.

    Args:
      experiment: whose command it is.
      config: the settings to list.
      flags_of: the module that defined the flags.
    """
    # Not __doc__, which python -OO leaves out.
    docstring = ast.get_docstring(ast.parse(inspect.getsource(sys.modules["__main__"])))
    lines = [
        docstring or experiment.name,
        "",
        "variants (--config=:VARIANT):",
        *_variant_lines(experiment.settings_module),
        "",
        f"settings of {config.variant} (--config.NAME=VALUE changes one):",
        *_setting_lines(experiment.settings_module, config),
        "",
        "flags:",
        *flags.FLAGS.module_help(flags_of).splitlines()[2:],
    ]
    return "\n".join(lines)


def _variant_lines(module: types.ModuleType) -> list[str]:
    """Each variant, with its description and a note on what it needs."""
    names = [name for kind in experiments.KINDS for name in getattr(module, kind, ())]
    width = max(map(len, names), default=0)
    lines = []
    for kind, note in experiments.KINDS.items():
        variants = getattr(module, kind, ())
        for variant in variants:
            description = variants[variant] if isinstance(variants, dict) else ""
            about = "; ".join(text for text in (description, note) if text)
            lines.append(f"  {variant:{width}}  {about}".rstrip())
    return lines


def _setting_lines(
    module: types.ModuleType, config: ml_collections.ConfigDict
) -> list[str]:
    """Each setting with its value, and its comment in the lines below."""
    source = _source_of_settings(module, config.variant)
    lines = []
    for name, value in runs.flat(config.to_dict()).items():
        if name not in ("variant", "scale"):
            lines.append(f"  {name} = {value!r}"[:_LONGEST_LINE])
            lines += [f"      {text}" for text in comment_on(name, source)]
    return lines


def _source_of_settings(module: types.ModuleType, variant: str) -> str:
    """Source text in the order in which it is searched for comments.

    The variant's own block comes first, then modules whose settings this one shares,
    then all of this one.
    """
    shared = [
        value
        for value in vars(module).values()
        if inspect.ismodule(value) and value.__name__.startswith("experiments.")
    ]
    source = inspect.getsource(module)
    block = source.partition(f'"{variant}": {{')[2]
    return "\n".join([block, *map(inspect.getsource, shared), source])


def comment_on(name: str, source: str) -> list[str]:
    """The comment beside or above the first assignment to a setting that has one.

    Args:
      name: of the setting, perhaps "GROUP.SETTING".
      source: Python code.
    Returns:
      The lines of the comment; none if there is no comment.

    >>> comment_on("width", '"depth": 3,\\n"width": 8,  # of each layer\\n')
    ['of each layer']
    """
    group, _, setting = name.rpartition(".")
    block = _block_of_group(group, source)
    # A group that is written out explains its own settings.
    if f'"{setting}":' in block:
        source = block
    for above, beside in _assignments(setting, source):
        if beside:
            return [beside]
        if above:
            return [line.strip("# ") for line in above.splitlines()]
    return []


def _block_of_group(group: str, source: str) -> str:
    """The lines between ``"group": {`` and its closing brace, if it is written out."""
    opening = rf'^( *)"{group}": {{(?:  # [^\n]*)?\n'
    written = re.search(rf"{opening}(.*?)^\1}}", source, re.MULTILINE | re.DOTALL)
    return written[2] if written else ""


def _assignments(setting: str, source: str) -> list[tuple[str, str]]:
    """(lines of comment above, comment beside) of each assignment to a setting.

    An assignment is ``"setting": value`` of a dict, ``setting=value`` or
    ``config.setting = value``.
    """
    value = rf"""(?:config\.|["'])?{re.escape(setting)}["']?\s*[:=][^=\n].*?"""
    pattern = rf"((?:^[ ]*# .*\n)*)^[ ]*{value}(?:  # (.*))?$"
    return re.findall(pattern, source, re.MULTILINE)
