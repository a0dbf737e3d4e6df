"""N16: the condition by hand, its inequalities along the flow, and what it promises."""

import math
from fractions import Fraction

import jax
import numpy as np
import pytest
import scipy.integrate

from identity_matters.relu import (
    feature_bound,
    flow,
    model,
    origin,
    problems,
    rounding,
    training,
)
from identity_matters.relu.model import Blocks, Problem

# What is promised is on the safe side by this share.
MARGIN = 1e-6


def one_example(error, v=0.0, u=0.5):
    """x = z = 1, and one unit u with output weight v.

    So Phi = u and zeta = b = beta = 1.
    """
    blocks = Blocks(np.full((1, 1, 1), u), np.full((1, 1, 1), v), None)
    return blocks, problems.plain_problem([[1.0]], [[1.0 + u * v + error]])


@pytest.mark.parametrize("v", [0.0, 0.03])
@pytest.mark.parametrize("error", [0.03, 0.07])
def test_both_conditions_by_hand(error, v):
    """One example, where omega_2 allows more: sigma = 1/2 and nu = 2 e."""
    promise = training.certify_training(*one_example(error, v))
    check_by_hand(promise, sigma=0.5, nu=2 * error, error=error, v=v, examples=1)


@pytest.mark.parametrize("v", [0.0, 1e-4])
def test_errors_along_strong_features_by_hand(v):
    """Features diag(0.05, 0.5), an error at the second example: omega_1 allows more."""
    U = np.diag([0.05, 0.5])[None]
    V = np.array([[[0.0, 0.0], [0.0, v]]])
    problem = problems.plain_problem(np.eye(2), np.diag([1.0, 1.0 + 0.5 * v + 0.004]))
    promise = training.certify_training(Blocks(U, V, None), problem)
    check_by_hand(promise, sigma=0.05, nu=0.008, error=0.004, v=v, examples=2)


def check_by_hand(promise, *, sigma, nu, error, v, examples):
    """The least a = 0.005, 0.01, ... at which omega < a sigma.

    S is integrated numerically. zeta, b and beta are 1, and ||U|| is 1/2.
    """

    def travel(a):
        kept = (1 - a) * sigma
        eta = a / (1 - a) * (1 + v / nu)
        longest = eta + np.sqrt(1 + eta**2)
        speed, _ = scipy.integrate.quad(
            lambda u: v + nu * (1 + np.sqrt(max(1 + 2 * eta * u - u**2, 0))),
            0,
            longest,
            epsabs=1e-12,
        )
        by_error = (v * error + error**2 / (2 * kept)) / kept**2
        output = min(nu * (1 + np.sqrt(1 + eta**2)), error / kept)
        return min(nu / kept * speed, by_error), output

    a = next(a for a in np.arange(1, 200) * 0.005 if travel(a)[0] < a * sigma)
    assert promise.lost_share == pytest.approx(a)
    input_travel, output_travel = travel(a)
    # f(t) <= f(0) exp(-4/n (1 - a)^2 sigma^2 t), and the norms at the start are 1/2 and
    # v.
    rate = 4 / examples * ((1 - a) * sigma) ** 2
    norm = max(0.5 + input_travel, v + output_travel)
    above = (promise.input_travel, promise.output_travel, promise.norm)
    expected = np.array([input_travel, output_travel, norm]) * (1 + MARGIN)
    assert above == pytest.approx(expected, rel=1e-8)
    assert promise.rate == pytest.approx(rate * (1 - MARGIN), rel=1e-8)


