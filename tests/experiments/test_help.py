"""--help: what it says of settings, and how little it loads to say so."""

import sys

import pytest
from ml_collections.config_flags import config_path

import experiments
from experiments.run.help_text import comment_on, explanations_in, setting_lines
from tests import forked

TRAINING_LIBRARIES = {"flax", "orbax", "tensorstore", "tqdm"}
# Each takes longer to import than the rest of a command needs to print its help.
SLOW_LIBRARIES = TRAINING_LIBRARIES | {"jax", "matplotlib", "optax", "scipy", "sklearn"}
LOADED = """
import os, runpy, sys
def report(code):
    print("\\nloaded:", *sys.modules)
    sys.stdout.flush()
    leave(code)
leave, os._exit = os._exit, report
module, *sys.argv[1:] = sys.argv[1:]
runpy.run_module(module, run_name="__main__", alter_sys=True)
"""


def loaded_by(module: str, *arguments: str) -> set[str]:
    finished = forked.shell(
        sys.executable, "-c", LOADED, module, *arguments, cwd=forked.ROOT
    )
    assert finished.returncode == 0, finished.stderr
    return set(finished.stdout.splitlines()[-1].removeprefix("loaded: ").split())


@pytest.mark.parametrize("name", experiments.MODULES)
def test_help_does_not_wait_for_what_it_does_not_need(name):
    modules = loaded_by(experiments.MODULES[name], "--help")
    assert not modules & SLOW_LIBRARIES
    assert not {module for module in modules if "measurements" in module}


def test_a_theory_run_loads_neither_flax_nor_the_training_loop(tmp_path):
    modules = loaded_by(
        "experiments.landscape",
        "--config=:hessian_at_origin",
        "--config.depths=(1,3)",
        f"--results_dir={tmp_path}",
    )
    assert "jax" in modules and "experiments.run.execution" in modules
    assert not modules & {*TRAINING_LIBRARIES, "identity_matters.train", "matplotlib"}


SOURCE = """
COMMON = {
    "beside": 1,  # beside its line
    # Above its line,
    # in two lines.
    "above": (1, 2, 3),
    # above a value of several lines
    "long": (
        1,
        2,
    ),
    "without": 2,
    "group": {
        "beside": 3,  # in a group
        "inside": 3,  # only in a group
    },
    # above a whole group
    "packed": {"one": 1, "two": 2},
}
TYPED: dict[str, dict] = {
    "mine": {
        "beside": 4,  # in my variant
        "group": {
            "inside": 5,  # in a group of my variant
        },
    },
    "other": {
        "long": 6,  # in another variant
        "theirs": 7,  # only in another variant
    },
}
config.assigned = 8  # in no dict
call(keyword={
    "nameless": 9,  # in a dict without a name
})
"""


@pytest.mark.parametrize(
    ("name", "comment"),
    [
        ("above", ["Above its line,", "in two lines."]),
        ("long", ["above a value of several lines"]),
        ("without", []),
        ("group.above", ["Above its line,", "in two lines."]),
        ("inside", []),
        ("packed.one", []),
        ("beside", ["in my variant"]),
        ("group.inside", ["in a group of my variant"]),
        ("other_group.group.inside", ["only in a group"]),
        ("theirs", []),
        ("assigned", []),
        ("nameless", []),
    ],
)
def test_a_comment_explains_settings_of_its_variant_or_of_all(name, comment):
    explanations = explanations_in(SOURCE)
    variants = ("mine", "other")
    found = comment_on(name, explanations, variant="mine", variants=variants)
    assert found == comment


def test_comments_that_contradict_each_other_are_refused():
    with pytest.raises(ValueError, match=r"several comments explain group\.beside of"):
        comment_on("group.beside", explanations_in(SOURCE))
    assert comment_on("beside", explanations_in(SOURCE)) == ["beside its line"]


@pytest.mark.parametrize("name", experiments.MODULES)
def test_no_setting_of_an_experiment_has_comments_that_contradict_each_other(name):
    experiment = experiments.find(name)
    for variant in experiments.variants(name):
        lines = setting_lines(
            experiment.settings_module, experiment.get_config(variant)
        )
        assert any(line.startswith("      ") for line in lines), "no comment is found"


@pytest.mark.parametrize("name", experiments.MODULES)
def test_the_command_line_takes_each_setting_by_the_name_that_help_gives(name):
    """Arms of comparisons have names such as identity/31, which `.` cannot join."""
    experiment = experiments.find(name)
    for variant in experiments.variants(name):
        config = experiment.get_config(variant)
        for line in setting_lines(experiment.settings_module, config):
            if not line.startswith("      "):
                shown = line.split(" = ")[0].strip()
                config_path.get_value(shown, config)


def test_help_gives_the_arms_of_comparisons_by_names_that_can_be_typed():
    shown = forked.run(
        "experiments.images.comparisons", "--config=:digits/two_depths", "--help"
    ).stdout
    assert '("--config.NAME=VALUE" changes one)' in shown
    assert "  arms['identity/31'].blocks_per_stage = (5, 5, 5)" in shown


def test_help_explains_settings_that_are_explained_above_their_line():
    """Long comments are above, which an earlier version of the code had beside."""
    shown = forked.run("experiments.landscape", "--help").stdout
    assert "starts = 8\n      per target size and norm, each with its own data" in shown
    shown = forked.run("experiments.images.cifar", "--help").stdout
    assert "model.leak = 0.0\n      Slope of the activation below zero: 0.1" in shown
    assert "normalization = 'per_image'\n      per_image (the paper's)" in shown
