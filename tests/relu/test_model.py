"""ReLU residual nets by hand: dead units, bad minima, the origin."""

import jax
import numpy as np
import pytest

from identity_matters.relu import (
    critical_points,
    feature_bound,
    flow,
    model,
    origin,
    problems,
)
from identity_matters.relu.model import Blocks, Problem
from tests.relu_problems import copies, hexagon, two_points, unit_blocks

SETTING = problems.Setting(
    pairs=3,
    width_in=2,
    lifted_width=3,
    depth=2,
    teacher_width=2,
    teacher_norm=0.5,
    bias=True,
)


def test_forward_and_risk_by_hand():
    # Block 1: 1 + 3 relu(2 1 - 1) = 4, -1 + 3 relu(-2 - 1) = -1. Block 2: 4 + relu(-4)
    # = 4, -1 - relu(1) = -2 with v = -1.
    net = unit_blocks([(2.0, 3.0, -1.0)], [(-1.0, -1.0, 0.0)])
    problem = problems.plain_problem([[1.0], [-1.0]], [[5.0], [1.0]])
    predictions, hidden, pre = model.forward(net, problem)
    np.testing.assert_array_equal(predictions, [[4.0], [-2.0]])
    np.testing.assert_array_equal(hidden[:, :, 0], [[1.0, -1.0], [4.0, -1.0]])
    np.testing.assert_array_equal(pre[:, :, 0], [[1.0, -3.0], [-4.0, 1.0]])
    assert model.risk(net, problem) == pytest.approx((1 + 9) / 2)


def test_maps_stand_before_and_behind_the_blocks():
    net = Blocks(np.array([[[1.0, 0.0]]]), np.array([[[0.0], [2.0]]]), None)
    A = np.array([[3.0], [1.0]])
    B = np.array([[10.0, 1.0]])
    problem = Problem(np.array([[1.0]]), np.zeros((1, 1)), A, B)
    # h = (3, 1), relu(3) = 3, h + (0, 6) = (3, 7), output 37.
    assert model.forward(net, problem)[0] == 37.0
    assert model.risk(net, problem) == 37.0**2


NET_OF_TWO = Blocks(np.ones((2, 4, 3)), np.ones((2, 3, 4)), np.ones((2, 4)))
SIX_EXAMPLES = Problem(
    np.ones((6, 2)), np.ones((6, 5)), np.ones((3, 2)), np.ones((5, 3))
)


