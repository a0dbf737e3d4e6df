"""Builds the report from collections of runs: REPORT.md, report.html, tables, figures.

`report.md.jinja` is the shape of REPORT.md; this file collects what it shows.
"""

import contextlib
import dataclasses
import functools
import os
import pathlib
import re
from collections.abc import Iterator
from typing import NamedTuple

import jinja2

from identity_matters import code_version, paper
from identity_matters.report import (
    figures,
    markdown,
    page,
    publish,
    shared_work,
    tables,
)
from identity_matters.report.collection import (
    REDUCED,
    Collection,
    Group,
    group_runs,
    of_claim,
    origin,
)
from identity_matters.report.markdown import Markdown, Row
from identity_matters.report.sentences import (
    MissingValueError,
    fill,
    headline,
    verdicts,
)
from identity_matters.runs import Run

# name -> the id of its claim, and the figure
_Figures = dict[str, tuple[str, Markdown]]
# Seeds of a figure, runs of a column, and variants and comparisons of a claim; the
# others are counted.
MOST_LISTED = 20


class _ShownFinding(NamedTuple):
    """A finding, with its values filled in.

    `evidence` is a link to its claim, `figure` None if another finding shows it.
    """

    title: Markdown
    text: Markdown
    evidence: Markdown
    figure: Markdown | None


class _Column(NamedTuple):
    """Where the numbers of a column come from.

    Attributes:
      label: the head of the column.
      versions: of the packages that wrote the runs.
      runs: a row for each, up to MOST_LISTED.
      runs_left_out: how many there are beyond.
      command: that of the first run.
    """

    label: str
    versions: str
    runs: list[Row]
    runs_left_out: int
    command: str


class _Variant(NamedTuple):
    """All measured values of a variant, and their origin, which the page folds away."""

    title: str
    verdicts: Markdown
    metrics: list[Row]
    columns: list[_Column]


class _Comparison(NamedTuple):
    """The arms of a comparison (see `tables.arms_table`), which the page shows."""

    title: str
    arms: list[Row]


class _Section(NamedTuple):
    """A claim, with its verdicts, figures and measured values.

    `facts` are texts by name; those that are empty are not shown.
    """

    title: Markdown
    formulas: list[Markdown]
    statement: Markdown
    source: Markdown
    note: Markdown
    facts: dict[str, str]
    comparisons: list[_Comparison]
    comparisons_left_out: int
    figures: list[Markdown]
    variants: list[_Variant]
    variants_left_out: int


def _table_file(name: str) -> Markdown:
    """A link to a table file, which holds what the page leaves out."""
    return markdown.link(f"{name}.csv", f"tables/{name}.csv")


_PAGE_OF_DOCS = re.compile(r"docs/[a-z_/]+\.md")


def _with_links(text: str, directory: pathlib.Path) -> Markdown:
    """`text`, which is ours, with a link at each page of docs/ that it names.

    A page that is not there, as in an installed package, is named without a link.
    """

    def link(name: re.Match) -> str:
        page_of_docs = code_version.REPOSITORY / name[0]
        if not page_of_docs.exists():
            return name[0]
        return markdown.link(name[0], os.path.relpath(page_of_docs, directory))

    return Markdown(_PAGE_OF_DOCS.sub(link, text))


