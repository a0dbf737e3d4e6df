"""Tables 1 and 2, Figure 1: the all-convolutional residual net, and its rivals.

Claim: 6.38 % test error on CIFAR-10 and 24.64 % on CIFAR-100 with 13.5M parameters,
momentum SGD, and no more than crops and flips. The other rows of Table 2 run with their
own published recipes.

Command: python -m experiments.images.cifar    # digits, on any machine
After `make data`:
    python -m experiments.images.cifar --config=:cifar10/all_conv_residual
--help gives the time of each variant; the comments in this file also give the expected
number. Where no run has been measured, the time is an estimate and says so.
"""

from typing import TYPE_CHECKING

import threadpoolctl

from experiments import run
from experiments.images import settings, verdicts
from experiments.run.settings import configs
from experiments.run.verdicts import reproduced
from identity_matters import paper
from identity_matters.images import datasets

if TYPE_CHECKING:
    from experiments.images.train import Training

# A run reproduces a published error if it exceeds that by at most this, in percentage
# points: about twice the usual spread of such nets over seeds. Our choice.
WINDOW_PERCENT = 0.5
# model -> row of Table 2
ROWS = {net: row for row, net in paper.REPORT["nets"].items()}
CLAIMS = {"cifar10": "table-2-cifar-10", "cifar100": "table-2-cifar-100"}
# For these, Table 2 prints the error of another net; see paper.TABLE_2.
ERRORS_OF_OTHER_NETS = (("cifar100", "resnet"), ("cifar100", "all_cnn_c"))
# digits are fitted if the training error is at most this; our choice
FITTED_PERCENT = 0.5
LINEAR_ITERATIONS = 5000  # enough for logistic regression on digits to converge

VARIANTS = {
    "digits/all_conv_residual": "19 convolutions; half a minute on two cores",
}
ACCELERATOR_VARIANTS = {
    "cifar10/all_conv_residual": "Table 2's net; one H100: 7 minutes",
    "cifar100/all_conv_residual": "the same; our one run diverged after a third of it",
}
# The other rows of Table 2, and nets for machines without an accelerator.
_OTHER_NETS = {
    "all_cnn_c": "a row of Table 2; one H200: 3 minutes (estimate)",
    "resnet": "ResNet-110, a row of Table 2; one H200: 5 minutes (estimate)",
    "densenet": "a row of Table 2; one H200: several hours (estimate)",
    "small": "1.1M parameters, 30 epochs; two cores: 2.7 to 3.7 hours",
    "small_scaled": "the same from larger weights; two cores: 1.6 to 2.9 hours",
    "small_long": "the same for 70 epochs; two cores: 3.9 hours",
    "wide": "2.4M parameters, 31,200 steps; two cores: most of a day (estimate)",
    "full_size": "Table 1's net by the recipe of wide; one H100: 4 minutes (estimate)",
}
OTHER_VARIANTS = {
    f"{dataset}/{net}": about
    for net, about in _OTHER_NETS.items()
    for dataset in CLAIMS
}

# What to train where there is no accelerator.
ON_A_CPU = "--config=:cifar10/small takes about 3 hours on two cores"

_SMALL = {"blocks_per_stage": (3, 3, 3), "widths": (32, 64, 128)}
_SCALED = {**_SMALL, "initial_scale": 16.0}
_PADDED = {"pad_pixels_per_side": 4}
_COSINE = {
    "schedule": "cosine",
    "boundary_steps": (),
    "warmup_steps": 400,
    "weight_decay": 5e-4,
}
_COSINE_STRONG_DECAY = {**_COSINE, "weight_decay": 1e-3}
# The recipe for 6.38 % in docs/protocol.md, apart from the net.
_RECIPE = {
    "scale": "reduced",
    "data": _PADDED,
    "optim": {**_COSINE_STRONG_DECAY, "nesterov": True},
}


def _train_for_epochs(count: int) -> dict:
    """Settings of a training of this many epochs, which a slow machine must resume.

    It is not rounded to whole dispatches of an accelerator, as those of Table 2's rows
    are: reference runs have these lengths, and these nets are for CPUs.
    """
    (steps,) = settings.steps_at(128, count)
    return {"steps": steps, "steps_per_checkpoint": 200}


