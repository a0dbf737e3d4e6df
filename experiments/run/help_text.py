"""What --help prints, with the comments that explain the settings in the source.

The comments on settings are not only for those who read the code: they are the help.
--help prints under each setting the comment beside the line that gives it its value, or
the comment above that line. So the explanation is written once, where the value is.

Comments count in dicts that have a name, ``NAME = {...}`` at the top level of the
experiment's module or of a module of `experiments` that it imports:

* ``NAME = {"VARIANT": {"setting": 1}}`` explains a setting of this variant.
* ``NAME = {"setting": 1}`` explains the settings of this name in all variants and in
  all groups, and ``NAME = {"group": {"setting": 1}}`` those in groups of this name.

A comment for the variant comes first. Several comments of the same kind must agree.

`ast` finds the settings, and `tokenize` the comments, which a syntax tree lacks.
"""

import ast
import inspect
import io
import keyword
import sys
import tokenize
import types
from collections.abc import Collection, Iterator
from typing import NamedTuple

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
        # In quotes, as shells read brackets and parentheses.
        f'settings of {config.variant} ("--config.NAME=VALUE" changes one):',
        *setting_lines(experiment.settings_module, config),
        "",
        "flags:",
        *flags.FLAGS.module_help(flags_of).splitlines()[2:],
    ]
    return "\n".join(lines)


def _variant_lines(module: types.ModuleType) -> list[str]:
    """Each variant, with its description and a note on what it needs."""
    width = max(map(len, _variant_names(module)), default=0)
    lines = []
    for kind, note in experiments.KINDS.items():
        variants = getattr(module, kind, ())
        for variant in variants:
            description = variants[variant] if isinstance(variants, dict) else ""
            about = "; ".join(text for text in (description, note) if text)
            lines.append(f"  {variant:{width}}  {about}".rstrip())
    return lines


def setting_lines(
    module: types.ModuleType, config: ml_collections.ConfigDict
) -> list[str]:
    """Each setting with its value, and its comment in the lines below."""
    explanations = [
        explanation
        for source in _modules_with_settings(module)
        for explanation in explanations_in(inspect.getsource(source))
    ]
    lines = []
    for name, value in runs.flat(config.to_dict()).items():
        if name not in ("variant", "scale"):
            lines.append(f"  {_on_command_line(name)} = {value!r}"[:_LONGEST_LINE])
            comment = comment_on(
                name,
                explanations,
                variant=config.variant,
                variants=_variant_names(module),
            )
            lines += [f"      {text}" for text in comment]
    return lines


def _on_command_line(name: str) -> str:
    """A setting's name as ``--config.NAME`` takes it.

    ml_collections parses it as Python: what is no name there goes in brackets.

    >>> _on_command_line("arms.identity/31.residual_init")
    "arms['identity/31'].residual_init"
    """
    first, *others = name.split(".")
    written = (f".{part}" if _is_name(part) else f"[{part!r}]" for part in others)
    return "".join((first, *written))


def _is_name(text: str) -> bool:
    return text.isidentifier() and not keyword.iskeyword(text)


def _variant_names(module: types.ModuleType) -> list[str]:
    return [name for kind in experiments.KINDS for name in getattr(module, kind, ())]


def _modules_with_settings(module: types.ModuleType) -> list[types.ModuleType]:
    """The module of an experiment, and those of `experiments` that it imports."""
    imported = [
        value
        for value in vars(module).values()
        if inspect.ismodule(value) and value.__name__.startswith("experiments.")
    ]
    return [module, *imported]


class Explanation(NamedTuple):
    """A comment on a setting.

    Attributes:
      name: the keys that lead to the setting from the dict with a name, such as
        "train.steps" for ``NAME = {"train": {"steps": 1}}``.
      comment: its lines.
    """

    name: str
    comment: list[str]


def comment_on(
    name: str,
    explanations: list[Explanation],
    *,
    variant: str = "",
    variants: Collection[str] = (),
) -> list[str]:
    """The lines of the comment on a setting; none if there is no comment.

    Args:
      name: of the setting, perhaps "GROUP.SETTING".
      explanations: of the modules with settings.
      variant: whose setting it is.
      variants: all of the experiment.
    Raises:
      ValueError: comments contradict each other.

    >>> source = "TRAIN = {\\n 'steps': 8,  # updates\\n}"
    >>> comment_on("train.steps", explanations_in(source))
    ['updates']
    """
    of_some_variant = tuple(f"{other}." for other in variants)
    of_variant = [
        comment
        for explained, comment in explanations
        if explained == f"{variant}.{name}"
    ]
    of_all_variants = [
        comment
        for explained, comment in explanations
        if f".{name}".endswith(f".{explained}")
        and not explained.startswith(of_some_variant)
    ]
    comments = of_variant or of_all_variants
    if any(comment != comments[0] for comment in comments):
        raise ValueError(f"several comments explain {name} of {variant}: {comments}")
    return comments[0] if comments else []


def explanations_in(source: str) -> list[Explanation]:
    """The comments on settings in Python code; see above for those that count."""
    comments = _Comments(source)
    listed = []
    for statement in ast.parse(source).body:
        match statement:
            case (
                ast.Assign(targets=[ast.Name()], value=ast.Dict() as named_dict)
                | ast.AnnAssign(target=ast.Name(), value=ast.Dict() as named_dict)
            ):
                for name, key in _settings_in(named_dict):
                    if comment := comments.on(key):
                        listed.append(Explanation(name, comment))
    return listed


def _settings_in(node: ast.Dict, prefix: str = "") -> Iterator[tuple[str, ast.expr]]:
    """(name, key) of the settings in a dict and in the dicts that it holds."""
    for key, value in zip(node.keys, node.values, strict=True):
        if isinstance(key, ast.Constant) and isinstance(key.value, str):
            name = prefix + key.value
            yield name, key
            if isinstance(value, ast.Dict):
                yield from _settings_in(value, f"{name}.")


class _Comments:
    """The comments of some source, by line."""

    def __init__(self, source: str):
        self._beside: dict[int, str] = {}
        self._alone: dict[int, str] = {}
        self._lines = source.splitlines()
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type == tokenize.COMMENT:
                line, column = token.start
                has_code = token.line[:column].strip()
                comments = self._beside if has_code else self._alone
                comments[line] = token.string.strip("# ")

    def on(self, key: ast.expr) -> list[str]:
        """The comment beside a key or, without one, the lines of that right above.

        Empty if the key does not begin its line, and so shares it with another.
        """
        line = key.lineno
        if self._lines[line - 1][: key.col_offset].strip():
            return []
        if line in self._beside:
            return [self._beside[line]]
        first = line
        while first - 1 in self._alone:
            first -= 1
        return [self._alone[number] for number in range(first, line)]
