"""The certified norm of many layers against NumPy's SVD, and the product check."""

import numpy as np
import pytest

from identity_matters.linear import spectral_norm
from identity_matters.linear.spectral_norm import max_spectral_norm, relative_product_error


@pytest.mark.parametrize("largest_at", [0, 3, 499])
def test_against_svd(monkeypatch, largest_at):
    # Chunks of 3 layers, so that the largest layer stands in the first, a middle and the last one.
    monkeypatch.setattr(spectral_norm, "_CHUNK_ENTRIES", 3 * 16)
    A = np.random.default_rng(0).standard_normal((500, 4, 4))
    norms = np.linalg.norm(A, 2, axis=(1, 2))
    A[largest_at] *= 1.5 * norms.max() / norms[largest_at]
    exact = np.linalg.norm(A, 2, axis=(1, 2)).max()
    assert max_spectral_norm(A) == pytest.approx(exact, rel=2e-9)
    assert max_spectral_norm(A) <= exact * (1 + 1e-14)


def test_special_stacks():
    assert max_spectral_norm(np.zeros((3, 2, 2))) == 0.0
    # Equal norms in different layers: a rotation of the same matrix.
    assert max_spectral_norm(np.array([np.diag([3.0, 1.0]), np.diag([1.0, 3.0])])) == 3.0
    assert max_spectral_norm(np.tile(np.diag([2.0, 5.0]), (7, 1, 1))) == 5.0


def test_a_layer_barely_larger_is_found():
    A = np.array([np.eye(2), np.eye(2) * (1 + 1e-7)])
    assert max_spectral_norm(A) == pytest.approx(1 + 1e-7, rel=1e-9)


def test_product_error_by_hand():
    A = np.array([[[1.0, 0], [0, 0]], [[0, 1.0], [0, 0]]])
    # (I + A_2)(I + A_1) = [[1, 1], [0, 1]] diag(2, 1) = [[2, 1], [0, 1]]
    assert relative_product_error(A, np.array([[2.0, 1], [0, 1]])) == 0.0
    assert relative_product_error(A, np.array([[2.0, 1], [0, 2]])) == pytest.approx(1 / 3)
