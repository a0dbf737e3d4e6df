"""What runs on the machines of a Cloud TPU: with fake gcloud, metadata and training, it is run."""

import contextlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

import pytest

from tests import fake_gcloud, gcloud_grammar, toy_resumable

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUCKET = "gs://bucket/tpu/results"
ALL_RECORDS = [str(step) for step in range(toy_resumable.STEPS)]


class Machine:
    """A machine of a TPU: a home directory, a checkout and the programs that it finds."""

    def __init__(self, directory: pathlib.Path, number: int = 0, endpoints: str = "a:b:10.0.0.1"):
        self.directory = directory
        self.environment = fake_gcloud.install(directory)
        self.environment |= {
            "HOME": str(directory / "home"),
            "SYNC_SECONDS": "0",
            "POLL_SECONDS": "0.05",
            "MOUNT_SECONDS": "1",
        }
        self.add_program(
            "curl",
            f'case "$*" in *agent-worker-number) echo {number} ;; *) echo {endpoints} ;; esac',
        )
        self.runs = directory / "home" / "identity-matters-run"
        self.bucket = directory / "buckets" / "bucket" / "tpu" / "results"
        self.renew()

    def renew(self) -> None:
        """A machine as it is given to us: nothing on its disk but the checkout."""
        shutil.rmtree(self.directory / "home", ignore_errors=True)
        checkout = self.directory / "home" / "identity-matters"
        (checkout / "clusters").mkdir(parents=True)
        shutil.copy(ROOT / "clusters" / "tpu_worker.sh", checkout / "clusters")
        (checkout / ".venv" / "bin").mkdir(parents=True)
        python = checkout / ".venv" / "bin" / "python"
        python.write_text(f'#!/bin/sh\nexec {sys.executable} -SE {toy_resumable.__file__} "$@"\n')
        python.chmod(0o755)
        self.worker = checkout / "clusters" / "tpu_worker.sh"

    def add_program(self, name: str, body: str) -> None:
        program = self.directory / "bin" / name
        program.write_text(f"#!/bin/bash\n{body}\n")
        program.chmod(0o755)

    def call(self, *arguments: str):
        return subprocess.run(
            [str(self.worker), *arguments],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def run(self):
        """What `make tpu-run` does on one machine; the result of `follow`."""
        for step in (("pull", BUCKET), ("start", BUCKET, "toy")):
            finished = self.call(*step)
            assert finished.returncode == 0, finished.stderr
        return self.call("follow")

    def calls(self) -> list[list[str]]:
        file = self.directory / "calls"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def pid(self) -> int:
        return int((self.runs / "pid").read_text())

    def kill(self) -> None:
        """Everything that the training started is gone, and so is the disk."""
        os.killpg(self.pid(), signal.SIGKILL)
        self.renew()


@pytest.fixture
def machine(tmp_path):
    machine = Machine(tmp_path)
    yield machine
    if (machine.runs / "pid").exists():
        with contextlib.suppress(ProcessLookupError):
            os.killpg(machine.pid(), signal.SIGKILL)


def wait_for(condition, seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


def records_in(results: pathlib.Path) -> list[str]:
    return (results / "toy" / "seed=0" / "metrics.jsonl").read_text().split()


def test_a_training_ends_with_its_results_in_the_bucket(machine):
    followed = machine.run()
    assert followed.returncode == 0, followed.stdout + followed.stderr
    assert "from step 0 on" in followed.stdout
    assert records_in(machine.bucket) == ALL_RECORDS
    here = machine.runs / "results"
    names = [sorted(str(p.relative_to(d)) for d in [top] for p in d.rglob("*") if p.is_file())
             for top in (here, machine.bucket)]  # fmt: skip
    assert names[0] == names[1]
    assert all(gcloud_grammar.check(words) for words in machine.calls())


# The bucket's copy breaks off at the first, second or third of the commands that make it, at once
# or after some whole copies; 0 is never.
@pytest.mark.parametrize("copies", [0, 4, 5, 6])
def test_what_a_machine_leaves_in_the_bucket_can_be_taken_up(machine, copies):
    assert machine.call("pull", BUCKET).returncode == 0
    if copies:
        (machine.directory / "fail").write_text(f"snapshot\n{copies}\n")
    assert machine.call("start", BUCKET, "toy").returncode == 0
    records = machine.runs / "results" / "toy" / "seed=0" / "metrics.jsonl"
    wait_for(lambda: records.exists() and len(records.read_text().split()) > 40)
    machine.kill()
    (machine.directory / "fail").unlink(missing_ok=True)
    followed = machine.run()
    assert followed.returncode == 0, followed.stdout + followed.stderr
    assert records_in(machine.bucket) == ALL_RECORDS
    if not copies:
        assert "from step 0 on" not in followed.stdout


def test_a_training_that_is_told_to_stop_saves_says_so_and_goes_on(machine):
    machine.call("pull", BUCKET)
    machine.call("start", BUCKET, "toy")
    wait_for((machine.runs / "results" / "toy" / "seed=0" / "metrics.jsonl").exists)
    os.kill(machine.pid(), signal.SIGTERM)
    followed = machine.call("follow")
    assert followed.returncode == 75
    assert "make tpu-run takes it up" in followed.stderr
    saved = records_in(machine.bucket)
    assert saved == ALL_RECORDS[: len(saved)]
    followed = machine.run()
    assert followed.returncode == 0
    assert f"from step {len(saved)} on" in followed.stdout
    assert records_in(machine.bucket) == ALL_RECORDS


def test_a_training_that_goes_on_is_not_started_twice(machine):
    machine.call("start", BUCKET, "toy")
    pid = machine.pid()
    again = machine.call("start", BUCKET, "toy")
    assert (again.returncode, machine.pid()) == (0, pid)
    assert "goes on here already" in again.stdout


def test_a_machine_that_was_killed_is_not_waited_for(machine):
    machine.call("start", BUCKET, "toy")
    os.killpg(machine.pid(), signal.SIGKILL)
    followed = machine.call("follow")
    assert followed.returncode == 1
    assert "the training was killed" in followed.stderr


def test_a_training_does_not_start_from_nothing_where_the_bucket_cannot_be_used(machine):
    for part in ("storage cp", "storage rsync"):
        (machine.directory / "fail").write_text(f"{part}\n1\n")
        assert machine.call("pull", BUCKET).returncode != 0
    (machine.directory / "fail").unlink()
    assert machine.call("pull", BUCKET).returncode == 0
    count = len(machine.calls())
    # The disk is ahead of the bucket from now on.
    assert machine.call("pull", BUCKET).returncode == 0
    assert len(machine.calls()) == count


def test_results_that_cannot_be_copied_are_no_success(machine):
    machine.call("pull", BUCKET)
    (machine.directory / "fail").write_text("rsync\n1\n")
    machine.call("start", BUCKET, "toy")
    followed = machine.call("follow")
    assert followed.returncode == 1
    assert f"the newest results are not in {BUCKET}" in followed.stdout


SEVERAL = "x:1:10.0.0.1,y:2:10.0.0.2,z:3:10.0.0.3"


def test_the_other_machines_train_and_copy_nothing(tmp_path):
    machine = Machine(tmp_path, number=2, endpoints=SEVERAL)
    machine.add_program("mountpoint", "exit 1")
    refused = machine.call("start", BUCKET, "toy")
    assert refused.returncode == 1
    assert "is not that of machine 0; make tpu-setup mounts it" in refused.stderr
    machine.add_program("mountpoint", "exit 0")
    assert machine.call("start", BUCKET, "toy").returncode == 0
    assert machine.call("follow").returncode == 0
    assert machine.calls() == []


def set_up(machine, data_from=""):
    """Runs `setup` with programs that note their calls; those calls."""
    notes = machine.directory / "notes"
    for name in ("uv", "make", "exportfs", "apt-get"):
        machine.add_program(name, f'echo {name} "$*" >>{notes}')
    machine.add_program("sudo", f'[ "$1" = tee ] && cat >>{notes} || "$@"')
    machine.add_program("dpkg", "exit 1")
    finished = machine.call("setup", "cifar10", data_from)
    return finished, notes.read_text() if notes.exists() else ""


def test_setup_of_one_machine(tmp_path):
    finished, notes = set_up(Machine(tmp_path))
    assert finished.returncode == 0, finished.stderr
    assert notes.splitlines() == [
        "make setup ACCEL=tpu PYTHON=3.12",
        "make data PYTHON=3.12 DATASETS=cifar10",
    ]


def test_data_can_come_from_a_bucket(tmp_path):
    machine = Machine(tmp_path)
    (tmp_path / "buckets" / "bucket" / "data" / "arrays").mkdir(parents=True)
    (tmp_path / "buckets" / "bucket" / "data" / "arrays" / "one").write_text("1")
    finished, notes = set_up(machine, "gs://bucket/data")
    assert finished.returncode == 0, finished.stderr
    assert "make data" not in notes
    assert (tmp_path / "home" / "identity-matters" / "data" / "arrays" / "one").exists()


def test_machine_0_lends_its_results_to_the_others(tmp_path):
    finished, notes = set_up(Machine(tmp_path, endpoints=SEVERAL))
    assert finished.returncode == 0, finished.stderr
    exports = [line for line in notes.splitlines() if line.startswith("/")]
    results = tmp_path / "home" / "identity-matters-run" / "results"
    owner = f"all_squash,anonuid={os.getuid()},anongid={os.getgid()}"
    assert exports == [
        f"{results} {address}(rw,sync,no_subtree_check,{owner})"
        for address in ("10.0.0.2", "10.0.0.3")
    ]
    assert "exportfs -ra" in notes


def test_the_others_mount_them_and_give_up_in_the_end(tmp_path):
    machine = Machine(tmp_path, number=1, endpoints=SEVERAL)
    machine.add_program("mountpoint", "exit 1")
    machine.add_program("mount", f'echo "$*" >>{tmp_path}/mounts')
    results = machine.runs / "results"
    finished, _ = set_up(machine)
    assert finished.returncode == 0, finished.stderr
    options = "vers=4.2,hard,noac,lookupcache=none"
    assert (
        tmp_path / "mounts"
    ).read_text() == f"-t nfs -o {options} 10.0.0.1:{results} {results}\n"
    machine.add_program("mount", "exit 1")
    finished, _ = set_up(machine)
    assert finished.returncode == 1
    assert f"cannot mount 10.0.0.1:{results} after 1 s" in finished.stderr
