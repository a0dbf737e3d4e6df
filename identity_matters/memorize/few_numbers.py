"""Fewer numbers than examples: words of 53 bits that hold the labels of several neighbours each.

Inputs of whole numbers are projected to a line, t = <a, x>, and groups of m neighbours on it share
three numbers: a threshold, a hash constant c and a word, whose digits in base r are the labels. The
constant sends the m points of its group to m different digits. The network, of residual blocks
h + V ReLU(U h + s) of width 6, selects word and constant of the group by a telescoping sum of
steps, hashes t to the place of a digit, and extracts that digit; see docs/theory/memorize.md.

Its numbers are whole and so are all that it computes with; up to 2^53 they are exact in float64, in
any order of summation. The blocks that select differ in three numbers each; hash and extraction
repeat a few blocks, whose matrices are stored and counted in full, zeros included.

Extracting bits from one number: Bartlett, Maiorov and Meir 1998; memorising fewer numbers than
examples: Park et al. (arXiv 2010.13363), Vardi et al. (arXiv 2110.03187).
"""

from __future__ import annotations

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from identity_matters.array_types import Array, check_whole
from identity_matters.memorize.certificate import PrecisionError
from identity_matters.memorize.construct import (
    BATCH_EXAMPLES,
    check_dtype,
    distinct_examples,
    largest_entry,
)
from identity_matters.memorize.network import apply_block, matmul, run_blocks, transform

EXACT_BITS = 53
# What the entries of h hold: the point, its word, its constant (later a digit), what a step has
# measured, the place of the point's digit, and the label.
POINT, WORD, CONSTANT, STEP, PLACE, LABEL = range(6)
CHANNELS = 6
# Rounds of the hash; with fewer, constants move the points of a group too much alike.
HASH_ROUNDS = 6
# Range of the ratio of its two moduli, whose disagreement makes it more than a rotation.
MODULUS_RATIO = 1.2, 1.8
# The least modulus of the hash, so that small samples have constants to choose from.
LEAST_MODULUS = 2**24
# The hash multiplies by a power of two, at most this; the search forms the product in 63 bits.
MOST_DOUBLINGS = 24
# Hashes computed at once by the search, and how often, before it gives up.
SEARCH_HASHES = 2**21
SEARCH_DRAWS = 1500


class Repeated(NamedTuple):
    """Parts, applied one after the other, and all of it `repeats` times.

    A part is Repeated itself, or (U f64[b, 6, 6], V f64[b, 6, 6], s f64[b, 6]) of b blocks.
    """

    parts: tuple
    repeats: jax.Array


class FewNumbers(NamedTuple):
    """The network; every number that it holds is the entry of an array here.

    Attributes:
      input_map: f64[1, d], a.
      start: f64[6], added to the input (a x, 0, 0, 0, 0, 0).
      thresholds, word_jumps, constant_jumps: f64[G], three numbers for each of G groups.
      select: the block that all groups share, U f64[6, 6], V f64[6, 6], s f64[6].
      stages: the blocks of the hash, of the place and of the extraction.
      output_U, output_V, output_s: the last block, from the label to its one-hot vector.
    """

    input_map: jax.Array
    start: jax.Array
    thresholds: jax.Array
    word_jumps: jax.Array
    constant_jumps: jax.Array
    select: tuple[jax.Array, ...]
    stages: tuple[Repeated, ...]
    output_U: jax.Array
    output_V: jax.Array
    output_s: jax.Array


@dataclasses.dataclass(frozen=True)
class ExactCertificate:
    """What is known before the network is run: whether float64 computes it without rounding.

    Attributes:
      largest_integer: bound on every number, every term and every partial sum, all whole.
      holds: whether it is at most 2^53.
    """

    largest_integer: int
    holds: bool


def _run(h: jax.Array, part: Repeated | tuple) -> jax.Array:
    if isinstance(part, Repeated):
        once = functools.partial(functools.reduce, _run, part.parts)
        return jax.lax.fori_loop(0, part.repeats, lambda _, h: once(h), h)
    return run_blocks(h, part)


