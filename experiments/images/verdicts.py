"""Verdicts on trainings of images: metrics, and comparisons of test errors."""

import math

from experiments.run import RESULT, Verdict
from experiments.run.verdicts import reproduced, where

# Fields of a training's result that become metrics.
METRICS = (
    "test_error_percent",
    "test_error_best_percent",
    "best_step",
    "test_examples",
    "train_error_percent",
    "train_loss",
    "steps",
    "parameters",
    "images_per_second",
    "model_flops_per_second",
    "utilization_percent",
    "train_seconds",
    "evaluate_seconds",
    "test_top5_error_percent",
    "test_top5_error_best_percent",
)
# The margin of `error_difference_percent` in standard errors: about one point for
# 10,000 images and errors of 15 %. As both classifiers see the same images, the true
# standard error is likely smaller. It leaves out the spread over seeds, which is why
# several are run. Our choice.
STANDARD_ERRORS = 2.0


def result_metrics(records: list[dict], *others: str) -> dict:
    """The fields `METRICS` and `others`, where present, of a run's only training."""
    (result,) = where(records, kind=RESULT)
    return {
        name: result[name]
        for name in (*METRICS, *others)
        if result.get(name) is not None
    }


def divergence_verdict(
    claim: str, records: list[dict], comparable: bool = True
) -> Verdict:
    """The verdict of a run whose only training diverged.

    Args:
      claim: its id.
      records: of the run. Steps are logged in groups, so the last that was logged may
        be some steps before the one whose loss was not finite.
      comparable: whether a run that trains would be compared with the paper.
    """
    logged = where(records, kind="train")
    metrics = {"diverged_after_step": logged[-1]["step"] if logged else 0}
    if evaluations := where(records, kind="evaluation"):
        metrics["test_error_before_percent"] = evaluations[-1]["test_error_percent"]
        metrics["test_examples"] = evaluations[-1]["test_examples"]
    verdict = "not reproduced" if comparable else "not comparable"
    return Verdict(claim=claim, metrics=metrics, verdict=verdict)


def error_difference_percent(baseline: dict, other: dict) -> tuple[float, float]:
    """(test error of `other` minus that of `baseline`, margin that it must exceed).

    Both are in percentage points. The margin is `STANDARD_ERRORS` sqrt(sum p (1 - p) /
    n) over the two classifiers, with error p on n test images. A net that diverged is
    wrong on every image.

    Args:
      baseline, other: "test_error_percent" and "test_examples", or "diverged": True.
    """
    baseline_error = _test_error(baseline)
    other_error = _test_error(other)
    variance = _sampling_variance(baseline) + _sampling_variance(other)
    margin = 100 * STANDARD_ERRORS * math.sqrt(variance)
    return 100 * (other_error - baseline_error), margin


def errs_less(better: dict, worse: dict) -> bool:
    """Whether the test error of `better` is lower by more than the margin."""
    difference_percent, margin_percent = error_difference_percent(better, worse)
    return difference_percent > margin_percent


def _test_error(net: dict) -> float:
    return 1.0 if net.get("diverged") else net["test_error_percent"] / 100


def _sampling_variance(net: dict) -> float:
    error = _test_error(net)
    return error * (1 - error) / net.get("test_examples", 1)


def compare_with_published(
    claim: str,
    metrics: dict,
    published: dict,
    window_percent: float,
    comparable: bool = True,
) -> Verdict:
    """Reproduced iff no best step's error is too far above the published one.

    Args:
      claim: its id.
      metrics: of the run.
      published: a name ("test_error", say) -> an error in percent, perhaps that of the
        best step; the last step's error is reported, too.
      window_percent: by how much an error may exceed the published one; exactly so
        much is allowed.
      comparable: whether the published errors are those of the same net.
    """
    holds = all(
        metrics[f"{name}_best_percent"] <= error + window_percent
        for name, error in published.items()
    )
    paper = {
        f"{name}{suffix}_percent": error
        for name, error in published.items()
        for suffix in ("", "_best")
    }
    verdict = reproduced(holds) if comparable else "not comparable"
    return Verdict(claim=claim, metrics=metrics, verdict=verdict, paper=paper)
