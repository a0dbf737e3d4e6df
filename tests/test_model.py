"""The network's map by hand and in the limits; its risk and gradient."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from identity_matters import flops
from identity_matters.linear import model


def test_the_norm_is_the_largest_singular_value_of_any_layer():
    A = jnp.stack([jnp.diag(jnp.array([1.0, -3.0])), jnp.array([[0.0, 4.0], [0.0, 0.0]])])
    assert model.max_spectral_norm(A) == pytest.approx(4.0, rel=1e-15)


def test_single_precision_is_refused():
    with pytest.raises(TypeError, match="A must be float64, is float32"):
        model.product(jnp.zeros((1, 2, 2), jnp.float32))


def _problem(seed, depth, width, inputs=None, outputs=None, dtype=np.float64):
    """Random ``(A, R, Sigma, maps)``; maps are given where `inputs` and `outputs` are."""
    rng = np.random.default_rng(seed)
    d_in, d_out = inputs or width, outputs or width
    A = 0.3 * rng.standard_normal((depth, width, width)) / np.sqrt(depth)
    R = rng.standard_normal((d_out, d_in))
    root = rng.standard_normal((d_in, d_in))
    maps = {}
    if inputs:
        maps["input_map"] = rng.standard_normal((width, inputs)).astype(dtype)
    if outputs:
        maps["output_map"] = rng.standard_normal((outputs, width)).astype(dtype)
    return A.astype(dtype), R.astype(dtype), (root @ root.T).astype(dtype), maps


def _plain_excess(A, R, Sigma, input_map=None, output_map=None):
    """||E Sigma^{1/2}||_F^2 written out with a square root of Sigma and a Python loop."""
    M = jnp.eye(A.shape[1]) if input_map is None else input_map
    for layer in A:
        M = (jnp.eye(len(layer)) + layer) @ M
    E = (M if output_map is None else output_map @ M) - R
    return jnp.sum((E @ jnp.linalg.cholesky(Sigma)) ** 2)


@pytest.mark.parametrize(
    ("depth", "width", "inputs", "outputs"),
    [(1, 1, None, None), (7, 4, None, None), (3, 5, 2, 4), (2, 3, None, 1)],
)
def test_gradient_is_that_of_automatic_differentiation(depth, width, inputs, outputs):
    A, R, Sigma, maps = _problem(depth, depth, width, inputs, outputs)
    excess, gradient = model.excess_risk_and_gradient(A, R, Sigma, **maps)
    expected, expected_gradient = jax.jit(jax.value_and_grad(_plain_excess))(A, R, Sigma, **maps)
    # Two orders of summation of some hundred terms: a few hundred roundings.
    np.testing.assert_allclose(excess, expected, rtol=1e-13)
    np.testing.assert_allclose(
        gradient, expected_gradient, rtol=0, atol=1e-13 * np.abs(expected_gradient).max()
    )
    np.testing.assert_array_equal(model.risk_gradient(A, R, Sigma, **maps), gradient)
    np.testing.assert_allclose(model.excess_risk(A, R, Sigma, **maps), expected, rtol=1e-13)


def test_the_risk_applies_the_first_layer_first():
    A = np.array([[[0.0, 1.0], [0.0, 0.0]], [[0.0, 0.0], [1.0, 0.0]]])
    # (I + A_2)(I + A_1) = [[1, 0], [1, 1]] [[1, 1], [0, 1]] = [[1, 1], [1, 2]].
    in_order, reverse = np.array([[1.0, 1.0], [1.0, 2.0]]), np.array([[2.0, 1.0], [1.0, 1.0]])
    assert model.excess_risk(A, in_order, np.eye(2)) == 0.0
    # The two products differ by diag(-1, 1).
    assert model.excess_risk(A, reverse, np.eye(2)) == 2.0
    # With E = diag(-1, 1): 2 (I + A_2)^T E = [[-2, 2], [0, 2]] for layer 1 and
    # 2 E (I + A_1)^T = [[-2, 0], [2, 2]] for layer 2.
    np.testing.assert_array_equal(
        model.risk_gradient(A, reverse, np.eye(2)),
        [[[-2.0, 2.0], [0.0, 2.0]], [[-2.0, 0.0], [2.0, 2.0]]],
    )


def test_claim_2_3_by_simulation():
    """E||y - yhat||^2 - E||xi||^2 over a sample is ||E Sigma^{1/2}||_F^2 with that Sigma."""
    A, R, root, _ = _problem(0, 3, 2)
    rng, samples = np.random.default_rng(1), 400_000
    x = root @ rng.standard_normal((2, samples))
    xi = rng.standard_normal((2, samples))
    predicted = (np.eye(2) + A[2]) @ (np.eye(2) + A[1]) @ (np.eye(2) + A[0]) @ x
    losses = np.sum((R @ x + xi - predicted) ** 2, axis=0)
    standard_error = losses.std() / np.sqrt(samples)
    # C = E||xi||^2 = d = 2, not E[x x^T] as the paper's proof prints.
    expected = float(model.excess_risk(A, R, root @ root.T)) + 2
    assert abs(losses.mean() - expected) < 4 * standard_error
    assert standard_error < 0.01 * expected


@pytest.mark.parametrize("depth", [10, 1000])
def test_a_gradient_takes_three_products_per_layer(depth):
    A, R, Sigma, _ = _problem(0, depth, 2)
    product = 2 * 2**3
    # One more for E Sigma.
    assert flops.count_flops(model.risk_gradient, A, R, Sigma) == (3 * depth + 1) * product
    assert flops.count_flops(model.excess_risk, A, R, Sigma) == (depth + 1) * product


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"A": np.zeros((3, 3))}, r"A must have shape .*, got \(3, 3\)"),
        ({"R": np.zeros((3, 2))}, r"R must be 3 x 3 .* got shape \(3, 2\)"),
        ({"Sigma": np.zeros((2, 2))}, r"Sigma must be 3 x 3 .* got shape \(2, 2\)"),
        ({"input_map": np.zeros((2, 3))}, r"input_map must be 3 x any .* got shape \(2, 3\)"),
        ({"output_map": np.zeros((5, 3))}, r"R must be 5 x 3 .* got shape \(3, 3\)"),
    ],
)
def test_shapes_that_do_not_fit_are_named(changed, message):
    A, R, Sigma, _ = _problem(0, 2, 3)
    arguments = {"A": A, "R": R, "Sigma": Sigma} | changed
    with pytest.raises(ValueError, match=message):
        model.excess_risk_and_gradient(**arguments)
