"""The training loop: records when they are due, and by hand.

It is stopped and killed at any step.
"""

import contextlib
import functools
import time
import types

import jax
import numpy as np
import pytest

from identity_matters.train import loop, multihost
from identity_matters.train import records as training_records
from identity_matters.train import step as steps
from identity_matters.train.checkpoint import Checkpoints
from identity_matters.train.checkpoint_storage import CheckpointError
from identity_matters.train.intervals import Intervals
from identity_matters.train.parallel import ParallelSteps
from tests import toy_training as toy

# Equal bits are promised of the programs that users run.
pytestmark = pytest.mark.compiled_for_users

TASK = toy.make_task()
STEPS = 8
# Logs, evaluations and checkpoints fall on different steps and on the same ones.
EVERY = {
    "steps": STEPS,
    "steps_per_dispatch": 1,
    "steps_per_log": 3,
    "steps_per_evaluation": 4,
    "steps_per_checkpoint": 2,
}
EXPECTED = [("evaluation", 0), ("train", 3), ("evaluation", 4)]
EXPECTED += [("train", 6), ("train", 8), ("evaluation", 8)]


def make_parallel(devices):
    return ParallelSteps(
        TASK, devices=devices, batch_examples=8, evaluation_batch_examples=8
    )


@pytest.fixture(scope="module")
def compiled():
    """The steps of the toy task on one device, compiled once for this file."""
    return make_parallel(jax.devices()[:1])


@pytest.fixture
def run(compiled, key):
    """run(directory, log, **changed) -> the result of `fit`."""

    def run(
        directory, log, parallel=compiled, profile_dir="", settings=None, **changed
    ):
        intervals = Intervals(**{**EVERY, **changed})
        with Checkpoints(directory, settings=settings or {"toy": 1}) as checkpoints:
            arguments = {
                "key": key,
                "checkpoints": checkpoints,
                "profile_dir": profile_dir,
            }
            return loop.fit(TASK, parallel, intervals, log, **arguments)[0]

    return run


@pytest.fixture
def uninterrupted(run, tmp_path):
    """(records, final checkpoint, result) of a run that nothing disturbs."""
    log = toy.Log()
    result = run(tmp_path / "uninterrupted", log)
    return log.records, final_checkpoint(tmp_path / "uninterrupted"), result


def final_checkpoint(directory):
    like = jax.eval_shape(
        lambda: steps.initial_state(toy.init(jax.random.key(0)), TASK.optimizer)
    )
    with Checkpoints(directory, settings={"toy": 1}) as checkpoints:
        return checkpoints.restore(like)


def without_timing(records):
    return [
        {k: v for k, v in record.items() if k not in training_records.TIMING_FIELDS}
        for record in records
    ]


@pytest.fixture
def resume(run, uninterrupted):
    """resume(directory, log) -> the log of the run that goes on after `log`.

    It must end with the same records line by line, and the same state bit by bit.
    """
    records, (step, state, extra), _ = uninterrupted

    def resume(directory, log):
        resumed = toy.Log(log.records)
        run(directory, resumed)
        assert without_timing(resumed.records) == without_timing(records)
        our_step, our_state, our_extra = final_checkpoint(directory)
        assert our_step == step == STEPS
        assert our_extra["records"] == extra["records"]
        for ours, theirs in zip(
            jax.tree.leaves(our_state), jax.tree.leaves(state), strict=True
        ):
            assert ours.dtype == theirs.dtype and ours.tobytes() == theirs.tobytes()
        return resumed

    return resume


def test_records_come_when_they_are_due(uninterrupted):
    records, _, result = uninterrupted
    assert [(record["kind"], record["step"]) for record in records] == EXPECTED
    train = [record for record in records if record["kind"] == "train"]
    assert train[0]["epoch"] == 3 * 8 / 20
    rates = [record["learning_rate"] for record in train]
    assert rates == pytest.approx([0.1, 0.01, 0.01], rel=1e-6)
    for record in train:
        flops_per_second = record["images_per_second"] * toy.FLOPS_PER_EXAMPLE
        assert record["model_flops_per_second"] == flops_per_second
    evaluations = [record for record in records if record["kind"] == "evaluation"]
    assert all(len(record["residual_ratio"]) == 1 for record in evaluations)
    assert result["steps"] == STEPS and result["test_examples"] == toy.TEST_EXAMPLES
    assert result["test_error_percent"] == records[-1]["test_error_percent"]
    assert result["train_loss"] == records[-2]["loss"]


