"""The command line of an experiment: what users type wrong, and what stops a run."""

import dataclasses
import json
import os
import platform
import re
import sys
import textwrap

import jax
import pytest

from experiments import accelerators, run
from experiments.run import execution
from identity_matters import runs
from tests import forked
from tests.tables import by_name
from tests.toy import experiment

TOY = "tests.toy.experiment"


def run_toy(results_dir, *arguments, ends=0):
    return forked.run(TOY, f"--results_dir={results_dir}", *arguments, ends=ends)


def runs_below(path):
    collected, problems = runs.read_collection(path)
    assert problems == []
    return collected


def test_a_run_writes_what_the_contract_says_and_ends_with_its_result(tmp_path):
    finished = run_toy(tmp_path, "--seed=7")
    path = tmp_path / "toy" / "plain" / "seed=7"
    recorded = runs.read_run(path)
    assert recorded.summary["metrics"] == {"sum_of_squares": 14}
    assert (recorded.summary["scale"], recorded.summary["verdict"]) == (
        "paper",
        "holds",
    )
    assert [record["cell"] for record in recorded.records] == [0, 1, 2]
    assert recorded.summary["seconds"].keys() == {"compile", "measure", "total"}
    command = ["python", "-m", "tests.toy.experiment", "--seed=7"]
    assert recorded.environment["command"] == command
    assert str(forked.ROOT) not in json.dumps(recorded.environment)
    last = finished.stderr.splitlines()[-6:]
    assert last[0::2][:2] == ["Theorem 2.1: holds", "  yours   sum_of_squares = 14"]
    assert last[1] == "  paper   |||A||| ≤ (4π + 3γ)/ℓ if det R > 0"
    assert str(path) in last[3]
    assert f"`make compare RESULTS_DIR={tmp_path}`" in last[5]
    assert "trial 2 of 3 (value 2)" in finished.stderr
    second = run_toy(tmp_path, "--seed=7", ends=2)
    assert "is done; --overwrite runs it anew" in second.stderr
    forked.run(TOY, "--results_dir", str(tmp_path), "--seed=7", "--overwrite")
    assert runs.read_run(path).environment["command"] == command


def test_a_changed_setting_makes_a_run_of_another_name_that_decides_nothing(tmp_path):
    finished = run_toy(tmp_path, "--config.values=(2,)")
    (run,) = runs_below(tmp_path)
    assert run.variant.startswith("plain@")
    assert (run.summary["scale"], run.summary["verdict"]) == (
        "reduced",
        "not comparable",
    )
    assert run.summary["changed"] == {"values": [2]}
    assert run.config["variant"] == "plain"
    assert "Theorem 2.1 with values=[2]: no verdict\n  yours   " in finished.stderr
    assert "  paper   " not in finished.stderr
    # Default values make the real run, which is still missing; another change makes a
    # third name.
    flags = ("--config=:plain", "--config.values=(1,2,3)", "--config.pause_seconds=0")
    run_toy(tmp_path, *flags)
    run_toy(tmp_path, "--config.values=(3,)")
    assert len({run.variant for run in runs_below(tmp_path)} - {"plain"}) == 2


