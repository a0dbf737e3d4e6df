"""The pages of the documentation, and the code in them."""

import pathlib
import re

from tests.forked import ROOT

DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
TUTORIAL = DOCS / "adding_an_experiment.md"
# The experiment that the tutorial writes.
MADE_BY_TUTORIAL = "half_turn"


def page_id(path: pathlib.Path) -> str:
    """The path from the root of the repository, as the name of a test's case."""
    return str(path.relative_to(ROOT))


def read(path: pathlib.Path) -> str:
    return path.read_text(encoding="utf-8")


def fences(path: pathlib.Path, language: str) -> list[str]:
    """The code blocks of a page that are in `language`."""
    pattern = rf"^```{language}\n(.*?)^```"
    return re.findall(pattern, read(path), re.MULTILINE | re.DOTALL)
