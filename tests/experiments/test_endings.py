"""What ends a run: signals, failures of the machine, bugs, and what is refused."""

import dataclasses
import os
import re
import shutil
import signal
import subprocess
import sys
import types

import numpy as np
import pytest
from absl import app

from experiments import run
from experiments.run import conclusion, endings, execution, refusals, signals
from identity_matters import runs
from tests import forked
from tests.experiments.test_run import TOY, run_toy, runs_below
from tests.measured import REFERENCE
from tests.rewriting import rewrite
from tests.toy import experiment


def test_a_mistake_of_the_program_is_recorded_and_a_traceback_and_not_one_of_the_user(
    tmp_path,
):
    finished = run_toy(tmp_path / "a", "--config.action=raise", ends=1)
    assert (
        "Traceback" in finished.stderr and "the second trial fails" in finished.stderr
    )
    (failed,) = runs_below(tmp_path / "a")
    assert failed.status == "failed"
    assert failed.summary["error"] == "FloatingPointError: the second trial fails"
    assert [record["cell"] for record in failed.records] == [0]
    finished = run_toy(tmp_path / "b", "--config.action=memory", ends=1)
    last = finished.stderr.splitlines()[-1]
    said = "toy: out of memory (cannot allocate 8 TiB); choose smaller settings"
    assert last == said and "Traceback" not in finished.stderr
    assert [failed.status for failed in runs_below(tmp_path / "b")] == ["failed"]


def test_a_finished_run_without_a_claim_says_where_to_add_it():
    lines = conclusion.last_lines({"claim": "half-turn"}, "results/a", "results")
    assert lines.startswith("finished: results/a/summary.json\n")
    assert "claims.toml has no 'half-turn' yet" in lines


def test_the_metrics_that_the_claim_names_are_shown_first_and_all(tmp_path):
    """Its sentence is on the variant, and this run is of changed settings."""
    changed = "landscape/critical_points@baff1aa3"
    path = tmp_path / changed / "seed=0"
    shutil.copytree(REFERENCE / "landscape" / "critical_points" / "seed=0", path)
    rewrite(path, "summary.json", variant="critical_points@baff1aa3")
    summary = runs.read_run(path).summary
    others = {f"other_{place}": place for place in range(20)}
    summary = {**summary, "metrics": {**others, **summary["metrics"]}}
    lines = conclusion.last_lines(summary, path, tmp_path)
    shown = re.findall(r"(\w+) = ", lines)
    assert len(shown) == 8
    assert "critical_points_inside_not_optimal" in shown[:3]
    assert shown[3] == "other_0"


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (
            MemoryError("Unable to allocate 8 TiB"),
            "out of memory (Unable to allocate 8 TiB)",
        ),
        (
            RuntimeError("RESOURCE_EXHAUSTED: 74 GB"),
            "out of memory (RESOURCE_EXHAUSTED: 74 GB)",
        ),
        (
            ValueError("RESOURCE_EXHAUSTED: No space left on device"),
            "the disk of results is full",
        ),
        (
            OSError(28, "No space left on device", "a/b"),
            "the disk of a/b is full: free some space there; the same command, without"
            " --overwrite, resumes, nothing that was recorded is lost",
        ),
        (
            OSError(5, "Input/output error"),
            "the machine failed ([Errno 5] Input/output error); once it works the same"
            " command, without --overwrite, resumes",
        ),
        (
            OSError(27, "File too large"),
            "the machine failed ([Errno 27] File too large)",
        ),
        (
            OSError(24, "Too many open files"),
            "the machine failed ([Errno 24] Too many open files)",
        ),
        (
            PermissionError(13, "Permission denied"),
            "the machine failed ([Errno 13] Permission denied)",
        ),
        (
            FileNotFoundError(2, "No such file", "results/a"),
            "files of the run were deleted while it ran ([Errno 2] No such file",
        ),
        (FileNotFoundError(2, "No such file", "elsewhere/a"), None),
        (FileNotFoundError(2, "No such file", "results2/a"), None),
        (OSError(2, "No such file or directory"), None),
        (ZeroDivisionError("division by zero"), None),
    ],
)
def test_failures_of_the_machine_are_one_line(error, message):
    line = endings.machine_failure(error, "results")
    assert line is None if message is None else message in line


