"""`make reproduce`: what it runs, what it refuses, and that nothing outlives it."""

import contextlib
import fcntl
import os
import pathlib
import shutil
import signal
import time
import types

import pytest

from experiments import run
from identity_matters import runs
from tests import forked
from tests.rewriting import rewrite


def reproduce(results_dir, *arguments, ends):
    reference = f"--reference_dir={results_dir / 'reference'}"
    local = f"--results_dir={results_dir / 'local'}"
    return forked.run(
        "tests.toy.reproduce",
        reference,
        local,
        *arguments,
        ends=ends,
        starts_server=True,
    )


def run_toy(results_dir, *arguments):
    local = f"--results_dir={results_dir / 'local'}"
    forked.run("tests.toy.experiment", local, *arguments, ends=0)


def statuses(results_dir):
    finished, problems = runs.read_collection(results_dir / "local")
    assert problems == []
    return {f"{run.variant} {run.seed}": run.status for run in finished}


def test_it_runs_what_is_missing_side_by_side_and_ends_with_a_summary(tmp_path):
    # A run with changed settings does not replace the real one.
    run_toy(tmp_path, "--config.values=(2,)")
    (changed,) = statuses(tmp_path)
    twice = ("--only=toy,toy", "--variants=plain,plain", "--seeds=0 1 0")
    finished = reproduce(tmp_path, *twice, "--jobs=2", ends=0)
    assert statuses(tmp_path) == {"plain 0": "done", "plain 1": "done", changed: "done"}
    assert "run 2 of 2: toy plain seed=" in finished.stdout
    assert "\ntoy            2  2 holds" in finished.stdout
    assert ": 2 holds\n" in finished.stdout and "2 runs, 2 now in " in finished.stdout
    log = (tmp_path / "local" / "logs" / "toy-plain-seed=1.txt").read_text()
    assert "sum_of_squares = 14" in log
    plain = tmp_path / "local" / "toy" / "plain"
    assert {
        runs.read_run(p).environment["cpu_cores"] for p in plain.glob("seed=*")
    } == {1}
    # Nothing is left to do. It names a verdict that differs from the reference, and
    # another jax.
    reference = tmp_path / "reference" / "toy" / "plain" / "seed=0"
    shutil.copytree(plain / "seed=0", reference)
    rewrite(reference, "summary.json", verdict="counterexample")
    rewrite(reference, "environment.json", packages={"jax": "0.0.1"})
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.json*")}
    second = reproduce(tmp_path, "--only=toy", "--variants=plain", "--jobs=2", ends=1)
    assert "run 1 of" not in second.stdout
    assert "1 finished already, 0 run now\n" in second.stdout
    assert "1 run, none of them now: 1 holds\n" in second.stdout
    assert {
        path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.json*")
    } == before
    said = (
        "contradiction: toy/plain (Theorem 2.1): holds (proved); the reference:"
        " counterexample"
    )
    assert said in second.stdout
    assert "here, 0.0.1 in the reference" in second.stdout
    # Told to overwrite, it runs finished runs anew, too.
    anew = reproduce(tmp_path, "--only=toy", "--variants=plain", "--overwrite", ends=1)
    assert "finished already" not in anew.stdout and "1 run, 1 now in " in anew.stdout
    run = plain / "seed=0" / "summary.json"
    assert run.stat().st_mtime_ns > before[run]
    # The demo takes the quickest variant by the reference's times, if that is quick
    # enough.
    shutil.copytree(reference, reference.parents[1] / "short" / "seed=0")
    for seconds, runs_short in ((20.1, False), (20.0, True)):
        for path, own in (
            (reference, 20.2),
            (reference.parents[1] / "short/seed=0", seconds),
        ):
            rewrite(path, "summary.json", seconds={"total": own})
        demo = reproduce(tmp_path, "--demo", ends=None)
        assert ("toy short seed=0: holds" in demo.stdout) == runs_short, demo.stdout


