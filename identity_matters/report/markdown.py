"""Markdown: the one place where text becomes part of the report.

Text that we wrote is `Markdown`. All other text, above all what comes from a run, is a
plain `str` and is escaped wherever it becomes part of a cell, a list or a paragraph. So
a forgotten escape is not possible, and a forgotten `Markdown` shows in the report.
"""

import re
import urllib.parse
from collections.abc import Iterable

from identity_matters.runs import visible

# Characters that begin Markdown wherever they are,
# and an underscore at the edge of a word.
_ACTIVE = re.compile(r"[\\`*\[\]~$]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")
# What makes a heading, quotation or list at the start of a line.
_LEADING = re.compile(r"(#|>|[-+](?=\s|$)|\d+(?=[.)](\s|$)))")
# What GitHub makes a link even without
# brackets -> the same as a reference to its characters.
_AUTOLINKS = {"://": "&#58;//", "www.": "www&#46;"}
_MAIL = re.compile(r"@(?=[\w-]+\.)")

Row = dict[str, str]  # column of a table -> its cell; a plain `str` is escaped


class Markdown(str):
    """Text that may be read as Markdown."""


def inline(text: object) -> Markdown:
    """`text` within a line, so that it is read as plain text.

    Text that is `Markdown` is not changed.

    >>> print(inline("<b>*x*_y \\n# |z|"))
    &lt;b>\\*x\\*\\_y  # |z|
    """
    if isinstance(text, Markdown):
        return text
    safe = visible(text).replace("&", "&amp;").replace("<", "&lt;")
    safe = _ACTIVE.sub(r"\\\g<0>", safe)
    if leading := _LEADING.match(safe):
        mark = leading[0]
        safe = f"{mark}\\{safe[len(mark) :]}" if mark.isdecimal() else f"\\{safe}"
    for active, inactive in _AUTOLINKS.items():
        safe = safe.replace(active, inactive)
    return Markdown(_MAIL.sub("&#64;", safe))


def fill(template: str, **values: object) -> Markdown:
    """`template`, which is Markdown, with these values, each as by `inline`."""
    return Markdown(
        template.format(**{name: inline(value) for name, value in values.items()})
    )


def join(separator: str, texts: Iterable[object]) -> Markdown:
    """Joins texts by `separator`, which is Markdown, each as by `inline`."""
    return Markdown(separator.join(map(inline, texts)))


def bullets(texts: Iterable[object]) -> Markdown:
    """A list with one line for each text."""
    return Markdown("\n".join(f"* {inline(text)}" for text in texts))


def table(rows: Iterable[Row]) -> Markdown:
    """The rows as a table in GitHub's Markdown, without columns that have no value."""
    rows = list(rows)
    columns: list[str] = []
    if rows:
        columns = [name for name in rows[0] if any(row[name] for row in rows)]
    lines = [columns, ["---"] * len(columns)]
    lines += [[row[name] for name in columns] for row in rows]
    return Markdown("\n".join(f"| {' | '.join(map(_cell, line))} |" for line in lines))


def _cell(text: str) -> str:
    # An unescaped bar ends the cell, even inside |||A|||.
    return inline(text).replace("|", "\\|").replace("\n", " ")


def link(text: object, target: str) -> Markdown:
    """A link to a file or to a heading.

    `target` is quoted as in a URL, except for the characters "/", "#", "=", "+", "@".
    """
    quoted = urllib.parse.quote(visible(target), safe="/#=+@")
    # Some Markdown parsers end the text of a link at a bracket.
    label = re.sub(r"(?<!\\)([\[\]])", r"\\\1", inline(text))
    return Markdown(f"[{label}]({quoted})")


def code(text: object) -> Markdown:
    """`text` as code within a line."""
    shown = visible(text)
    ticks = _longest_row_of_ticks(shown)
    fence = "`" * (ticks + 1)
    blank = " " if ticks else ""
    return Markdown(f"{fence}{blank}{shown}{blank}{fence}")


def bash(command: object) -> Markdown:
    """`command` as one line in a block of its own."""
    shown = visible(command)
    fence = "`" * max(3, _longest_row_of_ticks(shown) + 1)
    return Markdown(f"{fence}bash\n{shown}\n{fence}")


def _longest_row_of_ticks(text: str) -> int:
    """Its length; the fence of code must be longer."""
    return max((len(ticks) for ticks in re.findall("`+", text)), default=0)


def summary(text: object) -> Markdown:
    """`text` as the line of a <details> that stays when the rest is folded away."""
    shown = (
        visible(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    )
    return Markdown(f"<summary>{shown}</summary>")