def test_a_full_disk_may_be_that_of_the_checkpoints():
    full = ValueError("RESOURCE_EXHAUSTED: No space left on device")
    code, line = endings.ending_of(full, "results", checkpoint_dir="saved")
    assert code == 1 and line.startswith("the disk of results or saved is full: free")


def test_only_what_comes_too_late_for_orbax_goes_untold(monkeypatch):
    told: list = []
    monkeypatch.setattr(sys, "__unraisablehook__", told.append)
    errors = RuntimeError("Event loop is closed"), RuntimeError("another")
    failures = [types.SimpleNamespace(exc_value=error) for error in errors]
    for failure in failures:
        signals.report_unraisable(failure)
    assert told == failures[1:]


@pytest.mark.parametrize(
    ("sent", "code"),
    [(signal.SIGTERM, run.INTERRUPTED_CODE), (signal.SIGINT, run.CTRL_C_CODE)],
)
def test_a_signal_leaves_an_interrupted_run_that_resumes(tmp_path, sent, code):
    started = forked.Started(
        TOY, f"--results_dir={tmp_path}", "--config.pause_seconds=0.5"
    )

    def written():
        return [
            path for path in tmp_path.glob("**/metrics.jsonl") if path.stat().st_size
        ]

    forked.until(written, started.process)
    (metrics,) = written()
    os.kill(started.process.pid, sent)
    finished = started.wait(60)
    assert finished.returncode == code, finished.stderr
    assert "Traceback" not in finished.stderr
    assert finished.stderr.strip().splitlines()[-1].endswith("resumes")
    run = runs.read_run(metrics.parent)
    assert run.status == "interrupted"
    assert 1 <= len(run.records) < 3
    finished = run_toy(tmp_path, "--config.pause_seconds=0.5")
    assert f"\nresuming after {len(run.records)} of 3 trials\n" in finished.stderr
    run = runs.read_run(metrics.parent)
    assert run.summary["metrics"] == {"sum_of_squares": 14}
    assert [record["cell"] for record in run.records] == [0, 1, 2]


LOST = """
import dataclasses, gc, os, signal
from experiments import run
from experiments.run import signals
from tests.toy import experiment

sent = []

def send(phase, _):
    if not sent:
        sent.append(phase)
        os.kill(os.getpid(), signal.{name})
        # The handler runs here, inside the collector's callback.
        [number for number in range(100)]

def measure(subject, key):
    gc.callbacks.append(send)
    gc.collect()
    return {{"square": 0}}

EXPERIMENT = dataclasses.replace(experiment.EXPERIMENT, measure=measure)
if __name__ == "__main__":
    signals.RESEND_SECONDS = {resend}
    run.main(EXPERIMENT)
"""


@pytest.mark.parametrize("resend_seconds", [0.05, 1e3])
@pytest.mark.parametrize(
    ("name", "code"), [("SIGTERM", run.INTERRUPTED_CODE), ("SIGINT", run.CTRL_C_CODE)]
)
def test_a_signal_that_comes_while_garbage_is_collected_is_not_lost(
    tmp_path, name, code, resend_seconds
):
    """Python ignores what the handler raises there.

    So the signal is sent again, or noticed later.
    """
    program = LOST.format(name=name, resend=resend_seconds)
    results = f"--results_dir={tmp_path / 'results'}"
    # The second and third of three numbers are not measured.
    finished = forked.run_code(program, tmp_path, results, ends=code)
    assert "Traceback" not in finished.stderr
    (run,) = runs_below(tmp_path / "results")
    assert run.status == "interrupted" and len(run.records) <= 1


