"""The life of a run directory: create, append, finish, resume, refuse, read."""

import errno
import fcntl
import json
import math
import os
import re
import sys
import time
from typing import ClassVar
from unittest import mock

import fsspec
import jax.numpy as jnp
import numpy as np
import pytest
from fsspec.implementations import memory

from identity_matters import runs
from tests import forked
from tests.rewriting import rewrite
from tests.runs.toy_runs import DONE, create, lines_of


def finished_run(results_dir, **changes):
    run = create(results_dir, **changes)
    run.append({"cell": 0, "value": 1.0})
    run.finish("done", **DONE)
    return run.path


def test_a_finished_run_reads_back_as_written_and_is_refused_and_left_alone(tmp_path):
    path = finished_run(tmp_path)
    assert path == tmp_path / "toy" / "a" / "b" / "seed=3"
    (run,), problems = runs.read_collection(tmp_path)
    assert not problems
    assert run.config == {"depth": [1, 2]}
    assert run.records == [{"cell": 0, "value": 1.0}]
    identity = {"experiment": "toy", "variant": "a/b", "seed": 3, "scale": "paper"}
    added = {name: run.summary[name] for name in ("seconds", "records", "digest")}
    assert run.summary == {"schema": 3, "status": "done", **identity, **DONE, **added}
    assert run.environment["packages"].keys() >= {"jax", "jaxlib", "numpy"}
    assert run.environment["backend"] == "cpu"
    before = {entry.name: entry.read_bytes() for entry in path.iterdir()}
    with pytest.raises(runs.RunError, match="--overwrite"):
        create(tmp_path)
    assert {entry.name: entry.read_bytes() for entry in path.iterdir()} == before


def test_two_writers_are_one_too_many(tmp_path):
    run = create(tmp_path)
    with pytest.raises(runs.RunError, match="another process"):
        create(tmp_path)
    run.finish("interrupted")
    create(tmp_path).finish("interrupted")


@pytest.mark.parametrize("kept", ["metrics.jsonl", "checkpoints"])
def test_results_without_a_summary_are_neither_taken_over_nor_erased(tmp_path, kept):
    path = finished_run(tmp_path)
    if kept == "checkpoints":
        (path / "metrics.jsonl").write_bytes(b"")
        (path / "checkpoints" / "cell=0").mkdir(parents=True)
    (path / "summary.json").unlink()
    before = (path / "metrics.jsonl").read_bytes()
    with pytest.raises(
        runs.RunError, match=f"summary.json: missing beside {kept}; put it back"
    ):
        create(tmp_path)
    assert (path / "metrics.jsonl").read_bytes() == before
    create(tmp_path, overwrite=True).finish("interrupted")


DAMAGES = {
    "a line lost": lambda lines: [lines[0], lines[2]],
    "a line doubled": lambda lines: [lines[0], lines[0], *lines[1:]],
    "lines swapped": lambda lines: [lines[1], lines[0], lines[2]],
    "a digit changed": lambda lines: [lines[0].replace(b"0.25", b"0.26"), *lines[1:]],
    "a line of garbage": lambda lines: [lines[0], b"\xffgarbage\n", *lines[1:]],
    "no digest": lambda lines: [b'{"cell": 0, "value": 0.25}\n', *lines[1:]],
}


@pytest.mark.parametrize("status", ["running", "interrupted", "done"])
@pytest.mark.parametrize("damage", [*DAMAGES, "the end lost", "emptied", "no file"])
def test_records_that_are_not_as_written_are_refused(tmp_path, status, damage):
    run = create(tmp_path)
    for cell in range(3):
        run.append({"cell": cell, "value": cell + 0.25})
    if status == "running":  # as a kill leaves it
        run._lock.close()
    else:
        run.finish(status, **(DONE if status == "done" else {}))
    if damage in DAMAGES:
        lines = DAMAGES[damage](lines_of(run.path))
    else:
        lines = lines_of(run.path)[:1] if damage == "the end lost" else []
    (run.path / "metrics.jsonl").write_bytes(b"".join(lines))
    if damage == "no file":
        (run.path / "metrics.jsonl").unlink()
    if status == "done" or damage in DAMAGES:
        with pytest.raises(runs.RunError, match=r"metrics\.jsonl"):
            runs.read_run(run.path)
    if status == "running" and damage not in DAMAGES:
        # The lines that a killed run lost at its end are measured again.
        assert len(create(tmp_path).records) == len(lines)
    else:
        said = (
            r"metrics\.jsonl:(\d| has \d of the 3 lines| not as the run left it|"
            r" missing)"
        )
        with pytest.raises(runs.RunError, match=said):
            create(tmp_path)
        assert damage == "no file" or lines_of(run.path) == b"".join(lines).splitlines(
            True
        )


