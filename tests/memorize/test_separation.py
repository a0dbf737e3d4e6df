"""The smallest squared distance of two points, and the width that it allows."""

import itertools

import jax
import numpy as np
import pytest
from scipy.spatial.distance import pdist

from identity_matters.memorize import paper_method
from identity_matters.memorize.construct import memorize


@pytest.mark.parametrize("features", [2, 100])
def test_separation_is_the_smallest_squared_distance(monkeypatch, features):
    monkeypatch.setattr(paper_method, "TILE_POINTS", 64)
    x = np.random.default_rng(0).standard_normal((300, features))
    squares = pdist(x, "sqeuclidean")
    smallest = paper_method.separation(x)
    closest = list(itertools.combinations(range(300), 2))[np.argmin(squares)]
    assert smallest.indices == paper_method.separation(1e-23 * x).indices == closest
    assert smallest.rho == pytest.approx(
        squares.min(), rel=1e-12
    )  # sums in another order
    for kind in (np.uint8, np.float16):  # of neither may the squares overflow
        pixels = kind(60 * x[:30] + 128)
        expected = pdist(np.float64(pixels), "sqeuclidean").min()
        assert paper_method.separation(pixels).rho == pytest.approx(expected, rel=1e-12)
    with pytest.raises(ValueError, match="must be at most 1e\\+15 in size, got"):
        paper_method.separation(1e20 * x)
    with pytest.raises(
        ValueError, match=r"\[n, d\] with n and d at least 1, got \(300,\)"
    ):
        paper_method.separation(x[:, 0])


def test_separation_finds_a_pair_that_the_projection_hides(monkeypatch):
    monkeypatch.setattr(paper_method, "PROJECTED_FEATURES", 4)
    monkeypatch.setattr(paper_method, "PROJECTION_EXAMPLES", 50)
    monkeypatch.setattr(paper_method, "TILE_POINTS", 32)
    rng = np.random.default_rng(1)
    x = rng.standard_normal((200, 40)) * np.linspace(3, 0.1, 40)
    x[170] = x[13] + 1e-3 * rng.standard_normal(40)
    smallest = paper_method.separation(x)
    assert smallest.indices == (13, 170)
    assert smallest.rho == pytest.approx(np.sum((x[170] - x[13]) ** 2), rel=1e-12)
    x[170] = 100.0
    assert paper_method.separation(x).rho == pytest.approx(
        pdist(x, "sqeuclidean").min(), rel=1e-12
    )


def test_separation_of_pairs_that_float32_cannot_tell_apart():
    """Squares of distances of about 1, between points 10^4 apart.

    float32 is off by 10 and more.
    """
    rng = np.random.default_rng(2)
    for _ in range(20):
        x = 1e4 * rng.standard_normal((60, 3))
        x = np.concatenate([x, x + rng.uniform(0.2, 0.6, x.shape)])
        squares = pdist(x, "sqeuclidean")
        smallest = paper_method.separation(x)
        assert smallest.rho == pytest.approx(squares.min(), rel=1e-9)
        assert (
            smallest.indices
            == list(itertools.combinations(range(120), 2))[np.argmin(squares)]
        )


def test_the_sufficient_width_satisfies_the_lemma():
    n = 20
    num_classes = 3
    x = np.random.default_rng(0).standard_normal((n, 400))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    width = paper_method.sufficient_width(
        n, num_classes, paper_method.separation(x).rho
    )
    # One input is infinitely far from all others.
    assert 0 < paper_method.sufficient_width(1, num_classes, np.inf) < width
    y = np.arange(n) % num_classes
    key = jax.random.key(1)
    assert memorize(x, y, num_classes, width, key=key, method="paper").certificate.holds


@pytest.mark.parametrize("features", [3, 100])
def test_separation_of_tiny_points_is_never_taken_for_0(monkeypatch, features):
    """Their squares have to be normal floats, or the points equal."""
    monkeypatch.setattr(paper_method, "PROJECTION_EXAMPLES", 8)
    x = np.random.default_rng(3).standard_normal((12, features))
    smallest = paper_method.separation(x)
    scaled = paper_method.separation(2.0**-500 * x)
    assert scaled.indices == smallest.indices
    assert scaled.rho == 2.0**-1000 * smallest.rho
    i, j = smallest.indices
    for size in (1e-160, 1e-170, 1e-300):
        with pytest.raises(ValueError, match=rf"x\[{i}\] and x\[{j}\] differ, .* up"):
            paper_method.separation(size * x)
        equal = size * np.concatenate([x, x[4:5]])
        assert paper_method.separation(equal) == (0.0, (4, 12))
    # The largest entry says nothing about the distance.
    with pytest.raises(ValueError, match="scale x up"):
        paper_method.separation(np.array([[1.0, 1e-170], [1.0, 2e-170]]))


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (np.ma.array(np.eye(3), mask=np.eye(3)), "must be a plain array of numbers"),
        (np.eye(3) + 0j, "must hold real numbers, got dtype complex128"),
        (np.eye(3).astype(bool), "must hold real numbers, got dtype bool"),
        (np.eye(3).astype(object), "must hold numbers, got dtype object"),
        (np.array([["a", "b"]]), "must hold numbers, got dtype <U1"),
        (np.array([[np.nan, 1.0]]), "must be at most 1e\\+15 in size, got nan"),
    ],
)
def test_separation_of_anything_but_real_numbers_is_refused(bad, reason):
    with pytest.raises(ValueError, match=f"^(x|entries) {reason}"):
        paper_method.separation(bad)
