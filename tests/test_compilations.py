"""Compilations are heard where somebody listens, and nowhere else."""

import jax
import jax.numpy as jnp

from identity_matters import compilations


def test_each_compilation_inside_is_heard_once_and_none_outside():
    seconds: list[float] = []
    plus_one = jax.jit(lambda x: x + 1)
    two = jnp.ones(2)
    three = jnp.ones(3)
    with compilations.listening(seconds.append):
        plus_one(two)
        plus_one(two)
    assert len(seconds) == 1 and seconds[0] > 0
    plus_one(three)
    assert len(seconds) == 1
