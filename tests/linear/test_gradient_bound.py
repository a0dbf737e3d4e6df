"""Eq. (2.3): its tight family, singular Sigma, where v3 fails, the floor.

Also bad input, and an attack.
"""

import fractions
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from identity_matters import random_matrices
from identity_matters.linear import gradient_attacks, gradient_bound, model, random_ball
from tests.growing_matrices import DIMENSION, growing


def squared_gradient(A, R, Sigma):
    return float(jnp.sum(model.risk_gradient(A, R, Sigma) ** 2))


@pytest.mark.parametrize("rank", [1, 3])
@pytest.mark.parametrize(("depth", "tau"), [(1, 0.9), (16, 0.1), (16, 0.9)])
def test_corrected_form_is_tight(depth, tau, rank):
    """G7, where Sigma is a multiple of I or of a projection."""
    A = -tau * np.tile(np.eye(3), (depth, 1, 1))
    R = jnp.array([[1.0, 2.0, 0.0], [0.0, -1.0, 3.0], [0.5, 0.0, 1.0]])
    Sigma = 0.3 * jnp.diag(jnp.arange(3.0) < rank)
    right = gradient_bound.gradient_lower_bound(A, R, Sigma)
    # The margin of tau, 32 eps, is amplified by 2 l / (1 - tau), here at most 320.
    assert right == pytest.approx(squared_gradient(A, R, Sigma), rel=3e-12)
    # Layers of zeros behind the depth change neither side.
    padded = np.concatenate([A, np.zeros((2, 3, 3))])
    at = (padded[None], R[None], Sigma[None], np.array([depth]))
    ratio = gradient_bound.right_over_left(*at, "corrected")
    assert ratio == pytest.approx(1, rel=3e-12)


def exact_matrix(matrix):
    return np.array([[fractions.Fraction(x) for x in row] for row in matrix.tolist()])


def exact_squared_gradient(A, R, Sigma):
    """``||grad f||_F^2`` of float64 matrices, in fractions."""
    identity = exact_matrix(np.eye(len(R)))
    factors = [identity + exact_matrix(layer) for layer in A]
    inputs = [identity]
    for factor in factors:
        inputs.append(factor @ inputs[-1])
    pulled = 2 * (inputs.pop() - exact_matrix(R)) @ exact_matrix(Sigma)
    total = 0
    for factor, before in zip(reversed(factors), reversed(inputs), strict=True):
        total += np.sum((pulled @ before.T) ** 2)
        pulled = factor.T @ pulled
    return total


@pytest.mark.parametrize("error_log10", [0, -8, -12, -14, -16])
def test_the_bound_is_not_above_the_exact_gradient(error_log10):
    """At tight points of any tau, and errors E down to the rounding of the product.

    E lies in the direction of the least eigenvalue of Sigma, 1 to 1e-6 of the largest.
    """
    rng = np.random.default_rng(error_log10 + 16)
    shares = []
    for _ in range(60):
        d, depth = rng.integers(1, [4, 12])
        tau = 1 - 10 ** rng.uniform(-3, -0.02)
        S = random_matrices.orthogonal(rng, (), d)
        A = np.tile(-tau * (S @ S.T), (depth, 1, 1))
        Sigma = (S * 10.0 ** rng.uniform(-6, 0, d)) @ S.T
        Sigma = (Sigma + Sigma.T) / 2
        least = np.linalg.eigh(Sigma)[1][:, 0]
        E = 10.0**error_log10 * np.outer(rng.standard_normal(d), least)
        R = np.asarray(model.product(A)) - E
        exact = exact_squared_gradient(A, R, Sigma)
        bound = gradient_bound.gradient_lower_bound(A, R, Sigma)
        assert 0 <= fractions.Fraction(bound) <= exact
        shares.append(float(fractions.Fraction(bound) / exact) if exact else 1.0)
    # Above the roundings of E it stays close; below them it says nothing.
    assert error_log10 < 0 or min(shares) > 1 - 1e-6
    assert error_log10 > -16 or min(shares) == 0


