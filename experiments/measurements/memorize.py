"""Networks for points or images, built or trained, and run on every input.

Points, labels and networks are drawn from keys split off the trial's key, or some of
them from that key itself. Which ones differs by kind, and stays: the records hold them.
"""

import functools
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import numpy as np
import scipy.special

from experiments.run.settings import require_between
from experiments.run.verdicts import least
from identity_matters import flops, paper
from identity_matters.checks import check_whole
from identity_matters.images import datasets
from identity_matters.memorize import (
    construct,
    descent,
    few_numbers,
    hashing,
    network,
    retrieval,
)
from identity_matters.memorize.certificate import PrecisionError
from identity_matters.memorize.exact_arithmetic import EXACT_BITS
from identity_matters.memorize.examples import (
    ConflictingLabelsError,
    random_generator,
)
from identity_matters.memorize.paper_method import (
    AssumptionError,
    separation,
    sufficient_width,
)

LABELS = ("random", "true")
PRECISIONS = ("float32", "float64")
INPUT_MAPS = ("dense", "factored")
_LARGEST_PIXEL = 255
_MOST_DRAWS = 100
_REFUSALS = (AssumptionError, ConflictingLabelsError, PrecisionError)


def build(**trial) -> SimpleNamespace:
    """The trial.

    Raises:
      ValueError: a setting cannot be used, or the data are not prepared.
    """
    _check_choices(trial)
    for name in trial.keys() & {"examples", "features", "num_classes"}:
        check_whole(name, trial[name])
    _check_data(trial)
    for name, high in {"least_hash_chance": 1, "pair_distance": 2}.items():
        if name in trial:
            require_between(0, high, **{name: trial[name]})
    built = SimpleNamespace(**trial)
    if trial["kind"] == "few_numbers":
        options = few_numbers_options(built)
        hashing.check_group(num_classes=trial["num_classes"], **options)
    if trial["kind"] == "sgd" and trial["steps"] % trial["steps_per_evaluation"]:
        raise ValueError(f"steps_per_evaluation must divide steps, {trial['steps']}")
    return built


def _check_choices(trial: dict) -> None:
    """ValueError for a setting that is none of its choices."""
    choices = {
        "labels": LABELS,
        "precision": PRECISIONS,
        "method": construct.METHODS,
        "input_map": INPUT_MAPS,
    }
    for name in trial.keys() & choices.keys():
        if trial[name] not in choices[name]:
            raise ValueError(
                f"{name} must be one of {choices[name]}, got {trial[name]!r}"
            )


def _check_data(trial: dict) -> None:
    """ValueError if the data are not prepared, or synthetic points cannot be drawn."""
    dataset = trial.get("dataset", "synthetic")
    if dataset != "synthetic":
        datasets.require_prepared(
            dataset, datasets.split_to_fit(dataset), trial["data_dir"]
        )
        return
    if trial.get("labels") == "true":
        raise ValueError("synthetic points have random labels only")
    whole_numbers = trial["kind"] in ("few_numbers", "retrieval")
    if not whole_numbers and trial["features"] < 2:
        raise ValueError(
            "features must be at least 2: on a line, unit vectors are 1 and -1 only"
        )


def _unit_rows(x: np.ndarray) -> np.ndarray:
    # In place: the training images of CIFAR-10 are 600 MB in float32.
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    return x


@functools.lru_cache(maxsize=1)
def load_images(dataset: str, data_dir: str) -> tuple[np.ndarray, np.ndarray]:
    """Images as unit vectors, f32[n, d], and their labels."""
    images, labels = datasets.load(dataset, datasets.split_to_fit(dataset), data_dir)
    x = images.reshape(len(images), -1).astype(np.float32)
    x /= datasets.find_source(dataset).pixel_max
    return _unit_rows(x), labels


