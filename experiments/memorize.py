"""Theorem 3.2: a ReLU residual network with O(n log n + r^2) parameters memorises any labels.

Claim: n inputs with any labels out of r are mapped to their one-hot labels by a residual network
whose blocks are h + V ReLU(U h + s). Here the network is built, not trained, and then run on every
input; the run counts inputs with any output 1/2 or more off, certified or not.

Command: python -m experiments.memorize
    python -m experiments.memorize --config=:cifar10        # after make data DATASETS=cifar10

Hardware: 2 CPU cores; the times are those of the variants.
Expected: 0 errors. CIFAR-10's 50,000 training images with random labels take 850,000 parameters in
blocks of width 8 in float32, 150,000 in blocks of width 1 in float64, and fewer than 20,000 numbers
in all once a number holds several labels (few_numbers_cifar10). The width that the proof prints is
larger than the number of images.
Verdicts: holds; counterexample for paper_method, where the printed width does not keep norms.
"""

import functools
import time

import jax
import numpy as np
import scipy.special

from experiments import run
from experiments.run.shared import configs, each, largest, least, require_between, total, where
from identity_matters import flops, paper
from identity_matters.images import datasets
from identity_matters.memorize import construct, descent, few_numbers, network
from identity_matters.memorize.certificate import PrecisionError
from identity_matters.memorize.paper_method import AssumptionError, separation, sufficient_width

PRECISIONS = ("float32", "float64")
_LARGEST_PIXEL = 255
_MOST_DRAWS = 100
# Fields of records that hold a network beside those of a fit.
_ALSO_BUILT = ("constructed", *(f"{precision}_result" for precision in PRECISIONS))

# Metrics of single trials, with the number of examples in their names.
_BY_SIZE = {
    "separation": ("rho", "theorem_width", "lemma_width"),
    "minimal_width": ("least_fitting_width", "least_certified_width"),
}

VARIANTS = {
    "digits": "all 1,797 digits, and SGD for contrast; 25 s, most of it for SGD",
    "synthetic": "random points: width, precision and separation; 20 s",
    "paper_method": "the method and the width of the printed proof; 8 s",
    "few_numbers": "digits by fewer numbers than examples; 10 s",
    "few_numbers_trade": "how few at which precision and width; random points, half a minute",
}
OTHER_VARIANTS = {
    "cifar10": "50,000 images, which `make data` prepares; a minute",
    "few_numbers_cifar10": "the same images by fewer than 20,000 numbers; two minutes",
    "synthetic_large": "up to 131,072 points; three minutes",
    "synthetic_imagenet": "as many points and classes as ImageNet; meant for an accelerator",
}


def _data(dataset: str, examples=(0,), features: int = 0, num_classes: int = 0) -> dict:
    return {
        "dataset": dataset,  # digits, cifar10 or synthetic, which are random unit vectors
        "examples": examples,  # numbers of examples; 0 means the whole training set
        "features": features,  # dimension d of synthetic points; other data sets have their own
        "num_classes": num_classes,  # classes r of synthetic points
        "data_dir": "data",  # where `make data` put the data sets
    }


def _fit(data: dict, **changes) -> dict:
    return {
        **data,
        "labels": ("random",),  # random: uniform labels; true: the data set's own
        "networks": ((8, "float32"),),  # width k and precision of each network
        "method": "adaptive",  # or paper: Lemmas B.1 and B.2, with a bias for each unit
        # Points whose inner products are formed at once while building; memory is its square.
        "tile_points": 2048,
        "batch_examples": 4096,  # examples per batch of the forward pass
        **changes,
    }