def test_the_bound_of_one_number_is_rounded_down():
    """At A = 0 with l = d = 1, where only single roundings are subtracted."""
    rng = np.random.default_rng(0)
    A = np.zeros((1, 1, 1))
    for _ in range(100):
        r, sigma = rng.uniform(0.1, 2.0, 2)
        bound = gradient_bound.gradient_lower_bound(
            A, np.full((1, 1), r), np.full((1, 1), sigma)
        )
        exact = 4 * ((1 - fractions.Fraction(r)) * fractions.Fraction(sigma)) ** 2
        assert exact * (1 - fractions.Fraction(1e-13)) <= bound <= exact


def test_the_product_of_layers_is_off_by_at_most_its_bound():
    """Each layer shrinks some directions and stretches others."""
    rng = np.random.default_rng(2)
    shares = []
    for _ in range(60):
        S = random_matrices.orthogonal(rng, (12,), 2)
        A = (S * rng.choice([-0.99, 0.99], (12, 1, 2))) @ np.swapaxes(S, 1, 2)
        exact = exact_matrix(np.eye(2))
        for layer in A:
            exact = exact + exact_matrix(layer) @ exact
        product, error = gradient_bound._product(A)
        off = np.linalg.norm((exact_matrix(product) - exact).astype(float))
        shares.append(off / error)
    assert 1 / 100 < max(shares) < 1


def test_the_rounding_of_tau_does_not_lift_the_bound():
    """1 - tau is 1e-6, known to 10 digits. E lies where the layers are least."""
    rng = np.random.default_rng(0)
    shares = []
    for _ in range(20):
        S = random_matrices.orthogonal(rng, (), 2)
        layer = (1e-6 - 1) * (S @ S.T)
        least = np.linalg.eigh(layer)[1][:, :1]
        A = np.stack([layer, layer])
        R = np.asarray(model.product(A)) - least @ least.T
        bound = fractions.Fraction(gradient_bound.gradient_lower_bound(A, R, np.eye(2)))
        exact = exact_squared_gradient(A, R, np.eye(2))
        assert bound <= exact
        shares.append(float(bound / exact))
    # The bound has (1 - tau)^2, and tau may be off by 16 roundings.
    assert min(shares) > 1 - 2 * 17 * 2.0**-52 / 1e-6
    # If tau may be 1, the bound must be 0.
    A = np.tile((2.0**-53 - 1) * np.eye(2), (2, 1, 1))
    assert gradient_bound.gradient_lower_bound(A, np.eye(2), np.eye(2)) == 0


@pytest.mark.parametrize("rotated", [False, True])
@pytest.mark.parametrize("least", [1e-4, 1e-13, 2e-14, 1e-15, 1e-17])
def test_small_eigenvalues_do_not_lift_the_bound_above_the_gradient(least, rotated):
    """A = 0, l = 1, R = diag(1, 0), Sigma = diag(1, least).

    The squared gradient is 4 least^2.
    """
    R = np.diag([1.0, 0.0])
    Sigma = np.diag([1.0, least])
    A = np.zeros((1, 2, 2))
    if rotated:
        S = random_matrices.orthogonal(np.random.default_rng(0), (), 2)
        R = S @ R @ S.T
        Sigma = S @ Sigma @ S.T
        Sigma = (Sigma + Sigma.T) / 2
    bound = gradient_bound.gradient_lower_bound(A, R, Sigma)
    assert 0 <= bound <= squared_gradient(A, R, Sigma) * (1 + 1e-12)
    at = (A[None], R[None], Sigma[None], np.array([1]))
    assert gradient_bound.right_over_left(*at, "corrected") <= 1 + 1e-12
    # At most 64 d eps is dropped. What is kept may be off by 16 (d - 1) eps.
    eps = 2.0**-52
    lowered = 4 * (least - 16 * eps) ** 2 if least > 128 * eps else 0.0
    # LAPACK rounds an eigenvalue of the rotated matrix by about eps.
    share_rounded = eps / least if rotated else 0.0
    assert bound == pytest.approx(lowered, rel=1e-9 + 4 * share_rounded)


