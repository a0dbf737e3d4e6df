"""Promotion and judging: what may become a reference, and what is sealed."""

import contextlib
import dataclasses
import json
import os
import re
import shutil

import numpy as np
import pytest
from absl.testing import flagsaver

from experiments import judge, landscape, promote, run
from identity_matters import code_version, paper, runs
from identity_matters.runs import seals
from tests import forked
from tests.measured import REFERENCE
from tests.rewriting import rewrite

NAME = "landscape/negative_determinant/seed=0"


@pytest.fixture
def local(tmp_path):
    """A copy of a reference run, as if it had just been made."""
    path = tmp_path / "local" / NAME
    shutil.copytree(REFERENCE / NAME, path)
    commit = runs.read_run(path).environment["commit"]
    if code_version.digest_of_commit(commit) is None:
        pytest.skip("the commit of the run is not here, as in a copy without .git")
    with flagsaver.as_parsed(reference_dir=str(tmp_path / "reference")):
        yield path


def run_module(name, *arguments):
    return forked.run(f"experiments.{name}", *arguments)


def contents(path):
    return {name: (path / name).read_bytes() for name in judge.FILES}


def test_promote_copies_a_finished_run_as_it_is(tmp_path, local):
    reference = tmp_path / "reference"
    target = reference / NAME
    for replaced in (False, True):
        finished = run_module("promote", f"--reference_dir={reference}", local)
        assert finished.returncode == 0, finished.stderr
        assert finished.stdout.strip().endswith("is replaced") == replaced
        assert sorted(os.listdir(target)) == sorted(judge.FILES)
        assert contents(target) == contents(local)
        assert os.listdir(target.parent) == ["seed=0"]
    second = run_module("promote", f"--reference_dir={reference}", target)
    assert (second.returncode, len(second.stderr.splitlines())) == (2, 1)
    assert "is in the reference already" in second.stderr


def test_a_promotion_that_was_killed_at_its_renames_loses_nothing(tmp_path, local):
    target = tmp_path / "reference" / NAME
    # Between the two, and after both.
    for left_over in ((".old-seed=0", ".new-seed=0"), (".old-seed=0",)):
        for name in left_over:
            shutil.copytree(local, target.with_name(name))
        assert promote._main([str(local)]) == 0
        assert os.listdir(target.parent) == ["seed=0"]
        assert contents(target) == contents(local)


class Killed(BaseException):
    pass


def test_a_promotion_that_fails_keeps_the_run_that_it_was_to_replace(
    tmp_path, local, monkeypatch
):
    target = tmp_path / "reference" / NAME
    assert promote._main([str(local)]) == 0
    before = contents(target)
    rename = os.rename
    copyfile = shutil.copyfile

    def killed_before_the_second(source, place):
        if source.name.startswith(".new"):
            raise Killed
        rename(source, place)

    def changed_before_the_last(source, place, **options):
        if source.name == judge.FILES[-1]:
            rewrite(local, "summary.json", verdict="counterexample")
        copyfile(source, place, **options)

    with monkeypatch.context() as context:
        context.setattr(os, "rename", killed_before_the_second)
        with pytest.raises(Killed):
            promote._main([str(local)])
    assert contents(target.with_name(".old-seed=0")) == before
    monkeypatch.setattr(shutil, "copyfile", changed_before_the_last)
    with pytest.raises(runs.RunError, match="changed while it was copied"):
        promote._main([str(local)])
    assert contents(target) == before


def test_several_runs_are_promoted_together_or_not_at_all(tmp_path, local):
    names = (NAME, "landscape/hessian_at_origin/seed=0")
    second = tmp_path / "local" / names[1]
    shutil.copytree(REFERENCE / names[1], second)
    metrics = runs.read_run(second).summary["metrics"]
    rewrite(second, "summary.json", metrics={})
    with pytest.raises(runs.RunError, match="the records say"):
        promote._main([str(local), str(second)])
    assert not (tmp_path / "reference").exists()
    rewrite(second, "summary.json", metrics=metrics)
    assert promote._main([str(local), str(second)]) == 0
    for name in names:
        assert contents(tmp_path / "reference" / name) == contents(REFERENCE / name)


