"""The numbered statements of docs/theory, step by step.

Each page says which test checks which.
"""

import functools
import math

import numpy as np
import pytest

from identity_matters.linear import gradient_bound, model, random_ball, random_targets
from identity_matters.linear.factorization import factorize
from identity_matters.linear.matrix_powers import real_rotation_form
from identity_matters.linear.target import check_target
from identity_matters.memorize import adaptive, construct
from identity_matters.memorize.network import apply_block
from identity_matters.memorize.plan import in_blocks

# Rounding of norms and of products of a few well-conditioned matrices.
ROUNDING = 1e-12


def product(factors, width):
    """The factors multiplied from left to right; I for none."""
    return functools.reduce(np.matmul, factors, np.eye(width))


def points(count=200, width=3, seed=0, singular=False):
    """Random points from all samplers, including the tight ones."""
    rng = np.random.default_rng(seed)
    data = {
        "scale_log10": (-1.0, 1.0),
        "max_condition_log10": 2.0,
        "singular": singular,
    }
    for sampler in random_ball.SAMPLERS:
        drawn = random_ball.points(rng, sampler, count, width, (1, 5), 0.95, **data)
        for A, R, Sigma, depth in zip(*drawn, strict=True):
            yield A[:depth], R, Sigma


@pytest.mark.parametrize("singular", [False, True])
def test_each_step_of_the_gradient_bound(singular):
    """G3 to G6, at each of a thousand points by NumPy alone."""
    least_slack = math.inf
    for A, R, Sigma in points(singular=singular):
        depth, width, _ = A.shape
        factors = np.eye(width) + A
        tau = np.linalg.norm(A, 2, axis=(1, 2)).max()
        E = product(factors[::-1], width) - R
        smallest = np.linalg.svd(factors, compute_uv=False)[:, -1]
        assert smallest.min() >= (1 - tau) * (1 - ROUNDING) - ROUNDING  # G4
        weighted = np.linalg.norm(E @ Sigma) ** 2
        total = 0.0
        for i in range(depth):
            after = product(factors[:i:-1], width)
            before = product(factors[:i][::-1], width)
            squared = np.sum((2 * after.T @ E @ Sigma @ before.T) ** 2)
            # The smallest factors have an error of eps, which is eps / (1 - tau)
            # relative to them.
            # G5
            assert squared >= 4 * (1 - tau) ** (2 * depth - 2) * weighted * (1 - 1e-9)
            total += squared
        excess = np.trace(E @ Sigma @ E.T)
        eigenvalues = np.linalg.eigvalsh(Sigma)
        # Sigma has rank at least 1 and a condition number of at most 100 on its range.
        sigma = eigenvalues[eigenvalues > 1e-10 * eigenvalues[-1]][0]
        assert (eigenvalues[0] < sigma) == singular
        assert weighted >= sigma * excess * (1 - 1e-9)  # G6
        right = gradient_bound.gradient_bound_corrected(depth, tau, sigma, excess)
        assert total >= right * (1 - 1e-9)  # G3
        least_slack = min(least_slack, total / right)
    # Some of the points are near A_i = -tau I, Sigma = s I, where both sides are equal.
    assert least_slack < 1.01


def test_no_gradient_below_its_floor_where_the_determinant_is_0():
    """G10 for singular R, and with equality for R = 0 in one dimension."""
    for A, R, Sigma in points(50, seed=2):
        depth = len(A)
        R = R.copy()
        R[-1] = 0
        tau = np.linalg.norm(A, 2, axis=(1, 2)).max()
        E = product((np.eye(len(R)) + A)[::-1], len(R)) - R
        assert np.linalg.norm(E) >= (1 - tau) ** depth * (1 - 1e-9)
        squared = np.sum(np.asarray(model.risk_gradient(A, R, Sigma)) ** 2)
        least = np.linalg.eigvalsh(Sigma)[0]
        floor = 4 * depth * (1 - tau) ** (4 * depth - 2) * least**2
        assert squared >= floor * (1 - 1e-9)
    A = np.full((3, 1, 1), -0.75)
    gradient = model.risk_gradient(A, np.zeros((1, 1)), np.eye(1))
    assert np.sum(np.asarray(gradient) ** 2) == 4 * 3 * 0.25**10


