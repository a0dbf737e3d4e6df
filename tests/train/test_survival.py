"""Trainings that are killed or told to stop end like undisturbed ones, bit for bit.

With one process, and with two of two virtual devices each, which train like one with
four.
"""

import importlib.util
import json
import os
import pathlib
import random
import shutil
import signal
import socket
import time

import pytest

from experiments.run import CTRL_C_CODE, INTERRUPTED_CODE
from identity_matters.runs import without_checkpoints
from identity_matters.train.records import TIMING_FIELDS
from tests import forked

# Equal bits are promised of the programs that users run.
pytestmark = pytest.mark.compiled_for_users


def settings(text: str) -> tuple[str, ...]:
    return tuple(f"--config.{word}" for word in text.split())


# A net that takes milliseconds per step; its last checkpoint is some steps old when it
# is killed.
SMALL = settings("""
    model.blocks_per_stage=(1,1) model.stem_width=4 model.stage_strides=(1,2)
    model.widths=(4,8) train.batch_examples=16 train.steps=300 train.steps_per_log=10
    train.steps_per_evaluation=150 train.steps_per_checkpoint=25
""")
# 42 training and 10 validation images: neither is a multiple of its batch.
SMALL_IMAGENET = settings("""
    data.miniature_examples=42 data.image_pixels=16 data.eval_shorter_side_pixels=18
    model.blocks_per_stage=(1,) model.widths=(4,) model.stage_strides=(2,)
    model.stem_width=4 optim.warmup_steps=0 train.batch_examples=8
    train.evaluation_batch_examples=4 train.steps=24 train.steps_per_log=4
    train.steps_per_evaluation=8 train.steps_per_checkpoint=4
""")
# Several processes: one that has not been heard of for 5 seconds is lost, which ends
# the others.
SEVERAL = """
import functools, runpy
from identity_matters.train import multihost
multihost.initialize = functools.partial(
    multihost.initialize, heartbeat_timeout_seconds=5
)
runpy.run_module("PROGRAM", run_name="__main__", alter_sys=True)
"""
# Covers these seconds, JAX's margin on top of them, and the start of a process.
LONGEST_WAIT_SECONDS = 120
# The digests of the lines cover their timings, too.
TIMINGS = {*TIMING_FIELDS, "train_seconds", "evaluate_seconds", "chain"}
needs_imagenet = pytest.mark.skipif(
    not all(
        map(
            importlib.util.find_spec,
            ("tensorflow_datasets", "array_record", "grain", "cv2"),
        )
    ),
    reason="the extra imagenet is not installed",
)


