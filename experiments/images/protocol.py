"""The rules of docs/protocol.md, in code: one tuning, one budget, one way to decide.

An arm is one net of a comparison. For each arm a run has a short trial for every
learning rate of the one grid, scored on training images that are held out, and then one
final training with the best rate, scored on the test set.
"""

import dataclasses
from typing import TYPE_CHECKING

from experiments.images.verdicts import errs_less
from experiments.run import RESULT
from experiments.run.verdicts import where

if TYPE_CHECKING:
    from experiments.images.data import ImageData
    from experiments.images.train import Training

# The modules that load JAX and the training loop are imported inside the functions that
# need them, so that --help does not wait for them.

LEARNING_RATES = (0.003, 0.01, 0.03, 0.1, 0.3)
# The last training images. The order of CIFAR is random, as TFDS makes it; that of
# digits is not.
HELD_OUT_EXAMPLES = {"digits": 269, "cifar10": 5000, "cifar100": 5000}
STEPS_PER_WARMUP_STEP = 20  # the warm-up is a twentieth of the steps
# A final training has failed if its training error
# is within this of chance, in percentage points.
CHANCE_MARGIN_PERCENT = 10.0
# Of these a final training has those that it got to.
_SCORES = ("test_error_percent", "train_error_percent", "train_loss", "diverged_step")
TUNING = "tuning"
FINAL = "final"
# Settings of the optimizer that are the same for all arms, or tuned.
SET_BY_THE_PROTOCOL = (
    "learning_rate",
    "schedule",
    "boundary_steps",
    "decay_factor",
    "warmup_steps",
)


def trials(
    *, arms: dict[str, dict], trial_steps: int, model: dict, train: dict, **groups
) -> list[dict]:
    """The tuning trials and then the final training of each arm, arm by arm.

    Args:
      arms: name -> its changes of `model`; one that names a net replaces `model` as a
        whole.
      trial_steps: the length of a tuning trial.
      model: what the nets have in common.
      train: length and batch size of the final trainings.
      groups: "data" and "optim".
    """
    short = {**train, "steps": trial_steps, "steps_per_evaluation": trial_steps}
    listed = []
    for arm, changes in arms.items():
        common = {"arm": arm, "model": _net_of(model, changes), **groups}
        for rate in LEARNING_RATES:
            listed.append(
                {**common, "phase": TUNING, "tried_rate": rate, "train": short}
            )
        listed.append({**common, "phase": FINAL, "tried_rate": None, "train": train})
    return listed


def final_trials(
    *,
    arms: dict[str, dict],
    tuned_rates: dict[str, float],
    model: dict,
    train: dict,
    **groups,
) -> list[dict]:
    """The final training of each arm alone, at a rate that was tuned before.

    Args:
      arms: as in `trials`.
      tuned_rates: arm -> its learning rate.
      model: as in `trials`.
      train: as in `trials`.
      groups: as in `trials`.

    Raises:
      ValueError: unless the two have the same arms.
    """
    if set(arms) != set(tuned_rates):
        raise ValueError(
            f"tuned_rates must have one rate for each of the arms {', '.join(arms)},"
            f" got {', '.join(tuned_rates)}"
        )
    return [
        {
            "arm": arm,
            "model": _net_of(model, changes),
            "phase": FINAL,
            "tried_rate": tuned_rates[arm],
            "train": train,
            **groups,
        }
        for arm, changes in arms.items()
    ]


def _net_of(model: dict, changes: dict) -> dict:
    """An arm's net: `changes` alone if they name one, else `model` with `changes`."""
    return dict(changes) if "name" in changes else {**model, **changes}


@dataclasses.dataclass(frozen=True)
class Part:
    """What is measured in one trial: a tuning trial or a final training.

    Attributes:
      arm: of the comparison.
      phase: `TUNING` or `FINAL`.
      tried_rate: the learning rate; None for that which the tuning trials choose.
      groups: the settings "data", "model", "optim" and "train".
    """

    arm: str
    phase: str
    tried_rate: float | None
    groups: dict
    keeps_checkpoint = False

    @property
    def fingerprint(self) -> dict:
        """That of the images, which must be the same in all processes."""
        from experiments.images.data import load_data

        return load_data(self.groups["data"]).fingerprint


def build(*, arm: str, phase: str, tried_rate: float | None, **groups) -> Part:
    """The part that a trial of `trials` or `final_trials` describes.

    Raises:
      ValueError or TypeError: settings cannot be used.
    """
    if groups["train"]["keep_final_checkpoint"]:
        raise ValueError(
            "train.keep_final_checkpoint must be False: comparisons keep no nets"
        )
    part = Part(arm, phase, tried_rate, groups)
    if phase == FINAL:  # one of each arm is enough to find mistakes
        make_training(part, LEARNING_RATES[0])
    return part


