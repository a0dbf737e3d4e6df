"""Learning rates as functions of the number of updates made so far."""

import math
from collections.abc import Callable, Sequence

import jax.numpy as jnp
import numpy as np

SCHEDULES = ("step", "cosine", "constant")


def learning_rate_schedule(
    *,
    schedule: str,
    learning_rate: float,
    steps: int,
    boundary_steps: Sequence[int] = (),
    decay_factor: float = 0.1,
    warmup_steps: int = 0,
) -> Callable:
    """The learning rate of each update; an optax schedule.

    The paper (section 4) divides 0.05 by 10 at steps 30,000 and 50,000; cosine and warm-up are our
    additions.

    >>> rate = learning_rate_schedule(
    ...     schedule="step", learning_rate=0.05, steps=60_000, boundary_steps=(30_000, 50_000)
    ... )
    >>> [round(float(rate(step)), 6) for step in (0, 29_999, 30_000, 50_000)]
    [0.05, 0.05, 0.005, 0.0005]

    Args:
      schedule: "step" multiplies by `decay_factor` from each of `boundary_steps` on; "cosine" falls
        from `learning_rate` after the warm-up to 0 after the last step, along half a cosine;
        "constant" stays.
      learning_rate: the largest rate.
      steps: updates of the whole run.
      boundary_steps: ascending; those at or past `steps` are never reached, which is allowed so
        that a run can be cut short.
      warmup_steps: the first updates take 1/warmup_steps, 2/warmup_steps, ... of the rate.
    Returns:
      ``schedule(step: i32[]) -> f32[]``, where `step` counts the updates before this one.
    Raises:
      ValueError: an argument that will not do, with its value.
    """
    _check(schedule, learning_rate, steps, boundary_steps, decay_factor, warmup_steps)
    boundaries = np.asarray(boundary_steps, np.int32)
    # Rounded once, from float64, so that 0.05 divided by 10 twice is the float32 nearest to 0.0005.
    powers = np.arange(len(boundaries) + 1)
    rates = np.asarray(learning_rate * np.float64(decay_factor) ** powers, np.float32)

    def rate(step):
        step = jnp.asarray(step, jnp.int32)
        value = jnp.asarray(rates[0])
        if schedule == "step":
            passed = jnp.sum(step >= boundaries, dtype=jnp.int32)
            value = jnp.asarray(rates)[passed]
        elif schedule == "cosine":
            done = (step - warmup_steps).astype(jnp.float32) / np.float32(steps - warmup_steps)
            half_turn = np.float32(np.pi) * jnp.clip(done, 0, 1)
            value = value * (1 + jnp.cos(half_turn)) / 2
        if warmup_steps:
            value = value * jnp.minimum((step + 1).astype(jnp.float32) / warmup_steps, 1)
        return value

    return rate


def _check(schedule, learning_rate, steps, boundary_steps, decay_factor, warmup_steps) -> None:
    if schedule not in SCHEDULES:
        raise ValueError(f"schedule must be one of {', '.join(SCHEDULES)}, got {schedule!r}")
    if not 0 < learning_rate < math.inf:
        raise ValueError(f"learning_rate must be above 0 and finite, got {learning_rate}")
    if steps < 1:
        raise ValueError(f"steps must be at least 1, got {steps}")
    if not 0 <= warmup_steps < steps:
        raise ValueError(f"warmup_steps must be from 0 to below steps={steps}, got {warmup_steps}")
    if not 0 < decay_factor <= 1:
        raise ValueError(f"decay_factor must be above 0 and at most 1, got {decay_factor}")
    if boundary_steps and schedule != "step":
        raise ValueError(
            f"boundary_steps belong to the schedule 'step', got {tuple(boundary_steps)} for"
            f" {schedule!r}"
        )
    ascending = all(a < b for a, b in zip((0, *boundary_steps), boundary_steps, strict=False))
    if not ascending:
        raise ValueError(f"boundary_steps must ascend from 1 or more, got {tuple(boundary_steps)}")