@pytest.mark.parametrize(
    ("blocks", "problem", "message"),
    [
        # Arithmetic would repeat one entry for all: a number, but not the risk.
        ({}, {"y": np.ones((6, 1))}, r"y must have shape \(6, 5\), got \(6, 1\)"),
        ({}, {"y": np.ones((1, 5))}, r"y must have shape \(6, 5\), got \(1, 5\)"),
        ({"s": np.ones((2, 1))}, {}, r"s of the net must have shape \(2, 4\)"),
        ({"s": np.ones((1, 4))}, {}, r"s of the net must have shape \(2, 4\)"),
        # JAX takes the last block for those that are missing.
        ({"V": np.ones((1, 3, 4))}, {}, r"V of the net must have shape \(2, 3, 4\)"),
        ({"U": np.ones((1, 4, 3))}, {}, r"V of the net must have shape \(1, 3, 4\)"),
        ({"U": np.ones((4, 3))}, {}, r"U of the net must have 3 axes"),
        ({}, {"x": np.ones(6)}, r"x must have 2 axes, got shape \(6,\)"),
        ({}, {"A": np.ones((2, 3))}, r"A must have shape \(3, 2\), got \(2, 3\)"),
        ({}, {"x": np.ones((0, 2)), "y": np.ones((0, 5))}, "x must have an example"),
        (
            {"U": np.ones((0, 4, 3)), "V": np.ones((0, 3, 4)), "s": np.ones((0, 4))},
            {},
            "the net must have a block",
        ),
        ({}, {"B": np.ones((3, 5))}, r"B must have 3 columns, got shape \(3, 5\)"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(blocks, problem, message):
    assert model.risk(NET_OF_TWO, SIX_EXAMPLES) > 0
    with pytest.raises(ValueError, match=message):
        model.risk(NET_OF_TWO._replace(**blocks), SIX_EXAMPLES._replace(**problem))


@pytest.mark.parametrize("shape", [(1, 6, 3), (3, 6, 3), (2, 1, 3)])
def test_what_is_added_must_be_there_for_each_block_and_example(shape):
    with pytest.raises(ValueError, match=r"added must have shape \(2, 6, 3\), got"):
        model.forward(NET_OF_TWO, SIX_EXAMPLES, np.zeros(shape))


def stacked(*trees):
    """The trees with a leading axis of 1."""
    return jax.tree.map(lambda leaf: leaf[None], trees)


def test_float32_stays_float32():
    single = jax.tree.map(np.float32, (NET_OF_TWO, SIX_EXAMPLES))
    assert model.risk(*single).dtype == np.float32
    nets, samples = stacked(*single)
    _, numbers = critical_points.find(
        nets, samples, np.array([True]), steps=3, tolerance=1e-6
    )
    assert numbers["risk"].dtype == np.float32
    _, curves = flow.flow(nets, samples, np.ones(1), steps=2)
    assert curves["risk"].dtype == np.float32


# Functions of nets and samples with a leading axis of 1, and their settings.
SETTINGS = {
    flow.flow: {"time": np.ones(1), "steps": 2},
    model.gradient_descent: {
        "learning_rate": 0.1,
        "records": 1,
        "updates_per_record": 2,
    },
    critical_points.find: {
        "descends": np.array([True]),
        "steps": 2,
        "tolerance": 1e-9,
    },
    feature_bound.search: {
        "norm": 0.5,
        "objective": "ratio",
        "steps": 2,
        "learning_rate": 0.1,
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [int, np.float32])
@pytest.mark.parametrize("function", SETTINGS)
def test_weights_move_in_the_common_dtype(function, dtype):
    """Integers or shorter floats would be rounded after every step."""
    nets, samples = stacked(NET_OF_TWO, SIX_EXAMPLES)
    U = np.ones_like(nets.U)
    x = np.ones_like(samples.x)
    expected = function(nets._replace(U=U), samples, **SETTINGS[function])
    given = function(nets._replace(U=U.astype(dtype)), samples, **SETTINGS[function])
    jax.tree.map(np.testing.assert_array_equal, given, expected)
    expected = function(nets, samples._replace(x=x), **SETTINGS[function])
    given = function(nets, samples._replace(x=x.astype(dtype)), **SETTINGS[function])
    jax.tree.map(np.testing.assert_array_equal, given, expected)


@pytest.mark.parametrize(
    ("function", "changed", "message"),
    [
        (flow.flow, {"time": np.ones(())}, "one number for each net, got U of"),
        (flow.flow, {"time": np.ones(2)}, r"time of shape \(2,\)"),
        (flow.flow, {"steps": 2.5}, "steps must be a whole number, got 2.5"),
        (flow.flow, {"steps": -1}, "steps must be at least 1, got -1"),
        (model.gradient_descent, {"records": -1}, "records must be at least 0"),
        (model.gradient_descent, {"records": 2.5}, "records must be a whole number"),
        (model.gradient_descent, {"updates_per_record": -1}, "must be at least 0"),
        (critical_points.find, {"steps": -1}, "steps must be at least 0, got -1"),
        (feature_bound.search, {"steps": 0}, "steps must be at least 1, got 0"),
    ],
)
def test_searches_and_flows_take_whole_numbers_of_steps(function, changed, message):
    nets, samples = stacked(NET_OF_TWO, SIX_EXAMPLES)
    with pytest.raises(ValueError, match=message):
        function(nets, samples, **{**SETTINGS[function], **changed})


def test_the_second_order_form_takes_blocks_that_fit_together():
    """V of another rank would be summed over other axes."""
    V = NET_OF_TWO.V[None]
    with pytest.raises(ValueError, match=r"V of the net must have 3 axes"):
        origin.second_order_form(NET_OF_TWO._replace(V=V), SIX_EXAMPLES)


@pytest.mark.parametrize(("A", "x"), [(np.eye(2), np.eye(2)), (np.eye(2)[None], 1.0)])
def test_a_matrix_is_no_stack_of_layers_and_a_number_no_input(A, x):
    with pytest.raises(ValueError, match=r"A must be \[depth, d, d\], and x \[n, d\]"):
        model.linear_outputs(A, x)


def test_labels_of_another_shape_have_no_errors_at_the_origin():
    with pytest.raises(ValueError, match=r"y must have shape \(6, 5\)"):
        origin.risk_at_origin(SIX_EXAMPLES._replace(y=np.ones((6, 1))))
    with pytest.raises(ValueError, match=r"y must have shape \(6, 5\)"):
        feature_bound.functional_bound(
            NET_OF_TWO, SIX_EXAMPLES._replace(y=np.ones((6, 1)))
        )
    with pytest.raises(ValueError, match=r"y must have shape \(3, 2\)"):
        model.linear_residuals(
            np.ones((1, 2, 2)), SIX_EXAMPLES._replace(x=np.ones((3, 2)), y=np.ones(2))
        )


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (np.ones((2, 3)), np.ones((2, 1)), r"y must have shape \(2, 3\)"),
        (np.ones((2, 3)), np.ones((1, 3)), r"y must have shape \(2, 3\)"),
        (np.ones((2, 3)) * 1j, np.ones((2, 3)), "x must hold real numbers"),
        (np.ones(3), np.ones(3), "x must have 2 axes"),
    ],
)
def test_a_plain_problem_has_as_many_outputs_as_inputs(x, y, message):
    with pytest.raises(ValueError, match=message):
        problems.plain_problem(x, y)


def test_norm_is_the_largest_spectral_norm():
    net = Blocks(np.diag([3.0, 2.0])[None], np.eye(2)[None], np.array([[3.0, 4.0]]))
    assert model.max_norm(net) == pytest.approx(5.0)
    assert model.max_norm(net._replace(s=None)) == pytest.approx(3.0)


@pytest.mark.slow
def test_teachers_have_no_risk_and_see_the_sample():
    sample, teachers = problems.realizable(np.random.default_rng(1), 5, SETTING)
    risks, _ = jax.vmap(model.risk_and_gradient)(teachers, sample)
    np.testing.assert_array_equal(risks, np.zeros(5))
    np.testing.assert_array_equal(sample.x[:, :3], -sample.x[:, 3:])
    gram = sample.A.swapaxes(1, 2) @ sample.A
    np.testing.assert_allclose(gram, np.broadcast_to(np.eye(2), (5, 2, 2)), atol=1e-14)
    zero = jax.tree.map(np.zeros_like, teachers)
    at_zero, _ = jax.vmap(model.risk_and_gradient)(zero, sample)
    assert (np.asarray(at_zero) >= 2e-2 * 0.5**4).all()


def test_margins_and_dead_units_by_hand():
    """Weights of d = 1, x = 3 and -1.

    With a bias a unit (u, s) has length 5 for u = 3, s = 4.
    """
    problem = copies(problems.plain_problem([[3.0], [-1.0]], np.zeros((2, 1))), 1)

    def measured(*units, bias=True):
        net = unit_blocks(list(units))
        net = net if bias else net._replace(s=None)
        margins = critical_points.kink_margins(
            jax.tree.map(lambda w: w[None], net), problem
        )
        return {name: float(value[0]) for name, value in margins.items()}

    # The pre-activations are 13 and 1, and |z| is sqrt 10 and sqrt 2: 1 / (5 sqrt 2) is
    # least.
    alone = measured((3.0, 0.5, 4.0))
    assert alone["kink_margin"] == pytest.approx(1 / (5 * np.sqrt(2)))
    assert (alone["shortest_unit"], alone["dead_units"]) == (5.0, 0)
    # Without its bias it is 9 and -3 of 3 |x|: the margin is 1.
    assert measured((3.0, 0.5, 4.0), bias=False)["kink_margin"] == pytest.approx(1.0)
    # A unit that is exactly 0 on every example is dead, and at its kink.
    zero = measured((3.0, 0.5, 4.0), (0.0, 0.25, 0.0))
    assert zero == {"kink_margin": 0.0, "shortest_unit": 0.25, "dead_units": 1}
    assert measured((3.0, 0.5, 4.0), (0.1, 1.0, -0.5))["dead_units"] == 1


def test_dead_share_on_a_ball_by_hand():
    # d = 1, b = 1: the cone u + s < 0, s - u < 0 is a quarter of the plane. d = 2: a
    # circular cone of half angle 45 degrees, (1 - cos 45) / 2 of the sphere. b = 0: s <
    # 0.
    assert critical_points.dead_share_on_ball(1, 1.0) == pytest.approx(0.25)
    assert critical_points.dead_share_on_ball(2, 1.0) == pytest.approx(
        (1 - np.sqrt(0.5)) / 2
    )
    assert critical_points.dead_share_on_ball(5, 0.0) == pytest.approx(0.5)
    # A square beyond float64 leaves no share.
    assert critical_points.dead_share_on_ball(2, 1e200) == 0


@pytest.mark.parametrize(
    ("bias", "share"),
    # With biases the quarter of `test_dead_share_on_a_ball_by_hand`. Without, u must be
    # more than a right angle from both (1, 0) and (1, 1): 135 of 360 degrees.
    [(True, 1 / 4), (False, 3 / 8)],
)
def test_a_net_is_dead_if_all_of_its_units_are(bias, share):
    """N7: independent Gaussian rows, two blocks of two units, and any V."""
    x = np.array([[1.0], [-1.0]]) if bias else np.array([[1.0, 0.0], [1.0, 1.0]])
    d = x.shape[1]
    rng = np.random.default_rng(0)
    count = 40_000
    nets = Blocks(
        U=rng.standard_normal((count, 2, 2, d)),
        V=1e3 * rng.standard_normal((count, 2, d, 2)),
        s=rng.standard_normal((count, 2, 2)) if bias else None,
    )
    dead = critical_points.strictly_dead(nets, problems.plain_problem(x, x))
    deviation = np.sqrt(share**4 * (1 - share**4) / count)
    assert np.mean(dead) == pytest.approx(share**4, abs=4 * deviation)


@pytest.mark.slow
def test_a_dead_net_does_not_move_and_neither_does_its_neighbourhood():
    # |x| <= 1 and s = -0.3 < -|u|: dead in both blocks, whatever V.
    rng = np.random.default_rng(0)
    U = rng.uniform(-0.2, 0.2, (2, 3, 2))
    V = rng.standard_normal((2, 2, 3))
    net = Blocks(U, V, np.full((2, 3), -0.3))
    x = np.array([[1.0, 0.0], [-0.6, 0.8], [0.0, -1.0]])
    problem = problems.plain_problem(x, 2 * x)
    one_live = net._replace(s=np.array([[-0.3, -0.3, -0.3], [-0.3, 0.3, -0.3]]))
    nets = jax.tree.map(lambda *parts: np.stack(parts), net, one_live)
    np.testing.assert_array_equal(
        critical_points.strictly_dead(nets, problem), [True, False]
    )
    assert model.risk_and_gradient(one_live, problem)[1].V.any()
    for size in (0.0, 1e-3):
        moved = jax.tree.map(lambda w, size=size: w + size * np.cos(w), net)
        value, gradient = model.risk_and_gradient(moved, problem)
        assert value == pytest.approx(1.0)
        assert not any(leaf.any() for leaf in jax.tree.leaves(gradient))


def test_without_negative_biases_nets_die_only_if_zero_is_outside_the_hull():
    rng = np.random.default_rng(0)
    U, V, s = (
        rng.standard_normal((500, *shape)) for shape in [(1, 1, 2), (1, 2, 1), (1, 1)]
    )
    square = np.array([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]])
    around, beside = (problems.plain_problem(x, x) for x in (square, square + 3))
    for net in (Blocks(U, V, None), Blocks(U, V, np.abs(s))):
        assert not critical_points.strictly_dead(net, around).any()
        assert critical_points.strictly_dead(net, beside).any()


def test_the_two_points_by_hand():
    # u > 0: f = ((right - v u)^2 + left^2) / 2.
    problem = two_points(0.2, 0.5)
    net = unit_blocks([(0.5, 0.4, 0.0)])._replace(s=None)
    value, gradient = model.risk_and_gradient(net, problem)
    assert value == pytest.approx(0.125)
    # v u = right is a critical point that leaves the error at -1; v |u| = left, u < 0
    # is global.
    assert max(float(abs(leaf).max()) for leaf in jax.tree.leaves(gradient)) < 1e-15
    better = unit_blocks([(-0.5, 1.0, 0.0)])._replace(s=None)
    assert model.risk(better, problem) == pytest.approx(0.02)


@pytest.mark.slow
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("depth", "width"), [(1, 1), (3, 2)])
def test_the_wrong_side_is_a_bad_local_minimum(depth, width, bias):
    problem = two_points(0.0, 0.01)
    # V = 0, U > 0 of norm 0.3, s = 0: units are active at x = +1, where the error is 0,
    # not at -1.
    s = np.zeros((depth, width)) if bias else None
    U = np.full((depth, width, 1), 0.3 / np.sqrt(width))
    point = Blocks(U, np.zeros((depth, 1, width)), s)
    value, gradient = model.risk_and_gradient(point, problem)
    assert value == pytest.approx(0.01**2 / 2)
    assert not any(leaf.any() for leaf in jax.tree.leaves(gradient))
    rng = np.random.default_rng(0)
    around = jax.tree.map(
        lambda w: w + 0.1 * rng.uniform(-1, 1, (500, *w.shape)), point
    )
    batch = copies(problem, 500)
    risks, _ = jax.vmap(model.risk_and_gradient)(around, batch)
    # No smaller risk in a cube of half side 0.1, up to rounding.
    assert float(risks.min()) >= float(value) * (1 - 1e-12)
    U = np.zeros((depth, width, 1))
    V = np.zeros((depth, 1, width))
    U[0, 0, 0] = -0.1
    V[0, 0, 0] = 0.1
    best = Blocks(U, V, s)
    assert model.risk(best, problem) < 1e-30
    assert model.max_norm(best) == pytest.approx(0.1)


