"""Limits of the search, kinds of critical points, and proofs in rational arithmetic."""

import fractions
import types

import jax
import numpy as np
import pytest

from experiments.measurements import relu_search
from identity_matters.relu import (
    certificate,
    critical_points,
    exact_net,
    model,
    origin,
    problems,
    rational,
)
from identity_matters.relu.model import Blocks
from tests.measured import reference_runs
from tests.relu_problems import copies, two_points, unit_blocks


def find(problem, nets, descends):
    batch = copies(problem, len(descends))
    limits, numbers = critical_points.find(
        nets, batch, np.array(descends), steps=100, tolerance=1e-12
    )
    return limits, {**numbers, **critical_points.kink_margins(limits, batch)}


@pytest.mark.slow
def test_the_search_finds_both_minima_of_the_two_points():
    problem = two_points(0.2, 0.5)
    nets = Blocks(
        np.array([0.5, -0.5]).reshape(2, 1, 1, 1), np.full((2, 1, 1, 1), 0.1), None
    )
    limits, numbers = find(problem, nets, [True, True])
    np.testing.assert_allclose(numbers["risk"], [0.125, 0.02], rtol=1e-10)
    np.testing.assert_allclose(
        limits.V[:, 0, 0, 0] * limits.U[:, 0, 0, 0], [0.2, -0.5], rtol=1e-9
    )
    # Eigenvalues 0, along the hyperbola, and u^2 + v^2.
    across = np.squeeze(limits.U) ** 2 + np.squeeze(limits.V) ** 2
    np.testing.assert_allclose(numbers["eigenvalues"][:, 1], across, rtol=1e-9)
    np.testing.assert_allclose(numbers["eigenvalues"][:, 0], [0, 0], atol=1e-12)
    np.testing.assert_allclose(numbers["kink_margin"], [1, 1])


@pytest.mark.slow
def test_only_a_search_that_descends_leaves_the_saddle():
    """From u = v = 1/50 the origin is the nearest critical point, and no minimum.

    On the piece u > 0 the risk is ((1/5 - u v)^2 + 1/4) / 2. Its Hessian at the origin
    is off-diagonal with the entries -1/5.
    """
    near_origin = np.full((2, 1, 1, 1), 0.02)
    nets = Blocks(near_origin, near_origin, None)
    limits, numbers = find(two_points(0.2, 0.5), nets, [False, True])
    sizes = np.hypot(limits.U, limits.V).ravel()
    assert sizes[0] < 1e-9 and sizes[1] > 0.1
    np.testing.assert_allclose(numbers["risk"], [0.145, 0.125], rtol=1e-10)
    np.testing.assert_allclose(numbers["eigenvalues"][0], [-0.2, 0.2], rtol=1e-6)
    np.testing.assert_allclose(numbers["eigenvalues"][1, 0], 0, atol=1e-9)


def test_kinds_by_the_first_that_fits():
    # (value at a good point, value at a bad one)
    numbers = {
        "gradient_norm": (0.0, 1e-3),
        "max_norm": (0.5, 2.0),
        "risk_share": (0.5, 0.0),
        "dead_units": (1, 2),
        "shortest_unit": (0.1, 0.0),
        "kink_margin": (0.1, 0.0),
        "eigenvalues": ([0.0, 1.0], [-1.0, 1.0]),
    }
    # Point j is bad in the j-th and all later numbers, the last point in none.
    limits = {
        name: np.array([fault] * i + [good] * (8 - i))
        for i, (name, (good, fault)) in enumerate(numbers.items(), 1)
    }
    small = dict.fromkeys(
        ("gradient_tolerance", "optimal_share", "curvature_tolerance"), 1e-9
    )
    small |= {"kink_tolerance": 1e-6, "zero_unit_tolerance": 1e-6}
    trial = types.SimpleNamespace(depth=1, width=2, radius=1.0, **small)
    assert tuple(relu_search.classify(trial, limits)) == relu_search.KINDS


