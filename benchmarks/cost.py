"""Writes docs/cost.md: the hours of each training, from `compile_check`'s programs.

Command: make cost, or python -m benchmarks.cost RUN_DIRECTORY [--page=docs/cost.md]
"""

import math
import pathlib
from collections.abc import Callable
from typing import NamedTuple

from absl import flags

import experiments
from benchmarks import compile_check
from experiments import commands
from identity_matters import runs
from identity_matters.images import datasets, imagenet

_PAGE = flags.DEFINE_string("page", "docs/cost.md", "Where it goes.")

# Where the compiler makes no estimate: the share of its bound that a step likely
# reaches. Our guess, not measured.
LIKELY_SHARE_OF_BOUND = 0.4
# How long a collective takes besides its bytes. Our guess, not measured.
COLLECTIVE_SECONDS = 10e-6
# No step takes this long. libtpu writes 2^63 - 1 cycles where it has no estimate;
# records that are older than `hlo.cost`'s rule against that have them in their sum.
_NO_ESTIMATE_SECONDS = 1e6


class _Links(NamedTuple):
    """The links between the chips of a slice.

    Attributes:
      least_per_chip: of the chip that has the fewest neighbours.
      bytes_per_second: of one link, in one direction (jax-ml.github.io/scaling-book).
    """

    least_per_chip: int
    bytes_per_second: float


_LINKS = {
    "v5e-8": _Links(least_per_chip=2, bytes_per_second=4.5e10),
    "v4-32": _Links(least_per_chip=3, bytes_per_second=4.5e10),
    "v6e-8": _Links(least_per_chip=2, bytes_per_second=9e10),
}
# All of Table 2's rows on CIFAR; those on CIFAR-100 differ in the last layer alone.
_TABLE_2 = (compile_check.PAPERS_NET, *compile_check.RIVALS)
_DATA_SETS_OF_TABLE_2 = 2

_HEAD = f"""# What the trainings cost

**Compiled, not measured.** `make compile-check` compiled these programs for TPUs that
were not there (`CHECK=one_chip` and `CHECK=one_chip_rivals` for a single chip), and
`make compile-check-gpu` for GPUs; `make cost` wrote this page from their records.

* The *bound* of a step is the larger of its arithmetic at peak FLOP/s and its traffic
  with HBM, the chip's main memory, at full bandwidth. FLOPs include multiplications by
  padding zeros.
* The *estimate* is that of libtpu's own cost model. It knows how much of a matrix unit
  a convolution fills; it leaves out stalls and all collectives. XLA makes none for
  GPUs.
* *Between chips* is the least time that the gradients take over the links of a chip:
  twice their bytes, at the full rate of all links.
* The *least hours* take the bound, or the time between chips if that is larger. The
  *likely hours* take the estimate, or, where there is none, a step that reaches
  {LIKELY_SHARE_OF_BOUND:.0%} of its bound; they add the time between chips and
  {1e6 * COLLECTIVE_SECONDS:.0f} microseconds for each collective. These two figures are
  guesses.

Evaluations are counted. Not counted: compiling (minutes), reading ImageNet from disk,
saving checkpoints (12 in Table 2's training), copying test images to the chip, stalls,
and the workspace of cuDNN on a GPU. One training has been measured since: Table 2's net
on CIFAR-10 took 6.4 ms a step and 0.11 hours in all on one H100. The products of the
linear nets (noise_floor_large) are exact to float32. TPUs need six passes for that, and
GPUs use units with a lower peak than the one assumed here: their least hours are far
too low.

**For a batch of 128 one chip is the right machine.** On eight, each has 16 images,
which fill its units badly, and sending gradients takes as long as computing them;
ResNet and DenseNet, whose batch norm averages over all chips, need 200 collectives a
step. Use more chips for more seeds, each on its own.

| Training | on | chips | ms a step: bound | estimate | between chips | limited by | \
GB moved a step and chip | GB of a chip's memory | hours: least | likely |
| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |
"""


