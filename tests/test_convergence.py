"""docs/theory/convergence.md: V1-V4, certificates; V5 and V6, the time to leave a saddle."""

import math

import numpy as np
import pytest

from identity_matters.linear import convergence


def certified_problem(rng, width, share):
    """R and Sigma with ``s_0`` at `share` of the largest that `path` takes."""
    basis = np.linalg.qr(rng.standard_normal((width, width)))[0]
    eigenvalues = 10.0 ** rng.uniform(-2, 2, width)
    if width > 1 and rng.random() < 0.3:
        eigenvalues[rng.integers(width)] = 0.0
    Sigma = (basis * eigenvalues) @ basis.T
    direction = rng.standard_normal((width, width))
    s0 = convergence.will_converge(np.eye(width) - direction, Sigma, 1).s0
    scale = share * convergence.LARGEST_PATH_S0 / s0
    return np.eye(width) - scale * direction, Sigma


def product_and_gradient(A, R, Sigma):
    width = len(R)
    before, after = [np.eye(width)], [np.eye(width)]
    for layer in A:
        before.append(before[-1] + layer @ before[-1])
    for layer in A[::-1]:
        after.append(after[-1] + after[-1] @ layer)
    E = before[-1] - R
    after = after[::-1][1:]
    gradient = np.stack([2 * after[i].T @ E @ Sigma @ before[i].T for i in range(len(A))])
    return np.trace(E @ Sigma @ E.T), gradient


@pytest.mark.parametrize("depth", [1, 2, 5, 16])
def test_descent_stays_inside_and_falls_as_fast_as_certified(depth):
    rng = np.random.default_rng(depth)
    closest = 0.0
    for _ in range(20):
        R, Sigma = certified_problem(rng, int(rng.integers(1, 5)), rng.uniform(0.2, 0.99))
        certificate = convergence.will_converge(R, Sigma, depth).descent
        A = np.zeros((depth, *R.shape))
        first, gradient = product_and_gradient(A, R, Sigma)
        excess = first
        for _ in range(60):
            A -= certificate.learning_rate * gradient
            after, gradient = product_and_gradient(A, R, Sigma)
            norm = np.linalg.norm(A, 2, axis=(1, 2)).max()
            assert norm <= certificate.norm * (1 + 1e-12)
            assert after <= certificate.factor * excess + 1e-14 * first
            closest = max(closest, norm / certificate.norm)
            excess = after
    assert closest > 0.2  # the radius is not idle


@pytest.mark.parametrize("depth", [2, 6])
def test_flow_keeps_layers_balanced_and_within_every_certificate(depth):
    rng = np.random.default_rng(depth)
    names = set()
    for _ in range(12):
        R, Sigma = certified_problem(rng, 3, rng.uniform(0.3, 1.0))
        answer = convergence.will_converge(R, Sigma, depth)
        # Euler's method with steps far below the inverse curvature stands for the flow.
        step = 0.01 / (2 * depth * np.linalg.norm(Sigma, 2))
        A = np.zeros((depth, 3, 3))
        first, gradient = product_and_gradient(A, R, Sigma)
        for _ in range(400):
            A -= step * gradient
            excess, gradient = product_and_gradient(A, R, Sigma)
        norm = np.linalg.norm(A, 2, axis=(1, 2)).max()
        for certificate in answer.flow:
            names.add(certificate.name)
            assert norm <= certificate.norm
            assert excess <= first * math.exp(-certificate.rate * 400 * step) * (1 + 1e-2)
        W = A + np.eye(3)
        assert np.linalg.svd(W, compute_uv=False).std(axis=0).max() < 1e-3 * norm
    assert names == {"path", "balanced"}


def test_the_constants_of_the_statements():
    def holds(excess_over_sigma, name):
        R = np.eye(1) * (1 - math.sqrt(excess_over_sigma))
        answer = convergence.will_converge(R, np.eye(1), 3)
        if name == "descent":
            return answer.descent is not None
        return name in [certificate.name for certificate in answer.flow]

    assert holds(0.1, "path") and not holds(0.101, "path")
    assert holds(0.2499, "balanced") and not holds(0.2501, "balanced")
    assert holds(0.1, "descent") and not holds(0.101, "descent")


def test_one_layer_converges_whatever_the_target():
    """l = 1 is least squares: the balanced certificate needs m > 0 only, and its rate is exact."""
    (flow, *_) = convergence.will_converge(np.array([[1.4]]), np.array([[2.0]]), 1).flow
    assert flow.norm == pytest.approx(0.4)
    assert flow.rate == pytest.approx(8.0)


@pytest.mark.parametrize(("r", "m", "M"), [(0.7, 0.4, 1.0), (1.3, 1.0, 1.6)])
def test_balanced_by_hand(r, m, M):
    """d = sigma = 1, l = 2, s_0 = 0.3: singular values of the product in [r - s_0, r + s_0]."""
    found = {c.name: c for c in convergence.will_converge(np.array([[r]]), np.eye(1), 2).flow}
    assert found["balanced"].norm == pytest.approx(math.sqrt(M) / m * 0.3 / 2)
    assert found["balanced"].rate == pytest.approx(8 * m)