# `finalize` escapes the value of each expression of a template, so none is forgotten.
_TEMPLATES = jinja2.Environment(
    loader=jinja2.FileSystemLoader(pathlib.Path(__file__).parent),
    finalize=markdown.inline,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_TEMPLATES.globals |= {
    "bash": markdown.bash,
    "summary": markdown.summary,
    "table": markdown.table,
    "table_file": _table_file,
}


def write(
    collections: list[Collection], directory: pathlib.Path, processes: int = 1
) -> list[pathlib.Path]:
    """Writes the whole report to `directory` and returns the paths of its pages.

    If building fails, the old report stays as it was. Each figure uses the last
    collection that has points for it: yours before the reference. A run that it cannot
    draw is listed with the reason. `processes` is how many processes draw the figures;
    see `shared_work.compute`.
    """
    with publish.prepared(directory) as aside:
        for name in ("figures", "tables"):
            (aside / name).mkdir()
        rows_of_tables = {
            "metrics": tables.every_metric(collections),
            "runs": tables.every_run(collections, directory),
            "table_2": tables.table_2(collections),
            "reduced_cifar": tables.reduced_cifar(collections),
        }
        for name, rows in rows_of_tables.items():
            figures.write_csv(aside / "tables" / f"{name}.csv", list(rows))
        pictures, problems = _pictures(
            collections, aside / "figures", directory, processes
        )
        text = _markdown(collections, directory, pictures, problems)
        (aside / "REPORT.md").write_text(text, encoding="utf-8")
        (aside / "report.html").write_text(page.render(text, aside), encoding="utf-8")
    return [directory / "REPORT.md", directory / "report.html"]


def with_results(text: str, collection: Collection) -> str:
    """The README's `text` with the parts between its marks rebuilt from `collection`.

    Raises ValueError if a mark is missing, out of order or appears twice.
    """
    report = "results/REPORT.md"
    claim_titles = {
        finding.title: paper.CLAIMS[finding.claim].title
        for finding, _ in _findings(collection)
    }
    findings = markdown.bullets(
        markdown.link(Markdown(title), f"{report}#{page.anchor(claim_title)}")
        for title, claim_title in claim_titles.items()
    )
    claims_of_readme = [paper.CLAIMS[name] for name in paper.REPORT["readme"]]
    ours = dataclasses.replace(collection, name="ours")
    claims = markdown.table(
        tables.claims_table(claims_of_readme, [ours], report, most=1)
    )
    for name, part in {"findings": findings, "claims": claims}.items():
        marks = [
            f"<!-- {name}: written by `make report-reference` -->",
            f"<!-- end of {name} -->",
        ]
        text = _with_part(text, marks, part)
    return text


def _with_part(text: str, marks: list[str], part: Markdown) -> str:
    """`text` with `part` between its two marks; raises ValueError as `with_results`."""
    # The parentheses make `split` keep the marks between the pieces.
    pieces = re.split(f"({'|'.join(marks)})", text)
    if pieces[1::2] != marks:
        raise ValueError(
            f"the README must have these marks once, in this order: {marks}"
        )
    before, _, _, _, after = pieces
    return f"{before}{marks[0]}\n\n{part}\n\n{marks[1]}{after}"


def _findings(collection: Collection) -> list[tuple[paper.Finding, Markdown]]:
    """The findings whose values are all in the collection, with their texts."""
    filled = []
    for finding in paper.FINDINGS:
        with contextlib.suppress(MissingValueError):
            # The sentence is ours, and only numbers are filled in.
            text, _ = fill(finding.text, collection.groups)
            filled.append((finding, Markdown(text)))
    return filled


def _introduction(collection: Collection) -> Iterator[str]:
    """The paragraphs of the introduction whose values are all in the collection."""
    for paragraph in paper.REPORT["introduction"]:
        with contextlib.suppress(MissingValueError):
            text, _ = fill(paragraph, collection.groups)
            yield text


def _pictures(
    collections: list[Collection],
    aside: pathlib.Path,
    directory: pathlib.Path,
    processes: int,
) -> tuple[_Figures, list[str]]:
    """The figures that could be drawn, and the problems.

    Args:
      collections: the runs.
      aside: where the files of the figures are written.
      directory: where the report will be, for links.
      processes: how many draw.
    """
    draw = functools.partial(
        _draw, collections=collections, aside=aside, directory=directory
    )
    attempts = shared_work.compute(draw, figures.FIGURES, processes)
    pictures: _Figures = {}
    problems: list[str] = []
    for figure, (picture, problems_of_figure) in zip(
        figures.FIGURES, attempts, strict=True
    ):
        problems += problems_of_figure
        if picture is not None:
            pictures[figure.name] = picture
    return pictures, problems


def _draw(
    figure: figures.Figure,
    collections: list[Collection],
    aside: pathlib.Path,
    directory: pathlib.Path,
) -> tuple[tuple[str, Markdown] | None, list[str]]:
    """A figure as `_Figures` has it, None without points, and the problems."""
    problems: list[str] = []
    # An earlier collection is drawn only if the later ones have no points.
    for collection in reversed(collections):
        runs = _drawn_runs(figure.experiment, collection)
        shown, problems_of_runs = figures.save(figure, runs, aside)
        problems += problems_of_runs
        if shown:
            text = _picture(figure.name, collection.name, shown, directory)
            return (group_runs(shown)[0].claim, text), problems
    return None, problems


def _picture(
    name: str, collection_name: str, shown: list[Run], directory: pathlib.Path
) -> Markdown:
    """A figure with its title, its caption, and the runs that it shows."""
    about = paper.FIGURES[name]
    points_file = f"{name}.csv"
    # Two spaces break the line; else GitHub begins the caption beside the figure.
    return markdown.fill(
        "![{description}](figures/{name}.svg)  \n**{title}.** {caption}"
        " ({collection}, {seeds}; {points})",
        title=Markdown(about.title),
        name=Markdown(name),
        description=Markdown(about.description),
        caption=_with_links(about.caption, directory),
        collection=collection_name,
        seeds=_seeds(shown),
        points=markdown.link(points_file, f"figures/{points_file}"),
    )


def _seeds(shown: list[Run]) -> str:
    """The seeds of some runs in words."""
    seeds = sorted({run.seed for run in shown})
    if len(seeds) > MOST_LISTED:
        return f"{len(seeds)} seeds, {seeds[0]} to {seeds[-1]}"
    return f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"


def _drawn_runs(experiment: str, collection: Collection) -> list[Run]:
    """The finished runs of an experiment; reduced ones if a variant has no others."""
    runs = [run for run in collection.runs if run.experiment == experiment]
    full = {run.variant for run in runs if run.summary["scale"] == "paper"}
    return [
        run
        for run in runs
        if run.summary["scale"] == "paper" or run.variant.split("@")[0] not in full
    ]


def _markdown(
    collections: list[Collection],
    directory: pathlib.Path,
    pictures: _Figures,
    problems: list[str],
) -> Markdown:
    """The text of REPORT.md in `directory`; `problems` are those of the figures."""
    numbers = {name: number.value for name, number in paper.NUMBERS.items()}
    reference = collections[0]
    findings, shown_above = _shown_findings(reference, pictures, directory)
    sections = []
    for claim in paper.CLAIMS.values():
        shown = [
            _figure_above(name) if name in shown_above else text
            for name, (claim_id, text) in pictures.items()
            if claim_id == claim.id
        ]
        sections.append(_section(claim, collections, directory, shown))
    left_out = [f"{problem}: skipped" for c in collections for problem in c.problems]
    left_out += [line for c in collections for line in c.unfinished]
    left_out += problems
    about_reduced_cifar = paper.REPORT["reduced-cifar"].format(**numbers)
    page_text = _TEMPLATES.get_template("report.md.jinja").render(
        title=Markdown(paper.REPORT["title"]),
        introduction=[
            _with_links(paragraph, directory) for paragraph in _introduction(reference)
        ],
        findings=findings,
        claims=tables.claims_table(paper.CLAIMS.values(), collections),
        about_table_2=Markdown(paper.REPORT["table-2"]),
        table_2=tables.table_2(collections),
        about_reduced_cifar=Markdown(about_reduced_cifar),
        reduced_cifar=list(tables.reduced_cifar(collections)),
        claims_heading=Markdown(page.CLAIMS_HEADING),
        sections=sections,
        left_out=left_out,
    )
    return Markdown(page_text.rstrip("\n") + "\n")


def _shown_findings(
    collection: Collection, pictures: _Figures, directory: pathlib.Path
) -> tuple[list[_ShownFinding], set[str]]:
    """The findings, and the names of their figures: sections only refer to these."""
    findings = []
    shown_above: set[str] = set()
    for finding, text in _findings(collection):
        figure = None
        if finding.figure in pictures and finding.figure not in shown_above:
            shown_above.add(finding.figure)
            _, figure = pictures[finding.figure]
        shown_finding = _ShownFinding(
            title=Markdown(finding.title),
            text=_with_links(text, directory),
            evidence=tables.claim_link(paper.CLAIMS[finding.claim]),
            figure=figure,
        )
        findings.append(shown_finding)
    return findings, shown_above


def _figure_above(name: str) -> Markdown:
    link = markdown.link(name, f"figures/{name}.svg")
    return markdown.fill("Figure above: {link}", link=link)


def _section(
    claim: paper.Claim,
    collections: list[Collection],
    directory: pathlib.Path,
    figures_of_claim: list[Markdown],
) -> _Section:
    """What the page shows of a claim."""
    groups_by_label = [
        (_label(collection, group), group)
        for collection in collections
        for group in of_claim(claim.id, collection.groups)
    ]
    comparisons = _comparisons(groups_by_label)
    # variant -> label of a column -> its runs
    variants: dict[str, dict[str, Group]] = {}
    for label, group in groups_by_label:
        variants.setdefault(group.name, {})[label] = group
    shown_variants = [
        _variant(name, columns, directory)
        for name, columns in list(variants.items())[:MOST_LISTED]
    ]
    return _Section(
        title=Markdown(claim.title),
        formulas=[Markdown(formula) for formula in claim.latex],
        statement=_with_links(claim.statement, directory),
        source=_with_links(claim.source, directory),
        note=_with_links(claim.note, directory),
        facts=_facts(claim, collections, [group for _, group in groups_by_label]),
        comparisons=comparisons[:MOST_LISTED],
        comparisons_left_out=max(len(comparisons) - MOST_LISTED, 0),
        figures=figures_of_claim,
        variants=shown_variants,
        variants_left_out=max(len(variants) - MOST_LISTED, 0),
    )


def _label(collection: Collection, group: Group) -> str:
    """The head of a column: "reference, n = 3", "yours (reduced), n = 1"."""
    mark = "" if group.scale == "paper" else REDUCED
    return f"{collection.name}{mark}, n = {len(group.runs)}"


def _facts(
    claim: paper.Claim, collections: list[Collection], groups_of_claim: list[Group]
) -> dict[str, str]:
    """The lines below the statement of a claim, by name."""
    facts: dict[str, str] = {
        "paper": Markdown(claim.published),
        "attribution": Markdown(claim.first),
    }
    for collection in collections:
        # The sentences are ours, and only numbers are filled in.
        facts[collection.name] = Markdown(headline(claim.id, collection.groups))
        facts[f"verdict, {collection.name}"] = verdicts(claim.id, collection.groups)
    facts["hardware and time"] = tables.hardware_and_time(groups_of_claim)
    facts["command"] = tables.command(claim, groups_of_claim)
    return facts


def _comparisons(groups_by_label: list[tuple[str, Group]]) -> list[_Comparison]:
    """The arms of each group that compares some."""
    with_arms = [
        (f"{group.name} ({label})", list(tables.arms_table(group)))
        for label, group in groups_by_label
    ]
    return [_Comparison(title, arms) for title, arms in with_arms if arms]


def _variant(name: str, groups: dict[str, Group], directory: pathlib.Path) -> _Variant:
    """What the page shows of a variant, whose runs are `groups` by label."""
    metrics = list(tables.metrics_table(groups))
    measured = f"{len(metrics)} measured values, and their origin"
    if len(metrics) == 1:
        measured = "1 measured value, and its origin"
    each_verdict = [f"{label}: {group.verdict}" for label, group in groups.items()]
    return _Variant(
        title=f"{name}: {measured}",
        verdicts=markdown.join("; ", each_verdict),
        metrics=metrics,
        columns=[_column(label, group, directory) for label, group in groups.items()],
    )


def _column(label: str, group: Group, directory: pathlib.Path) -> _Column:
    """The origin of the runs of `group`."""
    origins = [origin(run) for run in group.runs]
    versions = dict.fromkeys(
        version for run_origin in origins for version in run_origin.versions
    )
    return _Column(
        label=label,
        versions="; ".join(versions),
        runs=list(tables.provenance_table(group, directory))[:MOST_LISTED],
        runs_left_out=max(len(group.runs) - MOST_LISTED, 0),
        command=" ".join(origins[0].command.split()),
    )
