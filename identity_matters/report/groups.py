"""Runs for the report: they are checked, grouped if only their seeds differ, and put into words.

A sentence holds values as ``{experiment/variant:metric}``: the range over all seeds, to two digits
(see `in_words`), or to three with ``{experiment/variant:metric~3}``. ``:max metric`` is the largest
value, rounded up, and ``:min metric`` the smallest, rounded down, so "at most" and "at least" stay
true. ``{experiment/*:metric}`` uses each seed's largest value over the variants. Reduced runs are
used only if there are none at paper scale.
This module imports neither JAX nor Matplotlib, so commands that only compare runs start fast.
"""

import collections
import contextlib
import dataclasses
import decimal
import itertools
import os
import re
import shlex
import statistics
from collections.abc import Iterable

from identity_matters import paper
from identity_matters.runs import Run, read_collection

NOT_RUN = "not run"
_UNDECIDED = {"undecided", "not comparable"}  # these cannot contradict another verdict
# The exceptions that reading a malformed record can raise.
MALFORMED = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
# {experiment/variant:max metric~digits}
_VALUE = re.compile(r"\{([^{}:]+):(?:(max|min) )?([^{}~]+)(?:~(\d))?\}")


class MissingValueError(Exception):
    """No run has the value that a sentence asks for; the message names it."""


def origin(run: Run) -> dict[str, str]:
    """A finished run's origin, in words; raises one of `MALFORMED` if its files lack it."""
    environment = run.environment
    commit = environment["commit"][:12] if environment["commit"] else "no commit known"
    if environment["backend"] == "cpu":
        cores = environment["cpu_cores"]
        machine = f"{environment['cpu']}, {cores} core{'' if cores == 1 else 's'}"
    else:
        machine = f"{len(environment['devices'])} x {environment['devices'][0]}"
    packages = {"Python": environment["python"], **environment["packages"]}
    return {
        "commit": f"{commit} with uncommitted changes" if environment["dirty"] else commit,
        "started": environment["started"][:16].replace("T", " ") + " UTC",
        "machine": machine,
        "took": duration(run.summary["seconds"]["total"]),
        "command": shlex.join(environment["command"]),
        "versions": ", ".join(f"{name} {version}" for name, version in packages.items()),
    }


@dataclasses.dataclass(frozen=True)
class Group:
    """Finished runs of one experiment, variant and scale that differ only in their seeds."""

    runs: tuple[Run, ...]

    first = property(lambda self: self.runs[0])
    name = property(lambda self: f"{self.first.experiment}/{self.first.variant}")
    scale = property(lambda self: self.first.summary["scale"])
    claim = property(lambda self: self.first.summary["claim"])

    @property
    def verdict(self) -> str:
        """The verdict of all seeds; if they disagree, each one with its count, largest first."""
        counts = collections.Counter(run.summary["verdict"] for run in self.runs).most_common()
        said = [f"{verdict} for {count}" for verdict, count in counts]
        text = f"{', '.join(said)} of {len(self.runs)} seeds" if len(said) > 1 else counts[0][0]
        # A claim that "holds" is proved; the runs only tried to refute it.
        return text.replace("holds", "holds (proved)")

    @property
    def decided(self) -> set[str]:
        """The verdicts of the seeds that decide something."""
        return {run.summary["verdict"] for run in self.runs} - _UNDECIDED

    def metric(self, name: str) -> str:
        """Mean ± standard deviation over the seeds that have the metric, and n if some lack it."""
        metrics = [run.summary["metrics"] for run in self.runs]
        values = [one[name] for one in metrics if name in one]
        if not values:
            return ""
        return mean_sd(values) + (f" (n = {len(values)})" if len(values) < len(metrics) else "")


def group_runs(runs: Iterable[Run]) -> list[Group]:
    """Groups finished runs, sorted by claim in the order of claims.toml, and then by name."""
    groups: dict[tuple, list[Run]] = {}
    for run in sorted(runs, key=lambda run: run.seed):
        place = list(paper.CLAIMS).index(run.summary["claim"])
        name = f"{run.experiment}/{run.variant}"
        groups.setdefault((place, name, run.summary["scale"]), []).append(run)
    return [Group(tuple(groups[key])) for key in sorted(groups)]


@dataclasses.dataclass(frozen=True)
class Collection:
    """The finished runs of a directory, and a line for each unfinished and each unusable one."""

    name: str
    runs: list[Run]
    groups: list[Group]
    unfinished: list[str]
    problems: list[str]


