"""The Makefile: what it runs, installs, overwrites and deletes, and for which hardware.

It executes no variable. All in a stub of the checkout, whose environments hold programs
that note what they are called with. MAKE_UNDER_TEST names another GNU make: 3.81, say,
which every Mac has.
"""

import os
import pathlib
import re
import shutil
import sys

import pytest

from tests import forked

MAKE = shutil.which(os.environ.get("MAKE_UNDER_TEST", "make"))
MAKEFILE = (forked.ROOT / "Makefile").read_text(encoding="utf-8")
# The user's variables: those that are set only if nobody has set them.
VARIABLES = sorted({*re.findall(r"^(\w+) \?=", MAKEFILE, re.MULTILINE), "PYTHON"})
# Variables that are not for users: ours, and those of make and of other programs.
OTHERS = (
    "MODULE",
    "VENV",
    "REPRODUCE",
    "COMPILE",
    "COMPILE_LEAN",
    "RESOLVE",
    "TORCH",
    "UV",
    "NAMED",
    "LOCK",
    "SHELL",
    "MAKE",
    "EDITOR",
)
# most targets refuse wrong values of these at once
ALONE = ("ACCEL", "OVERWRITE", "PYTHON")
TARGETS = re.findall(r"^([a-z][\w-]*)[\w -]*:.*## ", MAKEFILE, re.MULTILINE)
LOCKS = sorted((forked.ROOT / "requirements").glob("*.txt"))
EXECUTED = "executed"
PAYLOADS = {
    "substitution": f"$(shell touch {EXECUTED})`touch {EXECUTED}`$$(touch {EXECUTED})",
    "single quote": f"'; touch {EXECUTED}; '",
    "double quote": f'"; touch {EXECUTED}; "',
    "end": f"x;touch {EXECUTED};\ntouch {EXECUTED}\n",
}


