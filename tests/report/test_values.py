"""Values of runs in sentences and tables: numbers, verdicts, claims."""

import dataclasses
import shutil
import string

import pytest

from identity_matters import paper, runs
from identity_matters.report import (
    build,
    collection,
    markdown,
    numbers,
    sentences,
    tables,
)
from tests.measured import REFERENCE
from tests.report.toy_runs import groups_of, write_run
from tests.tables import by_name


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


def test_seeds_are_in_the_order_of_their_numbers_not_of_their_names(tmp_path):
    for seed in (10, 9):
        write_run(tmp_path, seed)
    (group,) = groups_of(tmp_path)
    assert [run.seed for run in group.runs] == [9, 10]


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
        # The limits: of counts, of fractions, and of whole parts.
        (
            numbers.format_number,
            [10**15 - 1, 10**15, 999.94, 1000.4, 999_999.0, 1e6],
            ["999,999,999,999,999", "1e+15", "999.9", "1,000", "999,999", "1e+06"],
        ),
        (numbers.in_words, [[6.148, 6.149], [5.9, 6.4]], ["6.1", "5.9–6.4"]),
        (numbers.in_words, [[0.0, 0.0, 0.5], [1085, 1116]], ["0–0.50", "1,085–1,116"]),
        (numbers.in_words, [[0.99996], [99.7], [999.9999]], ["1.0", "100", "1,000"]),
        (numbers.in_words, [[float("inf")], [1.6e32]], ["inf", "1.6 × 10³²"]),
        (
            numbers.in_words,
            [[9.3e-8, 1e-7], [-0.5, 0.5]],
            ["9.3 × 10⁻⁸ to 1.0 × 10⁻⁷", "-0.50 to 0.50"],
        ),
        (
            lambda value: numbers.in_words([value], 4),
            [3133.9, 12.5],
            ["3,134", "12.50"],
        ),
        (
            lambda value: numbers.in_words([value], 1),
            [1.2e-11, 0.123, 12.5, 1.6e32],
            ["1 × 10⁻¹¹", "0.1", "12", "2 × 10³²"],
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
        (345.6, "345", "346"),
        (1.61e32, "1.6 × 10³²", "1.7 × 10³²"),
        (-1.61e32, "-1.7 × 10³²", "-1.6 × 10³²"),
        (1 + 2e-16, "1.0", "1.0"),  # a rounding error of float64 does not make it 1.1
        (7, "7", "7"),
        (123_456.0, "123,456", "123,456"),
        (28_270.13, "28,270", "28,271"),
        (1_234_567, "1,234,567", "1,234,567"),
        # Whole numbers of which not all digits are printed.
        (1_234_567.0, "1.2 × 10⁶", "1.3 × 10⁶"),
        (1_234_567_890_123_456, "1.2 × 10¹⁵", "1.3 × 10¹⁵"),
    ],
)
def test_a_bound_that_is_rounded_is_still_a_bound(value, least, greatest):
    assert numbers.in_words([value], extreme="min") == least
    assert numbers.in_words([value], extreme="max") == greatest


def test_a_bound_has_no_more_digits_than_are_written():
    """From 1,000 on no fraction is: it would be rounded to the nearest."""
    assert numbers.in_words([28_270.13], 6, extreme="max") == "28,271"
    assert numbers.in_words([99_999.9], 7, extreme="min") == "99,999"


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
    for seed, metrics in enumerate(({"norm": 1}, {"norm": 4}, {"rank": 5})):
        write_run(tmp_path, seed, variant="some", metrics=metrics, paper={})
    sentence = "{toy/some:norm} % and {toy/some:rank}"
    assert (
        sentences.fill(sentence, groups_of(tmp_path))[0]
        == "1–4 % (in 2 of 3 runs) and 5 (in 1 of 3 runs)"
    )
    # Of all variants, that with the most seeds has three.
    everywhere = sentences.fill("{toy/*:rank}", groups_of(tmp_path))[0]
    assert everywhere == "5 (in 1 of 3 runs)"
    write_run(tmp_path, 0, variant="none", metrics={"norm": None}, paper={})
    members = groups_of(tmp_path)
    for sentence in (
        "{toy/c:norm}",
        "{toy/a:other}",
        "{other/*:norm}",
        "{toy/none:norm}",
        "{toy/*:norm}",
    ):
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


