"""F15: the least |||A||| at every depth.

For 2 x 2, symmetric and some other normal targets.
"""

import math

import numpy as np
import pytest
import scipy.linalg
import scipy.optimize

from identity_matters import random_matrices
from identity_matters.linear import one_pace, optimum, shortest_path
from identity_matters.linear.factorization import factorize, relative_product_error
from identity_matters.linear.invariant_spaces import Line
from identity_matters.linear.lower_bound import norm_lower_bound
from identity_matters.linear.target import NotApplicableError, check_target
from tests.linear.plane_paths import turn

# Angles and stretches at which something degenerates, and between them.
THETAS = (0.0, 1e-6, 1.0, math.pi / 2, math.pi - 1e-7, math.pi)
STRETCHES = (0.0, 1e-8, 1e-3, 0.5, 2.0, 6.0)


def norms(A):
    return np.linalg.norm(A, 2, axis=(1, 2))


def longest_step(R, depth):
    """M of F15 by all unit vectors of the plane.

    Each goes by theta + psi, or its mirror does.
    """
    U, K, Vt = np.linalg.svd(R)
    Q = U @ Vt
    theta = abs(math.atan2(Q[1, 0] - Q[0, 1], Q[0, 0] + Q[1, 1]))
    low = 0.0
    high = math.pi / 2
    for _ in range(3):  # a grid around the best point of the one before
        t = np.linspace(low, high, 4001)
        stretched = K[:, None] * np.stack([np.cos(t), np.sin(t)])
        psi = t - np.arctan2(stretched[1], stretched[0])
        w = np.log(np.linalg.norm(stretched, axis=0)) + 1j * (theta + psi)
        steps = np.abs(np.expm1(w / depth))
        best = int(steps.argmax())
        low = t[max(best - 1, 0)]
        high = t[min(best + 1, 4000)]
    return steps.max()


@pytest.mark.parametrize(
    ("depth", "norm"), [(5, 0.752102), (8, 0.471970), (16, 0.236425)]
)
def test_known_values(depth, norm):
    R = np.diag([-2.0, -0.5])
    assert norm_lower_bound(R, depth) == pytest.approx(norm, abs=5e-7)
    assert longest_step(R, depth) == pytest.approx(norm, abs=5e-7)


@pytest.mark.parametrize("theta", THETAS)
@pytest.mark.parametrize("g", STRETCHES)
def test_layers_in_the_plane_have_the_norm_of_the_longest_step(theta, g):
    rng = np.random.default_rng(0)
    for m in (-1.5, 0.7):
        for depth in (2, 5, 17):
            V = turn(rng.uniform(0, 2 * math.pi))
            mirror = np.diag([1.0, rng.choice([-1.0, 1.0])])
            R = (
                mirror
                @ turn(theta)
                @ V
                @ np.diag(np.exp([m + g, m - g]))
                @ V.T
                @ mirror
            )
            blocks = optimum.optimal_blocks(check_target(R), depth)
            A = optimum.layers_of_blocks(blocks, depth)
            assert relative_product_error(A, R) < 1e-13 * math.exp(g)
            expected = longest_step(R, depth)
            np.testing.assert_allclose(norms(A), expected, rtol=1e-9, atol=1e-14)


def two_longest_steps(theta, g, depth):
    """The m at which +q and -q have maxima of equal height: M_l is reached twice."""

    def height(m, sign):
        q = sign * g * np.sin(np.linspace(0, np.pi / 2, 200_001))
        psi = np.arccos(np.minimum(np.cosh(q) / np.cosh(g), 1))
        return np.abs(np.expm1((m + q + 1j * (theta + psi)) / depth)).max()

    return scipy.optimize.brentq(lambda m: height(m, 1) - height(m, -1), -3, 0.2)


@pytest.mark.parametrize(
    ("theta", "g", "depth"),
    [(3.0, 4.0, 9), (math.pi, 4.0, 9), (3.0, 2.0, 12), (0.0, 1.0, 4)],
)
def test_two_vectors_may_have_the_longest_step(theta, g, depth):
    """There |s| = 1 in F15: a slope that is not quite 0 would lengthen the layers."""
    m = two_longest_steps(theta, g, depth)
    target = check_target(turn(theta) @ np.diag(np.exp([m + g, m - g])))
    known = optimum.known_optimum(target, depth)
    assert known < 1
    assert known == pytest.approx(longest_step(target.R, depth), rel=1e-12)
    A = optimum.layers_of_blocks(optimum.optimal_blocks(target, depth), depth)
    np.testing.assert_allclose(norms(A), known, rtol=1e-11)


