"""Builds the report from collections of runs: REPORT.md, report.html, tables and
figures.

Text of ours is `Markdown`; everything else is escaped where it becomes part of the
page.
"""

import contextlib
import dataclasses
import os
import pathlib
import re
from collections.abc import Iterable, Iterator

from identity_matters import paper
from identity_matters.report import figures, markdown, page, publish
from identity_matters.report.collection import (
    Collection,
    Group,
    group_runs,
    of_claim,
    origin,
    took,
)
from identity_matters.report.markdown import Markdown, Row
from identity_matters.report.numbers import duration, in_words, mean_sd
from identity_matters.report.records import MALFORMED
from identity_matters.report.sentences import (
    NOT_RUN,
    MissingValueError,
    fill,
    headline,
    verdicts,
)
from identity_matters.runs import Run

# name -> the id of its claim, and the figure
_Figures = dict[str, tuple[str, Markdown]]
MOST_LISTED = (
    # seeds of a figure, runs of a column and variants of a claim; the others are
    # counted
    20
)
_DATA_SETS = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "imagenet": "ImageNet"}


def write(collections: list[Collection], directory: pathlib.Path) -> list[pathlib.Path]:
    """Writes the whole report to `directory` and returns the paths of its pages.

    If building fails, the old report stays as it was. Each figure uses the last
    collection that has points for it: yours before the reference. A run that it cannot
    draw is listed with the reason.
    """
    with publish.prepared(directory) as aside:
        for name in ("figures", "tables"):
            (aside / name).mkdir()
        every = [group for c in collections for group in c.groups]
        tables = {
            "metrics": every_metric(collections),
            "runs": every_run(collections, directory),
            "table_2": table_2(every),
            "reduced_cifar": reduced_cifar(every),
        }
        for name, rows in tables.items():
            figures.write_csv(aside / "tables" / f"{name}.csv", list(rows))
        pictures, problems = _pictures(collections, aside / "figures")
        text = _markdown(collections, directory, pictures, problems)
        (aside / "REPORT.md").write_text(text, encoding="utf-8")
        (aside / "report.html").write_text(page.render(text, aside), encoding="utf-8")
    return [directory / "REPORT.md", directory / "report.html"]


def with_results(text: str, collection: Collection) -> str:
    """The README's `text` with the parts between its marks rebuilt from `collection`.

    Raises ValueError if a mark is missing, out of order or appears twice.
    """
    report = "results/REPORT.md"
    titles = {f.title: paper.CLAIMS[f.claim].title for f, _ in _findings(collection)}
    findings = markdown.bullets(
        markdown.link(Markdown(title), f"{report}#{page.anchor(of)}")
        for title, of in titles.items()
    )
    named = [paper.CLAIMS[name] for name in paper.REPORT["readme"]]
    ours = dataclasses.replace(collection, name="ours")
    claims = markdown.table(claims_table(named, [ours], report, most=1))
    for name, part in {"findings": findings, "claims": claims}.items():
        marks = [
            f"<!-- {name}: written by `make report-reference` -->",
            f"<!-- end of {name} -->",
        ]
        pieces = re.split(f"({'|'.join(marks)})", text)
        if pieces[1::2] != marks:
            raise ValueError(
                f"the README must have these marks once, in this order: {marks}"
            )
        pieces[2] = f"\n\n{part}\n\n"
        text = "".join(pieces)
    return text


def _findings(collection: Collection) -> list[tuple[paper.Finding, Markdown]]:
    """The findings whose values are all in the collection, with their texts filled
    in.
    """
    found = []
    for finding in paper.FINDINGS:
        with contextlib.suppress(MissingValueError):
            # The sentence is ours, and only numbers are filled in.
            found.append((finding, Markdown(fill(finding.text, collection.groups)[0])))
    return found


def _pictures(
    collections: list[Collection], directory: pathlib.Path
) -> tuple[_Figures, list[str]]:
    """The figures that could be drawn, and the problems."""
    pictures: _Figures = {}
    problems: list[str] = []
    for one in figures.FIGURES:
        for collection in reversed(collections):
            shown, failed = figures.save(
                one, _drawn_runs(one.experiment, collection), directory
            )
            problems += failed
            if shown:
                title, caption = paper.FIGURES[one.name]
                text = markdown.fill(
                    "![{caption}](figures/{name}.svg)\n**{title}.** {caption}"
                    " ({collection}, {seeds}; {points})",
                    title=Markdown(title),
                    name=Markdown(one.name),
                    caption=Markdown(caption),
                    collection=collection.name,
                    seeds=_seeds(shown),
                    points=markdown.link(f"{one.name}.csv", f"figures/{one.name}.csv"),
                )
                pictures[one.name] = (group_runs(shown)[0].claim, text)
                break
    return pictures, problems


