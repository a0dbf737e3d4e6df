"""The site of `make docs`, made by mkdocs from the repository's own files.

Pages keep their paths in the repository, so that a relative link leads to the same
place on GitHub and on the site. Each module of the library gets a page with its public
names. A link to what the site lacks, such as the directory of a run, becomes its text.
Formulas become MathML here, so that the site needs no script for them and asks no
other server for anything.
"""

import ast
import html
import importlib.metadata
import json
import pathlib
import posixpath
import re
import xml.etree.ElementTree as etree

import math_core
from markdown import Markdown
from markdown.extensions import Extension
from markdown.inlinepatterns import InlineProcessor
from markdown.preprocessors import Preprocessor
from markdown.treeprocessors import Treeprocessor
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from pymdownx.slugs import slugify

ROOT = pathlib.Path(__file__).resolve().parents[2]
LIBRARY = "identity_matters"
PAGES = (
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "docs/*.md",
    "docs/theory/*.md",
    "notebooks/*.ipynb",
    "results/REPORT.md",
)
ASSETS = (
    "CITATION.cff",
    "clusters/*",
    "docs/site/style.css",
    "results/figures/*",
    "results/tables/*",
    "results/report.html",
)
MOST_LATEX_IN_LINE = 45  # characters; a longer formula may be wider than a telephone
REPORT = "results/report.html"
# MathML needs a font that has all sizes of brackets; few machines have one.
MATH_FONT = importlib.metadata.distribution("ziamath").locate_file(
    "ziamath/fonts/STIXTwoMath-Regular.ttf"
)


# The files of the site


def on_config(config):
    """Adds the notation of the pages, and the modules to the navigation."""
    config.markdown_extensions.append(NOTATION)
    config.mdx_configs["pymdownx.superfences"] = {
        "custom_fences": [{"name": "math", "class": "formula", "format": _fence}]
    }
    # GitHub's names of headings, so that links to them lead there on the site, too.
    config.mdx_configs["toc"]["slugify"] = slugify(case="lower")
    config.nav.append({"API": api_navigation()})
    return config


def api_navigation() -> list:
    """The packages of the library, each with its modules under their short names."""
    packages: dict[str, list] = {}
    for page, module in module_pages().items():
        name = module.rpartition(".")[2]
        is_package = posixpath.basename(page) == "index.md"
        package = module if is_package else module.rpartition(".")[0]
        modules = packages.setdefault(package, [])
        modules.append(page if is_package else {name: page})
    return [
        {name.removeprefix(f"{LIBRARY}."): modules}
        for name, modules in packages.items()
    ]


def module_pages() -> dict[str, str]:
    """The page of each module of the library -> the module's dotted name."""
    pages = {}
    for path in sorted((ROOT / LIBRARY).rglob("*.py")):
        file = path.relative_to(ROOT)
        if file.name == "__init__.py":
            pages[f"{file.parent}/index.md"] = ".".join(file.parent.parts)
        else:
            pages[f"{file.with_suffix('.md')}"] = ".".join(file.with_suffix("").parts)
    return pages


def on_files(files, config):
    """All files of the site: the theme's, those of the repository, and the API."""
    site = Files([file for file in files if file.src_dir != config.docs_dir])
    for pattern in (*PAGES, *ASSETS):
        for path in sorted(ROOT.glob(pattern)):
            name = path.relative_to(ROOT).as_posix()
            if path.suffix == ".ipynb":
                text = notebook_as_markdown(json.loads(path.read_text("utf-8")))
                page = posixpath.splitext(name)[0] + ".md"
                site.append(File.generated(config, page, content=text))
            elif name != REPORT:
                site.append(File.generated(config, name, abs_src_path=str(path)))
    for page, module in module_pages().items():
        text = f"# {module}\n\n::: {module}\n"
        site.append(File.generated(config, page, content=text))
    font = MATH_FONT.read_bytes()
    site.append(File.generated(config, "docs/site/math.ttf", content=font))
    report = with_links_to_pages((ROOT / REPORT).read_text("utf-8"), site.src_uris)
    site.append(File.generated(config, REPORT, content=report))
    return site


def with_links_to_pages(report: str, pages) -> str:
    """The report as one page, whose links lead to files of the site.

    A link to what the site lacks becomes its text, as in `Links`.
    """
    here = posixpath.dirname(REPORT)

    def link(found: re.Match) -> str:
        target, text = found.groups()
        path = posixpath.normpath(posixpath.join(here, html.unescape(target)))
        page = page_of(path, pages)
        if page is None:
            return text
        place = posixpath.relpath(re.sub(r"\.md$", ".html", page), here)
        return f'<a href="{place}">{text}</a>'

    return re.sub(r'<a href="(?!#|\w+:)([^"#]+)">(.*?)</a>', link, report)


def notebook_as_markdown(notebook: dict) -> str:
    """The cells of a notebook and their committed outputs; figures become data URLs.

    The alternative text of a figure is the heading above it.
    """
    parts = []
    heading = "figure"
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            heading = ([heading, *re.findall(r"^#+ (.*)$", source, re.MULTILINE)])[-1]
            parts.append(re.sub(r"\$([^$]+)\$", r"$`\1`$", source))
            continue
        parts.append(f"```python\n{source}\n```")
        for output in cell["outputs"]:
            data = output.get("data", {})
            if "image/png" in data:
                image = "".join(data["image/png"]).strip()
                parts.append(f"![{heading}](data:image/png;base64,{image})")
            elif output["output_type"] == "stream":
                parts.append(f"```text\n{''.join(output['text'])}```")
            elif "text/plain" in data:
                parts.append(f"```text\n{''.join(data['text/plain'])}\n```")
    return "\n\n".join(parts)


