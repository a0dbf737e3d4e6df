"""The life of a run directory: create, append, finish, resume, refuse, read."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from identity_matters import records

DONE = {
    "claim": "Theorem 2.1",
    "metrics": {"test_error_percent": 6.4},
    "paper": {"test_error_percent": 6.38},
    "verdict": "reproduced",
}


def create(results_dir, **changes):
    settings = {"experiment": "toy", "variant": "a/b", "seed": 3, "config": {"depth": (1, 2)}}
    return records.RunDir.create(results_dir, **{**settings, **changes})


def finished_run(results_dir, **changes):
    run = create(results_dir, **changes)
    run.append({"cell": 0, "value": 1.0})
    run.finish("done", **DONE)
    return run.path


def test_a_finished_run_reads_back_as_written(tmp_path):
    path = finished_run(tmp_path)
    assert path == tmp_path / "toy" / "a" / "b" / "seed=3"
    runs, problems = records.read_collection(tmp_path)
    assert not problems
    (run,) = runs
    assert (run.experiment, run.variant, run.seed, run.status) == ("toy", "a/b", 3, "done")
    assert run.config == {"depth": [1, 2]}
    assert run.records == [{"cell": 0, "value": 1.0}]
    assert run.summary == {
        "schema": 1,
        "experiment": "toy",
        "variant": "a/b",
        "seed": 3,
        "scale": "paper",
        "status": "done",
        **DONE,
        "seconds": run.summary["seconds"],
    }
    assert run.environment["packages"].keys() >= {"jax", "jaxlib", "numpy"}
    assert run.environment["backend"] == "cpu"


def test_a_finished_run_is_refused_and_left_alone(tmp_path):
    path = finished_run(tmp_path)
    before = {entry.name: entry.read_bytes() for entry in path.iterdir()}
    with pytest.raises(records.FinishedRunError, match="--overwrite"):
        create(tmp_path)
    assert {entry.name: entry.read_bytes() for entry in path.iterdir()} == before


def test_overwrite_starts_from_nothing(tmp_path):
    finished_run(tmp_path)
    run = create(tmp_path, overwrite=True)
    assert run.records == []
    assert records.read_status(run.path) == "running"
    run.finish("interrupted")


def test_an_unfinished_run_goes_on_where_it_stood(tmp_path):
    first = create(tmp_path)
    first.append({"cell": 0})
    first.finish("interrupted")
    with open(first.path / "metrics.jsonl", "ab") as file:
        file.write(b'{"cell": 1')
    second = create(tmp_path)
    assert second.records == [{"cell": 0}]
    second.append({"cell": 1})
    second.finish("done", **DONE)
    run = records.read_run(second.path)
    assert run.records == [{"cell": 0}, {"cell": 1}]
    assert len(run.environment["resumed"]) == 1


def test_other_settings_are_refused_by_name(tmp_path):
    create(tmp_path).finish("interrupted")
    with pytest.raises(records.RunError, match=r"depth=\[1, 2\], this one depth=\[3\]"):
        create(tmp_path, config={"depth": [3]})


def test_two_writers_are_one_too_many(tmp_path):
    run = create(tmp_path)
    with pytest.raises(records.RunError, match="another process"):
        create(tmp_path)
    run.finish("interrupted")
    create(tmp_path).finish("interrupted")


def test_records_without_a_summary_are_not_taken_over(tmp_path):
    path = finished_run(tmp_path)
    (path / "summary.json").unlink()
    run = create(tmp_path)
    assert run.records == []
    run.finish("interrupted")


@pytest.mark.parametrize("variant", ["", "/etc", "a/../b", "a b", "a//b"])
def test_a_variant_cannot_leave_its_directory(tmp_path, variant):
    with pytest.raises(ValueError, match="variant"):
        records.run_path(tmp_path, "toy", variant, 0)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"schema": 2}, "schema must be 1"),
        ({"status": "fine"}, "status must be one of"),
        ({"scale": "huge"}, "scale must be one of"),
        ({"verdict": "true"}, "verdict must be one of"),
        ({"claim": "Theorem 9"}, "claim must be a key"),
        ({"metrics": 3}, "metrics must be dict"),
        ({"paper": {"other": 1}}, "paper has values of"),
        ({"seed": 4}, "belongs at"),
        ({"seed": None}, "seed must be int"),
    ],
)
def test_a_broken_contract_is_named_and_skipped(tmp_path, change, reason):
    path = finished_run(tmp_path)
    finished_run(tmp_path, seed=5)
    summary = json.loads((path / "summary.json").read_text())
    (path / "summary.json").write_text(json.dumps({**summary, **change}))
    runs, problems = records.read_collection(tmp_path)
    assert [run.seed for run in runs] == [5]
    (problem,) = problems
    assert problem.path == path
    assert reason in problem.reason


@pytest.mark.parametrize(
    "name", ["config.json", "environment.json", "summary.json", "metrics.jsonl"]
)
@pytest.mark.parametrize("damage", ["missing", "halved", "binary"])
def test_a_damaged_file_is_named_and_skipped(tmp_path, name, damage):
    path = finished_run(tmp_path)
    content = (path / name).read_bytes()
    (path / name).unlink()
    if damage == "halved":
        (path / name).write_bytes(content[: len(content) // 2])
    elif damage == "binary":
        (path / name).write_bytes(b"\xff\xfe\n")
    runs, problems = records.read_collection(tmp_path)
    assert runs == []
    assert name in problems[0].reason


def test_an_empty_run_directory_is_named(tmp_path):
    (tmp_path / "toy" / "a" / "seed=0").mkdir(parents=True)
    runs, problems = records.read_collection(tmp_path)
    assert runs == []
    assert "summary.json: missing" in problems[0].reason


def test_a_contract_breach_is_not_written(tmp_path):
    run = create(tmp_path)
    with pytest.raises(ValueError, match="claim"):
        run.finish("done", **{**DONE, "claim": "none of ours"})
    assert records.read_status(run.path) == "running"


WRITER = """
import sys
from identity_matters import records
run = records.RunDir.create(sys.argv[1], experiment="toy", variant="kill", seed=0, config={})
print("started", flush=True)
for value in range(len(run.records), 10**9):
    run.append({"value": value, "filler": "x" * 2000})
    records.write_json(run.path / "state.json", {"value": value, "filler": "y" * 20000})
