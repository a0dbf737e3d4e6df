"""The report: claims, sentences, tables, figures of every seed, the page, and bad
records.
"""

import csv
import dataclasses
import html.parser
import math
import os
import random
import shutil
import string
import sys

import pytest

from identity_matters import code_version, paper, runs
from identity_matters.report import (
    build,
    collection,
    figures,
    markdown,
    numbers,
    page,
    sentences,
    tables,
)
from tests import forked

ROOT = forked.ROOT
REFERENCE = ROOT / "results" / "reference"


def write_run(root, seed=0, scale="paper", status="done", variant="plain", **changes):
    run = runs.RunDir.create(
        root, experiment="toy", variant=variant, seed=seed, config={}, scale=scale
    )
    run.append({"cell": 0, "depth": 2, "norm": 0.5 + seed})
    fields = {"claim": "theorem-2-1", "verdict": "reproduced", "paper": {"norm": 1.25}}
    fields["metrics"] = {"norm": 0.5 + seed, "cells": 1}
    run.finish(status, **{**fields, **changes})
    return run.path


def groups_of(root):
    return collection.read("yours", root).groups


# Values


def test_a_metric_is_mean_and_spread_over_the_seeds_that_have_it(tmp_path):
    for seed in (0, 1, 2):
        write_run(tmp_path, seed)
    (group,) = groups_of(tmp_path)
    # Values 0.5, 1.5, 2.5: mean 1.5, standard deviation 1.
    assert group.metric("norm") == "1.5 ± 1"
    assert group.metric("cells") == "1"
    write_run(tmp_path, 3, metrics={"cells": 1}, paper={})
    (group,) = groups_of(tmp_path)
    assert group.metric("norm") == "1.5 ± 1 (n = 3)"
    assert group.metric("other") == ""


@pytest.mark.parametrize(
    ("say", "values", "texts"),
    [
        (
            numbers.format_number,
            [1000000, 0.123456, 1e-11],
            ["1,000,000", "0.1235", "1e-11"],
        ),
        (
            numbers.format_number,
            [3133.9, True, 0.0, None],
            ["3,134", "true", "0", "None"],
        ),
        (numbers.in_words, [[6.148, 6.149], [5.9, 6.4]], ["6.1", "5.9–6.4"]),
        (numbers.in_words, [[0.0, 0.0, 0.5], [1085, 1116]], ["0–0.50", "1,085–1,116"]),
        (numbers.in_words, [[0.99996], [99.7], [999.9999]], ["1.0", "100", "1,000"]),
        (numbers.in_words, [[float("inf")], [1.6e32]], ["inf", "1.6 × 10^32"]),
        (
            lambda value: numbers.in_words([value], 4),
            [3133.9, 12.5],
            ["3,134", "12.50"],
        ),
        (numbers.duration, [0.4, 119, 120, 7200], ["0 s", "119 s", "2.0 min", "2.0 h"]),
    ],
)
def test_numbers_as_people_write_them(say, values, texts):
    assert [say(value) for value in values] == texts


@pytest.mark.parametrize(
    ("value", "least", "greatest"),
    [
        (0.63865, "0.63", "0.64"),
        (-0.5551, "-0.56", "-0.55"),
        (1085.4, "1,085", "1,086"),
        (1.61e32, "1.6 × 10^32", "1.7 × 10^32"),
        (1 + 2e-16, "1.0", "1.0"),  # a rounding error of float64 does not make it 1.1
        (7, "7", "7"),
    ],
)
def test_a_bound_that_is_rounded_is_still_a_bound(value, least, greatest):
    assert numbers.in_words([value], extreme="min") == least
    assert numbers.in_words([value], extreme="max") == greatest


def test_sentences_have_ranges_extremes_and_the_largest_over_variants(tmp_path):
    for variant, norms in {"a": (1.0, 4.0), "b": (3.0, 2.0)}.items():
        for seed, norm in enumerate(norms):
            write_run(tmp_path, seed, variant=variant, metrics={"norm": norm}, paper={})
    members = groups_of(tmp_path)
    assert sentences.fill("{toy/a:norm}", members)[0] == "1–4"
    assert sentences.fill("{toy/a:max norm} {toy/a:min norm~3}", members)[0] == "4 1"
    write_run(tmp_path, 0, variant="digits", metrics={"norm": 1.2345}, paper={})
    assert (
        sentences.fill("{toy/digits:norm} {toy/digits:norm~4}", groups_of(tmp_path))[0]
        == "1.2 1.234"
    )
    # Seed 0: 3, seed 1: 4.
    assert sentences.fill("{toy/*:norm} {toy/*:min norm}", members)[0] == "3–4 1"
    for sentence in ("{toy/c:norm}", "{toy/a:other}", "{other/*:norm}"):
        with pytest.raises(sentences.MissingValueError):
            sentences.fill(sentence, members)