def test_the_optimum_is_not_read_off_the_layers(monkeypatch):
    """Layers for another vector are too long, and this is seen."""
    target = check_target(np.diag([-2.0, -0.5]))
    right = optimum.longest_step_in_plane

    def wrong_vector(theta, m, g, depth):
        slowest = right(theta, m, g, depth)
        q = slowest.q + 0.3 * g
        return slowest._replace(q=q, psi=math.acos(math.cosh(q) / math.cosh(g)))

    monkeypatch.setattr(optimum, "longest_step_in_plane", wrong_vector)
    A = optimum.layers_of_blocks(optimum.optimal_blocks(target, 8), 8)
    assert relative_product_error(A, target.R) < 1e-13
    assert norms(A).max() > 1.0001 * optimum.known_optimum(target, 8)


def random_targets(rng, count):
    for index in range(count):
        d = 2 + index % 5
        if index % 2:
            eigenvalues = np.exp(rng.standard_normal(d))
            eigenvalues[: 2 * rng.integers(0, d // 2 + 1)] *= -1
            yield random_matrices.symmetric(rng, eigenvalues)
        else:
            R = rng.standard_normal((2, 2))
            R[0] *= np.sign(np.linalg.det(R))
            yield R


def test_factorize_meets_the_bound_at_every_depth_without_a_search(monkeypatch):
    def no_search(*_):
        raise AssertionError("a search was made")

    monkeypatch.setattr(shortest_path, "shorten", no_search)
    monkeypatch.setattr("identity_matters.linear.factorization.shorten", no_search)
    rng = np.random.default_rng(1)
    compared = 0
    for R in random_targets(rng, 20):
        for depth in (*range(max(2, check_target(R).least_depth), 9), 60):
            bound = norm_lower_bound(R, depth)
            if bound < 1:
                compared += 1
                A = factorize(R, depth)
                assert norms(A).max() == pytest.approx(bound, rel=1e-9)
                assert relative_product_error(A, R) < 1e-12
    assert compared > 50


def test_the_searched_bound_is_just_below():
    for R in random_targets(np.random.default_rng(2), 8):
        depth = 4 * check_target(R).least_depth + 6
        searched = norm_lower_bound(R, depth, ascents=4, closed_form=False)
        assert 1 - 1e-4 < searched / norm_lower_bound(R, depth) < 1 + 1e-12


def test_minimisation_over_the_layers_ends_above():
    rng = np.random.default_rng(3)
    settings = shortest_path.PathSettings(
        exponents=(16, 128, 1024, 4096), iterations=100
    )
    for R in random_targets(rng, 4):
        depth = max(5, check_target(R).least_depth)
        d = len(R)
        best = norm_lower_bound(R, depth)
        moves = np.eye(d) + 0.2 * rng.standard_normal((depth - 1, d, d))
        pieces, _ = shortest_path.moved(moves.ravel(), np.eye(d) + factorize(R, depth))
        start = norms(pieces - np.eye(d)).max()
        end = norms(shortest_path.shorten(pieces, depth, settings) - np.eye(d)).max()
        assert best * (1 - 1e-9) < end < best + 0.1 * (start - best)


def test_near_the_identity_all_digits_are_kept():
    rng = np.random.default_rng(4)
    for size in 10.0 ** -np.arange(1.0, 15.0):
        E = size * rng.standard_normal((2, 2)) / 4
        R = np.eye(2) + E
        E = R - np.eye(2)
        bound = norm_lower_bound(R, 6)
        A = factorize(R, 6)
        # To first order all layers are E / l.
        assert bound == pytest.approx(np.linalg.norm(E, 2) / 6, rel=2 * size + 1e-12)
        assert norms(A).max() == pytest.approx(bound, rel=1e-12)
        assert relative_product_error(A, R) < 2e-15
        assert (
            np.linalg.norm(A.sum(axis=0) - E)
            < 4 * np.linalg.norm(E) ** 2 + 1e-14 * size
        )
        # A matrix that is nearly the identity is not normal for that.
        R = np.eye(3) + size * np.triu(rng.standard_normal((3, 3)))
        with pytest.raises(
            NotApplicableError, match="is known only for d = 2 and for normal R"
        ):
            factorize(R, 8, "optimal")


def test_normal_targets_with_planes():
    rng = np.random.default_rng(5)
    depth = 12
    S = random_matrices.rotation(rng, 5)
    outside = scipy.linalg.block_diag(-2.0, -0.5, 1.5 * turn(2.0), 3.0)
    R = S @ outside @ S.T
    A = factorize(R, depth, "optimal")
    assert relative_product_error(A, R) < 1e-13
    pair = norm_lower_bound(np.diag([-2.0, -0.5]), depth)
    plane = abs((1.5 * np.exp(2j)) ** (1 / depth) - 1)
    assert norms(A).max() == pytest.approx(
        max(pair, plane, 3 ** (1 / depth) - 1), rel=1e-12
    )
    inside = S @ scipy.linalg.block_diag(-2.0, -0.5, turn(math.pi - 0.1), 3.0) @ S.T
    with pytest.raises(NotApplicableError, match=r"lies in the disc over -2 and -0\.5"):
        factorize(inside, depth, "optimal")
    assert optimum.known_optimum(check_target(inside), depth) is None


def test_the_first_layer_is_continuous_where_q_is_0():
    g = 0.5
    polar = optimum._Polar(theta=1.0, axis=0.0, m=-0.2, g=g)
    at_0, beside = (
        optimum._first_layer(
            polar,
            optimum.LongestStep(
                norm=math.nan, q=q, psi=math.acos(math.cosh(q) / math.cosh(g))
            ),
            depth=7,
        )
        for q in (0.0, 1e-10)
    )
    np.testing.assert_allclose(at_0, beside, atol=1e-10)


@pytest.mark.parametrize(("imaginary", "is_known"), [(0.75, True), (0.74, False)])
def test_the_disc_over_a_pair_is_open_and_has_half_its_distance_as_radius(
    imaginary, is_known
):
    """Over -2 and -1/2, for the eigenvalues -5/4 + i t: t = 3/4 is on the circle."""
    plane = [[-1.25, -imaginary], [imaginary, -1.25]]
    target = check_target(scipy.linalg.block_diag(-2.0, -0.5, plane))
    if is_known:
        optimum.optimal_blocks(target, 12)
        with pytest.raises(NotApplicableError, match="are not over the pair"):
            one_pace.longest_forced_step(target, 12)
    else:
        with pytest.raises(NotApplicableError, match="lies in the disc"):
            optimum.optimal_blocks(target, 12)


@pytest.mark.parametrize(
    ("values", "shift", "count"),
    [
        # How many are negative, or None if an eigenvalue is 0 or one has no partner.
        ([-2.0, 3.0, -0.5], 0.0, 2),
        ([-0.5, -0.25, -0.125], 1.0, 0),
        ([-2.0, 3.0, 0.5], 0.0, None),
        ([-2.0, -0.5, 0.0], 0.0, None),
        ([-1.0, 0.5], 1.0, None),
    ],
)
def test_lines_are_told_apart_by_the_sign_of_their_eigenvalue(values, shift, count):
    lines = [Line(value=value, vector=np.ones(1)) for value in values]
    if count is None:
        with pytest.raises(NotApplicableError, match="made an eigenvalue 0, or"):
            optimum._split_by_sign(lines, shift)
    else:
        negative, positive = optimum._split_by_sign(lines, shift)
        assert (len(negative), len(positive)) == (count, len(values) - count)


def test_above_1_nothing_more_is_claimed():
    R = np.diag([-2.0, -0.5])
    assert norm_lower_bound(R, 3) == 1.0
    assert norms(factorize(R, 3, "optimal")).max() > 1


@pytest.mark.parametrize(
    ("theta", "g"), [(-1.0, 0.5), (3.5, 0.5), (1.0, -0.5), (math.nan, 0.5)]
)
def test_a_plane_turns_by_an_angle_up_to_pi_and_stretches_one_axis_more(theta, g):
    with pytest.raises(ValueError, match="theta must be from 0 to pi, and g at least"):
        optimum.longest_step_in_plane(theta, 0.0, g, 8)
