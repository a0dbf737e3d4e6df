"""experiments/convergence.py: trials of which no problem is certified."""

import jax

from experiments.measurements import convergence as measurements


def test_where_nothing_is_certified_nothing_is_trained():
    # ||Sigma|| is about 1e150 or 1e-150 here: it cannot be squared in float64.
    trial = measurements.build(
        question="certified",
        depth=2,
        width=2,
        problems=4,
        updates=3,
        shares=(0.1, 0.2),
        sigma_condition_log10=600.0,
        singular_percent=0.0,
    )
    record = measurements.measure_certified(trial, jax.random.key(0))
    assert record == {"certified": 0, "left_the_ball": 0, "fell_too_slowly": 0}