@jax.jit
def forward(network: FewNumbers, x: Array) -> jax.Array:
    """The whole network, block after block: f64[n, d] to f64[n, r]."""
    t = matmul(network.input_map, x.T)[0]
    h = jnp.broadcast_to(network.start[:, None], (CHANNELS, len(x))).at[POINT].add(t)

    def select(h, numbers):
        U, V, s = network.select
        threshold, *jumps = numbers
        V = V.at[(WORD, CONSTANT), (1, 1)].set(jnp.stack(jumps))
        return apply_block(h, U, V, s.at[0].add(-threshold)), None

    groups = network.thresholds, network.word_jumps, network.constant_jumps
    h, _ = jax.lax.scan(select, h, groups)
    h = functools.reduce(_run, network.stages, h)
    return transform(h, network.output_U, network.output_V, network.output_s).T


def memorize_with_few_numbers(
    x: ArrayLike,
    y: ArrayLike,
    num_classes: int | None = None,
    *,
    group_points: int = 12,
    key: jax.Array | None = None,
) -> tuple[FewNumbers, ExactCertificate]:
    """A residual network of about d + 3 n / m numbers that maps ``x[i]`` to the one-hot ``y[i]``.

    >>> x = np.arange(40).reshape(20, 2) ** 2
    >>> network, certificate = memorize_with_few_numbers(x, np.arange(20) % 3, group_points=5)
    >>> forward(network, x.astype(float)).argmax(1).tolist()[:6], certificate.holds
    ([0, 1, 2, 0, 1, 2], True)

    Args:
      x: whole numbers [n, d] of any type; equal inputs with equal labels are fine.
      y: integer[n], labels in 0 ... r - 1.
      num_classes: r; one more than the largest label if None.
      group_points: m, at most `slots` of r; each more makes the search several times as long.
      key: typed key; draws projection, moduli and constants. None: ``jax.random.key(0)``.
    Returns:
      (network, certificate); `construct.verify` runs the network with ``run=forward``.
    Raises:
      ValueError: bad input, inputs that are not whole, or no constant found for a group.
      PrecisionError: a ValueError; the integers that the inputs need exceed 2^53.
      TypeError: JAX has 64-bit types switched off.
    """
    check_dtype(np.asarray(x), np.float64)
    points, labels, r = distinct_examples(x, y, num_classes, np.float64)
    check_group(group_points, r)
    if points.dtype.kind == "f" and not (points == np.rint(points)).all():
        raise ValueError("x must hold whole numbers, as pixels are: multiply x and round")
    seed = jax.random.bits(jax.random.key(0) if key is None else key, (4,), np.uint32)
    rng = np.random.default_rng(np.asarray(seed))
    a, t, size = _project_to_line(points, rng)
    order = np.argsort(t)
    first, t, labels = int(t.min()), t[order] - t.min(), labels[order]
    group = np.arange(len(t)) // group_points
    small = max(int(t[-1]) + 1, LEAST_MODULUS)
    moduli = small, int(small * rng.uniform(*MODULUS_RATIO))
    doublings = min(MOST_DOUBLINGS, 61 - moduli[-1].bit_length())
    full = len(t) // group_points * group_points
    groups = [t[:full].reshape(-1, group_points), t[full:][None]]
    constants = np.concatenate(
        [_find_constants(some, moduli, doublings, r, rng) for some in groups if some.size]
    )
    places = _hash_places(t, constants[group], moduli, doublings, r)
    words = np.zeros(len(constants), np.int64)
    np.add.at(words, group, labels * max(2, r) ** (slots(r) - 1 - places))
    # From the last group down; a block measures its own step and takes the one before it.
    thresholds = np.append(t[group_points::group_points][::-1], moduli[-1])
    jumps = [np.append(0, -np.diff(own)[::-1]) for own in (words, constants)]
    start = np.zeros(CHANNELS)
    start[[POINT, WORD, CONSTANT]] = -first, words[-1], constants[-1]
    numbers: tuple = _as_float64(a[None], start, thresholds, *jumps)
    numbers += (_as_float64(*_SELECT), _stages(*moduli, doublings, r))
    network = FewNumbers(*numbers, *_as_float64(*_one_hot(r)))
    largest = max(size + abs(first), 2 * moduli[-1], max(2, r) ** slots(r), 2 * r * slots(r))
    return network, ExactCertificate(largest, largest <= 2**EXACT_BITS)