def read(name: str, directory: str | os.PathLike[str]) -> Collection:
    """Reads the runs in `directory`, if it exists; `problems` lists what the tables cannot use."""
    found, problems = read_collection(directory)
    runs = []
    for run in (run for run in found if run.status == "done"):
        try:
            group_runs([run])
            origin(run)
            for value in (*run.summary["metrics"].values(), *run.summary["paper"].values()):
                mean_sd([value])
            runs.append(run)
        except MALFORMED as error:
            problems.append(f"{run.path}: cannot be reported: {type(error).__name__} {error}")
    unfinished = [f"{run.path}: {run.status}" for run in found if run.status != "done"]
    return Collection(name, runs, group_runs(runs), unfinished, problems)


def of_claim(claim: str, groups: list[Group]) -> list[Group]:
    """The groups whose claim has this id."""
    return [group for group in groups if group.claim == claim]


def pick(record: dict, names: str) -> dict:
    """Some fields of a record, named in one string; "new=old" renames one."""
    pairs = (name.rpartition("=") for name in names.split())
    return {new or old: record[old] for new, _, old in pairs}


def rows(records: list[dict], names: str) -> list[dict]:
    """Some fields of each record, as in `pick`; parallel lists give one row per position.

    From ``{"depth": 2, "norms": [0.1, 0.3]}``, "depth norm=norms" makes the rows
    ``{"depth": 2, "norm": 0.1}`` and ``{"depth": 2, "norm": 0.3}``. Lists may be nested.
    """
    found: list[dict] = []
    for row in (pick(record, names) for record in records):
        lists = [name for name, held in row.items() if isinstance(held, list)]
        if not lists:
            found.append(row)
            continue
        places = zip(*(row[name] for name in lists), strict=True)
        each = [row | dict(zip(lists, place, strict=True)) for place in places]
        found += rows(each, " ".join(row))
    return found


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and abs(value) < 1e300


def format_number(value: float, digits: int = 4) -> str:
    """Formats a number for the tables: integers in full, others to `digits` digits.

    Below a million, others are rounded to integers from 1,000 on and where they would need an
    exponent. What is not a number, such as None, is printed as it is.
    """
    if isinstance(value, bool):
        return str(value).lower()
    if not _is_number(value):
        return str(value)
    if isinstance(value, int) and abs(value) < 10**15:
        return f"{value:,}"
    text = f"{value:.{digits}g}"
    whole = abs(value) < 10**6 and (abs(value) >= 1000 or "e+" in text)
    return f"{value:,.0f}" if whole else text


def mean_sd(values: list) -> str:
    """Mean ± standard deviation, or the value alone if all are equal."""
    if not all(map(_is_number, values)):
        return ", ".join(dict.fromkeys(map(str, values)))
    if len(set(values)) == 1:
        return format_number(values[0])
    deviation = format_number(statistics.stdev(values), digits=2)
    return f"{format_number(statistics.fmean(values))} ± {deviation}"


def in_words(values: list, digits: int = 2, extreme: str = "") -> str:
    """Values in a sentence: their range, or one number if the ends agree to `digits` digits.

    `extreme` "max" or "min" gives only that value, rounded so that it bounds all of them.

    >>> in_words([4, 8, 4]), in_words([0.6012, 0.6026]), in_words([50_000]), in_words([1.6e32])
    ('4–8', '0.60', '50,000', '1.6 × 10^32')
    >>> in_words([0.6386, 0.6412], extreme="min"), in_words([0.6386, 0.6412], extreme="max")
    ('0.63', '0.65')
    """
    if not all(map(_is_number, values)):
        return ", ".join(dict.fromkeys(map(str, values)))
    ends = {"min": [min(values)], "max": [max(values)]}.get(extreme, [min(values), max(values)])
    return "–".join(dict.fromkeys(_in_words(end, digits, extreme) for end in ends))


