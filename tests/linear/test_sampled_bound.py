"""Minibatch descent: the noise floor, and the bounds of docs/theory/sampled.md."""

import decimal
import math
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest

from experiments import sampled_bound as experiment
from identity_matters import random_matrices
from identity_matters.linear import sampled, sampled_bound

DESCENT = {"depth": 4, "learning_rate": 0.02 / 4, "batch_examples": 16, "updates": 100}


def near_identity(rng, d=3, start=0.01, noise_std=0.01, sigma=(0.8, 1.2)):
    """A random problem with ``||(I - R) Sigma^{1/2}||_F = start``."""
    Sigma = random_matrices.symmetric(rng, np.linspace(*sigma, d))
    direction = rng.standard_normal((d, d))
    unit = sampled.make_problem(np.eye(d), Sigma, noise_std)
    R = np.eye(d) + start / np.linalg.norm(direction @ unit.root) * direction
    return sampled.make_problem(R, Sigma, noise_std)


def products(A):
    """(L_i, N_i) of every layer: the products of the layers above and below it."""
    W = np.eye(A.shape[1]) + A

    def product(layers):
        return np.linalg.multi_dot([np.eye(len(W[0]))] * 2 + list(layers[::-1]))

    return [(product(W[i + 1 :]), product(W[:i])) for i in range(len(A))]


def in_ball(rng, depth, d, radius, norm=2):
    """Random layers with norms up to radius / depth: spectral ones or norm="fro"."""
    A = rng.standard_normal((depth, d, d))
    A /= np.linalg.norm(A, norm, axis=(1, 2), keepdims=True)
    return radius / depth * rng.uniform(size=(depth, 1, 1)) ** 0.1 * A


def risk(A, problem):
    """The excess risk, f64[...], of layers A, f64[..., depth, d, d]."""
    identity = np.eye(A.shape[-1])
    E = identity
    for i in range(A.shape[-3]):
        E = (identity + A[..., i, :, :]) @ E
    E = E - problem.R
    return np.sum(E * (E @ problem.Sigma), axis=(-2, -1))


def gradients(A, E_Sigma):
    """Those of the layers A, f64[..., depth, d, d], for E Sigma, f64[..., d, d]."""
    return np.stack([2 * L.T @ E_Sigma @ N.T for L, N in products(A)], axis=-3)


# S2 and S3


def test_variance_of_a_batch():
    rng = np.random.default_rng(1)
    problem = near_identity(rng, start=2.0, noise_std=0.5)
    E = np.eye(3) - problem.R
    G = E @ problem.Sigma
    phi2 = np.sum((E @ problem.root) ** 2)
    B = 4
    x = rng.standard_normal((100_000, B, 3)) @ problem.root
    errors = x @ E.T - problem.noise_std * rng.standard_normal(x.shape)
    zeta = np.swapaxes(errors, 1, 2) @ x / B - G
    trace = np.trace(problem.Sigma)
    expected = (phi2 * trace + np.sum(G**2) + 3 * 0.5**2 * trace) / B
    assert np.mean(np.sum(zeta**2, axis=(1, 2))) == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize("radius", [0.1, 0.5, 1.0])
def test_curvature_and_gradient_in_the_ball(radius):
    rng = np.random.default_rng(2)
    h = 1e-4
    for depth in (1, 2, 5):
        problem = near_identity(rng, start=1.0)
        largest = np.linalg.norm(problem.Sigma, 2)
        stretch = math.exp(radius)
        far = np.linalg.norm(np.eye(3) - problem.R, 2)
        beta = 2 * depth * largest * stretch * (2 * stretch - 1 + far)
        for _ in range(50):
            A = in_ball(rng, depth, 3, radius)
            D = rng.standard_normal((depth, 3, 3))
            D /= np.linalg.norm(D)
            second = (
                risk(A + h * D, problem)
                - 2 * risk(A, problem)
                + risk(A - h * D, problem)
            )
            assert second / h**2 <= beta * (1 + 1e-6)
            E = products(np.concatenate([A, A[:1]]))[-1][1] - problem.R
            G = E @ problem.Sigma
            squared = np.sum(gradients(A, G) ** 2) / (4 * depth * np.sum(G**2))
            assert stretch**-2 <= squared <= stretch**2


