"""ReLU residual nets by hand, what is drawn, dead units, points by hand, gradient descent."""

import jax
import numpy as np
import pytest

from identity_matters.relu import dead_units, model, problems
from identity_matters.relu.model import Blocks, Problem

SETTING = problems.Setting(
    pairs=3, width_in=2, lifted_width=3, depth=2, teacher_width=2, teacher_norm=0.5, bias=True
)


def scalar_net(*units):
    """Blocks of one unit each from tuples (u, v, s), for d = 1."""
    u, v, s = (np.array(values).reshape(-1, 1, 1) for values in zip(*units, strict=True))
    return Blocks(u, v, s[:, :, 0])


def test_forward_and_risk_by_hand():
    # Block 1: 1 + 3 relu(2 1 - 1) = 4, -1 + 3 relu(-2 - 1) = -1. Block 2: 4 + relu(-4) = 4,
    # -1 - relu(1) = -2 with v = -1.
    net = scalar_net((2.0, 3.0, -1.0), (-1.0, -1.0, 0.0))
    problem = problems.plain_problem([[1.0], [-1.0]], [[5.0], [1.0]])
    predictions, hidden, pre = model.forward(net, problem)
    np.testing.assert_array_equal(predictions, [[4.0], [-2.0]])
    np.testing.assert_array_equal(hidden[:, :, 0], [[1.0, -1.0], [4.0, -1.0]])
    np.testing.assert_array_equal(pre[:, :, 0], [[1.0, -3.0], [-4.0, 1.0]])
    assert model.risk(net, problem) == pytest.approx((1 + 9) / 2)


def test_maps_stand_before_and_behind_the_blocks():
    net = Blocks(np.array([[[1.0, 0.0]]]), np.array([[[0.0], [2.0]]]), None)
    A, B = np.array([[3.0], [1.0]]), np.array([[10.0, 1.0]])
    problem = Problem(np.array([[1.0]]), np.zeros((1, 1)), A, B)
    # h = (3, 1), relu(3) = 3, h + (0, 6) = (3, 7), output 37.
    assert model.forward(net, problem)[0] == 37.0
    assert model.risk(net, problem) == 37.0**2


def test_norm_is_the_largest_spectral_norm():
    net = Blocks(np.diag([3.0, 2.0])[None], np.eye(2)[None], np.array([[3.0, 4.0]]))
    assert model.max_norm(net) == pytest.approx(5.0)
    assert model.max_norm(net._replace(s=None)) == pytest.approx(3.0)


@pytest.mark.parametrize("bias", [False, True])
def test_random_blocks_have_the_norms_asked_for(bias):
    norms = np.array([0.1, 0.9])
    blocks = model.random_blocks(np.random.default_rng(0), norms, 2, 3, 2, bias)
    np.testing.assert_allclose(model.max_norm(blocks), norms, rtol=1e-14)
    assert (blocks.s is None) != bias


def test_teachers_have_no_risk_and_see_the_sample():
    sample, teachers = problems.realizable(np.random.default_rng(1), 5, SETTING)
    risks, _ = model.batched_risk_and_gradient(teachers, sample)
    np.testing.assert_array_equal(risks, np.zeros(5))
    np.testing.assert_array_equal(sample.x[:, :3], -sample.x[:, 3:])
    np.testing.assert_allclose(
        sample.A.swapaxes(1, 2) @ sample.A, np.broadcast_to(np.eye(2), (5, 2, 2)), atol=1e-14
    )
    zero = jax.tree.map(np.zeros_like, teachers)
    at_zero, _ = model.batched_risk_and_gradient(zero, sample)
    assert (np.asarray(at_zero) >= 2e-2 * 0.5**4).all()


def test_dead_share_on_a_ball_by_hand():
    # d = 1, b = 1: the cone u + s < 0, s - u < 0 is a quarter of the plane. d = 2: a circular cone
    # of half angle 45 degrees, (1 - cos 45) / 2 of the sphere. b = 0: s < 0.
    assert dead_units.dead_share_on_ball(1, 1.0) == pytest.approx(0.25)
    assert dead_units.dead_share_on_ball(2, 1.0) == pytest.approx((1 - np.sqrt(0.5)) / 2)
    assert dead_units.dead_share_on_ball(5, 0.0) == pytest.approx(0.5)


