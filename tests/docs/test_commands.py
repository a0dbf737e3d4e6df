"""Commands of the README and of docs/: their targets, modules and variants exist."""

import functools
import os
import pathlib
import re
import shlex
import sys

import pytest

import experiments
from identity_matters import paper
from identity_matters.report import collection, tables
from tests import forked
from tests.docs.pages import MADE_BY_TUTORIAL, PAGES, fences, read
from tests.measured import REFERENCE


def commands() -> list[str]:
    """Every `make` and `python -m experiments` of the pages, in blocks or backticks."""
    found = set()
    for path in PAGES:
        blocks = "\n".join(fences(path, "bash"))
        lines = [line.split(" #")[0] for line in blocks.split("\n")]
        inline = re.findall(r"`([^`\n]+)`", read(path))
        for line in (*lines, *inline):
            for part in line.split("&&"):
                if re.match(r"(make [a-z]|\S*python -m experiments\.)", part.strip()):
                    found.add(part.strip())
    return sorted(command for command in found if MADE_BY_TUTORIAL not in command)


MAKE = [command for command in commands() if command.startswith("make")]
PYTHON = [command for command in commands() if "python" in command]


@pytest.mark.parametrize("command", [command for command in MAKE if "<" not in command])
def test_every_make_command_would_run(command):
    """A dry run with the variables of the command.

    A variant named by VARIANT must exist.
    """
    words = shlex.split(command.replace("...", "x"))
    # make looks for a Python, and elsewhere may find a script that does so, too.
    path = f"{pathlib.Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    finished = forked.shell(
        "make", "--dry-run", "ACCEL=cpu", "RUN=a_run", *words[1:], PATH=path
    )
    assert finished.returncode == 0, finished.stderr
    for word in words:
        if word.startswith("VARIANT=") and word != "VARIANT=x":
            (target,) = (
                w.removeprefix("reproduce-") for w in words if "reproduce-" in w
            )
            assert experiments.find_variants(target, word.removeprefix("VARIANT="))
        # Without VARIANT the defaults run, which some experiments lack.
        target = word.removeprefix("reproduce-")
        if target in experiments.MODULES and "VARIANT=" not in command:
            assert experiments.variants(target, "VARIANTS", "ACCELERATOR_VARIANTS")


@pytest.mark.parametrize("command", PYTHON)
def test_every_module_and_variant_that_a_command_names_is_there(command):
    module = re.search(r"-m (experiments[\w.]+)", command)[1]
    assert (forked.ROOT / f"{module.replace('.', '/')}.py").is_file()
    variant = re.search(r"--config=:([\w/]+)", command)
    if variant and variant[1] != "file":  # "file" takes a file of the reader's
        assert experiments.find_variants(module.split(".")[-1], variant[1])


@functools.cache
def reference_groups() -> list[collection.Group]:
    """All runs in results/reference, which are read once for all claims."""
    return collection.read("reference", REFERENCE).groups


@pytest.mark.parametrize("claim", paper.CLAIMS.values(), ids=lambda claim: claim.id)
def test_the_command_of_a_claim_makes_its_runs_with_as_many_seeds_as_it_needs(claim):
    groups = [group for group in reference_groups() if group.claim == claim.id]
    command = tables.command(claim, groups)
    are_full = [group.scale == "paper" for group in groups]
    for group, is_full in zip(groups, are_full, strict=True):
        experiment = group.first.experiment
        # Reduced runs beside full ones are further evidence.
        if experiment in experiments.MODULES and (is_full or not any(are_full)):
            assert group.first.variant in made_by(command, experiment), command
    if claim.agreeing_seeds > 1:
        seeds = re.search(r'SEEDS="([\d ]+)"', command)[1].split()
        assert len(seeds) >= claim.agreeing_seeds


def made_by(command: str, experiment: str) -> list[str]:
    """The variants of an experiment that a command of a claim runs."""
    if named := re.search(r"VARIANT=([\w/,]+)", command):
        return [
            variant
            for wanted in named[1].split(",")
            for variant in experiments.find_variants(experiment, wanted)
        ]
    if "make reproduce-cifar1" in command or "make reproduce-table2" in command:
        return experiments.variants(experiment)  # the targets name theirs
    return experiments.variants(experiment, "VARIANTS", "ACCELERATOR_VARIANTS")
