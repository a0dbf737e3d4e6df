"""A report as a list of blocks, and its rendering as Markdown. `page` renders the same as HTML."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Heading:
    text: str
    level: int


@dataclasses.dataclass(frozen=True)
class Paragraph:
    text: str


@dataclasses.dataclass(frozen=True)
class Command:
    """A shell command, shown to be copied."""

    text: str


@dataclasses.dataclass(frozen=True)
class Table:
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclasses.dataclass(frozen=True)
class Picture:
    """A figure with its files figures/<name>.svg and .csv; `svg` is its text."""

    name: str
    title: str
    caption: str
    svg: str


Block = Heading | Paragraph | Command | Table | Picture


def _markdown_cell(text: str) -> str:
    # In a Markdown table a bare bar ends the cell, also inside |||A|||.
    return text.replace("|", "\\|").replace("\n", " ")


def _markdown_row(cells: tuple[str, ...]) -> str:
    return "| " + " | ".join(_markdown_cell(cell) for cell in cells) + " |"


def markdown_table(table: Table) -> str:
    """The table in GitHub's Markdown."""
    rule = "|" + " --- |" * len(table.columns)
    return "\n".join([_markdown_row(table.columns), rule, *map(_markdown_row, table.rows)])


def render_markdown(blocks: list[Block]) -> str:
    """The document as GitHub's Markdown; pictures are links into figures/."""
    parts = []
    for block in blocks:
        match block:
            case Heading(text, level):
                parts.append(f"{'#' * level} {text}")
            case Paragraph(text):
                parts.append(text)
            case Command(text):
                parts.append(f"```bash\n{text}\n```")
            case Table():
                parts.append(markdown_table(block))
            case Picture(name, title, caption, _):
                link = f"![{title}](figures/{name}.svg)"
                parts.append(f"{link}\n\n{caption} Points: [{name}.csv](figures/{name}.csv)")
    return "\n\n".join(parts) + "\n"
