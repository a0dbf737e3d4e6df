"""Every entry point at its smallest settings; compare and report."""

import pytest

from benchmarks import linear
from identity_matters import runs
from identity_matters.report import build, collection
from tests import forked
from tests.report.toy_runs import write_run


def run_module(name, *arguments):
    return forked.run(f"experiments.{name}", *arguments)


# Every entry point with the smallest settings that it allows, so that a run takes
# seconds.
TINY_RUNS = {
    "experiments.factorization:random": (
        "dimensions=(2,3) depths=(8,) large_cells=() path_iterations=5"
        " path_exponents=(4,)"
    ),
    "experiments.linear_training:depth": (
        "depths=(1,8) width=2 problem_seeds=(0,) gammas=(0.5,) angles_radians=((0.5,),)"
        " sigma_eigenvalues=(0.5,1.5) descent.max_updates=20"
    ),
    "experiments.linear_training:stuck_targets": (
        "depth=3 map_widths=(4,) repeats=1 descent.max_updates=20"
    ),
    "experiments.linear_training:noise": (
        "depths=(2,3) noise_stds=(0.1,) draws=2 descent.max_updates=20"
    ),
    "experiments.linear_sampled:noise_floor": (
        "depths=(2,) problem.width=3 train.steps=4 train.batch_examples=4"
        " settled_from_step=2"
    ),
    "experiments.linear_sampled:devices": "depth=2 train.steps=2 device_counts=(1,2)",
    "experiments.linear_sampled:points": (
        "shapes=((2,2),) parts=1 chunks=4 points_per_chunk=500 max_tau=0.5"
    ),
    "experiments.sampled_bound:grid": (
        "depths=(2,) batches_of_examples=(8,) runs=4 updates=20"
    ),
    "experiments.convergence:inside": (
        "depths=(2,) widths=(2,) problems=2 updates=3 beyond_shapes=((2,2),)"
        " beyond_problems=2 beyond_updates=3"
    ),
    "experiments.convergence:escape": (
        "depths=(2,3) noises=(0.2,) draws=2 targets=((-0.5,),(0.5,))"
    ),
    "experiments.memorize:digits": (
        "fit.examples=(64,) fit.networks=((2,'float64'),) separation.examples=(64,)"
        " sgd.examples=(32,) sgd.steps=2 sgd.steps_per_evaluation=1"
        " sgd.learning_rates=(0.01,)"
    ),
    "experiments.memorize:synthetic": (
        "fit.examples=(64,) separation.examples=(64,) minimal_width.examples=(64,) "
        "minimal_width.max_width=2 precision.pairs=8"
    ),
    "experiments.images.cifar:digits/all_conv_residual": (
        "model.blocks_per_stage=(1,1) model.stage_strides=(1,2) model.stem_width=4 "
        "model.widths=(4,8) train.steps=2 train.steps_per_log=1"
    ),
    "experiments.images.comparisons:digits/initialisation": (
        # Each of the twelve trainings is traced anew, block by block.
        "model.blocks_per_stage=(1,) model.stage_strides=(1,) model.stem_width=2"
        " model.widths=(2,) train.steps=2 train.steps_per_log=1 trial_steps=2"
    ),
    "experiments.images.imagenet:miniature/all_conv_residual": (
        "data.miniature_examples=20 data.image_pixels=16"
        " data.eval_shorter_side_pixels=16 data.data_dir=TEMPORARY"
        " model.blocks_per_stage=(1,) model.widths=(4,) model.stage_strides=(2,)"
        " model.stem_width=4 optim.warmup_steps=0 train.steps=2 train.batch_examples=4"
        " train.steps_per_log=1"
    ),
    "experiments.deep_mlp:digits/relu": (
        "depths=(2,5) train.rates_times_depth=(0.3,0.1) train.pilot_steps=2"
        " train.step_count=4 layer_points=3"
    ),
    "experiments.memorize:few_numbers": (
        "few_numbers.examples=(64,) few_numbers.group_points=(5,)"
    ),
    "experiments.memorize:retrieval": "retrieval.examples=(64,)",
    "experiments.memorize:few_numbers_trade": (
        "few_numbers.examples=(64,) few_numbers.word_bits=(34,53)"
        " few_numbers.widths=(6,7) few_numbers.least_hash_chance=0.1"
    ),
    "benchmarks.memorize:default": "examples=(64,128)",
    "benchmarks.input_pipeline:default": (
        "images=8 cores=(1,) batch_examples=4 batches_per_round=1 rounds=1"
    ),
    "benchmarks.linear:default": "depths=(2,4) width=4 layers_per_run=8 repeats=1",
}
# Entry points whose settings come from a file, as a flag cannot leave out an arm.
SETTINGS_FILES = {
    "experiments.images.comparisons": "tests/experiments/two_arms.py",
}
# Optional packages that an entry point needs.
_IMAGENET = ("tensorflow_datasets", "array_record", "grain", "cv2")
NEEDED = {
    "benchmarks.input_pipeline": _IMAGENET,
    "experiments.images.imagenet": _IMAGENET,
}


