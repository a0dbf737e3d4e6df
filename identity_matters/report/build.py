"""Puts the report together: from collections of runs to REPORT.md, report.html, tables, figures.

REPORT.md is written as Markdown, and report.html is that text on a page (see `page`).
"""

import contextlib
import html
import os
import pathlib
import tempfile

from identity_matters import paper
from identity_matters.report import figure, figures, groups, page, tables
from identity_matters.report.groups import Collection, Group, read
from identity_matters.report.tables import escape
from identity_matters.runs import Problem, Run

__all__ = ["read", "with_results", "write"]

TITLE = "Identity Matters: what the paper claims and what the runs say"
_INTRODUCTION = (
    "Hardt & Ma, “Identity Matters in Deep Learning” (arXiv 1611.04231), claim by claim. Every"
    " number was written by a run; its directory, code, machine and command are named beside it."
    " Sentences give one number where the seeds agree and the range where they do not; tables give"
    " the mean ± standard deviation over n seeds. The reference is the runs that come with the"
    " code. What is wrong in print is listed, with numbers to check by hand, in"
    " `docs/theory/errata.md`."
)

_REDUCED_CIFAR = (
    "Reduced runs of the paper's block on the same data, which Table 2 does not have: what smaller"
    " nets and shorter trainings reach with a share of the operations of"
    f" {paper.NUMBERS['cifar_steps'].value:,} steps of"
    f" {paper.NUMBERS['cifar_batch_examples'].value} examples of Table 1's net."
)


def write(collections: list[Collection], directory: pathlib.Path) -> list[pathlib.Path]:
    """Writes the whole report to `directory` and returns the paths of its pages.

    It is made aside and then put in place, so that a reader or a crash never finds half of one.
    Figures draw from the last collection that has points for them: yours before the reference. A
    run that a figure cannot be drawn of is listed with the reason.
    """
    directory = pathlib.Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory, prefix=".report-") as made:
        aside = pathlib.Path(made)
        for name in ("figures", "tables"):
            (aside / name).mkdir()
        pictures, problems = _pictures(collections, aside / "figures")
        members = {c.name: groups.group_runs(c.runs) for c in collections}
        every = [group for c in collections for group in members[c.name]]
        for name, table in (
            ("metrics", tables.every_metric(collections)),
            ("table_2", tables.table_2(every)),
            ("reduced_cifar", tables.reduced_cifar(every)),
        ):
            (aside / "tables" / f"{name}.csv").write_text(table.csv(), encoding="utf-8")
        roots = {c.name: os.path.relpath(c.directory, directory) for c in collections}
        markdown = _markdown(collections, members, roots, pictures, problems)
        (aside / "REPORT.md").write_text(markdown, encoding="utf-8")
        (aside / "report.html").write_text(page.render(markdown, aside), encoding="utf-8")
        for name in ("figures", "tables"):
            if (directory / name).exists():
                os.rename(directory / name, aside / f"old-{name}")
            os.rename(aside / name, directory / name)
        for name in ("report.html", "REPORT.md"):
            os.replace(aside / name, directory / name)
    return [directory / "REPORT.md", directory / "report.html"]


def with_results(text: str, collection: Collection) -> str:
    """The README's `text` with what is between its marks made from `collection`.

    Raises:
      ValueError: a mark is missing or comes twice.
    """
    members, report = groups.group_runs(collection.runs), "results/REPORT.md"
    titles = {f.title: paper.CLAIMS[f.claim].title for f, _ in _findings(members)}
    found = [f"* [{title}]({report}#{tables.anchor(of)})" for title, of in titles.items()]
    claims = tables.claims_table(
        [paper.CLAIMS[name] for name in tables.README_CLAIMS], {"ours": members}, report, most=1
    )
    for name, part in {"findings": "\n".join(found), "claims": claims.markdown()}.items():
        marks = (f"<!-- {name}: written by `make report-reference` -->", f"<!-- end of {name} -->")
        for mark in marks:
            if text.count(mark) != 1:
                raise ValueError(f"the README must have {mark} once, not {text.count(mark)} times")
        before, rest = text.split(marks[0])
        _, after = rest.split(marks[1])
        text = f"{before}{marks[0]}\n\n{part}\n\n{marks[1]}{after}"
    return text


def _findings(members: list[Group]) -> list[tuple[paper.Finding, str]]:
    """The findings that these runs have the values of, with their texts."""
    found = []
    for finding in paper.FINDINGS:
        with contextlib.suppress(groups.MissingValueError):
            found.append((finding, groups.fill(finding.text, members)[0]))
    return found