def program(path: pathlib.Path, body: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/bash\n{body}\n")
    path.chmod(0o755)


class Checkout:
    """The Makefile, environments of stubs, and a log of their calls, in a directory."""

    def __init__(self, path: pathlib.Path):
        self.path = path
        for name in ("Makefile", "setup.cfg", "pyproject.toml"):
            shutil.copy(forked.ROOT / name, path)
        shutil.copytree(forked.ROOT / "requirements", path / "requirements")
        for name in ("benchmarks", "experiments/images", "identity_matters", "tests"):
            (path / name).mkdir(parents=True)
        for name in ("deep_mlp", "landscape", "images/cifar"):
            (path / "experiments" / f"{name}.py").write_text("EXPERIMENT = None\n")
        self.calls = path / "calls"
        note = (
            f'printf "[%s] " "$(basename "$0")" "$@" >>{self.calls}; echo'
            f" >>{self.calls}"
        )
        for environment in (
            "",
            "-prepare",
            "-torch",
            "-tpu",
            "-cuda12",
            "-docs",
            "-uv",
        ):
            for name in ("python", "ruff", "mypy", "shellcheck", "uv"):
                program(path / f".venv{environment}" / "bin" / name, note)
        for name in ("", "-cpu", "-cpu-dev"):
            (path / ".venv" / f".installed{name}").touch()
        for name in ("prepare", "torch", "tpu", "cuda12", "docs"):
            (path / f".venv-{name}" / ".installed").touch()
        # No make target reaches the network: uv is a stub, too.
        program(path / "bin" / "uv", note)
        # make looks for a Python, and elsewhere may find a script that does so, too.
        (path / "bin" / "python3").symlink_to(sys.executable)

    def make(self, *words: str, **environment: str):
        """Runs make; the calls of the stubs since the last run are in `notes`."""
        self.calls.write_text("")
        defaults = {
            "PATH": f"{self.path}/bin:{os.environ['PATH']}",
            **dict.fromkeys(("MAKEFLAGS", "MAKELEVEL", "MFLAGS"), ""),
        }
        # `make test` runs these tests with its own variables in the environment.
        unset = [f"-u{name}" for name in VARIABLES if name not in environment]
        command = ("env", *unset, MAKE, "--no-print-directory", *words)
        return forked.shell(*command, cwd=self.path, **{**defaults, **environment})

    @property
    def notes(self) -> list[str]:
        return self.calls.read_text().splitlines()


@pytest.fixture
def checkout(tmp_path):
    (tmp_path / "checkout").mkdir()
    return Checkout(tmp_path / "checkout")


@pytest.mark.parametrize("payload", PAYLOADS)
@pytest.mark.parametrize("names", ["together", *ALONE, "others"])
def test_no_variable_is_executed_whoever_sets_it(checkout, payload, names):
    """Every target with every variable.

    They are given on the command line and in the environment.
    """
    together = [name for name in VARIABLES if name not in ALONE]
    chosen = {"together": together, "others": OTHERS}.get(names, [names])
    values = dict.fromkeys(chosen, PAYLOADS[payload])
    goals = [target for target in TARGETS if target != "clean"]
    goals += ["--keep-going", "reproduce-landscape", "reproduce-deep-mlp"]
    fixed = [] if names == "ACCEL" else ["ACCEL=cpu"]
    for given, environment in (
        ([f"{name}={value}" for name, value in values.items()], {}),
        ([], {} if names == "others" else values),
    ):
        finished = checkout.make(*goals, *fixed, *given, **environment)
        assert not list(checkout.path.rglob(EXECUTED)), (
            finished.stdout + finished.stderr
        )
        if names in ("together", "others"):
            assert any("experiments.compare" in line for line in checkout.notes)
        if names == "together":
            assert PAYLOADS[payload].strip() in checkout.calls.read_text()


@pytest.mark.parametrize("payload", PAYLOADS)
def test_no_name_of_a_target_is_executed(checkout, payload):
    for target in (
        f"reproduce-{PAYLOADS[payload]}",
        f".venv-{PAYLOADS[payload]}/.installed",
    ):
        finished = checkout.make(target, "ACCEL=cpu")
        assert finished.returncode == 2
        assert not list(checkout.path.rglob(EXECUTED)), (
            finished.stdout + finished.stderr
        )
        assert checkout.notes == []


def test_what_make_expands_is_its_own():
    """Every assignment is ours or of a user's variable.

    Recipes read the latter from the environment.
    """
    assigned = re.findall(r"^(override )?([\w.]+) (\?=|:=|=)", MAKEFILE, re.MULTILINE)
    ours = {name for override, name, _ in assigned if override}
    users = {name for override, name, _ in assigned if not override}
    assert users == {*VARIABLES} and not ours & users
    expanded = set(re.findall(r"\$\((\w+)\)", MAKEFILE)) - {"name", "data", "model"}
    assert expanded <= ours


def test_a_dollar_in_a_path_stays_there(checkout):
    finished = checkout.make(
        "reproduce-landscape", "ACCEL=cpu", "RESULTS_DIR=out/a$b/c d"
    )
    assert finished.returncode == 0, finished.stderr
    assert "[--results_dir=out/a$b/c d] [--seeds=0] [--jobs=0]" in checkout.notes[-1]
    finished = checkout.make("test", "ACCEL=cpu", "FOO=a$b")
    assert finished.returncode == 0


@pytest.mark.parametrize(
    ("words", "variants"),
    [
        ((), None),
        (("VARIANT=digits/x y",), "digits/x y"),
        (("DATASET=digits/x",), "digits/x"),
        (("DATASET=digits/x", "VARIANT=digits/y"), "digits/y"),
    ],
)
def test_a_variant_is_named_by_variant_and_by_its_old_name(checkout, words, variants):
    """The old name, DATASET, comes with a note."""
    finished = checkout.make("reproduce-landscape", "ACCEL=cpu", *words)
    assert finished.returncode == 0, finished.stderr
    passed = re.findall(r"\[--variants=([^]]*)\]", checkout.notes[-1])
    assert passed == ([] if variants is None else [variants])
    is_old = any(word.startswith("DATASET=") for word in words)
    assert ("is now called VARIANT=" in finished.stderr) == is_old


def test_the_fast_tests_are_those_that_are_not_marked_as_slow(checkout):
    for target, arguments in {"test": "", "test-fast": " [-m] [not slow]"}.items():
        finished = checkout.make(target, "ACCEL=cpu")
        assert finished.returncode == 0, finished.stderr
        assert checkout.notes[-1].strip() == f"[python] [-m] [pytest]{arguments}"


@pytest.mark.parametrize("given", ["command line", "environment"])
def test_overwriting_is_on_only_when_it_is_set_to_on(checkout, given):
    targets = ("reproduce", "demo", "reproduce-landscape", "reproduce-table2")
    for value, expected in {
        "": False,
        "0": False,
        "no": False,
        "false": False,
        "1": True,
        "yes": True,
        "true": True,
    }.items():
        words = [f"OVERWRITE={value}"] if given == "command line" else []
        environment = {} if words else {"OVERWRITE": value}
        finished = checkout.make(*targets, "ACCEL=cpu", *words, **environment)
        assert finished.returncode == 0, finished.stderr
        assert len(checkout.notes) == len(targets)
        for note in checkout.notes:
            assert ("[--overwrite]" in note) == expected, note
    finished = checkout.make("reproduce", "ACCEL=cpu", "OVERWRITE=perhaps")
    assert (finished.returncode, checkout.notes) == (2, [])
    assert "OVERWRITE must be 0 or 1" in finished.stderr


REFUSED = {
    "data DATASETS=cifar10 mnist": (
        "no data set 'mnist' to prepare; there are cifar10 cifar100 ima"
    ),
    "setup ACCEL=rocm": "ACCEL must be auto, cpu, cuda12, cuda13 or tpu",
    "setup ACCEL=cpu cuda12": "ACCEL must be auto, cpu, cuda12, cuda13 or tpu",
    "setup PYTHON=false": (
        ".venv has Python 3.0.1, but false is another version; remove .venv fi"
    ),
    "reproduce-nope": (
        "there is no experiment of this name; there are deep_mlp landscape cifar"
    ),
    "reproduce-landscape cifar": "there is no experiment of this name",
    "promote": "name the run: make promote RUN=",
    # With a variable that is nearly one of ours make would go on, with the default.
    "reproduce-landscape SEED=1": "there is no variable SEED; `make` lists the variab",
    "reproduce-cifar VARIANTS=digits": "there is no variable VARIANTS; `make` lists",
    "demo JOB=1": "there is no variable JOB; `make` lists the variables",
}


@pytest.mark.parametrize("wanted", REFUSED)
def test_it_refuses_what_it_cannot_do_before_it_installs_anything(checkout, wanted):
    program(checkout.path / ".venv" / "bin" / "python", "echo Python 3.0.1")
    target = re.match(r"(\S+?)( [A-Z]+=|$)", wanted)
    words = (
        [target[1], wanted.removeprefix(f"{target[1]} ")]
        if target and target[2]
        else [wanted]
    )
    finished = checkout.make(*words, *([] if "ACCEL" in wanted else ["ACCEL=cpu"]))
    assert finished.returncode == 2, finished.stdout
    first, *after = finished.stderr.splitlines()
    assert REFUSED[wanted] in first
    assert all("***" in line for line in after)
    assert checkout.notes == []


@pytest.mark.parametrize(
    "target", ["setup", "setup-dev", "data", "compile-check", "docs"]
)
def test_an_installation_that_fails_is_not_recorded(checkout, target):
    """GNU make 3.81 knows no .SHELLFLAGS, so no recipe may rely on them."""
    for stamp in checkout.path.glob(".venv*/.installed*"):
        stamp.unlink()
    program(
        checkout.path / "bin" / "uv",
        'if [[ "$*" == *--requirement* ]]; then exit 1; fi',
    )
    for _ in range(2):
        finished = checkout.make(target, "ACCEL=cpu")
        assert finished.returncode == 2
        assert list(checkout.path.glob(".venv*/.installed*")) == []


def test_pips_settings_for_the_user_do_not_matter(checkout):
    """Without uv, pip installs, whose settings may say user = true."""
    (checkout.path / "bin" / "uv").unlink()
    (checkout.path / ".venv" / ".installed-cpu").unlink()
    for name in ("bash", "env", "dirname", "touch", "rm", "grep"):
        (checkout.path / "bin" / name).symlink_to(shutil.which(name))
    note = f'echo "user=$PIP_USER $*" >>{checkout.calls}'
    program(checkout.path / ".venv" / "bin" / "python", note)
    program(checkout.path / "bin" / "interpreter", note)
    path = {"PATH": str(checkout.path / "bin"), "PIP_USER": "1"}
    finished = checkout.make("setup", "ACCEL=cpu", "PYTHON=interpreter", **path)
    installs = [line for line in checkout.notes if "pip install" in line]
    assert len(installs) == 2, finished.stderr
    assert all(line.startswith("user=0 ") for line in installs)
    assert " --require-hashes --requirement requirements/cpu.txt" in installs[0]


def test_only_files_whose_sums_the_lock_has_are_installed(checkout):
    (checkout.path / ".venv" / ".installed-cpu-dev").unlink()
    assert checkout.make("setup-dev", "ACCEL=cpu").returncode == 0
    (install,) = [line for line in checkout.notes if "requirements/dev.txt" in line]
    assert "[--require-hashes] [--requirement] [requirements/dev.txt]" in install


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: path.stem)
def test_a_lock_is_versions_with_the_sums_of_their_files(lock):
    """No line names an index, either: which one is used is for users to say."""
    version = r"[a-z0-9-]+==[\w.]+( ; [\w.<>=!'() ]+)?"
    digests = r"( \\\n    --hash=sha256:[0-9a-f]{64})+\n"
    assert re.fullmatch(f"({version}{digests})+", lock.read_text())