def test_a_file_of_settings_changes_a_variant_and_cannot_pass_for_it(tmp_path):
    settings = tmp_path / "mine.py"
    settings.write_text(
        textwrap.dedent(
            """
            from tests.toy import experiment

            def get_config(variant="short"):
                config = experiment.get_config("short")
                config.update(variant=variant, scale="paper")
                return config
            """
        )
    )
    # The scale is that of the variant, whatever the file says.
    run_toy(tmp_path / "a", f"--config={settings}")
    (run,) = runs_below(tmp_path / "a")
    assert (run.variant, run.summary["scale"]) == ("short", "reduced")
    run_toy(tmp_path / "b", f"--config={settings}:plain")
    (run,) = runs_below(tmp_path / "b")
    assert run.variant.startswith("plain@")
    finished = run_toy(tmp_path / "c", f"--config={settings}:mine", ends=2)
    named = "plain, short, slow, wild"
    assert f"variant must be one of {named}, got 'mine'" in finished.stderr
    settings.write_text(
        textwrap.dedent(
            """
            def get_config():
                return {"variant": "plain", "scale": "paper", "value": 1}
            """
        )
    )
    finished = run_toy(tmp_path / "c", f"--config={settings}", ends=2)
    assert "there is no setting value; --help lists them" in finished.stderr
    # ConfigDict() has no settings, and ConfigDict("plain") is an AttributeError.
    settings.write_text("from ml_collections import ConfigDict as get_config\n")
    for given, why in (
        (settings, "must give scale"),
        (f"{settings}:plain", "(AttributeError: "),
    ):
        finished = run_toy(tmp_path / "c", f"--config={given}", ends=2)
        assert why in finished.stderr and len(finished.stderr.splitlines()) == 1


def test_settings_that_only_say_where_data_lie_change_nothing():
    before = {"fit": {"data_dir": "a", "width": 3}, "cache": ""}
    elsewhere = {"fit": {"data_dir": "b", "width": 3}, "cache": "c"}
    workers = {"worker_threads": 2, "worker_processes": 3}
    assert runs.differences(before, {**elsewhere, **workers}) == {}
    now = {"fit": {"data_dir": "a", "width": 4}, "cache": ""}
    assert runs.differences(before, now) == {"fit.width": (3, 4)}


REFUSED = {
    "tests.toy.experiment": [
        (["--config.depth=3"], "there is no setting depth; --help lists them"),
        (["--config.values=(1,)", "-config.values=(2,)"], "values is given twice"),
        (["--config.values=()"], "values must hold at least one value, but is empty"),
        (["--config.values=('a',)"], "values must hold whole numbers, got 'a'"),
        (
            ["--config.values=((1,2),)"],
            "values must be nested like (1, 2, 3), got ((1, 2),)",
        ),
        (
            ["--config.pause_seconds=nan"],
            "pause_seconds must hold finite numbers, got nan",
        ),
        (["--config.pause_seconds=-1"], "pause_seconds must be 0 or more, got -1.0"),
        (["--config.pause_seconds=soon"], "could not convert string to float: 'soon'"),
        (["--config.scale=reduced"], "scale and variant belong to a variant"),
        (
            ["--config=:fancy"],
            "variant must be one of plain, short, slow, wild, got 'fancy'",
        ),
        (
            ["--config=nowhere.py"],
            "--config=nowhere.py: there is no such file; a variant has a colon before",
        ),
        (
            ["--config=slow"],
            "there is no such file; to choose the variant put a colon before it:"
            " --config=:slow",
        ),
        (["--config=tests"], "--config=tests: there is no such file"),
        (
            ["--config=README.md"],
            "cannot read the settings from --config=README.md (SyntaxError: ",
        ),
        (
            ["--config=tests/forked.py"],
            "--config=tests/forked.py (KeyError: get_config)",
        ),
        (["--seed=4294967296"], "seed must be from 0 to 4294967295, got 4294967296"),
        (["--results_dir="], "results_dir must name a directory, but is empty"),
        (["--results_dir=/proc/nowhere"], "cannot be written"),
        (["--colour=red"], "Unknown command line flag 'colour'"),
        (["twice"], "unknown argument 'twice'"),
    ],
    "experiments.images.cifar": [
        (
            ["--config=:cifar10/resnet", "--config.data.data_dir=a"],
            "cifar10 is not prepared in a; run: make data",
        ),
        (
            ["--config.train.batch_examples=3", "--config.train.devices=2"],
            "batch_examples must be a positive multiple of the number of devices,",
        ),
        (
            ["--config.model.stage_strides=(2,4,2)"],
            "needs sides that it divides, got a map of ",
        ),
        (["--checkpoint_dir=/proc/nowhere"], "--checkpoint_dir cannot be used"),
        (
            ["--num_processes=2"],
            "give all of --coordinator_address, --num_processes and --process_id",
        ),
    ],
    "experiments.linear_sampled": [
        (
            ["--config=:devices", "--config.device_counts=()"],
            "device_counts must hold at least one value, but is empty",
        ),
        (
            ["--config=:devices", "--config.device_counts=(1,'two')"],
            "device_counts must hold whole numbers, got 'two'",
        ),
        (
            ["--config=:devices", "--config.device_counts=(1,3)"],
            "device_counts must divide train.batch_examples, 64, got 3",
        ),
        (
            ["--config=:devices", "--config.device_counts=(0,)"],
            "device_counts must divide train.batch_examples, 64, got 0",
        ),
    ],
    "experiments.images.ablations": [
        (
            ["--config.model.projection=trained"],
            "projection would change nothing",
        ),
    ],
    "experiments.reproduce": [
        (["--only=nothing"], "there is no experiment 'nothing'; there are "),
        (
            ["--seeds=one"],
            "--seeds must be numbers from 0 to 4294967295, separated by blanks",
        ),
        (["--seeds=4294967296"], "separated by blanks or commas, got '4294967296'"),
        (["--only=landscape", "--results_dir=/proc/nowhere"], "'/proc/nowhere'"),
        (["--jobs=-1"], "--jobs=-1"),
        (["--variants=digits"], "--variants needs one experiment, named by --only"),
        (
            ["--only=memorize", "--variants=mnist"],
            "memorize has no variant 'mnist'; it has digits",
        ),
        (["more"], "unknown argument 'more'"),
    ],
    "experiments.images.prepare_data": [
        (
            ["--datasets=cifar10 imagenet"],
            "there is no data set 'imagenet'; there are digits",
        )
    ],
}