@pytest.mark.parametrize("entry", TINY_RUNS)
def test_every_entry_point_runs_to_its_end(entry, tmp_path):
    module, variant = entry.split(":")
    for package in NEEDED.get(module, ()):
        pytest.importorskip(
            package, reason=f"{package} is not installed (extra imagenet)"
        )
    words = TINY_RUNS[entry].replace("TEMPORARY", str(tmp_path)).split()
    changes = [f"--config.{word}" for word in words]
    settings_file = SETTINGS_FILES.get(module, "")
    config = [] if variant == "default" else [f"--config={settings_file}:{variant}"]
    finished = forked.run(module, *config, *changes, f"--results_dir={tmp_path}")
    assert finished.returncode == 0, finished.stderr
    (run,), problems = runs.read_collection(tmp_path)
    assert problems == []
    assert (run.status, run.summary["scale"]) == ("done", "reduced")
    assert run.summary["metrics"]
    # Results at this scale can still be drawn, if there are enough of them.
    pages = build.write([collection.read("yours", tmp_path)], tmp_path / "report")
    assert "## Left out" not in pages[0].read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("exponent", "load_per_core", "verdict"),
    [
        (1, 0.5, "reproduced"),
        (1, 5.0, "reproduced"),
        (2, 0.5, "not reproduced"),
        (2, 5.0, "undecided"),
        (2, None, "not reproduced"),  # a reference run, which did not record the load
    ],
)
def test_a_benchmark_on_a_busy_machine_refutes_nothing(
    exponent, load_per_core, verdict
):
    noted = {} if load_per_core is None else {"load_per_core": load_per_core}
    records = [
        {"depth": depth, "step_seconds": depth**exponent, "ratio": 1.0, **noted}
        for depth in (2, 4, 8)
    ]
    judged = linear.verdict(linear.get_config().to_dict(), records)
    assert judged.verdict == verdict
    assert judged.metrics.get("load_per_core") == (
        5.0 if verdict == "undecided" else None
    )


