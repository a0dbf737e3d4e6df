"""What a matrix may be.

Nothing that holds more than numbers is converted in silence.
"""

import re

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import scipy.sparse

from identity_matters import linear, memorize, nets
from identity_matters.array_types import jit_of_array_trees
from identity_matters.checks import (
    check_whole,
    plain_array,
    real_array,
    real_number,
    square_matrix,
)
from identity_matters.linear import model as linear_model
from identity_matters.linear import sampled
from identity_matters.memorize import network
from identity_matters.relu import critical_points, feature_bound, origin
from identity_matters.relu import model as relu_model

I2 = np.eye(2)


class Subclass(np.ndarray):
    """A stand-in for the arrays of unyt and of astropy, which subclass ndarray."""


class Quantity:
    """A stand-in for pint's.

    It is no ndarray, has units, converts itself and drops them.
    """

    units = property(lambda self: "metre")

    def __array__(self, dtype=None, copy=None):
        return I2


class Elsewhere:
    """A stand-in for a tensor on another device."""

    def __array__(self, dtype=None, copy=None):
        raise RuntimeError("copy the tensor to host memory first\nand a long story")


# What is refused -> a part of the message.
REFUSED = {
    "masked": (np.ma.array(I2, mask=I2 > 0), "got a MaskedArray"),
    "masked, nothing hidden": (np.ma.array(I2), "got a MaskedArray"),
    "masked rows": (
        [np.ma.array([1.0, 0.0], mask=[0, 1]), [0.0, 1.0]],
        "got a MaskedArray",
    ),
    "masked entry": ([[1.0, np.ma.masked], [0.0, 1.0]], "got a MaskedConstant"),
    "subclass": (I2.view(Subclass), "got a Subclass"),
    "quantity": (Quantity(), "got a Quantity"),
    "quantities": ([Quantity(), Quantity()], "got a Quantity"),
    "elsewhere": (Elsewhere(), "copy the tensor to host memory first"),
    "ragged": ([[1.0, 0.0], [1.0]], "must be an array of numbers"),
    "sparse": (scipy.sparse.eye(2), "dtype object"),
    "objects": (I2.astype(object), "dtype object"),
    "none": (None, "got None"),
    "text": ([["1", "0"], ["0", "1"]], "dtype <U1"),
    "dates": (np.zeros((2, 2), "datetime64[s]"), "dtype datetime64"),
    "records": (np.zeros((2, 2), [("a", float)]), "dtype"),
    "booleans": (I2 > 0, "dtype bool"),
    "complex": (I2.astype(complex), "dtype complex128"),
    "complex list": ([[1.0, 1j], [0.0, 1.0]], "dtype complex128"),
    "nan": ([[1.0, np.nan], [0.0, 1.0]], "got M[0, 1] = nan"),
    "infinity": ([[1.0, 0.0], [-np.inf, 1.0]], "got M[1, 0] = -inf"),
    # Longdouble is float64 on some platforms; there the infinity is NumPy's own.
    "beyond float64": (I2 * np.longdouble("1e400"), "got M[0, 0] = inf"),
    "empty": (np.zeros((0, 0)), "must not be empty"),
}
ACCEPTED = {
    "array": I2,
    "list": [[1, 0], [0, 1]],
    "rows": [np.array([1.0, 0.0]), jnp.array([0.0, 1.0])],
    "matrix": np.matrix(I2),
    "jax": jnp.eye(2),
    "integers": I2.astype(np.int8),
    "bfloat16": I2.astype(ml_dtypes.bfloat16),
    "longdouble": I2.astype(np.longdouble),
    "other byte order": I2.astype(">f8"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_is_not_a_matrix_of_finite_real_numbers_is_refused_in_one_line(kind):
    value, part = REFUSED[kind]
    with pytest.raises(ValueError) as error:
        square_matrix("M", value)
    message = str(error.value)
    assert message.startswith("M must ") and part in message
    assert "\n" not in message


@pytest.mark.parametrize("kind", ACCEPTED)
def test_kinds_of_numbers_become_float64(kind):
    matrix = square_matrix("M", ACCEPTED[kind])
    assert type(matrix) is np.ndarray and matrix.dtype == np.float64
    np.testing.assert_array_equal(matrix, I2)


def test_plain_arrays_keep_their_dtype_and_their_nan():
    array = plain_array("x", np.array([1.0, np.nan], np.float32))
    assert array.dtype == np.float32 and np.isnan(array[1])


def test_shapes_and_numbers():
    with pytest.raises(
        ValueError, match=r"^M must be a square matrix, got shape \(2, 3\)$"
    ):
        square_matrix("M", np.ones((2, 3)))
    with pytest.raises(ValueError, match=r"^w must have 1 axis, got shape \(2, 2\)$"):
        real_array("w", I2, axes=1)
    assert real_number("r", np.float32(0.5)) == 0.5
    for value in ("1", np.nan, None, True, 1j):
        said = re.escape(f"r must be one finite real number, got {value!r}")
        with pytest.raises(ValueError, match=f"^{said}$"):
            real_number("r", value)
    with pytest.raises(ValueError, match=r"^r must be one number, got shape \(1,\)$"):
        real_number("r", [1.0])


def test_a_whole_number_of_more_than_64_bits_is_refused_in_one_short_line():
    # Python itself refuses to print more than 4,300 digits.
    for value in (2**63, 10**400, -(10**400), 10**5000, -(10**5000)):
        with pytest.raises(
            ValueError, match=r"depth must be less than 2\^63"
        ) as refusal:
            check_whole("depth", value)
        assert len(str(refusal.value)) < 80
    assert check_whole("depth", 2**63 - 1) == 2**63 - 1


@pytest.mark.parametrize("name", ["best of all", ["best"], np.array(["svd", "psd"]), 1])
@pytest.mark.parametrize(
    "call",
    [
        lambda name: linear.factorize(I2, 4, method=name),
        lambda name: linear.gradient_lower_bound(I2[None], I2, I2, form=name),
        lambda name: memorize.memorize(I2, [0, 1], width=1, method=name),
        lambda name: nets.make_net(name, num_classes=2),
    ],
)
def test_what_is_no_name_of_a_choice_is_told_the_names(call, name):
    with pytest.raises(ValueError, match=r" must be one of \w+, [\w, ]+, got "):
        call(name)


BLOCKS = relu_model.Blocks(np.full((1, 2, 2), 0.1), np.full((1, 2, 2), 0.1), None)
PROBLEM = relu_model.Problem(x=I2, y=I2, A=I2, B=I2)
NETWORK = network.Network(
    input_map=I2,
    U=I2[None],
    V=I2[None],
    s=np.zeros((1, 2)),
    output_U=I2,
    output_V=I2,
    output_s=np.zeros(2),
)
# A function, and its arguments: arrays, or named tuples of them.
COMPILED = [
    (linear.product, [I2[None]]),
    (linear.max_spectral_norm, [I2[None]]),
    (linear.excess_risk, [I2[None], I2, I2]),
    (linear.excess_risk_and_gradient, [I2[None], I2, I2]),
    (lambda A: linear_model.clip_singular_values(A, 0.5), [I2[None]]),
    (sampled.forward, [I2[None], I2]),
    (sampled.mean_loss, [I2[None], I2, I2]),
    (sampled.spectral_norm_bounds, [I2[None]]),
    (relu_model.forward, [BLOCKS, PROBLEM]),
    (relu_model.risk, [BLOCKS, PROBLEM]),
    (relu_model.risk_and_gradient, [BLOCKS, PROBLEM]),
    (relu_model.linear_outputs, [I2[None], I2]),
    (feature_bound.coefficient, [BLOCKS, PROBLEM]),
    (critical_points.strictly_dead, [jax.tree.map(lambda x: x[None], BLOCKS), PROBLEM]),
    (memorize.forward, [NETWORK, I2]),
]


@pytest.mark.parametrize(("function", "arguments"), COMPILED)
def test_the_byte_order_of_other_machines_is_no_other_number(function, arguments):
    """JAX reads such bytes as they are once it has compiled for these shapes."""
    function(*arguments)
    function(*arguments)
    for i, argument in enumerate(arguments):
        swapped = jax.tree.map(lambda x: x.astype(">f8"), argument)
        others = [*arguments[:i], swapped, *arguments[i + 1 :]]
        with pytest.raises(TypeError, match=r"got >f8; convert it, as by .*float64\)$"):
            function(*others)
    masked = jax.tree.map(np.ma.array, arguments[-1])
    with pytest.raises(ValueError, match="must be a plain array of numbers"):
        function(*arguments[:-1], masked)


def test_what_jax_has_no_type_for_is_said():
    for function, argument in (
        (linear.product, I2[None].astype(np.longdouble)),
        (jit_of_array_trees(jnp.sum), I2.astype(np.longdouble)),
    ):
        with pytest.raises(TypeError, match=r"as by \w+\.astype\(np\.float64\)"):
            function(argument)
    with pytest.raises(TypeError, match="A must be a NumPy or JAX array, got a None"):
        linear.product(None)


def test_float64_is_taken_where_it_is_also_the_longest_float(monkeypatch):
    """As on Macs with processors of Apple's."""
    monkeypatch.setattr(np, "longdouble", np.float64)
    assert linear.max_spectral_norm(I2[None]) == 1


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (relu_model.max_norm, BLOCKS._replace(s=np.ones((1, 2)))),
        (origin.risk_at_origin, PROBLEM),
    ],
)
def test_functions_of_numpy_drop_no_mask(function, arguments):
    for name, array in arguments._asdict().items():
        masked = arguments._replace(**{name: np.ma.array(array, mask=True)})
        with pytest.raises(ValueError, match="must be a plain array of numbers"):
            function(masked)


def test_functions_of_numpy_say_that_jax_must_not_trace_them():
    for function in (
        lambda R: linear.factorize(R, 4),
        lambda R: linear.norm_lower_bound(R, 4),
        lambda R: linear.gradient_lower_bound(I2[None] / 2, R, I2),
        lambda R: memorize.memorize(R, [0, 1], width=1),
        lambda U: relu_model.max_norm(BLOCKS._replace(U=U[None])),
        lambda x: origin.risk_at_origin(PROBLEM._replace(x=x)),
        lambda U: origin.second_order_form(BLOCKS._replace(U=U[None]), PROBLEM),
    ):
        with pytest.raises(ValueError, match=r"outside of jax\.jit, jax\.vmap and"):
            jax.jit(function)(I2)