def test_the_first_signal_only_asks_a_training_to_stop_and_the_second_ends_it():
    for number, exception in signals.STOP_SIGNALS.items():
        with signals.stop_signal(asks_first=True) as stop:
            stop.check()
            signal.raise_signal(number)
            assert stop.requested is exception
            with pytest.raises(exception):
                stop.check()
            with pytest.raises(exception):
                signal.raise_signal(number)
        with signals.stop_signal(asks_first=False) as stop, pytest.raises(exception):
            signal.raise_signal(number)
        assert stop.requested is exception
        # One that is handed on has been asked already.
        with signals.stop_signal(asks_first=True, stop=stop) as same:
            assert same is stop
            with pytest.raises(exception):
                signal.raise_signal(number)


def test_a_signal_is_not_sent_again_after_the_run(monkeypatch):
    monkeypatch.setattr(signals, "RESEND_SECONDS", 1e3)
    with signals.stop_signal(asks_first=True):
        signals.report_unraisable(types.SimpleNamespace(exc_value=run.Interrupted()))
        (timer,) = signals._resent_signals
        assert timer.is_alive()
    timer.join(60)
    assert not timer.is_alive() and not signals._resent_signals


def test_a_run_that_diverged_may_have_no_verdict(tmp_path):
    toy = run.Experiment(**vars(experiment.EXPERIMENT))
    config = experiment.get_config("wild")
    with pytest.raises(run.DivergedError):
        execution.execute(toy, config, seed=0, results_dir=tmp_path)
    (diverged,) = runs_below(tmp_path)
    assert diverged.status == "diverged"
    assert not diverged.is_judged


