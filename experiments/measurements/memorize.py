"""Networks for points or images, built or trained, and run on every input.

Each measurement takes a trial of a type of its own, which lists the settings that it
reads, and a key; `experiments.memorize` has their values. Here are the networks of
Theorem 3.2; those of whole numbers are in `memorize_whole_numbers`.

Each kind of trial derives the keys of its points, labels and networks in its own way.
Do not change this: the committed records depend on it.
"""

import time
from typing import Any, NamedTuple

import jax
import numpy as np
import scipy.special

from experiments.measurements.memorize_points import (
    SYNTHETIC,
    Data,
    check_distinct,
    check_unit_vectors,
    pairs_of_unit_vectors,
    random_labels,
    require_prepared,
    true_labels,
    unit_vectors,
)
from experiments.measurements.memorize_records import (
    errors_and_times,
    refusals_recorded,
)
from experiments.measurements.memorize_whole_numbers import (
    FewNumbersTrial,
    RetrievalTrial,
    measure_few_numbers,
    measure_retrieval,
)
from experiments.run.settings import require_between
from experiments.run.trials import Kind, only
from experiments.run.verdicts import least
from identity_matters import flops, paper
from identity_matters.checks import check_whole
from identity_matters.memorize import construct, descent, hashing, network
from identity_matters.memorize.examples import random_generator
from identity_matters.memorize.paper_method import separation, sufficient_width

PRECISIONS = ("float32", "float64")
# Setting -> what it may be.
_CHOICES = {
    "labels": ("random", "true"),
    "precision": PRECISIONS,
    "method": construct.METHODS,
    "input_map": ("dense", "factored"),
}


# Networks of Theorem 3.2


@refusals_recorded
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
    """A network of Theorem 3.2; `options` go to `construct.memorize`."""
    started = time.perf_counter()
    built, certificate = construct.memorize(
        x, y, num_classes, width, key=key, certified=False, **options
    )
    build_seconds = time.perf_counter() - started
    return {
        **errors_and_times(
            built,
            certificate,
            x,
            y,
            build_seconds=build_seconds,
            batch_examples=batch_examples,
            forward=network.forward,
        ),
        "block_parameters": flops.count_parameters((built.U, built.s, built.V)),
        "parameters": flops.count_parameters(built),
        "smallest_margin": certificate.smallest_margin,
        "output_error_bound": certificate.output_error_bound,
    }


class FitTrial(NamedTuple):
    """What `measure_fit` reads.

    Attributes:
      data: the points.
      labels: "random", or "true" for those of the images.
      width: k.
      precision: of the network, one of `PRECISIONS`.
      method: one of `construct.METHODS`.
      tile_points: see `construct.memorize`.
      batch_examples: inputs that pass through the network at once.
    """

    data: Data
    labels: str
    width: int
    precision: str
    method: str
    tile_points: int
    batch_examples: int


def measure_fit(trial: FitTrial, key: jax.Array) -> dict:
    """One network that fits all labels."""
    data_key, label_key, build_key = jax.random.split(key, 3)
    x = unit_vectors(trial.data, data_key)
    if trial.labels == "true":
        y = true_labels(trial.data)
    else:
        y = random_labels(label_key, trial.data.num_classes, len(x))
    dtype = np.dtype(trial.precision)
    measured = _memorize(
        build_key,
        x,
        y,
        num_classes=trial.data.num_classes,
        width=trial.width,
        batch_examples=trial.batch_examples,
        dtype=dtype,
        method=trial.method,
        tile_points=trial.tile_points,
    )
    bits = 8 * dtype.itemsize
    bound = network.counting_lower_bound(len(x), trial.data.num_classes, bits)
    return {"counting_lower_bound": bound, **measured}


class MinimalWidthTrial(NamedTuple):
    """What `measure_minimal_width` reads.

    Attributes:
      data: the points.
      precision: of the networks, one of `PRECISIONS`.
      max_width: the last width that is tried.
    """

    data: Data
    precision: str
    max_width: int


def measure_minimal_width(trial: MinimalWidthTrial, key: jax.Array) -> dict:
    """Tries widths 1, 2, ..., `max_width` until a network is certified."""
    data_key, label_key, build_key = jax.random.split(key, 3)
    x = unit_vectors(trial.data, data_key)
    y = random_labels(label_key, trial.data.num_classes, len(x))
    tried = []
    for width in range(1, trial.max_width + 1):
        result = _memorize(
            build_key,
            x,
            y,
            num_classes=trial.data.num_classes,
            width=width,
            dtype=np.dtype(trial.precision),
        )
        tried.append({"width": width, **result})
        if result.get("certified"):
            break
    fitting = [result for result in tried if result.get("errors") == 0]
    certified = [result for result in tried if result.get("certified")]
    return {
        "tried": tried,
        "least_fitting_width": least(fitting, "width"),
        "least_certified_width": least(certified, "width"),
    }


class PrecisionTrial(NamedTuple):
    """What `measure_precision` reads.

    Attributes:
      pair_distance: between the two points of a pair.
      pairs: how many there are.
      features: d.
      num_classes: r.
      width: k.
    """

    pair_distance: float
    pairs: int
    features: int
    num_classes: int
    width: int


