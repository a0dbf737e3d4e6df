import functools

import jax
import numpy as np
import pytest

from identity_matters.training import loop
from identity_matters.training.checkpoint import Checkpoints
from identity_matters.training.checkpoint_contents import CheckpointMismatchError
from identity_matters.training.measurements import TIMING_FIELDS, NonFiniteError
from identity_matters.training.parallel import ParallelSteps
from identity_matters.training.steps import draw_state
from tests import toy_training as toy

TASK = toy.make_task()
STEPS = 8
# A log, an evaluation and a checkpoint fall on different steps and on the same ones.
SETTINGS = {
    "steps": STEPS,
    "batch_examples": 8,
    "steps_per_dispatch": 1,
    "steps_per_log": 3,
    "steps_per_evaluation": 4,
    "steps_per_checkpoint": 2,
    "evaluation_batch_examples": 8,
    "compute_dtype": "float32",
}
EXPECTED = [
    ("evaluation", 0),
    ("train", 3),
    ("evaluation", 4),
    ("train", 6),
    ("train", 8),
    ("evaluation", 8),
]


@pytest.fixture(scope="module")
def compiled(key):
    """The steps of the toy task on one device, compiled once for all runs of this file."""
    _, augmentation_key, dropout_key = jax.random.split(key, 3)
    return ParallelSteps(
        TASK,
        augmentation_key=augmentation_key,
        dropout_key=dropout_key,
        devices=jax.devices()[:1],
        batch_examples=8,
        evaluation_batch_examples=8,
    )


def fit_toy(key, directory, log, **changed):
    arguments = {"key": key, "devices": jax.devices()[:1], **SETTINGS, **changed}
    with Checkpoints(directory, settings={"toy": 1}) as checkpoints:
        return loop.fit(TASK, log, checkpoints=checkpoints, **arguments)


@pytest.fixture
def run(compiled, key, monkeypatch):
    """run(directory, log, **changed) -> the result of `fit` with the shared compiled steps."""
    monkeypatch.setattr(loop, "ParallelSteps", lambda *args, **kwargs: compiled)

    def run(directory, log, **changed):
        return fit_toy(directory=directory, log=log, **{"key": key, **changed})

    return run


@pytest.fixture(scope="module")
def uninterrupted(compiled, key, tmp_path_factory):
    """(records, final checkpoint, result) of a run that nothing disturbs."""
    directory, log = tmp_path_factory.mktemp("run"), toy.Log()
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(loop, "ParallelSteps", lambda *args, **kwargs: compiled)
        result = fit_toy(key, directory, log)
    return log.records, final_checkpoint(directory), result


def like():
    draw = functools.partial(draw_state, TASK.init, TASK.optimizer)
    return jax.eval_shape(draw, jax.random.key(0))


def final_checkpoint(directory):
    with Checkpoints(directory, settings={"toy": 1}) as checkpoints:
        return checkpoints.restore(like())


def without_timing(records):
    return [{k: v for k, v in record.items() if k not in TIMING_FIELDS} for record in records]


def assert_same_end(directory, log, uninterrupted):
    """The same records line by line, and the same state bit by bit."""
    records, (step, state, extra), _ = uninterrupted
    assert without_timing(log.records) == without_timing(records)
    our_step, our_state, our_extra = final_checkpoint(directory)
    assert our_step == step == STEPS
    assert (our_extra["records"], our_extra["key"]) == (extra["records"], extra["key"])
    for ours, theirs in zip(jax.tree.leaves(our_state), jax.tree.leaves(state), strict=True):
        assert ours.dtype == theirs.dtype and ours.tobytes() == theirs.tobytes()


