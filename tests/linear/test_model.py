"""Linear nets: the risk and its gradient.

Descent against updates made by hand, and its rules.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from identity_matters import flops
from identity_matters.linear import descent, gradient_bound, model
from tests.tables import by_name


def _problem(seed, depth, width, inputs=None, outputs=None):
    """Random ``(A, R, Sigma, maps)``.

    A map is included if its `inputs` or `outputs` is given.
    """
    rng = np.random.default_rng(seed)
    d_in = inputs or width
    d_out = outputs or width
    A = 0.3 * rng.standard_normal((depth, width, width)) / np.sqrt(depth)
    R = rng.standard_normal((d_out, d_in))
    root = rng.standard_normal((d_in, d_in))
    maps = {}
    if inputs:
        maps["input_map"] = rng.standard_normal((width, inputs))
    if outputs:
        maps["output_map"] = rng.standard_normal((outputs, width))
    return A, R, root @ root.T, maps


def _plain_excess(A, R, Sigma, input_map=None, output_map=None):
    """||E Sigma^{1/2}||_F^2 with a square root of Sigma and a Python loop."""
    M = jnp.eye(A.shape[1]) if input_map is None else input_map
    for layer in A:
        M = (jnp.eye(len(layer)) + layer) @ M
    E = (M if output_map is None else output_map @ M) - R
    return jnp.sum((E @ jnp.linalg.cholesky(Sigma)) ** 2)


@by_name(
    {"depth": 1, "width": 1, "inputs": None, "outputs": None},
    {"depth": 7, "width": 4, "inputs": None, "outputs": None},
    {"depth": 3, "width": 5, "inputs": 2, "outputs": 4},
    {"depth": 2, "width": 3, "inputs": None, "outputs": 1},
)
def test_gradient_is_that_of_automatic_differentiation(depth, width, inputs, outputs):
    A, R, Sigma, maps = _problem(depth, depth, width, inputs, outputs)
    excess, gradient = model.excess_risk_and_gradient(A, R, Sigma, **maps)
    expected, expected_gradient = jax.jit(jax.value_and_grad(_plain_excess))(
        A, R, Sigma, **maps
    )
    # Both sum some hundred terms, in different orders: a few hundred roundings.
    np.testing.assert_allclose(excess, expected, rtol=1e-13)
    np.testing.assert_allclose(
        gradient,
        expected_gradient,
        rtol=0,
        atol=1e-13 * np.abs(expected_gradient).max(),
    )
    if not any(part is not None for part in maps.values()):
        np.testing.assert_allclose(model.excess_risk(A, R, Sigma), expected, rtol=1e-13)


def test_the_risk_applies_the_first_layer_first():
    A = np.array([[[0.0, 1.0], [0.0, 0.0]], [[0.0, 0.0], [1.0, 0.0]]])
    # (I + A_2)(I + A_1) = [[1, 0], [1, 1]] [[1, 1], [0, 1]] = [[1, 1], [1, 2]].
    in_order = np.array([[1.0, 1.0], [1.0, 2.0]])
    reverse = np.array([[2.0, 1.0], [1.0, 1.0]])
    assert model.excess_risk(A, in_order, np.eye(2)) == 0.0
    # The two products differ by diag(-1, 1).
    assert model.excess_risk(A, reverse, np.eye(2)) == 2.0
    # With E = diag(-1, 1): 2 (I + A_2)^T E = [[-2, 2], [0, 2]] for layer 1 and
    # 2 E (I + A_1)^T = [[-2, 0], [2, 2]] for layer 2.
    np.testing.assert_array_equal(
        model.risk_gradient(A, reverse, np.eye(2)),
        [[[-2.0, 2.0], [0.0, 2.0]], [[-2.0, 0.0], [2.0, 2.0]]],
    )


def test_claim_2_3_by_simulation():
    """E||y - yhat||^2 - E||xi||^2 is ||E Sigma^{1/2}||_F^2.

    The left side is the mean over a sample of inputs with the second moment Sigma.
    """
    A, R, _, _ = _problem(0, 3, 2)
    rng = np.random.default_rng(1)
    root = rng.standard_normal((2, 2))
    Sigma = root @ root.T
    samples = 400_000
    x = root @ rng.standard_normal((2, samples))
    xi = rng.standard_normal((2, samples))
    predicted = (np.eye(2) + A[2]) @ (np.eye(2) + A[1]) @ (np.eye(2) + A[0]) @ x
    losses = np.sum((R @ x + xi - predicted) ** 2, axis=0)
    standard_error = losses.std() / np.sqrt(samples)
    # C = E||xi||^2 = d = 2, not E[x x^T] as the paper's proof prints.
    expected = float(model.excess_risk(A, R, Sigma)) + 2
    assert abs(losses.mean() - expected) < 4 * standard_error
    assert standard_error < 0.01 * expected


@pytest.mark.parametrize("depth", [10, 1000])
def test_a_gradient_takes_three_products_per_layer(depth):
    A, R, Sigma, _ = _problem(0, depth, 2)
    product = 2 * 2**3
    # One more for E Sigma.
    assert (
        flops.count_flops(model.risk_gradient, A, R, Sigma) == (3 * depth + 1) * product
    )
    assert flops.count_flops(model.excess_risk, A, R, Sigma) == (depth + 1) * product


@pytest.mark.parametrize("depth", [2, 2048])
def test_the_norm_of_a_stack_with_a_nan_is_nan(depth):
    """Also with 4096 singular values or more, where XLA's maximum leaves out a NaN."""
    A = np.zeros((depth, 2, 2))
    A[depth // 2, 0, 0] = np.nan
    assert np.isnan(model.max_spectral_norm(A))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"A": np.zeros((3, 3))}, r"A must have shape .*, got shape \(3, 3\)"),
        (
            {"A": np.zeros((0, 3, 3))},
            r"depth and d at least 1, got shape \(0, 3, 3\)",
        ),
        ({"R": np.zeros((3, 2))}, r"R must be 3 x 3 .* got shape \(3, 2\)"),
        ({"Sigma": np.zeros((2, 2))}, r"Sigma must be 3 x 3 .* got shape \(2, 2\)"),
        (
            {"input_map": np.zeros((2, 3))},
            r"input_map must be 3 x any .* got shape \(2, 3\)",
        ),
        ({"output_map": np.zeros((5, 3))}, r"R must be 5 x 3 .* got shape \(3, 3\)"),
        (
            {"A": np.zeros((2, 3, 3), np.float32)},
            r"A must be float64, is float32; convert it, as by A.astype\(np.float64\)",
        ),
        (
            {"A": np.zeros((2, 3, 3), int)},
            r"A must be float64, got dtype int64; convert",
        ),
        ({"R": np.eye(3, dtype=bool)}, "R must hold real numbers, got dtype bool"),
        ({"R": 1j * np.eye(3)}, "R must hold real numbers, got dtype complex128"),
        ({"R": np.eye(3).astype(object)}, "R must hold numbers, got dtype object"),
        ({"R": np.full((3, 3), "1")}, "R must hold numbers, got dtype <U1"),
        ({"Sigma": np.eye(3) + np.eye(3, k=1)}, "Sigma must be symmetric, .* 1.0"),
    ],
)
def test_shapes_that_do_not_fit_and_single_precision_are_refused(changed, message):
    A, R, Sigma, _ = _problem(0, 2, 3)
    arguments = {"A": A, "R": R, "Sigma": Sigma} | changed
    with pytest.raises((TypeError, ValueError), match=message):
        model.excess_risk_and_gradient(**arguments)