# Claim: the paper's block and initialisation train on any images. Reduced: 19
# convolutions of a quarter of the paper's width, 8 x 8 images. 2 CPU cores: half a
# minute. Expected: 5.5 to 8 %.
_DIGITS_NET: dict = {
    "scale": "reduced",
    "data": settings.DIGITS,
    "model": {"blocks_per_stage": (3, 3, 3), "widths": (16, 32, 64)},
    # At the paper's 0.05 one seed in three diverged as the loss began to fall.
    "optim": {"learning_rate": 0.03, "boundary_steps": (500, 650)},
    "train": {"steps": 700, "steps_per_log": 50, **settings.DIGITS_INTERVALS},
}
# Net -> scale, and its changes of each group of settings.
# Missing groups stay as they are.
_NETS: dict[str, dict] = {
    # Claim: Table 2, 6.38 % on CIFAR-10 and 24.64 % on CIFAR-100, best at about 50,000
    # steps. The paper took 24 hours on a Tesla K40. One H100: 7 minutes, at 20,000
    # images/s. Expected on CIFAR-10: 6.9 % (one seed). On CIFAR-100 the one seed that
    # was run diverged at step 19,109. 60,000 steps show the plateau after the second
    # drop of the learning rate.
    "all_conv_residual": {
        "scale": "paper",
        "model": {"compute_dtype": "bfloat16"},
        # The accelerator waits half a second while its 109 MB are saved.
        "train": {"steps_per_checkpoint": 5000},
    },
    # Claim: the paper's block, initialisation and fixed projection, without batch norm,
    # train on CIFAR at a size that two cores can carry. Reduced: 19 convolutions of
    # half the width, 1.1M parameters, 30 epochs whose rate ends at zero. 2 CPU cores:
    # 2.7 hours on CIFAR-100, and 3.7 on CIFAR-10 before convolutions were made faster.
    # Expected: 10.6 % on CIFAR-10 and 36.4 % on CIFAR-100 (one seed each); our goals,
    # set before the first run, were 8.5 % and 34 %. The decay is our choice for so
    # short a schedule.
    "small": {
        "scale": "reduced",
        "model": _SMALL,
        "optim": _COSINE,
        "train": _train_for_epochs(30),
    },
    # Claim: the same net comes closer to Table 2 from 16 times the paper's initial
    # deviation, which short trials of narrow nets chose. That is 16/(9c), or 0.94, 0.67
    # and 0.47 of the standard 1/(3 sqrt c) at c = 32, 64 and 128 channels, so about the
    # start that the paper advises against. It also fits the training images sooner,
    # hence a padding of 4 pixels and the decay of All-CNN-C; what each of the three
    # gives was not measured. 2 CPU cores: 1.6 to 2.9 hours.
    # Expected: 9.3 to 9.8 % on CIFAR-10 (three seeds) and 33.0 to 33.4 % on CIFAR-100
    # (two). Our goals, set before the first run, were 8.5 % and 34 %.
    "small_scaled": {
        "scale": "reduced",
        "data": _PADDED,
        "model": _SCALED,
        "optim": _COSINE_STRONG_DECAY,
        "train": _train_for_epochs(30),
    },
    # Claim: the same net comes closer still in 70 epochs. 2 CPU cores: 3.9 hours on
    # CIFAR-10. Expected there: 8.2 % (one seed). Our goal, set before the first run,
    # was 8.5 % in four hours.
    "small_long": {
        "scale": "reduced",
        "data": _PADDED,
        "model": _SCALED,
        "optim": _COSINE_STRONG_DECAY,
        "train": _train_for_epochs(70),
    },
    # Claim: the paper's error on CIFAR-10 is within reach of two cores: 6.38 % from
    # 2.4M parameters in 80 epochs, and 28 % on CIFAR-100. The recipe was fixed in
    # docs/protocol.md before the first run. Expected on CIFAR-10: 7.6 to 7.9 % (three
    # seeds), so the goal is missed. 2 CPU cores: most of a day (estimate). It took 4 to
    # 5 minutes on an H100 that it shared with other runs.
    "wide": {
        **_RECIPE,
        "model": {
            "blocks_per_stage": (3, 3, 3),
            "widths": (48, 96, 192),
            "initial_scale": 16.0,
        },
        "train": {"steps": 31_200, "steps_per_checkpoint": 200},
    },
    # Claim: the same recipe reaches 6.38 % with the width and depth of Table 1, in half
    # the steps of `all_conv_residual`; the second recipe of docs/protocol.md. Expected
    # on CIFAR-10: 6.8 % (one seed), so the goal is missed. Not for CPUs. One H100: 4
    # minutes (estimate); 11 on one that it shared with three other runs.
    "full_size": {
        **_RECIPE,
        "model": {"initial_scale": 16.0, "compute_dtype": "bfloat16"},
        "train": {"steps": 31_200, "steps_per_checkpoint": 5000},
    },
    # Claim: Table 2, 7.25 % on CIFAR-10 with augmentation, 32.39 % on CIFAR-100 as
    # printed there. Springenberg et al. 2014: 350 epochs, learning rate 0.05 (from a
    # grid), divided by ten at 200, 250 and 300; batch 256, weight decay 0.001, whitened
    # images, random shifts of up to 5 pixels. One H200: about 3 minutes (estimate).
    "all_cnn_c": {
        "scale": "paper",
        "data": {"normalization": "gcn_zca", "pad_pixels_per_side": 5},
        "model": {
            "name": "all_cnn_c",
            "input_dropout": 0.2,
            "dropout": 0.5,
            "compute_dtype": "bfloat16",
        },
        "optim": {
            "boundary_steps": settings.dispatches_at(256, 200, 250, 300),
            "weight_decay": 1e-3,
            "decayed": "kernels",
        },
        "train": {
            "steps": settings.dispatches_at(256, 350)[0],
            "batch_examples": 256,
        },
    },
    # Claim: Table 2, 6.43 % on CIFAR-10, the best of five runs of ResNet-110. Table 2's
    # 25.16 % on CIFAR-100 is that of another net, ResNet-164. He et al. 2015: 64,000
    # steps, batch 128, rate 0.1 (0.01 for the first 400 steps, here linear warm-up),
    # divided by ten at 32,000 and 48,000. They subtract the mean image, of each pixel,
    # and do not divide; here each channel is shifted by its mean and divided by its
    # deviation, as in fb.resnet.torch. One H200: about 5 minutes (estimate).
    "resnet": {
        "scale": "paper",
        "data": {"normalization": "mean_std", "pad_pixels_per_side": 4},
        "model": {
            "name": "resnet",
            "depth": 110,
            "width": 16,
            "compute_dtype": "bfloat16",
        },
        "optim": {
            "learning_rate": 0.1,
            "boundary_steps": (32_000, 48_000),
            "warmup_steps": 400,
            "decayed": "kernels",
        },
        "train": {"steps": 64_000},
    },
    # Claim: Table 2, 3.74 % on CIFAR-10 and 19.25 % on CIFAR-100, L = 100, k = 24,
    # plain. Huang et al. 2016: 300 epochs, batch 64, learning rate 0.1 divided by ten
    # at 1/2 and 3/4 of training, Nesterov momentum, weight decay on all parameters. One
    # H200: several hours (estimate).
    "densenet": {
        "scale": "paper",
        "data": {"normalization": "mean_std", "pad_pixels_per_side": 4},
        "model": {
            "name": "densenet",
            "depth": 100,
            "growth": 24,
            "compute_dtype": "bfloat16",
        },
        "optim": {
            "learning_rate": 0.1,
            "boundary_steps": settings.dispatches_at(64, 150, 225),
            "nesterov": True,
            "decayed": "all",
        },
        "train": {
            "steps": settings.dispatches_at(64, 300)[0],
            "batch_examples": 64,
            # 1,000 images take 26 GB in this net; one TPU v5e chip has 16.
            "evaluation_batch_examples": 250,
        },
    },
}


