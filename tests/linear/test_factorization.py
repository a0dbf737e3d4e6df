"""Theorem 2.1: every method by hand and against the bounds. Also bad input."""

import math

import numpy as np
import pytest
import scipy.linalg

from identity_matters import paper, random_matrices
from identity_matters.linear import random_targets
from identity_matters.linear.factorization import (
    METHODS,
    factorize,
    polar_bound,
    relative_product_error,
)
from identity_matters.linear.lower_bound import norm_lower_bound
from identity_matters.linear.shortest_path import PathSettings
from identity_matters.linear.target import NotApplicableError, check_target
from identity_matters.matrices import largest_spectral_norm
from tests.growing_matrices import growing
from tests.linear.plane_paths import plane_path_length, turn
from tests.tables import by_name

# Measured: below 1e-13. A principal root may be ill-conditioned; from 1e-10 on it is
# refused.
PRODUCT_ERROR = 1e-12
ROOT_PRODUCT_ERROR = 1e-10
# largest_spectral_norm is accurate to 1e-9.
NORM_RTOL = 1e-8
QUICK = PathSettings(pieces=8, exponents=(4, 16, 64), iterations=30)


@pytest.mark.parametrize("method", ["polar", "path", "best"])
@pytest.mark.parametrize("R", [np.diag([-1.0, -1.0, 1.0, 1.0]), -np.eye(4)])
def test_eigenvalues_minus_1_pair_into_half_turns(R, method):
    # An optimum with norm 2 sin(pi/16) = 0.39 exists for 8 layers.
    A = factorize(R, 8, method)
    assert relative_product_error(A, R) < 1e-14
    assert largest_spectral_norm(A) == pytest.approx(
        2 * math.sin(math.pi / 16), rel=NORM_RTOL
    )


@pytest.mark.parametrize("method", ["svd", "polar", "psd", "root", "path", "best"])
def test_one_number_takes_equal_roots_and_the_identity_nothing(method):
    # In one dimension svd needs no layers for a rotation, so all of them stretch.
    np.testing.assert_allclose(
        factorize([[2.0]], 4, method), [[[2**0.25 - 1]]] * 4, rtol=1e-14
    )
    assert not factorize(np.eye(3), 5, method).any()
    # Up to rounding it takes nearly nothing, though a step of the search for a path is
    # singular.
    near = np.eye(2) + np.finfo(float).eps * np.array([[1.5, -4.0], [4.0, 0.0]])
    assert np.abs(factorize(near, 2)).max() < 1e-15


@pytest.mark.parametrize("d", [1, 2, 3, 5, 24])
@pytest.mark.parametrize(
    ("family", "strength"),
    [
        ("random", 1.0),
        ("orthogonal", 1.0),
        ("near_minus_identity", 0.0),
        ("near_minus_identity", 1e-9),
        ("psd", 1.0),
        ("ill_conditioned", 1e8),
        ("normal", 1.0),
    ],
)
def test_products_and_bounds(family, strength, d):
    R = random_targets.target(np.random.default_rng(d), family, d, strength)
    target = check_target(R)
    for depth in sorted({target.least_depth, target.least_depth + 1, 64}):
        lower = norm_lower_bound(R, depth, ascents=2)
        polar = factorize(R, depth, "polar")
        assert largest_spectral_norm(polar) <= polar_bound(target.gamma, depth) * (
            1 + NORM_RTOL
        )
        for method in METHODS:
            if method == "path" and d > 5:
                continue
            try:
                A = factorize(R, depth, method, path_settings=QUICK)
            except ValueError:
                assert method in ("psd", "root", "paired", "optimal") or (
                    method == "svd" and depth < 3
                )
                continue
            allowed = (
                ROOT_PRODUCT_ERROR if method in ("root", "path") else PRODUCT_ERROR
            )
            assert relative_product_error(A, R) <= allowed
            norm = largest_spectral_norm(A)
            assert norm >= lower * (1 - NORM_RTOL) - 1e-14
            if method == "svd":
                assert norm <= paper.theorem_2_1_bound_v3(target.gamma, depth)
            if method == "psd":
                assert norm <= paper.theorem_2_1_bound_psd(target.gamma, depth)
            if method == "path":
                assert norm <= largest_spectral_norm(polar) * (1 + NORM_RTOL)


