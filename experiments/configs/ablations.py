"""Settings of experiments/ablations.py: DATASET/QUESTION. Each lists the nets that it compares."""

import ml_collections

from experiments.configs import training_groups as groups

# What `make reproduce` runs on any machine, and what it goes on to where there is an accelerator.
VARIANTS = ("digits/identity", "digits/initialisation")
ACCELERATOR_VARIANTS = ()
# At the paper's size, for an accelerator; a few minutes a net on one H200 (estimate).
OTHER_VARIANTS = (
    "cifar10/identity",
    "cifar10/initialisation",
    "cifar10/projection",
    "cifar10/batch_norm",
    "cifar10/activation",
)
_DEPTHS = {
    "digits": ((1, 1, 1), (3, 3, 3), (5, 5, 5)),
    "cifar10": ((3, 3, 3), (6, 6, 6), (9, 9, 9)),
}


def _nets(dataset: str, question: str) -> dict:
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
            for blocks in _DEPTHS[dataset]
            for kind, changes in kinds.items()
        }
    return {
        # Section 4: the small initialisation "substantially helped".
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
        # What the text leaves open and the base code did.
        "activation": {
            "relu": {},
            "leak": {"leak": 0.1},
            "activate_first": {"activate_first": True},
            "leak_and_activate_first": {"leak": 0.1, "activate_first": True},
        },
    }[question]


def get_config(variant: str = VARIANTS[0]) -> ml_collections.ConfigDict:
    known = VARIANTS + ACCELERATOR_VARIANTS + OTHER_VARIANTS
    if variant not in known:
        raise ValueError(f"variant must be one of {known}, got {variant!r}")
    dataset, question = variant.split("/")
    digits = dataset == "digits"
    # With 31 convolutions even the paper's initialisation diverges at times at this rate.
    small = {"blocks_per_stage": (3, 3, 3), "widths": (16, 32, 64)}
    return ml_collections.ConfigDict(
        {
            "variant": variant,
            "scale": "reduced" if digits else "paper",
            "data": groups.data(dataset),
            # Settings of the net that are the same for all but where `nets` changes them.
            "model": groups.all_conv_residual(**small if digits else {"compute_dtype": "bfloat16"}),
            "nets": _nets(dataset, question),
            "optim": groups.optim(boundary_steps=(250,)) if digits else groups.optim(),
            "train": _short_training() if digits else groups.train(keep_final_checkpoint=False),
        }
    )


def _short_training() -> dict:
    return groups.train(
        steps=300,
        batch_examples=64,
        steps_per_log=25,
        steps_per_evaluation=100,
        steps_per_checkpoint=100,
        keep_final_checkpoint=False,
    )
