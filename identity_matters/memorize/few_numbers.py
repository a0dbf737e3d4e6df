"""Fewer parameters than examples: each many-bit word holds the labels of several
neighbours.

Integer inputs are projected to a line, t = <a, x>, and groups of m neighbours share
three numbers: a threshold, a word, whose digits in base r are the labels, and a
constant, which hashes the points to different digits. Blocks of width 6 select a
point's word and constant, hash t to the place of a digit, and extract it. With more
channels a group has more words, which makes up for fewer bits. All numbers are
integers, exact in float64. Proof, count and earlier work: docs/theory/memorize.md.
"""

from __future__ import annotations

import functools
import itertools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from identity_matters.array_types import Array
from identity_matters.checks import check_whole, plain_array
from identity_matters.memorize.certificate import PrecisionError
from identity_matters.memorize.construct import BATCH_EXAMPLES, WORKING_COPIES
from identity_matters.memorize.examples import (
    check_dtype,
    check_key,
    check_memory,
    distinct_examples,
    largest_entry,
    random_generator,
)
from identity_matters.memorize.network import apply_block, matmul, run_blocks, transform

EXACT_BITS = 53
# The channels of h: the point, its word, its constant (later a digit), the output of a
# step, the place of the point's digit, and the label; further words follow.
POINT, WORD, CONSTANT, STEP, PLACE, LABEL = range(6)
LEAST_WIDTH = 6
# The search marks the places that a group occupies in a 63-bit mask.
MOST_PLACES = 63
PROJECTION_DRAWS = 100
# Rounds of the hash; with fewer, a constant moves the points of a group too much alike.
HASH_ROUNDS = 6
# Range of the ratio of its two moduli; with one, a constant would rotate all points
# alike.
MODULUS_RATIO = 1.2, 1.8
# The least modulus of the hash: small samples, too, need many constants to choose from.
LEAST_MODULUS = 2**24
# With fewer bits there is no room for moduli or labels.
LEAST_WORD_BITS = 8
# The hash multiplies by 2^L, L at most this; the search forms the product in 63 bits.
MOST_DOUBLINGS = 24
# Hashes that the search computes at once; how many such batches it tries before it
# gives up.
SEARCH_HASHES = 2**21
SEARCH_DRAWS = 1500
# With a smaller chance that a hash constant works for a group, the search takes
# minutes.
LEAST_HASH_CHANCE = 1e-5


class Repeated(NamedTuple):
    """Parts applied one after the other, and the whole sequence `repeats` times."""

    # Each is another Repeated, or b blocks (U f64[b, k, k], V f64[b, k, k], s f64[b,
    # k]).
    parts: tuple
    repeats: jax.Array | int


class FewNumbers(NamedTuple):
    """The network of width k for G groups, for `forward`; each parameter is an array
    entry.
    """

    input_map: jax.Array  # f64[1, d], a
    start: jax.Array  # f64[k], added to the input (a x, 0, ..., 0)
    thresholds: jax.Array  # f64[G]
    word_jumps: jax.Array  # f64[G, k - 5], one number for each word of a group
    constant_jumps: jax.Array  # f64[G]
    # U, V f64[k, k] and s f64[k], the block that all groups share
    select: tuple[jax.Array, ...]
    stages: tuple[Repeated, ...]  # the hash, the place and the extraction
    # U, V, s of the last block, from the label to its one-hot vector
    output: tuple[jax.Array, ...]