@pytest.mark.parametrize(
    ("module", "arguments", "message"),
    [(module, *row) for module, rows in REFUSED.items() for row in rows],
)
def test_bad_input_ends_in_one_line_before_anything_is_written(
    tmp_path, module, arguments, message
):
    place = [] if "prepare" in module else [f"--results_dir={tmp_path / 'new'}"]
    # Two devices, also on a machine with one core.
    finished = forked.run(module, *place, *arguments, ends=2, devices=2)
    lines = finished.stderr.strip().splitlines()
    assert len(lines) == 1, finished.stderr
    name = {"tests.toy.experiment": "toy"}.get(module, module.split(".")[-1])
    assert lines[0].startswith(f"{name}: ")
    assert message in lines[0]
    assert not (tmp_path / "new").exists()


def test_help_lists_variants_settings_and_flags():
    finished = run_toy("unused", "--help")
    for said in (
        "A toy experiment, for the tests of `run`",
        "plain  three numbers, at once",
        "values = (1, 2, 3)\n      the numbers whose squares are summed",
        "pause_seconds = 0.0\n      How long each of them takes.",
        "--seed",
        "--results_dir",
        "overwrite",
    ):
        assert said in finished.stdout


def test_theory_runs_on_the_cpu_whatever_else_there_is(tmp_path):
    """JAX_PLATFORMS names a platform that does not exist; trainings look for it."""
    code = (
        "import jax; from experiments.run import process; process.configure_for_{}()\n"
    )
    code += "print([device.platform for device in jax.devices()])"
    for trains in (False, True):
        finished = forked.shell(
            sys.executable,
            "-c",
            code.format("devices" if trains else "theory"),
            cwd=forked.ROOT,
            JAX_PLATFORMS="cuda",
        )
        assert (finished.returncode == 0) == (not trains), finished.stderr
        assert trains or finished.stdout.strip() == "['cpu']"


LOCK_SAID = (
    "there is an accelerator, but this environment is for CPUs; run: make setup"
    " ACCEL=cuda13"
)