def test_what_jax_would_make_float32_is_refused_with_what_to_call():
    A, R, Sigma = map(np.asarray, _problem(0, 2, 3)[:3])
    said = (
        "A must be float64, and JAX would make it float32: call"
        ' jax.config.update("jax_enable_x64", True) at the start of the program'
    )
    assert A.dtype == np.float64
    with jax.enable_x64(False), pytest.raises(TypeError) as refused:
        model.excess_risk(A, R, Sigma)
    assert str(refused.value).splitlines()[0] == said


def test_a_second_moment_must_be_symmetric_unless_jax_traces():
    """Lemma 2.4 takes Sigma for its transpose, so that the gradient would be wrong."""
    A, R, Sigma, _ = _problem(0, 2, 3)
    asymmetric = Sigma + np.eye(3, k=1)
    for function in (model.excess_risk, model.risk_gradient):
        for given in (asymmetric, jnp.asarray(asymmetric)):
            with pytest.raises(ValueError, match="Sigma must be symmetric"):
                function(A, R, Sigma=given)
    with pytest.raises(ValueError, match="Sigma must be symmetric"):
        _descend(A, R, asymmetric)
    # Rounding is no reason, and NaN goes through the arithmetic.
    rounded = Sigma * (1 + 1e-15 * np.tri(3))
    assert np.isfinite(model.excess_risk(A, R, rounded))
    assert np.isnan(model.excess_risk(A, R, np.full((3, 3), np.nan)))
    # What is traced has no entries to look at.
    assert jax.jit(model.excess_risk)(A, R, asymmetric) > 0


# Gradient descent.

