"""The gradient bound with independent features: by hand, on random nets, where it is tight."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from identity_matters.relu import feature_bound, model, problems
from identity_matters.relu.model import Blocks

SETTING = problems.Setting(2, 2, 3, 2, 1, 0.5, True)


def test_the_coefficient_by_hand():
    # n = 2, units +-x/2: features diag(1/2, 1/2), sigma_2 = 1/2. With V = 0 c = 4/2 (1/4 + 1/4).
    U = np.array([[[0.5], [-0.5]]] * 2)
    problem = problems.two_points(0.3, 0.7)
    flat = Blocks(U, np.zeros((2, 1, 2)), None)
    assert feature_bound.coefficient(flat, problem) == pytest.approx(1.0)
    # V = (1/2, 0): h_1 = (5/4, -1), features diag(5/8, 1/2) in block 2, and room 1 - sqrt(1/8)
    # above block 1: c = 2 (1/4 room^2 + 1/4).
    bent = flat._replace(V=np.array([[[0.5, 0.0]]] * 2))
    room = 1 - np.sqrt(1 / 8)
    assert feature_bound.coefficient(bent, problem) == pytest.approx(0.5 * (room**2 + 1))


def test_too_narrow_or_too_long_blocks_promise_nothing():
    problem = problems.two_points(0.3, 0.7)
    narrow = Blocks(np.ones((1, 1, 1)), np.zeros((1, 1, 1)), None)
    assert feature_bound.coefficient(narrow, problem) == 0.0
    U = np.array([[[0.5], [-0.5]], [[3.0], [-3.0]]])
    long = Blocks(U, np.ones((2, 1, 2)), None)
    # Room above block 1 is 0: only block 2 counts, with features of relu(+-3 h).
    _, _, pre = model.forward(long, problem)
    least = np.linalg.svd(np.maximum(pre[1], 0))[1][-1]
    assert feature_bound.coefficient(long, problem) == pytest.approx(2 * least**2)


@pytest.mark.parametrize("norm", [0.01, 0.5, 0.95])
def test_the_bound_holds_on_random_nets(norm):
    rng = np.random.default_rng(7)
    sample, _ = problems.realizable(rng, 100, SETTING)
    blocks = model.random_blocks(rng, np.full(100, norm), 2, 8, 3, True)
    right, left, value = (
        np.asarray(v) for v in jax.vmap(feature_bound.bound_and_squared_gradient)(blocks, sample)
    )
    assert (right <= left).all()
    assert (right > 0).mean() > 0.5
    assert (value > 0).all()


def test_the_bound_is_tight_where_v_is_zero():
    rng = np.random.default_rng(8)
    sample, _ = problems.realizable(rng, 1, SETTING)
    one = model.random_blocks(rng, np.full(1, 0.4), 1, 8, 3, True)
    blocks = jax.tree.map(lambda part: jnp.repeat(part[0], 3, axis=0), one)
    problem = problems.member(sample, 0)
    blocks = blocks._replace(V=jnp.zeros_like(blocks.V))
    tight = feature_bound.tight_problem(blocks, problem, 0.1)
    right, left, value = feature_bound.bound_and_squared_gradient(blocks, tight)
    assert value == pytest.approx(0.01)
    assert right == pytest.approx(float(left), rel=1e-9)


def test_the_search_finds_nets_without_gradient():
    rng = np.random.default_rng(9)
    sample, _ = problems.realizable(rng, 8, SETTING)
    blocks = model.random_blocks(rng, np.full(8, 0.5), 1, 4, 3, True)
    _, left, value = jax.vmap(feature_bound.bound_and_squared_gradient)(blocks, sample)
    settings = {"steps": 40, "learning_rate": 0.1}
    least = feature_bound.search(blocks, sample, 0.5, objective="ratio", **settings)
    assert (np.asarray(least) <= np.asarray(left / value) * (1 + 1e-12)).all()
    assert np.asarray(least).min() < 1e-3 * np.asarray(left / value).min()


def test_at_a_kink_a_one_sided_derivative_leads_down():
    """N14: block 2 has its only unit at its kink at x = 1, so f has no derivative in V_1."""
    problem = problems.two_points(0.3, 0.7)
    net = Blocks(
        np.array([[[0.5], [-0.5]], [[0.5], [0.0]]]),
        np.array([[[0.0, 0.0]], [[0.5, 0.0]]]),
        np.array([[0.0, 0.0], [-0.5, 0.0]]),
    )
    assert model.forward(net, problem)[2][1, 0, 0] == 0.0
    # Features of block 1 are diag(1/2, 1/2). Above it delta > 0 at x = 1 becomes
    # (1 + 1/4) delta, and stays what it is at x = -1.
    H = np.array([[0.3 / 1.25 / 0.5, 0.7 / 0.5]])
    step = 1e-6

    def slope(sign):
        V = net.V.copy()
        V[0] += sign * step * H
        moved = model.risk(net._replace(V=V), problem)
        return float(moved - model.risk(net, problem)) / step

    risk = (0.3**2 + 0.7**2) / 2
    assert slope(1) == pytest.approx(-2 * risk, rel=1e-5)
    # The other way x = 1 gets -delta only: -0.3 * 0.24 instead of -0.3 * 0.3.
    assert slope(-1) == pytest.approx(2 * risk - 0.3 * (0.3 - 0.24), rel=1e-5)
    # c_1 = 4/2 (1/2)^2 (1 - 1/4)^2, and c_2 = 0.
    coefficient = feature_bound.coefficient(net, problem)
    assert coefficient == pytest.approx(0.5 * 0.75**2)
    assert -2 * risk <= -np.sqrt(coefficient * risk) * np.linalg.norm(H)


def test_the_gradient_in_the_maps_is_bounded_below_where_that_in_the_weights_is_zero():
    """N15 at the bad minima of N9, where V = 0 makes it an equality: 4/n f in every block."""
    problem = problems.two_points(0.0, 0.1)
    U = np.full((3, 2, 1), 0.5 / np.sqrt(2))
    point = Blocks(U, np.zeros((3, 1, 2)), np.zeros((3, 2)))
    assert model.squared_norm(model.risk_and_gradient(point, problem)[1]) == 0.0
    for scale in (1.0, 3.0):
        # B = scale has y = scale x + (0, 0.1): as before, with f the same.
        scaled = problem._replace(B=np.full((1, 1), scale), y=scale * problem.x + [[0.0], [0.1]])
        for found in feature_bound.functional_bound(point, scaled):
            np.testing.assert_allclose(found, [4 / 2 * scale**2 * 0.005] * 3)


def test_the_gradient_in_the_maps_is_the_pulled_back_error():
    """N15 on random nets: g_j(x_i) = (2/n) J^T B^T (yhat_i - y_i), J the blocks above j."""
    rng = np.random.default_rng(10)
    sample, _ = problems.realizable(rng, 20, SETTING)
    nets = model.random_blocks(rng, np.full(20, 0.8), 2, 3, 3, True)
    for net, problem in (problems.member((nets, sample), index) for index in range(20)):
        predictions, _, pre = (np.asarray(part) for part in model.forward(net, problem))
        pulled = 2 / 4 * (predictions - problem.y) @ problem.B
        last = np.einsum("dk,nk,ke->nde", net.V[1], pre[1] > 0, net.U[1]) + np.eye(3)
        expected = [np.sum(np.einsum("nde,nd->ne", last, pulled) ** 2), np.sum(pulled**2)]
        right, left = feature_bound.functional_bound(net, problem)
        np.testing.assert_allclose(left, expected, rtol=1e-12)
        # Both maps are isometries; n = 4.
        risk = float(model.risk(net, problem))
        np.testing.assert_allclose(right, [(1 - 0.8**2) ** 2 * risk, risk], rtol=1e-12)
        assert (right <= left * (1 + 1e-12)).all()
    # More outputs than dimensions: no bound.
    tall = problem._replace(B=np.ones((4, 3)), y=np.zeros((4, 4)))
    assert not feature_bound.functional_bound(net, tall)[0].any()
