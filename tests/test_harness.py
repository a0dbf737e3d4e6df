"""The command line of an experiment: what users type wrong, and what stops a run."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

from experiments import harness
from identity_matters import records
from tests import forked
from tests.toy import config, experiment

ROOT = pathlib.Path(__file__).resolve().parent.parent
COMMAND = [sys.executable, "-m", "tests.toy.experiment", "--config=tests/toy/config.py"]


def run_toy(results_dir, *arguments):
    return forked.run(*COMMAND[2:], f"--results_dir={results_dir}", *arguments)


def execute(results_dir, changes=None, **settings):
    toy = config.get_config()
    toy.update(changes or {})
    settings = {"seed": 0, "results_dir": results_dir, **settings}
    return harness.execute(experiment.EXPERIMENT, toy, **settings)


def test_a_run_writes_what_the_contract_says(tmp_path):
    finished = run_toy(tmp_path, "--seed=7")
    assert finished.returncode == 0, finished.stderr
    run = records.read_run(tmp_path / "toy" / "plain" / "seed=7")
    assert run.summary["metrics"] == {"sum_of_squares": 14}
    assert run.summary["scale"] == "paper"
    assert [record["cell"] for record in run.records] == [0, 1, 2]
    assert run.summary["seconds"].keys() == {"compile", "measure", "total"}
    assert run.environment["command"] == [
        "python",
        "-m",
        "tests.toy.experiment",
        "--config=tests/toy/config.py",
        "--seed=7",
    ]
    assert str(ROOT) not in json.dumps(run.environment)


def test_a_changed_setting_makes_a_reduced_run(tmp_path):
    finished = run_toy(tmp_path, "--config.values=(2,)")
    assert finished.returncode == 0, finished.stderr
    summary = records.read_run(tmp_path / "toy" / "plain" / "seed=0").summary
    assert (summary["scale"], summary["metrics"]["sum_of_squares"]) == ("reduced", 4)


@pytest.mark.parametrize(
    ("setting", "changes"), [("fit.data_dir", False), ("data.cache", False), ("fit.width", True)]
)
def test_only_settings_that_matter_change_the_scale(setting, changes):
    assert harness.changes_scale({setting: "other"}) is changes


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--config.depth=3"], "there is no setting depth"),
        (["--config.values=()"], "values must not be empty"),
        (["--config.pause_seconds=-1"], "pause_seconds must be 0 or more, got -1.0"),
        (["--config.pause_seconds=soon"], "could not convert string to float: 'soon'"),
        (["--config=tests/toy/config.py:fancy"], "variant must be plain, got 'fancy'"),
        (["--config=nowhere.py"], "cannot read the settings from --config=nowhere.py"),
        (["--seed=-1"], "seed must be 0 or more, got -1"),
        (["--seed=one"], "invalid literal for int()"),
        (["--results_dir=/proc/nowhere"], "cannot be made"),
        (["--results_dir=setup.cfg"], "not a directory"),
        (["--colour=red"], "Unknown command line flag 'colour'"),
        (["twice"], "unknown argument 'twice'"),
    ],
)
def test_bad_input_ends_in_one_line_before_anything_is_written(tmp_path, arguments, message):
    finished = run_toy(tmp_path / "new", *arguments)
    assert finished.returncode == 2
    lines = finished.stderr.strip().splitlines()
    assert len(lines) == 1, finished.stderr
    assert lines[0].startswith("toy: ")
    assert message in lines[0]
    assert not (tmp_path / "new").exists()


def test_a_misspelt_setting_without_a_config_ends_in_one_line():
    finished = forked.run("experiments.landscape", "--config.nothing=1")
    assert finished.returncode == 2
    assert finished.stderr == "landscape: there is no setting nothing (--config.nothing)\n"


def test_a_finished_run_is_refused_in_one_line(tmp_path):
    execute(tmp_path)
    finished = run_toy(tmp_path)
    assert finished.returncode == 2
    assert "is done; --overwrite runs it anew" in finished.stderr
    assert run_toy(tmp_path, "--overwrite").returncode == 0


def test_help_says_what_it_does_and_names_the_flags():
    finished = run_toy("unused", "--help")
    assert "Theorem 2.1 has nothing to do with it" in finished.stdout
    for flag in ("--config", "--seed", "--results_dir", "overwrite"):
        assert flag in finished.stdout


def test_a_failure_is_recorded_raised_and_resumed_from(tmp_path):
    with pytest.raises(FloatingPointError, match="second cell"):
        execute(tmp_path, {"action": "raise"})
    run = records.read_run(tmp_path / "toy" / "plain" / "seed=0")
    assert run.status == "failed"
    assert run.summary["error"] == "FloatingPointError: the second cell fails"
    assert [record["cell"] for record in run.records] == [0]


def test_sigterm_leaves_an_interrupted_run_that_goes_on(tmp_path):
    arguments = [*COMMAND, f"--results_dir={tmp_path}", "--config.pause_seconds=0.5"]
    process = subprocess.Popen(arguments, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    metrics = tmp_path / "toy" / "plain" / "seed=0" / "metrics.jsonl"
    deadline = time.monotonic() + 60
    while not (metrics.exists() and metrics.stat().st_size) and time.monotonic() < deadline:
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == harness.INTERRUPTED_CODE, errors
    run = records.read_run(metrics.parent)
    assert run.status == "interrupted"
    assert 1 <= len(run.records) < 3
    finished = run_toy(tmp_path, "--config.pause_seconds=0.5")
    assert finished.returncode == 0, finished.stderr
    run = records.read_run(metrics.parent)
    assert run.summary["metrics"] == {"sum_of_squares": 14}
    assert [record["cell"] for record in run.records] == [0, 1, 2]


def test_each_cell_has_a_key_of_its_own_that_the_seed_decides(tmp_path):
    keys = []

    def measure(cell, key):
        keys.append((cell["value"], tuple(harness.jax.random.key_data(key).tolist())))
        return {"square": 0}

    spy = harness.Experiment("toy", experiment.plan, measure, experiment.conclude)
    for seed in (0, 1):
        harness.execute(spy, config.get_config(), seed=seed, results_dir=tmp_path)
    assert len(set(keys)) == 6


def test_measured_values_may_not_hide_settings(tmp_path):
    spy = harness.Experiment(
        "toy", experiment.plan, lambda cell, key: {"value": 0}, experiment.conclude
    )
    with pytest.raises(ValueError, match="'value' stands in the cell and in what was measured"):
        harness.execute(spy, config.get_config(), seed=0, results_dir=tmp_path)


@pytest.mark.parametrize("flag", ["--tensorboard", "--profile=trace"])
def test_a_benchmark_of_steps_refuses_flags_that_it_could_not_honour(flag, tmp_path):
    finished = forked.run("benchmarks.train_step", f"--results_dir={tmp_path}", flag)
    assert finished.returncode == 2
    assert f"Unknown command line flag '{flag.strip('-').split('=')[0]}'" in finished.stderr
    assert list(tmp_path.iterdir()) == []
