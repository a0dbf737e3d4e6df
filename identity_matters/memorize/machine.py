"""Residual blocks of whole numbers as the instructions of a small machine.

The entries of h are the machine's registers. A block adds to them what its units make
of them. All numbers are integers, and so float64 computes without rounding, in every
order of summation, as long as no sum exceeds 2^53. Parts that are repeated are stored
once.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from identity_matters.memorize.network import apply_block


class Unit(NamedTuple):
    """``relu(sum of weight * register + bias)``, added, weighted, to registers.

    Attributes:
      reads: the weight of each register that is read.
      bias: a constant.
      writes: the weight with which the output is added to each register.
    """

    reads: Mapping[int, int]
    bias: int
    writes: Mapping[int, int]


class Block(NamedTuple):
    """``h + V relu(U h + s)``, or the last block of a network, without ``h +``."""

    U: jax.Array  # f64[units, k]
    V: jax.Array  # f64[k, units]
    s: jax.Array  # f64[units]


class Sweep(NamedTuple):
    """A block for each number, which multiplies what the block's first unit writes."""

    block: Block
    numbers: jax.Array  # f64[m]


class Repeated(NamedTuple):
    """Parts applied one after the other, and the whole sequence `repeats` times."""

    parts: tuple["Block | Sweep | Repeated", ...]
    repeats: jax.Array | int


def always(writes: Mapping[int, int]) -> Unit:
    """Adds constants to registers: its output is 1."""
    return Unit(reads={}, bias=1, writes=writes)


def clear(register: int) -> Unit:
    """Sets a register that is not negative to 0."""
    return Unit(reads={register: 1}, bias=0, writes={register: -1})


def double(register: int) -> Unit:
    """Doubles a register that is not negative."""
    return Unit(reads={register: 1}, bias=0, writes={register: 1})


def absolute_value(register: int, to: int) -> tuple[Unit, Unit]:
    """Adds the absolute value of a register to the register `to`."""
    return (
        Unit(reads={register: 1}, bias=0, writes={to: 1}),
        Unit(reads={register: -1}, bias=0, writes={to: 1}),
    )


def add_where(
    reads: Mapping[int, int],
    threshold: int,
    writes: Mapping[int, int],
    scratch: int,
    also: Sequence[Unit] = (),
) -> tuple[list[Unit], list[Unit]]:
    """The units of two blocks that add `writes` where `reads` reach `threshold`.

    The first sets the scratch register to a positive number where they do. In the
    second relu(1 - scratch) is 0 there and 1 elsewhere, so the constants that `always`
    adds are taken back elsewhere.

    Args:
      reads: the weights of the registers whose sum is compared.
      threshold: the least sum at which `writes` is added.
      writes: the constants to add to registers.
      scratch: a register that is 0 before, and again after the two blocks.
      also: units that join the second block, and act in any case.
    """
    measure = [Unit(reads=reads, bias=1 - threshold, writes={scratch: 1})]
    take_back = {register: -constant for register, constant in writes.items()}
    act = [
        Unit(reads={scratch: -1}, bias=1, writes=take_back),
        always(writes),
        clear(scratch),
        *also,
    ]
    return measure, act


def block(width: int, units: Sequence[Unit]) -> Block:
    """The block of at most `width` units on `width` registers."""
    U = np.zeros((width, width))
    V = np.zeros((width, width))
    s = np.zeros(width)
    for index, unit in enumerate(units):
        s[index] = unit.bias
        for register, weight in unit.reads.items():
            U[index, register] = weight
        for register, weight in unit.writes.items():
            V[register, index] = weight
    return Block(U=jnp.asarray(U), V=jnp.asarray(V), s=jnp.asarray(s))


def one_hot(num_classes: int, width: int, label: int) -> Block:
    """The last block: from the label y in register `label` to its one-hot vector.

    Output j is relu(y - j + 1) - 2 relu(y - j) + relu(y - j - 1), which is 1 for y = j
    and 0 for other integers; the r outputs share r + 2 units.
    """
    U = np.zeros((num_classes + 2, width))
    U[:, label] = 1
    s = -np.arange(-1.0, num_classes + 1)
    V = (
        np.eye(num_classes, num_classes + 2)
        - 2 * np.eye(num_classes, num_classes + 2, k=1)
        + np.eye(num_classes, num_classes + 2, k=2)
    )
    return Block(U=jnp.asarray(U), V=jnp.asarray(V), s=jnp.asarray(s))


def run(h: jax.Array, part: Block | Sweep | Repeated) -> jax.Array:
    """The registers h, f64[k, n], a column for each input, after a part."""
    if isinstance(part, Block):
        return apply_block(h, U=part.U, V=part.V, s=part.s)
    if isinstance(part, Sweep):
        return _run_sweep(h, part)

    def run_once(_, h: jax.Array) -> jax.Array:
        for inner in part.parts:
            h = run(h, inner)
        return h

    return jax.lax.fori_loop(0, part.repeats, run_once, h)


def _run_sweep(h: jax.Array, sweep: Sweep) -> jax.Array:
    """The registers after the sweep's block, once for each of its numbers."""

    def step(h, number):
        V = sweep.block.V.at[:, 0].multiply(number)
        return apply_block(h, U=sweep.block.U, V=V, s=sweep.block.s), None

    return jax.lax.scan(step, h, sweep.numbers)[0]
