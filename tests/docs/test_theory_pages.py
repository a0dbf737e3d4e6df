"""docs/theory: every statement names its tests, and GitHub shows its formulas."""

import re

import pytest

from tests.docs.pages import DOCS, fences, page_id, read
from tests.forked import ROOT

THEORY = sorted((DOCS / "theory").glob("*.md"))


@pytest.mark.parametrize("path", THEORY, ids=page_id)
def test_every_statement_of_the_theory_names_its_tests(path):
    text = read(path)
    stated = set(re.findall(r"\*\*\(([A-Z]\d+)\)\*\*", text))
    rows = re.findall(r"^\| ([A-Z]\d[^|]*) \| `tests/", text, re.MULTILINE)
    assert stated == {number for row in rows for number in row.split(", ")}
    for file, test in re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", text):
        assert f"def {test}(" in read(ROOT / file)


@pytest.mark.parametrize("path", THEORY, ids=page_id)
def test_mathematics_is_written_as_github_reads_it(path):
    """Inline formulas are in dollar-backtick pairs, which Markdown leaves alone.

    Their braces balance.
    """
    outside_blocks = re.sub(r"```math\n.*?```", "", read(path), flags=re.DOTALL)
    assert "$" not in re.sub(r"\$`[^`]*`\$", "", outside_blocks)
    inline = re.findall(r"\$`([^`]*)`\$", outside_blocks)
    for formula in (*fences(path, "math"), *inline):
        assert formula.count("{") == formula.count("}"), formula
