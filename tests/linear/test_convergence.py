"""docs/theory/convergence.md: certificates (V1-V4) and times to leave a saddle."""

import decimal
import math
from decimal import Decimal

import numpy as np
import pytest
import scipy.integrate

from identity_matters import random_matrices
from identity_matters.linear import convergence, model, second_moment
from tests import hostile_problems


def certified_problem(rng, width, share):
    """R, Sigma and its rank.

    ``s_0`` is `share` times the largest that the path theorem allows.
    """
    eigenvalues = 10.0 ** rng.uniform(-2, 2, width)
    if width > 1 and rng.random() < 0.3:
        eigenvalues[rng.integers(width)] = 0.0
    rank = np.count_nonzero(eigenvalues)
    Sigma = random_matrices.symmetric(rng, eigenvalues)
    direction = rng.standard_normal((width, width))
    s0 = convergence.will_converge(
        np.eye(width) - 0.01 * direction, Sigma, 1, rank=rank
    ).s0
    scale = share * convergence.LARGEST_PATH_S0 / s0
    return np.eye(width) - 0.01 * scale * direction, Sigma, rank


@pytest.mark.slow
@pytest.mark.parametrize("depth", [1, 2, 5, 16])
def test_descent_stays_inside_and_falls_as_fast_as_certified(depth):
    rng = np.random.default_rng(depth)
    closest = 0.0
    for _ in range(20):
        R, Sigma, rank = certified_problem(
            rng, int(rng.integers(1, 5)), rng.uniform(0.2, 0.99)
        )
        certificate = convergence.will_converge(R, Sigma, depth, rank=rank).descent
        A = np.zeros((depth, *R.shape))
        first, gradient = model.excess_risk_and_gradient(A, R, Sigma)
        excess = first
        for _ in range(60):
            A -= certificate.learning_rate * gradient
            after, gradient = model.excess_risk_and_gradient(A, R, Sigma)
            norm = np.linalg.norm(A, 2, axis=(1, 2)).max()
            assert norm <= certificate.norm * (1 + 1e-12)
            assert after <= certificate.factor * excess + 1e-14 * first
            closest = max(closest, norm / certificate.norm)
            excess = after
    assert closest > 0.2  # the bound on the norm is not far too large


@pytest.mark.slow
@pytest.mark.parametrize("depth", [2, 6])
def test_flow_keeps_layers_balanced_and_within_every_certificate(depth):
    rng = np.random.default_rng(depth)
    names = set()
    for _ in range(12):
        R, Sigma, rank = certified_problem(rng, 3, rng.uniform(0.3, 1.0))
        answer = convergence.will_converge(R, Sigma, depth, rank=rank)
        # Euler's method with steps far below the inverse curvature approximates the
        # flow.
        step = 0.01 / (2 * depth * np.linalg.norm(Sigma, 2))
        A = np.zeros((depth, 3, 3))
        first, gradient = model.excess_risk_and_gradient(A, R, Sigma)
        for _ in range(400):
            A -= step * gradient
            excess, gradient = model.excess_risk_and_gradient(A, R, Sigma)
        norm = np.linalg.norm(A, 2, axis=(1, 2)).max()
        for certificate in answer.flow:
            names.add(certificate.name)
            assert norm <= certificate.norm
            assert excess <= first * math.exp(-certificate.rate * 400 * step) * (
                1 + 1e-2
            )
        W = np.eye(3) + np.asarray(A)
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


def test_one_layer_is_least_squares():
    """For l = 1 the balanced certificate has the exact norm and rate, whatever m is."""
    (flow, *_) = convergence.will_converge(np.array([[1.4]]), np.array([[2.0]]), 1).flow
    assert flow.norm == pytest.approx(0.4)
    assert flow.rate == pytest.approx(8.0)
    # The certificates come by increasing norm: here 0.3 and log(10) / 3.
    both = convergence.will_converge([[1.3]], [[2.0]], 1).flow
    assert [certificate.name for certificate in both] == ["balanced", "path"]


def test_path_by_hand():
    """s_0 = 0.2, sigma = 2: e^{-3a} = 0.4, l |||A||| <= a, rate 4 l e^{-2a} sigma."""
    certificates = {
        c.name: c for c in convergence.will_converge([[0.8]], [[2.0]], 3).flow
    }
    assert certificates["path"].norm == pytest.approx(-math.log(0.4) / 9)
    assert certificates["path"].rate == pytest.approx(24 * 0.4 ** (2 / 3))


