"""Theorem 3.2: a ReLU residual net with O(n log n + r^2) parameters fits any labels.

Claim: a residual network with blocks h + V ReLU(U h + s) maps n inputs with any labels
out of r to their one-hot labels. Here the network is built, not trained, and run on
every input. An error is an input for which some output is off by 1/2 or more.

Command: python -m experiments.memorize
    python -m experiments.memorize --config=:cifar10   # after make data
Hardware: 2 CPU cores; the times are listed with the variants.
Expected: 0 errors. CIFAR-10's 50,000 training images with random labels take 850,000
parameters in blocks of width 8 in float32, 150,000 in blocks of width 1 in float64, and
fewer than 20,000 numbers in all once a number holds several labels
(few_numbers_cifar10). Retrieval from a hashed table needs fewer than 9,200 numbers, and
counting allows no fewer than 3,076 (retrieval_cifar10). The width printed in the proof
is larger than the number of images.
Verdicts: holds; counterexample for paper_method, where the printed width does not
preserve norms.
"""

import numpy as np

from experiments import run
from experiments.memorize_verdicts import (
    judge_few_numbers,
    judge_printed_width,
    judge_retrieval,
    judge_theorem,
)
from experiments.run.settings import configs
from experiments.run.trials import each
from identity_matters.images import datasets
from identity_matters.memorize import hashing

VARIANTS = {
    "digits": "all 1,797 digits, and SGD for contrast; 25 s, most of it for SGD",
    "synthetic": "random points: width, precision and separation; 20 s",
    "paper_method": "the method and the width of the printed proof; 8 s",
    "few_numbers": "digits by fewer numbers than examples; 10 s",
    "few_numbers_trade": (
        "numbers needed at each precision and width; random points, half a minute"
    ),
    "retrieval": "digits by a hashed table of labels; 10 s",
}
OTHER_VARIANTS = {
    "cifar10": "50,000 images, which `make data` prepares; a minute and a half",
    "few_numbers_cifar10": (
        "the same images by fewer than 20,000 numbers; three minutes"
    ),
    "retrieval_cifar10": "the same images by fewer than 9,200 numbers; three minutes",
    "synthetic_large": "up to 131,072 points; 40 s",
    "synthetic_imagenet": (
        "as many points and classes as ImageNet; meant for an accelerator"
    ),
}

# The examples that a network is to memorize.
_DIGITS = {
    # digits, cifar10 or synthetic (random unit vectors, or whole numbers)
    "dataset": "digits",
    # numbers of examples; 0: all training images, or all digits
    "examples": (0,),
    "features": 0,  # dimension d of synthetic points; images have their own
    "num_classes": 0,  # classes r of synthetic points; images have their own
    "data_dir": "data",  # where `make data` put the data sets
}
_FEW_DIGITS = {**_DIGITS, "examples": (512,)}
_CIFAR10 = {**_DIGITS, "dataset": "cifar10"}
_POINTS = {
    **_DIGITS,
    "dataset": "synthetic",
    "examples": (256, 1024, 4096, 16384),
    "features": 64,
    "num_classes": 10,
}
# In this many dimensions random unit vectors are nearly orthogonal, as the lemma needs.
# The printed width is then 22; a width of 480 suffices.
_ORTHOGONAL_POINTS = {**_POINTS, "examples": (1536,), "features": 4096}
# Whole numbers, like pixels, in so few dimensions that 34 bits suffice.
_POINTS_OF_FEW_BITS = {**_POINTS, "examples": (16384,), "features": 4}
_MANY_POINTS = {**_POINTS, "examples": (32768, 65536, 131072)}
_POINTS_LIKE_IMAGENET = {**_POINTS, "examples": (1_281_167,), "num_classes": 1000}

# How networks of Theorem 3.2 are built for them: trials of the kind "fit".
_ADAPTIVE = {
    "labels": ("random",),  # random: uniform labels; true: the data set's own
    "networks": ((8, "float32"),),  # width k and precision of each network
    "method": "adaptive",  # or paper: Lemmas B.1 and B.2, with a bias for each unit
    "tile_points": 2048,  # per tile of inner products; memory grows like its square
    "batch_examples": 4096,  # examples per batch of the forward pass
}
_PAPER = {**_ADAPTIVE, "method": "paper"}
# Larger tiles and batches pay off on an accelerator.
_ADAPTIVE_ON_AN_ACCELERATOR = {
    **_ADAPTIVE,
    "tile_points": 8192,
    "batch_examples": 131_072,
}
# How networks are built whose numbers hold several labels.
_FEW_NUMBERS = {
    # neighbours that share a threshold, a hash and a word
    "group_points": (5, 9, 11, 13),
    "batch_examples": 4096,
}
# A table of about 1.23 digits for each point, in words; see `retrieval`.
_RETRIEVAL = {
    "input_maps": ("dense", "factored"),  # d numbers, or d1 + d2 with d = d1 d2
    "batch_examples": 4096,
    # the claim: at most this many digits of the table for each point
    "most_cells_per_point": 1.25,
}

