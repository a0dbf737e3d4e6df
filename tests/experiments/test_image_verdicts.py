"""experiments/images: verdicts, from errors by hand."""

import pytest

from experiments.images import ablations, cifar, imagenet
from experiments.run import RESULT
from tests.tables import by_name

PRINTED = "imagenet2012/parameters_as_printed"

MEASURED = {
    "kind": RESULT,
    "train_examples": 1_281_167,
    "test_examples": 50_000,
    "test_error_percent": 36.0,
    "test_error_best_percent": 35.9,
    "test_top5_error_percent": 15.0,
    "test_top5_error_best_percent": 14.9,
}


@by_name(
    {
        "module": cifar,
        "variant": "cifar10/all_conv_residual",
        "measured": {"test_error_best_percent": 6.88},
        "verdict": "reproduced",
    },
    {
        "module": cifar,
        "variant": "cifar10/all_conv_residual",
        "measured": {"test_error_best_percent": 6.89},
        "verdict": "not reproduced",
    },
    {
        "module": cifar,
        "variant": "cifar10/small",
        "measured": {"scale": "reduced"},
        "verdict": "not comparable",
    },
    # Table 2 prints the errors of other nets for these two.
    {
        "module": cifar,
        "variant": "cifar100/resnet",
        "measured": {"test_error_best_percent": 27.2},
        "verdict": "not comparable",
    },
    {
        "module": cifar,
        "variant": "cifar100/all_cnn_c",
        "measured": {"test_error_best_percent": 33.7},
        "verdict": "not comparable",
    },
    {"module": imagenet, "variant": PRINTED, "measured": {}, "verdict": "reproduced"},
    {
        "module": imagenet,
        "variant": PRINTED,
        "measured": {"test_error_best_percent": 36.3},
        "verdict": "not reproduced",
    },
    {
        "module": imagenet,
        "variant": PRINTED,
        "measured": {"test_top5_error_best_percent": 15.2},
        "verdict": "not reproduced",
    },
    {
        "module": imagenet,
        "variant": "imagenet2012/blocks_of_34_layers",
        "measured": {"test_examples": 49_999},
        "verdict": "not comparable",
    },
    {
        "module": imagenet,
        "variant": "imagenet2012/resnet_34",
        "measured": {"test_error_best_percent": 20.0},
        "verdict": "not comparable",
    },
    {
        "module": imagenet,
        "variant": "miniature/all_conv_residual",
        "measured": {"test_error_percent": 29.9},
        "verdict": "reproduced",
    },
    {
        "module": imagenet,
        "variant": "miniature/all_conv_residual",
        "measured": {"test_error_percent": 30.1},
        "verdict": "not reproduced",
    },
)
def test_verdicts(module, variant, measured, verdict):
    config = {
        **module.get_config(variant).to_dict(),
        "scale": measured.get("scale", "paper"),
    }
    assert (
        module.verdict(config, [{"kind": "train"}, {**MEASURED, **measured}]).verdict
        == verdict
    )


@pytest.mark.parametrize(
    ("module", "variant", "claim", "verdict"),
    [
        (
            cifar,
            "cifar100/all_conv_residual",
            "table-2-cifar-100",
            "not reproduced",
        ),
        (cifar, "cifar10/small", "table-2-cifar-10", "not comparable"),
        (cifar, "cifar10/resnet", "table-2-other-rows", "not reproduced"),
        # Table 2 prints the error of another net here.
        (cifar, "cifar100/resnet", "table-2-other-rows", "not comparable"),
        (cifar, "digits/all_conv_residual", "digits", "not reproduced"),
        (imagenet, PRINTED, "table-2-imagenet", "not reproduced"),
        (
            imagenet,
            "imagenet2012/resnet_34",
            "table-2-other-rows",
            "not comparable",
        ),
        (
            imagenet,
            "miniature/all_conv_residual",
            "imagenet-miniature",
            "not reproduced",
        ),
    ],
)
def test_a_training_that_diverges_reproduces_nothing(module, variant, claim, verdict):
    evaluations = [
        {
            "kind": "evaluation",
            "step": step,
            "test_error_percent": error,
            "test_examples": 50_000,
        }
        for step, error in ((0, 99.0), (100, 48.1))
    ]
    trained = [{"kind": "train", "step": step} for step in (100, 200)]
    config = module.get_config(variant).to_dict()
    judged = module.diverged_verdict(config, [*evaluations, *trained])
    assert (judged.claim, judged.verdict) == (claim, verdict)
    assert judged.metrics == {
        "diverged_after_step": 200,
        "test_error_before_percent": 48.1,
        "test_examples": 50_000,
    }
    # A loss may be infinite before anything was logged.
    at_once = module.diverged_verdict(config, [])
    assert at_once.metrics == {"diverged_after_step": 0}
    assert at_once.claim == claim