def make_training(part: Part, rate: float) -> "Training":
    """The training of a part, with a schedule over its own length.

    Args:
      part: the settings; a tuning trial holds images out.
      rate: the learning rate.
    """
    from experiments.images.data import load_data
    from experiments.images.train import Training

    data = part.groups["data"]
    train = part.groups["train"]
    images = load_data(data)
    if part.phase == TUNING:
        images = without_held_out(images, HELD_OUT_EXAMPLES[data["dataset"]])
    return Training(
        data=data,
        model=part.groups["model"],
        optim={
            **part.groups["optim"],
            "learning_rate": rate,
            "schedule": "cosine",
            "boundary_steps": (),
            "warmup_steps": train["steps"] // STEPS_PER_WARMUP_STEP,
        },
        train=train,
        images=images,
    )


def without_held_out(images: "ImageData", count: int) -> "ImageData":
    """The data without the last `count` training images, which become the test set.

    Their preprocessing is fitted to the other training images alone.
    """
    from identity_matters.batches import Arrays
    from identity_matters.preprocessing import Preprocessing

    whole = images.examples
    if not isinstance(whole, Arrays):
        raise ValueError("only data in memory can be held out")
    examples = Arrays(
        whole.train_images[:-count],
        whole.train_labels[:-count],
        whole.train_images[-count:],
        whole.train_labels[-count:],
    )
    preprocessing = Preprocessing.fit(
        images.preprocessing.normalization,
        examples.train_images,
        pad_pixels_per_side=images.preprocessing.pad_pixels_per_side,
        flip=images.preprocessing.flip,
    )
    fingerprint = {**images.fingerprint, "held_out_examples": count}
    return images._replace(
        examples=examples, preprocessing=preprocessing, fingerprint=fingerprint
    )


def measure(part: Part, key, log) -> dict:
    """Trains; a final training without a rate takes the best of its tuning trials."""
    rate = part.tried_rate
    if rate is None:
        rate = best_rate(where(log.results(), arm=part.arm, phase=TUNING))
    result = make_training(part, rate).run(key, log, keep_diverged=True)
    if part.phase == TUNING:  # what was scored is not the test set
        result = {
            name.replace("test_", "held_out_"): value for name, value in result.items()
        }
    return {"learning_rate": rate, **result}


def best_rate(tried: list[dict]) -> float:
    """The rate with the least held-out error, the smallest if several tie.

    A net that diverged has an error of 100 %.

    Raises ValueError unless every rate of the grid was tried once.
    """
    errors = {
        result["tried_rate"]: _error(result, "held_out_error_percent")
        for result in tried
    }
    if tuple(sorted(errors)) != LEARNING_RATES or len(tried) != len(errors):
        raise ValueError(
            f"an arm needs one trial for each of {LEARNING_RATES}, got {[*errors]}"
        )
    return min(sorted(errors), key=errors.__getitem__)


def finals(records: list[dict]) -> dict[str, dict]:
    """The result of each arm's final training."""
    results = where(records, kind=RESULT)
    return {result["arm"]: result for result in where(results, phase=FINAL)}


def metrics_of(records: list[dict]) -> dict:
    """The tuned rates, errors, sizes and operations of all arms, as ``NAME/ARM``."""
    metrics: dict = {}
    for arm, result in finals(records).items():
        rate = result["learning_rate"]
        values = {
            "learning_rate": rate,
            "at_edge_of_grid": int(rate in (LEARNING_RATES[0], LEARNING_RATES[-1])),
            "failed": int(failed(result)),
            **{name: result[name] for name in _SCORES if name in result},
            "parameters": result["parameters"],
            "training_flops_per_example": result["training_flops_per_example"],
        }
        metrics |= {f"{name}/{arm}": value for name, value in values.items()}
    return metrics


def failed(result: dict) -> bool:
    """Whether a final training has diverged or stayed near chance."""
    chance_percent = 100 * (1 - 1 / result["num_classes"])
    error = _error(result, "train_error_percent")
    return error >= chance_percent - CHANCE_MARGIN_PERCENT


def is_better(net: dict, other: dict) -> bool:
    """Whether a net has a lower test error, by more than the margin of rule 6.

    A net that has failed is worse than one that has not; two that have failed are not
    compared.
    """
    if failed(net):
        return False
    return failed(other) or errs_less(net, other)


def _error(result: dict, name: str) -> float:
    return 100.0 if result["diverged"] else result[name]