# Seconds of a step or of a batch of evaluation, from its record


def bound_seconds(record: dict) -> float:
    """The larger of arithmetic and memory traffic."""
    return max(record["arithmetic_seconds"], record["memory_seconds"])


def link_seconds(record: dict) -> float:
    """The least time between chips.

    Of n chips, each must send and receive ``2 (n - 1) / n`` times the bytes that are
    summed.
    """
    chips = record["devices"]
    if chips == 1:
        return 0.0
    links = _LINKS[record["slice"]]
    sent_bytes = 2 * (chips - 1) / chips * record["collective_bytes"]
    return sent_bytes / (links.least_per_chip * links.bytes_per_second)


def least_seconds(record: dict) -> float:
    """What no run can beat: traffic between chips may overlap with the rest."""
    return max(bound_seconds(record), link_seconds(record))


def estimated_seconds(record: dict) -> float | None:
    """The compiler's estimate; None where it makes none."""
    estimate = record.get("estimated_seconds")
    if not estimate or estimate > _NO_ESTIMATE_SECONDS:
        return None
    return estimate


def likely_seconds(record: dict) -> float:
    """The compiler's estimate, or our guess, and the collectives after it."""
    bound = bound_seconds(record)
    estimate = estimated_seconds(record)
    computing = max(estimate, bound) if estimate else bound / LIKELY_SHARE_OF_BOUND
    collectives = sum(record["collectives"].values())
    return computing + link_seconds(record) + collectives * COLLECTIVE_SECONDS


# Hours of a training


class CompiledTraining(NamedTuple):
    """A training whose two programs fit a slice.

    Attributes:
      program: EXPERIMENT:VARIANT.
      step: the record of its "train".
      evaluation: the record of its "evaluate".
    """

    program: str
    step: dict
    evaluation: dict

    def hours(self, seconds_of: Callable[[dict], float]) -> float:
        """Its steps and evaluations, if `seconds_of` says how long a record takes."""
        return training_hours(
            self.settings(), self.step, self.evaluation, seconds_of=seconds_of
        )

    def settings(self) -> dict:
        experiment, _, variant = self.program.partition(":")
        return experiments.find(experiment).settings_of(variant)


def training_hours(
    settings: dict,
    step: dict,
    evaluation: dict,
    *,
    seconds_of: Callable[[dict], float],
) -> float:
    """The hours of a training with these two programs.

    Args:
      settings: of the training.
      step, evaluation: the records of its programs.
      seconds_of: gives the seconds of a record.
    """
    train = settings["train"]
    batches = math.ceil(_test_examples(settings) / evaluation["examples"])
    # one at step 0
    evaluations = 1 + math.ceil(train["steps"] / train["steps_per_evaluation"])
    seconds = train["steps"] * seconds_of(step)
    seconds += evaluations * batches * seconds_of(evaluation)
    return seconds / 3600


def _test_examples(settings: dict) -> int:
    if "problem" in settings:  # of a linear net: its risk is exact, from d inputs
        return settings["problem"]["width"]
    if settings["data"]["dataset"] == imagenet.NAME:
        return imagenet.PUBLISHED_EXAMPLES["validation"]
    return datasets.find_source(settings["data"]["dataset"]).splits["test"]


# The page


def page(records: list[dict]) -> str:
    """The text of docs/cost.md; programs that the records lack have no row.

    Of several records of one program, the last counts. Rows are in the order of the
    accelerators, and for each in that of the programs.
    """
    last_records = {
        (record["slice"], record["program"], record["part"]): record
        for record in records
    }
    records = [last_records[key] for key in sorted(last_records)]
    trainings = _trainings(records)
    rows = [_row(training) for training in trainings]
    rows += [_row_of_table_2(slice_, trainings) for slice_ in _slices(trainings)]
    others = [
        f"* {_name(record)}: {_needed_gb(record):.2g} GB on each chip."
        for record in records
        if record["fits"] and record["part"] not in ("train", "evaluate")
    ]
    problems = [
        f"* {_name(record)}: {record['problem']}."
        for record in records
        if not record["fits"]
    ]
    lines = [row for row in rows if row]
    lines += _section("Not trainings, compiled as well:", others)
    lines += _section("What does not compile or does not fit:", problems)
    return _HEAD + "\n".join(lines) + "\n"


