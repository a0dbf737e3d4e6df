"""docs/adding_an_experiment.md, done as it says in a copy of the repository."""

import json
import re
import shutil
import sys

import pytest

from tests import forked
from tests.docs.pages import TUTORIAL, fences, read
from tests.forked import ROOT

MOST_LINES = 100


@pytest.fixture(scope="module")
def extended(tmp_path_factory):
    """A copy of the repository in which the files of the tutorial have been written."""
    copy = tmp_path_factory.mktemp("copy")
    for name in ("experiments", "identity_matters", "tests"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, copy / name, ignore=ignored)
    for name in ("setup.cfg", "ruff.toml"):
        shutil.copy(ROOT / name, copy)
    # The line before a block says what to do with it, and may be broken in two.
    text = re.sub(r"\s+(?=`[^`\n]*`:\n)", " ", read(TUTORIAL))
    blocks = r"([^\n]*)\n\n```(?:python|toml)\n(.*?)```"
    for line_before, code in re.findall(blocks, text, re.DOTALL):
        action, path = re.search(
            r"(Create|Append to)\s+`([^`]+)`:$", line_before
        ).groups()
        assert (copy / path).exists() == (action == "Append to"), path
        with open(copy / path, "a", encoding="utf-8") as file:
            file.write("\n" * (action == "Append to") + code)
    return copy


def test_the_tutorial_is_short():
    assert len(read(TUTORIAL).splitlines()) <= MOST_LINES


def test_the_tutorial_runs_and_ends_with_a_report(extended):
    shown = [line for block in fences(TUTORIAL, "bash") for line in block.splitlines()]
    ran = [line for line in shown if line.startswith(".venv/bin/python -m ")]
    assert len(ran) == 2
    for line in ran:
        arguments = line.replace('"', "").split()[1:]
        finished = forked.shell(sys.executable, *arguments, cwd=extended)
        assert finished.returncode == 0, finished.stdout + finished.stderr
    trial = extended / "results" / "trial"
    (summary,) = (trial / "half_turn").rglob("summary.json")
    written = json.loads(read(summary))
    assert (written["status"], written["claim"]) == ("done", "half-turn")
    report = read(trial / "REPORT.md")
    assert "A half turn" in report
    assert ": 1 measured value, and its origin" in report


def test_a_copy_that_keeps_the_name_does_not_mix_its_runs_with_those_of_the_first(
    extended, tmp_path
):
    first = extended / "experiments" / "half_turn.py"
    second = first.with_name("quarter_turn.py")
    shutil.copy(first, second)
    try:
        command = (
            "-m",
            "experiments.quarter_turn",
            f"--results_dir={tmp_path / 'new'}",
        )
        refused = forked.shell(sys.executable, *command, cwd=extended)
    finally:
        second.unlink()
    assert refused.returncode == 2
    assert refused.stderr.splitlines() == [
        "half_turn: EXPERIMENT in quarter_turn.py must have name='quarter_turn', like"
        " its file, got 'half_turn'"
    ]
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("command", ["check", "format --check"])
def test_the_tutorial_leaves_no_work_for_the_linter(extended, command):
    words = ("-m", "ruff", *command.split(), "experiments", "tests")
    finished = forked.shell(sys.executable, *words, cwd=extended)
    assert finished.returncode == 0, finished.stdout
