"""The runs of a directory, checked and grouped if they differ only in their seeds.

This module imports neither JAX nor Matplotlib, so commands that only compare runs start
fast.
"""

import collections
import dataclasses
import os
import shlex
from collections.abc import Iterable

from identity_matters import paper
from identity_matters.report.numbers import count_of, duration, mean_sd
from identity_matters.report.records import MALFORMED
from identity_matters.runs import Run, read_collection

_UNDECIDED = {"undecided", "not comparable"}  # these cannot contradict another verdict
# How the verdict of seeds that disagree ends, and what is added for reduced runs.
_OF_SEEDS = " seeds"
REDUCED = " (reduced)"


@dataclasses.dataclass(frozen=True)
class Group:
    """Finished runs of one experiment, variant and scale, with different seeds."""

    runs: tuple[Run, ...]

    @property
    def first(self) -> Run:
        """The run with the least seed."""
        return self.runs[0]

    @property
    def name(self) -> str:
        """EXPERIMENT/VARIANT."""
        return f"{self.first.experiment}/{self.first.variant}"

    @property
    def scale(self) -> str:
        """ "paper" or "reduced"."""
        return self.first.summary["scale"]

    @property
    def claim(self) -> str:
        """The id of the claim in claims.toml."""
        return self.first.summary["claim"]

    @property
    def verdict(self) -> str:
        """The verdict of all seeds, or each one with its count, largest first.

        If its claim has `agreeing_seeds`, it is "undecided", with what some of the
        seeds say, unless there are so many seeds and all agree.
        """
        # A claim that "holds" is proved; the runs only tried to refute it.
        return self._verdict_of_seeds().replace("holds", "holds (proved)")

    def _verdict_of_seeds(self) -> str:
        verdicts = [run.summary["verdict"] for run in self.runs]
        if self._agrees or set(verdicts) == {"not comparable"}:
            return verdicts[0]
        if self._seeds_needed == 1:
            return _counted(verdicts, seeds=len(self.runs))
        deciding = [verdict for verdict in verdicts if verdict not in _UNDECIDED]
        if not deciding:
            return "undecided"
        counted = _counted(deciding, seeds=len(self.runs), needed=self._seeds_needed)
        return f"undecided ({counted})"

    @property
    def _seeds_needed(self) -> int:
        """How many seeds must have one verdict."""
        return paper.CLAIMS[self.claim].agreeing_seeds

    @property
    def _agrees(self) -> bool:
        """Whether there are enough seeds, and all have one verdict."""
        verdicts = {run.summary["verdict"] for run in self.runs}
        return len(verdicts) == 1 and len(self.runs) >= self._seeds_needed

    @property
    def decided(self) -> set[str]:
        """The verdicts that decide something: of each seed, or of enough that agree."""
        if self._seeds_needed > 1 and not self._agrees:
            return set()
        return {run.summary["verdict"] for run in self.runs} - _UNDECIDED

    def metric(self, name: str) -> str:
        """Mean ± standard deviation over the seeds, with n if some lack the metric."""
        metrics = [run.summary["metrics"] for run in self.runs]
        values = [
            values_of_run[name] for values_of_run in metrics if name in values_of_run
        ]
        if not values:
            return ""
        return mean_sd(values) + (
            f" (n = {len(values)})" if len(values) < len(metrics) else ""
        )


def _counted(verdicts: list[str], *, seeds: int, needed: int = 1) -> str:
    """Such as "reproduced for 2, undecided for 1 of 3 seeds", most frequent first.

    With fewer seeds than needed, such as "reproduced for 1 of 1; a verdict needs 3
    seeds".
    """
    counts = collections.Counter(verdicts).most_common()
    each = ", ".join(f"{verdict} for {count}" for verdict, count in counts)
    needs = f"; a verdict needs {needed}" if seeds < needed else ""
    return f"{each} of {seeds}{needs}{_OF_SEEDS}"


def seeds_disagree(verdict: str) -> bool:
    """Whether a `Group.verdict`, also one marked as REDUCED, names what seeds say."""
    return verdict.removesuffix(REDUCED).removesuffix(")").endswith(_OF_SEEDS)


def group_runs(runs: Iterable[Run]) -> list[Group]:
    """The groups of finished runs, in the order of claims.toml, and then by name."""
    places = {claim: place for place, claim in enumerate(paper.CLAIMS)}
    groups: dict[tuple, list[Run]] = {}
    for run in sorted(runs, key=lambda run: run.seed):
        name = f"{run.experiment}/{run.variant}"
        key = places[run.summary["claim"]], name, run.summary["scale"]
        groups.setdefault(key, []).append(run)
    return [Group(tuple(groups[key])) for key in sorted(groups)]


def of_claim(claim: str, groups: list[Group]) -> list[Group]:
    """The groups whose claim has this id."""
    return [group for group in groups if group.claim == claim]


