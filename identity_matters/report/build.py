"""Builds the report from collections of runs: REPORT.md, report.html, tables and figures."""

import contextlib
import dataclasses
import html
import os
import pathlib
import re
import tempfile
from collections.abc import Iterable, Iterator

from identity_matters import paper
from identity_matters.report import figures, groups, page
from identity_matters.report.groups import Collection, Group
from identity_matters.runs import Run

Row = dict[str, str]  # column of a table -> its cell, in Markdown
_Figures = dict[str, tuple[str, str]]  # name -> the id of its claim, and the figure in Markdown
_DATA_SETS = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "imagenet": "ImageNet"}


def write(collections: list[Collection], directory: pathlib.Path) -> list[pathlib.Path]:
    """Writes the whole report to `directory` and returns the paths of its pages.

    If building fails, the old report stays as it was. Each figure uses the last collection that has
    points for it: yours before the reference. A run that it cannot draw is listed with the reason.
    """
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory, prefix=".report-") as made:
        aside = pathlib.Path(made)
        for name in ("figures", "tables"):
            (aside / name).mkdir()
        every = [group for c in collections for group in c.groups]
        tables = {"table_2": table_2(every), "reduced_cifar": reduced_cifar(every)}
        for name, rows in {"metrics": every_metric(collections), **tables}.items():
            figures.write_csv(aside / "tables" / f"{name}.csv", list(rows))
        pictures, problems = _pictures(collections, aside / "figures")
        markdown = _markdown(collections, directory, pictures, problems)
        (aside / "REPORT.md").write_text(markdown, encoding="utf-8")
        (aside / "report.html").write_text(page.render(markdown, aside), encoding="utf-8")
        for name in ("figures", "tables", "report.html", "REPORT.md"):
            if (directory / name).is_dir():
                os.rename(directory / name, aside / f"old-{name}")
            os.replace(aside / name, directory / name)
    return [directory / "REPORT.md", directory / "report.html"]


def with_results(text: str, collection: Collection) -> str:
    """The README's `text` with the parts between its marks rebuilt from `collection`.

    Raises ValueError if a mark is missing, out of order or appears twice.
    """
    report = "results/REPORT.md"
    titles = {f.title: paper.CLAIMS[f.claim].title for f, _ in _findings(collection)}
    findings = [f"* [{title}]({report}#{page.anchor(of)})" for title, of in titles.items()]
    named = [paper.CLAIMS[name] for name in paper.REPORT["readme"]]
    ours = dataclasses.replace(collection, name="ours")
    claims = table(claims_table(named, [ours], report, most=1))
    for name, part in {"findings": "\n".join(findings), "claims": claims}.items():
        marks = [f"<!-- {name}: written by `make report-reference` -->", f"<!-- end of {name} -->"]
        pieces = re.split(f"({'|'.join(marks)})", text)
        if pieces[1::2] != marks:
            raise ValueError(f"the README must have these marks once, in this order: {marks}")
        pieces[2] = f"\n\n{part}\n\n"
        text = "".join(pieces)
    return text


def _findings(collection: Collection) -> list[tuple[paper.Finding, str]]:
    """The findings whose values are all in the collection, with their texts filled in."""
    found = []
    for finding in paper.FINDINGS:
        with contextlib.suppress(groups.MissingValueError):
            found.append((finding, groups.fill(finding.text, collection.groups)[0]))
    return found


def _pictures(collections: list[Collection], directory: pathlib.Path) -> tuple[_Figures, list[str]]:
    """The figures that could be drawn, and the problems."""
    pictures: _Figures = {}
    problems: list[str] = []
    for one in figures.FIGURES:
        for collection in reversed(collections):
            shown, failed = figures.save(one, _drawn_runs(one.experiment, collection), directory)
            problems += failed
            if shown:
                seeds = sorted({run.seed for run in shown})
                count = f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"
                title, caption = paper.FIGURES[one.name]
                origin = f"({collection.name}, {count}; [{one.name}.csv](figures/{one.name}.csv))"
                text = f"![{title}](figures/{one.name}.svg)\n**{title}.** {caption} {origin}"
                pictures[one.name] = (groups.group_runs(shown)[0].claim, text)
                break
    return pictures, problems


def _drawn_runs(experiment: str, collection: Collection) -> list[Run]:
    """All finished runs of an experiment; reduced ones only if a variant has no others."""
    runs = [run for run in collection.runs if run.experiment == experiment]
    full = {run.variant for run in runs if run.summary["scale"] == "paper"}
    return [r for r in runs if r.summary["scale"] == "paper" or r.variant.split("@")[0] not in full]


