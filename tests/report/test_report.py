"""The whole report: what it names, the page, bad records, and what is committed."""

import csv
import dataclasses
import os
import random
import re
import shutil
import sys

import pytest

from identity_matters import code_version, runs
from identity_matters.report import build, collection, figures, page
from identity_matters.report.figures import saving, style
from tests import forked
from tests.measured import REFERENCE
from tests.report.toy_report import TOY, Checked, toy_caption, write_report
from tests.report.toy_runs import write_run

__all__ = ["toy_caption"]  # a fixture

ROOT = forked.ROOT


def test_the_report_names_everything_it_read_and_everything_it_skipped(
    tmp_path, monkeypatch
):
    out = write_report(tmp_path, monkeypatch)
    text = (out / "REPORT.md").read_text()
    assert "| metric | paper | reference, n = 1 | yours (reduced), n = 1 |" in text
    assert "| norm | 1.25 | 0.5 | 1.5 |" in text
    assert "toy/plain/seed=2: interrupted" in text
    assert "seed=9/summary.json: missing" in text
    # With a line break before the caption, also where there is room beside the figure.
    assert "![One mark, at depth 2.](figures/toy_norms.svg)  \n**Norms" in text
    assert "<figcaption><strong>Norms" in (out / "report.html").read_text()
    to_errata = os.path.relpath(ROOT / "docs" / "theory" / "errata.md", out)
    caption = f"Norm over depth; see [docs/theory/errata.md]({to_errata})."
    assert f"**Norms & <bounds>.** {caption}" in text
    # The same points give the same bytes.
    svg = (out / "figures" / "toy_norms.svg").read_text()
    assert (
        saving.render(TOY, [{"variant": "plain", "seed": 1, "depth": 2, "norm": 1.5}])
        == svg
    )
    points = (out / "figures" / "toy_norms.csv").read_text()
    assert points == "variant,seed,depth,norm\nplain,1,2,1.5\n"
    metrics = list(
        csv.DictReader((out / "tables" / "metrics.csv").read_text().splitlines())
    )
    assert [row["value"] for row in metrics if row["metric"] == "norm"] == [
        "0.5",
        "1.5",
    ]


def test_a_report_that_fails_leaves_the_old_one_whole(tmp_path, monkeypatch):
    out = write_report(tmp_path, monkeypatch)
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}

    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(page, "render", full)
    with pytest.raises(OSError, match="No space left"):
        build.write([collection.read("reference", tmp_path / "reference")], out)
    assert {
        path: path.read_bytes() for path in out.rglob("*") if path.is_file()
    } == before


def test_the_page_is_whole_fetches_nothing_and_its_links_lead_somewhere(
    tmp_path, monkeypatch
):
    out = write_report(tmp_path, monkeypatch)
    text = (out / "report.html").read_text()
    checked = Checked(text)
    for link in checked.links:
        assert (
            link[1:] in checked.ids if link.startswith("#") else (out / link).exists()
        ), link
    # latex2mathml copies commands that it does not know, with their backslash.
    assert "\\" not in text[text.index("<math") : text.rindex("</math>")]
    assert '<td data-label="yours (reduced), n = 1" class="number">1.5</td>' in text


def test_formulas_have_the_spaces_and_signs_of_latex():
    latex = r"n\log n\sim\log(n)\log^2 n"
    text = page.render(f"# Title\n\n```math\n{latex}\n```\n", ROOT)
    formula = text[text.index("<math") : text.index("</math>")]
    space = '<mspace width="0.167em" />'
    n, log = "<mi>n</mi>", "<mi>log</mi>"
    assert f"{n}{space}{log}{space}{n}<mo>&#x0223C;</mo>{log}<mo" in formula
    assert f"<msup>{log}<mn>2</mn></msup>" in formula


def test_no_sentence_of_the_report_has_raw_latex():
    report = (ROOT / "results/REPORT.md").read_text(encoding="utf-8")
    prose = re.sub(r"^```.*?^```$", "", report, flags=re.DOTALL | re.MULTILINE)
    assert re.findall(r".{,30}(?:[\^_]\{|10\^|\$|\\[a-z]).{,10}", prose) == []


def test_the_introduction_says_what_was_run_at_full_size_if_it_was(
    tmp_path, monkeypatch
):
    said = "net of Table 2 was trained at full size"
    toy = (write_report(tmp_path, monkeypatch) / "REPORT.md").read_text()
    assert said not in toy
    committed = (ROOT / "results/REPORT.md").read_text(encoding="utf-8")
    introduction, _, _ = committed.partition("## Findings")
    (paragraph,) = (part for part in introduction.split("\n\n") if said in part)
    assert "6.86 % test error" in paragraph
    assert "diverged after step 19,100" in paragraph


def test_every_verdict_has_a_class_on_the_page():
    assert set(page.CLASSES_OF_VERDICTS) == set(runs.VERDICTS)
    style = (ROOT / "identity_matters/report/page.css").read_text(encoding="utf-8")
    for name in filter(None, page.CLASSES_OF_VERDICTS.values()):
        assert f".{name} {{ color: " in style


def changed(value, rng):
    """`value` with one field, at any depth, removed, renamed or of another type."""
    if isinstance(value, dict) and value and rng.random() < 0.9:
        name = rng.choice(sorted(value))
        match rng.randrange(4):
            case 0:
                return {k: v for k, v in value.items() if k != name}
            case 1:
                return {f"{k}x" if k == name else k: v for k, v in value.items()}
            case _:
                return {**value, name: changed(value[name], rng)}
    if isinstance(value, list) and value and rng.random() < 0.7:
        place = rng.randrange(len(value))
        return [*value[:place], changed(value[place], rng), *value[place + 1 :]]
    return rng.choice(
        [None, True, -1, 10**400, "text $x_{ <b>", [], {}, [1, "a"], {"a": 1}, 0.5]
    )


