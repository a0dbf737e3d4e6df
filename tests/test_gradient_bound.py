"""Eq. (2.3) by hand, on its tight family, under scaling, in fractions, and attacked."""

from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sklearn.datasets

from identity_matters import random_matrices
from identity_matters.linear import gradient_bound, model


def scalar(*values):
    return jnp.array(values).reshape(-1, 1, 1)


def squared_gradient(A, R, Sigma):
    return float(jnp.sum(model.risk_gradient(A, R, Sigma) ** 2))


# d = l = 1, A = 0, R = 2, Sigma = 2: E = -1, gradient 2 E Sigma = -4, f - C = 2. And
# A = (-1/2, -1/2), R = 1, Sigma = 1: E = -3/4, each gradient 2 (1/2) E = -3/4.
@pytest.mark.parametrize(
    ("layers", "R", "Sigma", "left", "rights"),
    [
        ((0.0,), 2.0, 2.0, 16.0, (32.0, 32.0, 16.0)),
        ((-0.5, -0.5), 1.0, 1.0, 1.125, (2.25, 1.125, 1.125)),
    ],
)
def test_counterexamples_by_hand(layers, R, Sigma, left, rights):
    A, R, Sigma = scalar(*layers), jnp.full((1, 1), R), jnp.full((1, 1), Sigma)
    excess = model.excess_risk(A, R, Sigma)
    assert squared_gradient(A, R, Sigma) == left
    for form, right in zip(gradient_bound.FORMS, rights, strict=True):
        assert gradient_bound.gradient_lower_bound(A, Sigma, excess, form) == right


@pytest.mark.parametrize(("depth", "tau"), [(1, 0.9), (16, 0.1), (16, 0.9)])
def test_corrected_form_is_tight(depth, tau):
    A = gradient_bound.minus_tau_identity(depth, 3, tau)
    R = jnp.array([[1.0, 2.0, 0.0], [0.0, -1.0, 3.0], [0.5, 0.0, 1.0]])
    Sigma = 0.3 * jnp.eye(3)
    right = gradient_bound.gradient_lower_bound(A, Sigma, model.excess_risk(A, R, Sigma))
    # Rounding of tau is amplified by 2 l / (1 - tau), here at most 320 eps = 7e-14.
    assert right == pytest.approx(squared_gradient(A, R, Sigma), rel=1e-12)


def test_scaling_of_the_data():
    A = scalar(0.25, -0.5)
    R, Sigma = jnp.full((1, 1), 3.0), jnp.ones((1, 1))

    def sides(s):
        excess = model.excess_risk(A, R, s * Sigma)
        rights = [
            gradient_bound.gradient_lower_bound(A, s * Sigma, excess, f)
            for f in gradient_bound.FORMS
        ]
        return np.array([squared_gradient(A, R, s * Sigma), *rights])

    # Powers of two: exact.
    np.testing.assert_array_equal(sides(4.0) / sides(1.0), [16.0, 64.0, 64.0, 16.0])


def random_points(count=50, depth=3, width=2):
    rng = np.random.default_rng(0)
    A = 0.3 * rng.uniform(-1, 1, (count, depth, width, width))
    R = rng.standard_normal((count, width, width))
    factor = rng.standard_normal((count, width, width))
    return A, R, factor @ np.swapaxes(factor, 1, 2)


def test_batch_agrees_with_single_points_and_corrected_form_holds():
    A, R, Sigma = random_points()
    depth = np.full(len(A), A.shape[1])
    for form in gradient_bound.FORMS:
        batch = gradient_bound.right_over_left(A, R, Sigma, depth, form)
        single = [
            float(gradient_bound.gradient_lower_bound(a, s, model.excess_risk(a, r, s), form))
            / squared_gradient(a, r, s)
            for a, r, s in zip(A, R, (jnp.asarray(s) for s in Sigma), strict=True)
        ]
        # Two LAPACK routes to sigma_min; cond(Sigma) is below 1e4 for these draws.
        np.testing.assert_allclose(batch, single, rtol=1e-10)
    assert batch.max() < 1


