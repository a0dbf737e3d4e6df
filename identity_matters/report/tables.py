"""Groups of runs and what the report's tables say of them."""

import dataclasses
import math
import shlex
import statistics

from identity_matters import paper
from identity_matters.records import Run
from identity_matters.report.document import Table

CONTRADICTION = "not reproduced"


@dataclasses.dataclass(frozen=True)
class Group:
    """Finished runs of one experiment, variant and scale that differ in their seeds alone."""

    runs: tuple[Run, ...]

    @property
    def first(self) -> Run:
        return self.runs[0]

    @property
    def name(self) -> str:
        return f"{self.first.experiment}/{self.first.variant}"

    @property
    def scale(self) -> str:
        return self.first.summary["scale"]

    @property
    def claim(self) -> str:
        return self.first.summary["claim"]

    @property
    def verdict(self) -> str:
        """The verdict of all seeds, or each of them where they disagree."""
        verdicts = sorted({run.summary["verdict"] for run in self.runs})
        return " / ".join(verdicts)

    def metric(self, name: str) -> str:
        """Mean +- standard deviation over the seeds that have it; one value stands alone."""
        metrics = [run.summary["metrics"] for run in self.runs]
        values = [one[name] for one in metrics if name in one]
        if not values:
            return ""
        if len(values) < len(metrics):
            # What a seed lacks, the error of a net that diverged say, must not look measured.
            return f"{self._spread(values)} (n = {len(values)})"
        return self._spread(values)

    @staticmethod
    def _spread(values: list) -> str:
        if not all(isinstance(value, int | float) for value in values):
            return ", ".join(dict.fromkeys(str(value) for value in values))
        if len(values) == 1 or len(set(values)) == 1:
            return format_number(values[0])
        spread = statistics.stdev(values) if all(map(math.isfinite, values)) else math.nan
        return f"{format_number(statistics.fmean(values))} ± {format_number(spread, digits=2)}"


def format_number(value: float, digits: int = 4) -> str:
    """A number as the tables print it: whole numbers in full, others to `digits` digits."""
    if isinstance(value, bool) or (isinstance(value, int) and abs(value) < 10**15):
        return f"{value:,}" if not isinstance(value, bool) else str(value).lower()
    return f"{value:.{digits}g}"


def group_runs(runs: list[Run]) -> list[Group]:
    """The runs with status "done", by claim in the order of paper.CLAIMS and then by name."""
    groups: dict[tuple, list[Run]] = {}
    for run in runs:
        if run.status == "done":
            key = (run.summary["claim"], run.experiment, run.variant, run.summary["scale"])
            groups.setdefault(key, []).append(run)
    order = list(paper.CLAIMS)
    found = [Group(tuple(sorted(group, key=lambda run: run.seed))) for group in groups.values()]
    return sorted(found, key=lambda group: (order.index(group.claim), group.name, group.scale))


def by_variant(groups: dict[str, list[Group]]) -> dict[str, dict[str, Group]]:
    """Name of the variant -> label of the column -> its group."""
    variants: dict[str, dict[str, Group]] = {}
    for collection, members in groups.items():
        for group in members:
            mark = "" if group.scale == "paper" else " (reduced)"
            count = len(group.runs)
            label = f"{collection}{mark}, n = {count}"
            variants.setdefault(group.name, {})[label] = group
    return variants


def command(run: Run) -> str:
    """The command that makes this run."""
    return shlex.join(run.environment["command"])


def hardware(run: Run) -> str:
    """What the run ran on, in a line."""
    environment = run.environment
    packages = ", ".join(f"{name} {v}" for name, v in environment["packages"].items())
    commit = (environment["commit"] or "no commit known")[:12]
    if environment["dirty"]:
        commit += " with uncommitted changes"
    if environment["backend"] == "cpu":
        machine = f"{environment['cpu']}, {environment['cpu_cores']} cores"
    else:
        machine = f"{len(environment['devices'])} x {environment['devices'][0]}"
    return f"{machine}; Python {environment['python']}, {packages}; commit {commit}"