_FEW_NUMBERS = {
    # Neighbours on the line that share a threshold, a hash constant and a word of labels.
    "group_points": (5, 9, 11, 13),
    "batch_examples": 4096,
}
# Random points of whole numbers, as pixels are, in so few dimensions that 34 bits are enough.
_FEW_NUMBERS_TRADE = {
    **_data("synthetic", (16384,), features=4, num_classes=10),
    "word_bits": (34, 40, 47, 53),  # no number in the network or on the way exceeds 2^this
    "widths": (6, 7, 8),  # channels, 5 of them for other things than words
    # Groups are as large as lets this share of the hash constants do: what the search may cost.
    "least_hash_chance": 2e-3,
    "batch_examples": 4096,
}
_BOTH_LABELS = {"labels": ("random", "true")}
_POINTS = _data("synthetic", (256, 1024, 4096, 16384), features=64, num_classes=10)
# In so many dimensions random unit vectors are nearly orthogonal, as the lemma needs. The width
# printed for points of this separation is 22; a width that suffices is 481.
_NEARLY_ORTHOGONAL = _data("synthetic", (1536,), features=4096, num_classes=10)
# What each variant measures: kind of trial -> its settings.
_SETTINGS = {
    "digits": {
        "fit": _fit(
            _data("digits"),
            **_BOTH_LABELS,
            # The narrowest network in each precision, and where one stops to suffice.
            networks=(
                *((1, "float32"), (1, "float64"), (2, "float32")),
                *((4, "float32"), (8, "float32"), (8, "float64")),
            ),
        ),
        "separation": _data("digits"),
        "sgd": {
            **_data("digits", (512,)),
            "width": 8,  # of the network, which has as many blocks as the constructed one
            "learning_rates": (0.01, 0.03, 0.1),  # our small grid around the best rate
            "momentum": 0.9,
            "batch_examples": 128,
            "steps": 4000,  # our budget
            "steps_per_evaluation": 200,  # how often the errors over all examples are counted
        },
    },
    "synthetic": {
        "fit": _fit(_POINTS),
        "separation": _POINTS,
        # The search for the smallest width ends at max_width.
        "minimal_width": {**_POINTS, "precisions": PRECISIONS, "max_width": 16},
        "precision": {
            # Distances of the two unit vectors of each pair.
            "pair_distances": (1.0, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6),
            "pairs": 512,
            "features": 64,
            "num_classes": 10,
            "width": 8,
        },
    },
    "paper_method": {
        "fit": _fit(
            _NEARLY_ORTHOGONAL, networks=((22, "float32"), (512, "float32")), method="paper"
        ),
        "separation": _NEARLY_ORTHOGONAL,
        # Random maps of the printed width. "With high probability" is refuted where fewer than
        # this share of them keep all norms.
        "printed_width": {**_NEARLY_ORTHOGONAL, "draws": 20, "least_inside_share": 0.5},
    },
    "few_numbers": {"few_numbers": {**_data("digits"), **_FEW_NUMBERS}},
    "few_numbers_cifar10": {"few_numbers": {**_data("cifar10"), **_FEW_NUMBERS}},
    "few_numbers_trade": {"few_numbers": _FEW_NUMBERS_TRADE},
    "cifar10": {
        "fit": _fit(_data("cifar10"), **_BOTH_LABELS, networks=((8, "float32"), (1, "float64"))),
        "separation": _data("cifar10"),
    },
    "synthetic_large": {"fit": _fit(_data("synthetic", (32768, 65536, 131072), 64, 10))},
    # ImageNet's size; meant for an accelerator, where larger tiles and batches pay.
    "synthetic_imagenet": {
        "fit": _fit(
            _data("synthetic", (1_281_167,), 64, 1000),
            networks=((16, "float32"),),
            tile_points=8192,
            batch_examples=131_072,
        )
    },
}
# Each setting that holds several values, and what a trial calls one of them.
_SEVERAL = {
    "examples": "examples",
    "labels": "labels",
    "precisions": "precision",
    "pair_distances": "pair_distance",
    "learning_rates": "learning_rate",
    "group_points": "group_points",
    "word_bits": "word_bits",
    "widths": "width",
    "networks": "network",
}
get_config = configs(_SETTINGS)


