"""The gradient bound with independent features: by hand, on random nets, where it is tight."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from identity_matters.nonlinear import examples, feature_bound, network, problems
from identity_matters.nonlinear.network import Blocks

SETTING = problems.Setting(2, 2, 3, 2, 1, 0.5, True)


def test_the_coefficient_by_hand():
    # n = 2, units +-x/2: features diag(1/2, 1/2), sigma_2 = 1/2. With V = 0 c = 4/2 (1/4 + 1/4).
    U = np.array([[[0.5], [-0.5]]] * 2)
    problem = examples.two_points(0.3, 0.7)
    flat = Blocks(U, np.zeros((2, 1, 2)), None)
    assert feature_bound.coefficient(flat, problem) == pytest.approx(1.0)
    # V = (1/2, 0): h_1 = (5/4, -1), features diag(5/8, 1/2) in block 2, and room 1 - sqrt(1/8)
    # above block 1: c = 2 (1/4 room^2 + 1/4).
    bent = flat._replace(V=np.array([[[0.5, 0.0]]] * 2))
    room = 1 - np.sqrt(1 / 8)
    assert feature_bound.coefficient(bent, problem) == pytest.approx(0.5 * (room**2 + 1))


def test_too_narrow_or_too_long_blocks_promise_nothing():
    problem = examples.two_points(0.3, 0.7)
    narrow = Blocks(np.ones((1, 1, 1)), np.zeros((1, 1, 1)), None)
    assert feature_bound.coefficient(narrow, problem) == 0.0
    U = np.array([[[0.5], [-0.5]], [[3.0], [-3.0]]])
    long = Blocks(U, np.ones((2, 1, 2)), None)
    # Room above block 1 is 0: only block 2 counts, with features of relu(+-3 h).
    _, _, pre = network.forward(long, problem)
    least = np.linalg.svd(np.maximum(pre[1], 0))[1][-1]
    assert feature_bound.coefficient(long, problem) == pytest.approx(2 * least**2)


@pytest.mark.parametrize("norm", [0.01, 0.5, 0.95])
def test_the_bound_holds_on_random_nets(norm):
    rng = np.random.default_rng(7)
    sample, _ = problems.realizable(rng, 100, SETTING)
    blocks = network.random_blocks(rng, np.full(100, norm), 2, 8, 3, True)
    right, left, value = (np.asarray(v) for v in feature_bound.batched_bound(blocks, sample))
    assert (right <= left).all()
    assert (right > 0).mean() > 0.5
    assert (value > 0).all()


def test_the_bound_is_tight_where_v_is_zero():
    rng = np.random.default_rng(8)
    sample, _ = problems.realizable(rng, 1, SETTING)
    one = network.random_blocks(rng, np.full(1, 0.4), 1, 8, 3, True)
    blocks = jax.tree.map(lambda part: jnp.repeat(part[0], 3, axis=0), one)
    problem = problems.member(sample, 0)
    with pytest.raises(ValueError, match="V must be 0"):
        feature_bound.tight_problem(blocks, problem, 0.1)
    blocks = blocks._replace(V=jnp.zeros_like(blocks.V))
    tight = feature_bound.tight_problem(blocks, problem, 0.1)
    right, left, value = feature_bound.bound_and_squared_gradient(blocks, tight)
    assert value == pytest.approx(0.01)
    assert right == pytest.approx(float(left), rel=1e-9)
    with pytest.raises(ValueError, match="B must be orthogonal"):
        feature_bound.tight_problem(blocks, problem._replace(B=problem.B * [[1.0], [2.0]]), 0.1)
    narrow = Blocks(np.ones((1, 1, 1)), np.zeros((1, 1, 1)), None)
    with pytest.raises(ValueError, match="width must be at least n = 2, is 1"):
        feature_bound.tight_problem(narrow, examples.two_points(0.0, 1.0), 0.1)


def test_the_search_finds_nets_without_gradient():
    rng = np.random.default_rng(9)
    sample, _ = problems.realizable(rng, 8, SETTING)
    norms = np.full(8, 0.5)
    blocks = network.random_blocks(rng, norms, 1, 4, 3, True)
    _, left, value = feature_bound.batched_bound(blocks, sample)
    settings = {"steps": 40, "learning_rate": 0.1}
    least = feature_bound.search(blocks, sample, norms, objective="ratio", **settings)
    assert (np.asarray(least) <= np.asarray(left / value) * (1 + 1e-12)).all()
    assert np.asarray(least).min() < 1e-3 * np.asarray(left / value).min()
    with pytest.raises(ValueError, match="got 'risk'"):
        feature_bound.search(blocks, sample, norms, objective="risk", **settings)
