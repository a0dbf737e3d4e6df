"""Memorisation near the information floor: about d + 1.24 n / S numbers, each of S
labels.

Integer inputs are projected to a line, t = <a, x>, and t is hashed to three cells of a
table of about 1.24 n digits in base r. The label is the sum of the three digits modulo
r: `peeling` fills the table. S digits are packed into a word, and the words lie at
equal intervals of the hash, so that nothing but the words themselves is stored for the
points. The network has width 6, and three passes of the same 14 shared blocks:

    hash     z <- 2^L (z mod M) mod M', a few times place    p <- floor(z / (lambda W)),
    z <- z mod lambda W      which of S digits select   w <- word number floor(z /
    lambda), of W             one block for each word extract  y <- y + digit p of w,
    modulo r

All numbers are integers, exact in float64. Proof, count and earlier work:
docs/theory/memorize.md (E14, E15).
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from identity_matters.array_types import Array
from identity_matters.checks import plain_array
from identity_matters.memorize import peeling
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
from identity_matters.memorize.few_numbers import EXACT_BITS, ExactCertificate
from identity_matters.memorize.machine import (
    Block,
    Repeated,
    Sweep,
    Unit,
    add_where,
    always,
    block,
    clear,
    run,
)
from identity_matters.memorize.network import matmul, transform

# The registers: the hash, the selected word, a digit that is counted, the scratch
# register of conditions, the place of the digit in the word, and the label.
HASH, WORD, DIGIT, SCRATCH, PLACE, LABEL = range(6)
WIDTH = 6
PASSES = 3
# Rounds of the hash in each pass, and doublings in a round: with fewer, points at equal
# distances would be spread too evenly, and no cell would lie in one edge alone.
HASH_ROUNDS = 6
DOUBLINGS = 20
# The modulus M' has this many bits, which leaves room for 2 M'; M is a random share of
# it.
MODULUS_BITS = 51
MODULUS_SHARE = 0.55, 0.85
# t is below 2^49, and so below M.
LINE_BITS = 49
# Cells for each point: above the threshold of peeling, 1.222, with room for its
# fluctuations. The table grows by a step after each failure.
CELLS_PER_POINT = 1.23
GROWTH = 1.004
TABLE_DRAWS = 400
PROJECTION_DRAWS = 100


class Retrieval(NamedTuple):
    """The network of width 6 for inputs of d = d1 d2 entries; each number is an array
    entry.

    A_0 is the row a = kron(rows, columns): with d1 = 1 any vector, with others d1 + d2
    numbers.
    """

    rows: jax.Array  # f64[d1]
    columns: jax.Array  # f64[d2]
    start: jax.Array  # f64[], added to <a, x>: makes t positive
    passes: Repeated
    output: tuple[jax.Array, jax.Array, jax.Array]  # U, V, s of the last block

    @property
    def input_map(self) -> jax.Array:
        """A_0, f64[1, d], written out."""
        return jnp.kron(self.rows, self.columns)[None]


@jax.jit
def forward(network: Retrieval, x: Array) -> jax.Array:
    """The whole network, block after block: f64[n, d] to f64[n, r]."""
    grid = jnp.reshape(x, (-1, len(network.rows), len(network.columns)))
    t = network.start + matmul(matmul(grid, network.columns), network.rows)
    h = jnp.zeros((WIDTH, len(x)), t.dtype).at[HASH].set(t)
    U, V, s = network.output
    return transform(run(h, network.passes), U, V, s).T


def stored_numbers(network: Retrieval) -> int:
    """How many numbers the network stores: every entry of every array, zeros
    included.
    """
    return sum(int(np.size(leaf)) for leaf in jax.tree.leaves(network))


def word_numbers(network: Retrieval) -> int:
    """How many of them are words of the table."""
    sweep = next(part for part in network.passes.parts if isinstance(part, Sweep))
    return len(sweep.numbers) - 1  # without the zero before the first word


class Layout(NamedTuple):
    """How the table lies in the words and in the range of the hash.

    Attributes:
      base: r, or 2 if r = 1; digits: S, in a word; words: W.
      interval: lambda, the length of the range of the hash of each cell.
      small, large: M and M', the moduli of the hash.
    """

    base: int
    digits: int
    words: int
    interval: int
    small: int
    large: int

    @property
    def offset(self) -> int:
        """What a word is less than the number with its digits: words have both
        signs.
        """
        return self.base**self.digits // 2


def digits_per_word(num_classes: int) -> int:
    """S, how many labels a word of 53 bits and a sign holds, so that extraction is
    exact.

    r^S / 2 and (r - 1) r^(S - 1) + 1 are at most 2^53.

    >>> [digits_per_word(r) for r in (2, 10, 1000)]
    [53, 16, 5]
    """
    base = max(2, num_classes)
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
    """A residual network of about d + 1.24 n / S numbers that maps ``x[i]`` to one-hot
    ``y[i]``.

    >>> x = np.arange(600).reshape(300, 2) ** 2
    >>> network, certificate = memorize_by_retrieval(x, np.arange(300) % 3)
    >>> forward(network, x.astype(float)).argmax(1).tolist()[:6], certificate.holds
    ([0, 1, 2, 0, 1, 2], True)

    Args:
      x: whole numbers [n, d] of any type; y, num_classes and key are as in `memorize`.
      factored_input_map: take a = kron(b, c), which needs d1 + d2 instead of d = d1 d2
        numbers.
    Raises:
      ValueError: bad input, too many classes for the memory, or no table was found.
      PrecisionError: a ValueError; inputs are so large that projections coincide below
        2^49.
      TypeError: JAX has 64-bit types switched off.
    """
    key = check_key(key)
    x = plain_array("x", x)
    check_dtype(x, np.float64)
    points, labels, r = distinct_examples(x, y, num_classes, np.float64)
    if points.dtype.kind == "f" and not (points == np.rint(points)).all():
        raise ValueError(
            "x must hold whole numbers, as pixels are: multiply x and round"
        )
    numbers = (r + 2) * (r + WIDTH + 1) + points.shape[1] + len(points)
    check_memory(
        WORKING_COPIES * np.dtype(np.float64).itemsize * numbers,
        f"a network of {numbers:.3g} numbers for {len(points)} inputs and {r} classes",
    )
    rng = random_generator(key)
    rows, columns, t, start, largest_sum = _project_to_line(
        points, factored_input_map, rng
    )
    layout, table = _fill_table(t, labels, r, rng)
    network = Retrieval(
        rows=jnp.asarray(rows),
        columns=jnp.asarray(columns),
        start=jnp.asarray(float(start)),
        passes=_passes(layout, _words(table, layout)),
        output=_one_hot(r),
    )
    largest = max(largest_sum, _largest_integer(layout))
    return network, ExactCertificate(largest, largest <= 2**EXACT_BITS)


def _project_to_line(x: np.ndarray, factored: bool, rng: np.random.Generator) -> tuple:
    """Integers b, f64[d1], and c, f64[d2], whose products tell the rows of x apart.

    Returns (b, c, t i64[n] from 1 on, what was added to <a, x>, a bound on all partial
    sums).
    """
    features = x.shape[1]
    largest = max(1, int(largest_entry(x)))
    first = _largest_factor(features) if factored else 1
    # Half of the range: t is moved by up to as much, to begin at 1.
    most_product = 2 ** (LINE_BITS - 1) // (largest * features)
    most_entry = math.isqrt(most_product) if first > 1 else most_product
    wanted = max(2, len(x) ** 2 // largest)
    entry = min(most_entry, math.isqrt(wanted) + 1 if first > 1 else wanted)
    for _ in range(PROJECTION_DRAWS if most_entry else 0):
        rows = rng.integers(1, entry, first, endpoint=True) if first > 1 else np.ones(1)
        columns = rng.integers(-entry, entry, features // first, endpoint=True)
        a = np.kron(rows, columns).astype(np.float64)
        batches = np.split(x, range(BATCH_EXAMPLES, len(x), BATCH_EXAMPLES))
        t = np.concatenate([batch.astype(np.float64) @ a for batch in batches]).astype(
            np.int64
        )
        if len(np.unique(t)) == len(t):
            start = 1 - int(t.min())
            largest_sum = int(np.abs(a).sum()) * largest + abs(start)
            return (
                rows.astype(float),
                columns.astype(float),
                t + start,
                start,
                largest_sum,
            )
        entry = min(most_entry, 2 * entry)
    raise PrecisionError(
        f"inputs up to {largest} project beyond 2^{LINE_BITS} or coincide: scale them"
        " down"
    )


def _largest_factor(number: int) -> int:
    """The largest factor of `number` up to its square root.

    >>> _largest_factor(3072), _largest_factor(7)
    (48, 1)
    """
    return max(f for f in range(1, math.isqrt(number) + 1) if number % f == 0)


def _fill_table(
    t: np.ndarray, labels: np.ndarray, r: int, rng: np.random.Generator
) -> tuple[Layout, np.ndarray]:
    """A layout for the points t, i64[n], and a table, i64[W S], that gives their
    labels.
    """
    digits = digits_per_word(r)
    # At least a cell for each of the three digits of one point.
    cells = max(PASSES, math.ceil(CELLS_PER_POINT * len(t)))
    for _ in range(TABLE_DRAWS):
        layout = _draw_layout(max(2, r), digits, -(-cells // digits), rng)
        edges = edge_cells(t, layout)
        size = layout.words * layout.digits
        rounds = peeling.peel(edges, size)
        if rounds is not None:
            return layout, peeling.fill(rounds, edges, labels, size, max(2, r))
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
    small = int(large * rng.uniform(*MODULUS_SHARE))
    return Layout(
        base=base,
        digits=digits,
        words=words,
        interval=-(-large // (digits * words)),
        small=small,
        large=large,
    )


def edge_cells(t: np.ndarray, layout: Layout) -> np.ndarray:
    """The cells of the points t, i64[n], as the network finds them: i64[n, 3]."""
    z = t
    columns = []
    for _ in range(PASSES):
        for _ in range(HASH_ROUNDS):
            z = np.where(z >= layout.small, z - layout.small, z)
            for _ in range(DOUBLINGS):
                z = 2 * z
                z = np.where(z >= layout.large, z - layout.large, z)
        place, z = np.divmod(z, layout.interval * layout.words)
        columns.append(place * layout.words + z // layout.interval)
    return np.stack(columns, axis=1)


def _words(table: np.ndarray, layout: Layout) -> np.ndarray:
    """The table, i64[W S], digit by digit, in words of both signs: i64[W]."""
    words = np.full(layout.words, -layout.offset, np.int64)
    for place, digits in enumerate(table.reshape(layout.digits, layout.words)):
        words += digits * layout.base ** (layout.digits - 1 - place)
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


def _passes(layout: Layout, words: np.ndarray) -> Repeated:
    """The three passes, each of which adds one digit of the table to the label."""
    parts = (_hash(layout), _place(layout), *_select(layout, words), *_extract(layout))
    return Repeated(parts, PASSES)


def _add_where(
    reads: dict, threshold: int, writes: dict, *also: Unit
) -> tuple[Block, Block]:
    measure, act = add_where(reads, threshold, writes, SCRATCH, also)
    return block(WIDTH, measure), block(WIDTH, act)


def _hash(layout: Layout) -> Repeated:
    """z <- 2^L (z mod M) mod M', HASH_ROUNDS times: two blocks for z mod M, two for a
    doubling.
    """
    fold = _add_where({HASH: 1}, layout.small, {HASH: -layout.small})
    double = Unit(reads={HASH: 1}, bias=0, writes={HASH: 1})
    doubling = _add_where({HASH: 2}, layout.large, {HASH: -layout.large}, double)
    return Repeated((*fold, Repeated(doubling, DOUBLINGS)), HASH_ROUNDS)


def _place(layout: Layout) -> Repeated:
    """p <- floor(z / lambda W) and z <- z mod lambda W, by S - 1 conditional
    subtractions.
    """
    length = layout.interval * layout.words
    return Repeated(
        _add_where({HASH: 1}, length, {HASH: -length, PLACE: 1}), layout.digits - 1
    )


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
    restore = block(
        WIDTH, [clear(SCRATCH), always({HASH: layout.interval * (layout.words + 1)})]
    )
    return Sweep(template, jnp.asarray(np.append(0, words), float)), restore


def _extract(layout: Layout) -> tuple[Repeated, Block, Block]:
    """y <- y + digit p of w, modulo r; w and p end at 0.

    In each of S rounds the first digit of the word is counted and taken away. If p is 0
    it is added to the label; p counts down, and what is left of the word is multiplied
    by the base.
    """
    base, offset = layout.base, layout.offset
    top = base ** (layout.digits - 1)
    count = _add_where({WORD: 1}, top - offset, {WORD: -top, DIGIT: 1})
    distance = block(
        WIDTH,
        [
            Unit(reads={PLACE: 1}, bias=0, writes={SCRATCH: 1}),
            Unit(reads={PLACE: -1}, bias=0, writes={SCRATCH: 1}),
        ],
    )
    # The digit is below the base, so that a place other than 0 leaves nothing of it.
    add_digit = block(
        WIDTH,
        [
            Unit(reads={DIGIT: 1, SCRATCH: -base}, bias=0, writes={LABEL: 1}),
            clear(DIGIT),
            clear(SCRATCH),
            always({PLACE: -1}),
            Unit(reads={WORD: 1}, bias=offset, writes={WORD: base - 1}),
        ],
    )
    rounds = Repeated((Repeated(count, base - 1), distance, add_digit), layout.digits)
    measure, act = add_where({LABEL: 1}, base, {LABEL: -base}, SCRATCH)
    # The word is now -offset, and the place not positive.
    clean = [always({WORD: offset}), Unit(reads={PLACE: -1}, bias=0, writes={PLACE: 1})]
    return rounds, block(WIDTH, [*measure, *clean]), block(WIDTH, act)


def _one_hot(r: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Output j is relu(y - j + 1) - 2 relu(y - j) + relu(y - j - 1), from r + 2 shared
    units.
    """
    U = np.zeros((r + 2, WIDTH))
    U[:, LABEL] = 1
    V = np.eye(r, r + 2) - 2 * np.eye(r, r + 2, 1) + np.eye(r, r + 2, 2)
    s = -np.arange(-1.0, r + 1)
    return jnp.asarray(U), jnp.asarray(V), jnp.asarray(s)