def trials(*, variant: str, **groups) -> list[dict]:
    """For each group, every combination of the settings that hold several values."""
    del variant
    listed = [
        {"kind": kind, **trial}
        for kind, group in groups.items()
        for trial in each(group, _SEVERAL, "least_inside_share")
    ]
    for trial in listed:
        if "network" in trial:
            trial["width"], trial["precision"] = trial.pop("network")
        if trial.get("dataset", "synthetic") != "synthetic":
            source = datasets.find_source(trial["dataset"])
            trial["examples"] = trial["examples"] or source.splits[split_to_fit(trial["dataset"])]
            trial["features"] = int(np.prod(source.image_shape))
            trial["num_classes"] = source.num_classes
        if "least_hash_chance" in trial:
            trial["group_points"] = few_numbers.largest_group(
                *(trial["num_classes"], trial["word_bits"], trial["width"]),
                trial["least_hash_chance"],
            )
    return listed


def split_to_fit(dataset: str) -> str:
    """All examples of a data set without a published split, the training split of the others."""
    return "all" if "all" in datasets.find_source(dataset).splits else "train"


def build(**trial) -> dict:
    """The trial, once its data are known to be prepared and its settings to be usable."""
    choices = {**_BOTH_LABELS, "precision": PRECISIONS, "method": construct.METHODS}
    for name in trial.keys() & choices.keys():
        if trial[name] not in choices[name]:
            raise ValueError(f"{name} must be one of {choices[name]}, got {trial[name]!r}")
    for name in trial.keys() & {"examples", "features", "num_classes"}:
        construct.check_whole(name, trial[name])
    dataset = trial.get("dataset", "synthetic")
    if dataset != "synthetic":
        split = split_to_fit(dataset)
        available = datasets.find_source(dataset).splits[split]
        if trial["examples"] > available:
            raise ValueError(f"examples must lie in 0 ... {available}, got {trial['examples']}")
        datasets.require_prepared(dataset, split, trial["data_dir"])
    elif trial.get("labels") == "true":
        raise ValueError("synthetic points have random labels only")
    for name, high in {"least_hash_chance": 1, "pair_distance": 2}.items():
        require_between(0, high, **{name: trial.get(name, high / 2)})
    if trial["kind"] == "few_numbers":
        few_numbers.check_group(num_classes=trial["num_classes"], **_few_numbers_options(trial))
    if trial["kind"] == "sgd" and trial["steps"] % trial["steps_per_evaluation"]:
        raise ValueError(f"steps_per_evaluation must divide steps, {trial['steps']}")
    return trial


def _rng(key) -> np.random.Generator:
    return np.random.default_rng(np.asarray(jax.random.bits(key, (4,), np.uint32)))


def _unit_rows(x) -> np.ndarray:
    # In place: the training images of CIFAR-10 are 600 MB in float32.
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    return x


@functools.lru_cache(maxsize=1)
def load_images(dataset, data_dir):
    """Images as unit vectors f32[n, d], and their labels."""
    images, labels = datasets.load(dataset, split_to_fit(dataset), data_dir)
    x = images.reshape(len(images), -1).astype(np.float32)
    x /= datasets.find_source(dataset).pixel_max
    return _unit_rows(x), labels


def _points(trial: dict, data_key, label_key):
    """Inputs of norm one, f32[n, d], as Assumption 3.1 has them, and labels int[n].

    The labels are random unless the trial asks for the true ones.
    """
    examples = trial["examples"]
    if trial["dataset"] == "synthetic":
        x = _unit_rows(_rng(data_key).standard_normal((examples, trial["features"]), np.float32))
    else:
        x, y = (part[:examples] for part in load_images(trial["dataset"], trial["data_dir"]))
    return x, y if trial.get("labels") == "true" else _random_labels(label_key, trial, examples)


def _random_labels(key, trial: dict, examples: int) -> np.ndarray:
    return _rng(key).integers(0, trial["num_classes"], examples)


def measure(trial: dict, key) -> dict:
    """Measures one trial by the function for its kind."""
    return MEASURES[trial["kind"]](key, trial)


