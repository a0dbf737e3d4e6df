"""Fewer parameters than examples: a word of many bits holds the labels of neighbours.

Integer inputs are projected to a line, t = <a, x>, and groups of m neighbours share
three numbers: a threshold, a word, whose digits in base r are the labels, and a
constant, which hashes the points to different digits. Blocks of width 6 select a
point's word and constant, hash t to the place of a digit, and extract it. With more
channels a group has more words, which makes up for fewer bits. All numbers are
integers, exact in float64. Proof, count and earlier work: docs/theory/memorize.md
(E11, E12).
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from identity_matters.array_types import Array, jit_of_array_trees
from identity_matters.memorize.digit_reader import (
    DIGIT,
    HASH,
    LABEL,
    PLACE,
    SCRATCH,
    WORD,
    blocks_that_add_where,
    digit_reader,
)
from identity_matters.memorize.exact_arithmetic import (
    EXACT_BITS,
    ExactCertificate,
    exact_certificate,
)
from identity_matters.memorize.examples import (
    check_key,
    random_generator,
)
from identity_matters.memorize.hashing import (
    HASH_ROUNDS,
    LEAST_WIDTH,
    Hash,
    best_place_bits,
    check_group,
    draw_hash,
    find_constants,
    places_per_group,
    slots,
)
from identity_matters.memorize.machine import (
    Block,
    Repeated,
    Unit,
    block,
    clear,
    double,
    one_hot,
    run,
)
from identity_matters.memorize.network import (
    check_kind,
    check_rows,
    matmul,
    transform,
)
from identity_matters.memorize.whole_numbers import (
    Line,
    check_network_fits,
    dense_input_maps,
    doubling_ranges,
    first_separating_line,
    largest_whole_number,
    whole_examples,
)

# The point is hashed in register POINT, with its group's constant in CONSTANT. That is
# free once the point is hashed; then it counts the first digit of the word. Registers
# from LEAST_WIDTH on hold the further words of the group.
POINT = HASH
CONSTANT = DIGIT
# The units of the selection's block that the numbers of a group change.
_MEASURE, _INCREMENT = range(2)


class FewNumbers(NamedTuple):
    """The network of width k for G groups; each parameter is an array entry.

    Attributes:
      input_map: f64[1, d], a.
      start: f64[k], added to the input (a x, 0, ..., 0).
      thresholds: f64[G]; block g of the selection measures t >= threshold.
      word_increments: f64[G, k - 5], one number for each word of a group, added where t
        is below the threshold of the block before.
      constant_increments: f64[G], the same for the constant.
      select: the block of the selection, which all groups share, without their numbers.
      stages: the hash, the place and the extraction.
      output: the last block, from the label to its one-hot vector.
    """

    input_map: jax.Array
    start: jax.Array
    thresholds: jax.Array
    word_increments: jax.Array
    constant_increments: jax.Array
    select: Block
    stages: tuple[Repeated, ...]
    output: Block


@jit_of_array_trees
def forward(network: FewNumbers, x: Array) -> jax.Array:
    """The whole network, block after block: f64[n, d] to f64[n, r].

    ValueError for x of another shape, TypeError for another network.
    """
    check_kind(network, FewNumbers)
    check_rows(x, network.input_map.shape[1])
    width = len(network.start)
    t = matmul(network.input_map, x.T)[0]
    h = jnp.broadcast_to(network.start[:, None], (width, len(x))).at[POINT].add(t)

    def select(h, group_numbers):
        threshold, words, constant = group_numbers
        with_numbers = _with_numbers(
            network.select, threshold=threshold, words=words, constant=constant
        )
        return run(h, with_numbers), None

    groups = (
        network.thresholds,
        network.word_increments,
        network.constant_increments,
    )
    h, _ = jax.lax.scan(select, h, groups)
    for stage in network.stages:
        h = run(h, stage)
    last = network.output
    return transform(h, U=last.U, V=last.V, s=last.s).T


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
    """A residual network of about d + 3 n / m parameters: ``x[i]`` to one-hot ``y[i]``.

    >>> x = np.arange(40).reshape(20, 2) ** 2
    >>> y = np.arange(20) % 3
    >>> network, certificate = memorize_with_few_numbers(x, y, group_points=5)
    >>> forward(network, x.astype(float)).argmax(1).tolist()[:6], certificate.holds
    ([0, 1, 2, 0, 1, 2], True)

    Args:
      x: whole numbers [n, d] of any type.
      y: integer[n], labels in 0 ... r - 1.
      num_classes: r, or None for the largest label plus one.
      group_points: m, at most `hashing.places_per_group`. The search grows fast with
        m: see `hashing.largest_group`.
      word_bits: b <= 53; no parameter or intermediate value may exceed 2^b.
      width: k >= 6; a group has k - 5 words, and so k - 3 numbers.
      key: typed PRNG key; ``jax.random.key(0)`` if None.
    Returns:
      The network, and whether it computes without rounding.
    Raises:
      ValueError: bad input, or no constant is found for a group.
      PrecisionError: a ValueError; the integers that the inputs need exceed 2^b.
      TypeError: JAX has 64-bit types switched off.
    """
    key = check_key(key)
    points, labels, r = whole_examples(x, y, num_classes)
    check_group(group_points, r, word_bits, width)
    # At most a group for each point: its threshold, its constant, and its words.
    check_network_fits(points, num_classes=r, width=width, numbers_per_point=width - 3)
    rng = random_generator(key)
    layout = _word_layout(r, word_bits, width)

    line = _project_to_line(points, rng, word_bits)
    groups = _group_neighbours(line, labels, group_points)
    shared_hash = draw_hash(
        largest_point=int(groups.t[-1]),
        place_bits=best_place_bits(group_points, layout.num_places),
        word_bits=word_bits,
        rng=rng,
    )
    constants = find_constants(
        groups.t,
        group_points=group_points,
        num_places=layout.num_places,
        shared_hash=shared_hash,
        rng=rng,
    )
    words = _pack_labels(groups, constants, shared_hash, layout)

    start = _start(line, last_words=words[-1], last_constant=constants[-1])
    stages = (
        _hash(shared_hash, width),
        _find_place(shared_hash, width),
        _extract(layout, width),
    )
    network = FewNumbers(
        input_map=jnp.asarray(line.input_map.entries[None], float),
        start=jnp.asarray(start),
        thresholds=jnp.asarray(_thresholds(groups, shared_hash), float),
        word_increments=jnp.asarray(_increments(words), float),
        constant_increments=jnp.asarray(_increments(constants), float),
        select=_select(width),
        # The numbers of repeats become arrays, too.
        stages=jax.tree.map(jnp.asarray, stages),
        output=one_hot(r, width, LABEL),
    )
    largest = _largest_integer(line, shared_hash, layout, num_classes=r)
    return network, exact_certificate(largest, word_bits)


# Step 1: project to a line.


def _project_to_line(x: np.ndarray, rng: np.random.Generator, word_bits: int) -> Line:
    """The rows of x on a line, by random whole numbers a that are as small as possible.

    Raises PrecisionError if the sums would be too large, or no such a is found.
    """
    n, d = x.shape
    largest = largest_whole_number(x)
    # Even for the largest a, the shift of t to 0
    # and twice the modulus M' are at most 2^word_bits.
    line_bits = word_bits - 4
    largest_range = _power_of_two_up_to(2**line_bits // (largest * d))
    # With n^2 values on the line, n points are often distinct.
    first_range = max(2, 2 ** (n**2 // largest).bit_length())
    input_maps = dense_input_maps(d, doubling_ranges(first_range, largest_range), rng)
    return first_separating_line(x, input_maps, line_bits=line_bits)


def _power_of_two_up_to(number: int) -> int:
    """The largest power of two that is at most `number`; 0 for 0."""
    return 2 ** (number.bit_length() - 1) if number else 0


# Step 2: group neighbours.


class _Groups(NamedTuple):
    """The points in increasing order, moved to begin at 0, in groups of neighbours.

    Attributes:
      t: i64[n], increasing from 0.
      labels: int[n].
      group: i64[n], the number of the group of each point.
      first_points: i64[G - 1], the first point of each of the groups G, G - 1, ..., 2.
    """

    t: np.ndarray
    labels: np.ndarray
    group: np.ndarray
    first_points: np.ndarray


def _group_neighbours(line: Line, labels: np.ndarray, group_points: int) -> _Groups:
    """Each `group_points` neighbours are a group; the last group may have fewer."""
    order = np.argsort(line.t)
    t = line.t[order] - line.t.min()
    return _Groups(
        t=t,
        labels=labels[order],
        group=np.arange(len(t)) // group_points,
        first_points=t[group_points::group_points][::-1],
    )


# Step 3 is `hashing.find_constants`. Step 4: write the labels into words.


class _WordLayout(NamedTuple):
    """How the labels of a group lie in its words.

    Attributes:
      base: of the digits, r, or 2 if r = 1.
      digits: S, in a word; the first is the most significant one.
      words: k - 5, of a group.
      num_places: how many digits of a group are used, at most.
    """

    base: int
    digits: int
    words: int
    num_places: int


def _word_layout(num_classes: int, word_bits: int, width: int) -> _WordLayout:
    """The layout in words of `word_bits` bits, for a network of this width."""
    return _WordLayout(
        base=max(2, num_classes),
        digits=slots(num_classes, word_bits),
        words=width - LEAST_WIDTH + 1,
        num_places=places_per_group(num_classes, word_bits, width),
    )


def _pack_labels(
    groups: _Groups, constants: np.ndarray, shared_hash: Hash, layout: _WordLayout
) -> np.ndarray:
    """The words, i64[G, k - 5], with each point's label as the digit at its place."""
    place_of_point = shared_hash.places(groups.t, constants[groups.group])
    # In which word of its group a place is, and at which digit of that word.
    word_of_point, digit_of_point = np.divmod(place_of_point, layout.digits)
    value_of_digit = layout.base ** (layout.digits - 1 - digit_of_point)
    words = np.zeros((len(constants), layout.words), np.int64)
    np.add.at(words, (groups.group, word_of_point), groups.labels * value_of_digit)
    return words


