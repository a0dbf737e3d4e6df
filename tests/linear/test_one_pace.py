"""F20: layers that turn at the pace of one vector, in four dimensions."""

import itertools
import math

import numpy as np
import pytest
import scipy.linalg

from identity_matters import random_matrices
from identity_matters.linear import one_pace, shortest_path
from identity_matters.linear.factorization import factorize, relative_product_error
from identity_matters.linear.lower_bound import half_turn_bound, norm_lower_bound
from identity_matters.linear.optimum import known_optimum
from identity_matters.linear.target import NotApplicableError, check_target
from tests.linear.plane_paths import turn

# (a, b, r, alpha) of diag(-a, -b) + r T(alpha), with r e^{i alpha} in the disc over the
# pair. One pace is enough for these.
ATTAINED = [(2.0, 0.5, 1.0, math.pi - 0.1), (17.2, 0.45, 3.82, 2.69)]
# Here two vectors are about as slow as each other, and it is not for many layers.
NOT_ATTAINED = (19.7, 0.41, 9.5, 2.73)


def target(a, b, r, alpha, seed=0):
    S = random_matrices.rotation(np.random.default_rng(seed), 4)
    return S @ scipy.linalg.block_diag(-a, -b, r * turn(alpha)) @ S.T


def norms(A):
    return np.linalg.norm(A, 2, axis=(1, 2))


@pytest.mark.parametrize("numbers", ATTAINED)
@pytest.mark.parametrize("depth", [9, 16, 64, 1024])
def test_layers_attain_the_bound_without_a_search(numbers, depth, monkeypatch):
    def no_search(*_):
        raise AssertionError("a search was made")

    monkeypatch.setattr("identity_matters.linear.factorization.shorten", no_search)
    R = target(*numbers)
    A = factorize(R, depth)
    bound = norm_lower_bound(R, depth)
    assert bound < 1
    np.testing.assert_allclose(norms(A), bound, rtol=1e-12)
    assert relative_product_error(A, R) < 1e-12
    # of the general bound, which is searched on a grid
    assert 1 - 1e-4 < half_turn_bound(R, depth) / bound < 1 + 1e-12


@pytest.mark.parametrize("numbers", [*ATTAINED, NOT_ATTAINED])
def test_the_forced_vector_by_all_vectors(numbers):
    """For each length |R x| some vector must take the long way; x has the longest.

    Where the orientation forces it, at least one vector of each length goes round by
    2 pi - angle(x, R x). So the step that is forced there is the least over the vectors
    of that length, and the forced step of all is the largest of these. Against 400,000
    random vectors.
    """
    R = target(*numbers)
    forced = one_pace.longest_forced_step(check_target(R), 16)
    X = np.random.default_rng(1).standard_normal((4, 400_000))
    X /= np.linalg.norm(X, axis=0)
    lengths = np.linalg.norm(R @ X, axis=0)
    angles = np.arccos(np.sum(X * (R @ X), axis=0) / lengths)
    steps = np.abs(np.expm1((np.log(lengths) + 1j * (2 * np.pi - angles)) / 16))
    x = forced.x
    length = np.linalg.norm(R @ x)
    assert 2 * math.pi - math.acos(x @ R @ x / length) == pytest.approx(forced.angle)
    # Of the vectors with the length of x, none has a shorter long way.
    near = np.abs(lengths / length - 1) < 2e-3
    assert near.sum() > 1000
    assert steps[near].min() > forced.bound * (1 - 2e-3)
    # For every other length between b and a, some vector's long way is no longer.
    a, b, *_ = numbers
    bins = np.geomspace(b * 1.02, a / 1.02, 40)
    for low, high in itertools.pairwise(bins):
        of_this_length = (lengths > low) & (lengths < high)
        assert steps[of_this_length].min() < forced.bound * (1 + 1e-2)