def _as_float64(*arrays: np.ndarray) -> tuple[jax.Array, ...]:
    return tuple(jnp.asarray(array, jnp.float64) for array in arrays)


def slots(num_classes: int) -> int:
    """How many labels fit into one word: the largest S with r^S <= 2^53."""
    base, count = max(2, num_classes), 0
    while base ** (count + 1) <= 2**EXACT_BITS:
        count += 1
    return count


def check_group(group_points: int, num_classes: int) -> None:
    """Raises ValueError unless a word holds the labels of `group_points` points."""
    if check_whole("group_points", group_points) > slots(num_classes):
        raise ValueError(
            f"a word holds {slots(num_classes)} labels of {num_classes} classes, got group_points"
            f" {group_points}"
        )


def _project_to_line(x, rng) -> tuple[np.ndarray, np.ndarray, int]:
    """Whole a f64[d], t = x a i64[n] with distinct entries, and a bound on all sums behind them."""
    largest = max(1, int(largest_entry(x)))
    bits = max(1, int(len(x) ** 2 // largest).bit_length())
    while True:
        a = rng.integers(-(2**bits), 2**bits, x.shape[1], endpoint=True)
        size = int(np.abs(a).sum()) * largest
        if size > 2 ** (EXACT_BITS - 4):
            raise PrecisionError(
                f"projections of {len(x)} inputs with entries up to {largest} exceed 2^49: scale"
                " the inputs down, or choose fewer"
            )
        starts = range(0, len(x), BATCH_EXAMPLES)
        t = np.concatenate([x[i : i + BATCH_EXAMPLES].astype(float) @ a for i in starts])
        if len(np.unique(t)) == len(t):
            return a.astype(float), t.astype(np.int64), size
        bits += 1


def _hash_places(t, constants, moduli, doublings: int, num_classes: int) -> np.ndarray:
    """``z <- 2^L ((z mod M) + c) mod M'`` from z = t in rounds, then ``floor(2^b z / M')``: i64."""
    small, large = moduli
    z = t
    for _ in range(HASH_ROUNDS):
        z = ((z - small * (z >= small) + constants) << doublings) % large
    return (z << _place_bits(num_classes)) // large


def _place_bits(num_classes: int) -> int:
    return (slots(num_classes) - 1).bit_length()


def _find_constants(t, moduli, doublings, num_classes, rng) -> np.ndarray:
    """For each row of t, i64[G, m], a constant that sends it to different places: i64[G]."""
    constants, left = np.zeros(len(t), np.int64), np.arange(len(t))
    for _ in range(SEARCH_DRAWS):
        draws = max(1, SEARCH_HASHES // (len(left) * t.shape[1]))
        drawn = rng.integers(0, moduli[0], (len(left), draws))
        places = _hash_places(t[left][:, None], drawn[:, :, None], moduli, doublings, num_classes)
        taken = np.bitwise_count(np.bitwise_or.reduce(1 << places, axis=2))
        good = (taken == t.shape[1]) & (places.max(2) < slots(num_classes))
        found = good.any(1)
        constants[left[found]] = drawn[found, good[found].argmax(1)]
        left = left[~found]
        if not len(left):
            return constants
    raise ValueError(
        f"no hash constant found for {len(left)} of {len(t)} groups of {t.shape[1]} points: choose"
        " smaller groups"
    )


def _block(*units) -> tuple[np.ndarray, ...]:
    """U, V, s of a block from its units: (channels read, bias, channels written)."""
    U, V, s = np.zeros((CHANNELS, CHANNELS)), np.zeros((CHANNELS, CHANNELS)), np.zeros(CHANNELS)
    for i, (reads, s[i], writes) in enumerate(units):
        for channel, weight in reads.items():
            U[i, channel] = weight
        for channel, weight in writes.items():
            V[channel, i] = weight
    return U, V, s


_FORGET = ({STEP: 1}, 0, {STEP: -1})
# relu(t - T + 1) is at least 1 from T on, 0 below; relu(1 - step), unit 1, makes the jumps.
_SELECT = _block(({POINT: 1}, 1, {STEP: 1}), ({STEP: -1}, 1, {}), _FORGET)


def _if_at_least(reads: dict, threshold: int, jumps: dict, *units) -> list:
    """Two blocks that add `jumps` to h where <reads, h> >= threshold; `units` act everywhere."""
    measure = _block((reads, 1 - threshold, {STEP: 1}))
    below = ({STEP: -1}, 1, {channel: -jump for channel, jump in jumps.items()})
    return [measure, _block(below, _FORGET, ({}, 1, jumps), *units)]


def _repeated(repeats: int, *blocks) -> Repeated:
    stacked = _as_float64(*map(np.stack, zip(*blocks, strict=True)))
    return Repeated((stacked,), jnp.asarray(repeats))


def _stages(small: int, large: int, doublings: int, r: int) -> tuple[Repeated, ...]:
    """The hash of h[POINT] to h[PLACE], and the digit of h[WORD] there to h[LABEL]."""
    r, back = max(2, r), {POINT: -large}
    double, add = ({POINT: 1}, 0, {POINT: 1}), ({CONSTANT: 1}, 0, {POINT: 1})
    rounds = (
        _repeated(
            1,
            *_if_at_least({POINT: 1}, small, {POINT: -small}),
            *_if_at_least({POINT: 1, CONSTANT: 1}, large, back, add),
        ),
        _repeated(doublings, *_if_at_least({POINT: 2}, large, back, double)),
    )
    double_both = double, ({PLACE: 1}, 0, {PLACE: 1})
    clear = ({CONSTANT: 1}, 0, {CONSTANT: -1})
    place = (
        _repeated(
            _place_bits(r), *_if_at_least({POINT: 2}, large, {**back, PLACE: 1}, *double_both)
        ),
        _repeated(1, _block(clear)),
    )
    # The first digit of the word is counted in h[CONSTANT]; it is the label if h[PLACE] is 0.
    top = r ** (slots(r) - 1)
    distance = _block(({PLACE: 1}, 0, {STEP: 1}), ({PLACE: -1}, 0, {STEP: 1}))
    chosen = ({CONSTANT: 1, STEP: -r}, 0, {LABEL: 1})
    following: tuple = ({}, 1, {PLACE: -1}), ({WORD: 1}, 0, {WORD: r - 1})
    digits = (
        _repeated(r - 1, *_if_at_least({WORD: 1}, top, {WORD: -top, CONSTANT: 1})),
        _repeated(1, distance, _block(chosen, clear, _FORGET, *following)),
    )
    repeats = (HASH_ROUNDS, 1, slots(r))
    return tuple(map(Repeated, (rounds, place, digits), map(jnp.asarray, repeats)))


def _one_hot(r: int) -> tuple[np.ndarray, ...]:
    """Output j is relu(y - j + 1) - 2 relu(y - j) + relu(y - j - 1), from r + 2 shared units."""
    U = np.zeros((r + 2, CHANNELS))
    U[:, LABEL] = 1
    rows = np.arange(r)
    V = np.zeros((r, r + 2))
    V[rows, rows], V[rows, rows + 1], V[rows, rows + 2] = 1, -2, 1
    return U, V, -np.arange(-1.0, r + 1)
