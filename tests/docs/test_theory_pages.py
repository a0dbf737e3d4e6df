"""docs/theory: every statement names its tests, and GitHub shows its formulas."""

import re

import pytest

from tests.docs.pages import DOCS, fences, page_id, read
from tests.forked import ROOT
from tests.measured import reference_runs

THEORY = sorted((DOCS / "theory").glob("*.md"))


@pytest.mark.parametrize("path", THEORY, ids=page_id)
def test_every_statement_of_the_theory_names_its_tests(path):
    text = read(path)
    stated = set(re.findall(r"\*\*\(([A-Z]\d+)\)\*\*", text))
    rows = re.findall(r"^\| ([A-Z]\d[^|]*) \| `tests/", text, re.MULTILINE)
    assert stated == {number for row in rows for number in row.split(", ")}
    tests = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", text)
    assert len(tests) >= len(rows)
    for file, test in tests:
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


def test_the_counts_of_proved_minima_are_those_of_the_reference_runs():
    by_seed = [run.summary["metrics"] for run in reference_runs("relu/search")]

    def listed(name):
        *first, last = (str(metrics[name]) for metrics in by_seed)
        return f"{', '.join(first)} and {last}"

    affine = listed("affine_proofs_with_biases")
    with_biases = listed("proofs_with_biases")
    page = " ".join(read(DOCS / "theory" / "relu.md").split())
    assert f"in {affine} of the {with_biases} that are proved with biases" in page
    without_biases = listed("proofs_without_biases")
    assert f"Of the {without_biases} without biases none is of this kind" in page
    assert {metrics["affine_proofs_without_biases"] for metrics in by_seed} == {0}
    related = read(DOCS / "theory" / "related.md")
    assert f"At {affine} of our {with_biases} proved minima with biases" in related
    # Two blocks of two units, two inputs, no biases: twelve proofs with each seed.
    assert "proves all twelve with each seed" in page
    for run in reference_runs("relu/search"):
        (proofs,) = (
            record["certificates"]
            for record in run.records
            if [record.get(name) for name in ("depth", "width", "lifted_width")]
            == [2, 2, 2]
            and not record["bias"]
        )
        assert len(proofs) == 12