def _settings(variant: str) -> dict:
    dataset, net = variant.split("/")
    changes = _DIGITS_NET if dataset == "digits" else _NETS[net]
    return settings.make_settings(
        scale=changes["scale"],
        data={**changes.get("data", {}), "dataset": dataset},
        model=changes.get("model", {}),
        optim=changes.get("optim", {}),
        **changes.get("train", {}),
    )


get_config = configs(
    {v: _settings(v) for v in VARIANTS | ACCELERATOR_VARIANTS | OTHER_VARIANTS}
)


def measure(training: "Training", key, log) -> dict:
    """Trains; on digits, adds the error of a linear classifier.

    Digits have no published error.
    """
    result = training.run(key, log)
    if training.dataset == "digits":
        result["linear_classifier_test_error_percent"] = (
            linear_classifier_error_percent()
        )
    return result


def linear_classifier_error_percent() -> float:
    """Test error of scikit-learn's logistic regression on the same split of digits."""
    from sklearn.linear_model import LogisticRegression

    x, y = _load_digits("train")
    test_x, test_y = _load_digits("test")
    # Waiting for a second thread costs more than it saves.
    with threadpoolctl.threadpool_limits(1):
        classifier = LogisticRegression(max_iter=LINEAR_ITERATIONS).fit(x, y)
    errors = int((classifier.predict(test_x) != test_y).sum())
    # Exactly what a net with as many errors has: 100 (1 - score) is off by rounding.
    return 100 * errors / len(test_y)