def test_a_pipe_that_nobody_reads_is_no_traceback(tmp_path):
    """As in `| head`: a long --help says so, and a run goes on to its end."""
    for flag, code, said in (("--help", 1, "pipe that it wrote"), ("--seed=3", 0, "")):
        read_end, write_end = os.pipe()
        os.close(read_end)
        finished = subprocess.run(
            [sys.executable, "-m", TOY, flag, f"--results_dir={tmp_path}"],
            cwd=forked.ROOT,
            stdout=write_end,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
        os.close(write_end)
        assert finished.returncode == code, finished.stderr
        assert "Traceback" not in finished.stderr
        assert said in finished.stderr
    (recorded,) = runs_below(tmp_path)
    assert recorded.status == "done"


IGNORING = """
import dataclasses, os, signal
from experiments import run
from tests.toy import experiment

def measure(subject, key):
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(os.getpid(), number)
    return experiment.EXPERIMENT.measure(subject, key)

EXPERIMENT = dataclasses.replace(experiment.EXPERIMENT, measure=measure)
if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    run.main(EXPERIMENT)
"""


def test_signals_that_a_run_was_started_to_ignore_do_not_stop_it(tmp_path):
    """A script's background jobs ignore Ctrl-C."""
    results = f"--results_dir={tmp_path / 'results'}"
    finished = forked.run_code(IGNORING, tmp_path, results)
    assert "interrupted" not in finished.stderr
    (run,) = runs_below(tmp_path / "results")
    assert run.status == "done"


@pytest.mark.parametrize("ignored_after", [False, True])
def test_signals_are_as_before_or_ignored_after_a_run(ignored_after):
    handlers = {signal.SIGINT: signal.SIG_IGN, signal.SIGTERM: signal.SIG_DFL}
    before = {
        number: signal.signal(number, handler) for number, handler in handlers.items()
    }
    try:
        with signals.stop_signal(asks_first=False, ignored_after=ignored_after):
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
            assert callable(signal.getsignal(signal.SIGTERM))
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        after = signal.SIG_IGN if ignored_after else signal.SIG_DFL
        assert signal.getsignal(signal.SIGTERM) is after
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _bug(*_, **__):
    return None + 1


def _bug_in_a_library(*_, **__):
    return np.zeros(3).reshape(2, 2)


@pytest.mark.parametrize("changed", [False, True])
@pytest.mark.parametrize(
    ("bug", "error"), [(_bug, TypeError), (_bug_in_a_library, ValueError)]
)
@pytest.mark.parametrize("step", ["trials", "build", "measure", "verdict"])
def test_a_bug_of_an_experiment_keeps_its_traceback(
    tmp_path, step, bug, error, changed
):
    """Also if settings were changed: then the error names them."""
    buggy = dataclasses.replace(experiment.EXPERIMENT, **{step: bug})
    config = experiment.get_config()
    defaults = config.to_dict()
    if changed:
        config.pause_seconds = 1e-9
    with pytest.raises(error) as caught:
        execution.execute(
            buggy, config, seed=0, results_dir=tmp_path, defaults=defaults
        )
    assert caught.traceback[-1].name.startswith("_bug")
    assert endings.ending_of(caught.value, str(tmp_path)) == (1, None)
    prepares = step in ("trials", "build")
    notes = ["with changed settings: {'pause_seconds': 1e-09}"]
    assert getattr(caught.value, "__notes__", []) == (
        notes if changed and prepares else []
    )
    # What `prepare` finds comes before anything is written.
    assert [run.status for run in runs_below(tmp_path)] == (
        [] if prepares else ["failed"]
    )


def test_a_traceback_of_a_bug_is_printed(tmp_path):
    program = """
import dataclasses
from experiments import run
from tests.toy import experiment

def build(**trial):
    return trial["depth"]

if __name__ == "__main__":
    run.main(dataclasses.replace(experiment.EXPERIMENT, build=build))
"""
    finished = forked.run_code(
        program, tmp_path, f"--results_dir={tmp_path / 'r'}", ends=1
    )
    assert "Traceback" in finished.stderr
    assert finished.stderr.splitlines()[-1] == "KeyError: 'depth'"


@pytest.mark.parametrize("code", ["", "0", "'boom'"])
def test_a_run_that_exits_has_failed(tmp_path, code):
    program = f"""
import dataclasses
import sys
from experiments import run
from tests.toy import experiment

def measure(trial, key):
    sys.exit({code})

if __name__ == "__main__":
    run.main(dataclasses.replace(experiment.EXPERIMENT, measure=measure))
"""
    results = tmp_path / "results"
    finished = forked.run_code(program, tmp_path, f"--results_dir={results}", ends=1)
    assert "sys.exit" in finished.stderr
    assert finished.stderr.splitlines()[-1].startswith("SystemExit")
    (failed,) = runs_below(results)
    assert failed.status == "failed"


def _check(value):
    raise ValueError(
        "values are odd",
    )


def _bug_in_a_message(value):
    raise ValueError(f"got {value + 1}")


def _bug_beside_the_word(value):
    return value + 1  # another line would raise an error


def _check_that_raises_again(value):
    try:
        _check(value)
    except ValueError:
        raise


def _library(value):
    return np.stack([np.zeros(2), np.zeros(3)])  # refuses by a `raise` of its own


@pytest.mark.parametrize(
    ("function", "refuses"),
    [
        (_check, True),
        (_check_that_raises_again, True),
        (_bug_in_a_message, False),
        (_bug_beside_the_word, False),
        (_bug, False),
        (_bug_in_a_library, False),
        (_library, False),
    ],
)
def test_only_a_raise_statement_of_ours_refuses(function, refuses):
    with pytest.raises((ValueError, TypeError)) as caught:
        function(None)
    assert refusals.is_refusal(caught.value, {"tests"}) == refuses
    assert not refusals.is_refusal(caught.value, {"identity_matters"})


def test_a_variant_whose_run_would_not_be_found_is_refused(tmp_path):
    deep = dataclasses.replace(experiment.EXPERIMENT, name="toy/a/b/c")
    with pytest.raises(app.UsageError, match="at most 4 names, got 'toy/a/b/c/plain'"):
        execution.execute(deep, experiment.get_config(), seed=0, results_dir=tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("step", ["trials", "build"])
@pytest.mark.parametrize(
    "refusal",
    [
        ValueError("values are odd"),
        OverflowError("values are odd"),
        TypeError("values are odd"),
    ],
)
def test_what_an_experiment_refuses_is_one_line(tmp_path, step, refusal):
    def refuse(**_):
        raise refusal

    refusing = dataclasses.replace(experiment.EXPERIMENT, **{step: refuse})
    with pytest.raises(app.UsageError, match=r"^values are odd$"):
        execution.execute(
            refusing, experiment.get_config(), seed=0, results_dir=tmp_path
        )
    assert runs_below(tmp_path) == []