def _markdown(
    collections: list[Collection], directory: pathlib.Path, pictures: _Figures, problems: list[str]
) -> str:
    """The text of REPORT.md in `directory`; `problems` are those of the figures."""
    every = [group for c in collections for group in c.groups]
    sizes = {name: number.value for name, number in paper.NUMBERS.items()}
    parts = [f"# {paper.REPORT['title']}", paper.REPORT["introduction"]]
    opening = set()
    findings = _findings(collections[0])
    parts += ["## Findings"] if findings else []
    for finding, text in findings:
        evidence = claim_link(paper.CLAIMS[finding.claim])
        parts += [f"### {finding.title}", f"{text} Evidence: {evidence}."]
        if finding.figure in pictures and finding.figure not in opening:
            opening.add(finding.figure)
            parts.append(pictures[finding.figure][1])
    parts += ["## Claims", table(claims_table(paper.CLAIMS.values(), collections))]
    parts += ["## Table 2", paper.REPORT["table-2"], table(table_2(every))]
    if reduced := [*reduced_cifar(every)]:
        parts += [paper.REPORT["reduced-cifar"].format(**sizes), table(reduced)]
    parts.append("## Evidence, claim by claim")
    for claim in paper.CLAIMS.values():
        shown = [
            f"Figure above: [{name}](figures/{name}.svg)" if name in opening else text
            for name, (of, text) in pictures.items()
            if of == claim.id
        ]
        parts += _claim_section(claim, collections, directory, shown)
    left_out = [f"{problem}: skipped" for c in collections for problem in c.problems]
    left_out += [line for c in collections for line in c.unfinished] + problems
    if left_out:
        parts += ["## Left out", "\n".join(f"* {escape(reason)}" for reason in left_out)]
    return "\n\n".join(parts) + "\n"


def _claim_section(
    claim: paper.Claim, collections: list[Collection], directory: pathlib.Path, shown: list[str]
) -> list[str]:
    """Statement, verdicts and figures; the measured values and their origin are folded away."""
    facts = {"paper": claim.published, "first shown by": claim.first}
    ran: list[Group] = []
    variants: dict[str, dict[str, Group]] = {}
    for collection in collections:
        own = groups.of_claim(claim.id, collection.groups)
        facts[collection.name] = groups.headline(claim.id, collection.groups)
        facts[f"verdict, {collection.name}"] = groups.verdicts(claim.id, collection.groups)
        ran += own
        for group in own:
            mark = "" if group.scale == "paper" else " (reduced)"
            label = f"{collection.name}{mark}, n = {len(group.runs)}"
            variants.setdefault(group.name, {})[label] = group
    facts["hardware and time"] = hardware_and_time(ran)
    facts["command"] = command(claim, ran)
    return [
        f"### {claim.title}",
        *(f"```math\n{formula}\n```" for formula in claim.latex),
        f"{claim.statement} ({claim.source}.)",
        *([f"Note: {claim.note}"] if claim.note else []),
        "\n".join(f"* **{name}**: {text}" for name, text in facts.items() if text),
        *shown,
        *(_evidence(name, columns, directory) for name, columns in variants.items()),
    ]


def _evidence(variant: str, columns: dict[str, Group], directory: pathlib.Path) -> str:
    """All measured values of a variant, by column, and the provenance of each column."""
    rows = [*metrics_table(columns)]
    title = f"{html.escape(variant)}: {len(rows)} measured values, and their origin"
    verdicts = "; ".join(f"{label}: {group.verdict}" for label, group in columns.items())
    parts = ["<details>", f"<summary>{title}</summary>", f"Verdict: {verdicts}.", table(rows)]
    for label, group in columns.items():
        origin = groups.origin(group.first)
        parts += [
            f"“{label}” was written by these runs ({escape(origin['versions'])}):",
            table(provenance_table(group, directory)),
            f"```bash\n{' '.join(origin['command'].split())}\n```",
        ]
    return "\n\n".join([*parts, "</details>"])


def table(rows: Iterable[Row]) -> str:
    """The rows as a table in GitHub's Markdown; columns without any value are left out."""
    rows = list(rows)
    columns = [name for name in rows[0] if any(row[name] for row in rows)] if rows else []
    lines = [columns, ["---"] * len(columns)]
    for row in rows:
        # An unescaped bar ends the cell, even inside |||A|||.
        lines.append([row[name].replace("|", "\\|").replace("\n", " ") for name in columns])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def escape(text: object) -> str:
    """Escapes text that comes from a run, so that none of it is read as Markdown or HTML."""
    safe = str(text).replace("&", "&amp;").replace("<", "&lt;").replace("\n", " ")
    return re.sub(r"([\\`*\[\]~$])", r"\\\1", safe)


def claim_link(claim: paper.Claim, report: str = "") -> str:
    """A link to the claim's section on the page `report`, by default on the same page."""
    # Some Markdown parsers end the text of a link at a bracket.
    title = re.sub(r"([\[\]])", r"\\\1", claim.title)
    return f"[{title}]({report}#{page.anchor(claim.title)})"


def hardware_and_time(members: list[Group]) -> str:
    """The machines of the runs, and how long all of the runs took together."""
    runs = [run for group in members for run in group.runs]
    machines = "; ".join(dict.fromkeys(groups.origin(run)["machine"] for run in runs))
    took = groups.duration(sum(run.summary["seconds"]["total"] for run in runs))
    count = f"{len(runs)} run{'' if len(runs) == 1 else 's'}"
    return f"{escape(machines)}: {took} for {count}" if runs else ""