# S4 and S5


@pytest.mark.parametrize("norm", [2, "fro"])
def test_one_update_from_anywhere_in_the_ball(norm):
    rng = np.random.default_rng(3)
    radius = 0.3
    depth = 3
    B = 4
    eta = 0.02
    for _ in range(5):
        problem = near_identity(rng, start=0.2, noise_std=0.1)
        descent = {
            "depth": depth,
            "learning_rate": eta,
            "batch_examples": B,
            "updates": 1,
        }
        certificate = sampled_bound.certify(problem, **descent, radius=radius)
        A = in_ball(rng, depth, 3, radius, norm)
        E = products(np.concatenate([A, A[:1]]))[-1][1] - problem.R
        x = rng.standard_normal((4000, B, 3)) @ problem.root
        errors = x @ E.T - problem.noise_std * rng.standard_normal(x.shape)
        batches = np.swapaxes(errors, 1, 2) @ x / B
        moved = A - eta * gradients(A, batches)
        norms = np.linalg.norm(moved, norm, axis=(2, 3)).max(axis=1)
        is_inside = norms <= radius / depth
        reached = np.where(is_inside, risk(moved, problem), 0.0)
        bound = (
            certificate.decay * risk(A, problem)
            + (1 - certificate.decay) * certificate.floor
        )
        assert np.mean(reached) <= bound


def test_risk_stays_below_its_bound():
    rng = np.random.default_rng(4)
    problem = near_identity(rng, noise_std=0.002, sigma=(0.9, 1.1))
    certificate = sampled_bound.certify(problem, **DESCENT, radius=0.08)
    assert certificate.failure_probability < 0.3
    assert certificate.start == pytest.approx(1e-4)
    runs = sampled.descend(rng, problem, **DESCENT, runs=300)
    assert runs.norm.max() < certificate.norm
    mean = runs.excess_risk.mean(axis=0)
    bound = certificate.risk(np.arange(101))
    assert (mean <= bound * (1 + 1e-9)).all()
    assert bound[-1] < 4 * mean[-1] < mean[0] / 5


def exact_gap_and_floor(r, sigma, noise_std, *, learning_rate, batch_examples, radius):
    """1 - rho and F of S4 and S5 in 50 digits: one layer, diagonal R and Sigma."""
    with decimal.localcontext(prec=50):
        stretch = Fraction(Decimal(radius).exp())
    sigma = [Fraction(value) for value in sigma]
    distance = max(abs(1 - Fraction(value)) for value in r)
    eta = Fraction(learning_rate)
    beta = 2 * max(sigma) * stretch * (2 * stretch - 1 + distance)
    noise = 2 * eta**2 * beta * stretch**2 / batch_examples
    gap = 4 * eta / stretch**2 * min(sigma) * (1 - eta * beta / 2)
    gap -= noise * (sum(sigma) + max(sigma))
    return gap, noise * len(r) * Fraction(noise_std) ** 2 * sum(sigma) / gap


@pytest.mark.parametrize(
    ("sigma", "learning_rate", "slack"),
    [
        # rho differs from 1 by a few roundings of 1. For one dimension nothing but
        # single roundings is added.
        ((1.0,), 1e-15, 1e-14),
        ((1.0,), 1e-18, 1e-14),
        # The least eigenvalue is known up to 16 eps.
        ((1.0, 1e-13), 1.0779e-3, 0.04),
        # 1 - rho is the difference of two numbers that agree in 6 digits.
        ((1.0,), 0.0237, 1e-9),
    ],
)
def test_where_rho_is_near_1_its_distance_from_1_is_on_the_safe_side(
    sigma, learning_rate, slack
):
    r = [0.9] * len(sigma)
    problem = sampled.make_problem(np.diag(r), np.diag(sigma), 1.0)
    descent = {"learning_rate": learning_rate, "batch_examples": 10**16, "radius": 1.0}
    certificate = sampled_bound.certify(problem, **descent, depth=1, updates=10)
    gap, floor = exact_gap_and_floor(r, sigma, 1.0, **descent)
    assert gap * (1 - Fraction(slack)) <= Fraction(certificate.gap) <= gap
    assert floor <= Fraction(certificate.floor) <= floor * (1 + Fraction(slack))
    start = sum((1 - Fraction(0.9)) ** 2 * Fraction(value) for value in sigma)
    for updates in (0, 1, 10**3, 10**6):
        with decimal.localcontext(prec=50):
            left = Fraction((updates * (1 - as_decimal(gap)).ln()).exp())
        risk = left * start + (1 - left) * floor
        bound = Fraction(float(certificate.risk(updates)))
        assert risk <= bound <= risk * (1 + Fraction(slack))