@pytest.mark.parametrize(
    ("r", "sigma"), [(1e200, 1e-200), (1e-200, 1e200), (1e150, 1e-20), (3.0, 1e-150)]
)
def test_sides_whose_parts_float64_cannot_square(r, sigma):
    """A = 0, l = 1, Sigma = sigma I, and E is r in one entry: equal to the gradient."""
    A = np.zeros((1, 2, 2))
    R = np.eye(2) + r * np.eye(2, k=1)
    bound = gradient_bound.gradient_lower_bound(A, R, sigma * np.eye(2))
    assert bound == pytest.approx(4 * (r * sigma) ** 2, rel=1e-12, abs=0)


def test_an_error_far_below_the_rounding_of_the_product_says_nothing():
    """E is the least float64; scaled by its power of 2, the rounding is beyond all."""
    A = np.tile(np.diag([0.0, -0.5]), (8, 1, 1))
    R = np.asarray(model.product(A)) + 5e-324 * np.eye(2, k=1)
    assert gradient_bound.gradient_lower_bound(A, R, np.eye(2)) == 0


@pytest.mark.parametrize("form", gradient_bound.FORMS)
@pytest.mark.parametrize(("r", "sigma"), [(1e155, 1.0), (1e155, 1e155), (2.0, 1e200)])
def test_a_bound_beyond_float64_is_refused(form, r, sigma):
    A = np.zeros((1, 1, 1))
    R = np.full((1, 1), r)
    Sigma = np.full((1, 1), sigma)
    with pytest.raises(ValueError, match="must be within the range of float64, is inf"):
        gradient_bound.gradient_lower_bound(A, R, Sigma, form)
    with pytest.raises(ValueError, match="both sides must be within the range of"):
        gradient_bound.right_over_left(
            A[None], R[None], Sigma[None], np.array([1]), form
        )


def test_random_points_with_second_moments_of_any_condition():
    """Condition 1 to 1e20, rotated.

    The bound never exceeds the gradient beyond rounding of E.
    """
    rng = np.random.default_rng(0)
    n = 2000
    d = 3
    depth = 3
    eigenvalues = 10.0 ** -rng.uniform(0, rng.uniform(0, 20, (n, 1)), (n, d))
    S = random_matrices.orthogonal(rng, (n,), d)
    Sigma = (S * eigenvalues[:, None]) @ S.mT
    Sigma = (Sigma + Sigma.mT) / 2
    A = random_ball.layers(rng, "uniform", np.full(n, 0.3), depth, d)
    # Half of the errors lie mainly in the direction of the smallest eigenvalue.
    towards_least = eigenvalues.min(axis=1, keepdims=True) / eigenvalues
    weights = np.where(rng.random((n, 1)) < 0.5, 1.0, towards_least)
    E = (rng.standard_normal((n, d, d)) * weights[:, None]) @ S.mT
    R = np.stack([model.product(a) for a in A]) - E
    ratios = gradient_bound.right_over_left(A, R, Sigma, np.full(n, depth), "corrected")
    assert np.nanmax(ratios) <= 1 + 1e-9
    assert np.nanmax(ratios) > 0.1


def test_fifty_singular_second_moments():
    """Never violated.

    Tight near A_i = -tau I if Sigma is a multiple of a projection.
    """
    rng = np.random.default_rng(0)
    data = {"scale_log10": (-3.0, 3.0), "max_condition_log10": 4.0, "singular": True}
    points = random_ball.points(rng, "extremal", 50, 4, (1, 6), 0.9, **data)
    basis = random_matrices.orthogonal(rng, (50,), 4)
    points.Sigma[:] = basis @ points.Sigma @ np.swapaxes(basis, 1, 2)
    assert np.linalg.matrix_rank(points.Sigma, tol=1e-12).max() == 3
    ratios = gradient_bound.right_over_left(*points, "corrected")
    # Rounding: cond(Sigma) eps + 2 l eps / (1 - tau) is below 1e-10.
    assert ratios.max() <= 1 + 1e-9
    assert ratios.max() >= 0.99
    assert ratios.min() > 0
    printed = gradient_bound.right_over_left(*points, "v3")
    # sigma_min(Sigma) is 0 to rounding, and with it the printed right-hand side.
    assert np.abs(printed).max() < 1e-9


