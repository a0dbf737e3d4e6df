"""The counterexamples of docs/theory/errata.md in exact integers and fractions.

See its table. At the end, the printed bounds as functions.
"""

import itertools
import math
from fractions import Fraction as F

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from identity_matters import paper
from identity_matters.linear import gradient_attacks, model
from identity_matters.linear.factorization import factorize
from identity_matters.memorize import memorize
from tests.measured import reference
from tests.tables import by_name

PI_BELOW = F(333, 106)
PI_ABOVE = F(22, 7)


def exp_bounds(x, terms=60) -> tuple[F, F]:
    """Rational bounds of e^x for 0 <= x < terms.

    A partial sum, and that plus a geometric remainder.
    """
    x = F(x)
    series = sum(x**j / math.factorial(j) for j in range(terms))
    return series, series + x**terms / math.factorial(terms) / (1 - x / terms)


def fractions(*rows):
    """Vectors of fractions, one per row."""
    return np.array([[F(entry) for entry in row] for row in rows])


def square(a) -> F:
    return (a * a).sum(axis=-1)


def test_without_a_positive_determinant_the_bound_promises_the_impossible():
    assert 2 * PI_ABOVE / 7 == F(44, 49) < 1 < 2 * PI_BELOW / 6
    assert float(2 * PI_BELOW / 7) < paper.theorem_2_1_bound_iclr2017(0.0, 7) < 44 / 49


def test_whole_numbers_of_layers_miss_the_bound_and_the_polar_form_does_not():
    # q layers that make half a turn have norm 2 sin(pi / 2q): its square is 2 at q = 2,
    # and 2 - sqrt(2) at q = 4. diag(-1.001, -1), l = 6: gamma = log 1.001 < 1/1000, and
    # sqrt(3 gamma pi) < 1/10.
    gamma = F(1, 1000)
    assert 3 * gamma * PI_ABOVE < F(1, 100)
    bound = (PI_ABOVE + 3 * gamma + 2 * F(1, 10)) / 3
    assert bound**2 < 2
    assert math.sqrt(2) / paper.theorem_2_1_bound_iclr2017(math.log(1.001), 6) > 1.27
    # -I_2, l = 9: (2 - sqrt 2) > (2 pi / 9)^2, as 2 - bound^2 > sqrt 2.
    remainder = 2 - (2 * PI_ABOVE / 9) ** 2
    assert remainder > 0 and remainder**2 > 2
    for R, depth in ((np.diag([-1.001, -1.0]), 6), (-np.eye(2), 9)):
        gamma = math.log(np.abs(R).max())
        norm = np.linalg.norm(factorize(R, depth), 2, axis=(1, 2)).max()
        assert norm <= (math.pi + 3 * gamma) / depth
        assert norm <= paper.theorem_2_1_bound_iclr2017(gamma, depth)


@by_name(
    {
        "form": "iclr2017",
        "max_sigma": 2,
        "layers": (0,),
        "R": 2,
        "Sigma": 2,
        "left": 16,
        "right": 32,
    },
    {
        "form": "iclr2017",
        "max_sigma": 1,
        "layers": (F(-1, 2), F(-1, 2)),
        "R": 1,
        "Sigma": 1,
        "left": F(9, 8),
        "right": F(9, 4),
    },
    {
        "form": "v3",
        "max_sigma": 2,
        "layers": (0,),
        "R": 2,
        "Sigma": 2,
        "left": 16,
        "right": 32,
    },
)
def test_the_printed_gradient_bounds_fail(
    form, max_sigma, layers, R, Sigma, left, right
):
    """By hand, and by automatic differentiation.

    The points are the smallest of the lattice and of the runs.
    """
    factors = [1 + a for a in layers]
    E = math.prod(factors) - R
    others = [math.prod(factors[:i] + factors[i + 1 :]) for i in range(len(factors))]
    excess = E**2 * Sigma
    tau = max(abs(F(a)) for a in layers)
    depth = len(layers)
    exponent = {"iclr2017": depth - 1, "v3": 2 * depth - 2}[form]
    assert sum((2 * E * Sigma * other) ** 2 for other in others) == left
    assert 4 * depth * (1 - tau) ** exponent * Sigma**2 * excess == right > left
    assert 4 * depth * (1 - tau) ** (2 * depth - 2) * Sigma * excess == left
    lattice = {"max_depth": 3, "max_integer": 4, "max_sigma": max_sigma}
    point = gradient_attacks.smallest_scalar_counterexample(form, **lattice)
    assert (tuple(point.a), point.R, point.Sigma) == (layers, R, Sigma)
    A = jnp.array([[[float(a)]] for a in layers])
    value, gradient = jax.value_and_grad(model.excess_risk)(
        A, jnp.array([[float(R)]]), jnp.array([[float(Sigma)]])
    )
    assert (float(value), float(jnp.sum(gradient**2))) == (excess, left)
    metrics = reference(f"gradient_bound/{form}").summary["metrics"]
    prefix = "smallest" if max_sigma == 2 else "smallest_with_sigma_1"
    assert metrics[f"{prefix}_right_hand_side"] == right
    assert metrics[f"{prefix}_squared_gradient"] == left


