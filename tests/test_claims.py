"""claims.toml and the published bounds: complete, at points by hand, filled by the runs."""

import math
import pathlib
import string

import pytest

from identity_matters import paper
from identity_matters.report import figures, groups, tables
from tests.test_report import write_run

REFERENCE = pathlib.Path(__file__).resolve().parent.parent / "results" / "reference"


def test_bounds_of_theorem_2_1():
    assert paper.theorem_2_1_bound_iclr2017(0.0, 2) == pytest.approx(math.pi)
    # gamma = pi / 3: 2 (2 sqrt(pi))^2 / 8 = pi
    assert paper.theorem_2_1_bound_iclr2017(math.pi / 3, 8) == pytest.approx(math.pi)
    assert paper.theorem_2_1_bound_v3(math.pi / 3, 5) == pytest.approx(math.pi)
    assert paper.theorem_2_1_bound_psd(2.0, 12) == pytest.approx(0.5)


def test_both_printed_gradient_bounds_are_32_at_the_smallest_counterexample():
    """d = l = 1, A = 0, R = 2, Sigma = 2: f - C = 2, ||grad f||^2 = (2 * 1 * 2)^2 = 16 < 32."""
    for bound in (paper.gradient_bound_iclr2017, paper.gradient_bound_v3):
        assert bound(depth=1, tau=0.0, sigma_min=2.0, excess=2.0) == 32.0


def test_the_printed_gradient_bounds_differ_in_the_exponent():
    point = {"depth": 3, "tau": 0.5, "sigma_min": 1.0, "excess": 1.0}
    assert paper.gradient_bound_iclr2017(**point) == 12 * 0.25
    assert paper.gradient_bound_v3(**point) == 12 * 0.0625


def test_width_of_theorem_3_2():
    # 10 log(7) / 4 = 4.86 and 10 log(8) / 4 = 5.20, rounded up.
    assert paper.theorem_3_2_width(7, 2.0) == 5
    assert paper.theorem_3_2_width(8, 2.0) == 6


def test_orders_of_the_parameter_counts():
    assert paper.theorem_3_2_order(1, 3) == 9.0
    assert paper.yun_2019_order(16) == 16.0
    assert paper.vardi_2021_order(16) == 4.0


def test_a_claim_is_found_by_its_id_and_by_the_title_that_old_records_have():
    assert paper.claim_id("Table 2, CIFAR-10") == "table-2-cifar-10"
    assert paper.claim_id("Table 2, CIFAR-10") == "table-2-cifar-10"
    for unknown in ("Theorem 9.9", "", None, 3):
        with pytest.raises(ValueError, match="claim must be an id of"):
            paper.claim_id(unknown)


def test_texts_have_no_line_breaks_and_headings_have_different_anchors():
    texts = [claim.statement for claim in paper.CLAIMS.values()]
    texts += [finding.text for finding in paper.FINDINGS]
    assert not any("\n" in text or "  " in text for text in texts)
    titles = [one.title for one in (*paper.CLAIMS.values(), *paper.FINDINGS)]
    anchors = [tables.anchor(title) for title in titles]
    assert len(set(anchors)) == len(anchors)


def test_what_entries_name_is_there():
    drawn = {figure.name for figure in figures.FIGURES}
    assert len(drawn) == len(figures.FIGURES)
    assert drawn == paper.FIGURES.keys()
    for finding in paper.FINDINGS:
        assert finding.claim in paper.CLAIMS
        assert finding.figure in drawn
    assert set(tables.README_CLAIMS) <= paper.CLAIMS.keys()
    assert paper.TABLE_2["this paper"]["cifar10"].value == 6.38
    assert all(number.unit and number.place for number in paper.NUMBERS.values())


def sentences():
    """(id or title, sentence) of every text with values."""
    yield from ((claim.id, text) for claim in paper.CLAIMS.values() for text in claim.ours)
    yield from ((finding.title, finding.text) for finding in paper.FINDINGS)


def test_the_reference_runs_have_every_value_that_a_sentence_names():
    """Of the runs that are there: `make reproduce` and `make report-reference` add the others."""
    members = groups.group_runs(groups.read("reference", REFERENCE, "").runs)
    names = {group.name for group in members} | {f"{g.first.experiment}/*" for g in members}
    for where, sentence in sentences():
        fields = [name for _, name, _, _ in string.Formatter().parse(sentence) if name]
        assert fields, (where, "has no value")
        if set(fields) <= names:
            assert "{" not in groups.fill(sentence, members)[0], where


def test_a_claim_without_runs_is_not_run_and_one_without_a_fitting_metric_is_empty(tmp_path):
    write_run(tmp_path, 0)
    members = groups.group_runs(groups.read("yours", tmp_path, "").runs)
    assert groups.headline("theorem-2-2", members) == "not run"
    assert groups.headline("theorem-2-1", members) == ""