def _seeds(shown: list[Run]) -> str:
    """The seeds of some runs in words."""
    seeds = sorted({run.seed for run in shown})
    if len(seeds) > MOST_LISTED:
        return f"{len(seeds)} seeds, {seeds[0]} to {seeds[-1]}"
    return f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"


def _drawn_runs(experiment: str, collection: Collection) -> list[Run]:
    """All finished runs of an experiment; reduced ones only if a variant has no
    others.
    """
    runs = [run for run in collection.runs if run.experiment == experiment]
    full = {run.variant for run in runs if run.summary["scale"] == "paper"}
    return [
        r
        for r in runs
        if r.summary["scale"] == "paper" or r.variant.split("@")[0] not in full
    ]


def _markdown(
    collections: list[Collection],
    directory: pathlib.Path,
    pictures: _Figures,
    problems: list[str],
) -> Markdown:
    """The text of REPORT.md in `directory`; `problems` are those of the figures."""
    every = [group for c in collections for group in c.groups]
    sizes = {name: number.value for name, number in paper.NUMBERS.items()}
    parts = [
        markdown.fill("# {title}", title=Markdown(paper.REPORT["title"])),
        Markdown(paper.REPORT["introduction"]),
    ]
    opening = set()
    findings = _findings(collections[0])
    parts += [Markdown("## Findings")] if findings else []
    for finding, text in findings:
        evidence = claim_link(paper.CLAIMS[finding.claim])
        parts.append(markdown.fill("### {title}", title=Markdown(finding.title)))
        parts.append(
            markdown.fill("{text} Evidence: {evidence}.", text=text, evidence=evidence)
        )
        if finding.figure in pictures and finding.figure not in opening:
            opening.add(finding.figure)
            parts.append(pictures[finding.figure][1])
    parts += [
        Markdown("## Claims"),
        markdown.table(claims_table(paper.CLAIMS.values(), collections)),
    ]
    parts += [
        Markdown("## Table 2"),
        Markdown(paper.REPORT["table-2"]),
        markdown.table(table_2(every)),
    ]
    if reduced := [*reduced_cifar(every)]:
        about = Markdown(paper.REPORT["reduced-cifar"].format(**sizes))
        parts += [about, markdown.table(reduced)]
    parts.append(Markdown("## Evidence, claim by claim"))
    for claim in paper.CLAIMS.values():
        shown = [
            _figure_above(name) if name in opening else text
            for name, (of, text) in pictures.items()
            if of == claim.id
        ]
        parts += _claim_section(claim, collections, directory, shown)
    left_out = [f"{problem}: skipped" for c in collections for problem in c.problems]
    left_out += [line for c in collections for line in c.unfinished] + problems
    if left_out:
        parts += [Markdown("## Left out"), markdown.bullets(left_out)]
    return Markdown(markdown.blocks(parts) + "\n")


def _figure_above(name: str) -> Markdown:
    link = markdown.link(name, f"figures/{name}.svg")
    return markdown.fill("Figure above: {link}", link=link)


def _claim_section(
    claim: paper.Claim,
    collections: list[Collection],
    directory: pathlib.Path,
    shown: list[Markdown],
) -> list[Markdown]:
    """Statement, verdicts and figures; the measured values and their origin are folded
    away.
    """
    facts: dict[str, str] = {
        "paper": Markdown(claim.published),
        "first shown by": Markdown(claim.first),
    }
    ran: list[Group] = []
    variants: dict[str, dict[str, Group]] = {}
    for collection in collections:
        own_groups = of_claim(claim.id, collection.groups)
        facts[collection.name] = _headline(claim, collection.groups)
        facts[f"verdict, {collection.name}"] = verdicts(claim.id, collection.groups)
        ran += own_groups
        for group in own_groups:
            mark = "" if group.scale == "paper" else " (reduced)"
            label = f"{collection.name}{mark}, n = {len(group.runs)}"
            variants.setdefault(group.name, {})[label] = group
    facts["hardware and time"] = hardware_and_time(ran)
    facts["command"] = command(claim, ran)
    statement = markdown.fill(
        "{statement} ({source}.)",
        statement=Markdown(claim.statement),
        source=Markdown(claim.source),
    )
    section = [
        markdown.fill("### {title}", title=Markdown(claim.title)),
        *(Markdown(f"```math\n{formula}\n```") for formula in claim.latex),
        statement,
    ]
    if claim.note:
        section.append(markdown.fill("Note: {note}", note=Markdown(claim.note)))
    section.append(
        markdown.bullets(
            markdown.fill("**{name}**: {text}", name=name, text=text)
            for name, text in facts.items()
            if text
        )
    )
    listed = list(variants.items())
    section += shown
    section += [
        _evidence(name, columns, directory) for name, columns in listed[:MOST_LISTED]
    ]
    if (more := len(listed) - MOST_LISTED) > 0:
        section.append(_in_files(f"{more} more variants", "metrics"))
    return section


