"""The results on a claim as sentences.

A sentence holds values as ``{experiment/variant:metric}``: the range over all seeds, to
two digits (see `numbers.in_words`), or to three with ``{experiment/variant:metric~3}``.
``:max metric`` is the largest value, rounded up, and ``:min metric`` the smallest,
rounded down, so "at most" and "at least" stay true. Reduced runs are used only if there
are none at paper scale.

``{experiment/*:metric}`` takes one value for each seed out of all variants: the
largest, or with ``:min`` the smallest.

Where some seeds lack the metric, as those that diverged do, "(in 2 of 3 runs)" follows
the value, or the " %" behind it.
"""

import collections
import contextlib
import itertools
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from identity_matters import paper
from identity_matters.report.collection import REDUCED, Group, of_claim
from identity_matters.report.numbers import in_words

NOT_RUN = "not run"
_DIGITS = 2  # of a value, unless the sentence says otherwise
# {experiment/variant:max metric~digits}, perhaps with a percent sign
_VALUE = re.compile(r"\{([^{}:]+):(?:(max|min) )?([^{}~]+)(?:~(\d))?\}( %)?")


class MissingValueError(Exception):
    """No run has the value that a sentence asks for; the message names it."""


def fill(sentence: str, groups: list[Group]) -> tuple[str, list[Group]]:
    """`sentence` with its values filled in, and the groups that they come from.

    Raises MissingValueError if there is no such run or metric, or a run could not
    measure it.
    """
    used: list[Group] = []

    def in_place_of(match: re.Match) -> str:
        name, extreme, metric, digits, percent = match.groups(default="")
        matching = _matching_groups(name, groups)
        values = _value_of_each_seed(matching, metric, smallest=extreme == "min")
        if not values or None in values:
            raise MissingValueError(match[0])
        used.extend(matching)
        text = in_words(values, int(digits or _DIGITS), extreme) + percent
        seeds = max(len(group.runs) for group in matching)
        if len(values) < seeds:
            return f"{text} (in {len(values)} of {seeds} runs)"
        return text

    return _VALUE.sub(in_place_of, sentence), used


def _matching_groups(name: str, groups: list[Group]) -> list[Group]:
    """The groups that `name` means; reduced ones only if there are no others."""
    matching = [
        group for group in groups if name in (group.name, f"{group.first.experiment}/*")
    ]
    at_paper_scale = [group for group in matching if group.scale == "paper"]
    return at_paper_scale or matching


def _value_of_each_seed(
    groups: list[Group], metric: str, *, smallest: bool
) -> list[Any]:
    """One value for each seed that has the metric, None if a run could not measure it.

    Of several groups, which are the variants of ``{experiment/*:metric}``, the group
    with the largest value of the seed counts, or that with the smallest.
    """
    values_by_seed: dict[int, list[Any]] = {}
    for group in groups:
        for run in group.runs:
            if metric in run.summary["metrics"]:
                value = run.summary["metrics"][metric]
                values_by_seed.setdefault(run.seed, []).append(value)
    return [
        _extreme_of(values, smallest=smallest) for values in values_by_seed.values()
    ]


def _extreme_of(values: list[Any], *, smallest: bool) -> Any:
    """The smallest or the largest value; None if there is a None among them."""
    if None in values:
        return None
    return min(values) if smallest else max(values)


class _Filled(NamedTuple):
    """A sentence with its values, and in brackets how many seeds they come from."""

    text: str
    seeds: str


def headline(claim: str, groups: list[Group], most: int | None = None) -> str:
    """The results on a claim, in at most `most` of its sentences, with the seeds.

    "not run" if no run belongs to the claim; empty if no run has the metrics of a
    sentence. Runs that diverged come first.
    """
    if not of_claim(claim, groups):
        return NOT_RUN
    filled = []
    for sentence in paper.CLAIMS[claim].ours:
        with contextlib.suppress(MissingValueError):
            text, used = fill(sentence, groups)
            filled.append(_Filled(text, _seeds_in_brackets(used)))
    shown = [*_divergences(of_claim(claim, groups)), *filled[:most]]
    # Consecutive sentences of the same number of seeds give it once, after the last.
    parts = []
    for seeds, alike in itertools.groupby(shown, key=lambda part: part.seeds):
        parts.append("; ".join(part.text for part in alike) + seeds)
    return "; ".join(parts)


def _divergences(groups: list[Group]) -> Iterator[_Filled]:
    """A sentence for each group of which runs diverged."""
    for group in groups:
        diverged = [run for run in group.runs if run.status == "diverged"]
        if diverged:
            steps = [run.summary["metrics"]["diverged_after_step"] for run in diverged]
            text = f"{group.first.variant} diverged after step {in_words(steps, 3)}"
            if len(diverged) < len(group.runs):
                text += f" (in {len(diverged)} of {len(group.runs)} runs)"
            yield _Filled(text, _seeds_in_brackets([group]))


def _seeds_in_brackets(groups: list[Group]) -> str:
    """ " (n = 3)", " (n = 1 and 3, reduced)": how many seeds these groups have."""
    counts = sorted({len(group.runs) for group in groups})
    is_reduced = any(group.scale == "reduced" for group in groups)
    reduced = ", reduced" if is_reduced else ""
    return f" (n = {' and '.join(map(str, counts))}{reduced})"


def verdicts(claim: str, groups: list[Group]) -> str:
    """The verdicts on a claim, counted if they agree, else by variant."""
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
        parts.append(f"{text}{REDUCED}" if scale == "reduced" else text)
    return "; ".join(parts) or NOT_RUN
