"""The results on a claim as sentences.

A sentence holds values as ``{experiment/variant:metric}``: the range over all seeds, to
two digits (see `numbers.in_words`), or to three with ``{experiment/variant:metric~3}``.
``:max metric`` is the largest value, rounded up, and ``:min metric`` the smallest,
rounded down, so "at most" and "at least" stay true. ``{experiment/*:metric}`` uses each
seed's largest value over the variants. Reduced runs are used only if there are none at
paper scale.
"""

import collections
import contextlib
import itertools
import re

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
        named = [g for g in groups if name in (g.name, f"{g.first.experiment}/*")]
        found = [g for g in named if g.scale == "paper"] or named
        end: dict[int, float] = {}  # of each seed
        for run in (run for group in found for run in group.runs):
            if metric in run.summary["metrics"]:
                shown = run.summary["metrics"][metric]
                end[run.seed] = (min if extreme == "min" else max)(
                    shown, end.get(run.seed, shown)
                )
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
    """The results on a claim in a few words, with the number of seeds.

    There are up to `most` sentences.

    "not run" if no run belongs to the claim; empty if no run has the metrics of a
    sentence.
    """
    if not of_claim(claim, groups):
        return NOT_RUN
    found = []
    for sentence in paper.CLAIMS[claim].ours:
        with contextlib.suppress(MissingValueError):
            text, used = fill(sentence, groups)
            seeds = " and ".join(map(str, sorted({len(group.runs) for group in used})))
            reduced = (
                ", reduced" if any(group.scale == "reduced" for group in used) else ""
            )
            found.append((f" (n = {seeds}{reduced})", text))
    # Consecutive sentences with the same number of seeds give it once, after the last
    # of them.
    alike = itertools.groupby(found[:most], key=lambda one: one[0])
    return "; ".join(
        "; ".join(text for _, text in some) + marks for marks, some in alike
    )


def verdicts(claim: str, groups: list[Group]) -> str:
    """The verdicts on a claim: counted if they agree, else by variant.

    Reduced runs are marked.
    """
    # (scale, verdict) -> the variants that have it
    variants = collections.defaultdict(list)
    for group in of_claim(claim, groups):
        variants[group.scale, group.verdict].append(group.first.variant)
    agree = len({verdict for _, verdict in variants}) == 1
    cells = []
    for (scale, verdict), names in sorted(variants.items()):
        named = verdict if agree else f"{', '.join(names)}: {verdict}"
        count = f" x {len(names)}" if agree and len(names) > 1 else ""
        cells.append(f"{named}{count}{' (reduced)' if scale == 'reduced' else ''}")
    return "; ".join(cells) or NOT_RUN
