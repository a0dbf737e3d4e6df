"""The lines that a run ends with: its verdict, the paper's result, and its own."""

import re
from typing import Any

from etils import epath

from identity_matters import paper, runs
from identity_matters.report.collection import group_runs
from identity_matters.report.numbers import format_number
from identity_matters.report.sentences import headline

# How many metrics are shown where the claim has no sentence for the run. Those that its
# sentences on other runs name are shown in any case.
_METRICS_SHOWN = 8


def last_lines(summary: dict, path: Any, results_dir: Any) -> str:
    """Verdict, the paper's result, this run's, and where to find more.

    A run of changed settings, such as the user's own matrix, has no verdict.

    Args:
      summary: of the finished run.
      path: of its directory.
      results_dir: in which that lies.
    """
    claim = paper.CLAIMS.get(summary["claim"])
    if claim is None:  # an experiment whose claim is not written yet
        return (
            f"finished: {path}/summary.json\n"
            f"  claim   identity_matters/claims.toml has no {summary['claim']!r} yet;"
            " docs/adding_an_experiment.md shows how to add it"
        )
    root = epath.Path(results_dir)
    flag = "" if str(root) == "results/local" else f" RESULTS_DIR={root}"
    result = _own_result(summary, claim, path)
    changes = _changes(summary)
    if changes:
        compared = f"{claim.title} with {changes}: no verdict\n  yours   {result}\n"
    else:
        compared = (
            f"{claim.title}: {summary['verdict']}\n"
            f"  paper   {claim.published}\n"
            f"  yours   {result}\n"
        )
    return (
        f"{compared}"
        f"  all     {path}/summary.json, every trial in metrics.jsonl\n"
        f"  report  `make report{flag}` writes {root}/report.html\n"
        f"  claims  `make compare{flag}` prints all of them"
    )


def _changes(summary: dict) -> str:
    changed = summary.get("changed", {})
    return ", ".join(f"{name}={value!r}" for name, value in changed.items())


def _own_result(summary: dict, claim: paper.Claim, path: Any) -> str:
    """The claim's sentence filled with this run's numbers, or some of its metrics."""
    sentence = headline(claim.id, group_runs([runs.read_run(path)]))
    if sentence:
        return sentence
    # The claim's sentence covers other variants only.
    metrics = summary["metrics"]
    named = [name for name in metrics if _is_named_by(claim, name)]
    others = [name for name in metrics if name not in named]
    shown = named + others[: max(0, _METRICS_SHOWN - len(named))]
    return ", ".join(f"{name} = {format_number(metrics[name])}" for name in shown)


def _is_named_by(claim: paper.Claim, metric: str) -> bool:
    """Whether a sentence of the claim holds a value of this metric.

    `report.sentences` says how: ``{experiment/variant:max metric~3}``, say.
    """
    value = re.compile("[: ]" + re.escape(metric) + "[~}]")
    return any(value.search(sentence) for sentence in claim.ours)
