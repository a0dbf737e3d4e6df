"""experiments/images: variants, recipes and schedules."""

import json

import numpy as np
import pytest

import experiments
from experiments.images import ablations, cifar, comparisons, imagenet, train
from experiments.images import data as image_data
from experiments.images.data import ImageData, classes_and_shape
from experiments.images.settings import (
    ACCELERATOR_STEPS_PER_DISPATCH,
    dispatches_at,
    steps_at,
)
from identity_matters import paper
from identity_matters.preprocessing import Preprocessing
from tests.measured import settings

VARIANTS = [
    (module, variant)
    for module in (cifar, ablations, imagenet)
    for variant in (*module.VARIANTS, *module.OTHER_VARIANTS)
    if not variant.startswith("cifar100")  # those of CIFAR-10 with other images
]
PARAMETERS = {
    "cifar10/all_conv_residual": 13_538_736,
    "cifar10/small": 1_064_880,
    "cifar10/small/activation": 170_928,
    "cifar10/wide": 2_391_984,
    "cifar10/full_size": 13_538_736,
    "imagenet2012/parameters_as_printed": 35_693_760,
    "imagenet2012/blocks_of_34_layers": 21_095_616,
    "imagenet2012/resnet_34": 21_797_672,
}
PRINTED = "imagenet2012/parameters_as_printed"


@pytest.mark.parametrize("module", [ablations, cifar, comparisons, imagenet])
def test_help_says_what_each_variant_is(module):
    notes = [getattr(module, kind, None) for kind in experiments.KINDS]
    assert all(all(note.values()) for note in notes if note)
    assert any(notes)


@pytest.mark.parametrize(("module", "variant"), VARIANTS, ids=str)
def test_every_variant_makes_its_trainings(module, variant, monkeypatch):
    """Pretends that every data set is there, with one example per split."""

    def load(data):
        _, shape = classes_and_shape(data)
        example = np.zeros((1, *shape), np.uint8), np.zeros(1, np.int32)
        preprocessing = Preprocessing.fit("none", example[0])
        return ImageData(
            image_data.Arrays(*example, *example), preprocessing, {"train": "one"}
        )

    monkeypatch.setattr(train, "load_data", load)
    trials = module.EXPERIMENT.trials(**settings(module, variant))
    assert len({json.dumps(trial) for trial in trials}) == len(trials) > 0
    for trial in trials:
        training = module.EXPERIMENT.build(**trial)
        assert training.keeps_checkpoint == (module is not ablations)
        assert training.fingerprint == {"train": "one"}
        assert training.parameters == PARAMETERS.get(variant, training.parameters)


@pytest.mark.parametrize("num_classes", [10, 100])
def test_the_operations_of_the_papers_training_are_those_of_our_net_of_table_1(
    num_classes,
):
    config = settings(cifar, "cifar10/all_conv_residual")
    net = train._make_net(config["model"], num_classes, (32, 32, 3))
    examples = config["train"]["steps"] * config["train"]["batch_examples"]
    assert paper.cifar_training_flops(num_classes) == 3 * net.forward_flops * examples
    # Integers of 32 bits do not hold so many operations.
    of_int32 = paper.cifar_training_flops(np.int32(num_classes))
    assert of_int32 == paper.cifar_training_flops(num_classes)


def test_the_papers_recipe_is_that_of_section_4():
    config = settings(cifar, "cifar10/all_conv_residual")
    recipe = {
        "learning_rate": 0.05,
        "momentum": 0.9,
        "weight_decay": 1e-4,
        "decay_factor": 0.1,
    }
    assert recipe.items() <= config["optim"].items()
    assert config["optim"]["boundary_steps"] == (30_000, 50_000)
    assert (
        config["train"]["batch_examples"],
        config["data"]["pad_pixels_per_side"],
    ) == (
        128,
        2,
    )