@pytest.mark.parametrize("least", [0.5, 1.0, 1.5])
def test_v3_fails_exactly_where_the_least_eigenvalue_exceeds_1(least):
    """Anisotropic Sigma, ||Sigma|| = 4, with the worst E for it.

    Right over left is sigma_min.
    """
    depth = 3
    tau = 0.5
    S = random_matrices.orthogonal(np.random.default_rng(0), (), 3)
    Sigma = (S * [least, 2.0, 4.0]) @ S.T
    A = -tau * np.tile(np.eye(3), (depth, 1, 1))
    R = (1 - tau) ** depth * np.eye(3) - np.outer([0.01, 0.02, 0.0], S[:, 0])
    assert np.linalg.det(R) > 0
    at = (A[None], R[None], Sigma[None], np.array([depth]))
    assert gradient_bound.right_over_left(*at, "v3") == pytest.approx(least, rel=1e-12)
    ratio = gradient_bound.right_over_left(*at, "iclr2017")
    assert ratio == pytest.approx(least * (1 - tau) ** -(depth - 1), rel=1e-12)


def test_floor_for_negative_determinants_is_reached_for_one_dimension():
    depth = 3
    tau = 0.75
    R = jnp.full((1, 1), -2.0)
    Sigma = jnp.full((1, 1), 0.5)
    # (1/4)^3 + 2 = 129/64; 4 * 3 * (1/4)^4 * (1/2)^2 * (129/64)^2, all binary
    # fractions.
    expected = 12 / 256 * 0.25 * (129 / 64) ** 2
    assert gradient_bound.squared_gradient_floor(R, Sigma, depth, tau) == expected
    A = np.full((depth, 1, 1), -tau)
    assert squared_gradient(A, R, Sigma) == expected


def lower_bound(A=None, R=None, Sigma=None, form="v3"):
    A = np.zeros((1, 1, 1)) if A is None else np.asarray(A)
    R = 2 * np.eye(A.shape[-1]) if R is None else R
    Sigma = np.eye(A.shape[-1]) if Sigma is None else np.asarray(Sigma)
    return gradient_bound.gradient_lower_bound(A, R, Sigma, form)


def floor(R=((-1.0,),), Sigma=((1.0,),), depth=1, tau=0.5):
    return gradient_bound.squared_gradient_floor(R, Sigma, depth, tau)


def test_rounding_of_the_least_singular_value_does_not_lift_the_floor():
    """(G10) in fractions. LAPACK's least singular value is too large by 2.04 eps ||R||.

    With a and b the sum and the difference of the singular values, ``a^2 = ||R||_F^2 +
    2 |det R|`` and ``b^2 = ||R||_F^2 - 2 |det R|``.
    """
    R = np.array(
        [
            [-0.0027610969548466924, -0.003279547258883049],
            [-0.25084611020430797, -0.29791250124424606],
        ]
    )
    entries = [fractions.Fraction(entry) for entry in R.ravel().tolist()]
    determinant = entries[0] * entries[3] - entries[1] * entries[2]
    assert determinant < 0
    squares = sum(entry**2 for entry in entries)
    largest_twice = rounded_down_root(squares - 2 * determinant) + rounded_down_root(
        squares + 2 * determinant
    )
    # sigma_min = |det R| / sigma_max; the roots are exact to 60 digits.
    least = -2 * determinant / largest_twice
    remaining = fractions.Fraction(1, 2**50)
    exact = 4 * (remaining + least) ** 2
    computed = fractions.Fraction(floor(R=R, Sigma=np.eye(2), tau=1 - 2**-50))
    assert exact * (1 - fractions.Fraction(1, 10**7)) < computed <= exact


def rounded_down_root(square):
    """The square root of a fraction, to 60 digits."""
    return fractions.Fraction(math.isqrt(int(square * 10**120)), 10**60)