def test_an_interrupted_run_does_not_go_on_with_the_lines_of_another(tmp_path):
    """They are as many, and chained as they should be."""
    paths = []
    for seed in (0, 1):
        run = create(tmp_path, seed=seed)
        run.append({"cell": 0, "seed": seed})
        run.finish("interrupted")
        paths.append(run.path / "metrics.jsonl")
    paths[0].write_bytes(paths[1].read_bytes())
    with pytest.raises(runs.RunError, match="has 1 of the 1 lines that the run wrote"):
        create(tmp_path, seed=0)


def test_a_finished_run_has_no_half_line_at_its_end(tmp_path):
    """A kill may leave one, but not in a run that has finished since."""
    lines = finished_run(tmp_path) / "metrics.jsonl"
    lines.write_bytes(lines.read_bytes() + b'{"cell": 1')
    with pytest.raises(runs.RunError, match=r"metrics\.jsonl: not as the run left it"):
        runs.read_run(lines.parent)


@pytest.mark.parametrize("name", ["environment.json", "config.json", "summary.json"])
@pytest.mark.parametrize(
    "content",
    [None, b"", b"[]", b"{", b"\xff", b"[" * 100_000, b'{"a": "\\ud800"}', "directory"],
)
def test_a_damaged_file_is_named_and_skipped_and_ends_a_resumption_in_one_line(
    tmp_path, name, content
):
    run = create(tmp_path)
    run.append({"cell": 0})
    run.finish("interrupted")
    (run.path / name).unlink()
    if content == "directory":
        (run.path / name).mkdir()
        with pytest.raises(
            runs.RunError, match=rf"{name}: cannot be read \(it is not a regular file\)"
        ):
            runs.read_run(run.path)
    elif content is not None:
        (run.path / name).write_bytes(content)
    accepted, problems = runs.read_collection(tmp_path)
    assert accepted == [] and name in problems[0]
    with pytest.raises(runs.RunError, match=name) as refused:
        create(tmp_path)
    assert "\n" not in str(refused.value)
    assert len(lines_of(run.path)) == 1


@pytest.mark.parametrize("name", ["environment.json", "config.json", "summary.json"])
@pytest.mark.parametrize("status", ["running", "done", "interrupted"])
def test_a_changed_value_is_noticed(tmp_path, name, status):
    settings = {"depth": (1, 2), "rate": math.nan}
    run = create(tmp_path, config=settings)
    run.append({"cell": 0})
    if status == "running":
        run._lock.close()
    else:
        run.finish(status, **(DONE if status == "done" else {}))
    value = runs.read_json(run.path / name)
    changes = {
        "environment.json": {"cpu_cores": 7},
        "config.json": {"depth": [3]},
        "summary.json": {"scale": "reduced"},
    }[name]
    runs.write_json(run.path / name, value)
    runs.read_run(run.path)
    runs.write_json(run.path / name, {**value, **changes})
    said = r"(summary|environment)\.json.*a value was changed"
    with pytest.raises(runs.RunError, match=said):
        runs.read_run(run.path)
    with pytest.raises(runs.RunError, match=said):
        create(tmp_path, config=settings)


@pytest.mark.parametrize("name", ["environment.json", "summary.json"])
@pytest.mark.parametrize("status", ["running", "done", "interrupted"])
def test_a_seal_cannot_be_left_out(tmp_path, name, status):
    run = create(tmp_path)
    if status != "running":
        run.finish(status, **(DONE if status == "done" else {}))
    value = runs.read_json(run.path / name)
    del value["digest"]
    runs.write_json(run.path / name, value)
    with pytest.raises(runs.RunError, match="has no digest"):
        runs.read_run(run.path)


