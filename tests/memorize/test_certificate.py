"""The certificate of `memorize` (E9, E13), by hand, in fractions and under attack."""

import fractions
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from identity_matters.memorize import (
    adaptive,
    certificate,
    construct,
    input_map,
    memorize,
)
from identity_matters.memorize.certificate import PrecisionError
from identity_matters.memorize.plan import Plan, Solution
from identity_matters.memorize.rounding import gamma, round_to
from tests import hostile_networks

# Rounding differs where XLA fuses products with sums.
pytestmark = pytest.mark.compiled_for_users

DTYPES = ("float32", "float64")


@pytest.mark.parametrize("dtype", DTYPES)
def test_products_of_the_input_map_have_few_enough_bits(dtype):
    precision = np.finfo(dtype).nmant + 1
    for features in (1, 2, 3, 4, 5, 64, 100, 784, 3072, 4096, 150_528, 2**20):
        map_bits, piece_bits, pieces = input_map.slicing(features, dtype)
        assert features * 2**map_bits * 2 ** (piece_bits - 1) <= 2**precision
        assert pieces * piece_bits > precision  # no bit of the largest entry is lost
        assert (
            map_bits >= 2
            and map_bits + pieces * piece_bits <= input_map.margin_bits(dtype)
        )
    with pytest.raises(ValueError, match="1048577 features are too many for float32"):
        input_map.slicing(2**20 + 1, "float32")


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("features", [1, 2, 65, 3072])
def test_the_input_map_has_the_same_bits_in_every_order(features, dtype):
    rng = np.random.default_rng(features)
    A_0 = input_map.round_map(rng.standard_normal((3, features)).astype(dtype))
    assert A_0.all()
    # Rows of sizes 1e-30 to 1e30, whose entries cancel each other in A_0 x.
    x = rng.standard_normal((14, features)) * 10.0 ** rng.uniform(-30, 30, (14, 1))
    x[:, -1] -= x @ A_0[0] / A_0[0, -1]
    x = x.astype(dtype)
    expected = np.asarray(input_map.project(A_0, x)).T
    for add in hostile_networks.ORDERS:
        assert np.array_equal(hostile_networks.project_in_numpy(A_0, x, add), expected)
    for rows in (1, 7):
        batches = [input_map.project(A_0, x[i : i + rows]) for i in range(0, 14, rows)]
        assert np.array_equal(np.concatenate(batches, axis=1).T, expected)
    order = rng.permutation(features)
    assert np.array_equal(
        np.asarray(input_map.project(A_0[:, order], x[:, order])).T, expected
    )
    assert _largest_share_of_error(A_0, x[:4], expected[:4]) <= 1


def _largest_share_of_error(A_0, x, h) -> float:
    """The largest error of h over what E9 allows, in fractions.

    x is rounded to a grid, then each sum of two numbers once.
    """
    unit = fractions.Fraction(float(np.finfo(x.dtype).eps)) / 2
    shares = []
    for row, h_of_row in zip(x, h, strict=True):
        exact_row = [fractions.Fraction(float(entry)) for entry in row]
        largest = max(map(abs, exact_row))
        for weights, value in zip(A_0, h_of_row, strict=True):
            exact_weights = [fractions.Fraction(float(weight)) for weight in weights]
            pairs = zip(exact_weights, exact_row, strict=True)
            exact = sum(weight * entry for weight, entry in pairs)
            allowed = unit * (abs(exact) + 2 * sum(map(abs, exact_weights)) * largest)
            error = abs(fractions.Fraction(float(value)) - exact)
            shares.append(float(error / allowed) if error else 0.0)
    return max(shares)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_grid_is_fine_enough_down_to_the_size_that_is_stated(dtype):
    """2^(beta - 2) times the least normal number; far below it, steps are too large."""
    _, piece_bits, _ = input_map.slicing(3, dtype)
    rng = np.random.default_rng(0)
    A_0 = input_map.round_map(2.0**40 * rng.standard_normal((2, 3)).astype(dtype))
    x = rng.uniform(0.5, 1, (20, 3)).astype(dtype)
    x[:, 0] = 1
    share_of_error = {}
    for doublings in (piece_bits - 2, 1):
        tiny = x * (np.finfo(dtype).tiny * np.dtype(dtype).type(2) ** doublings)
        h = np.asarray(input_map.project(A_0, tiny)).T
        share_of_error[doublings] = _largest_share_of_error(A_0, tiny, h)
    assert share_of_error[piece_bits - 2] <= 1 < share_of_error[1]


