"""The origin: its second-order form against f itself, escape directions, when there are none."""

import jax
import numpy as np
import pytest

from identity_matters.relu import model, origin, problems
from identity_matters.relu.model import Blocks


def problem_of(lifted_width, bias=True):
    setting = problems.Setting(4, 2, lifted_width, 2, 2, 0.5, bias)
    sample, _ = problems.realizable(np.random.default_rng(4), 1, setting)
    return problems.member(sample, 0)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("lifted_width", [2, 3])
def test_the_form_is_the_second_order_term(lifted_width, bias):
    problem = problem_of(lifted_width)
    one = model.random_blocks(np.random.default_rng(5), np.ones(1), 3, 2, lifted_width, bias)
    blocks = problems.member(one, 0)
    form = origin.second_order_form(blocks, problem)
    errors = []
    for step in (1e-2, 5e-3):
        risk = model.risk(jax.tree.map(lambda w, step=step: step * w, blocks), problem)
        errors.append(abs(float(risk - origin.risk_at_origin(problem)) / step**2 - form))
    assert abs(form) > 0.02
    # The next term is of fourth order: half the step, a quarter of the error.
    assert errors[1] == pytest.approx(errors[0] / 4, rel=0.05)


def test_the_form_by_hand():
    # x = 1, -1 with errors 1, 3; w = u = -2 sees x = -1 only: m = 3 2 / 2 = 3, q = -2 v m.
    problem = problems.two_points(1.0, 3.0)
    blocks = Blocks(np.full((1, 1, 1), -2.0), np.full((1, 1, 1), 0.5), None)
    np.testing.assert_array_equal(origin.error_correlation([[-2.0]], problem), [[3.0]])
    assert origin.second_order_form(blocks, problem) == -3.0


@pytest.mark.parametrize("bias", [False, True])
def test_the_gradient_at_the_origin_is_exactly_zero(bias):
    problem = problem_of(3)
    zero = model.zeros(3, 2, 3, bias)
    value, gradient = model.risk_and_gradient(zero, problem)
    assert value > 0
    assert not any(leaf.any() for leaf in jax.tree.leaves(gradient))
    assert origin.largest_autodiff_hessian_entry(problem, 2, 2, bias) == 0.0


def test_escape_curvature_by_hand():
    # Without bias m(u) = u right / 2 for u > 0 and |u| left / 2 for u < 0.
    curvature, w = origin.escape_curvature(
        problems.two_points(1.0, -3.0), False, np.random.default_rng(0), 8
    )
    assert curvature == pytest.approx(1.5)
    np.testing.assert_allclose(w, [-1.0])


def test_escape_curvature_against_the_plane():
    problem = problem_of(2)
    angle = np.linspace(0, 2 * np.pi, 20_000, endpoint=False)
    plane = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    by_grid = np.linalg.norm(origin.error_correlation(plane, problem), axis=1).max()
    curvature, w = origin.escape_curvature(problem, False, np.random.default_rng(0), 100)
    # The grid misses the maximum by its spacing at most; where it is at a kink, at first order.
    assert curvature == pytest.approx(by_grid, rel=1e-3)
    along = origin.escape_direction(w, problem, 2, 3)
    assert model.squared_norm(along) == pytest.approx(1.0)
    assert origin.second_order_form(along, problem) == pytest.approx(-curvature)


def test_the_hexagon_is_flat_without_biases_only():
    problem = problems.hexagon(1.0)
    rng = np.random.default_rng(0)
    flat, w = origin.escape_curvature(problem, False, rng, 100)
    assert flat < 1e-15
    assert origin.escape_curvature(problem, True, rng, 100)[0] > 0.05
    exact = problems.plain_problem(problem.x, problem.x)
    with pytest.raises(ValueError, match=r"m\(w\) = 0"):
        origin.escape_direction(w, exact, 1, 1)


def test_with_biases_only_group_means_of_errors_matter():
    # Two examples at each input whose errors cancel: optimal among all functions of x.
    x = np.array([[1.0, 0.0], [1.0, 0.0], [-1.0, 1.0], [-1.0, 1.0]])
    e = np.array([[1.0, 2.0], [-1.0, -2.0], [0.5, 0.0], [-0.5, 0.0]])
    rng = np.random.default_rng(0)
    assert origin.escape_curvature(problems.plain_problem(x, x + e), True, rng, 100)[0] < 1e-15
    e[0] *= 2
    assert origin.escape_curvature(problems.plain_problem(x, x + e), True, rng, 100)[0] > 0.1


def test_without_biases_two_moments_of_the_errors_decide():
    """N4: q vanishes for errors odd in x with sum e_i x_i = 0, and only if both hold here."""
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