def test_fifty_singular_second_moments():
    """Never violated, and tight near A_i = -tau I with a multiple of a projection."""
    rng = np.random.default_rng(0)
    data = random_matrices.DataRange((-3.0, 3.0), 4.0, singular=True)
    points = random_matrices.points(rng, "extremal", 50, 4, (1, 6), 0.9, data)
    basis = random_matrices.orthogonal(rng, (50,), 4)
    points.Sigma[:] = basis @ points.Sigma @ np.swapaxes(basis, 1, 2)
    assert np.linalg.matrix_rank(points.Sigma, tol=1e-12).max() == 3
    at = (points.A, points.R, points.Sigma, points.depth)
    ratios = gradient_bound.right_over_left(*at, "corrected")
    # Rounding: cond(Sigma) eps + 2 l eps / (1 - tau) is below 1e-10.
    assert ratios.max() <= 1 + 1e-9
    assert ratios.max() >= 0.99
    assert ratios.min() > 0
    printed = gradient_bound.right_over_left(*at, "v3")
    # sigma_min(Sigma) is 0 to rounding, and with it the printed right-hand side.
    assert np.abs(printed).max() < 1e-9


def test_pixels_that_never_light_up_make_a_singular_second_moment():
    images = sklearn.datasets.load_digits().data / 16
    Sigma = images.T @ images / len(images)
    eigenvalues = np.linalg.eigvalsh(Sigma)
    # Three of the 64 pixels are 0 in every image.
    dark = np.count_nonzero(~images.any(axis=0))
    assert dark == 3
    assert gradient_bound.least_nonzero_eigenvalue(eigenvalues) == eigenvalues[dark]
    A = 0.1 * np.random.default_rng(0).standard_normal((3, 64, 64)) / 16
    R = 2 * np.eye(64)
    excess = model.excess_risk(A, R, Sigma)
    right = float(gradient_bound.gradient_lower_bound(A, jnp.asarray(Sigma), excess))
    assert 0 < right <= squared_gradient(A, R, Sigma)


@pytest.mark.parametrize("least", [0.5, 1.0, 1.5])
def test_v3_fails_exactly_where_the_least_eigenvalue_exceeds_1(least):
    """Anisotropic Sigma, ||Sigma|| = 4, at the worst E for it: right over left is sigma_min."""
    depth, tau = 3, 0.5
    S = random_matrices.orthogonal(np.random.default_rng(0), (), 3)
    Sigma = (S * [least, 2.0, 4.0]) @ S.T
    A = np.asarray(gradient_bound.minus_tau_identity(depth, 3, tau))
    R = (1 - tau) ** depth * np.eye(3) - np.outer([0.01, 0.02, 0.0], S[:, 0])
    assert np.linalg.det(R) > 0
    at = (A[None], R[None], Sigma[None], np.array([depth]))
    assert gradient_bound.right_over_left(*at, "v3") == pytest.approx(least, rel=1e-12)
    ratio = gradient_bound.right_over_left(*at, "iclr2017")
    assert ratio == pytest.approx(least * (1 - tau) ** -(depth - 1), rel=1e-12)


def test_padding_changes_nothing():
    A, R, Sigma = random_points()
    depth = np.full(len(A), A.shape[1])
    padded = np.concatenate([A, np.zeros_like(A)], axis=1)
    np.testing.assert_allclose(
        gradient_bound.right_over_left(padded, R, Sigma, depth, "corrected"),
        gradient_bound.right_over_left(A, R, Sigma, depth, "corrected"),
        rtol=1e-13,  # a few roundings in another order
    )


def test_floor_for_negative_determinants_is_reached_for_one_dimension():
    depth, tau = 3, 0.75
    R, Sigma = jnp.full((1, 1), -2.0), jnp.full((1, 1), 0.5)
    # (1/4)^3 + 2 = 129/64; 4 * 3 * (1/4)^4 * (1/2)^2 * (129/64)^2, all binary fractions.
    expected = 12 / 256 * 0.25 * (129 / 64) ** 2
    assert gradient_bound.squared_gradient_floor(R, Sigma, depth, tau) == expected
    A = gradient_bound.minus_tau_identity(depth, 1, tau)
    assert squared_gradient(A, R, Sigma) == expected