@by_name(
    {"platforms": "", "plugin": None, "lock": "cpu", "said": None},
    {"platforms": "", "plugin": None, "lock": "cuda13", "said": LOCK_SAID},
    {"platforms": "cpu", "plugin": None, "lock": "cuda13", "said": None},
    {
        "platforms": "",
        "plugin": "libtpu",
        "lock": "cpu",
        "said": "libtpu is installed, but JAX finds no TPU; to train on the CPU all",
    },
    {"platforms": "cpu", "plugin": "libtpu", "lock": "tpu", "said": None},
    {
        "platforms": "",
        "plugin": None,
        "lock": ValueError("the driver is too old"),
        "said": "the driver is too old; to train on the",
    },
)
def test_nobody_trains_on_the_cpu_by_accident(
    monkeypatch, platforms, plugin, lock, said
):
    def find_lock():
        if isinstance(lock, ValueError):
            raise lock
        return lock

    monkeypatch.setattr(accelerators, "find_lock", find_lock)
    monkeypatch.setattr(accelerators, "installed_plugin", lambda: plugin)
    monkeypatch.setenv("JAX_PLATFORMS", platforms)
    if said is None:
        accelerators.require_used()
    else:
        with pytest.raises(ValueError, match=f"^{re.escape(said)}"):
            accelerators.require_used()


def test_a_training_that_needs_an_accelerator_says_so_before_it_starts(tmp_path):
    """The paper's net on images of CIFAR's kind, for which all else is there."""
    code = """
import numpy as np
from experiments import run
from experiments.images import cifar
from experiments.run import execution
from identity_matters.images import datasets

images, labels = np.zeros((128, 32, 32, 3), np.uint8), np.arange(128) % 10
datasets.load = lambda name, split, data_dir: (images, labels)
def refuse(*_, **__):
    raise run.Interrupted
execution.measure_trials = refuse
run.main(cifar.EXPERIMENT)
"""
    variant = "--config=:cifar10/all_conv_residual"
    results = f"--results_dir={tmp_path / 'r'}"
    finished = forked.run_code(
        code, tmp_path, variant, results, ends=run.INTERRUPTED_CODE
    )
    first, second, *_ = finished.stderr.splitlines()
    hours = re.match(
        "no accelerator found: this takes at least ([0-9.e+]+) hours on", first
    )
    # 9.09e16 operations; a core does between 10 and 300 billion a second.
    assert 9.09e16 / 3600 / 300e9 / 64 < float(hours[1]) < 9.09e16 / 3600 / 1e9
    assert first.endswith("; --config=:cifar10/small takes about 3 hours on two cores")
    assert second.startswith("writing ")


def test_what_this_machine_has_is_found():
    assert accelerators.find_lock() in ("cpu", "cuda12", "cuda13", "tpu")


def test_each_trial_has_a_key_of_its_own_that_the_seed_decides(tmp_path):
    keys = []

    def measure(trial, key):
        keys.append(tuple(jax.random.key_data(key).tolist()))
        return {"square": 0}

    spy = dataclasses.replace(experiment.EXPERIMENT, measure=measure)
    for seed in (0, 1):
        execution.execute(spy, experiment.get_config(), seed=seed, results_dir=tmp_path)
    assert len(set(keys)) == 6


def test_a_resumed_run_draws_what_it_would_have_drawn_at_once(tmp_path):
    stops_at = []

    def measure(trial, key):
        if trial.value in stops_at:
            stops_at.remove(trial.value)
            raise run.Interrupted
        return {"square": jax.random.uniform(key).item()}

    spy = dataclasses.replace(experiment.EXPERIMENT, measure=measure)
    options = {"config": experiment.get_config(), "seed": 0}
    at_once = execution.execute(spy, results_dir=tmp_path / "at_once", **options)
    stops_at += [2, 3]
    for _ in range(2):
        with pytest.raises(run.Interrupted):
            execution.execute(spy, results_dir=tmp_path / "resumed", **options)
    resumed = execution.execute(spy, results_dir=tmp_path / "resumed", **options)
    assert resumed["metrics"] == at_once["metrics"]