def test_the_largest_errors_that_the_simple_conditions_allow():
    """For V = 0 and isometric maps.

    nu = 0.26 sigma / zeta, or e = 0.45 sigma^2 / zeta.
    """
    # Here nu = e / sigma and sigma / zeta = 1/2: the second allows more, 0.459 / 4 at a
    # = 1/4.
    blocks, problem = one_example(1.0)
    largest = training.largest_certified_size(blocks, problem)
    limit = np.sqrt(27 / 128 / (1 + MARGIN)) / 4
    assert 0.45 / 4 < largest == pytest.approx(limit, rel=1e-8)
    assert training.certify_training(*one_example(0.999 * largest)) is not None
    assert training.certify_training(*one_example(1.001 * largest)) is None
    # For u = 0.95 the norm, which must stay below 1, allows less, at a = 0.055.
    largest = training.largest_certified_size(*one_example(1.0, u=0.95))
    limit = np.sqrt(2 * (0.945 * 0.95) ** 3 * (1 / (1 + MARGIN) - 0.95))
    assert largest == pytest.approx(limit, rel=1e-8)
    # Features 0.05 and 0.5 with the error along the second: the first allows more.
    blocks = Blocks(np.diag([0.05, 0.5])[None], np.zeros((1, 2, 2)), None)
    problem = problems.plain_problem(np.eye(2), np.diag([1.0, 2.0]))
    largest = training.largest_certified_size(blocks, problem)
    nu = largest / 0.5
    by_error = 0.46 * 0.05**2
    assert nu > 0.26 * 0.05 and largest > 5 * by_error


def test_what_rounding_may_add_by_hand():
    # B = 2, Phi = 1/2 and E = 3, so Vstar = 3. B Vstar Phi may be off by 0.1 (3 * 7),
    # E by 0.1 * 3, and beta sigma is 1.
    nu = training._travel_of_V(
        np.array([[0.5]]),
        np.array([[2.0]]),
        np.array([[3.0]]),
        values=training._SingularValues(sigma=0.5, beta=2.0, norm_of_map=2.0),
        size_of_product=7.0,
        relative_error=0.1,
    )
    assert nu == pytest.approx(3 + 2.1 + 0.3)
    # In A x = 2^-30 numbers of size 1 cancel, and ||A|| ||x|| is 2.
    blocks, _ = one_example(0.0)
    A = np.array([[-1.0, 1.0]])
    x = np.array([[1.0, 1.0 + 2.0**-30]])
    start = training._measure(blocks, Problem(x, np.eye(1), A, np.eye(1)))
    assert start.zeta > 2.0**-30 + 64 * 2 * 2.0**-52
    # B multiplies the rounding of the predictions.
    scaled = training._measure(blocks, Problem(x, np.eye(1), A, 8 * np.eye(1)))
    assert scaled.unresolved == pytest.approx(8 * start.unresolved, rel=1e-12)


def test_the_sizes_of_what_a_net_rounds_by_hand():
    """||A|| = 7, ||x|| = 11 of four examples; |u| = 2, |v| = 3, |s| = 5 in two blocks.

    A block's bias is added on each example, which makes ||s|| sqrt(4).
    """
    one = np.ones((2, 1, 1))
    blocks = Blocks(2 * one, -3 * one, 5 * one[:, 0])
    problem = Problem(np.full((4, 1), 5.5), None, np.full((1, 1), -7.0), np.eye(1))
    sizes = rounding.sizes(blocks, problem)
    first = 2 * 77 + 5 * 2
    second = 2 * (77 + 3 * first) + 5 * 2
    assert sizes.inputs == 77
    assert sizes.features == [first, second]
    assert sizes.outputs == 77 + 3 * first + 3 * second
    # One for each example, input, output, and d, k and 4 others in each block.
    roundings = 64 + 4 + 1 + 1 + 2 * (1 + 1 + 4)
    error = rounding.relative_error(blocks, problem, np.float32)
    assert error == roundings * 2.0**-23


def test_a_bias_is_part_of_the_promised_norm():
    blocks, problem = one_example(0.03)
    promise = training.certify_training(
        blocks._replace(s=np.full((1, 1), 0.7)), problem
    )
    assert 0.7 < promise.norm < 0.8


def test_without_errors_any_multiple_of_them_is_certified():
    assert training.largest_certified_size(*one_example(0.0)) == math.inf


