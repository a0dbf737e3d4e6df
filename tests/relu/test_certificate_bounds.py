"""The steps of the proofs: derivatives, their bounds, kinks, roots and definiteness."""

import fractions

import jax
import numpy as np
import pytest

from identity_matters.relu import (
    certificate,
    exact_net,
    model,
    origin,
    problems,
    rational,
)
from identity_matters.relu.model import Blocks
from tests.relu.local_minima import (
    TEACHER,
    THREE_POINTS,
    beside,
    two_live_blocks,
)


def test_kinks_come_nearer_by_what_the_blocks_below_move():
    def block(V, W, z):
        V, W, z = map(rational.exact, (V, W, z))
        return exact_net.Block(V, W, z, z @ W.T)

    # Inputs 1 and 3 of block 2 move by 1/10 and 1/5; its first unit is live, its second
    # is dead.
    blocks = (
        block([[1.0]], [[4.0]], [[1.0], [2.0]]),
        block(np.ones((1, 2)), [[2], [-1]], [[1], [3]]),
    )
    moves = np.array([fractions.Fraction(1, 10), fractions.Fraction(1, 5)])
    # The least of 4 in block 1, (2 - 2/10) / (1 + 1/10) and (6 - 4/10) / (3 + 1/5).
    assert float(certificate._kink_distance(blocks, moves)) == pytest.approx(
        18 / 11, rel=1e-15
    )
    with pytest.raises(certificate.NotCertifiedError, match="may come to life"):
        certificate._kink_distance(blocks, 10 * moves)


@pytest.mark.slow
def test_the_exact_system_is_what_differentiation_says():
    """Two blocks of two units with biases, between maps.

    All units live, no residual is 0.
    """
    rng = np.random.default_rng(6)
    net = Blocks(
        *(rng.standard_normal(shape) for shape in ((2, 2, 2), (2, 2, 2), (2, 2)))
    )
    x, y, A, B = (
        rng.standard_normal(shape) for shape in ((6, 2), (6, 2), (2, 2), (2, 2))
    )
    problem = model.Problem(x, y, A, B)
    z = rational.exact(origin.unit_inputs(problem, bias=True))
    _, blocks = exact_net.forward_pass(net, z)
    W = np.concatenate([net.U, net.s[:, :, None]], axis=2)

    def risk(flat):
        V = flat.reshape(2, -1)[:, :4]
        W = flat.reshape(2, -1)[:, 4:].reshape(2, 2, 3)
        return model.risk(Blocks(W[:, :, :2], V.reshape(2, 2, 2), W[:, :, 2]), problem)

    flat = np.concatenate([net.V.reshape(2, -1), W.reshape(2, -1)], axis=1).ravel()
    r = rational.exact(model.forward(net, problem)[0] - y)
    gradient, hessian = exact_net.gradient_and_hessian(blocks, rational.exact(B), r)
    np.testing.assert_allclose(
        gradient.astype(float), jax.jit(jax.grad(risk))(flat), rtol=1e-11
    )
    np.testing.assert_allclose(
        hessian.astype(float), jax.jit(jax.hessian(risk))(flat), rtol=1e-10, atol=1e-12
    )


def test_derivatives_stay_below_their_bounds():
    """N10: the output at x = 1 with all units active is the product of the 1 + v u."""
    rng = np.random.default_rng(7)
    polynomial = np.polynomial.Polynomial
    closest = np.zeros(3)
    for depth in (1, 2, 3):
        lines = [*rng.standard_normal((20, 2, depth)), np.ones((2, depth))]
        for du, dv in (line / np.linalg.norm(line) for line in lines):
            # Far from 0, and near 0, where the bounds are tightest.
            for u, v in (
                0.7 * rng.standard_normal((2, depth)),
                np.full((2, depth), 1e-3),
            ):
                parts = zip(u, v, du, dv, strict=True)
                output = np.prod(
                    [
                        1 + polynomial([a, c]) * polynomial([b, d])
                        for a, b, c, d in parts
                    ]
                )
                blocks = [
                    exact_net.Block(*rational.exact([[[b]], [[a]], [[1.0]], [[1.0]]]))
                    for a, b in zip(u, v, strict=True)
                ]
                length = rational.exact(np.linalg.norm([u, v]))[()]
                exact_bounds = certificate._derivative_bounds(blocks, length, 0)
                bounds = np.array(exact_bounds, float)
                derivatives = [abs(output.deriv(order)(0.0)) for order in (1, 2, 3)]
                assert (derivatives <= bounds * (1 + 1e-12)).all()
                closest = np.maximum(closest, derivatives / np.maximum(bounds, 1e-300))
    # Near 0 the first two are attained, and half of the third: two blocks give 3/2 P,
    # not 3 P.
    assert (closest > [0.99, 0.99, 0.49]).all()


