"""What the README shows is run: its library example, its make targets, its commands."""

import importlib
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()
TARGETS = sorted(set(re.findall(r"(?:^|`)make ([a-z0-9_-]+)", README, re.MULTILINE)))
VARIANTS = sorted(set(re.findall(r"-m experiments\.(\w+) --config=:([\w/]+)", README)))


def run(*command):
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False
    )


def test_the_library_example_factorizes_r():
    (example,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    finished = run(sys.executable, "-c", example)
    assert finished.returncode == 0, finished.stderr
    error, norm, least = map(float, finished.stdout.split())
    assert error < 1e-12
    # R turns a plane by pi: both are |exp(i pi / 16) - 1| = 2 sin(pi / 32).
    assert norm == pytest.approx(0.1960342806591)
    assert least == pytest.approx(norm)


def make_targets():
    files = (ROOT / "Makefile", ROOT / "clusters" / "tpu.mk")
    text = "".join(path.read_text() for path in files)
    return set(re.findall(r"^([a-z0-9-]+):", text, re.MULTILINE))


@pytest.mark.parametrize("target", TARGETS)
def test_every_make_target_of_the_readme_is_there(target):
    assert target in make_targets() or target.startswith("reproduce-")
    finished = run("make", "--dry-run", "ACCEL=cpu", "RUN=a_run", target.removesuffix("-"))
    assert finished.returncode == 0, finished.stderr


@pytest.mark.parametrize(("experiment", "variant"), VARIANTS)
def test_every_variant_of_the_readme_is_there(experiment, variant):
    configs = importlib.import_module(f"experiments.configs.{experiment}")
    assert configs.get_config(variant).variant == variant


def test_every_target_explains_itself():
    shown = run("make", "help").stdout
    for target in make_targets() - {"help"}:
        assert f"make {target} " in shown


@pytest.mark.parametrize("accel", ["cpu", "cuda12", "cuda13", "tpu"])
def test_every_accelerator_has_its_lock_and_jax_for_it(accel):
    lock = (ROOT / "requirements" / f"{accel}.txt").read_text()
    assert re.search(r"^jax==", lock, re.MULTILINE)
    plugin = {"cpu": "jaxlib", "tpu": "libtpu"}.get(accel, f"jax-{accel}-plugin")
    assert re.search(rf"^{plugin}==", lock, re.MULTILINE)
    assert f"requirements/{accel}.txt" in run("make", "-nB", f"ACCEL={accel}", "setup").stdout
