"""Puts the report together: from collections of runs to REPORT.md, report.html, tables, figures."""

import csv
import dataclasses
import io
import os
import pathlib
import shutil

from identity_matters import paper, records
from identity_matters.report import figure, figures, tables
from identity_matters.report.document import (
    Block,
    Command,
    Heading,
    Paragraph,
    Picture,
    Table,
    markdown_table,
    render_markdown,
)
from identity_matters.report.page import render_html
from identity_matters.report.table_2 import table_2

TITLE = "Identity Matters: what the paper claims and what the runs say"
# Between these two lines of the README stands a table that `with_claims` writes.
CLAIMS_BEGIN = "<!-- claims: written by `make report-reference` -->"
CLAIMS_END = "<!-- end of claims -->"


@dataclasses.dataclass(frozen=True)
class Collection:
    """The runs below one directory. `root` is how the report names that directory."""

    name: str
    root: str
    runs: tuple[records.Run, ...]
    problems: tuple[records.Problem, ...]


def read(name: str, directory: str | os.PathLike[str], root: str) -> Collection:
    """Reads the collection in `directory`, which need not exist."""
    runs, problems = records.read_collection(directory)
    return Collection(name, root, tuple(runs), tuple(problems))


def write(collections: list[Collection], directory: pathlib.Path) -> list[pathlib.Path]:
    """Writes the whole report to `directory` and returns the paths of its pages.

    Figures draw from the last collection that has runs of their experiment: yours before the
    reference. Files of figures and tables that are no longer made are removed.
    """
    directory = pathlib.Path(directory)
    for name in ("figures", "tables"):
        shutil.rmtree(directory / name, ignore_errors=True)
    pictures = _pictures(collections, directory / "figures")
    groups = {c.name: tables.group_runs(list(c.runs)) for c in collections}
    _write_tables(collections, groups, directory / "tables")
    blocks = _blocks(collections, groups, pictures)
    markdown, page = directory / "REPORT.md", directory / "report.html"
    markdown.write_text(render_markdown(blocks), encoding="utf-8")
    page.write_text(render_html(TITLE, blocks), encoding="utf-8")
    return [markdown, page]


def with_claims(text: str, collection: Collection) -> str:
    """The README's `text` with the table between its two claims marks made from `collection`."""
    table = markdown_table(tables.summary_table(tables.group_runs(list(collection.runs))))
    before, rest = text.split(CLAIMS_BEGIN)
    _, after = rest.split(CLAIMS_END)
    return f"{before}{CLAIMS_BEGIN}\n\n{table}\n\n{CLAIMS_END}{after}"


def _pictures(collections: list[Collection], directory: pathlib.Path) -> dict[str, list[Picture]]:
    """The figures that can be drawn, by experiment."""
    pictures: dict[str, list[Picture]] = {}
    for one in figures.FIGURES:
        for collection in reversed(collections):
            drawn = _first_seeds(collection)
            svg = figure.save(one, drawn, directory)
            if svg is not None:
                seeds = {run.seed for run in drawn if run.experiment == one.experiment}
                named = ", ".join(map(str, sorted(seeds)))
                caption = f"{one.caption} ({collection.name} runs, seed {named}.)"
                picture = Picture(one.name, one.title, caption, svg)
                pictures.setdefault(one.experiment, []).append(picture)
                break
    return pictures


def _first_seeds(collection: Collection) -> list[records.Run]:
    """The finished run of the least seed of every variant: figures show one, tables average all."""
    first: dict[tuple, records.Run] = {}
    for run in sorted(collection.runs, key=lambda run: (run.summary["scale"], run.seed)):
        if run.status == "done":
            first.setdefault((run.experiment, run.variant), run)
    return list(first.values())


def _write_tables(collections, groups, directory: pathlib.Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    made = {"claims": tables.claims_table(groups)}
    made["table_2"] = table_2([group for c in collections for group in groups[c.name]])
    for collection in collections:
        made[f"runs-{collection.name}"] = tables.runs_table(
            groups[collection.name], collection.root
        )
    for name, members in tables.by_variant(groups).items():
        made[name.replace("/", "-")] = tables.metrics_table(members)
    for name, table in made.items():
        (directory / f"{name}.csv").write_text(_table_csv(table), encoding="utf-8")
        (directory / f"{name}.md").write_text(markdown_table(table) + "\n", encoding="utf-8")


def _table_csv(table: Table) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([table.columns, *table.rows])
    return text.getvalue()


def _blocks(collections, groups, pictures) -> list[Block]:
    blocks: list[Block] = [
        Heading(TITLE, 1),
        Paragraph(
            "Hardt & Ma, “Identity Matters in Deep Learning” (arXiv 1611.04231), claim by claim."
            " Every number below was written by a run whose directory and command are named; this"
            " report reads those directories and nothing else. Values are means ± standard"
            " deviation over seeds where n > 1."
        ),
        Heading("Claims", 2),
        tables.claims_table(groups),
        Heading("Table 2", 2),
        Paragraph(
            "Test errors at the paper's scale. The comparison rows come from different models and"
            " protocols, and a published number may be that of the best step over training."
        ),
        table_2([group for c in collections for group in groups[c.name]]),
    ]
    variants = tables.by_variant(groups)
    shown: set[str] = set()
    for claim in paper.CLAIMS.values():
        own = {n: m for n, m in variants.items() if next(iter(m.values())).claim == claim.key}
        if own:
            blocks += _claim_blocks(claim, own, pictures, shown)
    blocks.append(Heading("Runs", 2))
    for collection in collections:
        blocks.append(Heading(f"{collection.name}: {collection.root}", 3))
        blocks.append(tables.runs_table(groups[collection.name], collection.root))
        blocks += _problem_blocks(collection)
    return blocks


def _claim_blocks(claim: paper.Claim, own, pictures, shown: set[str]) -> list[Block]:
    """Statement, erratum, measured values, commands and figures of one claim."""
    blocks: list[Block] = [Heading(claim.key, 2), Paragraph(f"{claim.statement} ({claim.source}.)")]
    if claim.note:
        blocks.append(Paragraph(f"Note: {claim.note}"))
    for experiment in dict.fromkeys(name.split("/")[0] for name in own):
        if experiment not in shown:
            shown.add(experiment)
            blocks += pictures.get(experiment, [])
    for name, members in own.items():
        last = list(members.values())[-1]
        verdicts = "; ".join(f"{label}: {group.verdict}" for label, group in members.items())
        blocks += [
            Heading(name, 3),
            Paragraph(f"Verdict: {verdicts}."),
            tables.metrics_table(members),
            Paragraph(f"Measured on {tables.hardware(last.first)}. To run it:"),
            Command(tables.command(last.first)),
        ]
    return blocks


def _problem_blocks(collection: Collection) -> list[Block]:
    """What is not in the tables: unfinished runs and directories that could not be read."""
    rows = [
        (str(run.path.name), f"{run.experiment}/{run.variant}", run.status)
        for run in collection.runs
        if run.status != "done"
    ]
    blocks: list[Block] = []
    if rows:
        blocks.append(Paragraph("Runs that are not done, and enter no table:"))
        blocks.append(Table(("seed", "run", "status"), tuple(rows)))
    if collection.problems:
        blocks.append(Paragraph("Directories that could not be read, and were skipped:"))
        reasons = tuple((problem.reason,) for problem in collection.problems)
        blocks.append(Table(("reason",), reasons))
    return blocks
