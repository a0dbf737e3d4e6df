"""The results on a claim as sentences.

A sentence holds values as ``{experiment/variant:metric}``: the range over all seeds, to
two digits (see `numbers.in_words`), or to three with ``{experiment/variant:metric~3}``.
``:max metric`` is the largest value, rounded up, and ``:min metric`` the smallest,
rounded down, so "at most" and "at least" stay true. Reduced runs are used only if there
are none at paper scale.

``{experiment/*:metric}`` takes one value for each seed out of all variants: the
largest, or with ``:min`` the smallest.
"""

import collections
import contextlib
import itertools
import re
from collections.abc import Callable
from typing import Any, NamedTuple

from identity_matters import paper
from identity_matters.report.collection import Group, of_claim
from identity_matters.report.numbers import in_words

NOT_RUN = "not run"
# {experiment/variant:max metric~digits}
_VALUE = re.compile(r"\{([^{}:]+):(?:(max|min) )?([^{}~]+)(?:~(\d))?\}")


class MissingValueError(Exception):
    """No run has the value that a sentence asks for; the message names it."""


def fill(sentence: str, groups: list[Group]) -> tuple[str, list[Group]]:
    """`sentence` with its values filled in, and the groups that they come from.

    Raises MissingValueError if there is no such run or metric, or the values cannot be
    compared.
    """
    used: list[Group] = []

    def value(match: re.Match) -> str:
        name, extreme, metric, digits = match.groups(default="")
        matching = _matching_groups(name, groups)
        end_of_seed = _end_of_each_seed(
            matching, metric, min if extreme == "min" else max
        )
        if not end_of_seed:
            raise MissingValueError(match[0])
        used.extend(matching)
        ends = list(end_of_seed.values())
        seeds = max(len(group.runs) for group in matching)
        of_some = f" (in {len(ends)} of {seeds} runs)" if len(ends) < seeds else ""
        return in_words(ends, int(digits or 2), extreme) + of_some

    try:
        return _VALUE.sub(value, sentence), used
    except TypeError as error:
        raise MissingValueError(f"{sentence}: {error}") from None


def _matching_groups(name: str, groups: list[Group]) -> list[Group]:
    """The groups that `name` means; reduced ones only if there are no others."""
    matching = [
        group for group in groups if name in (group.name, f"{group.first.experiment}/*")
    ]
    at_paper_scale = [group for group in matching if group.scale == "paper"]
    return at_paper_scale or matching


def _end_of_each_seed(
    groups: list[Group], metric: str, extreme: Callable[[Any, Any], Any]
) -> dict[int, Any]:
    """Seed -> the least or the largest value of a metric in its runs."""
    ends: dict[int, Any] = {}
    for group in groups:
        for run in group.runs:
            if metric in run.summary["metrics"]:
                value = run.summary["metrics"][metric]
                ends[run.seed] = extreme(value, ends.get(run.seed, value))
    return ends


class _Filled(NamedTuple):
    """A sentence with its values, and in brackets how many seeds they come from."""

    text: str
    seeds: str


def headline(claim: str, groups: list[Group], most: int | None = None) -> str:
    """The results on a claim in at most so many sentences, with the number of seeds.

    "not run" if no run belongs to the claim; empty if no run has the metrics of a
    sentence.
    """
    if not of_claim(claim, groups):
        return NOT_RUN
    filled = []
    for sentence in paper.CLAIMS[claim].ours:
        with contextlib.suppress(MissingValueError):
            text, used = fill(sentence, groups)
            filled.append(_Filled(text, _seeds(used)))
    # Consecutive sentences of the same number of seeds give it once, after the last.
    parts = []
    for seeds, alike in itertools.groupby(filled[:most], key=lambda part: part.seeds):
        parts.append("; ".join(part.text for part in alike) + seeds)
    return "; ".join(parts)


def _seeds(groups: list[Group]) -> str:
    """ " (n = 3)", " (n = 1 and 3, reduced)": how many seeds these groups have."""
    counts = sorted({len(group.runs) for group in groups})
    is_reduced = any(group.scale == "reduced" for group in groups)
    reduced = ", reduced" if is_reduced else ""
    return f" (n = {' and '.join(map(str, counts))}{reduced})"


def verdicts(claim: str, groups: list[Group]) -> str:
    """The verdicts on a claim: counted if they agree, else by variant.

    Reduced runs are marked.
    """
    variants_by_verdict = collections.defaultdict(list)
    for group in of_claim(claim, groups):
        variants_by_verdict[group.scale, group.verdict].append(group.first.variant)
    agree = len({verdict for _, verdict in variants_by_verdict}) == 1
    parts = []
    for (scale, verdict), variants in sorted(variants_by_verdict.items()):
        if agree:
            count = f" x {len(variants)}" if len(variants) > 1 else ""
            text = f"{verdict}{count}"
        else:
            text = f"{', '.join(variants)}: {verdict}"
        parts.append(f"{text} (reduced)" if scale == "reduced" else text)
    return "; ".join(parts) or NOT_RUN