def test_a_training_that_diverged_is_promoted_with_its_verdict(tmp_path):
    name = "cifar/cifar100/all_conv_residual/seed=0"
    local = tmp_path / "local" / name
    shutil.copytree(REFERENCE / name, local)
    if (
        code_version.digest_of_commit(runs.read_run(local).environment["commit"])
        is None
    ):
        pytest.skip("the commit of the run is not here, as in a copy without .git")
    with flagsaver.as_parsed(reference_dir=str(tmp_path / "reference")):
        assert promote._main([str(local)]) == 0
    promoted = runs.read_run(tmp_path / "reference" / name)
    assert promoted.status == "diverged"
    assert promoted.summary["verdict"] == "not reproduced"


# The metrics of NAME, as its records say.
METRICS = runs.read_run(REFERENCE / NAME).summary["metrics"]
ONE = next(iter(METRICS))
NORM = METRICS["least_gradient_norm"]


@pytest.mark.parametrize(
    ("name", "fields", "message"),
    [
        (
            "environment",
            {"dirty": None},
            "was not made at a commit without changes; run it anew at one, with"
            " --overwrite, or OVERWRITE=1 for make",
        ),
        ("environment", {"dirty": True}, "was not made at a commit without changes"),
        ("environment", {"commit": None}, "was not made at a commit without changes"),
        (
            "environment",
            {"commit": "0" * 40},
            f"its commit {'0' * 40} is not in this clone",
        ),
        (
            "environment",
            {"code": "0" * 16},
            "was made by other code than that of its commit",
        ),
        (
            "summary",
            {"status": "interrupted"},
            "only a finished run can be promoted; it is interrupted",
        ),
        (
            "summary",
            {"status": "diverged"},
            "it diverged, and landscape has no verdict on that",
        ),
        (
            "summary",
            {"changed": {"depth": 1}},
            "its settings are not those of a variant",
        ),
        (
            "summary",
            {"experiment": "../../../../elsewhere"},
            "experiment must be a relative path",
        ),
        ("summary", {"variant": "/elsewhere"}, "variant must be a relative path"),
        (
            "summary",
            {"experiment": "other"},
            "its summary.json belongs at other/negative_determinant/seed=0",
        ),
        (
            "summary",
            {"seed": 1},
            "its summary.json belongs at landscape/negative_determinant/seed=1",
        ),
        # What the records do not say.
        (
            "summary",
            {"verdict": "counterexample"},
            "verdict is 'counterexample', the records say",
        ),
        (
            "summary",
            {"claim": "theorem-2-1"},
            "claim is 'theorem-2-1', the records say",
        ),
        (
            "summary",
            {"metrics": {**METRICS, ONE: 77}},
            f"metrics.{ONE} is 77, the records say",
        ),
        (
            "summary",
            {"metrics": {**METRICS, "least_gradient_norm": NORM * (1 + 1e-8)}},
            "metrics.least_gradient_norm is",
        ),
        (
            "summary",
            {"metrics": {**METRICS, "balls": float(METRICS["balls"])}},
            f"metrics.balls is {METRICS['balls']}.0, the records say",
        ),
        (
            "summary",
            {"metrics": {**METRICS, "more": 1}},
            "metrics.more is 1, the records say None",
        ),
        ("summary", {"metrics": {}}, "the records say"),
        (
            "summary",
            {"paper": {ONE: 1}},
            "paper is None, the records say {}",
        ),
        ("summary", {"seconds": {"total": 1.0}}, "the records say"),
        ("summary", {"scale": "reduced"}, "its scale must be 'paper'"),
        ("config", {"taus": [0.25]}, "was made with taus=[0.25], which is"),
        (
            "config",
            {"variant": "hessian_at_origin"},
            "was made with variant='hessian_at_origin', which is",
        ),
    ],
)
def test_promote_refuses_what_nobody_could_make_again_or_lies_elsewhere(
    tmp_path, local, name, fields, message
):
    rewrite(local, f"{name}.json", **fields)
    with pytest.raises(runs.RunError, match=re.escape(message)):
        promote._main([str(local)])
    assert [entry.name for entry in tmp_path.iterdir()] == ["local"]


@pytest.mark.parametrize(
    ("experiment", "variant", "message"),
    [
        ("zzz", "plain", "there is no experiment 'zzz'"),
        ("benchmark_zzz", "plain", "there is no experiment 'benchmark_zzz'"),
        ("landscape", "other", "landscape has no variant 'other'"),
    ],
)
def test_promote_takes_runs_of_experiments_alone(
    tmp_path, local, experiment, variant, message
):
    path = tmp_path / "local" / experiment / variant / "seed=0"
    shutil.copytree(local, path)
    rewrite(path, "summary.json", experiment=experiment, variant=variant)
    with pytest.raises(runs.RunError, match=message):
        promote._main([str(path)])