@pytest.mark.slow
def test_no_gradient_below_its_floor_where_the_determinant_is_negative():
    """G10 at random points."""
    seen = 0
    for A, R, Sigma in points(50, seed=1):
        if np.linalg.det(R) > 0:
            R = R[::-1]
        if abs(np.linalg.det(R)) < 1e-9:
            continue
        tau = min(0.999, np.linalg.norm(A, 2, axis=(1, 2)).max() * (1 + ROUNDING))
        squared = np.sum(np.asarray(model.risk_gradient(A, R, Sigma)) ** 2)
        assert squared >= gradient_bound.squared_gradient_floor(
            R, Sigma, len(A), tau
        ) * (1 - 1e-9)
        seen += 1
    assert seen > 200


TARGETS = [
    random_targets.target(np.random.default_rng(d), family, d, strength)
    for d in (1, 2, 5, 8)
    for family, strength in (
        ("random", 1.0),
        ("near_minus_identity", 0.1),
        ("normal", 1.0),
    )
]


@pytest.mark.parametrize("R", TARGETS, ids=lambda R: f"d={len(R)}")
def test_polar_layers_all_have_the_norm_of_the_first(R):
    depth = check_target(R).least_depth + 3
    A = factorize(R, depth, "polar")
    norms = np.linalg.norm(A, 2, axis=(1, 2))
    np.testing.assert_allclose(norms, norms[0], rtol=0, atol=ROUNDING)
    # A_1 = Q^{1/l} P^{1/l} - I, with powers computed another way.
    target = check_target(R)
    turn = real_rotation_form(target.U @ target.Vt)
    Q = np.eye(len(R)) + turn.power_minus_identity(1 / depth)
    P = (target.Vt.T * target.K ** (1 / depth)) @ target.Vt
    np.testing.assert_allclose(A[0], Q @ P - np.eye(len(R)), rtol=0, atol=ROUNDING)
    np.testing.assert_allclose(
        np.linalg.matrix_power(Q, depth) @ np.linalg.matrix_power(P, depth),
        R,
        atol=1e-10,
    )


@pytest.mark.parametrize("R", TARGETS, ids=lambda R: f"d={len(R)}")
def test_the_polar_bound_step_by_step(R):
    """F2 and F3 at the least depth that the theorem allows, and deeper."""
    target = check_target(R)
    theta = real_rotation_form(target.U @ target.Vt).largest_angle
    constant = 3 * math.expm1(1 / 3)
    assert constant < 1.19
    for depth in (target.least_depth, 2 * target.least_depth, 500):
        norm = np.linalg.norm(factorize(R, depth, "polar")[0], 2)
        step = 2 * math.sin(theta / (2 * depth)) + math.expm1(target.gamma / depth)
        assert norm <= step * (1 + ROUNDING) + ROUNDING  # F2
        better = (theta + constant * target.gamma) / depth
        assert step <= better * (1 + ROUNDING)  # F3
        assert better <= (math.pi + 3 * target.gamma) / depth
    u = np.linspace(1e-6, 1 / 3, 1000)
    assert np.all(np.expm1(u) <= constant * u * (1 + ROUNDING))


