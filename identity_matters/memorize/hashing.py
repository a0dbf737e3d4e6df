"""Groups of neighbours on a line, and the search for a hash that separates each.

A group of m points has a constant c. The hash sends its points, all to different ones,
to the places of its labels in the group's words: HASH_ROUNDS rounds of

    z <- 2^L ((z mod M) + c) mod M',    then the place is floor(2^b z / M').

With one modulus a constant would rotate all points of a group alike, and could not
separate two that collide; with two, they wrap around at different points.
Proof: docs/theory/memorize.md, (E12).
"""

import itertools
import math
from typing import NamedTuple

import numpy as np

from identity_matters.checks import check_whole
from identity_matters.memorize.exact_arithmetic import EXACT_BITS

# One register of the network is one word of a group; five others have other uses.
LEAST_WIDTH = 6
# The search marks the places that a group occupies in a 63-bit mask.
MOST_PLACES = 63
# Rounds of the hash; with fewer, a constant moves the points of a group too much alike.
HASH_ROUNDS = 6
# M' / M is random in this range, well within 1 and 2.
LEAST_MODULUS_RATIO = 1.2
LARGEST_MODULUS_RATIO = 1.8
# The least M: small samples, too, need many constants to choose from.
LEAST_MODULUS = 2**24
# With fewer bits neither moduli nor labels would fit.
LEAST_WORD_BITS = 8
# The hash multiplies by 2^L, L at most this; each doubling takes two blocks.
MOST_DOUBLINGS = 24
# The search multiplies (z mod M) + c, which may have one bit more than M', by 2^L in
# int64. So L and the bits of M' are at most this together.
PRODUCT_BITS = 61
# Hashes that the search computes at once.
SEARCH_HASHES = 2**21
# How many such batches it tries before it gives up.
SEARCH_DRAWS = 1500
# With a smaller chance that a constant works for a group, the search takes minutes.
LEAST_HASH_CHANCE = 1e-5


def slots(num_classes: int, word_bits: int = EXACT_BITS) -> int:
    """How many labels fit into one word: the largest S with r^S <= 2^b.

    ValueError unless both are positive whole numbers.
    """
    base = max(2, check_whole("num_classes", num_classes))
    word_bits = check_whole("word_bits", word_bits)
    return next(
        count for count in itertools.count() if base ** (count + 1) > 2**word_bits
    )


def places_per_group(
    num_classes: int, word_bits: int = EXACT_BITS, width: int = LEAST_WIDTH
) -> int:
    """How many labels fit into the k - 5 words of a group; at most 63 are used.

    ValueError as in `slots`, and for k below 6.
    """
    words = check_whole("width", width, LEAST_WIDTH) - LEAST_WIDTH + 1
    return min(MOST_PLACES, words * slots(num_classes, word_bits))


def hash_chance(group_points: int, num_places: int, place_bits: int) -> float:
    """The chance that a random map separates a group: S'! / ((S' - m)! 2^{b m}).

    The map sends m points to 2^b cells, of which S' are usable: at most `num_places`.
    """
    cells = 2**place_bits
    usable = min(num_places, cells)
    return math.prod(max(0, usable - taken) / cells for taken in range(group_points))


def best_place_bits(group_points: int, num_places: int) -> int:
    """The b with the larger chance: 2^b is next to `num_places`, above or below."""
    above = (num_places - 1).bit_length()
    below = max(0, above - 1)
    chance_above = hash_chance(group_points, num_places, above)
    chance_below = hash_chance(group_points, num_places, below)
    return above if chance_above >= chance_below else below


def _best_chance(group_points: int, num_places: int) -> float:
    """`hash_chance` with the better number of cells."""
    place_bits = best_place_bits(group_points, num_places)
    return hash_chance(group_points, num_places, place_bits)


def largest_group(
    num_classes: int,
    word_bits: int = EXACT_BITS,
    width: int = LEAST_WIDTH,
    chance: float = 1e-3,
) -> int:
    """The most points for which a hash constant works with at least this chance.

    >>> largest_group(num_classes=10), largest_group(10, width=7)
    (11, 17)

    Args:
      num_classes: r.
      word_bits: b <= 53, the bits of a word.
      width: k >= 6; a group has k - 5 words.
      chance: in (0, 1]; the search tries about 1 / chance constants for each group.
    Raises:
      ValueError: an argument is out of range.
    """
    if not 0 < chance <= 1:
        raise ValueError(f"chance must be above 0 and at most 1, got {chance}")
    if check_whole("word_bits", word_bits) > EXACT_BITS:
        raise ValueError(f"word_bits must be at most {EXACT_BITS}, got {word_bits}")
    available = places_per_group(num_classes, word_bits, width)
    # The chance falls with the number of points.
    return sum(
        _best_chance(points, available) >= chance for points in range(1, available + 1)
    )


