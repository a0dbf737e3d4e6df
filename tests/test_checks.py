"""What a matrix may be.

Nothing that holds more than numbers is converted in silence.
"""

import re

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import scipy.sparse

from identity_matters import linear, memorize, nets
from identity_matters.checks import (
    check_whole,
    plain_array,
    real_array,
    real_number,
    square_matrix,
)

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
    with pytest.raises(ValueError, match=r"^w must have 1 axes, got shape \(2, 2\)$"):
        real_array("w", I2, axes=1)
    assert real_number("r", np.float32(0.5)) == 0.5
    for value in ("1", np.nan, None, True, 1j):
        said = re.escape(f"r must be one finite real number, got {value!r}")
        with pytest.raises(ValueError, match=f"^{said}$"):
            real_number("r", value)
    with pytest.raises(ValueError, match=r"^r must have 0 axes, got shape \(1,\)$"):
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
