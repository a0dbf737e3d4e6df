"""The paper's remarks on its net, tested one by one: what helps, and by how much.

Claims (section 4, and section 1 for the identity): nets of the same depth without the
identity do not train; the small initialisation "helped training"; the fixed random
projection "slightly improved" the test error; with batch normalisation a net of this
size overfits. The paper leaves the activation open; we ask whether the choices of the
base code lower the test error.

Command: python -m experiments.images.ablations --config=:digits/identity
    make data && make reproduce-ablations VARIANT=cifar10/small SEEDS="0 1 2"
2 CPU cores: digits/identity and digits/initialisation take a little over a minute
together. A net of cifar10/small takes 23 to 90 minutes on one core, depending on what
else runs; its five variants take 3 to 5 hours a seed on two cores.
Expected: training error below 5 % at both depths with the identity. The deep net
without it stays at chance: its start, the standard one, has outputs near 0, so that
this is no evidence and decides nothing. On digits the standard start diverges at the
one rate, which leaves the initialisation undecided. The criteria for cifar10/small
below were written before its first run. Expected there: reproduced for the identity,
not reproduced for initialisation and batch norm; the others depend on the seed.

A run is one seed, so its verdict compares the difference of two test errors with the
sampling error due to the finite test set. If the difference is smaller, the verdict is
"undecided".
"""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from experiments import run
from experiments.images import settings, verdicts
from experiments.run import RESULT
from experiments.run.settings import configs
from experiments.run.verdicts import reproduced, total, where

if TYPE_CHECKING:
    from experiments.images.train import Training

# A net has trained if its training error is at most this. Our choice.
TRAINED_PERCENT = 5.0
# In ten epochs of augmented images a narrow net fits less: this is a third of the error
# at chance.
SMALL_TRAINED_PERCENT = 30.0
# An initialisation has helped if its training loss is at most this times the other's.
# Our choice.
HELPED_LOSS_RATIO = 0.5
# Below this loss a net has fitted its images, and ratios say nothing.
LEAST_LOSS = 0.01

VARIANTS = {
    "digits/identity": "with and without it, at two depths; two cores: 40 s",
    "digits/initialisation": "the paper's against the standard one; two cores: 35 s",
}
QUESTIONS = {
    "identity": "with and without the identity",
    "initialisation": "the paper's start against the standard one",
    "projection": "the last map fixed or trained",
    "batch_norm": "with and without batch norm",
    "activation": "the base code's activations",
}
OTHER_VARIANTS = {
    **{
        f"cifar10/{question}": f"{about}; a net on an H200: minutes (estimate)"
        for question, about in QUESTIONS.items()
    },
    # Within reach of two cores: ten epochs, 170,928 parameters, and no more nets than
    # needed.
    **{
        f"cifar10/small/{question}": f"{about}; one core: 1 to 3 hours"
        for question, about in QUESTIONS.items()
    },
}
_DEPTHS = {
    "digits": ((1, 1, 1), (5, 5, 5)),
    "cifar10": ((3, 3, 3), (6, 6, 6), (9, 9, 9)),
    # The claim is about deep nets; these are as deep as the deepest for digits.
    "cifar10/small": ((5, 5, 5),),
}
# left out of cifar10/small
_NOT_SMALL = ("paper_times_3", "zero", "leak_and_activate_first")

# Size -> scale, and its changes to the settings of net, optimiser and training.
_SIZES: dict[str, tuple[str, dict, dict, dict]] = {
    "digits": (
        "reduced",
        {"blocks_per_stage": (3, 3, 3), "widths": (16, 32, 64)},
        # Leaves a margin: at 0.05 nets of the baseline's kind sometimes diverged.
        {"learning_rate": 0.03, "boundary_steps": (350,)},
        # After 300 steps the worst of three seeds was right at the criterion, 5 %
        # training error.
        {
            "steps": 400,
            "batch_examples": 64,
            "steps_per_log": 25,
            **settings.DIGITS_EVERY,
        },
    ),
    # The schedule of cifar.py's small nets, over ten epochs instead of thirty.
    "cifar10/small": (
        "reduced",
        {"blocks_per_stage": (2, 2, 2), "widths": (16, 32, 64)},
        {
            "schedule": "cosine",
            "boundary_steps": (),
            "warmup_steps": 400,
            "weight_decay": 5e-4,
        },
        {"steps": settings.steps_at(128, 10)[0], "steps_per_checkpoint": 200},
    ),
    "cifar10": ("paper", {"compute_dtype": "bfloat16"}, {}, {}),
}


