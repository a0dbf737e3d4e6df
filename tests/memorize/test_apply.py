"""Running a network that memorises: which precision, inputs and labels are refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from identity_matters.memorize import few_numbers, retrieval
from identity_matters.memorize.construct import Memorized, apply, memorize, verify
from identity_matters.memorize.network import Network, forward
from identity_matters.memorize.paper_method import separation

X = np.arange(12.0).reshape(6, 2) ** 2
Y = np.array([0, 1, 2, 0, 1, 2])
NETWORKS = {
    "blocks": (lambda: memorize(X, Y)[0], {}),
    "few_numbers": (
        lambda: few_numbers.memorize_with_few_numbers(X, Y, group_points=2)[0],
        {"run": few_numbers.forward},
    ),
    "retrieval": (
        lambda: retrieval.memorize_by_retrieval(X, Y)[0],
        {"run": retrieval.forward},
    ),
}


@pytest.fixture(scope="module")
def float32():
    return memorize(X.astype(np.float32), Y)


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("name", NETWORKS)
def test_a_float64_network_is_refused_where_jax_has_no_64_bits(name, stored):
    make, run = NETWORKS[name]
    network = make()
    if stored:  # as from a file
        network = jax.tree.map(np.asarray, network)
    assert verify(network, X, Y, **run).errors == 0
    with jax.enable_x64(False):
        for use in (apply, verify):
            labels = [Y] if use is verify else []
            with pytest.raises(TypeError, match=r"is float64, .*jax_enable_x64"):
                use(network, X, *labels, **run)


def test_close_points_are_told_apart_or_refused():
    """In float32 all of these are 1."""
    x = 1 + np.arange(40)[:, None] * 1e-9
    y = np.random.default_rng(0).integers(0, 3, 40)
    memorized = memorize(x, y)
    assert memorized.certificate.holds
    stored = Network(*map(np.asarray, memorized.network))
    with jax.enable_x64(False), pytest.raises(TypeError, match="jax_enable_x64"):
        Memorized(stored, memorized.certificate).predict(x)
    np.testing.assert_array_equal(memorized.predict(x), y)


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (np.nan, r"x must be finite, but x\[4\] holds NaN or infinity"),
        (-np.inf, r"x must be finite, but x\[4\] holds NaN or infinity"),
        (1e300, "1e\\+300 overflow float32"),
        (1j, "x must hold real numbers, got complex128"),
    ],
)
def test_inputs_that_are_no_numbers_of_the_network_have_no_label(float32, bad, reason):
    x = X.astype(type(bad))
    x[4, 1] = bad
    for use in (float32, float32.predict, lambda x: verify(float32.network, x, Y)):
        with pytest.raises(ValueError, match=reason):
            use(x)


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (Y[:1], "y must be 6 integers, one for each example"),
        (Y[:, None], r"y must be 6 integers, .*\(6, 1\); pass y\[:, 0\]$"),
        (np.eye(3, dtype=int)[Y], "y must be 6 integers, one for each example"),
        (Y[0], "y must be 6 integers, one for each example"),
        (Y.astype(float), "y must hold integers, got dtype float64; number the"),
        (list("abcabc"), "y must hold numbers, got dtype <U1; number the classes"),
    ],
    ids=["one", "column", "one-hot", "number", "float", "names"],
)
def test_labels_other_than_one_integer_a_row_are_refused(float32, bad, reason):
    with pytest.raises(ValueError, match=reason):
        verify(float32.network, X, bad)


def test_anything_but_a_network_for_this_forward_pass_is_named(float32):
    with pytest.raises(
        TypeError, match=r"network must be the network itself, .* got a"
    ):
        verify(float32, X, Y)
    for name in ("few_numbers", "retrieval"):
        make, run = NETWORKS[name]
        network = make()
        with pytest.raises(
            TypeError, match=rf"memorize.{name} is run by the `forward`"
        ):
            apply(network, X)
        assert apply(network, X, **run).shape == (6, 3)


@pytest.mark.parametrize("name", ["few_numbers", "retrieval"])
def test_a_forward_pass_refuses_networks_of_other_kinds(float32, name):
    make, run = NETWORKS[name]
    with pytest.raises(TypeError, match=r"^network must be a Network, got a \w+: the"):
        forward(make(), X)
    with pytest.raises(TypeError, match=r"^network must be a \w+, got a Network: the"):
        run["run"](float32.network, X)


@pytest.mark.parametrize("name", list(NETWORKS))
def test_a_forward_pass_takes_rows_of_its_features_alone(name):
    """One input of two numbers was two inputs for some, and no shape for others."""
    make, run = NETWORKS[name]
    network = make()
    run = run.get("run", forward)
    for wrong in (X[0], X[:, :1], X.reshape(3, 4)):
        with pytest.raises(ValueError, match=r"x must have shape \[n, 2\] for this"):
            run(network, wrong)


@pytest.mark.parametrize(
    "dtype", [np.uint8, np.int64, np.float16, jnp.bfloat16, np.float64]
)
def test_a_forward_pass_converts_other_types_as_apply_does(float32, dtype):
    x = np.abs(X).astype(dtype)
    outputs = forward(float32.network, x)
    assert outputs.dtype == np.float32
    np.testing.assert_array_equal(outputs, apply(float32.network, x))


def test_float32_inputs_keep_small_entries_in_a_float64_network():
    """2^-30 next to 1 is below the grid of a float32 input map, which dropped it."""
    x = np.array([[1, 0], [1, 2.0**-30], [1, 2.0**-29]], np.float32)
    y = np.array([0, 1, 2])
    network, certificate = memorize(x, y, dtype=np.float64)
    assert certificate.holds
    outputs = forward(network, x)
    np.testing.assert_array_equal(outputs.argmax(axis=1), y)
    np.testing.assert_array_equal(outputs, apply(network, x))


def test_masked_labels_are_refused(float32):
    masked = np.ma.array(Y, mask=Y == 1)
    with pytest.raises(ValueError, match="y must be a plain array of numbers"):
        verify(float32.network, X, masked)


def test_images_and_single_examples_are_told_how_to_become_rows(float32):
    images = X.reshape(6, 1, 2, 1)
    for use in (float32.predict, separation, lambda x: memorize(x, Y)):
        with pytest.raises(ValueError, match=r"x.reshape\(len\(x\), -1\) has a row"):
            use(images)
        with pytest.raises(ValueError, match=r"got \(2,\); x\[None\] is one row"):
            use(X[0])
    np.testing.assert_array_equal(float32.predict(images.reshape(6, -1)), Y)