def _in_words(value: float, digits: int, extreme: str) -> str:
    whole = isinstance(value, int) or (value.is_integer() and abs(value) < 10**15)
    if extreme and not whole:
        rounding = decimal.ROUND_CEILING if extreme == "max" else decimal.ROUND_FLOOR
        # Drop the rounding errors of float64 first: 1 + 2e-16 is at most 1.0.
        exact = decimal.Context(prec=9).create_decimal_from_float(value)
        # Below a million the whole part is printed in full.
        kept = max(digits, exact.adjusted() + 1) if abs(value) < 10**6 else digits
        value = float(decimal.Context(prec=kept, rounding=rounding).create_decimal(exact))
    large = abs(float(f"{value:.{digits}g}")) >= min(10**digits, 1000)
    # Trailing zeros show the precision of a rounded number: 1.0.
    shown = format_number(value, digits) if whole or large else f"{value:#.{digits}g}"
    mantissa, _, exponent = shown.partition("e")
    return f"{mantissa} × 10^{int(exponent)}" if exponent else mantissa.removesuffix(".")


def fill(sentence: str, groups: list[Group]) -> tuple[str, list[Group]]:
    """`sentence` with its values filled in, and the groups that they come from.

    Raises MissingValueError if there is no such run or metric, or the values cannot be compared.
    """
    used: list[Group] = []

    def value(match: re.Match) -> str:
        name, extreme, metric, digits = match.groups(default="")
        named = [g for g in groups if name in (g.name, f"{g.first.experiment}/*")]
        found = [g for g in named if g.scale == "paper"] or named
        end: dict[int, float] = {}  # of each seed
        for run in (run for group in found for run in group.runs):
            if metric in run.summary["metrics"]:
                shown = run.summary["metrics"][metric]
                end[run.seed] = (min if extreme == "min" else max)(shown, end.get(run.seed, shown))
        if not end:
            raise MissingValueError(match[0])
        used.extend(found)
        seeds = max(len(group.runs) for group in found)
        of_some = f" (in {len(end)} of {seeds} runs)" if len(end) < seeds else ""
        return in_words(list(end.values()), int(digits or 2), extreme) + of_some

    try:
        return _VALUE.sub(value, sentence), used
    except TypeError as error:
        raise MissingValueError(f"{sentence}: {error}") from None


def headline(claim: str, groups: list[Group], most: int | None = None) -> str:
    """The results on a claim in a few words: up to `most` sentences, with the number of seeds.

    "not run" if no run belongs to the claim; empty if no run has the metrics of a sentence.
    """
    if not of_claim(claim, groups):
        return NOT_RUN
    found = []
    for sentence in paper.CLAIMS[claim].ours:
        with contextlib.suppress(MissingValueError):
            text, used = fill(sentence, groups)
            seeds = " and ".join(map(str, sorted({len(group.runs) for group in used})))
            reduced = ", reduced" if any(group.scale == "reduced" for group in used) else ""
            found.append((f" (n = {seeds}{reduced})", text))
    # Consecutive sentences with the same number of seeds give it once, after the last of them.
    alike = itertools.groupby(found[:most], key=lambda one: one[0])
    return "; ".join("; ".join(text for _, text in some) + marks for marks, some in alike)


def verdicts(claim: str, groups: list[Group]) -> str:
    """The verdicts on a claim: counted if they agree, else by variant; reduced runs are marked."""
    variants = collections.defaultdict(list)  # (scale, verdict) -> the variants that have it
    for group in of_claim(claim, groups):
        variants[group.scale, group.verdict].append(group.first.variant)
    agree = len({verdict for _, verdict in variants}) == 1
    cells = []
    for (scale, verdict), names in sorted(variants.items()):
        named = verdict if agree else f"{', '.join(names)}: {verdict}"
        count = f" x {len(names)}" if agree and len(names) > 1 else ""
        cells.append(f"{named}{count}{' (reduced)' if scale == 'reduced' else ''}")
    return "; ".join(cells) or NOT_RUN


def duration(seconds: float) -> str:
    """Seconds in the unit that suits them: "42 s", "5.3 min", "2.1 h"."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def contradictions(yours: list[Group], reference: list[Group]) -> list[str]:
    """One line for each group that contradicts the reference of its scale, itself or its claim.

    Reduced runs cannot contradict a claim. A failure that the reference shares is not listed.
    """
    known = {(group.name, group.scale): group for group in reference}
    found = []
    for group in yours:
        other = known.get((group.name, group.scale))
        expected = other.decided if other else set()
        theirs = f"; the reference: {other.verdict}" if other and expected else ""
        refuted = len(group.decided) > 1 or "not reproduced" in group.decided
        if not group.decided <= expected and (theirs or (refuted and group.scale == "paper")):
            title = paper.CLAIMS[group.claim].title
            found.append(f"{group.name} ({title}): {group.verdict}{theirs}")
    return found