def test_a_run_stopped_at_any_step_ends_as_if_it_had_not_been(run, resume, tmp_path):
    for stop_at_step in range(STEPS):
        directory = tmp_path / str(stop_at_step)
        stopped = toy.Log(stop_at_step=stop_at_step)
        with pytest.raises(
            loop.StopRequested, match=f"stopped at step {stop_at_step};"
        ):
            run(directory, stopped)
        # It resumes from that step, not from an older checkpoint.
        assert resume(directory, stopped).steps_seen == list(
            range(stop_at_step + 1, STEPS + 1)
        )


class Killed(BaseException):
    pass


class DyingLog(toy.Log):
    """Dies before or after it has written its line number `line`."""

    def __init__(self, line, after):
        super().__init__()
        self._line = line
        self._after = after

    def append(self, record):
        dies = len(self.records) == self._line
        if dies and not self._after:
            raise Killed
        super().append(record)
        if dies:
            raise Killed


@pytest.mark.parametrize("after", [False, True])
def test_a_run_killed_at_any_record_ends_as_if_it_had_not_been(
    run, resume, tmp_path, after
):
    for line in range(len(EXPECTED)):
        directory = tmp_path / str(line)
        killed = DyingLog(line, after)
        with pytest.raises(Killed):
            run(directory, killed)
        # Checkpoints are at 2, 4 and 6; the record due at a step comes before its
        # checkpoint.
        newest = {0: 0, 3: 2, 4: 2, 6: 4, 8: 6}[EXPECTED[line][1]]
        assert resume(directory, killed).steps_seen[0] == newest + 1


class LosingLog(DyingLog):
    """Keeps only what `flush` has put on disk, as a bucket does."""

    def __init__(self, line):
        super().__init__(line, after=True)
        self.flushed = 0

    def flush(self):
        self.flushed = len(self.records)


def test_records_that_no_checkpoint_counts_may_be_lost(run, resume, tmp_path):
    for line in range(len(EXPECTED)):
        directory = tmp_path / str(line)
        killed = LosingLog(line)
        with pytest.raises(Killed):
            run(directory, killed)
        del killed.records[killed.flushed :]
        resume(directory, killed)


@pytest.mark.parametrize("process_count", [1, 2])
def test_an_evaluation_that_is_stopped_is_made_up_for(
    run, resume, compiled, uninterrupted, tmp_path, monkeypatch, process_count
):
    monkeypatch.setattr(compiled, "process_count", process_count)

    class Impatient(toy.Log):
        """Asks to stop in the middle of the evaluation at step 4."""

        asked = 0

        def stop_requested(self):
            self.asked += self.steps_seen[-1:] == [4]
            return self.asked >= 3

    stopped = Impatient()
    with pytest.raises(loop.StopRequested, match="stopped at step 4"):
        run(tmp_path, stopped)
    assert without_timing(stopped.records) == without_timing(uninterrupted[0][:2])
    resume(tmp_path, stopped)


def test_processes_agree_to_stop_before_they_compile(
    run, resume, compiled, tmp_path, monkeypatch
):
    """Another process is told to stop; compiling can take longer than it is given."""
    monkeypatch.setattr(compiled, "process_count", 2)
    told = toy.Log()
    with monkeypatch.context() as patched, pytest.raises(loop.StopRequested):
        patched.setattr(multihost, "any_process", lambda mine: True)
        run(tmp_path, told)
    assert told.records == []
    asked = []
    monkeypatch.setattr(multihost, "any_process", asked.append)
    resume(tmp_path, told)
    # Where something is due, at five steps, and before each of two batches and after
    # the last one in three evaluations; not before every step, since asking waits for
    # the devices.
    assert asked == [False] * (5 + 3 * 3)


def test_without_checkpoints_nothing_is_said_to_be_saved(compiled, key):
    log = toy.Log(stop_at_step=2)
    with pytest.raises(loop.StopRequested, match="at step 2; nothing was saved"):
        loop.fit(TASK, compiled, Intervals(**EVERY), log, key=key)