def test_a_risk_far_below_the_start_is_on_the_safe_side_of_50_digits():
    """The exponent of rho^t goes to -500, and the risk inherits its rounding error."""
    for updates in [*range(20), *range(100, 25_000, 100)]:
        with decimal.localcontext(prec=50):
            exact = Fraction((1 - Decimal.from_float(0.02)) ** updates) * Fraction(0.7)
        bound = sampled_bound._risk(updates, start=0.7, gap=0.02, floor=0.0)
        assert exact <= Fraction(float(bound)) <= exact * (1 + Fraction(1e-12))


def test_a_sum_is_rounded_up_also_for_terms_that_are():
    rng = np.random.default_rng(0)
    for count in (1, 2, 3, 10, 100, 1000):
        values = rng.uniform(size=count)
        exact = sum(map(Fraction, values)) * (1 + Fraction(2.0**-52))
        bound = Fraction(sampled_bound._sum_rounded_up(values))
        assert exact <= bound <= exact * (1 + Fraction(1e-12))


def as_decimal(number):
    return Decimal(number.numerator) / Decimal(number.denominator)


def test_the_start_is_not_below_the_exact_one_where_the_data_hardly_show_it():
    """R differs from I in the direction of an eigenvalue of 1e-13 alone."""
    most = 0.0
    for seed in range(200):
        angle, digits = np.random.default_rng(seed).uniform([0, 8], [np.pi, 13.4])
        u = np.array([math.cos(angle), math.sin(angle)])
        v = np.array([-u[1], u[0]])
        Sigma = np.outer(u, u) + 10.0**-digits * np.outer(v, v)
        R = np.eye(2) - 0.5 * np.outer(v, v)
        problem = sampled.make_problem(R, Sigma, 0.0)
        certificate = sampled_bound.certify(
            problem,
            depth=2,
            learning_rate=0.01,
            batch_examples=10**16,
            updates=1,
            radius=1.0,
        )
        if certificate is None:
            continue
        E = [[int(i == j) - Fraction(R[i, j]) for j in (0, 1)] for i in (0, 1)]
        exact = sum(
            E[i][a] * Fraction(problem.Sigma[a, b]) * E[i][b]
            for i in (0, 1)
            for a in (0, 1)
            for b in (0, 1)
        )
        assert exact <= Fraction(certificate.start) <= Fraction(certificate.risk(0)[()])
        most = max(most, float(exact) / certificate.start)
    assert most > 0.999


def test_the_numbers_of_a_problem_are_moved_to_the_safe_side():
    """Each eigenvalue by 16 (d - 1) eps ||Sigma||, and ||I - R|| by its 16 d eps.

    E has norm 1/4. All the numbers here are multiples of eps.
    """
    Sigma = np.diag([1.0, 0.5, 0.25])
    problem = sampled.make_problem(np.diag([0.75, 1.0, 1.0]), Sigma, 0.1)
    bounds = sampled_bound._bounds_of(problem)
    rounding = 32 * 2.0**-52
    assert bounds.sigma == 0.25 - rounding
    assert bounds.largest == 1 + rounding
    assert bounds.trace == 1.75 + 3 * rounding
    assert bounds.distance == 0.25 * (1 + 48 * 2.0**-52)


def test_what_float64_cannot_square_is_not_certified():
    for R, Sigma, noise_std in ((1e160, 1.0, 0.0), (0.9, 1e-200, 0.0), (0.9, 1, 1e200)):
        problem = sampled.make_problem([[R]], [[Sigma]], noise_std)
        descent = {"depth": 1, "learning_rate": 1e-3, "batch_examples": 10}
        certificate = sampled_bound.certify(problem, **descent, updates=5, radius=1.0)
        assert certificate is None