def _build_and_verify(build_network, x, y, batch_examples=4096, forward=network.forward):
    """What `build_network` makes and certifies, and its outputs on all of `x`, with both times."""
    started = time.perf_counter()
    built, certificate = build_network()
    verifying = time.perf_counter()
    result = construct.verify(built, x, y, batch_examples, forward)
    measured = {
        "errors": result.errors,
        "max_abs_error": result.max_abs_error,
        "build_seconds": verifying - started,
        "verify_seconds": time.perf_counter() - verifying,
        "certified": certificate.holds,
    }
    return measured, built, certificate


def _memorize(key, x, y, num_classes, width, batch_examples=4096, **settings) -> dict:
    """Builds a network, certified or not, and runs it on all of `x`."""
    build_network = functools.partial(
        construct.memorize, x, y, num_classes, width, key=key, certified=False, **settings
    )
    try:
        measured, built, certificate = _build_and_verify(build_network, x, y, batch_examples)
    except (AssumptionError, PrecisionError) as error:
        return {"refused": str(error)}
    return {
        **measured,
        "block_parameters": flops.count_parameters((built.U, built.s, built.V)),
        "parameters": flops.count_parameters(built),
        "smallest_margin": certificate.smallest_margin,
        "output_error_bound": certificate.output_error_bound,
    }


def _measure_fit(key, trial):
    data_key, label_key, build_key = jax.random.split(key, 3)
    x, y = _points(trial, data_key, label_key)
    dtype, sizes = np.dtype(trial["precision"]), (trial["num_classes"], trial["width"])
    settings = {name: trial[name] for name in ("method", "tile_points", "batch_examples")}
    measured = _memorize(build_key, x, y, *sizes, dtype=dtype, **settings)
    bound = network.counting_lower_bound(len(x), sizes[0], 8 * dtype.itemsize)
    return {"counting_lower_bound": bound, **measured}


def _few_numbers_options(trial) -> dict:
    return {name: trial[name] for name in ("group_points", "word_bits", "width") if name in trial}