@by_name(
    {"scale": "paper", "yours": "not reproduced", "reference": None, "count": 1},
    {
        "scale": "reduced",
        "yours": "not reproduced",
        "reference": "reproduced",
        "count": 1,
    },
    {"scale": "reduced", "yours": "not reproduced", "reference": None, "count": 0},
    {"scale": "paper", "yours": "counterexample", "reference": "holds", "count": 1},
    {"scale": "paper", "yours": "undecided", "reference": "reproduced", "count": 0},
    {"scale": "paper", "yours": "reproduced", "reference": "reproduced", "count": 0},
    {
        "scale": "paper",
        "yours": "not reproduced",
        "reference": "not reproduced",
        "count": 0,
    },
    {"scale": "paper", "yours": "not reproduced", "reference": "undecided", "count": 1},
    {"scale": "paper", "yours": "counterexample", "reference": None, "count": 1},
    {"scale": "reduced", "yours": "counterexample", "reference": None, "count": 1},
    {
        "scale": "reduced",
        "yours": "counterexample",
        "reference": "undecided",
        "count": 1,
    },
    {
        "scale": "paper",
        "yours": "counterexample",
        "reference": "counterexample",
        "count": 0,
    },
    {"scale": "paper", "yours": "holds", "reference": None, "count": 0},
)
def test_contradictions(tmp_path, scale, yours, reference, count):
    ours = [group_of(tmp_path, "plain", yours, scale=scale)]
    references = []
    if reference:
        references = [group_of(tmp_path, "plain", reference, scale=scale)]
    assert len(collection.contradictions(ours, references)) == count


def group_of(path, variant, *verdicts, scale="paper", claim="theorem-2-1"):
    """A group with a seed for each verdict."""
    seeds = []
    for seed, verdict in enumerate(verdicts):
        summary = {
            "experiment": "toy",
            "variant": variant,
            "seed": seed,
            "scale": scale,
            "claim": claim,
            "verdict": verdict,
        }
        seeds.append(runs.Run(path, {}, {}, summary, []))
    return collection.Group(tuple(seeds))


@by_name(
    # The claim is proved: every run of the reference only tried to refute it.
    {"verdicts": ("holds",), "claim": "theorem-2-1", "count": 1},
    # One seed of another variant has refuted the claim.
    {"verdicts": ("holds", "counterexample"), "claim": "theorem-2-1", "count": 0},
    {"verdicts": ("counterexample",), "claim": "theorem-2-2", "count": 1},
)
def test_a_counterexample_is_new_unless_the_reference_has_one_to_the_claim(
    tmp_path, verdicts, claim, count
):
    reference = [group_of(tmp_path, "known", *verdicts, claim=claim)]
    for scale in ("paper", "reduced"):
        ours = [group_of(tmp_path, "new", "counterexample", scale=scale)]
        assert len(collection.contradictions(ours, reference)) == count


def test_seeds_that_disagree_are_listed_even_if_the_claim_is_known_to_be_false(
    tmp_path,
):
    """At the paper's scale, without a verdict of the reference on the variant."""
    reference = [group_of(tmp_path, "known", "counterexample")]
    for scale, count in (("paper", 1), ("reduced", 0)):
        ours = [group_of(tmp_path, "new", "holds", "counterexample", scale=scale)]
        assert len(collection.contradictions(ours, reference)) == count


def test_seeds_that_disagree_contradict_a_reference_that_agrees_with_some(tmp_path):
    ours = [group_of(tmp_path, "plain", "reproduced", "not reproduced")]
    reference = [group_of(tmp_path, "plain", "reproduced")]
    (line,) = collection.contradictions(ours, reference)
    assert line.endswith("of 2 seeds; the reference: reproduced")


def test_one_seed_with_a_counterexample_contradicts_a_reference_that_is_undecided(
    tmp_path,
):
    ours = [group_of(tmp_path, "plain", "holds", "counterexample", scale="reduced")]
    reference = [group_of(tmp_path, "plain", "undecided", scale="reduced")]
    (line,) = collection.contradictions(ours, reference)
    assert line.endswith(
        "of 2 seeds; the reference has no counterexample to this claim"
    )