def test_a_run_for_no_claim_of_ours_is_not_promoted(local, monkeypatch):
    monkeypatch.setattr(paper, "CLAIMS", {})
    with pytest.raises(runs.RunError, match="there is no claim 'negative-determinant'"):
        promote._main([str(local)])


def test_metrics_that_another_processor_rounds_otherwise_agree(local):
    metrics = {**METRICS, "least_gradient_norm": NORM * (1 + 1e-12)}
    assert metrics != METRICS
    rewrite(local, "summary.json", metrics=metrics)
    assert promote._main([str(local)]) == 0


def test_a_run_may_be_promoted_from_within_its_directory(tmp_path, local, monkeypatch):
    monkeypatch.chdir(local)
    assert promote._main(["."]) == 0
    target = tmp_path / "reference" / NAME
    assert contents(target) == contents(local)
    # However the path is written.
    monkeypatch.chdir(target)
    with pytest.raises(runs.RunError, match="is in the reference already"):
        promote._main(["."])


def test_the_reference_may_be_a_relative_path(tmp_path, local, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with flagsaver.as_parsed(reference_dir="relative"):
        assert promote._main([str(local)]) == 0
    assert contents(tmp_path / "relative" / NAME) == contents(local)


def test_metrics_are_compared_as_a_run_writes_them(local, monkeypatch):
    """NumPy's numbers as Python's, and null for what is not finite."""

    def verdict(settings, records):
        metrics = {"ratio": np.inf, "count": np.int64(3), "norm": np.float64(0.5)}
        return run.Verdict("negative-determinant", metrics, "holds", {"ratio": np.inf})

    changed = dataclasses.replace(landscape.EXPERIMENT, verdict=verdict)
    monkeypatch.setattr(judge, "_experiment", lambda _: changed)
    metrics = {"ratio": None, "count": 3, "norm": 0.5}
    rewrite(local, "summary.json", metrics=metrics, paper={"ratio": None})
    written = runs.read_run(local)
    assert judge.disagreements(written, judge.conclusion(written)) == []


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"commit": "1" * 40}, "was made at several commits"),
        ({"dirty": True}, "was not made at a commit without changes"),
        ({"code": "0" * 16}, "was made by other code than that of its commit"),
    ],
)
def test_a_run_that_was_resumed_by_other_code_is_no_reference(local, fields, message):
    environment = runs.read_json(local / "environment.json")
    other = {**environment, **fields}
    for first, second in ((environment, other), (other, environment)):
        rewrite(local, "environment.json", **first, resumed=[second])
        with pytest.raises(runs.RunError, match=message):
            promote._main([str(local)])


def test_links_are_neither_copied_nor_followed(tmp_path, local):
    reference = tmp_path / "reference"
    (local / "metrics.jsonl").rename(tmp_path / "lines")
    (local / "metrics.jsonl").symlink_to(tmp_path / "lines")
    with pytest.raises(
        runs.RunError, match=r"metrics.jsonl: is a link; only files are copied"
    ):
        promote._main([str(local)])
    (local / "metrics.jsonl").unlink()
    (tmp_path / "lines").rename(local / "metrics.jsonl")
    (reference / "landscape").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    (reference / "landscape" / "negative_determinant").symlink_to(
        tmp_path / "elsewhere"
    )
    with pytest.raises(runs.RunError, match="leads out of the reference by a link"):
        promote._main([str(local)])
    assert list((tmp_path / "elsewhere").iterdir()) == []


def as_schema_2(path):
    """Makes a run what versions before schema 3 wrote: without digests."""
    for name in ("summary.json", "environment.json"):
        value = json.loads((path / name).read_text())
        del value["digest"]
        if name == "summary.json":
            value["schema"] = 2
        runs.write_json(path / name, value)