def _load_digits(split: str) -> tuple:
    """Pixels from 0 to 1, f64[n, 64], and labels."""
    images, labels = datasets.load("digits", split)
    pixel_max = datasets.find_source("digits").pixel_max
    return images.reshape(len(images), -1) / pixel_max, labels


def verdict(config: dict, records: list[dict]) -> run.Verdict:
    """See `verdicts.compare_with_published`, and `_digits_verdict` for digits."""
    dataset = config["data"]["dataset"]
    net = config["model"]["name"]
    metrics = verdicts.result_metrics(records, "linear_classifier_test_error_percent")
    if dataset not in CLAIMS:
        return _digits_verdict(metrics)
    claim = _claim(dataset, net)
    if config["scale"] != "paper":
        return run.Verdict(claim, metrics, "not comparable")
    return verdicts.compare_with_published(
        claim,
        metrics,
        published={"test_error": paper.TABLE_2[ROWS[net]][dataset].value},
        window_percent=WINDOW_PERCENT,
        comparable=(dataset, net) not in ERRORS_OF_OTHER_NETS,
    )


def diverged_verdict(config: dict, records: list[dict]) -> run.Verdict:
    """A recipe of Table 2 that diverges is not reproduced, nor are digits fitted."""
    dataset = config["data"]["dataset"]
    net = config["model"]["name"]
    if dataset not in CLAIMS:
        return verdicts.divergence_verdict("digits", records)
    return verdicts.divergence_verdict(
        _claim(dataset, net),
        records,
        comparable=config["scale"] == "paper"
        and (dataset, net) not in ERRORS_OF_OTHER_NETS,
    )


def _claim(dataset: str, net: str) -> str:
    """The claim that a net's error on CIFAR belongs to."""
    return CLAIMS[dataset] if net == "all_conv_residual" else "table-2-other-rows"


def _digits_verdict(metrics: dict) -> run.Verdict:
    """Digits must be fitted, with fewer test errors than a linear classifier has.

    A difference of test errors below `verdicts.STANDARD_ERRORS` standard errors decides
    nothing.
    """
    linear = {
        "test_error_percent": metrics["linear_classifier_test_error_percent"],
        "test_examples": metrics["test_examples"],
    }
    difference, margin = verdicts.error_difference_percent(linear, metrics)
    metrics["test_error_difference_percent"] = difference
    metrics["test_error_margin_percent"] = margin
    fitted = metrics["train_error_percent"] <= FITTED_PERCENT
    outcome = reproduced(fitted and difference < 0)
    if fitted and abs(difference) <= margin:
        outcome = "undecided"
    return run.Verdict("digits", metrics, outcome)


EXPERIMENT = run.TrainingExperiment(
    name="cifar",
    module=__name__,
    trials=settings.one_training,
    measure=measure,
    verdict=verdict,
    diverged_verdict=diverged_verdict,
    build=settings.build_training,
)

if __name__ == "__main__":
    run.main(EXPERIMENT)
