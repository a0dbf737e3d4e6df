"""Renders REPORT.md as one self-contained HTML page, from page.html and page.css.

Formulas become MathML, and figures are embedded. HTML in the text is escaped, except
for <details> and <summary>. The icon of the page is empty; without one, browsers would
ask a server for it.

The page needs no script and fetches nothing, and its Content-Security-Policy allows
neither.
"""

import base64
import collections
import hashlib
import html
import itertools
import pathlib
import re
import string
from collections.abc import Iterator, Sequence
from typing import Any

import latex2mathml.converter
from markdown_it import MarkdownIt
from markdown_it.token import Token

from identity_matters.report.collection import seeds_disagree

_PAGE = pathlib.Path(__file__).with_suffix(".html")
_STYLE = pathlib.Path(__file__).with_suffix(".css")
_BAR = '<mo stretchy="false">&#x0007C;</mo>'
_THIN_SPACE = '<mspace width="0.167em" />'
# LaTeX leaves a thin space between log and a factor, as in n log n, but none in log(n).
_FUNCTION_AFTER_FACTOR = re.compile(
    r"(</(?:mi|mn|mfrac|mstyle|msub|msup)>)(<mi>[a-z]{2,}</mi>)"
)
# Not within log^2: <msup> and <msub> have two children.
_FUNCTION_OF_SYMBOL = re.compile(
    r"(?<!<msup>)(?<!<msub>)(?<!<msubsup>)(<mi>[a-z]{2,}</mi>)"
    r"(?!<mo stretchy=\"false\">&#x00028;|</)"
)
_NUMBER = re.compile(r"-?[\d.,]+(e[+-]?\d+)?( ± [\d.e+-]+)?( %)?( \(n = \d+\))?")
_FIGURE = re.compile(r"figures/[A-Za-z0-9_]+\.svg")
# Verdict of a run -> the class of a cell that begins with it; page.css has the colors.
CLASSES_OF_VERDICTS = {
    "holds": "good",
    "counterexample": "odd",
    "reproduced": "good",
    "not reproduced": "bad",
    "not comparable": "",
    "undecided": "odd",
}
# Images are part of the page; the only style is its own.
_POLICY = (
    "default-src 'none'; img-src data:; base-uri 'none'; form-action 'none'; style-src"
)
CLAIMS_HEADING = "Evidence, claim by claim"  # each heading of level 3 below is a claim
_FOLDED = re.compile(r"(</?details>|<summary>[^<]*</summary>)\n*")


def anchor(heading: str) -> str:
    """The name by which links refer to a heading, on GitHub and on the page alike."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def render(markdown: str, directory: pathlib.Path) -> str:
    """The HTML page; images in the text are read from `directory`."""
    parser = _parser()
    env = {"directory": pathlib.Path(directory)}
    tokens = parser.parse(markdown, env)
    headings = _arrange(tokens)
    body = parser.renderer.render(tokens, parser.options, env)
    body = _with_links_within(body, headings)
    style = "\n" + _STYLE.read_text(encoding="utf-8")
    page = string.Template(_PAGE.read_text(encoding="utf-8"))
    return page.substitute(
        title=html.escape(headings["h1"][0]),
        style=style,
        body=body,
        policy=f"{_POLICY} 'sha256-{_sha256(style)}'",
    )


def _parser() -> MarkdownIt:
    """A parser of Markdown with tables, and our rules for what the page shows."""
    parser = MarkdownIt("commonmark").enable("table")
    rules = {
        "fence": _fence,
        "image": _image,
        "html_block": _html,
        "html_inline": _html,
        "table_open": _table_open,
        "table_close": _table_close,
    }
    for name, rule in rules.items():
        parser.add_render_rule(name, rule)
    return parser


def _with_links_within(body: str, headings: dict[str, list[str]]) -> str:
    """The page's body with the navigation below its title, and links back to it."""
    navigation = _navigation(headings["h2"], headings["claims"])
    body = body.replace("</h1>", f"</h1>\n{navigation}", 1)
    for claim in headings["claims"]:
        body = _with_way_back(body, claim)
    return body


def _navigation(parts: list[str], claims: list[str]) -> str:
    """Links to the parts of the page and, folded, to all claims."""
    links = "".join(_item(part) for part in parts)
    navigation = f'<nav aria-label="parts"><ul>{links}</ul></nav>\n'
    if not claims:
        return navigation
    links_to_claims = "".join(_item(claim) for claim in claims)
    return (
        f'{navigation}<details class="claims" id="all-claims">'
        f"<summary>All {len(claims)} claims</summary>"
        f"<ul>{links_to_claims}</ul></details>\n"
    )


def _item(heading: str) -> str:
    return f'<li><a href="#{anchor(heading)}">{html.escape(heading)}</a></li>'


def _with_way_back(body: str, claim: str) -> str:
    """The page's body with a link from the heading of a claim to the list of claims."""
    before, opening, heading_and_after = body.partition(f'<h3 id="{anchor(claim)}">')
    if not opening:
        return body
    heading, closing, after = heading_and_after.partition("</h3>")
    back = '<a class="back" href="#all-claims">↑ all claims</a>'
    return f"{before}{opening}{heading}{closing}\n{back}{after}"


def _sha256(text: str) -> str:
    """The digest by which a Content-Security-Policy allows the text of a <style>."""
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _arrange(tokens: list[Token]) -> dict[str, list[str]]:
    """Sets what the style sheet needs; returns the headings by tag and as "claims"."""
    _wrap_figures(tokens)
    _label_cells(tokens)
    _color_cells(tokens)
    _mark_cards(tokens)
    return _name_headings(tokens)