@pytest.mark.parametrize(("r", "m", "M"), [(0.7, 0.4, 1.0), (1.3, 1.0, 1.6)])
def test_balanced_by_hand(r, m, M):
    """d = sigma = 1, l = 2, s_0 = 0.3.

    The singular values of the product lie in [r - s_0, r + s_0].
    """
    certificates = {
        c.name: c for c in convergence.will_converge(np.array([[r]]), np.eye(1), 2).flow
    }
    assert certificates["balanced"].norm == pytest.approx(math.sqrt(M) / m * 0.3 / 2)
    assert certificates["balanced"].rate == pytest.approx(8 * m)


@pytest.mark.parametrize("second", [3.0, 0.9])
def test_each_entry_of_m_counts(second):
    """Sigma = diag(4, 1) and R = diag(1.2, r).

    m is its first entry for r = 3, else the second.
    """
    answer = convergence.will_converge(
        np.diag([1.2, second]), np.diag([4.0, 1.0]), 2
    ).flow
    (balanced,) = [
        certificate for certificate in answer if certificate.name == "balanced"
    ]
    phi0 = math.hypot(0.4, 1 - second)  # sigma = 1, so this is s_0, too
    m = (2.4 - phi0) / 2 if second == 3 else 0.9 - phi0
    assert balanced.rate == pytest.approx(8 * m)
    assert balanced.norm == pytest.approx(
        math.sqrt(max(1.2, second) + phi0) / m * phi0 / 2
    )


def test_descent_at_half_the_inverse_curvature():
    """s_0^2 = 0.05: kappa = 4/3, eta = 1 / (2 beta), by hand."""
    s0 = math.sqrt(0.05)
    depth = 4
    certificate = convergence.will_converge(
        np.eye(1) * (1 - s0), np.eye(1), depth
    ).descent
    a = -math.log(1 - 4 * s0) / 3
    beta = 2 * depth * math.exp(a) * (math.exp(a) + s0)
    assert certificate.norm == pytest.approx(a / depth)
    assert certificate.learning_rate == pytest.approx(1 / (2 * beta))
    assert certificate.factor == pytest.approx(
        1 - 3 / 8 / beta * 4 * depth * math.exp(-2 * a)
    )


def test_a_target_that_is_reached_at_the_start():
    answer = convergence.will_converge(np.eye(2), np.diag([1.0, 0.0]), 5)
    assert answer and answer.s0 == 0 and answer.descent.norm == 0


@pytest.mark.parametrize("rotated", [False, True])
@pytest.mark.parametrize("second", [-1.0, -1e6])
@pytest.mark.parametrize("digits", [13.7, 15, 16, 20])
def test_an_eigenvalue_that_may_be_rounding_is_a_reason_to_refuse(
    digits, second, rotated
):
    """det R < 0 and Sigma is positive definite.

    By G10 no ball holds a critical point.
    """
    Sigma = np.diag([1.0, 10.0**-digits])
    R = np.diag([1.0, second])
    if rotated:
        S = random_matrices.orthogonal(np.random.default_rng(0), (), 2)
        Sigma = S @ Sigma @ S.T
        R = S @ R @ S.T
    answer = convergence.will_converge(R, (Sigma + Sigma.T) / 2, 8)
    assert not answer and answer.descent is None
    assert (
        "rounding leaves the rank of Sigma open: 1 of its eigenvalues" in answer.reason
    )


def test_features_of_two_scales_do_not_certify_a_reflection():
    """Standard deviations 1 and 1e-7, 1,000 samples.

    The second direction cannot converge.
    """
    x = np.random.default_rng(0).standard_normal((1000, 2)) * [1.0, 1e-7]
    assert not convergence.will_converge(np.diag([1.1, -1.0]), x.T @ x / 1000, 8)


