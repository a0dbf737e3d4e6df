"""The documentation: examples, commands, links, theory, tutorial, metrics."""

import doctest
import fnmatch
import importlib
import json
import pathlib
import re
import shlex
import shutil
import sys

import pytest
import yaml

import experiments
from identity_matters.report import page
from tests import forked

ROOT = forked.ROOT
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
THEORY = sorted((DOCS / "theory").glob("*.md"))
TUTORIAL = DOCS / "adding_an_experiment.md"
LIBRARY = ROOT / "identity_matters"


def page_id(path):
    return str(path.relative_to(ROOT))


def fences(path, language):
    pattern = rf"^```{language}\n(.*?)^```"
    return re.findall(
        pattern, path.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )


# Examples and commands


EXAMPLES = [
    (path, code)
    for path in PAGES
    if path != TUTORIAL
    # tests/train/test_train.py runs the first example of docs/training.md.
    for code in fences(path, "python")[path.name == "training.md" :]
]


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
    p for p in sorted(LIBRARY.rglob("*.py")) if ">>> " in p.read_text("utf-8")
]


@pytest.mark.parametrize("path", WITH_EXAMPLES, ids=page_id)
def test_every_example_in_a_docstring_says_what_comes(path):
    module = importlib.import_module(
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
    )
    result = doctest.testmod(module)
    assert result.attempted > 0
    assert result.failed == 0


def commands():
    """Every command of the README and of docs/, in code blocks or backticks."""
    for path in PAGES:
        text = path.read_text(encoding="utf-8")
        lines = [
            line.split(" #")[0]
            for block in fences(path, "bash")
            for line in block.split("\n")
        ]
        for line in (*lines, *re.findall(r"`([^`\n]+)`", text)):
            for part in line.split("&&"):
                if re.match(r"(make [a-z]|\S*python -m experiments\.)", part.strip()):
                    yield path, part.strip()


MADE_BY_TUTORIAL = "half_turn"
MAKE = sorted(
    {c for _, c in commands() if c.startswith("make") and MADE_BY_TUTORIAL not in c}
)
PYTHON = sorted(
    {c for _, c in commands() if "python" in c and MADE_BY_TUTORIAL not in c}
)


@pytest.mark.parametrize("command", [command for command in MAKE if "<" not in command])
def test_every_make_command_would_run(command):
    """A dry run with the variables of the command.

    A variant named by VARIANT must exist.
    """
    words = shlex.split(command.replace("...", "x"))
    finished = forked.shell("make", "--dry-run", "ACCEL=cpu", "RUN=a_run", *words[1:])
    assert finished.returncode == 0, finished.stderr
    for word in words:
        if word.startswith("VARIANT=") and word != "VARIANT=x":
            (target,) = (
                w.removeprefix("reproduce-") for w in words if "reproduce-" in w
            )
            assert experiments.find_variants(target, word.removeprefix("VARIANT="))


@pytest.mark.parametrize("command", PYTHON)
def test_every_module_and_variant_that_a_command_names_is_there(command):
    module = re.search(r"-m (experiments[\w.]+)", command)[1]
    assert (ROOT / f"{module.replace('.', '/')}.py").is_file()
    variant = re.search(r"--config=:([\w/]+)", command)
    if variant and variant[1] != "file":  # "file" takes a file of the reader's
        assert experiments.find_variants(module.split(".")[-1], variant[1])


NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
LARGEST_NOTEBOOK_BYTES = 1_000_000
NEXT_CELL = "--- the next cell ---"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=page_id)
def test_every_notebook_runs_and_its_outputs_are_those_of_its_cells(path, tmp_path):
    """Text agrees with a fresh run, but for cells that are tagged "varies": a training.

    Every figure is there as an image. To write outputs anew: docs/README.md.
    """
    text = path.read_text(encoding="utf-8")
    assert len(text) < LARGEST_NOTEBOOK_BYTES
    cells = json.loads(text)["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    counts = [cell["execution_count"] for cell in code]
    assert counts == list(range(1, len(code) + 1)), "not run from top to bottom"
    finished = forked.run_code(as_program(code), tmp_path)
    printed = finished.stdout.split(f"{NEXT_CELL}\n")[:-1]
    assert len(printed) == len(code)
    for cell, fresh in zip(code, printed, strict=True):
        *lines, figures = fresh.splitlines()
        assert int(figures) == images(cell), cell["id"]
        if "varies" not in cell["metadata"].get("tags", []):
            assert lines == stdout(cell).splitlines(), cell["id"]


def as_program(code):
    """The cells, after each of which come its number of figures and `NEXT_CELL`."""
    lines = ["import matplotlib", "matplotlib.use('agg')"]
    lines += ["from matplotlib import pyplot as plt"]
    for cell in code:
        lines.append("".join(cell["source"]))
        lines.append("print(len(plt.get_fignums()))")
        lines.append("plt.close('all')")
        lines.append(f"print({NEXT_CELL!r})")
    return "\n".join(lines)


def images(cell):
    """How many images the committed outputs of a cell hold."""
    return sum("image/png" in output.get("data", {}) for output in cell["outputs"])


def stdout(cell):
    """What a cell has printed, by its committed outputs."""
    streams = [
        output for output in cell["outputs"] if output["output_type"] == "stream"
    ]
    assert all(stream["name"] == "stdout" for stream in streams)
    return "".join("".join(stream["text"]) for stream in streams)


# Links and paths


@pytest.mark.parametrize("path", PAGES, ids=page_id)
def test_links_and_paths_lead_somewhere(path):
    text = path.read_text(encoding="utf-8")
    for link in re.findall(r"\]\(([^()\s]+)\)", text):
        name, _, heading = link.partition("#")
        if "://" not in link:
            target = path.parent / name if name else path
            assert target.exists(), link
            if heading:
                references = re.findall(
                    r"^#+ (.*)$", target.read_text("utf-8"), re.MULTILINE
                )
                assert heading in map(page.anchor, references), link
    for name in re.findall(r"`([\w./]+/[\w./]*(?:\.py|\.md|\.toml|/))[`:]", text):
        local = re.search(f"{MADE_BY_TUTORIAL}|results/(trial|local)|data/", name)
        assert local or (ROOT / name).exists(), name


# The site


def test_the_navigation_of_the_site_names_every_page_once():
    """The build itself checks links, formulas, and that the API shows public names."""
    settings = yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))
    pages_named = list(leaves(settings["nav"]))
    notebooks = [path.with_suffix(".md") for path in NOTEBOOKS]
    others = [ROOT / name for name in ("CHANGELOG.md", "CONTRIBUTING.md")]
    pages = [*PAGES, *notebooks, *others, ROOT / "results" / "REPORT.md"]
    assert sorted(pages_named) == sorted(map(page_id, pages))


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


# Theory


@pytest.mark.parametrize("path", THEORY, ids=page_id)
def test_every_statement_of_the_theory_names_its_tests(path):
    text = path.read_text(encoding="utf-8")
    stated = set(re.findall(r"\*\*\(([A-Z]\d+)\)\*\*", text))
    rows = re.findall(r"^\| ([A-Z]\d[^|]*) \| `tests/", text, re.MULTILINE)
    assert stated == {number for row in rows for number in row.split(", ")}
    for file, test in re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", text):
        assert f"def {test}(" in (ROOT / file).read_text(encoding="utf-8")


@pytest.mark.parametrize("path", THEORY, ids=page_id)
def test_mathematics_is_written_as_github_reads_it(path):
    """Inline formulas are in dollar-backtick pairs, which Markdown leaves alone.

    Their braces balance.
    """
    text = path.read_text(encoding="utf-8")
    outside_blocks = re.sub(r"```math\n.*?```", "", text, flags=re.DOTALL)
    assert "$" not in re.sub(r"\$`[^`]*`\$", "", outside_blocks)
    for formula in (
        *fences(path, "math"),
        *re.findall(r"\$`([^`]*)`\$", outside_blocks),
    ):
        assert formula.count("{") == formula.count("}"), formula


# The tutorial


