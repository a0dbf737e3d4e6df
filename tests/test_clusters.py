"""clusters/ and its page: their flags exist.

A job that is told to stop queues again.
"""

import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import time

import pytest
import yaml

import experiments
from experiments import run
from experiments.run import endings
from identity_matters import runs
from tests import forked
from tests.measured import REFERENCE

CLUSTERS = forked.ROOT / "clusters"
JOBSET = yaml.safe_load((CLUSTERS / "jobset.yaml").read_text())["spec"]
JOB = JOBSET["replicatedJobs"][0]["template"]["spec"]
POD = JOB["template"]["spec"]


def test_the_trainings_of_the_page_and_the_manifest_are_there_and_have_their_flags():
    page = (forked.ROOT / "docs" / "clusters.md").read_text()
    # A command that runs beside others ends in &.
    line = re.compile(r"^.*(experiments\.images\.\w+ --.*?)(?: &)?$", re.MULTILINE)
    shown = line.findall(page)
    defined = set()
    for path in sorted((forked.ROOT / "experiments").rglob("*.py")):
        defined |= set(re.findall(r"DEFINE_\w+\(\s*\"(\w+)\"", path.read_text()))
    assert len(shown) > 1
    for module, *flags in (*map(shlex.split, shown), POD["containers"][0]["args"]):
        name = module.split(".")[-1]
        assert experiments.MODULES[name] == module
        given = dict(re.match(r"--([\w.]+)(?:=(.*))?", flag).groups() for flag in flags)
        assert {flag for flag in given if "." not in flag} <= defined | {"config"}
        experiments.find_variants(name, given["config"].removeprefix(":"))


def test_the_manifest_is_one_slice_whose_machines_all_start_anew():
    assert JOBSET["failurePolicy"]["maxRestarts"] > 0
    chips = POD["containers"][0]["resources"]["limits"]["google.com/tpu"]
    across, down = map(
        int, POD["nodeSelector"]["cloud.google.com/gke-tpu-topology"].split("x")
    )
    assert JOB["parallelism"] == JOB["completions"] == across * down // chips
    # JAX needs the index; a failed machine must fail the Job, or JobSet would not
    # restart it.
    assert (JOB["completionMode"], JOB["backoffLimit"]) == ("Indexed", 0)
    assert POD["restartPolicy"] == "Never"


def test_a_training_that_diverged_is_not_started_again():
    (of_pod,) = JOB["podFailurePolicy"]["rules"]
    assert of_pod["onExitCodes"]["values"] == [endings.DIVERGED_CODE]
    assert of_pod["onExitCodes"]["containerName"] == POD["containers"][0]["name"]
    (of_all,) = JOBSET["failurePolicy"]["rules"]
    assert (of_pod["action"], of_all["action"]) == ("FailJob", "FailJobSet")
    assert of_all["onJobFailureReasons"] == ["PodFailurePolicy"]


TPU = {
    "TPU_NAME": "t",
    "ZONE": "z",
    "PROJECT": "p",
    "TPU_TYPE": "v4-8",
    "TPU_VERSION": "v",
}


def shown(*arguments, **changes):
    """What clusters/tpu.sh would run."""
    environment = {**TPU, "DRY_RUN": "1", "BUCKET": "gs://b'; touch x; '", **changes}
    return forked.shell("clusters/tpu.sh", *arguments, **environment)


def remote_commands(finished) -> list[str]:
    words = shlex.split(finished.stdout)
    return [
        word.removeprefix("--command=")
        for word in words
        if word.startswith("--command=")
    ]


