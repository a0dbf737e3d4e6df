"""benchmarks.cost: hours of trainings, and the page that lists them."""

import pytest

from benchmarks import compile_check, cost
from identity_matters import runs
from tests.forked import ROOT
from tests.measured import REFERENCE


def test_hours_by_hand():
    settings = {
        "train": {"steps": 100, "steps_per_evaluation": 50},
        "data": {"dataset": "cifar10"},
    }
    # 100 steps of 0.36 s, and three evaluations of 10,000 examples in batches of 1000.
    seconds = {128: 0.36, 1000: 0.18}
    hours = cost.training_hours(
        settings,
        {"examples": 128},
        {"examples": 1000},
        seconds_of=lambda record: seconds[record["examples"]],
    )
    assert hours == pytest.approx((36 + 5.4) / 3600)


STEP = {
    "program": compile_check.PAPERS_NET,
    "part": "train",
    "slice": "v5e-8",
    "fits": True,
    "devices": 8,
    "argument_bytes": 1e9,
    "result_bytes": 0,
    "temporary_bytes": 2e9,
    "code_bytes": 0,
    "device_memory_bytes": 16e9,
    "moved_bytes": 5e8,
    "examples": 128,
    "arithmetic_seconds": 0.36,
    "memory_seconds": 0.2,
    "collectives": {},
    "collective_bytes": 0,
}
EVALUATION = {
    **STEP,
    "part": "evaluate",
    "examples": 1000,
    "arithmetic_seconds": 0.1,
    "memory_seconds": 0.18,
}


def test_seconds_of_a_step_by_hand():
    assert cost.bound_seconds(STEP) == cost.least_seconds(STEP) == 0.36
    assert cost.likely_seconds(STEP) == pytest.approx(0.36 / 0.4)
    # What libtpu estimates takes the place of our guess, unless it is below the bound.
    estimated = {**STEP, "estimated_seconds": 0.5}
    assert cost.likely_seconds(estimated) == 0.5
    assert cost.likely_seconds({**STEP, "estimated_seconds": 0.1}) == 0.36
    # In older records, 2^63 - 1 cycles stand for an estimate that libtpu does not have.
    without = {**STEP, "estimated_seconds": 2**63 / 1.5e9}
    assert cost.likely_seconds(without) == pytest.approx(0.36 / 0.4)
    # 9 GB are sent and received 2 * 7 / 8 times, over two links of 45 GB/s.
    sending = {
        **estimated,
        "collective_bytes": 9e9,
        "collectives": {"all-reduce": 100},
    }
    assert cost.link_seconds(sending) == pytest.approx(0.175)
    assert cost.least_seconds(sending) == 0.36
    assert cost.likely_seconds(sending) == pytest.approx(0.5 + 0.175 + 100 * 1e-5)
    assert cost.least_seconds({**sending, "collective_bytes": 27e9}) == pytest.approx(
        0.525
    )
    assert cost.link_seconds({**sending, "devices": 1}) == 0


def test_the_page_of_costs_has_a_row_for_each_training_and_what_failed():
    failed = {**STEP, "program": "p", "fits": False, "problem": "too large"}
    text = cost.page([STEP, EVALUATION, failed])
    # 60,000 steps at 0.36 s, and 61 evaluations of 10 batches at 0.18 s: 6.03 hours.
    row = (
        "| cifar10/all_conv_residual | v5e-8 | 8 | 360.00 |  | 0.00 | compute | 0.50"
        " | 3.0 of 16 | 6 | 15 |"
    )
    assert row in text
    assert "* p, train, on v5e-8: too large." in text
    assert "Compiled, not measured" in text
    # Of two records of a program the last counts.
    again = cost.page([failed, {**failed, "problem": "crashed"}])
    assert "crashed" in again and "too large" not in again
    alone = cost.page([STEP, EVALUATION])
    assert "not fit" not in alone and "Table 2, in turn" not in alone


def test_the_rows_of_table_2_are_summed_where_one_chip_takes_all_of_them():
    records = [
        {**record, "program": program, "slice": "v5e-1", "devices": 1}
        for program in (compile_check.PAPERS_NET, *compile_check.RIVALS)
        for record in (STEP, EVALUATION)
    ]
    hours = sum(
        training.hours(cost.least_seconds) for training in cost._trainings(records)
    )
    assert len(cost._trainings(records)) == 4
    row = f"| all CIFAR rows of Table 2, in turn | v5e-1 | 1 |{'  |' * 6}"
    assert f"{row} {2 * hours:.2g} | {2 * hours / 0.4:.2g} |" in cost.page(records)
    assert "in turn" not in cost.page(records[2:])


def test_the_committed_page_follows_from_the_reference_runs():
    paths = (REFERENCE / "benchmark_compile_check").glob("*/seed=0")
    compiled = [runs.read_run(path) for path in paths]
    compiled.sort(key=lambda run: run.environment["started"])
    records = [record for run in compiled for record in run.records]
    committed = (ROOT / "docs" / "cost.md").read_text(encoding="utf-8")
    assert cost.page(records) == committed
    # The order of the runs does not show, since no program is in two of them.
    assert cost.page(records[::-1]) == committed