@dataclasses.dataclass(frozen=True)
class Collection:
    """The runs of a directory that have a verdict, and what is said of the others.

    Attributes:
      name: "reference", "yours".
      runs: those that have a verdict and can be reported.
      groups: the same runs.
      unfinished: a line for each run that has no verdict: it is not done, or it
        diverged and its experiment does not judge that.
      problems: a line for each that cannot be used.
    """

    name: str
    runs: list[Run]
    groups: list[Group]
    unfinished: list[str]
    problems: list[str]


def read(name: str, directory: str | os.PathLike[str]) -> Collection:
    """Reads the runs in `directory`, if it exists.

    `problems` lists what the tables cannot use.
    """
    every_run, problems = read_collection(directory)
    unfinished = []
    runs = []
    for run in every_run:
        if not run.is_judged:
            unfinished.append(f"{run.path}: {run.status}")
            continue
        try:
            _check_can_be_reported(run)
            runs.append(run)
        except MALFORMED as error:
            problems.append(
                f"{run.path}: cannot be reported: {type(error).__name__} {error}"
            )
    return Collection(
        name=name,
        runs=runs,
        groups=group_runs(runs),
        unfinished=unfinished,
        problems=problems,
    )


def _check_can_be_reported(run: Run) -> None:
    """Reads what the tables read; raises one of `MALFORMED` where they would."""
    group_runs([run])
    origin(run)
    for values in (run.summary["metrics"], run.summary["paper"]):
        for value in values.values():
            mean_sd([value])
    if run.status == "diverged":
        mean_sd([run.summary["metrics"]["diverged_after_step"]])


@dataclasses.dataclass(frozen=True)
class Origin:
    """Where a finished run comes from, in words; several entries if it was resumed."""

    commits: list[str]
    started: str
    machines: list[str]
    seconds: float
    command: str
    versions: list[str]


def origin(run: Run) -> Origin:
    """The origin of a finished run; raises one of `MALFORMED` if its files lack it."""
    return Origin(
        commits=_distinct(_commit(environment) for environment in run.environments),
        started=run.environment["started"][:16].replace("T", " ") + " UTC",
        machines=_distinct(_machine(environment) for environment in run.environments),
        seconds=run.summary["seconds"]["total"],
        command=shlex.join(run.environment["command"]),
        versions=_distinct(_versions(environment) for environment in run.environments),
    )


def _distinct(texts: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(texts))


def _commit(environment: dict) -> str:
    commit = environment["commit"][:12] if environment["commit"] else "no commit known"
    return f"{commit} with uncommitted changes" if environment["dirty"] else commit


def _machine(environment: dict) -> str:
    if environment["backend"] == "cpu":
        return f"{environment['cpu']}, {count_of(environment['cpu_cores'], 'core')}"
    return f"{len(environment['devices'])} x {environment['devices'][0]}"


def _versions(environment: dict) -> str:
    packages = {"Python": environment["python"], **environment["packages"]}
    versions = [f"{name} {version}" for name, version in packages.items()]
    variables = environment.get("variables", {}).items()
    return ", ".join([*versions, *(f"{name}={value}" for name, value in variables)])


def took(run: Run) -> str:
    """How long a finished run took."""
    return duration(origin(run).seconds)


def contradictions(yours: list[Group], reference: list[Group]) -> list[str]:
    """One line for each group that contradicts the reference or its claim.

    A group is compared with the reference's group of the same name and scale. What both
    say is not listed, even if it refutes the claim. Without a verdict of the reference,
    a group must refute the claim itself, which only runs at the paper's scale can.

    A counterexample is one at any scale, and whatever it is compared with: it is listed
    unless the reference has a counterexample to the same claim.
    """
    in_reference = {(group.name, group.scale): group for group in reference}
    refuted_claims = {group.claim for group in reference if _has_counterexample(group)}
    lines = []
    for group in yours:
        expected = in_reference.get((group.name, group.scale))
        contradicted = _contradicted(group, expected, refuted_claims)
        if contradicted is not None:
            title = paper.CLAIMS[group.claim].title
            lines.append(f"{group.name} ({title}): {group.verdict}{contradicted}")
    return lines


def _contradicted(
    group: Group, expected: Group | None, refuted_claims: set[str]
) -> str | None:
    """What the line of `contradictions` says of the reference; None for no line.

    `expected` is the reference's group, and `refuted_claims` those for which it has a
    counterexample.
    """
    expected_verdicts = expected.decided if expected else set()
    if group.decided <= expected_verdicts:
        return None
    if expected and expected_verdicts:
        return f"; the reference: {expected.verdict}"
    if _has_counterexample(group) and group.claim not in refuted_claims:
        return "; the reference has no counterexample to this claim"
    if group.scale == "paper" and _refutes(group):
        return ""
    return None


def _has_counterexample(group: Group) -> bool:
    return "counterexample" in group.decided


def _refutes(group: Group) -> bool:
    """Whether a run of the group did not reproduce its claim, or its runs disagree."""
    return "not reproduced" in group.decided or len(group.decided) > 1