ONE = np.zeros((1, 1, 1))  # a scalar layer at 0
TWO = np.array([[2.0]])  # its target: f - C = (1 + a - 2)^2


def _descend(A, R, Sigma=None, maps=(), **settings):
    """A run that only the number of updates stops, unless `settings` say otherwise."""
    rules = {
        "learning_rate": 0.1,
        "max_updates": 10,
        "risk_tolerance": 0.0,
        "divergence_factor": 1e300,
    }
    Sigma = np.eye(R.shape[1]) if Sigma is None else Sigma
    return descent.gradient_descent(
        A, R, Sigma, descent.Rules(**(rules | settings)), *maps
    )


def test_one_number_by_hand():
    # f - C = s (1 + a - R)^2 with s = 2, R = 2: a <- a - 0.1 * 4 (a - 1) maps 1 - a to
    # 0.6 (1 - a).
    run = _descend(ONE, TWO, TWO, max_updates=4)
    left = 0.6 ** np.arange(5)
    np.testing.assert_array_equal(run.curves.updates, [0, 1, 2, 3, 4])
    # Four roundings per step.
    np.testing.assert_allclose(run.curves.excess_risk, 2 * left**2, rtol=1e-14)
    np.testing.assert_allclose(run.curves.gradient_norm, 4 * left, rtol=1e-14)
    np.testing.assert_allclose(run.curves.norm, 1 - left, rtol=1e-14, atol=1e-16)
    # d = l = 1: corrected eq. (2.3) is an equality, 4 s (f - C) = grad^2.
    bound = gradient_bound.gradient_bound_corrected(
        1, run.curves.norm, 2.0, run.curves.excess_risk
    )
    np.testing.assert_allclose(bound, run.curves.gradient_norm**2, rtol=1e-14)
    assert (run.stopped, run.updates, run.converged) == ("max updates", 4, False)


@pytest.mark.slow
def test_two_layers_against_a_plain_loop():
    rng = np.random.default_rng(0)
    A = 0.1 * rng.standard_normal((2, 3, 3))
    R = rng.standard_normal((3, 3))
    Sigma = np.diag([0.5, 1.0, 2.0])
    run = _descend(A, R, Sigma, learning_rate=0.02, max_updates=7, record_every=3)
    iterates = [A]
    for _ in range(7):
        A = A - 0.02 * model.risk_gradient(A, R, Sigma)
        iterates.append(A)
    np.testing.assert_array_equal(run.curves.updates, [0, 3, 6, 7])
    np.testing.assert_allclose(run.A, iterates[7], rtol=1e-12)
    for row, t in enumerate(run.curves.updates):
        excess, gradient = model.excess_risk_and_gradient(iterates[t], R, Sigma)
        norm = float(model.max_spectral_norm(iterates[t]))
        excess_risks = [
            run.curves.excess_risk[row],
            run.curves.gradient_norm[row],
            run.curves.norm[row],
        ]
        np.testing.assert_allclose(
            excess_risks, [excess, np.linalg.norm(gradient), norm], rtol=1e-12
        )


@pytest.mark.slow
def test_stops_at_the_first_update_below_the_risk_tolerance():
    # Excess risks 1, 0.36, 0.1296, ... with learning rate 0.2.
    run = _descend(ONE, TWO, learning_rate=0.2, record_every=10, risk_tolerance=0.13)
    assert (run.stopped, run.updates, run.converged) == (
        "risk below tolerance",
        2,
        True,
    )
    np.testing.assert_array_equal(run.curves.updates, [0, 2])
    optimal = _descend(np.zeros((2, 2, 2)), np.eye(2))
    assert (optimal.stopped, optimal.updates) == ("risk below tolerance", 0)
    np.testing.assert_array_equal(optimal.curves.excess_risk, [0.0])


def test_stops_where_an_update_promises_too_little():
    # Two standard layers of weight 1e-3: f - C ~ 1, eta ||grad||^2 = 0.1 * 2 * (2 *
    # 1e-3)^2 = 8e-7.
    start = np.full((2, 1, 1), 1e-3) - 1
    R = np.array([[1.0]])
    assert _descend(start, R, stall_tolerance=1e-6).stopped == "stalled"
    assert _descend(start, R, stall_tolerance=1e-7).stopped == "max updates"
    # At zero weights the gradient is exactly 0, so any tolerance stops the run.
    at_zero = _descend(np.full((2, 1, 1), -1.0), R)
    assert (at_zero.stopped, at_zero.updates) == ("stalled", 0)