def _pictures(
    collections: list[Collection], directory: pathlib.Path
) -> tuple[dict[str, tuple[str, str]], list[Problem]]:
    """Name of each figure that could be drawn -> (id of its claim, Markdown), and the problems."""
    pictures: dict[str, tuple[str, str]] = {}
    problems: list[Problem] = []
    for one in figures.FIGURES:
        for collection in reversed(collections):
            shown, failed = figure.save(one, _drawn_runs(one.experiment, collection), directory)
            problems += failed
            if shown:
                seeds = sorted({run.seed for run in shown})
                count = f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"
                claims = {paper.claim_id(run.summary["claim"]) for run in shown}
                words = paper.FIGURES[one.name]
                text = (
                    f"![{words.title}](figures/{one.name}.svg)\n**{words.title}.** {words.caption}"
                    f" ({collection.name}, {count};"
                    f" [{one.name}.csv](figures/{one.name}.csv))"
                )
                pictures[one.name] = (next(c for c in paper.CLAIMS if c in claims), text)
                break
    return pictures, problems


def _drawn_runs(experiment: str, collection: Collection) -> list[Run]:
    """The finished runs of an experiment, every seed; at paper scale where a variant has them."""
    done = [run for run in collection.runs if (run.experiment, run.status) == (experiment, "done")]
    full = {run.variant for run in done if run.summary["scale"] == "paper"}
    return [run for run in done if run.summary["scale"] == "paper" or run.variant not in full]


def _markdown(
    collections: list[Collection],
    members: dict[str, list[Group]],
    roots: dict[str, str],
    pictures: dict[str, tuple[str, str]],
    problems: list[Problem],
) -> str:
    every = [group for part in members.values() for group in part]
    reduced = tables.reduced_cifar(every)
    parts = [f"# {TITLE}", _INTRODUCTION]
    opening = set()
    findings = _findings(members[collections[0].name])
    parts += ["## Findings"] if findings else []
    for finding, text in findings:
        evidence = tables.claim_link(paper.CLAIMS[finding.claim])
        parts += [f"### {finding.title}", f"{text} Evidence: {evidence}."]
        if finding.figure in pictures and finding.figure not in opening:
            opening.add(finding.figure)
            parts.append(pictures[finding.figure][1])
    parts += [
        "## Claims",
        tables.claims_table(paper.CLAIMS.values(), members).markdown(),
        "## Table 2",
        "Test errors at the paper's scale. The comparison rows come from different models and"
        " protocols, and a published number may be that of the best step over training.",
        tables.table_2(every).markdown(),
        *([_REDUCED_CIFAR, reduced.markdown()] if reduced.rows else []),
        "## Evidence, claim by claim",
    ]
    for claim in paper.CLAIMS.values():
        own = {name: text for name, (of, text) in pictures.items() if of == claim.id}
        shown = [
            f"Figure above: [{name}](figures/{name}.svg)" if name in opening else text
            for name, text in own.items()
        ]
        parts += _claim_section(claim, roots, members, shown)
    left_out = [f"{p.reason}: skipped" for c in collections for p in c.problems]
    left_out += [f"{r.path}: {r.status}" for c in collections for r in c.runs if r.status != "done"]
    left_out += [problem.reason for problem in problems]
    if left_out:
        parts += ["## Left out", "\n".join(f"* {escape(reason)}" for reason in left_out)]
    return "\n\n".join(parts) + "\n"


def _claim_section(
    claim: paper.Claim, roots: dict[str, str], members: dict[str, list[Group]], shown: list[str]
) -> list[str]:
    """Statement, verdicts, figures, and folded away the measured values and where they are from."""
    own = {name: groups.of_claim(claim.id, members[name]) for name in roots}
    facts = {"paper": claim.published, "first shown by": claim.first}
    for name, part in own.items():
        facts[name] = groups.headline(claim.id, members[name])
        facts[f"verdict, {name}"] = groups.verdicts(part)
    ran = [group for part in own.values() for group in part]
    facts["hardware and time"] = tables.hardware_and_time(ran)
    facts["command"] = tables.command(claim, ran)
    return [
        f"### {claim.title}",
        *(f"```math\n{formula}\n```" for formula in claim.latex),
        f"{claim.statement} ({claim.source}.)",
        *([f"Note: {claim.note}"] if claim.note else []),
        "\n".join(f"* **{name}**: {text}" for name, text in facts.items() if text),
        *shown,
        *(_evidence(name, part, roots) for name, part in groups.by_variant(own).items()),
    ]


def _evidence(variant: str, columns: dict[str, Group], roots: dict[str, str]) -> str:
    """All measured values of a variant, by column, and the provenance of each column."""
    table = tables.metrics_table(columns)
    title = f"{html.escape(variant)}: {len(table.rows)} measured values, and their origin"
    verdicts = "; ".join(f"{label}: {group.verdict}" for label, group in columns.items())
    parts = ["<details>", f"<summary>{title}</summary>", f"Verdict: {verdicts}.", table.markdown()]
    for label, group in columns.items():
        origin = groups.origin(group.first)
        root = roots[label.split(",")[0].removesuffix(" (reduced)")]
        parts += [
            f"“{label}” was written by these runs ({escape(origin.versions)}):",
            tables.provenance_table(group, root).markdown(),
            f"```bash\n{' '.join(origin.command.split())}\n```",
        ]
    return "\n\n".join([*parts, "</details>"])
