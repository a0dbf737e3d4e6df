"""The paper's side remarks on its net, one by one: what helps, and by how much.

Claims (section 4, and section 1 for the identity): nets of the same depth without the identity do
not train; the small initialisation "helped training"; the fixed random projection "slightly
improved" the test error; with batch normalisation a net of this size overfits. The text leaves the
activation open: we ask whether what the base code had lowers the test error.

Command: python -m experiments.images.ablations --config=:digits/identity
    make data && make reproduce-ablations DATASET=cifar10/small SEEDS="0 1 2"
2 CPU cores: digits/identity and digits/initialisation a little over a minute together. A net of
cifar10/small takes 22 minutes on one core, one of its identity variant about an hour, if nothing
else runs (estimates from 390 images/s): 3 hours for its five variants with one seed.
Expected: with the identity below 5 % training error at both depths, deep without it at chance.
cifar10/small has no expected number. Its criteria below were written before its first run.

A run is one seed, so its verdict weighs a difference of two test errors against the sampling error
that their test sets give it. Where that is larger it is "undecided": no difference seen.
"""

import math
from collections.abc import Callable

from experiments import run
from experiments.images import train
from experiments.images.log import RESULT
from experiments.run.shared import configs, largest, least, reproduced, total, where

# A net has trained if its training error is at most the first, and has not if it is within the
# second of pure chance, percentage points. Our choice.
TRAINED_PERCENT = 5.0
CHANCE_MARGIN_PERCENT = 10.0
# In ten epochs, on shifted and mirrored images, a narrow net fits less: a third of chance.
SMALL_TRAINED_PERCENT = 30.0
# How much lower the training loss has to be before an initialisation has helped. Our choice.
HELPED_LOSS_RATIO = 0.5
# Below this loss a net has fitted its images, and ratios say nothing.
LEAST_LOSS = 0.01
# Two test errors differ if they lie so many standard errors of their difference apart, where every
# test image counts as a draw of its own: about one point for 10,000 images and errors of 15 %. Both
# nets see the same images, so that the true error of the difference is likely smaller; what one
# seed adds is why several are run. Our choice.
STANDARD_ERRORS = 2.0

# What `make reproduce` runs on any machine.
VARIANTS = ("digits/identity", "digits/initialisation")
# At the paper's size, for an accelerator; a few minutes a net on one H200 (estimate).
QUESTIONS = ("identity", "initialisation", "projection", "batch_norm", "activation")
OTHER_VARIANTS = (
    *(f"cifar10/{question}" for question in QUESTIONS),
    # What two cores can carry: ten epochs of nets with 170,928 parameters, as few nets as will do.
    *(f"cifar10/small/{question}" for question in QUESTIONS),
)
_DEPTHS = {
    "digits": ((1, 1, 1), (5, 5, 5)),
    "cifar10": ((3, 3, 3), (6, 6, 6), (9, 9, 9)),
    # The claim is on deep nets: as deep as the deepest of digits.
    "cifar10/small": ((5, 5, 5),),
}
# The nets of other questions that cifar10/small leaves out.
_NOT_SMALL = ("paper_times_3", "zero", "leak_and_activate_first")


# Size -> scale, and what its nets, optimiser and length have of their own.
_SIZES: dict[str, tuple[str, dict, dict, dict]] = {
    "digits": (
        "reduced",
        {"blocks_per_stage": (3, 3, 3), "widths": (16, 32, 64)},
        # A rate that leaves some room: at 0.05 nets of the baseline's kind diverged at times.
        {"learning_rate": 0.03, "boundary_steps": (350,)},
        # After 300 steps the worst of three seeds stood at 5 % training error, on the criterion.
        {
            "steps": 400,
            "batch_examples": 64,
            "steps_per_log": 25,
            "steps_per_evaluation": 100,
            "steps_per_checkpoint": 100,
        },
    ),
    # The schedule of cifar.py's small nets, over ten epochs instead of thirty.
    "cifar10/small": (
        "reduced",
        {"blocks_per_stage": (2, 2, 2), "widths": (16, 32, 64)},
        {"schedule": "cosine", "boundary_steps": (), "warmup_steps": 400, "weight_decay": 5e-4},
        {"steps": train.steps_at(128, 10)[0], "steps_per_checkpoint": 200},
    ),
    "cifar10": ("paper", {"compute_dtype": "bfloat16"}, {}, {}),
}