def test_runs_that_are_no_use_are_refused_and_made_anew_when_told_to(tmp_path):
    plain = tmp_path / "local" / "toy" / "plain"
    run_toy(tmp_path)
    for seed in range(1, 6):
        shutil.copytree(plain / "seed=0", plain / f"seed={seed}")
        rewrite(plain / f"seed={seed}", "summary.json", seed=seed)
    rewrite(plain / "seed=0", "summary.json", status="diverged", verdict=...)
    rewrite(plain / "seed=1", "config.json", values=[4])
    (plain / "seed=2" / "metrics.jsonl").write_text("garbage\n")
    rewrite(plain / "seed=3", "config.json", values=[4])
    for seed in (3, 4):
        rewrite(plain / f"seed={seed}", "summary.json", status="interrupted")
    (plain / "seed=4" / "metrics.jsonl").write_text("")
    (plain / "seed=5" / "summary.json").unlink()
    refused = reproduce(tmp_path, "--only=toy,toy", "--seeds=0 1 2 3 4 5", ends=1)
    reasons = (
        "is diverged",
        "values=[4]",
        "this line",
        "values=[4]",
        "has 0",
        "missing",
    )
    for seed, why in enumerate(reasons):
        (line,) = (
            x
            for x in refused.stdout.splitlines()
            if x.startswith(f"{plain}/seed={seed}")
        )
        assert why in line and line.endswith(
            "; make reproduce OVERWRITE=1 runs it anew"
        )
        # It names the place once, and one way to go on.
        assert line.count(str(tmp_path)) == 1 and "--overwrite" not in line
    reproduce(tmp_path, "--seeds=0 1 2 3 4 5", "--overwrite", ends=0)
    for seed in range(6):
        run = runs.read_run(plain / f"seed={seed}")
        assert run.summary["metrics"] == {"sum_of_squares": 14}


def processes_of(results_dir):
    """The processes whose output goes to the logs of `results_dir`."""
    processes = []
    for entry in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (
                (entry / "fd" / "1")
                .readlink()
                .is_relative_to(results_dir / "local" / "logs")
            ):
                processes.append(int(entry.name))
    return processes


def test_nothing_outlives_it_and_the_same_command_resumes_at_once(tmp_path):
    """One reproduction of two runs, stopped three times."""
    command = [
        "tests.toy.reproduce",
        "--only=toy",
        "--variants=slow",
        "--jobs=2",
        "--seeds=0 1",
        f"--results_dir={tmp_path / 'local'}",
        f"--reference_dir={tmp_path / 'none'}",
    ]
    kept = {}

    def lines():
        return {path: path.read_bytes() for path in tmp_path.rglob("metrics.jsonl")}

    def both_write():
        written = lines()
        return len(written) == 2 and all(written.values()) and written != kept

    for sent, code in (
        (signal.SIGKILL, -signal.SIGKILL),
        (signal.SIGINT, run.CTRL_C_CODE),
        (signal.SIGTERM, run.INTERRUPTED_CODE),
        (None, 0),
    ):
        started = forked.Started(*command, starts_server=True)
        if sent:
            forked.until(both_write, started.process)
            # Both runs, unless one was fast and has ended.
            assert len(processes_of(tmp_path)) in (1, 2)
            os.kill(started.process.pid, sent)
        finished = started.wait()
        assert finished.returncode == code, finished.stderr
        assert "Traceback" not in finished.stdout + finished.stderr
        if sent in (signal.SIGINT, signal.SIGTERM):
            assert finished.stdout.strip().endswith(
                "interrupted; the same command resumes"
            )
            assert processes_of(tmp_path) == []
            assert "interrupted" in statuses(tmp_path).values()
        written = lines()
        assert all(written[path].startswith(before) for path, before in kept.items())
        kept = written
    assert statuses(tmp_path) == {"slow 0": "done", "slow 1": "done"}


def test_signals_that_it_was_started_to_ignore_do_not_stop_it(monkeypatch):
    """`nohup` ignores SIGHUP, and a script the Ctrl-C of its background jobs."""
    from experiments.processes import exit_at_signals

    now = {
        signal.SIGHUP: signal.SIG_IGN,
        signal.SIGINT: signal.SIG_IGN,
        signal.SIGTERM: signal.SIG_DFL,
    }
    monkeypatch.setattr(signal, "getsignal", now.get)
    monkeypatch.setattr(signal, "signal", now.__setitem__)
    exit_at_signals()
    assert now[signal.SIGHUP] is now[signal.SIGINT] is signal.SIG_IGN
    with pytest.raises(SystemExit) as stopped:
        now[signal.SIGTERM](signal.SIGTERM, None)
    assert stopped.value.code == run.INTERRUPTED_CODE


def as_make_does(pipe):
    from experiments import processes

    os.environ["MAKELEVEL"] = "1"
    if not os.fork():
        processes.end_with_make()
        pipe.send("started")
        time.sleep(60)
    os.wait()


def test_what_make_started_ends_with_it():
    ours, theirs = forked.server.Pipe()
    make = forked.server.Process(target=as_make_does, args=(theirs,))
    make.start()
    theirs.close()
    assert ours.recv() == "started"
    make.kill()
    with pytest.raises((EOFError, ConnectionResetError)):
        assert ours.poll(20) and ours.recv()