def test_descent_at_half_the_inverse_curvature():
    """s_0^2 = 0.05: kappa = 4/3, eta = 1 / (2 beta), by hand."""
    s0, depth = math.sqrt(0.05), 4
    certificate = convergence.will_converge(np.eye(1) * (1 - s0), np.eye(1), depth).descent
    a = -math.log(1 - 4 * s0) / 3
    beta = 2 * depth * math.exp(a) * (math.exp(a) + s0)
    assert certificate.norm == pytest.approx(a / depth)
    assert certificate.learning_rate == pytest.approx(1 / (2 * beta))
    assert certificate.factor == pytest.approx(1 - 3 / 8 / beta * 4 * depth * math.exp(-2 * a))


def test_a_target_that_is_reached_at_the_start():
    answer = convergence.will_converge(np.eye(2), np.diag([1.0, 0.0]), 5)
    assert answer and answer.s0 == 0 and answer.descent.norm == 0


def test_a_negative_determinant_is_never_certified():
    rng = np.random.default_rng(0)
    for _ in range(200):
        R = np.eye(3) + rng.uniform(0, 1) * rng.standard_normal((3, 3))
        if np.linalg.det(R) < 0:
            assert not convergence.will_converge(R, np.eye(3), 4)


# The time to leave a saddle.


def updates_needed(w, r, sigma, risk, step):
    w = np.array(w, np.float64)
    for update in range(10**6):
        p = w.prod()
        if sigma * (p - r) ** 2 <= risk:
            return update
        w -= step * 2 * sigma * (p - r) * np.array([np.delete(w, i).prod() for i in range(w.size)])
    raise AssertionError("no end")


@pytest.mark.parametrize("depth", [1, 2, 5])
@pytest.mark.parametrize(("r", "sigma"), [(-2.0, 0.3), (-0.5, 1.0), (3.0, 0.3)])
def test_descent_takes_as_long_as_predicted(depth, r, sigma):
    w = 1 + 0.2 * np.random.default_rng(depth).uniform(-1, 1, depth)
    step = 0.01 / (depth * sigma * (1 + abs(r)) ** 2)
    predicted = convergence.escape_time(w, r, sigma, 1e-4) / step
    assert updates_needed(w, r, sigma, 1e-4, step) == pytest.approx(predicted, rel=0.03)


def test_two_layers_by_hand():
    """c = 3, sigma = 1: dw / (2 (p - r) q); at r -> -infinity only q counts: an area sine."""
    w, r, end = np.array([1.0, 2.0]), -1e9, -2.0
    risk = (end - r) ** 2
    by_hand = (math.asinh(1 / math.sqrt(3)) * 2) / (2 * 1e9)
    assert convergence.escape_time(w, r, 1.0, risk) == pytest.approx(by_hand, rel=1e-6)


def test_equal_weights_never_leave():
    assert convergence.escape_time([1.0, 1.0, 1.5], -1.0, 1.0, 0.1) == math.inf
    assert convergence.escape_time([1.0, 1.0, 1.5], 1.0, 1.0, 0.1) < math.inf
    assert convergence.escape_time([1.0, 1.1], 1.0, 1.0, 0.02) == 0.0  # reached at the start


def test_the_time_grows_by_the_depth_as_v6_says():
    """T is at least the bound of V6, and the noise's power of it is -(l-2)/2."""
    for depth in (3, 4, 5, 6):
        times = []
        for noise in (1e-4, 1e-6):
            w = 1 + noise * np.arange(depth)
            c = w[1:] ** 2 - w[0] ** 2
            bound = math.sqrt(c.min()) / (2 * (w.prod() + 1) * np.sqrt(2 * c).prod())
            times.append(convergence.escape_time(w, -1.0, 1.0, 0.01))
            assert times[-1] >= bound
        slope = math.log(times[1] / times[0]) / math.log(1e-6 / 1e-4)
        assert slope == pytest.approx(-(depth - 2) / 2, abs=0.03)


WILL, ESCAPE = convergence.will_converge, convergence.escape_time


@pytest.mark.parametrize(
    ("function", "arguments", "message"),
    [
        (WILL, (np.eye(2), np.eye(3), 2), "got shapes"),
        (WILL, (np.eye(1), -np.eye(1), 2), "has the eigenvalue -1.0"),
        (WILL, (np.eye(2), np.array([[1.0, 0.5], [0.0, 1.0]]), 2), "symmetric"),
        (WILL, (np.eye(1), np.zeros((1, 1)), 2), "not be zero"),
        (WILL, (np.eye(1), np.eye(1), 0), "depth must be at least 1"),
        (ESCAPE, ([1.0, -1.0], 1.0, 1.0, 0.1), "positive numbers"),
        (ESCAPE, ([1.0], 0.0, 1.0, 0.1), "r = 0"),
        (ESCAPE, ([1.0], 1.0, 1.0, 2.0), "risk below"),
        (ESCAPE, ([1.0], 1.0, -1.0, 0.1), "sigma"),
    ],
)
def test_bad_input_is_named(function, arguments, message):
    with pytest.raises(ValueError, match=message):
        function(*arguments)