@pytest.mark.parametrize(
    ("variant", "settings_by_hand"),
    [
        # Springenberg et al. 2014, section 3.1; the batch is that of the Caffe version.
        # Epochs 200, 250, 300 and 350 of 195.3 batches.
        (
            "cifar10/all_cnn_c",
            {
                "data": {
                    "normalization": "gcn_zca",
                    "pad_pixels_per_side": 5,
                    "flip": True,
                },
                "model": {"input_dropout": 0.2, "dropout": 0.5},
                "optim": {
                    "learning_rate": 0.05,
                    "boundary_steps": (39_100, 48_800, 58_600),
                    "weight_decay": 1e-3,
                    "nesterov": False,
                },
                "train": {"batch_examples": 256, "steps": 68_400},
            },
        ),
        # He et al. 2015, section 4.2.
        (
            "cifar10/resnet",
            {
                "data": {"pad_pixels_per_side": 4, "flip": True},
                "model": {"depth": 110},
                "optim": {
                    "learning_rate": 0.1,
                    "boundary_steps": (32_000, 48_000),
                    "warmup_steps": 400,
                    "weight_decay": 1e-4,
                    "nesterov": False,
                },
                "train": {"batch_examples": 128, "steps": 64_000},
            },
        ),
        # Huang et al. 2016, section 4.2: epochs 150, 225 and 300 of 781.25 batches.
        (
            "cifar10/densenet",
            {
                "data": {
                    "normalization": "mean_std",
                    "pad_pixels_per_side": 4,
                    "flip": True,
                },
                "model": {"depth": 100, "growth": 24},
                "optim": {
                    "learning_rate": 0.1,
                    "boundary_steps": (117_200, 175_800),
                    "weight_decay": 1e-4,
                    "nesterov": True,
                    "decayed": "all",
                },
                "train": {"batch_examples": 64, "steps": 234_400},
            },
        ),
    ],
)
def test_the_recipes_of_the_other_nets_are_those_of_their_papers(
    variant, settings_by_hand
):
    """The lengths of All-CNN-C and DenseNet are whole dispatches of 100 steps."""
    config = settings(cifar, variant)
    for group, by_hand in settings_by_hand.items():
        assert by_hand.items() <= config[group].items()
    always = {"schedule": "step", "momentum": 0.9, "decay_factor": 0.1}
    assert always.items() <= config["optim"].items()


def test_schedules_by_hand():
    assert steps_at(256, 200, 350) == (39_062, 68_359)
    assert dispatches_at(256, 200, 350) == (39_100, 68_400)
    printed = settings(imagenet, PRINTED)
    assert (printed["train"]["steps"], printed["train"]["batch_examples"]) == (
        700_000,
        256,
    )
    optim = printed["optim"]
    assert (optim["learning_rate"], optim["decay_factor"]) == (0.1, 0.94)
    # Two epochs are 2 * 1,281,167 / 256 = 10,009 steps; 69 of them fit before step
    # 700,000.
    assert optim["boundary_steps"][:2] == (10_009, 20_018)
    assert len(optim["boundary_steps"]) == 69
    resnet = settings(imagenet, "imagenet2012/resnet_34")
    # Epochs 30, 60 and 90.
    assert resnet["optim"]["boundary_steps"] == (150_136, 300_273)
    assert resnet["train"]["steps"] == 450_410
    small = settings(cifar, "cifar10/small")
    _, schedule, rate = train.make_optimizer(
        steps=small["train"]["steps"], **small["optim"]
    )
    assert float(schedule(small["train"]["steps"])) == 0
    assert rate == small["optim"]["learning_rate"]


@pytest.mark.parametrize("variant", [*cifar.VARIANTS, *cifar.OTHER_VARIANTS])
def test_no_long_training_ends_with_a_shorter_dispatch(variant):
    config = cifar.get_config(variant)
    # the others were meant for CPUs, where a dispatch is one step
    if config.scale == "paper":
        assert config.train.steps % ACCELERATOR_STEPS_PER_DISPATCH == 0


@pytest.mark.parametrize(
    ("net", "blocks_per_stage", "widths", "compute_dtype"),
    [
        ("wide", (3, 3, 3), (48, 96, 192), "float32"),
        ("full_size", (9, 9, 9), (64, 128, 256), "bfloat16"),
    ],
)
def test_the_recipes_for_the_papers_error_are_those_of_the_protocol(
    net, blocks_per_stage, widths, compute_dtype
):
    config = settings(cifar, f"cifar10/{net}")
    size = {
        "blocks_per_stage": blocks_per_stage,
        "widths": widths,
        "initial_scale": 16.0,
        "compute_dtype": compute_dtype,
    }
    assert size.items() <= config["model"].items()
    assert config["data"]["pad_pixels_per_side"] == 4
    recipe = {
        "schedule": "cosine",
        "learning_rate": 0.05,
        "warmup_steps": 400,
        "nesterov": True,
    }
    recipe |= {"momentum": 0.9, "weight_decay": 1e-3, "decayed": "convolutions"}
    assert recipe.items() <= config["optim"].items()
    assert config["train"]["steps"] * config["train"][
        "batch_examples"
    ] == pytest.approx(4e6, rel=2e-3)
    model = {
        name: config["model"][name]
        for name in ("projection", "batch_norm", "identity", "leak")
    }
    assert model == {
        "projection": "fixed",
        "batch_norm": False,
        "identity": True,
        "leak": 0.0,
    }