def check_group(
    group_points: int,
    num_classes: int,
    word_bits: int = EXACT_BITS,
    width: int = LEAST_WIDTH,
) -> None:
    """Raises ValueError unless m labels fit into a group, and can be placed in it.

    A hash constant must work for a group with a chance of at least LEAST_HASH_CHANCE.
    """
    if check_whole("word_bits", word_bits, LEAST_WORD_BITS) > EXACT_BITS:
        raise ValueError(f"word_bits must be at most {EXACT_BITS}, got {word_bits}")
    available = places_per_group(num_classes, word_bits, width)
    if check_whole("group_points", group_points) > available:
        raise ValueError(
            f"a group holds {available} labels of {num_classes} classes, got"
            f" group_points {group_points}"
        )
    chance = _best_chance(group_points, available)
    if chance < LEAST_HASH_CHANCE:
        largest = largest_group(num_classes, word_bits, width, LEAST_HASH_CHANCE)
        raise ValueError(
            f"one in {1 / chance:.2g} hash constants works for a group of"
            f" {group_points}, which is too long a search: group_points may be at most"
            f" {largest}"
        )


class Hash(NamedTuple):
    """The hash that all groups share.

    Attributes:
      small: M, above all points and constants.
      large: M', between M and 2 M.
      doublings: L.
      place_bits: b.
    """

    small: int
    large: int
    doublings: int
    place_bits: int

    def places(self, t: np.ndarray, constants: np.ndarray) -> np.ndarray:
        """The places, i64, of points t with constants, whose shapes broadcast.

        `few_numbers._hash` and `few_numbers._find_place` are the same in blocks.
        """
        z = t
        for _ in range(HASH_ROUNDS):
            folded = z - self.small * (z >= self.small)
            z = ((folded + constants) << self.doublings) % self.large
        return (z << self.place_bits) // self.large


def draw_hash(
    largest_point: int, place_bits: int, word_bits: int, rng: np.random.Generator
) -> Hash:
    """A hash of points in 0 ... `largest_point` with a random modulus M'."""
    small = max(largest_point + 1, min(LEAST_MODULUS, 2 ** (word_bits - 2)))
    large = int(small * rng.uniform(LEAST_MODULUS_RATIO, LARGEST_MODULUS_RATIO))
    return Hash(
        small=small,
        large=large,
        doublings=min(MOST_DOUBLINGS, PRODUCT_BITS - large.bit_length()),
        place_bits=place_bits,
    )


def find_constants(
    t: np.ndarray,
    group_points: int,
    num_places: int,
    shared_hash: Hash,
    rng: np.random.Generator,
) -> np.ndarray:
    """For each group, a constant that sends its points to different places: i64[G].

    Args:
      t: i64[n], increasing; each `group_points` of them form a group, and so do the
        last ones, if fewer are left.
      group_points: m.
      num_places: a point's place must be below it.
      shared_hash: the hash of all groups.
      rng: draws constants.
    Raises:
      ValueError: none is found for a group.
    """
    in_full_groups = len(t) // group_points * group_points
    constants = []
    if in_full_groups:
        full_groups = t[:in_full_groups].reshape(-1, group_points)
        constants.append(_search(full_groups, num_places, shared_hash, rng))
    if in_full_groups < len(t):
        last_group = t[in_full_groups:][None]
        constants.append(_search(last_group, num_places, shared_hash, rng))
    return np.concatenate(constants)


def _search(
    groups: np.ndarray, num_places: int, shared_hash: Hash, rng: np.random.Generator
) -> np.ndarray:
    """`find_constants` for groups of one size, i64[G, m]: i64[G]."""
    group_points = groups.shape[1]
    constants = np.zeros(len(groups), np.int64)
    unsolved = np.arange(len(groups))
    for _ in range(SEARCH_DRAWS):
        draws = max(1, SEARCH_HASHES // (len(unsolved) * group_points))
        drawn = rng.integers(0, shared_hash.small, (len(unsolved), draws))
        # i64[unsolved groups, draws, points]
        of_points = shared_hash.places(groups[unsolved][:, None], drawn[:, :, None])
        # As many bits are set as there are different places.
        occupied = np.bitwise_count(np.bitwise_or.reduce(1 << of_points, axis=2))
        works = (occupied == group_points) & (of_points.max(axis=2) < num_places)
        solved = works.any(axis=1)
        first_that_works = works[solved].argmax(axis=1)
        constants[unsolved[solved]] = drawn[solved, first_that_works]
        unsolved = unsolved[~solved]
        if not len(unsolved):
            return constants
    raise ValueError(
        f"no hash constant found for {len(unsolved)} of {len(groups)} groups: choose"
        " smaller groups"
    )