def test_clean_leaves_runs_and_data_alone(checkout):
    lasting = [
        checkout.path / name for name in ("results/local/run", "data/arrays", "other")
    ]
    for path in lasting:
        path.mkdir(parents=True)
    assert checkout.make("clean", "clean-results").returncode == 0
    assert all(path.exists() for path in lasting)
    assert not (checkout.path / ".venv").exists()


# Hardware: fake device files and a fake nvidia-smi.


def fake_nvidia_smi(
    driver: str, capabilities: str = "9.0", banner: str = "", code: int = 0
) -> str:
    return f"""
case "$*" in
  *query-gpu=driver_version*) printf '{driver}\\n'; exit {code};;
  *query-gpu=compute_cap*) printf '{capabilities}\\n'; exit {code};;
  *) printf '{banner}\\n';;
esac"""


FAILS = "NVIDIA-SMI has failed because it could not communicate with the NVIDIA driver."
PROC_535 = (
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15"
    " UTC\n"
)
PROC_610 = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  610.43.02  Release"
    " Build\n"
)
CARD = {
    "sys/bus/pci/devices/0000:01:00.0/vendor": "0x10de\n",
    "sys/bus/pci/devices/0000:01:00.0/class": "0x030200\n",
}
GPU = {"dev/nvidia0": "", "dev/nvidiactl": "", **CARD}
NETWORK_CARD = {
    "sys/bus/pci/devices/0000:00:04.0/vendor": "0x1ae0\n",
    "sys/bus/pci/devices/0000:00:04.0/device": "0x0042\n",
    "sys/bus/pci/devices/0000:00:04.0/class": "0x020000\n",
}
TPU = {
    "sys/bus/pci/devices/0000:00:05.0/vendor": "0x1ae0\n",
    "sys/bus/pci/devices/0000:00:05.0/device": "0x0063\n",
}
# (files, nvidia-smi or None, lock or "", what is said)
MACHINES = {
    "nothing": ({}, None, "cpu", ""),
    "a CPU machine in a cloud": (NETWORK_CARD, None, "cpu", ""),
    "driver 470": (
        GPU,
        fake_nvidia_smi("470.223.02"),
        "",
        "driver 470 is too old for JAX, which",
    ),
    "driver 525": (GPU, fake_nvidia_smi("525.60.13"), "cuda12", ""),
    "driver 535": (GPU, fake_nvidia_smi("535.104.05"), "cuda12", ""),
    "driver 550": (GPU, fake_nvidia_smi("550.54.14"), "cuda12", ""),
    "driver 570": (GPU, fake_nvidia_smi("570.86.10"), "cuda12", ""),
    "driver 580": (GPU, fake_nvidia_smi("580.65.06"), "cuda13", ""),
    "driver 610": (GPU, fake_nvidia_smi("610.43.02"), "cuda13", ""),
    "eight GPUs": (
        GPU,
        fake_nvidia_smi("610.43.02\\n610.43.02", "9.0\\n9.0"),
        "cuda13",
        "",
    ),
    "a V100 with driver 580": (GPU, fake_nvidia_smi("580.65.06", "7.0"), "cuda12", ""),
    "a T4 with driver 580": (GPU, fake_nvidia_smi("580.65.06", "7.5"), "cuda13", ""),
    "a B200": (GPU, fake_nvidia_smi("580.65.06", "10.0"), "cuda13", ""),
    "version N/A": (
        GPU,
        fake_nvidia_smi("[N/A]"),
        "",
        "there is /dev/nvidia0, but nothing tells",
    ),
    "N/A, but the kernel knows": (
        {**GPU, "sys/module/nvidia/version": "610.43.02\n"},
        fake_nvidia_smi("[N/A]"),
        "cuda13",
        "",
    ),
    "nvidia-smi fails, no device": (
        {},
        fake_nvidia_smi(FAILS, code=9),
        "",
        "finds no GPU; mend",
    ),
    "nvidia-smi fails, but the device is there": (
        {**GPU, "proc/driver/nvidia/version": PROC_535},
        fake_nvidia_smi(FAILS, code=9),
        "cuda12",
        "",
    ),
    "a container without nvidia-smi": (
        {**GPU, "proc/driver/nvidia/version": PROC_610},
        None,
        "cuda13",
        "",
    ),
    "a container without GPUs on a machine with some": (
        {**CARD, "proc/driver/nvidia/version": PROC_610},
        None,
        "cpu",
        "there is an NVIDIA card but no driver for it",
    ),
    "a container that hides the driver": (
        GPU,
        None,
        "",
        "nothing tells the version of its driver",
    ),
    "a card without a driver": (
        CARD,
        None,
        "cpu",
        "there is an NVIDIA card but no driver for it",
    ),
    "WSL, without device files": (
        {"dev/dxg": ""},
        fake_nvidia_smi("581.29"),
        "cuda13",
        "",
    ),
    "a v5e TPU": ({**TPU, **NETWORK_CARD, "dev/vfio/0": ""}, None, "tpu", ""),
    "a v4 TPU": ({"dev/accel0": ""}, None, "tpu", ""),
    "a TPU in a container without /sys": ({"dev/vfio/0": ""}, None, "tpu", ""),
    "a disk that is passed on": ({**NETWORK_CARD, "dev/vfio/0": ""}, None, "cpu", ""),
}