def test_every_step_on_a_tpu_is_shown_with_its_words_quoted():
    for step in ("create", "setup", "logs", "status", "stop", "delete"):
        finished = shown(step, DATASETS="cifar10 cifar100", DATA_DIR="a; touch x")
        assert finished.returncode == 0, finished.stderr
        if step == "setup":
            words = shlex.split(finished.stdout)
            packed = words[words.index("tar") :][:7]
            assert packed[-3:] == [
                "--directory=a; touch x",
                "arrays/cifar10",
                "arrays/cifar100",
            ]
            # Nothing there needs TensorFlow.
            assert not any(
                "make data" in command for command in remote_commands(finished)
            )
    finished = shown("run", "experiments.images.cifar", "--config=:a b")
    assert finished.returncode == 0, finished.stderr
    (command,) = remote_commands(finished)
    words = shlex.split(command)
    flags = [
        "--config=:a b",
        "--distributed",
        "--results_dir=gs://b'; touch x; '/results",
    ]
    assert words[3:] == [
        "clusters/detached.sh",
        "start",
        "experiments.images.cifar",
        *flags,
    ]
    assert shown("run", BUCKET="b").returncode == 2
    assert shown("walk").returncode == 2
    assert "TPU_TYPE: v5litepod-8, say" in shown("create", TPU_TYPE="").stderr
    refused = shown("setup", DRY_RUN="0", DATA_DIR="/nowhere")
    assert refused.returncode == 2
    assert (
        "cifar10 is not prepared in /nowhere, from where it is copied" in refused.stderr
    )


def test_tpus_get_the_compiler_that_was_tried():
    """That of another Python's lock has crashed on two nets."""
    environment = runs.read_run(
        REFERENCE / "benchmark_compile_check" / "tpu" / "seed=0"
    ).environment
    python = environment["python"].rpartition(".")[0]
    installed = [c for c in remote_commands(shown("setup")) if "uv python" in c]
    assert [c.endswith(f"uv python install {python}") for c in installed] == [True]
    image = (CLUSTERS / "Dockerfile").read_text()
    assert f"ARG BASE=python:{python}-slim\n" in image


def test_a_tpu_that_may_be_taken_away_is_asked_for_by_a_word_that_means_yes():
    for value, expected in {
        "": False,
        "0": False,
        "no": False,
        "1": True,
        "yes": True,
    }.items():
        assert ("--spot" in shlex.split(shown("create", SPOT=value).stdout)) == expected


TRAINING = """#!/bin/bash
trap 'echo saved; exit 75' TERM
echo "$@"
for ((i = 0; i < 600; i++)); do sleep 0.1; done
"""


@pytest.fixture
def detached(tmp_path):
    """clusters/detached.sh in a checkout.

    Its Python trains until it is told to stop.
    """
    (tmp_path / "clusters").mkdir()
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    script = shutil.copy(CLUSTERS / "detached.sh", tmp_path / "clusters")
    python = tmp_path / ".venv" / "bin" / "python"
    python.write_text(TRAINING)
    python.chmod(0o755)
    yield lambda *words: forked.shell(script, *words)
    if (tmp_path / "training.pid").exists():
        with contextlib.suppress(ProcessLookupError):
            os.kill(int((tmp_path / "training.pid").read_text()), signal.SIGKILL)


def test_a_training_outlives_its_connection_and_stops_when_told_to(detached, tmp_path):
    assert detached("status").stdout == "no training was started here\n"
    assert detached("stop").returncode == 2
    started = detached("start", "experiments.images.cifar", "--config=:a b")
    assert started.returncode == 0, started.stderr
    process = int((tmp_path / "training.pid").read_text())
    assert started.stdout == f"started as process {process}\n"
    # The shell that started it has ended, and it is in a session of its own.
    assert os.getsid(process) != os.getsid(0)
    log = tmp_path / "training.log"
    deadline = time.monotonic() + 30
    while not log.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    said = "-m experiments.images.cifar --config=:a b\n"
    assert detached("status").stdout == f"running as process {process}\n{said}"
    second = detached("start", "experiments.images.cifar")
    assert (second.returncode, second.stderr.count("runs here already")) == (2, 1)
    assert detached("stop").stdout.endswith("ended with code 75\n")
    assert detached("status").stdout == "ended with code 75\nsaved\n"
    # As where another machine's part was told first, which stops all of them.
    again = detached("stop")
    assert (again.returncode, again.stdout) == (0, "ended with code 75\n")
    assert log.read_text() == f"{said}saved\n"
    # It can be started again, and killed without a word.
    assert detached("start", "experiments.images.cifar").returncode == 0
    os.killpg(os.getsid(int((tmp_path / "training.pid").read_text())), signal.SIGKILL)
    deadline = time.monotonic() + 30
    while "killed, or this machine was started anew" not in detached("status").stdout:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_no_code_is_replaced_under_a_training(tmp_path):
    guard = next(c for c in remote_commands(shown("setup")) if "stop it first" in c)
    assert forked.shell("bash", "-c", guard, cwd=tmp_path).returncode == 0
    script = tmp_path / "identity-matters" / "clusters" / "detached.sh"
    script.parent.mkdir(parents=True)
    for said, expected in (("ended with code 75", 0), ("running as process 7", 2)):
        script.write_text(f"#!/bin/bash\necho {said}\necho step 3\n")
        script.chmod(0o755)
        finished = forked.shell("bash", "-c", guard, cwd=tmp_path)
        assert finished.returncode == expected, finished.stderr


