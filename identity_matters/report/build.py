"""Puts the report together: from collections of runs to REPORT.md, report.html, tables, figures.

REPORT.md is written as Markdown, in which cells of tables are Markdown too and what runs supply is
escaped; report.html is that text on a page (see `page`).
"""

import contextlib
import csv
import dataclasses
import html
import io
import os
import pathlib
import re
import tempfile
from collections.abc import Iterable, Sequence

from identity_matters import paper
from identity_matters.report import figures, groups, page
from identity_matters.report.groups import Collection, Group
from identity_matters.runs import Problem, Run

_DATA_SETS = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "imagenet": "ImageNet"}
_ERRORS = ("published (%)", "ours, last step (%)", "ours, best step (%)")


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
        every = [group for c in collections for group in c.groups]
        tables = {"table_2": table_2(every), "reduced_cifar": reduced_cifar(every)}
        for name, table in {"metrics": every_metric(collections), **tables}.items():
            (aside / "tables" / f"{name}.csv").write_text(table.csv(), encoding="utf-8")
        roots = {c.name: os.path.relpath(c.directory, directory) for c in collections}
        markdown = _markdown(collections, roots, tables, pictures, problems)
        (aside / "REPORT.md").write_text(markdown, encoding="utf-8")
        (aside / "report.html").write_text(page.render(markdown, aside), encoding="utf-8")
        for name in ("figures", "tables", "report.html", "REPORT.md"):
            if (directory / name).is_dir():
                os.rename(directory / name, aside / f"old-{name}")
            os.replace(aside / name, directory / name)
    return [directory / "REPORT.md", directory / "report.html"]


def with_results(text: str, collection: Collection) -> str:
    """The README's `text` with what is between its marks made from `collection`.

    Raises:
      ValueError: a mark is missing or comes twice.
    """
    members, report = collection.groups, "results/REPORT.md"
    titles = {f.title: paper.CLAIMS[f.claim].title for f, _ in _findings(members)}
    found = [f"* [{title}]({report}#{page.anchor(of)})" for title, of in titles.items()]
    claims = claims_table(
        [paper.CLAIMS[name] for name in paper.REPORT["readme"]], {"ours": members}, report, most=1
    )
    for name, part in {"findings": "\n".join(found), "claims": claims.markdown()}.items():
        begin, end = (
            f"<!-- {name}: written by `make report-reference` -->",
            f"<!-- end of {name} -->",
        )
        before, *rest = text.split(begin)
        _, *after = "".join(rest).split(end)
        if (len(rest), len(after)) != (1, 1):
            raise ValueError(f"the README must have {begin} once, and then {end} once")
        text = f"{before}{begin}\n\n{part}\n\n{end}{after[0]}"
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
            shown, failed = figures.save(one, _drawn_runs(one.experiment, collection), directory)
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
    roots: dict[str, str],
    tables: dict[str, "Table"],
    pictures: dict[str, tuple[str, str]],
    problems: list[Problem],
) -> str:
    members = {c.name: c.groups for c in collections}
    reduced = tables["reduced_cifar"]
    numbers = {"steps": "cifar_steps", "batch": "cifar_batch_examples"}
    size = {name: paper.NUMBERS[number].value for name, number in numbers.items()}
    parts = [f"# {paper.REPORT['title']}", paper.REPORT["introduction"]]
    opening = set()
    findings = _findings(collections[0].groups)
    parts += ["## Findings"] if findings else []
    for finding, text in findings:
        evidence = claim_link(paper.CLAIMS[finding.claim])
        parts += [f"### {finding.title}", f"{text} Evidence: {evidence}."]
        if finding.figure in pictures and finding.figure not in opening:
            opening.add(finding.figure)
            parts.append(pictures[finding.figure][1])
    parts += [
        "## Claims",
        claims_table(paper.CLAIMS.values(), members).markdown(),
        "## Table 2",
        paper.REPORT["table-2"],
        tables["table_2"].markdown(),
        *([paper.REPORT["reduced-cifar"].format(**size), reduced.markdown()] * bool(reduced.rows)),
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
    facts["hardware and time"] = hardware_and_time(ran)
    facts["command"] = command(claim, ran)
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
    table = metrics_table(columns)
    title = f"{html.escape(variant)}: {len(table.rows)} measured values, and their origin"
    verdicts = "; ".join(f"{label}: {group.verdict}" for label, group in columns.items())
    parts = ["<details>", f"<summary>{title}</summary>", f"Verdict: {verdicts}.", table.markdown()]
    for label, group in columns.items():
        origin = groups.origin(group.first)
        root = roots[label.split(",")[0].removesuffix(" (reduced)")]
        parts += [
            f"“{label}” was written by these runs ({escape(origin.versions)}):",
            provenance_table(group, root).markdown(),
            f"```bash\n{' '.join(origin.command.split())}\n```",
        ]
    return "\n\n".join([*parts, "</details>"])


# Tables


@dataclasses.dataclass(frozen=True)
class Table:
    """Rows of cells in Markdown."""

    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]

    def markdown(self) -> str:
        """The table as GitHub reads it; columns without any value are left out."""
        kept = [i for i in range(len(self.columns)) if any(row[i] for row in self.rows)]
        lines = [[self.columns[i] for i in kept], ["---"] * len(kept)]
        # A bare bar ends the cell, also inside |||A|||.
        lines += [
            [row[i].replace("|", "\\|").replace("\n", " ") for i in kept] for row in self.rows
        ]
        return "\n".join(f"| {' | '.join(line)} |" for line in lines)

    def csv(self) -> str:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([self.columns, *self.rows])
        return text.getvalue()