@pytest.mark.slow
def test_stops_where_it_diverges():
    # With one layer an update would multiply the excess risk by (1 - 2 * 2)^2 = 9; with
    # two it grows even faster.
    settings = {"learning_rate": 2.0, "max_updates": 1000, "divergence_factor": 2.0}
    run = _descend(np.zeros((2, 1, 1)), np.array([[3.0]]), **settings)
    assert run.stopped == "diverged" and run.updates < 20
    assert not run.curves.inside[-1]
    # The excess risk of this start overflows; infinity is not more than infinity.
    run = _descend(np.full((1, 2, 2), 1e200), np.eye(2))
    assert (run.stopped, run.updates) == ("diverged", 0)
    with pytest.raises(ValueError, match="A must be finite"):
        _descend(np.full((1, 2, 2), np.nan), np.eye(2))


def test_divergence_is_measured_from_the_first_risk():
    """One layer, whose error is multiplied by 1 - 2 * 1.1 = -1.2.

    The risk grows by 1.44, and is twice the first at the second update.
    """
    settings = {"learning_rate": 1.1, "max_updates": 1000, "divergence_factor": 2.0}
    run = _descend(ONE, TWO, **settings)
    assert (run.stopped, run.updates) == ("diverged", 2)


def test_leaving_the_unit_ball_is_noticed_between_records_and_remembered():
    # l = 1: a overshoots to 1.9 after one update (R - 1 = 1, factor 1.9) and comes back
    # to 0.19.
    settings = {"learning_rate": 0.95, "max_updates": 2}
    every = _descend(ONE, TWO, **settings)
    np.testing.assert_allclose(every.curves.norm, [0.0, 1.9, 0.19], atol=1e-15)
    np.testing.assert_array_equal(every.curves.inside, [True, False, False])
    ends = _descend(ONE, TWO, record_every=2, **settings)
    np.testing.assert_array_equal(ends.curves.inside, [True, False])


def test_inside_is_about_the_spectral_norm_not_the_frobenius_norm():
    A = np.array([0.9 * np.eye(3)])  # Frobenius norm 1.56, spectral norm 0.9
    assert _descend(A, np.eye(3), max_updates=0).curves.inside[0]
    assert not _descend(A / 0.9, np.eye(3), max_updates=0).curves.inside[0]


def test_fixed_maps():
    """With C = [1; 0] and B = [0, 1] only one entry matters.

    The optimum is sum_i A_i[1, 0] = R.
    """
    C, B = descent.modified_identity_maps(1)
    np.testing.assert_array_equal(C, [[1], [0]])
    np.testing.assert_array_equal(B, [[0, 1]])
    # Curvature 2 l = 4, so a learning rate of 1/4 is one Newton step: A_i[1, 0] = -3/2.
    run = _descend(
        np.zeros((2, 2, 2)),
        np.array([[-3.0]]),
        maps=(C, B),
        learning_rate=0.25,
        max_updates=1,
    )
    np.testing.assert_array_equal(run.A, [[[0, 0], [-1.5, 0]]] * 2)
    np.testing.assert_array_equal(run.curves.excess_risk, [9.0, 0.0])


def test_an_update_decreases_the_risk_by_at_least_what_is_promised():
    # l = d = 1, s = 1, eta = 0.1: mu = 2 and an update multiplies f - C by
    # (1 - 2 eta)^2 = 0.64; promised is 1 - eta mu = 0.8.
    promised = descent.guaranteed_decrease(1, 0.5, 1.0, 0.1)
    assert promised == pytest.approx(-math.log(0.8), rel=1e-15)
    run = _descend(ONE, np.array([[1.5]]), max_updates=5)
    assert np.all(-np.diff(np.log(run.curves.excess_risk)) >= promised)
    # mu = 2 l (1 - tau)^{2l-2} sigma_min = 2 * 2 * 0.25 * 3 = 3.
    assert descent.guaranteed_decrease(2, 0.5, 3.0, 0.1) == pytest.approx(
        -math.log(0.7)
    )
    assert descent.guaranteed_decrease(2, 1.0, 3.0, 0.1) == 0.0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 0.5, 1.0, 0.1), "depth must be at least 1, got 0"),
        ((2, -0.5, 1.0, 0.1), "tau must be 0 or more, got -0.5"),
        ((2, 0.5, math.nan, 0.1), "sigma_min must be one finite real number, got nan"),
        ((2, 0.5, 1.0, -0.1), "learning_rate must be 0 or more, got -0.1"),
    ],
)
def test_nothing_is_promised_for_settings_that_are_no_descent(arguments, message):
    with pytest.raises(ValueError, match=message):
        descent.guaranteed_decrease(*arguments)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("learning_rate", 0.0),
        ("learning_rate", math.nan),
        ("max_updates", -1),
        ("max_updates", 2**31),
        ("max_updates", 0.5),
        ("record_every", 0),
        ("record_every", 2**31),
        ("risk_tolerance", -1.0),
        ("stall_tolerance", math.nan),
        ("divergence_factor", 1.0),
        # Not infinite: times a risk of 0 at the start it is no number.
        ("divergence_factor", math.inf),
        ("learning_rate", "0.1"),
        ("learning_rate", True),
        ("risk_tolerance", None),
    ],
)
def test_bad_rules_are_named(setting, value):
    with pytest.raises(ValueError, match=f"{setting} must be .*, got {value!r}"):
        _descend(ONE, TWO, **{setting: value})