def test_two_at_once_do_not_write_one_anothers_logs(tmp_path):
    """This test, as another reproduction, holds the log of a run while it makes it."""
    log = tmp_path / "local" / "logs" / "toy-plain-seed=0.txt"
    log.parent.mkdir(parents=True)
    with open(log, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write("what the other run says")
        file.flush()
        seeds = ("--only=toy", "--variants=plain", "--seeds=0 1", "--jobs=2")
        finished = reproduce(tmp_path, *seeds, ends=1)
        assert (
            "failed: toy plain seed=0: another process is running it" in finished.stdout
        )
        assert log.read_text() == "what the other run says"
    assert statuses(tmp_path) == {"plain 1": "done"}


def test_a_run_that_diverged_and_has_a_verdict_is_finished(tmp_path):
    """As in compare, it contradicts a reference only if that says something else."""
    wild = ("--only=toy", "--variants=wild")
    first = reproduce(tmp_path, *wild, ends=1)
    assert statuses(tmp_path) == {"wild 0": "diverged"}
    assert ": 1 diverged: not reproduced\n" in first.stdout
    assert "failed: " not in first.stdout
    assert first.stdout.count("contradiction: ") == 1
    local = tmp_path / "local" / "toy"
    shutil.copytree(local, tmp_path / "reference" / "toy")
    second = reproduce(tmp_path, *wild, ends=0)
    assert "1 finished already, 0 run now\n" in second.stdout
    assert "1 run, none of them now: 1 diverged: not reproduced\n" in second.stdout
    anew = ("--overwrite", "--seeds=0 1", "--jobs=2")
    third = reproduce(tmp_path, *wild, *anew, ends=0)
    assert "run 2 of 2: toy wild seed=" in third.stdout
    assert third.stdout.count(": diverged: not reproduced, ") == 2


def test_an_earlier_run_is_not_taken_for_one_that_could_not_begin(tmp_path):
    """This test, as another process that writes there, holds the run's directory."""
    run_toy(tmp_path)
    with contextlib.ExitStack() as lock:
        runs.lock_path(tmp_path / "local" / "toy" / "plain" / "seed=0", lock)
        words = ("--only=toy", "--variants=plain", "--overwrite")
        finished = reproduce(tmp_path, *words, ends=1)
    assert "another process is writing here" in finished.stderr
    assert ": 1 failed\n" in finished.stdout
    assert "failed: toy plain seed=0: see above\n" in finished.stdout
    assert statuses(tmp_path) == {"plain 0": "done"}


def test_a_run_that_goes_alone_is_not_explained_by_an_older_log(tmp_path, monkeypatch):
    """It writes to the terminal; what lies in the log is of an earlier run."""
    from experiments import jobs

    failed = types.SimpleNamespace(exitcode=1)
    monkeypatch.setattr(jobs.processes, "start", lambda command, log, core: failed)
    job = jobs.Job("landscape", "corrected", 0, None, results_dir=str(tmp_path))
    job.log.parent.mkdir()
    job.log.write_text("what an earlier run said\n")
    job.start(core=None, alone=True)
    assert jobs.failure_of(job) == "see above"
    job.start(core=0, alone=False)
    assert jobs.failure_of(job) == f"what an earlier run said ({job.log})"


def test_the_longest_run_goes_first_and_the_next_one_on_the_core_that_is_free(
    monkeypatch,
):
    from experiments import jobs, queues

    def start(job, core, alone):
        job.core = core
        job.process = types.SimpleNamespace(exitcode=None)

    monkeypatch.setattr(jobs.Job, "start", start)
    # The one of which no time is known counts as one of 30 seconds.
    times = {"a": 1.0, "b": 40.0, "c": 2.0, "d": None}
    waiting = [jobs.Job("relu", name, 0, seconds) for name, seconds in times.items()]
    queue = queues.Queue(waiting, [4, 5])
    first, second = queue.start_jobs(alone=False)
    assert (first.variant, second.variant) == ("b", "d")
    assert {first.core, second.core} == {4, 5}
    second.process.exitcode = 0
    assert queue.take_ended_jobs() == [second]
    (third,) = queue.start_jobs(alone=False)
    assert (third.variant, third.core) == ("c", second.core)


@pytest.mark.parametrize(
    ("at_once", "places"), [(0, [2, 3, 5]), (1, [2]), (4, [2, 3, 5, 2])]
)
def test_as_many_runs_go_at_a_time_as_were_asked_for_on_the_cores_that_are_ours(
    monkeypatch, at_once, places
):
    from experiments import queues

    monkeypatch.setattr(queues.limits, "usable_cores", lambda: 3)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {7, 3, 2, 5}, raising=False)
    assert queues._cores(at_once) == places
    monkeypatch.delattr(os, "sched_getaffinity")
    assert queues._cores(at_once) == [None] * len(places)