def random_start(seed, bias, outputs):
    """6 examples in 8 dimensions and 96 units.

    The singular values of the maps differ, and V is not 0.
    """
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((6, 8))
    A = np.eye(8) + 0.1 * rng.standard_normal((8, 8))
    rows = np.linalg.qr(rng.standard_normal((8, outputs)))[0].T
    B = np.linspace(1.2, 0.8, outputs)[:, None] * rows
    s = 0.02 * rng.standard_normal((1, 96)) if bias else None
    blocks = Blocks(
        0.04 * rng.standard_normal((1, 96, 8)),
        1e-4 * rng.standard_normal((1, 8, 96)),
        s,
    )
    predictions = np.asarray(model.forward(blocks, Problem(x, None, A, B))[0])
    errors = rng.standard_normal((6, outputs))
    problem = Problem(x, predictions + errors, A, B)
    size = 0.99 * training.largest_certified_size(blocks, problem)
    return blocks, problem._replace(y=predictions + size * errors)


@pytest.mark.slow
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("outputs", [1, 3])
def test_what_is_certified_trains(bias, outputs):
    starts = [random_start(seed, bias, outputs) for seed in range(4)]
    promises = [training.certify_training(*start) for start in starts]
    blocks, sample = jax.tree.map(lambda *parts: np.stack(parts), *starts)
    rate = np.array([promise.rate for promise in promises])
    time = np.log(1e4) / rate
    end, curves = flow.flow(blocks, sample, time, steps=1500)
    share = np.asarray(curves["risk"] / curves["risk"][:, :1])
    assert (
        share <= np.exp(-np.outer(rate, np.linspace(0, 1, 1501)) * time[:, None])
    ).all()
    for name in ("input_travel", "output_travel"):
        bound = [getattr(promise, name) for promise in promises]
        assert (np.asarray(curves[name]).max(axis=1) < bound).all()
    assert (model.max_norm(end) < [promise.norm for promise in promises]).all()
    assert max(promise.norm for promise in promises) < 1


@pytest.mark.slow
def test_each_inequality_along_the_flow():
    """(1) of N16, and the potential D below the circle, by Euler steps in NumPy."""
    blocks, problem = random_start(0, bias=True, outputs=3)
    promise = training.certify_training(blocks, problem)
    n = len(problem.x)
    B = problem.B
    z = origin.unit_inputs(problem, bias=True)
    W0 = np.concatenate([blocks.U[0], blocks.s[0][:, None]], axis=1)
    V0 = blocks.V[0]
    W = W0.copy()
    V = blocks.V[0].copy()
    first = np.maximum(z @ W0.T, 0).T
    error = (problem.y - (problem.x @ problem.A.T + first.T @ V0.T) @ B.T).T
    fit = np.linalg.pinv(B) @ error @ np.linalg.pinv(first)
    nu = np.linalg.norm(fit)
    v0 = np.linalg.norm(V0, 2)
    sigma = np.linalg.svd(first, compute_uv=False)[-1]
    b, *_, beta = np.linalg.svd(B, compute_uv=False)
    delta = promise.lost_share * sigma
    kept = (1 - promise.lost_share) * sigma
    assert promise.rate == pytest.approx(4 / n * (beta * kept) ** 2, rel=1e-5)
    step = 0.002 * n / np.linalg.norm(first, 2) ** 2 / b**2
    X = 0.0
    before = np.inf
    for _ in range(4000):
        pre = (z @ W.T).T
        features = np.maximum(pre, 0)
        error = (problem.y - (problem.x @ problem.A.T + features.T @ V.T) @ B.T).T
        e = np.linalg.norm(error)
        assert e <= before
        before = e
        in_V = 2 / n * B.T @ error @ features.T
        in_W = 2 / n * ((V.T @ B.T @ error) * (pre > 0)) @ z
        assert np.linalg.norm(in_V) >= 2 / n * beta * kept * e
        assert np.linalg.norm(in_W) <= 2 / n * np.linalg.norm(
            V, 2
        ) * b * e * np.linalg.norm(z, 2)
        D = np.linalg.norm(V - V0 - fit) ** 2
        # Euler steps exceed the flow's D by their second order, far below the room
        # here.
        allowed = nu**2 + 2 * b * (v0 + nu) * delta * X - (beta * kept * X) ** 2
        assert allowed * (1 + 1e-3) >= D
        X += step * 2 / n * e
        V = V + step * in_V
        W = W + step * in_W


