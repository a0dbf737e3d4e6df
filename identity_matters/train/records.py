"""The records of a training, made of the sums of its steps, and their summary.

docs/metrics.md explains the fields.
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
# The fields that differ between two runs that compute the same numbers.
TIMING_FIELDS = (*SPEEDS, "seconds", "compile_seconds")


class NonFiniteError(Exception):
    """The run has diverged: a metric is NaN or infinite.

    Attributes:
      step: the update that it was computed in, or after which it was evaluated.
      metric: its name.
    """

    def __init__(self, step: int, metric: str, value: float):
        super().__init__(f"{metric} is {value} at step {step}")
        self.step = step
        self.metric = metric

    @classmethod
    def check(cls, step: int, metric: str, value: float) -> None:
        """Raises unless `value` is finite."""
        if not math.isfinite(value):
            raise cls(step, metric, float(value))


@dataclasses.dataclass
class MetricSums:
    """Metrics since the last train record; saved in checkpoints.

    Attributes:
      loss: summed over the examples.
      errors: of a classification; None for a regression, and before the first step.
      examples: how many there were.
      gradient_norm, learning_rate: those of the last step.
      seconds: wall time of the steps, without compiling.
      input_wait_seconds: how long the loop waited for batches.
      compile_seconds: spent on compiling.
    """

    loss: float = 0.0
    errors: int | None = None
    examples: int = 0
    gradient_norm: float = 0.0
    learning_rate: float = 0.0
    seconds: float = 0.0
    input_wait_seconds: float = 0.0
    compile_seconds: float = 0.0

    def add(self, first_step: int, sums: dict) -> None:
        """Adds the sums of one `step.dispatch`, whose first update is `first_step`.

        Raises NonFiniteError if a loss or a gradient is not finite.
        """
        for i, loss in enumerate(sums["loss"]):
            gradient_norm = float(sums["gradient_norm"][i])
            NonFiniteError.check(first_step + i, "loss", loss)
            NonFiniteError.check(first_step + i, "gradient_norm", gradient_norm)
            self.loss += float(loss)
            if "errors" in sums:
                self.errors = (self.errors or 0) + int(sums["errors"][i])
            self.examples += int(sums["examples"][i])
            self.gradient_norm = gradient_norm
            self.learning_rate = float(sums["learning_rate"][i])

    def record(
        self,
        *,
        step: int,
        epoch: float,
        flops_per_example: float,
        peak_flops_per_second: float | None,
    ) -> dict:
        """The train record.

        Args:
          step: the last one that was added.
          epoch: passes over the training split up to it.
          flops_per_example: floating-point operations to train on one example.
          peak_flops_per_second: of all devices together, if known.
        """
        images_per_second = self.examples / self.seconds
        flops_per_second = images_per_second * flops_per_example
        errors = {}
        if self.errors is not None:
            errors["error_percent"] = 100 * self.errors / self.examples
        utilization_percent = None
        if peak_flops_per_second is not None:
            utilization_percent = 100 * flops_per_second / peak_flops_per_second
        return {
            "kind": "train",
            "step": step,
            "epoch": epoch,
            "loss": self.loss / self.examples,
            **errors,
            "learning_rate": self.learning_rate,
            "gradient_norm": self.gradient_norm,
            "images_per_second": images_per_second,
            "model_flops_per_second": flops_per_second,
            "utilization_percent": utilization_percent,
            # An upper bound on idle time:
            # the devices may have been busy while the host waited.
            "input_wait_percent": 100 * self.input_wait_seconds / self.seconds,
            "seconds": self.seconds,
            "compile_seconds": self.compile_seconds,
        }


def evaluation_record(
    sums: dict,
    *,
    step: int,
    epoch: float,
    seconds: float,
    compile_seconds: float,
    top_k: int = 0,
) -> dict:
    """The record of an evaluation.

    Args:
      sums: from `step.evaluation_step`, over all test examples.
      step: updates made before it.
      epoch: passes over the training split before it.
      seconds: wall time, without compiling.
      compile_seconds: spent on compiling.
      top_k: that of the task.
    Raises:
      NonFiniteError: the loss is not finite.
    """
    examples = int(sums["examples"])
    loss = float(sums["loss"]) / examples
    NonFiniteError.check(step, "test_loss", loss)
    error_percents = {}
    if "errors" in sums:
        error_percents["test_error_percent"] = 100 * int(sums["errors"]) / examples
    if top_k:
        top_k_errors = int(sums["top_k_errors"])
        error_percents[f"test_top{top_k}_error_percent"] = 100 * top_k_errors / examples
    return {
        "kind": "evaluation",
        "step": step,
        "epoch": epoch,
        "test_loss": loss,
        **error_percents,
        "test_examples": examples,
        "residual_ratio": (sums["residual_ratio"] / examples).tolist(),
        "seconds": seconds,
        "compile_seconds": compile_seconds,
    }


def result(records: list[dict]) -> dict:
    """Summarizes a complete run's records.

    Test errors are given at the last and at the best step. A regression has no errors:
    its best step is that with the least test loss.
    """
    train = [record for record in records if record["kind"] == "train"]
    evaluations = [record for record in records if record["kind"] == "evaluation"]
    last = evaluations[-1]
    criterion = "test_error_percent" if "test_error_percent" in last else "test_loss"
    best = min(evaluations, key=lambda record: record[criterion])
    errors: dict = {}
    for name in last:
        if name.endswith("_error_percent"):
            errors[name] = last[name]
            errors[name.replace("_percent", "_best_percent")] = best[name]
    if "error_percent" in train[-1]:
        errors["train_error_percent"] = train[-1]["error_percent"]
    return {
        "steps": last["step"],
        **errors,
        "best_step": best["step"],
        "test_loss": last["test_loss"],
        "test_examples": last["test_examples"],
        "train_loss": train[-1]["loss"],
        **{name: _median(train, name) for name in SPEEDS},
        "compile_seconds": sum(
            record["compile_seconds"] for record in train + evaluations
        ),
        "train_seconds": sum(record["seconds"] for record in train),
        "evaluate_seconds": sum(record["seconds"] for record in evaluations),
    }


def _median(records: list[dict], name: str) -> float | None:
    known = [record[name] for record in records if record[name] is not None]
    return statistics.median(known) if known else None