def test_records_come_when_they_are_due(uninterrupted):
    records, _, _ = uninterrupted
    assert [(record["kind"], record["step"]) for record in records] == EXPECTED
    train = [record for record in records if record["kind"] == "train"]
    assert list(train[0]) == [
        *("kind", "step", "epoch", "loss", "error_percent", "learning_rate", "gradient_norm"),
        *("images_per_second", "model_flops_per_second", "utilization_percent"),
        *("input_wait_percent", "seconds", "compile_seconds"),
    ]
    assert train[0]["epoch"] == 3 * 8 / 20
    assert [record["learning_rate"] for record in train] == np.float32([0.1, 0.01, 0.01]).tolist()
    assert [record["compile_seconds"] > 0 for record in train] == [True, False, False]
    for record in train:
        flops_per_second = record["images_per_second"] * toy.FLOPS_PER_EXAMPLE
        assert record["model_flops_per_second"] == flops_per_second
        assert record["utilization_percent"] is None
    evaluations = [record for record in records if record["kind"] == "evaluation"]
    assert [record["compile_seconds"] > 0 for record in evaluations] == [True, False, False]
    assert all(len(record["residual_ratio"]) == 1 for record in evaluations)


def test_the_result_is_that_of_the_records(uninterrupted):
    records, _, result = uninterrupted
    assert result["steps"] == STEPS and result["test_examples"] == toy.TEST_EXAMPLES
    assert result["test_error_percent"] == records[-1]["test_error_percent"]
    assert result["train_loss"] == records[-2]["loss"]
    errors = [r["test_error_percent"] for r in records if r["kind"] == "evaluation"]
    assert result["test_error_best_percent"] == min(errors)
    assert result["compile_seconds"] > 0 and result["train_seconds"] > 0


def test_a_run_stopped_at_any_step_ends_as_if_it_had_not_been(run, uninterrupted, tmp_path):
    for stop_at_step in range(STEPS):
        directory = tmp_path / str(stop_at_step)
        stopped = toy.Log(stop_at_step=stop_at_step)
        with pytest.raises(loop.StopRequested, match=f"stopped at step {stop_at_step};") as stop:
            run(directory, stopped)
        assert stop.value.step == stop_at_step
        resumed = toy.Log(stopped.records)
        run(directory, resumed)
        # It went on from there, not from an older checkpoint.
        assert resumed.steps_seen == list(range(stop_at_step + 1, STEPS + 1))
        assert_same_end(directory, resumed, uninterrupted)


class Killed(BaseException):
    pass


class DyingLog(toy.Log):
    """Dies before or after it has written its line number `line`."""

    def __init__(self, line, after):
        super().__init__()
        self._line, self._after = line, after

    def append(self, record):
        dies = len(self.records) == self._line
        if dies and not self._after:
            raise Killed
        super().append(record)
        if dies:
            raise Killed


@pytest.mark.parametrize("after", [False, True])
def test_a_run_killed_at_any_record_ends_as_if_it_had_not_been(run, uninterrupted, tmp_path, after):
    for line in range(len(EXPECTED)):
        directory, killed = tmp_path / str(line), DyingLog(line, after)
        with pytest.raises(Killed):
            run(directory, killed)
        resumed = toy.Log(killed.records)
        run(directory, resumed)
        # Checkpoints are at 2, 4 and 6; the record due at a step comes before its checkpoint.
        newest = {0: 0, 3: 2, 4: 2, 6: 4, 8: 6}[EXPECTED[line][1]]
        assert resumed.steps_seen[0] == newest + 1
        assert_same_end(directory, resumed, uninterrupted)


def test_an_evaluation_that_is_stopped_is_made_up_for(run, uninterrupted, compiled, tmp_path):
    class Impatient(toy.Log):
        """Asks to stop in the middle of the evaluation at step 4."""

        asked = 0

        def stop_requested(self):
            self.asked += self.steps_seen[-1:] == [4]
            return self.asked >= 2

    stopped = Impatient()
    with pytest.raises(loop.StopRequested, match="stopped at step 4"):
        run(tmp_path, stopped)
    assert without_timing(stopped.records) == without_timing(uninterrupted[0][:2])
    resumed = toy.Log(stopped.records)
    run(tmp_path, resumed)
    assert_same_end(tmp_path, resumed, uninterrupted)