def _in_files(what: str, table: str) -> Markdown:
    """Says that a table file holds what the page leaves out."""
    link = markdown.link(f"{table}.csv", f"tables/{table}.csv")
    return markdown.fill("Not shown: {what}. All are in {link}.", what=what, link=link)


def _headline(
    claim: paper.Claim, groups: list[Group], most: int | None = None
) -> Markdown:
    """The results on a claim. The sentences are ours, and only numbers are filled
    in.
    """
    return Markdown(headline(claim.id, groups, most))


def _evidence(
    variant: str, columns: dict[str, Group], directory: pathlib.Path
) -> Markdown:
    """All measured values of a variant, by column, and the provenance of each
    column.
    """
    rows = [*metrics_table(columns)]
    title = f"{variant}: {len(rows)} measured values, and their origin"
    said = [f"{label}: {group.verdict}" for label, group in columns.items()]
    parts = [
        markdown.fill("Verdict: {verdicts}.", verdicts=markdown.join("; ", said)),
        markdown.table(rows),
    ]
    for label, group in columns.items():
        origins = [origin(run) for run in group.runs]
        versions = dict.fromkeys(
            version for each in origins for version in each.versions
        )
        parts.append(
            markdown.fill(
                "“{label}” was written by these runs ({versions}):",
                label=label,
                versions="; ".join(versions),
            )
        )
        parts.append(
            markdown.table([*provenance_table(group, directory)][:MOST_LISTED])
        )
        if (more := len(group.runs) - MOST_LISTED) > 0:
            parts.append(_in_files(f"{more} more runs", "runs"))
        parts.append(markdown.code_block(" ".join(origins[0].command.split()), "bash"))
    return markdown.fold(title, parts)


def claim_link(claim: paper.Claim, report: str = "") -> Markdown:
    """A link to the claim's section on the page `report`, by default on the same
    page.
    """
    return markdown.link(Markdown(claim.title), f"{report}#{page.anchor(claim.title)}")


def hardware_and_time(members: list[Group]) -> str:
    """The machines of the runs, and how long all of the runs took together."""
    origins = [origin(run) for group in members for run in group.runs]
    if not origins:
        return ""
    machines = "; ".join(
        dict.fromkeys(machine for each in origins for machine in each.machines)
    )
    seconds = duration(sum(each.seconds for each in origins))
    count = f"{len(origins)} run{'' if len(origins) == 1 else 's'}"
    return f"{machines}: {seconds} for {count}"


def command(claim: paper.Claim, members: list[Group]) -> str:
    """The command that reproduces a claim: its own, or the make targets of its
    experiments.
    """
    targets = [
        "make bench"
        if "benchmark" in group.name
        else f"make reproduce-{group.first.experiment}"
        for group in members
    ]
    chosen = claim.command or " && ".join(dict.fromkeys(targets))
    return markdown.code(chosen) if chosen else ""


def claims_table(
    claims: Iterable[paper.Claim],
    collections: list[Collection],
    report: str = "",
    most: int | None = None,
) -> Iterator[Row]:
    """One row per claim: the paper's result, and the result and verdict of each
    collection.

    For `report` see `claim_link`; `most` is the largest number of results for each
    claim.
    """
    for claim in claims:
        row: Row = {
            "claim": claim_link(claim, report),
            "paper": Markdown(claim.published),
        }
        for collection in collections:
            column = (
                f"verdict, {collection.name}" if len(collections) > 1 else "verdict"
            )
            row[collection.name] = _headline(claim, collection.groups, most)
            row[column] = verdicts(claim.id, collection.groups)
        yield row