@pytest.mark.parametrize("family", ["orthogonal", "psd", "normal"])
def test_principal_root_of_a_normal_matrix_is_optimal(family):
    R = random_targets.target(np.random.default_rng(2), family, 7, 1.0)
    A = factorize(R, 40, "root")
    # Equality in exact arithmetic: both are max |lambda^{1/l} - 1|.
    assert largest_spectral_norm(A) == pytest.approx(norm_lower_bound(R, 40), rel=1e-12)


def test_svd_keeps_the_v3_bound_with_whole_numbers_of_layers():
    for gamma in (1e-9, 1e-3, 0.1, 1.0, 3.0, 9.0):
        R = -np.diag([math.exp(gamma), math.exp(-gamma)])
        for depth in range(max(3, math.ceil(3 * gamma)), 80):
            norm = largest_spectral_norm(factorize(R, depth, "svd"))
            assert norm <= paper.theorem_2_1_bound_v3(gamma, depth)


def conjugated(eigenvalues, d, seed):
    """A symmetric d x d matrix with these eigenvalues and ones, in a random basis."""
    padded = np.append(eigenvalues, np.ones(d - len(eigenvalues)))
    return random_matrices.symmetric(np.random.default_rng(seed), padded)


EVEN = (
    np.array([-4.0, -1.0, -4.0, -1.0]),
    np.array([-3.0, 1.0, -3.0, 2.0, -0.5, -0.5]),
    # A four-fold eigenvalue next to a double one that is nearly the same.
    np.array([-2.0, -2.01, -2.0, -2.01, -2.0, -2.0]),
)


@pytest.mark.parametrize("depth", [16, 256])
@pytest.mark.parametrize("eigenvalues", EVEN, ids=str)
def test_negative_eigenvalues_of_even_multiplicity_cost_nothing(eigenvalues, depth):
    targets = [np.diag(eigenvalues)]
    targets += [
        conjugated(eigenvalues, d, seed=d)
        for d in (4, 6, 7, 20)
        if d >= len(eigenvalues)
    ]
    for R in targets:
        A = factorize(R, depth, path_max_dimension=0)
        assert relative_product_error(A, R) < PRODUCT_ERROR
        lower = norm_lower_bound(R, depth, ascents=2)
        expected = np.abs(np.expm1((np.log(np.abs(eigenvalues)) + np.pi * 1j) / depth))
        assert lower == pytest.approx(expected[eigenvalues < 0].max(), rel=1e-9)
        assert largest_spectral_norm(A) / lower <= 1.001


@pytest.mark.parametrize(
    ("eigenvalues", "pair"),
    [
        ([-2.0, -0.5], (2.0, 0.5)),
        ([-2.0, -0.5, 1.0], (2.0, 0.5)),
        ([1.0, -4.0, -1.0, 1.0, 0.9], (4.0, 1.0)),
        # Neighbours are paired: 8 with 4, 4 with 3 (not with 1), and 2 with 1.
        ([-8.0, -4.0, -4.0, -3.0, -2.0, -1.0], (8.0, 4.0)),
        # Two equal eigenvalues pair at no extra cost; the third is paired with 1.
        ([-3.0, -3.0, -3.0, -1.0], (3.0, 1.0)),
        # So far apart that the vector of the longest step does not keep its length.
        ([-30.0, -1 / 30, 1.0], (30.0, 1 / 30)),
    ],
)
def test_symmetric_targets_meet_the_lower_bound(eigenvalues, pair):
    """F12, also for odd multiplicities.

    In every d the length is that of one pair in the plane.
    """
    depth = 10**4
    R = conjugated(eigenvalues, len(eigenvalues), seed=0)
    norm = factorize(R, depth, "paired")[:1]
    expected = plane_path_length(-np.diag(pair))
    # l ||A|| equals the length up to its square over 2 l.
    assert depth * np.linalg.norm(norm[0], 2) == pytest.approx(expected, rel=1e-3)
    assert depth * norm_lower_bound(R, depth, ascents=2) == pytest.approx(
        expected, rel=1e-3
    )
    A = factorize(R, 64, "paired")
    assert relative_product_error(A, R) < PRODUCT_ERROR
    norms = np.linalg.norm(A, 2, axis=(1, 2))
    np.testing.assert_allclose(norms, norms[0], rtol=1e-9)