def test_no_vector_gets_further_than_its_layers_carry_it():
    """F4, F6 and F7 for random layers, and every step of the proof of F4."""
    rng = np.random.default_rng(0)
    for _ in range(200):
        d = int(rng.integers(2, 6))
        depth = int(rng.integers(2, 6))
        tau = rng.uniform(0.05, 0.95)
        A = random_ball.layers(rng, "boundary", np.array([tau]), depth, d)[0]
        path = [rng.standard_normal(d)]
        for layer in A:
            path.append(path[-1] + layer @ path[-1])
        norms = np.linalg.norm(path, axis=1)
        cosines = np.sum(np.array(path[1:]) * path[:-1], axis=1) / (
            norms[1:] * norms[:-1]
        )
        steps = np.log(norms[1:] / norms[:-1]) + 1j * np.arccos(np.clip(cosines, -1, 1))
        assert np.all(np.abs(np.expm1(steps)) <= tau * (1 + 1e-7))
        phi = np.arccos(np.clip(path[-1] @ path[0] / (norms[-1] * norms[0]), -1, 1))
        assert steps.imag.sum() >= phi - 1e-7
        w = np.log(norms[-1] / norms[0]) + 1j * phi
        assert abs(np.expm1(w / depth)) <= tau * (1 + 1e-7)  # F4
        assert math.sin(phi / depth) <= tau * (1 + 1e-7)  # F7
        R = product((np.eye(d) + A)[::-1], d)
        K = np.linalg.svd(R, compute_uv=False)
        assert K[0] ** (1 / depth) - 1 <= tau * (1 + 1e-9)  # F6
        assert 1 - K[-1] ** (1 / depth) <= tau * (1 + 1e-9)


@pytest.mark.parametrize("d", [1, 2, 4])
@pytest.mark.parametrize("tau", [0.999, 1.0, 1.3, 2.5])
def test_bounds_of_layers_at_and_beyond_norm_1(d, tau):
    """F4 stops at 1; F6 and F7 do not need it. Half the layers turn one plane alike."""
    rng = np.random.default_rng(1)
    for trial in range(100):
        depth = int(rng.integers(1, 6))
        A = random_ball.layers(rng, "boundary", np.array([tau]), depth, d)[0]
        if trial % 2:
            A[:] = A[0]
        R = product((np.eye(d) + A)[::-1], d)
        x = rng.standard_normal((d, 50))
        lengths = np.linalg.norm(R @ x, axis=0) / np.linalg.norm(x, axis=0)
        if not lengths.min() > 0:
            continue
        cosines = np.sum(x * (R @ x), axis=0) / np.sum(x**2, axis=0) / lengths
        phi = np.arccos(np.clip(cosines, -1, 1))
        w = np.log(lengths) + 1j * phi
        bounds = np.minimum(1, np.abs(np.expm1(w / depth)))
        assert bounds.max() <= tau * (1 + 1e-7)  # F4
        K = np.linalg.svd(R, compute_uv=False)
        assert K[0] ** (1 / depth) - 1 <= tau * (1 + 1e-9)  # F6
        assert 1 - K[-1] ** (1 / depth) <= tau * (1 + 1e-9)
        assert depth == 1 or math.sin(phi.max() / depth) <= tau * (1 + 1e-7)  # F7


@pytest.mark.parametrize("tau", [0.1, 0.5, 0.9, 0.99])
def test_the_logarithm_of_a_disc_is_convex(tau):
    """F5: the tangent of log(1 + tau e^it) turns one way, and once around."""
    t = np.linspace(0, 2 * math.pi, 20_001)
    z = tau * np.exp(1j * t)
    velocity = 1j * z / (1 + z)
    turns = np.angle(velocity[1:] / velocity[:-1])
    assert turns.min() > 0
    assert turns.sum() == pytest.approx(2 * math.pi)
    # The derivative of the argument by differences; the curve is sampled every 3e-4.
    rate = np.real(1 / (1 + z))
    np.testing.assert_allclose(
        turns / np.diff(t), (rate[1:] + rate[:-1]) / 2, rtol=2e-3
    )