# Errors 0.49, 0.2 and 0.45 at -1, 1 and 2. A live unit (u, v, s) fits the last two and
# leaves the first, and the teacher has a second unit for that; the candidate's second
# unit is dead.
THREE_POINTS = problems.plain_problem([[-1.0], [1.0], [2.0]], np.zeros((3, 1)))
LIVE, DEAD = (0.5, 0.5, -0.1), (0.1, 0.7, -0.3)
TEACHER = unit_blocks([LIVE, (-0.7, 0.7, 0.0)])


def beside(offset):
    """A candidate whose live unit has its output weight off by `offset`."""
    return unit_blocks([(0.5, 0.5 - offset, -0.1), DEAD])


def test_a_bad_local_minimum_is_proved():
    proof = certificate.certify(beside(1e-9), TEACHER, THREE_POINTS)
    assert 1e-10 < proof.radius < 1e-8
    # At the minimum itself the risk is 0.49^2 / 3.
    least = 0.49**2 / 3
    assert least - 1e-8 < proof.risk < least < proof.risk_above < least + 1e-8
    # The Hessian across the orbit is 2/3 J^T J with J = ((u + s, v, v), (2 u + s, 2 v,
    # v)), the derivatives of the outputs at 1 and 2. J J^T has trace 2.72 and
    # determinant 0.1275. The bound is half its least eigenvalue, for room.
    across = 2 / 3 * (2.72 - np.sqrt(2.72**2 - 4 * 0.1275)) / 2
    assert 0.49 * across < proof.curvature < 0.51 * across
    assert proof.norm == pytest.approx(np.hypot(0.5, 0.7))
    assert proof.teacher_norm == pytest.approx(np.hypot(0.5, 0.7))
    # The pre-activations are -0.6, 0.4 and 0.9, and |z| is sqrt 2, sqrt 2 and sqrt 5.
    assert proof.kink_distance == pytest.approx(0.4 / np.sqrt(2))
    assert (proof.active_examples, proof.dead_units) == ((2,), 1)


def without_biases(u, v):
    """A block of units without biases, for d = 1."""
    return Blocks(np.array(u)[None, :, None], np.array(v)[None, None], None)


@pytest.mark.parametrize(
    ("candidate", "teacher", "message"),
    [
        # The global minimum.
        (([-0.625], [0.8]), ([-0.5], [1.0]), "the risk must be positive"),
        # Far along the hyperbola.
        (([1e-9], [0.2e9]), ([0.5], [0.4]), "the Hessian is flat"),
        # One unit that fits and one next to zero: a saddle.
        (([0.5, -1e-3], [0.4, 1e-3]), ([0.5, -0.5], [0.4, 1.0]), "the Hessian is flat"),
    ],
)
def test_what_is_no_bad_minimum_is_not_proved(candidate, teacher, message):
    problem = two_points(0.0, 0.0)
    with pytest.raises(certificate.NotCertifiedError, match=message):
        certificate.certify(
            without_biases(*candidate), without_biases(*teacher), problem
        )


def test_a_teacher_that_does_not_fit_into_the_net_is_refused():
    """For y = 1.2, -0.5 the least risk of one unit without bias is 0.2^2 / 2 (N9), at u
    v = -0.5.

    A teacher of two units has risk 0, which says nothing about nets of one.
    """
    problem, sizes = two_points(0.2, 0.5), np.sqrt([0.2, 0.5])
    best, two_units = (
        without_biases([-0.625], [0.8]),
        without_biases(sizes * [1, -1], sizes),
    )
    assert model.risk(best, problem) == pytest.approx(0.02)
    assert model.risk(two_units, problem) < 1e-30
    with pytest.raises(
        ValueError, match=r"fit into the candidate's net of 1 x 1 units, got 1 x 2"
    ):
        certificate.certify(best, two_units, problem)
    deeper = unit_blocks([LIVE, DEAD], [DEAD, DEAD])
    with pytest.raises(ValueError, match="net of 1 x 2 units, got 2 x 2"):
        certificate.certify(beside(0.0), deeper, THREE_POINTS)
    # A teacher with fewer blocks and units fits: zero blocks and units add nothing.
    certificate.certify(deeper, TEACHER, THREE_POINTS)