@pytest.mark.parametrize(
    ("negative", "angle"),
    [
        ((2.0, 0.5), math.pi - 0.1),
        ((2.0, 0.5), math.pi - 0.5),
        ((4.5, 0.12), math.pi - 0.45),
        ((10.0, 0.1), 2.2),
        ((3.0, 0.8), 2.9),
        ((1.3, 0.2), math.pi),
    ],
)
def test_in_four_dimensions_all_vectors_turn_at_the_pace_of_one(negative, angle):
    """F13, for the smallest normal targets that F12 leaves open.

    The lower bound is attained.
    """
    S = random_matrices.rotation(np.random.default_rng(0), 4)
    depth = 1024
    R = S @ scipy.linalg.block_diag(-np.diag(negative), turn(angle)) @ S.T
    A = factorize(R, depth, "path", path_settings=PathSettings(starts=0))
    assert relative_product_error(A, R) < ROOT_PRODUCT_ERROR
    norm = largest_spectral_norm(A)
    # x is found on a grid of 512 stretches; where two maxima tie, the grid step shows
    # in the norm.
    assert norm == pytest.approx(norm_lower_bound(R, depth), rel=3e-4)
    # The two negative eigenvalues alone would need a longer path.
    assert depth * norm < 0.995 * plane_path_length(-np.diag(negative))


@by_name(
    # q <= 4 of 9 layers turn by pi / 4 each; the bound is 2 pi / 9.
    {"gamma": 0.0, "depth": 9, "norm": 2 * math.sin(math.pi / 8), "least_ratio": 1.09},
    # q = 2 and p = 2 of 6 layers.
    {"gamma": 1e-3, "depth": 6, "norm": 2 * math.sin(math.pi / 4), "least_ratio": 1.27},
    {"gamma": 1e-9, "depth": 6, "norm": 2 * math.sin(math.pi / 4), "least_ratio": 1.35},
)
def test_svd_misses_the_iclr2017_bound_by_a_lot_with_few_layers(
    gamma, depth, norm, least_ratio
):
    R = -math.exp(gamma) * np.eye(2)
    bound = paper.theorem_2_1_bound_iclr2017(gamma, depth)
    assert largest_spectral_norm(factorize(R, depth, "svd")) == pytest.approx(
        norm, rel=NORM_RTOL
    )
    assert norm / bound > least_ratio
    assert largest_spectral_norm(factorize(R, depth, "polar")) < bound


