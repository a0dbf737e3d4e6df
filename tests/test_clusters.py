"""clusters/ and its page: syntax, flags that are there, what a job that must stop does."""

import os
import re
import shlex
import subprocess

import pytest
import yaml

import experiments
from experiments import run
from tests import forked

CLUSTERS = forked.ROOT / "clusters"
PAGE = (forked.ROOT / "docs" / "clusters.md").read_text()
BLOCKS = re.findall(r"^```bash\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
COMMANDS = [shlex.split(line) for block in BLOCKS for line in block.splitlines()]


def test_shellcheck_passes_on_every_script():
    listed = subprocess.check_output(["git", "ls-files"], cwd=forked.ROOT, text=True).splitlines()
    files = [forked.ROOT / name for name in listed if (forked.ROOT / name).is_file()]
    scripts = [path for path in files if re.match(rb"#!.*\b(ba)?sh\b", path.read_bytes()[:64])]
    assert {".ci/run", "clusters/tpu.sh", "clusters/slurm.sh"} <= {
        str(path.relative_to(forked.ROOT)) for path in scripts
    }
    path = f"{forked.ROOT / '.venv' / 'bin'}:{os.environ['PATH']}"
    finished = forked.shell("shellcheck", *scripts, PATH=path)
    assert finished.returncode == 0, finished.stdout + finished.stderr


def trained():
    """The trainings of the page and of the manifest: module and flags."""
    found = []
    for words in COMMANDS:
        modules = [i for i, word in enumerate(words) if word.startswith("experiments.")]
        if modules and words[0] != "kubectl":
            found.append(words[modules[0] :])
    jobset = yaml.safe_load((CLUSTERS / "jobset.yaml").read_text())
    (job,) = jobset["spec"]["replicatedJobs"]
    (container,) = job["template"]["spec"]["template"]["spec"]["containers"]
    return [*found, container["args"]]


def test_the_trainings_of_the_page_are_there_and_have_their_flags():
    defined = set()
    for path in sorted((forked.ROOT / "experiments").rglob("*.py")):
        defined |= set(re.findall(r"DEFINE_\w+\(\s*\"(\w+)\"", path.read_text()))
    for module, *flags in trained():
        name = module.split(".")[-1]
        assert experiments.MODULES[name] == module
        given = dict(re.match(r"--([\w.]+)(?:=(.*))?", flag).groups() for flag in flags)
        assert {flag for flag in given if "." not in flag} <= defined | {"config"}
        experiments.find_variants(name, given["config"].removeprefix(":"))


def test_the_manifest_is_one_slice_whose_machines_all_start_anew():
    jobset = yaml.safe_load((CLUSTERS / "jobset.yaml").read_text())
    assert jobset["spec"]["failurePolicy"]["maxRestarts"] > 0
    job = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]
    pod = job["template"]["spec"]
    chips = pod["containers"][0]["resources"]["limits"]["google.com/tpu"]
    across, down = map(int, pod["nodeSelector"]["cloud.google.com/gke-tpu-topology"].split("x"))
    assert job["parallelism"] == job["completions"] == across * down // chips
    # JAX needs the index; a failed machine must fail the Job, or JobSet would not restart it.
    assert (job["completionMode"], job["backoffLimit"]) == ("Indexed", 0)
    assert pod["restartPolicy"] == "Never"


def test_every_step_on_a_tpu_is_shown_with_its_words_quoted():
    tpu = {"TPU_NAME": "t", "ZONE": "z", "PROJECT": "p", "TPU_TYPE": "v4-8", "TPU_VERSION": "v"}
    environment = {**tpu, "DRY_RUN": "1", "BUCKET": "gs://b'; touch x; '"}

    def shown(*arguments, **changes):
        return forked.shell("clusters/tpu.sh", *arguments, **{**environment, **changes})

    for step in ("create", "setup", "delete"):
        finished = shown(step, DATASETS="a; touch x")
        assert finished.returncode == 0, finished.stderr
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
    """Runs the job as SLURM would, with a training that ends with `code`; (result, notes)."""
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