def test_a_feature_that_is_always_zero_and_a_known_rank_are_certain():
    R = np.array([[1.1, 0.1, 0.0], [0.0, 0.9, 5.0], [0.0, 0.0, -3.0]])
    Sigma = np.array([[2.0, 1.0, 0.0], [1.0, 2.0, 0.0], [0.0, 0.0, 0.0]])
    # The eigenvalues are 3, 1 and 0; E^T E = [[0.01, 0.01], [0.01, 0.02]] on the first
    # two.
    s0 = math.sqrt(2 * 0.01 + 2 * 0.01 + 2 * 0.02)
    exact = convergence.will_converge(R, Sigma, 4)
    assert exact.s0 == pytest.approx(s0) and [c.name for c in exact.flow] == ["path"]
    S = random_matrices.orthogonal(np.random.default_rng(3), (), 3)
    rotated = S @ R @ S.T, (S @ Sigma @ S.T + (S @ Sigma @ S.T).T) / 2, 4
    assert not convergence.will_converge(*rotated)
    assert convergence.will_converge(*rotated, rank=2).s0 == pytest.approx(s0)
    with pytest.raises(ValueError, match="2 positive eigenvalues, but the rank is 1"):
        convergence.will_converge(*rotated, rank=1)
    # The third is below rounding.
    open_rank = convergence.will_converge(*rotated, rank=3)
    assert open_rank.reason.startswith("rounding leaves the rank of Sigma open")
    with pytest.raises(ValueError, match="rank must be at most d = 3, got 4"):
        convergence.will_converge(*rotated, rank=4)


@pytest.mark.parametrize(
    ("scale", "r"),
    [(1e-310, 2.0), (1e-200, 2), (1e150, 0.9), (1, 1e160), (1, -1e200), (1e139, 1e139)],
)
def test_numbers_that_float64_cannot_square_are_refused_without_a_warning(scale, r):
    assert (
        "float64 can"
        in convergence.will_converge(r * np.eye(2), scale * np.eye(2), 3).reason
    )


def test_a_square_that_underflows_does_not_lower_the_bound_of_a_norm():
    kept = second_moment.kept_part(np.array([[1e100]]))
    assert kept.squared_norm_bound(np.array([[1e-170]])) > 1e-240


def test_certified_problems_with_any_second_moment_converge():
    """Condition 1 to 1e20, rotated or not, det R of both signs.

    The flow is integrated here, not by the library.
    """
    rng = np.random.default_rng(0)
    certified = 0
    for _ in range(200):
        depth = int(rng.integers(1, 4))
        w = 10.0 ** -rng.uniform(0, rng.uniform(0, 20), 2)
        S = random_matrices.orthogonal(rng, (), 2) if rng.random() < 0.5 else np.eye(2)
        Sigma = (S * w) @ S.T
        R = np.eye(2) - rng.uniform(0, 0.5) * rng.standard_normal((2, 2))
        # a reflection in the direction that the data hardly show
        if rng.random() < 0.5:
            R -= 2 * np.outer(S[:, np.argmin(w)], S[:, np.argmin(w)])
        answer = convergence.will_converge(R, (Sigma + Sigma.T) / 2, depth)
        if not answer:
            continue
        certified += 1
        flow = answer.flow[0]
        end = 3 / flow.rate

        def slope(_, flat, R=R, Sigma=Sigma, depth=depth):
            W = np.eye(2) + flat.reshape(depth, 2, 2)
            before = [np.eye(2)]
            after = [np.eye(2)]
            for i in range(depth - 1):
                before.append(W[i] @ before[-1])
                after.append(after[-1] @ W[depth - 1 - i])
            G = 2 * (W[-1] @ before[-1] - R) @ Sigma
            return -np.ravel(
                [after[depth - 1 - i].T @ G @ before[i].T for i in range(depth)]
            )

        zero = np.zeros(4 * depth)
        solution = scipy.integrate.solve_ivp(
            slope, (0, end), zero, "LSODA", rtol=1e-7, atol=1e-10
        )
        A = solution.y[:, -1].reshape(depth, 2, 2)
        first = model.excess_risk(np.zeros_like(A), R, Sigma)
        assert model.excess_risk(A, R, Sigma) <= math.exp(-3) * first * 1.001
        assert np.linalg.norm(A, 2, axis=(1, 2)).max() <= flow.norm * 1.001
    assert certified >= 20


def test_hostile_problems_flow_as_certified():
    """`python -m tests.hostile_problems 20000` tries more of them, of more shapes."""
    shape = hostile_problems.Shape(depth=2, width=2)
    tried = hostile_problems.problems(np.random.default_rng(1), shape, 100)
    certified = [problem for problem in tried if problem.answer]
    assert len(certified) >= 20
    flows, _ = hostile_problems.integrate(certified, shape)
    assert all(flow.is_as_certified for flow in flows)


