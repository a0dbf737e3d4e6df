"""What a report leaves behind if it is killed, and how large it can become."""

import contextlib
import dataclasses
import os
import re

import pytest

from identity_matters import paper, runs
from identity_matters.report import build, collection, figures, publish
from identity_matters.report.figures import drawing, saving
from tests.report.toy_report import TOY, toy_caption, write_report
from tests.report.toy_runs import write_run

__all__ = ["toy_caption"]  # a fixture


@pytest.mark.parametrize("stopped_at", range(9))
def test_a_report_that_is_killed_leaves_no_link_to_nothing(
    tmp_path, monkeypatch, stopped_at
):
    """Stopped at each of its renames.

    The next report removes what a kill leaves behind.
    """
    out = write_report(tmp_path, monkeypatch)
    left = out / ".report-left"
    (left / "figures").mkdir(parents=True)
    renames = []

    def stop(source, target):
        if len(renames) == stopped_at:
            raise KeyboardInterrupt
        renames.append(target)
        original(source, target)

    original = os.replace
    other = TOY._replace(name="toy_other")
    monkeypatch.setitem(
        paper.FIGURES,
        "toy_other",
        paper.Caption("Other", "Norm over depth.", "A mark."),
    )
    monkeypatch.setattr(figures, "FIGURES", (other,))
    monkeypatch.setattr(os, "replace", stop)
    collections = [collection.read("reference", tmp_path / "reference")]
    with contextlib.suppress(KeyboardInterrupt):
        build.write(collections, out)
    monkeypatch.undo()
    assert not left.exists()
    text = (out / "REPORT.md").read_text()
    links = re.findall(r"\]\(((?:figures|tables)/[^)]*)\)", text)
    assert links and all((out / link).is_file() for link in links)
    figures_left = {path.stem for path in (out / "figures").iterdir()}
    assert stopped_at < 8 or figures_left == {"toy_other"}


def test_the_directory_of_a_report_at_work_stays(tmp_path, monkeypatch):
    with publish.prepared(tmp_path) as aside:
        publish._remove_left_over(tmp_path)
        assert aside.is_dir()
        for name in ("figures", "tables"):
            (aside / name).mkdir()
        for name in ("REPORT.md", "report.html"):
            (aside / name).write_text("text")
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "REPORT.md",
        "figures",
        "report.html",
        "tables",
    ]


def test_the_page_does_not_grow_with_the_points_of_a_figure_or_the_number_of_runs(
    tmp_path,
):
    points = [{"depth": i % 100, "norm": i / 7} for i in range(20_000)]
    drawn = TOY._replace(
        draw=lambda p, canvas: drawing.scatter(canvas.subplots(), p, "depth", "norm")
    )
    small, large = (saving.render(drawn, points[:count]) for count in (1000, 20_000))
    assert "<image" not in small and "<image" in large
    assert len(large) < saving.MOST_SVG_BYTES / 2
    run = runs.read_run(write_run(tmp_path))
    many_runs = [
        dataclasses.replace(run, summary={**run.summary, "seed": seed})
        for seed in range(100)
    ]
    (group,) = collection.group_runs(many_runs)
    yours = collection.Collection(
        "yours", many_runs, [group], unfinished=[], problems=[]
    )
    text = build._markdown([yours], tmp_path, {}, [])
    assert text.count("[toy/plain/seed=") == build.MOST_LISTED
    assert "Not shown: 80 more runs. All are in [runs.csv](tables/runs.csv)." in text
    assert build._seeds(many_runs) == "100 seeds, 0 to 99"


def test_the_page_counts_the_comparisons_that_it_leaves_out(tmp_path):
    metrics = {"learning_rate/net": 0.1, "test_error_percent/net": 5.0}
    for number in range(build.MOST_LISTED + 2):
        write_run(
            tmp_path,
            experiment="comparisons",
            variant=f"toy/{number}",
            metrics=metrics,
            paper={},
        )
    text = build._markdown([collection.read("yours", tmp_path)], tmp_path, {}, [])
    assert text.count("The arms of comparisons/toy/") == build.MOST_LISTED
    assert "Not shown: 2 more comparisons." in text


def test_the_command_of_one_run_is_not_said_to_be_that_of_all(tmp_path):
    def page():
        return build._markdown([collection.read("yours", tmp_path)], tmp_path, {}, [])

    write_run(tmp_path, 0)
    assert "The command of" not in page()
    write_run(tmp_path, 1)
    assert page().count("The command of the first of them:") == 1
