"""Attacks the certificate of `memorize`: hostile inputs, in six orders of summation.

A network that is certified must give every label, and outputs within its bound,
whatever the order of summation and the batch.

Command: python -m tests.hostile_networks 5500 --seed 4
(at least 5,500 certified networks: about an hour on one core)
"""

import argparse
import collections
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import jax
import numpy as np

from identity_matters.memorize import construct, input_map
from identity_matters.memorize.certificate import PrecisionError
from identity_matters.memorize.construct import Memorized, memorize
from identity_matters.memorize.examples import ConflictingLabelsError


class Shape(NamedTuple):
    """Sizes of a network; each new one is compiled."""

    n: int
    features: int
    width: int
    num_classes: int
    dtype: str


SHAPES = [
    Shape(n, features, width, num_classes, dtype)
    for dtype in ("float32", "float64")
    for n, features, width, num_classes in (
        (6, 1, 1, 2),
        (6, 2, 1, 2),
        (6, 2, 2, 3),
        (6, 4, 2, 2),
        (4, 4, 2, 2),
        (24, 4, 3, 2),
        (12, 5, 4, 12),
        (30, 8, 1, 2),
        (30, 16, 8, 10),
        (9, 17, 32, 3),
        (40, 64, 2, 2),
        (40, 64, 16, 10),
        (10, 300, 1, 2),
        (20, 300, 5, 4),
        (5, 784, 1, 2),
        (30, 784, 8, 10),
        (5, 3072, 1, 2),
        (12, 3072, 8, 10),
        (6, 3072, 32, 2),
    )
]


def along_the_kernel(shape: Shape, rng: np.random.Generator) -> np.ndarray:
    """Small integers around a large one that the map of the default key hardly sees."""
    map_key, _ = jax.random.split(jax.random.key(0))
    drawn = jax.random.normal(map_key, (shape.width, shape.features), shape.dtype)
    _, _, directions = np.linalg.svd(np.asarray(drawn, np.float64))
    largest = 2 ** rng.uniform(4, 21 if shape.dtype == "float32" else 50)
    offset = np.rint(largest * directions[-1] / np.abs(directions[-1]).max())
    return offset + rng.integers(-5, 6, (shape.n, shape.features))


