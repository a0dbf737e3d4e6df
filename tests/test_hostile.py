"""The quickest experiment, the report and compare where nothing is as on a laptop.

HOSTILITIES says in which ways. They come all at once; if that fails, each comes alone,
so that the failure names those that did it. Output that nobody can read, too.
"""

import dataclasses
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection

import pytest

from identity_matters import runs
from tests import forked
from tests.test_make import program

STRANGER = 54321  # a user id without a name or a home directory
RUN = pathlib.Path("landscape") / "hessian_at_origin" / "seed=0"
TARGETS = ("reproduce-landscape", "report", "compare")
CLONED = ("experiments", "identity_matters", "requirements", "Makefile", ".gitignore")
CLONED += ("setup.cfg", "pyproject.toml")
# Directories that users may keep on another disk, with a link in the clone.
MOVABLE = ("data", "results/local", ".venv")


@dataclasses.dataclass
class Machine:
    """A machine with a clone and its environment, at first like any laptop.

    Attributes:
      directory: all that is made for it lies here.
      checkout: the clone.
      environment: environment variables.
      python_path: directories that every Python process imports from, but the clone.
      before_make: words before `make` in a command.
      make_words: words after it.
    """

    directory: pathlib.Path
    checkout: pathlib.Path
    environment: dict[str, str]
    python_path: list[pathlib.Path] = dataclasses.field(default_factory=list)
    before_make: list[str] = dataclasses.field(default_factory=list)
    make_words: list[str] = dataclasses.field(default_factory=list)

    def make(self, target: str) -> subprocess.CompletedProcess:
        words = [*self.before_make, "make", *self.make_words, target]
        places = [*self.python_path, self.checkout]
        return subprocess.run(
            [*words, "VARIANT=hessian_at_origin"],
            cwd=self.checkout,
            env={**self.environment, "PYTHONPATH": ":".join(map(str, places))},
            capture_output=True,
            encoding="latin-1",
            timeout=280,
            check=False,
        )


def laptop(directory: pathlib.Path) -> Machine:
    checkout = directory / "clone"
    checkout.mkdir(parents=True)
    for name in CLONED:
        source = forked.ROOT / name
        copy = shutil.copytree if source.is_dir() else shutil.copy
        copy(source, checkout / name)
    reference = pathlib.Path("results") / "reference" / RUN
    shutil.copytree(forked.ROOT / reference, checkout / reference)
    for name in MOVABLE:
        (checkout / name).mkdir(parents=True)
    program(checkout / ".venv" / "bin" / "python", f'exec {sys.executable} "$@"')
    git = ("git", "-c", "user.name=x", "-c", "user.email=x@example.org")
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "all"]):
        subprocess.run([*git, *words], cwd=checkout, check=True)
    # An environment for each lock that the hardware can ask for.
    for lock in ("cpu", "cuda12", "cuda13", "tpu"):
        (checkout / ".venv" / f".installed-{lock}").touch()
    home = directory / "home"
    home.mkdir()
    environment = {"HOME": str(home), "PATH": "/usr/bin:/bin"}
    return Machine(directory, checkout, environment)


def a_path_of_special_characters(machine: Machine) -> None:
    # Only ASCII: where file names are not UTF-8, JAX itself fails on other characters.
    machine.checkout = machine.checkout.rename(machine.directory / 'my check "out" $x')