def test_points_without_a_proof_are_refused_in_one_line():
    """Zero weights, a zero unit, and weights whose squares are no floats."""
    zero = unit_blocks([(0.0, 0.0, 0.0)] * 2)
    kink = (
        "active on an example or strictly dead: unit 1 of block 1 only reaches its kink"
    )
    with pytest.raises(certificate.NotCertifiedError, match=kink):
        certificate.certify(zero, TEACHER, THREE_POINTS)
    with pytest.raises(certificate.NotCertifiedError, match=kink):
        certificate.certify(
            zero._replace(s=None), TEACHER._replace(s=None), THREE_POINTS
        )
    # v = 0 and w = 0 in a unit beside the live one.
    one_zero = unit_blocks([LIVE, (0.0, 0.0, 0.0)])
    with pytest.raises(certificate.NotCertifiedError, match="unit 2 of block 1"):
        certificate.certify(one_zero, TEACHER, THREE_POINTS)
    for size in (1e-200, 1e-310, 1e160, 1e300):
        scaled = unit_blocks([tuple(size * weight for weight in LIVE), DEAD])
        with pytest.raises(certificate.NotCertifiedError, match=r"^[^\n]+$"):
            certificate.certify(scaled, TEACHER, THREE_POINTS)
    large = THREE_POINTS._replace(x=1e200 * THREE_POINTS.x)
    with pytest.raises(certificate.NotCertifiedError, match=r"^[^\n]+$"):
        certificate.certify(beside(0.0), TEACHER, large)


@pytest.mark.parametrize(
    ("which", "part", "value", "message"),
    [
        (
            "candidate",
            "V",
            np.full((1, 1, 2), np.nan),
            "V of the candidate must be finite",
        ),
        (
            "candidate",
            "U",
            np.full((1, 2, 1), np.inf),
            "U of the candidate must be finite",
        ),
        ("teacher", "s", np.full((1, 2), np.nan), "s of the teacher must be finite"),
        ("teacher", "s", None, "both have biases, or both none"),
        (
            "candidate",
            "V",
            np.zeros((1, 2, 1)),
            r"V .* shape \(1, 1, 2\), got \(1, 2, 1\)",
        ),
        ("candidate", "s", np.zeros((2, 1)), r"s .* shape \(1, 2\), got \(2, 1\)"),
        ("candidate", "U", np.zeros((2, 1)), r"must have 3 axes, got shape \(2, 1\)"),
        ("problem", "x", np.full((3, 1), np.inf), "x must be finite"),
        ("problem", "x", np.zeros((3, 2)), r"A must have shape \(1, 2\), got \(1, 1\)"),
        (
            "problem",
            "B",
            np.zeros((1, 2)),
            r"B must have 1 columns, got shape \(1, 2\)",
        ),
        ("problem", "A", np.full((1, 1), 1e308), "A x must be finite"),
    ],
)
def test_arguments_that_do_not_fit_together_are_refused_in_one_line(
    which, part, value, message
):
    arguments = {"candidate": beside(0.0), "teacher": TEACHER, "problem": THREE_POINTS}
    arguments[which] = arguments[which]._replace(**{part: value})
    with pytest.raises(ValueError, match=message):
        certificate.certify(**arguments)
    # A teacher in another dimension.
    plane = Blocks(np.ones((1, 1, 2)), np.ones((1, 2, 1)), np.ones((1, 1)))
    with pytest.raises(ValueError, match="must have one dimension, got 1, 2"):
        certificate.certify(beside(0.0), plane, THREE_POINTS)