# Step 5: assemble the network. At first each point has the words and the constant of
# the last group; the selection changes them, from there down, to those of its own.


def _word_channels(width: int) -> np.ndarray:
    """The registers of a group's words, the first to be read first."""
    return np.array([WORD, *range(LEAST_WIDTH, width)])


def _start(line: Line, last_words: np.ndarray, last_constant: int) -> np.ndarray:
    """What is added to the input (t, 0, ..., 0): f64[k]; it moves t to begin at 0."""
    width = LEAST_WIDTH - 1 + len(last_words)
    start = np.zeros(width)
    start[POINT] = -int(line.t.min())
    start[CONSTANT] = last_constant
    start[_word_channels(width)] = last_words
    return start


def _thresholds(groups: _Groups, shared_hash: Hash) -> np.ndarray:
    """The threshold T of each block of the selection, which measures t >= T: i64[G].

    The next block adds its increments where t is below T. No block follows the last
    one, which must measure 0 everywhere: its T is M', which is above all points.
    """
    return np.append(groups.first_points, shared_hash.large)


def _increments(group_values: np.ndarray) -> np.ndarray:
    """What each block of the selection adds to a value of the group, [G, ...].

    From the last group down, each adds the difference to the group before, and the sum
    telescopes. A block adds where t is below the threshold that the block before has
    measured. Before the first there is none, so it adds 0.
    """
    return -np.diff(group_values, axis=0, append=group_values[-1:])[::-1]