def test_the_order_of_factors():
    second = np.array([[1, 1], [0, 1]])
    third = np.array([[1, 0], [1, 1]])
    error = third @ second

    def excess(entry):
        first = np.array([[1 + entry, 0], [0, 1]])
        return int(np.sum((third @ second @ first) ** 2))

    assert (excess(1), excess(-1)) == (13, 5)
    assert (2 * third.T @ second.T @ error)[0, 0] == 6  # as printed
    assert (2 * second.T @ third.T @ error)[0, 0] == F(13 - 5, 2) == 4
    A = jnp.array([[[0.0, 0], [0, 0]], [[0, 1], [0, 0]], [[0, 0], [1, 0]]])
    assert jax.grad(model.excess_risk)(A, jnp.zeros((2, 2)), jnp.eye(2))[0, 0, 0] == 4


def test_the_constant_is_the_variance_of_the_noise():
    outcomes = list(itertools.product((-2, 2), (-1, 1)))
    risk_at_R = F(sum((3 * x - (3 * x + xi)) ** 2 for x, xi in outcomes), len(outcomes))
    assert risk_at_R == 1 != F(sum(x * x for x, _ in outcomes), len(outcomes))


def assert_the_midpoint_cannot_move(a, rho):
    """a[0] is the midpoint of a[2] and a[3], which stay.

    Squared norms are within rho of 1.
    """
    assert (abs(square(a) - 1) <= rho).all()
    # The two moves are a basis of the plane, so V has rank 2, and V relu = 0 only where
    # relu = 0. Then both units are <= 0 at a[2] and a[3], and by convexity at their
    # midpoint a[0].
    assert (a[0] == (a[2] + a[3]) / 2).all()
    return min(square(a[i] - a[j]) for i in (0, 1) for j in range(4) if i != j)


def test_without_the_square_no_block_moves_these_points():
    rho = F(1, 10)
    a = fractions(
        (0, F(19, 20)), (0, -1), (F(3, 10), F(19, 20)), (F(-3, 10), F(19, 20))
    )
    assert square(a).tolist() == [F(361, 400), 1, F(397, 400), F(397, 400)]
    # The least squared distance: distances are at least 3 rho', but their squares are
    # not.
    assert assert_the_midpoint_cannot_move(a, rho) == (3 * rho) ** 2 < 2 * rho


def test_the_constant_two_is_sharp():
    rho = F(32, 81)
    a = fractions((0, F(7, 9)), (0, -1), (F(8, 9), F(7, 9)), (F(-8, 9), F(7, 9)))
    assert square(a).tolist() == [1 - rho, 1, 1 + rho, 1 + rho]
    assert assert_the_midpoint_cannot_move(a, rho) == 2 * rho


def test_one_bias_for_all_units_fails_and_a_bias_for_each_does_not():
    rho = F(1, 4)
    a = fractions((1, F(1, 2)), (1, F(-1, 2)))
    b = fractions((2, 5), (-3, 7))
    assert square(a).tolist() == [1 + rho] * 2
    assert 3 * rho <= square(a[0] - a[1]) < 6 * rho

    def moves(bias):
        """V relu(U h + s) at both points.

        There U = a, and unit i alone would move a_i to b_i.
        """
        return np.maximum(a @ a.T + bias, F(0)) @ (
            (b - a) / (square(a) + bias)[:, None]
        )

    common = -(1 - 2 * rho)
    bias_of_each = -a[0] @ a[1]
    assert a[0] @ a[1] + common == F(1, 4) and bias_of_each == F(-3, 4)
    assert (a[1] + moves(common)[1] - b[1] == (b[0] - a[0]) / 3).all()
    assert (a + moves(bias_of_each) == b).all()
    # The margin is at least (D - 2 rho') / 2 at rational points of the plane, for any
    # D.
    lattice = fractions(*itertools.product([F(x, 8) for x in range(-10, 11)], repeat=2))
    shell = lattice[abs(square(lattice) - 1) <= rho]
    margins = square(shell)[:, None] - shell @ shell.T
    assert (margins >= (square(shell[:, None] - shell) - 2 * rho) / 2).all()