def test_what_is_not_certified():
    blocks, problem = one_example(0.03)
    # Twice the same input: dependent features. More examples than units. Two outputs of
    # one.
    twice = problems.plain_problem([[1.0], [1.0]], [[1.03], [1.03]])
    wide = Blocks(np.array([[[0.5], [0.4]]]), np.zeros((1, 1, 2)), None)
    assert training.certify_training(wide, twice) is None
    assert training.certify_training(blocks, twice) is None
    tall = problem._replace(B=np.ones((2, 1)), y=np.ones((1, 2)))
    assert training.certify_training(blocks, tall) is None
    assert training.largest_certified_size(blocks, tall) == 0
    # A start outside the ball, and one at which nothing is wrong.
    long = blocks._replace(U=np.full((1, 1, 1), 1.5))
    assert training.certify_training(long, problem) is None
    assert training.certify_training(*one_example(0.0)).input_travel < 1e-12
    two = Blocks(np.ones((2, 1, 1)), np.ones((2, 1, 1)), None)
    with pytest.raises(ValueError, match="for nets of one block, got 2"):
        training.certify_training(two, problem)


def test_errors_that_rounding_hides_count():
    """Predictions that equal y in float64 only: the weights still have to move."""
    blocks = Blocks(np.full((1, 1, 1), 0.1), np.full((1, 1, 1), 0.3), None)
    y = 1 + 0.1 * 0.3
    problem = problems.plain_problem([[1.0]], [[y]])
    assert model.forward(blocks, problem)[0] == y
    error = abs(Fraction(y) - 1 - Fraction(0.1) * Fraction(0.3))
    promise = training.certify_training(blocks, problem)
    assert promise.output_travel >= error / Fraction(0.1) > 0
    assert 0 < promise.input_travel < 1e-12


@pytest.mark.parametrize("bits", [10, 30, 34, 36, 38])
def test_nearly_dependent_features(bits):
    """nu in fractions: float64 knows it up to a share of cond(Phi) eps only."""
    features = np.array([[0.4, 0.4], [0.4, 0.4 + 2.0**-bits]])
    y = features[0] + 2.0**-40 * np.array([1.0, 1.5])
    blocks = Blocks(np.eye(2)[None], np.zeros((1, 2, 2)), None)
    problem = Problem(features.T, y[:, None], np.eye(2), np.eye(1, 2))
    (a, b), (c, d) = (list(map(Fraction, row)) for row in features)
    first = Fraction(y[0]) - a
    second = Fraction(y[1]) - b
    determinant = a * d - b * c
    solved = (
        (first * d - second * c) / determinant,
        (second * a - first * b) / determinant,
    )
    start = training._measure(blocks, problem)
    nu = start.nu + start.unresolved / (start.beta * start.sigma)
    assert math.hypot(*solved) <= nu < 2 * math.hypot(*solved)