@by_name(
    {"seeds": ["reproduced"] * 3, "verdict": "reproduced"},
    {
        "seeds": ["reproduced"],
        "verdict": "undecided (reproduced for 1 of 1; a verdict needs 3 seeds)",
    },
    {
        "seeds": ["undecided", "reproduced", "undecided"],
        "verdict": "undecided (reproduced for 1 of 3 seeds)",
    },
    {
        "seeds": ["not reproduced", "reproduced", "reproduced", "reproduced"],
        "verdict": "undecided (reproduced for 3, not reproduced for 1 of 4 seeds)",
    },
    {"seeds": ["undecided"], "verdict": "undecided"},
    {"seeds": ["not comparable"], "verdict": "not comparable"},
)
def test_a_comparison_is_decided_by_three_seeds_that_agree(tmp_path, seeds, verdict):
    """Rule 6 of docs/protocol.md."""
    summary = {"scale": "reduced", "claim": "initialisation"}
    group = collection.Group(
        tuple(
            runs.Run(tmp_path, {}, {}, {**summary, "verdict": of_seed}, [])
            for of_seed in seeds
        )
    )
    assert group.verdict == verdict


@by_name(
    {"yours": ["not reproduced"], "count": 0},
    {"yours": ["not reproduced"] * 3, "count": 1},
    {"yours": ["reproduced"] * 3, "count": 0},
)
def test_undecided_comparisons_contradict_nothing(tmp_path, yours, count):
    def group(seeds):
        summary = {"scale": "reduced", "claim": "initialisation"}
        names = {"experiment": "toy", "variant": "plain", "seed": 0}
        return collection.Group(
            tuple(
                runs.Run(tmp_path, {}, {}, {**summary, **names, "verdict": of_seed}, [])
                for of_seed in seeds
            )
        )

    reference = [group(["reproduced"] * 3)]
    assert len(collection.contradictions([group(yours)], reference)) == count
    undecided = [group(["reproduced", "undecided", "undecided"])]
    assert not collection.contradictions([group(yours[:1])], undecided)


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
    """Covers the runs that exist.

    `make reproduce` and `make report-reference` add the others.
    """
    members = collection.read("reference", REFERENCE).groups
    # A training that diverged has no errors; its claim has a sentence for that.
    done = [g for g in members if any(run.status == "done" for run in g.runs)]
    names = {group.name for group in done} | {f"{g.first.experiment}/*" for g in done}
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


def test_a_claim_says_which_of_its_runs_diverged(tmp_path):
    write_run(tmp_path, 0)
    for seed, step in ((1, 19_100), (2, 300)):
        metrics = {"diverged_after_step": step}
        write_run(tmp_path, seed, status="diverged", metrics=metrics, paper={})
    some = sentences.headline("theorem-2-1", groups_of(tmp_path))
    assert some == "plain diverged after step 300–19,100 (in 2 of 3 runs) (n = 3)"
    shutil.rmtree(tmp_path / "toy" / "plain" / "seed=0")
    every = sentences.headline("theorem-2-1", groups_of(tmp_path))
    assert every == "plain diverged after step 300–19,100 (n = 2)"


def test_bars_and_markup_of_a_run_do_not_break_a_table():
    rows = [{"|||A|||": markdown.Markdown("`a|b`\nc")}, {"|||A|||": "<!--*[x](y)`"}]
    lines = markdown.table(rows).splitlines()
    assert lines[2:] == ["| `a\\|b` c |", "| &lt;!--\\*\\[x\\](y)\\` |"]


def test_the_papers_values_are_there_if_the_least_seed_diverged(tmp_path):
    metrics = {"diverged_after_step": 300}
    write_run(tmp_path, 0, status="diverged", metrics=metrics, paper={})
    write_run(tmp_path, 1)
    (group,) = groups_of(tmp_path)
    quoted = {
        row["metric"]: row["paper"] for row in tables.metrics_table({"ours": group})
    }
    assert quoted == {"diverged_after_step": "", "norm": "1.25", "cells": ""}


def write_cifar(root, seed, errors, net="cifar10/all_conv_residual", **changes):
    """A run whose metrics are `errors`, of the experiment `cifar`."""
    fields = {"experiment": "cifar", "metrics": errors, "paper": {}}
    write_run(root, seed, variant=net, **fields | changes)


def test_table_2_says_that_a_training_diverged(tmp_path):
    write_cifar(
        tmp_path, 0, {"diverged_after_step": 300}, net="cifar100/all_conv_residual"
    )
    yours = collection.read("yours", tmp_path)
    rows = [tuple(row.values()) for row in tables.table_2([yours])]
    (row,) = (row for row in rows if row[:2] == ("this paper", "CIFAR-100"))
    assert row[2:7] == ("24.64", "diverged", "diverged", "1", "yours")