def test_a_risk_that_underflows_is_not_said_to_be_0():
    problem = sampled.make_problem([[0.9]], [[1.0]], 0.0)
    certificate = sampled_bound.certify(problem, **DESCENT, radius=0.1)
    assert 0 < certificate.risk(10**9) < 1e-300
    with pytest.raises(ValueError, match="updates must be 0 or more, got -1"):
        certificate.risk([0, -1])
    at_the_optimum = sampled.make_problem([[1.0]], [[1.0]], 0.0)
    certificate = sampled_bound.certify(at_the_optimum, **DESCENT, radius=0.1)
    assert certificate.risk(5) == certificate.failure_probability == 0


# S6 and S7


def test_the_bound_of_leaving_by_hand():
    """One dimension, one layer, Sigma = 1, R = 1, from the formulas of S4 and S6."""
    problem = sampled.make_problem([[1.0]], [[1.0]], 0.1)
    eta = 0.1
    batch = 10
    updates = 2
    b = 0.5
    stretch = math.exp(b)
    beta = 2 * stretch * (2 * stretch - 1)
    rho = (
        1
        - 4 * eta / stretch**2 * (1 - eta * beta / 2)
        + 2 * eta**2 * beta * stretch**2 / batch * 2
    )
    added_risk = 2 * eta**2 * beta * stretch**2 / batch * 0.01
    risks = [0.0, added_risk]
    drift_part = 2 * eta * stretch * sum(map(math.sqrt, risks))
    noise_part = (
        4
        * eta
        * stretch
        * (1 + 2 * b)
        * math.sqrt((2 * sum(risks) + updates * 0.01) / batch)
    )
    descent = {
        "depth": 1,
        "learning_rate": eta,
        "batch_examples": batch,
        "updates": updates,
    }
    certificate = sampled_bound.certify(problem, **descent, radius=b)
    assert certificate.failure_probability == pytest.approx(
        ((drift_part + noise_part) / b) ** 2
    )
    assert (certificate.decay, certificate.floor) == pytest.approx(
        (rho, added_risk / (1 - rho))
    )


def test_the_bound_of_leaving_is_on_the_safe_side_of_50_digits():
    eta = 0.01
    b = 0.3
    descent = {"learning_rate": eta, "batch_examples": 10, "radius": b}
    rng = np.random.default_rng(9)
    for _ in range(10):
        r = rng.uniform(0.9, 1.1)
        sigma = rng.uniform(0.5, 1.5)
        problem = sampled.make_problem([[r]], [[sigma]], 0.1)
        certificate = sampled_bound.certify(problem, **descent, depth=1, updates=8)
        gap, floor = exact_gap_and_floor([r], [sigma], 0.1, **descent)
        start = (1 - Fraction(r)) ** 2 * Fraction(sigma)
        risks = [floor + (1 - gap) ** k * (start - floor) for k in range(8)]
        noise = Fraction(0.1) ** 2 * Fraction(sigma)
        with decimal.localcontext(prec=50):
            moved = Decimal(eta) * Decimal(b).exp()
            variance = as_decimal((2 * Fraction(sigma) * sum(risks) + 8 * noise) / 10)
            roots = sum(as_decimal(risk).sqrt() for risk in risks)
            drift = 2 * moved * Decimal(sigma).sqrt() * roots
            spread = 4 * moved * (1 + 2 * Decimal(b)) * variance.sqrt()
            exact = ((drift + spread) / Decimal(b)) ** 2
            bound = Decimal(certificate.failure_probability)
            assert exact <= bound <= exact * (1 + Decimal("1e-13"))