def _select(width: int) -> Block:
    """The shared block of the selection, without the numbers of a group.

    The unit `_MEASURE` is relu(t - T + 1) once it has the threshold T: at least 1 for
    t >= T, else 0. The unit `_INCREMENT`, 1 where scratch is 0, is to write the
    increments. See `_with_numbers`.
    """
    measure = Unit(reads={POINT: 1}, bias=1, writes={SCRATCH: 1})
    increment = Unit(reads={SCRATCH: -1}, bias=1, writes={})
    # In the order of `_MEASURE` and `_INCREMENT`.
    return block(width, [measure, increment, clear(SCRATCH)])


def _with_numbers(
    select: Block, *, threshold: jax.Array, words: jax.Array, constant: jax.Array
) -> Block:
    """The block of `_select` with the numbers of one group in it.

    Args:
      select: for width k.
      threshold: f64[].
      words: f64[k - 5], the increments of the words.
      constant: f64[], the increment of the constant.
    """
    width = len(select.V)
    V = select.V.at[_word_channels(width), _INCREMENT].set(words)
    V = V.at[CONSTANT, _INCREMENT].set(constant)
    s = select.s.at[_MEASURE].add(-threshold)
    return Block(U=select.U, V=V, s=s)


# `_hash` and `_find_place` are `Hash.places` in blocks. The search for constants needs
# it in NumPy, for millions of constants. A test compares the two number for number.
#
# Each part and each stage stores how often it is repeated, even if that is once. These
# numbers are among those that (E11) counts.