def test_a_verdict_is_told_the_scale_of_the_run(tmp_path):
    told = []

    def verdict(settings, records):
        told.append(settings["scale"])
        return experiment.verdict(settings, records)

    spy = dataclasses.replace(experiment.EXPERIMENT, verdict=verdict)
    for variant, values in (("plain", (1, 2, 3)), ("short", (1,)), ("plain", (2,))):
        config = experiment.get_config(variant)
        defaults = config.to_dict()
        config.values = values
        execution.execute(spy, config, seed=0, results_dir=tmp_path, defaults=defaults)
    # Changed settings are not those of the paper.
    assert told == ["paper", "reduced", "reduced"]


@pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="what keeps memory is glibc's"
)
def test_a_training_keeps_the_memory_that_it_has_used(tmp_path):
    code = """
import resource, threading
import numpy as np
from experiments.run import process
process.configure_for_devices()
def work():
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        np.ones(2**22)
        print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
thread = threading.Thread(target=work)
thread.start()
thread.join()
"""
    first, *later = map(int, forked.run_code(code, tmp_path).stdout.split())
    assert first > 100 and max(later) < 10


def test_a_tilde_in_a_flag_is_the_home_directory(tmp_path):
    """Shells leave it alone within a word."""
    code = """
import os, runpy
os.environ["HOME"] = os.getcwd()
runpy.run_module("tests.toy.experiment", run_name="__main__", alter_sys=True)
"""
    (tmp_path / "settings.py").write_text(
        "from tests.toy.experiment import get_config\n"
    )
    finished = forked.run_code(
        code, tmp_path, "--results_dir=~/x y", "--config=~/settings.py"
    )
    assert runs.read_run(tmp_path / "x y" / "toy" / "plain" / "seed=0").status == "done"
    assert not (tmp_path / "~").exists()
    assert f"{tmp_path}/x y" in finished.stderr


def test_a_pipe_is_no_file_of_a_matrix(tmp_path):
    os.mkfifo(tmp_path / "R.npy")
    settings = ("--config=:file", f"--config.file={tmp_path / 'R.npy'}")
    module = "experiments.factorization"
    finished = forked.run(
        module, *settings, f"--results_dir={tmp_path / 'new'}", ends=2
    )
    (line,) = finished.stderr.splitlines()
    assert line.endswith("is not a file")


TRAINS = """
import dataclasses
from experiments import run
from tests.toy import experiment

def measure(subject, key, log):
    has_checkpoints = log.checkpoint_dir.exists() and any(log.checkpoint_dir.iterdir())
    return {"square": int(has_checkpoints)}

EXPERIMENT = run.TrainingExperiment(
    **{**vars(experiment.EXPERIMENT), "measure": measure}
)
if __name__ == "__main__":
    run.main(EXPERIMENT)
"""


@pytest.mark.parametrize("overwrite", [False, True])
def test_overwrite_deletes_checkpoints_that_lie_elsewhere(tmp_path, overwrite):
    """The toy's squares tell whether a training finds an old checkpoint there.

    As the toy does not say otherwise, checkpoints stay after the training.
    """
    checkpoints = tmp_path / "elsewhere"
    for cell in range(3):
        old = checkpoints / "toy" / "plain" / "seed=0" / f"cell={cell}"
        (old / "step=1").mkdir(parents=True)
    flags = [f"--results_dir={tmp_path / 'results'}", f"--checkpoint_dir={checkpoints}"]
    forked.run_code(TRAINS, tmp_path, *flags, *(["--overwrite"] if overwrite else []))
    (run,) = runs_below(tmp_path / "results")
    count = 0 if overwrite else 3
    assert run.summary["metrics"] == {"sum_of_squares": count}
    assert len(list(checkpoints.rglob("step=1"))) == count