def on_post_build(config):
    """Ends the build with PluginError if a public name or a linked file is missing."""
    check_links_of_report(pathlib.Path(config.site_dir))
    modules = set(module_pages().values())
    for page, module in module_pages().items():
        html = (pathlib.Path(config.site_dir) / page).with_suffix(".html")
        shown = html.read_text(encoding="utf-8")
        for name in {f"{module}.{name}" for name in public_names(module)} - modules:
            if f'id="{name}"' not in shown:
                raise PluginError(f"{page} does not show {name}")


def check_links_of_report(site: pathlib.Path) -> None:
    """Raises PluginError if a link of the report's page leads nowhere on the site."""
    place = site / REPORT
    for href in re.findall(r'<a href="([^"#]+)"', place.read_text("utf-8")):
        if not re.match(r"\w+:", href) and not (place.parent / href).exists():
            raise PluginError(f"{REPORT} links to {href}, which the site lacks")


def public_names(module: str) -> set[str]:
    """What a module defines without an underscore, and what its `__all__` lists."""
    path = ROOT.joinpath(*module.split("."))
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    names = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                names.add(name)
            case ast.Assign(targets=[ast.Name(id="__all__")], value=listed):
                names.update(ast.literal_eval(listed))
            case ast.Assign(targets=[ast.Name(id=name)]):
                names.add(name)
            case ast.AnnAssign(target=ast.Name(id=name)):
                names.add(name)
    return {name for name in names if not name.startswith("_")}


# The text of the pages


def on_page_markdown(markdown, *, page, files, **_):
    """Tells Python-Markdown what GitHub knows: details and fences with two words."""
    NOTATION.page, NOTATION.files = page, files
    markdown = re.sub(r"^```(\w+) .*$", r"```\1", markdown, flags=re.MULTILINE)
    return markdown.replace("<details>", '<details markdown="1">')


class Notation(Extension):
    """Formulas as GitHub writes them, and links between files of the repository."""

    page = files = None

    def extendMarkdown(self, md: Markdown):
        # Before fences, whose priority is 25.
        md.preprocessors.register(Doctests(md), "doctests", 30)
        # Before backticks, whose priority is 190, make code of what is between them.
        formula = r"(\(?)\$`([^`]+)`\$([.,:;?)]*)"
        md.inlinePatterns.register(InlineMath(formula, md), "math", 195)
        # After links are made (20), and before mkdocs reads them (0).
        md.treeprocessors.register(Links(md), "repository_links", 10)


class Doctests(Preprocessor):
    """Examples after >>> are code, not quotations."""

    def run(self, lines: list[str]) -> list[str]:
        fenced = []
        inside = False
        for line in [*lines, ""]:
            if line.startswith(">>> ") and not inside:
                fenced.append("```pycon")
                inside = True
            elif not line and inside:
                fenced.append("```")
                inside = False
            fenced.append(line)
        return fenced


class InlineMath(InlineProcessor):
    """A formula between dollar-backtick pairs, and the punctuation that belongs to it.

    A line may break before and after a formula in MathML, so a period after it could
    begin the next line.
    """

    def handleMatch(self, m, data):
        opening, latex, punctuation = m.groups()
        formula = mathml(latex, displaystyle=False)
        kind = "long-formula" if len(latex) > MOST_LATEX_IN_LINE else "formula-in-line"
        text = f'<span class="{kind}">{opening}{formula}{punctuation}</span>'
        return self.md.htmlStash.store(text), m.start(0), m.end(0)


class Links(Treeprocessor):
    """Links to modules and notebooks lead to their pages; other lost links end."""

    def run(self, root: etree.Element):
        here = posixpath.dirname(NOTATION.page.file.src_uri)
        for element in root.iter("a"):
            href = element.get("href", "")
            if not href or re.match(r"\w+:|#|//|/", href):
                continue
            target, hash_sign, anchor = href.partition("#")
            path = posixpath.normpath(posixpath.join(here, target))
            page = page_of(path, NOTATION.files.src_uris)
            if page:
                element.set("href", posixpath.relpath(page, here) + hash_sign + anchor)
            elif (ROOT / path).exists():
                element.tag = "span"
                del element.attrib["href"]


def page_of(path: str, pages) -> str | None:
    """Which of `pages` shows this file or directory of the repository, if one does."""
    stem, suffix = posixpath.splitext(path)
    stem = stem.removesuffix("/__init__") if suffix == ".py" else stem
    names = (path, f"{stem}.md", f"{stem}/index.md", f"{stem}/README.md")
    return next((name for name in names if name in pages), None)


def _fence(source, language, css_class, options, md, **_):
    formula = mathml(source.strip(), displaystyle=True)
    return f'<div class="{css_class}" tabindex="0">{formula}</div>'


def mathml(latex: str, *, displaystyle: bool) -> str:
    """A formula as MathML; PluginError ends the build if it is not understood."""
    try:
        return _CONVERTER.convert_with_local_state(latex, displaystyle=displaystyle)
    except math_core.LatexError as error:
        raise PluginError(f"cannot read the formula {latex!r}: {error}") from error


NOTATION = Notation()
_CONVERTER = math_core.LatexToMathML(fancy_error=False)