def distinct_whole_points(rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    """Random whole numbers from 0 to 255, i64[n, d], drawn anew until no row occurs twice.

    Where there is no room for so many, the network's own error says which rows are equal.
    """
    for _ in range(_MOST_DRAWS):
        x = rng.integers(0, _LARGEST_PIXEL, shape, endpoint=True)
        if len(np.unique(x, axis=0)) == len(x):
            break
    return x


def _measure_few_numbers(key, trial):
    label_key, build_key = jax.random.split(key)
    dataset, num_classes = trial["dataset"], trial["num_classes"]
    if dataset == "synthetic":
        shape = trial["examples"], trial["features"]
        x = distinct_whole_points(_rng(jax.random.fold_in(key, 2)), shape)
    else:
        images, _ = datasets.load(dataset, split_to_fit(dataset), trial["data_dir"])
        x = images[: trial["examples"]].reshape(trial["examples"], -1)
    y = _random_labels(label_key, trial, len(x))
    build_network = functools.partial(
        few_numbers.memorize_with_few_numbers, x, y, num_classes, key=build_key,
        **_few_numbers_options(trial),
    )  # fmt: skip
    measured, built, certificate = _build_and_verify(
        build_network, x, y, trial["batch_examples"], few_numbers.forward
    )
    groups = built.thresholds, built.word_jumps, built.constant_jumps
    bits = trial.get("word_bits", few_numbers.EXACT_BITS)
    return {
        **measured,
        "numbers": flops.count_parameters(built),
        "group_numbers": flops.count_parameters(groups),
        "largest_integer": certificate.largest_integer,
        "counting_lower_bound": network.counting_lower_bound(len(x), num_classes, bits),
    }


def _measure_separation(key, trial):
    x, _ = _points(trial, key, key)
    found, n = separation(x), len(x)
    return {
        "rho": found.rho,
        "theorem_width": paper.theorem_3_2_width(n, found.rho),
        "lemma_width": sufficient_width(n, trial["num_classes"], found.rho),
    }


def _measure_printed_width(key, trial):
    """How many squared norms a random A_0 of the printed width takes out of 1 +- rho / 3."""
    data_key, map_key = jax.random.split(key)
    x, _ = _points(trial, data_key, key)
    n, features = x.shape
    rho = separation(x).rho
    width = paper.theorem_3_2_width(n, rho)
    rng = _rng(map_key)
    outside = []
    for _ in range(trial["draws"]):
        h = x @ (rng.standard_normal((features, width)) / np.sqrt(width))
        outside.append(int(np.sum(np.abs(np.sum(h**2, axis=1) - 1) > rho / 3)))
    # |A_0 x|^2 is chi^2_k / k, whatever the unit vector x.
    ends = [width / 2 * max(0.0, 1 + side * rho / 3) for side in (-1, 1)]
    below, inside_or_below = scipy.special.gammainc(width / 2, ends)
    return {
        "rho": rho,
        "width": width,
        "norms_outside": outside,
        "expected_norms_outside": float(n * (1 - (inside_or_below - below))),
    }


def _measure_minimal_width(key, trial):
    """Tries widths 1, 2, ... until a network is certified, or `max_width`."""
    data_key, label_key, build_key = jax.random.split(key, 3)
    x, y = _points(trial, data_key, label_key)
    dtype, tried = np.dtype(trial["precision"]), []
    for width in range(1, trial["max_width"] + 1):
        result = _memorize(build_key, x, y, trial["num_classes"], width, dtype=dtype)
        tried.append({"width": width, **result})
        if result.get("certified"):
            break
    fitting = [net for net in tried if net.get("errors") == 0]
    certified = [net for net in tried if net.get("certified")]
    return {
        "tried": tried,
        "least_fitting_width": least(fitting, "width"),
        "least_certified_width": least(certified, "width"),
    }


def _measure_precision(key, trial):
    """Pairs of unit vectors at one distance, fitted in both precisions."""
    data_key, label_key, build_key = jax.random.split(key, 3)
    rng = _rng(data_key)
    shape = trial["pairs"], trial["features"]
    first = _unit_rows(rng.standard_normal(shape))
    tangent = rng.standard_normal(shape)
    tangent = _unit_rows(tangent - np.sum(tangent * first, axis=1, keepdims=True) * first)
    # On the sphere, a chord of this length spans this angle.
    angle = 2 * np.arcsin(trial["pair_distance"] / 2)
    x = np.concatenate([first, np.cos(angle) * first + np.sin(angle) * tangent])
    # Both networks get the same points, which float32 holds exactly.
    x = x.astype(np.float32)
    y = _random_labels(label_key, trial, len(x))
    sizes = trial["num_classes"], trial["width"]
    return {
        f"{name}_result": _memorize(build_key, x, y, *sizes, dtype=np.dtype(name))
        for name in PRECISIONS
    }


def _measure_sgd(key, trial):
    """Trains a network from scratch on random labels, and constructs one of the same shape."""
    data_key, label_key, init_key, train_key, build_key = jax.random.split(key, 5)
    x, y = _points(trial, data_key, label_key)
    sizes = trial["num_classes"], trial["width"]
    start = descent.random_network(init_key, *x.shape, *sizes)
    settings = ("learning_rate", "momentum", "batch_examples", "steps", "steps_per_evaluation")
    started = time.perf_counter()
    curve = descent.train(start, x, y, key=train_key, **{name: trial[name] for name in settings})
    return {
        "curve": curve,
        "errors": curve[-1]["errors"],
        "parameters": flops.count_parameters(start),
        "train_seconds": time.perf_counter() - started,
        "constructed": _memorize(build_key, x, y, *sizes),
    }


_MEASURES = (
    *(_measure_fit, _measure_few_numbers, _measure_separation, _measure_printed_width),
    *(_measure_minimal_width, _measure_precision, _measure_sgd),
)
MEASURES = {function.__name__.removeprefix("_measure_"): function for function in _MEASURES}


def verdict(settings: dict, records: list[dict]) -> run.Verdict:
    """Theorem 3.2 holds iff every labelling has a certified network and none of these has an error.

    Networks that were refused, and errors of networks that are not certified, are counted apart.
    "c = 10 works" is refuted iff too few draws of the input map keep all norms.
    """
    fits = [record for record in records if record["kind"] in ("fit", "few_numbers")]
    built = list(fits)
    for record in records:
        built += record.get("tried", []) + [record[name] for name in _ALSO_BUILT if name in record]
    answered = [net for net in built if "refused" not in net]
    certified, uncertified = (where(answered, certified=holds) for holds in (True, False))
    fitting = [fit for fit in fits if fit.get("certified")]
    metrics = {
        "networks": len(built),
        "refused_networks": len(built) - len(answered),
        "uncertified_networks": len(uncertified),
        "uncertified_errors": total(uncertified, "errors"),
        "certified_networks": len(certified),
        "certified_errors": total(certified, "errors"),
        **(_fit_metrics(fitting) if fitting else {}),
    }
    for record in records:
        precision = f"_{record['precision']}" if "precision" in record else ""
        names = _BY_SIZE.get(record["kind"], ())
        metrics |= {f"{name}{precision}_n{record['examples']}": record[name] for name in names}
    if trained := where(records, kind="sgd"):
        best = min(trained, key=lambda record: record["errors"])
        names = ("errors", "learning_rate", "train_seconds")
        metrics |= {"sgd_examples": best["examples"], **{f"sgd_best_{n}": best[n] for n in names}}
    claim = "few-numbers" if "few_numbers" in settings else "theorem-3-2"
    wanted, reached = (
        {(fit["dataset"], fit["examples"], fit.get("labels")) for fit in some}
        for some in (fits, fitting)
    )
    refuted, holds = metrics["certified_errors"] > 0, bool(certified) and wanted == reached
    for record in where(records, kind="printed_width"):
        inside = record["norms_outside"].count(0)
        metrics |= {
            "printed_width": record["width"],
            "draws": record["draws"],
            "draws_with_all_norms_inside": inside,
            "norms": record["examples"],
            "mean_norms_outside": float(np.mean(record["norms_outside"])),
            "expected_norms_outside": record["expected_norms_outside"],
        }
        claim, holds = "theorem-3-2-constant", False
        refuted = inside / record["draws"] < settings["printed_width"]["least_inside_share"]
    outcome = "counterexample" if refuted else "holds" if holds else "undecided"
    return run.Verdict(claim, metrics, outcome)


def _fit_metrics(fits: list[dict]) -> dict:
    """Of the certified fits; the most examples, and the fewest parameters that fit them all."""
    examples = largest(fits, "examples")
    most = where(fits, examples=examples)
    seconds = max(fit["build_seconds"] + fit["verify_seconds"] for fit in most)
    metrics = {
        "examples": examples,
        "errors": total(most, "errors"),
        "max_abs_error": largest(most, "max_abs_error"),
        "build_and_verify_seconds_max": seconds,
    }
    if "numbers" in most[0]:
        fewest = min(most, key=lambda fit: fit["numbers"])
        names = ("group_points", "largest_integer", "counting_lower_bound")
        metrics |= {"fewest_numbers": fewest["numbers"], **{n: fewest[n] for n in names}}
        # Where several precisions were tried: the width that needs the fewest numbers at each.
        tried = sorted((fit for fit in most if "word_bits" in fit), key=lambda fit: -fit["numbers"])
        metrics |= {f"best_width_bits{fit['word_bits']}": fit["width"] for fit in tried}
        return metrics | {
            f"numbers_bits{fit['word_bits']}_width{fit['width']}": fit["numbers"] for fit in tried
        }
    ends = least(most, "block_parameters"), largest(most, "block_parameters")
    return metrics | dict(zip(("block_parameters_min", "block_parameters_max"), ends, strict=True))


_MAY_BE_0 = ("examples", "features", "num_classes")
EXPERIMENT = run.Experiment("memorize", trials, measure, verdict, build, _MAY_BE_0)

if __name__ == "__main__":
    run.main(EXPERIMENT)
