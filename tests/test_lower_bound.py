"""The lower bound on |||A||| and the exact shortest path in the plane."""

import itertools
import math

import numpy as np
import pytest

from identity_matters import random_matrices
from identity_matters.linear.factorization import PathSettings, factorize, polar_bound
from identity_matters.linear.lower_bound import (
    _best_direction,
    _negated_bound_and_gradient,
    half_turn_bound,
    norm_lower_bound,
    plane_path_length,
)


def turn(angle):
    return np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])


def stretched_turn(theta, g):
    return turn(theta) @ np.diag([math.exp(g), math.exp(-g)])


def test_by_hand():
    assert norm_lower_bound([[2.0]], 4) == pytest.approx(2**0.25 - 1, rel=1e-13)
    assert norm_lower_bound([[0.5]], 4) == pytest.approx(1 - 2**-0.25, rel=1e-13)
    assert norm_lower_bound(turn(2.5), 10) == pytest.approx(2 * math.sin(0.125), rel=1e-13)
    # One layer: ||2 T(1) - I|| = |2 e^i - 1|.
    expected = math.hypot(2 * math.cos(1) - 1, 2 * math.sin(1))
    assert norm_lower_bound(2 * turn(1.0), 1) == pytest.approx(expected, rel=1e-13)
    assert norm_lower_bound(-np.eye(4), 8) == pytest.approx(2 * math.sin(math.pi / 16), rel=1e-13)


def test_never_claims_more_than_1_for_several_layers():
    # |exp(i pi / 2) - 1| = 1.41 would need a norm above 1, where the proof stops.
    assert norm_lower_bound(-np.eye(2), 2) == 1.0


@pytest.mark.parametrize("d", [2, 3, 6])
def test_is_below_the_layers_it_was_made_of(d):
    generator = np.random.default_rng(d)
    for _ in range(20):
        A = generator.standard_normal((5, d, d))
        A *= generator.uniform(0.05, 0.6) / np.linalg.norm(A, 2, axis=(1, 2))[:, None, None]
        R = np.eye(d)
        for layer in A:
            R = R + layer @ R
        # Rounding of the product alone separates the two sides of an equality.
        assert norm_lower_bound(R, 5) <= random_matrices.largest_spectral_norm(A) * (1 + 1e-9)


def test_half_turn_bound_of_a_pair_by_brute_force():
    """Of all x in the plane, at any determinant: the slowest goes the long way round."""
    depth, t = 10**6, np.linspace(0, math.pi, 200_001)
    for a, b in [(2.0, 0.5), (3.0, 0.2), (40.0, 0.1), (0.9, 0.03)]:
        along, across = a * np.cos(t), b * np.sin(t)
        length = np.hypot(along, across)
        angle = np.arccos(np.clip((np.cos(t) * along + np.sin(t) * across) / length, -1, 1))
        expected = np.hypot(np.log(length), math.pi + angle).max()
        for R in (np.diag([-a, -b]), np.diag([-a, 7.0, -b])):
            # The grid of 512 stretches is good to about its square.
            assert depth * half_turn_bound(R, depth) == pytest.approx(expected, rel=2e-5)
        assert plane_path_length(np.diag([-a, -b])) == pytest.approx(expected, rel=1e-8)


def test_half_turn_bound_of_a_matrix_that_is_not_normal_by_sampling():
    depth = 100
    R = np.array([[-2.0, 1.0, 0.5], [0.0, -0.5, -1.0], [0.3, 0.0, 1.0]])
    X = np.random.default_rng(0).standard_normal((3, 400_000))
    image = R @ X
    lengths = np.linalg.norm(X, axis=0), np.linalg.norm(image, axis=0)
    rho = lengths[1] / lengths[0]
    alpha = np.arccos(np.sum(X * image, axis=0) / (lengths[0] * lengths[1]))
    moduli = np.sort(np.abs([x.real for x in np.linalg.eigvals(R) if x.real < 0]))
    sampled = 0.0
    edges = np.geomspace(*moduli, 60)
    for low, high in itertools.pairwise(edges):
        among = (rho > low) & (rho < high)
        w = np.log(np.sqrt(low * high)) + 1j * (2 * math.pi - alpha[among].max())
        sampled = max(sampled, abs(np.expm1(w / depth)))
    # Samples miss the largest angle, so theirs is the larger bound, by little.
    assert half_turn_bound(R, depth) <= sampled * (1 + 1e-4)
    assert half_turn_bound(R, depth) == pytest.approx(sampled, rel=0.01)
    assert half_turn_bound(R, depth) > 1.02 * abs(np.expm1((np.log(2) + math.pi * 1j) / depth))


def test_only_an_odd_number_of_negative_eigenvalues_makes_half_turns():
    assert half_turn_bound(np.diag([2.0, 0.5, 1.0]), 8) == 0.0
    # In pairs they take a half turn each, which the vectors in them know.
    assert half_turn_bound(-np.eye(4), 8) == pytest.approx(2 * math.sin(math.pi / 16), rel=1e-13)
    # Between 1 and 2 their number is even: -1 and -1 pair, and -2 and -2.
    length = 10**6 * half_turn_bound(np.diag([-1.0, -2.0, -1.0, -2.0]), 10**6)
    assert length == pytest.approx(abs(math.log(2) + math.pi * 1j), rel=1e-5)