@pytest.mark.slow
def test_rounding_keeps_the_map_within_a_step_and_never_zero():
    row = np.array([[0.0, 1.0, -0.99, 1e-9, -1e-9]])
    map_bits = input_map.slicing(5, np.float64).map_bits
    rounded = input_map.round_map(row)
    step = 2.0 ** (1 - map_bits)  # the largest entry is below 2^1
    assert np.abs(rounded - row).max() <= step
    assert np.all(rounded / step % 2 == 1)
    # A map without subnormal numbers, for inputs of any size.
    for exponent in (-30, 38):
        x = np.random.default_rng(0).uniform(-3, 3, (20, 4)) * 10.0**exponent
        A_0 = np.asarray(
            memorize(x.astype(np.float32), np.arange(20) % 2).network.input_map
        )
        assert np.abs(A_0).min() >= np.finfo(np.float32).tiny


def test_subnormal_weights_are_left_out():
    tiny = float(np.finfo(np.float32).tiny)
    rounded = round_to(np.array([tiny, tiny / 2, -tiny / 2, -tiny, 0.1]), np.float32)
    assert rounded.tolist() == [tiny, 0, 0, -tiny, float(np.float32(0.1))]


def _one_point(h: float) -> tuple[Plan, Solution]:
    """One point, moved from h = 2 to q = 5 by relu(h - 1) and V = 3.

    Its output is relu(h - 4).
    """
    unit = np.ones((1, 1, 1))
    plan = Plan(
        order=np.array([0]),
        U=unit,
        s=-unit[0],
        surrogates=5 * unit[0],
        output_U=unit[0],
        output_s=np.array([-4.0]),
        point_margin=np.array([1e3]),
        surrogate_margin=np.array([1e3]),
        search_error=np.array([0.0]),
    )
    return plan, Solution(V=3 * unit, output_V=unit[0], pre_activations=(h - 1) * unit)


def test_the_bounds_of_one_point_by_hand():
    plan, solution = _one_point(2.0)
    h = np.array([[2.0]])
    y = np.array([0])
    bounds = certificate.certify(plan, h, y, solution, np.dtype(np.float32))
    u = 2.0**-24
    # |u| |h| + |s| = 3, in sums of two terms; the unit's value is 1.
    assert bounds.margin_over_rounding == pytest.approx(1 / (2 * u * 3), rel=1e-5)
    # The point lands within 3 * 6u, for the unit, and 3u (2 + 3 + 5), for the sum of h,
    # V a and -q. The output's unit: this, 2u (5 + 4), and 2u (1 + 1) for the output.
    landing = 18 * u + 30 * u
    assert bounds.output_error_bound == pytest.approx(
        landing + 18 * u + 4 * u, rel=1e-5
    )
    # V + 0.01 moves the point 0.01 too far, and the output's unit has slope 1.
    missed = solution._replace(V=solution.V + 0.01)
    assert certificate.certify(
        plan, h, y, missed, np.dtype(np.float32)
    ).output_error_bound == pytest.approx(0.01, rel=1e-2)
    # At h = 1 the unit is just not positive, but an error of 2u (1 + 1) may make it so,
    # and V = 3 multiplies that. The sum, h - q, is 3u (1 + 1) off.
    still = plan._replace(surrogates=np.ones((1, 1)), output_s=np.zeros(1))
    _, solution_there = _one_point(1.0)
    bounds = certificate.certify(
        still, np.ones((1, 1)), y, solution_there, np.dtype(np.float32)
    )
    landing_there = 3 * 4 * u + 6 * u
    assert bounds.output_error_bound == pytest.approx(
        landing_there + 2 * u + 4 * u, rel=1e-5
    )
    # An output may be off by almost 1/2, and by no more, whatever the margins.
    for miss, holds in ((0.499, True), (0.501, False)):
        missed = solution._replace(V=solution.V + miss)
        bounds = certificate.certify(plan, h, y, missed, np.dtype(np.float32))
        assert (bounds.margin_over_rounding > 1, bounds.holds) == (True, holds)
    # At any point that the unit may see: 2u (|u| 5 + |s|) = 12u.
    close = plan._replace(point_margin=np.array([15 * u]))
    ratio = certificate.certify(
        close, h, y, solution, np.dtype(np.float32)
    ).margin_over_rounding
    assert ratio == pytest.approx(15 / 12, rel=1e-4)
    # A point may also land 0.499 beyond the surrogate label: 2u (5.499 + 1) = 13u.
    missed = solution._replace(V=solution.V + 0.499)
    ratio = certificate.certify(
        close, h, y, missed, np.dtype(np.float32)
    ).margin_over_rounding
    assert ratio == pytest.approx(15 / 13, rel=1e-3)
    # A search error of 4u makes it 16u, more than the margin of 15u.
    searched = close._replace(search_error=np.array([4 * u]))
    assert not certificate.certify(searched, h, y, solution, np.dtype(np.float32)).holds
    # Around surrogate labels the point may be off by the landing, 48u, and |u| = 1.
    close = plan._replace(surrogate_margin=np.array([120 * u]))
    ratio = certificate.certify(
        close, h, y, solution, np.dtype(np.float32)
    ).margin_over_rounding
    assert ratio == pytest.approx(120 / (12 + 48), rel=1e-4)


