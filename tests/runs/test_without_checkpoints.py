"""What a copy of an unfinished run keeps when its checkpoints are not copied."""

import pytest

from identity_matters import runs
from identity_matters.runs import without_checkpoints
from tests.runs.toy_runs import DONE, create, lines_of

FINISHED_TRIAL = [
    {"cell": 0, "kind": "evaluation", "step": 0},
    {"cell": 0, "kind": "train", "step": 5},
    {"cell": 0, "kind": "result", "error": 0.25},
]
UNDER_WAY = [
    {"cell": 1, "kind": "evaluation", "step": 0},
    {"cell": 1, "kind": "train", "step": 5},
]
# Of an experiment that does not train, each line is a trial.
NO_TRAINING = [
    {"cell": 0, "value": 0.25},
    {"cell": 1, "kind": "train"},
    {"cell": 2, "step": 3, "value": 1.0},
]


def write(tmp_path, records, status="interrupted"):
    run = create(tmp_path)
    for record in records:
        run.append(record)
    if status == "running":  # as a kill leaves it
        run._lock.close()
    else:
        run.finish(status, **(DONE if status == "done" else {}))
    return run.path


@pytest.mark.parametrize("status", ["running", "interrupted", "failed"])
@pytest.mark.parametrize(
    ("records", "kept"),
    [
        (FINISHED_TRIAL + UNDER_WAY, FINISHED_TRIAL),
        (FINISHED_TRIAL, FINISHED_TRIAL),
        (UNDER_WAY, []),
        (NO_TRAINING, NO_TRAINING),
        (NO_TRAINING[:2], NO_TRAINING[:2]),
        ([], []),
    ],
)
def test_finished_trials_stay_and_the_run_goes_on(tmp_path, status, records, kept):
    path = write(tmp_path, records, status)
    (path / "checkpoints").mkdir()  # as a copy without what is in it leaves it
    dropped = len(records) - len(kept)
    assert without_checkpoints.drop_training_under_way(path) == dropped
    resumed = create(tmp_path)
    assert resumed.records == kept
    resumed.append(UNDER_WAY[0])
    resumed.finish("done", **DONE)
    assert runs.read_run(path).records == [*kept, UNDER_WAY[0]]


def test_a_second_time_there_is_nothing_to_drop(tmp_path):
    path = write(tmp_path, FINISHED_TRIAL + UNDER_WAY)
    assert without_checkpoints.drop_training_under_way(path) == 2
    before = runs.read_run(path)
    assert without_checkpoints.drop_training_under_way(path) == 0
    assert runs.read_run(path) == before


def test_a_finished_run_stays_as_it_is(tmp_path):
    path = write(tmp_path, FINISHED_TRIAL + UNDER_WAY, "done")
    before = runs.read_run(path)
    assert without_checkpoints.main([str(tmp_path)]) == 0
    assert runs.read_run(path) == before


def test_runs_that_have_checkpoints_or_are_damaged_or_at_work_are_named(
    tmp_path, capsys
):
    path = write(tmp_path, UNDER_WAY)
    (path / "checkpoints" / "cell=1" / "5").mkdir(parents=True)
    damaged = write(tmp_path / "damaged", UNDER_WAY)
    (damaged / "metrics.jsonl").write_text("garbage\n")
    at_work = create(tmp_path / "at_work")
    good = write(tmp_path / "good", UNDER_WAY)
    assert without_checkpoints.main([str(tmp_path)]) == 1
    said = capsys.readouterr()
    assert [line.split(": ")[0] for line in said.err.splitlines()] == [
        "left as it is"
    ] * 3
    for place in (path, damaged, at_work.path):
        assert str(place) in said.err
    assert said.out.splitlines() == [
        f"{good}: the training under way begins anew, without its 2 lines"
    ]
    assert len(lines_of(path)) == 2


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (["--checkpoint_dir=/elsewhere"], []),
        ([], ["-checkpoint_dir", "/elsewhere"]),
    ],
)
def test_checkpoints_that_are_elsewhere_count(tmp_path, monkeypatch, first, second):
    """The run goes on from them, and needs its lines."""
    monkeypatch.setattr("sys.argv", ["a run", *first])
    write(tmp_path, FINISHED_TRIAL)
    monkeypatch.setattr("sys.argv", ["a run", *second])
    path = write(tmp_path, UNDER_WAY)
    with pytest.raises(runs.RunError, match="are where its --checkpoint_dir says"):
        without_checkpoints.drop_training_under_way(path)
    assert runs.read_run(path).records == FINISHED_TRIAL + UNDER_WAY


@pytest.mark.parametrize("arguments", [[], ["/nonexistent"]])
def test_without_a_run_it_says_so(arguments, capsys):
    assert without_checkpoints.main(arguments) == 2
    assert "there is no run" in capsys.readouterr().err