# The origin: its second-order form against f itself, and directions of escape.


def problem_of(lifted_width, bias=True):
    setting = problems.Setting(4, 2, lifted_width, 2, 2, 0.5, bias)
    sample, _ = problems.realizable(np.random.default_rng(4), 1, setting)
    return problems.member(sample, 0)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("lifted_width", [2, 3])
def test_the_form_is_the_second_order_term(lifted_width, bias):
    problem = problem_of(lifted_width)
    net = model.random_blocks(
        np.random.default_rng(5), np.ones(1), 3, 2, lifted_width, bias
    )
    blocks = problems.member(net, 0)
    form = origin.second_order_form(blocks, problem)
    errors = []
    for step in (1e-2, 5e-3):
        risk = model.risk(jax.tree.map(lambda w, step=step: step * w, blocks), problem)
        errors.append(
            abs(float(risk - origin.risk_at_origin(problem)) / step**2 - form)
        )
    assert abs(form) > 0.02
    # The next term is of fourth order, so half the step gives a quarter of the error.
    assert errors[1] == pytest.approx(errors[0] / 4, rel=0.05)


def test_the_form_by_hand():
    # x = 1, -1 with errors 1, 3; w = u = -2 is active at x = -1 only: m = 3 2 / 2 = 3,
    # q = -2 v m.
    problem = two_points(1.0, 3.0)
    blocks = Blocks(np.full((1, 1, 1), -2.0), np.full((1, 1, 1), 0.5), None)
    np.testing.assert_array_equal(origin.error_correlation([[-2.0]], problem), [[3.0]])
    assert origin.second_order_form(blocks, problem) == -3.0
    # -theta has w = 2, active at x = 1 only: m = 1 2 / 2 = 1, q = 1. So q is the
    # coefficient of eps^2 for eps > 0 only.
    opposite = jax.tree.map(np.negative, blocks)
    assert origin.second_order_form(opposite, problem) == 1.0
    for sign, form in ((1, -3.0), (-1, 1.0)):
        step = sign * 1e-3
        moved = model.risk(jax.tree.map(lambda w, step=step: step * w, blocks), problem)
        fall = float(moved - origin.risk_at_origin(problem))
        assert fall / step**2 == pytest.approx(form, rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("bias", [False, True])
def test_the_gradient_at_the_origin_is_exactly_zero(bias):
    problem = problem_of(3)
    zero = Blocks(
        np.zeros((3, 2, 3)), np.zeros((3, 3, 2)), np.zeros((3, 2)) if bias else None
    )
    value, gradient = model.risk_and_gradient(zero, problem)
    assert value > 0
    assert not any(leaf.any() for leaf in jax.tree.leaves(gradient))
    assert origin.largest_autodiff_hessian_entry(zero, problem) == 0.0


def test_escape_curvature_by_hand():
    # Without bias m(u) = u right / 2 for u > 0 and |u| left / 2 for u < 0.
    problem = two_points(1.0, -3.0)
    curvature, w = origin.escape_curvature(problem, False, np.random.default_rng(0), 8)
    assert curvature == pytest.approx(1.5)
    np.testing.assert_allclose(w, [-1.0])


def test_escape_curvature_against_the_plane():
    problem = problem_of(2)
    angle = np.linspace(0, 2 * np.pi, 20_000, endpoint=False)
    plane = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    by_grid = np.linalg.norm(origin.error_correlation(plane, problem), axis=1).max()
    curvature, w = origin.escape_curvature(
        problem, False, np.random.default_rng(0), 100
    )
    # The grid misses the maximum by at most its spacing; at a kink the error is of
    # first order.
    assert curvature == pytest.approx(by_grid, rel=1e-3)
    along = origin.escape_direction(w, problem, 2, 3)
    assert model.squared_norm(along) == pytest.approx(1.0)
    assert origin.second_order_form(along, problem) == pytest.approx(-curvature)


def test_the_hexagon_is_flat_without_biases_only():
    problem = hexagon(1.0)
    rng = np.random.default_rng(0)
    flat, w = origin.escape_curvature(problem, False, rng, 100)
    assert flat < 1e-15
    assert origin.escape_curvature(problem, True, rng, 100)[0] > 0.05
    third = 1 / np.sqrt(3)
    U = np.array([[[0, 1], [0, 0]], [[0, 1], [1, 0]]], float)
    V = np.array([[[third, 0], [0, 0]], [[-third, -2 / 9], [0, 0]]])
    # 1 at the origin
    assert model.risk(Blocks(U, V, None), problem) == pytest.approx(53 / 54)
    # Nor is the origin a local minimum: with -1/3 in place of -2/9, f falls by eps^4 /
    # 36.
    V[1, 0, 1] = -1 / 3
    for size in (0.3, 0.1, 0.03):
        scaled = jax.tree.map(lambda w, size=size: size * w, Blocks(U, V, None))
        expected = -(size**4) / 18 + size**4 / 54 * (5 / 4 + (1 + size**2) ** 2 / 4)
        assert float(model.risk(scaled, problem)) - 1 == pytest.approx(
            expected, abs=1e-15
        )
        assert expected == pytest.approx(-(size**4) / 36, rel=size**2)
    exact = problems.plain_problem(problem.x, problem.x)
    with pytest.raises(ValueError, match=r"m\(w\) = 0"):
        origin.escape_direction(w, exact, 1, 1)


def test_with_biases_only_group_means_of_errors_matter():
    # Two examples at each input whose errors cancel: optimal among all functions of x.
    x = np.array([[1.0, 0.0], [1.0, 0.0], [-1.0, 1.0], [-1.0, 1.0]])
    e = np.array([[1.0, 2.0], [-1.0, -2.0], [0.5, 0.0], [-0.5, 0.0]])
    rng = np.random.default_rng(0)
    assert (
        origin.escape_curvature(problems.plain_problem(x, x + e), True, rng, 100)[0]
        < 1e-15
    )
    e[0] *= 2
    assert (
        origin.escape_curvature(problems.plain_problem(x, x + e), True, rng, 100)[0]
        > 0.1
    )


def test_without_biases_two_moments_of_the_errors_decide():
    """N4: q vanishes for errors odd in x with sum e_i x_i = 0.

    Here each condition is needed.
    """
    rng = np.random.default_rng(1)
    half = rng.standard_normal((4, 2))
    x = np.concatenate([half, -half])
    e = rng.standard_normal((4, 1))
    e -= half @ np.linalg.lstsq(half, e, rcond=None)[0]
    curvature = {}
    for name, errors in {
        "both": np.concatenate([e, -e]),
        "even": np.concatenate([e, e]),
        "first moment": np.concatenate([half[:, :1], -half[:, :1]]),
    }.items():
        y = x + np.pad(errors, ((0, 0), (0, 1)))
        problem = problems.plain_problem(x, y)
        curvature[name], _ = origin.escape_curvature(problem, False, rng, 50)
    assert curvature["both"] < 1e-14
    assert min(curvature["even"], curvature["first moment"]) > 0.05
