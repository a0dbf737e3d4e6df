"""Prints, for each claim, the results of the paper, the reference runs and your runs.

Command: make compare
The exit code is 1 if a run contradicts the committed reference (or its claim, if there is no
reference and the run is at paper scale), if a run cannot be read, or if no run is finished.
"undecided" and "not comparable" contradict nothing. `make report` has all measured values.
"""

import collections
import pathlib

import rich.console
import rich.text
from absl import flags

from experiments import commands
from identity_matters import paper
from identity_matters.report import groups

# The colour of a verdict: that of the first of these words in it.
_STYLES = {
    "not reproduced": "red",
    "counterexample": "yellow",
    "reproduced": "green",
    "holds": "green",
    "": "default",
}


def _main(_: list[str]) -> int:
    directory = pathlib.Path(commands.RESULTS_DIR.value)
    if not directory.is_dir():
        message = f"{directory}: there is no such directory; `make reproduce` makes runs"
        raise flags.ValidationError(message)
    reference = groups.read("reference", commands.REFERENCE_DIR.value)
    yours = groups.read("yours", directory)
    console = commands.Console()
    for claim in paper.CLAIMS.values():
        known, verdict = (groups.verdicts(claim.id, one.groups) for one in (reference, yours))
        if verdict == groups.NOT_RUN:
            continue
        style = next(style for start, style in _STYLES.items() if start in verdict)
        console.print(rich.text.Text.assemble((claim.title, "bold"), ": ", (verdict, style)))
        theirs, ours = (groups.headline(claim.id, one.groups) for one in (reference, yours))
        if known != verdict:
            theirs += f" [{known}]"
        for name, text in {"paper": claim.published, "reference": theirs, "yours": ours}.items():
            if text:
                console.print(rich.text.Text(f"    {name:<10} {text}"))
    problems = [f"skipped: {problem}" for problem in (*reference.problems, *yours.problems)]
    other = versions(yours, reference)
    for line in (*problems, *yours.unfinished, *other):
        console.print(rich.text.Text(line, "yellow"))
    against = groups.contradictions(yours.groups, reference.groups)
    for line in against:
        console.print(rich.text.Text(f"contradiction: {line}", "red"))
    said = commands.counted(collections.Counter(group.verdict for group in yours.groups))
    runs = f"{len(yours.runs)} finished run{'' if len(yours.runs) == 1 else 's'}"
    verdicts = f": {said}" if said else ""
    counts = f"{len(against)} contradictions, {len(problems)} unreadable"
    report = f"{directory / 'report.html'} (make report)"
    console.print(f"{runs}{verdicts}; {counts}; all values: {report}")
    return 1 if against or problems or not yours.runs else 0


def versions(yours: groups.Collection, reference: groups.Collection) -> list[str]:
    """One line for each jax version of yours that no reference run used."""
    here, there = (
        {run.environment["packages"].get("jax", "unknown") for run in found.runs}
        for found in (yours, reference)
    )
    known = ", ".join(sorted(there))
    return [f"jax {own} here, {known} in the reference" for own in sorted(here - there) if known]


if __name__ == "__main__":
    commands.run(_main)