@pytest.mark.parametrize("tau", [0.1, 0.3, 0.9])
@pytest.mark.parametrize("depth", [1, 7, 40, 150])
def test_the_floor_is_not_above_what_is_attained_in_one_dimension(depth, tau):
    """At ``A_i = -tau`` and R = -1, in exact arithmetic."""
    remaining = 1 - fractions.Fraction(tau)
    attained = 4 * depth * remaining ** (2 * depth - 2) * (remaining**depth + 1) ** 2
    computed = fractions.Fraction(floor(R=[[-1.0]], depth=depth, tau=tau))
    assert attained * (1 - fractions.Fraction(1, 2**40)) < computed <= attained


def test_the_floor_of_a_billion_layers():
    """With tau = 1e-9 the powers are those of e^-1 and e^-2, to nine digits."""
    depth = 10**9
    computed = floor(R=[[-1.0]], depth=depth, tau=1e-9)
    limit = 4 * depth * np.exp(-2.0) * (np.exp(-1.0) + 1) ** 2
    assert computed == pytest.approx(limit, rel=1e-8)


@pytest.mark.parametrize(
    ("R", "Sigma"), [(-1e100, 1e100), (-1.0, 1e200), (-1e149, 1e50)]
)
def test_a_floor_beyond_float64_is_refused(R, Sigma):
    with pytest.raises(ValueError, match="within the range of float64"):
        floor(R=[[R]], Sigma=[[Sigma]], depth=2, tau=0.1)


def test_no_floor_without_a_positive_definite_second_moment():
    reflection = np.diag([1.0, -1.0])
    assert floor(R=reflection, Sigma=np.diag([1.0, 0.0])) == 0
    assert floor(R=reflection, Sigma=np.diag([1.0, 1e-17])) == 0  # below rounding
    assert floor(R=reflection, Sigma=np.diag([1.0, 1e-3])) > 0


@pytest.mark.parametrize(
    ("function", "change", "message"),
    [
        (lower_bound, {"form": "v2"}, r"form must be one of .*, got 'v2'"),
        (lower_bound, {"A": np.ones((1, 1, 1))}, r"needs \|\|\|A\|\|\| < 1, got 1.0"),
        (
            lower_bound,
            {"A": np.full((1, 1, 1), np.nan)},
            r"A must be finite, got A\[0, 0, 0\] = nan",
        ),
        (lower_bound, {"R": np.ma.array([[2.0]])}, "R must be a plain array"),
        (lower_bound, {"R": np.full((1, 1), 2j)}, "R must hold real numbers"),
        (lower_bound, {"A": np.zeros((1, 1))}, r"\[depth, d, d\]"),
        (lower_bound, {"Sigma": np.eye(2)}, "Sigma must be 1 x 1"),
        (
            lower_bound,
            {"Sigma": -np.eye(1)},
            "positive semidefinite, but has the eigenvalue -1.0",
        ),
        (
            lower_bound,
            {"A": np.zeros((1, 2, 2)), "Sigma": [[1.0, 2.0], [0.0, 1.0]]},
            "symmetric",
        ),
        (floor, {"tau": 1.0}, r"tau must lie in \[0, 1\), got 1.0"),
        (floor, {"R": np.eye(1)}, "negative determinant, got det R of sign 1"),
        (
            floor,
            {"R": growing(0), "Sigma": np.eye(DIMENSION)},
            "negative determinant, got det R of sign 1",
        ),
        (floor, {"R": np.eye(2)}, "R and Sigma must be d x d"),
        (floor, {"R": -np.ones((1, 1)) * np.nan}, "R must be finite"),
        (
            floor,
            {"Sigma": -np.eye(1)},
            "positive semidefinite, but has the eigenvalue -1.0",
        ),
        (
            floor,
            # Down to -128 eps a negative eigenvalue may be rounding.
            {"R": np.diag([1.0, -1.0]), "Sigma": np.diag([1.0, -(2.0**-44)])},
            "positive semidefinite",
        ),
        (
            floor,
            {"R": np.diag([1, -3e-15]), "Sigma": np.eye(2)},
            "R must be invertible",
        ),
    ],
)
def test_refused(function, change, message):
    with pytest.raises(ValueError, match=message):
        function(**change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        # Outside the ball the power of 1 - tau is positive all the same.
        ({"A": np.full((2, 3, 1, 1), 1.5)}, r"needs \|\|\|A\|\|\| < 1, got 1.5"),
        (
            {"A": np.array([0.0, 1.5])[:, None, None, None] * np.ones((2, 3, 1, 1))},
            r"needs \|\|\|A\|\|\| < 1, got 1.5",
        ),
        ({"depth": np.array([3, 5])}, "depth must be from 1 to 3"),
        ({"depth": np.array([0, 3])}, "depth must be from 1 to 3"),
        ({"depth": np.array([3, 2])}, "A must be 0 in all layers from depth on"),
        ({"depth": np.array([3.0, 3.0])}, "depth must be a whole number, or 2 of them"),
        ({"R": np.ones((1, 1))}, "R must be 2 x 1 x 1"),
        ({"A": 0.5}, r"A must be \[n, max_depth, d, d\], got shape \(\)"),
        ({"Sigma": 1.0}, r"Sigma must be 2 x 1 x 1, .* got shape \(\)"),
        (
            {
                "A": np.zeros((2, 1, 2, 2)),
                "R": np.zeros((2, 2, 2)),
                # Up to 128 eps an asymmetry may be rounding.
                "Sigma": np.eye(2) + np.array([[[0.0, 0.0]], [[0.0, 2.0**-44]]]),
                "depth": 1,
            },
            "Sigma must be symmetric",
        ),
    ],
)
@pytest.mark.parametrize("form", gradient_bound.FORMS)
def test_points_of_which_the_bound_says_nothing_are_refused(form, change, message):
    points = {
        "A": np.full((2, 3, 1, 1), 0.5),
        "R": np.ones((2, 1, 1)),
        "Sigma": np.ones((2, 1, 1)),
        "depth": np.array([3, 3]),
    }
    one_depth = gradient_bound.right_over_left(**(points | {"depth": 3}), form=form)
    np.testing.assert_array_equal(
        one_depth, gradient_bound.right_over_left(**points, form=form)
    )
    with pytest.raises(ValueError, match=message):
        gradient_bound.right_over_left(**(points | change), form=form)