@pytest.mark.parametrize("margin", ["point_margin", "surrogate_margin"])
def test_a_margin_that_is_no_number_is_not_certified(margin):
    plan, solution = _one_point(2.0)
    h = np.array([[2.0]])
    y = np.array([0])
    assert certificate.certify(plan, h, y, solution, np.dtype(np.float32)).holds
    unknown = plan._replace(**{margin: np.array([np.nan])})
    bounds = certificate.certify(unknown, h, y, solution, np.dtype(np.float32))
    assert math.isnan(bounds.margin_over_rounding) and not bounds.holds


def test_surrogate_labels_that_coincide_are_a_matter_of_precision():
    """Points a few steps of float32 apart, and three classes, one without examples."""
    steps = [[0, -1, -2], [-2, 0, -1], [-1, 0, 0], [-3, 2, -3], [2, 0, -1], [2, 0, 0]]
    x = (1 + 2.0**-24 * np.array(steps)).astype(np.float32)
    with pytest.raises(PrecisionError, match="float32 cannot tell the surrogate label"):
        memorize(x, np.array([1, 0, 1, 1, 1, 1]), 3, width=2)


def test_rows_of_very_different_sizes_are_refused_without_a_warning():
    x = np.array([[1e210], [-1e80], [-1e10], [-1e-140]])
    with pytest.raises(PrecisionError, match="float64 is too coarse"):
        memorize(x, np.arange(4) % 2, width=1)


def _output_error(q: float, s: list, V: list, delta: float, dtype=np.float64) -> float:
    """The bound for one class at q, with units relu(h + s_i), known to within delta."""
    plan, solution = _one_point(2.0)
    unit = np.ones((1, 1, 1))
    solved = certificate._Solved(
        plan=plan._replace(
            surrogates=q * unit[0],
            output_U=np.ones((len(s), 1)),
            output_s=np.array(s),
        ),
        solution=solution._replace(output_V=np.array([V])),
        points=unit,
        targets=unit,
        labels=np.array([0]),
        point_norms=unit[0],
        unit_norms=unit[0],
        dtype=np.dtype(dtype),
    )
    return certificate._output_error(solved, np.array([delta]))


