"""Gradient descent against updates made by hand, its stop rules, its starts and step size."""

import math

import jax
import numpy as np
import pytest

from identity_matters.linear import descent, gradient_bound, model

ONE = np.zeros((1, 1, 1))  # a scalar layer at 0
TWO = np.array([[2.0]])  # its target: f - C = (1 + a - 2)^2


def _descend(A, R, Sigma=None, maps=(), **settings):
    """A run that no rule but the number of updates stops, if `settings` do not say otherwise."""
    rules = {
        "learning_rate": 0.1,
        "max_updates": 10,
        "risk_tolerance": 0.0,
        "divergence_factor": 1e300,
    }
    Sigma = np.eye(R.shape[1]) if Sigma is None else Sigma
    return descent.gradient_descent(A, R, Sigma, descent.Rules(**(rules | settings)), *maps)


def test_one_number_by_hand():
    # f - C = s (1 + a - R)^2 with s = 2, R = 2: a <- a - 0.1 * 4 (a - 1) maps 1 - a to 0.6 (1 - a).
    run = _descend(ONE, TWO, TWO, max_updates=4)
    left = 0.6 ** np.arange(5)
    np.testing.assert_array_equal(run.curves.updates, [0, 1, 2, 3, 4])
    # Four roundings a step.
    np.testing.assert_allclose(run.curves.excess_risk, 2 * left**2, rtol=1e-14)
    np.testing.assert_allclose(run.curves.gradient_norm, 4 * left, rtol=1e-14)
    np.testing.assert_allclose(run.curves.norm, 1 - left, rtol=1e-14, atol=1e-16)
    # d = l = 1: corrected eq. (2.3) is an equality, 4 s (f - C) = grad^2.
    bound = gradient_bound.gradient_bound_corrected(1, run.curves.norm, 2.0, run.curves.excess_risk)
    np.testing.assert_allclose(bound, run.curves.gradient_norm**2, rtol=1e-14)
    assert (run.stopped, run.updates, run.converged) == ("max updates", 4, False)


def test_two_layers_against_a_plain_loop():
    rng = np.random.default_rng(0)
    A, R = 0.1 * rng.standard_normal((2, 3, 3)), rng.standard_normal((3, 3))
    Sigma = np.diag([0.5, 1.0, 2.0])
    run = _descend(A, R, Sigma, learning_rate=0.02, max_updates=7, record_every=3)
    iterates = [A]
    for _ in range(7):
        iterates.append(
            iterates[-1] - 0.02 * np.asarray(model.risk_gradient(iterates[-1], R, Sigma))
        )
    np.testing.assert_array_equal(run.curves.updates, [0, 3, 6, 7])
    np.testing.assert_allclose(run.A, iterates[7], rtol=1e-12)
    for row, t in enumerate(run.curves.updates):
        excess, gradient = model.excess_risk_and_gradient(iterates[t], R, Sigma)
        norm = float(model.max_spectral_norm(iterates[t]))
        found = [run.curves.excess_risk[row], run.curves.gradient_norm[row], run.curves.norm[row]]
        np.testing.assert_allclose(found, [excess, np.linalg.norm(gradient), norm], rtol=1e-12)


def test_stops_at_the_first_update_below_the_risk_tolerance():
    # Excess risks 1, 0.36, 0.1296, ... with learning rate 0.2.
    run = _descend(ONE, TWO, learning_rate=0.2, record_every=10, risk_tolerance=0.13)
    assert (run.stopped, run.updates, run.converged) == ("risk below tolerance", 2, True)
    np.testing.assert_array_equal(run.curves.updates, [0, 2])
    optimal = _descend(np.zeros((2, 2, 2)), np.eye(2))
    assert (optimal.stopped, optimal.updates) == ("risk below tolerance", 0)
    np.testing.assert_array_equal(optimal.curves.excess_risk, [0.0])


