"""clusters/offline.sh, from pack to promote, without network and git's history."""

import hashlib
import os
import pathlib
import shutil
import subprocess
import sys
import zipfile

import pytest

from identity_matters import runs
from tests import forked

RUN = pathlib.Path("landscape") / "hessian_at_origin" / "seed=0"
# Another Python can be named that has only jax, flax, optax and orbax-checkpoint, of
# any version. Packing then downloads what it lacks.
PYTHON = os.environ.get("OFFLINE_PYTHON", sys.executable)
PACKAGES = (
    "" if sys.executable == PYTHON else "latex2mathml ml-collections threadpoolctl tqdm"
)


def run(*words, cwd, **environment) -> subprocess.CompletedProcess:
    """A command with none of the variables that lead to this checkout."""
    without_path = {
        name: value for name, value in os.environ.items() if name != "PYTHONPATH"
    }
    return subprocess.run(
        [*map(str, words)],
        cwd=cwd,
        env={**without_path, "PYTHON": PYTHON, **environment},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


@pytest.fixture
def clone(tmp_path):
    """A clone without changes, with prepared data and a package of its own."""
    path = tmp_path / "clone"
    path.mkdir()
    for name in ("clusters", "experiments", "identity_matters", "requirements"):
        shutil.copytree(
            forked.ROOT / name,
            path / name,
            ignore=shutil.ignore_patterns("__pycache__"),
        )
    for name in (".gitignore", "Makefile", "setup.cfg", "pyproject.toml"):
        shutil.copy(forked.ROOT / name, path)
    prepared = path / "data" / "arrays" / "images" / "test"
    prepared.mkdir(parents=True)
    (prepared / "manifest.json").write_text("{}")
    (prepared / "images.npy").write_bytes(os.urandom(300_000))
    (tmp_path / "index").mkdir()
    wheel = tmp_path / "index" / "nowhere_else-1.0-py3-none-any.whl"
    write_wheel(wheel)
    with open(path / "requirements" / "cpu.txt", "a") as lock:
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        lock.write(f"nowhere-else==1.0 \\\n    --hash=sha256:{digest}\n")
    git = ("git", "-c", "user.name=x", "-c", "user.email=x@example.org")
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "all"]):
        subprocess.run([*git, *words], cwd=path, check=True)
    return path


def write_wheel(path: pathlib.Path) -> None:
    """A package with one empty module; no two of them have the same sum."""
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr("nowhere_else.py", "")
        information = "Metadata-Version: 2.1\nName: nowhere-else\nVersion: 1.0\n"
        wheel.writestr("nowhere_else-1.0.dist-info/METADATA", information)
        wheel.writestr("nowhere_else-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\n")
        wheel.writestr("nowhere_else-1.0.dist-info/RECORD", "")
        wheel.comment = os.urandom(8)


def begin_training(results_dir: pathlib.Path) -> pathlib.Path:
    """A run of two trainings, of which the second is under way; returns its path."""
    begun = runs.RunDir.create(
        results_dir, experiment="toy", variant="plain", seed=0, config={}
    )
    begun.append({"cell": 0, "kind": "result"})
    for step in (0, 5):
        begun.append({"cell": 1, "kind": "train", "step": step})
    (begun.path / "checkpoints").mkdir()
    (begun.path / "checkpoints" / "5").write_bytes(os.urandom(1000))
    begun.finish("interrupted")
    return pathlib.Path(begun.path)


def offline(*words) -> list:
    """`words` without a network, if this user may take it away."""
    alone = ["unshare", "--net"]
    may = shutil.which("unshare") and run(*alone, "true", cwd="/").returncode == 0
    return [*alone, *words] if may else list(words)


