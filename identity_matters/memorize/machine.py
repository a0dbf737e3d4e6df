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
    """``relu(sum of weight * register + bias)``, added, weighted, to registers."""

    reads: Mapping[int, int]
    bias: int
    writes: Mapping[int, int]


class Block(NamedTuple):
    """``h + V relu(U h + s)``: U, V f64[k, k] and s f64[k]."""

    U: jax.Array
    V: jax.Array
    s: jax.Array


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


def add_where(
    reads: Mapping[int, int],
    threshold: int,
    writes: Mapping[int, int],
    scratch: int,
    also: Sequence[Unit] = (),
) -> tuple[list[Unit], list[Unit]]:
    """The units of two blocks that add `writes` where `reads` reach `threshold`.

    The first sets the register `scratch`, which must be 0, to a positive number where
    it is. In the second relu(1 - scratch) is 0 there and 1 elsewhere, so the constants
    that `always` adds are taken back elsewhere. Units in `also` join the second block.
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
    U, V, s = np.zeros((width, width)), np.zeros((width, width)), np.zeros(width)
    for index, unit in enumerate(units):
        s[index] = unit.bias
        for register, weight in unit.reads.items():
            U[index, register] = weight
        for register, weight in unit.writes.items():
            V[register, index] = weight
    return Block(jnp.asarray(U), jnp.asarray(V), jnp.asarray(s))


def run(h: jax.Array, part: Block | Sweep | Repeated) -> jax.Array:
    """The registers h, f64[k, n], a column for each input, after a part."""
    if isinstance(part, Block):
        return apply_block(h, part.U, part.V, part.s)
    if isinstance(part, Sweep):
        return _run_sweep(h, part)

    def run_once(_, h: jax.Array) -> jax.Array:
        for inner in part.parts:
            h = run(h, inner)
        return h

    return jax.lax.fori_loop(0, part.repeats, run_once, h)


def _run_sweep(h: jax.Array, sweep: Sweep) -> jax.Array:
    def step(h, number):
        V = sweep.block.V.at[:, 0].multiply(number)
        return apply_block(h, sweep.block.U, V, sweep.block.s), None

    return jax.lax.scan(step, h, sweep.numbers)[0]