def test_records_beyond_the_memory_are_refused(monkeypatch):
    monkeypatch.setattr(descent.limits, "memory_bytes", lambda: 1e9)
    how = {"max_updates": 10**8, "learning_rate": 0.1, "risk_tolerance": 1e-6}
    with pytest.raises(ValueError, match=r"2.9 GB of the 1 GB .*: set record_every"):
        _descend(ONE, TWO, **how)
    assert _descend(ONE, TWO, record_every=10**6, **how).converged


@pytest.mark.slow
def test_many_starts_end_like_each_alone():
    rng = np.random.default_rng(5)
    R = np.diag([1.0, -0.5])
    depth = 3
    starts = 0.1 * rng.standard_normal((4, depth, 2, 2))
    rules = descent.Rules(
        1 / (2 * depth), 60, risk_tolerance=1e-6, divergence_factor=1e3
    )
    ends = descent.descend_many(starts, R, rules)
    # both kinds of ends are compared
    assert 0 < np.sum(ends["converged"]) < len(starts)
    for i, A in enumerate(starts):
        alone = descent.gradient_descent(A, R, np.eye(2), rules)
        assert (ends["updates"][i], ends["converged"][i]) == (
            alone.updates,
            alone.converged,
        )
        assert ends["excess_risk"][i] == pytest.approx(
            alone.curves.excess_risk[-1], rel=1e-9
        )
        assert ends["norm"][i] == pytest.approx(alone.curves.norm[-1], rel=1e-9)


@pytest.mark.slow
def test_the_learning_rate_is_below_one_over_the_curvature_at_the_optimum():
    """For R = 2 I and Sigma = 3 I, against the Hessian at A_i = (sqrt(2) - 1) I.

    Maps of norm 5 and 7 divide the rate by 25 * 49.
    """
    depth = 2
    R = 2 * np.eye(2)
    Sigma = 3 * np.eye(2)
    rate = descent.largest_stable_learning_rate(R, Sigma, depth)
    assert rate == pytest.approx(1 / (2 * 2 * 3 * 4), rel=1e-15)
    A = (np.sqrt(2) - 1) * np.broadcast_to(np.eye(2), (2, 2, 2))
    hessian = jax.hessian(lambda a: model.excess_risk(a.reshape(A.shape), R, Sigma))(
        A.ravel()
    )
    curvature = float(np.linalg.eigvalsh(hessian)[-1])
    # The other layer has norm sqrt(2), not 2, so the bound on the curvature is twice as
    # large.
    assert curvature == pytest.approx(2 * 2 * 3 * 2, rel=1e-12)
    assert rate <= 1 / curvature
    # For a small target the start, R = I, decides.
    small = descent.largest_stable_learning_rate(np.eye(2) / 2, Sigma, depth)
    assert small == pytest.approx(1 / (2 * 2 * 3), rel=1e-15)
    with_maps = descent.largest_stable_learning_rate(
        R, Sigma, depth, 5 * np.eye(2), 7 * np.eye(2)
    )
    assert with_maps == pytest.approx(rate / (25 * 49), rel=1e-14)


@pytest.mark.parametrize(
    ("r", "sigma"), [(1e200, 1.0), (1.0, 0.0), (1e100, 1e200), (1.0, 1e-310)]
)
def test_a_curvature_that_is_no_positive_number_gives_no_learning_rate(r, sigma):
    with pytest.raises(ValueError, match="must give a positive, finite L"):
        descent.largest_stable_learning_rate([[r]], [[sigma]], 2)


@pytest.mark.parametrize(
    ("R", "Sigma", "message"),
    [
        (np.eye(2), np.eye(3), r"Sigma must be 2 x 2 like the columns of R, got"),
        (np.eye(2), np.ones((2, 3)), "Sigma must be a square matrix"),
    ],
)
def test_no_step_size_comes_from_matrices_that_do_not_fit(R, Sigma, message):
    with pytest.raises(ValueError, match=message):
        descent.largest_stable_learning_rate(R, Sigma, 2)