def test_a_dead_net_does_not_move_and_neither_does_its_neighbourhood():
    # |x| <= 1 and s = -0.3 < -|u|: dead in both blocks, whatever V.
    rng = np.random.default_rng(0)
    U, V = rng.uniform(-0.2, 0.2, (2, 3, 2)), rng.standard_normal((2, 2, 3))
    net = Blocks(U, V, np.full((2, 3), -0.3))
    x = np.array([[1.0, 0.0], [-0.6, 0.8], [0.0, -1.0]])
    problem = problems.plain_problem(x, 2 * x)
    one_live = net._replace(s=np.array([[-0.3, -0.3, -0.3], [-0.3, 0.3, -0.3]]))
    both = jax.tree.map(lambda *parts: np.stack(parts), net, one_live)
    np.testing.assert_array_equal(dead_units.strictly_dead(both, problem), [True, False])
    assert model.risk_and_gradient(one_live, problem)[1].V.any()
    for size in (0.0, 1e-3):
        moved = jax.tree.map(lambda w, size=size: w + size * np.cos(w), net)
        value, gradient = model.risk_and_gradient(moved, problem)
        assert value == pytest.approx(1.0)
        assert not any(leaf.any() for leaf in jax.tree.leaves(gradient))


def test_hull_depth_tells_whether_zero_is_inside():
    square = np.array([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]])
    assert dead_units.hull_depth(square) == pytest.approx(1.0)
    assert dead_units.hull_depth(square + 3) < 0


def test_the_two_points_by_hand():
    # u > 0: f = ((right - v u)^2 + left^2) / 2.
    problem = problems.two_points(0.2, 0.5)
    net = scalar_net((0.5, 0.4, 0.0))._replace(s=None)
    value, gradient = model.risk_and_gradient(net, problem)
    assert value == pytest.approx(0.125)
    # v u = right: a critical point with the error at -1 untouched, and global for v |u| = left.
    assert max(float(abs(leaf).max()) for leaf in jax.tree.leaves(gradient)) < 1e-15
    better = scalar_net((-0.5, 1.0, 0.0))._replace(s=None)
    assert model.risk(better, problem) == pytest.approx(0.02)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("depth", "width"), [(1, 1), (3, 2)])
def test_the_wrong_side_is_a_bad_local_minimum(depth, width, bias):
    problem = problems.two_points(0.0, 0.01)
    # V = 0, U > 0 of norm 0.3 and s = 0: units see x = +1, where nothing is wrong, and not x = -1.
    s = np.zeros((depth, width)) if bias else None
    U = np.full((depth, width, 1), 0.3 / np.sqrt(width))
    point = Blocks(U, np.zeros((depth, 1, width)), s)
    value, gradient = model.risk_and_gradient(point, problem)
    assert value == pytest.approx(0.01**2 / 2)
    assert not any(leaf.any() for leaf in jax.tree.leaves(gradient))
    rng = np.random.default_rng(0)
    around = jax.tree.map(lambda w: w + 0.1 * rng.uniform(-1, 1, (500, *w.shape)), point)
    batch = problems.copies(problem, 500)
    risks, _ = model.batched_risk_and_gradient(around, batch)
    # Without a smaller risk in a cube of half side 0.1, but for rounding.
    assert float(risks.min()) >= float(value) * (1 - 1e-12)
    U, V = np.zeros((depth, width, 1)), np.zeros((depth, 1, width))
    U[0, 0, 0], V[0, 0, 0] = -0.1, 0.1
    best = Blocks(U, V, s)
    assert model.risk(best, problem) < 1e-30
    assert model.max_norm(best) == pytest.approx(0.1)


def test_descent_is_the_iteration_and_stays_at_zero():
    sample, _ = problems.realizable(np.random.default_rng(2), 2, SETTING)
    start = model.random_blocks(np.random.default_rng(3), np.array([0.0, 0.3]), 2, 2, 3, True)
    start = jax.tree.map(np.nan_to_num, start)
    end, numbers = model.gradient_descent(
        start, sample, learning_rate=0.1, records=2, updates_per_record=2
    )
    by_hand = problems.member(start, 1)
    problem = problems.member(sample, 1)
    risks = [model.risk(by_hand, problem)]
    for _ in range(4):
        _, gradient = model.risk_and_gradient(by_hand, problem)
        by_hand = jax.tree.map(lambda w, g: w - 0.1 * g, by_hand, gradient)
        risks.append(model.risk(by_hand, problem))
    np.testing.assert_allclose(numbers["curve"][1], risks[::2], rtol=1e-12)
    _, gradient = model.risk_and_gradient(by_hand, problem)
    squared = model.squared_norm(gradient)
    assert numbers["squared_gradient"][1] == pytest.approx(float(squared), rel=1e-9)
    for left, right in zip(jax.tree.leaves(problems.member(end, 1)), by_hand, strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-12)
    assert numbers["travelled"][0] == 0.0
    assert numbers["travelled"][1] > 0