GOOD = {"A": scalar(0.0), "Sigma": jnp.ones((1, 1)), "excess": 1.0, "form": "v3"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"form": "v2"}, r"form must be one of .*, got 'v2'"),
        ({"A": scalar(1.0)}, r"needs \|\|\|A\|\|\| < 1, got 1.0"),
        ({"A": scalar(jnp.nan)}, r"\|\|\|A\|\|\| < 1, got nan"),
        ({"A": jnp.zeros((1, 1))}, r"\[depth, d, d\]"),
        ({"excess": -1.0}, "excess must be at least 0, got -1.0"),
        ({"Sigma": jnp.ones((2, 2))}, "Sigma must be 1 x 1"),
        ({"Sigma": jnp.ones(2)}, r"Sigma must be 1 x 1 like the layers, got shape \(2,\)"),
        ({"Sigma": -jnp.ones((1, 1))}, "positive semidefinite, but has the eigenvalue -1.0"),
        (
            {"A": jnp.zeros((1, 2, 2)), "Sigma": jnp.array([[1.0, 2.0], [0.0, 1.0]])},
            "Sigma must be symmetric, .* reaches 2.0",
        ),
    ],
)
def test_refused(change, message):
    with pytest.raises(ValueError, match=message):
        gradient_bound.gradient_lower_bound(**{**GOOD, **change})


def test_single_precision_is_refused():
    with pytest.raises(TypeError, match="Sigma must be float64"):
        gradient_bound.gradient_lower_bound(scalar(0.0), jnp.ones((1, 1), jnp.float32), 1.0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"depth": 0}, "depth must be at least 1, got 0"),
        ({"tau": 1.0}, r"tau must lie in \[0, 1\), got 1.0"),
        ({"R": jnp.ones((1, 1))}, "det R < 0, got 1.0"),
    ],
)
def test_floor_refuses(change, message):
    good = {"R": -jnp.ones((1, 1)), "Sigma": jnp.ones((1, 1)), "depth": 1, "tau": 0.5}
    with pytest.raises(ValueError, match=message):
        gradient_bound.squared_gradient_floor(**{**good, **change})


def test_exact_point_by_hand():
    half = Fraction(1, 2)
    point = gradient_bound.scalar_point([-half, -half], 1, 1, "iclr2017")
    assert (point.squared_gradient, point.right) == (Fraction(9, 8), Fraction(9, 4))
    assert point.fails
    assert not gradient_bound.scalar_point([-half, -half], 1, 1, "corrected").fails


def test_small_data_break_only_the_iclr_form():
    sizes = {"max_depth": 2, "max_integer": 3, "max_sigma": 1}
    point = gradient_bound.smallest_scalar_counterexample("iclr2017", **sizes)
    assert point.a == (Fraction(-1, 2), Fraction(-1, 2))
    for form in ("v3", "corrected"):
        assert gradient_bound.smallest_scalar_counterexample(form, **sizes) is None


@pytest.mark.parametrize(("form", "supremum"), [("iclr2017", 2.0), ("v3", 1.0), ("corrected", 1.0)])
def test_adversary_reaches_the_supremum_and_not_more(form, supremum):
    # d = 1, l = 2, tau = 1/2, ||Sigma|| <= 1: sup right/left = (1 - tau)^{-1} = 2 for ICLR 2017.
    rng = np.random.default_rng(0)
    starts = 4
    A = 0.5 * rng.uniform(-1, 1, (starts, 2, 1, 1))
    E, Sigma = rng.standard_normal((starts, 1, 1)), rng.uniform(0.1, 1, (starts, 1, 1))

    def attack(layers, error, second_moment):
        return gradient_bound.worst_case(
            layers, error, second_moment, 0.5, form, steps=300, learning_rate=0.1
        )

    A, R, Sigma = jax.jit(jax.vmap(attack))(A, E, Sigma)
    assert jnp.abs(A).max() <= 0.5 * (1 + 1e-14)
    assert Sigma.max() <= 1 + 1e-14
    ratios = gradient_bound.right_over_left(A, R, Sigma, np.full(starts, 2), form)
    # Below: how far 300 Adam steps come from every start. Above: rounding.
    assert ratios.min() > supremum * (1 - 1e-6)
    assert ratios.max() < supremum * (1 + 1e-12)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"a": [0, -1]}, r"max \|a_i\| < 1, got 1"),
        ({"form": "v2"}, "got 'v2'"),
    ],
)
def test_exact_point_refuses(change, message):
    with pytest.raises(ValueError, match=message):
        gradient_bound.scalar_point(**{"a": [0], "R": 1, "Sigma": 1, "form": "v3", **change})


def test_lattice_refuses():
    with pytest.raises(ValueError, match="max_sigma must be at least 1, got 0"):
        gradient_bound.smallest_scalar_counterexample("v3", max_depth=1, max_integer=1, max_sigma=0)
