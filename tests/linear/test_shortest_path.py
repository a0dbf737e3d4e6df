"""Shortest paths to a matrix: exact ones in the plane, and numerical ones."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from identity_matters import matrices
from identity_matters.linear.factorization import (
    factorize,
    polar_bound,
    relative_product_error,
)
from identity_matters.linear.lower_bound import (
    norm_lower_bound,
)
from identity_matters.linear.optimum import longest_step_in_plane
from identity_matters.linear.shortest_path import (
    PathSettings,
    _power_series,
    layers_of_path,
    shorten,
    smoothed_norm_and_gradient,
)
from identity_matters.linear.target import NotApplicableError
from tests.linear.plane_paths import (
    longest_in_plane,
    plane_path_length,
    stretched_turn,
    turn,
)


def test_plane_path_length_in_closed_form():
    # A pure stretch and a pure turn are geodesics.
    assert plane_path_length(stretched_turn(0.0, 1.3)) == pytest.approx(1.3, rel=1e-9)
    assert plane_path_length(turn(2.5)) == pytest.approx(2.5, rel=1e-12)
    # Horocycle: theta + gd(g), if theta >= sinh g - arctan(sinh g) (F11), 0.3 here.
    expected = 2.0 + math.atan(math.sinh(1.0))
    assert plane_path_length(stretched_turn(2.0, 1.0)) == pytest.approx(
        expected, rel=1e-12
    )
    # A shear by a is a horocycle, too, with sinh g = a / 2 and theta = arctan(a / 2).
    assert plane_path_length(np.array([[1.0, 1.0], [0, 1]])) == pytest.approx(
        2 * math.atan(0.5)
    )


@pytest.mark.parametrize("seed", range(4))
def test_paths_in_the_plane_are_as_short_as_the_bound_at_any_determinant(seed):
    """F11: the first start of the path is optimal in the plane.

    This is so whatever the determinant.
    """
    R = np.random.default_rng(seed).standard_normal((2, 2))
    R[0] *= np.sign(np.linalg.det(R))
    depth = 4096
    exact = plane_path_length(R)
    A = factorize(R, depth, "path", path_settings=PathSettings(starts=0))
    assert depth * np.linalg.norm(A[0], 2) == pytest.approx(exact, rel=exact / depth)
    assert depth * norm_lower_bound(R, depth) == pytest.approx(exact, rel=exact / depth)


@pytest.mark.parametrize(("theta", "g"), [(2.5, 1.0), (0.1, 2.0)])
def test_shortest_path_reaches_the_exact_length_in_the_plane(theta, g):
    """Two independent ways to one number: the formula and a numerical minimisation."""
    R = stretched_turn(theta, g)
    depth = 1024
    norm = matrices.largest_spectral_norm(factorize(R, depth, "path"))
    exact = plane_path_length(R)
    assert exact < theta + g <= depth * polar_bound(g, depth)
    # 24 pieces follow an arc to about (length / 24)^2 / 24; the layers add length / 2
    # l.
    assert exact * (1 - exact / depth) <= depth * norm <= exact * 1.005
    lower = norm_lower_bound(R, depth)
    assert norm >= lower * (1 - 1e-12) >= -math.expm1(-exact / depth)
    # sup |w| is at most the length, and |e^z - 1| at most e^|z| - 1.
    assert depth * math.log1p(lower) <= exact * (1 + 1e-12)


@pytest.mark.parametrize("depth", [2, 3, 10, 100])
def test_the_optimum_lies_between_the_bounds_by_the_length(depth):
    """F9 where both are known: tau_l by F15, where it is below 1, and L by F11.

    Multiples of I attain either bound.
    """
    tightest = []
    for theta in (0.0, 0.3, 1.5, math.pi):
        for g in (0.0, 1e-3, 0.4, 2.0):
            for m in (-1.0, -1e-3, 0.0, 1.0):
                optimum = longest_step_in_plane(theta, m, g, depth).norm
                if optimum >= 1:
                    continue
                length = longest_in_plane(theta, m, g)
                below = -math.expm1(-length / depth)
                above = math.expm1(length / depth)
                assert below * (1 - 1e-9) <= optimum <= above * (1 + 1e-9)
                if length:
                    tightest.append((optimum / below, above / optimum))
    assert np.min(tightest, axis=0) == pytest.approx([1, 1], abs=1e-9)


def pieces_near_identity(m, d, size=0.1):
    return np.eye(d) + size * np.random.default_rng(0).standard_normal((m, d, d))


@pytest.mark.slow
@pytest.mark.parametrize("share", [1.0, 0.25])
def test_value_and_gradient_against_autodiff(share):
    m = 4
    d = 3
    exponent = 8
    pieces = pieces_near_identity(m, d)
    coefficients = _power_series(share, 6)
    moves = pieces_near_identity(m - 1, d).ravel()

    def value(moves):
        Y = jnp.concatenate(
            [jnp.eye(d)[None], moves.reshape(m - 1, d, d), jnp.eye(d)[None]]
        )
        A = Y[1:] @ pieces @ jnp.linalg.inv(Y[:-1]) - jnp.eye(d)[None]
        G = 0
        power = A
        for c in coefficients:
            G = G + c * power
            power = power @ A
        gram = jnp.swapaxes(G, 1, 2) @ G
        # p = 8 is the fourth power of the Gram matrix.
        return (
            jnp.log(jnp.trace(gram @ gram @ gram @ gram, axis1=1, axis2=2).sum())
            / exponent
        )

    expected, expected_gradient = jax.value_and_grad(value)(jnp.asarray(moves))
    norm, gradient = smoothed_norm_and_gradient(moves, pieces, coefficients, exponent)
    assert norm == pytest.approx(float(expected), rel=1e-12)
    np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-9, atol=1e-12)


def test_the_search_shortens_a_path_of_few_pieces():
    """From the layers of polar, whose path is 4.9 % too long; the search leaves 0.11 %.

    The first exponent alone leaves 1 %, and so does the norm of M_i - I.
    """
    R = stretched_turn(0.1, 2.0)
    depth = 1024
    pieces = np.eye(2) + factorize(R, 8, "polar")
    shorter = shorten(pieces, depth, PathSettings())
    assert relative_product_error(shorter - np.eye(2), R) < 1e-14
    length = depth * matrices.largest_spectral_norm(layers_of_path(shorter, depth))
    assert length < 1.0015 * plane_path_length(R)


def test_the_search_is_for_layers_and_not_for_the_length():
    """With a layer for each piece, ||M_i - I|| counts, and otherwise ||log M_i||."""
    R = stretched_turn(1.0, 1.5)
    start = np.eye(2) + factorize(R, 8, "polar")

    def norm(depth):
        shorter = shorten(start, depth, PathSettings(exponents=[4, 16, 64]))
        return matrices.largest_spectral_norm(layers_of_path(shorter, 8))

    assert norm(8) < 0.96 * norm(10**6)


def test_smoothed_norms_of_pieces_at_and_near_the_identity():
    """Powers of 1e-6 would underflow, and log 0 is no number."""
    size = 1e-6
    stretch = np.diag([1 + size, 1 - size])
    no_moves = np.eye(2).ravel()
    pieces = np.array([stretch, np.eye(2)])
    norm, gradient = smoothed_norm_and_gradient(no_moves, pieces, [1.0], 256)
    assert norm == pytest.approx(math.log(size) + math.log(2) / 256, rel=1e-9)
    # A move Y = I + E turns the first A into (I + E) (I + A) - I, about A + E.
    np.testing.assert_allclose(gradient, [0.5 / size, 0, 0, -0.5 / size], rtol=1e-5)
    pieces[:] = np.eye(2)
    norm, gradient = smoothed_norm_and_gradient(no_moves, pieces, [1.0], 256)
    assert norm < math.log(1e-150)
    assert not gradient.any()


def test_binomial_series():
    # ((1.2)^{1/4} - 1) / (1/4); eight terms leave 0.2^9 / 9.
    a = 0.2
    share = 0.25
    series = sum(c * a ** (k + 1) for k, c in enumerate(_power_series(share, 8)))
    assert series == pytest.approx((1.2**share - 1) / share, abs=a**9)
    assert len(_power_series(share, 8)) == 8
    assert _power_series(1.0, 8) == [1.0]


@pytest.mark.parametrize("depth", [5, 7, 500])
def test_layers_are_of_equal_length_and_keep_the_product(depth):
    pieces = pieces_near_identity(5, 4, 0.05)
    pieces[2] = np.eye(4)
    A = layers_of_path(pieces, depth)
    assert A.shape == (depth, 4, 4)
    assert relative_product_error(A, np.linalg.multi_dot(pieces[::-1])) < 1e-13
    if depth == 5:
        np.testing.assert_array_equal(A, pieces - np.eye(4))
    if depth == 500:
        norms = np.linalg.norm(A, 2, axis=(1, 2))
        # Equal to the first order; a layer across a node may be shorter.
        assert np.median(norms) == pytest.approx(norms.max(), rel=0.01)


def test_layers_of_pieces_near_the_identity_keep_their_digits():
    np.testing.assert_array_equal(
        layers_of_path(np.array([np.eye(2), np.eye(2)]), 5), np.zeros((5, 2, 2))
    )
    piece = np.eye(2) + 1e-8 * np.array([[1.3, -2.0], [3.0, -0.7]])
    E = piece - np.eye(2)
    # The square root of I + E.
    expected = E / 2 - E @ E / 8
    for layer in layers_of_path(piece[None], 2):
        np.testing.assert_allclose(layer, expected, rtol=1e-12)


def test_pieces_far_from_the_identity_are_refused():
    # The logarithm of 17 needs 300 powers of C = 16 / 18; that of 20 has C > 0.9.
    A = layers_of_path(np.array([[[17.0]]]), 2)
    assert A.ravel() == pytest.approx(math.sqrt(17) - 1, rel=1e-14)
    for far in ([[-1.0, 1e-3], [-1e-3, -1.0]], [[20.0]]):
        with pytest.raises(ValueError, match="needs more pieces"):
            layers_of_path(np.array([far]), 3)
    with pytest.raises(ValueError, match="with 2 one is at distance 999 from I"):
        layers_of_path(np.array([[[1.0]], [[1000.0]]]), 3)
    with pytest.raises(ValueError, match="pieces must be at least 1, got 0"):
        PathSettings(pieces=0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        # All starts but the last one would be shortened.
        ({"starts": -1}, "starts must be at least 0, got -1"),
        ({"iterations": 0}, "iterations must be at least 1, got 0"),
        ({"exponents": (4, 7)}, "exponents must be even, got 7"),
        ({"exponents": (0,)}, "exponents must be at least 2, got 0"),
        ({"exponents": 8}, "exponents must be a tuple, got 8"),
        ({"exponents": (4.0,)}, "exponents must be a whole number, got 4.0"),
    ],
)
def test_settings_of_no_search_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        PathSettings(**settings)


def test_a_search_without_a_start_does_not_apply(monkeypatch):
    starts = "identity_matters.linear.factorization.path_starts"
    monkeypatch.setattr(starts, lambda *_: [])
    with pytest.raises(NotApplicableError, match=r"^no start of the search"):
        factorize(np.diag([2.0, 1.0]), 8, "path")