def _nets(size: str, question: str) -> dict:
    """What is particular to each net: name -> changes of the settings of the net."""
    if question == "identity":
        # With the standard initialisation, which is the better one for nets without identity: with
        # the paper's their output would be smaller by 1/(k sqrt c) in every layer.
        kinds = {
            "identity": {"residual_init": "paper"},
            "no_identity": {"residual_init": "standard", "identity": False},
        }
        return {
            f"{kind}/{'-'.join(map(str, blocks))}": {**changes, "blocks_per_stage": blocks}
            for blocks in _DEPTHS[size]
            for kind, changes in kinds.items()
        }
    nets: dict[str, dict] = {
        # Section 4: the small initialisation "helped training".
        "initialisation": {
            "paper": {"residual_init": "paper"},
            "paper_times_3": {"residual_init": "paper", "initial_scale": 3.0},
            "standard": {"residual_init": "standard"},
            # All residual weights zero: the origin is a critical point in all of them.
            "zero": {"initial_scale": 0.0},
        },
        # Section 4: a fixed random projection "slightly improved test error".
        "projection": {"fixed": {"projection": "fixed"}, "trained": {"projection": "trained"}},
        # Section 4: a net of this size with batch normalisation overfits.
        "batch_norm": {"without": {"batch_norm": False}, "with": {"batch_norm": True}},
        # What the text leaves open and the base code had.
        "activation": {
            "relu": {},
            "leak": {"leak": 0.1},
            "activate_first": {"activate_first": True},
            "leak_and_activate_first": {"leak": 0.1, "activate_first": True},
        },
    }[question]
    left_out = _NOT_SMALL if size == "cifar10/small" else ()
    return {name: changes for name, changes in nets.items() if name not in left_out}


def _settings(variant: str) -> dict:
    size, question = variant.rsplit("/", 1)
    scale, *groups, length = _SIZES[size]
    data = train.DIGITS if size == "digits" else {"dataset": "cifar10"}
    common = train.settings(scale, data, *groups, keep_final_checkpoint=False, **length)
    return {**common, "nets": _nets(size, question)}


get_config = configs({variant: _settings(variant) for variant in VARIANTS + OTHER_VARIANTS})


def trials(*, variant: str, model: dict, nets: dict, **groups) -> list[dict]:
    """One training for each net that is compared."""
    del variant
    return [
        {"net": name, "model": {**model, **changes}, **groups} for name, changes in nets.items()
    ]


def measure(training: train.Training, key, log) -> dict:
    """Trains one net; that it diverges is a result."""
    return training.run(key, log, keep_diverged=True)


def verdict(config: dict, records: list[dict]) -> run.Verdict:
    """What these nets alone say of the claim of the variant's question."""
    results = where(records, kind=RESULT)
    size, question = config["variant"].rsplit("/", 1)
    metrics = {"nets": len(results), "diverged": total(results, "diverged")}
    for result in results:
        for metric in ("train_error_percent", "test_error_percent", "train_loss", "diverged_step"):
            if metric in result:
                metrics[f"{metric}/{result['net']}"] = result[metric]
    nets = {result["net"]: result for result in results}
    if question == "identity":
        trained_percent = SMALL_TRAINED_PERCENT if size == "cifar10/small" else TRAINED_PERCENT
        said = reproduced(identity_holds(results, trained_percent))
    elif question == "initialisation" and size != "cifar10/small":
        said = reproduced(initialisation_helps(nets["paper"], nets["standard"]))
    else:
        baseline_name, holds, denied = _BY_TEST_ERROR[question]
        baseline = nets.pop(baseline_name)
        for net, other in nets.items():
            difference, margin = error_difference_percent(baseline, other)
            metrics[f"test_error_difference_percent/{net}"] = difference
            metrics[f"test_error_margin_percent/{net}"] = margin
        seen = baseline, *nets.values()
        said = reproduced(holds(*seen)) if holds(*seen) or denied(*seen) else "undecided"
    return run.Verdict(question.replace("_", "-"), metrics, said)