class Run:
    """One run of a command, in one or more processes."""

    def __init__(
        self,
        results_dir,
        module="images.cifar",
        settings=SMALL,
        count=1,
        devices=2,
    ):
        self._results_dir = pathlib.Path(results_dir)
        program = f"experiments.{module}"
        if count > 1:
            several = SEVERAL.replace("PROGRAM", program)
            program = f"{results_dir}.py"
            pathlib.Path(program).write_text(several)
        self._command = [program, *settings, f"--results_dir={results_dir}"]
        self._count = count
        self._devices = devices

    @property
    def directory(self) -> pathlib.Path:
        return next(self._results_dir.glob("*/*/*/seed=0"), self._results_dir / "none")

    def start(self) -> None:
        with socket.socket() as free:
            free.bind(("localhost", 0))
            port = free.getsockname()[1]
        self.started = []
        for index in range(self._count):
            own = (f"--coordinator_address=localhost:{port}", f"--process_id={index}")
            together = (
                (*own, f"--num_processes={self._count}") if self._count > 1 else ()
            )
            self.started.append(
                forked.Started(*self._command, *together, devices=self._devices)
            )

    def wait(self) -> list[tuple[int, str]]:
        """(exit code, stderr) of each process."""
        try:
            ended = [training.wait(LONGEST_WAIT_SECONDS) for training in self.started]
        finally:
            for training in self.started:
                training.process.kill()
        return [(training.returncode, training.stderr) for training in ended]

    def signal_in_training(self, sent: int, after_seconds: float) -> None:
        """Sends a signal to the last process.

        It comes a little after the run has written a line.
        """
        size = 0
        deadline = time.monotonic() + LONGEST_WAIT_SECONDS
        while True:
            # A resumed training first cuts the file back to its checkpoint.
            before = size
            lines = self.directory / "metrics.jsonl"
            size = lines.stat().st_size if lines.exists() else 0
            if size > before > 0:
                break
            assert time.monotonic() < deadline, "it logs nothing"
            assert all(training.process.is_alive() for training in self.started), (
                self.wait()
            )
            time.sleep(0.02)
        time.sleep(after_seconds)
        os.kill(self.started[-1].process.pid, sent)

    def status(self) -> str:
        return json.loads((self.directory / "summary.json").read_text())["status"]

    def last_step(self) -> int:
        """The step of the last line."""
        return json.loads(
            (self.directory / "metrics.jsonl").read_text().splitlines()[-1]
        )["step"]

    def saved_step(self) -> int:
        """The step of the newest checkpoint."""
        return max(
            int(path.name) for path in self.directory.glob("checkpoints/cell=0/[0-9]*")
        )

    def end(self) -> dict:
        """Runs to the end, unless it is there already.

        Returns its status, lines without timings, and the last checkpoint's digests.
        """
        self.start()
        for code, error in self.wait():
            assert code == 0, error
        lines = map(
            json.loads, (self.directory / "metrics.jsonl").read_text().splitlines()
        )
        saved = self.directory.glob("checkpoints/cell=0/*/metadata/metadata")
        metadata = max(saved, key=lambda path: int(path.parts[-3]))
        return {
            "status": self.status(),
            "lines": [
                {k: v for k, v in line.items() if k not in TIMINGS} for line in lines
            ],
            "arrays": json.loads(json.loads(metadata.read_text())["text"])["arrays"],
        }


def test_killed_and_told_to_stop_it_ends_the_same(tmp_path):
    whole = Run(tmp_path / "whole").end()
    assert whole["status"] == "done" and len(whole["arrays"]) > 5
    run = Run(tmp_path / "disturbed")
    rng = random.Random(0)
    met = 0
    codes = {signal.SIGTERM: INTERRUPTED_CODE, signal.SIGINT: CTRL_C_CODE}
    for sent in (signal.SIGKILL, signal.SIGINT, signal.SIGTERM):
        run.start()
        run.signal_in_training(sent, rng.uniform(0, 0.3))
        ((code, error),) = run.wait()
        assert code in (0, codes.get(sent, -sent)), error
        if run.status() == "done":
            break
        assert run.status() == ("running" if sent == signal.SIGKILL else "interrupted")
        if sent in codes:
            # What had been trained was saved.
            assert run.saved_step() >= run.last_step()
        if sent == signal.SIGINT:
            assert "stopping after the next steps, with a checkpoint" in error
        met += 1
    assert met >= 1
    assert run.end() == whole


def test_a_copy_without_checkpoints_begins_its_training_anew(tmp_path):
    run = Run(tmp_path / "run")
    run.start()
    (training,) = run.started

    def must_have_a_checkpoint():
        lines = run.directory / "metrics.jsonl"
        return lines.exists() and lines.stat().st_size and run.last_step() > 50

    forked.until(must_have_a_checkpoint, training.process)
    os.kill(training.process.pid, signal.SIGTERM)
    assert [code for code, _ in run.wait()] == [INTERRUPTED_CODE]
    shutil.copytree(
        tmp_path / "run",
        tmp_path / "copy",
        ignore=shutil.ignore_patterns("checkpoints"),
    )
    copy = Run(tmp_path / "copy")
    copy.start()
    ((code, error),) = copy.wait()
    assert code == 2
    assert "is no checkpoint in" in error.splitlines()[-1]
    for results_dir, expected in (("run", 1), ("copy", 0)):
        assert without_checkpoints.main([str(tmp_path / results_dir)]) == expected
    ours = copy.end()
    theirs = run.end()
    assert ours["status"] == "done"
    assert ours["lines"] == theirs["lines"]
    assert ours["arrays"] == theirs["arrays"]


