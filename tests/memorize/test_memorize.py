"""Networks that memorise: any labels and inputs, certificates, separation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from identity_matters.flops import count_parameters
from identity_matters.memorize import adaptive, certificate, construct, examples
from identity_matters.memorize.certificate import PrecisionError
from identity_matters.memorize.construct import memorize, verify
from identity_matters.memorize.descent import random_network, train
from identity_matters.memorize.examples import ConflictingLabelsError
from identity_matters.memorize.network import (
    Network,
    block_parameters,
    counting_lower_bound,
    forward,
    network_parameters,
)
from identity_matters.memorize.paper_method import AssumptionError, sufficient_width
from tests.hostile_networks import ORDERS, run_in_numpy
from tests.tables import by_name


def _points(n, features, num_classes, seed=0):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((n, features)), rng.integers(0, num_classes, n)


def _assert_fits(x, y, num_classes, width, **settings):
    network, certificate = memorize(
        x, y, num_classes, width, key=jax.random.key(1), **settings
    )
    # One plain forward pass over all inputs, not through `verify`.
    outputs = np.asarray(forward(network, np.asarray(x, network.U.dtype)), np.float64)
    error = np.abs(outputs - np.eye(num_classes)[y]).max()
    assert certificate.holds
    assert error <= certificate.output_error_bound < 0.5
    assert verify(network, x, y) == construct.Verification(0, pytest.approx(error))
    return network, certificate


@pytest.mark.slow
@pytest.mark.parametrize("width", [1, 3, 20])
def test_any_labels_at_any_width_in_float64(width):
    x, y = _points(601, 10, 5)  # a prime: the last block is never full
    network, _ = _assert_fits(x, y, 5, width)
    assert network.U.shape == (-(-601 // width), width, width)


@pytest.mark.slow
@pytest.mark.parametrize("width", [4, 8])
def test_float32_where_margins_allow_it(width):
    x, y = _points(600, 10, 5)
    network, certificate = _assert_fits(x.astype(np.float32), y, 5, width)
    assert network.U.dtype == np.float32
    assert certificate.precision == "float32"
    assert certificate.margin_over_rounding > 1


@pytest.mark.slow
@by_name(
    {
        "n": 1,
        "features": 3,
        "num_classes": 1,
        "width": 1,
    },  # one example, one class, one unit
    {
        "n": 2,
        "features": 1,
        "num_classes": 4,
        "width": 8,
    },  # n < k, fewer features than units
    {"n": 3, "features": 5, "num_classes": 20, "width": 4},  # r > n
    {
        "n": 50,
        "features": 1,
        "num_classes": 1,
        "width": 1,
    },  # r = 1: the output has to be 1 everywhere; k = d = 1
    {
        "n": 40,
        "features": 1,
        "num_classes": 3,
        "width": 5,
    },  # points on a line in five dimensions
    {
        "n": 30,
        "features": 50,
        "num_classes": 30,
        "width": 2,
    },  # every point has its own class
)
def test_small_and_lopsided_shapes(n, features, num_classes, width):
    x, _ = _points(n, features, num_classes, seed=n)
    _assert_fits(x, np.arange(n) % num_classes, num_classes, width)


@pytest.mark.parametrize(
    "shift, scale", [(0.0, 1e-6), (0.0, 1e6), (50.0, 1.0), (-3.0, 1e3)]
)
def test_unnormalised_and_uncentred_inputs(shift, scale):
    x, y = _points(300, 6, 3)
    _assert_fits(scale * (x + shift), y, 3, 4)


@pytest.mark.slow
def test_a_zero_input_and_integer_inputs():
    _assert_fits(np.zeros((1, 3)), np.array([2]), 3, 2)
    x = np.random.default_rng(0).permutation(256).astype(np.uint8).reshape(128, 2)
    network, _ = _assert_fits(x, np.arange(128) % 4, 4, 8)
    assert network.U.dtype == np.float32


@pytest.mark.slow
def test_duplicates_with_equal_labels_take_one_unit():
    x, y = _points(21, 4, 3)
    network, _ = _assert_fits(
        np.concatenate([x[:7], x]), np.concatenate([y[:7], y]), 3, 3
    )
    assert len(network.U) == 7


def test_duplicates_with_different_labels_are_named():
    x, _ = _points(10, 4, 2)
    x[3, 0] = 0.0
    x[8] = x[3]
    x[8, 0] = -0.0  # equal to 0.0
    message = "inputs 3 and 8 are identical but have labels 1 and 0"
    with pytest.raises(ConflictingLabelsError, match=message) as caught:
        memorize(x, np.arange(10) % 2, 2, 3, key=jax.random.key(0))
    assert caught.value.indices == (3, 8)
    assert isinstance(caught.value, ValueError)


@pytest.mark.slow
def test_inputs_and_labels_are_enough():
    x, y = _points(40, 4, 3)
    memorized = memorize(x.tolist(), y.tolist())
    # width 8, and the classes that the labels have
    assert memorized.network.U.shape == (5, 8, 8)
    assert memorized(x).shape == (40, 3)
    np.testing.assert_array_equal(memorized.predict(x), y)
    network, certificate = memorized
    assert certificate.holds and network.U.dtype == np.float64
    with_same_key = memorize(x, y, 3, key=jax.random.key(0)).network
    np.testing.assert_array_equal(network.V, with_same_key.V)
    other = memorize(x, y, 3, key=jax.random.key(1)).network
    assert not np.allclose(network.input_map, other.input_map)


def test_inputs_that_become_equal_in_float32_count_as_duplicates():
    x = np.array([[1.0], [1.0 + 1e-12]])
    with pytest.raises(
        ValueError, match=r"0 and 1 are equal in float32 .* use float64"
    ):
        memorize(x, np.array([0, 1]), 2, 1, key=jax.random.key(0), dtype=np.float32)
    _assert_fits(x, np.array([0, 1]), 2, 1)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"x": np.array([[1.0], [np.nan]])}, r"x\[1\] holds NaN"),
        (
            {"x": np.zeros((0, 1)), "y": np.zeros(0, int)},
            r"n and d at least 1, got \(0, 1\)",
        ),
        ({"x": np.zeros(2)}, r"shape \[n, d\]"),
        ({"y": np.array([0, 5])}, r"0 ... 1, but y\[1\] = 5"),
        (
            {"y": np.array([0.0, 1.0])},
            r"y must hold integers, got dtype float64; number the classes 0 ... r - 1",
        ),
        (
            {"y": ["cat", "dog"]},
            r"got dtype <U3; number the classes 0 .*, as np.unique\(y, return_inverse",
        ),
        ({"x": np.array([[1j], [2.0]])}, "real numbers, got complex128"),
        ({"num_classes": 0}, "num_classes must be at least 1, got 0"),
        ({"width": 1.5}, "width must be a whole number, got 1.5"),
        ({"width": 10**9}, "width 1000000000 for 2 inputs .* GB of"),
        (
            {"y": np.array([0, 20_000]), "num_classes": None},
            r"up to 20000: number the classes 0 ... r - 1, .* or pass num_classes",
        ),
        (
            {"x": np.array([[1e200], [2.0]]), "dtype": "float32"},
            r"1e\+200 overflow float32: .*64",
        ),
        ({"dtype": np.float16}, "float32 or float64, got float16"),
        ({"dtype": "single precision"}, "float32 or float64, got 'single precision'"),
        (
            {"x": np.ma.array([[1.0], [2.0]], mask=[[0], [1]])},
            "x must be .*, got a MaskedArray",
        ),
        (
            {"y": np.ma.array([0, 1], mask=[0, 1])},
            "y must be a plain array .*, got a MaskedArray",
        ),
        (
            {"key": 0},
            r"key must be one typed PRNG key, such as jax.random.key\(0\), got 0",
        ),
        ({"tile_points": 0}, "tile_points must be at least 1, got 0"),
        ({"tile_points": -5}, "tile_points must be at least 1, got -5"),
        ({"tile_points": 1.5}, "tile_points must be a whole number, got 1.5"),
        (
            {"x": np.array([[2**62], [2**62 + 1]]), "dtype": np.float64},
            "0 and 1 are equal in float64 .*: subtract an offset, which",
        ),
    ],
)
def test_bad_input_is_named(changes, message):
    arguments = {
        "x": np.array([[1.0], [2.0]]),
        "y": np.array([0, 1]),
        "num_classes": 2,
        "width": 1,
    }
    with pytest.raises(ValueError, match=message):
        memorize(**{"key": jax.random.key(0), **arguments, **changes})


def test_a_network_beyond_the_memory_of_a_container_is_refused(monkeypatch):
    monkeypatch.setattr(examples, "memory_bytes", lambda: 700e6)
    x = np.zeros((20_000, 2))
    x[:, 0] = np.arange(20_000)
    with pytest.raises(
        ValueError, match=r"takes 0.96.* GB of the 0.7 GB that this process may use"
    ):
        memorize(x, np.arange(20_000) % 2, width=500)


@pytest.mark.slow
@pytest.mark.parametrize("width", [1, 8])
@pytest.mark.parametrize(
    "dtype, too_small, sizes",
    [
        # At the small exponents, errors of subnormal inputs exceed the usual rounding
        # errors.
        ("float32", (-44, -38, -37), (-33, -20, 20, 36, 38)),
        ("float64", (-322, -307, -306), (-300, -160, 160, 307)),
    ],
)
@pytest.mark.compiled_for_users
def test_inputs_of_any_size_are_right_in_ieee_arithmetic_or_refused(
    dtype, too_small, sizes, width
):
    rng = np.random.default_rng(0)
    for exponent in (*too_small, *sizes):
        x = (
            rng.uniform(-3, 3, (60, 5)).astype(np.longdouble)
            * np.longdouble(10) ** exponent
        )
        x = x.astype(dtype)
        y = rng.integers(0, 4, 60)
        if exponent in too_small:
            with pytest.raises(
                PrecisionError, match=r"^entries of x below .* scale the inputs up"
            ):
                memorize(x, y, 4, width, dtype=dtype)
            continue
        network, certificate = memorize(x, y, 4, width, dtype=dtype)
        assert certificate.holds and verify(network, x, y).errors == 0
        # NumPy keeps subnormal numbers.
        _, outputs = run_in_numpy(network, x, ORDERS[0])
        error = np.abs(outputs - np.eye(4)[y]).max()
        assert error <= certificate.output_error_bound < 0.5, exponent


@pytest.mark.slow
def test_float64_inputs_work_where_jax_has_no_64_bits():
    x, y = _points(50, 4, 3)
    with jax.enable_x64(False):
        memorized = memorize(x, y)
        assert memorized.network.V.dtype == np.float32
        np.testing.assert_array_equal(memorized.predict(x), y)
        with pytest.raises(TypeError, match="jax_enable_x64"):
            memorize(x, y, dtype="float64")


@pytest.mark.slow
def test_too_coarse_arithmetic_is_refused_but_on_request_and_float64_holds():
    # On a line, 1,000 points leave gaps of n^-2, below what float32 resolves.
    x, y = _points(1000, 5, 3)
    with pytest.raises(PrecisionError, match=r"float32 .* use dtype float64"):
        memorize(x, y, 3, 1, dtype=np.float32)
    network, certificate = memorize(x, y, 3, 1, dtype=np.float32, certified=False)
    assert not certificate.holds and verify(network, x, y).max_abs_error > 0
    _assert_fits(x, y, 3, 1)
    # For points that lie on a line themselves, the message does not advise a larger
    # width.
    with pytest.raises(
        PrecisionError, match=r"float64, .* over more dimensions than it has"
    ):
        memorize(*_points(4000, 1, 4), 4, 8, dtype=np.float32)


@pytest.mark.parametrize(("method", "width"), [("adaptive", 2), ("paper", 512)])
def test_what_is_certified_is_the_network_to_the_last_bit(monkeypatch, method, width):
    """Not numbers of float64 that are rounded only afterwards."""
    certified = {}
    certify = certificate.certify

    def note(plan, h, labels, solution, dtype):
        certified.update(plan._asdict(), **solution._asdict())
        return certify(plan, h, labels, solution, dtype)

    monkeypatch.setattr(certificate, "certify", note)
    # The paper's lemmas ask for points of norm 1, far from one another.
    x = np.eye(5, dtype=np.float32)
    network, _ = memorize(x, np.arange(5) % 3, width=width, method=method)
    for name in ("U", "s", "V", "output_U", "output_s", "output_V"):
        np.testing.assert_array_equal(getattr(network, name), certified[name])


@pytest.mark.slow
def test_verification_sees_a_wrong_network():
    x, y = _points(64, 5, 3)
    network, _ = memorize(x, y, 3, 4, key=jax.random.key(0))
    wrong = y.copy()
    wrong[[5, 60]] = (wrong[[5, 60]] + 1) % 3
    # the second is in a partial batch
    result = verify(network, x, wrong, batch_examples=50)
    assert result.errors == 2
    assert result.max_abs_error == pytest.approx(1.0, abs=1e-6)
    # A label that is no class is wrong, whatever the output: -1 is not the last class.
    assert verify(network, x, y - 3 * (y == 2)).errors == np.sum(y == 2) > 0
    assert verify(network, x, y + 3).errors == 64
    broken = network._replace(V=network.V.at[0, 0, 0].set(np.nan))
    assert verify(broken, x, y).errors == 64
    # With one block fewer, the points of that block are not moved.
    shorter = network._replace(U=network.U[:-1], s=network.s[:-1], V=network.V[:-1])
    assert verify(shorter, x, y).errors == 4
    # Outputs of (1/2, 1/2, 0) are 1/2 off for labels 0 and 1, and argmax says 0 for
    # both: 1/2 is too much. With a little more for class 0, each 0 is right.
    constant = network._replace(
        output_U=0 * network.output_U, output_s=jnp.ones_like(network.output_s)
    )
    for more, errors in ((0.0, 64), (1e-9, np.sum(y != 0))):
        outputs = jnp.diag(jnp.array([0.5 + more, 0.5 - more, 0.0]))
        assert verify(constant._replace(output_V=outputs), x, y).errors == errors


@pytest.mark.slow
def test_units_leave_all_other_points_alone():
    """Each block moves its own k points onto surrogate labels.

    It changes no bit of the others.
    """
    x, y = _points(50, 6, 3)
    network, _ = memorize(x, y, 3, 4, key=jax.random.key(0))
    h = np.asarray(network.input_map @ x.T)
    moved_points = []
    for U, s, V in zip(network.U, network.s, network.V, strict=True):
        after = np.asarray(h + V @ np.maximum(U @ h + s[:, None], 0))
        moved = np.flatnonzero((after != h).any(0))
        moved_points += moved.tolist()
        h = after
    assert sorted(moved_points) == list(range(50))
    # All points end at three surrogate labels, up to rounding.
    for label in range(3):
        ends = h[:, y == label]
        assert np.ptp(ends, axis=1).max() < 1e-9


def test_blocks_avoid_points_that_disturb_each_other():
    # On a line from the viewpoint every nearer point disturbs every farther one. From
    # two rays a block can take one point each; on a single line it has to take points
    # that disturb others.
    z = np.array([[4.0, 0.0], [3.0, 0.0], [0.0, 3.5], [0.0, 2.5]])
    order = adaptive.fill_blocks(z, 2, tolerance=1e-3)
    assert sorted(order[:2]) == [0, 2] and sorted(order[2:]) == [1, 3]
    line = np.arange(1.0, 7.0)[:, None] * np.ones((1, 2))
    assert adaptive.fill_blocks(line, 3, tolerance=1e-3).tolist() == [5, 4, 3, 2, 1, 0]


@pytest.mark.slow
def test_paper_method_fits_nearly_orthogonal_inputs():
    x, y = _points(300, 1024, 4)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    network, _ = _assert_fits(x, y, 4, 256, method="paper")
    assert len(network.U) == 2
    # Lemma B.1: row i of U is a_i.
    a = np.asarray(network.input_map @ x[:256].T).T
    np.testing.assert_allclose(network.U[0], a, atol=1e-12)
    # Each unit has its own bias: the larger its point, the higher its threshold.
    order = np.argsort(np.sum(a**2, axis=1))
    assert np.all(np.diff(np.asarray(network.s)[0][order]) <= 0)


def test_paper_method_says_which_assumption_fails():
    x, y = _points(100, 50, 4)
    with pytest.raises(
        AssumptionError, match=r"Assumption 3\.1.*, but \|x\[\d+\]\| = "
    ):
        memorize(x, y, 4, 64, key=jax.random.key(0), method="paper")
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    with pytest.raises(
        AssumptionError, match=r"> 2 rho' .* a width of \d+ satisfies it"
    ):
        memorize(x, y, 4, 64, key=jax.random.key(0), method="paper")


@pytest.mark.slow
def test_descent_trains_the_same_network():
    x, y = _points(24, 5, 3)
    start = random_network(jax.random.key(0), 24, 5, 3, 4)
    built, _ = memorize(x.astype(np.float32), y, 3, 4, key=jax.random.key(0))
    assert jax.tree.map(np.shape, start) == jax.tree.map(np.shape, built)
    settings = {"learning_rate": 0.05, "momentum": 0.9, "batch_examples": 24}
    settings |= {"steps": 40, "steps_per_evaluation": 20}
    curve = train(start, x, y, key=jax.random.key(1), **settings)
    assert [point["step"] for point in curve] == [20, 40]
    assert curve[1]["loss"] < curve[0]["loss"]
    # A diverged run has no labels at all, whatever argmax makes of NaN.
    diverged = train(
        start, x, y, key=jax.random.key(1), **settings | {"learning_rate": 1e30}
    )
    assert [point["errors"] for point in diverged] == [24, 24]


def _random_network(depth: int) -> Network:
    rng = np.random.default_rng(1)

    def normal(*shape: int) -> jax.Array:
        return jnp.asarray(rng.standard_normal(shape))

    return Network(
        input_map=normal(2, 3),
        U=normal(depth, 2, 2),
        s=normal(depth, 2),
        V=normal(depth, 2, 2),
        output_U=normal(4, 2),
        output_s=normal(4),
        output_V=normal(4, 4),
    )


def test_memory_of_the_forward_pass_does_not_grow_with_depth():
    x = np.ones((1000, 3))

    def temporary_bytes(depth):
        compiled = forward.lower(_random_network(depth), x).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    assert temporary_bytes(400) <= temporary_bytes(4) + 1000


def test_products_ask_for_full_precision():
    text = forward.lower(_random_network(2), np.ones((1, 3))).as_text()
    dots = [line for line in text.splitlines() if "dot_general" in line]
    assert dots and all("HIGHEST" in line for line in dots)


@pytest.mark.parametrize("n, width, num_classes", [(7, 3, 2), (5, 8, 4), (1, 1, 1)])
def test_formula_and_counting_agree(n, width, num_classes):
    x = np.random.default_rng(0).standard_normal((n, 6))
    y = np.arange(n) % num_classes
    network, _ = memorize(x, y, num_classes, width, key=jax.random.key(0))
    expected = network_parameters(n, 6, num_classes, width)
    assert count_parameters(network) == expected
    blocks = count_parameters((network.U, network.s, network.V))
    assert blocks == block_parameters(n, width)


def test_counting_lower_bound_by_hand():
    # CIFAR-10: 6,250 blocks of 2 * 64 + 8 = 136 numbers; at width 1 each point has u, v
    # and s.
    assert (block_parameters(50_000, 8), block_parameters(50_000, 1)) == (
        850_000,
        150_000,
    )
    # The 1024 labelings of 10 examples need 10 bits: a third of a float32.
    assert counting_lower_bound(10, 2, 32) == 10 / 32
    assert counting_lower_bound(8, 16, 32) == 1.0


@pytest.mark.parametrize(
    ("count", "message"),
    [
        (lambda: network_parameters(10, 3, 2, 0), "width must be at least 1, got 0"),
        (lambda: network_parameters(-10, 3, 2, 4), "n must be at least 1, got -10"),
        (lambda: block_parameters(10.5, 4), "n must be a whole number, got 10.5"),
        (lambda: counting_lower_bound(10, 0, 32), "num_classes must be at least 1"),
        (lambda: counting_lower_bound(10, 2, 0), "bits_per_parameter must be at least"),
        (lambda: sufficient_width(10, 2, -1.0), "rho must be above 0, got -1.0"),
        (lambda: sufficient_width(0, 2, 1.0), "n must be at least 1, got 0"),
    ],
)
def test_counts_of_no_network_are_refused(count, message):
    with pytest.raises(ValueError, match=message):
        count()