def test_reduced_runs_give_way_to_those_at_paper_scale(tmp_path):
    write_run(tmp_path, 1, scale="reduced")
    assert sentences.fill("{toy/plain:norm}", groups_of(tmp_path))[0] == "1.5"
    write_run(tmp_path, 0)
    assert sentences.fill("{toy/plain:norm}", groups_of(tmp_path))[0] == "0.50"
    assert (
        sentences.verdicts("theorem-2-1", groups_of(tmp_path))
        == "reproduced; reproduced (reduced)"
    )
    drawn = build._drawn_runs("toy", collection.read("yours", tmp_path))
    assert [run.seed for run in drawn] == [0]


# Verdicts


@pytest.mark.parametrize(
    ("scale", "yours", "reference", "count"),
    [
        ("paper", "not reproduced", None, 1),
        ("reduced", "not reproduced", "reproduced", 1),
        ("reduced", "not reproduced", None, 0),
        ("paper", "counterexample", "holds", 1),
        ("paper", "undecided", "reproduced", 0),
        ("paper", "reproduced", "reproduced", 0),
        ("paper", "not reproduced", "not reproduced", 0),
        ("paper", "not reproduced", "undecided", 1),
    ],
)
def test_contradictions(tmp_path, scale, yours, reference, count):
    def group(verdict):
        summary = {"scale": scale, "verdict": verdict, "claim": "theorem-2-1"}
        names = {"experiment": "toy", "variant": "plain", "seed": 0}
        run = runs.Run(tmp_path, {}, {}, {**summary, **names}, [])
        return [collection.Group((run,))]

    said = collection.contradictions(
        group(yours), group(reference) if reference else []
    )
    assert len(said) == count


# Claims and printed bounds


def test_printed_bounds_by_hand():
    assert paper.theorem_2_1_bound_iclr2017(0.0, 2) == pytest.approx(math.pi)
    # gamma = pi / 3: 2 (2 sqrt(pi))^2 / 8 = pi
    assert paper.theorem_2_1_bound_iclr2017(math.pi / 3, 8) == pytest.approx(math.pi)
    assert paper.theorem_2_1_bound_v3(math.pi / 3, 5) == pytest.approx(math.pi)
    assert paper.theorem_2_1_bound_psd(2.0, 12) == pytest.approx(0.5)
    point = {"depth": 3, "tau": 0.5, "sigma_min": 1.0, "excess": 1.0}
    assert paper.gradient_bound_iclr2017(**point) == 12 * 0.25
    assert paper.gradient_bound_v3(**point) == 12 * 0.0625
    # 10 log(7) / 4 = 4.86 and 10 log(8) / 4 = 5.20, rounded up.
    assert [paper.theorem_3_2_width(n, 2.0) for n in (7, 8)] == [5, 6]


def test_a_claim_must_say_who_was_first():
    entry = paper.CLAIMS["theorem-2-1"]._asdict()
    name = entry.pop("id")
    assert paper._claim(name, entry) == paper.CLAIMS[name]
    for field in ("first", "statement"):
        with pytest.raises(ValueError, match=rf"\[claim.theorem-2-1\] lacks {field}$"):
            paper._claim(
                name, {key: text for key, text in entry.items() if key != field}
            )
    with pytest.raises(ValueError, match="unknown fields: proof"):
        paper._claim(name, {**entry, "proof": ""})


def test_the_reference_runs_have_every_value_that_a_sentence_names():
    """Covers the runs that exist; `make reproduce` and `make report-reference` add the
    others.
    """
    members = collection.read("reference", REFERENCE).groups
    names = {group.name for group in members} | {
        f"{g.first.experiment}/*" for g in members
    }
    texts = [text for claim in paper.CLAIMS.values() for text in claim.ours]
    for sentence in (*texts, *(finding.text for finding in paper.FINDINGS)):
        fields = [name for _, name, _, _ in string.Formatter().parse(sentence) if name]
        assert fields, sentence
        if set(fields) <= names:
            assert "{" not in sentences.fill(sentence, members)[0], sentence


def test_a_claim_without_runs_is_not_run_and_one_without_a_fitting_metric_is_empty(
    tmp_path,
):
    write_run(tmp_path, 0)
    members = groups_of(tmp_path)
    assert sentences.headline("theorem-2-2", members) == "not run"
    assert sentences.headline("theorem-2-1", members) == ""


# Tables and figures


def test_bars_and_markup_of_a_run_do_not_break_a_table():
    rows = [{"|||A|||": markdown.Markdown("`a|b`\nc")}, {"|||A|||": "<!--*[x](y)`"}]
    lines = markdown.table(rows).splitlines()
    assert lines[2:] == ["| `a\\|b` c |", "| &lt;!--\\*\\[x\\](y)\\` |"]


def test_table_2_has_a_row_for_each_published_error_and_ours_at_paper_scale(tmp_path):
    for seed, scale in ((0, "paper"), (1, "paper"), (2, "reduced")):
        errors = {"test_error_percent": 6.5 + seed, "test_error_best_percent": 6.25}
        net = "cifar10/all_conv_residual"
        write_run(tmp_path, seed, scale=scale, variant=net, metrics=errors, paper={})
    cells = [tuple(row.values()) for row in tables.table_2(groups_of(tmp_path))]
    rows = {row[:2]: row[2:] for row in cells}
    assert len(rows) == sum(len(numbers) for numbers in paper.TABLE_2.values())
    # Mean of 6.5 and 7.5; standard deviation of two values that differ by 1: 1/sqrt(2).
    assert rows["this paper", "CIFAR-10"][:4] == ("6.38", "7 ± 0.71", "6.25", "2")
    assert rows["DenseNet", "CIFAR-10"][:4] == ("3.74", "not run", "not run", "0")


