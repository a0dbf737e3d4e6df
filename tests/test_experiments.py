"""Entry points that put the suite together: reproduce, report, compare, promote."""

import pathlib
import subprocess
import sys

import pytest

from experiments import suite
from identity_matters import records
from tests.test_report import write_run

ROOT = pathlib.Path(__file__).resolve().parent.parent


def run_module(name, *arguments):
    return subprocess.run(
        [sys.executable, "-m", f"experiments.{name}", *map(str, arguments)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--only=nothing"], "there is no experiment 'nothing'; there are factorization"),
        (["--seeds=one"], "--seeds must be whole numbers, got 'one'"),
        (["--seeds=-1"], "--seeds must be one or more numbers from 0 up"),
        (["--seeds="], "--seeds must be one or more numbers from 0 up"),
        (["more"], "unknown argument 'more'"),
    ],
)
def test_reproduce_refuses_bad_input_in_one_line(arguments, message):
    finished = run_module("reproduce", *arguments)
    assert finished.returncode == 2
    assert message in finished.stderr
    assert len(finished.stderr.strip().splitlines()) == 1


def test_reproduce_skips_what_is_finished(tmp_path):
    for name in suite.EXPERIMENTS:
        for variant in suite.variants(name):
            run = records.RunDir.create(
                tmp_path, experiment=name, variant=variant, seed=0, config={}
            )
            run.finish("done", claim="Theorem 2.1", metrics={}, paper={}, verdict="reproduced")
    finished = run_module("reproduce", f"--results_dir={tmp_path}")
    assert finished.returncode == 0, finished.stderr
    assert "$ python" not in finished.stdout


def test_compare_fails_on_a_contradiction_and_names_it(tmp_path):
    nowhere = f"--reference_dir={tmp_path / 'none'}"
    write_run(tmp_path / "good")
    good = run_module("compare", nowhere, f"--results_dir={tmp_path / 'good'}")
    assert good.returncode == 0, good.stdout
    assert "toy/plain" in good.stdout
    write_run(tmp_path / "bad", verdict="not reproduced")
    bad = run_module("compare", nowhere, f"--results_dir={tmp_path / 'bad'}")
    assert bad.returncode == 1
    assert "contradiction: yours toy/plain: Theorem 2.1 is not reproduced" in bad.stdout


def test_report_names_what_it_skips_and_goes_on(tmp_path):
    write_run(tmp_path / "local")
    (tmp_path / "local" / "toy" / "plain" / "seed=1").mkdir()
    finished = run_module(
        "report", f"--results_dir={tmp_path / 'local'}", f"--reference_dir={tmp_path / 'none'}"
    )
    assert finished.returncode == 0, finished.stderr
    assert "skipped: " in finished.stderr
    assert "seed=1/summary.json: missing" in finished.stderr
    assert (tmp_path / "local" / "report.html").is_file()


def make_clean(path):
    """Lets the run at `path` look as if made at a commit without changes."""
    environment = records.read_json(path / "environment.json")
    environment.update({"commit": "0" * 40, "dirty": False})
    records.write_json(path / "environment.json", environment)


def test_promote_copies_a_finished_run_as_it_is(tmp_path):
    path = write_run(tmp_path / "local")
    make_clean(path)
    reference = tmp_path / "reference"
    finished = run_module("promote", f"--reference_dir={reference}", path)
    assert finished.returncode == 0, finished.stderr
    target = reference / "toy" / "plain" / "seed=0"
    names = ["config.json", "environment.json", "metrics.jsonl", "summary.json"]
    assert sorted(entry.name for entry in target.iterdir()) == names
    assert all((target / n).read_bytes() == (path / n).read_bytes() for n in names)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dirty": True}, "was not made at a commit without changes"),
        ({"commit": None}, "was not made at a commit without changes"),
        ({"resumed": [{"commit": "1" * 40, "dirty": False}]}, "was made at several commits"),
    ],
)
def test_promote_refuses_a_run_whose_code_cannot_be_had_again(tmp_path, change, message):
    path = write_run(tmp_path / "local")
    make_clean(path)
    environment = records.read_json(path / "environment.json")
    records.write_json(path / "environment.json", {**environment, **change})
    finished = run_module("promote", f"--reference_dir={tmp_path / 'reference'}", path)
    assert finished.returncode == 2
    assert message in finished.stderr
    assert not (tmp_path / "reference").exists()


def test_promote_refuses_an_unfinished_run(tmp_path):
    path = write_run(tmp_path / "local", status="interrupted")
    finished = run_module("promote", f"--reference_dir={tmp_path / 'reference'}", path)
    assert finished.returncode == 2
    assert "only a finished run can be promoted, is interrupted" in finished.stderr