def _draw_points(
    trial: SimpleNamespace, data_key: jax.Array, label_key: jax.Array
) -> tuple[np.ndarray, np.ndarray]:
    """Unit vectors, f32[n, d], as Assumption 3.1 requires, and their labels, int[n]."""
    if trial.dataset == "synthetic":
        shape = (trial.examples, trial.features)
        x = _unit_rows(random_generator(data_key).standard_normal(shape, np.float32))
    else:
        images, true_labels = load_images(trial.dataset, trial.data_dir)
        x = images[: trial.examples]
        if getattr(trial, "labels", "random") == "true":
            return x, true_labels[: trial.examples]
    return x, _draw_labels(label_key, trial.num_classes, trial.examples)


def _draw_labels(key: jax.Array, num_classes: int, count: int) -> np.ndarray:
    return random_generator(key).integers(0, num_classes, count)


def _measure_network(
    make_network: Callable[[], tuple[Any, Any]],
    numbers_of: Callable[[Any, Any], dict],
    x: np.ndarray,
    y: np.ndarray,
    *,
    batch_examples: int = construct.BATCH_EXAMPLES,
    forward: Callable = network.forward,
) -> dict:
    """Builds a network and runs it on all of x.

    Args:
      make_network: returns a network and its certificate.
      numbers_of: what a record says of the two, besides errors and times.
      x: [n, d], the inputs.
      y: int[n], their labels.
      batch_examples: inputs that pass through the network at once.
      forward: the forward pass of such a network.
    Returns:
      Errors, times and those numbers; or why there is no network, as "refused".
    """
    started = time.perf_counter()
    try:
        built, certificate = make_network()
        verifying = time.perf_counter()
        result = construct.verify(built, x, y, batch_examples, forward)
    except _REFUSALS as error:
        return {"refused": str(error)}
    return {
        **result._asdict(),
        "build_seconds": verifying - started,
        "verify_seconds": time.perf_counter() - verifying,
        "certified": certificate.holds,
        **numbers_of(built, certificate),
    }


def _memorize(
    key: jax.Array,
    x: np.ndarray,
    y: np.ndarray,
    *,
    num_classes: int,
    width: int,
    batch_examples: int = construct.BATCH_EXAMPLES,
    **options,
) -> dict:
    """A network of Theorem 3.2, or why there is none; `options` go to `memorize`."""

    def make_network() -> tuple[Any, Any]:
        return construct.memorize(
            x, y, num_classes, width, key=key, certified=False, **options
        )

    def numbers_of(built, certificate) -> dict:
        return {
            "block_parameters": flops.count_parameters((built.U, built.s, built.V)),
            "parameters": flops.count_parameters(built),
            "smallest_margin": certificate.smallest_margin,
            "output_error_bound": certificate.output_error_bound,
        }

    return _measure_network(
        make_network, numbers_of, x, y, batch_examples=batch_examples
    )


def measure_fit(trial: SimpleNamespace, key: jax.Array) -> dict:
    """One network that fits all labels."""
    data_key, label_key, build_key = jax.random.split(key, 3)
    x, y = _draw_points(trial, data_key, label_key)
    dtype = np.dtype(trial.precision)
    measured = _memorize(
        build_key,
        x,
        y,
        num_classes=trial.num_classes,
        width=trial.width,
        batch_examples=trial.batch_examples,
        dtype=dtype,
        method=trial.method,
        tile_points=trial.tile_points,
    )
    bits = 8 * dtype.itemsize
    bound = network.counting_lower_bound(len(x), trial.num_classes, bits)
    return {"counting_lower_bound": bound, **measured}


def few_numbers_options(trial: SimpleNamespace) -> dict:
    """The options of `few_numbers.memorize_with_few_numbers` that the trial sets."""
    return {
        name: getattr(trial, name)
        for name in ("group_points", "word_bits", "width")
        if hasattr(trial, name)
    }


def distinct_whole_points(
    rng: np.random.Generator, shape: tuple[int, int]
) -> np.ndarray:
    """Random whole numbers from 0 to 255, i64[n, d].

    They are redrawn until all rows differ, if they can.
    """
    for _ in range(_MOST_DRAWS):
        x = rng.integers(0, _LARGEST_PIXEL, shape, endpoint=True)
        if len(np.unique(x, axis=0)) == len(x):
            break
    return x