def test_the_separations_of_the_chain():
    for rho in (F(n, 100) for n in range(1, 200)):
        given = rho * (1 - rho / 3)
        assert (given >= 2 * rho / 3) == (rho <= 1)  # the printed step
        assert (given > 2 * rho / 3) == (rho < 1)  # what a bias for each unit needs
        assert given < 3 * rho / 3  # what Lemma B.1 as printed needs
    # A unit vector q and z with |z|^2 = <q, z> = 1 - rho' have squared distance rho',
    # not 3 rho'.
    rho = F(1, 10)
    inner = 1 - F(1, 10)
    assert 1 + (1 - rho) - 2 * inner == rho
    assert 1 + (1 - rho) - 2 * (1 - F(3, 2) * rho) == 2 * rho


def chi_square_tail(dof, half) -> F:
    """e^half P(chi^2_dof > 2 half) for even dof, by the Poisson sum."""
    return sum(F(half) ** j / math.factorial(j) for j in range(dof // 2))


def test_ten_log_n_over_rho_squared_is_too_narrow():
    n = 100
    rho = 2
    k = paper.theorem_3_2_width(n, rho)
    # log 100 is above 4.4 and below 4.8, so 2.5 log 100 rounds up to 12.
    assert k == 12 and exp_bounds(F(44, 10))[1] < 100 < exp_bounds(F(48, 10))[0]
    low = k * (1 - F(rho, 3)) / 2
    high = k * (1 + F(rho, 3)) / 2
    assert (low, high) == (2, 10)
    above_low = chi_square_tail(k, low)
    above_high = chi_square_tail(k, high)
    assert (above_low, above_high) == (F(109, 15), F(4433, 3))
    inside = above_low / exp_bounds(2)[0] - above_high / exp_bounds(10)[1]
    assert inside < F(917, 1000) and inside**n < F(2, 10000)


def test_what_a_bias_for_each_unit_needs_of_the_width():
    """What P10 says is true: of the distances of points, and of surrogate labels."""
    for rho in (F(n, 50) for n in range(1, 201)):
        e = rho / (2 + rho)
        assert rho * (1 - e) == 2 * e
    for e in (F(n, 200) for n in range(1, 91)):
        # A unit vector q and z, |z|^2 within e of 1, with <q, z> = t |z|:
        # |q - z|^2 > 2 e, that is (1 + |z|^2 - 2 e)^2 > 4 t^2 |z|^2.
        t_squared = (1 - F(3, 2) * e) ** 2 / (1 + e)
        for z_squared in (1 + e * F(n, 10) for n in range(-10, 11)):
            assert (1 + z_squared - 2 * e) ** 2 > 4 * t_squared * z_squared
        assert t_squared / 2 >= e**2 / 4 - e**3 / 6
    e = F(46, 100)
    assert (1 - F(3, 2) * e) ** 2 / (1 + e) / 2 < e**2 / 4 - e**3 / 6


def test_standard_normal_entries_do_not_keep_norms():
    # P(chi^2_12 <= 5/3) is 1 - e^(-5/6) times the sum.
    half = F(5, 6)
    assert 1 - chi_square_tail(12, half) / exp_bounds(half)[1] < F(3, 10000)


def share_of_close_pairs(k) -> F:
    """P(<q, q'> >= 1/2) of random unit vectors in R^k, k odd.

    The density is proportional to (1 - t^2)^((k - 3) / 2).
    """
    power = (k - 3) // 2

    def integral(t):
        terms = (
            (-1) ** j * math.comb(power, j) * F(t) ** (2 * j + 1)
            for j in range(power + 1)
        )
        return sum(term / (2 * j + 1) for j, term in enumerate(terms))

    return (integral(1) - integral(F(1, 2))) / (integral(1) - integral(-1))


def test_random_unit_vectors_come_closer_than_printed():
    for r, k in ((2, 3), (100, 19)):
        assert exp_bounds(F(k, 4))[0] > r  # k > 4 log r
    assert share_of_close_pairs(3) == F(1, 4)
    # The measure of the cap in P10, with t = 1/2.
    for k in (3, 5, 19, 51):
        cap = F(1, 2) * F(3, 4) ** ((k - 1) // 2)
        assert share_of_close_pairs(k) <= cap < 1 / exp_bounds(F(k, 8))[1]
    share = share_of_close_pairs(19)
    pairs = math.comb(100, 2)
    assert share == F(106384445, 2**33) and 61 < pairs * share < 62
    # Chebyshev, for pairwise independent events: P(none) <= (1 - p) / (N p).
    assert (1 - share) / (pairs * share) < F(17, 1000)


@pytest.mark.slow
def test_the_last_block_has_no_skip():
    network = memorize(np.eye(10), np.arange(10), width=8).network
    assert network.output_U.shape == (10, 8) and network.output_V.shape == (10, 10)
    # h_l + T(h_l) is undefined
    assert network.output_U.shape[1] != network.output_V.shape[0]


def test_parameter_counts():
    """`test_published_counts` in tests/nets/test_nets.py counts the nets themselves."""

    def stage(before, width, blocks):
        return 9 * (before * width + (2 * blocks - 1) * width**2)

    cifar = [3**2 * 3 * 16] + [
        stage(b, c, 9) for b, c in ((16, 64), (64, 128), (128, 256))
    ]
    assert cifar == [432, 635_904, 2_580_480, 10_321_920] and sum(cifar) == 13_538_736
    assert paper.NUMBERS["cifar_parameters_text"].value == 13_590_000
    widths = ((64, 64), (64, 128), (128, 256), (256, 512))
    for blocks, count in {(3, 4, 6, 3): 21_095_616, (5, 5, 6, 6): 35_693_760}.items():
        stages = [stage(*width, b) for width, b in zip(widths, blocks, strict=True)]
        assert 7**2 * 3 * 64 + sum(stages) == count
    assert paper.NUMBERS["imagenet_parameters"].value == 35_700_000


def test_printed_bounds_by_hand():
    assert paper.theorem_2_1_bound_iclr2017(0.0, 2) == pytest.approx(math.pi)
    # gamma = pi / 3: 2 (2 sqrt(pi))^2 / 8 = pi
    assert paper.theorem_2_1_bound_iclr2017(math.pi / 3, 8) == pytest.approx(math.pi)
    assert paper.theorem_2_1_bound_v3(math.pi / 3, 5) == pytest.approx(math.pi)
    assert paper.theorem_2_1_bound_psd(2.0, 12) == pytest.approx(0.5)
    point = {"depth": 3, "tau": 0.5, "sigma_min": 1.0, "excess": 1.0}
    assert paper.gradient_bound_iclr2017(**point) == 12 * 0.25
    assert paper.gradient_bound_v3(**point) == 12 * 0.0625
    # 10 log(7) / 4 = 4.86 and 10 log(8) / 4 = 5.20, rounded up.
    assert [paper.theorem_3_2_width(n, 2.0) for n in (7, 8)] == [5, 6]


def few_numbers(**changed):
    sizes = {"examples": 9, "features": 2, "num_classes": 2, "group_points": 3}
    return paper.few_numbers(**{**sizes, **changed})


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (lambda: paper.theorem_2_1_bound_v3(-1.0, 4), "gamma must be 0 or more"),
        (lambda: paper.theorem_2_1_bound_psd(1.0, -4), "depth must be at least 1"),
        (lambda: paper.theorem_2_1_bound_iclr2017(math.nan, 4), "gamma must be one"),
        (lambda: paper.theorem_2_1_bound_v3(np.ones(2), 4), "gamma must be one number"),
        (lambda: paper.theorem_2_1_bound_v3(1.0, 2.5), "depth must be a whole number"),
        (lambda: paper.theorem_3_2_width(10, 0.0), "rho must be above 0, got 0.0"),
        (lambda: paper.theorem_3_2_width(10, 1e-200), "rho must be from 1e-150 to"),
        (lambda: paper.theorem_3_2_width(10, 1e200), r"to 1e\+150, got 1e\+200"),
        (lambda: few_numbers(width=5), "width must be at least 6, got 5"),
        (lambda: few_numbers(examples=-1), "examples must be at least 1, got -1"),
        (lambda: few_numbers(features=2.5), "features must be a whole number"),
    ],
)
def test_bounds_of_the_paper_refuse_what_their_formulas_are_not_for(state, message):
    with pytest.raises(ValueError, match=message):
        state()