def test_bounds_of_derivatives_by_hand():
    """N10 with 1 + |V| |W| = 3 and 2, P = 2, and three times 2, P = 1."""

    def rates(*sizes, length):
        blocks = [
            exact_net.Block(*rational.exact([[[v]], [[w]], [[1.0]], [[1.0]]]))
            for v, w in sizes
        ]
        bounds = certificate._derivative_bounds(blocks, fractions.Fraction(length), 0)
        return [float(rate) for rate in bounds]

    assert rates((1.0, 2.0), (1.0, 1.0), length=2) == pytest.approx([6, 9, 18])
    assert rates(*[(1.0, 1.0)] * 3, length=1) == pytest.approx([4, 20 / 3, 116 / 9])
    assert rates((1.0, 2.0), length=3) == pytest.approx([3, 1, 0])


def test_the_contraction_has_the_constant_of_n10():
    """In floats, for a candidate that is too far off.

    The message has the rate Z + |C| L rho.
    """
    problem, _, teacher = two_live_blocks()
    _, student, _ = two_live_blocks((0.81, 0.5))
    problem = problem._replace(B=np.full((1, 1), 2.0))
    z = rational.exact(origin.unit_inputs(problem, bias=True))
    B = rational.exact(problem.B)
    added, blocks = exact_net.forward_pass(student, z)
    residuals = (added - exact_net.forward_pass(teacher, z)[0]) @ B.T
    parts = exact_net.gradient_and_hessian(
        [block.live() for block in blocks], B, residuals
    )
    gradient, hessian = (part.astype(float) for part in parts)
    # v, u and s of each block, and the tangents of their orbits.
    theta = np.array([[0.81, 0.5, -0.125], [0.5, 0.25, -0.57]])
    T = np.zeros((6, 2))
    T[:3, 0], T[3:, 1] = (theta * [1, -1, -1]) / np.linalg.norm(theta, axis=1)[:, None]
    C = np.linalg.inv(hessian + T @ T.T)
    rho = 4 * np.linalg.norm(C @ gradient)
    P = np.linalg.norm(theta) + rho
    c = 1 + (theta[:, 0] + rho) * (np.linalg.norm(theta[:, 1:], axis=1) + rho)
    D = c.max() * np.array([P, 1 + P**2 / 2, 3 * P])
    b = 2 * np.hypot(problem.x[:, 0], 1)
    r = np.abs(residuals.astype(float))[:, 0]
    L = 2 / 5 * np.sum(3 * b**2 * D[0] * D[1] + (r + b * D[0] * rho) * b * D[2])
    rate = np.linalg.norm(C) * L * rho
    with pytest.raises(certificate.NotCertifiedError) as caught:
        certificate.certify(student, teacher, problem)
    assert str(caught.value) == f"no contraction, rate: {rate:.3g} against 0.75"


def test_norms_and_kinks_have_room_for_the_radius():
    problem, student, teacher = two_live_blocks()
    _, shifted, _ = two_live_blocks((0.8 + 1e-9, 0.5))
    near = certificate.certify(shifted, teacher, problem)
    assert near.norm == pytest.approx(
        np.hypot(0.8 + 1e-9, 0.1) + near.radius, abs=1e-12
    )
    _, long, longer = two_live_blocks((1.2, 0.5))
    with pytest.raises(certificate.NotCertifiedError, match="must be below 1"):
        certificate.certify(long, longer, problem)
    # The teacher alone may be too long, too.
    with pytest.raises(certificate.NotCertifiedError, match="must be below 1"):
        certificate._norms_inside(student, longer, fractions.Fraction(0))
    # One more example, 1e-9 from the kink at 1/4: less than the radius of `shifted`.
    with_near_kink = problems.plain_problem(
        [*problem.x, [0.25 - 1e-9]], np.zeros((6, 1))
    )
    assert certificate.certify(student, teacher, with_near_kink).kink_distance > 1e-10
    with pytest.raises(certificate.NotCertifiedError, match="a kink is too near"):
        certificate.certify(shifted, teacher, with_near_kink)