@by_name(
    {
        "R": np.ones((2, 3)),
        "depth": 4,
        "method": "best",
        "message": r"square matrix, got shape \(2, 3\)",
    },
    {
        "R": np.array([[1.0, np.nan], [0, 1]]),
        "depth": 4,
        "method": "best",
        "message": r"finite, got R\[0, 1\] = nan",
    },
    {
        "R": np.array([[1j]]),
        "depth": 4,
        "method": "best",
        "message": "real numbers, got dtype complex128",
    },
    {
        "R": np.diag([1.0, 0.0]),
        "depth": 4,
        "method": "best",
        "message": "R must be invertible beyond rounding, .*singular values 0 to 1$",
    },
    {
        "R": np.diag([2.0, 1e-17]),
        "depth": 4,
        "method": "best",
        "message": "beyond rounding, here 8.88e-16, got singular values 1e-17 to 2$",
    },
    {
        "R": np.diag([2e-160, 1e-160]),
        "depth": 4,
        "method": "best",
        "message": "R must have singular values within 1e-150 to 1e150, got 1e-160 to",
    },
    {
        "R": np.diag([1e200, 1e190]),
        "depth": 4,
        "method": "best",
        "message": "R must have singular values within 1e-150 to 1e150, got 1e.190 to",
    },
    {
        "R": np.diag([-2.0, 1.0]),
        "depth": 4,
        "method": "best",
        "message": r"det R must be positive, got -2; negate a row of R",
    },
    {
        "R": np.diag([-1e140, 1e140, 1e140]),
        "depth": 4,
        "method": "best",
        "message": r"got -exp\(967\.\d+\)",
    },
    {
        "R": np.diag([math.e, 1.0]),
        "depth": 2,
        "method": "polar",
        "message": r"at least 3 = ceil\(3 gamma\) with gamma = 1, got 2",
    },
    {
        "R": np.eye(2),
        "depth": 0,
        "method": "best",
        "message": "depth must be at least 1, got 0",
    },
    {
        "R": np.eye(2),
        "depth": 2.5,
        "method": "best",
        "message": "depth must be a whole number, got 2.5",
    },
    {
        "R": np.eye(2),
        "depth": 3,
        "method": "cholesky",
        "message": "method must be one of .*, got 'cholesky'",
    },
    {
        "R": turn(1.0),
        "depth": 3,
        "method": "psd",
        "message": r"symmetric R, got \|R - R\^T\| = 1.68",
    },
    {
        "R": turn(1.0),
        "depth": 3,
        "method": "paired",
        "message": "needs a polar factor Q with eigenvalues -1",
    },
    {
        "R": -np.eye(2),
        "depth": 3,
        "method": "root",
        "message": "R must have no real eigenvalue <= 0 for a principal root, got -1$",
    },
    {"R": turn(1.0), "depth": 1, "method": "svd", "message": "depth at least 2, got 1"},
)
def test_refusals_name_the_value(R, depth, method, message):
    with pytest.raises(ValueError, match=message):
        factorize(R, depth, method)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((-0.5, 8), "gamma must be 0 or more, got -0.5"),
        ((math.nan, 8), "gamma must be one finite real number, got nan"),
        ((0.5, -8), "depth must be at least 1, got -8"),
        ((0.5, 0), "depth must be at least 1, got 0"),
    ],
)
def test_nothing_is_bounded_for_an_invalid_gamma_or_depth(arguments, message):
    with pytest.raises(ValueError, match=message):
        polar_bound(*arguments)


def test_the_largest_dimension_of_a_search_is_a_count():
    with pytest.raises(ValueError, match="path_max_dimension must be at least 0"):
        factorize(np.eye(2), 8, path_max_dimension=-1)


# Rounding splits their multiple eigenvalue -1 into a pair beside the negative axis, at
# which SciPy's logarithm overflows.
MULTIPLE_NEGATIVE_EIGENVALUES = (
    [[5, 4], [-9, -7]],
    [[0, 2, 1], [7, -14, -8], [-15, 24, 14]],
    [[1, 1, 0, 2], [-10, -5, 2, -10], [-3, -2, 2, -3], [3, 1, -1, 2]],
    [[-2, 0, 2, -1], [0, -1, 1, -1], [-2, -1, 2, -1], [-1, 0, 3, -3]],
)


def jordan_block_of_integers(rng, d, size):
    """An integer matrix of determinant 1.

    It is similar to a Jordan block for -1 beside ones.
    """
    R = np.eye(d, dtype=np.int64)
    R[:size, :size] = -np.eye(size, dtype=np.int64) + np.eye(size, k=1, dtype=np.int64)
    # similar by elementary matrices, whose inverses are integers, too
    for _ in range(2 * d):
        i, j = rng.choice(d, 2, replace=False)
        factor = int(rng.integers(-2, 3))
        R[i] += factor * R[j]
        R[:, j] -= factor * R[:, i]
    return R


def check_best(R, depth):
    A = factorize(R, depth, path_settings=QUICK)
    target = check_target(R)
    assert relative_product_error(A, R) < 1e-9
    assert np.linalg.norm(A, 2, axis=(1, 2)).max() <= polar_bound(
        target.gamma, depth
    ) * (1 + 1e-9)


@pytest.mark.parametrize("R", MULTIPLE_NEGATIVE_EIGENVALUES)
def test_a_multiple_negative_eigenvalue_does_not_stop_the_search(R):
    check_best(np.array(R), 64)
    with pytest.raises(ValueError, match="principal root"):
        factorize(R, 64, "root")