def test_dead_units_and_dead_blocks_are_left_out():
    """Beside a dead unit, or below or above a dead block, the proof is that of the live
    unit.
    """
    blocks, problem, teacher = unit_blocks, THREE_POINTS, TEACHER
    live, dead, woken = (0.5, 0.5 + 1e-9, -0.1), DEAD, (0.1, 0.7, 0.0)
    alone = certificate.certify(blocks([live, dead]), teacher, problem)
    assert (alone.dead_units, alone.active_examples) == (1, (2,))
    assert alone.risk < 0.49**2 / 3 < alone.risk_above
    for net, count in [
        (blocks([live, dead, (0.1, 0.1, -0.3)]), 2),
        (blocks([dead, dead], [live, dead]), 3),
        (blocks([live, dead], [dead, dead]), 3),
    ]:
        proof = certificate.certify(net, teacher, problem)
        assert proof.dead_units == count
        changed = {"dead_units": 1, "norm": alone.norm}
        assert proof._replace(**changed) == alone
    # Dead at h_1(2) = 2.45 + 9e-10, but only by 1e-10, which is less than the point may
    # move.
    near = (0.1, 0.7, -0.245 - 1.9e-10)
    for net, message in [
        # Active at h_1(2) = 2.45 only, and with too little data to tell its weights
        # apart.
        (blocks([live, dead], [woken, dead]), "the Hessian is flat"),
        (blocks([live, dead], [near, dead]), "a dead unit may come to life"),
        (blocks([dead, dead]), "blocks with live units: 0 against 1"),
    ]:
        with pytest.raises(certificate.NotCertifiedError, match=message):
            certificate.certify(net, teacher, problem)


def two_live_blocks(v=(0.8, 0.5)):
    """x = -1, 1/2, 1, 2, 3 with error 1/4 at -1, and a net that fits the others by two
    blocks.

    Its kinks are at 1/4 and, in block 2, at x = 17/10; the second unit of each block is
    dead.
    """
    problem = problems.plain_problem(
        [[-1.0], [0.5], [1.0], [2.0], [3.0]], np.zeros((5, 1))
    )
    (v1, v2), dead = v, (0.1, 0.1, -0.5)
    first, second = (0.5, v1, -0.125), (0.25, v2, -0.57)
    # In place of the first dead unit the teacher has one that is active at x = -1 only.
    student = unit_blocks([first, dead], [second, dead])
    return problem, student, unit_blocks([first, (-0.5, 0.5, 0.0)], [second, dead])


