"""The gradient bound with independent features, and that of the maps, by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from identity_matters.relu import (
    feature_bound,
    model,
    problems,
)
from identity_matters.relu.model import Blocks, Problem
from tests.relu_problems import two_points, unit_blocks

FEATURES = problems.Setting(2, 2, 3, 2, 1, 0.5, True)


def test_the_coefficient_by_hand():
    # n = 2, units +-x/2: features diag(1/2, 1/2), sigma_2 = 1/2. With V = 0 c = 4/2
    # (1/4 + 1/4).
    U = np.array([[[0.5], [-0.5]]] * 2)
    problem = two_points(0.3, 0.7)
    flat = Blocks(U, np.zeros((2, 1, 2)), None)
    assert feature_bound.coefficient(flat, problem) == pytest.approx(1.0)
    # V = (1/2, 0): h_1 = (5/4, -1), features diag(5/8, 1/2) in block 2, and room 1 -
    # sqrt(1/8) above block 1: c = 2 (1/4 room^2 + 1/4).
    bent = flat._replace(V=np.array([[[0.5, 0.0]]] * 2))
    room = 1 - np.sqrt(1 / 8)
    assert feature_bound.coefficient(bent, problem) == pytest.approx(
        0.5 * (room**2 + 1)
    )
    # A relative rounding error of 1/10 lowers sigma_min(B) to 9/10, and the room.
    lowered = feature_bound._functional_coefficients(bent, problem, 0.1)
    room = 1 - 1.1 * np.sqrt(1 / 8)
    assert lowered == pytest.approx([2 * 0.81 * room**2, 2 * 0.81])
    # Two outputs of one dimension: an error across them has no gradient.
    two_outputs = problem._replace(B=np.ones((2, 1)), y=np.ones((2, 2)))
    assert feature_bound.coefficient(flat, two_outputs) == 0.0


def test_too_narrow_or_too_long_blocks_promise_nothing():
    problem = two_points(0.3, 0.7)
    narrow = Blocks(np.ones((1, 1, 1)), np.zeros((1, 1, 1)), None)
    assert feature_bound.coefficient(narrow, problem) == 0.0
    U = np.array([[[0.5], [-0.5]], [[3.0], [-3.0]]])
    long = Blocks(U, np.ones((2, 1, 2)), None)
    # Room above block 1 is 0: only block 2 counts, with the features relu(+-3 h).
    _, _, pre = model.forward(long, problem)
    least = np.linalg.svd(np.maximum(pre[1], 0))[1][-1]
    assert feature_bound.coefficient(long, problem) == pytest.approx(2 * least**2)


@pytest.mark.parametrize("seed", range(3))
def test_a_map_in_single_precision_among_doubles_is_no_better_conditioned(seed):
    """Its least singular value was rounded in float32, and the allowance in float64."""
    rng = np.random.default_rng(seed)
    singular = rng.integers(-5, 6, (3, 2)) @ rng.integers(-5, 6, (2, 3))
    blocks = Blocks(
        rng.normal(0, 0.3, (1, 4, 3)),
        rng.normal(0, 0.1, (1, 3, 4)),
        rng.normal(0, 0.1, (1, 4)),
    )
    problem = Problem(
        x=rng.normal(size=(3, 3)),
        y=rng.normal(size=(3, 3)),
        A=np.eye(3),
        B=singular.astype(np.float32),
    )
    right, _ = feature_bound.functional_bound(blocks, problem)
    assert right[0] == 0
    assert feature_bound.coefficient(blocks, problem) == 0


def test_rounding_promises_no_gradient_where_it_is_exactly_zero():
    """Dyadic numbers, so that errors that cancel do so in floats, too."""
    rng = np.random.default_rng(0)
    for _ in range(20):
        x = rng.integers(-8, 9, (3, 3)) / 8
        U = rng.integers(-8, 9, (2, 6, 3)) / 32
        flat = Blocks(U, np.zeros((2, 3, 6)), None)
        # The same input twice, with opposite errors: the features are dependent.
        errors = np.array([[0.5], [0.0], [0.0], [-0.5]]) * np.eye(1, 3)
        x = np.concatenate([x, x[:1]])
        twice = problems.plain_problem(x, x + errors)
        right, left, value = feature_bound.bound_and_squared_gradient(flat, twice)
        assert value > 0 and right == left == 0
        # B^T e = 0: the rows of B are dependent.
        B = rng.integers(-8, 9, (3, 3)) / 8
        B[2] = B[0] + B[1]
        errors = np.array([[0.5, 0.5, -0.5]])
        singular = Problem(x, x @ B.T + errors, np.eye(3), B)
        right, left = feature_bound.functional_bound(flat, singular)
        assert not right.any() and not left.any()


def test_rounding_promises_nothing_where_squares_are_below_float64():
    """An input and its double, with the errors -2 and 1, and V = 0.

    The features are dependent, and the gradient is 0. Weights are of size 1e-170 and
    inputs of size 1e153, so that the features are of ordinary size.
    """
    rng = np.random.default_rng(0)
    maps = {"A": np.diag([1.0, 0.0]), "B": np.array([[0.0, 1.0]])}
    for _ in range(10):
        U = rng.standard_normal((1, 8, 2)) * 2.0**-565
        first = rng.standard_normal(2) * 2.0**509
        x = np.stack([first, 2 * first])
        blocks = Blocks(U, np.zeros((1, 2, 8)), None)
        problem = Problem(x, np.array([[2.0], [-1.0]]), **maps)
        assert feature_bound.coefficient(blocks, problem) == 0


def test_products_of_float32_ask_for_full_precision():
    """The allowance is for float32. GPUs would use TF32, which rounds by more."""
    net = Blocks(np.zeros((2, 4, 3)), np.zeros((2, 3, 4)), np.zeros((2, 4)))
    plain = problems.plain_problem(np.ones((3, 3)), np.ones((3, 3)))
    single = jax.tree.map(np.float32, (net, plain))
    lowered = feature_bound.bound_and_squared_gradient.lower(*single).as_text()
    products = [line for line in lowered.splitlines() if "dot_general" in line]
    # The maps and two in each block, forward and backward.
    assert len(products) >= 10
    assert all("precision = [HIGHEST, HIGHEST]" in line for line in products)


@pytest.mark.slow
@pytest.mark.parametrize("norm", [0.01, 0.5, 0.95])
def test_the_bound_holds_on_random_nets(norm):
    rng = np.random.default_rng(7)
    sample, _ = problems.realizable(rng, 100, FEATURES)
    blocks = model.random_blocks(rng, np.full(100, norm), 2, 8, 3, True)
    right, left, value = (
        np.asarray(v)
        for v in jax.vmap(feature_bound.bound_and_squared_gradient)(blocks, sample)
    )
    assert (right <= left).all()
    assert (right > 0).mean() > 0.5
    assert (value > 0).all()


def test_a_search_for_anything_else_is_refused():
    rng = np.random.default_rng(7)
    sample, _ = problems.realizable(rng, 1, FEATURES)
    blocks = model.random_blocks(rng, np.full(1, 0.5), 2, 8, 3, True)
    with pytest.raises(ValueError, match="objective must be one of"):
        feature_bound.search(
            blocks, sample, 0.5, objective="ratios", steps=1, learning_rate=0.1
        )


@pytest.mark.slow
def test_the_bound_is_tight_where_v_is_zero():
    rng = np.random.default_rng(8)
    sample, _ = problems.realizable(rng, 1, FEATURES)
    net = model.random_blocks(rng, np.full(1, 0.4), 1, 8, 3, True)
    blocks = jax.tree.map(lambda part: jnp.repeat(part[0], 3, axis=0), net)
    problem = problems.member(sample, 0)
    blocks = blocks._replace(V=jnp.zeros_like(blocks.V))
    tight = feature_bound.tight_problem(blocks, problem, 0.1)
    right, left, value = feature_bound.bound_and_squared_gradient(blocks, tight)
    assert value == pytest.approx(0.01)
    assert right == pytest.approx(float(left), rel=1e-9)


def test_at_a_kink_a_one_sided_derivative_leads_down():
    """N14: block 2 has its only unit at its kink at x = 1.

    So f has no derivative in V_1.
    """
    problem = two_points(0.3, 0.7)
    net = unit_blocks(
        [(0.5, 0.0, 0.0), (-0.5, 0.0, 0.0)], [(0.5, 0.5, -0.5), (0.0, 0.0, 0.0)]
    )
    assert model.forward(net, problem)[2][1, 0, 0] == 0.0
    # The features of block 1 are diag(1/2, 1/2). Block 2 turns delta > 0 at x = 1 into
    # (1 + 1/4) delta and leaves delta at x = -1 as it is.
    H = np.array([[0.3 / 1.25 / 0.5, 0.7 / 0.5]])
    step = 1e-6

    def slope(sign):
        V = net.V.copy()
        V[0] += sign * step * H
        moved = model.risk(net._replace(V=V), problem)
        return float(moved - model.risk(net, problem)) / step

    risk = (0.3**2 + 0.7**2) / 2
    assert slope(1) == pytest.approx(-2 * risk, rel=1e-5)
    # In the other direction x = 1 gets only -delta: -0.3 * 0.24 instead of -0.3 * 0.3.
    assert slope(-1) == pytest.approx(2 * risk - 0.3 * (0.3 - 0.24), rel=1e-5)
    # c_1 = 4/2 (1/2)^2 (1 - 1/4)^2, and c_2 = 0.
    coefficient = feature_bound.coefficient(net, problem)
    assert coefficient == pytest.approx(0.5 * 0.75**2)
    assert -2 * risk <= -np.sqrt(coefficient * risk) * np.linalg.norm(H)


@pytest.mark.slow
def test_the_gradient_in_the_maps_is_bounded_below_where_that_in_the_weights_is_zero():
    """N15 at the bad minima of N9.

    There V = 0 makes it an equality: 4/n f in every block.
    """
    problem = two_points(0.0, 0.1)
    U = np.full((3, 2, 1), 0.5 / np.sqrt(2))
    point = Blocks(U, np.zeros((3, 1, 2)), np.zeros((3, 2)))
    assert model.squared_norm(model.risk_and_gradient(point, problem)[1]) == 0.0
    for scale in (1.0, 3.0):
        # B = scale has y = scale x + (0, 0.1): as before, with f the same.
        scaled = problem._replace(
            B=np.full((1, 1), scale), y=scale * problem.x + [[0.0], [0.1]]
        )
        for value in feature_bound.functional_bound(point, scaled):
            np.testing.assert_allclose(value, [4 / 2 * scale**2 * 0.005] * 3)


@pytest.mark.slow
def test_the_gradient_in_the_maps_is_the_pulled_back_error():
    """N15 on random nets: g_j(x_i) = (2/n) J^T B^T (yhat_i - y_i).

    J is that of the blocks above j.
    """
    rng = np.random.default_rng(10)
    sample, _ = problems.realizable(rng, 20, FEATURES)
    nets = model.random_blocks(rng, np.full(20, 0.8), 2, 3, 3, True)
    for net, problem in (problems.member((nets, sample), index) for index in range(20)):
        predictions, _, pre = (np.asarray(part) for part in model.forward(net, problem))
        pulled = 2 / 4 * (predictions - problem.y) @ problem.B
        last = np.einsum("dk,nk,ke->nde", net.V[1], pre[1] > 0, net.U[1]) + np.eye(3)
        expected = [
            np.sum(np.einsum("nde,nd->ne", last, pulled) ** 2),
            np.sum(pulled**2),
        ]
        right, left = feature_bound.functional_bound(net, problem)
        np.testing.assert_allclose(left, expected, rtol=1e-12)
        # Both maps are isometries; n = 4.
        risk = float(model.risk(net, problem))
        np.testing.assert_allclose(right, [(1 - 0.8**2) ** 2 * risk, risk], rtol=1e-12)
        assert (right <= left * (1 + 1e-12)).all()
    # More outputs than dimensions: no bound.
    tall = problem._replace(B=np.ones((4, 3)), y=np.zeros((4, 4)))
    assert not feature_bound.functional_bound(net, tall)[0].any()