def escape(text: object) -> str:
    """Text that a run supplies: no character of it is Markdown or HTML."""
    safe = str(text).replace("&", "&amp;").replace("<", "&lt;").replace("\n", " ")
    return re.sub(r"([\\`*\[\]~$])", r"\\\1", safe)


def claim_link(claim: paper.Claim, report: str = "") -> str:
    """A link to the claim's section, which is on the page `report`, or on the same one."""
    # A bracket within the text of a link would end it for some readers.
    title = re.sub(r"([\[\]])", r"\\\1", claim.title)
    return f"[{title}]({report}#{page.anchor(claim.title)})"


def hardware_and_time(members: list[Group]) -> str:
    """The machines of the runs, and how long all of them took together."""
    origins = [groups.origin(run) for group in members for run in group.runs]
    if not origins:
        return ""
    machines = escape("; ".join(dict.fromkeys(one.machine for one in origins)))
    took = groups.duration(sum(one.seconds for one in origins))
    return f"{machines}: {took} for {len(origins)} run{'s' if len(origins) > 1 else ''}"


def command(claim: paper.Claim, members: list[Group]) -> str:
    """What makes the runs of a claim: its own command, or the target of its experiments."""
    targets = [
        "make bench" if "benchmark" in group.name else f"make reproduce-{group.first.experiment}"
        for group in members
    ]
    found = claim.command or " && ".join(dict.fromkeys(targets))
    return f"`{found}`" if found else ""


def claims_table(
    claims: Iterable[paper.Claim],
    collections: dict[str, list[Group]],
    report: str = "",
    most: int | None = None,
) -> Table:
    """One row a claim: what the paper says, what each collection says, and its verdict.

    Args:
      report: the page that has the sections of the claims, where that is another one.
      most: how many results of each claim are given, by default all.
    """
    of = ", {}" if len(collections) > 1 else ""
    columns = [part for name in collections for part in (name, f"verdict{of.format(name)}")]
    rows = []
    for claim in claims:
        cells = [claim_link(claim, report), claim.published]
        for members in collections.values():
            cells.append(groups.headline(claim.id, members, most))
            cells.append(groups.verdicts(groups.of_claim(claim.id, members)))
        rows.append(tuple(cells))
    return Table(("claim", "paper", *columns), rows)


