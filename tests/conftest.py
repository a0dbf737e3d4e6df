"""Strict JAX for every test: float64, no silent rank promotion, four virtual CPU
devices.
"""

import signal

import jax
import pytest

# A shell makes its background jobs ignore Ctrl-C; processes that tests start would
# inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
jax.config.update("jax_num_cpu_devices", 4)
jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_rank_promotion", "raise")


@pytest.fixture(scope="session")
def key():
    """The one root key of the tests; fold or split it."""
    return jax.random.key(0)
