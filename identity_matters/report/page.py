"""The report as one HTML page that needs nothing from the network."""

import base64
import html
import re

from identity_matters.report.document import Block, Command, Heading, Paragraph, Picture, Table

_CSS = """
:root { color-scheme: light dark; --ink: #1b1f24; --paper: #ffffff; --soft: #f3f5f7;
  --line: #d5dae0; --link: #0b5cad; --good: #11703a; --bad: #b3261e; --odd: #8a5300; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e7eb; --paper: #15181c; --soft: #1f242a;
  --line: #39414a; --link: #79b8ff; --good: #6fd08c; --bad: #ff8a80; --odd: #f0b860; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", sans-serif; }
main { max-width: 62rem; margin: 0 auto; padding: 1.5rem 1rem 4rem; }
h1 { font-size: 1.7rem; line-height: 1.25; } h2 { margin-top: 2.6rem; padding-top: .6rem;
  border-top: 1px solid var(--line); } h3 { margin-top: 1.8rem; font-size: 1.05rem; }
h1, h2, h3 { overflow-wrap: anywhere; }
a { color: var(--link); }
nav ul { columns: 18rem; padding-left: 1.1rem; margin: .5rem 0; }
.scroll { overflow-x: auto; margin: .8rem 0; }
table { border-collapse: collapse; font-size: .86rem; min-width: 100%; }
th, td { text-align: left; vertical-align: top; padding: .35rem .6rem;
  border-bottom: 1px solid var(--line); }
th { background: var(--soft); }
td { min-width: 5rem; }
td.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
pre { background: var(--soft); padding: .6rem .8rem; overflow-x: auto; font-size: .85rem; }
figure { margin: 1.6rem 0; } figure img { width: 100%; max-width: 46rem; height: auto;
  background: #fff; border: 1px solid var(--line); border-radius: 4px; }
figcaption { font-size: .9rem; max-width: 46rem; }
.good { color: var(--good); } .bad { color: var(--bad); } .odd { color: var(--odd); }
.good, .bad, .odd { font-weight: 600; }
@media print { main { max-width: none; } figure, tr { break-inside: avoid; } }
"""
_NUMBER = re.compile(r"-?[\d.,]+(e[+-]?\d+)?( ± .*)?%?")
# The first word that fits decides; "not reproduced" holds "reproduced".
_VERDICT_CLASSES = (
    ("not reproduced", "bad"),
    ("counterexample found", "odd"),
    ("reproduced", "good"),
)


def _anchor(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def _cell(text: str) -> str:
    content = html.escape(text)
    if _NUMBER.fullmatch(text):
        return f'<td class="number">{content}</td>'
    css_class = next((name for word, name in _VERDICT_CLASSES if text.startswith(word)), None)
    return (
        f'<td><span class="{css_class}">{content}</span></td>'
        if css_class
        else f"<td>{content}</td>"
    )


def _table(table: Table) -> str:
    head = "".join(f'<th scope="col">{html.escape(column)}</th>' for column in table.columns)
    rows = "\n".join("<tr>" + "".join(map(_cell, row)) + "</tr>" for row in table.rows)
    return (
        '<div class="scroll" tabindex="0" role="region" aria-label="table"><table>'
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}\n</tbody></table></div>"
    )


def _picture(picture: Picture) -> str:
    data = base64.b64encode(picture.svg.encode()).decode()
    return (
        f'<figure id="{picture.name}">'
        f'<img alt="{html.escape(picture.title)}" src="data:image/svg+xml;base64,{data}">'
        f"<figcaption><b>{html.escape(picture.title)}.</b> {html.escape(picture.caption)} Points:"
        f' <a href="figures/{picture.name}.csv">{picture.name}.csv</a></figcaption></figure>'
    )


def _block(block: Block) -> str:
    match block:
        case Heading(text, level):
            return f'<h{level} id="{_anchor(text)}">{html.escape(text)}</h{level}>'
        case Paragraph(text):
            return f"<p>{html.escape(text)}</p>"
        case Command(text):
            return f"<pre><code>{html.escape(text)}</code></pre>"
        case Table():
            return _table(block)
        case Picture():
            return _picture(block)


def render_html(title: str, blocks: list[Block]) -> str:
    """The document as HTML with its styles and figures inside; a list of its sections comes first.

    Raises ValueError where two headings would get the same anchor.
    """
    anchors = [_anchor(block.text) for block in blocks if isinstance(block, Heading)]
    twice = {anchor for anchor in anchors if anchors.count(anchor) > 1}
    if twice:
        raise ValueError(f"headings need different names, {sorted(twice)} stand twice")
    sections = [block.text for block in blocks if isinstance(block, Heading) and block.level == 2]
    links = "".join(f'<li><a href="#{_anchor(s)}">{html.escape(s)}</a></li>' for s in sections)
    first, *rest = map(_block, blocks)
    body = "\n".join([first, f"<nav><ul>{links}</ul></nav>", *rest])
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{html.escape(title)}</title>\n<style>{_CSS}</style>\n</head>\n"
        f"<body>\n<main>\n{body}\n</main>\n</body>\n</html>\n"
    )
