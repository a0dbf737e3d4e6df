"""The tables of the report: cells are Markdown, and what runs supply is escaped."""

import contextlib
import csv
import dataclasses
import io
import re
from collections.abc import Iterable, Sequence

from identity_matters import paper
from identity_matters.report import groups as runs_in
from identity_matters.report.groups import Collection, Group
from identity_matters.runs import Run

# Row of the paper's table -> the name of the net in variants, DATASET/NET.
_NETS = {
    "All-CNN": "all_cnn_c",
    "this paper": "all_conv_residual",
    "ResNet": "resnet",
    "DenseNet": "densenet",
}
_DATA_SETS = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "imagenet": "ImageNet"}
_ERRORS = ("published (%)", "ours, last step (%)", "ours, best step (%)")
# The claims that the README names; the report has them all.
README_CLAIMS = (
    "theorem-2-1",
    "theorem-2-2",
    "equation-2-3-v3",
    "equation-2-3-corrected",
    "theorem-3-2",
    "nonlinear-conjecture",
    "training-at-depth",
    "table-2-cifar-10",
)


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


def anchor(heading: str) -> str:
    """The name under which a heading is linked to, on GitHub and on the page alike."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def claim_link(claim: paper.Claim, report: str = "") -> str:
    """A link to the claim's section, which is on the page `report`, or on the same one."""
    # A bracket within the text of a link would end it for some readers.
    title = re.sub(r"([\[\]])", r"\\\1", claim.title)
    return f"[{title}]({report}#{anchor(claim.title)})"


def hardware_and_time(groups: list[Group]) -> str:
    """The machines of the runs, and how long all of them took together."""
    origins = [runs_in.origin(run) for group in groups for run in group.runs]
    if not origins:
        return ""
    machines = escape("; ".join(dict.fromkeys(one.machine for one in origins)))
    took = runs_in.duration(sum(one.seconds for one in origins))
    return f"{machines}: {took} for {len(origins)} run{'s' if len(origins) > 1 else ''}"


def command(claim: paper.Claim, groups: list[Group]) -> str:
    """What makes the runs of a claim: its own command, or the target of its experiments."""
    targets = [
        "make bench" if "benchmark" in group.name else f"make reproduce-{group.first.experiment}"
        for group in groups
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
        for groups in collections.values():
            cells.append(runs_in.headline(claim.id, groups, most))
            cells.append(runs_in.verdicts(runs_in.of_claim(claim.id, groups)))
        rows.append(tuple(cells))
    return Table(("claim", "paper", *columns), rows)


def table_2(groups: list[Group]) -> Table:
    """Published top-1 errors and ours, of the last and of the best step, at paper scale alone.

    Args:
      groups: of several runs of the same name the last counts.
    """
    ours = {group.first.variant: group for group in groups if group.scale == "paper"}
    rows = []
    for method, numbers in paper.TABLE_2.items():
        for dataset, number in numbers.items():
            cells = (runs_in.NOT_RUN, runs_in.NOT_RUN, "0")
            if group := ours.get(f"{dataset}/{_NETS[method]}"):
                last, best = map(group.metric, ("test_error_percent", "test_error_best_percent"))
                cells = (last, best, str(len(group.runs)))
            rows.append((method, _DATA_SETS[dataset], f"{number.value:g}", *cells, number.note))
    return Table(("method", "data set", *_ERRORS, "n", "what the published number is"), rows)


def reduced_cifar(groups: list[Group]) -> Table:
    """Reduced CIFAR runs beside Table 2, with their share of the paper's operations.

    The share is of `paper.cifar_training_flops`; it is empty where records do not tell it.
    """
    rows = []
    for group in groups:
        dataset, _, net = group.first.variant.partition("/")
        published = paper.TABLE_2["this paper"].get(dataset)
        if group.first.experiment != "cifar" or group.scale == "paper" or published is None:
            continue
        metrics = ("parameters", "steps", "test_error_percent", "test_error_best_percent")
        parameters, steps, *errors = map(group.metric, metrics)
        share = ""
        with contextlib.suppress(*runs_in.MALFORMED):
            share = runs_in.in_words(list(map(_operations_percent, group.runs)))
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
        quoted = runs_in.mean_sd([published[metric]]) if metric in published else ""
        values = (escape(group.metric(metric)) for group in members)
        rows.append((escape(metric), escape(quoted), *values))
    return Table(("metric", "paper", *columns), rows)


def provenance_table(group: Group, root: str) -> Table:
    """One row a seed: where its files are, what code it ran, when, on what and how long."""
    rows = []
    for run in group.runs:
        place, origin = f"{group.name}/seed={run.seed}", runs_in.origin(run)
        facts = (origin.commit, origin.started, origin.machine, runs_in.duration(origin.seconds))
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
