"""The tables of the report, and the cells that describe a claim.

A row is a dict from the column to its cell. Text of ours is `Markdown`; everything else
is escaped where it becomes part of the page.
"""

import contextlib
import os
import pathlib
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from identity_matters import paper
from identity_matters.report import markdown, page
from identity_matters.report.collection import Collection, Group, origin, took
from identity_matters.report.markdown import Markdown, Row
from identity_matters.report.numbers import (
    count_of,
    duration,
    format_number,
    in_words,
    mean_sd,
    natural_order,
)
from identity_matters.report.records import MALFORMED
from identity_matters.report.sentences import NOT_RUN, headline, verdicts
from identity_matters.runs import Run

_DIVERGED = "diverged"  # in place of an error, if every run of a row diverged
_TRAINED_BY = ("cifar", "imagenet")  # the experiments that train the nets of Table 2
_DATA_SETS = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "imagenet": "ImageNet"}


def claim_link(claim: paper.Claim, report: str = "") -> Markdown:
    """A link to the claim's section on the page `report`, by default on the same."""
    return markdown.link(Markdown(claim.title), f"{report}#{page.anchor(claim.title)}")


def hardware_and_time(groups: list[Group]) -> str:
    """The machines of the runs, and how long all of the runs took together."""
    origins = [origin(run) for group in groups for run in group.runs]
    if not origins:
        return ""
    machines = "; ".join(
        dict.fromkeys(machine for each in origins for machine in each.machines)
    )
    seconds = duration(sum(each.seconds for each in origins))
    return f"{machines}: {seconds} for {count_of(len(origins), 'run')}"


def command(claim: paper.Claim, groups: list[Group]) -> str:
    """What reproduces a claim: its own command, or make targets of its experiments."""
    targets = [
        "make bench"
        if "benchmark" in group.name
        else f"make reproduce-{group.first.experiment}"
        for group in groups
    ]
    chosen = claim.command or " && ".join(dict.fromkeys(targets))
    return markdown.code(chosen) if chosen else ""


def claims_table(
    claims: Iterable[paper.Claim],
    collections: list[Collection],
    report: str = "",
    most: int | None = None,
) -> Iterator[Row]:
    """One row per claim: the paper's result, and that of each collection with verdict.

    Args:
      claims: in the order of the rows.
      collections: one or more; each has two columns.
      report: see `claim_link`.
      most: the largest number of results for each claim.
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
            # The sentences are ours, and only numbers are filled in.
            row[collection.name] = Markdown(headline(claim.id, collection.groups, most))
            row[column] = verdicts(claim.id, collection.groups)
        yield row


class _Trained(NamedTuple):
    """Runs that trained a net, and the name of the collection that they are of."""

    collection: str
    group: Group


def _trained(
    collections: list[Collection], experiments: tuple[str, ...], scale: str
) -> Iterator[_Trained]:
    """The groups of these experiments at this scale, collection by collection."""
    for collection in collections:
        for group in collection.groups:
            if group.first.experiment in experiments and group.scale == scale:
                yield _Trained(collection.name, group)


def table_2(collections: list[Collection]) -> Iterator[Row]:
    """Published top-1 errors beside ours at paper scale.

    Ours are those of the last collection that has the variant: yours before the
    reference.
    """
    ours = {
        trained.group.first.variant: trained
        for trained in _trained(collections, _TRAINED_BY, "paper")
    }
    for method, numbers in paper.TABLE_2.items():
        for dataset, number in numbers.items():
            variant = f"{dataset}/{paper.REPORT['nets'][method]}"
            trained = ours.get(paper.REPORT["other-variants"].get(variant, variant))
            yield {
                "method": method,
                "data set": _DATA_SETS[dataset],
                **_errors(number, trained),
                "what the published number is": Markdown(number.note),
            }


def _errors(published: paper.Number, trained: _Trained | None) -> Row:
    """The columns with the published error, and with whose errors ours are."""
    collection = ""
    last_step = NOT_RUN
    best_step = NOT_RUN
    seeds = 0
    if trained:
        group = trained.group
        collection = trained.collection
        last_step = group.metric("test_error_percent") or _DIVERGED
        best_step = group.metric("test_error_best_percent") or _DIVERGED
        seeds = len(group.runs)
    return {
        "published (%)": f"{published.value:g}",
        "ours, last step (%)": last_step,
        "ours, best step (%)": best_step,
        "n": str(seeds),
        "collection": collection,
    }


def reduced_cifar(collections: list[Collection]) -> Iterator[Row]:
    """Reduced CIFAR runs of every collection beside Table 2."""
    for trained in _trained(collections, ("cifar",), "reduced"):
        group = trained.group
        dataset, _, net = group.first.variant.partition("/")
        published = paper.TABLE_2["this paper"].get(dataset)
        if published:
            yield {
                "net": net,
                "data set": _DATA_SETS[dataset],
                "parameters": group.metric("parameters"),
                "steps": group.metric("steps"),
                "share of a full run's operations (%)": _operations_of_group(group),
                **_errors(published, trained),
            }


def _operations_of_group(group: Group) -> str:
    """The operations of its trainings in percent of a full run's, in words.

    Empty if all of them diverged, or if a record is malformed.
    """
    done = [run for run in group.runs if run.status == "done"]
    if not done:
        return ""
    with contextlib.suppress(*MALFORMED):
        return in_words([_operations_percent(run) for run in done])
    return ""


def _operations_percent(run: Run) -> float:
    """The operations of a training, from its records, in percent of a full run's."""
    (result,) = (record for record in run.records if record["kind"] == "result")
    examples = result["steps"] * result["train"]["batch_examples"]
    operations = result["training_flops_per_example"] * examples
    return 100 * operations / paper.cifar_training_flops(result["num_classes"])