class _WholePoints(NamedTuple):
    """What a network for whole numbers is built of.

    Attributes:
      x: [n, d], pixels or random numbers from 0 to 255.
      y: int[n], random labels.
      build_key: of the network.
    """

    x: np.ndarray
    y: np.ndarray
    build_key: jax.Array


def _draw_whole_points(trial: SimpleNamespace, key: jax.Array) -> _WholePoints:
    """Points with random labels, and a key that is not spent on them."""
    label_key, build_key = jax.random.split(key)
    if trial.dataset == "synthetic":
        rng = random_generator(jax.random.fold_in(key, 2))
        x = distinct_whole_points(rng, (trial.examples, trial.features))
    else:
        images, _ = datasets.load(
            trial.dataset, datasets.split_to_fit(trial.dataset), trial.data_dir
        )
        x = images[: trial.examples].reshape(trial.examples, -1)
    y = _draw_labels(label_key, trial.num_classes, len(x))
    return _WholePoints(x, y, build_key)


def measure_few_numbers(trial: SimpleNamespace, key: jax.Array) -> dict:
    """A network whose numbers hold several labels each."""
    x, y, build_key = _draw_whole_points(trial, key)
    bits = getattr(trial, "word_bits", EXACT_BITS)

    def make_network() -> tuple[Any, Any]:
        return few_numbers.memorize_with_few_numbers(
            x, y, trial.num_classes, key=build_key, **few_numbers_options(trial)
        )

    def numbers_of(built, certificate) -> dict:
        of_groups = (
            built.thresholds,
            built.word_increments,
            built.constant_increments,
        )
        return {
            "numbers": flops.count_parameters(built),
            "group_numbers": flops.count_parameters(of_groups),
            "largest_integer": certificate.largest_integer,
            "counting_lower_bound": network.counting_lower_bound(
                len(x), trial.num_classes, bits
            ),
        }

    return _measure_network(
        make_network,
        numbers_of,
        x,
        y,
        batch_examples=trial.batch_examples,
        forward=few_numbers.forward,
    )


def measure_retrieval(trial: SimpleNamespace, key: jax.Array) -> dict:
    """A network that finds the labels in a hashed table."""
    x, y, build_key = _draw_whole_points(trial, key)

    def make_network() -> tuple[Any, Any]:
        return retrieval.memorize_by_retrieval(
            x,
            y,
            trial.num_classes,
            key=build_key,
            factored_input_map=trial.input_map == "factored",
        )

    def numbers_of(built, certificate) -> dict:
        words = retrieval.word_numbers(built)
        return {
            "numbers": retrieval.stored_numbers(built),
            "input_map_numbers": len(built.rows) + len(built.columns),
            "word_numbers": words,
            "table_digits": words * retrieval.digits_per_word(trial.num_classes),
            "largest_integer": certificate.largest_integer,
            # A word has a sign besides its 53 bits.
            "counting_lower_bound": network.counting_lower_bound(
                len(x), trial.num_classes, EXACT_BITS + 1
            ),
        }

    return _measure_network(
        make_network,
        numbers_of,
        x,
        y,
        batch_examples=trial.batch_examples,
        forward=retrieval.forward,
    )


def measure_separation(trial: SimpleNamespace, key: jax.Array) -> dict:
    """How far apart the points are, and the widths that this asks for."""
    x, _ = _draw_points(trial, key, key)
    rho = separation(x).rho
    return {
        "rho": rho,
        "theorem_width": paper.theorem_3_2_width(len(x), rho),
        "lemma_width": sufficient_width(len(x), trial.num_classes, rho),
    }


def measure_printed_width(trial: SimpleNamespace, key: jax.Array) -> dict:
    """How many squared norms leave 1 +- rho / 3 under a map of the printed width."""
    data_key, map_key = jax.random.split(key)
    x, _ = _draw_points(trial, data_key, key)
    n, features = x.shape
    rho = separation(x).rho
    width = paper.theorem_3_2_width(n, rho)
    rng = random_generator(map_key)
    norms_outside = []
    for _ in range(trial.draws):
        h = x @ (rng.standard_normal((features, width)) / np.sqrt(width))
        is_outside = np.abs(np.sum(h**2, axis=1) - 1) > rho / 3
        norms_outside.append(int(np.sum(is_outside)))
    # |A_0 x|^2 is distributed as chi^2_k / k for every unit vector x.
    low = width / 2 * max(0.0, 1 - rho / 3)
    high = width / 2 * max(0.0, 1 + rho / 3)
    below, below_or_inside = scipy.special.gammainc(width / 2, [low, high])
    return {
        "rho": rho,
        "width": width,
        "norms_outside": norms_outside,
        "expected_norms_outside": float(n * (1 - (below_or_inside - below))),
    }


