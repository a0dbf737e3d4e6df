"""Targets, maps and starts of gradient descent against what their docstrings promise."""

import jax
import numpy as np
import pytest

from identity_matters.linear import network, risk, training_setup


def test_random_targets_have_their_gamma_and_angles():
    R = training_setup.random_target(np.random.default_rng(0), 5, (1.5, 0.8), 0.5)
    U, K, Vt = np.linalg.svd(R)
    np.testing.assert_allclose(np.log(K), [0.5, 0.25, 0.0, -0.25, -0.5], atol=1e-14)
    angles = np.abs(np.angle(np.linalg.eigvals(U @ Vt)))
    np.testing.assert_allclose(np.sort(angles), [0, 0.8, 0.8, 1.5, 1.5], atol=1e-13)
    assert np.linalg.det(R) > 0


def test_rotation_turns_the_first_axis_towards_the_second():
    Q = training_setup.rotation(3, (np.pi / 2,))
    np.testing.assert_allclose(Q @ [1, 0, 0], [0, 1, 0], atol=1e-16)
    with pytest.raises(ValueError, match="2 angles need width >= 4"):
        training_setup.rotation(3, (0.1, 0.2))


def test_second_moments_have_their_eigenvalues():
    Sigma = training_setup.random_second_moment(np.random.default_rng(0), (0.5, 1.0, 2.0))
    np.testing.assert_array_equal(Sigma, Sigma.T)
    np.testing.assert_allclose(np.linalg.eigvalsh(Sigma), [0.5, 1.0, 2.0], rtol=1e-14)


def test_wide_gaussian_maps_keep_lengths():
    C, B = training_setup.gaussian_maps(np.random.default_rng(0), 3, 20_000)
    # The entries of C^T C have a standard deviation of at most sqrt(2 / 20000) = 0.01.
    np.testing.assert_allclose(C.T @ C, np.eye(3), atol=0.05)
    np.testing.assert_allclose(B @ B.T, np.eye(3), atol=0.05)


def test_modified_identity_maps_start_at_zero():
    C, B = training_setup.modified_identity_maps(2)
    np.testing.assert_array_equal(B @ C, np.zeros((2, 2)))
    assert (C.shape, B.shape) == ((4, 2), (2, 4))


def test_last_layer_minus_identity_maps_everything_to_zero():
    A = training_setup.last_layer_minus_identity(3, 2)
    np.testing.assert_array_equal(network.product(A), np.zeros((2, 2)))
    assert np.count_nonzero(A[:2]) == 0


def test_the_learning_rate_is_exact_where_the_bound_is_an_equality():
    """R = 2 I, A_i = sqrt(2) - 1, Sigma = 3 I and maps of norm 5 and 7, against the Hessian."""
    depth, R, Sigma = 2, 2 * np.eye(2), 3 * np.eye(2)
    rate = training_setup.largest_stable_learning_rate(R, Sigma, depth)
    assert rate == pytest.approx(1 / (2 * 2 * 3 * 4), rel=1e-15)
    A = (np.sqrt(2) - 1) * np.broadcast_to(np.eye(2), (2, 2, 2))
    hessian = jax.hessian(lambda a: risk.excess_risk(a.reshape(A.shape), R, Sigma))(A.ravel())
    curvature = float(np.linalg.eigvalsh(hessian)[-1])
    # Each side of the layer has norm at most sqrt(2), not 2: the bound is 2^{1/l} too careful.
    assert curvature == pytest.approx(2 * 2 * 3 * 2, rel=1e-12)
    assert rate <= 1 / curvature
    with_maps = training_setup.largest_stable_learning_rate(
        R, Sigma, depth, input_map=5 * np.eye(2), output_map=7 * np.eye(2)
    )
    assert with_maps == pytest.approx(rate / (25 * 49), rel=1e-14)
    with pytest.raises(ValueError, match="depth must be at least 1, got 0"):
        training_setup.largest_stable_learning_rate(R, Sigma, 0)
