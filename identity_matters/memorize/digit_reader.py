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

    DIGIT and SCRATCH are 0 before and after. The place counts down, and what is left of
    the word is multiplied by the base.

    Args:
      width: of the network.
      base: of the digits.
      digits: in a word.
      offset: what is subtracted from a word's digits, so that it may be of either sign:
        the word is ``sum_j digit_j base^(digits - 1 - j) - offset``.
    """
    top = base ** (digits - 1)
    count = blocks_that_add_where(
        width, {WORD: 1}, top - offset, {WORD: -top, DIGIT: 1}
    )
    # The digit is below the base, so that a place other than 0 leaves nothing of it.
    add_digit = [
        Unit(reads={DIGIT: 1, SCRATCH: -base}, bias=0, writes={LABEL: 1}),
        clear(DIGIT),
        clear(SCRATCH),
        always({PLACE: -1}),
        Unit(reads={WORD: 1}, bias=offset, writes={WORD: base - 1}),
    ]
    return DigitReader(
        take_digit=Repeated(count, repeats=base - 1),
        distance=block(width, absolute_value(PLACE, to=SCRATCH)),
        add_digit=block(width, add_digit),
    )