def identity_holds(results: list[dict], trained_percent: float = TRAINED_PERCENT) -> bool:
    """With the identity all nets train; without it, the deepest does not.

    Args:
      trained_percent: the training error at which a net has trained.
    """
    nets = [
        {
            "identity": result["model"]["identity"],
            "depth": sum(result["model"]["blocks_per_stage"]),
            "error_percent": math.inf if result["diverged"] else result["train_error_percent"],
        }
        for result in results
    ]
    with_identity = where(nets, identity=True)
    deepest_without = where(nets, identity=False, depth=largest(nets, "depth"))
    chance_percent = 100 * (1 - 1 / results[0]["num_classes"])
    return (
        bool(with_identity and deepest_without)
        and largest(with_identity, "error_percent") <= trained_percent
        and least(deepest_without, "error_percent") >= chance_percent - CHANCE_MARGIN_PERCENT
    )


def initialisation_helps(paper: dict, standard: dict) -> bool:
    """The net called "paper" ends at a training loss well below that of "standard"."""
    if paper["diverged"] or standard["diverged"]:
        return standard["diverged"] and not paper["diverged"]
    ours, theirs = (max(net["train_loss"], LEAST_LOSS) for net in (paper, standard))
    return ours <= HELPED_LOSS_RATIO * theirs


def error_difference_percent(baseline: dict, other: dict) -> tuple[float, float]:
    """(test error of `other` less that of `baseline`, what it must exceed to count), points.

    The second is `STANDARD_ERRORS` sqrt(sum p (1 - p) / n) over the two nets, for an error p of n
    test images. A net that diverged errs on every image.
    """
    both = (baseline, other)
    errors = [1.0 if net["diverged"] else net["test_error_percent"] / 100 for net in both]
    examples = [net.get("test_examples", 1) for net in both]
    variance = sum(p * (1 - p) / n for p, n in zip(errors, examples, strict=True))
    return 100 * (errors[1] - errors[0]), 100 * STANDARD_ERRORS * math.sqrt(variance)


def _lower(better: dict, worse: dict) -> bool:
    """Whether the test error of `better` is lower than that of `worse` by more than the margin."""
    difference, margin = error_difference_percent(better, worse)
    return difference > margin


def _overfits(without: dict, with_norm: dict) -> bool:
    """With batch norm the training error is lower and yet the test error higher."""
    return (
        not with_norm["diverged"]
        and not without["diverged"]
        and with_norm["train_error_percent"] < without["train_error_percent"]
        and _lower(without, with_norm)
    )


# Question -> the net that the others are compared with, when the claim is reproduced, and when it
# is not. Where neither is seen, it is undecided.
_BY_TEST_ERROR: dict[str, tuple[str, Callable[..., bool], Callable[..., bool]]] = {
    # What helps in the end need not help twofold in ten epochs: only the test error can deny it.
    "initialisation": (
        "paper",
        initialisation_helps,
        lambda paper, standard: _lower(standard, paper),
    ),
    # The fixed projection's test error is lower, or the trained one's.
    "projection": ("fixed", _lower, lambda fixed, trained: _lower(trained, fixed)),
    "batch_norm": ("without", _overfits, lambda without, with_norm: _lower(with_norm, without)),
    # A leak or an activation in front of each block lowers the test error, or all raise it.
    "activation": (
        "relu",
        lambda relu, *others: any(_lower(other, relu) for other in others),
        lambda relu, *others: all(_lower(relu, other) for other in others),
    ),
}

EXPERIMENT = run.Experiment("ablations", trials, measure, verdict, train.Training, trains=True)

if __name__ == "__main__":
    run.main(EXPERIMENT)