def _trainings(records: list[dict]) -> list[CompiledTraining]:
    """Those whose two programs both fit, in the order of the records."""
    evaluations = {
        (record["slice"], record["program"]): record
        for record in records
        if record["part"] == "evaluate" and record["fits"]
    }
    return [
        CompiledTraining(
            program=record["program"],
            step=record,
            evaluation=evaluations[record["slice"], record["program"]],
        )
        for record in records
        if record["part"] == "train"
        and record["fits"]
        and (record["slice"], record["program"]) in evaluations
    ]


def _slices(trainings: list[CompiledTraining]) -> list[str]:
    return list(dict.fromkeys(training.step["slice"] for training in trainings))


def _row(training: CompiledTraining) -> str:
    step = training.step
    _, _, variant = training.program.partition(":")
    estimate = estimated_seconds(step)
    is_limited_by_compute = step["arithmetic_seconds"] >= step["memory_seconds"]
    return _table_row(
        variant,
        step["slice"],
        str(step["devices"]),
        _milliseconds(bound_seconds(step)),
        _milliseconds(estimate) if estimate else "",
        _milliseconds(link_seconds(step)) if step["devices"] > 1 else "",
        "compute" if is_limited_by_compute else "memory",
        f"{step['moved_bytes'] / 1e9:.2f}",
        f"{_needed_gb(step):.1f} of {step['device_memory_bytes'] / 1e9:.0f}",
        f"{training.hours(least_seconds):.2g}",
        f"{training.hours(likely_seconds):.2g}",
    )


def _row_of_table_2(slice_: str, trainings: list[CompiledTraining]) -> str:
    """All CIFAR rows of Table 2 one after the other; empty unless all fit one chip."""
    here = [
        training
        for training in trainings
        if training.step["slice"] == slice_ and training.program in _TABLE_2
    ]
    if len(here) < len(_TABLE_2) or here[0].step["devices"] > 1:
        return ""
    least_hours = sum(training.hours(least_seconds) for training in here)
    likely_hours = sum(training.hours(likely_seconds) for training in here)
    name = "all CIFAR rows of Table 2, in turn"
    empty = [""] * 6
    return _table_row(
        name,
        slice_,
        "1",
        *empty,
        f"{_DATA_SETS_OF_TABLE_2 * least_hours:.2g}",
        f"{_DATA_SETS_OF_TABLE_2 * likely_hours:.2g}",
    )


def _table_row(*cells: str) -> str:
    return "| " + " | ".join(cells) + " |"


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:.2f}"


def _name(record: dict) -> str:
    return f"{record['program']}, {record['part']}, on {record['slice']}"


def _needed_gb(record: dict) -> float:
    return compile_check.needed_bytes(record) / 1e9


def _section(heading: str, lines: list[str]) -> list[str]:
    """A heading and its lines; nothing if there are none."""
    return ["", heading, "", *lines] if lines else []


def _main(paths: list[str]) -> int:
    compiled = [runs.read_run(path) for path in paths]
    name = compile_check.EXPERIMENT.name
    if others := [run.path for run in compiled if run.experiment != name]:
        raise runs.RunError(f"name runs of {name}, got {others}")
    newest_last = sorted(compiled, key=lambda run: run.environment["started"])
    text = page([record for run in newest_last for record in run.records])
    runs.write_atomically(pathlib.Path(_PAGE.value), text)
    return 0


if __name__ == "__main__":
    commands.run(_main, takes="run directories of compile_check")