def _hash(shared_hash: Hash, width: int) -> Repeated:
    """z <- 2^L ((z mod M) + c) mod M' in register POINT, HASH_ROUNDS times."""
    fold = blocks_that_add_where(
        width, {POINT: 1}, shared_hash.small, {POINT: -shared_hash.small}
    )
    add_constant = blocks_that_add_where(
        width,
        {POINT: 1, CONSTANT: 1},
        shared_hash.large,
        {POINT: -shared_hash.large},
        Unit(reads={CONSTANT: 1}, bias=0, writes={POINT: 1}),
    )
    doubling = blocks_that_add_where(
        width, {POINT: 2}, shared_hash.large, {POINT: -shared_hash.large}, double(POINT)
    )
    return Repeated(
        parts=(
            Repeated((*fold, *add_constant), repeats=1),
            Repeated(doubling, repeats=shared_hash.doublings),
        ),
        repeats=HASH_ROUNDS,
    )


def _find_place(shared_hash: Hash, width: int) -> Repeated:
    """p <- floor(2^b z / M') in register PLACE, by b doublings; then CONSTANT is 0.

    Where doubling z brings it to M' or above, the next bit of the quotient is 1.
    """
    next_bit = blocks_that_add_where(
        width,
        {POINT: 2},
        shared_hash.large,
        {POINT: -shared_hash.large, PLACE: 1},
        double(POINT),
        double(PLACE),
    )
    return Repeated(
        parts=(
            Repeated(next_bit, repeats=shared_hash.place_bits),
            Repeated((block(width, [clear(CONSTANT)]),), repeats=1),
        ),
        repeats=1,
    )


def _extract(layout: _WordLayout, width: int) -> Repeated:
    """Adds the digit at the place p of the words to register LABEL.

    A word is 0 once all its digits are read; then the next one moves up.
    """
    reader = digit_reader(width, layout.base, layout.digits)
    read_digit = (
        reader.take_digit,
        Repeated((reader.distance, reader.add_digit), repeats=1),
    )
    if layout.words == 1:
        return Repeated(read_digit, repeats=layout.digits)
    move_up = [
        Unit(reads={word: 1}, bias=0, writes={word_before: 1, word: -1})
        for word_before, word in itertools.pairwise(_word_channels(width))
    ]
    return Repeated(
        parts=(
            Repeated(read_digit, repeats=layout.digits),
            Repeated((block(width, move_up),), repeats=1),
        ),
        repeats=layout.words,
    )


def _largest_integer(
    line: Line, shared_hash: Hash, layout: _WordLayout, num_classes: int
) -> int:
    """A bound on all numbers, terms and partial sums (E12)."""
    shift = abs(int(line.t.min()))
    return max(
        line.largest_sum + shift,
        2 * shared_hash.large,
        layout.base**layout.digits,
        # The subtracted r |p - j|, for places and rounds up to W S.
        2 * num_classes * layout.digits * layout.words,
    )
