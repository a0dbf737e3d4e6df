"""Runs of a toy experiment, for the tests of the report."""

from identity_matters import runs
from identity_matters.report import (
    collection,
)


def write_run(
    root,
    seed=0,
    scale="paper",
    status="done",
    variant="plain",
    experiment="toy",
    **changes,
):
    run = runs.RunDir.create(
        root, experiment=experiment, variant=variant, seed=seed, config={}, scale=scale
    )
    run.append({"cell": 0, "depth": 2, "norm": 0.5 + seed})
    fields = {"claim": "theorem-2-1", "verdict": "reproduced", "paper": {"norm": 1.25}}
    fields["metrics"] = {"norm": 0.5 + seed, "cells": 1}
    run.finish(status, **{**fields, **changes})
    return run.path


def groups_of(root):
    return collection.read("yours", root).groups