def test_compare_fails_on_a_contradiction_and_report_names_what_it_skips(tmp_path):
    nowhere = f"--reference_dir={tmp_path / 'none'}"
    write_run(tmp_path / "good")
    good = run_module("compare", nowhere, f"--results_dir={tmp_path / 'good'}")
    assert good.returncode == 0, good.stdout
    assert "Theorem 2.1: reproduced" in good.stdout
    assert "1 finished run of 1 variant: 1 reproduced; 0 contradictions" in good.stdout
    write_run(tmp_path / "several")
    write_run(tmp_path / "several", seed=1)
    write_run(tmp_path / "several", variant="short", verdict="undecided")
    several = run_module("compare", nowhere, f"--results_dir={tmp_path / 'several'}")
    counted = "3 finished runs of 2 variants: 1 reproduced, 1 undecided; "
    assert counted in several.stdout
    # The report names what it skips and goes on.
    (tmp_path / "good" / "toy" / "plain" / "seed=1").mkdir()
    report = run_module("report", nowhere, f"--results_dir={tmp_path / 'good'}")
    assert report.returncode == 0, report.stderr
    assert (
        "skipped: " in report.stderr and "seed=1/summary.json: missing" in report.stderr
    )
    assert (tmp_path / "good" / "report.html").is_file()
    missing = run_module("compare", f"--results_dir={tmp_path / 'none'}")
    assert missing.returncode == 2
    assert "there is no such directory" in missing.stderr
    (tmp_path / "bad" / "toy" / "plain" / "seed=0").mkdir(parents=True)
    damaged = run_module("compare", nowhere, f"--results_dir={tmp_path / 'bad'}")
    assert damaged.returncode == 1
    assert "summary.json: missing" in damaged.stdout
    reference = f"--reference_dir={tmp_path / 'bad'}"
    beside_it = run_module("compare", reference, f"--results_dir={tmp_path / 'good'}")
    assert beside_it.returncode == 1
    assert beside_it.stdout.count("summary.json: missing") == 2
    (tmp_path / "empty").mkdir()
    empty = run_module("compare", nowhere, f"--results_dir={tmp_path / 'empty'}")
    assert (empty.returncode, empty.stdout.count("\n")) == (0, 1)
    assert "empty: there are no runs yet; `make reproduce` makes them" in empty.stdout
    # In a fresh clone there is not even the directory.
    write_run(tmp_path / "known")
    reference = f"--reference_dir={tmp_path / 'known'}"
    fresh = forked.run("experiments.compare", reference, cwd=tmp_path, ends=0)
    title, published, known, note = fresh.stdout.splitlines()
    assert title == "Theorem 2.1: not run"
    assert published.startswith("    paper      |||A||| ")
    assert known == "    reference   [reproduced]"
    assert note == "results/local: there are no runs yet; `make reproduce` makes them"
    write_run(tmp_path / "begun", status="interrupted")
    begun = run_module("compare", nowhere, f"--results_dir={tmp_path / 'begun'}")
    assert begun.returncode == 1
    assert "seed=0: interrupted\n0 finished runs; 0 contradictions" in begun.stdout
    write_run(tmp_path / "bad", verdict="not reproduced")
    bad = run_module("compare", nowhere, f"--results_dir={tmp_path / 'bad'}")
    assert bad.returncode == 1
    assert "contradiction: toy/plain (Theorem 2.1): not reproduced" in bad.stdout


# The command in a repository that has been moved to the first argument.
REPORT_IN_REPOSITORY = """
import pathlib
import runpy
import sys

from identity_matters import code_version

code_version.REPOSITORY = pathlib.Path(sys.argv.pop(1)).resolve()
runpy.run_module("experiments.report", run_name="__main__", alter_sys=True)
"""


def test_the_readme_follows_the_reference_of_its_own_repository_alone(tmp_path):
    readme = tmp_path / "README.md"
    committed = (forked.ROOT / "README.md").read_text()
    readme.write_text(committed)
    write_run(tmp_path / "results" / "reference")
    options = ("--reference_only", "--reference_dir=results/reference")
    elsewhere = tmp_path / "elsewhere"

    def report(repository):
        return forked.run_code(REPORT_IN_REPOSITORY, tmp_path, repository, *options)

    other = report(elsewhere)
    assert readme.read_text() == committed
    assert "no README is changed: results/reference is not" in other.stdout
    assert (tmp_path / "results" / "report.html").is_file()
    own = report(tmp_path)
    assert readme.read_text() != committed
    assert own.stdout.splitlines()[-1] == str(readme)