"""


def test_a_run_survives_kill_9_at_any_moment(tmp_path):
    """Killed four times while it writes, it never loses a line nor shows half a file."""
    written = 0
    for round_number in range(4):
        process = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE
        )
        assert process.stdout.readline() == b"started\n"
        time.sleep(0.05 + 0.026 * round_number)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()
        (run,), problems = records.read_collection(tmp_path)
        assert not problems
        assert run.status == "running"
        assert [record["value"] for record in run.records] == list(range(len(run.records)))
        assert len(run.records) > written
        written = len(run.records)
        assert len(json.loads((run.path / "state.json").read_text())["filler"]) == 20000


def test_a_rewound_run_keeps_its_first_lines_and_goes_on(tmp_path):
    run = create(tmp_path)
    for value in range(4):
        run.append({"cell": 0, "value": value})
    run.rewind(2)
    run.append({"cell": 0, "value": 9})
    assert [record["value"] for record in run.records] == [0, 1, 9]
    with pytest.raises(records.RunError, match="has 3 lines, but its checkpoint was saved after 4"):
        run.rewind(4)
    run.finish("done", **DONE)
    assert records.read_run(run.path).records == run.records


def test_a_scale_that_is_none_and_a_place_that_is_a_file_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"scale must be one of .*, got 'huge'"):
        create(tmp_path, scale="huge")
    (tmp_path / "toy").write_text("a file")
    with pytest.raises(records.RunError, match="cannot be made"):
        create(tmp_path)