def _name_headings(tokens: list[Token]) -> dict[str, list[str]]:
    """Gives each heading its anchor; returns their texts by tag and as "claims"."""
    headings: dict[str, list[str]] = collections.defaultdict(list)
    for opening, inline in itertools.pairwise(tokens):
        if opening.type == "heading_open":
            opening.attrSet("id", anchor(inline.content))
            headings[opening.tag].append(inline.content)
            if opening.tag == "h3" and headings["h2"][-1:] == [CLAIMS_HEADING]:
                headings["claims"].append(inline.content)
    return headings


def _wrap_figures(tokens: list[Token]) -> None:
    """Makes figures of paragraphs that begin with an image, their text the caption."""
    for opening, inline, closing in zip(tokens, tokens[1:], tokens[2:], strict=False):
        if opening.type != "paragraph_open" or not inline.children:
            continue
        image, *text = inline.children
        if image.type == "image":
            # The caption is a block of its own on the page.
            if text and text[0].type == "hardbreak":
                del text[0]
            opening.tag = "figure"
            closing.tag = "figure"
            caption_opening = Token("caption", "figcaption", 1)
            caption_closing = Token("caption", "figcaption", -1)
            inline.children = [image, caption_opening, *text, caption_closing]


def _label_cells(tokens: list[Token]) -> None:
    """Gives each cell of a table the name of its column, which a card shows."""
    columns: list[str] = []
    labels: Iterator[str] = iter(())
    for opening, inline in itertools.pairwise(tokens):
        match opening.type:
            case "thead_open":
                columns = []
            case "th_open":
                columns.append(inline.content)
            case "tr_open":
                labels = iter(columns)
            case "td_open":
                opening.attrSet("data-label", next(labels))


def _color_cells(tokens: list[Token]) -> None:
    """Gives cells with a number or a verdict the class of their color."""
    for opening, inline in itertools.pairwise(tokens):
        if opening.type == "td_open":
            class_of_cell = _class_of_cell(inline.content)
            if class_of_cell:
                opening.attrSet("class", class_of_cell)


def _class_of_cell(text: str) -> str | None:
    """The class "number", that of a verdict, "odd" if seeds disagree on it, or None."""
    if _NUMBER.fullmatch(text):
        return "number"
    for verdict, class_of_verdict in CLASSES_OF_VERDICTS.items():
        if text.startswith(verdict):
            return "odd" if seeds_disagree(text) else class_of_verdict
    return None


def _mark_cards(tokens: list[Token]) -> None:
    """On a phone the rows of a table become cards, except in tables of metrics."""
    # A table begins with table, thead, tr, th and the text of its first column.
    for opening, first_column in zip(tokens, tokens[4:], strict=False):
        if opening.type == "table_open" and first_column.content != "metric":
            opening.attrSet("class", "cards")


def _fence(
    _renderer: Any, tokens: Sequence[Token], index: int, _options: Any, _env: Any
) -> str:
    token = tokens[index]
    if token.info != "math":
        return f'<pre tabindex="0"><code>{html.escape(token.content)}</code></pre>\n'
    latex = token.content.strip()
    # Words in MathML do not wrap on a narrow screen.
    if words := re.fullmatch(r"\\text\{([^{}]*)\}", latex):
        return f'<div class="formula words">{html.escape(words[1])}</div>\n'
    return (
        '<div class="formula" tabindex="0" role="region"'
        f' aria-label="formula">{_mathml(latex)}</div>\n'
    )


def _mathml(latex: str) -> str:
    """A formula as MathML, with what latex2mathml leaves out of LaTeX's look."""
    math = latex2mathml.converter.convert(latex, display="block")
    # The three bars of |||A||| are one symbol, which LaTeX spells as three.
    math = math.replace(3 * _BAR, '<mo stretchy="false" lspace="0" rspace="0">|||</mo>')
    # \sim is a relation, with space around it; it becomes an identifier.
    math = math.replace("<mi>&#x0007E;</mi>", "<mo>&#x0223C;</mo>")
    math = _FUNCTION_AFTER_FACTOR.sub(rf"\1{_THIN_SPACE}\2", math)
    return _FUNCTION_OF_SYMBOL.sub(rf"\1{_THIN_SPACE}", math)


def _image(
    _renderer: Any, tokens: Sequence[Token], index: int, _options: Any, env: Any
) -> str:
    """A figure of the report as part of the page; of any other image the text alone."""
    token = tokens[index]
    alt = html.escape(token.content)
    source = str(token.attrs["src"])
    path = env["directory"] / source
    if not _FIGURE.fullmatch(source) or path.is_symlink() or not path.is_file():
        return alt
    picture = path.read_bytes()
    data = base64.b64encode(picture).decode()
    # A figure with one panel can be read at the width of a telephone.
    kind = "plot" if picture.count(b'<g id="axes_') > 1 else "plot single"
    return (
        f'<div class="{kind}" id="{path.stem}" tabindex="0" role="region"'
        f' aria-label="figure {path.stem}"><img alt="{alt}"'
        f' src="data:image/svg+xml;base64,{data}"></div>'
    )


def _table_open(
    renderer: Any, tokens: Sequence[Token], index: int, options: Any, env: Any
) -> str:
    """A table in a box that scrolls, so that the page need not."""
    table = renderer.renderToken(tokens, index, options, env)
    return f'<div class="table" tabindex="0" role="region" aria-label="table">{table}'


def _table_close(
    renderer: Any, tokens: Sequence[Token], index: int, options: Any, env: Any
) -> str:
    return f"{renderer.renderToken(tokens, index, options, env)}</div>\n"


def _html(
    _renderer: Any, tokens: Sequence[Token], index: int, _options: Any, _env: Any
) -> str:
    text = tokens[index].content
    return text if _FOLDED.fullmatch(text) else html.escape(text)