class ExactCertificate(NamedTuple):
    """Whether the network computes without rounding, as known before it is run.

    It does if `largest_integer`, which bounds all parameters and sums, is at most
    2^word_bits.
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
    h = (
        jnp.broadcast_to(network.start[:, None], (len(network.start), len(x)))
        .at[POINT]
        .add(t)
    )

    def select(h, numbers):
        U, V, s = network.select
        threshold, words, constant = numbers
        V = V.at[_word_channels(len(s)), 1].set(words).at[CONSTANT, 1].set(constant)
        return apply_block(h, U, V, s.at[0].add(-threshold)), None

    groups = network.thresholds, network.word_jumps, network.constant_jumps
    h, _ = jax.lax.scan(select, h, groups)
    h = functools.reduce(_run, network.stages, h)
    return transform(h, *network.output).T


def memorize_with_few_numbers(
    x: ArrayLike,
    y: ArrayLike,
    num_classes: int | None = None,
    *,
    group_points: int = 12,
    word_bits: int = EXACT_BITS,
    width: int = LEAST_WIDTH,
    key: jax.Array | None = None,
) -> tuple[FewNumbers, ExactCertificate]:
    """A residual network of about d + 3 n / m parameters that maps ``x[i]`` to one-hot
    ``y[i]``.

    >>> x = np.arange(40).reshape(20, 2) ** 2
    >>> y = np.arange(20) % 3
    >>> network, certificate = memorize_with_few_numbers(x, y, group_points=5)
    >>> forward(network, x.astype(float)).argmax(1).tolist()[:6], certificate.holds
    ([0, 1, 2, 0, 1, 2], True)

    Args:
      x: whole numbers [n, d] of any type; y, num_classes and key are as in `memorize`.
      group_points: m, at most `places`. The search grows fast with m: see
        `largest_group`.
      word_bits: b <= 53; no parameter or intermediate value may exceed 2^b.
      width: k >= 6; a group has k - 5 words, and so k - 3 numbers.
    Raises:
      ValueError: bad input, or no constant is found for a group.
      PrecisionError: a ValueError; the integers that the inputs need exceed 2^b.
      TypeError: JAX has 64-bit types switched off.
    """
    key = check_key(key)
    x = plain_array("x", x)
    check_dtype(x, np.float64)
    points, labels, r = distinct_examples(x, y, num_classes, np.float64)
    check_group(group_points, r, word_bits, width)
    # The last block of r + 2 units, the largest part if there are many classes.
    numbers = r * (r + 2) + (r + 2) * (width + 1) + points.shape[1] + 3 * len(points)
    check_memory(
        WORKING_COPIES * np.dtype(np.float64).itemsize * numbers,
        f"a network of {numbers:.3g} numbers for {len(points)} inputs and {r} classes",
    )
    if points.dtype.kind == "f" and not (points == np.rint(points)).all():
        raise ValueError(
            "x must hold whole numbers, as pixels are: multiply x and round"
        )
    rng = random_generator(key)
    a, t, size = _project_to_line(points, rng, word_bits)
    order = np.argsort(t)
    first, t, labels = int(t.min()), t[order] - t.min(), labels[order]
    group = np.arange(len(t)) // group_points
    small = max(int(t[-1]) + 1, min(LEAST_MODULUS, 2 ** (word_bits - 2)))
    large = int(small * rng.uniform(*MODULUS_RATIO))
    doublings = min(MOST_DOUBLINGS, 61 - large.bit_length())
    base, digits, most = max(2, r), slots(r, word_bits), places(r, word_bits, width)
    hashing = small, large, doublings, _place_bits(group_points, most)
    full = len(t) // group_points * group_points
    parts = [t[:full].reshape(-1, group_points), t[full:][None]]
    found = [_find_constants(part, hashing, most, rng) for part in parts if part.size]
    constants = np.concatenate(found)
    word, digit = np.divmod(_hash_places(t, constants[group], *hashing), digits)
    words = np.zeros((len(constants), width - LEAST_WIDTH + 1), np.int64)
    np.add.at(words, (group, word), labels * base ** (digits - 1 - digit))
    # From the last group down; a block measures its own step and makes the jump of the
    # one before.
    thresholds = np.append(t[group_points::group_points][::-1], large)
    jumps = [-np.diff(own, axis=0, append=own[-1:])[::-1] for own in (words, constants)]
    start = np.zeros(width)
    start[[POINT, CONSTANT]] = -first, constants[-1]
    start[_word_channels(width)] = words[-1]
    groups = (own.astype(float) for own in (thresholds, *jumps))
    shared = (
        _block(width, *_SELECT),
        _stages(*hashing, base, digits, width),
        _one_hot(r, width),
    )
    network = jax.tree.map(
        jnp.asarray, FewNumbers._make((a[None], start, *groups, *shared))
    )
    sizes = size + abs(first), 2 * large, base**digits, 2 * r * digits * words.shape[1]
    return network, ExactCertificate(max(sizes), max(sizes) <= 2**word_bits)


def _word_channels(width: int) -> np.ndarray:
    return np.array([WORD, *range(LEAST_WIDTH, width)])


def slots(num_classes: int, word_bits: int = EXACT_BITS) -> int:
    """How many labels fit into one word: the largest S with r^S <= 2^b."""
    base = max(2, num_classes)
    return next(
        count for count in itertools.count() if base ** (count + 1) > 2**word_bits
    )


def places(
    num_classes: int, word_bits: int = EXACT_BITS, width: int = LEAST_WIDTH
) -> int:
    """How many labels fit into the k - 5 words of a group; at most 63 are used."""
    return min(MOST_PLACES, (width - LEAST_WIDTH + 1) * slots(num_classes, word_bits))


def hash_chance(group_points: int, places: int, place_bits: int) -> float:
    """The chance that a random map to 2^b places sends m points to different usable
    ones.
    """
    cells = 2**place_bits
    return math.prod(
        max(0, min(places, cells) - i) / cells for i in range(group_points)
    )


def _place_bits(group_points: int, places: int) -> int:
    """The b with the larger chance: 2^b is `places` rounded up or down to a power of
    two.
    """
    up = (places - 1).bit_length()
    return max(
        (up, max(0, up - 1)), key=lambda bits: hash_chance(group_points, places, bits)
    )


def largest_group(
    num_classes: int,
    word_bits: int = EXACT_BITS,
    width: int = LEAST_WIDTH,
    chance: float = 1e-3,
) -> int:
    """The most points for which one in 1 / chance hash constants works, 0 < chance <=
    1.

    >>> largest_group(num_classes=10), largest_group(10, width=7)
    (11, 17)
    """
    most = places(num_classes, word_bits, width)
    return sum(
        hash_chance(m, most, _place_bits(m, most)) >= chance for m in range(1, most + 1)
    )


def check_group(
    group_points: int,
    num_classes: int,
    word_bits: int = EXACT_BITS,
    width: int = LEAST_WIDTH,
) -> None:
    """Raises ValueError unless m labels fit into the words of a group, and a search can
    place them.

    A hash constant must work for a group with a chance of at least LEAST_HASH_CHANCE.
    """
    if check_whole("word_bits", word_bits, LEAST_WORD_BITS) > EXACT_BITS:
        raise ValueError(f"word_bits must be at most {EXACT_BITS}, got {word_bits}")
    most = places(num_classes, word_bits, check_whole("width", width, LEAST_WIDTH))
    if check_whole("group_points", group_points) > most:
        raise ValueError(
            f"a group holds {most} labels of {num_classes} classes, got group_points"
            f" {group_points}"
        )
    chance = hash_chance(group_points, most, _place_bits(group_points, most))
    if chance < LEAST_HASH_CHANCE:
        largest = largest_group(num_classes, word_bits, width, LEAST_HASH_CHANCE)
        raise ValueError(
            f"one in {1 / chance:.2g} hash constants works for a group of"
            f" {group_points}, which is too long a search: group_points may be at most"
            f" {largest}"
        )


def _project_to_line(x, rng, word_bits: int) -> tuple[np.ndarray, np.ndarray, int]:
    """Integers a, f64[d]; distinct t = x a, i64[n]; a bound on all partial sums of x
    a.
    """
    largest = max(1, int(largest_entry(x)))
    bits = max(1, int(len(x) ** 2 // largest).bit_length())
    # Even the largest a leaves room for the shift of t to 0 and for twice the larger
    # modulus.
    most_bits = (2 ** (word_bits - 4) // (largest * x.shape[1])).bit_length() - 1
    for _ in range(PROJECTION_DRAWS if most_bits >= 0 else 0):
        most = 2 ** min(bits, most_bits)
        a = rng.integers(-most, most, x.shape[1], endpoint=True)
        size = int(np.abs(a).sum()) * largest
        batches = np.split(x, range(BATCH_EXAMPLES, len(x), BATCH_EXAMPLES))
        t = np.concatenate([batch.astype(float) @ a for batch in batches])
        if len(np.unique(t)) == len(t):
            return a.astype(float), t.astype(np.int64), size
        bits += 1
    raise PrecisionError(
        f"inputs up to {largest} project beyond 2^{word_bits - 4} or coincide: scale"
        " them down"
    )


def _hash_places(z, constants, small: int, large: int, doublings: int, place_bits: int):
    """Rounds of ``z <- 2^L ((z mod M) + c) mod M'`` from z = t, then ``floor(2^b z /
    M')``: i64.
    """
    for _ in range(HASH_ROUNDS):
        z = ((z - small * (z >= small) + constants) << doublings) % large
    return (z << place_bits) // large


def _find_constants(
    t, hashing: tuple[int, int, int, int], most: int, rng
) -> np.ndarray:
    """For each row of t, i64[G, m], a constant that sends it to different places:
    i64[G].
    """
    constants, left = np.zeros(len(t), np.int64), np.arange(len(t))
    for _ in range(SEARCH_DRAWS):
        draws = max(1, SEARCH_HASHES // (len(left) * t.shape[1]))
        drawn = rng.integers(0, hashing[0], (len(left), draws))
        hit = _hash_places(t[left][:, None], drawn[:, :, None], *hashing)
        taken = np.bitwise_count(np.bitwise_or.reduce(1 << hit, axis=2))
        good = (taken == t.shape[1]) & (hit.max(2) < most)
        found = good.any(1)
        constants[left[found]] = drawn[found, good[found].argmax(1)]
        left = left[~found]
        if not len(left):
            return constants
    raise ValueError(
        f"no hash constant found for {len(left)} of {len(t)} groups: choose smaller"
        " groups"
    )


def _block(width: int, *units) -> tuple[np.ndarray, ...]:
    """U, V, s of a block from its units: (channels read, bias, channels written)."""
    U, V, s = np.zeros((width, width)), np.zeros((width, width)), np.zeros(width)
    for i, (reads, s[i], writes) in enumerate(units):
        for channel, weight in reads.items():
            U[i, channel] = weight
        for channel, weight in writes.items():
            V[channel, i] = weight
    return U, V, s


_FORGET = ({STEP: 1}, 0, {STEP: -1})
# relu(t - T + 1) is at least 1 for t >= T, else 0; unit 1, relu(1 - step), makes the
# jumps.
_SELECT: tuple = ({POINT: 1}, 1, {STEP: 1}), ({STEP: -1}, 1, {}), _FORGET


def _if_at_least(reads: dict, threshold: int, jumps: dict, *units) -> list:
    """Units of two blocks that add `jumps` to h if <reads, h> >= threshold; `units`
    always act.
    """
    measure = [(reads, 1 - threshold, {STEP: 1})]
    below = ({STEP: -1}, 1, {channel: -jump for channel, jump in jumps.items()})
    return [measure, [below, _FORGET, ({}, 1, jumps), *units]]


def _stages(
    small: int,
    large: int,
    doublings: int,
    place_bits: int,
    base: int,
    digits: int,
    width: int,
) -> tuple[Repeated, ...]:
    """Hashes h[POINT] to h[PLACE], and extracts the digit of the words there to
    h[LABEL].
    """

    def repeated(repeats: int, *blocks) -> Repeated:
        stacked = map(
            np.stack, zip(*(_block(width, *units) for units in blocks), strict=True)
        )
        return Repeated((tuple(stacked),), repeats)

    back = {POINT: -large}
    double, add = ({POINT: 1}, 0, {POINT: 1}), ({CONSTANT: 1}, 0, {POINT: 1})
    reduce = _if_at_least({POINT: 1}, small, {POINT: -small})
    shift = _if_at_least({POINT: 1, CONSTANT: 1}, large, back, add)
    doubling = _if_at_least({POINT: 2}, large, back, double)
    rounds = (repeated(1, *reduce, *shift), repeated(doublings, *doubling))
    double_both = double, ({PLACE: 1}, 0, {PLACE: 1})
    clear = ({CONSTANT: 1}, 0, {CONSTANT: -1})
    next_bit = _if_at_least({POINT: 2}, large, {**back, PLACE: 1}, *double_both)
    place = (repeated(place_bits, *next_bit), repeated(1, [clear]))
    # The first digit of the word is counted in h[CONSTANT]; it is the label if h[PLACE]
    # is 0.
    top = base ** (digits - 1)
    distance = [({PLACE: 1}, 0, {STEP: 1}), ({PLACE: -1}, 0, {STEP: 1})]
    chosen = ({CONSTANT: 1, STEP: -base}, 0, {LABEL: 1})
    following: tuple = ({}, 1, {PLACE: -1}), ({WORD: 1}, 0, {WORD: base - 1})
    count = _if_at_least({WORD: 1}, top, {WORD: -top, CONSTANT: 1})
    add_digit = [chosen, clear, _FORGET, *following]
    extract: tuple = (repeated(base - 1, *count), repeated(1, distance, add_digit))
    repeats = HASH_ROUNDS, 1, digits
    if width > LEAST_WIDTH:
        # A word is 0 once all its digits are read; then the others move up.
        pairs = itertools.pairwise(_word_channels(width))
        move_up = [({after: 1}, 0, {here: 1, after: -1}) for here, after in pairs]
        extract = Repeated(extract, digits), repeated(1, move_up)
        repeats = HASH_ROUNDS, 1, width - LEAST_WIDTH + 1
    return tuple(map(Repeated, (rounds, place, extract), repeats))


def _one_hot(r: int, width: int) -> tuple[np.ndarray, ...]:
    """Output j is relu(y - j + 1) - 2 relu(y - j) + relu(y - j - 1), from r + 2 shared
    units.
    """
    U = np.zeros((r + 2, width))
    U[:, LABEL] = 1
    V = np.eye(r, r + 2) - 2 * np.eye(r, r + 2, 1) + np.eye(r, r + 2, 2)
    return U, V, -np.arange(-1.0, r + 1)