@pytest.mark.slow
def test_flows_that_are_not_as_certified():
    """What the attack would say of certificates that are wrong."""
    plain = hostile_problems.SecondMoment(np.eye(2), np.ones(2), rank=None)
    close = 0.9 * np.eye(2)
    certified = convergence.will_converge(close, np.eye(2), 2)

    def problem(R, norm):
        flow = [certified.flow[0]._replace(norm=norm)]
        return hostile_problems.Problem(R, plain, certified._replace(flow=flow))

    # The first flow ends in a saddle, where the product is 0 for the -1 of R: the risk
    # falls from 4 to 1. The second ends at layers of norm 1 - sqrt(0.9) = 0.0513.
    flows, refined = hostile_problems.integrate(
        [problem(np.diag([-1.0, 1.0]), 10.0), problem(close, 0.051)],
        hostile_problems.Shape(2, 2),
    )
    into_the_saddle, too_far = flows
    assert refined == 2
    assert not into_the_saddle.is_as_certified
    np.testing.assert_allclose(into_the_saddle.risk_left, 0.25, rtol=1e-6)
    assert not too_far.is_as_certified
    np.testing.assert_allclose(too_far.norm_share, (1 - 0.9**0.5) / 0.051, rtol=1e-6)


def test_a_negative_determinant_is_never_certified():
    rng = np.random.default_rng(0)
    for _ in range(200):
        R = np.eye(3) + rng.uniform(0, 1) * rng.standard_normal((3, 3))
        assert np.linalg.det(R) > 0 or not convergence.will_converge(R, np.eye(3), 4)
    # Nor one that is 0, by the same reason.
    singular = convergence.will_converge(np.diag([0.0, 1.0]), np.eye(2), 4)
    assert (singular.s0, bool(singular)) == (math.inf, False)
    assert singular.reason.startswith("det R is not positive")


@pytest.mark.parametrize("digits", [1, 12, 15, 16, 17, 18, 306])
def test_rounding_does_not_certify_a_large_negative_target(digits):
    """phi_0 and sigma_min(R Sigma^{1/2}) differ by less than their rounding errors."""
    rng = np.random.default_rng(digits)
    for _ in range(200):
        r = -rng.uniform(1, 10) * 10.0**digits
        assert not convergence.will_converge([[r]], [[10 ** rng.uniform(-8, 8)]], 4)
        Sigma = random_matrices.symmetric(rng, 10.0 ** rng.uniform(-6, 6, 2))
        assert not convergence.will_converge(np.diag([r, -r]), Sigma, 4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((np.eye(2), np.eye(3), 2), "got shapes"),
        ((np.eye(1), -np.eye(1), 2), "has the eigenvalue -1.0"),
        ((np.eye(2), np.array([[1.0, 0.5], [0.0, 1.0]]), 2), "symmetric"),
        ((np.eye(1), np.zeros((1, 1)), 2), "not be zero"),
        ((np.eye(1), np.eye(1), 0), "depth must be at least 1"),
        ((np.ma.array(np.eye(1)), np.eye(1), 2), "R must be a plain array"),
        ((np.eye(1), np.eye(1) * (1 + 1j), 2), "Sigma must hold real numbers"),
    ],
)
def test_bad_input_is_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        convergence.will_converge(*arguments)


def test_every_quantity_is_moved_to_the_safe_side_of_its_rounding():
    def exactly(value):
        return pytest.approx(value, rel=1e-9, abs=0)

    kept = second_moment.kept_part(np.diag([1.0, 1e-12]))
    problem = convergence._Problem.of(np.diag([1.0, 0.5]), kept)
    rounding = float(kept.rounding)
    assert 1e-16 < rounding < 1e-12
    assert problem.sigma == exactly(1e-12 - rounding)
    assert problem.largest >= 1 + rounding
    # E = diag(0, 1/2)
    assert problem.phi0**2 == exactly((1e-12 + rounding) / 4)
    assert problem.s0**2 == exactly(problem.phi0**2 / problem.sigma)
    # 8 d eps (||R|| + s_0) cond(Sigma) are taken off m = 0.9 - s_0.
    R = np.diag([1.0, 0.9])
    Sigma = np.diag([1.0, 1e-8])
    problem = convergence._Problem.of(R, second_moment.kept_part(Sigma))
    lost = 16 * 2.0**-52 * (1 + problem.s0) * problem.largest / problem.sigma
    assert lost > 3e-7
    flows = {flow.name: flow for flow in convergence.will_converge(R, Sigma, 2).flow}
    expected = 8 * (0.9 - problem.s0 - lost) * problem.sigma
    assert flows["balanced"].rate == exactly(expected)


