"""The report of a toy experiment, and a check of its page."""

import html.parser

import pytest

from identity_matters import paper
from identity_matters.report import build, collection, figures
from identity_matters.report.figures import drawing, registry
from tests.report.toy_runs import write_run

TOY = registry.Figure(
    name="toy_norms",
    experiment="toy",
    points=lambda run: [
        {"depth": row["depth"], "norm": row["norm"]} for row in run.records
    ],
    draw=lambda points, canvas: drawing.curve(
        canvas.subplots(), points, "depth", "norm"
    ),
)


@pytest.fixture(autouse=True)
def toy_caption(monkeypatch):
    about = paper.Caption(
        title="Norms & <bounds>",
        caption="Norm over depth; see docs/theory/errata.md.",
        description="One mark, at depth 2.",
    )
    monkeypatch.setitem(paper.FIGURES, "toy_norms", about)


def write_report(tmp_path, monkeypatch):
    monkeypatch.setattr(figures, "FIGURES", (TOY,))
    write_run(tmp_path / "reference", 0)
    write_run(tmp_path / "local", 1, scale="reduced")
    write_run(tmp_path / "local", 2, status="interrupted")
    (tmp_path / "local" / "toy" / "plain" / "seed=9").mkdir()
    reference = collection.read("reference", tmp_path / "reference")
    build.write(
        [reference, collection.read("yours", tmp_path / "local")], tmp_path / "out"
    )
    return tmp_path / "out"


class Checked(html.parser.HTMLParser):
    """Checks that a page closes its elements in order, and fetches and runs nothing."""

    def __init__(self, text):
        super().__init__()
        self.open = []
        self.ids = []
        self.links = []
        self.data = ""
        self.feed(text)
        assert self.open == []
        assert len(set(self.ids)) == len(self.ids)

    def handle_starttag(self, tag, attrs):
        assert tag not in ("script", "iframe", "object", "embed")
        if tag not in ("meta", "img", "br", "link"):
            self.open.append(tag)
        for name, value in attrs:
            if name in ("src", "srcset", "poster", "data") or (tag, name) == (
                "link",
                "href",
            ):
                assert value.startswith("data:")
            elif name in ("id", "href"):
                (self.ids if name == "id" else self.links).append(value)

    def handle_data(self, data):
        self.data += data

    def handle_endtag(self, tag):
        assert self.open.pop() == tag