def test_an_unknown_form_is_refused_everywhere():
    one = np.ones((1, 1))
    batch = np.zeros((1, 1, 1, 1))
    for evaluate in (
        lambda form: gradient_bound.gradient_lower_bound(batch[0], one, one, form),
        lambda form: gradient_bound.right_over_left(
            batch, one[None], one[None], np.ones(1, int), form
        ),
        lambda form: gradient_attacks.smallest_scalar_counterexample(
            form, max_depth=1, max_integer=1, max_sigma=1
        ),
    ):
        with pytest.raises(ValueError, match=r"form must be one of .*, got 'v4'"):
            evaluate("v4")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("form", "supremum"), [("iclr2017", 2.0), ("v3", 1.0), ("corrected", 1.0)]
)
def test_adversary_reaches_the_supremum_and_not_more(form, supremum):
    # d = 1, l = 2, tau = 1/2, ||Sigma|| <= 1: sup right/left = (1 - tau)^{-1} = 2 for
    # ICLR 2017.
    rng = np.random.default_rng(0)
    starts = 4
    A = 0.5 * rng.uniform(-1, 1, (starts, 2, 1, 1))
    E = rng.standard_normal((starts, 1, 1))
    Sigma = rng.uniform(0.1, 1, (starts, 1, 1))

    how = {"tau": 0.5, "form": form, "steps": 300, "learning_rate": 0.1}
    attack = functools.partial(gradient_attacks.worst_case, **how)
    A, R, Sigma = jax.jit(jax.vmap(attack))(A, E, Sigma)
    assert jnp.abs(A).max() <= 0.5 * (1 + 1e-14)
    assert Sigma.max() <= 1 + 1e-14
    # The corrected form favours no Sigma, and the projection does not move one inside
    # the set.
    assert form != "corrected" or Sigma.min() < 0.9
    ratios = gradient_bound.right_over_left(A, R, Sigma, np.full(starts, 2), form)
    # Below: how far 300 Adam steps come from every start. Above: rounding.
    assert ratios.min() > supremum * (1 - 1e-6)
    assert ratios.max() < supremum * (1 + 1e-12)
