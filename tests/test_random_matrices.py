"""Random matrices lie in their sets and follow the laws that their names promise."""

import numpy as np
import pytest

from identity_matters import matrices, random_matrices
from identity_matters.linear import random_ball, random_targets
from identity_matters.linear.target import check_target

COUNT = 400
WIDTH = 3
DEPTHS = (2, 4)
STRENGTH = {"ill_conditioned": 1e6, "near_minus_identity": 1e-3}


def draw(sampler, seed=0, width=WIDTH):
    rng = np.random.default_rng(seed)
    data = {"scale_log10": (-1.0, 2.0), "max_condition_log10": 3.0}
    return random_ball.points(rng, sampler, COUNT, width, DEPTHS, 0.9, **data)


def draw_target(family, d, strength, seed):
    return random_targets.target(np.random.default_rng(seed), family, d, strength)


@pytest.mark.parametrize("sampler", random_ball.SAMPLERS)
@pytest.mark.parametrize("width", [1, WIDTH])
def test_points_lie_in_their_balls(sampler, width):
    points = draw(sampler, width=width)
    norms = np.linalg.norm(points.A, 2, axis=(2, 3))
    np.testing.assert_allclose(matrices.spectral_norms(points.A), norms, rtol=1e-13)
    # Rescaling and measuring the norm take a few roundings each.
    assert norms.max() <= 0.9 * (1 + 1e-14)
    assert set(points.depth) == {2, 3, 4}
    for A, depth in zip(points.A, points.depth, strict=True):
        assert not A[depth:].any()


def test_samplers_are_what_they_say():
    rng = np.random.default_rng(0)
    tau = np.full(COUNT, 0.5)
    layers = {
        s: random_ball.layers(rng, s, tau, 4, WIDTH) for s in random_ball.SAMPLERS
    }
    norms = {s: matrices.spectral_norms(A) for s, A in layers.items()}
    assert max(values.max() for values in norms.values()) <= 0.5 * (1 + 1e-14)
    np.testing.assert_allclose(norms["boundary"], 0.5, rtol=1e-13)
    # Mean of a uniform norm on [0, 1/2]: 1/4, to five standard errors of 0.0036.
    assert norms["uniform"].mean() == pytest.approx(0.25, abs=0.018)
    A = layers["diagonal"]
    np.testing.assert_allclose(A[:, 0] @ A[:, 1], A[:, 1] @ A[:, 0], atol=1e-14)
    distance = matrices.spectral_norms(layers["extremal"] + 0.5 * np.eye(WIDTH))
    assert distance.min() < 1e-6 and distance.max() > 0.1
    # A fifth of the layers are zero: 320 of 1600, standard deviation 16.
    assert 240 < (norms["mixture"] == 0).sum() < 400


@pytest.mark.parametrize("largest_at", [0, 3, 499])
def test_the_certified_norm_against_svd(largest_at):
    A = np.random.default_rng(0).standard_normal((500, 4, 4))
    norms = np.linalg.norm(A, 2, axis=(1, 2))
    A[largest_at] *= 1.5 * norms.max() / norms[largest_at]
    exact = np.linalg.norm(A, 2, axis=(1, 2)).max()
    assert matrices.largest_spectral_norm(A) == pytest.approx(exact, rel=2e-9)
    assert matrices.largest_spectral_norm(A) <= exact * (1 + 1e-14)


@pytest.mark.parametrize(
    ("layers", "norm"),
    [
        (np.zeros((3, 2, 2)), 0.0),
        # Equal norms in different layers: a rotation of the same matrix.
        ([np.diag([3.0, 1.0]), np.diag([1.0, 3.0])], 3.0),
        (np.tile(np.diag([2.0, 5.0]), (7, 1, 1)), 5.0),
        # A norm that is barely larger is found.
        ([np.eye(2), np.eye(2) * (1 + 1e-7)], pytest.approx(1 + 1e-7, rel=1e-9)),
    ],
)
def test_the_certified_norm_of_special_stacks(layers, norm):
    assert matrices.largest_spectral_norm(np.array(layers)) == norm


