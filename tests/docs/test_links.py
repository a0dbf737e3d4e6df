"""Links, headings and paths lead somewhere; the site's navigation has every page."""

import re

import pytest
import yaml

from identity_matters.report import page
from tests.docs.pages import DOCS, MADE_BY_TUTORIAL, NOTEBOOKS, PAGES, page_id, read
from tests.forked import ROOT

OF_DEVELOPERS = [ROOT / name for name in ("CHANGELOG.md", "CONTRIBUTING.md")]
# Files that a page names and that a user makes.
MADE_LATER = re.compile(rf"{MADE_BY_TUTORIAL}|results/(trial|local)|data/")


def links(path):
    """Where the links of a page lead."""
    return re.findall(r"\]\(([^()\s]+)\)", read(path))


def paths(path):
    """The paths of files and directories that a page names."""
    pattern = r"`([\w./]+/[\w./]*(?:\.py|\.md|\.toml|/))[`:]"
    return re.findall(pattern, read(path))


def test_links_and_paths_are_found():
    assert "docs/training.md" in links(ROOT / "README.md")
    assert "identity_matters/paper.py" in paths(DOCS / "architecture.md")


@pytest.mark.parametrize("path", [*PAGES, *OF_DEVELOPERS], ids=page_id)
def test_links_lead_somewhere(path):
    for link in links(path):
        if "://" in link:
            continue
        name, _, heading = link.partition("#")
        target = path.parent / name if name else path
        assert target.exists(), link
        if heading:
            headings = re.findall(r"^#+ (.*)$", read(target), re.MULTILINE)
            assert heading in map(page.anchor, headings), link


@pytest.mark.parametrize("path", PAGES, ids=page_id)
def test_paths_lead_somewhere(path):
    for name in paths(path):
        assert MADE_LATER.search(name) or (ROOT / name).exists(), name


def test_the_navigation_of_the_site_names_every_page_once():
    """The build itself checks links, formulas, and that the API shows public names."""
    named = list(leaves(yaml.safe_load(read(ROOT / "mkdocs.yml"))["nav"]))
    notebooks = [path.with_suffix(".md") for path in NOTEBOOKS]
    pages = [*PAGES, *notebooks, *OF_DEVELOPERS, ROOT / "results" / "REPORT.md"]
    assert sorted(named) == sorted(map(page_id, pages))


def leaves(navigation):
    """The files in a navigation of mkdocs, which nests lists and dicts."""
    match navigation:
        case str():
            yield navigation
        case list():
            for entry in navigation:
                yield from leaves(entry)
        case dict():
            for entry in navigation.values():
                yield from leaves(entry)
