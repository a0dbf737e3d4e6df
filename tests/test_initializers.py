import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from identity_matters.models import initializers
from identity_matters.models.initializers import Distribution

KERNEL = (3, 3, 16, 64)


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        # k = 3, c = 64: 1 / (9 * 64), 1 / (3 * 8), sqrt(2 / 576); then 144 inputs.
        (initializers.paper, Distribution("normal", 1 / 576)),
        (initializers.standard, Distribution("normal", 1 / 24)),
        (initializers.normal_fan_out, Distribution("normal", math.sqrt(2) / 24)),
        (initializers.uniform_unit_scaling, Distribution("uniform", 1 / math.sqrt(48))),
        (initializers.torch_linear, Distribution("uniform", 1 / 12)),
    ],
)
def test_rules_by_hand(rule, expected):
    found = rule(KERNEL)
    assert found.kind == expected.kind
    assert found.scale == pytest.approx(expected.scale, rel=1e-12)


def test_initial_scale_multiplies():
    assert initializers.paper(KERNEL, 3.0).scale == pytest.approx(3 / 576)
    assert initializers.standard(KERNEL, 3.0).scale == pytest.approx(3 / 24)


def test_base_code_projection_is_within_a_tenth():
    """RECIPES of the base code: +-0.108 at 256 inputs."""
    assert initializers.uniform_unit_scaling((256, 10)).scale == pytest.approx(0.108, abs=5e-4)


def shapes():
    def leaf(*shape):
        return jax.ShapeDtypeStruct(shape, jnp.float32)

    return {
        "a": {"kernel": leaf(3, 3, 20, 20), "bias": leaf(20)},
        "b": {"kernel": leaf(3, 3, 20, 20), "scale": leaf(20)},
        "c": {"kernel": leaf(60, 60), "mean": leaf(4), "var": leaf(4)},
        "none": {},
    }


def rule(path, shape):
    assert shape == shapes()[path[0]]["kernel"].shape
    return {
        "a": Distribution("normal", 2.0),
        "b": Distribution("normal", 0.5),
        "c": Distribution("uniform", 3.0),
    }[path[0]]


def test_draw_follows_the_rules(key):
    drawn = initializers.draw(key, shapes(), rule)
    assert jax.tree.structure(drawn) == jax.tree.structure(shapes())
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(drawn))
    # 3,600 numbers each: the deviation is known to 1/sqrt(7200) = 1.2 %, the mean to 1.7 % of it.
    for name, deviation in (("a", 2.0), ("b", 0.5), ("c", math.sqrt(3))):
        kernel = np.asarray(drawn[name]["kernel"])
        assert kernel.std() == pytest.approx(deviation, rel=0.05)
        assert abs(kernel.mean()) < 0.07 * deviation
    c = np.asarray(drawn["c"]["kernel"])
    assert -3 <= c.min() < -2.98 and 2.98 < c.max() < 3
    for path, value in ((("a", "bias"), 0), (("b", "scale"), 1), (("c", "mean"), 0)):
        np.testing.assert_array_equal(drawn[path[0]][path[1]], np.float32(value))
    np.testing.assert_array_equal(drawn["c"]["var"], np.ones(4, np.float32))


def test_kernels_and_keys_are_independent(key):
    first = initializers.draw(key, shapes(), rule)
    again = initializers.draw(key, shapes(), rule)
    other = initializers.draw(jax.random.key(1), shapes(), rule)
    np.testing.assert_array_equal(first["a"]["kernel"], again["a"]["kernel"])
    for one, two in (
        (first["a"]["kernel"], first["b"]["kernel"]),
        (first["a"]["kernel"], other["a"]["kernel"]),
        (first["c"]["kernel"], first["a"]["kernel"]),
    ):
        # Correlation of 3,600 independent pairs: deviation 1/60.
        assert abs(np.corrcoef(np.ravel(one), np.ravel(two))[0, 1]) < 0.08


def test_draw_is_the_same_inside_jit(key):
    inside = jax.jit(lambda key: initializers.draw(key, shapes(), rule))(key)
    outside = initializers.draw(key, shapes(), rule)
    for one, two in zip(jax.tree.leaves(inside), jax.tree.leaves(outside), strict=True):
        # One fused program may round the last digit differently.
        np.testing.assert_allclose(one, two, rtol=1e-6)