def test_a_dispatch_in_flight_changes_nothing(
    run, resume, compiled, tmp_path, monkeypatch
):
    """As on TPUs.

    There the next dispatch runs while the sums of the last one are read.
    """
    monkeypatch.setattr(compiled, "steps_run_on_device", True)
    resume(tmp_path / "from the start", toy.Log())
    stopped = toy.Log(stop_at_step=1)
    with pytest.raises(loop.StopRequested, match="stopped at step 2"):
        run(tmp_path / "stopped", stopped)
    resume(tmp_path / "stopped", stopped)


@pytest.mark.parametrize(
    ("platform", "by_themselves"), [("cpu", False), ("gpu", False), ("tpu", True)]
)
def test_only_tpus_run_the_steps_of_a_dispatch_by_themselves(platform, by_themselves):
    device = types.SimpleNamespace(platform=platform, process_index=0)
    assert make_parallel([device]).steps_run_on_device == by_themselves


@pytest.mark.parametrize("steps_per_log", [1, 2])
def test_where_the_host_runs_the_steps_each_record_has_its_own_time(
    run, compiled, tmp_path, monkeypatch, steps_per_log
):
    """On an H100, first records once had twice their time and last ones hardly any."""
    quick_train = compiled.train
    open_train = compiled.open_train

    def slow_train(*args, **kwargs):
        time.sleep(0.05)
        return quick_train(*args, **kwargs)

    def slow_batches(*args):
        for batch in open_train(*args):
            time.sleep(0.02)
            yield batch

    monkeypatch.setattr(compiled, "train", slow_train)
    monkeypatch.setattr(compiled, "open_train", slow_batches)
    log = toy.Log()
    run(tmp_path, log, steps_per_log=steps_per_log)
    train = [record for record in log.records if record["kind"] == "train"]
    assert len(train) == STEPS / steps_per_log
    assert min(record["seconds"] for record in train) >= steps_per_log * 0.05
    waits = [r["input_wait_percent"] / 100 * r["seconds"] for r in train]
    assert sum(waits) >= STEPS * 0.02


def test_a_step_takes_a_running_mean_of_what_the_last_ones_took(compiled):
    clock = loop._Clock(compiled)
    clock.add_dispatch(2.0, steps=2)
    assert clock.step_seconds == 1
    clock.add_dispatch(4.0, steps=2)
    assert clock.step_seconds == pytest.approx(0.9 * 1 + 0.1 * 2)


def test_a_trace_begins_after_the_first_dispatches_and_ends_soon(monkeypatch):
    events = []

    @contextlib.contextmanager
    def trace(directory):
        events.append(directory)
        yield
        events.append("its end")

    monkeypatch.setattr(jax.profiler, "trace", trace)
    with loop._Tracer("there") as tracer:
        for dispatch in range(9):
            tracer.before_dispatch()
            events.append(dispatch)
    assert events == [0, 1, "there", 2, 3, 4, 5, 6, "its end", 7, 8]


def test_one_device_that_is_told_to_stop_tells_all(compiled, key):
    drawn = steps.initial_state(toy.init(key), TASK.optimizer)
    state = compiled.start(key, jax.device_get(drawn))
    batches = list(compiled.open_train(0, 0, 2))
    for batch, stop in zip(batches, (True, False), strict=True):
        state, sums = compiled.train(state, compiled.place([batch]), stop)
        assert compiled.read(sums)["stop"] == stop


def test_a_key_decides_alone_what_is_drawn_and_the_order_of_the_examples(
    run, compiled, tmp_path, monkeypatch, key
):
    """As it has always been: otherwise the same command would give other numbers."""
    start = compiled.start
    open_train = compiled.open_train
    given = {}

    def note_start(step_key, state):
        given["step"] = step_key
        given["params"] = state["params"]
        return start(step_key, state)

    def note_order(seed, *args):
        given["order"] = seed
        return open_train(seed, *args)

    monkeypatch.setattr(compiled, "start", note_start)
    monkeypatch.setattr(compiled, "open_train", note_order)
    run(tmp_path, toy.Log())
    init_key, _, step_key = jax.random.split(key, 3)
    jax.tree.map(
        np.testing.assert_array_equal, given["params"], toy.init(init_key)["params"]
    )
    assert given["step"] == step_key
    assert given["order"] == 31_327_077