@pytest.mark.parametrize("scale", [2.0**-1020, 2.0**-540, 2.0**600, 2.0**1020])
def test_norms_of_matrices_that_float64_cannot_square(scale):
    """Powers of 2 change no digit."""
    A = np.random.default_rng(1).standard_normal((5, 3, 3))
    norms = matrices.spectral_norms(A)
    np.testing.assert_array_equal(matrices.spectral_norms(scale * A), scale * norms)
    largest = matrices.largest_spectral_norm(A)
    assert matrices.largest_spectral_norm(scale * A) == scale * largest


def test_a_layer_whose_squared_entries_underflow_is_not_lost():
    """Its norm is 64e-162, from entries of 1e-162; that of the first one is 2e-162."""
    A = np.stack([np.zeros((64, 64)), np.full((64, 64), 1e-162)])
    A[0, 0, 0] = 2e-162
    assert matrices.largest_spectral_norm(A) == pytest.approx(64e-162, rel=2e-9, abs=0)


def test_second_moments_have_the_range_asked_for():
    points = draw("uniform")
    eigenvalues = np.linalg.eigvalsh(points.Sigma)
    assert eigenvalues[:, -1].min() >= 0.1 * (1 - 1e-12)
    assert eigenvalues[:, -1].max() <= 100 * (1 + 1e-12)
    condition = eigenvalues[:, -1] / eigenvalues[:, 0]
    assert condition.max() <= 1e3 * (1 + 1e-9)
    # Every second Sigma is a multiple of I: 200 of 400, standard deviation 10.
    assert 150 < np.sum(condition < 1 + 1e-9) < 250
    np.testing.assert_array_equal(points.Sigma, np.swapaxes(points.Sigma, 1, 2))


def test_singular_second_moments_have_every_rank_below_the_width():
    data = {"scale_log10": (0.0, 1.0), "max_condition_log10": 2.0, "singular": True}
    Sigma = random_matrices.second_moments(np.random.default_rng(0), 300, 4, **data)
    # The condition number on the range is at most 100; rounding errors are about 1e-15.
    assert set(np.linalg.matrix_rank(Sigma, tol=1e-6)) == {1, 2, 3}


def test_targets_of_layers_have_both_determinants_and_the_same_seed_the_same_points():
    assert 60 < np.sum(np.linalg.det(draw("uniform").R) < 0) < 340
    np.testing.assert_array_equal(draw("mixture").A, draw("mixture").A)
    assert np.any(draw("mixture").A != draw("mixture", seed=1).A)


def test_orthogonal_matrices():
    rng = np.random.default_rng(0)
    Q = random_matrices.orthogonal(rng, (50,), 4)
    np.testing.assert_allclose(
        Q @ np.swapaxes(Q, 1, 2), np.tile(np.eye(4), (50, 1, 1)), atol=1e-14
    )
    assert set(np.sign(np.linalg.det(Q))) == {-1.0, 1.0}
    tall = random_matrices.orthogonal(rng, (2,), 5, 3)
    gram = tall.swapaxes(1, 2) @ tall
    np.testing.assert_allclose(gram, np.tile(np.eye(3), (2, 1, 1)), atol=1e-14)


def test_rotations_are_uniform():
    rng = np.random.default_rng(0)
    draws = [random_matrices.rotation(rng, 2) for _ in range(400)]
    assert np.linalg.det(draws).min() > 0
    angles = [np.arctan2(Q[1, 0], Q[0, 0]) for Q in draws]
    # Uniform on (-pi, pi]: the mean of cos over 400 draws has standard deviation 0.035.
    assert abs(np.mean(np.cos(angles))) < 0.14
    assert abs(np.mean(np.sin(angles))) < 0.14


