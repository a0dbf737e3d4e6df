"""Problems with a bad local minimum that is known: their data, nets and teachers."""

import numpy as np

from identity_matters.relu import problems
from tests.relu_problems import unit_blocks

# Errors 0.49, 0.2 and 0.45 at -1, 1 and 2. A live unit (u, v, s) fits the last two and
# leaves the first, and the teacher has a second unit for that; the candidate's second
# unit is dead.
THREE_POINTS = problems.plain_problem([[-1.0], [1.0], [2.0]], np.zeros((3, 1)))
LIVE = (0.5, 0.5, -0.1)
DEAD = (0.1, 0.7, -0.3)
TEACHER = unit_blocks([LIVE, (-0.7, 0.7, 0.0)])


def beside(offset):
    """A candidate whose live unit has its output weight off by `offset`."""
    return unit_blocks([(0.5, 0.5 - offset, -0.1), DEAD])


def two_live_blocks(v=(0.8, 0.5)):
    """Five examples, four of which a net of two blocks fits.

    x = -1, 1/2, 1, 2, 3 with error 1/4 at -1. The kinks are at 1/4 and, in block 2, at
    x = 17/10. The second unit of each block is dead.
    """
    problem = problems.plain_problem(
        [[-1.0], [0.5], [1.0], [2.0], [3.0]], np.zeros((5, 1))
    )
    (v1, v2), dead = v, (0.1, 0.1, -0.5)
    first = (0.5, v1, -0.125)
    second = (0.25, v2, -0.57)
    # In place of the first dead unit the teacher has one that is active at x = -1 only.
    student = unit_blocks([first, dead], [second, dead])
    return problem, student, unit_blocks([first, (-0.5, 0.5, 0.0)], [second, dead])