def test_a_disk_that_fills_up_loses_no_line_and_leaves_no_file(tmp_path, monkeypatch):
    run = create(tmp_path)
    run.append({"cell": 0})
    full = mock.Mock(side_effect=OSError(errno.ENOSPC, "No space left on device"))
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left on device"):
        run.append({"cell": 1})
    with pytest.raises(OSError, match="No space left on device"):
        run.finish("done", **DONE)
    # An OSError, not "cannot be written": the command line then says what to free.
    with pytest.raises(OSError, match="No space left on device"):
        create(tmp_path, seed=4)
    monkeypatch.undo()
    assert not list(tmp_path.rglob(".*"))
    # The line that failed may be there, too.
    assert create(tmp_path).records[:1] == [{"cell": 0}]


def test_a_file_system_without_locks_is_named_and_used(tmp_path, monkeypatch, capsys):
    refuse = mock.Mock(side_effect=OSError(errno.ENOLCK, "No locks available"))
    monkeypatch.setattr(fcntl, "flock", refuse)
    create(tmp_path).finish("interrupted")
    assert (
        "has no locks (No locks available); start a run only once"
        in capsys.readouterr().err
    )


class Bucket(memory.MemoryFileSystem):
    """A stand-in for `gcsfs` that keeps everything in memory."""

    protocol = ("gs", "gcs")
    store: ClassVar = {}
    pseudo_dirs: ClassVar = [""]

    @classmethod
    def _strip_protocol(cls, path):
        return "/" + str(path).removeprefix("gs://").strip("/")


def test_places_that_cannot_be_written_are_refused(tmp_path, monkeypatch):
    (tmp_path / "toy").write_text("a file")
    with pytest.raises(runs.RunError, match="cannot be written"):
        create(tmp_path)
    monkeypatch.setenv("EPATH_USE_TF", "0")
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    with pytest.raises(runs.RunError, match=r"cannot be written .*gcsfs"):
        create("gs://bucket/results")


@pytest.mark.parametrize("place", ["disk", "bucket"])
def test_an_unfinished_run_goes_on_where_it_stood(tmp_path, monkeypatch, place):
    results_dir = tmp_path
    if place == "bucket":
        monkeypatch.setenv("EPATH_USE_TF", "0")
        fsspec.register_implementation("gcs", Bucket, clobber=True)
        results_dir = "gs://bucket/results"
    first = create(results_dir)
    first.append({"cell": 0})
    first.finish("interrupted")
    # A kill in the middle of writing a line and a file leaves these.
    lines = first.path / "metrics.jsonl"
    lines.write_bytes(lines.read_bytes() + b'{"cell": 1')
    if place == "disk":
        (first.path / ".summary.json.123.tmp").write_text("half")
    second = create(results_dir)
    assert second.records == [{"cell": 0}]
    second.append({"cell": 1})
    second.finish("interrupted")
    lines.write_bytes(lines.read_bytes() + b'{"cell": 2')
    create(results_dir).finish("done", **DONE)
    with pytest.raises(runs.RunError):
        create(results_dir)
    (run,), problems = runs.read_collection(results_dir)
    assert problems == [] and run.records == [{"cell": 0}, {"cell": 1}]
    # It was resumed twice.
    assert len(run.environments) == 3
    assert not list(tmp_path.rglob(".*"))
    assert create(results_dir, overwrite=True).records == []


def test_lines_that_may_wait_are_written_together_in_a_bucket(monkeypatch):
    """A bucket takes one write of an object a second, and a TPU logs more often."""
    monkeypatch.setenv("EPATH_USE_TF", "0")
    fsspec.register_implementation("gcs", Bucket, clobber=True)
    run = create("gs://waiting/results")
    written = run.path / "metrics.jsonl"
    run.append({"cell": 0})
    first = written.read_bytes()
    run.append({"cell": 1}, may_wait=True)
    run.append({"cell": 2}, may_wait=True)
    assert written.read_bytes() == first
    assert [record["cell"] for record in run.records] == [0, 1, 2]
    run.flush()
    assert written.read_bytes().count(b"\n") == 3
    # The end of the run writes what waits.
    run.append({"cell": 3}, may_wait=True)
    run.finish("interrupted")
    resumed = create("gs://waiting/results")
    assert [record["cell"] for record in resumed.records] == [0, 1, 2, 3]
    # What is taken back is not written later.
    resumed.append({"cell": 4}, may_wait=True)
    resumed.rewind(1)
    resumed.flush()
    assert written.read_bytes() == first