@pytest.mark.parametrize(
    ("names", "cores", "places", "at_once"),
    [
        (["cifar", "relu"], [0], [[None]], 1),
        (["cifar", "relu"], [0, 1], [[None], [0, 1]], 2),
        (["cifar", "cifar"], [0, 1], [[None]], 1),
        (["relu"], [0, 1], [[None]], 1),
        (["relu", "relu"], [0, 1, 2], [[None], [0, 1, 2]], 2),
    ],
)
def test_a_run_that_goes_alone_has_all_cores_also_beside_an_accelerator(
    monkeypatch, names, cores, places, at_once
):
    from experiments import jobs, queues

    monkeypatch.setattr(queues.accelerators, "are_usable", lambda: True)
    listed = [jobs.Job(name, "v", seed, 1.0) for seed, name in enumerate(names)]
    made, most_at_once = queues._queues(listed, cores)
    assert [queue.free_places for queue in made] == places
    assert sum(len(queue.waiting) for queue in made) == len(names)
    assert most_at_once == at_once


def test_with_an_accelerator_trainings_go_one_at_a_time_and_the_others_on_the_cores(
    tmp_path, monkeypatch, capsys
):
    """Runs whose processes only sleep, on three cores beside an accelerator."""
    from experiments import commands, jobs, queues

    started = []
    most_trainings = 0
    most_others = 0

    def start(job, core, alone):
        nonlocal most_trainings, most_others
        job.process = forked.server.Process(target=time.sleep, args=(0.6,))
        job.process.start()
        job.core = core
        started.append(job)
        busy = [command for command in started if command.process.exitcode is None]
        most_trainings = max(
            most_trainings, sum(command.name == "cifar" for command in busy)
        )
        most_others = max(most_others, sum(command.name != "cifar" for command in busy))
        assert not alone
        assert (core is None) == (job.name == "cifar")

    monkeypatch.setattr(jobs.Job, "start", start)
    monkeypatch.setattr(queues, "_cores", lambda at_once: [0, 1, 2])
    monkeypatch.setattr(queues.accelerators, "are_usable", lambda: True)
    monkeypatch.setattr(jobs.Job, "summary", lambda job: None)
    monkeypatch.setattr(jobs.Job, "last_line", lambda job: "")
    waiting = [jobs.Job("cifar", f"v{i}", 0, 1.0) for i in range(3)]
    waiting += [jobs.Job("landscape", f"v{i}", 0, 1.0) for i in range(5)]
    queues.run_all(waiting, 0, commands.Console())
    assert len(started) == 8
    assert (most_trainings, most_others) == (1, 3)
    assert "run 8 of 8" in capsys.readouterr().out


# An accelerator that comes before the CPU and refuses float64, as TPUs do.
NO_FLOAT64 = """
from jax._src import compiler, xla_bridge

def initialize():
    real = compiler.compile_or_get_cached
    clients = []

    def make_client():
        clients.append(xla_bridge.make_cpu_client())
        return clients[-1]

    def compile_program(backend, module, *others, **options):
        if any(backend is client for client in clients) and "f64" in str(module):
            raise RuntimeError("UNIMPLEMENTED: only float32")
        return real(backend, module, *others, **options)

    # Its devices are CPUs: their programs must not be found among those that are kept.
    compiler.compile_or_get_cached = compile_program
    xla_bridge.register_backend_factory("no_float64", make_client, priority=1000)
"""

# JAX has looked for plugins before these processes are forked.
WITH_PLUGIN = """
import runpy, sys
sys.path.insert(0, {plugins!r})
from jax_plugins import no_float64
no_float64.initialize()
"""
REFUSED = f"""{WITH_PLUGIN}
import jax
jax.config.update("jax_enable_x64", True)
print(jax.numpy.linalg.svd(jax.numpy.eye(3)))
"""
BESIDE_IT = f"""{WITH_PLUGIN}
runpy.run_module("experiments.landscape", run_name="__main__", alter_sys=True)
"""


# Compiled quickly, the programs of this run take longer than they save.
@pytest.mark.compiled_for_users
@pytest.mark.slow
def test_the_theory_holds_beside_an_accelerator_that_refuses_float64(tmp_path):
    plugin = tmp_path / "jax_plugins" / "no_float64" / "__init__.py"
    plugin.parent.mkdir(parents=True)
    plugin.write_text(NO_FLOAT64)

    refused = forked.run_code(REFUSED.format(plugins=str(tmp_path)), tmp_path, ends=1)
    assert "UNIMPLEMENTED: only float32" in refused.stderr
    forked.run_code(
        BESIDE_IT.format(plugins=str(tmp_path)),
        tmp_path,
        "--config=:hessian_at_origin",
        f"--results_dir={tmp_path / 'local'}",
    )
    assert statuses(tmp_path) == {"hessian_at_origin 0": "done"}


def test_an_experiment_without_default_variants_asks_for_one(tmp_path):
    refused = forked.run(
        "experiments.reproduce",
        "--only=shipped",
        f"--results_dir={tmp_path}",
        ends=2,
    )
    assert "shipped runs only variants that are named" in refused.stderr
    assert "it has cifar10" in refused.stderr
