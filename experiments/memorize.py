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
counting allows no fewer than 3,134 (retrieval_cifar10). The width printed in the proof
is larger than the number of images.
Verdicts: holds; counterexample for paper_method, where the printed width does not
preserve norms.
"""

import numpy as np

from experiments import run
from experiments.run.settings import configs
from experiments.run.trials import each
from experiments.run.verdicts import largest, least, total, under_attack, where
from identity_matters.images import datasets
from identity_matters.memorize import hashing

# Kinds of trials whose networks the verdict is about.
_FITS = ("fit", "few_numbers", "retrieval")
# Fields of other trials that hold a network, too.
_ALSO_BUILT = ("constructed", "float32_result", "float64_result")
# Fields reported for every trial, as metrics
# with the number of examples in their names.
_BY_SIZE = {
    "separation": ("rho", "theorem_width", "lemma_width"),
    "minimal_width": ("least_fitting_width", "least_certified_width"),
}

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


# How a trial is made. `_SETTINGS` has, for each variant and kind of trial, one group of
# settings; `_data` gives those of the examples, and `_fit` adds those of the networks.
# `_SEVERAL` names the settings that hold several values: `trials` makes one trial of
# each combination of them. Last, `_complete` adds what the other settings determine.


def _data(
    dataset: str, examples=(0,), *, features: int = 0, num_classes: int = 0
) -> dict:
    """The settings of the examples that a network is to memorize."""
    return {
        # digits, cifar10 or synthetic (random unit vectors, or whole numbers)
        "dataset": dataset,
        # numbers of examples; 0: all training images, or all digits
        "examples": examples,
        "features": features,  # dimension d of synthetic points; images have their own
        # classes r of synthetic points; images have their own
        "num_classes": num_classes,
        "data_dir": "data",  # where `make data` put the data sets
    }


def _fit(data: dict, **changes) -> dict:
    """The settings of trials of the kind "fit": of the examples and the networks."""
    return {
        **data,
        "labels": ("random",),  # random: uniform labels; true: the data set's own
        "networks": ((8, "float32"),),  # width k and precision of each network
        "method": "adaptive",  # or paper: Lemmas B.1 and B.2, with a bias for each unit
        "tile_points": 2048,  # per tile of inner products; memory grows like its square
        "batch_examples": 4096,  # examples per batch of the forward pass
        **changes,
    }


_FEW_NUMBERS = {
    # neighbours that share a threshold, a hash and a word
    "group_points": (5, 9, 11, 13),
    "batch_examples": 4096,
}
# Random points of whole numbers, like pixels,
# in so few dimensions that 34 bits suffice.
_FEW_NUMBERS_TRADE = {
    **_data("synthetic", (16384,), features=4, num_classes=10),
    "word_bits": (34, 40, 47, 53),  # no number, stored or computed, exceeds 2^word_bits
    "widths": (6, 7, 8),  # channels of the network; all but 5 hold words of labels
    # Groups are as large as possible with at least
    # this chance that a random hash constant works.
    "least_hash_chance": 2e-3,
    "batch_examples": 4096,
}
# A table of about 1.23 digits for each point, in words; see `retrieval`.
_RETRIEVAL = {
    "input_maps": ("dense", "factored"),  # d numbers, or d1 + d2 with d = d1 d2
    "batch_examples": 4096,
    # the claim: at most so many digits of the table for each point
    "most_cells_per_point": 1.25,
}
_LABELS = ("random", "true")
_POINTS = _data("synthetic", (256, 1024, 4096, 16384), features=64, num_classes=10)
# In so many dimensions random unit vectors are nearly orthogonal, as the lemma needs.
# The printed width is then 22; a width of 480 suffices.
_ORTHOGONAL = _data("synthetic", (1536,), features=4096, num_classes=10)
# Larger tiles and batches pay off on an accelerator.
_LARGE = {
    "networks": ((16, "float32"),),
    "tile_points": 8192,
    "batch_examples": 131_072,
}
_SETTINGS = {  # variant -> kind of trial -> its settings
    "digits": {
        "fit": _fit(
            _data("digits"),
            labels=_LABELS,
            # The narrowest network in each precision,
            # and the wider ones that float32 needs.
            networks=(
                (1, "float32"),
                (1, "float64"),
                (2, "float32"),
                (4, "float32"),
                (8, "float32"),
                (8, "float64"),
            ),
        ),
        "separation": _data("digits"),
        "sgd": {
            **_data("digits", (512,)),
            "width": 8,  # of the network; it has as many blocks as the constructed one
            "learning_rates": (0.01, 0.03, 0.1),  # our small grid around the best rate
            "momentum": 0.9,
            "batch_examples": 128,
            "steps": 4000,  # our budget
            # how often the errors over all examples are counted
            "steps_per_evaluation": 200,
        },
    },
    "synthetic": {
        "fit": _fit(_POINTS),
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
        "fit": _fit(
            _ORTHOGONAL, networks=((22, "float32"), (512, "float32")), method="paper"
        ),
        "separation": _ORTHOGONAL,
        # Draws of a random map of the printed width. The proof's "with high
        # probability" is refuted if less than least_inside_share of them preserve all
        # norms.
        "printed_width": {**_ORTHOGONAL, "draws": 20, "least_inside_share": 0.5},
    },
    "few_numbers": {"few_numbers": {**_data("digits"), **_FEW_NUMBERS}},
    "few_numbers_cifar10": {"few_numbers": {**_data("cifar10"), **_FEW_NUMBERS}},
    "few_numbers_trade": {"few_numbers": _FEW_NUMBERS_TRADE},
    "retrieval": {"retrieval": {**_data("digits"), **_RETRIEVAL}},
    "retrieval_cifar10": {"retrieval": {**_data("cifar10"), **_RETRIEVAL}},
    "cifar10": {
        "fit": _fit(
            _data("cifar10"),
            labels=_LABELS,
            networks=((8, "float32"), (1, "float64")),
        ),
        "separation": _data("cifar10"),
    },
    "synthetic_large": {
        "fit": _fit(
            _data("synthetic", (32768, 65536, 131072), features=64, num_classes=10)
        )
    },
    "synthetic_imagenet": {
        "fit": _fit(
            _data("synthetic", (1_281_167,), features=64, num_classes=1000), **_LARGE
        )
    },
}
# Settings that hold several values -> what
# a trial calls one value, or the parts of one.
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
    """For each group, every combination of the settings that hold several values."""
    return [
        _complete(trial)
        for kind, group in groups.items()
        for trial in each(group, _SEVERAL, kind=kind)
    ]


def _complete(trial: dict) -> dict:
    """The trial with what its data set decides, and with the size of its groups."""
    completed = {**trial, **_decided_by_images(trial)}
    if "least_hash_chance" in completed:
        completed["group_points"] = hashing.largest_group(
            completed["num_classes"],
            completed["word_bits"],
            completed["width"],
            completed["least_hash_chance"],
        )
    return completed


def _decided_by_images(trial: dict) -> dict:
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


def _judge_fits(settings: dict, records: list[dict]) -> run.Verdict:
    """Theorem 3.2: every labelling has a certified network, none of which errs."""
    return _all_fitted_without_errors("theorem-3-2", records)


def _judge_few_numbers(settings: dict, records: list[dict]) -> run.Verdict:
    """The same for networks whose numbers hold several labels each."""
    return _all_fitted_without_errors("few-numbers", records)


def _all_fitted_without_errors(claim: str, records: list[dict]) -> run.Verdict:
    """Holds if each labelling has a certified network; an error of one refutes it."""
    metrics = _metrics(records)
    verdict = under_attack(_is_refuted(metrics), _all_are_fitted(metrics, records))
    return run.Verdict(claim, metrics, verdict)


def _judge_retrieval(settings: dict, records: list[dict]) -> run.Verdict:
    """The same for hashed tables, which must be small enough, too."""
    metrics = _metrics(records)
    metrics |= _retrieval_metrics(_certified(_fits(records)))
    allowed = settings["retrieval"]["most_cells_per_point"]
    is_small = metrics["cells_per_point"] <= allowed
    holds = _all_are_fitted(metrics, records) and is_small
    return run.Verdict(
        "information-floor", metrics, under_attack(_is_refuted(metrics), holds)
    )


def _judge_printed_width(settings: dict, records: list[dict]) -> run.Verdict:
    """Refuted if the width of the printed proof does not preserve norms."""
    metrics = _metrics(records)
    record = where(records, kind="printed_width")[-1]
    metrics |= _printed_width_metrics(record)
    share = metrics["draws_with_all_norms_inside"] / record["draws"]
    refuted = share < settings["printed_width"]["least_inside_share"]
    return run.Verdict("theorem-3-2-constant", metrics, under_attack(refuted))


def _fits(records: list[dict]) -> list[dict]:
    """The records of networks that the verdict is about."""
    return [record for record in records if record["kind"] in _FITS]


def _certified(fits: list[dict]) -> list[dict]:
    return [fit for fit in fits if fit.get("certified")]


def _is_refuted(metrics: dict) -> bool:
    return metrics["certified_errors"] > 0


def _all_are_fitted(metrics: dict, records: list[dict]) -> bool:
    """Whether every labelling has a certified network."""
    fits = _fits(records)
    return metrics["certified_networks"] > 0 and _labellings(fits) == _labellings(
        _certified(fits)
    )


def _metrics(records: list[dict]) -> dict:
    """Those that every variant has, and those of the kinds of trials it has."""
    fits = _fits(records)
    certified_fits = _certified(fits)
    metrics = _network_metrics(fits, records)
    if certified_fits:
        metrics |= _fit_metrics(certified_fits)
    metrics |= _size_metrics(records)
    if trained := where(records, kind="sgd"):
        metrics |= _sgd_metrics(trained)
    return metrics


def _labellings(fits: list[dict]) -> set[tuple]:
    """What was to be fitted: (data set, number of examples, labels)."""
    return {(fit["dataset"], fit["examples"], fit.get("labels")) for fit in fits}


def _network_metrics(fits: list[dict], records: list[dict]) -> dict:
    """How many networks were built, refused and certified, and their errors."""
    networks = list(fits)
    for record in records:
        networks += record.get("tried", [])
        networks += [record[name] for name in _ALSO_BUILT if name in record]
    answered = [network for network in networks if "refused" not in network]
    certified = where(answered, certified=True)
    uncertified = where(answered, certified=False)
    return {
        "networks": len(networks),
        "refused_networks": len(networks) - len(answered),
        "uncertified_networks": len(uncertified),
        "uncertified_errors": total(uncertified, "errors"),
        "certified_networks": len(certified),
        "certified_errors": total(certified, "errors"),
    }


def _size_metrics(records: list[dict]) -> dict:
    """The fields of `_BY_SIZE`, with precision and number of examples in the names."""
    metrics = {}
    for record in records:
        precision = f"_{record['precision']}" if "precision" in record else ""
        for name in _BY_SIZE.get(record["kind"], ()):
            metrics[f"{name}{precision}_n{record['examples']}"] = record[name]
    return metrics


def _sgd_metrics(trained: list[dict]) -> dict:
    best = min(trained, key=lambda record: record["errors"])
    return {
        "sgd_examples": best["examples"],
        "sgd_best_errors": best["errors"],
        "sgd_best_learning_rate": best["learning_rate"],
        "sgd_best_train_seconds": best["train_seconds"],
    }


def _printed_width_metrics(record: dict) -> dict:
    return {
        "printed_width": record["width"],
        "draws": record["draws"],
        "draws_with_all_norms_inside": record["norms_outside"].count(0),
        "norms": record["examples"],
        "mean_norms_outside": float(np.mean(record["norms_outside"])),
        "expected_norms_outside": record["expected_norms_outside"],
    }


def _fit_metrics(fits: list[dict]) -> dict:
    """Errors, times and sizes of the certified fits with the most examples.

    All fits of a variant are of one kind; those by a hashed table have their sizes in
    `_retrieval_metrics`.
    """
    examples = largest(fits, "examples")
    most = where(fits, examples=examples)
    metrics = {
        "examples": examples,
        "errors": total(most, "errors"),
        "max_abs_error": largest(most, "max_abs_error"),
        "build_and_verify_seconds_max": max(
            fit["build_seconds"] + fit["verify_seconds"] for fit in most
        ),
    }
    match most[0]["kind"]:
        case "few_numbers":
            metrics |= _few_numbers_metrics(most)
        case "fit":
            metrics["block_parameters_min"] = least(most, "block_parameters")
            metrics["block_parameters_max"] = largest(most, "block_parameters")
    return metrics


def _few_numbers_metrics(fits: list[dict]) -> dict:
    """The fewest numbers, and those that each precision and width needs."""
    fewest = min(fits, key=lambda fit: fit["numbers"])
    metrics = {
        "fewest_numbers": fewest["numbers"],
        "group_points": fewest["group_points"],
        "largest_integer": fewest["largest_integer"],
        "counting_lower_bound": fewest["counting_lower_bound"],
    }
    tried = [fit for fit in fits if "word_bits" in fit]
    for word_bits in dict.fromkeys(fit["word_bits"] for fit in tried):
        fits_of_bits = where(tried, word_bits=word_bits)
        metrics |= _metrics_of_word_bits(word_bits, fits_of_bits)
    return metrics


def _metrics_of_word_bits(word_bits: int, fits: list[dict]) -> dict:
    """The numbers that each width needs, and the width that needs the fewest."""
    fewest = min(fits, key=lambda fit: fit["numbers"])
    metrics = {f"best_width_bits{word_bits}": fewest["width"]}
    for fit in fits:
        metrics[f"numbers_bits{word_bits}_width{fit['width']}"] = fit["numbers"]
    return metrics


def _retrieval_metrics(fits: list[dict]) -> dict:
    """Stored numbers by input map, and what no network can do without."""
    if not fits:
        return {"cells_per_point": np.inf}
    metrics = {
        "fewest_numbers": least(fits, "numbers"),
        "largest_integer": largest(fits, "largest_integer"),
        "counting_lower_bound": fits[0]["counting_lower_bound"],
        "cells_per_point": max(fit["table_digits"] / fit["examples"] for fit in fits),
        "word_numbers": largest(fits, "word_numbers"),
    }
    for fit in fits:
        metrics[f"numbers_{fit['input_map']}"] = fit["numbers"]
        metrics[f"input_map_numbers_{fit['input_map']}"] = fit["input_map_numbers"]
    return metrics


VERDICTS = {
    "digits": _judge_fits,
    "synthetic": _judge_fits,
    "paper_method": _judge_printed_width,
    "few_numbers": _judge_few_numbers,
    "few_numbers_cifar10": _judge_few_numbers,
    "few_numbers_trade": _judge_few_numbers,
    "retrieval": _judge_retrieval,
    "retrieval_cifar10": _judge_retrieval,
    "cifar10": _judge_fits,
    "synthetic_large": _judge_fits,
    "synthetic_imagenet": _judge_fits,
}
EXPERIMENT = run.Experiment(
    name="memorize",
    module=__name__,
    trials=trials,
    measurements="experiments.measurements.memorize",
    verdict=VERDICTS,
    signed=("examples", "features", "num_classes"),
)

if __name__ == "__main__":
    run.main(EXPERIMENT)