def test_one_dimension_is_on_the_safe_side_of_50_digits():
    """There an eigenvalue has no rounding: only single operations do."""
    rng = np.random.default_rng(0)
    depth = 4
    with decimal.localcontext(prec=50):
        for _ in range(400):
            r = rng.uniform(0.7, 1.3)
            sigma = rng.uniform(0.1, 3)
            answer = convergence.will_converge([[r]], [[sigma]], depth)
            s0 = abs(1 - Decimal(r))
            assert s0 <= Decimal(answer.s0) <= s0 * (1 + Decimal("1e-14"))
            flows = {flow.name: flow for flow in answer.flow}
            a = -(1 - 3 * s0).ln() / 3
            path = flows["path"]
            assert a / depth <= Decimal(path.norm)
            assert Decimal(path.rate) <= 4 * depth * Decimal(sigma) * (-2 * a).exp()
            m = max(Decimal(r) - s0, 2 * Decimal(r) - 1 if r < 1 else 1)
            M = Decimal(r) + s0
            balanced = flows["balanced"]
            assert M ** Decimal("0.75") / m ** Decimal("1.5") * s0 / 4 <= Decimal(
                balanced.norm
            )
            rate = 4 * depth * m ** Decimal("1.5") * Decimal(sigma)
            assert Decimal(balanced.rate) <= rate


def test_descent_is_on_the_safe_side_of_50_digits_up_to_the_largest_s0():
    """1 / kappa is as close to 1 as float64 has numbers."""
    for share in (0.5, 0.8, 1 - 1e-9, 1 - 1e-14):
        r = 1 - share * convergence.LARGEST_PATH_S0
        descent = convergence.will_converge([[r]], [[1.0]], 4).descent
        with decimal.localcontext(prec=50):
            s0 = 1 - Decimal(r)
            # The least kappa with which V4 allows this rate.
            kappa = Decimal(1)
            for _ in range(200):
                growth = (1 - 3 * kappa * s0) ** (-Decimal(1) / 3)
                beta = 2 * 4 * growth * (growth + s0)
                kappa = 1 / (1 - Decimal(descent.learning_rate) * beta / 2)
            assert 3 * kappa * s0 <= 1 - Decimal(-3).exp()
            assert growth.ln() / 4 <= Decimal(descent.norm)
            fall = 4 * 4 * Decimal(descent.learning_rate) / growth**2 / kappa
            assert 1 - fall <= Decimal(descent.factor)


def test_a_target_whose_distance_cannot_be_squared_is_not_at_distance_0():
    R = np.array([[1.0, 1e-170], [0.0, 1.0]])
    assert 1e-170 <= convergence.will_converge(R, np.eye(2), 4).s0 < 1e-150


def test_a_second_moment_is_taken_by_its_symmetric_part():
    """It may be asymmetric by rounding, and LAPACK reads one triangle."""
    off = 100 * 2.0**-52
    Sigma = np.array([[1.0, 0.5 + off], [0.5, 1.0]])
    matrix, eigenvalues = second_moment.check_second_moment(Sigma)
    np.testing.assert_array_equal(matrix, matrix.T)
    assert matrix[0, 1] == 0.5 + off / 2
    assert eigenvalues[0] == pytest.approx(0.5 - off / 2, abs=1e-15)


def test_an_eigenvalue_is_known_up_to_a_few_roundings_and_of_1_x_1_exactly():
    """16 (d - 1) eps ||Sigma||: nothing is computed for d = 1."""
    eps = 2.0**-52
    norms = np.array([1.0, 5.0])
    assert second_moment.eigenvalue_rounding(1, norms).tolist() == [0, 0]
    of_3_x_3 = second_moment.eigenvalue_rounding(3, norms)
    assert of_3_x_3.tolist() == [32 * eps, 160 * eps]