@pytest.mark.parametrize("name", MACHINES)
def test_the_lock_fits_the_hardware_or_one_line_says_what_is_missing(name, tmp_path):
    files, nvidia_smi, lock, said = MACHINES[name]
    for file, text in files.items():
        path = tmp_path / "root" / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    if nvidia_smi is not None:
        program(tmp_path / "bin" / "nvidia-smi", nvidia_smi)
    script = forked.ROOT / "requirements" / "accelerator.sh"
    finished = forked.shell(
        script, tmp_path / "root", PATH=f"{tmp_path}/bin:/usr/bin:/bin"
    )
    assert finished.stdout.strip() == lock
    assert finished.returncode == (0 if lock else 2)
    assert said in finished.stderr
    assert len(finished.stderr.splitlines()) == bool(said)


@pytest.mark.parametrize("driver", ["610.43.02", "470.223.02"])
def test_make_takes_the_lock_or_says_why_there_is_none(checkout, driver):
    program(checkout.path / "bin" / "nvidia-smi", fake_nvidia_smi(driver))
    finished = checkout.make("--dry-run", "setup")
    if driver.startswith("610"):
        assert "requirements/install.sh .venv cuda13" in finished.stdout
        return
    finished = checkout.make("setup")
    assert finished.returncode == 2
    assert finished.stderr.startswith("the NVIDIA driver 470 is too old for JAX")
    assert checkout.make("help").returncode == 0