@pytest.fixture(scope="module")
def extended(tmp_path_factory):
    """A copy of the repository in which the files of the tutorial have been written."""
    copy = tmp_path_factory.mktemp("copy")
    for name in ("experiments", "identity_matters", "tests"):
        shutil.copytree(
            ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__")
        )
    for name in ("setup.cfg", "ruff.toml"):
        shutil.copy(ROOT / name, copy)
    text = re.sub(r"\s+(?=`[^`\n]*`:\n)", " ", TUTORIAL.read_text(encoding="utf-8"))
    for before, code in re.findall(
        r"([^\n]*)\n\n```(?:python|toml)\n(.*?)```", text, re.DOTALL
    ):
        action, path = re.search(r"(Create|Append to)\s+`([^`]+)`:$", before).groups()
        assert (copy / path).exists() == (action == "Append to"), path
        with open(copy / path, "a", encoding="utf-8") as file:
            file.write("\n" * (action == "Append to") + code)
    return copy


def test_the_tutorial_is_short_runs_and_leaves_no_work_for_the_linter(extended):
    assert len(TUTORIAL.read_text(encoding="utf-8").splitlines()) <= 100
    shown = [line for block in fences(TUTORIAL, "bash") for line in block.splitlines()]
    ran = [line for line in shown if line.startswith(".venv/bin/python -m ")]
    assert len(ran) == 2
    for line in ran:
        arguments = line.replace('"', "").split()[1:]
        finished = forked.shell(sys.executable, *arguments, cwd=extended)
        assert finished.returncode == 0, finished.stdout + finished.stderr
    trial = extended / "results" / "trial"
    (summary,) = (trial / "half_turn").rglob("summary.json")
    written = json.loads(summary.read_text(encoding="utf-8"))
    assert (written["status"], written["claim"]) == ("done", "half-turn")
    assert "A half turn" in (trial / "REPORT.md").read_text(encoding="utf-8")
    for command in (["check"], ["format", "--check"]):
        words = ("-m", "ruff", *command, "experiments", "tests")
        finished = forked.shell(sys.executable, *words, cwd=extended)
        assert finished.returncode == 0, finished.stdout


# Metrics


def test_every_metric_and_field_of_the_reference_runs_has_its_line_and_none_is_stale():
    # (experiments, name or pattern) of each line, and (experiment, name) of what runs
    # recorded.
    listed = []
    recorded = set()
    others = {"Every experiment": "", "Benchmarks": "benchmark"}
    for section in re.split(
        r"^## ", (DOCS / "metrics.md").read_text("utf-8"), flags=re.M
    )[1:]:
        heading = section.splitlines()[0]
        of = re.findall(r"`(\w+)`", heading) or [others[heading]]
        listed += [
            (of, name)
            for name in re.findall(r"^\* `([^`]+)`: \S", section, re.MULTILINE)
        ]
    text = (DOCS / "architecture.md").read_text(encoding="utf-8")
    fields = set(
        re.findall(
            r"^\| `(\w+)` \|", text[text.index("## summary.json") :], re.MULTILINE
        )
    )
    for path in sorted((ROOT / "results" / "reference").rglob("summary.json")):
        summary = json.loads(path.read_text(encoding="utf-8"))
        assert summary.keys() <= fields, path
        experiment = re.sub("^benchmark_.*", "benchmark", summary["experiment"])
        lines = path.with_name("metrics.jsonl").read_text(encoding="utf-8").splitlines()
        names = {
            *summary["metrics"],
            *(field for line in lines for field in json.loads(line)),
        }
        recorded |= {(experiment, name) for name in names}

    def fits(line, run):
        return (run[0] in line[0] or line[0] == [""]) and fnmatch.fnmatchcase(
            run[1], line[1]
        )

    missing = [
        run for run in sorted(recorded) if not any(fits(line, run) for line in listed)
    ]
    assert not missing, f"add a line for each of {missing} to docs/metrics.md"
    ran = {experiment for experiment, _ in recorded}
    stale = [
        line
        for line in listed
        # The lines of an experiment may be older than its reference runs.
        if (line[0] == [""] or ran & set(line[0]))
        and not any(fits(line, run) for run in recorded)
    ]
    assert stale == [], "no run has these: delete their lines in docs/metrics.md"