def longest_step_by_the_triangle(a, b, r, alpha, depth):
    """The largest bound (F10) of the lower edges, by 400,000 lengths of R x on each."""
    corners = [(b, 0.0), (r, math.pi - alpha), (a, 0.0)]
    largest = 0.0
    for (low, gap_low), (high, gap_high) in itertools.pairwise(corners):
        lengths = np.geomspace(low, high, 400_000)[1:-1]
        share = (lengths - low) * (lengths + low) / ((high - low) * (high + low))
        # <x, R x> = |R x| cos(angle), linear in |R x|^2
        along = -(1 - share) * low * math.cos(gap_low)
        along -= share * high * math.cos(gap_high)
        w = np.log(lengths) + 1j * (2 * np.pi - np.arccos(along / lengths))
        largest = max(largest, np.abs(np.expm1(w / depth)).max())
    return largest


@pytest.mark.parametrize(
    "numbers",
    [
        (1.0, 1e-4, math.sqrt(0.18), 3 * math.pi / 4),
        (5.0, 1e-3, math.sqrt(5), math.pi - math.atan(0.5)),
        (5e4, 0.5, 50 * math.sqrt(5), math.pi - math.atan(0.5)),
        (1e-2, 1e-6, 1e-4, 2.0),
        # The scale of R x is far from that of x, where the longest step is.
        (1e5, 1e-3, 10.0, 2.5),
    ],
)
def test_the_longest_step_may_be_close_to_an_eigenvector(numbers):
    """Only R x leaves the line of e there, x hardly does; all lengths are looked at."""
    depth = 48
    R = target(*numbers)
    layers = one_pace.one_pace(check_target(R), depth)
    expected = longest_step_by_the_triangle(*numbers, depth)
    assert layers.bound == pytest.approx(expected, rel=1e-9)
    assert layers.attains_bound
    assert norm_lower_bound(R, depth) == layers.bound
    A = factorize(R, depth, "optimal")
    assert norms(A).max() == pytest.approx(layers.bound, rel=1e-9)
    assert relative_product_error(A, R) < 1e-12


@pytest.mark.parametrize("difference", [1e-6, 1e-9, 1e-12])
def test_targets_that_are_nearly_a_half_turn(difference):
    """All of a, b and r agree in many digits, and all angles are nearly pi."""
    R = scipy.linalg.block_diag(
        -1.0 - difference,
        -1.0,
        (-1.0 - difference / 2) * np.eye(2) + 0.3 * difference * turn(math.pi / 2),
    )
    depth = 12
    forced = one_pace.longest_forced_step(check_target(R), depth)
    half_turn = abs(np.expm1(1j * math.pi / depth))
    assert 0 < forced.bound - half_turn < difference
    assert math.pi < forced.angle < math.pi + difference
    layers = one_pace.one_pace(check_target(R), depth)
    assert layers.norm == pytest.approx(layers.bound, rel=1e-13)
    assert norm_lower_bound(R, depth) == layers.bound


@pytest.mark.parametrize("numbers", [*ATTAINED, NOT_ATTAINED])
def test_both_rotations_and_all_vectors_of_the_plane_serve_equally(numbers):
    """The two J, and the u that x lies over, give layers of one norm."""
    R = target(*numbers, seed=1)
    depth = 20
    layers = one_pace.one_pace(check_target(R), depth)
    forced = one_pace.longest_forced_step(check_target(R), depth)
    S = random_matrices.rotation(np.random.default_rng(1), 4)
    turned = S @ scipy.linalg.block_diag(np.eye(2), turn(1.0)) @ S.T
    for x in (forced.x, turned @ forced.x, -forced.x):
        rotations = one_pace.isoclinic_turns(R, x, forced.angle)
        np.testing.assert_array_equal(
            [rotation.angles / forced.angle for rotation in rotations],
            [(1, 1), (1, -1)],
        )
        for rotation in rotations:
            along = rotation.power_minus_identity(-1.0) @ R + R
            root = scipy.linalg.fractional_matrix_power(along, 1 / depth)
            step = rotation.power_minus_identity(1 / depth) @ root + root - np.eye(4)
            assert np.linalg.norm(step, 2) == pytest.approx(layers.norm, rel=1e-10)


