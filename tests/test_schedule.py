import jax
import jax.numpy as jnp
import numpy as np
import pytest

from identity_matters.training.schedule import learning_rate_schedule


def rates(steps_asked, **settings):
    schedule = learning_rate_schedule(**{"learning_rate": 0.05, "steps": 90_000, **settings})
    values = jax.jit(jax.vmap(schedule))(jnp.asarray(steps_asked, jnp.int32))
    assert values.dtype == jnp.float32
    return values.tolist()


def test_the_paper_divides_by_ten_at_30000_and_50000():
    values = rates(
        [0, 29_999, 30_000, 49_999, 50_000, 89_999],
        schedule="step",
        boundary_steps=(30_000, 50_000),
    )
    # The float32 nearest to each, not products of rounded factors.
    assert values == np.float32([0.05, 0.05, 0.005, 0.005, 0.0005, 0.0005]).tolist()


def test_constant():
    assert rates([0, 7, 89_999], schedule="constant") == [np.float32(0.05)] * 3


def test_cosine_by_hand():
    # A quarter, a third and a half of the way: (1 + cos(pi/4))/2, 3/4, 1/2 of the largest rate.
    values = rates([0, 3, 4, 6, 12], schedule="cosine", learning_rate=2.0, steps=12)
    np.testing.assert_allclose(values, [2, 1.7071068, 1.5, 1, 0], atol=1e-6)


def test_warm_up_then_cosine_over_what_is_left():
    values = rates(
        [0, 1, 3, 4, 8, 12], schedule="cosine", learning_rate=2.0, steps=12, warmup_steps=4
    )
    np.testing.assert_allclose(values, [0.5, 1, 2, 2, 1, 0], atol=1e-6)


def test_warm_up_then_steps_counted_from_the_start():
    values = rates(
        [0, 3, 4, 5], schedule="step", learning_rate=4.0, boundary_steps=(5,), warmup_steps=4
    )
    np.testing.assert_allclose(values, [1, 4, 4, 0.4], rtol=1e-6)


def test_a_short_run_may_stop_before_a_boundary():
    assert rates([9], schedule="step", steps=10, boundary_steps=(30_000,)) == [np.float32(0.05)]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"schedule": "linear"}, "schedule must be one of step, cosine, constant, got 'linear'"),
        ({"learning_rate": 0.0}, r"learning_rate must be above 0 and finite, got 0\.0"),
        ({"learning_rate": float("nan")}, "learning_rate must be above 0 and finite, got nan"),
        ({"steps": 0}, "steps must be at least 1, got 0"),
        ({"warmup_steps": 10}, "warmup_steps must be from 0 to below steps=10, got 10"),
        ({"decay_factor": 1.5}, r"decay_factor must be above 0 and at most 1, got 1\.5"),
        ({"boundary_steps": (5, 5)}, r"must ascend from 1 or more, got \(5, 5\)"),
        ({"boundary_steps": (0, 5)}, r"must ascend from 1 or more, got \(0, 5\)"),
        ({"schedule": "cosine", "boundary_steps": (5,)}, r"got \(5,\) for 'cosine'"),
    ],
)
def test_bad_settings_are_named(settings, message):
    with pytest.raises(ValueError, match=message):
        learning_rate_schedule(
            **{"schedule": "step", "learning_rate": 0.1, "steps": 10, **settings}
        )
