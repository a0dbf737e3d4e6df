"""What a user gets from the package by name, and what it costs to import."""

import inspect
import pydoc
import sys

import pytest

import identity_matters
from identity_matters import linear, memorize
from tests import forked

NUMPY_ALONE = """
import sys
import identity_matters
R = [[-1.0, 0.0], [0.0, -1.0]]
A = identity_matters.linear.factorize(R, 8)
identity_matters.linear.norm_lower_bound(R, 8)
identity_matters.linear.check_target(R)
heavy = ("jax", "optax", "flax", "orbax", "matplotlib")
print([name for name in heavy if name in sys.modules])
print(identity_matters.linear.product(A).shape, "jax" in sys.modules)
"""


def test_numpy_functions_of_linear_nets_load_no_jax():
    environment = {"JAX_ENABLE_X64": "1", "PYTHONPATH": str(forked.ROOT)}
    finished = forked.shell(sys.executable, "-c", NUMPY_ALONE, **environment)
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.splitlines() == ["[]", "(2, 2) True"]


@pytest.mark.parametrize(
    "package", [identity_matters, linear, memorize], ids=lambda p: p.__name__
)
def test_every_public_name_is_there(package):
    assert set(package.__all__) <= set(dir(package))
    for name in package.__all__:
        assert getattr(package, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'factorise'"):
        _ = package.factorise


@pytest.mark.parametrize(
    "function",
    [linear.factorize, linear.norm_lower_bound, linear.check_target, memorize.memorize],
    ids=lambda function: function.__name__,
)
def test_types_are_shown_by_name(function):
    """`ArrayLike` is a union of 400 characters if it is not."""
    page = pydoc.plain(pydoc.render_doc(function))
    # From Python 3.13 on, the signature takes several lines.
    shown, _, _ = page.partition(function.__doc__.splitlines()[0])
    assert "ArrayLike" in shown and "Union" not in shown
    assert len(str(inspect.signature(function))) < 330