def _seeds(group: Group) -> str:
    return f"{len(group.runs)} (seed {', '.join(str(run.seed) for run in group.runs)})"


def _verdict_cell(groups: list[Group]) -> str:
    """The verdicts of a claim's runs at paper scale, counted; reduced ones apart and marked."""
    cells = []
    for scale, mark in (("paper", ""), ("reduced", " (reduced)")):
        verdicts = [group.verdict for group in groups if group.scale == scale]
        for verdict in dict.fromkeys(verdicts):
            count = verdicts.count(verdict)
            cells.append(f"{verdict}{f' x {count}' if count > 1 else ''}{mark}")
    return "; ".join(cells) or "not run"


def claims_table(collections: dict[str, list[Group]]) -> Table:
    """One row a claim: the verdict of each collection, the statement and where it stands."""
    rows = []
    for claim in paper.CLAIMS.values():
        own = [[g for g in groups if g.claim == claim.key] for groups in collections.values()]
        seeds = max((len(g.runs) for groups in own for g in groups), default=0)
        verdicts = [_verdict_cell(groups) for groups in own]
        rows.append((claim.key, *verdicts, str(seeds), claim.statement, claim.source))
    return Table(("claim", *collections, "seeds", "statement", "source"), tuple(rows))


def summary_table(groups: list[Group]) -> Table:
    """One row a claim for the README: what it says, our verdict, seeds, seconds and command."""
    rows = []
    for claim in paper.CLAIMS.values():
        own = [group for group in groups if group.claim == claim.key]
        seconds = sum(run.summary["seconds"]["total"] for g in own for run in g.runs)
        commands = ", ".join(dict.fromkeys(_make_target(group.first) for group in own))
        runs = str(sum(len(group.runs) for group in own)) if own else ""
        cells = (_verdict_cell(own), runs, f"{seconds:.0f}" if own else "", commands)
        rows.append((claim.key, claim.statement, *cells))
    columns = ("claim", "statement", "our verdict", "runs", "seconds", "command")
    return Table(columns, tuple(rows))


def _make_target(run: Run) -> str:
    is_benchmark = any(word.startswith("benchmarks.") for word in run.environment["command"])
    return "`make bench`" if is_benchmark else f"`make reproduce-{run.experiment}`"


def metrics_table(collections: dict[str, Group]) -> Table:
    """One row a metric of one variant: the paper's value and the value of each collection."""
    groups = list(collections.values())
    metrics = dict.fromkeys(
        m for group in groups for run in group.runs for m in run.summary["metrics"]
    )
    published = {k: v for group in groups for k, v in group.first.summary["paper"].items()}
    rows = []
    for metric in metrics:
        quoted = format_number(published[metric]) if metric in published else ""
        rows.append((metric, quoted, *(group.metric(metric) for group in groups)))
    return Table(("metric", "paper", *collections), tuple(rows))


def runs_table(groups: list[Group], root: str) -> Table:
    """One row a variant: verdict, n, scale, seconds, and where its run directories are."""
    rows = []
    for group in groups:
        seconds = sum(run.summary["seconds"]["total"] for run in group.runs) / len(group.runs)
        place = f"{root}/{group.name}"
        row = (group.name, group.claim, group.verdict, _seeds(group), group.scale)
        rows.append((*row, f"{seconds:.1f}", place))
    columns = ("run", "claim", "verdict", "n", "scale", "seconds a run", "directory")
    return Table(columns, tuple(rows))


def contradictions(collections: dict[str, list[Group]]) -> list[str]:
    """Why any group at paper scale contradicts its claim, or its counterpart in "reference"."""
    reference = {group.name: group for group in collections.get("reference", [])}
    found = []
    for name, groups in collections.items():
        for group in groups:
            if group.scale != "paper":
                continue
            if CONTRADICTION in group.verdict:
                found.append(f"{name} {group.name}: {group.claim} is {group.verdict}")
                continue
            other = reference.get(group.name)
            if other and other.scale == "paper" and other.verdict != group.verdict:
                found.append(
                    f"{name} {group.name}: {group.claim} is {group.verdict!r}, the reference says"
                    f" {other.verdict!r}"
                )
    return found