def test_the_bound_of_the_outputs_by_hand():
    # At q = 2, relu(h - 1.9) is 0.1 and relu(h - 2.1) is 0. Both fire on a part of the
    # ball of radius 0.2, where opposite slopes do not cancel: |V a - 1| + sum |V| 0.2.
    # The last unit fires nowhere on it.
    bound = _output_error(
        2.0, s=[-1.9, -1.9, -2.1, -4.0], V=[3.0, -1.0, 2.0, 1e3], delta=0.2
    )
    assert bound == pytest.approx(0.8 + 6.0 * 0.2, rel=1e-5)
    # Both units fire on the whole ball around 5, and their slopes, 1 and -1, cancel.
    # What is left is rounding: 2u (5.5 + 1) and 2u (5.5 + 2) of the units, and of the
    # output, with 4.5 and 3.5 at the edge of the ball, 2u (4.5 + 3.5 + 1).
    u = 2.0**-24
    opposite = functools.partial(
        _output_error, q=5.0, s=[-1.0, -2.0], V=[1.0, -1.0], delta=0.5
    )
    assert opposite(dtype=np.float32) == pytest.approx(28 * u + 18 * u, rel=1e-5)
    # float64 rounds here and on the device; and the slopes are sums, which are off by
    # u (1 + 1), half of it on the ball.
    u = 2.0**-53
    assert opposite() == pytest.approx(2 * 46 * u + u, rel=1e-5, abs=0)


def test_sums_that_may_overflow_are_not_certified():
    sizes = np.array([1.0, 3e38])
    errors = certificate.sum_error(3, sizes, sizes, np.dtype(np.float32))
    assert errors[0] == pytest.approx(3 * 2.0**-24, rel=1e-5) and errors[1] == np.inf
    # m u / (1 - m u), for u = 2^-24
    assert gamma(2**23, np.float32) == 1
    assert gamma(2**24, np.float32) == math.inf


def test_each_product_and_sum_may_underflow():
    """By less than the least normal number, which a weight of 2 may multiply."""
    error = certificate.sum_error(3, np.array(0.0), np.array(2.0), np.dtype(np.float32))
    assert error == pytest.approx(12 * 3 * 2.0**-126, rel=1e-5)


@pytest.mark.parametrize("width", [2, 8])
def test_the_search_is_off_by_at_most_its_error(width):
    """Margins in blocks of one point, against exact ones.

    The bound is not much too large.
    """
    rng = np.random.default_rng(width)
    h = 3 + rng.standard_normal((300, width))
    viewpoint = adaptive.choose_viewpoint(h)
    order = np.argsort(-np.linalg.norm(h - viewpoint, axis=1))
    h = round_to(h[order], np.float32)
    surrogates = round_to(viewpoint + 0.1 * np.eye(width), np.float32)
    U, s, point_margin, surrogate_margin, error = adaptive.place_units(
        h,
        viewpoint,
        surrogates,
        width=1,
        tile_points=64,
        tolerance=0.0,
        dtype=np.dtype(np.float32),
    )
    pre_activations = np.longdouble(U) @ np.longdouble(h).T + np.longdouble(s)[:, None]
    later = np.triu(np.ones((300, 300), bool), 1)
    exact = -np.where(later, pre_activations, -np.inf).max(axis=1)
    # The search looks for the largest product of U_i and a later point, seen from the
    # viewpoint, and takes 0 if all are negative. Then its margin is only a bound, so
    # such points are left out. A pre-activation is that product plus the one of the
    # viewpoint.
    at_viewpoint = np.longdouble(s) + np.longdouble(U) @ viewpoint
    largest_product = -exact - at_viewpoint
    counted = np.flatnonzero(largest_product > 0)
    off = np.abs(point_margin - exact)[counted]
    assert len(counted) > 150
    assert (off <= error[counted]).all()
    assert (off / error[counted]).max() > 1 / 50
    at_surrogates = (
        np.longdouble(U) @ np.longdouble(surrogates).T + np.longdouble(s)[:, None]
    )
    assert np.all(surrogate_margin <= -at_surrogates.max(axis=1) + error)


HOSTILE = np.array(
    [
        [-163617, -1670659, 1467094, 215362],
        [-163616, -1670660, 1467096, 215362],
        [-163619, -1670662, 1467095, 215364],
        [-163621, -1670663, 1467095, 215364],
        [-163616, -1670661, 1467100, 215365],
        [-163620, -1670665, 1467094, 215364],
    ]
)


