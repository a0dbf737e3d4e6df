"""Memorisation near the information floor: about d + 1.24 n / S numbers.

Each number holds S labels. Integer inputs are projected to a line, t = <a, x>, and t is
hashed to three cells of a table of about 1.24 n digits in base r. The label is the sum
of the three digits modulo r: `peeling` fills the table. S digits are packed into a
word, and the words lie at equal intervals of the hash, so that nothing but the words
themselves is stored for the points. The network has width 6, and three passes of the
same 14 shared blocks:

    hash     z <- 2^L (z mod M) mod M', a few times
    place    p <- floor(z / (lambda W)), z <- z mod lambda W      which of S digits
    select   w <- word number floor(z / lambda), of W             a block for each word
    extract  y <- y + digit p of w, modulo r

All numbers are integers, exact in float64. Proof, count and earlier work:
docs/theory/memorize.md (E14, E15).
"""

import math
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from identity_matters.array_types import Array, jit_of_array_trees
from identity_matters.checks import check_whole
from identity_matters.memorize import peeling
from identity_matters.memorize.digit_reader import (
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
from identity_matters.memorize.machine import (
    Block,
    Repeated,
    Sweep,
    Unit,
    add_where,
    always,
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
    InputMap,
    Line,
    check_network_fits,
    dense_input_maps,
    doubling_ranges,
    first_separating_line,
    largest_whole_number,
    whole_examples,
)

WIDTH = 6
# A label is the sum of this many digits, each of which takes one pass.
PASSES = 3
# Rounds of the hash in each pass, and doublings in a round: with fewer, points at equal
# distances would be spread too evenly, and no cell would lie in one edge alone.
HASH_ROUNDS = 6
DOUBLINGS = 20
# The modulus M' has this many bits, so that 2 M' is exact, too.
MODULUS_BITS = 51
# M is a random share of M', well within 1/2 and 1.
LEAST_MODULUS_SHARE = 0.55
LARGEST_MODULUS_SHARE = 0.85
# t is below 2^49, and so below M.
LINE_BITS = 49
# Cells for each point: above the threshold of peeling, 1.222, by more than it
# fluctuates. The table grows by a step after each failure.
CELLS_PER_POINT = 1.23
GROWTH = 1.004
TABLE_DRAWS = 400


class Retrieval(NamedTuple):
    """The network of width 6 for inputs of d = d1 d2 entries.

    Each number that it stores is an array entry. A_0 is the row ``a = kron(rows,
    columns)``: any vector if d1 = 1, else one that d1 + d2 numbers make.

    Attributes:
      rows: f64[d1].
      columns: f64[d2].
      start: f64[], added to <a, x>: makes t positive.
      passes: the hash, the place, the selection and the extraction, three times.
      output: the last block, from the label to its one-hot vector.
    """

    rows: jax.Array
    columns: jax.Array
    start: jax.Array
    passes: Repeated
    output: Block

    @property
    def input_map(self) -> jax.Array:
        """A_0, f64[1, d], written out."""
        return jnp.kron(self.rows, self.columns)[None]


@jit_of_array_trees
def forward(network: Retrieval, x: Array) -> jax.Array:
    """The whole network, block after block: f64[n, d] to f64[n, r].

    ValueError for x of another shape, TypeError for another network.
    """
    check_kind(network, Retrieval)
    check_rows(x, len(network.rows) * len(network.columns))
    grid = jnp.reshape(x, (-1, len(network.rows), len(network.columns)))
    t = network.start + matmul(matmul(grid, network.columns), network.rows)
    h = jnp.zeros((WIDTH, len(x)), t.dtype).at[HASH].set(t)
    last = network.output
    return transform(run(h, network.passes), U=last.U, V=last.V, s=last.s).T


def stored_numbers(network: Retrieval) -> int:
    """How many numbers the network stores: all entries of all arrays, zeros, too."""
    return sum(int(np.size(leaf)) for leaf in jax.tree.leaves(network))


def word_numbers(network: Retrieval) -> int:
    """How many of them are words of the table."""
    sweep = next(part for part in network.passes.parts if isinstance(part, Sweep))
    return len(sweep.numbers) - 1  # without the zero before the first word


class Layout(NamedTuple):
    """How the table lies in the words and in the range of the hash.

    Attributes:
      base: of the digits, r, or 2 if r = 1.
      digits: S, in a word.
      words: W.
      interval: lambda, the length of the range of the hash of each cell.
      small: M, the first modulus of the hash.
      large: M', the second one.
    """

    base: int
    digits: int
    words: int
    interval: int
    small: int
    large: int

    @property
    def offset(self) -> int:
        """A word is its digits less this: so it has both signs, and one bit more."""
        return self.base**self.digits // 2


def digits_per_word(num_classes: int) -> int:
    """S, how many labels a word of 53 bits and a sign holds.

    S is the largest number for which the extraction is exact: r^S / 2 and (r - 1)
    r^(S - 1) + 1 are at most 2^53. ValueError unless r is a positive whole number.

    >>> [digits_per_word(r) for r in (2, 10, 1000)]
    [53, 16, 5]
    """
    base = max(2, check_whole("num_classes", num_classes))
    exact = 2**EXACT_BITS
    digits = 1
    while (base - 1) * base**digits + 1 <= exact and base ** (digits + 1) <= 2 * exact:
        digits += 1
    return digits


def memorize_by_retrieval(
    x: ArrayLike,
    y: ArrayLike,
    num_classes: int | None = None,
    *,
    factored_input_map: bool = False,
    key: jax.Array | None = None,
) -> tuple[Retrieval, ExactCertificate]:
    """A residual network of about d + 1.24 n / S numbers: ``x[i]`` to one-hot ``y[i]``.

    >>> x = np.arange(600).reshape(300, 2) ** 2
    >>> network, certificate = memorize_by_retrieval(x, np.arange(300) % 3)
    >>> forward(network, x.astype(float)).argmax(1).tolist()[:6], certificate.holds
    ([0, 1, 2, 0, 1, 2], True)

    Args:
      x: whole numbers [n, d] of any type.
      y: integer[n], labels in 0 ... r - 1.
      num_classes: r, or None for the largest label plus one.
      factored_input_map: take a = kron(b, c), which needs d1 + d2 instead of d = d1 d2
        numbers.
      key: typed PRNG key; ``jax.random.key(0)`` if None.
    Returns:
      The network, and whether it computes without rounding.
    Raises:
      ValueError: bad input, too many classes for the memory, or no table was found.
      PrecisionError: a ValueError; inputs are so large that projections coincide below
        2^49.
      TypeError: JAX has 64-bit types switched off.
    """
    key = check_key(key)
    points, labels, r = whole_examples(x, y, num_classes)
    check_network_fits(points, num_classes=r, width=WIDTH, numbers_per_point=1)
    rng = random_generator(key)
    line = _project_to_line(points, factored_input_map, rng)
    # The line is moved, so that the least t is 1.
    start = 1 - int(line.t.min())
    layout, table = _fill_table(line.t + start, labels, num_classes=r, rng=rng)
    network = Retrieval(
        rows=jnp.asarray(line.input_map.rows, float),
        columns=jnp.asarray(line.input_map.columns, float),
        start=jnp.asarray(float(start)),
        passes=_passes(layout, _words(table, layout)),
        output=one_hot(r, WIDTH, LABEL),
    )
    largest = max(line.largest_sum + abs(start), _largest_integer(layout))
    return network, exact_certificate(largest)


# Step 1: project to a line.


def _project_to_line(x: np.ndarray, factored: bool, rng: np.random.Generator) -> Line:
    """The rows of x on a line, by random whole numbers from as small a range as works.

    Raises PrecisionError if no range up to the largest one tells the rows apart.
    """
    n, features = x.shape
    largest = largest_whole_number(x)
    # Half of the range of t, which is moved by up to as much, to begin at 1.
    largest_range = 2 ** (LINE_BITS - 1) // (largest * features)
    # With n^2 values on the line, n points are often distinct.
    first_range = max(2, n**2 // largest)
    num_rows = _largest_factor(features) if factored else 1
    if num_rows == 1:
        input_maps = dense_input_maps(
            features, doubling_ranges(first_range, largest_range), rng
        )
    else:
        # An entry of a is a product of two numbers, each from a range of its own.
        ranges = doubling_ranges(math.isqrt(first_range) + 1, math.isqrt(largest_range))
        input_maps = _factored_input_maps(num_rows, features // num_rows, ranges, rng)
    return first_separating_line(x, input_maps, line_bits=LINE_BITS)


def _factored_input_maps(
    num_rows: int, num_columns: int, ranges: Iterable[int], rng: np.random.Generator
) -> Iterator[InputMap]:
    """For each range, a map whose rows and columns are random numbers up to it in size.

    The rows are positive: a 0 among them would ignore d2 entries of all inputs.
    """
    for largest in ranges:
        yield InputMap(
            rows=rng.integers(1, largest, num_rows, endpoint=True),
            columns=rng.integers(-largest, largest, num_columns, endpoint=True),
        )


def _largest_factor(number: int) -> int:
    """The largest factor of `number` up to its square root.

    >>> _largest_factor(3072), _largest_factor(7)
    (48, 1)
    """
    return max(f for f in range(1, math.isqrt(number) + 1) if number % f == 0)


# Step 2: fill a table of digits.


def _fill_table(
    t: np.ndarray, labels: np.ndarray, *, num_classes: int, rng: np.random.Generator
) -> tuple[Layout, np.ndarray]:
    """A layout, and a table, i64[W S], that gives the points t, i64[n], their labels.

    Raises ValueError if none is found.
    """
    base = max(2, num_classes)
    digits = digits_per_word(num_classes)
    # At least a cell for each of the three digits of one point.
    cells = max(PASSES, math.ceil(CELLS_PER_POINT * len(t)))
    for _ in range(TABLE_DRAWS):
        words = -(-cells // digits)
        layout = _draw_layout(base=base, digits=digits, words=words, rng=rng)
        table_size = words * digits
        edges = edge_cells(t, layout)
        rounds = peeling.peel(edges, table_size)
        if rounds is not None:
            table = peeling.fill(
                rounds, edges, labels, table_size=table_size, modulus=base
            )
            return layout, table
        cells = max(cells + 1, math.ceil(GROWTH * cells))
    raise ValueError(
        f"no table found for {len(t)} points in {TABLE_DRAWS} draws: try another key"
    )


def _draw_layout(
    base: int, digits: int, words: int, rng: np.random.Generator
) -> Layout:
    """A layout with random moduli."""
    # Odd, so that doubling loses nothing.
    large = 2 * int(rng.integers(2 ** (MODULUS_BITS - 2), 2 ** (MODULUS_BITS - 1))) + 1
    small = int(large * rng.uniform(LEAST_MODULUS_SHARE, LARGEST_MODULUS_SHARE))
    return Layout(
        base=base,
        digits=digits,
        words=words,
        interval=-(-large // (digits * words)),
        small=small,
        large=large,
    )


def _words(table: np.ndarray, layout: Layout) -> np.ndarray:
    """The table, i64[W S], digit by digit, in words of both signs: i64[W]."""
    words = np.full(layout.words, -layout.offset, np.int64)
    for place, digit_of_word in enumerate(table.reshape(layout.digits, layout.words)):
        words += digit_of_word * layout.base ** (layout.digits - 1 - place)
    return words


def _largest_integer(layout: Layout) -> int:
    """A bound on all numbers and sums of the passes."""
    top = layout.base ** (layout.digits - 1)
    return max(
        2 * layout.large,
        # The sweep moves z below 0 by one interval for each word.
        2 * layout.interval * (layout.words + 1),
        layout.base**layout.digits - layout.offset,
        (layout.base - 1) * top + 1,
        2 * layout.base * layout.digits,
    )


# Step 3: the hash and the place, each in NumPy and, next to it, in blocks. Step 2 needs
# them in NumPy: it tries tables before there is a network. A test compares the two
# number for number.


def edge_cells(t: np.ndarray, layout: Layout) -> np.ndarray:
    """The cells of the points t, i64[n], as the network finds them: i64[n, 3]."""
    z = t
    cells = []
    for _ in range(PASSES):
        z = hash_numbers(z, layout)
        place, z = place_and_rest(z, layout)
        word = z // layout.interval
        cells.append(place * layout.words + word)
    return np.stack(cells, axis=1)


def hash_numbers(z: np.ndarray, layout: Layout) -> np.ndarray:
    """z <- 2^L (z mod M) mod M', HASH_ROUNDS times; z is below 2 M: i64[n].

    `_hash_blocks` does the same, step for step.
    """
    for _ in range(HASH_ROUNDS):
        z = _subtract_once(z, layout.small)
        for _ in range(DOUBLINGS):
            z = _subtract_once(2 * z, layout.large)
    return z


def _subtract_once(z: np.ndarray, modulus: int) -> np.ndarray:
    """z mod `modulus` for z from 0 to below twice the modulus."""
    return np.where(z >= modulus, z - modulus, z)


def _hash_blocks(layout: Layout) -> Repeated:
    """`hash_numbers` on register HASH.

    Two blocks take z mod M, and two more, L times, double z and take it mod M'.
    """
    fold = blocks_that_add_where(WIDTH, {HASH: 1}, layout.small, {HASH: -layout.small})
    doubling = blocks_that_add_where(
        WIDTH, {HASH: 2}, layout.large, {HASH: -layout.large}, double(HASH)
    )
    return Repeated(
        parts=(*fold, Repeated(doubling, repeats=DOUBLINGS)), repeats=HASH_ROUNDS
    )


def place_and_rest(z: np.ndarray, layout: Layout) -> tuple[np.ndarray, np.ndarray]:
    """p = floor(z / lambda W) and z mod lambda W, i64[n] each; see `_place_blocks`."""
    return np.divmod(z, layout.interval * layout.words)


def _place_blocks(layout: Layout) -> Repeated:
    """`place_and_rest`, p in register PLACE: S - 1 times, lambda W is taken off z."""
    length = layout.interval * layout.words
    subtract = blocks_that_add_where(
        WIDTH, {HASH: 1}, length, {HASH: -length, PLACE: 1}
    )
    return Repeated(subtract, repeats=layout.digits - 1)


# Step 4: assemble the passes.


def _passes(layout: Layout, words: np.ndarray) -> Repeated:
    """The three passes, each of which adds one digit of the table to the label."""
    parts = (
        _hash_blocks(layout),
        _place_blocks(layout),
        *_select(layout, words),
        *_extract(layout),
    )
    return Repeated(parts, repeats=PASSES)


def _select(layout: Layout, words: np.ndarray) -> tuple[Sweep, Block]:
    """w <- the word in whose interval z lies.

    Before block j of the sweep, z is j intervals less than at first. The block measures
    whether it lies in [0, lambda): then, and only then, the scratch register becomes 0.
    The next block adds the j-th word where it is 0. So the first number that is swept
    belongs to no word.
    """
    template = block(
        WIDTH,
        [
            Unit(reads={SCRATCH: -1}, bias=1, writes={WORD: 1}),
            Unit(reads={HASH: 1}, bias=1 - layout.interval, writes={SCRATCH: 1}),
            Unit(reads={HASH: -1}, bias=0, writes={SCRATCH: 1}),
            clear(SCRATCH),
            always({HASH: -layout.interval}),
        ],
    )
    swept = layout.interval * (layout.words + 1)
    restore = block(WIDTH, [clear(SCRATCH), always({HASH: swept})])
    numbers = np.append(0, words)
    return Sweep(template, jnp.asarray(numbers, float)), restore


def _extract(layout: Layout) -> tuple[Repeated, Block, Block]:
    """y <- y + digit p of w, modulo r; w and p end at 0.

    Each of S rounds reads a digit. Then the label is taken modulo r.
    """
    base = layout.base
    offset = layout.offset
    reader = digit_reader(WIDTH, base, layout.digits, offset)
    read_digit = (reader.take_digit, reader.distance, reader.add_digit)
    rounds = Repeated(read_digit, repeats=layout.digits)
    measure, act = add_where({LABEL: 1}, base, {LABEL: -base}, scratch=SCRATCH)
    # The word is now -offset, and the place not positive: both are set to 0.
    clean = [always({WORD: offset}), Unit(reads={PLACE: -1}, bias=0, writes={PLACE: 1})]
    return rounds, block(WIDTH, [*measure, *clean]), block(WIDTH, act)