@pytest.mark.slow
def test_integer_matrices_with_jordan_blocks_for_a_negative_eigenvalue():
    rng = np.random.default_rng(0)
    companion = np.eye(6, k=-1)
    companion[:, -1] = [-math.comb(6, k) for k in range(6)]  # of (x + 1)^6
    check_best(companion, 100)
    for d, size in ((2, 2), (3, 2), (4, 2), (4, 4), (6, 4)):
        for _ in range(6):
            R = jordan_block_of_integers(rng, d, size)
            if np.linalg.cond(R) < 1e9:
                check_best(R, 200)


def test_every_error_of_lapack_is_a_reason_why_a_method_does_not_apply(monkeypatch):
    def fails(*_args, **_kwargs):
        raise np.linalg.LinAlgError("the iteration did not converge\nand more")

    R = np.array([[1.0, 2.0, 0.0], [0.0, 1.0, 0.5], [0.3, 0.0, 1.0]])
    monkeypatch.setattr(np.linalg, "eig", fails)
    check_best(R, 20)  # without roots
    assert norm_lower_bound(R, 20) > 0
    with pytest.raises(
        NotApplicableError, match=r"^the eigenvalues of R .* did not converge$"
    ):
        factorize(R, 20, "root")
    monkeypatch.setattr("scipy.linalg.schur", fails)
    with pytest.raises(NotApplicableError, match=r"^method polar .* did not converge$"):
        factorize(R, 20, "polar")
    monkeypatch.setattr(np.linalg, "svd", fails)
    with pytest.raises(NotApplicableError, match=r"^the singular values of R"):
        factorize(R, 20)


@pytest.mark.parametrize("d", [3, 16])
@pytest.mark.parametrize("noise", [1e-9, 1e-8, 1e-7])
def test_nearly_a_multiple_of_the_identity_is_not_normal(d, noise):
    """Its commutator with its transpose is of the order of noise^2, below rounding."""
    R = 2 * np.eye(d) + noise * np.random.default_rng(0).standard_normal((d, d))
    A = factorize(R, 8, path_max_dimension=0)
    assert relative_product_error(A, R) < 1e-14 * d


def test_the_sign_of_the_determinant_does_not_come_from_elimination():
    positive = growing(0)
    A = factorize(positive, 64, "polar")
    assert relative_product_error(A, positive) < 1e-12
    with pytest.raises(ValueError, match="det R must be positive"):
        factorize(growing(6), 64, "polar")


def test_gamma_that_is_a_whole_number_of_layers_is_not_rounded_up():
    frames = [turn(angle) for angle in np.linspace(0, 3, 50)]
    targets = [check_target(Q @ np.diag([math.e, 1 / math.e]) @ Q.T) for Q in frames]
    # Some singular values come out too large by a rounding error.
    assert any(3 * target.gamma > 3 for target in targets)
    assert all(target.least_depth == 3 for target in targets)


def test_the_smallest_stretch_counts_as_much_as_the_largest():
    """R = diag(1/8, 1): gamma = log 8, and ceil(3 log 8) = 7."""
    assert check_target(np.diag([0.125, 1.0])).least_depth == 7
    assert check_target(np.diag([8.0, 1.0])).least_depth == 7


def test_product_error_by_hand():
    A = np.array([[[1.0, 0], [0, 0]], [[0, 1.0], [0, 0]]])
    # (I + A_2)(I + A_1) = [[1, 1], [0, 1]] diag(2, 1) = [[2, 1], [0, 1]]
    assert relative_product_error(A, np.array([[2.0, 1], [0, 1]])) == 0.0
    assert relative_product_error(A, np.array([[2.0, 1], [0, 2]])) == pytest.approx(
        1 / 3
    )


@pytest.mark.parametrize("size", [1e155, 1e200, 1e-170])
def test_product_errors_beyond_what_float64_can_square(size):
    R = np.array([[size]])
    for share in (0.0, 0.01):
        A = np.array([[[(1 - share) * size - 1]]])
        # Of 1e-170 a layer of size 1 keeps no digit.
        expected = share if size > 1 else 1.0
        assert relative_product_error(A, R) == pytest.approx(expected, abs=1e-14)
