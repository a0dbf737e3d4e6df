"""Running a network that memorises: which precision, inputs and labels are refused."""

import jax
import numpy as np
import pytest

from identity_matters.memorize import few_numbers, retrieval
from identity_matters.memorize.construct import Memorized, apply, memorize, verify
from identity_matters.memorize.network import Network

X = np.arange(12.0).reshape(6, 2) ** 2
Y = np.array([0, 1, 2, 0, 1, 2])
NETWORKS = {
    "blocks": (lambda: memorize(X, Y)[0], {}),
    "few_numbers": (
        lambda: few_numbers.memorize_with_few_numbers(X, Y, group_points=2)[0],
        {"run": few_numbers.forward},
    ),
    "retrieval": (
        lambda: retrieval.memorize_by_retrieval(X, Y)[0],
        {"run": retrieval.forward},
    ),
}


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("name", NETWORKS)
def test_a_float64_network_is_refused_where_jax_has_no_64_bits(name, stored):
    make, run = NETWORKS[name]
    network = make()
    if stored:  # as from a file
        network = jax.tree.map(np.asarray, network)
    assert verify(network, X, Y, **run).errors == 0
    with jax.enable_x64(False):
        for use in (apply, verify):
            labels = [Y] if use is verify else []
            with pytest.raises(TypeError, match=r"of float64, .*jax_enable_x64"):
                use(network, X, *labels, **run)


def test_close_points_are_told_apart_or_refused():
    """In float32 all of these are 1."""
    x = 1 + np.arange(40)[:, None] * 1e-9
    y = np.random.default_rng(0).integers(0, 3, 40)
    memorized = memorize(x, y)
    assert memorized.certificate.holds
    stored = Network(*map(np.asarray, memorized.network))
    with jax.enable_x64(False), pytest.raises(TypeError, match="jax_enable_x64"):
        Memorized(stored, memorized.certificate).predict(x)
    np.testing.assert_array_equal(memorized.predict(x), y)