def test_stops_where_an_update_promises_too_little():
    # a = 1e-3 of two standard layers: f - C ~ 1 and eta ||grad||^2 = 0.1 * 2 * (2 * 1e-3)^2 = 8e-7.
    start, R = np.full((2, 1, 1), 1e-3) - 1, np.array([[1.0]])
    assert _descend(start, R, stall_tolerance=1e-6).stopped == "stalled"
    assert _descend(start, R, stall_tolerance=1e-7).stopped == "max updates"
    # At zero weights the gradient is exactly 0, which any tolerance stops at.
    at_zero = _descend(np.full((2, 1, 1), -1.0), R)
    assert (at_zero.stopped, at_zero.updates) == ("stalled", 0)


def test_stops_where_it_diverges():
    # The error is multiplied by 1 - 2 * 2 = -3, the excess risk by 9; for two layers it explodes.
    settings = {"learning_rate": 2.0, "max_updates": 1000, "divergence_factor": 2.0}
    run = _descend(np.zeros((2, 1, 1)), np.array([[3.0]]), **settings)
    assert run.stopped == "diverged" and run.updates < 20
    assert not run.curves.inside[-1]
    run = _descend(np.full((1, 2, 2), np.nan), np.eye(2))
    assert (run.stopped, run.updates) == ("diverged", 0)


def test_leaving_the_unit_ball_is_noticed_between_records_and_remembered():
    # l = 1: a overshoots to 1.9 after one update (R - 1 = 1, factor 1.9) and comes back to 0.19.
    settings = {"learning_rate": 0.95, "max_updates": 2}
    every = _descend(ONE, TWO, **settings)
    np.testing.assert_allclose(every.curves.norm, [0.0, 1.9, 0.19], atol=1e-15)
    np.testing.assert_array_equal(every.curves.inside, [True, False, False])
    ends = _descend(ONE, TWO, record_every=2, **settings)
    np.testing.assert_array_equal(ends.curves.inside, [True, False])


def test_inside_is_about_the_spectral_norm_not_the_frobenius_norm():
    A = np.array([0.9 * np.eye(3)])  # Frobenius norm 1.56, spectral norm 0.9
    assert _descend(A, np.eye(3), max_updates=0).curves.inside[0]
    assert not _descend(A / 0.9, np.eye(3), max_updates=0).curves.inside[0]


def test_fixed_maps():
    """With C = [1; 0] and B = [0, 1] only one entry matters: sum_i A_i[1, 0] = R (hand)."""
    C, B = descent.modified_identity_maps(1)
    np.testing.assert_array_equal(C, [[1], [0]])
    np.testing.assert_array_equal(B, [[0, 1]])
    # Curvature 2 l = 4, so a learning rate of 1/4 is one Newton step: A_i[1, 0] = -3/2.
    run = _descend(
        np.zeros((2, 2, 2)), np.array([[-3.0]]), maps=(C, B), learning_rate=0.25, max_updates=1
    )
    np.testing.assert_array_equal(run.A, [[[0, 0], [-1.5, 0]]] * 2)
    np.testing.assert_array_equal(run.curves.excess_risk, [9.0, 0.0])


def test_guaranteed_decrease_is_reached_exactly_in_one_dimension():
    # l = d = 1, s = 1: mu = 2 and an update multiplies f - C by (1 - 2 eta)^2 <= 1 - eta mu.
    promised = descent.guaranteed_decrease(1, 0.5, 1.0, 0.1)
    assert promised == pytest.approx(-math.log(0.8), rel=1e-15)
    run = _descend(ONE, np.array([[1.5]]), max_updates=5)
    assert np.all(-np.diff(np.log(run.curves.excess_risk)) >= promised)
    # mu = 2 l (1 - tau)^{2l-2} sigma_min = 2 * 2 * 0.25 * 3 = 3.
    assert descent.guaranteed_decrease(2, 0.5, 3.0, 0.1) == pytest.approx(-math.log(0.7))
    assert descent.guaranteed_decrease(2, 1.0, 3.0, 0.1) == 0.0


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("learning_rate", 0.0),
        ("learning_rate", math.nan),
        ("max_updates", -1),
        ("record_every", 0),
        ("risk_tolerance", -1.0),
        ("stall_tolerance", math.nan),
        ("divergence_factor", 1.0),
    ],
)
def test_bad_rules_are_named(setting, value):
    with pytest.raises(ValueError, match=f"{setting} must be .*, got {value}"):
        _descend(ONE, TWO, **{setting: value})