def test_polar_targets_have_their_gamma_and_angles():
    R = random_targets.polar_target(np.random.default_rng(0), 5, (1.5, 0.8), 0.5)
    U, K, Vt = np.linalg.svd(R)
    np.testing.assert_allclose(np.log(K), [0.5, 0.25, 0.0, -0.25, -0.5], atol=1e-14)
    angles = np.abs(np.angle(np.linalg.eigvals(U @ Vt)))
    np.testing.assert_allclose(np.sort(angles), [0, 0.8, 0.8, 1.5, 1.5], atol=1e-13)
    assert np.linalg.det(R) > 0
    R = random_targets.exponential_targets(np.random.default_rng(0), [0.0, 1.2, 1.2], 3)
    np.testing.assert_array_equal(R[0], np.eye(3))
    assert np.linalg.det(R).min() > 0 and np.abs(R[1] - R[2]).max() > 0.1


@pytest.mark.parametrize("family", random_targets.FAMILIES)
@pytest.mark.parametrize("d", [1, 2, 5])
def test_families_have_a_positive_determinant_and_a_balanced_scale(family, d):
    R = draw_target(family, d, STRENGTH.get(family, 1.0), seed=d)
    target = check_target(R)
    assert target.K[0] * target.K[-1] == pytest.approx(1, rel=1e-9)
    if family in ("orthogonal", "near_minus_identity"):
        np.testing.assert_allclose(R @ R.T, np.eye(d), atol=1e-13)
    if family == "psd":
        assert target.is_symmetric
        assert np.linalg.eigvalsh(R)[0] > 0
    if family == "normal":
        np.testing.assert_allclose(R @ R.T, R.T @ R, atol=1e-12 * target.K[0] ** 2)
    if family == "ill_conditioned" and d > 1:
        assert target.K[0] / target.K[-1] == pytest.approx(1e6, rel=1e-6)


@pytest.mark.parametrize(
    ("family", "multiplicity"), [("negative_even", 2), ("negative_odd", 1)]
)
@pytest.mark.parametrize("d", [2, 5])
def test_negative_eigenvalues_have_their_multiplicity_in_any_basis(
    family, multiplicity, d
):
    diagonal = 0
    for seed in range(20):
        R = draw_target(family, d, 1.0, seed)
        np.testing.assert_array_equal(R, R.T)
        eigenvalues = np.linalg.eigvalsh(R)
        negative = eigenvalues[eigenvalues < 0]
        assert len(negative) % 2 == 0 and len(negative) >= 2
        assert len(negative) // multiplicity == len(set(negative.round(9)))
        diagonal += np.count_nonzero(R) == d
    # On average 10 of the 20 are diagonal with shuffled coordinates, standard deviation
    # 2.2.
    assert 1 <= diagonal <= 19


@pytest.mark.parametrize(
    ("function", "arguments", "message"),
    [
        (
            random_ball.layers,
            ("cubic", np.array([0.5]), 1, 1),
            "sampler must be .*'cubic'",
        ),
        (
            random_targets.polar_target,
            (3, (0.1, 0.2), 0.5),
            "2 angles need width >= 4",
        ),
        (
            random_targets.target,
            ("nilpotent", 2, 1.0),
            "family must be one of .*'nilpotent'",
        ),
        (
            random_targets.target,
            ("near_minus_identity", 2, 4.0),
            "distance from pi .*, got 4.0",
        ),
        (random_targets.target, ("negative_even", 2, -1.0), "deviation .*, got -1.0"),
    ],
)
def test_refused(function, arguments, message):
    with pytest.raises(ValueError, match=message):
        function(np.random.default_rng(0), *arguments)


def test_no_more_columns_than_rows_are_orthonormal():
    rng = np.random.default_rng(0)
    assert random_matrices.orthogonal(rng, (4,), 3, 2).shape == (4, 3, 2)
    with pytest.raises(ValueError, match="2 rows have no 3 orthonormal columns"):
        random_matrices.orthogonal(rng, (), 2, 3)


@pytest.mark.parametrize(("depths", "max_tau"), [((0, 2), 0.5), ((1, 2), 1.5)])
def test_there_are_no_points_outside_the_ball_or_without_layers(depths, max_tau):
    rng = np.random.default_rng(0)
    data = {"scale_log10": (-1.0, 1.0), "max_condition_log10": 1.0}
    with pytest.raises(ValueError, match="depths must be from 1, and 0 < max_tau < 1"):
        random_ball.points(rng, "uniform", 3, 2, depths, max_tau, **data)