def test_the_bound_of_leaving_in_as_many_updates_as_there_can_be():
    """Without noise the roots of z_k are a geometric series; at R = I, z_k is below F.

    One dimension, one layer, Sigma = 1.
    """
    eta = 0.01
    b = 0.3
    descent = {"learning_rate": eta, "batch_examples": 10, "radius": b}
    for updates in (2**62, 10**7):
        problem = sampled.make_problem([[0.99]], [[1.0]], 0.0)
        gap, _ = exact_gap_and_floor([0.99], [1.0], 0.0, **descent)
        root_of_decay = math.sqrt(1 - gap)
        drift = 2 * eta * math.exp(b) * 0.01 / (1 - root_of_decay)
        sum_of_risks = 1e-4 / float(gap)
        spread = 4 * eta * math.exp(b) * (1 + 2 * b) * math.sqrt(2 * sum_of_risks / 10)
        exact = ((drift + spread) / b) ** 2
        certificate = sampled_bound.certify(
            problem, **descent, depth=1, updates=updates
        )
        assert exact < certificate.failure_probability < exact * (1 + 1e-4)
        problem = sampled.make_problem([[1.0]], [[1.0]], 1e-9)
        _, floor = exact_gap_and_floor([1.0], [1.0], 1e-9, **descent)
        drift = 2 * eta * math.exp(b) * updates * math.sqrt(floor)
        variance = updates * (2 * float(floor) + 1e-18) / 10
        spread = 4 * eta * math.exp(b) * (1 + 2 * b) * math.sqrt(variance)
        limit = ((drift + spread) / b) ** 2
        certificate = sampled_bound.certify(
            problem, **descent, depth=1, updates=updates
        )
        assert certificate.failure_probability == pytest.approx(limit, rel=1e-3)


@pytest.mark.parametrize("start", [0.0, 1e-3, 1e-2])
def test_spans_of_updates_cost_little_and_are_on_the_safe_side(start, monkeypatch):
    problem = near_identity(np.random.default_rng(10), start=start, noise_std=0.02)
    descent = {**DESCENT, "updates": 5000, "radius": 0.1}
    one_by_one = sampled_bound.certify(problem, **descent).failure_probability
    monkeypatch.setattr(sampled_bound, "_SINGLE_UPDATES", 64)
    in_spans = sampled_bound.certify(problem, **descent).failure_probability
    # Less than one part in 64, and the probability is a square.
    assert one_by_one < in_spans < one_by_one * (1 + 2 / 64)


def test_neighbouring_layers_have_nearly_the_same_noise():
    rng = np.random.default_rng(5)
    radius = 0.4
    depth = 6
    A = in_ball(rng, depth, 4, radius)
    zeta = rng.standard_normal((4, 4))
    n = gradients(A, zeta)
    for i in range(depth - 1):
        difference = n[i + 1] - n[i]
        np.testing.assert_allclose(
            difference, n[i] @ A[i].T - A[i + 1].T @ n[i + 1], atol=1e-12
        )
        most = radius / depth * 4 * math.exp(radius) * np.linalg.norm(zeta)
        assert np.linalg.norm(difference) <= most


def test_the_least_batch():
    problem = near_identity(np.random.default_rng(6), start=0.005, noise_std=0.01)
    descent = {"depth": 4, "learning_rate": 0.02 / 4, "updates": 100, "radius": 0.1}
    batch = sampled_bound.least_batch(problem, **descent, failure_probability=0.1)
    enough, fewer = (
        sampled_bound.certify(problem, **descent, batch_examples=n)
        for n in (batch, batch - 1)
    )
    assert enough.failure_probability <= 0.1 < fewer.failure_probability
    # The chance that is asked for suffices.
    exactly = {"failure_probability": enough.failure_probability}
    assert sampled_bound.least_batch(problem, **descent, **exactly) == batch
    # The limit of S7 for large batches.
    sigma, largest = np.linalg.eigvalsh(problem.Sigma)[[0, -1]]
    stretch = math.exp(0.1)
    far = np.linalg.norm(np.eye(3) - problem.R, 2)
    gain = 1 - 0.02 / 4 * 2 * 4 * largest * stretch * (2 * stretch - 1 + far) / 2
    limit = (stretch**3 * math.sqrt(largest) * 0.005 / (0.1 * sigma * gain)) ** 2
    certificate = sampled_bound.certify(problem, **descent, batch_examples=2**40)
    assert certificate.failure_probability <= limit
    # Close to the limit a batch of many millions is needed, and found.
    above = {"failure_probability": certificate.failure_probability * (1 + 1e-6)}
    assert 2**20 < sampled_bound.least_batch(problem, **descent, **above) < 2**40
    far_away = near_identity(np.random.default_rng(6), start=0.05)
    assert (
        sampled_bound.least_batch(far_away, **descent, failure_probability=0.1) is None
    )