def test_another_process_of_the_same_number_is_not_the_training(detached, tmp_path):
    """As after a reboot."""
    assert detached("start", "experiments.images.cifar").returncode == 0
    pid_file = tmp_path / "training.pid"
    os.killpg(os.getsid(int(pid_file.read_text())), signal.SIGKILL)
    with subprocess.Popen(["sleep", "60"]) as other:
        pid_file.write_text(f"{other.pid}\n")
        said = detached("status").stdout
        assert said.startswith("killed, or this machine was started anew")
        assert detached("stop").returncode == 2
        assert other.poll() is None
        assert detached("start", "experiments.images.cifar").returncode == 0
        assert detached("stop").returncode == 0
        assert other.poll() is None
        other.kill()


@pytest.fixture
def slurm(tmp_path):
    """(result, notes) of the job, run as SLURM would.

    Its training exits with `code`.
    """
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    python = tmp_path / ".venv" / "bin" / "python"
    notes = tmp_path / "notes"

    def program(path, body):
        path.write_text(f"#!/bin/bash\n{body}\n")
        path.chmod(0o755)

    run_it = 'while [[ $1 == -* ]]; do shift; done; "$@"'
    program(
        tmp_path / "srun", f'echo "$SRUN_CPUS_PER_TASK" srun "$@" >>{notes}; {run_it}'
    )
    program(tmp_path / "scontrol", f'echo scontrol "$@" >>{notes}')
    variables = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_SUBMIT_DIR": str(tmp_path)}

    def run_job(code, *arguments, **environment):
        notes.write_text("")
        program(python, f"exit {code}")
        environment = {
            **variables,
            "SLURM_JOB_ID": "17",
            "SLURM_CPUS_PER_TASK": "8",
            **environment,
        }
        finished = forked.shell(
            "bash", CLUSTERS / "slurm.sh", *arguments, **environment
        )
        return finished, notes.read_text().splitlines()

    return run_job


@pytest.mark.parametrize("code", [run.INTERRUPTED_CODE, 143, 0, 1, 2, 137])
def test_a_job_that_was_told_to_stop_queues_again_and_no_other(slurm, code):
    finished, notes = slurm(code, "experiments.images.cifar", "--config=:a/b c")
    assert finished.returncode == code
    flags = "--config=:a/b c --distributed --results_dir=results/local"
    assert notes[0].endswith(f"-m experiments.images.cifar {flags}")
    # srun does not take the cores over from sbatch
    assert notes[0].startswith("8 srun ")
    assert notes[1:] == (
        ["scontrol requeue 17"] if code in (run.INTERRUPTED_CODE, 143) else []
    )


def test_a_job_does_not_queue_for_ever_and_says_what_it_needs(slurm):
    finished, notes = slurm(75, "experiments.images.cifar", SLURM_RESTART_COUNT="100")
    assert len(notes) == 1 and "told to stop after 100 restarts" in finished.stderr
    finished, notes = slurm(0)
    assert (finished.returncode, notes) == (2, [])
    assert "name what to train" in finished.stderr
