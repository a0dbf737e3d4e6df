"""Settings of experiments/cifar.py: DATASET/MODEL, each with its claim, time and expected number.

Times without a measured run beside them are estimates from floating-point operations, and say so.
"""

import ml_collections

from experiments.configs import training_groups as groups

# What `make reproduce` runs on any machine, and what it goes on to where there is an accelerator.
VARIANTS = ("digits/all_conv_residual",)
ACCELERATOR_VARIANTS = ("cifar10/all_conv_residual", "cifar100/all_conv_residual")
# The other rows of Table 2, and a run for a machine without an accelerator.
OTHER_VARIANTS = (
    "cifar10/all_cnn_c",
    "cifar10/resnet",
    "cifar10/densenet",
    "cifar100/all_cnn_c",
    "cifar100/resnet",
    "cifar100/densenet",
    "cifar10/quarter_width",
)


def _digits(dataset: str) -> dict:
    # Claim: the paper's block and initialisation train on any images. Reduced: 19 convolutions of a
    # quarter of the paper's width, 8 x 8 images. 2 CPU cores: half a minute. Expected: 6 %.
    return {
        "scale": "reduced",
        "data": groups.data(dataset),
        "model": groups.all_conv_residual(blocks_per_stage=(3, 3, 3), widths=(16, 32, 64)),
        "optim": groups.optim(boundary_steps=(300, 450)),
        "train": groups.train(
            steps=500, steps_per_log=50, steps_per_evaluation=100, steps_per_checkpoint=100
        ),
    }


def _all_conv_residual(dataset: str) -> dict:
    # Claim: Table 2, 6.38 % on CIFAR-10 and 24.64 % on CIFAR-100, peak at about 50,000 steps. The
    # paper: 24 hours on one Tesla K40. One H200 at the target of 33,000 images/s: 4 minutes
    # (estimate). 60,000 steps show the plateau after the second drop of the learning rate.
    return {
        "scale": "paper",
        "data": groups.data(dataset),
        "model": groups.all_conv_residual(compute_dtype="bfloat16"),
        "optim": groups.optim(),
        "train": groups.train(steps=60_000),
    }


def _quarter_width(dataset: str) -> dict:
    # Claim: real images, the full depth of 55 convolutions, and a training error that falls.
    # Reduced: a quarter of the width, 1,200 steps. 2 CPU cores: about 15 minutes. Expected: a
    # training loss that falls from 2.3 to below 1.5; no published figure to compare with.
    return {
        "scale": "reduced",
        "data": groups.data(dataset),
        "model": groups.all_conv_residual(widths=(16, 32, 64)),
        "optim": groups.optim(boundary_steps=(900, 1100)),
        "train": groups.train(
            steps=1200,
            batch_examples=64,
            steps_per_log=50,
            steps_per_evaluation=400,
            steps_per_checkpoint=100,
        ),
    }


def _all_cnn_c(dataset: str) -> dict:
    # Claim: Table 2, 7.25 % on CIFAR-10 with augmentation, 32.39 % on CIFAR-100 as printed there.
    # Springenberg et al. 2014: rate 0.05 out of a grid, 350 epochs in batches of 256, factors of
    # ten at epochs 200, 250 and 300, decay 0.001, whitened images, crops of up to 5 pixels.
    # One H200: about 3 minutes (estimate).
    return {
        "scale": "paper",
        "data": groups.data(dataset, normalization="gcn_zca", pad_pixels_per_side=5),
        "model": {
            "name": "all_cnn_c",
            "input_dropout": 0.2,
            "dropout": 0.5,
            "compute_dtype": "bfloat16",
        },
        "optim": groups.optim(
            learning_rate=0.05, boundary_steps=groups.steps_at(256, 200, 250, 300),
            weight_decay=1e-3, decayed="kernels",
        ),
        "train": groups.train(steps=groups.steps_at(256, 350)[0], batch_examples=256),
    }  # fmt: skip


def _resnet(dataset: str) -> dict:
    # Claim: Table 2, 6.43 % on CIFAR-10, the best of five runs of ResNet-110. Table 2's 25.16 % on
    # CIFAR-100 is that of another net, ResNet-164. He et al. 2015: 64,000 steps of 128, rate 0.1
    # (0.01 for the first 400 steps: here a linear warm-up) over ten at 32,000 and 48,000.
    # One H200: about 5 minutes (estimate).
    return {
        "scale": "paper",
        "data": groups.data(dataset, normalization="mean_std", pad_pixels_per_side=4),
        "model": {"name": "resnet", "depth": 110, "width": 16, "compute_dtype": "bfloat16"},
        "optim": groups.optim(
            learning_rate=0.1, boundary_steps=(32_000, 48_000), warmup_steps=400,
            weight_decay=1e-4, decayed="kernels",
        ),
        "train": groups.train(steps=64_000),
    }  # fmt: skip


def _densenet(dataset: str) -> dict:
    # Claim: Table 2, 3.74 % on CIFAR-10 and 19.25 % on CIFAR-100, L = 100, k = 24, plain. Huang et
    # al. 2016: 300 epochs in batches of 64, rate 0.1 over ten at a half and three quarters,
    # Nesterov momentum, decay on all parameters. One H200: several hours (estimate).
    return {
        "scale": "paper",
        "data": groups.data(dataset, normalization="mean_std", pad_pixels_per_side=4),
        "model": {
            "name": "densenet",
            "depth": 100,
            "growth": 24,
            "stem_width": 16,
            "dropout": 0.0,
            "compute_dtype": "bfloat16",
        },
        "optim": groups.optim(
            learning_rate=0.1, boundary_steps=groups.steps_at(64, 150, 225), nesterov=True,
            weight_decay=1e-4, decayed="all",
        ),
        "train": groups.train(steps=groups.steps_at(64, 300)[0], batch_examples=64),
    }  # fmt: skip


_SETTINGS = {
    "all_conv_residual": _all_conv_residual,
    "quarter_width": _quarter_width,
    "all_cnn_c": _all_cnn_c,
    "resnet": _resnet,
    "densenet": _densenet,
}


def get_config(variant: str = VARIANTS[0]) -> ml_collections.ConfigDict:
    known = VARIANTS + ACCELERATOR_VARIANTS + OTHER_VARIANTS
    if variant not in known:
        raise ValueError(f"variant must be one of {known}, got {variant!r}")
    dataset, model = variant.split("/")
    settings = _digits(dataset) if dataset == "digits" else _SETTINGS[model](dataset)
    return ml_collections.ConfigDict({"variant": variant, **settings})