def test_many_starts_end_like_each_alone():
    rng = np.random.default_rng(5)
    R, depth = np.diag([1.0, -0.5]), 3
    starts = 0.1 * rng.standard_normal((4, depth, 2, 2))
    rules = descent.Rules(1 / (2 * depth), 60, risk_tolerance=1e-6, divergence_factor=1e3)
    ends = descent.descend_many(starts, R, rules)
    assert 0 < np.sum(ends.converged) < len(starts)  # both kinds of ends are compared
    for i, A in enumerate(starts):
        alone = descent.gradient_descent(A, R, np.eye(2), rules)
        assert (ends.updates[i], ends.converged[i]) == (alone.updates, alone.converged)
        assert ends.excess_risk[i] == pytest.approx(alone.curves.excess_risk[-1], rel=1e-9)
        assert ends.norm[i] == pytest.approx(alone.curves.norm[-1], rel=1e-9)


def test_a_start_that_diverges_stops_and_has_not_converged():
    starts = np.array([[[[0.0]]], [[[9.0]]]])  # one layer: the error grows by -2 each update
    rules = descent.Rules(1.5, max_updates=9, risk_tolerance=0.0, divergence_factor=10.0)
    ends = descent.descend_many(starts, np.array([[10.0]]), rules)
    # The excess quadruples, 4 and 16 times the first; the other starts at the optimum.
    assert ends.updates.tolist() == [2, 0]
    assert ends.converged.tolist() == [False, True]


def test_wide_gaussian_maps_keep_lengths():
    C, B = descent.gaussian_maps(np.random.default_rng(0), 3, 20_000)
    # The entries of C^T C have a standard deviation of at most sqrt(2 / 20000) = 0.01.
    np.testing.assert_allclose(C.T @ C, np.eye(3), atol=0.05)
    np.testing.assert_allclose(B @ B.T, np.eye(3), atol=0.05)


def test_last_layer_minus_identity_maps_everything_to_zero():
    A = descent.last_layer_minus_identity(3, 2)
    np.testing.assert_array_equal(model.product(A), np.zeros((2, 2)))
    assert np.count_nonzero(A[:2]) == 0


def test_the_learning_rate_is_exact_where_the_bound_is_an_equality():
    """R = 2 I, A_i = sqrt(2) - 1, Sigma = 3 I and maps of norm 5 and 7, against the Hessian."""
    depth, R, Sigma = 2, 2 * np.eye(2), 3 * np.eye(2)
    rate = descent.largest_stable_learning_rate(R, Sigma, depth)
    assert rate == pytest.approx(1 / (2 * 2 * 3 * 4), rel=1e-15)
    A = (np.sqrt(2) - 1) * np.broadcast_to(np.eye(2), (2, 2, 2))
    hessian = jax.hessian(lambda a: model.excess_risk(a.reshape(A.shape), R, Sigma))(A.ravel())
    curvature = float(np.linalg.eigvalsh(hessian)[-1])
    # Each side of the layer has norm at most sqrt(2), not 2: the bound is 2^{1/l} too careful.
    assert curvature == pytest.approx(2 * 2 * 3 * 2, rel=1e-12)
    assert rate <= 1 / curvature
    with_maps = descent.largest_stable_learning_rate(R, Sigma, depth, 5 * np.eye(2), 7 * np.eye(2))
    assert with_maps == pytest.approx(rate / (25 * 49), rel=1e-14)