def test_a_sample_of_imagenet_that_diverges_is_another_question():
    records = [{"kind": "evaluation", "test_error_percent": 99.0, "test_examples": 79}]
    config = imagenet.get_config(PRINTED).to_dict()
    assert imagenet.diverged_verdict(config, records).verdict == "not comparable"


DIVERGED = {"diverged": True, "diverged_step": 7}


def errors(test_error_percent, train_error_percent=10.0):
    return {
        "diverged": False,
        "test_error_percent": test_error_percent,
        "train_error_percent": train_error_percent,
        "test_examples": 10_000,
    }


LEAKY = {"relu": errors(15), "leak": errors(16.2)}


# Two standard errors of the difference of errors near 15 % of 10,000 images are 1.01
# points.
@pytest.mark.parametrize(
    ("question", "nets", "verdict"),
    [
        ("projection", {"fixed": errors(15), "trained": errors(16.1)}, "reproduced"),
        ("projection", {"fixed": errors(15), "trained": errors(15.9)}, "undecided"),
        (
            "projection",
            {"fixed": errors(16.1), "trained": errors(15)},
            "not reproduced",
        ),
        ("projection", {"fixed": errors(15), "trained": DIVERGED}, "reproduced"),
        ("projection", {"fixed": DIVERGED, "trained": DIVERGED}, "undecided"),
        (
            "batch_norm",
            {"without": errors(15, 12), "with": errors(17, 11)},
            "reproduced",
        ),
        (
            "batch_norm",
            {"without": errors(15, 12), "with": errors(17, 13)},
            "undecided",
        ),
        (
            "batch_norm",
            {"without": errors(15, 12), "with": errors(15.5, 11)},
            "undecided",
        ),
        (
            "batch_norm",
            {"without": errors(15, 6), "with": errors(13, 5)},
            "not reproduced",
        ),
        # It could not overfit: it does not fit its training images.
        (
            "batch_norm",
            {"without": errors(15, 6), "with": errors(13, 5.1)},
            "undecided",
        ),
        ("batch_norm", {"without": DIVERGED, "with": errors(13, 5)}, "undecided"),
        ("batch_norm", {"without": errors(15, 12), "with": DIVERGED}, "undecided"),
        ("activation", {**LEAKY, "activate_first": errors(13.9)}, "reproduced"),
        ("activation", {**LEAKY, "activate_first": errors(15.1)}, "undecided"),
        ("activation", {**LEAKY, "activate_first": DIVERGED}, "not reproduced"),
    ],
)
def test_small_ablations_decide_by_a_difference_that_was_seen(question, nets, verdict):
    config = ablations.get_config(f"cifar10/small/{question}").to_dict()
    assert set(nets) == set(config["nets"])
    for order in (list(nets), list(nets)[::-1]):
        records = [{"kind": RESULT, "net": name, **nets[name]} for name in order]
        concluded = ablations.verdict(config, records)
        assert concluded.verdict == verdict
        assert concluded.claim == question.replace("_", "-")


# Two standard errors of the difference of errors near 4 and 8 % of 450 images are 3.2
# points.
@by_name(
    {"linear": 8.0, "error": 5.0, "train_error": 0.5, "verdict": "undecided"},
    {"linear": 8.0, "error": 4.0, "train_error": 0.5, "verdict": "reproduced"},
    {"linear": 8.0, "error": 4.0, "train_error": 0.6, "verdict": "not reproduced"},
    {"linear": 4.0, "error": 8.0, "train_error": 0.5, "verdict": "not reproduced"},
    {"linear": 4.0, "error": 6.0, "train_error": 0.5, "verdict": "undecided"},
    {"linear": 4.0, "error": 6.0, "train_error": 0.6, "verdict": "not reproduced"},
)
def test_digits_are_decided_by_a_difference_that_was_seen(
    linear, error, train_error, verdict
):
    result = {
        "kind": RESULT,
        "linear_classifier_test_error_percent": linear,
        "train_error_percent": train_error,
        "test_error_percent": error,
        "test_examples": 450,
    }
    config = cifar.get_config("digits/all_conv_residual").to_dict()
    concluded = cifar.verdict(config, [result])
    assert concluded.verdict == verdict
    assert concluded.metrics["test_error_difference_percent"] == pytest.approx(
        error - linear
    )
    p = linear / 100
    q = error / 100
    margin = 200 * ((p * (1 - p) + q * (1 - q)) / 450) ** 0.5
    assert concluded.metrics["test_error_margin_percent"] == pytest.approx(margin)
