"""Principal roots: by hand, ill-conditioned, and the ones that do not exist."""

import numpy as np
import pytest

from identity_matters.linear.roots import NoPrincipalRootError, principal_root_minus_identity


def test_diagonal_by_hand():
    A = principal_root_minus_identity(np.diag([16.0, 81.0]), 4)
    np.testing.assert_allclose(A, np.diag([1.0, 2.0]), rtol=1e-14, atol=1e-15)


def test_defective_matrix_takes_the_logarithm():
    jordan = np.array([[4.0, 1.0], [0, 4.0]])
    # The square root of a Jordan block is [[2, 1/4], [0, 2]].
    np.testing.assert_allclose(
        principal_root_minus_identity(jordan, 2), [[1, 0.25], [0, 1]], atol=1e-13
    )


def test_thousands_of_factors_lose_no_digits():
    generator = np.random.default_rng(1)
    V = generator.standard_normal((20, 20))
    R = V @ np.diag(np.geomspace(1e4, 1e-4, 20)) @ np.linalg.inv(V)
    A = principal_root_minus_identity(R, 4096)
    power = np.linalg.matrix_power(np.eye(20) + A, 4096)
    assert np.linalg.norm(power - R) <= 1e-10 * np.linalg.norm(R)


@pytest.mark.parametrize("eigenvalue", [-1.0, -0.25])
def test_negative_eigenvalues_are_refused(eigenvalue):
    with pytest.raises(NoPrincipalRootError, match=f"no real eigenvalue <= 0 .*{eigenvalue:.6g}"):
        principal_root_minus_identity(np.diag([3.0, eigenvalue, 1.0]), 5)