@pytest.mark.parametrize("numbers", ATTAINED)
def test_from_1_on_the_value_need_not_be_the_least(numbers):
    """Two layers with negative determinants: their norm is sqrt(1 + a)."""
    a, b, r, alpha = numbers
    half = math.sqrt(r) * turn(alpha / 2)
    root = math.sqrt(1 + a)
    first = scipy.linalg.block_diag(1 - root, 1 + root, half)
    second = scipy.linalg.block_diag(1 + root, -b / (1 + root), half)
    R = scipy.linalg.block_diag(-a, -b, r * turn(alpha))
    np.testing.assert_allclose(second @ first, R, atol=1e-14 * a)
    shorter = norms(np.stack([first, second]) - np.eye(4)).max()
    assert shorter == pytest.approx(root, rel=1e-14)
    layers = one_pace.one_pace(check_target(R), 2)
    assert layers.attains_bound
    assert layers.norm > 1.005 * shorter
    assert known_optimum(check_target(R), 2) == norm_lower_bound(R, 2) == 1


def test_where_one_pace_is_not_enough_nothing_is_claimed():
    R = target(*NOT_ATTAINED)
    depth = 64
    assert known_optimum(check_target(R), depth) is None
    layers = one_pace.one_pace(check_target(R), depth)
    assert layers.norm > 1.01 * layers.bound
    assert norm_lower_bound(R, depth) == layers.bound
    with pytest.raises(NotApplicableError, match="the optimum is not known where"):
        factorize(R, depth, "optimal")
    best = norms(factorize(R, depth)).max()
    assert layers.bound < best < layers.norm
    # With fewer layers the same target is one of those whose optimum is known.
    assert known_optimum(check_target(R), 16) < 1


def test_a_norm_attains_the_bound_up_to_rounding_only():
    layers = one_pace.one_pace(check_target(target(*ATTAINED[0])), 16)
    for excess, attains in ((1e-10, True), (1e-8, False)):
        longer = layers._replace(norm=layers.bound * (1 + excess))
        assert longer.attains_bound == attains


def test_layers_at_the_pace_of_another_vector_are_seen_to_be_longer(monkeypatch):
    R = target(*ATTAINED[0])
    right = one_pace.longest_forced_step(check_target(R), 16)
    rotated = right._replace(angle=right.angle + 0.05)
    monkeypatch.setattr(one_pace, "longest_forced_step", lambda *_: rotated)
    assert not one_pace.one_pace(check_target(R), 16).attains_bound
    assert known_optimum(check_target(R), 16) is None


def test_minimisation_over_the_layers_ends_above():
    rng = np.random.default_rng(3)
    settings = shortest_path.PathSettings(
        exponents=(16, 128, 1024, 4096), iterations=100
    )
    for numbers in ATTAINED:
        R = target(*numbers)
        depth = 9
        best = norm_lower_bound(R, depth)
        moves = np.eye(4) + 0.2 * rng.standard_normal((depth - 1, 4, 4))
        pieces, _ = shortest_path.moved(moves.ravel(), np.eye(4) + factorize(R, depth))
        start = norms(pieces - np.eye(4)).max()
        end = norms(shortest_path.shorten(pieces, depth, settings) - np.eye(4)).max()
        assert best * (1 - 1e-9) < end < best + 0.1 * (start - best)


@pytest.mark.parametrize(
    ("R", "message"),
    [
        (np.diag([-2.0, -0.5, 1.0]), "are for d = 4"),
        (scipy.linalg.block_diag(-3.0, -0.2, -2.0, -0.5, turn(3.0)), "are for d = 4"),
        (scipy.linalg.block_diag(-2.0, -0.5, turn(2.2)), "are not over the pair"),
        # R - I has such eigenvalues, R has not.
        (
            np.eye(4) - scipy.linalg.block_diag(0.25, 0.05, 0.15 * turn(0.1)),
            "two negative eigenvalues",
        ),
        (scipy.linalg.block_diag(2.0, 0.5, turn(1.0)), "two negative eigenvalues"),
        (np.diag([-2.0, -0.5, -1.0, -1.5]), "and a nonreal pair"),
        (np.diag([-2.0, -0.5, 1.0, 1.5]) + np.eye(4, k=1), "for normal R"),
    ],
)
def test_other_targets_are_refused(R, message):
    with pytest.raises(NotApplicableError, match=message):
        one_pace.longest_forced_step(check_target(R), 8)