def table_2(members: list[Group]) -> Table:
    """Published top-1 errors and ours, of the last and of the best step, at paper scale alone.

    Args:
      members: of several runs of the same name the last counts.
    """
    ours = {group.first.variant: group for group in members if group.scale == "paper"}
    rows = []
    for method, numbers in paper.TABLE_2.items():
        for dataset, number in numbers.items():
            cells = (groups.NOT_RUN, groups.NOT_RUN, "0")
            if group := ours.get(f"{dataset}/{paper.REPORT['nets'][method]}"):
                last, best = map(group.metric, ("test_error_percent", "test_error_best_percent"))
                cells = (last, best, str(len(group.runs)))
            rows.append((method, _DATA_SETS[dataset], f"{number.value:g}", *cells, number.note))
    return Table(("method", "data set", *_ERRORS, "n", "what the published number is"), rows)


def reduced_cifar(members: list[Group]) -> Table:
    """Reduced CIFAR runs beside Table 2, with their share of the paper's operations.

    The share is of `paper.cifar_training_flops`; it is empty where records do not tell it.
    """
    rows = []
    for group in members:
        dataset, _, net = group.first.variant.partition("/")
        published = paper.TABLE_2["this paper"].get(dataset)
        if group.first.experiment != "cifar" or group.scale == "paper" or published is None:
            continue
        metrics = ("parameters", "steps", "test_error_percent", "test_error_best_percent")
        parameters, steps, *errors = map(group.metric, metrics)
        share = ""
        with contextlib.suppress(*groups.MALFORMED):
            share = groups.in_words(list(map(_operations_percent, group.runs)))
        cells = (escape(net), _DATA_SETS[dataset], parameters, steps, share)
        rows.append((*cells, f"{published.value:g}", *errors, str(len(group.runs))))
    size = ("parameters", "steps", "share of the paper's operations (%)")
    return Table(("net", "data set", *size, *_ERRORS, "n"), rows)


def _operations_percent(run: Run) -> float:
    """Operations of a training, as its records count them, over those of the paper's."""
    (result,) = (record for record in run.records if record["kind"] == "result")
    examples = result["steps"] * result["train"]["batch_examples"]
    operations = result["training_flops_per_example"] * examples
    return 100 * operations / paper.cifar_training_flops(result["num_classes"])


def metrics_table(columns: dict[str, Group]) -> Table:
    """One row a metric of one variant: the paper's value and the value of each collection."""
    members = columns.values()
    metrics = dict.fromkeys(m for g in members for run in g.runs for m in run.summary["metrics"])
    published = {k: v for group in members for k, v in group.first.summary["paper"].items()}
    rows = []
    for metric in metrics:
        quoted = groups.mean_sd([published[metric]]) if metric in published else ""
        values = (escape(group.metric(metric)) for group in members)
        rows.append((escape(metric), escape(quoted), *values))
    return Table(("metric", "paper", *columns), rows)


def provenance_table(group: Group, root: str) -> Table:
    """One row a seed: where its files are, what code it ran, when, on what and how long."""
    rows = []
    for run in group.runs:
        place, origin = f"{group.name}/seed={run.seed}", groups.origin(run)
        facts = (origin.commit, origin.started, origin.machine, groups.duration(origin.seconds))
        rows.append((f"[{place}]({root}/{place})", *map(escape, facts)))
    return Table(("run directory", "commit", "started", "machine", "took"), rows)


def every_metric(collections: list[Collection]) -> Table:
    """Every metric of every finished run, a row each, as other people's scripts read them."""
    columns = ("collection", "experiment", "variant", "seed", "scale", "metric", "value", "paper")
    rows = []
    for name, run in ((c.name, run) for c in collections for run in c.runs if run.status == "done"):
        same = (name, run.experiment, run.variant, str(run.seed), run.summary["scale"])
        for metric, value in run.summary["metrics"].items():
            rows.append((*same, metric, str(value), str(run.summary["paper"].get(metric, ""))))
    return Table(columns, rows)
