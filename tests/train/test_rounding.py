"""Nets that are saved with rounded weights."""

import jax
import numpy as np
import pytest

from identity_matters import train
from identity_matters.train import rounding

STEP = 0.25


def test_multiples_by_hand():
    large = np.full(rounding.LEAST_SIZE, 0.3, np.float32)
    far = np.full(rounding.LEAST_SIZE, 128 * STEP, np.float32)
    arrays = {
        "large": large,
        "small": large[:-1],
        "far": far,
        "wide": large.astype(np.float64),
    }
    stored, rounded = rounding.to_multiples(arrays, STEP)
    assert rounded == ["large"]
    assert stored["large"].dtype == np.int8
    np.testing.assert_array_equal(stored["large"], 1)
    restored = rounding.from_multiples(stored, step=STEP, rounded=rounded)
    assert restored["large"].dtype == np.float32
    np.testing.assert_array_equal(restored["large"], 0.25)
    for name in ("small", "far", "wide"):
        np.testing.assert_array_equal(restored[name], arrays[name])


def test_what_is_loaded_is_the_net_with_rounded_weights(trained, tmp_path, monkeypatch):
    monkeypatch.setattr(rounding, "LEAST_SIZE", 1)
    step = 2.0**-6
    trained.save(tmp_path, rounded_to=step)
    loaded = train.load(tmp_path)
    assert loaded.net == trained.net
    for saved, given in zip(
        jax.tree.leaves(loaded.variables),
        jax.tree.leaves(trained.variables),
        strict=True,
    ):
        assert saved.dtype == given.dtype
        np.testing.assert_array_equal(saved, np.rint(np.asarray(given) / step) * step)


@pytest.mark.parametrize(
    "step", [0, -0.1, float("nan"), float("inf"), 1e39, 1e-50, True, "0.1"]
)
def test_other_steps_are_refused(trained, tmp_path, step):
    with pytest.raises(ValueError, match="rounded_to must be a positive number"):
        trained.save(tmp_path, rounded_to=step)