@pytest.mark.parametrize("x64", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_promise_is_for_float64_whatever_jax_computes_in(dtype, x64):
    """y are the net's own outputs in float32, and the weights have to move to them."""
    rng = np.random.default_rng(0)
    x = (rng.standard_normal((4, 3)) / 2).astype(np.float32)
    U = (0.1 * rng.standard_normal((1, 64, 3))).astype(np.float32)
    V = (0.05 * rng.standard_normal((1, 3, 64))).astype(np.float32)
    eye = np.eye(3, dtype=np.float32)
    y = model.forward(Blocks(U, V, None), Problem(x, None, eye, eye))[0]
    x, U, V, y, eye = (np.asarray(array, dtype) for array in (x, U, V, y, eye))
    with jax.enable_x64(x64):
        promise = training.certify_training(Blocks(U, V, None), Problem(x, y, eye, eye))
    features = np.maximum(U[0].astype(float) @ x.T.astype(float), 0)
    exact = x.T + V[0].astype(float) @ features
    # E = dV Phi + V dPhi + dV dPhi at the end, where Phi moves by ||Z|| ||dU||.
    moved = np.linalg.norm(x, 2) * promise.input_travel
    reach = promise.output_travel * (np.linalg.norm(features, 2) + moved)
    error = np.linalg.norm(y.T - exact)
    assert 1e-8 < error <= reach + np.linalg.norm(V[0], 2) * moved
    assert promise.output_travel < 1e-3


def test_a_map_that_almost_loses_an_output():
    """nu by hand where B stretches one output 10^7 times less than the other."""
    B = np.diag([1.0, 2.0**-24])
    blocks = Blocks(np.full((1, 1, 2), 0.5), np.zeros((1, 2, 1)), None)
    problem = Problem([[1.0, 0.0]], [[1.0, 2.0**-30]], np.eye(2), B)
    start = training._measure(blocks, problem)
    # Vstar has the single entry 2^-30 / 2^-24 / (1/2).
    assert 2.0**-5 <= start.nu <= 2.0**-5 * (1 + 1e-6)


@pytest.mark.parametrize("size", [1e-200, 1e-170, 1e-40, 1e25, 1e200])
def test_numbers_whose_squares_are_no_floats_are_not_certified(size):
    """The error 0.03 size is not 0, though its square may be."""
    blocks, problem = one_example(0.03)
    small = problem._replace(x=size * problem.x, y=size * problem.y)
    assert training.certify_training(blocks, small) is None
    assert training.largest_certified_size(blocks, small) == 0
    by_map = problem._replace(A=size * problem.A, y=size * problem.y)
    assert training.certify_training(blocks, by_map) is None


@pytest.mark.parametrize(("u", "b"), [(1e-170, 1e-170), (1.0, 1e-135), (1e-135, 1.0)])
def test_weights_or_maps_that_are_almost_0_are_not_certified(u, b):
    """Without a warning, or an error where the product of both underflows."""
    blocks = Blocks(np.full((1, 1, 1), u), np.zeros((1, 1, 1)), None)
    one = np.ones((1, 1))
    problem = Problem(one, np.full((1, 1), 1e20), one, b * one)
    assert training.certify_training(blocks, problem) is None
    assert training.largest_certified_size(blocks, problem) == 0


@pytest.mark.parametrize("certify", ["certify_training", "largest_certified_size"])
@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (np.ma.array([[1.0]], mask=True), "must be a plain array of numbers"),
        (np.array([[1.0 + 0.0j]]), "must hold real numbers"),
        (np.array([[np.nan]]), "must be finite"),
        (np.ones((1, 0)), "must not be empty"),
        (np.ones(1), "must have [23] axes"),
        (np.ones((2, 1)), "must have shape"),
        (np.ones((1, 2)), "must have (shape|1 columns)"),
    ],
    ids=["mask", "complex", "nan", "empty", "axes", "rows", "columns"],
)
def test_anything_but_a_plain_net_and_sample_is_refused(certify, bad, reason):
    certify = getattr(training, certify)
    blocks, problem = one_example(0.03)
    for name in problem._fields:
        with pytest.raises(ValueError, match=reason):
            certify(blocks, problem._replace(**{name: bad}))
    for name, array in {"U": bad[None], "V": bad[None], "s": bad}.items():
        with pytest.raises(ValueError, match=reason):
            certify(blocks._replace(**{name: array}), problem)


def test_the_rate_is_that_of_the_feature_bound():
    """At a = 0 the promised rate would be the coefficient of N12.

    That bound holds at the start.
    """
    blocks, problem = random_start(1, bias=False, outputs=3)
    promise = training.certify_training(blocks, problem)
    coefficient = float(feature_bound.coefficient(blocks, problem))
    assert promise.rate == pytest.approx(
        (1 - promise.lost_share) ** 2 * coefficient, rel=1e-5
    )