# Variant -> kind of trial -> its settings: those of the examples, then those of what is
# done with them. A later one replaces an earlier one of the same name.
_SETTINGS = {
    "digits": {
        "fit": {
            **_DIGITS,
            **_ADAPTIVE,
            "labels": ("random", "true"),
            # The narrowest network in each precision,
            # and the wider ones that float32 needs.
            "networks": (
                (1, "float32"),
                (1, "float64"),
                (2, "float32"),
                (4, "float32"),
                (8, "float32"),
                (8, "float64"),
            ),
        },
        "separation": _DIGITS,
        "sgd": {
            **_FEW_DIGITS,
            "width": 8,  # of the network; it has as many blocks as the constructed one
            "learning_rates": (0.01, 0.03, 0.1),  # our small grid around the best rate
            "momentum": 0.9,
            "batch_examples": 128,  # of an update
            "steps": 4000,  # our budget
            # how often the errors over all examples are counted
            "steps_per_evaluation": 200,
        },
    },
    "synthetic": {
        "fit": {**_POINTS, **_ADAPTIVE},
        "separation": _POINTS,
        "minimal_width": {
            **_POINTS,
            "precisions": ("float32", "float64"),
            "max_width": 16,
        },
        "precision": {
            # of unit vectors
            "pair_distances": (1.0, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6),
            "pairs": 512,
            "features": 64,
            "num_classes": 10,
            "width": 8,
        },
    },
    "paper_method": {
        "fit": {
            **_ORTHOGONAL_POINTS,
            **_PAPER,
            "networks": ((22, "float32"), (512, "float32")),
        },
        "separation": _ORTHOGONAL_POINTS,
        # Draws of a random map of the printed width. The proof's "with high
        # probability" is refuted if less than least_inside_share of them preserve all
        # norms.
        "printed_width": {**_ORTHOGONAL_POINTS, "draws": 20, "least_inside_share": 0.5},
    },
    "few_numbers": {"few_numbers": {**_DIGITS, **_FEW_NUMBERS}},
    "few_numbers_cifar10": {"few_numbers": {**_CIFAR10, **_FEW_NUMBERS}},
    "few_numbers_trade": {
        "few_numbers": {
            **_POINTS_OF_FEW_BITS,
            # no number, stored or computed, exceeds 2^word_bits
            "word_bits": (34, 40, 47, 53),
            # channels of the network; all but 5 hold words of labels
            "widths": (6, 7, 8),
            # Groups are as large as possible with at least
            # this chance that a random hash constant works.
            "least_hash_chance": 2e-3,
            "batch_examples": 4096,
        }
    },
    "retrieval": {"retrieval": {**_DIGITS, **_RETRIEVAL}},
    "retrieval_cifar10": {"retrieval": {**_CIFAR10, **_RETRIEVAL}},
    "cifar10": {
        "fit": {
            **_CIFAR10,
            **_ADAPTIVE,
            "labels": ("random", "true"),
            "networks": ((8, "float32"), (1, "float64")),
        },
        "separation": _CIFAR10,
    },
    "synthetic_large": {"fit": {**_MANY_POINTS, **_ADAPTIVE}},
    "synthetic_imagenet": {
        "fit": {
            **_POINTS_LIKE_IMAGENET,
            **_ADAPTIVE_ON_AN_ACCELERATOR,
            "networks": ((16, "float32"),),
        }
    },
}
# Settings that hold several values, of which `trials` takes every combination -> what a
# trial calls one value, or the parts of one.
_SEVERAL = {
    "examples": "examples",
    "labels": "labels",
    "group_points": "group_points",
    "word_bits": "word_bits",
    "precisions": "precision",
    "pair_distances": "pair_distance",
    "learning_rates": "learning_rate",
    "widths": "width",
    "input_maps": "input_map",
    "networks": "width precision",
}
get_config = configs(_SETTINGS)


def trials(*, variant: str, **groups) -> list[dict]:
    """For each kind, every combination of the settings that hold several values."""
    listed = []
    for kind, settings in groups.items():
        for trial in each(settings, _SEVERAL, kind=kind):
            trial |= _sizes_of_images(trial)
            trial |= _size_of_groups(trial)
            listed.append(trial)
    return listed


def _sizes_of_images(trial: dict) -> dict:
    """The settings that a data set of images decides; none for synthetic points.

    Raises:
      ValueError: the data set has fewer examples than the trial asks for.
    """
    dataset = trial.get("dataset", "synthetic")
    if dataset == "synthetic":
        return {}
    source = datasets.find_source(dataset)
    available = source.splits[datasets.split_to_fit(dataset)]
    examples = trial["examples"] or available
    if examples > available:
        raise ValueError(f"examples must lie in 0 ... {available}, got {examples}")
    return {
        "examples": examples,
        "features": int(np.prod(source.image_shape)),
        "num_classes": source.num_classes,
    }


def _size_of_groups(trial: dict) -> dict:
    """The largest groups whose hash constants are found, where their chance is set."""
    if "least_hash_chance" not in trial:
        return {}
    group_points = hashing.largest_group(
        num_classes=trial["num_classes"],
        word_bits=trial["word_bits"],
        width=trial["width"],
        chance=trial["least_hash_chance"],
    )
    return {"group_points": group_points}


VERDICTS = {
    "digits": judge_theorem,
    "synthetic": judge_theorem,
    "paper_method": judge_printed_width,
    "few_numbers": judge_few_numbers,
    "few_numbers_cifar10": judge_few_numbers,
    "few_numbers_trade": judge_few_numbers,
    "retrieval": judge_retrieval,
    "retrieval_cifar10": judge_retrieval,
    "cifar10": judge_theorem,
    "synthetic_large": judge_theorem,
    "synthetic_imagenet": judge_theorem,
}
EXPERIMENT = run.Experiment(
    name="memorize",
    module=__name__,
    trials=trials,
    measurements="experiments.measurements.memorize",
    verdict=VERDICTS,
    signed=("examples", "features", "num_classes"),
    may_be_nan=("curve",),  # of SGD, whose loss may overflow
)

if __name__ == "__main__":
    run.main(EXPERIMENT)