def test_a_dispatch_in_flight_changes_nothing(run, uninterrupted, compiled, tmp_path, monkeypatch):
    monkeypatch.setattr(compiled, "on_cpu", False)
    log, order = toy.Log(), []
    train, read = compiled.train, compiled.read
    monkeypatch.setattr(compiled, "train", lambda *a: order.append("train") or train(*a))
    monkeypatch.setattr(compiled, "read", lambda tree: order.append("read") or read(tree))
    run(tmp_path, log, steps_per_checkpoint=STEPS)
    assert_same_end(tmp_path, log, uninterrupted)
    # Up to the evaluation at step 4, which is the first to read.
    first = order[order.index("train") :][:8]
    assert first == ["train", "train", "read", "train", "read", "train", "read", "read"]
    stopped = toy.Log(stop_at_step=1)
    with pytest.raises(loop.StopRequested, match="stopped at step 2"):
        run(tmp_path / "stopped", stopped)
    resumed = toy.Log(stopped.records)
    run(tmp_path / "stopped", resumed)
    assert_same_end(tmp_path / "stopped", resumed, uninterrupted)


def test_a_finished_run_is_not_run_again(run, uninterrupted, compiled, tmp_path, monkeypatch):
    log = toy.Log()
    first = run(tmp_path, log)
    monkeypatch.setattr(compiled, "train", None)
    assert run(tmp_path, log) == first


def poisoned(directory, step, evaluated):
    """A run whose parameters turned infinite just before the checkpoint at `step`."""
    with Checkpoints(directory, settings={"toy": 1}) as checkpoints:
        _, state, extra = checkpoints.restore(like())
        state["params"]["head"]["kernel"][:] = np.inf
        checkpoints.save(step, {**state, "step": np.int32(step)}, {**extra, "evaluated": evaluated})


def test_a_loss_that_is_not_finite_stops_at_once(run, tmp_path):
    log = toy.Log(stop_at_step=2)
    with pytest.raises(loop.StopRequested):
        run(tmp_path, log)
    poisoned(tmp_path, 3, evaluated=True)
    log = toy.Log(log.records)
    with pytest.raises(NonFiniteError) as stop:
        run(tmp_path, log)
    assert (stop.value.step, stop.value.metric) == (4, "loss")
    assert log.steps_seen == []
    poisoned(tmp_path, 4, evaluated=False)
    with pytest.raises(NonFiniteError, match="test_loss is nan at step 4"):
        run(tmp_path, log)


def test_a_checkpoint_of_another_key_is_refused(run, tmp_path):
    log = toy.Log(stop_at_step=2)
    with pytest.raises(loop.StopRequested):
        run(tmp_path, log)
    records = list(log.records)
    with pytest.raises(
        CheckpointMismatchError, match=r"its key is \[0, 0\] there and \[0, 7\] here"
    ):
        run(tmp_path, log, key=jax.random.key(7))
    assert log.records == records


def test_examples_that_were_not_counted_are_an_error(run, compiled, tmp_path, monkeypatch):
    evaluate = compiled.evaluate

    def losing_one(*arguments):
        return {**(sums := evaluate(*arguments)), "examples": sums["examples"] - 1}

    monkeypatch.setattr(compiled, "evaluate", losing_one)
    with pytest.raises(RuntimeError, match="the evaluation counted 12 examples of 13"):
        run(tmp_path, toy.Log())


def test_the_whole_of_fit_on_four_devices(key, uninterrupted, tmp_path):
    """Nothing shared or replaced here; the numbers are those of one device, up to rounding."""
    log, profile_dir = toy.Log(), tmp_path / "profile"
    changed = {"devices": jax.devices(), "steps_per_dispatch": 2, "profile_dir": profile_dir}
    fit_toy(key, tmp_path / "run", log, **changed)
    for ours, theirs in zip(log.records, uninterrupted[0], strict=True):
        for name in ("kind", "step", "epoch", "learning_rate", "test_examples"):
            assert ours.get(name) == theirs.get(name)
        for name in ours.keys() & {"loss", "gradient_norm", "test_loss", "residual_ratio"}:
            assert ours[name] == pytest.approx(theirs[name], rel=1e-4)
    # Dispatches are cut where a log, an evaluation or a checkpoint is due.
    assert log.steps_seen == [2, 3, 4, 6, 8]
    assert list(profile_dir.rglob("*.xplane.pb"))
