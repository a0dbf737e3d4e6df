"""The quickest experiment, the report and compare where nothing is as on a laptop.

No home directory and a user without a name; a long TMPDIR; terminals of another
encoding; settings of JAX that change numbers; data and results on other disks, by
symbolic links, on a share that cannot flush directories; a driver that is newer than
this code; an old make; python -OO.
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import pytest

from identity_matters import runs
from tests import forked
from tests.test_make import program

STRANGER = 54321  # a user id without a name or a home directory
RUN = pathlib.Path("landscape") / "hessian_at_origin" / "seed=0"
# A share on which directories cannot be flushed, for every process with this on its
# path.
NO_FLUSH = """
import errno, os, stat
flush = os.fsync
def refuse_directories(descriptor):
    if stat.S_ISDIR(os.fstat(descriptor).st_mode):
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
    flush(descriptor)
os.fsync = refuse_directories
"""
JAX_SETTINGS = {
    "JAX_DEFAULT_PRNG_IMPL": "rbg",
    "JAX_THREEFRY_PARTITIONABLE": "0",
    "JAX_DEFAULT_MATMUL_PRECISION": "bfloat16",
    "JAX_NUMPY_DTYPE_PROMOTION": "strict",
    "JAX_ENABLE_X64": "0",
    "JAX_DEBUG_NANS": "1",
    "JAX_PLATFORMS": "tpu,cuda",  # theory runs on the CPU
}
NEW_DRIVER = """
case "$*" in
  *query-gpu=driver_version*) echo 999.01;;
  *query-gpu=*) echo 'Field is not a valid field to query.'; exit 2;;
  *) echo 'KMD Version: 999.01  CUDA UMD Version: 99.9';;
esac"""


@pytest.fixture
def checkout(tmp_path):
    """A clone with an environment.

    Its data, runs and environment are links to another disk.
    """
    # Only ASCII: where file names are not UTF-8, JAX itself fails on other characters.
    path = tmp_path / 'my check "out" $x'
    for name in (
        "experiments",
        "identity_matters",
        "requirements",
        "Makefile",
        ".gitignore",
    ):
        source = forked.ROOT / name
        copy = shutil.copytree if source.is_dir() else shutil.copy
        path.mkdir(exist_ok=True)
        copy(source, path / name)
    for name in ("setup.cfg", "pyproject.toml"):
        shutil.copy(forked.ROOT / name, path)
    reference = path / "results" / "reference" / RUN
    shutil.copytree(forked.ROOT / "results" / "reference" / RUN, reference)
    for name in ("data", "results/local", ".venv"):
        (tmp_path / "disk" / name).mkdir(parents=True)
        (path / name).symlink_to(tmp_path / "disk" / name)
    program(path / ".venv" / "bin" / "python", f'exec {sys.executable} "$@"')
    git = ("git", "-c", "user.name=x", "-c", "user.email=x@example.org")
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "all"]):
        subprocess.run([*git, *words], cwd=path, check=True)
    (path / ".venv" / ".installed-cuda13").touch()
    return path


def without_user(command: list) -> list:
    """`command` for a user whom the system does not know, if this one may choose."""
    if os.getuid() != 0 or not shutil.which("setpriv"):
        return command
    # It may still read Python, which can be in root's home directory.
    who = f"--reuid={STRANGER}", f"--regid={STRANGER}", "--clear-groups"
    may_read = "--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"
    return ["setpriv", *who, *may_read, *command]


def test_all_at_once(checkout, tmp_path):
    long = tmp_path / ("a" * 94)
    long.mkdir()
    program(tmp_path / "bin" / "nvidia-smi", NEW_DRIVER)
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(NO_FLUSH)
    environment = {
        "PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin",
        "PYTHONPATH": f"{tmp_path / 'site'}:{checkout}",
        "TMPDIR": str(long),
        "LC_ALL": "C",
        "PYTHONIOENCODING": "latin-1",
        "PYTHONUTF8": "0",
        "PYTHONCOERCECLOCALE": "0",
        "PYTHONOPTIMIZE": "2",
        **JAX_SETTINGS,
    }  # no HOME
    for path in (tmp_path, *tmp_path.rglob("*")):
        if os.getuid() == 0:  # git refuses other people's clones
            os.chown(path, STRANGER, STRANGER, follow_symlinks=False)
    for place in tmp_path.parents:  # pytest's own directories are for their user alone
        if pathlib.Path(tempfile.gettempdir()) in place.parents:
            place.chmod(place.stat().st_mode | 0o055)
    said = {}
    for target in ("reproduce-landscape", "report", "compare"):
        command = ["make", ".SHELLFLAGS=-c", target, "VARIANT=hessian_at_origin"]
        said[target] = subprocess.run(
            without_user(command),
            cwd=checkout,
            env=environment,
            capture_output=True,
            encoding="latin-1",
            timeout=280,
            check=False,
        )
        output = said[target].stdout + said[target].stderr
        assert said[target].returncode == 0, output
        assert "Traceback" not in output and "Exception ignored" not in output, output
    labels, expected = (
        runs.read_run(checkout / "results" / place / RUN)
        for place in ("local", "reference")
    )
    assert labels.summary["verdict"] == expected.summary["verdict"]
    assert labels.summary["metrics"] == pytest.approx(
        expected.summary["metrics"], rel=1e-6
    )
    assert labels.environment["dirty"] is False, labels.environment
    assert labels.environment["backend"] == "cpu"
    report = checkout / "results" / "local" / "REPORT.md"
    assert "## Claims" in report.read_text(encoding="utf-8")
    assert "0 contradictions, 0 unreadable" in said["compare"].stdout


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
@pytest.mark.parametrize("where", ["closed", "full"])
@pytest.mark.parametrize("module", ["tests.toy.experiment", "experiments.compare"])
def test_output_that_goes_nowhere(tmp_path, module, stream, where):
    """The run is made all the same.

    Only `compare`, which does nothing but print, may fail without a traceback.
    """
    results = tmp_path / "results"
    forked.run("tests.toy.experiment", f"--results_dir={results}", "--seed=1", ends=0)
    number = {"stdout": 1, "stderr": 2}[stream]
    target = {"closed": f"{number}>&-", "full": f"{number}>/dev/full"}[where]
    words = f'"{sys.executable}" -m {module} --results_dir="{results}"'
    finished = forked.shell("bash", "-c", f"{words} {target}")
    output = finished.stdout + finished.stderr
    assert "Traceback" not in output and "Exception ignored" not in output
    if module == "tests.toy.experiment":
        assert finished.returncode == 0, output
        summary = json.loads(
            (results / "toy" / "plain" / "seed=0" / "summary.json").read_text()
        )
        assert summary["status"] == "done"
    else:
        assert finished.returncode in (0, 1, 2)


def test_help_without_docstrings():
    finished = forked.shell(
        sys.executable, "-m", "experiments.landscape", "--help", PYTHONOPTIMIZE="2"
    )
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.startswith("Theorem 2.2")


def test_links_to_other_disks_are_no_changes(checkout):
    finished = forked.shell("git", "status", "--porcelain", cwd=checkout)
    assert (finished.returncode, finished.stdout) == (0, "")
    assert {"data", ".venv"} <= {
        path.name for path in checkout.iterdir() if path.is_symlink()
    }