def test_a_finished_run_is_not_run_again(run, compiled, tmp_path, monkeypatch):
    log = toy.Log()
    first = run(tmp_path, log)
    monkeypatch.setattr(compiled, "train", None)
    assert run(tmp_path, log) == first


def test_a_loss_that_is_not_finite_stops_at_once(run, tmp_path):
    log = toy.Log(stop_at_step=2)
    with pytest.raises(loop.StopRequested):
        run(tmp_path, log)
    # As if the parameters had become infinite just before a checkpoint.
    _, state, extra = final_checkpoint(tmp_path)
    state["params"]["head"]["kernel"][:] = np.inf
    for step, evaluated, metric in ((3, True, "loss"), (4, False, "test_loss")):
        with Checkpoints(tmp_path, settings={"toy": 1}) as checkpoints:
            state = {**state, "step": np.int32(step)}
            checkpoints.save(step, state, {**extra, "evaluated": evaluated})
        log = toy.Log(log.records)
        with pytest.raises(training_records.NonFiniteError) as stop:
            run(tmp_path, log)
        assert (stop.value.step, stop.value.metric) == (4, metric)
        assert log.steps_seen == []


def test_records_or_checkpoints_that_were_lost_are_noticed(run, tmp_path):
    log = toy.Log(stop_at_step=6)
    with pytest.raises(loop.StopRequested):
        run(tmp_path / "there", log)
    lines = len(log.records)
    lost = (
        f"has {lines - 1} lines of this training, but checkpoint 6 was saved after"
        f" {lines}"
    )
    gone = "goes on to step 6, but there is no checkpoint in"
    for place, records, message in (
        ("there", log.records[1:], lost),
        ("away", log.records, gone),
    ):
        damaged = toy.Log(records)
        with pytest.raises(CheckpointError, match=message):
            run(tmp_path / place, damaged)
        assert damaged.records == list(records)


def test_examples_that_were_not_counted_are_an_error(
    run, compiled, tmp_path, monkeypatch
):
    evaluate = compiled.evaluate

    def losing_one(*arguments):
        return {**(sums := evaluate(*arguments)), "examples": sums["examples"] - 1}

    monkeypatch.setattr(compiled, "evaluate", losing_one)
    with pytest.raises(RuntimeError, match="evaluated 12 examples of 13"):
        run(tmp_path, toy.Log())


def test_four_devices_and_several_steps_a_dispatch(run, uninterrupted, tmp_path):
    """The numbers are those of one device, up to rounding.

    Also checks what the log is told.
    """
    log = toy.Log()
    profile_dir = tmp_path / "profile"
    four = make_parallel(jax.devices())
    run(tmp_path, log, four, steps_per_dispatch=2, profile_dir=str(profile_dir))
    for ours, theirs in zip(log.records, uninterrupted[0], strict=True):
        for name in ("kind", "step", "epoch", "learning_rate", "test_examples"):
            assert ours.get(name) == theirs.get(name)
        for name in ours.keys() & {
            "loss",
            "gradient_norm",
            "test_loss",
            "residual_ratio",
        }:
            assert ours[name] == pytest.approx(theirs[name], rel=1e-4)
    close = functools.partial(np.testing.assert_allclose, rtol=1e-3, atol=1e-4)
    jax.tree.map(close, final_checkpoint(tmp_path)[1], uninterrupted[1][1])
    # Dispatches are cut where a log, an evaluation or a checkpoint is due.
    assert log.steps_seen == [2, 3, 4, 6, 8]
    assert list(profile_dir.rglob("*.xplane.pb"))
    assert [log.phases[0], log.phases[1]] == [("restoring", 0), ("evaluating", 0)]
    assert {name for name, _ in log.phases} == {
        "restoring",
        "evaluating",
        "compiling",
        "training",
    }
    train = [record for record in log.records if record["kind"] == "train"]
    assert [record["compile_seconds"] > 0 for record in train] == [True, False, False]
