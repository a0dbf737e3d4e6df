"""Lines of metrics.jsonl on a disk: appended and taken back."""

import os

import pytest

from identity_matters import runs
from identity_matters.runs import seals
from tests.runs.toy_runs import DONE, create


def test_on_a_disk_no_line_waits(tmp_path):
    run = create(tmp_path)
    run.append({"cell": 0}, may_wait=True)
    assert (run.path / "metrics.jsonl").read_bytes().count(b"\n") == 1


def test_a_rewound_run_keeps_its_first_lines_and_goes_on(tmp_path):
    run = create(tmp_path)
    for value in range(4):
        run.append({"cell": 0, "value": value})
    run.rewind(2)
    run.append({"cell": 0, "value": 9})
    assert [record["value"] for record in run.records] == [0, 1, 9]
    run.finish("done", **DONE)
    assert runs.read_run(run.path).records == run.records


def test_an_append_does_not_touch_the_lines_before(tmp_path, monkeypatch):
    """Its cost does not grow with the run: it encodes and writes its own line alone."""
    run = create(tmp_path)
    for cell in range(3):
        run.append({"cell": cell})
    inode = os.stat(run.path / "metrics.jsonl").st_ino
    encoded = []
    monkeypatch.setattr(seals, "as_record", lambda line: encoded.append(line) or {})
    run.append({"cell": 3})
    assert os.stat(run.path / "metrics.jsonl").st_ino == inode
    assert len(encoded) == 1
    assert run._metrics._size == len((run.path / "metrics.jsonl").read_bytes())


def test_a_record_without_fields_is_refused(tmp_path):
    run = create(tmp_path)
    with pytest.raises(ValueError, match="may not have the field chain"):
        seals.chained_line({"chain": 1, "k": 2}, b"")
    with pytest.raises(ValueError, match="a record needs at least one field"):
        run.append({})
    run.finish("done", **DONE)
    assert runs.read_run(run.path).records == []
