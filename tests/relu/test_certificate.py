"""Proofs of bad local minima in rational arithmetic, and what is not proved."""

import numpy as np
import pytest

from identity_matters.relu import certificate, model, problems
from identity_matters.relu.model import Blocks
from tests.measured import reference_runs
from tests.relu.local_minima import (
    DEAD,
    LIVE,
    TEACHER,
    THREE_POINTS,
    beside,
    two_live_blocks,
)
from tests.relu_problems import two_points, unit_blocks
from tests.tables import by_name


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


def test_an_output_map_of_two_rows_counts_in_the_risk():
    problem = THREE_POINTS._replace(y=np.zeros((3, 2)), B=np.array([[3.0], [4.0]]))
    proof = certificate.certify(beside(1e-9), TEACHER, problem)
    # The error at -1 is 0.49 (3, 4).
    least = (5 * 0.49) ** 2 / 3
    assert least - 1e-6 < proof.risk < least < proof.risk_above < least + 1e-6


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
def test_a_point_that_is_not_a_bad_minimum_is_not_proved(candidate, teacher, message):
    problem = two_points(0.0, 0.0)
    with pytest.raises(certificate.NotCertifiedError, match=message):
        certificate.certify(
            without_biases(*candidate), without_biases(*teacher), problem
        )


def test_a_teacher_that_does_not_fit_into_the_net_is_refused():
    """A teacher of two units has risk 0, which says nothing about nets of one.

    For y = 1.2, -0.5 the least risk of one unit without bias is 0.2^2 / 2, at u v =
    -0.5 (N9).
    """
    problem = two_points(0.2, 0.5)
    sizes = np.sqrt([0.2, 0.5])
    best = without_biases([-0.625], [0.8])
    two_units = without_biases(sizes * [1, -1], sizes)
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


@by_name(
    {
        "which": "candidate",
        "part": "V",
        "value": np.full((1, 1, 2), np.nan),
        "message": "V of the candidate must be finite",
    },
    {
        "which": "candidate",
        "part": "U",
        "value": np.full((1, 2, 1), np.inf),
        "message": "U of the candidate must be finite",
    },
    {
        "which": "teacher",
        "part": "s",
        "value": np.full((1, 2), np.nan),
        "message": "s of the teacher must be finite",
    },
    {
        "which": "teacher",
        "part": "s",
        "value": None,
        "message": "both have biases, or both none",
    },
    {
        "which": "candidate",
        "part": "V",
        "value": np.zeros((1, 2, 1)),
        "message": r"V .* shape \(1, 1, 2\), got \(1, 2, 1\)",
    },
    {
        "which": "candidate",
        "part": "s",
        "value": np.zeros((2, 1)),
        "message": r"s .* shape \(1, 2\), got \(2, 1\)",
    },
    {
        "which": "candidate",
        "part": "U",
        "value": np.zeros((2, 1)),
        "message": r"must have 3 axes, got shape \(2, 1\)",
    },
    {
        "which": "problem",
        "part": "x",
        "value": np.full((3, 1), np.inf),
        "message": "x must be finite",
    },
    {
        "which": "problem",
        "part": "x",
        "value": np.zeros((3, 2)),
        "message": r"A must have shape \(1, 2\), got \(1, 1\)",
    },
    {
        "which": "problem",
        "part": "B",
        "value": np.zeros((1, 2)),
        "message": r"B must have 1 columns, got shape \(1, 2\)",
    },
    {
        "which": "problem",
        "part": "A",
        "value": np.full((1, 1), 1e308),
        "message": "A x must be finite",
    },
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
    """The proof is that of the live unit alone.

    This is so beside a dead unit, and below or above a dead block.
    """
    blocks = unit_blocks
    problem = THREE_POINTS
    teacher = TEACHER
    live = (0.5, 0.5 + 1e-9, -0.1)
    dead = DEAD
    woken = (0.1, 0.7, 0.0)
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
    w_norms = np.hypot([0.5, 0.25], [0.125, 0.57])
    v = np.array([0.8, 0.5])
    D_1 = np.max(1 + v * w_norms) * np.sqrt(np.sum(v**2 + w_norms**2))
    moved = 4 / 5 * np.sqrt(2) / 4 * D_1 * near.radius
    assert near.risk_above - near.risk == pytest.approx(moved, rel=1e-4)
    # Without the last example two unknowns of block 2 have one equation.
    fewer = problems.plain_problem(problem.x[:-1], problem.y[:-1])
    with pytest.raises(certificate.NotCertifiedError, match="the Hessian is flat"):
        certificate.certify(student, teacher, fewer)


def test_a_candidate_off_the_minimum_is_refused_by_the_first_step_that_fails():
    """Y = rho / 4, so the rate must be below 3/4.

    From 1/2 to 3/4 the curvature is the problem.
    """

    def refused(offset):
        with pytest.raises(certificate.NotCertifiedError) as caught:
            certificate.certify(beside(offset), TEACHER, THREE_POINTS)
        return str(caught.value)

    assert refused(5.5e-4).startswith("no local minimum")
    message = refused(8e-4)
    rate = float(message.split()[3])
    assert message == f"no contraction, rate: {rate:.3g} against 0.75" and rate > 0.75


STORED = [
    pytest.param(proof, id=f"{run.path.name}-{cell}")
    for run in reference_runs("relu/search")
    for cell, record in enumerate(run.records)
    for proof in record.get("certificates", ())
    if "candidate" in proof
]


@pytest.mark.parametrize("proof", STORED)
def test_a_stored_minimum_is_proved_again(proof):
    """From the weights and the sample in the record.

    The risk does not depend on rounding.
    """
    candidate, teacher = (
        Blocks(**{name: part and np.array(part) for name, part in proof[net].items()})
        for net in ("candidate", "teacher")
    )
    x = np.array(proof["x"])
    A = np.array(proof["input_map"])
    B = np.array(proof["output_map"])
    certified = certificate.certify(candidate, teacher, model.Problem(x, x, A, B))
    numbers = certified._asdict()
    assert list(numbers.pop("active_examples")) == proof["active_examples"]
    assert numbers == pytest.approx({name: proof[name] for name in numbers}, rel=1e-9)
    assert candidate.U.shape[1] >= teacher.U.shape[1]
