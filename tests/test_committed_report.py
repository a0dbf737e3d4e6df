"""The report, the tables and the README in the repository are what the reference runs say."""

import pathlib
import re
import shutil

import pytest

from identity_matters import records
from identity_matters.report import build, tables

ROOT = pathlib.Path(__file__).resolve().parent.parent
REFERENCE = ROOT / "results" / "reference"


def relative_files(directory):
    return {str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file()}


def without_pictures(text):
    """A page without pictures and formulas, whose bytes depend on versions of libraries.

    What a figure shows where it is pointed at is tested against its .csv in test_page.
    """
    for pattern in ('src="data:image[^"]*"', r'"application/json">[^<]*<', "<math.*?</math>"):
        text = re.sub(pattern, "", text)
    return text


def test_the_committed_report_is_what_the_reference_runs_say(tmp_path):
    """Mend a failure with `make report-reference`."""
    shutil.copytree(REFERENCE, tmp_path / "reference")
    build.write([build.read("reference", tmp_path / "reference", "results/reference")], tmp_path)
    for name in ("figures", "tables"):
        assert relative_files(tmp_path / name) == relative_files(ROOT / "results" / name)
    for path in sorted(tmp_path.rglob("*")):
        committed = ROOT / "results" / path.relative_to(tmp_path)
        if path.suffix in (".md", ".csv"):
            assert committed.read_text() == path.read_text(), committed
    made, committed = ((d / "report.html").read_text() for d in (tmp_path, ROOT / "results"))
    assert without_pictures(made) == without_pictures(committed)


def test_the_readme_shows_what_the_reference_runs_say():
    """Mend a failure with `make report-reference`."""
    text = (ROOT / "README.md").read_text()
    reference = build.read("reference", REFERENCE, "results/reference")
    assert build.with_results(text, reference) == text


def test_a_readme_without_its_marks_is_refused():
    reference = build.read("reference", REFERENCE, "results/reference")
    with pytest.raises(ValueError, match="findings"):
        build.with_results("no marks", reference)


def test_every_reference_run_reads_is_done_and_was_made_at_a_clean_commit():
    runs, problems = records.read_collection(REFERENCE)
    assert problems == []
    for run in runs:
        assert run.status == "done", run.path
        assert run.environment["dirty"] is False, run.path
        assert len(run.environment["commit"]) == 40, run.path
    assert tables.contradictions({"reference": tables.group_runs(runs)}) == []
