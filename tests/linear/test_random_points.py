"""Eq. (2.3) at random points in float32.

What is drawn, and whether rounding is bounded (G11).
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from identity_matters.linear import model, random_points

N = 400
DEPTH = 3
D = 3
MAX_TAU = 0.75
SIZES = {"points": N, "depth": DEPTH, "d": D, "max_tau": MAX_TAU}


@pytest.fixture(scope="module")
def points():
    drawn = jax.jit(lambda key: random_points.draw_points(key, **SIZES))(
        jax.random.key(3)
    )
    return jax.device_get(drawn)


@pytest.fixture(scope="module")
def exact(points):
    """Both sides in float64 by `model`, for the points as they were drawn."""
    last = {
        name: np.moveaxis(x.astype(np.float64), -1, 0)
        for name, x in points._asdict().items()
    }
    left = []
    right = []
    for i in range(N):
        A_i, C_i, root_i, v = (
            last[name][i] for name in ("A", "C", "root_eigenvalues", "v")
        )
        V = np.eye(D) - 2 * np.outer(v, v) / (v @ v)
        E = C_i / root_i @ V.T
        Sigma = V * root_i**2 @ V.T
        M = np.asarray(model.product(jnp.asarray(A_i)))
        _, gradient = model.excess_risk_and_gradient(
            *map(jnp.asarray, (A_i, M - E, Sigma))
        )
        left.append(float(jnp.sum(gradient**2)))
        tau = np.linalg.norm(A_i, ord=2, axis=(1, 2)).max()
        share = 4 * DEPTH * (1 - tau) ** (2 * DEPTH - 2) * root_i[0] ** 2
        right.append(share * np.sum(C_i**2))
    return np.array(left), np.array(right)


def test_points_are_what_they_are_said_to_be(points):
    norms = np.linalg.norm(np.moveaxis(points.A, -1, 1), ord=2, axis=(2, 3))
    np.testing.assert_allclose(norms.max(axis=0), points.tau, rtol=1e-5)
    assert points.tau.max() < MAX_TAU and points.tau.min() >= 0
    assert (points.root_eigenvalues[0] <= points.root_eigenvalues * (1 + 1e-6)).all()
    # Some layers are close to -tau I.
    distance = points.A + points.tau * np.eye(D)[:, :, None]
    close = np.linalg.norm(distance, axis=(1, 2)).max(axis=0) < 0.05 * points.tau
    assert close.sum() > 5


def test_rounding_errors_are_below_their_bounds(points, exact):
    sides = jax.device_get(jax.jit(random_points.compare_sides)(points))
    left, right = exact
    assert (np.abs(sides["left"] - left) <= sides["left_error"]).all()
    # The right-hand side is taken at a larger tau.
    assert (sides["right"] - sides["right_error"] <= right * (1 + 1e-12)).all()
    np.testing.assert_allclose(sides["right"], right, rtol=2e-3)
    # The bounds are not so wide that nothing could be found out.
    assert np.median(sides["left_error"] / sides["left"]) < 1e-3


def count(monkeypatch=None, factor=1.0, **changed):
    if monkeypatch is not None:
        compare = random_points.compare_sides

        def larger(points):
            sides = compare(points)
            return {**sides, "right": factor * sides["right"]}

        monkeypatch.setattr(random_points, "compare_sides", larger)
    sizes = {
        "chunks": 4,
        "points_per_chunk": 500,
        "depth": 2,
        "d": 2,
        "max_tau": 0.5,
        **changed,
    }
    attacked = jax.jit(lambda key, first: random_points.attack(key, first, **sizes))
    return jax.device_get(attacked(jax.random.key(0), jnp.int32(0)))


@pytest.mark.slow
def test_the_corrected_bound_holds_and_is_tight():
    counts = count()
    assert counts["violations"] == counts["unresolved"] == 0
    assert counts["tight"] > 10
    assert 1 <= counts["least_ratio"] < 1.001
    assert 0 < counts["largest_margin"] < 1e-3


@pytest.mark.slow
def test_a_false_bound_is_found_out(monkeypatch):
    """A right-hand side that is 1 % too large is refuted beyond rounding."""
    counts = count(monkeypatch, factor=1.01)
    assert counts["violations"] > 10
    assert counts["least_ratio"] < 0.995


@pytest.mark.slow
def test_values_that_are_not_numbers_are_violations(monkeypatch):
    assert count(monkeypatch, factor=float("nan"))["violations"] == 2000


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"max_tau": 1.5}, "max_tau must be above 0 and below 1, got 1.5"),
        (
            {"max_tau": 1 - 1e-7, "d": 20},
            "max_tau = 0.9999999 is too close to 1 for d = 20",
        ),
        ({"depth": 0}, "depth must be at least 1, got 0"),
        ({"d": 2.0}, "d must be a whole number, got 2.0"),
    ],
)
def test_points_of_which_the_bound_says_nothing_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        random_points.draw_points(jax.random.key(0), **(SIZES | change))


def test_the_radius_with_its_rounding_stays_below_1_where_points_are_drawn():
    near_1 = random_points.draw_points(
        jax.random.key(0), points=200, depth=1, d=19, max_tau=1 - 1e-7
    )
    sides = random_points.compare_sides(near_1)
    assert (sides["right_error"] > 0).all()


def test_a_reflection_by_no_vector_is_the_identity():
    """v = 0 is drawn for d = 1, and a NaN would count as a violation of a theorem."""
    tau = jnp.full(1, 0.5, jnp.float32)
    numbers = jnp.ones((1, 1, 1), jnp.float32)
    layers = random_points._layers(
        jnp.zeros((2, 1, 1), jnp.float32),
        jnp.broadcast_to(tau, (2, 1, 1)),
        jnp.zeros((2, 1, 1), jnp.float32),
    )
    points = random_points.Points(
        A=layers,
        tau=tau,
        C=numbers,
        root_eigenvalues=numbers[0],
        v=jnp.zeros((1, 1), jnp.float32),
    )
    np.testing.assert_array_equal(layers, np.full((2, 1, 1, 1), -0.5))
    sides = random_points.compare_sides(points)
    # A_i = -tau: both sides are 4 l (1 - tau)^2 = 2.
    assert sides["left"] == 2
    assert sides["right"] == pytest.approx(2, rel=1e-4)


def test_points_at_which_both_sides_vanish_have_no_ratio(monkeypatch):
    compare = random_points.compare_sides

    def first_is_optimal(points):
        sides = compare(points)
        return {name: side.at[0].set(0.0) for name, side in sides.items()}

    monkeypatch.setattr(random_points, "compare_sides", first_is_optimal)
    counts = count()
    assert counts["violations"] == 0
    assert 1 <= counts["least_ratio"] < 1.001
