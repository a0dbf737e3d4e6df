"""No text of a run becomes Markdown, HTML, a link or a file of the page.

Nor a terminal's command.
"""

import base64
import hashlib
import re

import pytest

from identity_matters import paper, runs
from identity_matters.report import build, collection, figures, markdown, page
from tests.forked import ROOT
from tests.report.toy_report import Checked
from tests.report.toy_runs import write_run
from tests.rewriting import rewrite

# Text that Markdown, a browser or a terminal would obey.
PAYLOADS = {
    "script": "<!--<script>alert(1)</script>![x](http://a.example/b.png)",
    "image": "![x](/etc/passwd)",
    "fold": "0\n\n<details>\n\n<summary>more</summary>\n\n",
    "section": "x\n\n## Claims\n\n| claim | verdict |\n| --- | --- |\n| all | holds |",
    "link": (
        "[click](http://evil.example/) <a href=x>y</a> https://evil.example"
        " www.evil.example"
    ),
    "heading": "# heading",
    "list": "1. one",
    "quotation": "> quoted ~~x~~ __bold__ _it_ $x$ `` ` `` \\*",
    "terminal": "\x1b[2J\x1b]0;PWNED\x07 \u202etxt\u2066 \u2028 \ud800",
    "address": "a@evil.example",
}


@pytest.mark.parametrize("text", PAYLOADS.values(), ids=PAYLOADS)
def test_text_of_a_run_is_read_as_it_stands(text):
    """A browser shows the text and nothing else.

    This is so in a table, in a list, in code and in a fold.
    """
    shown = runs.visible(text)
    assert len(shown) == len(text) and shown.isprintable()
    parts = [
        markdown.Markdown("# Title"),
        markdown.table([{"text": text}]),
        markdown.bullets([text]),
        text,
        markdown.Markdown("<details>"),
        markdown.summary(text),
        markdown.bash(text),
        markdown.code(text),
        markdown.Markdown("</details>"),
    ]
    page_text = page.render(markdown.join("\n\n", parts), ROOT)
    body = Checked(page_text).data
    assert body.count(shown.strip()) == 6, body
    for tag in (
        "<img",
        "<a href",
        "<h2",
        "<ol",
        "<blockquote",
        "<em",
        "<strong",
        "<script",
    ):
        assert tag not in page_text.partition("<main>")[2].replace(
            '<li><a href="#', ""
        ), tag
    # GitHub makes links of bare addresses, too.
    source = markdown.inline(text)
    assert "://" not in source and "www." not in source and "@evil." not in source


@pytest.mark.parametrize("name", ["metrics", "paper", "variant", "claim", "verdict"])
@pytest.mark.parametrize(
    "text", [PAYLOADS["image"], PAYLOADS["terminal"].replace("\ud800", "")]
)
def test_a_run_with_text_for_a_result_is_skipped_by_name(
    tmp_path, monkeypatch, name, text
):
    monkeypatch.setattr(figures, "FIGURES", ())
    path = write_run(tmp_path / "local")
    write_run(tmp_path / "local", 1)
    value = {"norm": text} if name in ("metrics", "paper") else text
    rewrite(path, "summary.json", **{name: value})
    collected = collection.read("yours", tmp_path / "local")
    assert [run.seed for run in collected.runs] == [1]
    build.write([collected], tmp_path / "out")
    report = (tmp_path / "out" / "REPORT.md").read_text()
    assert f"{path}/summary.json: {name} must be " in report
    assert "\x1b" not in report and "![x](" not in report


def test_text_in_an_environment_is_shown_and_not_obeyed(tmp_path, monkeypatch):
    monkeypatch.setattr(figures, "FIGURES", ())
    for seed, text in enumerate(list(PAYLOADS.values())[:-2]):
        path = write_run(tmp_path / "local", seed)
        rewrite(
            path, "environment.json", cpu=text, command=["python", text], platform=text
        )
    collected = collection.read("yours", tmp_path / "local")
    assert collected.problems == []
    build.write([collected], tmp_path / "out")
    text = (tmp_path / "out" / "report.html").read_text()
    assert Checked(text).links
    assert "evil.example" in text and 'evil.example"' not in text
    # One of the list of claims, and one of the runs.
    assert text.count("<summary>") == 2 and text.count("<h3") == len(paper.CLAIMS)


@pytest.mark.parametrize(
    "source",
    [
        "/etc/passwd",
        "../x.svg",
        "figures/../x.svg",
        "figures/link.svg",
        "figures/no.svg",
    ],
)
def test_only_figures_become_part_of_the_page(tmp_path, source):
    (tmp_path / "out" / "figures").mkdir(parents=True)
    (tmp_path / "x.svg").write_text("<svg/>")
    (tmp_path / "out" / "figures" / "link.svg").symlink_to("/etc/passwd")
    (tmp_path / "out" / "figures" / "good_1.svg").write_text("<svg/>")
    text = page.render(
        f"# T\n\n![alt]({source})\n\n![b](figures/good_1.svg)\n", tmp_path / "out"
    )
    assert text.count("<img") == 1 and "alt" in text
    assert "data:image/svg+xml;base64,PHN2Zy8+" in text


def test_a_page_may_neither_run_nor_fetch_anything(tmp_path):
    text = page.render("# T\n\n<script>x</script>\n", ROOT)
    Checked(text)
    assert "&lt;script&gt;" in text
    policy = re.search('http-equiv="Content-Security-Policy" content="(.*)"', text)[1]
    assert (
        policy.startswith("default-src 'none'; img-src data:;")
        and "unsafe" not in policy
    )
    style = re.search("<style>(.*)</style>", text, re.DOTALL)[1]
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert f"style-src 'sha256-{digest}'" in policy


@pytest.mark.parametrize(
    "wrong",
    [
        "<p>",
        "<p></b>",
        "<script></script>",
        '<img src="https://evil.example/x.png">',
        '<link href="style.css">',
        '<p id="a"></p><p id="a"></p>',
    ],
)
def test_a_page_that_is_wrong_is_seen(wrong):
    with pytest.raises(AssertionError):
        Checked(wrong)


def test_every_environment_of_a_run_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(figures, "FIGURES", ())
    path = write_run(tmp_path / "local")
    first = runs.read_json(path / "environment.json")
    second = {
        **first,
        "cpu": "Another CPU",
        "cpu_cores": 64,
        "variables": {"XLA_FLAGS": "--xla_x"},
    }
    rewrite(
        path,
        "environment.json",
        resumed=[{**second, "commit": "1" * 40, "dirty": False}],
    )
    build.write([collection.read("yours", tmp_path / "local")], tmp_path / "out")
    text = (tmp_path / "out" / "REPORT.md").read_text()
    assert "Another CPU, 64 cores" in text and f", then {'1' * 12} |" in text
    assert "XLA\\_FLAGS" in text or "XLA_FLAGS=--xla_x" in text