def data_and_results_on_another_disk(machine: Machine) -> None:
    disk = machine.directory / "disk"
    for name in MOVABLE:
        (disk / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.move(machine.checkout / name, disk / name)
        (machine.checkout / name).symlink_to(disk / name)


def a_long_directory_of_temporary_files(machine: Machine) -> None:
    place = machine.directory / ("a" * 94)
    place.mkdir()
    machine.environment["TMPDIR"] = str(place)


def a_terminal_of_another_encoding(machine: Machine) -> None:
    machine.environment |= {
        "LC_ALL": "C",
        "PYTHONIOENCODING": "latin-1",
        "PYTHONUTF8": "0",
        "PYTHONCOERCECLOCALE": "0",
    }


def settings_of_jax_that_change_numbers(machine: Machine) -> None:
    machine.environment |= {
        "JAX_DEFAULT_PRNG_IMPL": "rbg",
        "JAX_THREEFRY_PARTITIONABLE": "0",
        "JAX_DEFAULT_MATMUL_PRECISION": "bfloat16",
        "JAX_NUMPY_DTYPE_PROMOTION": "strict",
        "JAX_ENABLE_X64": "0",
        "JAX_DEBUG_NANS": "1",
        "JAX_PLATFORMS": "tpu,cuda",  # theory runs on the CPU
    }


# For every process that has it on its path.
NO_FLUSH = """
import errno, os, stat
flush = os.fsync
def refuse_directories(descriptor):
    if stat.S_ISDIR(os.fstat(descriptor).st_mode):
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
    flush(descriptor)
os.fsync = refuse_directories
"""


def a_share_that_cannot_flush_directories(machine: Machine) -> None:
    site = machine.directory / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(NO_FLUSH)
    machine.python_path.append(site)


NEW_DRIVER = """
case "$*" in
  *query-gpu=driver_version*) echo 999.01;;
  *query-gpu=*) echo 'Field is not a valid field to query.'; exit 2;;
  *) echo 'KMD Version: 999.01  CUDA UMD Version: 99.9';;
esac"""


def a_driver_newer_than_this_code(machine: Machine) -> None:
    programs = machine.directory / "bin"
    program(programs / "nvidia-smi", NEW_DRIVER)
    machine.environment["PATH"] = f"{programs}:{machine.environment['PATH']}"


def an_old_make(machine: Machine) -> None:
    machine.make_words.append(".SHELLFLAGS=-c")


def python_without_docstrings_and_asserts(machine: Machine) -> None:
    machine.environment["PYTHONOPTIMIZE"] = "2"
    # No other Python has compiled the libraries at this level. Without a directory that
    # they share, each process would compile them again.
    machine.environment["PYTHONPYCACHEPREFIX"] = str(machine.directory / "compiled")


def no_home_directory(machine: Machine) -> None:
    del machine.environment["HOME"]


def a_user_without_a_name(machine: Machine) -> None:
    """Only root may choose another user."""
    if os.getuid() != 0 or not shutil.which("setpriv"):
        return
    for path in (machine.directory, *machine.directory.rglob("*")):
        os.chown(path, STRANGER, STRANGER, follow_symlinks=False)
    for place in machine.directory.parents:  # at first for their user alone
        if pathlib.Path(tempfile.gettempdir()) in place.parents:
            place.chmod(place.stat().st_mode | 0o055)
    # The user may still read Python, which can be in root's home directory.
    who = (f"--reuid={STRANGER}", f"--regid={STRANGER}", "--clear-groups")
    may_read = ("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search")
    machine.before_make += ["setpriv", *who, *may_read]


HOSTILITIES: dict[str, Callable[[Machine], None]] = {
    change.__name__.replace("_", " "): change
    for change in (
        a_path_of_special_characters,
        data_and_results_on_another_disk,
        a_long_directory_of_temporary_files,
        a_terminal_of_another_encoding,
        settings_of_jax_that_change_numbers,
        a_share_that_cannot_flush_directories,
        a_driver_newer_than_this_code,
        an_old_make,
        python_without_docstrings_and_asserts,
        no_home_directory,
        a_user_without_a_name,  # the last, to own what the others make
    )
}


def run_and_compare(directory: pathlib.Path, hostilities: Collection[str]) -> None:
    """Asserts that the experiment, the report and compare do what they do elsewhere."""
    machine = laptop(directory)
    for name in hostilities:
        HOSTILITIES[name](machine)
    said = {}
    for target in TARGETS:
        finished = machine.make(target)
        output = finished.stdout + finished.stderr
        assert finished.returncode == 0, f"make {target}: {output}"
        assert "Traceback" not in output, f"make {target}: {output}"
        assert "Exception ignored" not in output, f"make {target}: {output}"
        said[target] = finished.stdout
    results = machine.checkout / "results"
    made = runs.read_run(results / "local" / RUN)
    expected = runs.read_run(results / "reference" / RUN)
    assert made.summary["verdict"] == expected.summary["verdict"]
    metrics = pytest.approx(expected.summary["metrics"], rel=1e-6)
    assert made.summary["metrics"] == metrics
    assert made.environment["dirty"] is False, made.environment
    assert made.environment["backend"] == "cpu"
    report = results / "local" / "REPORT.md"
    assert "## Claims" in report.read_text(encoding="utf-8")
    assert "0 contradictions, 0 unreadable" in said["compare"]


def culprits(every: Collection[str], fails: Callable[[Collection[str]], bool]) -> str:
    """Which of `every` hostility makes it fail, given that all of them together do."""
    if fails(()):
        return "it fails without any of them"
    alone = [name for name in every if fails((name,))]
    if alone:
        return f"each of these alone: {', '.join(alone)}"
    needed = [
        name for name in every if not fails([kept for kept in every if kept != name])
    ]
    return f"none of them alone; it takes these: {', '.join(needed) or 'several'}"


@pytest.fixture
def place():
    """A directory of our own.

    `a_user_without_a_name` opens the directories above the machine to others, and every
    session of pytest that begins closes that of all sessions again.
    """
    with tempfile.TemporaryDirectory() as directory:
        yield pathlib.Path(directory)


def test_all_at_once(place):
    def fails(hostilities: Collection[str]) -> bool:
        directory = pathlib.Path(tempfile.mkdtemp(dir=place)) / "machine"
        try:
            run_and_compare(directory, hostilities)
        except AssertionError:
            return True
        return False

    try:
        run_and_compare(place / "machine", HOSTILITIES)
    except AssertionError as failure:
        pytest.fail(f"{culprits(HOSTILITIES, fails)}\n{failure}")


@pytest.mark.parametrize(
    ("fails", "said"),
    [
        (lambda chosen: True, "it fails without any of them"),
        (lambda chosen: "b" in chosen, "each of these alone: b"),
        (lambda chosen: {"a", "c"} & {*chosen}, "each of these alone: a, c"),
        (lambda chosen: {"a", "c"} <= {*chosen}, "it takes these: a, c"),
        (lambda chosen: len(chosen) > 1, "it takes these: several"),
    ],
)
def test_a_failure_names_the_hostilities_that_did_it(fails, said):
    assert culprits(("a", "b", "c"), fails).endswith(said)


@pytest.fixture(scope="module")
def toy_results(tmp_path_factory):
    """The results of one run, which `compare` has something to say about."""
    results = tmp_path_factory.mktemp("results")
    forked.run("tests.toy.experiment", f"--results_dir={results}", ends=0)
    return results


def run_into(target: str, module: str, results: pathlib.Path):
    """Runs a module whose output goes where the redirection `target` says."""
    words = f'"{sys.executable}" -m {module} --results_dir="{results}"'
    finished = forked.shell("bash", "-c", f"{words} {target}")
    output = finished.stdout + finished.stderr
    assert "Traceback" not in output and "Exception ignored" not in output
    return finished


NOWHERE = pytest.mark.parametrize(
    "target", ["1>&-", "2>&-", "1>/dev/full", "2>/dev/full"]
)


@NOWHERE
def test_a_run_whose_output_goes_nowhere_is_made_all_the_same(tmp_path, target):
    finished = run_into(target, "tests.toy.experiment", tmp_path)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    summary = tmp_path / "toy" / "plain" / "seed=0" / "summary.json"
    assert json.loads(summary.read_text())["status"] == "done"


@NOWHERE
def test_compare_which_only_prints_fails_without_a_traceback(toy_results, target):
    finished = run_into(target, "experiments.compare", toy_results)
    assert finished.returncode in (0, 1, 2)


def test_help_without_docstrings():
    finished = forked.shell(
        sys.executable, "-m", "experiments.landscape", "--help", PYTHONOPTIMIZE="2"
    )
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.startswith("Theorem 2.2")


def test_links_to_other_disks_are_no_changes(tmp_path):
    machine = laptop(tmp_path)
    data_and_results_on_another_disk(machine)
    finished = forked.shell("git", "status", "--porcelain", cwd=machine.checkout)
    assert (finished.returncode, finished.stdout) == (0, "")
    assert {"data", ".venv"} <= {
        path.name for path in machine.checkout.iterdir() if path.is_symlink()
    }