def test_lines_that_wait_outlive_a_write_that_fails(monkeypatch):
    monkeypatch.setenv("EPATH_USE_TF", "0")
    fsspec.register_implementation("gcs", Bucket, clobber=True)
    run = create("gs://failing/results")
    run.append({"cell": 0}, may_wait=True)
    with monkeypatch.context() as context:
        busy = mock.Mock(side_effect=OSError("429 Too Many Requests"))
        context.setattr(Bucket, "_open", busy)
        with pytest.raises(OSError, match="429"):
            run.append({"cell": 1})
    run.finish("failed")
    assert runs.read_run(run.path).records == [{"cell": 0}]


@pytest.mark.parametrize("variant", ["", "/etc", "a/../b", "a b", "a//b"])
def test_a_variant_cannot_leave_its_directory(tmp_path, variant):
    with pytest.raises(ValueError, match="variant"):
        runs.run_path(tmp_path, "toy", variant, 0)
    with pytest.raises(ValueError, match="experiment"):
        runs.run_path(tmp_path, variant, "plain", 0)


def test_a_run_is_found_however_deep_it_may_be_and_refused_deeper(tmp_path):
    deepest = create(tmp_path, experiment="toy", variant="a/b/c")
    deepest.finish("interrupted")
    (found,), problems = runs.read_collection(tmp_path)
    assert (found.variant, problems) == ("a/b/c", [])
    with pytest.raises(ValueError, match=r"at most 4 names, got 'toy/a/b/c/d'"):
        create(tmp_path, experiment="toy", variant="a/b/c/d")
    assert len(list(deepest.path.parent.iterdir())) == 1


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"schema": 4}, "schema must be one of"),
        (
            {"schema": 2},
            "schema 2, of an older version; run it anew, or if it is finished seal it",
        ),
        ({"seed": -1}, "seed must be a whole number below"),
        ({"seed": 2**32}, "seed must be a whole number below"),
        (
            {"metrics": {"norm": "![x](/etc/passwd)"}},
            "metrics must be a dict, .* finite number",
        ),
        ({"metrics": {"norm": 10**400}}, "metrics must be a dict, .* finite number"),
        ({"metrics": {"<b>": 1}}, "metrics must be a dict, each name a plain name"),
        ({"paper": {"norm": [1]}}, "paper must be a dict"),
        ({"seconds": {"total": -1}}, "seconds must be a dict"),
        ({"records": {"lines": 1}}, "records must be"),
        ({"variant": "a\n# b"}, "variant must be a relative path of plain names"),
        ({"status": "fine"}, "status must be one of"),
        ({"verdict": "true"}, "verdict must be one of"),
        ({"claim": None}, "claim must be the id of a claim"),
        ({"seed": True}, "seed must be a whole number"),
        ({"metrics": 3}, "metrics must be a dict"),
        ({"paper": {"other": 1}}, "paper has values of"),
        ({"seed": 4}, "belongs at"),
    ],
)
def test_a_broken_contract_is_named_and_skipped(tmp_path, change, reason):
    path = finished_run(tmp_path)
    finished_run(tmp_path, seed=5)
    rewrite(path, "summary.json", **change)
    accepted, problems = runs.read_collection(tmp_path)
    assert [run.seed for run in accepted] == [5]
    (problem,) = problems
    assert re.search(reason, problem) and str(path) in problem and problem.isprintable()


def test_a_contract_breach_is_not_written(tmp_path):
    with pytest.raises(ValueError, match=r"scale must be one of .*, is 'huge'"):
        create(tmp_path, scale="huge")
    run = create(tmp_path)
    with pytest.raises(ValueError, match="verdict"):
        run.finish("done", **{**DONE, "verdict": "quite so"})
    for name in ("claim", "metrics", "paper", "verdict"):
        others = {field: value for field, value in DONE.items() if field != name}
        with pytest.raises(ValueError, match=f"{name} is missing, it must be"):
            run.finish("done", **others)
    assert runs.read_run(run.path).status == "running"


def write_for_ever(results_dir):
    run = create(results_dir, config={})
    for value in range(len(run.records), 10**9):
        run.append({"value": value, "filler": "x" * 2000})
        runs.write_json(
            run.path / "state.json", {"value": value, "filler": "y" * 20000}
        )