def _nets(size: str, question: str) -> dict:
    """The nets to compare: name -> changes of the model settings."""
    if question == "identity":
        # Nets without the identity get the standard initialisation, which suits them
        # better: the paper's would shrink the output of every layer by a further factor
        # of k sqrt c.
        kinds = {
            "identity": {"residual_init": "paper"},
            "no_identity": {"residual_init": "standard", "identity": False},
        }
        return {
            f"{kind}/{'-'.join(map(str, blocks))}": {
                **changes,
                "blocks_per_stage": blocks,
            }
            for blocks in _DEPTHS[size]
            for kind, changes in kinds.items()
        }
    nets: dict[str, dict] = {
        "initialisation": {
            "paper": {"residual_init": "paper"},
            "paper_times_3": {"residual_init": "paper", "initial_scale": 3.0},
            "standard": {"residual_init": "standard"},
            # All residual weights are zero, and so are the gradients with respect to
            # them.
            "zero": {"initial_scale": 0.0},
        },
        "projection": {
            "fixed": {"projection": "fixed"},
            "trained": {"projection": "trained"},
        },
        "batch_norm": {"without": {"batch_norm": False}, "with": {"batch_norm": True}},
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
    data = settings.DIGITS if size == "digits" else {"dataset": "cifar10"}
    common = settings.make_settings(
        scale, data, *groups, keep_final_checkpoint=False, **length
    )
    return {**common, "nets": _nets(size, question)}


get_config = configs(
    {variant: _settings(variant) for variant in VARIANTS | OTHER_VARIANTS}
)


def trials(*, variant: str, model: dict, nets: dict, **groups) -> list[dict]:
    """One training for each net to compare."""
    for name, own in EXPERIMENT.settings_of(variant).get("model", model).items():
        if model[name] != own and all(name in changes for changes in nets.values()):
            raise ValueError(
                f"model.{name} would change nothing: each of nets has its own"
            )
    return [
        {"net": name, "model": {**model, **own}, **groups} for name, own in nets.items()
    ]


def measure(training: "Training", key, log) -> dict:
    """Trains one net; divergence is a result, not an error."""
    return training.run(key, log, keep_diverged=True)


def verdict(config: dict, records: list[dict]) -> run.Verdict:
    results = where(records, kind=RESULT)
    size, question = config["variant"].rsplit("/", 1)
    metrics = {"nets": len(results), "diverged": total(results, "diverged")}
    for result in results:
        for metric in (
            "train_error_percent",
            "test_error_percent",
            "train_loss",
            "diverged_step",
        ):
            if metric in result:
                metrics[f"{metric}/{result['net']}"] = result[metric]
    nets = {result["net"]: result for result in results}
    if question == "identity":
        trained_percent = (
            SMALL_TRAINED_PERCENT if size == "cifar10/small" else TRAINED_PERCENT
        )
        said = reproduced(identity_trains(results, trained_percent))
    elif question == "initialisation" and (
        nets["paper"]["diverged"] or nets["standard"]["diverged"]
    ):
        # All nets have one rate. At another the one that diverged may be the better.
        said = "undecided"
    elif question == "initialisation" and size != "cifar10/small":
        said = reproduced(initialisation_helps(nets["paper"], nets["standard"]))
    else:
        baseline_name, holds, denied = _BY_TEST_ERROR[question]
        baseline = nets.pop(baseline_name)
        for net, other in nets.items():
            difference, margin = verdicts.error_difference_percent(baseline, other)
            metrics[f"test_error_difference_percent/{net}"] = difference
            metrics[f"test_error_margin_percent/{net}"] = margin
        seen = baseline, *nets.values()
        said = (
            reproduced(holds(*seen)) if holds(*seen) or denied(*seen) else "undecided"
        )
    return run.Verdict(question.replace("_", "-"), metrics, said)


def identity_trains(results: list[dict], trained_percent: float) -> bool:
    """Whether all nets with the identity train; those without it decide nothing."""
    errors_percent = [
        math.inf if result["diverged"] else result["train_error_percent"]
        for result in results
        if result["model"]["identity"]
    ]
    return bool(errors_percent) and max(errors_percent) <= trained_percent


def initialisation_helps(paper: dict, standard: dict) -> bool:
    """Whether "paper" ends with a training loss well below that of "standard"; neither
    diverged.
    """
    ours, theirs = (max(net["train_loss"], LEAST_LOSS) for net in (paper, standard))
    return ours <= HELPED_LOSS_RATIO * theirs


def _lower(better: dict, worse: dict) -> bool:
    """Whether the test error of `better` is lower than that of `worse` by more than the
    margin.
    """
    difference, margin = verdicts.error_difference_percent(better, worse)
    return difference > margin


def _overfits(without: dict, with_norm: dict) -> bool:
    """Whether batch norm lowers the training error and yet raises the test error."""
    if without["diverged"] or with_norm["diverged"]:
        return False
    fits_better = with_norm["train_error_percent"] < without["train_error_percent"]
    return fits_better and _lower(without, with_norm)


# Question -> (net to compare with, test for "reproduced", test for "not reproduced").
# If neither test holds, the verdict is "undecided".
_BY_TEST_ERROR: dict[str, tuple[str, Callable[..., bool], Callable[..., bool]]] = {
    # Help need not halve the loss within ten epochs, so only the test error can refute
    # the claim.
    "initialisation": (
        "paper",
        initialisation_helps,
        lambda ours, other: _lower(other, ours),
    ),
    "projection": ("fixed", _lower, lambda fixed, trained: _lower(trained, fixed)),
    "batch_norm": (
        "without",
        _overfits,
        lambda without, with_norm: _lower(with_norm, without),
    ),
    # Reproduced if any change to the activation lowers the test error, refuted if all
    # raise it.
    "activation": (
        "relu",
        lambda relu, *others: any(_lower(other, relu) for other in others),
        lambda relu, *others: all(_lower(relu, other) for other in others),
    ),
}

EXPERIMENT = run.TrainingExperiment(
    name="ablations",
    module=__name__,
    trials=trials,
    measure=measure,
    verdict=verdict,
    build=settings.build_training,
)

if __name__ == "__main__":
    run.main(EXPERIMENT)