def test_a_loss_that_is_not_finite_stops_the_run(tmp_path):
    arguments = [
        *SMALL,
        "--config.optim.learning_rate=1e6",
        f"--results_dir={tmp_path}",
    ]
    finished = forked.run("experiments.images.cifar", *arguments, ends=4, devices=5)
    (path,) = tmp_path.glob("*/*/*/seed=0/summary.json")
    summary = json.loads(path.read_text())
    assert (summary["status"], summary["claim"]) == ("diverged", "digits")
    assert summary["verdict"] == "not comparable"  # its settings are not the variant's
    assert "diverged_after_step" in summary["metrics"]
    last_line = finished.stderr.splitlines()[-1]
    assert last_line.startswith(
        f"cifar: diverged: {summary['error']}; a lower learning"
    )
    assert (
        "training on 4 of 5 devices (cpu); 5 do not divide the batch of 16"
        in finished.stderr
    )
    assert " at step " in summary["error"] and summary["error"] in finished.stderr
    assert "Traceback" not in finished.stderr


@needs_imagenet
def test_two_processes_train_as_one_and_survive_as_one(tmp_path):
    def make(name, count):
        changed = (*SMALL_IMAGENET, f"--config.data.data_dir={tmp_path}")
        return Run(
            tmp_path / name, "images.imagenet", changed, count, devices=4 // count
        )

    alone = make("alone", 1).end()
    whole = make("whole", 2).end()
    assert alone["lines"][-1]["processes"] == 1 and whole["lines"][-1]["processes"] == 2
    assert len(alone["lines"]) == len(whole["lines"])
    for ours, theirs in zip(alone["lines"], whole["lines"], strict=True):
        assert ours["kind"] == theirs["kind"]
        for name in {"loss", "test_loss", "gradient_norm"} & ours.keys():
            # Sums in another order, over 24 steps.
            assert ours[name] == pytest.approx(theirs[name], rel=1e-3)
        if ours["kind"] == "evaluation":
            # Every validation image once: 10 of them, in batches of 4 over 4 devices.
            assert ours["test_examples"] == theirs["test_examples"] == 10
            assert {"test_error_percent", "test_top5_error_percent"} <= ours.keys()
    run = make("disturbed", 2)
    run.start()
    run.signal_in_training(signal.SIGKILL, 0)
    killed = time.monotonic()
    (first_code, _), (second_code, _) = run.wait()
    # Steps take milliseconds: the first process soon waits for the killed one. It must
    # not hang.
    assert time.monotonic() - killed < LONGEST_WAIT_SECONDS / 2
    assert first_code != 0 and second_code == -signal.SIGKILL
    assert run.status() in ("running", "failed")
    run.start()
    run.signal_in_training(signal.SIGTERM, 0)
    for code, error in run.wait():
        assert code == INTERRUPTED_CODE, error
    assert run.status() == "interrupted"
    assert run.end() == whole


# A linear net on samples, whose examples each device draws.
SMALL_LINEAR = settings("""
    problem.width=8 depths=(4,) train.batch_examples=16 train.steps=40
    train.steps_per_dispatch=5 train.steps_per_log=10 train.steps_per_evaluation=10
    train.steps_per_checkpoint=10 settled_from_step=20
""")


def test_a_linear_net_trains_on_two_processes_as_on_one(tmp_path):
    def lines_of(name, count):
        run = Run(
            tmp_path / name, "linear_sampled", SMALL_LINEAR, count, devices=4 // count
        )
        run.start()
        for code, error in run.wait():
            assert code == 0, error
        (path,) = (tmp_path / name).glob("linear_sampled/*/seed=0/metrics.jsonl")
        return [json.loads(line) for line in path.read_text().splitlines()]

    alone = lines_of("alone", 1)
    together = lines_of("together", 2)
    assert (alone[-1]["processes"], alone[-1]["devices"]) == (1, 4)
    assert (together[-1]["processes"], together[-1]["devices"]) == (2, 4)
    assert [line["kind"] for line in alone] == [line["kind"] for line in together]
    risks = [line["test_loss"] for line in alone if line["kind"] == "evaluation"]
    # It trains, and the sums over two processes differ by rounding alone.
    assert len(risks) == 5 and risks[-1] < risks[0] / 2
    assert risks == pytest.approx(
        [line["test_loss"] for line in together if line["kind"] == "evaluation"],
        rel=1e-5,
    )
