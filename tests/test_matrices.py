"""Products of residual layers, by hand."""

import numpy as np
import pytest

from identity_matters.linear.factorization import relative_product_error
from identity_matters.matrices import (
    determinant_sign,
    partial_products,
    residual_product,
)
from tests.growing_matrices import exact_determinant_sign, growing


def test_products_of_layers_by_hand():
    """Of two batches of two layers, which do not commute."""
    first = np.array([[0.0, 1.0], [0.0, 0.0]])
    second = np.array([[1.0, 0.0], [2.0, 0.0]])
    A = np.array([[first, second], [second, first]])  # [layer, batch, 2, 2]
    products = [[[2.0, 2.0], [2.0, 3.0]], [[4.0, 1.0], [2.0, 1.0]]]
    np.testing.assert_array_equal(residual_product(A), products)
    identity, after_first, after_both = partial_products(A)
    np.testing.assert_array_equal(identity, [np.eye(2), np.eye(2)])
    np.testing.assert_array_equal(after_first, A[0] + np.eye(2))
    np.testing.assert_array_equal(after_both, products)
    assert relative_product_error(A[:, 0], np.array(products[0])) == 0.0
    with pytest.raises(ValueError, match=r"A must be \[depth, 2, 2\], got \(1, 1, 1\)"):
        relative_product_error(np.zeros((1, 1, 1)), np.eye(2))


def test_the_sign_of_a_determinant_that_elimination_gets_wrong():
    for seed in (0, 6):
        R = growing(seed)
        assert np.linalg.cond(R) < 1e4
        assert determinant_sign(R) == exact_determinant_sign(R)


@pytest.mark.parametrize("d", [1, 2, 3, 6])
def test_the_sign_of_small_determinants(d):
    rng = np.random.default_rng(d)
    for _ in range(50):
        R = rng.standard_normal((d, d))
        assert determinant_sign(R) == np.sign(np.linalg.det(R))
    assert determinant_sign(np.zeros((d, d))) == 0
    assert determinant_sign(-np.eye(d)) == (-1) ** d