def test_a_run_survives_kill_9_at_any_moment(tmp_path):
    """Killed four times while it writes, it never loses a line or shows half a file."""
    path = tmp_path / "toy" / "a" / "b" / "seed=3"
    written = 0

    def has_grown():
        return (path / "state.json").exists() and len(lines_of(path)) > written

    for round_number in range(4):
        process = forked.server.Process(target=write_for_ever, args=(str(tmp_path),))
        process.start()
        forked.until(has_grown, process)
        time.sleep(0.026 * round_number)
        process.kill()
        process.join()
        (run,), problems = runs.read_collection(tmp_path)
        assert not problems
        assert run.status == "running"
        assert [record["value"] for record in run.records] == list(
            range(len(run.records))
        )
        assert len(run.records) > written
        written = len(run.records)
        assert len(json.loads((run.path / "state.json").read_text())["filler"]) == 20000


def test_infinity_alone_in_a_line_comes_back_as_a_number(tmp_path):
    run = create(tmp_path)
    for value in (math.inf, -math.inf):
        run.append({"value": value})
    run.finish("done", **DONE)
    assert [record["value"] for record in runs.read_run(run.path).records] == [
        math.inf,
        -math.inf,
    ]


def test_a_metric_that_is_not_finite_becomes_null(tmp_path):
    run = create(tmp_path)
    metrics = {
        "ratio": math.inf,
        "gap": np.float64("nan"),
        "count": np.int64(3),
        "flag": True,
    }
    run.finish("done", **{**DONE, "metrics": metrics, "paper": {"ratio": math.inf}})
    expected = {"ratio": None, "gap": None, "count": 3, "flag": True}
    summary = runs.read_run(run.path).summary
    assert (summary["metrics"], summary["paper"]) == (expected, {"ratio": None})


def test_the_seconds_of_a_run_are_those_of_all_its_processes(tmp_path):
    seconds = {"total": 3600.0, "train": 3599.5}
    assert (
        create(tmp_path).finish("done", seconds=seconds, **DONE)["seconds"] == seconds
    )


@pytest.mark.parametrize("name", ["summary.json", "environment.json", "metrics.jsonl"])
def test_a_fifo_is_refused_and_not_waited_for(tmp_path, name):
    path = finished_run(tmp_path)
    (path / name).unlink()
    os.mkfifo(path / name)
    accepted, (problem,) = runs.read_collection(tmp_path)
    assert (
        accepted == []
        and f"{name}: cannot be read (it is not a regular file)" in problem
    )


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"code": "0" * 16}, "there is an unfinished run begun by other code"),
        (
            {"packages": {"jax": "0.0.1"}},
            r"begun with other packages \(flax None, here",
        ),
        (
            {"jax_settings": {"jax_default_prng_impl": "rbg"}},
            "begun with other settings of JAX",
        ),
        ({"variables": {"XLA_FLAGS": "--xla_x"}}, r"XLA_FLAGS --xla_x, here"),
        ({"cpu_cores": 99, "commit": "1" * 40}, None),
    ],
)
def test_a_run_is_resumed_by_the_code_and_settings_that_began_it(
    tmp_path, changes, reason
):
    run = create(tmp_path)
    run.append({"cell": 0})
    run.finish("interrupted")
    rewrite(run.path, "environment.json", **changes)
    if reason:
        with pytest.raises(runs.RunError, match=reason):
            create(tmp_path)
    else:
        assert create(tmp_path).records == [{"cell": 0}]
        cores = [entry["cpu_cores"] for entry in runs.read_run(run.path).environments]
        assert cores[0] == 99 and len(cores) == 2


def test_arrays_and_numbers_that_are_not_finite_survive_a_run_in_strict_json(tmp_path):
    run = create(tmp_path)
    values = [jnp.float32(1.5), np.int64(7), math.inf, -math.inf, math.nan]
    run.append({"a": np.arange(3), 2: (True, None, "text"), "values": values})
    run.finish("done", **DONE)
    assert b'[1.5, 7, "Infinity", "-Infinity", "NaN"]' in lines_of(run.path)[0]
    (record,) = runs.read_run(run.path).records
    assert (record["a"], record["2"]) == ([0, 1, 2], [True, None, "text"])
    assert record["values"][2:4] == [math.inf, -math.inf] and math.isnan(
        record["values"][4]
    )