@pytest.mark.slow
def test_integers_along_the_kernel_have_their_labels_in_every_batch():
    """Integers that a random input map nearly sends to one point.

    Comparing two orders of summation would not show the error: a tree sum and its
    reverse agree, and both are off by more than the points differ.
    """
    y = np.arange(6) % 2
    memorized = memorize(HOSTILE, y, width=2)
    assert memorized.predict(HOSTILE).tolist() == y.tolist()
    assert [
        int(memorized.predict(HOSTILE[i : i + 1])[0]) for i in range(6)
    ] == y.tolist()
    tiled = np.tile(HOSTILE, (20, 1))
    assert memorized.predict(tiled).tolist() == np.tile(y, 20).tolist()
    error = np.abs(memorized(tiled) - np.eye(2)[np.tile(y, 20)]).max()
    assert error <= memorized.certificate.output_error_bound


@pytest.mark.slow
@pytest.mark.parametrize(
    "shape",
    [
        hostile_networks.Shape(6, 4, 2, 2, "float32"),
        hostile_networks.Shape(30, 8, 1, 2, "float64"),
        hostile_networks.Shape(9, 17, 32, 3, "float32"),
        hostile_networks.Shape(5, 784, 1, 2, "float32"),
    ],
    ids=lambda shape: f"d={shape.features}, k={shape.width}, {shape.dtype}",
)
def test_certified_networks_survive_hostile_points(shape):
    """`python -m tests.hostile_networks 20000` does the same at more sizes."""
    rng = np.random.default_rng(0)
    attacks = [
        hostile_networks.attack(memorized, x, y)
        for _, memorized, x, y in hostile_networks.certified_networks(
            shape, rng, tries=40
        )
    ]
    assert len(attacks) >= 5
    assert all(attack.same_points for attack in attacks)
    assert sum(attack.wrong_labels for attack in attacks) == 0
    assert sum(attack.beyond_the_bound for attack in attacks) == 0
    # The bound is not vacuous.
    assert max(attack.share_of_bound for attack in attacks) > 1e-3


def test_products_of_a_block_that_a_unit_must_leave_alone_by_hand():
    """All later ones, and of the earlier ones those that it is not allowed to disturb.

    With a tolerance of 1/4, a unit disturbs a point from 3/4 of its squared norm on.
    """
    # Two blocks of three points on a line, where products are easy.
    z = np.array([[4.0], [3.0], [2.0], [3.0], [-1.0], [2.0]])
    products = adaptive.same_block_products(z, width=3, tolerance=0.25)
    # The unit of 4 leaves 3 and 2 alone; that of 3 disturbs 4 and leaves 2 alone; that
    # of 2 disturbs both. In the second block only the unit of 2 disturbs a point, 3.
    assert products.tolist() == [12, 6, -np.inf, 6, -2, -2]


def test_whitening_enlarges_no_direction_beyond_a_hundred_times():
    """What varies less than that is mostly rounding error."""
    h = np.array([[1, 1e-6], [-1, 1e-6], [1, -1e-6], [-1, -1e-6]])
    np.testing.assert_allclose(
        np.abs(adaptive.whitening(h)), [[1, 0], [0, 100]], rtol=1e-9, atol=1e-9
    )


def test_the_orders_of_summation_differ():
    terms = np.random.default_rng(0).standard_normal((50, 100)).astype(np.float32)
    sums = [add(terms) for add in hostile_networks.ORDERS]
    for total in sums:
        np.testing.assert_allclose(total, terms.sum(axis=1, dtype=float), atol=1e-4)
    # The last order is that of BLAS, which may be one of the others.
    assert len({total.tobytes() for total in sums[:-1]}) == len(sums) - 1


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_attack_sees_what_is_wrong(dtype):
    """Outputs beyond the bound, wrong labels, an A_0 x that depends on the order."""
    shape = hostile_networks.Shape(20, 6, 4, 3, dtype)
    rng = np.random.default_rng(1)
    ((_, memorized, x, y),) = hostile_networks.certified_networks(shape, rng, tries=1)
    network = memorized.network

    def attack(**changed):
        wrong = jax.tree.map(jnp.asarray, network._replace(**changed))
        broken = construct.Memorized(wrong, memorized.certificate)
        return hostile_networks.attack(broken, x, y)

    assert attack(V=network.V * (1 + 1e-3)).beyond_the_bound > 0
    turned = attack(
        output_V=-network.output_V, input_map=network.input_map * (1 + 1e-3)
    )
    assert turned.wrong_labels > 0
    assert not turned.same_points
