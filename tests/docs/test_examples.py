"""Examples in Python: those of the pages run, those of docstrings say what comes."""

import doctest
import importlib
import pathlib
import re

import pytest

from tests import forked
from tests.docs.pages import PAGES, TUTORIAL, fences, page_id, read

EXAMPLES = [
    (path, code)
    for path in PAGES
    if path != TUTORIAL
    # tests/train/test_train.py runs the first example of docs/training.md.
    for code in fences(path, "python")[path.name == "training.md" :]
]


@pytest.mark.compiled_for_users
@pytest.mark.parametrize(
    ("path", "code"),
    EXAMPLES,
    ids=lambda value: page_id(value) if isinstance(value, pathlib.Path) else "",
)
def test_every_python_example_runs(path, code, tmp_path):
    """Its output must contain what the example says after `# prints`."""
    finished = forked.run_code(code, tmp_path)
    for said in re.findall(r"# prints (.*)", code):
        assert said in finished.stdout


WITH_EXAMPLES = [
    path
    for path in sorted((forked.ROOT / "identity_matters").rglob("*.py"))
    if ">>> " in read(path)
]


@pytest.mark.parametrize("path", WITH_EXAMPLES, ids=page_id)
def test_every_example_in_a_docstring_says_what_comes(path):
    name = ".".join(path.relative_to(forked.ROOT).with_suffix("").parts)
    result = doctest.testmod(importlib.import_module(name))
    assert result.attempted > 0
    assert result.failed == 0