def test_a_run_of_schema_2_is_sealed_once_it_is_judged(tmp_path, local):
    before = contents(local)
    as_schema_2(local)
    with pytest.raises(
        runs.RunError,
        match=r"schema 2, of an older version; run it anew, or if it is finished",
    ):
        runs.read_run(local)
    judged = run_module("judge", local)
    assert (judged.returncode, "--write seals it" in judged.stdout) == (1, True)
    assert run_module("judge", "--write", tmp_path).returncode == 0
    assert contents(local) == before
    good = run_module("judge", tmp_path)
    said = "1 run: claims, verdicts and metrics follow from the records\n"
    assert (good.returncode, good.stdout) == (0, said)


@pytest.mark.parametrize("name", ["summary.json", "environment.json"])
def test_a_digest_that_schema_2_has_must_be_right(local, name):
    as_schema_2(local)
    judge._read(local)
    value = json.loads((local / name).read_text())
    config = runs.read_json(local / "config.json")
    covered = [config] if name == "summary.json" else []
    runs.write_json(local / name, seals.sealed(value, *covered))
    judge._read(local)
    runs.write_json(local / name, {**value, "digest": "0" * 16})
    with pytest.raises(runs.RunError, match=f"{name}.*a value was changed"):
        judge._read(local)


def test_a_run_that_is_not_finished_is_not_judged(local):
    rewrite(local, "summary.json", status="interrupted")
    before = contents(local)
    judged = run_module("judge", "--write", local)
    assert judged.returncode == 1
    assert "only a finished run can be judged; it is interrupted" in judged.stdout
    assert contents(local) == before


def test_the_summary_is_written_as_the_records_say(local):
    before = runs.read_run(local)
    shutil.copytree(local, local.with_name("right"))
    rewrite(
        local, "summary.json", verdict="counterexample", metrics={**METRICS, ONE: 77}
    )
    as_schema_2(local)
    # One run that is right does not make up for another that is wrong.
    judged = run_module("judge", local.parent)
    assert judged.returncode == 1
    assert "follow from the records" not in judged.stdout
    assert "verdict is 'counterexample', the records say 'holds'" in judged.stdout
    assert f"metrics.{ONE} is 77, the records say" in judged.stdout
    written = run_module("judge", "--write", local.parent)
    assert written.returncode == 0
    assert "2 runs: claims, verdicts and metrics follow" in written.stdout
    assert runs.read_run(local) == before


def test_a_run_that_another_process_writes_is_not_written(local):
    rewrite(local, "summary.json", verdict="counterexample")
    before = contents(local)
    with contextlib.ExitStack() as lock:
        runs.lock_path(local, lock)
        judged = run_module("judge", "--write", local)
        assert judged.returncode == 1
        assert "another process is writing here" in judged.stdout
        # Who only reads needs no lock.
        assert "the records say 'holds'" in run_module("judge", local).stdout
    assert contents(local) == before


def test_a_run_of_changed_settings_is_judged_but_for_its_verdict(tmp_path):
    changed = ("--config=:negative_determinant", "--config.taus=(0.25,)")
    forked.run("experiments.landscape", *changed, f"--results_dir={tmp_path}", ends=0)
    (path,) = tmp_path.glob("landscape/negative_determinant@*/seed=0")
    assert run_module("judge", tmp_path).returncode == 0
    summary = runs.read_run(path).summary
    for fields, message in (
        ({"verdict": "holds"}, "verdict is 'holds', the records say 'not comparable'"),
        ({"changed": {"taus": [0.5]}}, "was made with taus=[0.25], which is"),
        ({"changed": {}}, "landscape has no variant 'negative_determinant@"),
        ({"scale": "paper"}, "its scale must be 'reduced'"),
        ({"variant": "negative_determinant@0"}, "was made with taus=[0.25], which is"),
    ):
        rewrite(path, "summary.json", **fields)
        judged = run_module("judge", path)
        assert (judged.returncode, message in judged.stdout) == (1, True), judged
        rewrite(path, "summary.json", **{name: summary[name] for name in fields})
    rewrite(path, "config.json", taus=[0.5, 0.25])
    assert (
        "was made with taus=[0.5, 0.25], which is" in run_module("judge", path).stdout
    )


def test_what_cannot_be_judged_is_named(tmp_path, local):
    (local / "metrics.jsonl").write_text("")
    judged = run_module("judge", "--write", tmp_path)
    assert (judged.returncode, len(judged.stdout.splitlines())) == (1, 1)
    assert str(local / "metrics.jsonl") in judged.stdout
    assert run_module("judge", tmp_path / "none").returncode == 2