def measure_minimal_width(trial: SimpleNamespace, key: jax.Array) -> dict:
    """Tries widths 1, 2, ..., `max_width` until a network is certified."""
    data_key, label_key, build_key = jax.random.split(key, 3)
    x, y = _draw_points(trial, data_key, label_key)
    tried = []
    for width in range(1, trial.max_width + 1):
        result = _memorize(
            build_key,
            x,
            y,
            num_classes=trial.num_classes,
            width=width,
            dtype=np.dtype(trial.precision),
        )
        tried.append({"width": width, **result})
        if result.get("certified"):
            break
    fitting = [result for result in tried if result.get("errors") == 0]
    return {
        "tried": tried,
        "least_fitting_width": least(fitting, "width"),
        "least_certified_width": width if result.get("certified") else None,
    }


def measure_precision(trial: SimpleNamespace, key: jax.Array) -> dict:
    """Fits pairs of unit vectors at a given distance, in both precisions."""
    data_key, label_key, build_key = jax.random.split(key, 3)
    # Both networks get the same points, which float32 holds exactly.
    x = _draw_pairs(trial, data_key).astype(np.float32)
    y = _draw_labels(label_key, trial.num_classes, len(x))
    return {
        f"{precision}_result": _memorize(
            build_key,
            x,
            y,
            num_classes=trial.num_classes,
            width=trial.width,
            dtype=np.dtype(precision),
        )
        for precision in PRECISIONS
    }


def _draw_pairs(trial: SimpleNamespace, key: jax.Array) -> np.ndarray:
    """Pairs (i, pairs + i) of unit vectors, f64[2 pairs, features]."""
    rng = random_generator(key)
    shape = (trial.pairs, trial.features)
    first = _unit_rows(rng.standard_normal(shape))
    tangent = rng.standard_normal(shape)
    tangent = _unit_rows(
        tangent - np.sum(tangent * first, axis=1, keepdims=True) * first
    )
    # On the sphere, a chord of this length spans this angle.
    angle = 2 * np.arcsin(trial.pair_distance / 2)
    second = np.cos(angle) * first + np.sin(angle) * tangent
    return np.concatenate([first, second])


def measure_sgd(trial: SimpleNamespace, key: jax.Array) -> dict:
    """Trains a network on random labels, and constructs one of the same shape."""
    data_key, label_key, init_key, train_key, build_key = jax.random.split(key, 5)
    x, y = _draw_points(trial, data_key, label_key)
    n, features = x.shape
    start = descent.random_network(
        init_key, n, features, trial.num_classes, trial.width
    )
    started = time.perf_counter()
    curve = descent.train(
        start,
        x,
        y,
        key=train_key,
        learning_rate=trial.learning_rate,
        momentum=trial.momentum,
        batch_examples=trial.batch_examples,
        steps=trial.steps,
        steps_per_evaluation=trial.steps_per_evaluation,
    )
    return {
        "curve": curve,
        "errors": curve[-1]["errors"],
        "parameters": flops.count_parameters(start),
        "train_seconds": time.perf_counter() - started,
        "constructed": _memorize(
            build_key, x, y, num_classes=trial.num_classes, width=trial.width
        ),
    }


# Kind of trial -> how it is measured.
MEASURES = {
    "fit": measure_fit,
    "few_numbers": measure_few_numbers,
    "retrieval": measure_retrieval,
    "separation": measure_separation,
    "printed_width": measure_printed_width,
    "minimal_width": measure_minimal_width,
    "precision": measure_precision,
    "sgd": measure_sgd,
}