def close_pairs(shape: Shape, rng: np.random.Generator) -> np.ndarray:
    """Points and their neighbours at any distance that the precision resolves."""
    draw = rng.standard_normal if rng.random() < 0.5 else rng.random
    points = draw((-(-shape.n // 2), shape.features))
    digits = 7 if shape.dtype == "float32" else 15
    distance = 10 ** -rng.uniform(0, digits)
    neighbours = points + distance * rng.standard_normal(points.shape)
    return np.concatenate([points, neighbours])[: shape.n]


def correlated(shape: Shape, rng: np.random.Generator) -> np.ndarray:
    """Points near a line far from the origin."""
    direction = rng.standard_normal(shape.features)
    steps = rng.standard_normal((shape.n, 1))
    offset = 10 ** rng.uniform(-2, 4) * rng.standard_normal(shape.features)
    noise = 10 ** rng.uniform(-6, 0) * rng.standard_normal((shape.n, shape.features))
    return steps * direction + offset + noise


def mixed_sizes(shape: Shape, rng: np.random.Generator) -> np.ndarray:
    """Entries over many powers of ten, of both signs, in rows of different sizes."""
    powers = rng.uniform(-8, 8, (shape.n, 1)) * rng.random() + rng.uniform(
        -4, 4, (shape.n, shape.features)
    )
    return rng.choice([-1, 1], (shape.n, shape.features)) * 10.0**powers


FAMILIES: tuple[Callable[[Shape, np.random.Generator], np.ndarray], ...] = (
    along_the_kernel,
    along_the_kernel,
    close_pairs,
    correlated,
    mixed_sizes,
)


def _in_sequence(terms: np.ndarray) -> np.ndarray:
    return np.cumsum(terms, axis=-1, dtype=terms.dtype)[..., -1]


def _in_reverse(terms: np.ndarray) -> np.ndarray:
    return _in_sequence(terms[..., ::-1])


def _shuffled(terms: np.ndarray) -> np.ndarray:
    order = np.random.default_rng(terms.shape[-1]).permutation(terms.shape[-1])
    return _in_sequence(terms[..., order])


def _in_a_tree(terms: np.ndarray) -> np.ndarray:
    while terms.shape[-1] > 1:
        if terms.shape[-1] % 2:
            terms = np.concatenate([terms, np.zeros_like(terms[..., :1])], axis=-1)
        half = terms.shape[-1] // 2
        terms = terms[..., :half] + terms[..., half:]
    return terms[..., 0]


def _in_lanes(terms: np.ndarray) -> np.ndarray:
    lanes = 8
    padding = np.zeros((*terms.shape[:-1], -terms.shape[-1] % lanes), terms.dtype)
    padded = np.concatenate([terms, padding], axis=-1)
    return _in_sequence(_in_sequence(padded.reshape(*terms.shape[:-1], lanes, -1)))


def _by_blas(terms: np.ndarray) -> np.ndarray:
    return terms @ np.ones(terms.shape[-1], terms.dtype)


ORDERS = (_in_sequence, _in_reverse, _shuffled, _in_a_tree, _in_lanes, _by_blas)


def _product(
    A: np.ndarray, b: np.ndarray, add, bias: np.ndarray | None = None
) -> np.ndarray:
    """A b (+ bias), f[n, m], with the terms of each entry summed by `add`.

    Args:
        A: f[m, k].
        b: f[n, k], one input a row.
        add: sums over the last axis, in an order of its own.
        bias: f[m] or f[n, m], the last term of each sum.
    """
    terms = A[None] * b[:, None]
    if bias is not None:
        columns = np.broadcast_to(
            np.atleast_2d(bias)[:, :, None], (*terms.shape[:2], 1)
        )
        terms = np.concatenate([terms, columns], axis=-1)
    return add(terms)


def project_in_numpy(A_0: np.ndarray, x: np.ndarray, add) -> np.ndarray:
    """The input map, written again in NumPy: f[n, k]."""
    _, piece_bits, pieces = input_map.slicing(x.shape[1], x.dtype)
    info = np.finfo(x.dtype)
    x = np.where(np.abs(x) < info.tiny, x.dtype.type(0), x)
    exponents = np.frexp(np.abs(x).max(axis=1, keepdims=True))[1]
    shift = np.minimum(piece_bits - 1 - exponents, -info.minexp)
    remainder = np.ldexp(x, shift)
    products = []
    for _ in range(pieces):
        piece = np.rint(remainder)
        products.append(_product(A_0, piece, add))
        remainder = np.ldexp(remainder - piece, piece_bits)
    h = products[-1]
    for product in products[-2::-1]:
        h = product + np.ldexp(h, -piece_bits)
    h = np.ldexp(h, -shift)
    return np.where(np.abs(h) < 2 * info.tiny, x.dtype.type(0), h)


def run_in_numpy(network, x: np.ndarray, add) -> tuple[np.ndarray, np.ndarray]:
    """The points after the input map, f[n, k], and the outputs, f[n, r].

    Each sum is by `add`, in the dtype of the network.
    """
    A_0, U, V, s, output_U, output_V, output_s = map(np.asarray, network)
    start = h = project_in_numpy(A_0, np.asarray(x, A_0.dtype), add)
    for block_U, block_s, block_V in zip(U, s, V, strict=True):
        activations = np.maximum(_product(block_U, h, add, block_s), 0)
        h = _product(block_V, activations, add, h)
    activations = np.maximum(_product(output_U, h, add, output_s), 0)
    return start, _product(output_V, activations, add)


class Attack(NamedTuple):
    """What running one certified network gave."""

    wrong_labels: int
    beyond_the_bound: int  # outputs
    runs: int
    share_of_bound: float  # the largest error over the bound
    same_points: bool  # whether A_0 x has the same bits in every order


def attack(memorized: Memorized, x: np.ndarray, y: np.ndarray) -> Attack:
    """Runs the network in NumPy in every order, and in the library.

    There the batches are of 1, 7 and n inputs.
    """
    network, certificate = memorized
    dtype = np.asarray(network.V).dtype
    by_order = [run_in_numpy(network, x, add) for add in ORDERS]
    batches = [construct.apply(network, x, rows) for rows in (1, 7, len(x))]
    points = np.asarray(input_map.project(network.input_map, x.astype(dtype))).T
    runs = [outputs for _, outputs in by_order] + batches
    one_hot = np.eye(len(network.output_s))[y]
    errors = [np.abs(np.asarray(outputs, np.float64) - one_hot) for outputs in runs]
    return Attack(
        wrong_labels=sum(int((outputs.argmax(axis=1) != y).sum()) for outputs in runs),
        beyond_the_bound=sum(
            int((~(error <= certificate.output_error_bound)).sum()) for error in errors
        ),
        runs=len(runs),
        share_of_bound=max(float(error.max()) for error in errors)
        / certificate.output_error_bound,
        same_points=all(np.array_equal(start, points) for start, _ in by_order),
    )


def certified_networks(
    shape: Shape, rng: np.random.Generator, tries: int
) -> Iterator[tuple[str, Memorized, np.ndarray, np.ndarray]]:
    """Networks for hostile points, with the inputs and labels, and the family's name.

    Of `tries` sets of points those whose network is certified.
    """
    for index in range(tries):
        family = FAMILIES[index % len(FAMILIES)]
        x = family(shape, rng).astype(shape.dtype)
        y = rng.integers(0, shape.num_classes, len(x))
        try:
            memorized = memorize(
                x, y, shape.num_classes, shape.width, dtype=shape.dtype
            )
        except (PrecisionError, ConflictingLabelsError):
            continue
        yield family.__name__, memorized, x, y


def main(wanted: int, seed: int = 0) -> None:
    """Attacks certified networks, at least `wanted`, and prints what came of it."""
    jax.config.update("jax_enable_x64", True)
    rng = np.random.default_rng(seed)
    started = time.perf_counter()
    counts: collections.Counter = collections.Counter()
    totals: collections.Counter = collections.Counter()
    share = 0.0
    while sum(counts.values()) < wanted:
        for shape in SHAPES:
            for name, memorized, x, y in certified_networks(shape, rng, tries=50):
                result = attack(memorized, x, y)
                counts[f"{name} {shape.dtype}"] += 1
                totals["wrong labels"] += result.wrong_labels
                totals["outputs beyond the bound"] += result.beyond_the_bound
                totals["runs"] += result.runs
                depends = not result.same_points
                totals["networks whose A_0 x depends on the order"] += depends
                share = max(share, result.share_of_bound)
            seconds = time.perf_counter() - started
            print(
                f"{sum(counts.values())} certified networks, {seconds:.0f} s:"
                f" {dict(totals)}"
            )
            print(
                f"  largest error over its bound: {share:.3f}; {dict(counts)}",
                flush=True,
            )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("wanted", type=int, help="certified networks to try, at least")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    main(arguments.wanted, arguments.seed)