def table_2(members: list[Group]) -> Iterator[Row]:
    """Published top-1 errors beside ours at paper scale, from the last group of each
    variant.
    """
    ours = {group.first.variant: group for group in members if group.scale == "paper"}
    for method, numbers in paper.TABLE_2.items():
        for dataset, number in numbers.items():
            variant = f"{dataset}/{paper.REPORT['nets'][method]}"
            group = ours.get(paper.REPORT["other-variants"].get(variant, variant))
            row = {
                "method": method,
                "data set": _DATA_SETS[dataset],
                **_errors(number, group),
            }
            yield {**row, "what the published number is": Markdown(number.note)}


def _errors(published: paper.Number, group: Group | None) -> Row:
    """The columns with the published error and with the errors of our runs."""
    last, best = "test_error_percent", "test_error_best_percent"
    return {
        "published (%)": f"{published.value:g}",
        "ours, last step (%)": group.metric(last) if group else NOT_RUN,
        "ours, best step (%)": group.metric(best) if group else NOT_RUN,
        "n": str(len(group.runs) if group else 0),
    }


def reduced_cifar(members: list[Group]) -> Iterator[Row]:
    """Reduced CIFAR runs beside Table 2; malformed records leave the share of
    operations empty.
    """
    for group in members:
        dataset, _, net = group.first.variant.partition("/")
        published = paper.TABLE_2["this paper"].get(dataset)
        if group.first.experiment == "cifar" and group.scale == "reduced" and published:
            row = {"net": net, "data set": _DATA_SETS[dataset]}
            row |= {name: group.metric(name) for name in ("parameters", "steps")}
            share = "share of a full run's operations (%)"
            row[share] = ""
            with contextlib.suppress(*MALFORMED):
                row[share] = in_words([_operations_percent(run) for run in group.runs])
            yield row | _errors(published, group)


def _operations_percent(run: Run) -> float:
    """The operations of a training, from its records, in percent of a full run's."""
    (result,) = (record for record in run.records if record["kind"] == "result")
    examples = result["steps"] * result["train"]["batch_examples"]
    operations = result["training_flops_per_example"] * examples
    return 100 * operations / paper.cifar_training_flops(result["num_classes"])


def metrics_table(columns: dict[str, Group]) -> Iterator[Row]:
    """One row per metric of a variant: the paper's value and the value in each
    column.
    """
    members = columns.values()
    metrics = dict.fromkeys(
        m for g in members for run in g.runs for m in run.summary["metrics"]
    )
    published = {
        k: v for group in members for k, v in group.first.summary["paper"].items()
    }
    for metric in metrics:
        quoted = mean_sd([published[metric]]) if metric in published else ""
        ours = {label: group.metric(metric) for label, group in columns.items()}
        yield {"metric": metric, "paper": quoted, **ours}


def provenance_table(group: Group, directory: pathlib.Path) -> Iterator[Row]:
    """One row per seed: a link to its files from `directory`, commit, start, machine
    and time.
    """
    for run in group.runs:
        place = os.path.relpath(run.path, directory)
        yield {
            "run directory": markdown.link(f"{group.name}/seed={run.seed}", place),
            **_origin(run),
        }


def _origin(run: Run) -> Row:
    """Every commit and machine of a run, when it started, and how long it took."""
    found = origin(run)
    return {
        "commit": ", then ".join(found.commits),
        "started": found.started,
        "machine": ", then ".join(found.machines),
        "took": took(run),
    }


def every_run(collections: list[Collection], directory: pathlib.Path) -> Iterator[Row]:
    """One row for each finished run, with its place from `directory` and its origin."""
    for name, run in ((c.name, run) for c in collections for run in c.runs):
        place = os.path.relpath(run.path, directory)
        yield {"collection": name, "run directory": place, **_origin(run)}


def every_metric(collections: list[Collection]) -> Iterator[Row]:
    """One row for each metric of each finished run, for other people's scripts."""
    for name, run in ((c.name, run) for c in collections for run in c.runs):
        parts = ("experiment", "variant", "seed", "scale")
        same = {"collection": name} | {part: str(run.summary[part]) for part in parts}
        for metric, value in run.summary["metrics"].items():
            printed = str(run.summary["paper"].get(metric, ""))
            yield {**same, "metric": metric, "value": str(value), "paper": printed}