@pytest.mark.parametrize("d", [2, 3, 4, 5])
def test_no_multiplier_gives_more_than_those_that_are_tried(d):
    """F10 holds for every y; the best lies between 1/2a and 1/2b, whether R is normal or not."""
    depth, a, b = 100, 2.0, 0.5
    S = np.eye(d) + 0.3 * np.random.default_rng(d).standard_normal((d, d))
    R = S @ np.diag([-a, -b, 0.7, 1.5, 3.0][:d]) @ np.linalg.inv(S)
    rho, reached = np.geomspace(b, a, 200), 0.0
    for y in [*np.linspace(-3 / b, 3 / b, 61), *np.geomspace(0.1 / a, 5 / b, 200)]:
        least = np.linalg.eigvalsh((R + R.T) / 2 + y * R.T @ R)[0]
        alpha = np.arccos(np.clip(least / rho - y * rho, -1, 1))
        w = np.log(rho) + 1j * (2 * math.pi - alpha)
        reached = max(reached, np.abs(np.expm1(w / depth)).max())
    # At the ends of [b, a] alpha is pi, which vectors know; half turns must give more.
    assert reached > 1.01 * abs(np.expm1((np.log(a) + math.pi * 1j) / depth))
    # Either has a grid that the other misses by about the square of its step.
    assert half_turn_bound(R, depth) == pytest.approx(reached, rel=1e-3)


def test_half_turn_bound_is_below_products_of_layers_with_negative_eigenvalues():
    generator, compared, closest = np.random.default_rng(0), 0, 0.0
    for _ in range(600):
        d, tau = int(generator.integers(2, 5)), generator.uniform(0.4, 0.95)
        depth = math.ceil(3.3 / tau)
        # Layers that turn much the same way, so that some products turn by more than pi.
        same, noise = generator.standard_normal((d, d)), generator.standard_normal((depth, d, d))
        A = (same - same.T) / 2 + 0.3 * noise
        A *= tau / np.linalg.norm(A, 2, axis=(1, 2))[:, None, None]
        R = np.eye(d)
        for layer in A:
            R = R + layer @ R
        found = half_turn_bound(R, depth)
        compared += found > 0
        closest = max(closest, found / tau)
    assert compared > 40
    assert 0.95 < closest <= 1 + 1e-7


@pytest.mark.parametrize("seed", range(4))
def test_the_transpose_has_the_same_bounds(seed):
    R = np.random.default_rng(seed).standard_normal((3, 3))
    R *= np.sign(np.linalg.det(R))
    bounds = [_best_direction(M, 16, 16) for M in (R, R.T)]
    assert bounds[0] == pytest.approx(bounds[1], rel=1e-9)
    half_turns = [half_turn_bound(M, 16) for M in (R, R.T)]
    assert half_turns[0] == pytest.approx(half_turns[1], rel=1e-9)


def test_gradient_by_differences():
    generator = np.random.default_rng(0)
    R, x, e = generator.standard_normal((4, 4)), generator.standard_normal(4), np.eye(4)
    _, gradient = _negated_bound_and_gradient(x, R, 7)
    h = 1e-6
    for i in range(4):
        above = _negated_bound_and_gradient(x + h * e[i], R, 7)[0]
        below = _negated_bound_and_gradient(x - h * e[i], R, 7)[0]
        # Central differences are good to h^2 and to eps / h.
        assert gradient[i] == pytest.approx((above - below) / (2 * h), abs=1e-8)


def test_plane_path_length_in_closed_form():
    # A pure stretch and a pure turn are geodesics.
    assert plane_path_length(stretched_turn(0.0, 1.3)) == pytest.approx(1.3, rel=1e-9)
    assert plane_path_length(turn(2.5)) == pytest.approx(2.5, rel=1e-12)
    # Horocycle: theta + gd(g).
    expected = 2.0 + math.atan(math.sinh(1.0))
    assert plane_path_length(stretched_turn(2.0, 1.0)) == pytest.approx(expected, rel=1e-12)
    # A shear by a is a horocycle with theta = gd(g), run through without a turn of its own.
    g = math.asinh(0.5)
    assert plane_path_length(np.array([[1.0, 1.0], [0, 1]])) == pytest.approx(2 * math.atan(0.5))
    assert math.atan(0.5) >= math.sinh(g) - math.atan(math.sinh(g))


@pytest.mark.parametrize("seed", range(8))
def test_paths_in_the_plane_are_as_short_as_the_bound_at_any_determinant(seed):
    """F11: the first start of the path is optimal in the plane, whatever the determinant."""
    R = np.random.default_rng(seed).standard_normal((2, 2))
    R[0] *= np.sign(np.linalg.det(R))
    depth, exact = 4096, plane_path_length(R)
    A = factorize(R, depth, "path", path_settings=PathSettings(starts=0))
    assert depth * np.linalg.norm(A[0], 2) == pytest.approx(exact, rel=exact / depth)
    assert depth * norm_lower_bound(R, depth) == pytest.approx(exact, rel=exact / depth)


@pytest.mark.parametrize(("theta", "g"), [(2.5, 1.0), (0.3, 1.5), (0.1, 2.0), (3.1, 0.3)])
def test_shortest_path_reaches_the_exact_length_in_the_plane(theta, g):
    """Two independent ways to one number: the formula and a numerical minimisation."""
    R = stretched_turn(theta, g)
    depth = 1024
    norm = random_matrices.largest_spectral_norm(factorize(R, depth, "path"))
    exact = plane_path_length(R)
    assert exact < theta + g <= depth * polar_bound(g, depth)
    # 24 pieces follow an arc to about (length / 24)^2 / 24; the layers add length / 2 l.
    assert exact * (1 - exact / depth) <= depth * norm <= exact * 1.005
    lower = norm_lower_bound(R, depth)
    assert norm >= lower >= -math.expm1(-exact / depth)
    # sup |w| is at most the length, and |e^z - 1| at most e^|z| - 1.
    assert depth * math.log1p(lower) <= exact * (1 + 1e-12)