def test_reduced_cifar_runs_have_their_share_of_the_papers_operations():
    run = runs.read_run(REFERENCE / "cifar" / "cifar10" / "small" / "seed=0")
    full = dataclasses.replace(run, summary={**run.summary, "scale": "paper"})
    (result,) = (record for record in run.records if record["kind"] == "result")
    examples = result["steps"] * result["train"]["batch_examples"]
    share = (
        examples * result["training_flops_per_example"] / paper.cifar_training_flops(10)
    )
    (row,) = tables.reduced_cifar([collection.Group((one,)) for one in (run, full)])
    assert (row["net"], row["data set"]) == ("small", "CIFAR-10")
    share_column = "share of a full run's operations (%)"
    assert row[share_column] == f"{100 * share:.2g}"
    # Malformed records leave the share empty, and do not stop the report.
    bad = dataclasses.replace(run, records=[{"kind": "result", "steps": "many"}])
    (row,) = tables.reduced_cifar([collection.Group((bad,))])
    assert row[share_column] == ""


TOY = figures.Figure(
    name="toy_norms",
    experiment="toy",
    points=lambda run: [
        {"depth": row["depth"], "norm": row["norm"]} for row in run.records
    ],
    draw=lambda points, canvas: figures.curve(
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


def test_the_report_names_everything_it_read_and_everything_it_skipped(
    tmp_path, monkeypatch
):
    out = write_report(tmp_path, monkeypatch)
    text = (out / "REPORT.md").read_text()
    assert "| metric | paper | reference, n = 1 | yours (reduced), n = 1 |" in text
    assert "| norm | 1.25 | 0.5 | 1.5 |" in text
    assert "toy/plain/seed=2: interrupted" in text
    assert "seed=9/summary.json: missing" in text
    assert "![One mark, at depth 2.](figures/toy_norms.svg)" in text
    to_errata = os.path.relpath(ROOT / "docs" / "theory" / "errata.md", out)
    caption = f"Norm over depth; see [docs/theory/errata.md]({to_errata})."
    assert f"**Norms & <bounds>.** {caption}" in text
    # The same points give the same bytes.
    svg = (out / "figures" / "toy_norms.svg").read_text()
    assert (
        figures.render(TOY, [{"variant": "plain", "seed": 1, "depth": 2, "norm": 1.5}])
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


# The page


class Checked(html.parser.HTMLParser):
    """Checks that a page closes its elements in order, and fetches and runs nothing."""

    def __init__(self, text):
        super().__init__()
        self.open, self.ids, self.links, self.data = [], [], [], ""
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


# Bad records


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
    """Changed at random; what cannot be used is listed, and the other seed is still
    drawn.
    """
    variants = ("landscape/hessian_at_origin", "comparisons/digits/identity")
    drawn = [
        one
        for one in figures.FIGURES
        if one.name in ("landscape_origin", "comparisons_identity")
    ]
    monkeypatch.setattr(figures, "FIGURES", drawn)
    monkeypatch.setitem(figures._SETTINGS, "figure.constrained_layout.use", False)
    read = [
        runs.read_run(REFERENCE / name / f"seed={i}")
        for name in variants
        for i in (0, 1)
    ]
    rng, refused = random.Random(0), 0
    for round_ in range(10):
        shown, place = list(read), 1 + 2 * (round_ % 2)
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
        assert made == {one.name for one in drawn}
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
        assert [one.seed for one in drawn] == [0, 2]
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
        found = collection.read("yours", tmp_path)
        assert [one.seed for one in found.runs] == [0, 2]
        assert "seed=1: cannot be reported: " in found.problems[0]


# What is committed


def test_the_committed_pages_are_what_the_reference_runs_say(tmp_path, monkeypatch):
    """If this fails, run `make report-reference`."""
    # Figures are drawn without the layout step, which takes as long again.
    monkeypatch.setitem(figures._SETTINGS, "figure.constrained_layout.use", False)
    results = tmp_path / "results"
    shutil.copytree(REFERENCE, results / "reference")
    # The links to docs/ are relative to the report.
    (tmp_path / "docs").symlink_to(ROOT / "docs")
    monkeypatch.setattr(code_version, "REPOSITORY", tmp_path)
    reference = collection.read("reference", results / "reference")
    assert reference.problems == []
    # A step is 2.5 times a bare chain, PyTorch is faster, and libtpu crashes on two
    # programs.
    missed = [
        line.partition("/")[0]
        for line in collection.contradictions(reference.groups, [])
    ]
    assert missed == [
        f"benchmark_{name}" for name in ("linear", "train_step", "compile_check")
    ]
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