def test_no_change_of_a_record_stops_the_report(tmp_path, monkeypatch):
    """Changed at random.

    What cannot be used is listed, and the other seed is still drawn.
    """
    variants = ("landscape/hessian_at_origin", "comparisons/digits/identity")
    drawn = [
        figure
        for figure in figures.FIGURES
        if figure.name in ("landscape_origin", "comparisons_identity")
    ]
    monkeypatch.setattr(figures, "FIGURES", drawn)
    monkeypatch.setitem(style.SETTINGS, "figure.constrained_layout.use", False)
    read = [
        runs.read_run(REFERENCE / name / f"seed={i}")
        for name in variants
        for i in (0, 1)
    ]
    rng = random.Random(0)
    refused = 0
    for round_ in range(10):
        shown = list(read)
        place = 1 + 2 * (round_ % 2)
        field = rng.choice(("summary", "environment", "records", "records"))
        value = getattr(shown[place], field)
        if field == "records":
            at = rng.randrange(len(value))
            value = [*value[:at], changed(value[at], rng), *value[at + 1 :]]
        else:
            value = changed(value, rng)
        shown[place] = dataclasses.replace(shown[place], **{field: value})
        try:  # as read_run does
            runs.check_summary(shown[place].summary)
        except ValueError:
            del shown[place]
        monkeypatch.setattr(
            collection, "read_collection", lambda _, shown=shown: (shown, [])
        )
        build.write([collection.read("yours", tmp_path)], tmp_path / "out")
        made = {path.stem for path in (tmp_path / "out" / "figures").glob("*.svg")}
        assert made == {figure.name for figure in drawn}
        refused += "## Left out" in (tmp_path / "out" / "REPORT.md").read_text()
    assert refused >= 2


def test_what_cannot_be_used_of_a_run_is_listed_and_the_rest_is_shown(
    tmp_path, monkeypatch
):
    first, bad, last = (runs.read_run(write_run(tmp_path, seed)) for seed in (0, 1, 2))
    for record in (
        {"depth": 2},
        {"depth": 2, "norm": "wide"},
        {"depth": 2, "norm": 10**400},
    ):
        read = [first, dataclasses.replace(bad, records=[record]), last]
        drawn, problems = figures.save(TOY, read, tmp_path)
        assert [run.seed for run in drawn] == [0, 2]
        assert "seed=1: figure toy_norms" in problems[0]
        assert len((tmp_path / "toy_norms.csv").read_text().splitlines()) == 3
    for changed in (
        {"environment": {}},
        {"environment": {**bad.environment, "command": None}},
        {"summary": {**bad.summary, "claim": "Theorem 9.9"}},
        {"summary": {**bad.summary, "seconds": {}}},
    ):
        read = [first, dataclasses.replace(bad, **changed), last]
        monkeypatch.setattr(
            collection, "read_collection", lambda _, read=read: (read, [])
        )
        collected = collection.read("yours", tmp_path)
        assert [run.seed for run in collected.runs] == [0, 2]
        assert "seed=1: cannot be reported: " in collected.problems[0]


def test_the_committed_pages_are_what_the_reference_runs_say(tmp_path, monkeypatch):
    """If this fails, run `make report-reference`."""
    # Figures are drawn without the layout step, which takes as long again.
    monkeypatch.setitem(style.SETTINGS, "figure.constrained_layout.use", False)
    results = tmp_path / "results"
    shutil.copytree(REFERENCE, results / "reference")
    # The links to docs/ are relative to the report.
    (tmp_path / "docs").symlink_to(ROOT / "docs")
    monkeypatch.setattr(code_version, "REPOSITORY", tmp_path)
    reference = collection.read("reference", results / "reference")
    assert reference.problems == []
    assert reference.unfinished == []
    contradicted = {
        line.partition(" ")[0]: line.partition("): ")[2]
        for line in collection.contradictions(reference.groups, [])
    }
    new = "counterexample; the reference has no counterexample to this claim"
    assert contradicted == {
        "gradient_bound/iclr2017": new,
        "gradient_bound/v3": new,
        "relu/origin": new,
        "relu/dead_units": new,
        "relu/search": new,
        "memorize/paper_method": new,
        # A step is 2.5 times a bare chain, PyTorch is faster, and the paper's recipe
        # diverged on CIFAR-100.
        "benchmark_linear/gradient_step": "not reproduced",
        "benchmark_train_step/cpu": "not reproduced",
        "cifar/cifar100/all_conv_residual": "not reproduced",
    }
    assert collection.contradictions(reference.groups, reference.groups) == []
    for run in reference.runs:
        assert (
            run.environment["dirty"] is False and len(run.environment["commit"]) == 40
        ), run.path
    build.write([reference], results)
    points = [path.name for path in (ROOT / "results" / "figures").glob("*.csv")]
    for name in ("REPORT.md", *(f"figures/{name}" for name in points)):
        committed = (ROOT / "results" / name).read_text()
        assert (results / name).read_text() == committed, name
    readme = (ROOT / "README.md").read_text()
    assert build.with_results(readme, reference) == readme
    for bad in (
        "no marks",
        readme.replace("<!-- end of findings", "<!-- findings: written by"),
    ):
        with pytest.raises(ValueError, match="findings"):
            build.with_results(bad, reference)


def test_comparing_runs_waits_for_neither_jax_nor_matplotlib():
    code = (
        "import sys, experiments.compare;print([name for name in ('jax', 'scipy',"
        " 'matplotlib') if name in sys.modules])"
    )
    finished = forked.shell(sys.executable, "-c", code)
    assert finished.stdout.strip() == "[]", finished.stderr