def arms_table(group: Group) -> Iterator[Row]:
    """One row per arm of a comparison by the rules of docs/protocol.md.

    The learning rates of an arm are those of the seeds, in their order. Other
    experiments have no arms.
    """
    if group.first.experiment != "comparisons":
        return
    prefix = "learning_rate/"
    arms = {
        metric.removeprefix(prefix)
        for run in group.runs
        for metric in run.summary["metrics"]
        if metric.startswith(prefix)
    }
    for arm in sorted(arms, key=natural_order):
        failed = [run.summary["metrics"].get(f"failed/{arm}") for run in group.runs]
        yield {
            "arm": arm,
            "learning rate": ", ".join(_tuned_rate(run, arm) for run in group.runs),
            "training error (%)": group.metric(f"train_error_percent/{arm}"),
            "test error (%)": group.metric(f"test_error_percent/{arm}"),
            "failed": f"{failed.count(1)} of {len(failed)}",
            "parameters": group.metric(f"parameters/{arm}"),
        }


def _tuned_rate(run: Run, arm: str) -> str:
    """The learning rate that a run's short trials chose for an arm."""
    metrics = run.summary["metrics"]
    rate = format_number(metrics.get(f"learning_rate/{arm}"))
    return f"{rate} (edge)" if metrics.get(f"at_edge_of_grid/{arm}") else rate


def metrics_table(columns: dict[str, Group]) -> Iterator[Row]:
    """One row per metric of a variant: the paper's value, and that of each column."""
    metrics: dict[str, None] = {}  # their names, in the order of the records
    published: dict[str, float] = {}
    for group in columns.values():
        for run in group.runs:
            # A run that diverged has none.
            published |= run.summary["paper"]
            metrics |= dict.fromkeys(run.summary["metrics"])
    for metric in metrics:
        quoted = mean_sd([published[metric]]) if metric in published else ""
        ours = {label: group.metric(metric) for label, group in columns.items()}
        yield {"metric": metric, "paper": quoted, **ours}


def provenance_table(group: Group, directory: pathlib.Path) -> Iterator[Row]:
    """One row per seed: a link to its files from `directory`, and their origin."""
    for run in group.runs:
        place = os.path.relpath(run.path, directory)
        yield {
            "run directory": markdown.link(f"{group.name}/seed={run.seed}", place),
            **_origin_cells(run),
        }


def _origin_cells(run: Run) -> Row:
    """Every commit and machine of a run, when it started, and how long it took."""
    written = origin(run)
    return {
        "commit": ", then ".join(written.commits),
        "started": written.started,
        "machine": ", then ".join(written.machines),
        "took": took(run),
    }


def every_run(collections: list[Collection], directory: pathlib.Path) -> Iterator[Row]:
    """One row for each finished run, with its place from `directory` and its origin."""
    for collection in collections:
        for run in collection.runs:
            yield {
                "collection": collection.name,
                "run directory": os.path.relpath(run.path, directory),
                **_origin_cells(run),
            }


def every_metric(collections: list[Collection]) -> Iterator[Row]:
    """One row for each metric of each finished run, for other people's scripts."""
    for collection in collections:
        for run in collection.runs:
            for metric, value in run.summary["metrics"].items():
                yield {
                    "collection": collection.name,
                    "experiment": str(run.summary["experiment"]),
                    "variant": str(run.summary["variant"]),
                    "seed": str(run.summary["seed"]),
                    "scale": str(run.summary["scale"]),
                    "metric": metric,
                    "value": str(value),
                    "paper": str(run.summary["paper"].get(metric, "")),
                }
