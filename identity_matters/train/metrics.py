"""From the sums of steps to the records of a run, and from the records to its result.

All fields of a record but `TIMING_FIELDS` are the same in an uninterrupted run and in one that was
killed and resumed. docs/metrics.md explains each field.
"""

import dataclasses
import math
import statistics

SPEEDS = (
    "images_per_second",
    "model_flops_per_second",
    "utilization_percent",
    "input_wait_percent",
)
TIMING_FIELDS = (*SPEEDS, "seconds", "compile_seconds")


class NonFiniteError(Exception):
    """A metric is NaN or infinite: the run has diverged.

    Attributes:
      step: the update that showed it, counted from 1, or the updates made before an evaluation.
      metric: its name in the records.
    """

    def __init__(self, step: int, metric: str, value: float):
        super().__init__(f"{metric} is {value} at step {step}")
        self.step, self.metric = step, metric


def check_finite(step: int, metric: str, value: float) -> None:
    """Raises NonFiniteError where `value` is not finite."""
    if not math.isfinite(value):
        raise NonFiniteError(step, metric, float(value))


@dataclasses.dataclass
class MetricSums:
    """What was measured since the last train record; part of a checkpoint."""

    loss: float = 0.0
    errors: int = 0
    examples: int = 0
    gradient_norm: float = 0.0
    learning_rate: float = 0.0
    seconds: float = 0.0
    input_wait_seconds: float = 0.0
    compile_seconds: float = 0.0

    def add(self, first_step: int, sums: dict) -> None:
        """Takes in the steps of one dispatch, of which `first_step` is the first.

        Args:
          sums: see `step.training_step`, each [steps].
        Raises:
          NonFiniteError: the loss or the gradient of a step is not finite.
        """
        for i, loss in enumerate(sums["loss"]):
            self.gradient_norm = float(sums["gradient_norm"][i])
            check_finite(first_step + i, "loss", loss)
            check_finite(first_step + i, "gradient_norm", self.gradient_norm)
            self.loss += float(loss)
            self.errors += int(sums["errors"][i])
            self.examples += int(sums["examples"][i])
            self.learning_rate = float(sums["learning_rate"][i])


def train_record(
    step: int, epoch: float, since: MetricSums, flops_per_example: float, peak: float | None
) -> dict:
    """The record of the steps in `since`.

    Args:
      step, epoch: updates made, and how often they went through the training split.
      peak: floating-point operations per second that all devices can do together, if known.
    """
    images_per_second = since.examples / since.seconds
    flops_per_second = images_per_second * flops_per_example
    return {
        "kind": "train",
        "step": step,
        "epoch": epoch,
        "loss": since.loss / since.examples,
        "error_percent": 100 * since.errors / since.examples,
        "learning_rate": since.learning_rate,
        "gradient_norm": since.gradient_norm,
        "images_per_second": images_per_second,
        "model_flops_per_second": flops_per_second,
        "utilization_percent": None if peak is None else 100 * flops_per_second / peak,
        # An upper bound of what the devices lost: they may have been busy meanwhile.
        "input_wait_percent": 100 * since.input_wait_seconds / since.seconds,
        "seconds": since.seconds,
        "compile_seconds": since.compile_seconds,
    }


def evaluation_record(
    step: int, epoch: float, sums: dict, seconds: float, compile_seconds: float, top_k: int = 0
) -> dict:
    """The record of one evaluation.

    Args:
      sums: see `step.evaluation_step`, over all examples.
      top_k: that of the sums; above 0 there is a test_top{top_k}_error_percent.
    Raises:
      NonFiniteError: the loss is not finite.
    """
    examples = int(sums["examples"])
    loss = float(sums["loss"]) / examples
    check_finite(step, "test_loss", loss)
    errors = {"test_error_percent": "errors"}
    if top_k:
        errors[top_name(top_k)] = "top_k_errors"
    return {
        "kind": "evaluation",
        "step": step,
        "epoch": epoch,
        "test_loss": loss,
        **{name: 100 * int(sums[counted]) / examples for name, counted in errors.items()},
        "test_examples": examples,
        "residual_ratio": (sums["residual_ratio"] / examples).tolist(),
        "seconds": seconds,
        "compile_seconds": compile_seconds,
    }


def as_line(record: dict) -> str:
    """A record as one line of text for a terminal; lists are left out."""
    return " ".join(
        f"{name}={value:.4g}" if isinstance(value, float) else f"{name}={value}"
        for name, value in record.items()
        if not isinstance(value, list) and value is not None
    )


def top_name(top_k: int) -> str:
    """The name in the records of the share of examples whose label is not among the `top_k`."""
    return f"test_top{top_k}_error_percent"


def result(records: list[dict], top_k: int = 0) -> dict:
    """What the records of a complete run say, those of earlier, killed processes included.

    Args:
      top_k: that of the evaluations; above 0 their top error is given, at the last and best step.
    """
    train = [record for record in records if record["kind"] == "train"]
    evaluations = [record for record in records if record["kind"] == "evaluation"]
    last = evaluations[-1]
    best = min(evaluations, key=lambda record: record["test_error_percent"])
    errors: dict = {}
    for name in ("test_error_percent", *([top_name(top_k)] if top_k else [])):
        errors |= {name: last[name], name.replace("_percent", "_best_percent"): best[name]}

    def median(name):
        known = [record[name] for record in train if record[name] is not None]
        return statistics.median(known) if known else None

    return {
        "steps": last["step"],
        **errors,
        "best_step": best["step"],
        "test_loss": last["test_loss"],
        "test_examples": last["test_examples"],
        "train_error_percent": train[-1]["error_percent"],
        "train_loss": train[-1]["loss"],
        **{name: median(name) for name in SPEEDS},
        "compile_seconds": sum(record["compile_seconds"] for record in train + evaluations),
        "train_seconds": sum(record["seconds"] for record in train),
        "evaluate_seconds": sum(record["seconds"] for record in evaluations),
    }