def command(claim: paper.Claim, members: list[Group]) -> str:
    """The command that reproduces a claim: its own, or the make targets of its experiments."""
    targets = [
        "make bench" if "benchmark" in group.name else f"make reproduce-{group.first.experiment}"
        for group in members
    ]
    found = claim.command or " && ".join(dict.fromkeys(targets))
    return f"`{found}`" if found else ""


def claims_table(
    claims: Iterable[paper.Claim],
    collections: list[Collection],
    report: str = "",
    most: int | None = None,
) -> Iterator[Row]:
    """One row per claim: the paper's result, and the result and verdict of each collection.

    For `report` see `claim_link`; `most` is the largest number of results for each claim.
    """
    for claim in claims:
        row = {"claim": claim_link(claim, report), "paper": claim.published}
        for name, members in ((c.name, c.groups) for c in collections):
            row[name] = groups.headline(claim.id, members, most)
            verdict = f"verdict, {name}" if len(collections) > 1 else "verdict"
            row[verdict] = groups.verdicts(claim.id, members)
        yield row


def table_2(members: list[Group]) -> Iterator[Row]:
    """Published top-1 errors beside ours at paper scale, from the last group of each variant."""
    ours = {group.first.variant: group for group in members if group.scale == "paper"}
    for method, numbers in paper.TABLE_2.items():
        for dataset, number in numbers.items():
            variant = f"{dataset}/{paper.REPORT['nets'][method]}"
            group = ours.get(paper.REPORT["other-variants"].get(variant, variant))
            row = {"method": method, "data set": _DATA_SETS[dataset], **_errors(number, group)}
            yield {**row, "what the published number is": number.note}


def _errors(published: paper.Number, group: Group | None) -> Row:
    """The columns with the published error and with the errors of our runs."""
    last, best = "test_error_percent", "test_error_best_percent"
    return {
        "published (%)": f"{published.value:g}",
        "ours, last step (%)": group.metric(last) if group else groups.NOT_RUN,
        "ours, best step (%)": group.metric(best) if group else groups.NOT_RUN,
        "n": str(len(group.runs) if group else 0),
    }


def reduced_cifar(members: list[Group]) -> Iterator[Row]:
    """Reduced CIFAR runs beside Table 2; malformed records leave the share of operations empty."""
    for group in members:
        dataset, _, net = group.first.variant.partition("/")
        published = paper.TABLE_2["this paper"].get(dataset)
        if group.first.experiment == "cifar" and group.scale == "reduced" and published:
            row = {"net": escape(net), "data set": _DATA_SETS[dataset]}
            row |= {name: group.metric(name) for name in ("parameters", "steps")}
            share = "share of a full run's operations (%)"
            row[share] = ""
            with contextlib.suppress(*groups.MALFORMED):
                row[share] = groups.in_words([_operations_percent(run) for run in group.runs])
            yield row | _errors(published, group)


def _operations_percent(run: Run) -> float:
    """The operations of a training, from its records, in percent of a full run's."""
    (result,) = (record for record in run.records if record["kind"] == "result")
    examples = result["steps"] * result["train"]["batch_examples"]
    operations = result["training_flops_per_example"] * examples
    return 100 * operations / paper.cifar_training_flops(result["num_classes"])


def metrics_table(columns: dict[str, Group]) -> Iterator[Row]:
    """One row per metric of a variant: the paper's value and the value in each column."""
    members = columns.values()
    metrics = dict.fromkeys(m for g in members for run in g.runs for m in run.summary["metrics"])
    published = {k: v for group in members for k, v in group.first.summary["paper"].items()}
    for metric in metrics:
        quoted = groups.mean_sd([published[metric]]) if metric in published else ""
        ours = {label: escape(group.metric(metric)) for label, group in columns.items()}
        yield {"metric": escape(metric), "paper": escape(quoted), **ours}


def provenance_table(group: Group, directory: pathlib.Path) -> Iterator[Row]:
    """One row per seed: a link to its files from `directory`, commit, start, machine and time."""
    for run in group.runs:
        link = f"[{group.name}/seed={run.seed}]({os.path.relpath(run.path, directory)})"
        origin = groups.origin(run)
        facts = {name: escape(origin[name]) for name in ("commit", "started", "machine", "took")}
        yield {"run directory": link, **facts}


def every_metric(collections: list[Collection]) -> Iterator[Row]:
    """One row for each metric of each finished run, for other people's scripts."""
    for name, run in ((c.name, run) for c in collections for run in c.runs):
        parts = ("experiment", "variant", "seed", "scale")
        same = {"collection": name} | {part: str(run.summary[part]) for part in parts}
        for metric, value in run.summary["metrics"].items():
            printed = str(run.summary["paper"].get(metric, ""))
            yield {**same, "metric": metric, "value": str(value), "paper": printed}
