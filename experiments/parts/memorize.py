"""The measurements of experiments/memorize.py: builds networks for points or images,
runs them.
"""

import functools
import time

import jax
import numpy as np
import scipy.special

from experiments.run.shared import least
from identity_matters import flops, paper
from identity_matters.images import datasets
from identity_matters.memorize import (
    construct,
    descent,
    few_numbers,
    network,
    retrieval,
    whole_numbers,
)
from identity_matters.memorize.certificate import PrecisionError
from identity_matters.memorize.examples import ConflictingLabelsError
from identity_matters.memorize.paper_method import (
    AssumptionError,
    separation,
    sufficient_width,
)

PRECISIONS = ("float32", "float64")
INPUT_MAPS = ("dense", "factored")
_LARGEST_PIXEL = 255
_MOST_DRAWS = 100
_REFUSALS = (AssumptionError, ConflictingLabelsError, PrecisionError)


def split_to_fit(dataset: str) -> str:
    """The split to fit: "all" for data sets without a published split, "train" for the
    others.
    """
    return "all" if "all" in datasets.find_source(dataset).splits else "train"


def _rng(key) -> np.random.Generator:
    return np.random.default_rng(np.asarray(jax.random.bits(key, (4,), np.uint32)))


def _unit_rows(x) -> np.ndarray:
    # In place: the training images of CIFAR-10 are 600 MB in float32.
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    return x


@functools.lru_cache(maxsize=1)
def load_images(dataset, data_dir):
    """Images as unit vectors, f32[n, d], and their labels."""
    images, labels = datasets.load(dataset, split_to_fit(dataset), data_dir)
    x = images.reshape(len(images), -1).astype(np.float32)
    x /= datasets.find_source(dataset).pixel_max
    return _unit_rows(x), labels


def _points(trial: dict, data_key, label_key):
    """Unit vectors, f32[n, d], as Assumption 3.1 requires, and labels int[n], random or
    true.
    """
    examples = trial["examples"]
    if trial["dataset"] == "synthetic":
        x = _unit_rows(
            _rng(data_key).standard_normal((examples, trial["features"]), np.float32)
        )
    else:
        x, y = (
            part[:examples] for part in load_images(trial["dataset"], trial["data_dir"])
        )
    if trial.get("labels") == "true":
        return x, y
    return x, _rng(label_key).integers(0, trial["num_classes"], examples)


def measure(trial: dict, key) -> dict:
    """Measures one trial by the function for its kind."""
    return MEASURES[trial["kind"]](key, trial)


def _build_and_verify(
    build,
    x,
    y,
    *sizes,
    batch_examples=construct.BATCH_EXAMPLES,
    forward=network.forward,
    **options,
):
    """Builds a network and runs it on all of x: (errors and times, network,
    certificate).
    """
    started = time.perf_counter()
    built, certificate = build(x, y, *sizes, **options)
    verifying = time.perf_counter()
    result = construct.verify(built, x, y, batch_examples, forward)
    measured = {
        **result._asdict(),
        "build_seconds": verifying - started,
        "verify_seconds": time.perf_counter() - verifying,
        "certified": certificate.holds,
    }
    return measured, built, certificate


def _memorize(key, x, y, num_classes, width, **settings) -> dict:
    try:
        measured, built, certificate = _build_and_verify(
            construct.memorize,
            x,
            y,
            num_classes,
            width,
            key=key,
            certified=False,
            **settings,
        )
    except _REFUSALS as error:
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
    settings = {
        name: trial[name] for name in ("method", "tile_points", "batch_examples")
    }
    measured = _memorize(build_key, x, y, *sizes, dtype=dtype, **settings)
    bound = network.counting_lower_bound(len(x), sizes[0], 8 * dtype.itemsize)
    return {"counting_lower_bound": bound, **measured}


def few_numbers_options(trial) -> dict:
    return {
        name: trial[name]
        for name in ("group_points", "word_bits", "width")
        if name in trial
    }


def distinct_whole_points(
    rng: np.random.Generator, shape: tuple[int, int]
) -> np.ndarray:
    """Random whole numbers from 0 to 255, i64[n, d], redrawn until all rows differ, if
    they can.
    """
    for _ in range(_MOST_DRAWS):
        x = rng.integers(0, _LARGEST_PIXEL, shape, endpoint=True)
        if len(np.unique(x, axis=0)) == len(x):
            break
    return x


def _whole_points(trial: dict, key) -> np.ndarray:
    """Points of whole numbers, [n, d]: pixels of images, or random ones."""
    if trial["dataset"] == "synthetic":
        shape = trial["examples"], trial["features"]
        return distinct_whole_points(_rng(jax.random.fold_in(key, 2)), shape)
    images, _ = datasets.load(
        trial["dataset"], split_to_fit(trial["dataset"]), trial["data_dir"]
    )
    return images[: trial["examples"]].reshape(trial["examples"], -1)


