"""docs/metrics.md has a line for every number of a reference run, and none is stale.

docs/architecture.md has a row for every field of their summaries.
"""

import fnmatch
import functools
import json
import re
from typing import NamedTuple

from tests.docs.pages import DOCS, read
from tests.forked import ROOT

SUMMARIES = sorted((ROOT / "results" / "reference").rglob("summary.json"))
# Headings of sections that name no experiment -> what the lines there are about.
ANY_EXPERIMENT = "any experiment"
OTHER_HEADINGS = {"Every experiment": ANY_EXPERIMENT, "Benchmarks": "benchmark"}


class Recorded(NamedTuple):
    """A metric, or a field of the lines of metrics.jsonl, that a run has recorded."""

    experiment: str
    name: str


class Line(NamedTuple):
    """A line of the page: the experiments that it is about, and a name or pattern."""

    experiments: tuple[str, ...]
    pattern: str

    def describes(self, recorded: Recorded) -> bool:
        is_about_it = recorded.experiment in self.experiments
        if not is_about_it and self.experiments != (ANY_EXPERIMENT,):
            return False
        return fnmatch.fnmatchcase(recorded.name, self.pattern)


def lines_of_page() -> list[Line]:
    sections = re.split(r"^## ", read(DOCS / "metrics.md"), flags=re.MULTILINE)[1:]
    lines = []
    for section in sections:
        heading = section.splitlines()[0]
        experiments = re.findall(r"`(\w+)`", heading) or [OTHER_HEADINGS[heading]]
        for pattern in re.findall(r"^\* `([^`]+)`: \S", section, re.MULTILINE):
            lines.append(Line(tuple(experiments), pattern))
    return lines


@functools.cache
def recorded_by_reference_runs() -> set[Recorded]:
    recorded = set()
    for path in SUMMARIES:
        summary = json.loads(read(path))
        experiment = re.sub("^benchmark_.*", "benchmark", summary["experiment"])
        names = set(summary["metrics"])
        for line in read(path.with_name("metrics.jsonl")).splitlines():
            names |= json.loads(line).keys()
        recorded |= {Recorded(experiment, name) for name in names}
    return recorded


def test_every_metric_and_field_of_the_reference_runs_has_its_line():
    lines = lines_of_page()
    missing = [
        recorded
        for recorded in sorted(recorded_by_reference_runs())
        if not any(line.describes(recorded) for line in lines)
    ]
    assert missing == [], f"add a line for each of {missing} to docs/metrics.md"


def test_no_line_is_stale():
    recorded = recorded_by_reference_runs()
    # The lines of an experiment may be older than its reference runs.
    with_runs = {ANY_EXPERIMENT, *(experiment for experiment, _ in recorded)}
    stale = [
        line
        for line in lines_of_page()
        if with_runs.intersection(line.experiments)
        and not any(line.describes(entry) for entry in recorded)
    ]
    assert stale == [], "no run has these: delete their lines in docs/metrics.md"


def test_every_field_of_a_summary_has_its_row():
    page = read(DOCS / "architecture.md")
    table = page[page.index("## summary.json") :]
    rows = set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE))
    for path in SUMMARIES:
        assert json.loads(read(path)).keys() <= rows, path