def test_orbits_stay_transversal_within_the_length_of_their_tangents(monkeypatch):
    """(2) of N10, for a tangent (3, 4).

    Within a radius of 5 its product with (0.6, 0.8) stays above 0.
    """
    tangents = rational.exact([[3.0], [4.0]])
    directions = tangents / 5
    certificate._require_transversal(
        tangents, directions, fractions.Fraction(4999, 1000)
    )
    # Any length of a direction will do, and every orbit counts.
    two_tangents = rational.exact([[3.0, 30.0], [4.0, 40.0]])
    two_directions = rational.exact([[6.0, 0.6], [8.0, 0.8]])
    # The radius at which the product is exactly 0: norms are rounded up.
    zero = 5 / rational.norm(directions)
    for refused in (
        (tangents, directions, fractions.Fraction(5)),
        (tangents, directions, zero),
        (tangents, 10 * directions, fractions.Fraction(6)),
        (two_tangents, two_directions, fractions.Fraction(6)),
    ):
        with pytest.raises(certificate.NotCertifiedError, match="a unit is too short"):
            certificate._require_transversal(*refused)
    # The proof takes this step, and fails with it.
    problem, student, teacher = two_live_blocks()
    step = certificate._require_transversal

    def with_a_large_radius(tangents, T, rho):
        step(tangents, T, fractions.Fraction(5))

    monkeypatch.setattr(certificate, "_require_transversal", with_a_large_radius)
    with pytest.raises(certificate.NotCertifiedError, match="a unit is too short"):
        certificate.certify(student, teacher, problem)


def test_the_defect_of_the_inverse_counts_in_the_contraction():
    """(1) of N10: rho = 4/100, and 1/2 + L rho <= 1 - 1/4 for L up to 25/4."""
    newton = certificate._Newton(
        step=fractions.Fraction(1, 100),
        defect=fractions.Fraction(1, 2),
        inverse_norm=fractions.Fraction(1),
    )
    certificate._require_contraction(newton, fractions.Fraction(62, 10))
    with pytest.raises(certificate.NotCertifiedError, match="no contraction"):
        certificate._require_contraction(newton, fractions.Fraction(63, 10))


def test_the_defect_counts_what_floats_leave_out():
    """1 + 1e-20 is 1 as a float, and so is the inverse of that."""
    derivative = np.array([[1 + fractions.Fraction(1, 10**20)]])
    newton = certificate._newton(rational.exact([0.0]), derivative)
    assert float(newton.defect) == pytest.approx(1e-20, rel=1e-15)
    assert 0 < newton.step < newton.radius < 1e-39


def test_a_risk_of_exactly_0_is_not_positive():
    zero = rational.exact([[0.0]])
    with pytest.raises(certificate.NotCertifiedError, match="the risk must be"):
        certificate._risk_interval(zero, zero[0])


def test_each_bound_is_rounded_to_its_safe_side(monkeypatch):
    monkeypatch.setattr(certificate, "round_up", lambda _: "up")
    monkeypatch.setattr(certificate, "round_down", lambda _: "down")
    proof = certificate.certify(beside(0.0), TEACHER, THREE_POINTS)
    assert proof._replace(active_examples=(), dead_units=0) == certificate.Certificate(
        radius="up",
        risk="down",
        risk_above="up",
        norm="up",
        teacher_norm="up",
        kink_distance="down",
        curvature="down",
        active_examples=(),
        dead_units=0,
    )


def test_definite_matrices():
    tiny = fractions.Fraction(1, 10**41)
    for rows, definite in [
        ([[2, 1], [1, 1]], True),
        ([[1, 1], [1, 1]], False),
        ([[1, 2], [2, 1]], False),
        # Its determinant is negative, less so than the computed eigenvectors are off.
        ([[1, 2 + tiny * 10**5], [2 + tiny * 10**5, 4]], False),
        # Closer to 0 than the rounding errors of the entries.
        ([[tiny, 0], [0, 1]], False),
        # Rounded to multiples of 1e-40 this is the identity; its least eigenvalue is
        # -3.8e-41.
        ((10.9 * np.eye(3) - 4.9) * tiny, False),
    ]:
        matrix = np.array(
            [[fractions.Fraction(entry) for entry in row] for row in rows]
        )
        assert rational.is_definite(matrix) == definite


def test_roots_are_rounded_up():
    for value in (
        fractions.Fraction(2),
        fractions.Fraction(0),
        fractions.Fraction(1, 10**30),
    ):
        root = rational.root_above(value)
        assert root**2 >= value
        assert float(root) == pytest.approx(float(value) ** 0.5, rel=1e-15, abs=1e-39)
