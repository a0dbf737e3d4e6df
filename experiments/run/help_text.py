"""What --help prints, with the comments that explain the settings in the source.

The comments on settings are not only for those who read the code: they are the help.
--help prints under each setting the comment beside the line that gives it its value, or
the comment above that line. So the explanation is written once, where the value is.

`ast` finds the assignments, and `tokenize` the comments, which a syntax tree lacks.
"""

import ast
import inspect
import io
import sys
import tokenize
import types
from collections.abc import Iterator
from typing import Any, NamedTuple

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
    candidates = _candidates(module, config.variant)
    lines = []
    for name, value in runs.flat(config.to_dict()).items():
        if name not in ("variant", "scale"):
            lines.append(f"  {name} = {value!r}"[:_LONGEST_LINE])
            lines += [f"      {text}" for text in comment_on(name, candidates)]
    return lines


class Group(NamedTuple):
    """A dict in the source, or a call with keywords: its name, perhaps "", and line."""

    name: str
    line: int


class Assignment(NamedTuple):
    """A line of source that gives a setting a value.

    Attributes:
      setting: its name, without that of its group.
      group: the dict that it is written in.
      line: its number.
      comment: the lines of the comment beside it or else above it, perhaps none.
    """

    setting: str
    group: Group
    line: int
    comment: list[str]


def comment_on(name: str, candidates: list[Assignment]) -> list[str]:
    """The lines of the first comment on a setting; none if there is no comment.

    Args:
      name: of the setting, perhaps "GROUP.SETTING".
      candidates: assignments, in the order in which they are searched. If the first
        dict called GROUP has the setting, it alone counts: a setting of the same name
        in another group may mean something else.

    >>> comment_on("width", assignments("width = 8  # of each layer"))
    ['of each layer']
    """
    group_name, _, setting = name.rpartition(".")
    of_setting = [line for line in candidates if line.setting == setting]
    if group_name:
        groups = [line.group for line in candidates if line.group.name == group_name]
        in_its_group = [line for line in of_setting if line.group in groups[:1]]
        of_setting = in_its_group or of_setting
    comments = [line.comment for line in of_setting if line.comment]
    return comments[0] if comments else []


def _candidates(module: types.ModuleType, variant: str) -> list[Assignment]:
    """The assignments in which --help looks for comments, in that order.

    Those from the variant's own dict on come first, then those of modules whose
    settings this one shares, then all of this one.
    """
    in_module = assignments(inspect.getsource(module))
    groups = [line.group.name for line in in_module]
    from_variant_on = in_module[groups.index(variant) :] if variant in groups else []
    in_shared_modules = [
        line
        for shared in vars(module).values()
        if inspect.ismodule(shared) and shared.__name__.startswith("experiments.")
        for line in assignments(inspect.getsource(shared))
    ]
    return [*from_variant_on, *in_shared_modules, *in_module]


def assignments(source: str) -> list[Assignment]:
    """The lines of Python code that begin with an assignment, with their comments.

    An assignment is ``"setting": value`` in a dict, ``setting=value`` in a call, or the
    statement ``setting = value`` or ``config.setting = value``.
    """
    lines = source.splitlines()
    comments = _Comments(source)
    # A dict has the name whose value it is; `ast.walk` meets the outer node first.
    name_of: dict[ast.AST, str] = {}
    listed = []
    for node in ast.walk(ast.parse(source)):
        group = Group(name_of.get(node, ""), getattr(node, "lineno", 0))
        for place, name, value in _names_in(node):
            name_of[value] = name
            line = place.lineno
            begins_its_line = not lines[line - 1][: place.col_offset].strip()
            if begins_its_line:
                listed.append(Assignment(name, group, line, comments.on(line)))
    return sorted(listed, key=lambda assignment: assignment.line)


def _names_in(node: ast.AST) -> Iterator[tuple[Any, str, Any]]:
    """(node with the position, name, value) of each value that this node names."""
    match node:
        case ast.Dict(keys, values):
            for key, value in zip(keys, values, strict=True):
                if isinstance(key, ast.Constant):
                    yield key, str(key.value), value
        case ast.keyword(str(name), value):
            yield node, name, value
        case ast.Assign([ast.Name(name) | ast.Attribute(attr=name) as target], value):
            yield target, name, value


class _Comments:
    """The comments of some source, by line."""

    def __init__(self, source: str):
        self._beside: dict[int, str] = {}
        self._alone: dict[int, str] = {}
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type == tokenize.COMMENT:
                line, column = token.start
                has_code = token.line[:column].strip()
                comments = self._beside if has_code else self._alone
                comments[line] = token.string.strip("# ")

    def on(self, line: int) -> list[str]:
        """The comment beside a line or, without one, the lines of that right above."""
        if line in self._beside:
            return [self._beside[line]]
        first = line
        while first - 1 in self._alone:
            first -= 1
        return [self._alone[number] for number in range(first, line)]
