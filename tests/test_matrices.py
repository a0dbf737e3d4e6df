"""Products of residual layers, by hand."""

import numpy as np
import pytest

from identity_matters.linear.factorization import relative_product_error
from identity_matters.matrices import partial_products, residual_product


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
