"""Prints, for each claim, the results of the paper, the reference runs and your runs.

Command: make compare

The exit code is 1 if a run contradicts the committed reference, if a run cannot be
read, or if there are runs but none is finished. A run contradicts the reference

* if the reference has another verdict for the same variant at the same scale;
* if it is a counterexample, at any scale, to a claim to which the reference has none;
* if the reference decides nothing about the variant, and the run, at the paper's scale,
  did not reproduce its claim, or seeds of it disagree.

"undecided" and "not comparable" contradict nothing. As long as you have made no runs,
it prints the results of the paper and the reference. `make report` shows all measured
values.
"""

import collections
import pathlib

import rich.console
import rich.text
from absl import flags

from experiments import commands
from identity_matters import paper
from identity_matters.report.collection import Collection, contradictions, read
from identity_matters.report.numbers import count_of
from identity_matters.report.sentences import NOT_RUN, headline, verdicts

# The colour of a verdict: that of the first of these that it contains. So "undecided",
# which may be followed by what some seeds say, must come first, "not reproduced" before
# "reproduced", and "", which all contain, at the end.
_STYLES = {
    "undecided": "default",
    "not reproduced": "red",
    "counterexample": "yellow",
    "reproduced": "green",
    "holds": "green",
    "": "default",
}


def _main(_: list[str]) -> int:
    directory = pathlib.Path(commands.RESULTS_DIR.value)
    # In a fresh clone the usual directory is not there yet.
    is_usual = directory == pathlib.Path(commands.RESULTS_DIR.default)
    if not directory.is_dir() and not is_usual:
        raise flags.ValidationError(f"{directory}: there is no such directory")
    reference = read("reference", commands.REFERENCE_DIR.value)
    yours = read("yours", directory)
    console = commands.Console()
    for claim in paper.CLAIMS.values():
        _print_claim(claim, reference, yours, console)
    problems = [
        f"skipped: {problem}" for problem in (*reference.problems, *yours.problems)
    ]
    for line in (*problems, *yours.unfinished, *versions(yours, reference)):
        console.print(line, style="yellow")
    against = contradictions(yours.groups, reference.groups)
    for line in against:
        console.print(f"contradiction: {line}", style="red")
    if not (yours.runs or yours.unfinished or problems):
        console.print(
            f"{directory}: there are no runs yet; `make reproduce` makes them"
        )
        return 0
    console.print(_counts(yours, len(against), len(problems)))
    console.print(f"all values: {directory / 'report.html'} (make report)")
    return 1 if against or problems or not yours.runs else 0


def _print_claim(
    claim: paper.Claim,
    reference: Collection,
    yours: Collection,
    console: commands.Console,
) -> None:
    """Prints title, verdict and results of a claim that you have runs of.

    If you have no runs at all, it is one that the reference has runs of.
    """
    known = verdicts(claim.id, reference.groups)
    verdict = verdicts(claim.id, yours.groups)
    if verdict == NOT_RUN and (yours.runs or known == NOT_RUN):
        return
    style = next(style for words, style in _STYLES.items() if words in verdict)
    console.print(
        rich.text.Text.assemble((claim.title, "bold"), ": ", (verdict, style))
    )
    results = {
        "paper": claim.published,
        "reference": headline(claim.id, reference.groups),
        "yours": headline(claim.id, yours.groups) if verdict != NOT_RUN else "",
    }
    if known != verdict:
        results["reference"] += f" [{known}]"
    for name, text in results.items():
        if text:
            console.print(f"    {name:<10} {text}")


def _counts(yours: Collection, contradicted: int, unreadable: int) -> str:
    """How many runs, verdicts, contradictions and unreadable runs there are.

    Verdicts are those of variants, as above: a claim may need several seeds.
    """
    finished = count_of(len(yours.runs), "finished run")
    if yours.groups:
        counted = collections.Counter(group.verdict for group in yours.groups)
        variants = count_of(len(yours.groups), "variant")
        finished += f" of {variants}: {commands.counted(counted)}"
    against = count_of(contradicted, "contradiction")
    return f"{finished}; {against}, {unreadable} unreadable"


def versions(yours: Collection, reference: Collection) -> list[str]:
    """One line for each jax version of yours that no reference run used.

    There is none if no version of the reference is known.
    """
    known = _jax_versions(reference)
    if not known:
        return []
    return [
        f"jax {version} here, {', '.join(sorted(known))} in the reference"
        for version in sorted(_jax_versions(yours) - known)
    ]


def _jax_versions(collection: Collection) -> set[str]:
    return {
        str(environment["packages"].get("jax", "unknown"))
        for run in collection.runs
        for environment in run.environments
    }


if __name__ == "__main__":
    commands.run(_main)