@pytest.mark.parametrize("radius", [1e-5, 0.5])
def test_the_floor_is_that_of_s1_times_what_s7_says(radius):
    """For small steps; the factor tends to 1 for b -> 0 at R = I, Sigma = I."""
    problem = sampled.make_problem(np.eye(3), np.eye(3), 0.1)
    descent = {"depth": 4, "learning_rate": 1e-7, "batch_examples": 8}
    certificate = sampled_bound.certify(problem, **descent, updates=1, radius=radius)
    floor = sampled_bound.noise_floor(np.ones(3), np.ones(3), **descent, noise_std=0.1)
    factor = math.exp(5 * radius) * (2 * math.exp(radius) - 1)
    assert certificate.floor == pytest.approx(factor * floor, rel=1e-4)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"radius": 1.5}, "radius must be above 0 and at most 1, got 1.5"),
        ({"learning_rate": 0.0}, "learning_rate must be above 0"),
        ({"learning_rate": math.nan}, "learning_rate must be one finite real number"),
        ({"radius": math.nan}, "radius must be one finite real number"),
        ({"batch_examples": 0}, "batch_examples must be at least 1"),
    ],
)
def test_what_cannot_be_certified(changed, message):
    problem = near_identity(np.random.default_rng(7))
    with pytest.raises(ValueError, match=message):
        sampled_bound.certify(problem, **{**DESCENT, "radius": 0.1, **changed})


def test_a_chance_that_is_no_number_is_refused():
    problem = near_identity(np.random.default_rng(7))
    descent = {"depth": 4, "learning_rate": 0.005, "updates": 100, "radius": 0.1}
    with pytest.raises(ValueError, match="failure_probability must be one finite"):
        sampled_bound.least_batch(problem, **descent, failure_probability=math.nan)


def test_nothing_is_certified_for_singular_data_or_large_steps():
    singular = sampled.make_problem(np.eye(2), np.diag([1.0, 0.0]), 0.1)
    assert sampled_bound.certify(singular, **DESCENT, radius=0.1) is None
    problem = near_identity(np.random.default_rng(8))
    assert (
        sampled_bound.certify(problem, **DESCENT | {"learning_rate": 1.0}, radius=0.1)
        is None
    )


def test_problems_are_checked():
    with pytest.raises(ValueError, match="R and Sigma must be d x d"):
        sampled.make_problem(np.eye(2), np.eye(3), 0.1)
    with pytest.raises(ValueError, match="Sigma must be positive semidefinite"):
        sampled.make_problem(np.eye(2), -np.eye(2), 0.1)
    with pytest.raises(ValueError, match="noise_std must be 0 or more, got -1"):
        sampled.make_problem(np.eye(2), np.eye(2), -1)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({}, "holds"),
        ({"violations": 1}, "counterexample"),
        ({"left": 25}, "counterexample"),
        ({"left": 24}, "holds"),
        ({"risk_bound": 3.1}, "undecided"),
        ({"certified": False}, "undecided"),
        ({"failure_probability": 1.2, "left": 100}, "holds"),
    ],
)
def test_the_bounds_are_judged(changed, said):
    """25 of 100 runs exceed the bound, where S6 allows 10.

    That is more than 4.9 standard errors, of 3 each, above it.
    """
    record = {"certified": True, "failure_probability": 0.1, "left": 0, "violations": 0}
    record |= {
        "risk": 1.0,
        "risk_bound": 1.8,
        "start_risk": 200.0,
        "predicted_risk": 1.0,
    }
    record |= {"largest_norm_times_depth": 0.01, "depth": 2}
    settings = {"runs": 100, "standard_errors": 4.9, "largest_factor": 3.0}
    assert experiment.verdict(settings, [record, record | changed]).verdict == said
