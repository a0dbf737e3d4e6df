"""Networks of whole numbers: few numbers for many labels, and a hashed table."""

import time
from typing import NamedTuple

import jax
import numpy as np

from experiments.measurements.memorize_points import (
    Data,
    random_labels,
    whole_points,
)
from experiments.measurements.memorize_records import (
    errors_and_times,
    refusals_recorded,
)
from identity_matters import flops
from identity_matters.memorize import few_numbers, hashing, retrieval
from identity_matters.memorize.exact_arithmetic import EXACT_BITS
from identity_matters.memorize.network import counting_lower_bound


class _Examples(NamedTuple):
    """What a network for whole numbers is built of.

    Attributes:
      x: [n, d], whole numbers.
      y: int[n], random labels.
      build_key: of the network.
    """

    x: np.ndarray
    y: np.ndarray
    build_key: jax.Array


def _draw_whole_examples(data: Data, key: jax.Array) -> _Examples:
    """Points with random labels, and a key that is not spent on them."""
    label_key, build_key = jax.random.split(key)
    # Not a third part of the split, as the committed records depend on it.
    x = whole_points(data, jax.random.fold_in(key, 2))
    return _Examples(x, random_labels(label_key, data.num_classes, len(x)), build_key)


class FewNumbersTrial(NamedTuple):
    """What `measure_few_numbers` reads.

    Attributes:
      data: the points.
      group_points: neighbours that share a threshold, a hash and a word.
      batch_examples: inputs that pass through the network at once.
      word_bits: b; no number, stored or computed, exceeds 2^b.
      width: k.
    """

    data: Data
    group_points: int
    batch_examples: int
    word_bits: int = EXACT_BITS
    width: int = hashing.LEAST_WIDTH


@refusals_recorded
def measure_few_numbers(trial: FewNumbersTrial, key: jax.Array) -> dict:
    """A network whose numbers hold several labels each."""
    num_classes = trial.data.num_classes
    x, y, build_key = _draw_whole_examples(trial.data, key)
    started = time.perf_counter()
    network, certificate = few_numbers.memorize_with_few_numbers(
        x,
        y,
        num_classes,
        group_points=trial.group_points,
        word_bits=trial.word_bits,
        width=trial.width,
        key=build_key,
    )
    build_seconds = time.perf_counter() - started
    of_groups = (
        network.thresholds,
        network.word_increments,
        network.constant_increments,
    )
    return {
        **errors_and_times(
            network,
            certificate,
            x,
            y,
            build_seconds=build_seconds,
            batch_examples=trial.batch_examples,
            forward=few_numbers.forward,
        ),
        "numbers": flops.count_parameters(network),
        "group_numbers": flops.count_parameters(of_groups),
        "largest_integer": certificate.largest_integer,
        "counting_lower_bound": counting_lower_bound(
            len(x), num_classes, trial.word_bits
        ),
    }


class RetrievalTrial(NamedTuple):
    """What `measure_retrieval` reads.

    Attributes:
      data: the points.
      input_map: "dense", or "factored" for a map of d1 + d2 numbers.
      batch_examples: inputs that pass through the network at once.
    """

    data: Data
    input_map: str
    batch_examples: int


@refusals_recorded
def measure_retrieval(trial: RetrievalTrial, key: jax.Array) -> dict:
    """A network that finds the labels in a hashed table."""
    num_classes = trial.data.num_classes
    x, y, build_key = _draw_whole_examples(trial.data, key)
    started = time.perf_counter()
    network, certificate = retrieval.memorize_by_retrieval(
        x,
        y,
        num_classes,
        factored_input_map=trial.input_map == "factored",
        key=build_key,
    )
    build_seconds = time.perf_counter() - started
    words = retrieval.word_numbers(network)
    return {
        **errors_and_times(
            network,
            certificate,
            x,
            y,
            build_seconds=build_seconds,
            batch_examples=trial.batch_examples,
            forward=retrieval.forward,
        ),
        "numbers": retrieval.stored_numbers(network),
        "input_map_numbers": len(network.rows) + len(network.columns),
        "word_numbers": words,
        "table_digits": words * retrieval.digits_per_word(num_classes),
        "largest_integer": certificate.largest_integer,
        # A word has a sign besides its 53 bits.
        "counting_lower_bound": counting_lower_bound(
            len(x), num_classes, EXACT_BITS + 1
        ),
    }
