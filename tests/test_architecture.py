"""The layout of docs/architecture.md, checked from the import statements."""

import ast
import pathlib
import re

import pytest

from tests.forked import ROOT

LIBRARY = ROOT / "identity_matters"
ARMS = ("linear", "relu", "memorize", "nets", "images", "train")
LEAVES = ["runs", *(path.stem for path in LIBRARY.glob("[a-z]*.py"))]
# Library -> the only part of identity_matters that may import it ("" for none).
CONFINED = {
    "absl": "",
    "ml_collections": "",
    "rich": "",
    "matplotlib": "report",
    "tensorflow_datasets": "images",
    "grain": "images",
}
FILES = sorted(LIBRARY.rglob("*.py"))
LINES_AT_MOST = 520


def imports(path: pathlib.Path) -> list[str]:
    """The dotted names that the file at `path` imports."""
    names = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return names


def part(path: pathlib.Path) -> str:
    """The part of the library that a file belongs to: a package or a leaf module."""
    return path.relative_to(LIBRARY).parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(LIBRARY)))
def test_imports_form_a_star(path):
    for name in imports(path):
        package, *submodules = name.split(".")
        assert package not in ("experiments", "tests", "benchmarks"), (
            f"{path} imports {name}"
        )
        if package in CONFINED:
            assert part(path) == CONFINED[package], f"{path} may not import {name}"
        if package == "identity_matters" and part(path) in ARMS:
            assert submodules[0] in (part(path), *LEAVES), (
                f"{path} may not import {name}"
            )
        if package == "identity_matters" and part(path) in LEAVES:
            assert submodules[0] in LEAVES, f"{path} is a leaf and imports {name}"


def test_only_one_file_says_pmap():
    users = [path for path in FILES if "pmap" in path.read_text()]
    assert users in ([], [LIBRARY / "train" / "parallel.py"])


def test_files_stay_small():
    for directory in ("identity_matters", "experiments", "benchmarks", "tests"):
        for path in (ROOT / directory).rglob("*.py"):
            assert len(path.read_text().splitlines()) <= LINES_AT_MOST, path


def test_the_page_names_every_part_of_the_library():
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = page.partition("## Where things are")[2].partition("\n## ")[0]
    named = set(re.findall(r"`identity_matters/([a-z_]+)[./]", table))
    parts = {part(path) for path in FILES if path.parent != LIBRARY}
    assert named - {"claims"} == parts | set(LEAVES)


def test_the_page_counts_the_files_that_a_step_passes():
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    walk, _, counts = page.partition("One step of a CIFAR training")[2].partition(
        "\nThese are "
    )
    files, of_a_step = map(int, re.findall(r"\b\d+\b", counts)[:2])
    named = re.findall(r"`([a-z_]+/[a-z_/]+\.py)`", walk)
    assert all((ROOT / path).is_file() for path in named)
    assert len(set(named)) == files
    first = named.index("identity_matters/train/loop.py")
    last = named.index("identity_matters/runs/run_dir.py")
    assert len(set(named[first : last + 1])) == of_a_step


def test_a_relative_tolerance_of_a_test_is_the_whole_tolerance():
    """As `tests/conftest.py` says; pytest's own would take any number below 1e-12."""
    expected = pytest.approx(1e-13, rel=1e-2)
    assert expected == 1.009e-13
    assert expected != 1.011e-13
