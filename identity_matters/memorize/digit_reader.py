"""What the two networks of whole numbers have in common: registers, and digits read.

Both hold labels as digits of a word, in some base, and read the digit at a place. They
read it with the same blocks, and differ only in how they find the word and the place.
Their examples and their projection to a line are in `whole_numbers`.
"""

from collections.abc import Mapping
from typing import NamedTuple

from identity_matters.memorize.machine import (
    Block,
    Repeated,
    Unit,
    absolute_value,
    add_where,
    always,
    block,
    clear,
)

# The channels of h, the machine's registers: what is hashed, the word, a digit that is
# counted, the scratch register of conditions, the place of the digit in the word, and
# the label. A wider network has further ones.
HASH, WORD, DIGIT, SCRATCH, PLACE, LABEL = range(6)


def blocks_that_add_where(
    width: int,
    reads: Mapping[int, int],
    threshold: int,
    writes: Mapping[int, int],
    *also: Unit,
) -> tuple[Block, Block]:
    """`machine.add_where` as two blocks of this width, with register SCRATCH."""
    measure, act = add_where(reads, threshold, writes, scratch=SCRATCH, also=also)
    return block(width, measure), block(width, act)


class DigitReader(NamedTuple):
    """The steps that read one digit of the word, one after the other.

    Attributes:
      take_digit: counts the word's first digit in DIGIT, and takes it away.
      distance: writes |place| to SCRATCH.
      add_digit: adds the digit to LABEL if the place is 0, and goes on to the next one.
    """

    take_digit: Repeated
    distance: Block
    add_digit: Block


def digit_reader(width: int, base: int, digits: int, offset: int = 0) -> DigitReader:
    """The reader of words of `digits` digits; the first is the most significant one.

    DIGIT and SCRATCH are 0 before and after. The place counts down, and the word's next
    digit becomes its first one.

    Args:
      width: of the network.
      base: of the digits.
      digits: in a word.
      offset: what is subtracted from a word's digits, so that it may be of either sign:
        the word is ``sum_j digit_j base^(digits - 1 - j) - offset``.
    """
    units_that_add = [
        *_units_that_add_digit_if_place_is_0(base),
        *_units_that_go_on_to_next_digit(base, offset),
    ]
    return DigitReader(
        take_digit=_take_first_digit(width, base, digits=digits, offset=offset),
        distance=block(width, absolute_value(PLACE, to=SCRATCH)),
        add_digit=block(width, units_that_add),
    )


def _take_first_digit(width: int, base: int, *, digits: int, offset: int) -> Repeated:
    """Moves the first digit from the word to DIGIT, which counts it, one by one."""
    top = base ** (digits - 1)
    count_one = blocks_that_add_where(
        width,
        reads={WORD: 1},
        threshold=top - offset,
        writes={WORD: -top, DIGIT: 1},
    )
    return Repeated(count_one, repeats=base - 1)


def _units_that_add_digit_if_place_is_0(base: int) -> list[Unit]:
    """LABEL gains DIGIT if SCRATCH, which holds |place|, is 0; both are cleared."""
    return [
        # The digit is below the base: a place other than 0 leaves nothing of it.
        Unit(reads={DIGIT: 1, SCRATCH: -base}, bias=0, writes={LABEL: 1}),
        clear(DIGIT),
        clear(SCRATCH),
    ]


def _units_that_go_on_to_next_digit(base: int, offset: int) -> list[Unit]:
    """The place counts down, and the word w becomes base (w + offset) - offset.

    Without its first digit, w + offset is the sum of the others at their places. Times
    the base, each of them stands one place further up.
    """
    return [
        always({PLACE: -1}),
        # w + (base - 1) (w + offset) = base (w + offset) - offset.
        Unit(reads={WORD: 1}, bias=offset, writes={WORD: base - 1}),
    ]