@pytest.mark.parametrize("rho", [0.01, 0.1, 0.3])
def test_lemma_b1_moves_the_points_of_a_set_and_no_others(rho):
    """E1 and E2 at random points.

    Their squared norms are anywhere in [1 - rho', 1 + rho'].
    """
    rng = np.random.default_rng(3)
    count = 0
    least = math.inf
    k = 64
    for _ in range(50):
        directions = rng.standard_normal((6, k))
        directions /= np.linalg.norm(directions, axis=1, keepdims=True)
        # Near one point: squared distances are about 2.8 rho', not much more than they
        # must be.
        a = (
            rng.permutation(np.eye(k))[0]
            + math.sqrt(1.4 * rho / (1 - 1.4 * rho)) * directions
        )
        a *= np.sqrt(
            rng.uniform(1 - rho, 1 + rho, (6, 1)) / np.sum(a**2, axis=1, keepdims=True)
        )
        squares = ((a[:, None] - a) ** 2).sum(-1) + 9 * np.eye(6)
        S = np.flatnonzero(squares.min(1) > 2.01 * rho)
        if not len(S):
            continue
        count += len(S)
        D = squares[S].min()
        least = min(least, D / rho)
        products = a[S] @ a.T
        products[np.arange(len(S)), S] = -np.inf
        t = products.max(1)
        inside = np.sum(a[S] ** 2, axis=1) - t
        assert (inside >= (D - 2 * rho) / 2 - ROUNDING).all()  # E1
        # Thresholds are halfway up, so that rounding does not decide which units are
        # silent.
        s = np.zeros(k)
        s[: len(S)] = -(t + inside / 2)
        U = np.zeros((k, k))
        V = np.zeros((k, k))
        b = rng.standard_normal(a.shape)
        U[: len(S)] = a[S]
        V[:, : len(S)] = (b[S] - a[S]).T / (inside / 2)
        expected = a.copy()
        expected[S] = b[S]
        moved = np.asarray(apply_block(a.T, U=U, V=V, s=s)).T
        np.testing.assert_allclose(moved, expected, atol=1e-10)  # E2
    assert count > 30 and least < 3


@pytest.fixture(scope="module", params=[1, 2, 5])
def plan(request):
    """(points, labels, plan) of the adaptive method at one width."""
    rng = np.random.default_rng(request.param)
    h = rng.standard_normal((101, request.param))
    y = rng.integers(0, 4, 101)
    return h, y, adaptive.plan_adaptive(h, 4, 16, rng, np.float64)


def test_the_gaps_that_thresholds_go_into(plan):
    """E6 in decreasing norm, E7, and a property of the code's own order.

    The proof uses that property.
    """
    h, _, decided = plan
    viewpoint = adaptive.choose_viewpoint(h)
    z = h - viewpoint
    by_norm = z[np.argsort(-np.linalg.norm(z, axis=1))]
    squares = np.sum(by_norm**2, axis=1)
    later = np.triu(np.ones((len(z), len(z)), bool), 1)
    gaps = squares[:, None] - by_norm @ by_norm.T
    half_distances = np.sum((by_norm[:, None] - by_norm[None]) ** 2, axis=2) / 2
    assert np.all((gaps - half_distances)[later] >= -ROUNDING)
    ordered = z[decided.order]
    assert np.all(
        (np.sum(ordered**2, axis=1)[:, None] - ordered @ ordered.T)[later] > 0
    )
    reach = ordered @ (decided.surrogates - viewpoint).T
    assert np.all(reach <= np.sum(ordered**2, axis=1)[:, None] / 2 * (1 + ROUNDING))


def test_activations_of_a_block_are_triangular(plan):
    """E8, and that no unit sees a surrogate label or a point of a later block."""
    h, y, decided = plan
    width = h.shape[1]
    U, s = (
        rows.reshape(-1, *rows.shape[2:])[: len(h)] for rows in (decided.U, decided.s)
    )
    activations = np.maximum(U @ h[decided.order].T + s[:, None], 0)
    assert np.all(np.diag(activations) > 0)
    assert not np.triu(activations, 1).any()
    assert not np.maximum(U @ decided.surrogates.T + s[:, None], 0).any()
    V = construct.solve(decided, h, y, np.float64).V
    moves = in_blocks(decided.surrogates[y[decided.order]] - h[decided.order], width)
    diagonal = np.stack(
        [
            activations[i : i + width, i : i + width]
            for i in range(0, len(h) - width + 1, width)
        ]
    )
    full = len(diagonal)
    np.testing.assert_allclose(
        V[:full] @ diagonal, np.swapaxes(moves, 1, 2)[:full], atol=1e-8
    )
    # The last block: V' relu(U' q_j + s') = e_j.
    output_V = construct.solve_output(decided, np.float64)
    hidden = decided.output_U @ decided.surrogates.T + decided.output_s[:, None]
    np.testing.assert_allclose(output_V @ np.maximum(hidden, 0), np.eye(4), atol=1e-9)