def test_table_2_has_a_row_for_each_published_error_and_ours_at_paper_scale(tmp_path):
    for seed, scale in ((0, "paper"), (1, "paper"), (2, "reduced")):
        errors = {"test_error_percent": 6.5 + seed, "test_error_best_percent": 6.25}
        write_cifar(tmp_path, seed, errors, scale=scale)
    # Another experiment may have a variant of the same name.
    other = {"test_error_percent": 50.0, "test_error_best_percent": 50.0}
    write_cifar(tmp_path, 0, other, experiment="toy")
    yours = collection.read("yours", tmp_path)
    cells = [tuple(row.values()) for row in tables.table_2([yours])]
    rows = {row[:2]: row[2:] for row in cells}
    assert len(rows) == sum(len(numbers) for numbers in paper.TABLE_2.values())
    # Mean of 6.5 and 7.5; standard deviation of two values that differ by 1: 1/sqrt(2).
    mean = ("7 ± 0.71", "6.25", "2", "yours")
    assert rows["this paper", "CIFAR-10"][:5] == ("6.38", *mean)
    not_run = ("not run", "not run", "0", "")
    assert rows["DenseNet", "CIFAR-10"][:5] == ("3.74", *not_run)


SHARE = "share of a full run's operations (%)"


def named(name, *group_runs):
    """A collection of this name, of one group."""
    group = collection.Group(group_runs)
    return collection.Collection(name, [*group_runs], [group], [], [])


def test_reduced_cifar_runs_have_their_share_of_the_papers_operations():
    run = runs.read_run(REFERENCE / "cifar" / "cifar10" / "small" / "seed=0")
    full = dataclasses.replace(run, summary={**run.summary, "scale": "paper"})
    (row,) = tables.reduced_cifar([named("yours", run), named("yours", full)])
    assert (row["net"], row["data set"]) == ("small", "CIFAR-10")
    # 11,718 of 60,000 steps: 19.53 %. An image takes 936,943,104 operations. Table 1's
    # net has 442,368 products in the stem, 651,165,696 + 660,602,880 + 660,602,880 in
    # its stages and 2,560 behind them, which at six operations each are 11,836,898,304:
    # 7.915 %.
    assert row[SHARE] == "1.5"
    # With batches of twice as many examples it is twice that, 3.09 %.
    records = [
        {**record, "train": {**record["train"], "batch_examples": 256}}
        if record["kind"] == "result"
        else record
        for record in run.records
    ]
    doubled = dataclasses.replace(run, records=records)
    (row,) = tables.reduced_cifar([named("yours", doubled)])
    assert row[SHARE] == "3.1"
    # Malformed records leave the share empty, and do not stop the report.
    bad = dataclasses.replace(run, records=[{"kind": "result", "steps": "many"}])
    (row,) = tables.reduced_cifar([named("yours", bad)])
    assert row[SHARE] == ""


def test_tables_beside_table_2_say_whose_runs_they_show():
    reduced = runs.read_run(REFERENCE / "cifar" / "cifar10" / "small" / "seed=0")
    both = [named("reference", reduced), named("yours", reduced)]
    rows = list(tables.reduced_cifar(both))
    assert [row["collection"] for row in rows] == ["reference", "yours"]
    full = dataclasses.replace(
        reduced,
        summary={
            **reduced.summary,
            "scale": "paper",
            "variant": "cifar10/all_conv_residual",
        },
    )
    of_method = {
        (row["method"], row["data set"]): row["collection"]
        for row in tables.table_2([named("reference", full), named("yours", full)])
    }
    assert of_method["this paper", "CIFAR-10"] == "yours"
    assert of_method["this paper", "CIFAR-100"] == ""


def test_the_share_of_operations_is_that_of_the_seeds_that_did_not_diverge():
    done = runs.read_run(REFERENCE / "cifar" / "cifar10" / "small" / "seed=0")
    metrics = {"diverged_after_step": 300}
    summary = {**done.summary, "status": "diverged", "metrics": metrics}
    train = [record for record in done.records if record["kind"] == "train"]
    diverged = dataclasses.replace(done, summary=summary, records=train)
    (row,) = tables.reduced_cifar([named("yours", diverged, done)])
    assert row[SHARE] == "1.5"
    assert row["ours, last step (%)"] == "10.64 (n = 1)"
    assert row["n"] == "2"
    (row,) = tables.reduced_cifar([named("yours", diverged)])
    assert (row[SHARE], row["ours, last step (%)"]) == ("", "diverged")