def test_from_pack_to_promote(clone, tmp_path):
    packed = tmp_path / "packed"
    packed.mkdir()
    index = {"PIP_FIND_LINKS": str(tmp_path / "index"), "PYTHON": sys.executable}
    if not PACKAGES:
        index["PIP_NO_INDEX"] = "1"
    if run(sys.executable, "-m", "pip", "--version", cwd="/").returncode:
        pytest.skip("this Python has no pip")
    settings = {
        "DATASETS": "images",
        "PACKAGES": f"nowhere-else {PACKAGES}",
        "PART_SIZE": "200k",
    }
    script = clone / "clusters" / "offline.sh"
    (clone / "setup.cfg").write_text("changed")
    refused = run(script, "pack", packed, cwd=tmp_path, **settings, **index)
    assert (refused.returncode, list(packed.iterdir())) == (2, [])
    assert "is not a clean clone" in refused.stderr
    shutil.copy(forked.ROOT / "setup.cfg", clone)
    (wheel,) = (tmp_path / "index").iterdir()
    in_lock = wheel.read_bytes()
    write_wheel(wheel)
    refused = run(script, "pack", packed, cwd=tmp_path, **settings, **index)
    assert (refused.returncode, list(packed.iterdir())) == (2, [])
    assert "DO NOT MATCH THE HASHES" in refused.stderr
    wheel.write_bytes(in_lock)
    done = run(script, "pack", "packed", cwd=tmp_path, **settings, **index)
    assert done.returncode == 0, done.stderr
    parts = sorted(packed.glob("part.*"))
    assert len(parts) > 2 and all(part.stat().st_size <= 200 * 1024 for part in parts)
    # The clone is out of reach from here on; parts come one by one, and one of them
    # damaged.
    clone.rename(tmp_path / "away")
    there = tmp_path / "there"
    there.mkdir()
    for name in ("offline.sh", "parts.sha256"):
        shutil.copy(packed / name, there)
    receive = offline(there / "offline.sh", "receive", "copy")
    for part in parts:
        assert run(*receive, cwd=tmp_path).returncode == 3
        shutil.copy(part, there)
    content = bytearray((there / parts[1].name).read_bytes())
    content[100] ^= 1
    (there / parts[1].name).write_bytes(content)
    damaged = run(*receive, cwd=tmp_path)
    assert damaged.returncode == 3
    assert damaged.stderr.endswith(
        f"parts these are missing or damaged: {parts[1].name}\n"
    )
    shutil.copy(parts[1], there)
    done = run(*receive, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    copy = tmp_path / "copy"
    assert not (copy / ".git").exists()
    assert (copy / ".venv-offline" / "packages" / "nowhere_else.py").exists()
    assert (
        copy / "data" / "arrays" / "images" / "test" / "images.npy"
    ).stat().st_size == 300_000

    command = ("experiments.landscape", "--config=:hessian_at_origin")
    in_time = copy / "clusters" / "offline.sh"
    # all for saving
    assert run(in_time, "run", "60", *command, cwd=tmp_path).returncode == 2
    short = run(
        *offline(in_time, "run", "2", *command), cwd=tmp_path, GRACE_SECONDS="1"
    )
    assert short.returncode == 75 and "the same command resumes" in short.stderr
    done = run(*offline(in_time, "run", "270", *command), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    under_way = begin_training(copy / "results" / "local")
    done = run(in_time, "collect", "records.tar.gz", cwd=tmp_path)
    assert done.returncode == 0, done.stderr

    (tmp_path / "away").rename(clone)
    assert run("tar", "-xzf", tmp_path / "records.tar.gz", cwd=clone).returncode == 0
    # It goes on there, where its checkpoints are not. Here it has kept all.
    assert len(runs.read_run(under_way).records) == 3
    collected = clone / under_way.relative_to(copy)
    assert runs.read_run(collected).records == [{"cell": 0, "kind": "result"}]
    assert not (collected / "checkpoints").exists()
    place = pathlib.Path("results") / "local" / RUN
    done = run(sys.executable, "-m", "experiments.promote", place, cwd=clone)
    assert done.returncode == 0, done.stderr
    promoted = runs.read_run(clone / "results" / "reference" / RUN)
    head = run("git", "rev-parse", "HEAD", cwd=clone).stdout.strip()
    assert (promoted.environment["commit"], promoted.environment["dirty"]) == (
        head,
        False,
    )
