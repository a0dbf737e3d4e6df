"""Writes docs/cost.md: the hours of each training, from `compile_check`'s programs.

Command: make cost, or python -m benchmarks.cost RUN_DIRECTORY [--page=docs/cost.md]
"""

import math
import pathlib

from absl import flags

import experiments
from benchmarks import compile_check
from experiments import commands
from identity_matters import runs
from identity_matters.images import datasets, imagenet

_PAGE = flags.DEFINE_string("page", "docs/cost.md", "Where it goes.")
# that a step reaches, for the most hours; our guess, not measured
LEAST_SHARE_OF_BOUND = 0.25
_HEAD = """# What the trainings cost

**Compiled, not measured.** `make compile-check` compiled these programs for TPUs that
were not there (`CHECK=one_chip` for a single chip), and `make compile-check-gpu` for
GPUs; `make cost` wrote this page from their records.

The *least hours* are a roofline bound: each step takes the larger of its arithmetic at
peak FLOP/s and its memory traffic at full bandwidth. The *most hours* assume that a
step reaches {share} of it; this is a guess. Evaluations are counted; compiling, reading
ImageNet from disk and traffic between chips are not. FLOPs include multiplications by
padding zeros. The products of the linear nets (noise_floor_large) are exact to float32,
which takes TPUs six passes and GPUs other units than those that the peak is of: their
least hours are far too low. Memory traffic is that of HBM, the chip's main memory: what
TPUs keep inside the chip is not counted, nor is the workspace of cuDNN on a GPU. Where
a step is shorter than a millisecond, what is not counted may take longer than the step:
there even the upper figure is likely too low.

| Training | on | chips | ms a step, at least | limited by | \
GB moved a step and chip | GB of a chip's memory | hours, least to most |
| --- | --- | --- | --- | --- | --- | --- | --- |
"""


def training_hours(settings: dict, step: dict, evaluation: dict) -> float:
    """The least hours of a training with these two programs, each at its bound."""
    train = settings["train"]
    batches = math.ceil(_test_examples(settings) / evaluation["examples"])
    # one at step 0
    evaluations = 1 + math.ceil(train["steps"] / train["steps_per_evaluation"])
    return (
        train["steps"] * _bound(step) + evaluations * batches * _bound(evaluation)
    ) / 3600


def _test_examples(settings: dict) -> int:
    if "problem" in settings:  # of a linear net: its risk is exact, from d inputs
        return settings["problem"]["width"]
    if settings["data"]["dataset"] == imagenet.NAME:
        return imagenet.PUBLISHED_EXAMPLES["validation"]
    return datasets.find_source(settings["data"]["dataset"]).splits["test"]


def _bound(record: dict) -> float:
    return max(record["arithmetic_seconds"], record["memory_seconds"])


def page(records: list[dict]) -> str:
    """The text of docs/cost.md; programs that the records lack have no row."""
    programs = {
        (record["slice"], record["program"], record["part"]): record
        for record in records
    }
    rows = []
    others = []
    failed = []
    for (slice_, program, part), step in programs.items():
        evaluation = programs.get((slice_, program, "evaluate"))
        if not step["fits"]:
            failed.append(f"* {program}, {part}, on {slice_}: {step['problem']}.")
        elif part == "train" and evaluation and evaluation["fits"]:
            rows.append(_row(slice_, program, step, evaluation))
        elif part == "points":
            others.append(
                f"* {program} on {slice_}: {_needed(step) / 1e9:.2g} GB on each chip."
            )
    head = _HEAD.format(share=f"{LEAST_SHARE_OF_BOUND:.0%}")
    problems = (
        ["", "What does not compile or does not fit:", "", *failed] if failed else []
    )
    fitting = ["", "Not trainings, compiled as well:", "", *others] if others else []
    return head + "\n".join([*rows, *fitting, *problems]) + "\n"


def _needed(record: dict) -> float:
    """Bytes of a chip's memory that a program takes."""
    return sum(
        record[f"{name}_bytes"] for name in ("argument", "result", "temporary", "code")
    )


def _row(slice_: str, program: str, step: dict, evaluation: dict) -> str:
    experiment, _, variant = program.partition(":")
    settings = experiments.find(experiment).settings_of(variant)
    hours = training_hours(settings, step, evaluation)
    limit = (
        "compute" if step["arithmetic_seconds"] >= step["memory_seconds"] else "memory"
    )
    return (
        f"| {variant} | {slice_} | {step['devices']} | {1e3 * _bound(step):.2f} |"
        f" {limit} | {step['moved_bytes'] / 1e9:.2f} | {_needed(step) / 1e9:.1f} of"
        f" {step['device_memory_bytes'] / 1e9:.0f} | {hours:.2g} to"
        f" {hours / LEAST_SHARE_OF_BOUND:.2g} |"
    )


def _main(paths: list[str]) -> int:
    compiled = [runs.read_run(path) for path in paths]
    name = compile_check.EXPERIMENT.name
    if others := [run.path for run in compiled if run.experiment != name]:
        raise runs.RunError(f"name runs of {name}, got {others}")
    text = page([record for run in compiled for record in run.records])
    runs.write_atomically(pathlib.Path(_PAGE.value), text)
    return 0


if __name__ == "__main__":
    commands.run(_main, takes="run directories of compile_check")
