"""A report as a list of blocks, and its rendering as Markdown. `page` renders the same as HTML."""

import dataclasses
import re

from identity_matters.report.figure import Drawing


@dataclasses.dataclass(frozen=True)
class Link:
    """A link, and plain text after it."""

    text: str
    target: str
    after: str = ""


@dataclasses.dataclass(frozen=True)
class Code:
    """A command in a table or list."""

    text: str


Cell = str | Link | Code


@dataclasses.dataclass(frozen=True)
class Heading:
    text: str
    level: int


@dataclasses.dataclass(frozen=True)
class Paragraph:
    """Text, and after it a link."""

    text: str
    link: Link | None = None


@dataclasses.dataclass(frozen=True)
class Formula:
    """A displayed formula in LaTeX."""

    latex: str


@dataclasses.dataclass(frozen=True)
class Command:
    """A shell command, shown to be copied."""

    text: str


@dataclasses.dataclass(frozen=True)
class Table:
    """Rows of cells. `cards`: on a narrow page each row is a card and not a line of the table."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    cards: bool = False


@dataclasses.dataclass(frozen=True)
class Facts:
    """Pairs of a name and what is to be said of it."""

    pairs: tuple[tuple[str, Cell], ...]


@dataclasses.dataclass(frozen=True)
class Picture:
    """A figure with its files figures/<name>.svg and .csv."""

    name: str
    title: str
    caption: str
    drawing: Drawing


@dataclasses.dataclass(frozen=True)
class Details:
    """Blocks that are shown when their summary is clicked, and always in print."""

    summary: str
    blocks: tuple["Block", ...]


Block = Heading | Paragraph | Formula | Command | Table | Facts | Picture | Details


def anchor(heading: str) -> str:
    """The name under which a heading is linked to, on GitHub and on the page alike."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def plain(cell: Cell) -> str:
    """The words of a cell alone, as CSV has them."""
    match cell:
        case Link(text, _, after):
            return f"{text}: {after}" if after else text
        case Code(text):
            return text
        case _:
            return cell


def _markdown_cell(cell: Cell) -> str:
    match cell:
        case Link(text, target, after):
            content = f"[{text}]({target})" + (f" {after}" if after else "")
        case Code(text):
            content = f"`{text}`"
        case _:
            content = cell
    return content.replace("\n", " ")


def _markdown_row(cells: tuple[Cell, ...]) -> str:
    # In a Markdown table a bare bar ends the cell, also inside |||A|||.
    return "| " + " | ".join(_markdown_cell(cell).replace("|", "\\|") for cell in cells) + " |"


def markdown_table(table: Table) -> str:
    """The table in GitHub's Markdown."""
    rule = "|" + " --- |" * len(table.columns)
    return "\n".join([_markdown_row(table.columns), rule, *map(_markdown_row, table.rows)])


def _markdown(block: Block) -> str:
    match block:
        case Heading(text, level):
            return f"{'#' * level} {text}"
        case Paragraph(text, link):
            return f"{text} {_markdown_cell(link)}" if link else text
        case Formula(latex):
            return f"```math\n{latex}\n```"
        case Command(text):
            return f"```bash\n{text}\n```"
        case Table():
            return markdown_table(block)
        case Facts(pairs):
            return "\n".join(f"* **{name}**: {_markdown_cell(cell)}" for name, cell in pairs)
        case Picture(name, title, caption, _):
            image = f"![{title}](figures/{name}.svg)"
            return f"{image}\n\n{caption} Points: [{name}.csv](figures/{name}.csv)"
        case Details(summary, blocks):
            inside = "\n\n".join(map(_markdown, blocks))
            return f"<details>\n<summary>{summary}</summary>\n\n{inside}\n\n</details>"


def render_markdown(blocks: list[Block]) -> str:
    """The document as GitHub's Markdown; pictures are links into figures/."""
    return "\n\n".join(map(_markdown, blocks)) + "\n"