def measure_precision(trial: PrecisionTrial, key: jax.Array) -> dict:
    """Fits pairs of unit vectors at a given distance, in both precisions."""
    data_key, label_key, build_key = jax.random.split(key, 3)
    pairs = pairs_of_unit_vectors(
        data_key,
        pairs=trial.pairs,
        features=trial.features,
        distance=trial.pair_distance,
    )
    # Both networks get the same points, which float32 holds exactly.
    x = pairs.astype(np.float32)
    y = random_labels(label_key, trial.num_classes, len(x))
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


class SgdTrial(NamedTuple):
    """What `measure_sgd` reads.

    Attributes:
      data: the points.
      width: k; the network has as many blocks as the one that is constructed.
      learning_rate, momentum, batch_examples: of the descent.
      steps: how many it takes.
      steps_per_evaluation: how often errors are counted; divides `steps`.
    """

    data: Data
    width: int
    learning_rate: float
    momentum: float
    batch_examples: int
    steps: int
    steps_per_evaluation: int


def measure_sgd(trial: SgdTrial, key: jax.Array) -> dict:
    """Trains a network on random labels, and constructs one of the same shape."""
    data_key, label_key, init_key, train_key, build_key = jax.random.split(key, 5)
    num_classes = trial.data.num_classes
    x = unit_vectors(trial.data, data_key)
    y = random_labels(label_key, num_classes, len(x))
    n, features = x.shape
    start = descent.random_network(init_key, n, features, num_classes, trial.width)
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
            build_key, x, y, num_classes=num_classes, width=trial.width
        ),
    }


# What the theorem and its lemmas ask for


class SeparationTrial(NamedTuple):
    """What `measure_separation` reads: the points."""

    data: Data


def measure_separation(trial: SeparationTrial, key: jax.Array) -> dict:
    """How far apart the points are, and the widths that this asks for."""
    x = unit_vectors(trial.data, key)
    rho = separation(x).rho
    return {
        "rho": rho,
        "theorem_width": paper.theorem_3_2_width(len(x), rho),
        "lemma_width": sufficient_width(len(x), trial.data.num_classes, rho),
    }


class PrintedWidthTrial(NamedTuple):
    """What `measure_printed_width` reads: the points, and how many maps are drawn."""

    data: Data
    draws: int


def measure_printed_width(trial: PrintedWidthTrial, key: jax.Array) -> dict:
    """How many squared norms leave 1 +- rho / 3 under a map of the printed width."""
    data_key, map_key = jax.random.split(key)
    x = unit_vectors(trial.data, data_key)
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


# From settings to trials


_KINDS = {
    "fit": Kind(FitTrial, measure_fit),
    "few_numbers": Kind(FewNumbersTrial, measure_few_numbers),
    "retrieval": Kind(RetrievalTrial, measure_retrieval),
    "separation": Kind(SeparationTrial, measure_separation),
    "printed_width": Kind(PrintedWidthTrial, measure_printed_width),
    "minimal_width": Kind(MinimalWidthTrial, measure_minimal_width),
    "precision": Kind(PrecisionTrial, measure_precision),
    "sgd": Kind(SgdTrial, measure_sgd),
}
MEASURES = {name: kind.measure for name, kind in _KINDS.items()}
# Kinds whose points are whole numbers; those of all others are unit vectors.
_KINDS_OF_WHOLE_NUMBERS = ("few_numbers", "retrieval")


def build(*, kind: str, **settings) -> tuple:
    """The trial of this kind, which has the settings that its measurement reads.

    Raises:
      ValueError: a setting cannot be used, or the data are not prepared.
    """
    _check_values(settings)
    if kind not in _KINDS_OF_WHOLE_NUMBERS:
        check_unit_vectors(settings["features"])
    elif settings["dataset"] == SYNTHETIC:
        check_distinct(settings["examples"], settings["features"])
    kind_of_trial = _KINDS[kind]
    if "data" in kind_of_trial.trial_type._fields:
        data = Data(**only(settings, Data._fields))
        require_prepared(data)
        settings["data"] = data
    trial = kind_of_trial.make_trial(settings)
    _check_together(trial)
    return trial


def _check_values(settings: dict) -> None:
    """ValueError for a setting that is none of its choices, or out of range."""
    for name, choices in _CHOICES.items():
        if name in settings and settings[name] not in choices:
            raise ValueError(f"{name} must be one of {choices}, got {settings[name]!r}")
    for name in ("examples", "features", "num_classes"):
        if name in settings:
            check_whole(name, settings[name])
    for name, high in {"least_hash_chance": 1, "pair_distance": 2}.items():
        if name in settings:
            require_between(0, high, **{name: settings[name]})


def _check_together(trial: Any) -> None:
    """ValueError for settings that cannot be used together."""
    match trial:
        case FitTrial(labels="true") if trial.data.dataset == SYNTHETIC:
            raise ValueError("synthetic points have random labels only")
        case FewNumbersTrial():
            hashing.check_group(
                trial.group_points,
                num_classes=trial.data.num_classes,
                word_bits=trial.word_bits,
                width=trial.width,
            )
        case SgdTrial() if trial.steps % trial.steps_per_evaluation:
            raise ValueError(f"steps_per_evaluation must divide steps, {trial.steps}")