def _measure_few_numbers(key, trial):
    label_key, build_key = jax.random.split(key)
    num_classes = trial["num_classes"]
    x = _whole_points(trial, key)
    y = _rng(label_key).integers(0, num_classes, len(x))
    options = {
        "batch_examples": trial["batch_examples"],
        "forward": few_numbers.forward,
    }
    options |= {"key": build_key, **few_numbers_options(trial)}
    try:
        measured, built, certificate = _build_and_verify(
            few_numbers.memorize_with_few_numbers, x, y, num_classes, **options
        )
    except _REFUSALS as error:
        return {"refused": str(error)}
    groups = (
        built.thresholds,
        built.word_increments,
        built.constant_increments,
    )
    bits = trial.get("word_bits", whole_numbers.EXACT_BITS)
    return {
        **measured,
        "numbers": flops.count_parameters(built),
        "group_numbers": flops.count_parameters(groups),
        "largest_integer": certificate.largest_integer,
        "counting_lower_bound": network.counting_lower_bound(len(x), num_classes, bits),
    }


def _measure_retrieval(key, trial):
    label_key, build_key = jax.random.split(key)
    num_classes = trial["num_classes"]
    x = _whole_points(trial, key)
    y = _rng(label_key).integers(0, num_classes, len(x))
    try:
        measured, built, certificate = _build_and_verify(
            retrieval.memorize_by_retrieval,
            x,
            y,
            num_classes,
            batch_examples=trial["batch_examples"],
            forward=retrieval.forward,
            key=build_key,
            factored_input_map=trial["input_map"] == "factored",
        )
    except _REFUSALS as error:
        return {"refused": str(error)}
    words = retrieval.word_numbers(built)
    return {
        **measured,
        "numbers": retrieval.stored_numbers(built),
        "input_map_numbers": len(built.rows) + len(built.columns),
        "word_numbers": words,
        "table_digits": words * retrieval.digits_per_word(num_classes),
        "largest_integer": certificate.largest_integer,
        # A word has a sign besides its 53 bits.
        "counting_lower_bound": network.counting_lower_bound(
            len(x), num_classes, whole_numbers.EXACT_BITS + 1
        ),
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
    """How many squared norms leave 1 +- rho / 3 under a random A_0 of the printed
    width.
    """
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
    # |A_0 x|^2 is distributed as chi^2_k / k for every unit vector x.
    ends = [width / 2 * max(0.0, 1 + side * rho / 3) for side in (-1, 1)]
    below, inside_or_below = scipy.special.gammainc(width / 2, ends)
    return {
        "rho": rho,
        "width": width,
        "norms_outside": outside,
        "expected_norms_outside": float(n * (1 - (inside_or_below - below))),
    }


def _measure_minimal_width(key, trial):
    """Tries widths 1, 2, ..., `max_width` until a network is certified."""
    data_key, label_key, build_key = jax.random.split(key, 3)
    x, y = _points(trial, data_key, label_key)
    dtype, tried = np.dtype(trial["precision"]), []
    for width in range(1, trial["max_width"] + 1):
        result = _memorize(build_key, x, y, trial["num_classes"], width, dtype=dtype)
        tried.append({"width": width, **result})
        if result.get("certified"):
            break
    fitting = [net for net in tried if net.get("errors") == 0]
    return {
        "tried": tried,
        "least_fitting_width": least(fitting, "width"),
        "least_certified_width": width if result.get("certified") else None,
    }


def _measure_precision(key, trial):
    """Fits pairs of unit vectors at a given distance, in both precisions."""
    data_key, label_key, build_key = jax.random.split(key, 3)
    rng = _rng(data_key)
    shape = trial["pairs"], trial["features"]
    first = _unit_rows(rng.standard_normal(shape))
    tangent = rng.standard_normal(shape)
    tangent = _unit_rows(
        tangent - np.sum(tangent * first, axis=1, keepdims=True) * first
    )
    # On the sphere, a chord of this length spans this angle.
    angle = 2 * np.arcsin(trial["pair_distance"] / 2)
    x = np.concatenate([first, np.cos(angle) * first + np.sin(angle) * tangent])
    # Both networks get the same points, which float32 holds exactly.
    x = x.astype(np.float32)
    sizes = trial["num_classes"], trial["width"]
    y = _rng(label_key).integers(0, sizes[0], len(x))
    own = build_key, x, y, *sizes
    return {
        f"{name}_result": _memorize(*own, dtype=np.dtype(name)) for name in PRECISIONS
    }


def _measure_sgd(key, trial):
    """Trains a network from scratch on random labels, and constructs one of the same
    shape.
    """
    data_key, label_key, init_key, train_key, build_key = jax.random.split(key, 5)
    x, y = _points(trial, data_key, label_key)
    sizes = trial["num_classes"], trial["width"]
    start = descent.random_network(init_key, *x.shape, *sizes)
    settings = (
        "learning_rate",
        "momentum",
        "batch_examples",
        "steps",
        "steps_per_evaluation",
    )
    started = time.perf_counter()
    curve = descent.train(
        start, x, y, key=train_key, **{name: trial[name] for name in settings}
    )
    return {
        "curve": curve,
        "errors": curve[-1]["errors"],
        "parameters": flops.count_parameters(start),
        "train_seconds": time.perf_counter() - started,
        "constructed": _memorize(build_key, x, y, *sizes),
    }


_MEASURES = (
    _measure_fit,
    _measure_few_numbers,
    _measure_retrieval,
    _measure_separation,
    _measure_printed_width,
    _measure_minimal_width,
    _measure_precision,
    _measure_sgd,
)
MEASURES = {
    function.__name__.removeprefix("_measure_"): function for function in _MEASURES
}
