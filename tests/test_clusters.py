"""clusters/ and its page: their flags exist, and a job that is told to stop queues again."""

import re
import shlex

import pytest
import yaml

import experiments
from experiments import run
from tests import forked

CLUSTERS = forked.ROOT / "clusters"
JOBSET = yaml.safe_load((CLUSTERS / "jobset.yaml").read_text())["spec"]
JOB = JOBSET["replicatedJobs"][0]["template"]["spec"]
POD = JOB["template"]["spec"]


def test_the_trainings_of_the_page_and_the_manifest_are_there_and_have_their_flags():
    page = (forked.ROOT / "docs" / "clusters.md").read_text()
    shown = re.findall(r"^.*(experiments\.images\.\w+ --.*)$", page, re.MULTILINE)
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
    across, down = map(int, POD["nodeSelector"]["cloud.google.com/gke-tpu-topology"].split("x"))
    assert JOB["parallelism"] == JOB["completions"] == across * down // chips
    # JAX needs the index; a failed machine must fail the Job, or JobSet would not restart it.
    assert (JOB["completionMode"], JOB["backoffLimit"]) == ("Indexed", 0)
    assert POD["restartPolicy"] == "Never"


def test_every_step_on_a_tpu_is_shown_with_its_words_quoted():
    tpu = {"TPU_NAME": "t", "ZONE": "z", "PROJECT": "p", "TPU_TYPE": "v4-8", "TPU_VERSION": "v"}
    environment = {**tpu, "DRY_RUN": "1", "BUCKET": "gs://b'; touch x; '"}

    def shown(*arguments, **changes):
        return forked.shell("clusters/tpu.sh", *arguments, **{**environment, **changes})

    for step in ("create", "setup", "delete"):
        finished = shown(step, DATASETS="a; touch x")
        assert finished.returncode == 0, finished.stderr
        assert step != "setup" or r"DATASETS=a\;\ touch\ x" in shlex.split(finished.stdout)[-3]
    finished = shown("run", "experiments.images.cifar", "--config=:a b")
    assert finished.returncode == 0, finished.stderr
    (command,) = [w for w in shlex.split(finished.stdout) if w.startswith("--command=")]
    words = shlex.split(command.removeprefix("--command="))
    flags = ["--config=:a b", "--distributed", "--results_dir=gs://b'; touch x; '/results"]
    assert words[-4:] == ["experiments.images.cifar", *flags]
    assert shown("run", BUCKET="b").returncode == 2
    assert shown("walk").returncode == 2
    assert "TPU_TYPE: v5litepod-8, say" in shown("create", TPU_TYPE="").stderr


@pytest.fixture
def slurm(tmp_path):
    """(result, notes) of the job, run as SLURM would with a training that exits with `code`."""
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    python, notes = tmp_path / ".venv" / "bin" / "python", tmp_path / "notes"

    def program(path, body):
        path.write_text(f"#!/bin/bash\n{body}\n")
        path.chmod(0o755)

    program(
        tmp_path / "srun", f'echo srun "$@" >>{notes}; while [[ $1 == -* ]]; do shift; done; "$@"'
    )
    program(tmp_path / "scontrol", f'echo scontrol "$@" >>{notes}')
    own = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_SUBMIT_DIR": str(tmp_path)}

    def run_job(code, *arguments, **environment):
        notes.write_text("")
        program(python, f"exit {code}")
        environment = {**own, "SLURM_JOB_ID": "17", **environment}
        finished = forked.shell("bash", CLUSTERS / "slurm.sh", *arguments, **environment)
        return finished, notes.read_text().splitlines()

    return run_job


@pytest.mark.parametrize("code", [run.INTERRUPTED_CODE, 143, 0, 1, 2, 137])
def test_a_job_that_was_told_to_stop_queues_again_and_no_other(slurm, code):
    finished, notes = slurm(code, "experiments.images.cifar", "--config=:a/b c")
    assert finished.returncode == code
    flags = "--config=:a/b c --distributed --results_dir=results/local"
    assert notes[0].endswith(f"-m experiments.images.cifar {flags}")
    assert notes[1:] == (["scontrol requeue 17"] if code in (run.INTERRUPTED_CODE, 143) else [])


def test_a_job_does_not_queue_for_ever_and_says_what_it_needs(slurm):
    finished, notes = slurm(75, "experiments.images.cifar", SLURM_RESTART_COUNT="100")
    assert len(notes) == 1 and "told to stop after 100 restarts" in finished.stderr
    finished, notes = slurm(0)
    assert (finished.returncode, notes) == (2, [])
    assert "name what to train" in finished.stderr