def test_a_bad_local_minimum_with_live_units_in_two_blocks_is_proved():
    problem, student, teacher = two_live_blocks()
    proof = certificate.certify(student, teacher, problem)
    # The error at -1 is 1/4, of five examples; the others are fitted.
    assert proof.risk < 1 / 80 < proof.risk_above < 1 / 80 + 1e-12
    assert (proof.active_examples, proof.dead_units) == ((4, 2), 2)
    assert proof.norm < 1 and proof.teacher_norm < 1 and proof.curvature > 0
    # A candidate next to it has a larger ball around the same minimum.
    _, shifted, _ = two_live_blocks((0.8 + 1e-9, 0.5))
    near = certificate.certify(shifted, teacher, problem)
    assert 1e-10 < near.radius < 1e-6 and near.risk < 1 / 80 < near.risk_above
    # (2/n) sum |r_i| |z_i| D_1 radius (N10) up and down, where |r| = 1/4 and |z|^2 = 2
    # at -1.
    w_norms, v = np.hypot([0.5, 0.25], [0.125, 0.57]), np.array([0.8, 0.5])
    D_1 = np.max(1 + v * w_norms) * np.sqrt(np.sum(v**2 + w_norms**2))
    moved = 4 / 5 * np.sqrt(2) / 4 * D_1 * near.radius
    assert near.risk_above - near.risk == pytest.approx(moved, rel=1e-4)
    # Without the last example two unknowns of block 2 have one equation.
    fewer = problems.plain_problem(problem.x[:-1], problem.y[:-1])
    with pytest.raises(certificate.NotCertifiedError, match="the Hessian is flat"):
        certificate.certify(student, teacher, fewer)


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
    """Two blocks of two units with biases, between maps; all units live, no residual is
    0.
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
        V, W = flat.reshape(2, -1)[:, :4], flat.reshape(2, -1)[:, 4:].reshape(2, 2, 3)
        return model.risk(Blocks(W[:, :, :2], V.reshape(2, 2, 2), W[:, :, 2]), problem)

    flat = np.concatenate([net.V.reshape(2, -1), W.reshape(2, -1)], axis=1).ravel()
    r = rational.exact(model.forward(net, problem)[0] - y)
    gradient, hessian = exact_net.system(blocks, rational.exact(B), r)
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
                rates = np.array(certificate._output_rates(blocks, length, 0), float)
                found = [abs(output.deriv(order)(0.0)) for order in (1, 2, 3)]
                assert (found <= rates * (1 + 1e-12)).all()
                closest = np.maximum(closest, found / np.maximum(rates, 1e-300))
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
        found = certificate._output_rates(blocks, fractions.Fraction(length), 0)
        return [float(rate) for rate in found]

    assert rates((1.0, 2.0), (1.0, 1.0), length=2) == pytest.approx([6, 9, 18])
    assert rates(*[(1.0, 1.0)] * 3, length=1) == pytest.approx([4, 20 / 3, 116 / 9])
    assert rates((1.0, 2.0), length=3) == pytest.approx([3, 1, 0])


def test_the_contraction_has_the_constant_of_n10():
    """In floats, for a candidate that is too far off: the message has the rate Z + |C|
    L rho.
    """
    problem, _, teacher = two_live_blocks()
    _, student, _ = two_live_blocks((0.81, 0.5))
    problem = problem._replace(B=np.full((1, 1), 2.0))
    z = rational.exact(origin.unit_inputs(problem, bias=True))
    B = rational.exact(problem.B)
    added, blocks = exact_net.forward_pass(student, z)
    residuals = (added - exact_net.forward_pass(teacher, z)[0]) @ B.T
    parts = exact_net.system([block.live() for block in blocks], B, residuals)
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
    assert str(caught.value) == f"no contraction, rate: {rate:.3g} against 1"


def test_a_candidate_off_the_minimum_is_refused_by_the_first_step_that_fails():
    """Y = rho / 4, so the rate must be below 3/4; from 1/2 to 3/4 the curvature is the
    problem.
    """

    def refused(offset):
        with pytest.raises(certificate.NotCertifiedError) as caught:
            certificate.certify(beside(offset), TEACHER, THREE_POINTS)
        return str(caught.value)

    assert refused(5.5e-4).startswith("no local minimum")
    message = refused(8e-4)
    assert message.startswith("no contraction") and 0.75 < float(message.split()[3]) < 1


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
    # One more example, 1e-9 from the kink at 1/4: less than the radius of `shifted`.
    more = problems.plain_problem([*problem.x, [0.25 - 1e-9]], np.zeros((6, 1)))
    assert certificate.certify(student, teacher, more).kink_distance > 1e-10
    with pytest.raises(certificate.NotCertifiedError, match="a kink is too near"):
        certificate.certify(shifted, teacher, more)


STORED = [
    pytest.param(proof, id=f"{run.path.name}-{cell}")
    for run in reference_runs("relu/search")
    for cell, record in enumerate(run.records)
    for proof in record.get("certificates", ())
    if "candidate" in proof
]


@pytest.mark.parametrize("proof", STORED)
def test_a_stored_minimum_is_proved_again(proof):
    """From the weights and the sample in the record; the risk does not depend on
    rounding.
    """
    candidate, teacher = (
        Blocks(**{name: part and np.array(part) for name, part in proof[net].items()})
        for net in ("candidate", "teacher")
    )
    x = np.array(proof["x"])
    A, B = np.array(proof["input_map"]), np.array(proof["output_map"])
    again = certificate.certify(candidate, teacher, model.Problem(x, x, A, B))
    numbers = again._asdict()
    assert list(numbers.pop("active_examples")) == proof["active_examples"]
    assert numbers == pytest.approx({name: proof[name] for name in numbers}, rel=1e-9)
    assert candidate.U.shape[1] >= teacher.U.shape[1]


def test_orbits_stay_transversal_within_the_length_of_their_tangents():
    """(2) of N10: a tangent (3, 4) keeps a product above 0 with (0.6, 0.8) within a
    radius of 5.
    """
    tangents = rational.exact([[3.0], [4.0]])
    directions = tangents / 5
    certificate._require_transversal(
        tangents, directions, fractions.Fraction(4999, 1000)
    )
    with pytest.raises(certificate.NotCertifiedError, match="a unit is too short"):
        certificate._require_transversal(tangents, directions, fractions.Fraction(5))


def test_definite_matrices():
    tiny = fractions.Fraction(1, 10**41)
    for rows, definite in [
        ([[2, 1], [1, 1]], True),
        ([[1, 1], [1, 1]], False),
        ([[1, 2], [2, 1]], False),
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
